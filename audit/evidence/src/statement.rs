//! What the operator says beside the tenant's entries: for whom and when the bundle was made, how the tenant's name is opened,
//! and what the log could only show by giving away entries of others. It is the operator's word, under the manifest's signature.

use serde::{Deserialize, Serialize};

/// The form of a bundle; another number is not read.
pub const FORMAT: u32 = 1;
/// How its figures and pages are made of its entries. It changes whenever a byte of them does.
pub const RENDERING: u32 = 2;
/// Longest statement that is read.
const STATEMENT_BYTES_MAX: usize = 16 << 20;
/// Incidents or audits in one statement.
pub const STATED_MAX: usize = 10_000;

/// The statement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Statement {
    /// [`FORMAT`].
    pub format: u32,
    /// [`RENDERING`].
    pub rendering: u32,
    /// The program that made the bundle.
    pub program: String,
    /// When, in microseconds since 1970.
    pub made_us: u64,
    /// The tenant's name.
    pub tenant: String,
    /// What entries have for it: 32 hexadecimal digits.
    pub reference: String,
    /// From here on, in microseconds since 1970...
    pub from_us: u64,
    /// ...up to here.
    pub to_us: u64,
    /// Opens the tenant's name in one of the entries; `null` when every key was destroyed.
    pub name: Option<NameOpening>,
    /// Incidents of this tenant's requests whose entries are withheld, since they name another tenant.
    pub withheld: Vec<WithheldIncident>,
    /// Incidents in which it was a page of this tenant, in chains of others.
    pub as_victim: Vec<VictimIncident>,
    /// Audits of side channels by probes, in chains of others.
    pub side_channels: Vec<StatedAudit>,
    /// How often the gateway tried its own detectors in this time, as entries of nobody say; `None` where it is not told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub self_tests: Option<StatedSelfTests>,
}

/// How often the gateway tried its own detectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatedSelfTests {
    /// How many times.
    pub tests: u64,
    /// Of those, with a detector that did not work.
    pub failed: u64,
    /// The longest time from one to the next, in microseconds; 0 for fewer than two.
    pub longest_gap_us: u64,
}

impl StatedSelfTests {
    /// Whether it can be so within a time of this length.
    #[must_use]
    pub fn is_possible(&self, time_us: u64) -> bool {
        self.failed <= self.tests && self.longest_gap_us <= time_us && (self.tests > 1 || self.longest_gap_us == 0)
    }
}

/// The salt of a tenant's name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NameOpening {
    /// Index of the opened entry.
    pub entry: u64,
    /// 64 hexadecimal digits.
    pub salt: String,
}

/// What the recipient of an incident may know of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WithheldIncident {
    /// Index of the entry that is withheld.
    pub entry: u64,
    /// Its id.
    pub id: String,
    /// What was detected.
    pub class: String,
    /// How bad it is.
    pub severity: String,
    /// When it was detected.
    pub detected_us: u64,
    /// The request.
    pub request: String,
    /// Payload bytes that had left.
    pub bytes_released: u64,
}

/// What the victim of an incident may know of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VictimIncident {
    /// Its id.
    pub id: String,
    /// What was detected.
    pub class: String,
    /// How bad it is.
    pub severity: String,
    /// Where it stands under the checkpoint.
    pub state: String,
    /// When it was detected.
    pub detected_us: u64,
    /// When it last moved.
    pub updated_us: u64,
    /// Payload bytes that had left.
    pub bytes_released: u64,
    /// The victim's page.
    pub page: Option<u32>,
    /// Its life.
    pub generation: Option<u32>,
}

/// What came out of an audit by a probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatedAudit {
    /// When it was written down.
    pub at_us: u64,
    /// What came out.
    pub verdict: String,
    /// Comparisons between tenants.
    pub arms: u64,
    /// Strength of the weakest positive control.
    pub power: u64,
    /// Strength of the strongest arm.
    pub strongest: u64,
    /// SHA-256 of the result.
    pub result: String,
}

/// Text is no statement.
#[derive(Debug, thiserror::Error)]
pub enum StatementError {
    /// Too long, or not the JSON of one.
    #[error("not a statement: {0}")]
    Form(String),
    /// Of another form of bundles.
    #[error("it has form {format}, form {FORMAT} is read")]
    Format {
        /// The number in it.
        format: u64,
    },
}

impl Statement {
    /// As it stands in a bundle.
    ///
    /// # Errors
    /// [`StatementError::Form`].
    pub fn encode(&self) -> Result<Vec<u8>, StatementError> {
        let mut text = serde_json::to_vec_pretty(self).map_err(|error| StatementError::Form(error.to_string()))?;
        text.push(b'\n');
        Ok(text)
    }

    /// Reads it in its one form.
    ///
    /// # Errors
    /// [`StatementError`].
    pub fn decode(text: &[u8]) -> Result<Self, StatementError> {
        let form = |what: &str| StatementError::Form(what.to_owned());
        if text.len() > STATEMENT_BYTES_MAX {
            return Err(form("it is too long"));
        }
        let value: serde_json::Value = serde_json::from_slice(text).map_err(|_| form("it is no JSON"))?;
        let format = value.get("format").and_then(serde_json::Value::as_u64).unwrap_or_default();
        if format != u64::from(FORMAT) {
            return Err(StatementError::Format { format });
        }
        let statement: Self = serde_json::from_slice(text).map_err(|error| StatementError::Form(error.to_string()))?;
        if statement.as_victim.len() > STATED_MAX
            || statement.withheld.len() > STATED_MAX
            || statement.side_channels.len() > STATED_MAX
        {
            return Err(form("it is too long"));
        }
        if statement.encode()? == text { Ok(statement) } else { Err(form("it is not in its one form")) }
    }
}
