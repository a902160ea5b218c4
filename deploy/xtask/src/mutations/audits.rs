//! The checks that keep an audit of the isolation from saying more than it saw, and from being anybody's word.

use super::Mutation;

const VERDICT: &str = "gateway/server/src/cli/audit/verdict.rs";

pub(super) const AUDITS: &[Mutation] = &[
    Mutation {
        name: "audit: a run whose control shows nothing is void",
        file: VERDICT,
        find: "if controls.last().is_none_or(|control| control.finding == Finding::NoPower) {",
        replace: "if controls.last().is_none_or(|control| control.finding == Finding::NoPower && control.n == 0) {",
        packages: &["gateway-server"],
        tests: "test(without_a_cache_the_run_is_void_and_ends_there)",
    },
    Mutation {
        name: "audit: a control has power only far beyond chance",
        file: VERDICT,
        find: "Side::FirstSmaller).p < CONTROL_P_MAX",
        replace: "Side::FirstSmaller).p < 2.0 * CONTROL_P_MAX.powi(0)",
        packages: &["gateway-server"],
        tests: "test(without_a_cache_the_run_is_void_and_ends_there)",
    },
    Mutation {
        name: "audit: probabilities are corrected for how many arms there are",
        file: VERDICT,
        find: "let mut corrected = holm(&probabilities).into_iter();",
        replace: "let mut corrected = holm(&[]).into_iter().chain(probabilities.iter().copied());",
        packages: &["gateway-server"],
        tests: "test(one_arm_of_many_that_looks_odd_by_chance_is_no_channel)",
    },
    Mutation {
        name: "audit: without a narrow interval nothing is proved",
        file: VERDICT,
        find: "auc.low >= AUC_BAND.0 && auc.high <= AUC_BAND.1",
        replace: "auc.low <= AUC_BAND.1 && auc.high >= AUC_BAND.0",
        packages: &["gateway-server"],
        tests: "test(few_pairs_find_no_channel_and_prove_nothing)",
    },
    Mutation {
        name: "audit: an arm needs a control of its own length",
        file: VERDICT,
        find: "let blind = (!seen_at_home).then(",
        replace: "let blind = (!seen_at_home && n == 0).then(",
        packages: &["gateway-server"],
        tests: "test(an_arm_whose_own_control_has_no_power_proves_nothing)",
    },
    Mutation {
        name: "audit: what is not there cannot be evicted",
        file: VERDICT,
        find: "blind: (!works).then_some(blind)",
        replace: "blind: (!works && pairs == 0).then_some(blind)",
        packages: &["gateway-server"],
        tests: "test(a_cache_that_keeps_nothing_of_ones_own_cannot_show_an_eviction)",
    },
    Mutation {
        name: "audit: a few rounds prove nothing",
        file: VERDICT,
        find: "_ if arm.p_least * family as f64 > CHANNEL_P_MAX => {",
        replace: "_ if arm.p_least * family as f64 > f64::MAX => {",
        packages: &["gateway-server"],
        tests: "test(oracles_of_too_few_rounds_prove_nothing)",
    },
    Mutation {
        name: "audit: an answer that is stopped within one tenant is no hit",
        file: "gateway/server/src/cli/audit/measure.rs",
        find: "        if of.warmed_by == Party::Attacker {\n",
        replace: "        if of.warmed_by == Party::Attacker && of.pairs == 0 {\n",
        packages: &["gateway-server"],
        tests: "test(a_gateway_that_stops_answers_within_one_tenant_is_not_audited_past_it)",
    },
    Mutation {
        name: "audit: two keys of one tenant are no two tenants",
        file: "gateway/server/src/cli/audit.rs",
        find: "if victim == attacker {",
        replace: "if victim == attacker && victim.is_empty() {",
        packages: &["gateway-server"],
        tests: "test(two_tenants_are_needed)",
    },
    Mutation {
        name: "audit: only named tenants write results to the log",
        file: "gateway/server/src/audits.rs",
        find: "if !self.probes.contains(principal.name()) {",
        replace: "if !self.probes.contains(principal.name()) && self.probes.len() > ARMS_MAX {",
        packages: &["gateway-server"],
        tests: "test(nobody_is_a_probe_who_was_not_named)",
    },
    Mutation {
        name: "audit: a probe writes one result in an interval",
        file: "gateway/server/src/audits.rs",
        find: "Some(wait) if !wait.is_zero() => {",
        replace: "Some(wait) if wait > INTERVAL => {",
        packages: &["gateway-server"],
        tests: "test(a_probe_records_one_result_in_an_interval_and_takes_nothing_from_another)",
    },
    Mutation {
        name: "log: a result belongs to the tenant that says so",
        file: "audit/verify/src/folder.rs",
        find: "                tenant?;\n",
        replace: "                let _anybody = &tenant;\n",
        packages: &["audit-verify"],
        tests: "test(what_probes_said_is_counted_and_has_a_tenant)",
    },
];
