//! Custody: who holds which page of KV memory, in which life of it, and what happened to it.
//!
//! The ledger of pages (`engine/kv`) writes these events; whoever audits it replays them and believes nothing else.

use crate::{Generation, Label, PageId};
use std::fmt;

/// Above this bit an owner's number is a transfer's.
const TRANSFER_BIT: u32 = 1 << 31;

/// One run of one request over pages of its own, numbered from 1 by the ledger. A request that lost its pages begins anew
/// as another sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(u32);

impl SequenceId {
    /// Where a ledger begins to count.
    pub const FIRST: Self = Self(1);
    /// The last number; the ledger begins again with the first one then, when whoever had it is long gone.
    pub const MAX: u32 = TRANSFER_BIT - 1;

    /// The sequence that is counted after this one.
    #[must_use]
    pub fn following(self) -> Self {
        if self.0 == Self::MAX { Self::FIRST } else { Self(self.0 + 1) }
    }

    /// `None` for 0, which is nobody, and for numbers above [`SequenceId::MAX`].
    #[must_use]
    pub fn new(number: u32) -> Option<Self> {
        (1..=Self::MAX).contains(&number).then_some(Self(number))
    }

    /// The number itself.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }
}

impl fmt::Display for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sequence-{}", self.0)
    }
}

/// A handoff's number inside one ledger. The id by which two processes know a handoff is the protocol's, and is longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransferId(u32);

impl TransferId {
    /// The last number.
    pub const MAX: u32 = TRANSFER_BIT - 1;

    /// `None` for numbers above [`TransferId::MAX`].
    #[must_use]
    pub fn new(number: u32) -> Option<Self> {
        (number <= Self::MAX).then_some(Self(number))
    }

    /// The number itself.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }
}

impl fmt::Display for TransferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "transfer-{}", self.0)
    }
}

/// Who holds a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Owner {
    /// A free page.
    Nobody,
    /// It writes and reads the page.
    Sequence(SequenceId),
    /// Pages of it are promised to bytes that are still to come.
    Transfer(TransferId),
}

impl Owner {
    /// 32 bits, as a page's label holds them: 0 nobody, the upper half transfers.
    #[must_use]
    pub fn bits(self) -> u32 {
        match self {
            Self::Nobody => 0,
            Self::Sequence(sequence) => sequence.0,
            Self::Transfer(transfer) => TRANSFER_BIT | transfer.0,
        }
    }

    /// The inverse of [`Owner::bits`].
    #[must_use]
    pub fn from_bits(bits: u32) -> Self {
        match bits {
            0 => Self::Nobody,
            bits if bits & TRANSFER_BIT == 0 => Self::Sequence(SequenceId(bits)),
            bits => Self::Transfer(TransferId(bits & !TRANSFER_BIT)),
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nobody => f.write_str("nobody"),
            Self::Sequence(sequence) => sequence.fmt(f),
            Self::Transfer(transfer) => transfer.fmt(f),
        }
    }
}

/// One life of a page: from its allocation to the moment it is free again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageLife {
    /// Which page.
    pub page: PageId,
    /// Which life of it.
    pub generation: Generation,
}

/// Who holds a ticket: a copy job or a transport, numbered by whoever runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HolderId(pub u64);

/// What a ticket allows its holder, who is not the page's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TicketKind {
    /// Copying the page out.
    Read,
    /// Filling it from elsewhere. A page has one at a time.
    Write,
}

/// How the work behind a ticket ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// It is complete, and its holder touches the page no more.
    Done,
    /// It is not complete, and its holder touches the page no more.
    Failed,
    /// Nobody can say, not even whether the holder still touches the page.
    Unknown,
}

/// Why a page is kept out of use with its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QuarantineReason {
    /// A kernel found another tag in it than the reader holds.
    TagMismatch,
    /// It could not be scrubbed.
    ScrubFailed,
    /// What arrived in it is not what was promised.
    VerifyFailed,
    /// A ticket ended without an outcome that anybody knows.
    UnknownOutcome,
    /// A ticket was open for longer than its time.
    Timeout,
}

