//! A transparency log's mathematics and file formats: RFC 6962 trees, C2SP signed notes, checkpoints, tiles, proofs,
//! COSE receipts, cosignatures and what witnesses are asked.
//!
//! Specification code only: it knows nothing of what the entries mean, does no I/O, and can be tested with published
//! vectors alone. Every parser is bounded and takes exactly one form of each value.
#![forbid(unsafe_code)]

mod checkpoint;
mod cose;
mod cosignature;
mod key;
mod proof;
mod rotation;
mod signed_text;
mod tile;
mod tree;
mod witness;

pub use checkpoint::{CHECKPOINT_BYTES_MAX, Checkpoint, CheckpointError, SIGNATURES_MAX};
pub use cose::{COSE_RECEIPT_BYTES_MAX, CoseError, CoseReceipt};
pub use cosignature::{Cosignature, Cosigner, CosignerKey};
pub use key::{ExternalSigner, KeyError, LogSigner, VerifierKey};
pub use proof::{EXTRA_BYTES_MAX, PROOF_BYTES_MAX, ProofError, TlogProof};
pub use rotation::{KeyChain, ROTATIONS_MAX, RotationError, RotationStage, SignedRotation, Window};
pub use signed_text::{SIGNED_TEXT_BYTES_MAX, SignedTextError, open_text, sign_text};
pub use tile::{
    BundleError, ENTRY_BYTES_ROOF, TILE_WIDTH, TileFiles, TilePath, TiledTree, TreeReadError, encode_bundle,
    parse_bundle,
};
pub use tlog_tiles::Hash;
pub use tree::{
    Edge, FullTile, PROOF_HASHES_MAX, TREE_SIZE_MAX, TreeError, check_consistency, check_inclusion, leaf_hash,
    node_hash, root_before,
};
pub use witness::{
    ADD_CHECKPOINT_BYTES_MAX, AddCheckpoint, AddCheckpointError, CONSISTENCY_HASHES_MAX, TLOG_SIZE, origin_of,
};
