//! The checks that an answer has the bits that it should have, or is none.

use super::Mutation;

pub(super) const EXACTNESS: &[Mutation] = &[
    Mutation {
        name: "engine: output that is no number is no token",
        file: "engine/kernels/src/logits.rs",
        find: "(is_finite && all.is_finite()).then_some(all)",
        replace: "(is_finite || !all.is_infinite()).then_some(all)",
        packages: &["engine-runtime"],
        tests: "test(nonsense_is_no_token)",
    },
    Mutation {
        name: "end to end of the engine: output that is no number ends its request",
        file: "engine/kernels/src/logits.rs",
        find: "(is_finite && all.is_finite()).then_some(all)",
        replace: "(is_finite || !all.is_infinite()).then_some(all)",
        // Built with it, the package has the feature that plants faults.
        packages: &["engine-runtime", "rig"],
        tests: "test(output_that_is_no_number_ends_its_request_and_no_other)",
    },
    Mutation {
        name: "kernel: a value that is not finite is not lost when activations become bytes",
        file: "engine/kernels/src/activations.rs",
        find: "/ 127.0 + taint;",
        replace: "/ 127.0 + taint.max(0.0);",
        packages: &["engine-kernels"],
        tests: "test(a_value_that_is_not_finite_is_never_lost_in_a_block)",
    },
    Mutation {
        name: "kernel: a score that is not finite is not lost in a softmax",
        file: "engine/kernels/src/attention/segment.rs",
        find: "let weights = simd.fma(scores_here, simd.splat(0.0), weights);",
        replace: "let weights = simd.fma(simd.splat(1.0), simd.splat(0.0), weights);",
        packages: &["engine-kernels"],
        tests: "test(what_is_not_finite_stays_so_and_spreads_to_no_other_sequence)",
    },
    Mutation {
        name: "kernel: a row out of all bounds does not become zeros",
        file: "engine/kernels/src/norm.rs",
        find: "if mean.is_finite() {",
        replace: "if !mean.is_nan() {",
        packages: &["engine-kernels"],
        tests: "test(a_row_that_grew_out_of_all_bounds_is_no_row_of_zeros)",
    },
    Mutation {
        name: "kernel: the order of a sum does not depend on who shares the run",
        file: "engine/kernels/src/attention/segment.rs",
        find: "odd[row] = simd.fma(simd.splat(queries[1][row]), keys_odd, odd[row]);",
        replace: "let sum = if R == 6 { &mut even[row] } else { &mut odd[row] };\n            *sum = simd.fma(simd.splat(queries[1][row]), keys_odd, *sum);",
        packages: &["engine-model"],
        tests: "test(any_schedule_gives_the_bits_of_the_serial_reference) | test(the_real_model_gives_the_bits_of_the_serial_reference_under_any_schedule)",
    },
    Mutation {
        name: "log: what the engine failed does not end well",
        file: "audit/log/src/open_entry.rs",
        find: "(None, Some(_), _) => SealReason::Error,",
        replace: "(None, Some(_), reason) => reason,",
        packages: &["audit-log"],
        tests: "test(what_the_engine_failed_has_a_fault_entry_and_ends_as_an_error)",
    },
    Mutation {
        name: "verifier: what the engine failed did not end well",
        file: "audit/verify/src/folder/story.rs",
        find: "if request.faults > 0 && !failed {",
        replace: "if request.faults > 1 && !failed {",
        packages: &["audit-verify"],
        tests: "test(a_request_that_the_engine_failed_does_not_end_well)",
    },
    Mutation {
        name: "verifier: a log does not go back to an older format",
        file: "audit/verify/src/folder/story.rs",
        find: "if entry.head.version < self.version {",
        replace: "if false && entry.head.version < self.version {",
        packages: &["audit-verify"],
        tests: "test(a_log_goes_on_in_a_newer_format_and_never_in_an_older_one)",
    },
];
