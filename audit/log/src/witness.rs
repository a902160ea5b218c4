//! Witnesses: others who remember what this log has shown, and sign only what continues it.
//!
//! At the start each of them is asked whether it has seen this log's committed tree; one that has seen more, or another
//! tree, ends the start ([`check_at_start`]). How a witness is reached is not known here: [`WitnessTransport`] carries one
//! request. What it answers is not trusted beyond its signature.

use crate::fault::OpenLogError;
use crate::publish::Published;
use crate::signer::printable;
use audit_provenance::CosignerRole;
use audit_tlog::{AddCheckpoint, Checkpoint, Cosignature, CosignerKey, Hash};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Witnesses of one log: with the log's own, which are two while its key changes, their signatures are as many as a checkpoint
/// may have.
pub const WITNESSES_MAX: usize = audit_tlog::SIGNATURES_MAX - 2;
/// Longest answer of a witness that is read.
pub const WITNESS_ANSWER_BYTES_MAX: usize = 16 * 1024;
/// Requests until a witness has told its size and got the proof from there. One that goes on changing it is given up.
const ASKS_MAX: usize = 3;
/// How the answer of a witness begins that has looked into the log and refuses it.
const AUDIT: &str = "audit: ";

/// Carries a request to one witness. It blocks, for a bounded time.
pub trait WitnessTransport: Send + Sync + 'static {
    /// Sends the body of `add-checkpoint`. Any status is an answer; of a longer body than [`WITNESS_ANSWER_BYTES_MAX`]
    /// the rest may be left out.
    ///
    /// # Errors
    /// When there is no answer.
    fn add_checkpoint(&self, body: &str) -> io::Result<WitnessAnswer>;
}

/// What a witness answered. Nothing of it is believed yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WitnessAnswer {
    /// The status of HTTP.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
}

/// One witness.
#[derive(Clone)]
pub struct Witness {
    /// Its key; the key's name is the witness's.
    pub key: CosignerKey,
    /// The way to it.
    pub transport: Arc<dyn WitnessTransport>,
    /// Whether it reads what it cosigns.
    pub role: CosignerRole,
}

impl fmt::Debug for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Witness({})", self.key)
    }
}

/// Who witnesses a log. The default is nobody.
#[derive(Debug, Clone, Default)]
pub struct WitnessPolicy {
    /// At most [`WITNESSES_MAX`]; of those beyond, nobody is asked.
    pub witnesses: Vec<Witness>,
    /// Cosignatures with which a checkpoint counts as witnessed.
    pub quorum: usize,
    /// Whether a start takes as many witnesses that agree. Otherwise those that cannot be reached are warned of.
    pub quorum_at_start: bool,
    /// Whoever has not cosigned what was published so long ago has fallen behind, which is an incident; nobody has when it is
    /// `None`.
    pub lag_max: Option<Duration>,
}

/// How one witness does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WitnessHealth {
    /// Its name.
    pub name: Arc<str>,
    /// What is expected of it.
    pub role: CosignerRole,
    /// Size of the largest tree that it has cosigned in this run.
    pub cosigned: u64,
    /// Whether its last answer was no cosignature, or it did not answer.
    pub away: bool,
    /// It has seen another history of this log, or says so. It stays until the next start: somebody must look.
    pub alarm: Option<Arc<str>>,
    /// What it has not cosigned of what was published.
    pub lag: Lag,
}

/// How far a cosigner is behind what was published.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lag {
    /// Entries that it has not cosigned.
    pub entries: u64,
    /// Microseconds since the first of them was published; 0 when there is none.
    pub behind_us: u64,
}

/// What came of asking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Asked {
    /// It has cosigned.
    Cosigned(Cosignature),
    /// It says that it has seen a larger tree of this log than there is.
    Ahead(u64),
    /// It has seen another tree of the size that is told: it refused a proof that is right.
    Forked(u64),
    /// It has looked into the log and does not cosign what it found.
    Refused(String),
    /// The checkpoint is too old for a proof: its partial tiles are gone.
    NoProof(String),
    /// No cosignature, and no word about the log's history.
    Failed(String),
}

