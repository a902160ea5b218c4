//! Publishing: committed entries become tiles and a checkpoint that strangers can read. Always behind the commit, never
//! in its way. The tree is built a second time here and must lead to the root that was signed.

use crate::cosign::Cosigned;
use crate::fault::{LogFault, storage};
use crate::keys::write_whole;
use crate::sequence::{BATCH_MAX, Commit};
use crate::storage::Storage;
use audit_tlog::{Edge, Hash, TILE_WIDTH, TilePath, encode_bundle, leaf_hash};
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;

pub(crate) const CHECKPOINT: &str = "checkpoint";
/// The newest checkpoint that a quorum of witnesses has cosigned; it may be older than the published one.
const WITNESSED: &str = "checkpoint.witnessed";
/// Partial tiles stay for this many publications, for readers that hold an older checkpoint.
const SUPERSEDED_MAX: usize = 8;
/// Longest published file: a bundle of 256 entries.
pub(crate) const PUBLISHED_BYTES_MAX: usize = TILE_WIDTH * (audit_provenance::ENTRY_BYTES_MAX + 2);

/// A published state.
#[derive(Debug, Clone)]
pub(crate) struct Published {
    pub(crate) size: u64,
    pub(crate) root: Hash,
    pub(crate) note: String,
}

/// Writes tiles, bundles and checkpoints.
pub(crate) struct Publisher {
    storage: Arc<dyn Storage>,
    edge: Edge,
    /// The bundle that is not complete.
    bundle: Vec<u8>,
    /// Complete tiles and bundles that are not written.
    full: Vec<(TilePath, Vec<u8>)>,
    /// Partial tiles of the last publications, oldest first.
    superseded: VecDeque<Vec<TilePath>>,
}

impl Publisher {
    /// Continues after the published entries: their edge, and the bundle that they left incomplete.
    pub(crate) fn new(storage: Arc<dyn Storage>, edge: Edge, bundle: Vec<u8>) -> Self {
        Self { storage, edge, bundle, full: Vec::new(), superseded: VecDeque::new() }
    }

    /// Entries taken so far.
    pub(crate) fn size(&self) -> u64 {
        self.edge.size()
    }

    /// Takes the next entry; writes complete tiles when many have gathered.
    pub(crate) fn push(&mut self, entry: &[u8]) -> Result<(), LogFault> {
        encode_bundle(&mut self.bundle, entry).map_err(|_| LogFault::EntryTooLong { length: entry.len() })?;
        for tile in self.edge.push(leaf_hash(entry)) {
            let path = TilePath { level: Some(tile.level), number: tile.number, width: TILE_WIDTH };
            if tile.level == 0 {
                let bundle = std::mem::take(&mut self.bundle);
                self.full.push((TilePath { level: None, ..path }, bundle));
            }
            self.full.push((path, tile_bytes(&tile.hashes)));
        }
        if self.full.len() > BATCH_MAX / TILE_WIDTH * 2 {
            let full = std::mem::take(&mut self.full);
            self.write(&full)?;
        }
        Ok(())
    }

    /// Publishes committed batches. A crash before the last rename leaves tiles that no checkpoint speaks of, which the
    /// next publication finds to be right and leaves as they are.
    pub(crate) fn publish(&mut self, commits: &[Commit]) -> Result<Option<Published>, LogFault> {
        let Some(last) = commits.last() else { return Ok(None) };
        for (place, commit) in commits.iter().enumerate() {
            // Batches of one segment share a file of traces; one sync, of the last of them, is enough.
            let next = commits.get(place + 1);
            if next.is_none_or(|next| !Arc::ptr_eq(&next.traces, &commit.traces)) {
                commit.traces.sync().map_err(storage("sync", crate::segment::TRACES))?;
            }
            for placed in &commit.entries {
                self.push(&placed.bytes)?;
            }
        }
        self.publish_checkpoint(last.size, last.root, &last.note).map(Some)
    }

