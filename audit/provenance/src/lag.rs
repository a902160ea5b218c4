//! A cosigner that has fallen behind, as an entry: the first one of an incident that is of no request and of no tenant.

use crate::cbor::{DecodeError, Reader, Writer};
use crate::entry::{numbered, short_text};

/// An auditor or a witness has not cosigned what was published, for longer than the operator allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CosignerLag {
    /// The incident's id.
    pub incident: [u8; 16],
    /// What is expected of it.
    pub role: CosignerRole,
    /// Its name, as its signature lines have it.
    pub cosigner: String,
    /// Entries under the largest checkpoint that it has cosigned since the log was opened.
    pub cosigned: u64,
    /// Entries that were published.
    pub published: u64,
    /// Microseconds since the first publication that it has not cosigned.
    pub behind_us: u64,
    /// Microseconds that were allowed.
    pub limit_us: u64,
}

/// What is expected of whoever cosigns a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CosignerRole {
    /// It reads every entry.
    Auditor = 0,
    /// It sees that the log has one history.
    Witness = 1,
}

impl CosignerRole {
    const ALL: [Self; 2] = [Self::Auditor, Self::Witness];
}

impl CosignerLag {
    /// The incident's class, as reports name it.
    #[must_use]
    pub fn class_name(&self) -> &'static str {
        match self.role {
            CosignerRole::Auditor => "auditor_lag",
            CosignerRole::Witness => "witness_lag",
        }
    }

    /// How bad it is, as reports name it: without its auditor a log has no second opinion, and other witnesses may be left.
    #[must_use]
    pub fn severity_name(&self) -> &'static str {
        match self.role {
            CosignerRole::Auditor => "high",
            CosignerRole::Witness => "medium",
        }
    }

    /// Whoever has cosigned everything, or is still within the limit, has not fallen behind.
    fn is_consistent(&self) -> bool {
        !self.cosigner.is_empty() && self.cosigned < self.published && self.behind_us > self.limit_us
    }

    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.bytes(&self.incident).uint(self.role as u64).text(&self.cosigner);
        writer.uint(self.cosigned).uint(self.published).uint(self.behind_us).uint(self.limit_us);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let lag = Self {
            incident: reader.fixed("incident")?,
            role: numbered(&CosignerRole::ALL, reader.uint()?, "role")?,
            cosigner: short_text(reader, "cosigner")?,
            cosigned: reader.uint()?,
            published: reader.uint()?,
            behind_us: reader.uint()?,
            limit_us: reader.uint()?,
        };
        if lag.is_consistent() { Ok(lag) } else { Err(DecodeError::Range { field: "lag" }) }
    }
}