/// Asks one witness to cosign a checkpoint. `known` is the size that it is believed to have seen, and is corrected by what
/// it says. `prove` makes the consistency proof from a smaller size.
pub(crate) fn ask(
    witness: &Witness,
    checkpoint: &Checkpoint,
    note: &str,
    known: &mut Option<u64>,
    prove: &dyn Fn(u64) -> Result<Vec<Hash>, String>,
) -> Asked {
    for _ in 0..ASKS_MAX {
        // Whoever has seen this very tree needs no proof, and whoever has not says what it has seen.
        let old_size = known.unwrap_or(checkpoint.size).min(checkpoint.size);
        let proof = if old_size == 0 || old_size == checkpoint.size { Ok(Vec::new()) } else { prove(old_size) };
        let proof = match proof {
            Ok(proof) => proof,
            Err(reason) => return Asked::NoProof(format!("no proof could be made: {reason}")),
        };
        let body = AddCheckpoint { old_size, proof, checkpoint: note.to_owned() }.encode();
        let answer = match witness.transport.add_checkpoint(&body) {
            Ok(answer) if answer.body.len() <= WITNESS_ANSWER_BYTES_MAX => answer,
            Ok(_) => return Asked::Failed("its answer is too long".into()),
            Err(error) => return Asked::Failed(error.to_string()),
        };
        match answer.status {
            200 => {
                // Whatever it says besides is not taken over: only the line that its own key made of this checkpoint.
                let Ok(Some(cosignature)) = witness.key.find(checkpoint, &answer.body) else {
                    return Asked::Failed("its answer holds no cosignature of its key".into());
                };
                *known = Some(checkpoint.size);
                return Asked::Cosigned(cosignature);
            }
            409 => match AddCheckpoint::parse_size_answer(&answer.body) {
                Some(theirs) if theirs > checkpoint.size => {
                    *known = None;
                    return Asked::Ahead(theirs);
                }
                // An older form of the specification answers so to another root of the same size.
                Some(theirs) if theirs == old_size && theirs == checkpoint.size => return Asked::Forked(theirs),
                Some(theirs) if theirs != old_size => *known = Some(theirs),
                _ => return Asked::Failed("it contradicts itself about the size that it has seen".into()),
            },
            422 => {
                let text = String::from_utf8_lossy(&answer.body);
                return match text.strip_prefix(AUDIT) {
                    Some(reason) => Asked::Refused(printable(reason)),
                    None => Asked::Forked(old_size),
                };
            }
            403 => return Asked::Failed("it does not know this log's key (403)".into()),
            404 => return Asked::Failed("it does not follow this log (404)".into()),
            status => return Asked::Failed(format!("it answered with status {status}")),
        }
    }
    Asked::Failed("it says another size each time".into())
}

/// Asks all witnesses whether the committed tree is the newest that they have seen of this log. Nothing was signed in this
/// run when this is called.
pub(crate) fn check_at_start(
    policy: &WitnessPolicy,
    committed: &Published,
    origin: &str,
    prove: &(dyn Fn(u64) -> Result<Vec<Hash>, String> + Sync),
) -> Result<(), OpenLogError> {
    let checkpoint = Checkpoint { origin: origin.to_owned(), size: committed.size, root: committed.root };
    let ours = committed.size;
    let asked: Vec<(&str, Asked)> = std::thread::scope(|scope| {
        let ask_one = |witness: &'_ Witness| ask(witness, &checkpoint, &committed.note, &mut None, prove);
        let threads: Vec<_> = policy
            .witnesses
            .iter()
            .take(WITNESSES_MAX)
            .map(|witness| (witness.key.name(), scope.spawn(move || ask_one(witness))))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Asked>| {
            thread.join().unwrap_or_else(|_| Asked::Failed("asking it failed".into()))
        };
        threads.into_iter().map(|(name, thread)| (name, join(thread))).collect()
    });
    let mut agreed = 0;
    for (witness, asked) in &asked {
        let witness = (*witness).to_owned();
        match asked {
            Asked::Cosigned(_) => agreed += 1,
            Asked::Ahead(theirs) => return Err(OpenLogError::WitnessAhead { witness, theirs: *theirs, ours }),
            Asked::Forked(size) => return Err(OpenLogError::WitnessForked { witness, size: *size, ours }),
            Asked::Refused(reason) => {
                tracing::error!(witness, reason, "an auditor does not cosign this log");
            }
            Asked::NoProof(reason) | Asked::Failed(reason) => {
                tracing::warn!(witness, reason, "a witness could not say whether this log is the newest");
            }
        }
    }
    if policy.quorum_at_start && agreed < policy.quorum {
        return Err(OpenLogError::WitnessQuorum { agreed, quorum: policy.quorum });
    }
    Ok(())
}
