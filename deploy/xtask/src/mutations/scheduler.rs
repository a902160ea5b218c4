//! The rules that keep one tenant's load from being another one's wait.

use super::Mutation;

const PACKAGES: &[&str] = &["engine-scheduler"];
const FAIR: &str = "engine/scheduler/src/fair.rs";
const SCHEDULER: &str = "engine/scheduler/src/scheduler.rs";

const FIT: &str = "engine/scheduler/src/cost/fit.rs";

pub(super) const SCHEDULING: &[Mutation] = &[
    Mutation {
        name: "scheduler: whoever wakes up is lifted",
        file: FAIR,
        find: "account.clock = account.clock.max(others.saturating_sub(kept));",
        replace: "account.clock = account.clock.max(others.saturating_sub(kept).min(0));",
        packages: PACKAGES,
        tests: "test(having_been_idle_earns_a_quarter_of_a_second_and_no_more)",
    },
    Mutation {
        name: "scheduler: one cheap request keeps no place in the past",
        file: FAIR,
        find: "        if !account.waits() {\n            let others",
        replace: "        if !account.waits() && account.clock == 0 {\n            let others",
        packages: PACKAGES,
        tests: "test(one_request_that_runs_all_the_time_keeps_no_place_in_the_past)",
    },
    Mutation {
        name: "scheduler: a class that waits has its floor",
        file: FAIR,
        find: "*owed_ns = owed_ns.saturating_add(floor_of(cost_ns)).min(most);",
        replace: "*owed_ns = owed_ns.saturating_add(floor_of(cost_ns)).min(most.min(0));",
        packages: PACKAGES,
        tests: "test(a_class_that_waits_keeps_its_floor_and_no_more) | test(no_class_starves_under_a_more_urgent_one)",
    },
    Mutation {
        name: "scheduler: a floor's turn is paid for",
        file: FAIR,
        find: "let least = if outranked { -DEBT_NS_MAX } else { (*owed_ns).min(0) };",
        replace: "let least = (*owed_ns).min(0);",
        packages: PACKAGES,
        tests: "test(a_long_turn_of_a_class_that_was_owed_little_is_paid_for_later)",
    },
    Mutation {
        name: "scheduler: cancelled requests earn no class a floor",
        file: FAIR,
        find: "owed_ns.saturating_sub(floor_of(refund_ns)).max((*owed_ns).min(0))",
        replace: "*owed_ns",
        packages: PACKAGES,
        tests: "test(a_flood_of_cancelled_requests_does_not_put_the_last_class_first)",
    },
    Mutation {
        name: "scheduler: work is charged to whoever caused it",
        file: SCHEDULER,
        find: "            self.shares.charge(tenant, cost_ns, prepaid);",
        replace: "            self.shares.charge(tenant, 0, prepaid);",
        packages: PACKAGES,
        tests: "test(tenants_that_always_wait_get_their_weights_in_any_ten_seconds)",
    },
    Mutation {
        name: "scheduler: a slot is paid for in advance",
        file: SCHEDULER,
        find: "        self.shares.prepay(tenant, prepaid_ns);\n",
        replace: "",
        packages: PACKAGES,
        tests: "test(slots_go_round_between_tenants_however_many_requests_each_has)",
    },
    Mutation {
        name: "scheduler: half of a step's prompts while another waits",
        file: SCHEDULER,
        find: "(left_us / 2.0).max(lag_us).min(left_us),",
        replace: "left_us.max(lag_us),",
        packages: PACKAGES,
        tests: "test(prompts_get_what_a_step_has_left_and_nobody_more_than_half_while_others_wait)",
    },
    Mutation {
        name: "scheduler: whoever is behind gets what it is behind",
        file: FAIR,
        find: "(next.clock.saturating_sub(own.clock) as f64) * own.weight as f64",
        replace: "(next.clock.saturating_sub(own.clock) as f64) * 0.0 * own.weight as f64",
        packages: PACKAGES,
        tests: "test(prompts_that_always_wait_differ_by_a_few_steps)",
    },
    Mutation {
        name: "scheduler: a request that has waited too long goes first",
        file: SCHEDULER,
        find: "let aged = |key| now.saturating_sub(self.since(key)) >= self.config.age_bound;",
        replace: "let aged = |key| now.saturating_sub(self.since(key)) > Duration::MAX;",
        packages: PACKAGES,
        tests: "test(inside_a_tenant_the_longest_prefix_goes_first_until_the_oldest_has_waited_too_long) | test(who_does_not_fit_lets_others_pass_for_a_while)",
    },
    Mutation {
        name: "scheduler: a guarantee is taken for nobody else",
        file: "engine/scheduler/src/pages.rs",
        find: "self.pages.saturating_sub(self.guaranteed)",
        replace: "self.pages",
        packages: PACKAGES,
        tests: "test(what_a_tenant_was_guaranteed_is_taken_for_nobody_else) | test(nobody_within_its_guarantee_gives_anything)",
    },
    Mutation {
        name: "scheduler: a cache gives what is above the guarantee alone",
        file: SCHEDULER,
        find: "let cached = self.pages.cached(from).min(pages_max);",
        replace: "let cached = self.pages.cached(from).min(pages_max.saturating_mul(1000));",
        packages: PACKAGES,
        tests: "test(nobody_gives_up_what_it_was_guaranteed_for_want_of_others)",
    },
    Mutation {
        name: "scheduler: a prefix changes nobody's turn",
        file: SCHEDULER,
        find: "        for tenant in self.shares.order(Lane::Slots).take(TENANTS_LOOKED_AT) {",
        replace: "        let mut order: Vec<_> = self.shares.order(Lane::Slots).take(TENANTS_LOOKED_AT).collect();\n        order.sort_by_key(|of| Reverse(self.queues.get(of).and_then(|queues| queues.longest_prefix_first().next()).map(|key| self.requests[&key].arrival.cached_tokens)));\n        for tenant in order {",
        packages: PACKAGES,
        tests: "test(a_cached_prefix_never_changes_whose_turn_it_is)",
    },
    Mutation {
        name: "cost: one pass that was disturbed counts as half more",
        file: FIT,
        find: "let counted = took.clamp(self.last.min(1.0 / SURPRISE), self.last.max(SURPRISE));",
        replace: "let counted = took.clamp(self.last.min(0.0), self.last.max(SURPRISE_MAX));",
        packages: PACKAGES,
        tests: "test(one_pass_that_took_a_hundred_times_as_long_derails_nothing)",
    },
    Mutation {
        name: "cost: a machine that changed is followed at once",
        file: FIT,
        find: "if surprised && self.off < SETTLED { counted } else { 1.0 }",
        replace: "if surprised && self.off < 0.0 { counted } else { 1.0 }",
        packages: PACKAGES,
        tests: "test(predictions_follow_the_machine_and_forget_a_hiccup) | test(a_machine_that_changes_is_followed_and_what_was_learned_of_it_is_kept)",
    },
    Mutation {
        name: "cost: what passes tell apart is told apart",
        file: FIT,
        find: "const HOLD: f64 = 0.0005;",
        replace: "const HOLD: f64 = 5.0;",
        packages: PACKAGES,
        tests: "test(prompts_are_predicted_within_a_tenth_after_some_tens_of_passes_however_deep)",
    },
    Mutation {
        name: "cost: no cost is less than nothing",
        file: FIT,
        find: "let (lowest, highest) = ([0.0, TOKEN_FACTOR_MIN, 0.0], FACTOR_MAX);",
        replace: "let (lowest, highest) = ([f64::MIN; 3], FACTOR_MAX);",
        packages: PACKAGES,
        tests: "test(nothing_that_is_seen_makes_a_pass_cost_nothing_or_a_cost_less_than_nothing)",
    },
];
