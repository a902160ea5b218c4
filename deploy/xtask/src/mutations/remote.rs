//! The checks on what comes from the other process of an engine.

use super::Mutation;

const PACKAGES: &[&str] = &["engine-runtime", "e2e"];

pub(super) const REMOTE: &[Mutation] = &[
    Mutation {
        name: "remote: both processes have the same model",
        file: "engine/runtime/src/remote/introduction.rs",
        find: "if *hello.fingerprint != offer.fingerprint {",
        replace: "if hello.fingerprint.len() != offer.fingerprint.len() {",
        packages: PACKAGES,
        tests: "test(who_does_not_fit_is_told_why)",
    },
    Mutation {
        name: "remote: a worker has room for the longest request",
        file: "engine/runtime/src/remote/introduction.rs",
        find: "if tokens < there {",
        replace: "if tokens < there / 2 {",
        packages: PACKAGES,
        tests: "test(who_does_not_fit_is_told_why)",
    },
    Mutation {
        name: "remote: a prompt's tokens are the model's",
        file: "engine/runtime/src/remote/wire.rs",
        find: "if fits && tokens.iter().all(|token| *token < self.vocabulary) {",
        replace: "if fits && tokens.iter().all(|token| *token <= self.vocabulary) {",
        packages: PACKAGES,
        tests: "test(what_a_prompt_cannot_be_is_refused)",
    },
    Mutation {
        name: "remote: pages are one handoff's, in order",
        file: "engine/runtime/src/remote/wire.rs",
        find: "if gathered.route != route || gathered.pages != pages || gathered.next != logical || !fits {",
        replace: "if gathered.pages != pages || gathered.next != logical || !fits {",
        packages: PACKAGES,
        tests: "test(pages_come_whole_in_order_and_not_among_others)",
    },
    Mutation {
        name: "remote: a worker names pages that it has",
        file: "engine/runtime/src/remote/wire.rs",
        find: "if page < pages { Ok(PageId(first_page + page))",
        replace: "if page <= pages.max(u32::MAX - first_page) { Ok(PageId(first_page + page))",
        packages: PACKAGES,
        tests: "test(a_worker_s_pages_are_told_by_numbers_of_their_own_and_it_has_no_others)",
    },
    Mutation {
        name: "remote: pages of another process have other numbers",
        file: "engine/runtime/src/remote/introduction.rs",
        find: "if self.boot != Some(boot) {",
        replace: "if self.boot.is_none() {",
        packages: PACKAGES,
        tests: "test(no_two_processes_have_a_page_of_the_same_number)",
    },
    Mutation {
        name: "remote: what a link's life began ends with it",
        file: "engine/runtime/src/split/decode_group.rs",
        find: "self.tell(machine, now, DecodeInput::PeerGone { prefill });",
        replace: "let _forgotten = DecodeInput::PeerGone { prefill };",
        packages: PACKAGES,
        tests: "test(without_a_worker_requests_wait_a_while_and_are_told_then)",
    },
    Mutation {
        name: "remote: a message comes from its own side",
        file: "engine/runtime/src/remote/wire.rs",
        find: "if !theirs {",
        replace: "if !theirs && from == to {",
        packages: PACKAGES,
        tests: "test(a_message_goes_to_its_own_side_and_is_whole)",
    },
    Mutation {
        name: "remote: a prompt is computed for the request that was submitted",
        file: "engine/runtime/src/remote/streams.rs",
        find: "Some(own) if own.label != prompt.label || !prompt.tokens.starts_with(&own.tokens) => Known::Other,",
        replace: "Some(own) if own.label != prompt.label && !prompt.tokens.starts_with(&own.tokens) => Known::Other,",
        packages: PACKAGES,
        tests: "test(a_prompt_that_comes_back_as_another_one_is_an_isolation_fault)",
    },
    Mutation {
        name: "remote: a worker says no more than was read",
        file: "engine/runtime/src/remote/streams.rs",
        find: "if open.came.saturating_sub(open.told) >= STEPS_AHEAD as u32 {",
        replace: "if open.came.saturating_sub(open.told) > STEPS_AHEAD as u32 {",
        packages: PACKAGES,
        tests: "test(a_worker_that_says_more_than_was_read_is_not_believed)",
    },
    Mutation {
        name: "remote: what was begun with a worker that is gone ends",
        file: "engine/runtime/src/remote/streams.rs",
        find: "let begun = open.submitted && open.has_begun();",
        replace: "let begun = open.submitted && open.has_begun() && open.came > u32::MAX - 1;",
        packages: PACKAGES,
        tests: "test(a_link_to_who_decodes_that_is_cut_ends_what_was_begun_and_nothing_else)",
    },
];
