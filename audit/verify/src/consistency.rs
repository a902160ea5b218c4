//! Whether a log has only grown since an older checkpoint.

use crate::receipt::{Evidence, ReceiptRefusal, check_receipt};
use crate::rotation::LogKeys;
use crate::witnesses::{WitnessRefusal, Witnessed, Witnesses};
use audit_tlog::{
    AddCheckpoint, AddCheckpointError, Checkpoint, CheckpointError, CoseReceipt, ProofError, TlogProof, TreeError,
    VerifierKey, check_consistency as check_proof,
};

/// A log that has only grown.
#[derive(Debug, Clone, PartialEq)]
pub struct ConsistencyReport {
    /// The older checkpoint.
    pub older: Checkpoint,
    /// The newer one, which continues it.
    pub newer: Checkpoint,
    /// Who has cosigned the newer one, of the witnesses that were asked for.
    pub witnessed: Vec<Witnessed>,
    /// Which of the given keys have signed the checkpoint.
    pub signed_by: Vec<VerifierKey>,
}

/// Why that was not shown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConsistencyRefusal {
    /// What is held looks like an answer.
    #[error("what you hold comes first and the gateway's answer second: the files are the other way round")]
    Swapped,
    /// The older one is neither a checkpoint nor a receipt.
    #[error("the older one is not a receipt: {0}")]
    Receipt(ProofError),
    /// The older one is a COSE receipt that is refused, so it shows no tree of this log.
    #[error("the older one: {0}")]
    Cose(Box<ReceiptRefusal>),
    /// The older checkpoint is not one of this log.
    #[error("the older checkpoint: {0}")]
    Older(CheckpointError),
    /// The answer is none.
    #[error("not an answer about consistency: {0}")]
    Answer(AddCheckpointError),
    /// The newer checkpoint is not one of this log.
    #[error("the newer checkpoint: {0}")]
    Newer(CheckpointError),
    /// The answer is about another size.
    #[error("the answer continues a tree of {answered} entries, and the older checkpoint has {older}")]
    Size {
        /// What was answered.
        answered: u64,
        /// What is held.
        older: u64,
    },
    /// The proof, which nobody signed, does not lead from the older checkpoint to the newer one.
    #[error(
        "the answer does not show that the log continues the older checkpoint ({0}): it was damaged on its way, or the log has \
         another history now; ask again, and keep both files if it stays so"
    )]
    Proof(TreeError),
    /// The log's own key has signed two trees of one size.
    #[error(
        "the log's key has signed two trees of {size} entries: it has two histories, and these two files prove it to everybody"
    )]
    Forked {
        /// The size.
        size: u64,
    },
    /// Too few witnesses.
    #[error(transparent)]
    Witness(#[from] WitnessRefusal),
}

impl ConsistencyRefusal {
    /// The name of the check that failed.
    #[must_use]
    pub fn check(&self) -> &'static str {
        match self {
            Self::Receipt(_) | Self::Swapped => "form",
            Self::Cose(refusal) => refusal.check(),
            Self::Older(_) | Self::Newer(_) => "signature",
            Self::Answer(_) => "answer",
            Self::Size { .. } => "size",
            Self::Proof(_) => "consistency",
            Self::Forked { .. } => "fork",
            Self::Witness(_) => "witnesses",
        }
    }
}

/// Checks the answer of `/v1/isolation/proof/consistency` against what was held before: a checkpoint, or a receipt.
///
/// # Errors
/// [`ConsistencyRefusal`].
pub fn check_consistency(
    held: &[u8],
    answer: &[u8],
    keys: &(impl LogKeys + ?Sized),
    witnesses: Option<&Witnesses>,
) -> Result<ConsistencyReport, ConsistencyRefusal> {
    if AddCheckpoint::parse(held).is_ok() {
        return Err(ConsistencyRefusal::Swapped);
    }
    let chain = keys.chain();
    let keys = &*chain;
    let older = match keys.open(held) {
        Ok(checkpoint) => checkpoint,
        // It has no checkpoint: its tree is the one that its proof leads to.
        Err(_) if CoseReceipt::is_meant(held) => {
            let checked = check_receipt(held, keys, Evidence::default());
            checked.map_err(|refusal| ConsistencyRefusal::Cose(Box::new(refusal)))?.checkpoint
        }
        Err(error) => {
            let is_receipt = held.starts_with(b"c2sp.org/tlog-proof");
            let note = match TlogProof::parse(held) {
                Ok(receipt) => receipt.checkpoint,
                Err(error) if is_receipt => return Err(ConsistencyRefusal::Receipt(error)),
                Err(_) => return Err(ConsistencyRefusal::Older(error)),
            };
            keys.open(note.as_bytes()).map_err(ConsistencyRefusal::Older)?
        }
    };
    let answer = AddCheckpoint::parse(answer).map_err(ConsistencyRefusal::Answer)?;
    let newer = keys.open(answer.checkpoint.as_bytes()).map_err(ConsistencyRefusal::Newer)?;
    if answer.old_size != older.size {
        return Err(ConsistencyRefusal::Size { answered: answer.old_size, older: older.size });
    }
    if newer.size == older.size && newer.root != older.root {
        return Err(ConsistencyRefusal::Forked { size: older.size });
    }
    check_proof(&answer.proof, newer.size, newer.root, older.size, older.root).map_err(ConsistencyRefusal::Proof)?;
    let note = answer.checkpoint.as_bytes();
    let witnessed = witnesses.map(|witnesses| witnesses.check(&newer, note)).transpose()?.unwrap_or_default();
    Ok(ConsistencyReport { older, newer, signed_by: keys.signers(note), witnessed })
}

