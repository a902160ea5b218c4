//! Matrices in the layout of the kernels, repacked or restored from a cache, and the digest of what they are.
//!
//! The digest is made of the bytes in memory that the kernels will read, in the same way wherever they came from.

use std::os::unix::fs::FileExt;
use std::thread;

use engine_kernels::{MatrixSource, PACKED_LAYOUT, PackError, PackedMatrices, Packing};

use crate::weights_cache::{CacheLookup, UnusableCache};

/// The weights' bytes are digested in pieces of this size, so that several threads can: large enough to cost nothing
/// beside the hashing, small enough to stay in a core's cache between reading and hashing.
const PIECE_BYTES: usize = 1 << 20;

/// Packed matrices and their identity.
#[derive(Debug)]
pub(crate) struct PackedWeights {
    pub(crate) matrices: PackedMatrices,
    /// BLAKE3 of the layout's name and all matrices' types and shapes.
    pub(crate) shapes: [u8; 32],
    /// [`content_digest`] of the packed bytes.
    pub(crate) content: [u8; 32],
    pub(crate) origin: Origin,
}

/// Where packed matrices came from.
#[derive(Debug)]
pub(crate) enum Origin {
    /// The model file; a cache was there and could not be used, if there is a reason.
    Repacked(Option<UnusableCache>),
    /// A cache that says to be of the model file with this SHA-256.
    Cache([u8; 32]),
}

/// How matrices are to be packed.
pub(crate) struct Packer<'a> {
    pub(crate) threads: usize,
    /// Told of the parts of the model file that are no longer needed.
    pub(crate) release: &'a (dyn Fn(&[u8]) + Sync),
    pub(crate) cache: Option<&'a CacheLookup<'a>>,
}

impl Packer<'_> {
    /// Takes the matrices from the cache if it has them, else repacks.
    ///
    /// # Errors
    /// [`PackError`].
    pub(crate) fn pack(&self, sources: &[MatrixSource<'_>]) -> Result<PackedWeights, PackError> {
        let packing = Packing::new(sources)?;
        let shapes = shapes_digest(sources);
        let reason = match self.cache.map(|cache| cache.restore(&packing, shapes, self.threads)) {
            Some(Ok(Some(packed))) => return Ok(packed),
            None | Some(Ok(None)) => None,
            Some(Err(reason)) => Some(reason),
        };
        let matrices = packing.repack(self.threads, self.release)?;
        let content = content_digest(matrices.bytes(), self.threads);
        Ok(PackedWeights { matrices, shapes, content, origin: Origin::Repacked(reason) })
    }
}

fn shapes_digest(sources: &[MatrixSource<'_>]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(PACKED_LAYOUT.as_bytes());
    for MatrixSource { kind, rows, width, .. } in sources {
        // Shown, so that a type has a name rather than a number that another order would change.
        hasher.update(format!("\n{kind:?} {rows} {width}").as_bytes());
    }
    hasher.finalize().into()
}

/// BLAKE3 of the BLAKE3 digests of all pieces of a mebibyte (the last may be shorter), on some threads.
pub(crate) fn content_digest(bytes: &[u8], threads: usize) -> [u8; 32] {
    let mut digests = vec![[0; 32]; bytes.len().div_ceil(PIECE_BYTES)];
    let share = digests.len().div_ceil(threads.max(1)).max(1);
    thread::scope(|scope| {
        for (digests, bytes) in digests.chunks_mut(share).zip(bytes.chunks(share * PIECE_BYTES)) {
            scope.spawn(move || {
                for (digest, piece) in digests.iter_mut().zip(bytes.chunks(PIECE_BYTES)) {
                    *digest = blake3::hash(piece).into();
                }
            });
        }
    });
    blake3::hash(digests.as_flattened()).into()
}

/// Reads a file from `offset` until `to` is full, on some threads; gives the [`content_digest`] of what was read.
///
/// # Errors
/// The first error of reading; a file that is too short is one.
pub(crate) fn read_content(
    file: &std::fs::File,
    offset: u64,
    to: &mut [u8],
    threads: usize,
) -> std::io::Result<[u8; 32]> {
    let mut digests = vec![[0; 32]; to.len().div_ceil(PIECE_BYTES)];
    let share = digests.len().div_ceil(threads.max(1)).max(1);
    thread::scope(|scope| -> std::io::Result<()> {
        let shares = digests.chunks_mut(share).zip(to.chunks_mut(share * PIECE_BYTES)).enumerate();
        let readers: Vec<_> = shares
            .map(|(number, (digests, to))| {
                scope.spawn(move || -> std::io::Result<()> {
                    let mut at = offset + (number * share * PIECE_BYTES) as u64;
                    for (digest, piece) in digests.iter_mut().zip(to.chunks_mut(PIECE_BYTES)) {
                        file.read_exact_at(piece, at)?;
                        *digest = blake3::hash(piece).into();
                        at += piece.len() as u64;
                    }
                    Ok(())
                })
            })
            .collect();
        readers
            .into_iter()
            .try_for_each(|reader| reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    Ok(blake3::hash(digests.as_flattened()).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine_kernels::MatrixKind;
    use std::io::Write;

    #[test]
    fn the_digest_is_that_of_the_pieces_on_any_number_of_threads() {
        for length in [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES - 3] {
            let bytes: Vec<u8> = (0..length).map(|i| (i * 31 % 253) as u8).collect();
            let digests: Vec<u8> = bytes.chunks(1 << 20).flat_map(|piece| *blake3::hash(piece).as_bytes()).collect();
            let wanted = *blake3::hash(&digests).as_bytes();
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(b"head").unwrap();
            file.write_all(&bytes).unwrap();
            for threads in [0, 1, 2, 3, 9] {
                assert_eq!(content_digest(&bytes, threads), wanted);
                let mut read = vec![0; length];
                assert_eq!(read_content(&file, 4, &mut read, threads).unwrap(), wanted);
                assert_eq!(read, bytes);
                let mut more = vec![0; length + 1];
                let error = read_content(&file, 4, &mut more, threads).unwrap_err();
                assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
            }
        }
    }

    #[test]
    fn other_shapes_have_another_digest() {
        let of = |kind, rows, width| shapes_digest(&[MatrixSource { kind, rows, width, bytes: &[] }]);
        let all = [
            of(MatrixKind::Q4_1, 16, 32),
            of(MatrixKind::Q5_1, 16, 32),
            of(MatrixKind::Q4_1, 32, 16),
            of(MatrixKind::Q4_1, 1, 632),
            shapes_digest(&[]),
        ];
        assert!((1..all.len()).all(|i| !all[..i].contains(&all[i])));
    }
}
