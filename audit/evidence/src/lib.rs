//! Evidence of a tenant's isolation as one file for an outside auditor: the tenant's entries with their proofs, what the
//! operator says beside them, and a report that follows from both. `gateway/server` writes it and `audit/verify` checks it;
//! figures and pages are made here, of the entries alone, so that they can be made again and compared.
//!
//! Nothing here does I/O or knows a clock, and nothing is believed here: proofs are the verifier's.
#![forbid(unsafe_code)]

mod chart;
mod container;
mod controls;
mod document;
mod entries;
mod facts;
mod html;
mod manifest;
mod moment;
mod oscal;
mod pdf;
mod statement;

pub use container::{
    BUNDLE_BYTES_MAX, CERTIFICATE, CHECKPOINT, ContainerError, ENTRIES, Files, MANIFEST, NAMES, OSCAL, REPORT_HTML,
    REPORT_JSON, REPORT_PDF, STATEMENT, VERIFIER,
};
pub use controls::{CONTROLS, Control, Finding};
pub use entries::{Content, ENTRIES_MAX, EntriesError, ProvenEntry, decode_entries, encode_entries};
pub use facts::{
    AuditFacts, Completeness, Coverage, Facts, InForce, IncidentFacts, Latency, MoveFacts, Pages, Part, Placed,
    Quantiles, Replays, Responses, Span, Used, facts,
};
pub use manifest::{ManifestError, certified, check_manifest, sign_manifest};
pub use moment::rfc3339;
pub use statement::{
    FORMAT, NameOpening, RENDERING, STATED_MAX, StatedAudit, StatedSelfTests, Statement, StatementError,
    VictimIncident, WithheldIncident,
};

use audit_tlog::Checkpoint;
use serde_json::{Value, json};

/// The verifier that stands in every bundle, which shares no code with ours.
const FOREIGN_VERIFIER: &str = include_str!("../../../tests/verifiers/bundle.py");

/// All that a report is made of.
#[derive(Debug, Clone)]
pub struct Evidence<'a> {
    /// What the operator says.
    pub statement: &'a Statement,
    /// The checkpoint that all entries are proven under.
    pub checkpoint: &'a Checkpoint,
    /// Whose signature lines it has beside the log's. The lines are not checked here.
    pub cosigned_by: &'a [String],
    /// The figures.
    pub facts: &'a Facts,
}

/// The files of a bundle that follow from the others.
#[must_use]
pub fn documents(evidence: &Evidence<'_>) -> Vec<(&'static str, Vec<u8>)> {
    let document = document::document(evidence);
    vec![
        (REPORT_JSON, lines(&report(evidence))),
        (REPORT_HTML, html::html(&document).into_bytes()),
        (REPORT_PDF, pdf::pdf(&document)),
        (OSCAL, lines(&oscal::oscal(evidence))),
        (VERIFIER, FOREIGN_VERIFIER.as_bytes().to_vec()),
    ]
}

/// The figures for machines.
fn report(evidence: &Evidence<'_>) -> Value {
    let Evidence { statement, checkpoint, cosigned_by, facts } = evidence;
    let control = |control: &Control| {
        json!({
            "framework": control.framework, "number": control.number, "id": control.id, "asks": control.asks,
            "finding": control.judge(facts), "shown_by": control.shown_by, "query": control.query, "tests": control.tests,
        })
    };
    json!({
        "log": {
            "origin": checkpoint.origin, "size": checkpoint.size, "root": hex::encode(checkpoint.root.0),
            "cosigned_by": cosigned_by,
        },
        "statement": statement,
        "facts": facts,
        "controls": CONTROLS.iter().map(control).collect::<Vec<_>>(),
    })
}

fn lines(value: &Value) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}

#[cfg(test)]
mod tests;
