//! The checks that keep a guess a guess.

use super::Mutation;

/// Built with the second one, the first has the feature that plants faults.
const PACKAGES: &[&str] = &["engine-runtime", "rig"];

pub(super) const GUESSES: &[Mutation] = &[
    Mutation {
        name: "guess: it counts when the sampler says the same",
        file: "engine/runtime/src/step/guessing.rs",
        find: " || guess != Some(sampled) {",
        replace: " || guess.is_none() {",
        packages: PACKAGES,
        tests: "test(guesses_save_steps_and_wrong_ones_are_not_said)",
    },
    Mutation {
        name: "guess: nothing behind a wrong one is written",
        file: "engine/runtime/src/step/guessing.rs",
        find: "request.note_written(right)",
        replace: "request.note_written(part.guesses)",
        packages: PACKAGES,
        tests: "test(guesses_save_steps_and_wrong_ones_are_not_said)",
    },
    Mutation {
        name: "guess: none for a tenant that asked for none",
        file: "engine/runtime/src/step/guessing.rs",
        find: "if !terms.speculates || terms.exclusive {",
        replace: "if terms.weight == 0 {",
        packages: PACKAGES,
        tests: "test(who_asked_for_none_gets_no_guesses)",
    },
    Mutation {
        name: "guess: none for whoever had more than its share while others wait",
        file: "engine/runtime/src/step/guessing.rs",
        find: "if !self.scheduler.may_guess(request.label) {",
        replace: "if terms.weight == 0 {",
        packages: PACKAGES,
        tests: "test(whoever_had_more_than_its_share_gets_none_while_others_wait)",
    },
    Mutation {
        name: "guess: it has to bring what its row costs",
        file: "engine/runtime/src/draft.rs",
        find: "chance * cost > expected * row_part * GAIN_MIN",
        replace: "chance * cost > expected * 0.0 * row_part * GAIN_MIN",
        packages: PACKAGES,
        tests: "test(a_guess_has_to_be_surer_when_others_share_the_pass_or_rows_are_dear)",
    },
    Mutation {
        name: "guess: nobody's page is taken for it",
        file: "engine/runtime/src/step/guessing.rs",
        find: "machine.pool.counts().free <= sequences_max",
        replace: "machine.pool.counts().free < 1",
        packages: PACKAGES,
        tests: "test(a_page_is_taken_for_a_guess_only_when_everybody_could_take_one)",
    },
    Mutation {
        name: "guess: made from the request's own record",
        file: "engine/runtime/src/step.rs",
        find: "if self.row(part)?.guesses()?.len() < part.guesses {",
        replace: "if self.row(part)?.guesses().map_or(0, <[u32]>::len) < part.guesses {",
        packages: PACKAGES,
        tests: "test(guesses_are_made_from_one_s_own_record)",
    },
];