impl QuarantineReason {
    /// The bytes are evidence: no later outcome takes the page out of quarantine.
    #[must_use]
    pub fn is_evidence(self) -> bool {
        match self {
            Self::TagMismatch | Self::ScrubFailed | Self::VerifyFailed => true,
            Self::UnknownOutcome | Self::Timeout => false,
        }
    }
}

/// What happened to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CustodyAct {
    /// A sequence got it, empty.
    Allocated {
        /// The tag of this life.
        tag: u32,
    },
    /// A transfer got it, empty.
    Reserved {
        /// The tag of this life.
        tag: u32,
    },
    /// Another sequence of the same tenant reads it, too, as its next page.
    Attached,
    /// Its owner wrote to it.
    Appended {
        /// Tokens in it now.
        fill: u16,
    },
    /// Nobody writes to it any more.
    Sealed,
    /// More than one sequence may hold it.
    Shared,
    /// Its owner offers it to a transfer.
    Offered,
    /// The offer is over, and it is its owner's again.
    Withdrawn,
    /// What was transferred is a sequence's now, in a new life of the page; the event names that life and that owner.
    Committed {
        /// The tag of the new life.
        tag: u32,
        /// Tokens in it.
        fill: u16,
        /// Who held it before.
        from: Owner,
    },
    /// A holder that is not its owner may touch it.
    TicketOpened {
        /// How.
        kind: TicketKind,
        /// Who.
        holder: HolderId,
    },
    /// What became of that.
    TicketSettled {
        /// How.
        kind: TicketKind,
        /// Who.
        holder: HolderId,
        /// How it ended.
        outcome: Outcome,
    },
    /// The owner that the event names lets go of it.
    GivenBack,
    /// Scrubbed and nobody's, in an even generation.
    Freed,
    /// It will not be used again after its owner has given it back.
    Suspected {
        /// Why.
        reason: QuarantineReason,
    },
    /// Out of use, bytes kept.
    Quarantined {
        /// Why.
        reason: QuarantineReason,
    },
    /// Out of quarantine because the last outcome became known: it waits for its scrub.
    Released,
}

/// One event of a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CustodyEvent {
    /// Counts a ledger's events from 0.
    pub number: u64,
    /// The newest step that had been issued.
    pub step_issued: u64,
    /// The newest step that had retired.
    pub step_retired: u64,
    /// Which page, in which life.
    pub life: PageLife,
    /// Whose data it is.
    pub label: Label,
    /// Whose act it is, or whose page.
    pub owner: Owner,
    /// What happened.
    pub act: CustodyAct,
}

/// What a consumer of a ledger's events gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CustodyRecord {
    /// The next event.
    Event(CustodyEvent),
    /// The consumer was too slow: these events are gone, and what the ledger holds is not known any more.
    Lost {
        /// Number of the first one that is gone.
        first: u64,
        /// How many.
        events: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_told_apart_by_their_bits() {
        let owners = [
            Owner::Nobody,
            Owner::Sequence(SequenceId::new(1).unwrap()),
            Owner::Sequence(SequenceId::new(SequenceId::MAX).unwrap()),
            Owner::Transfer(TransferId::new(0).unwrap()),
            Owner::Transfer(TransferId::new(1).unwrap()),
            Owner::Transfer(TransferId::new(TransferId::MAX).unwrap()),
        ];
        for (place, owner) in owners.iter().enumerate() {
            assert_eq!(Owner::from_bits(owner.bits()), *owner);
            assert!(owners[..place].iter().all(|other| other.bits() != owner.bits()));
        }
        assert_eq!(SequenceId::new(0), None);
        assert_eq!(SequenceId::new(SequenceId::MAX).map(SequenceId::following), Some(SequenceId::FIRST));
        assert_eq!((SequenceId::new(TRANSFER_BIT), TransferId::new(TRANSFER_BIT)), (None, None));
    }
}
