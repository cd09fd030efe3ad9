//! How far the lists of one type are stored.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::PageId;

/// Where a later run continues the list of a type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Index of the backup's selector.
    pub selector: usize,
    /// `None`: the list is of the whole cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Continue token; empty when this list is complete.
    pub token: String,
}

/// How far the list of one type is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ListExtent {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Position>,
    /// Everything that could be read of the type is stored.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_whole: bool,
    /// The API server refused to list the type (403).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_forbidden: bool,
}

/// The pages of the lists of one type, and how far these are stored.
#[derive(Default)]
pub(super) struct TypeLedger {
    pub steps: VecDeque<ListStep>,
    pub extent: ListExtent,
    /// A page of this type had an error, so a later run must read from that page on again.
    is_frozen: bool,
}

pub(super) enum ListStep {
    Page {
        id: u64,
        /// Objects that are not stored yet.
        left: usize,
        /// `None`: the page is still being read.
        end: Option<PageEnd>,
    },
    /// All lists of the type are complete.
    Whole { is_forbidden: bool },
}

/// Where the list continues behind a page.
pub(super) enum PageEnd {
    At(Position),
    /// No list brought this page, so the list continues where it was.
    Ahead,
    /// Something on the page must be read again, and so must everything behind it.
    Again,
}

impl TypeLedger {
    /// Objects of the page that are not stored yet.
    pub fn left(&mut self, page: PageId) -> Option<&mut usize> {
        self.steps.iter_mut().find_map(|step| match step {
            ListStep::Page { id, left, .. } if *id == page.page => Some(left),
            ListStep::Page { .. } | ListStep::Whole { .. } => None,
        })
    }

    /// Advances over all stored pages, up to the first page that is not stored.
    pub fn advance(&mut self) {
        while let Some(step) = self.steps.front() {
            match step {
                ListStep::Page { left: 0, end: Some(end), .. } => match end {
                    PageEnd::At(position) if !self.is_frozen => self.extent.at = Some(position.clone()),
                    PageEnd::Again => self.is_frozen = true,
                    PageEnd::At(_) | PageEnd::Ahead => {}
                },
                ListStep::Whole { is_forbidden } => {
                    self.extent = ListExtent { at: None, is_whole: true, is_forbidden: *is_forbidden };
                }
                ListStep::Page { .. } => return,
            }
            self.steps.pop_front();
        }
    }
}
