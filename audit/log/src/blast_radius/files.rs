//! The files of a log as somebody reads them who is not its writer: only read, in order, never waited for.

use super::BlastRadiusError;
use crate::segment::{SEGMENT_BYTES_MAX, SEGMENTS, segment_path, traces_path};
use crate::trace_file::{TRACE_BYTES_MAX, TRACE_HEAD, first_trace};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Condvar, Mutex, PoisonError};

/// Segments that may be read before the one whose turn it is.
const AHEAD_MAX: usize = 16;
/// Read at a time from a file of traces.
const READ_BYTES: usize = 1 << 20;
/// More segments than any log has: 16 TiB of them.
const SEGMENTS_MAX: usize = 1 << 20;

/// A log's folder, up to the checkpoint.
#[derive(Debug)]
pub(crate) struct Folder {
    dir: PathBuf,
    /// First entries of the segments, in order.
    segments: Vec<u64>,
    size: u64,
}

impl Folder {
    pub(crate) fn open(dir: &Path, size: u64) -> Result<Self, BlastRadiusError> {
        let failed = |source| BlastRadiusError::File { path: SEGMENTS.to_owned(), source };
        let mut segments = Vec::new();
        for file in std::fs::read_dir(dir.join(SEGMENTS)).map_err(failed)? {
            let name = file.map_err(failed)?.file_name();
            if let Some(first) = name.to_str().and_then(|name| name.parse::<u64>().ok()).filter(|first| *first < size) {
                segments.push(first);
            }
            if segments.len() > SEGMENTS_MAX {
                return Err(failed(io::ErrorKind::InvalidData.into()));
            }
        }
        segments.sort_unstable();
        match segments.first() {
            Some(0) => Ok(Self { dir: dir.to_owned(), segments, size }),
            _ if size == 0 => Ok(Self { dir: dir.to_owned(), segments: Vec::new(), size }),
            _ => Err(BlastRadiusError::Missing { index: 0 }),
        }
    }

    pub(crate) fn segments(&self) -> usize {
        self.segments.len()
    }

    /// The entries that a segment has, of those under the checkpoint.
    pub(crate) fn range(&self, segment: usize) -> Range<u64> {
        let first = self.segments.get(segment).copied().unwrap_or(self.size);
        first..self.segments.get(segment + 1).copied().unwrap_or(self.size)
    }

    /// A segment's bytes.
    pub(crate) fn entries(&self, segment: usize) -> Result<Vec<u8>, BlastRadiusError> {
        let path = segment_path(self.range(segment).start);
        let read = || {
            let mut bytes = Vec::new();
            open(&self.dir.join(&path))?.take(SEGMENT_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
            if bytes.len() > SEGMENT_BYTES_MAX { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(bytes) }
        };
        read().map_err(|source| BlastRadiusError::File { path: path.clone(), source })
    }

    /// Tells `found` of each whole trace of the segment's entries. A file that is gone has none: traces may be dropped.
    pub(crate) fn traces(&self, segment: usize, found: impl FnMut(u64, &[u8])) -> Result<(), BlastRadiusError> {
        let range = self.range(segment);
        let path = traces_path(range.start);
        match open(&self.dir.join(&path)) {
            Ok(file) => read_traces(file, &range, found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
        .map_err(|source| BlastRadiusError::File { path, source })
    }
}

/// Opens a regular file. A pipe is refused: opening it would wait for its other end.
fn open(path: &Path) -> io::Result<File> {
    if !path.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    File::open(path)
}

/// Steps over what is damaged: its entry has no trace then, which is said.
pub(crate) fn read_traces(mut file: impl Read, ours: &Range<u64>, mut found: impl FnMut(u64, &[u8])) -> io::Result<()> {
    let (mut held, mut at, mut ended) = (Vec::new(), 0, false);
    loop {
        let left = held.len() - at;
        if left < TRACE_HEAD + TRACE_BYTES_MAX && !ended {
            held.drain(..at);
            at = 0;
            let read = file.by_ref().take(READ_BYTES as u64).read_to_end(&mut held)?;
            ended = read < READ_BYTES;
            continue;
        }
        let rest = held.get(at..).unwrap_or_default();
        if rest.len() < TRACE_HEAD {
            return Ok(());
        }
        match first_trace(rest).filter(|(index, ..)| ours.contains(index)) {
            Some((index, trace, length)) => {
                found(index, trace);
                at += length;
            }
            None => at += 1,
        }
    }
}

/// Does the work of every segment on `threads` threads, and hands the results over in order.
pub(crate) fn for_segments<T: Send>(
    folder: &Folder,
    threads: usize,
    work: impl Fn(usize) -> Result<T, BlastRadiusError> + Sync,
    mut sink: impl FnMut(usize, T) -> Result<(), BlastRadiusError>,
) -> Result<(), BlastRadiusError> {
    let (segments, next) = (folder.segments(), AtomicUsize::new(0));
    let turn = (Mutex::new(0_usize), Condvar::new());
    std::thread::scope(|scope| {
        let (sender, receiver) = sync_channel(AHEAD_MAX);
        let (work, next, turn) = (&work, &next, &turn);
        for _ in 0..threads.max(1) {
            let sender = sender.clone();
            scope.spawn(move || {
                loop {
                    let segment = next.fetch_add(1, Ordering::Relaxed);
                    let early = |taken: &mut usize| segment >= taken.saturating_add(AHEAD_MAX);
                    let taken = turn.0.lock().unwrap_or_else(PoisonError::into_inner);
                    drop(turn.1.wait_while(taken, early).unwrap_or_else(PoisonError::into_inner));
                    // Whoever took the results has left: there was an error.
                    if segment >= segments || sender.send((segment, work(segment))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut early = BTreeMap::new();
        let mut take = || {
            for wanted in 0..segments {
                let result = loop {
                    if let Some(result) = early.remove(&wanted) {
                        break result;
                    }
                    let (segment, result) = receiver.recv().map_err(|_| BlastRadiusError::Stopped)?;
                    early.insert(segment, result);
                };
                sink(wanted, result?)?;
                *turn.0.lock().unwrap_or_else(PoisonError::into_inner) = wanted + 1;
                turn.1.notify_all();
            }
            Ok(())
        };
        let taken = take();
        // Nobody waits for a turn any more, and nobody's result is taken.
        *turn.0.lock().unwrap_or_else(PoisonError::into_inner) = usize::MAX;
        turn.1.notify_all();
        drop(receiver);
        taken
    })
}
