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
        // SIGBUS (see `tell_of_cut_files`); model files are installed by renaming, never written in place.
        let map = unsafe { memmap2::Mmap::map(&file)? };
        Ok(Self { map })
    }

    /// The file's content.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Gives the memory of a part of [`MappedFile::bytes`] back to the system: it no longer counts as resident, and is
    /// read from the file again by whoever touches it. Anything else than a part is left alone.
    pub fn release(&self, part: &[u8]) {
        #[cfg(unix)]
        {
            let whole = self.map.as_ptr_range();
            let part = part.as_ptr_range();
            if part.start < whole.start || part.end > whole.end || part.is_empty() {
                return;
            }
            let from = (part.start.addr() / FAULT_BYTES * FAULT_BYTES).saturating_sub(whole.start.addr());
            let to = (part.end.addr().next_multiple_of(FAULT_BYTES) - whole.start.addr()).min(self.map.len());
            // SAFETY: the mapping is of a file and only ever read, so what comes back is what was there. A refusal
            // changes nothing but memory.
            let _ = unsafe { self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, from, to - from) };
        }
    }
}

/// Linux maps an aligned piece of this size around a byte that is touched: as much is given back around a part.
#[cfg(unix)]
const FAULT_BYTES: usize = 64 << 10;

impl std::fmt::Debug for MappedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MappedFile({} bytes)", self.map.len())
    }
}

/// What a process says whose file was cut while it was mapped.
const CUT_MESSAGE: &[u8] =
    b"error: a model file was cut while it was read (replace model files by renaming new ones)\n";

/// Makes the process say so and end when it reads a mapped file beyond its end, because somebody cut the file meanwhile.
/// Without this it ends, too, and without a word. For a program's beginning.
///
/// # Errors
/// Of the system.
pub fn tell_of_cut_files() -> io::Result<()> {
    extern "C" fn say_and_exit(_signal: libc::c_int) {
        // SAFETY: `write` and `_exit` may be called in a signal handler: they take no lock and no memory. The message is
        // static, and its length is its own.
        unsafe {
            libc::write(libc::STDERR_FILENO, CUT_MESSAGE.as_ptr().cast(), CUT_MESSAGE.len());
            libc::_exit(1);
        }
    }
    // SAFETY: a `sigaction` of zeros is a valid one, with an empty mask and without flags. The handler has the signature
    // that is called without `SA_SIGINFO`, and does nothing that a handler may not: see there.
    let failed = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = say_and_exit as extern "C" fn(libc::c_int) as libc::sighandler_t;
        libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut())
    };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs itself again: the process that reads the cut file ends.
    #[test]
    fn a_file_that_is_cut_while_it_is_mapped_ends_the_process_with_a_word() {
        const CHILD: &str = "BULKHEAD_TEST_CUT_FILE";
        if let Some(path) = std::env::var_os(CHILD) {
            tell_of_cut_files().unwrap();
            let mapped = MappedFile::open(Path::new(&path)).unwrap();
            File::options().write(true).open(&path).unwrap().set_len(1).unwrap();
            let sum: u64 = mapped.bytes().iter().map(|byte| u64::from(*byte)).sum();
            panic!("read to the end: {sum}");
        }
        let path = std::env::temp_dir().join(format!("bulkhead-mapped-file-cut-{}", std::process::id()));
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        let name = "mapped_file::tests::a_file_that_is_cut_while_it_is_mapped_ends_the_process_with_a_word";
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let ended = child.args(["--exact", name, "--nocapture"]).env(CHILD, &path).output().unwrap();
        std::fs::remove_file(&path).unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(ended.status.code() == Some(1) && said.contains("a model file was cut"), "{}: {said}", ended.status);
    }

    #[test]
    fn the_bytes_are_those_of_the_file() {
        let path = std::env::temp_dir().join(format!("bulkhead-mapped-file-{}", std::process::id()));
        std::fs::write(&path, b"content").unwrap();
        let mapped = MappedFile::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(mapped.bytes(), b"content");
    }

    #[test]
    fn released_parts_are_read_again_and_are_not_resident_meanwhile() {
        let path = std::env::temp_dir().join(format!("bulkhead-mapped-file-release-{}", std::process::id()));
        let content: Vec<u8> = (0..16u32 << 20).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let mapped = MappedFile::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(mapped.bytes(), content);
        mapped.release(&mapped.bytes()[100..3 << 20]);
        // Memory of somebody else would be zeros now.
        mapped.release(&content);
        mapped.release(&[]);
        #[cfg(target_os = "linux")]
        // The system may let go of more, up to a huge page.
        assert_eq!([0, 1 << 20, 16 << 20].map(|at| resident(&mapped, at)), [0, 0, 1]);
        assert_eq!(mapped.bytes(), content);
    }

    /// Whether the last page before `at` (the first, for 0) is mapped, by the system's own account.
    #[cfg(target_os = "linux")]
    fn resident(mapped: &MappedFile, at: usize) -> u64 {
        use std::os::unix::fs::FileExt;
        let page = (mapped.bytes().as_ptr().addr() + at.saturating_sub(1)) / 4_096;
        let mut entry = [0; 8];
        File::open("/proc/self/pagemap").unwrap().read_exact_at(&mut entry, 8 * page as u64).unwrap();
        u64::from_le_bytes(entry) >> 63
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
