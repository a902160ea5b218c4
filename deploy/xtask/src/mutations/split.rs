//! The handoff as the engine drives it.

use super::Mutation;

/// Built with the second one, the first has the feature that plants faults.
const PACKAGES: &[&str] = &["engine-runtime", "rig"];

pub(super) const SPLIT: &[Mutation] = &[
    Mutation {
        name: "split: every byte that landed is part of its digest",
        file: "engine/runtime/src/split.rs",
        find: "totals.add(logical, layer, key.slab(logical, layer, slab));",
        replace: "totals.add(logical, layer, key.slab(logical, layer, &slab[..0]));",
        packages: PACKAGES,
        tests: "test(a_byte_that_changes_on_its_way_is_noticed_by_its_digest)",
    },
    Mutation {
        name: "split: a page that landed carries the tag that was sealed",
        file: "engine/handoff/src/refusal.rs",
        find: "sealed.tag != found.tag",
        replace: "sealed.tag == 0 && found.tag != 0",
        packages: PACKAGES,
        tests: "test(a_late_writer_into_a_page_that_landed_is_noticed_by_its_tag)",
    },
    Mutation {
        name: "split: the ledger is asked whether pages still live the life that was sealed",
        file: "engine/runtime/src/split.rs",
        find: "((label.state == state || shared) && label.generation == held.generation).then_some(label.generation)",
        replace: "(label.state != state || !shared || shared).then_some(held.generation)",
        packages: PACKAGES,
        tests: "test(source_pages_that_are_freed_early_are_not_handed_over)",
    },
    Mutation {
        name: "split: the prefill group says which request it computed",
        file: "engine/runtime/src/split/prefill_group.rs",
        find: "request: prompt.digest(&self.terms),",
        replace: "request: order.request,",
        packages: PACKAGES,
        tests: "test(another_prompt_of_the_same_tenant_is_refused)",
    },
    Mutation {
        name: "split: the prefill group says whose request it computed",
        file: "engine/runtime/src/split/prefill_group.rs",
        find: "domain: prompt.label,",
        replace: "domain: order.domain,",
        packages: PACKAGES,
        tests: "test(a_request_that_is_taken_for_another_tenant_s_is_refused)",
    },
    Mutation {
        name: "split: what was refused is kept as evidence where it landed",
        file: "engine/runtime/src/split/decode_group.rs",
        find: "quarantine(machine, &inbound.pages, evidence);",
        replace: "quarantine(machine, &inbound.pages[..0], evidence);",
        packages: PACKAGES,
        tests: "test(a_late_writer_into_a_page_that_landed_is_noticed_by_its_tag)",
    },
    Mutation {
        name: "split: what is said of an earlier try of a request is heard by nobody",
        file: "engine/runtime/src/split/decode_group.rs",
        find: "if let Some(request) = self.stepper.running.iter_mut().find(|request| request.route == Some(route)) {",
        replace: "if let Some(request) = self.stepper.running.iter_mut().find(|request| request.route != Some(route)) {",
        packages: PACKAGES,
        tests: "test(no_order_of_events_gives_a_wrong_answer_or_loses_a_page)",
    },
    Mutation {
        name: "split: an earlier try of a request is computed no further",
        file: "engine/runtime/src/outlet.rs",
        find: "latest.load(Ordering::SeqCst) != restarts ||",
        replace: "latest.load(Ordering::SeqCst) < restarts ||",
        packages: PACKAGES,
        tests: "test(a_prompt_whose_request_gave_way_is_computed_no_further)",
    },
    Mutation {
        name: "split: what was begun with a group ends with its life",
        file: "engine/runtime/src/split/decode_group.rs",
        find: "self.tell(machine, now, DecodeInput::PeerGone { prefill });",
        replace: "let _unsaid = prefill;",
        packages: &["rig"],
        tests: "test(a_prefill_group_that_begins_anew_changes_no_answer)",
    },
];
