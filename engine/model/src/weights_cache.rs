//! Repacked weights on disk, so that the next start reads instead of repacking.
//!
//! A cache saves time and nothing else: whatever is wrong with a file, it is passed over and written anew, and a file
//! that cannot be written is missed by nobody. It is read into memory of the process, not mapped: what was checked
//! cannot be changed afterwards, and that memory has huge pages. Its own digests find damage. They do not protect from
//! somebody who may write into the folder, and need not: what was read goes into the digest of the weights as what was
//! repacked does, and so into the model's fingerprint and every record.
//!
//! A file is a head and the packed bytes. The head, integers little-endian: `bulkhead weights`; format version, `u32`;
//! packed bytes, `u64`; SHA-256 of the model file; [`hint`] of the model file; digest of the matrices' layout, types and
//! shapes; digest of the packed bytes; BLAKE3 of the head up to here.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use engine_kernels::{PACKED_LAYOUT, PackError, PackedMatrices, Packing};
use tempfile::NamedTempFile;

use crate::packed_weights::{Origin, PackedWeights, read_content};

const MAGIC: &[u8; 16] = b"bulkhead weights";
/// Raised when the head changes.
const FORMAT_VERSION: u32 = 1;
const HEAD_BYTES: usize = 16 + 4 + 8 + 5 * 32;
/// Of a model file, this much from its beginning and its end goes into the [`hint`].
const HINT_BYTES: usize = 64 << 10;
/// Files that are kept: a few models in turn; each is as large as its model.
const FILES_MAX: usize = 4;
/// Files of the folder that are looked at, whoever put them there.
const LOOKED_AT_MAX: usize = 256;
const TEMPORARY_PREFIX: &str = ".weights-";
const TEMPORARY_SUFFIX: &str = ".tmp";
/// Others get in between creating and locking in microseconds, and rarely.
const TEMPORARY_TRIES: usize = 16;

