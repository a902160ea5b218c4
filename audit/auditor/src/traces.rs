//! The traces of sealed responses, read beside the log in the order of its entries.

use std::fs::File;
use std::io::{self, BufReader, Read as _};
use std::path::{Path, PathBuf};

/// Longest trace that a log keeps.
const TRACE_BYTES_MAX: usize = 256 * 1024;
/// Length (u32), CRC-32C (u32), index of the sealed entry (u64).
const HEAD_BYTES: usize = 16;

/// Reads forwards only.
#[derive(Debug)]
pub(crate) struct Traces {
    folder: PathBuf,
    /// First entries of the files that were there at the last look, in order.
    files: Vec<u64>,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    first: u64,
    from: BufReader<File>,
    /// A trace that was read and belongs to an entry that was not asked about yet.
    next: Option<(u64, Vec<u8>)>,
}

impl Traces {
    /// Of the log in this folder.
    pub(crate) fn new(log: &Path) -> Self {
        Self { folder: log.join("traces"), files: Vec::new(), open: None }
    }

    /// Looks which files there are. Without their folder there is no trace.
    pub(crate) fn look(&mut self) -> io::Result<()> {
        let names = match std::fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            names => names?,
        };
        self.files.clear();
        for name in names {
            self.files.extend(name?.file_name().to_str().and_then(|name| name.parse::<u64>().ok()));
        }
        self.files.sort_unstable();
        Ok(())
    }

    /// The same, read anew from the beginning of its file.
    pub(crate) fn again(&mut self, index: u64) -> io::Result<Option<Vec<u8>>> {
        self.open = None;
        self.of(index)
    }

    /// The trace of the sealed entry with this index, which is larger than those that were asked about before. `None`: it was
    /// dropped, was lost in a crash, or is damaged.
    pub(crate) fn of(&mut self, index: u64) -> io::Result<Option<Vec<u8>>> {
        let after = self.files.partition_point(|first| *first <= index);
        let Some(first) = after.checked_sub(1).and_then(|place| self.files.get(place)).copied() else {
            return Ok(None);
        };
        if self.open.as_ref().is_none_or(|open| open.first != first) {
            let file = File::open(self.folder.join(format!("{first:020}")))?;
            self.open = Some(Open { first, from: BufReader::new(file), next: None });
        }
        let Some(open) = &mut self.open else { return Ok(None) };
        loop {
            let next = match open.next.take() {
                Some(next) => next,
                None => match read_frame(&mut open.from)? {
                    Some(next) => next,
                    None => return Ok(None),
                },
            };
            match next.0.cmp(&index) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => return Ok(Some(next.1)),
                std::cmp::Ordering::Greater => {
                    open.next = Some(next);
                    return Ok(None);
                }
            }
        }
    }
}

/// `None` at the end, and where the rest of the file cannot be told apart any more.
fn read_frame(from: &mut BufReader<File>) -> io::Result<Option<(u64, Vec<u8>)>> {
    let mut head = [0; HEAD_BYTES];
    match from.read_exact(&mut head) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let [l0, l1, l2, l3, s0, s1, s2, s3, index @ ..] = head;
    let length = usize::try_from(u32::from_be_bytes([l0, l1, l2, l3])).unwrap_or(usize::MAX);
    if length > TRACE_BYTES_MAX {
        return Ok(None);
    }
    let mut trace = vec![0; length];
    match from.read_exact(&mut trace) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let whole = crc32c::crc32c_append(crc32c::crc32c(&index), &trace) == u32::from_be_bytes([s0, s1, s2, s3]);
    Ok(whole.then_some((u64::from_be_bytes(index), trace)))
}
