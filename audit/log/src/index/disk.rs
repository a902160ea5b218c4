//! A store on disk: sled 0.34, with the rules that make it safe to live with.
//!
//! It acknowledges what it has not synced, loses records in silence when its files are damaged, and panics over most other
//! damage. All of that is allowed here: the index is made anew from the segments. One tree, no value that would go to a
//! file of its own, no record that changes, a cache with a bound, and no thread of its own.

use super::store::{Record, Store, StoreFault};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Memory for what was read and is to be written.
const CACHE_BYTES: u64 = 16 * 1024 * 1024;
/// The index does not grow when less than this is free beside it: a full disk has to stop the index before the log.
const FREE_BYTES_MIN: u64 = 256 * 1024 * 1024;

/// sled lets go of a folder a moment after it was closed. Who opens a log again at once waits for that.
const LOCK_TRIES: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// sled.
pub(crate) struct DiskStore {
    db: sled::Db,
    folder: PathBuf,
}

impl DiskStore {
    /// Opens a store, or makes one. Panics over some damage: only the index's thread calls it.
    pub(crate) fn open(folder: &Path) -> Result<Self, StoreFault> {
        let config = sled::Config::new().path(folder).cache_capacity(CACHE_BYTES).flush_every_ms(None);
        // Small files in tests, so that every bit of them can be flipped.
        #[cfg(test)]
        let config = config.segment_size(SEGMENT_BYTES);
        let mut tries = 0;
        loop {
            match config.open() {
                Ok(db) => return Ok(Self { db, folder: folder.to_owned() }),
                Err(error) if tries < LOCK_TRIES && error.to_string().contains("acquire lock") => {
                    tries += 1;
                    std::thread::sleep(LOCK_PAUSE);
                }
                Err(error) => return Err(failed(error)),
            }
        }
    }
}

#[cfg(test)]
const SEGMENT_BYTES: usize = 16 * 1024;

#[expect(clippy::needless_pass_by_value, reason = "it is an argument of `map_err`")]
fn failed(error: sled::Error) -> StoreFault {
    StoreFault::Failed(error.to_string())
}

/// Removes what an earlier index left aside, and puts this one there for somebody to look at.
pub(crate) fn put_aside(folder: &Path) -> io::Result<()> {
    if folder.symlink_metadata().is_err() {
        return Ok(());
    }
    let aside = folder.with_extension("aside");
    match std::fs::remove_dir_all(&aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    std::fs::rename(folder, aside)
}

impl Store for DiskStore {
    fn insert(&mut self, records: &[Record]) -> Result<(), StoreFault> {
        let disk = rustix::fs::statvfs(&self.folder).map_err(|error| StoreFault::Failed(error.to_string()))?;
        if disk.f_bavail.saturating_mul(disk.f_frsize) < FREE_BYTES_MIN {
            return Err(StoreFault::Behind("little space is left on the disk".to_owned()));
        }
        for (key, value) in records {
            self.db.insert(key.as_slice(), value.as_slice()).map_err(failed)?;
        }
        Ok(())
    }

    fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreFault> {
        Ok(self.db.get(key).map_err(failed)?.map(|value| value.to_vec()))
    }

    fn range(&self, from: &[u8], to: &[u8], records_max: usize) -> Result<Vec<Record>, StoreFault> {
        if from >= to {
            return Ok(Vec::new());
        }
        let records = self.db.range(from..to).take(records_max);
        records.map(|record| record.map(|(key, value)| (key.to_vec(), value.to_vec())).map_err(failed)).collect()
    }

    fn flush(&mut self) -> Result<(), StoreFault> {
        self.db.flush().map(drop).map_err(failed)
    }
}