/// Why a file of the cache was passed over.
#[derive(Debug, thiserror::Error)]
pub enum UnusableCache {
    /// The system refuses to read it.
    #[error("it cannot be read: {0}")]
    Read(#[from] io::Error),
    /// Not a regular file.
    #[error("it is no regular file")]
    NotAFile,
    /// Others than its owner may write to it.
    #[error("others may write to it")]
    NotPrivate,
    /// Not a cache of this format, or a damaged head.
    #[error("its head is damaged or of another version")]
    Head,
    /// Too short or too long.
    #[error("it has {bytes} bytes, not {bytes_needed}")]
    Length {
        /// Bytes of the file.
        bytes: u64,
        /// As its head says.
        bytes_needed: u64,
    },
    /// The matrices of the model have other types or shapes.
    #[error("it holds other matrices")]
    Shapes,
    /// What was read is not what was written.
    #[error("its content is damaged")]
    Content,
    /// The model file is another one.
    #[error("it was made of another model file")]
    Model,
    /// The system refused the memory.
    #[error(transparent)]
    Memory(#[from] PackError),
}

/// Why weights could not be saved. Nothing depends on them.
#[derive(Debug, thiserror::Error)]
pub enum SaveWeightsError {
    /// The folder cannot be made.
    #[error("the folder `{}` cannot be made: {source}", folder.display())]
    Folder {
        /// Which one.
        folder: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("the weights cannot be saved in `{}`: {source}", folder.display())]
    Write {
        /// Where.
        folder: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// What stands before the packed bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    bytes: u64,
    model: [u8; 32],
    hint: [u8; 32],
    shapes: [u8; 32],
    content: [u8; 32],
}

impl Head {
    fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut head = Vec::with_capacity(HEAD_BYTES);
        head.extend(MAGIC);
        head.extend(FORMAT_VERSION.to_le_bytes());
        head.extend(self.bytes.to_le_bytes());
        head.extend([self.model, self.hint, self.shapes, self.content].as_flattened());
        head.extend(blake3::hash(&head).as_bytes());
        let mut array = [0; HEAD_BYTES];
        array.copy_from_slice(&head);
        array
    }

    /// `None` for anything that [`Head::encode`] does not write.
    fn decode(head: &[u8; HEAD_BYTES]) -> Option<Self> {
        let mut rest = head.as_slice();
        rest.split_off(..MAGIC.len() + 4)?;
        let bytes = u64::from_le_bytes(*rest.split_off(..8)?.first_chunk()?);
        let mut digest = || rest.split_off(..32)?.first_chunk().copied();
        let decoded = Self { bytes, model: digest()?, hint: digest()?, shapes: digest()?, content: digest()? };
        (decoded.encode() == *head).then_some(decoded)
    }
}

/// A quick, rough identity of a model file: which cache may be its. Whether it is, its SHA-256 says, which takes longer.
/// Of two files with one hint, the cache of the wrong one may be read first; see [`CacheLookup::model`].
pub(crate) fn hint(model: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(model.len() as u64).to_le_bytes());
    hasher.update(&model[..model.len().min(HINT_BYTES)]);
    hasher.update(&model[model.len().saturating_sub(HINT_BYTES)..]);
    hasher.finalize().into()
}

fn file_name(model: [u8; 32]) -> String {
    format!("{}-{FORMAT_VERSION}.{PACKED_LAYOUT}.weights", hex::encode(model))
}

/// Whether a file's name is one that this or another version gives; what stands behind the model's digest, then.
fn version_in(name: &str) -> Option<&str> {
    let (model, version) = name.strip_suffix(".weights")?.split_once('-')?;
    (model.len() == 64 && model.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(version)
}

fn is_of_this_version(name: &str) -> bool {
    version_in(name).is_some_and(|version| version == format!("{FORMAT_VERSION}.{PACKED_LAYOUT}"))
}

/// A cache's folder, and what is known of the model file before its digest is.
#[derive(Debug)]
pub(crate) struct CacheLookup<'a> {
    pub(crate) folder: &'a Path,
    pub(crate) hint: [u8; 32],
    /// The model file's digest, once it is known: caches of other files are passed over then.
    pub(crate) model: Option<[u8; 32]>,
}

impl CacheLookup<'_> {
    /// The matrices from the first file that fits the hint and is whole; `None` when there is none that fits. The caller
    /// compares the model's digest.
    ///
    /// # Errors
    /// [`UnusableCache`]: why there are none although there is a file.
    pub(crate) fn restore(
        &self,
        packing: &Packing<'_>,
        shapes: [u8; 32],
        threads: usize,
    ) -> Result<Option<PackedWeights>, UnusableCache> {
        let Ok(entries) = fs::read_dir(self.folder) else { return Ok(None) };
        let mut reason = None;
        for entry in entries.take(LOOKED_AT_MAX).filter_map(Result::ok) {
            if !entry.file_name().to_str().is_some_and(is_of_this_version) {
                continue;
            }
            match open(&entry.path()) {
                Ok((_, head)) if head.hint != self.hint => {}
                Ok((_, head)) if self.model.is_some_and(|model| model != head.model) => {
                    // Another model's, in its own place: nothing is wrong with it.
                    let is_in_place = entry.file_name().to_str() == Some(&file_name(head.model));
                    reason = reason.or((!is_in_place).then_some(UnusableCache::Model));
                }
                Ok((file, head)) => match restore(&file, &head, packing, shapes, threads) {
                    Ok(weights) => return Ok(Some(weights)),
                    Err(error) => reason = Some(error),
                },
                Err(error) => reason = Some(error),
            }
        }
        reason.map_or(Ok(None), Err)
    }
}

/// Opens a file and reads its head; everything is checked but the content.
fn open(path: &Path) -> Result<(File, Head), UnusableCache> {
    // Asked before opening: opening a named pipe for reading would wait for its writer.
    if !fs::symlink_metadata(path)?.is_file() {
        return Err(UnusableCache::NotAFile);
    }
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.permissions().mode() & 0o022 != 0 {
        return Err(UnusableCache::NotPrivate);
    }
    let mut head = [0; HEAD_BYTES];
    let head = match file.read_exact_at(&mut head, 0) {
        Ok(()) => Head::decode(&head).ok_or(UnusableCache::Head)?,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(UnusableCache::Head),
        Err(error) => return Err(error.into()),
    };
    let bytes_needed = head.bytes.saturating_add(HEAD_BYTES as u64);
    if metadata.len() != bytes_needed {
        return Err(UnusableCache::Length { bytes: metadata.len(), bytes_needed });
    }
    Ok((file, head))
}

fn restore(
    file: &File,
    head: &Head,
    packing: &Packing<'_>,
    shapes: [u8; 32],
    threads: usize,
) -> Result<PackedWeights, UnusableCache> {
    // The length too, which the shapes decide: no memory is taken for a file that says otherwise.
    if head.shapes != shapes || head.bytes != packing.bytes() as u64 {
        return Err(UnusableCache::Shapes);
    }
    let matrices = packing.restore(|to| match read_content(file, HEAD_BYTES as u64, to, threads) {
        Ok(content) if content == head.content => Ok(()),
        Ok(_) => Err(UnusableCache::Content),
        Err(error) => Err(error.into()),
    })?;
    Ok(PackedWeights { matrices, shapes, content: head.content, origin: Origin::Cache(head.model) })
}

