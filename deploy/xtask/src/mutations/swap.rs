//! What is compared when pages come back into the pool.

use super::Mutation;

/// Built with the second one, the first has the feature that plants faults.
const PACKAGES: &[&str] = &["engine-runtime", "rig"];
const SWAP: &str = "engine/runtime/src/machine/swap.rs";

pub(super) const SWAPPED: &[Mutation] = &[
    Mutation {
        name: "swap: what comes back is what left",
        file: SWAP,
        find: "if (landed.as_slice(), layers.as_slice()) != (swapped.pages.as_slice(), swapped.layers.as_slice()) {",
        replace: "if layers.len() != swapped.layers.len() {",
        packages: PACKAGES,
        tests: "test(a_byte_that_changed_meanwhile_ends_it_and_its_pages_are_evidence)",
    },
    Mutation {
        name: "swap: to its own tenant",
        file: SWAP,
        find: "if swapped.label != request.label {",
        replace: "if swapped.label == Label::NOBODY {",
        packages: PACKAGES,
        tests: "test(nobody_gets_the_pages_of_another_request_or_tenant)",
    },
    Mutation {
        name: "swap: to its own request",
        file: SWAP,
        find: "if swapped.request != request.request || ",
        replace: "if ",
        packages: PACKAGES,
        tests: "test(nobody_gets_the_pages_of_another_request_or_tenant)",
    },
];
