//! A response that was computed again, alone, as an entry: whether it has the same bits.

use crate::cbor::{DecodeError, Reader, Writer};
use crate::entry::numbered;
use policies_domain::{Digest, RequestId};

/// What came of computing a response again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// The request.
    pub request: RequestId,
    /// Index of its sealed entry.
    pub sealed_index: u64,
    /// Leaf hash of its sealed entry.
    pub sealed_leaf: Digest,
    /// What came out.
    pub outcome: ReplayOutcome,
    /// Tokens of the answer that were computed again.
    pub tokens: u64,
    /// Place of the first token that differs; none where no token does.
    pub first_difference: Option<u64>,
    /// Whether the answer had left.
    pub when: ReplayTime,
    /// Processor time that it took, in microseconds.
    pub cpu_us: u64,
}

/// What came out of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayOutcome {
    /// The same tokens, of the same logits, bit for bit.
    Same = 0,
    /// Others: something that is not in the request had a part in the answer, or the hardware failed.
    Different = 1,
    /// It was due and not done.
    NotDone = 2,
}

impl ReplayOutcome {
    const ALL: [Self; 3] = [Self::Same, Self::Different, Self::NotDone];

    /// As reports and metrics name it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Different => "different",
            Self::NotDone => "not_done",
        }
    }
}

/// Whether a response was computed again before its client had it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayTime {
    /// Its client may have it.
    AfterRelease = 0,
    /// It was held back meanwhile.
    BeforeRelease = 1,
}

impl ReplayTime {
    const ALL: [Self; 2] = [Self::AfterRelease, Self::BeforeRelease];
}

impl Replay {
    /// Only what differs has a place where it does.
    fn is_consistent(&self) -> bool {
        self.first_difference.is_none_or(|place| self.outcome == ReplayOutcome::Different && place < self.tokens)
    }

    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.bytes(&self.request.bytes()).uint(self.sealed_index).bytes(&self.sealed_leaf.0);
        writer.uint(self.outcome as u64).uint(self.tokens);
        match self.first_difference {
            Some(place) => writer.uint(place),
            None => writer.null(),
        };
        writer.uint(self.when as u64).uint(self.cpu_us);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let replay = Self {
            request: RequestId::from_bytes(reader.fixed("request id")?),
            sealed_index: reader.uint()?,
            sealed_leaf: Digest(reader.fixed("sealed leaf")?),
            outcome: numbered(&ReplayOutcome::ALL, reader.uint()?, "outcome")?,
            tokens: reader.uint()?,
            first_difference: if reader.null() { None } else { Some(reader.uint()?) },
            when: numbered(&ReplayTime::ALL, reader.uint()?, "when")?,
            cpu_us: reader.uint()?,
        };
        if replay.is_consistent() { Ok(replay) } else { Err(DecodeError::Range { field: "first difference" }) }
    }
}