#[cfg(test)]
mod tests {
    use super::*;
    use audit_tlog::{Cosigner, Edge, Hash, LogSigner, leaf_hash};

    fn signer() -> LogSigner {
        LogSigner::from_seed("log.example", &[7; 32]).unwrap()
    }

    /// The checkpoint of a tree of two entries, and of another one that begins with it or, with `forked`, does not; the proof is
    /// that of the first case.
    fn grown(forked: bool) -> (String, String) {
        let [one, two, three] = [b"one".as_slice(), b"two", b"three"].map(leaf_hash);
        let root = |leaves: &[Hash]| {
            let mut edge = Edge::new();
            leaves.iter().for_each(|leaf| drop(edge.push(*leaf)));
            edge.root()
        };
        let sign = |size, root| Checkpoint { origin: "log.example".to_owned(), size, root }.sign(&signer()).unwrap();
        let newer = if forked { root(&[two, one, three]) } else { root(&[one, two, three]) };
        let answer = AddCheckpoint { old_size: 2, proof: vec![three], checkpoint: sign(3, newer) };
        (sign(2, root(&[one, two])), answer.encode())
    }

    #[test]
    fn a_log_that_has_grown_is_told_from_one_that_forked() {
        let key = signer().verifier_key();
        let (older, answer) = grown(false);
        let report = check_consistency(older.as_bytes(), answer.as_bytes(), &key, None).unwrap();
        assert_eq!((report.older.size, report.newer.size), (2, 3));
        let (_, forked) = grown(true);
        let refusal = check_consistency(older.as_bytes(), forked.as_bytes(), &key, None).unwrap_err();
        assert_eq!(refusal.check(), "consistency", "{refusal}");
        // A proof that was damaged on its way accuses nobody; two trees of one size do.
        let [line] = answer.lines().skip(1).take(1).collect::<Vec<_>>()[..] else { panic!("no proof") };
        let damaged = answer.replace(line, &Hash([9; 32]).to_string());
        let refusal = check_consistency(older.as_bytes(), damaged.as_bytes(), &key, None).unwrap_err();
        assert!(matches!(refusal, ConsistencyRefusal::Proof(_)), "{refusal}");
        let sign = |root| Checkpoint { origin: "log.example".to_owned(), size: 2, root }.sign(&signer()).unwrap();
        let other = AddCheckpoint { old_size: 2, proof: Vec::new(), checkpoint: sign(Hash([9; 32])) }.encode();
        let refusal = check_consistency(older.as_bytes(), other.as_bytes(), &key, None).unwrap_err();
        assert_eq!((refusal.check(), matches!(refusal, ConsistencyRefusal::Forked { size: 2 })), ("fork", true));
        let swapped = check_consistency(answer.as_bytes(), older.as_bytes(), &key, None).unwrap_err();
        assert_eq!(swapped, ConsistencyRefusal::Swapped);
    }

    #[test]
    fn what_is_not_from_this_log_or_about_this_checkpoint_is_refused() {
        let key = signer().verifier_key();
        let (older, answer) = grown(false);
        let refused = |older: &str, answer: &str, key: &VerifierKey| {
            check_consistency(older.as_bytes(), answer.as_bytes(), key, None).unwrap_err().check()
        };
        let other = LogSigner::from_seed("log.example", &[8; 32]).unwrap().verifier_key();
        assert_eq!(refused(&older, &answer, &other), "signature");
        assert_eq!(refused("hello", &answer, &key), "signature");
        assert_eq!(refused("c2sp.org/tlog-proof@v1\nhello", &answer, &key), "form");
        assert_eq!(refused(&older, "hello", &key), "answer");
        assert_eq!(refused(&older, &answer.replace("old 2", "old 1"), &key), "size");
        assert_eq!(refused(&older, &answer.replace("\n3\n", "\n4\n"), &key), "signature");
        let witness = Cosigner::from_seed("w.example", &[1; 32]).unwrap().verifier_key();
        let witnesses = Witnesses::new(vec![witness], 1).unwrap();
        let alone = check_consistency(older.as_bytes(), answer.as_bytes(), &key, Some(&witnesses)).unwrap_err();
        assert_eq!(alone.check(), "witnesses");
    }
}
