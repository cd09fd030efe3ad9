//! The entries of a snapshot, with the bytes of their files read in advance, because a restore that
//! sends one request after the other would wait for the store most of the time.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Scope;

use bytes::Bytes;
use parking_lot::Mutex;
use rustic_core::repofile::Node;
use rustic_core::{DataId, LsOptions, RusticResult};

use crate::blob::{IndexedRepository, blob};

/// How many entries and pieces of files are read in advance. A piece has up to 8 MiB, even where it
/// takes a few bytes in the repository, so at most 64 MiB are in memory.
const WAITING: usize = 6;
/// How many pieces are read at the same time.
const READERS: usize = 3;

type Piece = Result<Bytes, String>;

enum Next {
    Entry(RusticResult<(PathBuf, Box<Node>)>),
    Piece(Receiver<Piece>),
}

/// The entries of a snapshot, in order. Dropping it ends the threads that read.
pub(crate) struct Entries(Receiver<Next>);

impl Entries {
    /// Starts to read what is below `top`. Pieces are read of the files that `is_ahead` selects.
    pub fn below<'scope>(
        repository: &'scope IndexedRepository,
        top: &Node,
        is_ahead: fn(&Node) -> bool,
        threads: &'scope Scope<'scope, '_>,
    ) -> RusticResult<Self> {
        let (wanted, jobs) = sync_channel::<(DataId, SyncSender<Piece>)>(READERS);
        let jobs = Arc::new(Mutex::new(jobs));
        for _ in 0..READERS {
            let jobs = Arc::clone(&jobs);
            threads.spawn(move || {
                loop {
                    let job = jobs.lock().recv();
                    let Ok((id, to)) = job else { return };
                    // The send fails only if nobody waits for the piece any more.
                    let _ = to.send(blob(repository, &id));
                }
            });
        }
        let (to, entries) = sync_channel(WAITING);
        let below = repository.ls(top, &LsOptions::default())?;
        threads.spawn(move || {
            for entry in below {
                let ids = match &entry {
                    Ok((_, node)) if is_ahead(node) => node.content.clone().unwrap_or_default(),
                    _ => Vec::new(),
                };
                let entry = entry.map(|(path, node)| (path, Box::new(node)));
                if to.send(Next::Entry(entry)).is_err() {
                    return;
                }
                for id in ids {
                    let (piece, comes) = sync_channel(1);
                    if wanted.send((id, piece)).is_err() || to.send(Next::Piece(comes)).is_err() {
                        return;
                    }
                }
            }
        });
        Ok(Self(entries))
    }

    /// The next entry. Pieces of the last entry that were not asked for are skipped.
    pub fn entry(&self) -> Option<RusticResult<(PathBuf, Box<Node>)>> {
        loop {
            if let Next::Entry(entry) = self.0.recv().ok()? {
                return Some(entry);
            }
        }
    }

    /// The next piece of the last entry. Must not be called more often than that entry has pieces.
    pub fn piece(&self) -> Piece {
        match self.0.recv() {
            Ok(Next::Piece(piece)) => piece.recv().unwrap_or_else(|_| Err("nobody reads it".to_owned())),
            _ => Err("nobody reads it".to_owned()),
        }
    }
}
