//! Tiles as C2SP tlog-tiles lays them out: paths, entry bundles, and reading a tree back from tiles that are not trusted.

use std::cell::RefCell;
use std::fmt;
use std::io;
use tlog_tiles::{Hash, Tile, TileHashReader, TileReader};

/// Hashes of a complete tile, entries of a complete bundle.
pub const TILE_WIDTH: usize = 256;
/// A bundle holds an entry's length in 16 bits.
pub const ENTRY_BYTES_ROOF: usize = 65_535;

/// A tile's or entry bundle's path: `tile/<L>/<N>[.p/<W>]` and `tile/entries/<N>[.p/<W>]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TilePath {
    /// The tile's level; `None` for an entry bundle.
    pub level: Option<u8>,
    /// The number in its level.
    pub number: u64,
    /// Hashes or entries that it holds, 1 to [`TILE_WIDTH`].
    pub width: usize,
}

impl TilePath {
    /// The folder of the partial tiles that a complete one replaces.
    #[must_use]
    pub fn partial_folder(&self) -> String {
        format!("{}.p", Self { width: TILE_WIDTH, ..*self })
    }
}

impl fmt::Display for TilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.level {
            Some(level) => write!(f, "tile/{level}/")?,
            None => f.write_str("tile/entries/")?,
        }
        // The number in groups of three digits, all but the last marked with an x.
        let mut groups = vec![self.number % 1_000];
        let mut rest = self.number / 1_000;
        while rest > 0 {
            groups.push(rest % 1_000);
            rest /= 1_000;
        }
        for group in groups.iter().skip(1).rev() {
            write!(f, "x{group:03}/")?;
        }
        write!(f, "{:03}", self.number % 1_000)?;
        if self.width < TILE_WIDTH {
            write!(f, ".p/{}", self.width)?;
        }
        Ok(())
    }
}

/// Bytes are no entry bundle of the width that its path says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BundleError {
    /// It ends within an entry, or holds fewer entries.
    #[error("the entry bundle ends within entry {entry}")]
    Short {
        /// Counted from the begin of the bundle.
        entry: usize,
    },
    /// Bytes after the last entry.
    #[error("{trailing} bytes after the last entry of the bundle")]
    Trailing {
        /// How many.
        trailing: usize,
    },
    /// An entry is longer than 65,535 bytes.
    #[error("an entry of {length} bytes does not fit a bundle")]
    TooLong {
        /// The entry's length.
        length: usize,
    },
}

/// Appends an entry to a bundle: its length in 16 bits, big-endian, and its bytes.
///
/// # Errors
/// [`BundleError::TooLong`].
pub fn encode_bundle(bundle: &mut Vec<u8>, entry: &[u8]) -> Result<(), BundleError> {
    let length = u16::try_from(entry.len()).map_err(|_| BundleError::TooLong { length: entry.len() })?;
    bundle.extend_from_slice(&length.to_be_bytes());
    bundle.extend_from_slice(entry);
    Ok(())
}

/// The `width` entries of a bundle.
///
/// # Errors
/// [`BundleError`] when it holds fewer, or more bytes.
pub fn parse_bundle(bundle: &[u8], width: usize) -> Result<Vec<&[u8]>, BundleError> {
    let mut entries = Vec::with_capacity(width.min(TILE_WIDTH));
    let mut rest = bundle;
    for entry in 0..width {
        let short = BundleError::Short { entry };
        let (length, after) = rest.split_first_chunk::<2>().ok_or(short)?;
        let (bytes, after) = after.split_at_checked(usize::from(u16::from_be_bytes(*length))).ok_or(short)?;
        entries.push(bytes);
        rest = after;
    }
    if rest.is_empty() { Ok(entries) } else { Err(BundleError::Trailing { trailing: rest.len() }) }
}

/// Where tiles are read from. What it returns is checked, so it may lie.
pub trait TileFiles {
    /// The tile or bundle with that path, at most `bytes_max` long.
    ///
    /// # Errors
    /// Of the storage; `InvalidData` for a file that is longer.
    fn read_tile(&self, path: &TilePath, bytes_max: usize) -> io::Result<Vec<u8>>;
}

/// A tree could not be read from tiles.
#[derive(Debug, thiserror::Error)]
pub enum TreeReadError {
    /// A tile is missing or unreadable.
    #[error("tile `{path}`: {source}")]
    Storage {
        /// The tile.
        path: TilePath,
        /// What the storage said.
        source: io::Error,
    },
    /// The tiles do not belong to the tree with that root, or the index is not in the tree.
    #[error("the tiles do not belong to the tree: {reason}")]
    Tree {
        /// What the tile reader found.
        reason: String,
    },
    /// A bundle is malformed.
    #[error("entry bundle `{path}`: {source}")]
    Bundle {
        /// The bundle.
        path: TilePath,
        /// What is wrong with it.
        source: BundleError,
    },
    /// A bundle's entry is not the one in the tree.
    #[error("entry {index} is not the one in the tree")]
    Entry {
        /// The entry's index.
        index: u64,
    },
}

