//! How far a list has been read.

use super::{ListError, ListedObject, PAGE};
use crate::backup::split::ListHead;

/// How often one list may continue by a new token, or restart, because its token has expired.
const EXPIRIES: u32 = 100;

/// A list in progress, between two pages.
#[derive(Default)]
pub struct ListProgress {
    begun: bool,
    pub(super) continue_token: String,
    /// Objects behind this page, if the server says so.
    pub remaining: u64,
    /// The number of objects to ask for, if objects are so large that it is below the usual number.
    pub(super) limit: Option<u32>,
    /// Bytes that a page takes, as far as known.
    pub(super) size: usize,
    expired: u32,
}

impl ListProgress {
    /// A list that another process has read up to this token.
    pub fn behind(token: &str) -> Self {
        Self { begun: true, continue_token: token.to_owned(), ..Self::default() }
    }

    /// The continue token; empty at the end.
    pub fn token(&self) -> &str {
        &self.continue_token
    }

    pub fn is_done(&self) -> bool {
        self.begun && self.continue_token.is_empty()
    }

    /// Moves on to the next page.
    pub(super) fn turn(&mut self, head: ListHead) -> Result<(), ListError> {
        if !head.continue_token.is_empty() && head.continue_token == self.continue_token {
            return Err(ListError::Astray);
        }
        self.begun = true;
        self.continue_token = head.continue_token;
        self.remaining = head.remaining.unwrap_or(0);
        Ok(())
    }

    /// Raises the limit again after a small page, because the large objects may have been passed.
    pub(super) fn widen(&mut self, items: &[Result<ListedObject, serde_json::Error>], page_size: u32) {
        let read: usize = items.iter().flatten().map(|found| found.json.len()).sum();
        if read < PAGE / 4 {
            self.limit = self.limit.map(|limit| limit.saturating_mul(2)).filter(|limit| *limit < page_size);
            self.size = self.size.min((2 * read).next_power_of_two());
        }
    }

    /// The token has expired: the server may give a token that continues with today's objects;
    /// otherwise the list restarts.
    pub(super) fn expire(&mut self, token: Option<String>) -> Result<(), ListError> {
        self.continue_token = token.unwrap_or_default();
        self.expired += 1;
        if self.expired > EXPIRIES { Err(ListError::Astray) } else { Ok(()) }
    }
}
