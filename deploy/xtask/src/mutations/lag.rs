//! The checks on auditors and witnesses that fall behind.

use super::Mutation;

const LAG: &str = "audit/log/src/lag.rs";
const ONE_INCIDENT: &str = "test(a_lag_is_one_incident_from_its_beginning_to_its_end)";

pub(super) const LAGS: &[Mutation] = &[
    Mutation {
        name: "lag: it counts from the first publication that is not cosigned",
        file: LAG,
        find: "let behind_us = self.beyond.get(first)",
        replace: "let behind_us = self.beyond.back().filter(|_| first < self.beyond.len())",
        packages: &["audit-log"],
        tests: "test(a_lag_counts_from_the_first_publication_that_is_not_cosigned)",
    },
    Mutation {
        name: "lag: publications that are told apart no more make no lag shorter",
        file: LAG,
        find: "        {\n            *first = size;\n        }\n",
        replace: "        {\n            *first = size.min(*first);\n        }\n",
        packages: &["audit-log"],
        tests: "test(many_publications_take_bounded_memory_and_make_no_lag_shorter)",
    },
    Mutation {
        name: "lag: one lag is one incident",
        file: LAG,
        find: "&& !lagging.iter().any(|(cosigner, _)| is(health, cosigner))",
        replace: "&& !lagging.iter().any(|(cosigner, _)| is(health, cosigner) && limit_us == 0)",
        packages: &["audit-log"],
        tests: ONE_INCIDENT,
    },
    Mutation {
        name: "lag: a start is no end of it",
        file: LAG,
        find: "health.lag.behind_us <= limit_us && health.cosigned > 0",
        replace: "health.lag.behind_us <= limit_us",
        packages: &["audit-log"],
        tests: ONE_INCIDENT,
    },
    Mutation {
        name: "lag: whoever is behind is said to be",
        file: LAG,
        find: "if behind_us > limit_us && !lagging",
        replace: "if behind_us > limit_us && health.away && !lagging",
        packages: &["audit-log"],
        tests: ONE_INCIDENT,
    },
    Mutation {
        name: "lag: a start gives nobody more time",
        file: "audit/log/src/log.rs",
        find: "lags.is_some_and(|lags| lags || lock(&self.shared.incidents).an_auditor_lags())",
        replace: "lags.unwrap_or_default()",
        packages: &["audit-log"],
        tests: "test(an_auditor_that_falls_behind_is_one_incident_until_it_has_caught_up)",
    },
    Mutation {
        name: "lag: what the log says of it ends when it has caught up",
        file: "audit/log/src/incidents.rs",
        find: "                        self.lagging.remove(&state.incident);\n",
        replace: "",
        packages: &["audit-log"],
        tests: "test(an_auditor_that_falls_behind_is_one_incident_until_it_has_caught_up)",
    },
    Mutation {
        name: "lag: an entry says it of whoever has fallen behind, and of nobody else",
        file: "audit/provenance/src/lag.rs",
        find: "self.cosigned < self.published && self.behind_us > self.limit_us",
        replace: "self.cosigned <= self.published",
        packages: &["audit-provenance"],
        tests: "test(whoever_is_within_the_limit_or_has_cosigned_everything_has_not_fallen_behind)",
    },
    Mutation {
        name: "lag: a verifier takes it in no tenant's chain",
        file: "audit/verify/src/folder/story.rs",
        find: "                if tenant.is_ok() {\n                    return Err(LogRefusal::Lag { index });\n                }\n",
        replace: "",
        packages: &["audit-verify"],
        tests: "test(the_lag_of_a_cosigner_is_an_incident_of_no_tenant)",
    },
    Mutation {
        name: "lag: whoever enforces a second opinion is not answered without one",
        file: "gateway/server/src/second_opinion.rs",
        find: "SecondOpinion::Enforce if auditor_lags() => {",
        replace: "SecondOpinion::Enforce if auditor_lags() && self.agreed.is_empty() => {",
        packages: &["gateway-server"],
        tests: "test(whoever_enforces_it_is_not_answered_without_it_and_whoever_fences_is_told)",
    },
    Mutation {
        name: "lag: whoever fences is told",
        file: "gateway/server/src/second_opinion.rs",
        find: "SecondOpinion::Fence => Ok(auditor_lags()),",
        replace: "SecondOpinion::Fence => Ok(false),",
        packages: &["gateway-server"],
        tests: "test(whoever_enforces_it_is_not_answered_without_it_and_whoever_fences_is_told)",
    },
    Mutation {
        name: "lag: a second opinion takes somebody who has one",
        file: "gateway/server/src/config.rs",
        find: "if !config.witnesses.has_second_opinion()",
        replace: "if config.witnesses.places.is_empty()",
        packages: &["gateway-server"],
        tests: "test(a_second_opinion_takes_an_auditor_and_the_time_that_it_has)",
    },
    Mutation {
        name: "end to end: who enforces a second opinion gets none without it",
        file: "gateway/server/src/serve.rs",
        find: "|| on.audit.auditor_lags())?;",
        replace: "|| on.audit.auditor_lags() && on.is_draining())?;",
        // The programs are built because the suite runs them.
        packages: &["e2e", "gateway-server", "audit-verify", "audit-auditor", "audit-witness"],
        tests: "test(an_auditor_that_falls_behind_is_an_incident_and_stops_who_enforces_its_opinion)",
    },
];
