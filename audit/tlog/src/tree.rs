//! The RFC 6962 tree: hashes, proofs, and the right edge of a growing tree.

use crate::tile::TILE_WIDTH;
use tlog_tiles::Hash;

/// Sizes above this are refused: other implementations hold sizes in a signed 64-bit number.
pub const TREE_SIZE_MAX: u64 = i64::MAX as u64;
/// No proof in a tree of [`TREE_SIZE_MAX`] has more hashes.
pub const PROOF_HASHES_MAX: usize = 64;

/// A proof does not show what it claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// The index or the older size does not lie in the tree, or the tree is larger than [`TREE_SIZE_MAX`].
    #[error("position {position} is not in a tree of {size}")]
    Outside {
        /// The index, or the older tree's size.
        position: u64,
        /// The tree's size.
        size: u64,
    },
    /// More hashes than a proof can have.
    #[error("{hashes} hashes are no proof")]
    TooLong {
        /// How many were given.
        hashes: usize,
    },
    /// The hashes lead to another root.
    #[error("the proof does not lead to the root hash")]
    Root,
}

/// SHA-256(0x00 entry), RFC 6962 section 2.1.
#[must_use]
pub fn leaf_hash(entry: &[u8]) -> Hash {
    tlog_tiles::record_hash(entry)
}

/// SHA-256(0x01 left right), RFC 6962 section 2.1.
#[must_use]
pub fn node_hash(left: Hash, right: Hash) -> Hash {
    tlog_tiles::node_hash(left, right)
}

/// Is `leaf` the entry with `index` in the tree of `size` entries with `root`? RFC 6962 section 2.1.1.
///
/// # Errors
/// [`TreeError`] when the proof does not show it.
pub fn check_inclusion(proof: &[Hash], size: u64, root: Hash, index: u64, leaf: Hash) -> Result<(), TreeError> {
    if index >= size || size > TREE_SIZE_MAX {
        return Err(TreeError::Outside { position: index, size });
    }
    if proof.len() > PROOF_HASHES_MAX {
        return Err(TreeError::TooLong { hashes: proof.len() });
    }
    tlog_tiles::check_record(&proof.to_vec(), size, root, index, leaf).map_err(|_| TreeError::Root)
}

/// The root hash of the tree of `size` entries in which `leaf` is the entry with `index`, as an inclusion proof has it.
/// RFC 9162 section 2.1.3.2.
///
/// # Errors
/// [`TreeError`] when the proof is none for such a place.
pub(crate) fn inclusion_root(proof: &[Hash], size: u64, index: u64, leaf: Hash) -> Result<Hash, TreeError> {
    if index >= size || size > TREE_SIZE_MAX {
        return Err(TreeError::Outside { position: index, size });
    }
    let (mut node, mut last, mut root) = (index, size - 1, leaf);
    for hash in proof {
        if last == 0 {
            return Err(TreeError::Root);
        }
        if node & 1 == 1 || node == last {
            root = node_hash(*hash, root);
            // A node at the right edge without a sibling goes up as it is.
            while node & 1 == 0 && node != 0 {
                (node, last) = (node >> 1, last >> 1);
            }
        } else {
            root = node_hash(root, *hash);
        }
        (node, last) = (node >> 1, last >> 1);
    }
    if last == 0 { Ok(root) } else { Err(TreeError::Root) }
}

/// The root hash of the tree of the first `index` entries, from the inclusion proof of the entry with `index` in a tree of `size`:
/// the hashes on the left of its path are the complete subtrees of the tree before it. `None` for the first entry. It is that
/// root when the proof is one, which [`check_inclusion`] tells.
#[must_use]
pub fn root_before(proof: &[Hash], size: u64, index: u64) -> Option<Hash> {
    let (mut node, mut last) = (index, size.checked_sub(1)?);
    let mut before: Option<Hash> = None;
    for hash in proof {
        if node & 1 == 1 || node == last {
            // Subtrees come from the smallest, which is the rightmost one, to the largest.
            before = Some(before.map_or(*hash, |right| node_hash(*hash, right)));
            while node & 1 == 0 && node != 0 {
                (node, last) = (node >> 1, last >> 1);
            }
        }
        (node, last) = (node >> 1, last >> 1);
    }
    before
}

