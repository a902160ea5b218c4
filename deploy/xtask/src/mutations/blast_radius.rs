//! The checks that let responders believe the blast radius of something.

use super::Mutation;

const PASSES: &str = "audit/log/src/blast_radius/passes.rs";

pub(super) const BLAST_RADIUS: &[Mutation] = &[
    Mutation {
        name: "blast radius: it is made of the entries that the log signed, all of them",
        file: PASSES,
        find: "if edge.size() != self.checkpoint.size || edge.root() != self.checkpoint.root {",
        replace: "if edge.size() != self.checkpoint.size {",
        packages: &["audit-log"],
        tests: "test(a_log_of_which_something_is_missing_or_changed_gives_no_answer)",
    },
    Mutation {
        name: "blast radius: a trace counts if the entry commits to it",
        file: PASSES,
        find: "(Some(wanted), Some(TraceSeen { root, suspect: Some(suspect) })) if root == wanted => (suspect, None),",
        replace: "(Some(_), Some(TraceSeen { suspect: Some(suspect), .. })) => (suspect, None),",
        packages: &["audit-log"],
        tests: "test(a_trace_that_is_gone_or_was_changed_is_said_and_never_believed)",
    },
    Mutation {
        name: "blast radius: a response whose trace is gone is said",
        file: PASSES,
        find: "(Some(_), None) => (Vec::new(), Some(Why::Gone)),",
        replace: "(Some(_), None) => (Vec::new(), None),",
        packages: &["audit-log"],
        tests: "test(a_trace_that_is_gone_or_was_changed_is_said_and_never_believed)",
    },
    Mutation {
        name: "blast radius: suspects whose pages are not known are said",
        file: PASSES,
        find: "pages.without = wanted.len() as u64;",
        replace: "pages.without = 0;",
        packages: &["audit-log"],
        tests: "test(a_trace_that_is_gone_or_was_changed_is_said_and_never_believed)",
    },
    Mutation {
        name: "blast radius: a request that has not ended is said",
        file: PASSES,
        find: "open.all().for_each(|index| self.unknown.in_flight.push(index));",
        replace: "open.all().take(0).for_each(|index| self.unknown.in_flight.push(index));",
        packages: &["audit-log"],
        tests: "test(what_has_not_ended_is_said)",
    },
];
