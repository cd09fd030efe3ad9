//! The bytes of an archive that have come and are in no part yet.

use std::collections::VecDeque;

use bytes::Bytes;
use object_store::PutPayload;

use crate::backup::index::ByteRange;
use crate::backup::ledger::Contents;

/// Bytes that are in no part yet.
#[derive(Default)]
pub(super) struct PendingBytes {
    rest: VecDeque<ArchiveMember>,
    pub(super) size: usize,
    /// Bytes of the archive up to here.
    pub(super) end: u64,
}

struct ArchiveMember {
    bytes: Bytes,
    /// Goes into the part in which the member begins.
    contents: Vec<Contents>,
}

/// A full part.
#[derive(Default)]
pub(super) struct Full {
    pub(super) bytes: PutPayload,
    /// Contents of the members that begin in it.
    pub(super) contents: Vec<Contents>,
    /// The rest of the member that ends behind it.
    pub(super) tail: Bytes,
}

impl PendingBytes {
    pub(super) fn push(&mut self, bytes: Bytes, mut contents: Vec<Contents>) {
        if !bytes.is_empty() {
            let from = self.end;
            self.end += bytes.len() as u64;
            for held in &mut contents {
                held.at = Some(ByteRange { from, to: self.end });
            }
            self.size += bytes.len();
            self.rest.push_back(ArchiveMember { bytes, contents });
        }
    }

    /// Takes exactly `size` bytes, once they are there.
    pub(super) fn take(&mut self, size: usize) -> Option<Full> {
        if self.size < size || size == 0 {
            return None;
        }
        let (mut bytes, mut full, mut lacking) = (Vec::new(), Full::default(), size);
        while lacking > 0 {
            let Some(mut member) = self.rest.pop_front() else { break };
            full.contents.append(&mut member.contents);
            if member.bytes.len() > lacking {
                full.tail = member.bytes.split_off(lacking);
                self.rest.push_front(ArchiveMember { bytes: full.tail.clone(), contents: Vec::new() });
            }
            lacking -= member.bytes.len();
            bytes.push(member.bytes);
        }
        self.size -= size;
        full.bytes = bytes.into_iter().collect();
        Some(full)
    }

    /// Takes everything.
    pub(super) fn take_rest(self) -> Full {
        let mut full = Full::default();
        let take = |mut member: ArchiveMember| {
            full.contents.append(&mut member.contents);
            member.bytes
        };
        full.bytes = self.rest.into_iter().map(take).collect();
        full
    }
}