/// A tree of known size and root over tiles that are not trusted: each hash is checked against the root before use.
pub struct TiledTree<'a, F> {
    size: u64,
    root: Hash,
    reader: Files<'a, F>,
}

impl<F> fmt::Debug for TiledTree<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TiledTree").field("size", &self.size).field("root", &self.root).finish_non_exhaustive()
    }
}

impl<'a, F: TileFiles> TiledTree<'a, F> {
    /// The tree that a checkpoint names.
    #[must_use]
    pub fn new(size: u64, root: Hash, files: &'a F) -> Self {
        Self { size, root, reader: Files { files, failed: RefCell::new(None) } }
    }

    /// The inclusion proof of the entry with `index`.
    ///
    /// # Errors
    /// [`TreeReadError`].
    pub fn prove_inclusion(&self, index: u64) -> Result<Vec<Hash>, TreeReadError> {
        let hashes = TileHashReader::new(self.size, self.root, &self.reader);
        tlog_tiles::prove_record(self.size, index, &hashes).map_err(|error| self.error(&error))
    }

    /// The proof that this tree begins with the one of `older_size` entries.
    ///
    /// # Errors
    /// [`TreeReadError`].
    pub fn prove_consistency(&self, older_size: u64) -> Result<Vec<Hash>, TreeReadError> {
        let hashes = TileHashReader::new(self.size, self.root, &self.reader);
        tlog_tiles::prove_tree(self.size, older_size, &hashes).map_err(|error| self.error(&error))
    }

    /// The entry with `index`, checked against the tree's leaf.
    ///
    /// # Errors
    /// [`TreeReadError`].
    pub fn entry(&self, index: u64) -> Result<Vec<u8>, TreeReadError> {
        let hashes = TileHashReader::new(self.size, self.root, &self.reader);
        let leaf = tlog_tiles::HashReader::read_hashes(&hashes, &[tlog_tiles::stored_hash_index(0, index)])
            .map_err(|error| self.error(&error))?;
        let path = self.bundle_of(index);
        let bytes = self
            .reader
            .files
            .read_tile(&path, path.width * (ENTRY_BYTES_ROOF + 2))
            .map_err(|source| TreeReadError::Storage { path, source })?;
        let entries = parse_bundle(&bytes, path.width).map_err(|source| TreeReadError::Bundle { path, source })?;
        let place = usize::try_from(index % TILE_WIDTH as u64).unwrap_or(usize::MAX);
        let entry = entries.get(place).ok_or(TreeReadError::Entry { index })?;
        if leaf.first() == Some(&crate::leaf_hash(entry)) {
            Ok(entry.to_vec())
        } else {
            Err(TreeReadError::Entry { index })
        }
    }

    /// The bundle that holds an entry, as wide as this tree has it.
    fn bundle_of(&self, index: u64) -> TilePath {
        let number = index / TILE_WIDTH as u64;
        let after = self.size.saturating_sub(number * TILE_WIDTH as u64);
        TilePath { level: None, number, width: usize::try_from(after).unwrap_or(TILE_WIDTH).min(TILE_WIDTH) }
    }

    fn error(&self, error: &tlog_tiles::Error) -> TreeReadError {
        match self.reader.failed.take() {
            Some((path, source)) => TreeReadError::Storage { path, source },
            None => TreeReadError::Tree { reason: error.to_string() },
        }
    }
}

/// Gives tile files to `tlog_tiles`, whose errors have no room for ours.
struct Files<'a, F> {
    files: &'a F,
    failed: RefCell<Option<(TilePath, io::Error)>>,
}

