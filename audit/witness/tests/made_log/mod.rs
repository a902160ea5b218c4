//! A log of numbered entries, with the proofs of RFC 6962 written down as they stand there; and a second history of it.
#![allow(dead_code, reason = "each test file uses its part")]

use audit_tlog::{AddCheckpoint, Checkpoint, Hash, LogSigner, VerifierKey, leaf_hash, node_hash};

pub(crate) const ORIGIN: &str = "log.example/isolation/2026h2";

pub(crate) struct MadeLog {
    signer: LogSigner,
    leaves: Vec<Hash>,
}

impl MadeLog {
    /// Entries up to `fork` are those of every such log, entries from there on are this history's own.
    pub(crate) fn new(history: &str, fork: usize) -> Self {
        let leaf = |n| leaf_hash(if n < fork { format!("entry {n}") } else { format!("{history} {n}") }.as_bytes());
        let signer = LogSigner::from_seed(ORIGIN, &[9; 32]).unwrap();
        Self { signer, leaves: (0..300).map(leaf).collect() }
    }

    pub(crate) fn signer(&self) -> &LogSigner {
        &self.signer
    }

    pub(crate) fn key(&self) -> VerifierKey {
        self.signer.verifier_key()
    }

    pub(crate) fn checkpoint(&self, size: u64) -> Checkpoint {
        let leaves = &self.leaves[..usize::try_from(size).unwrap()];
        let root = if leaves.is_empty() { audit_tlog::Edge::new().root() } else { root(leaves) };
        Checkpoint { origin: ORIGIN.into(), size, root }
    }

    pub(crate) fn note(&self, size: u64) -> String {
        self.checkpoint(size).sign(&self.signer).unwrap()
    }

    pub(crate) fn proof(&self, old: u64, new: u64) -> Vec<Hash> {
        let leaves = &self.leaves[..usize::try_from(new).unwrap()];
        if old == 0 { Vec::new() } else { subproof(usize::try_from(old).unwrap(), leaves, true) }
    }

    /// The request that adds the checkpoint of `new` to a witness that knows `old`.
    pub(crate) fn request(&self, old: u64, new: u64) -> String {
        AddCheckpoint { old_size: old, proof: self.proof(old, new), checkpoint: self.note(new) }.encode()
    }
}

fn split(leaves: &[Hash]) -> usize {
    leaves.len().next_power_of_two() / 2
}

fn root(leaves: &[Hash]) -> Hash {
    if let [one] = leaves {
        return *one;
    }
    let (left, right) = leaves.split_at(split(leaves));
    node_hash(root(left), root(right))
}

/// RFC 6962 section 2.1.2, SUBPROOF(m, D[n], b).
fn subproof(m: usize, leaves: &[Hash], whole: bool) -> Vec<Hash> {
    if m == leaves.len() {
        return if whole { Vec::new() } else { vec![root(leaves)] };
    }
    let k = split(leaves);
    let (left, right) = leaves.split_at(k);
    let (mut proof, other) =
        if m <= k { (subproof(m, left, whole), root(right)) } else { (subproof(m - k, right, false), root(left)) };
    proof.push(other);
    proof
}
