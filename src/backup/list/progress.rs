//! How far a list is.

use super::{ListError, ListedObject, PAGE};
use crate::backup::split::ListHead;

/// So often one list goes on by another token, or begins anew, because the one that it had has expired.
const EXPIRIES: u32 = 100;

/// A list under way: where it stands after a page.
#[derive(Default)]
pub struct Progress {
    begun: bool,
    pub(super) continue_token: String,
    /// Objects behind what was taken, where the server knows.
    pub remaining: u64,
    /// Objects to ask for, where they are so large that it is fewer than usual.
    pub(super) limit: Option<u32>,
    /// Bytes that its pages take, as far as that is known.
    pub(super) size: usize,
    expired: u32,
}

impl Progress {
    /// Of a list that another process has read so far.
    pub fn behind(token: &str) -> Self {
        Self { begun: true, continue_token: token.to_owned(), ..Self::default() }
    }

    /// For going on. Empty at the end.
    pub fn token(&self) -> &str {
        &self.continue_token
    }

    pub fn is_done(&self) -> bool {
        self.begun && self.continue_token.is_empty()
    }

    /// On to the next page.
    pub(super) fn turn(&mut self, head: ListHead) -> Result<(), ListError> {
        if !head.continue_token.is_empty() && head.continue_token == self.continue_token {
            return Err(ListError::Astray);
        }
        self.begun = true;
        self.continue_token = head.continue_token;
        self.remaining = head.remaining.unwrap_or(0);
        Ok(())
    }

    /// After a page that was small: the large objects that made pages short may be behind it.
    pub(super) fn widen(&mut self, items: &[Result<ListedObject, serde_json::Error>], page_size: u32) {
        let read: usize = items.iter().flatten().map(|found| found.json.len()).sum();
        if read < PAGE / 4 {
            self.limit = self.limit.map(|limit| limit.saturating_mul(2)).filter(|limit| *limit < page_size);
            self.size = self.size.min((2 * read).next_power_of_two());
        }
    }

    /// The page's snapshot is gone: the server gives a token for going on with today's objects, or the list begins anew.
    pub(super) fn expire(&mut self, token: Option<String>) -> Result<(), ListError> {
        self.continue_token = token.unwrap_or_default();
        self.expired += 1;
        if self.expired > EXPIRIES { Err(ListError::Astray) } else { Ok(()) }
    }
}