/// Does the tree of `size` entries with `root` begin with the tree of `older_size` with `older_root`? RFC 6962
/// section 2.1.2. Every tree begins with the empty one.
///
/// # Errors
/// [`TreeError`] when the proof does not show it.
pub fn check_consistency(
    proof: &[Hash],
    size: u64,
    root: Hash,
    older_size: u64,
    older_root: Hash,
) -> Result<(), TreeError> {
    if older_size > size || size > TREE_SIZE_MAX {
        return Err(TreeError::Outside { position: older_size, size });
    }
    if proof.len() > PROOF_HASHES_MAX {
        return Err(TreeError::TooLong { hashes: proof.len() });
    }
    if older_size == 0 {
        let empty = older_root == tlog_tiles::EMPTY_HASH && proof.is_empty();
        return if empty { Ok(()) } else { Err(TreeError::Root) };
    }
    tlog_tiles::check_tree(&proof.to_vec(), size, root, older_size, older_root).map_err(|_| TreeError::Root)
}

/// The right edge of a growing tree: the incomplete tile of each level, which is all that a writer needs.
///
/// Memory: at most 255 hashes a level, eight levels.
#[derive(Debug, Clone, Default)]
pub struct Edge {
    size: u64,
    /// Level by level, the hashes of the tile that is not complete; fewer than [`TILE_WIDTH`] each.
    levels: Vec<Vec<Hash>>,
}

/// A tile that became complete with a pushed leaf.
#[derive(Debug, Clone)]
pub struct FullTile {
    /// The tile's level.
    pub level: u8,
    /// The tile's number in its level.
    pub number: u64,
    /// Its [`TILE_WIDTH`] hashes.
    pub hashes: Vec<Hash>,
}

impl Edge {
    /// The edge of the empty tree.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Leaves so far.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Adds a leaf; gives back the tiles that it completed, lowest level first.
    pub fn push(&mut self, leaf: Hash) -> Vec<FullTile> {
        let mut full = Vec::new();
        let (mut hash, mut below) = (leaf, self.size);
        self.size += 1;
        for level in 0.. {
            if self.levels.len() == usize::from(level) {
                self.levels.push(Vec::new());
            }
            let Some(tile) = self.levels.get_mut(usize::from(level)) else { break };
            tile.push(hash);
            if tile.len() < TILE_WIDTH {
                break;
            }
            let hashes = std::mem::take(tile);
            hash = subtree_root(&hashes);
            below /= TILE_WIDTH as u64;
            full.push(FullTile { level, number: below, hashes });
        }
        full
    }

    /// The incomplete tiles, lowest level first: (level, number, hashes). Empty ones are left out.
    pub fn partial_tiles(&self) -> impl Iterator<Item = (u8, u64, &[Hash])> {
        (0u8..).zip(&self.levels).filter(|(_, hashes)| !hashes.is_empty()).map(|(level, hashes)| {
            let number = self.size.checked_shr(8 * (u32::from(level) + 1)).unwrap_or_default();
            (level, number, hashes.as_slice())
        })
    }

    /// The root hash of the leaves so far.
    #[must_use]
    pub fn root(&self) -> Hash {
        let mut right: Option<Hash> = None;
        for tile in &self.levels {
            // Within a tile, complete subtrees stand from left (largest) to right (smallest).
            let mut end = tile.len();
            while end > 0 {
                let width = 1 << end.trailing_zeros();
                let subtree = subtree_root(tile.get(end - width..end).unwrap_or_default());
                right = Some(right.map_or(subtree, |right| node_hash(subtree, right)));
                end -= width;
            }
        }
        right.unwrap_or(tlog_tiles::EMPTY_HASH)
    }
}