impl<F: TileFiles> TileReader for Files<'_, F> {
    fn height(&self) -> u8 {
        8
    }

    fn read_tiles(&self, tiles: &[Tile]) -> Result<Vec<Vec<u8>>, tlog_tiles::Error> {
        let read = |tile: &Tile| {
            let width = tile.width() as usize;
            let path = TilePath { level: Some(tile.level()), number: tile.level_index(), width };
            self.files.read_tile(&path, width * tlog_tiles::HASH_SIZE).map_err(|source| {
                *self.failed.borrow_mut() = Some((path, source));
                tlog_tiles::Error::InvalidTile
            })
        };
        tiles.iter().map(read).collect()
    }

    fn save_tiles(&self, _tiles: &[Tile], _data: &[Vec<u8>]) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Edge, check_consistency, check_inclusion, leaf_hash};
    use std::collections::HashMap;

    #[test]
    fn paths_are_those_of_the_specification() {
        let path = |level, number, width| TilePath { level, number, width }.to_string();
        assert_eq!(path(Some(0), 0, 256), "tile/0/000");
        assert_eq!(path(Some(0), 0, 8), "tile/0/000.p/8");
        assert_eq!(path(Some(1), 999, 256), "tile/1/999");
        assert_eq!(path(Some(0), 1_000, 256), "tile/0/x001/000");
        assert_eq!(path(Some(3), 1_234_067, 256), "tile/3/x001/x234/067");
        assert_eq!(path(None, 1_234_067, 5), "tile/entries/x001/x234/067.p/5");
        assert_eq!(path(None, 70_000, 256), "tile/entries/x070/000");
        assert_eq!(TilePath { level: Some(0), number: 1_000, width: 9 }.partial_folder(), "tile/0/x001/000.p");
    }

    #[test]
    fn bundles_hold_exactly_their_entries() {
        let mut bundle = Vec::new();
        encode_bundle(&mut bundle, b"one").unwrap();
        encode_bundle(&mut bundle, b"").unwrap();
        assert_eq!(bundle, b"\x00\x03one\x00\x00");
        assert_eq!(parse_bundle(&bundle, 2), Ok(vec![&b"one"[..], b""]));
        assert_eq!(parse_bundle(&bundle, 3), Err(BundleError::Short { entry: 2 }));
        assert_eq!(parse_bundle(&bundle, 1), Err(BundleError::Trailing { trailing: 2 }));
        assert_eq!(parse_bundle(&bundle[..4], 1), Err(BundleError::Short { entry: 0 }));
        let long = encode_bundle(&mut bundle, &vec![0; ENTRY_BYTES_ROOF + 1]);
        assert_eq!(long, Err(BundleError::TooLong { length: 65_536 }));
    }

    #[derive(Default)]
    struct Memory(HashMap<TilePath, Vec<u8>>);

    impl TileFiles for Memory {
        fn read_tile(&self, path: &TilePath, bytes_max: usize) -> io::Result<Vec<u8>> {
            let bytes = self.0.get(path).cloned().ok_or(io::ErrorKind::NotFound)?;
            if bytes.len() > bytes_max { Err(io::ErrorKind::InvalidData.into()) } else { Ok(bytes) }
        }
    }

    fn published(size: u64) -> (Memory, Hash) {
        let (mut files, mut edge, mut bundle) = (Memory::default(), Edge::new(), Vec::new());
        let bytes = |hashes: &[Hash]| hashes.iter().flat_map(|hash| hash.0).collect::<Vec<u8>>();
        for n in 0..size {
            let entry = format!("entry {n}");
            encode_bundle(&mut bundle, entry.as_bytes()).unwrap();
            for full in edge.push(leaf_hash(entry.as_bytes())) {
                let path = TilePath { level: Some(full.level), number: full.number, width: TILE_WIDTH };
                files.0.insert(path, bytes(&full.hashes));
            }
            if (n + 1).is_multiple_of(TILE_WIDTH as u64) {
                let number = n / TILE_WIDTH as u64;
                files.0.insert(TilePath { level: None, number, width: TILE_WIDTH }, std::mem::take(&mut bundle));
            }
        }
        for (level, number, hashes) in edge.partial_tiles() {
            files.0.insert(TilePath { level: Some(level), number, width: hashes.len() }, bytes(hashes));
        }
        let width = usize::try_from(size % TILE_WIDTH as u64).unwrap();
        if width > 0 {
            files.0.insert(TilePath { level: None, number: size / TILE_WIDTH as u64, width }, bundle);
        }
        (files, edge.root())
    }

    #[test]
    fn a_tree_is_read_back_from_its_tiles() {
        for size in [1, 2, 255, 256, 257, 600, 65_537] {
            let (files, root) = published(size);
            let tree = TiledTree::new(size, root, &files);
            for index in [0, size / 3, size / 2, size - 1] {
                let entry = tree.entry(index).unwrap();
                assert_eq!(entry, format!("entry {index}").as_bytes());
                let proof = tree.prove_inclusion(index).unwrap();
                assert_eq!(check_inclusion(&proof, size, root, index, leaf_hash(&entry)), Ok(()));
            }
            let (_, older_root) = published(size / 2 + 1);
            let proof = tree.prove_consistency(size / 2 + 1).unwrap();
            assert_eq!(check_consistency(&proof, size, root, size / 2 + 1, older_root), Ok(()));
            assert!(tree.entry(size).is_err() && tree.prove_inclusion(size).is_err());
        }
    }

    #[test]
    fn a_lying_or_missing_tile_is_noticed() {
        let (files, root) = published(600);
        for path in files.0.keys().copied().collect::<Vec<_>>() {
            let mut lying = Memory(files.0.clone());
            let bytes = lying.0.get_mut(&path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            let index = match path.level {
                None | Some(0) => path.number * TILE_WIDTH as u64 + path.width as u64 / 2,
                _ => 0,
            };
            let tree = TiledTree::new(600, root, &lying);
            assert!(tree.entry(index.min(599)).is_err() || tree.prove_inclusion(index.min(599)).is_err(), "{path}");
            let mut missing = Memory(files.0.clone());
            missing.0.remove(&path);
            let tree = TiledTree::new(600, root, &missing);
            let refused = tree.entry(index.min(599)).and(tree.prove_inclusion(index.min(599)));
            assert!(matches!(refused, Err(TreeReadError::Storage { .. })), "{path}");
        }
    }
}
