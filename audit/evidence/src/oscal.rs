//! The findings as OSCAL assessment results (NIST, version 1.1.3). Identifiers are derived from what they name, so that the
//! same evidence gives the same bytes.

use crate::Evidence;
use crate::controls::{CONTROLS, Control, Finding};
use crate::moment::rfc3339;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

const VERSION: &str = "1.1.3";

/// A UUID of version 5's form, of a digest over the log, its root, the tenant, the time and a name.
struct Names(String);

impl Names {
    fn of(evidence: &Evidence<'_>) -> Self {
        let (statement, checkpoint) = (evidence.statement, evidence.checkpoint);
        let place = format!("{}\0{}\0{}\0{}", checkpoint.origin, checkpoint.size, checkpoint.root, statement.reference);
        Self(format!("bulkhead/oscal/v1\0{place}\0{}\0{}", statement.from_us, statement.to_us))
    }

    fn uuid(&self, name: &str) -> String {
        let mut text = hex::encode(Sha256::digest(format!("{}\0{name}", self.0)));
        text.truncate(32);
        text.replace_range(12..13, "5");
        text.replace_range(16..17, "a");
        [8, 13, 18, 23].into_iter().for_each(|place| text.insert(place, '-'));
        text
    }
}

pub(crate) fn oscal(evidence: &Evidence<'_>) -> Value {
    let (statement, names) = (evidence.statement, Names::of(evidence));
    let made = rfc3339(statement.made_us);
    let include: Vec<Value> = CONTROLS.iter().map(|control| json!({"control-id": control.id})).collect();
    let observations: Vec<Value> =
        CONTROLS.iter().map(|control| observation(control, evidence, &names, &made)).collect();
    let findings: Vec<Value> = CONTROLS.iter().map(|control| finding(control, evidence, &names)).collect();
    json!({"assessment-results": {
        "uuid": names.uuid("assessment-results"),
        "metadata": {
            "title": format!("Isolation evidence of tenant {}", statement.tenant),
            "last-modified": made,
            "version": "1",
            "oscal-version": VERSION,
        },
        "import-ap": {"href": format!("#{}", names.uuid("plan"))},
        "results": [{
            "uuid": names.uuid("result"),
            "title": "What the entries of the audit log show",
            "description": format!(
                "Made of {} entries of the log {} under its checkpoint of {} entries; report.json has the figures.",
                evidence.facts.completeness.entries, evidence.checkpoint.origin, evidence.checkpoint.size,
            ),
            "start": rfc3339(statement.from_us),
            "end": rfc3339(statement.to_us),
            "reviewed-controls": {"control-selections": [{"include-controls": include}]},
            "observations": observations,
            "findings": findings,
        }],
        "back-matter": {"resources": [{
            "uuid": names.uuid("plan"),
            "title": "Assessment plan",
            "description": "Queries over the tenant's entries, as each observation names them. Without a plan document of its own.",
        }]},
    }})
}

fn observation(control: &Control, evidence: &Evidence<'_>, names: &Names, made: &str) -> Value {
    let words = control.judge(evidence.facts).words();
    json!({
        "uuid": names.uuid(&format!("observation {}", control.id)),
        "title": format!("{} {}", control.framework, control.number),
        "description": format!("{} Finding: {words}. Query: {}. Tests: {}.", control.shown_by, control.query, control.tests.join(", ")),
        "methods": ["EXAMINE", "TEST"],
        "types": ["control-objective"],
        "collected": made,
    })
}

fn finding(control: &Control, evidence: &Evidence<'_>, names: &Names) -> Value {
    let (state, reason) = match control.judge(evidence.facts) {
        Finding::Shown => ("satisfied", "pass"),
        Finding::NotMet => ("not-satisfied", "fail"),
        // Nothing of the kind happened: it is not said to be satisfied.
        Finding::NotExercised => ("not-satisfied", "other"),
    };
    json!({
        "uuid": names.uuid(&format!("finding {}", control.id)),
        "title": format!("{} {}", control.framework, control.number),
        "description": control.asks,
        "target": {"type": "objective-id", "target-id": control.id, "status": {"state": state, "reason": reason}},
        "related-observations": [{"observation-uuid": names.uuid(&format!("observation {}", control.id))}],
    })
}