/// The root of a complete subtree over a power of two of hashes.
fn subtree_root(hashes: &[Hash]) -> Hash {
    let mut row = hashes.to_vec();
    while row.len() > 1 {
        row = row
            .chunks(2)
            .map(|pair| match pair {
                [left, right] => node_hash(*left, *right),
                // INVARIANT: callers pass a power of two, so no row but the last is odd.
                _ => pair.first().copied().unwrap_or(tlog_tiles::EMPTY_HASH),
            })
            .collect();
    }
    row.first().copied().unwrap_or(tlog_tiles::EMPTY_HASH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use sha2::{Digest as _, Sha256};
    use tlog_tiles::{HashReader, prove_record, prove_tree, stored_hashes_for_record_hash};

    /// RFC 6962 section 2.1, written down as it stands there.
    fn naive_root(leaves: &[Vec<u8>]) -> Hash {
        match leaves {
            [] => Hash(Sha256::digest([]).into()),
            [one] => Hash(Sha256::new().chain_update([0]).chain_update(one).finalize().into()),
            _ => {
                let k = leaves.len().next_power_of_two() / 2;
                let (left, right) = (naive_root(&leaves[..k]), naive_root(&leaves[k..]));
                Hash(Sha256::new().chain_update([1]).chain_update(left.0).chain_update(right.0).finalize().into())
            }
        }
    }

    /// RFC 6962 section 2.1.1, PATH(m, D[n]).
    fn naive_path(m: usize, leaves: &[Vec<u8>]) -> Vec<Hash> {
        if leaves.len() <= 1 {
            return Vec::new();
        }
        let k = leaves.len().next_power_of_two() / 2;
        let (mut path, other) = if m < k {
            (naive_path(m, &leaves[..k]), naive_root(&leaves[k..]))
        } else {
            (naive_path(m - k, &leaves[k..]), naive_root(&leaves[..k]))
        };
        path.push(other);
        path
    }

    /// RFC 6962 section 2.1.2, SUBPROOF(m, D[n], b).
    fn naive_subproof(m: usize, leaves: &[Vec<u8>], whole: bool) -> Vec<Hash> {
        if m == leaves.len() {
            return if whole { Vec::new() } else { vec![naive_root(leaves)] };
        }
        let k = leaves.len().next_power_of_two() / 2;
        let (mut proof, other) = if m <= k {
            (naive_subproof(m, &leaves[..k], whole), naive_root(&leaves[k..]))
        } else {
            (naive_subproof(m - k, &leaves[k..], false), naive_root(&leaves[..k]))
        };
        proof.push(other);
        proof
    }

    struct Stored(Vec<Hash>);

    impl HashReader for Stored {
        fn read_hashes(&self, indexes: &[u64]) -> Result<Vec<Hash>, tlog_tiles::Error> {
            Ok(indexes.iter().map(|&index| self.0[usize::try_from(index).unwrap()]).collect())
        }
    }

    fn leaves(count: usize) -> Vec<Vec<u8>> {
        (0..count).map(|n| format!("leaf {n}").into_bytes()).collect()
    }

    #[test]
    fn a_proof_of_an_entry_has_the_root_of_the_tree_before_it() {
        for size in 1..70 {
            let leaves = leaves(size);
            for index in 0..size {
                let (path, place) = (naive_path(index, &leaves), index as u64);
                let before = (index > 0).then(|| naive_root(&leaves[..index]));
                assert_eq!(root_before(&path, size as u64, place), before, "entry {index} of {size}");
            }
        }
        assert_eq!(root_before(&[], 0, 0), None);
    }

    fn stored(leaves: &[Vec<u8>]) -> Stored {
        let mut stored = Stored(Vec::new());
        for (n, leaf) in (0..).zip(leaves) {
            let hashes = stored_hashes_for_record_hash(n, leaf_hash(leaf), &stored).unwrap();
            stored.0.extend(hashes);
        }
        stored
    }

    /// The test vectors that the Certificate Transparency implementations share.
    #[test]
    fn roots_of_the_published_vectors() {
        let inputs: [&[u8]; 8] = [
            b"",
            b"\x00",
            b"\x10",
            b"\x20\x21",
            b"\x30\x31",
            b"\x40\x41\x42\x43",
            b"\x50\x51\x52\x53\x54\x55\x56\x57",
            b"\x60\x61\x62\x63\x64\x65\x66\x67\x68\x69\x6a\x6b\x6c\x6d\x6e\x6f",
        ];
        let roots = [
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
            "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
            "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
            "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
            "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
            "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
            "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
        ];
        let hex = |hash: Hash| hash.0.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let mut edge = Edge::new();
        assert_eq!(hex(edge.root()), roots[0]);
        for (input, root) in inputs.iter().zip(&roots[1..]) {
            edge.push(leaf_hash(input));
            assert_eq!(hex(edge.root()), *root);
        }
    }

    #[test]
    fn roots_and_proofs_equal_the_definition_for_all_sizes_up_to_130() {
        let all = leaves(130);
        let stored = stored(&all);
        let mut edge = Edge::new();
        for size in 1..=all.len() {
            edge.push(leaf_hash(&all[size - 1]));
            let root = naive_root(&all[..size]);
            assert_eq!(edge.root(), root);
            let size_u64 = size as u64;
            for index in 0..size {
                let path = naive_path(index, &all[..size]);
                assert_eq!(prove_record(size_u64, index as u64, &stored).unwrap(), path);
                let leaf = leaf_hash(&all[index]);
                assert_eq!(check_inclusion(&path, size_u64, root, index as u64, leaf), Ok(()));
                assert_eq!(inclusion_root(&path, size_u64, index as u64, leaf), Ok(root));
                let proof = naive_subproof(index + 1, &all[..size], true);
                assert_eq!(prove_tree(size_u64, index as u64 + 1, &stored).unwrap(), proof);
                let older = naive_root(&all[..=index]);
                assert_eq!(check_consistency(&proof, size_u64, root, index as u64 + 1, older), Ok(()));
            }
        }
    }

    #[test]
    fn tiles_complete_where_the_tree_says() {
        let mut edge = Edge::new();
        let mut full = Vec::new();
        for n in 0..(TILE_WIDTH as u64) * 257 + 3 {
            full.extend(edge.push(leaf_hash(&n.to_be_bytes())).iter().map(|tile| (tile.level, tile.number)));
        }
        assert_eq!(full.len(), 258);
        assert_eq!(full[..2], [(0, 0), (0, 1)]);
        assert_eq!(full[255..], [(0, 255), (1, 0), (0, 256)]);
        let partial: Vec<_> =
            edge.partial_tiles().map(|(level, number, hashes)| (level, number, hashes.len())).collect();
        assert_eq!(partial, [(0, 257, 3), (1, 1, 1), (2, 0, 1)]);
    }

    proptest! {
        #[test]
        fn any_change_of_a_proof_is_refused(size in 2usize..300, at in any::<proptest::sample::Index>(), bit in 0usize..256, which in 0usize..6) {
            let all = leaves(size);
            let stored = stored(&all);
            let (size, index) = (size as u64, at.index(size) as u64);
            let (mut root, mut leaf) = (naive_root(&all), leaf_hash(&all[at.index(all.len())]));
            let mut path = prove_record(size, index, &stored).unwrap();
            prop_assert_eq!(check_inclusion(&path, size, root, index, leaf), Ok(()));
            let flip = |hash: &mut Hash| hash.0[bit / 8] ^= 1 << (bit % 8);
            let (mut other_size, mut other_index) = (size, index);
            match which {
                0 => flip(&mut root),
                1 => flip(&mut leaf),
                2 => { let n = bit % path.len(); flip(&mut path[n]); }
                3 => { path.remove(bit % path.len()); }
                4 => path.insert(bit % path.len(), leaf),
                _ => { other_index = (index + 1) % size; other_size = size; }
            }
            prop_assert!(check_inclusion(&path, other_size, root, other_index, leaf).is_err());
            prop_assert_ne!(inclusion_root(&path, other_size, other_index, leaf), Ok(root));
        }

        #[test]
        fn any_change_of_a_consistency_proof_is_refused(size in 3usize..300, at in any::<proptest::sample::Index>(), bit in 0usize..256, which in 0usize..3) {
            let all = leaves(size);
            let stored = stored(&all);
            let older = 1 + at.index(size - 1);
            let (mut root, mut older_root) = (naive_root(&all), naive_root(&all[..older]));
            let mut proof = prove_tree(size as u64, older as u64, &stored).unwrap();
            prop_assert_eq!(check_consistency(&proof, size as u64, root, older as u64, older_root), Ok(()));
            let flip = |hash: &mut Hash| hash.0[bit / 8] ^= 1 << (bit % 8);
            match which {
                0 => flip(&mut root),
                1 => flip(&mut older_root),
                _ => { let n = bit % proof.len(); flip(&mut proof[n]); }
            }
            prop_assert!(check_consistency(&proof, size as u64, root, older as u64, older_root).is_err());
        }

        #[test]
        fn proofs_of_huge_trees_fail_without_a_panic(size in any::<u64>(), index in any::<u64>(), hashes in 0usize..70) {
            let proof = vec![Hash([7; 32]); hashes];
            prop_assert!(check_inclusion(&proof, size, Hash([1; 32]), index, Hash([2; 32])).is_err());
            prop_assert!(check_consistency(&proof, size, Hash([1; 32]), index, Hash([2; 32])).is_err());
        }
    }

    #[test]
    fn what_lies_outside_the_tree_is_refused() {
        let leaf = leaf_hash(b"one");
        assert_eq!(check_inclusion(&[], 1, leaf, 0, leaf), Ok(()));
        assert_eq!(check_inclusion(&[], 1, leaf, 1, leaf), Err(TreeError::Outside { position: 1, size: 1 }));
        assert_eq!(check_inclusion(&[], 0, leaf, 0, leaf), Err(TreeError::Outside { position: 0, size: 0 }));
        assert_eq!(check_inclusion(&[leaf; 65], 2, leaf, 0, leaf), Err(TreeError::TooLong { hashes: 65 }));
        assert_eq!(check_consistency(&[], 1, leaf, 0, tlog_tiles::EMPTY_HASH), Ok(()));
        assert_eq!(check_consistency(&[leaf], 1, leaf, 0, tlog_tiles::EMPTY_HASH), Err(TreeError::Root));
        assert!(check_consistency(&[], 1, leaf, 2, leaf).is_err());
    }
}
