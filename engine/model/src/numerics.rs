//! The numerics profile: a digest of what decides the bits of a model's logits, beside the file itself.
//!
//! The bits do not depend on the family of kernels, the number of threads, what else is in a run, how a prompt was
//! divided or where pages lie, nor on the system's mathematical library: none of these is in it. It is of stores of the
//! usual kind of K and V; a store of another kind gives other bits.

use std::fmt::Write;

use engine_kernels::{ACTIVATION_BLOCK, KvKind, PAGE_TOKENS};
use sha2::{Digest, Sha256};

use crate::weights::Weights;

/// Raised by hand whenever a kernel rounds differently or sums in another order, which the test of the golden bits
/// notices: two builds with one version give the same bits.
const PROFILE_VERSION: u32 = 2;
/// Families of kernels whose bits differ are classes of their own. All that there are give the same bits.
const KERNEL_CLASS: u32 = 1;

/// SHA-256 of [`description`].
pub(crate) fn profile(weights: &Weights, kv: KvKind) -> [u8; 32] {
    Sha256::digest(description(weights, kv)).into()
}

/// The profile as text: a line for each fact, each ended by a line feed; then the element types of all matrices, in the
/// order in which a forward pass reads them (token embeddings; of each layer Q, K, V, attention output, gate, up, down;
/// head), one a line.
fn description(weights: &Weights, kv: KvKind) -> String {
    let mut text = format!(
        "bulkhead numerics profile\nversion {PROFILE_VERSION}\nkernel class {KERNEL_CLASS}\n\
         activations i8 in blocks of {ACTIVATION_BLOCK}\nkv {kv} in pages of {PAGE_TOKENS} tokens\nmatrices\n"
    );
    for matrix in weights.matrices() {
        // INVARIANT: writing to a string does not fail.
        let _ = writeln!(text, "{:?}", matrix.kind());
    }
    text
}
