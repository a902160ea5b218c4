//! A file mapped read-only into memory: the model file, before its weights are repacked.
//!
//! Lives here because a mapping is `unsafe` in Rust and this crate is where `unsafe` is allowed.

use std::fs::File;
use std::io;
use std::path::Path;

/// A regular file as bytes. Not for writing, not for files that others may change.
pub struct MappedFile {
    map: memmap2::Mmap,
}

impl MappedFile {
    /// Maps the whole file.
    ///
    /// # Errors
    /// Whatever opening, `stat` or `mmap` reports; [`io::ErrorKind::InvalidInput`] for anything but a regular file
    /// that is not empty.
    pub fn open(path: &Path) -> io::Result<Self> {
        // Asked before opening: opening a named pipe for reading would wait for its writer.
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() || metadata.len() == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file with content"));
        }
        // SAFETY: the mapping is private and read-only, and every reader of it only reads bytes: all values are
        // checked after they were copied out, so a change of the file by someone else can give wrong numbers (which
        // the digest shows) but no invalid value. A file that is cut while it is mapped ends the process with
        // SIGBUS; model files are installed by renaming, never written in place.
        let map = unsafe { memmap2::Mmap::map(&file)? };
        Ok(Self { map })
    }

    /// The file's content.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }
}

impl std::fmt::Debug for MappedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MappedFile({} bytes)", self.map.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_those_of_the_file() {
        let path = std::env::temp_dir().join(format!("bulkhead-mapped-file-{}", std::process::id()));
        std::fs::write(&path, b"content").unwrap();
        let mapped = MappedFile::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(mapped.bytes(), b"content");
    }

    #[test]
    fn folders_missing_and_empty_files_are_errors() {
        let path = std::env::temp_dir().join(format!("bulkhead-mapped-file-empty-{}", std::process::id()));
        std::fs::write(&path, b"").unwrap();
        assert_eq!(MappedFile::open(&path).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(MappedFile::open(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(MappedFile::open(&std::env::temp_dir()).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
