//! Who else has seen a checkpoint: the cosignatures of witnesses that the caller believes.

use audit_tlog::{Checkpoint, CheckpointError, CosignerKey};

/// Witnesses that the caller believes, and how many of them it takes.
#[derive(Debug, Clone)]
pub struct Witnesses {
    keys: Vec<CosignerKey>,
    quorum: usize,
}

/// A quorum cannot be asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WitnessesError {
    /// One witness would be counted twice.
    #[error("witness `{name}` is given twice")]
    Twice {
        /// Its name.
        name: String,
    },
    /// Nobody, or more than there are.
    #[error("a quorum of {quorum} of {witnesses} witnesses")]
    Quorum {
        /// How many are asked for.
        quorum: usize,
        /// How many there are.
        witnesses: usize,
    },
}

impl Witnesses {
    /// `quorum` of these witnesses must have cosigned.
    ///
    /// # Errors
    /// [`WitnessesError`].
    pub fn new(keys: Vec<CosignerKey>, quorum: usize) -> Result<Self, WitnessesError> {
        for (place, key) in keys.iter().enumerate() {
            if keys.iter().take(place).any(|other| other == key) {
                return Err(WitnessesError::Twice { name: key.name().to_owned() });
            }
        }
        if quorum == 0 || quorum > keys.len() {
            return Err(WitnessesError::Quorum { quorum, witnesses: keys.len() });
        }
        Ok(Self { keys, quorum })
    }

    /// The witnesses that have cosigned a checkpoint whose signature lines are `note`.
    ///
    /// # Errors
    /// [`WitnessRefusal`].
    pub fn check(&self, checkpoint: &Checkpoint, note: &[u8]) -> Result<Vec<Witnessed>, WitnessRefusal> {
        let mut cosigned = Vec::new();
        for key in &self.keys {
            let name = key.name().to_owned();
            match key.find(checkpoint, note) {
                Ok(Some(found)) => cosigned.push(Witnessed { name, unix_seconds: found.unix_seconds }),
                Ok(None) => {}
                Err(source) => return Err(WitnessRefusal::Cosignature { name, source }),
            }
        }
        if cosigned.len() < self.quorum {
            return Err(WitnessRefusal::Quorum { cosigned: cosigned.len(), quorum: self.quorum });
        }
        Ok(cosigned)
    }
}

/// A witness that has cosigned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Witnessed {
    /// Its name.
    pub name: String,
    /// When, by its own clock.
    pub unix_seconds: u64,
}

/// Why a checkpoint does not count as witnessed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WitnessRefusal {
    /// Too few have cosigned it.
    #[error("{cosigned} of the given witnesses have cosigned the checkpoint, {quorum} are asked for")]
    Quorum {
        /// How many have.
        cosigned: usize,
        /// How many are asked for.
        quorum: usize,
    },
    /// A line says that it is a witness's, and is not.
    #[error("the cosignature of `{name}`: {source}")]
    Cosignature {
        /// The witness.
        name: String,
        /// What is wrong.
        source: CheckpointError,
    },
}