    /// Publishes everything taken so far under a checkpoint that was signed for it.
    pub(crate) fn publish_checkpoint(&mut self, size: u64, root: Hash, note: &str) -> Result<Published, LogFault> {
        if self.edge.size() != size || self.edge.root() != root {
            return Err(LogFault::Root { size });
        }
        let mut files = std::mem::take(&mut self.full);
        let completed: Vec<TilePath> = files.iter().map(|(path, _)| *path).collect();
        let mut partial = Vec::new();
        for (level, number, hashes) in self.edge.partial_tiles() {
            let path = TilePath { level: Some(level), number, width: hashes.len() };
            if level == 0 {
                let bundle = TilePath { level: None, ..path };
                files.push((bundle, self.bundle.clone()));
                partial.push(bundle);
            }
            files.push((path, tile_bytes(hashes)));
            partial.push(path);
        }
        self.write(&files)?;
        write_whole(&*self.storage, CHECKPOINT, note.as_bytes())?;
        self.superseded.push_back(partial);
        self.forget(&completed);
        Ok(Published { size, root, note: note.to_owned() })
    }

    /// Writes cosignatures to the checkpoint that they are of, and to the witnessed one when they are enough. The tree is the
    /// one that was published, so whoever reads the files sees either state.
    pub(crate) fn publish_cosigned(&self, cosigned: &Cosigned) -> Result<(), LogFault> {
        let note = cosigned.published.note.as_bytes();
        if cosigned.published.size == self.edge.size() {
            write_whole(&*self.storage, CHECKPOINT, note)?;
        }
        if cosigned.quorum {
            write_whole(&*self.storage, WITNESSED, note)?;
        }
        Ok(())
    }

    /// Writes files that are not there: all under other names first, then renamed, then their folders synced.
    fn write(&self, files: &[(TilePath, Vec<u8>)]) -> Result<(), LogFault> {
        let mut folders = BTreeSet::new();
        let mut staged = Vec::new();
        for (path, bytes) in files {
            let path = path.to_string();
            match self.storage.read(&path, PUBLISHED_BYTES_MAX) {
                Ok(held) if held == *bytes => {
                    // Of an earlier process, which may not have come to the sync.
                    folders.insert(folder_of(&path));
                    continue;
                }
                Ok(_) => return Err(LogFault::Conflict { path }),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(storage("read", &path)(error)),
            }
            let new = format!("{path}.new");
            self.storage.write(&new, bytes).map_err(storage("write", &new))?;
            staged.push((new, path));
        }
        for (new, path) in staged {
            self.storage.rename(&new, &path).map_err(storage("rename", &new))?;
            folders.insert(folder_of(&path));
        }
        for folder in folders {
            self.storage.sync_folder(&folder).map_err(storage("sync", &folder))?;
        }
        Ok(())
    }

    /// Removes partial tiles that complete or wider ones replaced a while ago. Nothing depends on it, so nothing fails.
    fn forget(&mut self, completed: &[TilePath]) {
        while self.superseded.len() > SUPERSEDED_MAX {
            for path in self.superseded.pop_front().unwrap_or_default() {
                let kept = self.superseded.iter().any(|later| later.contains(&path));
                if !kept && let Err(error) = self.storage.remove(&path.to_string()) {
                    tracing::warn!(%path, %error, "a superseded partial tile could not be removed");
                }
            }
        }
        for path in completed {
            // Partial tiles of earlier runs are not in the list; those of this run may still be read.
            let read =
                self.superseded.iter().flatten().any(|later| (later.level, later.number) == (path.level, path.number));
            if !read && let Err(error) = self.storage.remove(&path.partial_folder()) {
                tracing::warn!(%path, %error, "superseded partial tiles could not be removed");
            }
        }
    }
}

fn folder_of(path: &str) -> String {
    path.rsplit_once('/').map_or(String::new(), |(folder, _)| folder.to_owned())
}

fn tile_bytes(hashes: &[Hash]) -> Vec<u8> {
    hashes.iter().flat_map(|hash| hash.0).collect()
}
