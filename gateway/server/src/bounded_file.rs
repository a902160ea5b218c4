//! Files that a configuration names: whole, bounded, and never waited for.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Reads a regular file of at most `bytes_max` bytes. A pipe is refused, since opening it would wait for its other end,
/// and so is a device, which may never end.
///
/// # Errors
/// `InvalidInput` for what is no regular file, `FileTooLarge`, and those of the system.
pub(crate) fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    if !path.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut bytes = Vec::new();
    // It may grow meanwhile, and a file of the system's own has no length.
    File::open(path)?.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("longer than {bytes_max} bytes")));
    }
    Ok(bytes)
}

/// As [`read`], for a file of text.
///
/// # Errors
/// Those of [`read`], and `InvalidData` when it is not UTF-8.
pub(crate) fn read_text(path: &Path, bytes_max: u64) -> io::Result<String> {
    let text = String::from_utf8(read(path, bytes_max)?);
    text.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not text in UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_ends_or_is_too_long_or_no_text_is_refused() {
        let kind = |path: &Path| read_text(path, 4).unwrap_err().kind();
        for device in ["/dev/zero", "/dev/null", "/"] {
            assert_eq!(kind(Path::new(device)), io::ErrorKind::InvalidInput, "{device}");
        }
        // A file without a length, as the system's own are, and longer than it may be.
        assert_eq!(kind(Path::new("/proc/cpuinfo")), io::ErrorKind::FileTooLarge);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for (content, wanted) in [
            (&b"abcd"[..], None),
            (b"abcde", Some(io::ErrorKind::FileTooLarge)),
            (b"\xff", Some(io::ErrorKind::InvalidData)),
        ] {
            std::fs::write(&path, content).unwrap();
            assert_eq!(read_text(&path, 4).err().map(|error| error.kind()), wanted);
        }
        // Opening it would wait for whoever writes.
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert_eq!(kind(&pipe), io::ErrorKind::InvalidInput);
    }
}
