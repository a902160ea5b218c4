//! What is made of figures: pages that load nothing, and OSCAL with all that its schema requires.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use super::*;
use sha2::{Digest as _, Sha256};
use std::collections::HashSet;

fn statement() -> Statement {
    Statement {
        format: FORMAT,
        rendering: RENDERING,
        program: "bulkhead <0>".into(),
        made_us: 1_796_000_523_123_456,
        tenant: "acme".into(),
        reference: "ac".repeat(16),
        from_us: 1_796_000_000_000_000,
        to_us: 1_796_100_000_000_000,
        name: Some(NameOpening { entry: 1, salt: "00".repeat(32) }),
        withheld: Vec::new(),
        as_victim: vec![VictimIncident {
            id: "1c".repeat(16),
            class: "foreign_page".into(),
            severity: "high".into(),
            state: "contained".into(),
            detected_us: 1_796_000_000_000_001,
            updated_us: 1_796_000_000_000_002,
            bytes_released: 0,
            page: Some(4),
            generation: None,
        }],
        side_channels: vec![StatedAudit {
            at_us: 1_796_000_000_000_003,
            verdict: "isolated".into(),
            arms: 9,
            power: 12_300,
            strongest: 700,
            result: "ab".repeat(32),
        }],
        self_tests: Some(StatedSelfTests { tests: 24, failed: 1, longest_gap_us: 3_600_000_000 }),
    }
}

/// Figures of everything that a report may speak of.
fn full() -> Facts {
    let mut facts = Facts::default();
    facts.responses.sealed = 20;
    facts.responses.ends = [("stop", 18), ("isolation", 1), ("aborted", 1)].into();
    facts.coverage.label_gate = 20;
    facts.coverage.handover = [("relabel", 20)].into();
    facts.replays.same = 19;
    facts.faults = [("internal", 1)].into();
    facts.latency.queued = Quantiles { count: 18, p50_us: 3, p90_us: 90, p99_us: 1_000, max_us: 2_000_000 };
    facts.completeness.entries = 60;
    facts.completeness.last_us = 1_796_090_000_000_000;
    facts.parts = vec![Part { answered: 18, stopped: 1, broken_off: 1, replayed: 19, ..Part::default() }; 30];
    facts.incidents_open = 1;
    facts.incidents = vec![IncidentFacts {
        id: "1d".repeat(16),
        entry: Some(7),
        detected_us: Some(1_796_000_000_000_000),
        class: Some("row_binding".into()),
        severity: Some("critical".into()),
        withheld: true,
        request: Some("request".into()),
        bytes_released: Some(12),
        state: "notified",
        moves: vec![MoveFacts {
            entry: 8,
            at_us: 1_796_000_000_000_001,
            state: "contained",
            persons: 0,
            evidence: false,
            action: "request_ended",
        }],
    }];
    facts.in_force.rules = vec![Used { digest: "ef".repeat(32), requests: 20, first_us: 1, last_us: 2 }];
    facts
}

fn made(facts: &Facts) -> Vec<(&'static str, Vec<u8>)> {
    let checkpoint = Checkpoint { origin: "a&b.example".into(), size: 90, root: audit_tlog::leaf_hash(b"x") };
    let cosigned_by = ["<witness>".to_owned()];
    documents(&Evidence { statement: &statement(), checkpoint: &checkpoint, cosigned_by: &cosigned_by, facts })
}

fn text(facts: &Facts, name: &str) -> String {
    let bytes = made(facts).into_iter().find(|(held, _)| *held == name).unwrap().1;
    String::from_utf8(bytes).unwrap()
}

#[test]
fn the_same_evidence_gives_the_same_bytes() {
    for facts in [full(), Facts::default()] {
        assert_eq!(made(&facts), made(&facts));
    }
}

/// A verifier compares bytes with those of bundles that carry the same number: whoever changes one, changes both lines here.
#[test]
fn a_byte_of_a_report_changes_with_its_number_alone() {
    let mut hash = Sha256::new();
    for (name, bytes) in [full(), Facts::default()].iter().flat_map(made) {
        hash.update(name);
        hash.update(bytes);
    }
    let digest = hex::encode(hash.finalize());
    assert_eq!((RENDERING, digest.as_str()), (2, "677621856b66c235c498c143f03eae5bd293a386f5f62837d69f8442fae54837"));
}

#[test]
fn a_page_runs_nothing_loads_nothing_and_escapes_what_it_is_told() {
    for facts in [full(), Facts::default()] {
        let page = text(&facts, REPORT_HTML);
        for word in
            ["<script", "src=", "href=", "url(", "@import", "http://", "https://", "javascript:", "<witness>", "<0>"]
        {
            assert!(!page.contains(word), "{word}");
        }
        assert!(page.contains("&lt;witness&gt;") && page.contains("a&amp;b.example"));
        for word in [
            "Completeness",
            "Latency",
            "Incidents",
            "Replays",
            "Self-tests",
            "Side channels",
            "Controls",
            "How to check this",
        ] {
            assert!(page.contains(&format!("<h2>{word}")), "{word}");
        }
    }
}

#[test]
fn paper_has_pages_and_no_figure_is_lost_on_it() {
    let paper = made(&full()).into_iter().find(|(held, _)| *held == REPORT_PDF).unwrap().1;
    assert!(paper.starts_with(b"%PDF-") && paper.ends_with(b"%%EOF"));
    let holds = |word: &[u8]| paper.windows(word.len()).any(|window| window == word);
    for word in [&b"(Controls)"[..], b"(row binding)", b"(critical)", b"/Helvetica-Bold", b"18 of 20 "] {
        assert!(holds(word), "{}", String::from_utf8_lossy(word));
    }
    for word in [&b"/JavaScript"[..], b"/URI", b"/Launch", b"/EmbeddedFile"] {
        assert!(!holds(word), "{}", String::from_utf8_lossy(word));
    }
}

