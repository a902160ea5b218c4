//! What goes wrong with a request, as entries: an isolation fault, and a failure of the engine that is none.

use crate::cbor::{DecodeError, Reader, Writer};
use crate::entry::{EntryVersion, TenantRef, exactly, numbered};
use policies_domain::{Digest, RequestId};

/// An isolation fault, detected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incident {
    /// The incident's id.
    pub incident: [u8; 16],
    /// What kind of fault.
    pub class: IncidentClass,
    /// Payload bytes that had left before it was noticed.
    pub bytes_released: u64,
    /// The step that showed it.
    pub step: Option<u32>,
    /// The page concerned.
    pub page: Option<u32>,
    /// The life of the page.
    pub generation: Option<u32>,
    /// The request that was stopped.
    pub request: RequestId,
    /// Index of its opened entry.
    pub opened_index: u64,
    /// Leaf hash of its opened entry.
    pub opened_leaf: Digest,
    /// The tenant whose page it was, where that is known.
    pub victim: Option<TenantRef>,
}

impl Incident {
    /// How bad it is, as reports name it.
    #[must_use]
    pub fn severity_name(&self) -> &'static str {
        if self.severity() == 3 { "critical" } else { "high" }
    }

    /// A foreign page after bytes had left is the worst that can happen; anything else was stopped in time.
    fn severity(&self) -> u64 {
        if self.bytes_released > 0 { 3 } else { 2 }
    }

    /// Numbered alike in `stage` (pre-release, at-release, post-release) and `action` (blocked, truncated, none): what is
    /// computed again after it had left is not truncated any more.
    fn stage(&self) -> u64 {
        match (self.bytes_released > 0, self.class) {
            (false, _) => 0,
            (true, IncidentClass::Replay) => 2,
            (true, _) => 1,
        }
    }

    pub(crate) fn encode(&self, writer: &mut Writer) {
        let number = |writer: &mut Writer, number: Option<u32>| {
            match number {
                Some(number) => writer.uint(number.into()),
                None => writer.null(),
            };
        };
        writer.bytes(&self.incident).uint(0).null().uint(0).uint(self.class as u64);
        writer.uint(self.severity()).uint(self.stage()).uint(self.bytes_released);
        number(writer, self.step);
        number(writer, self.page);
        number(writer, self.generation);
        writer.bytes(&self.request.bytes()).uint(self.opened_index).bytes(&self.opened_leaf.0);
        writer.bytes_or_null(self.victim.as_ref().map(<[u8; 16]>::as_slice));
        writer.uint(self.stage());
    }

    pub(crate) fn decode(version: EntryVersion, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let id = reader.fixed("incident")?;
        exactly(reader, 0, "sequence")?;
        if !reader.null() {
            return Err(DecodeError::Range { field: "previous" });
        }
        exactly(reader, 0, "state")?;
        let class = numbered(&IncidentClass::ALL, reader.uint()?, "class")?;
        if class == IncidentClass::Replay && version < EntryVersion::V3 {
            return Err(DecodeError::Range { field: "class" });
        }
        let (severity, stage, bytes_released) = (reader.uint()?, reader.uint()?, reader.uint()?);
        let number = |reader: &mut Reader<'_>, field| match reader.null() {
            true => Ok(None),
            false => reader.uint32(field).map(Some),
        };
        let incident = Self {
            incident: id,
            class,
            bytes_released,
            step: number(reader, "step")?,
            page: number(reader, "page")?,
            generation: number(reader, "generation")?,
            request: RequestId::from_bytes(reader.fixed("request id")?),
            opened_index: reader.uint()?,
            opened_leaf: Digest(reader.fixed("opened leaf")?),
            victim: match reader.null() {
                true => None,
                false => Some(reader.fixed("victim")?),
            },
        };
        let action = reader.uint()?;
        let wanted = incident.stage();
        if severity != incident.severity() || stage != wanted || action != wanted {
            return Err(DecodeError::Range { field: "severity, stage or action" });
        }
        Ok(incident)
    }
}

/// Kinds of isolation faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IncidentClass {
    /// Another tenant's page was read.
    ForeignPage = 0,
    /// A page that nobody may read was read.
    UnlabelledPage = 1,
    /// A page was read in two lives.
    Generation = 2,
    /// A kernel found another tag in a page.
    Tag = 3,
    /// A step was missing or out of order, or named less than it read.
    StepGap = 4,
    /// A step belonged to another request.
    RequestMismatch = 5,
    /// The kernels read other pages than were written down, or the same in another order.
    ReadSet = 6,
    /// What was handed over between the engine's groups is not what was ordered, or not what arrived.
    Handoff = 7,
    /// What belongs to one row of the engine's batch met another row.
    RowBinding = 8,
    /// A piece of an answer was wrong when it came from the engine.
    EngineOutput = 9,
    /// A piece of an answer was wrong when it came from the gate.
    GatewayTask = 10,
    /// A piece of an answer was wrong when it came to the connection's writer.
    ClientSocket = 11,
    /// Computed again alone, the answer has other bits.
    Replay = 12,
}

impl IncidentClass {
    /// As reports name it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ForeignPage => "foreign_page",
            Self::UnlabelledPage => "unlabelled_page",
            Self::Generation => "generation",
            Self::Tag => "tag",
            Self::StepGap => "step_gap",
            Self::RequestMismatch => "request_mismatch",
            Self::ReadSet => "read_set",
            Self::Handoff => "handoff",
            Self::RowBinding => "row_binding",
            Self::EngineOutput => "engine_output",
            Self::GatewayTask => "gateway_task",
            Self::ClientSocket => "client_socket",
            Self::Replay => "replay",
        }
    }

    const ALL: [Self; 13] = [
        Self::ForeignPage,
        Self::UnlabelledPage,
        Self::Generation,
        Self::Tag,
        Self::StepGap,
        Self::RequestMismatch,
        Self::ReadSet,
        Self::Handoff,
        Self::RowBinding,
        Self::EngineOutput,
        Self::GatewayTask,
        Self::ClientSocket,
        Self::Replay,
    ];
}

/// The engine failed a request, and no isolation fault was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineFault {
    /// What kind of failure.
    pub class: EngineFaultClass,
    /// Steps of the response that had passed before.
    pub steps: u64,
    /// Payload bytes that had left before.
    pub bytes_released: u64,
    /// The request that ended.
    pub request: RequestId,
    /// Index of its opened entry.
    pub opened_index: u64,
    /// Leaf hash of its opened entry.
    pub opened_leaf: Digest,
}

/// Kinds of failures of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineFaultClass {
    /// The model's output for a token was not finite.
    NotANumber = 0,
    /// The engine's own bookkeeping failed.
    Internal = 1,
}

impl EngineFaultClass {
    const ALL: [Self; 2] = [Self::NotANumber, Self::Internal];
}

impl EngineFault {
    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.uint(self.class as u64).uint(self.steps).uint(self.bytes_released);
        writer.bytes(&self.request.bytes()).uint(self.opened_index).bytes(&self.opened_leaf.0);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            class: numbered(&EngineFaultClass::ALL, reader.uint()?, "class")?,
            steps: reader.uint()?,
            bytes_released: reader.uint()?,
            request: RequestId::from_bytes(reader.fixed("request id")?),
            opened_index: reader.uint()?,
            opened_leaf: Digest(reader.fixed("opened leaf")?),
        })
    }
}
