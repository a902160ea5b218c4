//! What becomes of an incident, as entries, and which of them may follow which. The state of an incident is the fold over its
//! entries and is stored nowhere else.

use crate::cbor::{DecodeError, Reader, Writer};
use crate::entry::numbered;
use policies_domain::Digest;

/// A keyed hash of a person's name, or of a credential's.
pub type ActorRef = [u8; 16];

/// An incident moves on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncidentState {
    /// The incident's id.
    pub incident: [u8; 16],
    /// Of the incident's entries: its first one has 0.
    pub sequence: u64,
    /// Leaf hash of the incident's previous entry.
    pub previous: Digest,
    /// Where it moves to.
    pub state: IncidentStage,
    /// Who moved it; none is the program itself.
    pub actor: Option<ActorRef>,
    /// The second person.
    pub second: Option<ActorRef>,
    /// SHA-256 of what was looked at.
    pub evidence: Option<Digest>,
    /// What was done.
    pub action: Containment,
    /// Digest of the notice that was delivered.
    pub notice: Option<Digest>,
}

/// Where an incident stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IncidentStage {
    /// Its first entry says so.
    Detected = 0,
    /// It cannot go on.
    Contained = 1,
    /// Somebody has looked at it.
    Triaged = 2,
    /// Whoever is concerned was told.
    Notified = 3,
    /// It is closed.
    Resolved = 4,
    /// It is closed, and was none.
    FalsePositive = 5,
    /// It was closed and is open again.
    Reopened = 6,
}

impl IncidentStage {
    const ALL: [Self; 7] = [
        Self::Detected,
        Self::Contained,
        Self::Triaged,
        Self::Notified,
        Self::Resolved,
        Self::FalsePositive,
        Self::Reopened,
    ];

    /// As reports name it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Detected => "detected",
            Self::Contained => "contained",
            Self::Triaged => "triaged",
            Self::Notified => "notified",
            Self::Resolved => "resolved",
            Self::FalsePositive => "false_positive",
            Self::Reopened => "reopened",
        }
    }

    /// Whether nothing more is expected.
    #[must_use]
    pub fn is_closed(self) -> bool {
        matches!(self, Self::Resolved | Self::FalsePositive)
    }
}

/// What was done against an incident.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Containment {
    /// Nothing.
    None = 0,
    /// The request ended.
    RequestEnded = 1,
    /// The tenant gets no answers.
    TenantFenced = 2,
    /// The pages are given to nobody.
    PagesQuarantined = 3,
    /// The engine takes no requests.
    EngineDrained = 4,
}

impl Containment {
    const ALL: [Self; 5] =
        [Self::None, Self::RequestEnded, Self::TenantFenced, Self::PagesQuarantined, Self::EngineDrained];

    /// As reports name it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::RequestEnded => "request_ended",
            Self::TenantFenced => "tenant_fenced",
            Self::PagesQuarantined => "pages_quarantined",
            Self::EngineDrained => "engine_drained",
        }
    }
}

impl IncidentState {
    /// Closing takes two persons and evidence, and a notice belongs to `notified`.
    fn is_consistent(&self) -> bool {
        let two = self.actor.is_some() && self.second.is_some() && self.actor != self.second;
        let closes = !self.state.is_closed() || two && self.evidence.is_some();
        let notice = self.notice.is_none() || self.state == IncidentStage::Notified;
        let second = self.second.is_none() || two;
        self.state != IncidentStage::Detected && closes && notice && second && self.sequence > 0
    }

    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.bytes(&self.incident).uint(self.sequence).bytes(&self.previous.0).uint(self.state as u64);
        writer.bytes_or_null(self.actor.as_ref().map(<[u8; 16]>::as_slice));
        writer.bytes_or_null(self.second.as_ref().map(<[u8; 16]>::as_slice));
        writer.bytes_or_null(self.evidence.as_ref().map(|digest| digest.0.as_slice()));
        writer.uint(self.action as u64);
        writer.bytes_or_null(self.notice.as_ref().map(|digest| digest.0.as_slice()));
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let state = Self {
            incident: reader.fixed("incident")?,
            sequence: reader.uint()?,
            previous: Digest(reader.fixed("previous")?),
            state: numbered(&IncidentStage::ALL, reader.uint()?, "state")?,
            actor: if reader.null() { None } else { Some(reader.fixed("actor")?) },
            second: if reader.null() { None } else { Some(reader.fixed("second")?) },
            evidence: if reader.null() { None } else { Some(Digest(reader.fixed("evidence")?)) },
            action: numbered(&Containment::ALL, reader.uint()?, "action")?,
            notice: if reader.null() { None } else { Some(Digest(reader.fixed("notice")?)) },
        };
        if state.is_consistent() { Ok(state) } else { Err(DecodeError::Range { field: "state" }) }
    }
}

/// Where an incident stands after the entries that were seen of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IncidentLife {
    /// Where it stands.
    pub stage: IncidentStage,
    /// Sequence of its last entry.
    pub sequence: u64,
    /// Leaf hash of its last entry.
    pub leaf: Digest,
}

/// Why an entry does not continue an incident.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IncidentMoveError {
    /// It has another place among the incident's entries.
    #[error("sequence {held} came where {wanted} was due")]
    Sequence {
        /// The number that came.
        held: u64,
        /// The number that was due.
        wanted: u64,
    },
    /// It does not name the incident's previous entry.
    #[error("it does not name the incident's previous entry")]
    Previous,
    /// A person or evidence is missing, or too much of them is there.
    #[error("it has not the persons, the evidence or the notice that its state takes")]
    Form,
    /// What is closed is only reopened, and only what is closed.
    #[error("`{}` does not follow `{}`", to.as_str(), from.as_str())]
    Forbidden {
        /// Where the incident stands.
        from: IncidentStage,
        /// Where the entry moves it.
        to: IncidentStage,
    },
}

impl IncidentLife {
    /// An incident whose first entry has this leaf hash.
    #[must_use]
    pub fn detected(leaf: Digest) -> Self {
        Self { stage: IncidentStage::Detected, sequence: 0, leaf }
    }

    /// Where it stands after an entry with this leaf hash.
    ///
    /// # Errors
    /// [`IncidentMoveError`]; the incident stands where it stood.
    pub fn after(&self, entry: &IncidentState, leaf: Digest) -> Result<Self, IncidentMoveError> {
        let wanted = self.sequence.saturating_add(1);
        if entry.sequence != wanted {
            return Err(IncidentMoveError::Sequence { held: entry.sequence, wanted });
        }
        if entry.previous != self.leaf {
            return Err(IncidentMoveError::Previous);
        }
        if !entry.is_consistent() {
            return Err(IncidentMoveError::Form);
        }
        if self.stage.is_closed() != (entry.state == IncidentStage::Reopened) {
            return Err(IncidentMoveError::Forbidden { from: self.stage, to: entry.state });
        }
        Ok(Self { stage: entry.state, sequence: wanted, leaf })
    }
}
