//! Files of traces: one beside each segment. A trace may be lost, since its digest is in the log; losing one must not
//! lose another, so what is damaged is stepped over.

use crate::fault::{LogFault, storage};
use crate::segment::traces_path;
use crate::storage::{Storage, StoredFile};
use std::io;

/// Longest trace that is kept; a longer one leaves its digest in the log and nothing else.
pub(crate) const TRACE_BYTES_MAX: usize = 256 * 1024;
/// Length (u32), CRC-32C (u32), index of the sealed entry (u64).
pub(crate) const TRACE_HEAD: usize = 16;
/// What is read at a time in search of the next whole frame.
const SEARCH_BYTES: u64 = 64 * 1024;

/// Adds a frame.
pub(crate) fn encode_trace(frame: &mut Vec<u8>, index: u64, trace: &[u8]) {
    frame.reserve(TRACE_HEAD + trace.len());
    #[expect(clippy::cast_possible_truncation, reason = "callers keep traces below TRACE_BYTES_MAX")]
    frame.extend_from_slice(&(trace.len() as u32).to_be_bytes());
    let sum = crc32c::crc32c_append(crc32c::crc32c(&index.to_be_bytes()), trace);
    frame.extend_from_slice(&sum.to_be_bytes());
    frame.extend_from_slice(&index.to_be_bytes());
    frame.extend_from_slice(trace);
}

/// The trace frame at `offset`: the entry that it belongs to, the trace, and where the next one begins. `None` for a
/// torn or damaged frame and at the end.
pub(crate) fn trace_at(file: &dyn StoredFile, offset: u64) -> io::Result<Option<(u64, Vec<u8>, u64)>> {
    let read = || {
        let Some((length, sum, index)) = split_head(&file.read_at(offset, TRACE_HEAD)?) else { return Ok(None) };
        let trace = file.read_at(offset + TRACE_HEAD as u64, length)?;
        let whole = crc32c::crc32c_append(crc32c::crc32c(&index.to_be_bytes()), &trace) == sum;
        Ok(whole.then(|| (index, trace, offset + (TRACE_HEAD + length) as u64)))
    };
    match read() {
        // Torn. Any other error says nothing about what is stored.
        Err::<_, io::Error>(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        read => read,
    }
}

fn split_head(head: &[u8]) -> Option<(usize, u32, u64)> {
    let (length, rest) = head.split_first_chunk::<4>()?;
    let (sum, rest) = rest.split_first_chunk::<4>()?;
    let (index, _) = rest.split_first_chunk::<8>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok().filter(|&length| length <= TRACE_BYTES_MAX)?;
    Some((length, u32::from_be_bytes(*sum), u64::from_be_bytes(*index)))
}

/// The trace frame that begins these bytes: the entry that it belongs to, the trace, and its length with its head. `None` for
/// a torn or damaged frame.
pub(crate) fn first_trace(bytes: &[u8]) -> Option<(u64, &[u8], usize)> {
    let (length, sum, index) = split_head(bytes)?;
    let trace = bytes.get(TRACE_HEAD..TRACE_HEAD + length)?;
    let whole = crc32c::crc32c_append(crc32c::crc32c(&index.to_be_bytes()), trace) == sum;
    whole.then_some((index, trace, TRACE_HEAD + length))
}

/// Finds the traces of a segment's entries again and tells `found` of each, with its entry and offset. Steps over what
/// is damaged in between; cuts off what lies behind the last whole trace of an entry that is `ours`.
pub(crate) fn recover_traces(
    store: &dyn Storage,
    first: u64,
    ours: impl Fn(u64) -> bool,
    found: impl FnMut(u64, u64),
) -> Result<(), LogFault> {
    let path = traces_path(first);
    let (file, end) = walk(store, &path, ours, found)?;
    let length = file.length().map_err(storage("measure", &path))?;
    if length > end {
        // After a crash this is the usual end: traces are not synced one by one.
        tracing::warn!(path, bytes = length - end, "cut off what is no whole trace of a committed entry");
        file.truncate(end).map_err(storage("cut", &path))?;
        file.sync().map_err(storage("sync", &path))?;
    }
    Ok(())
}

/// The same, and nothing is cut off: the file may be written to at this moment.
pub(crate) fn find_traces(
    store: &dyn Storage,
    first: u64,
    ours: impl Fn(u64) -> bool,
    found: impl FnMut(u64, u64),
) -> Result<(), LogFault> {
    walk(store, &traces_path(first), ours, found).map(drop)
}

/// Tells `found` of each whole trace, and gives back where the last one ends.
fn walk(
    store: &dyn Storage,
    path: &str,
    ours: impl Fn(u64) -> bool,
    mut found: impl FnMut(u64, u64),
) -> Result<(Box<dyn StoredFile>, u64), LogFault> {
    let file = store.open(path).map_err(storage("open", path))?;
    let length = file.length().map_err(storage("measure", path))?;
    let (mut end, mut damaged) = (0, 0);
    while let Some((offset, entry, next)) = next_whole(&*file, end, length, &ours).map_err(storage("read", path))? {
        damaged += offset - end;
        found(entry, offset);
        end = next;
    }
    if damaged > 0 {
        tracing::warn!(path, bytes = damaged, "damaged traces were passed over: their receipts show no trace");
    }
    Ok((file, end))
}

/// The first whole frame of one of our entries that begins at `from` or later: its offset, entry, and end.
fn next_whole(
    file: &dyn StoredFile,
    from: u64,
    length: u64,
    ours: &impl Fn(u64) -> bool,
) -> io::Result<Option<(u64, u64, u64)>> {
    let mut start = from;
    while start + (TRACE_HEAD as u64) <= length {
        // Windows overlap by a head less one byte, so that every place is looked at once.
        let window = (length - start).min(if start == from { TRACE_HEAD as u64 } else { SEARCH_BYTES });
        let bytes = file.read_at(start, usize::try_from(window).unwrap_or(TRACE_HEAD))?;
        for (offset, head) in (start..).zip(bytes.windows(TRACE_HEAD)) {
            // The sum is computed only where a head makes sense.
            if split_head(head).is_some_and(|(_, _, entry)| ours(entry))
                && let Some((entry, _, next)) = trace_at(file, offset)?
            {
                return Ok(Some((offset, entry, next)));
            }
        }
        start += window - TRACE_HEAD as u64 + 1;
    }
    Ok(None)
}