#[test]
fn a_control_that_is_contradicted_is_said_to_be_on_every_page() {
    let leaked = full();
    assert!(
        text(&leaked, REPORT_HTML).contains("Contradicted, or not ended, by the entries of this time: SOC 2 CC6.6")
    );
    let report: Value = serde_json::from_str(&text(&leaked, REPORT_JSON)).unwrap();
    let found = |id: &str| {
        report["controls"].as_array().unwrap().iter().find(|one| one["id"] == id).unwrap()["finding"].clone()
    };
    assert_eq!((found("soc2-cc6.6"), found("soc2-cc7.2")), (json!("not_met"), json!("shown")));
    assert_eq!(found("soc2-cc7.3"), json!("not_met"), "it is open");
}

/// UUIDs as the schema has them: version 4 or 5.
fn is_uuid(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    let digits = text.chars().all(|c| c == '-' || c.is_ascii_hexdigit());
    lengths == [8, 4, 4, 4, 12]
        && digits
        && parts[2].starts_with(['4', '5'])
        && parts[3].starts_with(['8', '9', 'a', 'b'])
}

/// A token: a letter or underline, then letters, digits, points, hyphens and underlines.
fn is_token(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_alphanumeric() || ".-_".contains(c))
}

/// The required members of the assessment results model, version 1.1.3, with the forms of their values.
#[test]
fn assessment_results_have_what_the_schema_requires() {
    let document: Value = serde_json::from_str(&text(&full(), OSCAL)).unwrap();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&document), ["assessment-results"]);
    let results = &document["assessment-results"];
    assert_eq!(keys(results), ["uuid", "metadata", "import-ap", "results", "back-matter"]);
    let metadata = &results["metadata"];
    assert_eq!(keys(metadata), ["title", "last-modified", "version", "oscal-version"]);
    let is_moment = |value: &Value| value.as_str().is_some_and(|text| text.len() == 24 && text.ends_with('Z'));
    assert!(is_moment(&metadata["last-modified"]) && metadata["oscal-version"] == "1.1.3");
    let mut uuids = HashSet::new();
    let mut uuid = |value: &Value| {
        let text = value["uuid"].as_str().unwrap().to_owned();
        assert!(is_uuid(&text), "{text}");
        assert!(uuids.insert(text.clone()), "{text} is there twice");
        text
    };
    uuid(results);
    let plan = uuid(&results["back-matter"]["resources"][0]);
    assert_eq!(results["import-ap"]["href"], format!("#{plan}"));
    let result = &results["results"][0];
    uuid(result);
    for member in ["title", "description"] {
        assert!(!result[member].as_str().unwrap().is_empty());
    }
    assert!(is_moment(&result["start"]) && is_moment(&result["end"]));
    let included = result["reviewed-controls"]["control-selections"][0]["include-controls"].as_array().unwrap();
    assert!(included.iter().all(|control| is_token(control["control-id"].as_str().unwrap())));
    let (observations, findings) = (result["observations"].as_array().unwrap(), result["findings"].as_array().unwrap());
    assert_eq!((observations.len(), findings.len(), included.len()), (CONTROLS.len(), CONTROLS.len(), CONTROLS.len()));
    let mut seen = HashSet::new();
    for observation in observations {
        seen.insert(uuid(observation));
        assert!(!observation["description"].as_str().unwrap().is_empty() && is_moment(&observation["collected"]));
        assert!(
            observation["methods"].as_array().unwrap().iter().all(|method| method == "EXAMINE" || method == "TEST")
        );
    }
    for finding in findings {
        uuid(finding);
        let target = &finding["target"];
        assert!(target["type"] == "objective-id" && is_token(target["target-id"].as_str().unwrap()));
        assert!(["satisfied", "not-satisfied"].contains(&target["status"]["state"].as_str().unwrap()));
        assert!(["pass", "fail", "other"].contains(&target["status"]["reason"].as_str().unwrap()));
        assert!(seen.contains(finding["related-observations"][0]["observation-uuid"].as_str().unwrap()));
    }
    // Nothing that did not happen is satisfied.
    let nothing: Value = serde_json::from_str(&text(&Facts::default(), OSCAL)).unwrap();
    let findings = nothing["assessment-results"]["results"][0]["findings"].as_array().unwrap().clone();
    assert!(findings.iter().all(|finding| finding["target"]["status"]["state"] == "not-satisfied"));
}

#[test]
fn a_statement_has_one_form() {
    let encoded = statement().encode().unwrap();
    assert_eq!(Statement::decode(&encoded).unwrap(), statement());
    let text = String::from_utf8(encoded).unwrap();
    for (from, to) in
        [("\"format\": 1", "\"format\":1"), ("\"tenant\"", "\"other\": 1,\n  \"tenant\""), ("}\n", "}\n\n")]
    {
        let changed = text.replacen(from, to, if from == "}\n" { usize::MAX } else { 1 });
        assert!(matches!(Statement::decode(changed.as_bytes()), Err(StatementError::Form(_))), "{to}");
    }
    let newer = text.replace("\"format\": 1", "\"format\": 2");
    assert!(matches!(Statement::decode(newer.as_bytes()), Err(StatementError::Format { format: 2 })));
    assert!(Statement::decode(b"[]").is_err() && Statement::decode(b"").is_err());
}
