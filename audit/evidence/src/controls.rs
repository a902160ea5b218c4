//! What the evidence says of controls that auditors ask about. Each names what in the log shows it, a query that anybody can
//! type, and a test of our suite that fails when the control does not hold.

use crate::facts::Facts;
use serde::Serialize;

/// What the entries of one tenant and time say of a control.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// They show it.
    Shown,
    /// They show the contrary.
    NotMet,
    /// They do not say: nothing of the kind happened in this time.
    NotExercised,
}

impl Finding {
    /// For people.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Shown => "shown",
            Self::NotMet => "not met",
            Self::NotExercised => "not exercised",
        }
    }
}

/// A control, and how it is shown.
#[derive(Debug, Clone, Copy)]
pub struct Control {
    /// Whose it is.
    pub framework: &'static str,
    /// Its number there.
    pub number: &'static str,
    /// As an identifier.
    pub id: &'static str,
    /// What it asks for, in our words.
    pub asks: &'static str,
    /// What shows it.
    pub shown_by: &'static str,
    /// A command that one can type beside the unpacked bundle.
    pub query: &'static str,
    /// Tests of our suite.
    pub tests: &'static [&'static str],
    judge: fn(&Facts) -> Finding,
}

impl Control {
    /// What the figures say of it.
    #[must_use]
    pub fn judge(&self, facts: &Facts) -> Finding {
        (self.judge)(facts)
    }
}

const SOC_2: &str = "SOC 2";
const ISO_42001: &str = "ISO/IEC 42001";
const AISVS: &str = "OWASP AISVS";
const AI_ACT: &str = "EU AI Act";