/// Repacked weights that the cache does not have yet.
#[derive(Debug)]
pub struct UnsavedWeights {
    folder: PathBuf,
    head: Head,
    matrices: PackedMatrices,
    reason: Option<UnusableCache>,
}

impl UnsavedWeights {
    pub(crate) fn new(
        folder: &Path,
        model: [u8; 32],
        hint: [u8; 32],
        packed: &PackedWeights,
        reason: Option<UnusableCache>,
    ) -> Self {
        let PackedWeights { matrices, shapes, content, .. } = packed;
        let head = Head { bytes: matrices.bytes().len() as u64, model, hint, shapes: *shapes, content: *content };
        Self { folder: folder.to_owned(), head, matrices: matrices.clone(), reason }
    }

    /// Why a file that was there could not be used.
    #[must_use]
    pub fn reason(&self) -> Option<&UnusableCache> {
        self.reason.as_ref()
    }

    /// Writes them to the cache's folder, which is made when it is not there, and removes what is no longer of use in
    /// it. Takes as long as the disk does; the weights can be computed with meanwhile. Whatever happens, there is a whole
    /// file or none, and of two that write at once one stays.
    ///
    /// # Errors
    /// [`SaveWeightsError`].
    pub fn save(self) -> Result<(), SaveWeightsError> {
        let folder = &self.folder;
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|source| SaveWeightsError::Folder { folder: folder.clone(), source })?;
        remove_temporary(folder);
        let name = file_name(self.head.model);
        self.write(&folder.join(&name)).map_err(|source| SaveWeightsError::Write { folder: folder.clone(), source })?;
        remove_old(folder, &name);
        Ok(())
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        let file = self.temporary()?;
        self.write_to(file.as_file())?;
        // A crash here leaves the temporary file, which the next save removes.
        file.persist(path).map_err(|error| error.error)?;
        File::open(&self.folder)?.sync_all()
    }

    /// A file of our own, held as long as it is open: what is not held is left over, and whoever saves removes it.
    fn temporary(&self) -> io::Result<NamedTempFile> {
        for _ in 0..TEMPORARY_TRIES {
            // Readable by its owner alone; removed when anything fails.
            let file =
                tempfile::Builder::new().prefix(TEMPORARY_PREFIX).suffix(TEMPORARY_SUFFIX).tempfile_in(&self.folder)?;
            // A system without locks goes without.
            let _ = file.as_file().lock();
            // Somebody who saves at the same time may have come between the two.
            if file.as_file().metadata()?.nlink() > 0 {
                return Ok(file);
            }
        }
        Err(io::Error::other("others removed the temporary file each time"))
    }

    fn write_to(&self, mut file: &File) -> io::Result<()> {
        file.write_all(&self.head.encode())?;
        file.write_all(self.matrices.bytes())?;
        file.sync_all()
    }
}

/// Removes what writers left that did not come to their end.
fn remove_temporary(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.take(LOOKED_AT_MAX).filter_map(Result::ok) {
        let name = entry.file_name();
        let is_ours = |name: &str| name.starts_with(TEMPORARY_PREFIX) && name.ends_with(TEMPORARY_SUFFIX);
        if name.to_str().is_some_and(is_ours)
            && entry.file_type().is_ok_and(|kind| kind.is_file())
            && let Ok(file) = File::open(entry.path())
            && file.try_lock().is_ok()
        {
            // Held meanwhile, so that nobody takes it for his own. What cannot be removed stays and hurts nobody.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Removes files of other versions, and the oldest beyond [`FILES_MAX`]. `newest` stays.
fn remove_old(folder: &Path, newest: &str) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut kept = Vec::new();
    for entry in entries.take(LOOKED_AT_MAX).filter_map(Result::ok) {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| version_in(name).is_some() && *name != newest) else { continue };
        match entry.metadata().and_then(|metadata| metadata.modified()) {
            Ok(modified) if is_of_this_version(name) => kept.push((modified, entry.path())),
            _ => drop(fs::remove_file(entry.path())),
        }
    }
    kept.sort();
    for (_, path) in kept.iter().rev().skip(FILES_MAX - 1) {
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests;
