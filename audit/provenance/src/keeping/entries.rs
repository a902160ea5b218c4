//! What is said of keeping and destroying, as entries: an erasure and that it was done, a hold and its end, and which traces
//! were dropped.

use crate::cbor::{DecodeError, Reader, Writer};
use crate::entry::numbered;
use crate::incident_state::ActorRef;
use policies_domain::Digest;

/// A tenant's commitment key of one epoch is destroyed. The entry is durable before that, and what it says is final.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Erasure {
    /// Epoch of the key.
    pub epoch: u64,
    /// What names the key and tells nothing of it; `None` when there was none to be found any more.
    pub key: Option<Digest>,
    /// Why.
    pub basis: ErasureBasis,
    /// Who asked for it.
    pub actor: ActorRef,
    /// The second person.
    pub second: ActorRef,
}

/// Why a key is destroyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErasureBasis {
    /// The tenant, or whom its data is of, asked for it.
    Request = 0,
    /// The contract has ended.
    ContractEnd = 1,
    /// The time for which it was to be kept is over.
    Retention = 2,
    /// A court or an authority ordered it.
    Order = 3,
    /// The key was lost, or is known to somebody.
    KeyLost = 4,
    /// Something else.
    Other = 5,
}

impl ErasureBasis {
    const ALL: [Self; 6] = [Self::Request, Self::ContractEnd, Self::Retention, Self::Order, Self::KeyLost, Self::Other];

    /// As reports name it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::ContractEnd => "contract_end",
            Self::Retention => "retention",
            Self::Order => "order",
            Self::KeyLost => "key_lost",
            Self::Other => "other",
        }
    }

    /// The one of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|basis| basis.as_str() == name)
    }
}

impl Erasure {
    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.uint(self.epoch).bytes_or_null(self.key.as_ref().map(|key| key.0.as_slice()));
        writer.uint(self.basis as u64).bytes(&self.actor).bytes(&self.second);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let erasure = Self {
            epoch: reader.uint()?,
            key: if reader.null() { None } else { Some(Digest(reader.fixed("key")?)) },
            basis: numbered(&ErasureBasis::ALL, reader.uint()?, "basis")?,
            actor: reader.fixed("actor")?,
            second: reader.fixed("second")?,
        };
        two_persons(&erasure.actor, &erasure.second)?;
        Ok(erasure)
    }
}

/// No file of an erased key is left. There is one for each time that files were found and destroyed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Erased {
    /// Epoch of the key.
    pub epoch: u64,
    /// Index of the erasure's entry.
    pub erasure_index: u64,
    /// Leaf hash of the erasure's entry.
    pub erasure_leaf: Digest,
    /// Files that were overwritten and removed.
    pub files: u64,
}

impl Erased {
    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.uint(self.epoch).uint(self.erasure_index).bytes(&self.erasure_leaf.0).uint(self.files);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            epoch: reader.uint()?,
            erasure_index: reader.uint()?,
            erasure_leaf: Digest(reader.fixed("erasure leaf")?),
            files: reader.uint()?,
        })
    }
}

/// Nothing of a tenant's, or of anybody's, is destroyed that lies in this time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// Its id.
    pub hold: [u8; 16],
    /// First moment, in microseconds since 1970.
    pub first_us: u64,
    /// Last moment; what comes is held, too, when it is `None`.
    pub last_us: Option<u64>,
    /// Why.
    pub reason: HoldReason,
    /// Who asked for it.
    pub actor: ActorRef,
}

/// Why something is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldReason {
    /// A dispute before a court, or one that is expected.
    Litigation = 0,
    /// An authority asks.
    Inquiry = 1,
    /// A security incident is looked into.
    Incident = 2,
    /// Something else.
    Other = 3,
}

impl HoldReason {
    const ALL: [Self; 4] = [Self::Litigation, Self::Inquiry, Self::Incident, Self::Other];

    /// As reports name it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Litigation => "litigation",
            Self::Inquiry => "inquiry",
            Self::Incident => "incident",
            Self::Other => "other",
        }
    }

    /// The one of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == name)
    }
}

impl Hold {
    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.bytes(&self.hold).uint(self.first_us);
        match self.last_us {
            Some(last) => writer.uint(last),
            None => writer.null(),
        };
        writer.uint(self.reason as u64).bytes(&self.actor);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let hold = Self {
            hold: reader.fixed("hold")?,
            first_us: reader.uint()?,
            last_us: if reader.null() { None } else { Some(reader.uint()?) },
            reason: numbered(&HoldReason::ALL, reader.uint()?, "reason")?,
            actor: reader.fixed("actor")?,
        };
        let runs_forwards = hold.last_us.is_none_or(|last| hold.first_us <= last);
        if runs_forwards { Ok(hold) } else { Err(DecodeError::Range { field: "last" }) }
    }
}

/// A hold ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// Its id.
    pub hold: [u8; 16],
    /// Who asked for it.
    pub actor: ActorRef,
    /// The second person.
    pub second: ActorRef,
}

impl Release {
    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.bytes(&self.hold).bytes(&self.actor).bytes(&self.second);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let release =
            Self { hold: reader.fixed("hold")?, actor: reader.fixed("actor")?, second: reader.fixed("second")? };
        two_persons(&release.actor, &release.second)?;
        Ok(release)
    }
}

/// The traces of the oldest entries are dropped. The entry is durable before that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prune {
    /// Of the entries before this one.
    pub before: u64,
    /// Time of the newest of them, in microseconds since 1970.
    pub newest_us: u64,
    /// For how many days traces are to be kept.
    pub retention_days: u64,
}

/// Longest retention: a thousand years.
const RETENTION_DAYS_MAX: u64 = 365_000;
const DAY_US: u64 = 24 * 3_600 * 1_000_000;

impl Prune {
    /// Whether all of it is old enough at that time.
    pub(crate) fn is_due(&self, wall_us: u64) -> bool {
        let kept_us = self.retention_days.saturating_mul(DAY_US);
        self.newest_us.checked_add(kept_us).is_some_and(|until| until <= wall_us)
    }

    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.uint(self.before).uint(self.newest_us).uint(self.retention_days);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let prune = Self { before: reader.uint()?, newest_us: reader.uint()?, retention_days: reader.uint()? };
        let days = 1..=RETENTION_DAYS_MAX;
        if days.contains(&prune.retention_days) { Ok(prune) } else { Err(DecodeError::Range { field: "retention" }) }
    }
}

fn two_persons(actor: &ActorRef, second: &ActorRef) -> Result<(), DecodeError> {
    if actor == second { Err(DecodeError::Range { field: "second" }) } else { Ok(()) }
}