/// All of them.
pub const CONTROLS: &[Control] = &[
    Control {
        framework: SOC_2,
        number: "CC6.1",
        id: "soc2-cc6.1",
        asks: "Logical access to information is restricted to who may have it.",
        shown_by: "Every response went through the label gate: each page that a step read was compared with the tenant's label \
                   before any of its text left.",
        query: "jq '.facts.coverage.label_gate == .facts.responses.sealed' report.json",
        tests: &["a_foreign_page_anywhere_in_a_step_closes_the_gate_for_good", "one_tenant_never_flows_to_another"],
        judge: gate_was_on,
    },
    Control {
        framework: SOC_2,
        number: "CC6.3",
        id: "soc2-cc6.3",
        asks: "Access is authorised by rules, and denied otherwise.",
        shown_by: "Every opened entry commits to the rule set in force and to the rules that decided.",
        query: "jq '.facts.in_force.rules' report.json",
        tests: &["nothing_is_allowed_without_a_rule", "a_forbid_rule_wins_whatever_its_place"],
        judge: rules_are_named,
    },
    Control {
        framework: SOC_2,
        number: "CC6.6",
        id: "soc2-cc6.6",
        asks: "The boundary holds against threats from outside it, other tenants among them.",
        shown_by: "No response that read a page of another tenant was let through; each was stopped and is an incident.",
        query: "jq '.facts.pages' report.json",
        tests: &["a_foreign_page_stops_the_response_before_its_first_byte"],
        judge: nothing_foreign_was_released,
    },
    Control {
        framework: SOC_2,
        number: "CC6.7",
        id: "soc2-cc6.7",
        asks: "What is transmitted goes to who may have it and to nobody else.",
        shown_by: "Each piece of an answer is sealed for one request, tenant and connection, and checked on every way.",
        query: "jq '[.facts.incidents[] | select(.class == \"client_socket\" or .class == \"gateway_task\")]' report.json",
        tests: &["a_piece_of_another_request_tenant_or_connection_is_refused_even_under_the_same_key"],
        judge: nothing_foreign_was_released,
    },
    Control {
        framework: SOC_2,
        number: "CC7.1",
        id: "soc2-cc7.1",
        asks: "Changes of what runs are noticed.",
        shown_by: "Every opened entry names the model, its fingerprint and the program that served, by digest.",
        query: "jq '.facts.in_force' report.json",
        tests: &["python_and_openssl_agree", "go_and_its_reference_packages_agree"],
        judge: rules_are_named,
    },
    Control {
        framework: SOC_2,
        number: "CC7.2",
        id: "soc2-cc7.2",
        asks: "The system is monitored for anomalies, and the detector is alive.",
        shown_by: "Tags in the kernels, the gate, and replays: answers that were computed again, alone, and have the same bits.",
        query: "jq '.facts.replays, .facts.coverage' report.json",
        tests: &["what_another_request_added_does_not_leave_where_the_replay_comes_first"],
        judge: replays_agree,
    },
    Control {
        framework: SOC_2,
        number: "CC7.3",
        id: "soc2-cc7.3",
        asks: "Security events are evaluated.",
        shown_by: "An incident moves through states in a chain of its own; closing takes evidence.",
        query: "jq '.facts.incidents' report.json",
        tests: &["an_incident_moves_as_it_may_and_in_its_own_chain", "an_incident_has_a_life_that_two_persons_end"],
        judge: incidents_are_closed,
    },
    Control {
        framework: SOC_2,
        number: "CC7.4",
        id: "soc2-cc7.4",
        asks: "Incidents are contained and responded to.",
        shown_by: "The program contains an incident in the batch that detects it; two persons end it.",
        query: "jq '[.facts.incidents[] | {id, state, moves}]' report.json",
        tests: &[
            "an_incident_is_contained_by_the_program_before_anybody_looks",
            "closing_takes_two_persons_who_say_the_same",
        ],
        judge: incidents_are_contained,
    },
    Control {
        framework: SOC_2,
        number: "CC7.5",
        id: "soc2-cc7.5",
        asks: "Operation recovers from incidents.",
        shown_by: "After a crash every open request is sealed with its reason; nothing that was promised is lost.",
        query: "jq '.facts.responses.ends, .facts.responses.not_sealed' report.json",
        tests: &["a_writer_that_is_killed_while_it_indexes_answers_as_before"],
        judge: population_is_complete,
    },
    Control {
        framework: ISO_42001,
        number: "A.6.2.6",
        id: "iso42001-a.6.2.6",
        asks: "The AI system is monitored in operation.",
        shown_by: "Times, ends, coverage and replays of every response of the time.",
        query: "jq '.facts.latency, .facts.responses' report.json",
        tests: &["an_answer_is_the_same_alone_and_in_company"],
        judge: population_is_complete,
    },
    Control {
        framework: ISO_42001,
        number: "A.6.2.8",
        id: "iso42001-a.6.2.8",
        asks: "Event logs are recorded while the AI system is in use.",
        shown_by: "An entry is durable before any byte of an answer leaves; numbers are dense, so a missing one shows.",
        query: "bulkhead-verify bundle BUNDLE --key KEY --json",
        tests: &["each_part_of_a_bundle_that_was_changed_is_named"],
        judge: population_is_complete,
    },
    Control {
        framework: ISO_42001,
        number: "A.8.4",
        id: "iso42001-a.8.4",
        asks: "Incidents are communicated to those concerned.",
        shown_by: "A state `notified` with the digest of the notice; each side of an incident is told of its own.",
        query: "jq '[.facts.incidents[].moves[] | select(.state == \"notified\")]' report.json",
        tests: &["neither_side_is_told_anything_of_the_other"],
        judge: incidents_are_closed,
    },
    Control {
        framework: AISVS,
        number: "C5.3",
        id: "aisvs-c5.3",
        asks: "Inference enforces the caller's entitlement at each stage; shared serving lets no tenant observe another.",
        shown_by: "Pages of the KV pool carry a label and a tag; the kernels and the gate compare them apart from each other.",
        query: "jq '.facts.coverage, .facts.pages, .statement.side_channels' report.json",
        tests: &[
            "every_isolation_fault_of_the_engine_is_an_incident_in_the_log",
            "the_ledger_its_log_and_a_naive_model_agree",
        ],
        judge: nothing_foreign_was_released,
    },
    Control {
        framework: AISVS,
        number: "C9.4.3",
        id: "aisvs-c9.4.3",
        asks: "Logs are tamper-evident, can be verified independently, and tell who acted under which decision with which outcome.",
        shown_by: "Each entry is proven under one signed checkpoint and names the tenant's entry before it; foreign verifiers agree.",
        query: "python3 verify/bundle.py KEY BUNDLE",
        tests: &["a_flipped_byte_anywhere_in_a_bundle_is_found", "a_bundle_is_checked_by_python_and_openssl_too"],
        judge: population_is_complete,
    },
    Control {
        framework: AISVS,
        number: "C12.5.3",
        id: "aisvs-c12.5.3",
        asks: "Kill switches and overrides are logged.",
        shown_by: "What stops an answer, fences a tenant or drains the engine is an entry, and so is who ended it.",
        query: "jq '[.facts.incidents[].moves[] | select(.action != \"none\")]' report.json",
        tests: &["what_may_not_be_made_of_an_incident_is_refused_and_the_log_goes_on"],
        judge: incidents_are_contained,
    },
    Control {
        framework: AI_ACT,
        number: "Article 12(1)",
        id: "euaia-art12-1",
        asks: "Events are recorded automatically over the lifetime of the system.",
        shown_by: "The gateway writes an entry of every request before it answers, and stops when it cannot.",
        query: "jq '.facts.completeness' report.json",
        tests: &["each_part_of_a_bundle_that_was_changed_is_named"],
        judge: population_is_complete,
    },
    Control {
        framework: AI_ACT,
        number: "Article 12(2)(a)",
        id: "euaia-art12-2a",
        asks: "The log identifies situations that may present a risk.",
        shown_by: "Incidents with class, severity and the bytes that had left; engine faults; replays that differ.",
        query: "jq '.facts.incidents, .facts.faults, .facts.replays.different' report.json",
        tests: &["an_isolation_fault_is_no_warning_and_not_to_be_repeated"],
        judge: incidents_are_contained,
    },
    Control {
        framework: AI_ACT,
        number: "Article 12(2)(b)",
        id: "euaia-art12-2b",
        asks: "The log facilitates monitoring after the system was put on the market.",
        shown_by: "What something suspect can have touched is listed from the log alone.",
        query: "bulkhead audit blast-radius --log DIR --tenant TENANT",
        tests: &["every_question_is_answered_as_the_model_says_while_the_log_is_written_to"],
        judge: population_is_complete,
    },
    Control {
        framework: AI_ACT,
        number: "Article 12(2)(c)",
        id: "euaia-art12-2c",
        asks: "The log facilitates monitoring of the operation.",
        shown_by: "Model, fingerprint, program and rules of every response, with the time of each change.",
        query: "jq '.facts.in_force, .facts.kinds' report.json",
        tests: &["python_and_openssl_agree"],
        judge: rules_are_named,
    },
];

