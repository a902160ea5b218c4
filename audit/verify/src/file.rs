//! Files as they are read: whole, bounded, and never waited for.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// Reads a regular file of at most `bytes_max` bytes. A pipe is refused, since opening it would wait for its other end.
///
/// # Errors
/// `InvalidInput` for what is no regular file, `FileTooLarge`, and those of the system.
pub fn read_file(path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    let metadata = path.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    // One more than it has: the end is seen without more room.
    let room = usize::try_from(metadata.len()).unwrap_or(bytes_max).min(bytes_max).saturating_add(1);
    let mut bytes = Vec::with_capacity(room);
    File::open(path)?.take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > bytes_max {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("longer than {bytes_max} bytes")));
    }
    Ok(bytes)
}