fn gate_was_on(facts: &Facts) -> Finding {
    // A crash takes the knowledge of what was checked.
    let crashed = facts.responses.ends.get("crash").copied().unwrap_or_default();
    match facts.responses.sealed.saturating_sub(crashed) {
        0 => Finding::NotExercised,
        known if facts.coverage.label_gate >= known => Finding::Shown,
        _ => Finding::NotMet,
    }
}

fn rules_are_named(facts: &Facts) -> Finding {
    if facts.responses.opened == 0 { Finding::NotExercised } else { Finding::Shown }
}

fn nothing_foreign_was_released(facts: &Facts) -> Finding {
    let leaked = facts.incidents.iter().any(|incident| incident.bytes_released.unwrap_or_default() > 0);
    match facts.responses.sealed {
        _ if leaked || facts.pages.released_after_foreign > 0 => Finding::NotMet,
        0 => Finding::NotExercised,
        _ => Finding::Shown,
    }
}

fn replays_agree(facts: &Facts) -> Finding {
    match (facts.replays.same, facts.replays.different) {
        (0, 0) => Finding::NotExercised,
        (_, 0) => Finding::Shown,
        _ => Finding::NotMet,
    }
}

fn incidents_are_closed(facts: &Facts) -> Finding {
    match (facts.incidents.len(), facts.incidents_open) {
        (0, _) => Finding::NotExercised,
        (_, 0) => Finding::Shown,
        _ => Finding::NotMet,
    }
}

fn incidents_are_contained(facts: &Facts) -> Finding {
    // One that was detected before the time was contained before it.
    let here: Vec<_> = facts.incidents.iter().filter(|incident| incident.entry.is_some()).collect();
    let contained =
        |incident: &&crate::facts::IncidentFacts| incident.moves.iter().any(|moved| moved.state == "contained");
    match here.len() {
        0 => Finding::NotExercised,
        all if here.iter().filter(|incident| contained(incident)).count() == all => Finding::Shown,
        _ => Finding::NotMet,
    }
}

/// What the verifier refused otherwise: no number is missing.
fn population_is_complete(facts: &Facts) -> Finding {
    let completeness = &facts.completeness;
    match (completeness.entries, completeness.begin_is_closed) {
        (0, _) => Finding::NotExercised,
        (_, true) => Finding::Shown,
        _ => Finding::NotMet,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::path::Path;

    fn sources(dir: &Path, text: &mut String) {
        for file in std::fs::read_dir(dir).unwrap().flatten() {
            let (path, name) = (file.path(), file.file_name());
            if path.is_dir() && name != "target" && !name.to_string_lossy().starts_with('.') {
                sources(&path, text);
            } else if path.extension().is_some_and(|extension| extension == "rs") && name != "controls.rs" {
                text.push_str(&std::fs::read_to_string(&path).unwrap());
            }
        }
    }

    #[test]
    fn every_control_names_tests_that_exist() {
        let (root, mut text) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."), String::new());
        for part in ["audit", "engine", "gateway", "policies", "tests"] {
            sources(&root.join(part), &mut text);
        }
        for control in CONTROLS {
            assert!(!control.tests.is_empty() && !control.query.is_empty(), "{}", control.id);
            for test in control.tests {
                assert!(text.contains(&format!("fn {test}(")), "{} names `{test}`, which does not exist", control.id);
            }
        }
    }

    #[test]
    fn every_framework_has_its_controls_under_names_of_their_own() {
        let ids: HashSet<_> = CONTROLS.iter().map(|control| control.id).collect();
        assert_eq!(ids.len(), CONTROLS.len());
        for wanted in ["soc2-cc6", "soc2-cc7", "iso42001", "aisvs-c5.3", "aisvs-c9.4.3", "aisvs-c12.5.3", "euaia-art12"]
        {
            assert!(ids.iter().any(|id| id.starts_with(wanted)), "{wanted}");
        }
    }

    #[test]
    fn a_control_is_not_shown_by_nothing_and_not_by_the_contrary() {
        let nothing = Facts::default();
        assert!(CONTROLS.iter().all(|control| control.judge(&nothing) == Finding::NotExercised));
        let mut facts = Facts::default();
        facts.responses.sealed = 2;
        facts.coverage.label_gate = 1;
        facts.pages.released_after_foreign = 1;
        facts.replays.different = 1;
        facts.completeness.entries = 4;
        let found = |id: &str| CONTROLS.iter().find(|control| control.id == id).unwrap().judge(&facts);
        for id in ["soc2-cc6.1", "soc2-cc6.6", "soc2-cc7.2", "iso42001-a.6.2.8"] {
            assert_eq!(found(id), Finding::NotMet, "{id}");
        }
    }
}
