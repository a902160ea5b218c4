//! The checks of pages where kernels and copies touch them.

use super::Mutation;

pub(super) const KERNELS: &[Mutation] = &[
    Mutation {
        name: "kernel: a page is handed out with poison in it",
        file: "engine/kernels/src/kv_store.rs",
        find: "page.fill(POISON);",
        replace: "page.fill(0);",
        packages: &["engine-kernels"],
        tests: "test(what_was_never_written_is_no_number_and_what_was_is_not_disturbed_by_it)",
    },
    Mutation {
        name: "kernel: a page is sent by its holder alone",
        file: "engine/kernels/src/kv_store/transfer.rs",
        find: "Some(held) if tag == 0 || *held != tag =>",
        replace: "Some(held) if tag == 0 && *held != tag =>",
        packages: &["engine-kernels"],
        tests: "test(only_its_holder_sends_takes_in_and_relabels_a_page)",
    },
    Mutation {
        name: "kernel: bytes of another life are not sent",
        file: "engine/kernels/src/kv_store/transfer.rs",
        find: "match bytes.headers().position(|header| tag_of(header) != page.tag) {",
        replace: "match bytes.headers().position(|header| tag_of(header) != page.tag).filter(|layer| *layer == usize::MAX) {",
        packages: &["engine-kernels"],
        tests: "test(bytes_of_another_life_are_neither_sent_nor_adopted)",
    },
    Mutation {
        name: "kernel: bytes of another life are not adopted",
        file: "engine/kernels/src/kv_store/transfer.rs",
        find: "if let Some(layer) = bytes.headers().position(|header| tag_of(header) != carried) {",
        replace: "if let Some(layer) = bytes.headers().position(|header| tag_of(header) != carried).filter(|_| carried == 0) {",
        packages: &["engine-kernels"],
        tests: "test(bytes_of_another_life_are_neither_sent_nor_adopted)",
    },
    Mutation {
        name: "kernel: pages that only a window's first tokens see are written down",
        file: "engine/kernels/src/attention.rs",
        find: "let seen_later = if next < end { first_page(next, self.window) } else { usize::MAX };",
        replace: "let seen_later = if next < end { 0 } else { usize::MAX };",
        packages: &["engine-kernels"],
        tests: "all()",
    },
    Mutation {
        name: "model: one that gives no numbers is refused",
        file: "engine/model/src/forward/trial.rs",
        find: "logits.iter().all(|logit| logit.is_finite())",
        replace: "!logits.is_empty()",
        packages: &["engine-model"],
        tests: "test(a_model_that_can_only_give_what_is_no_number_is_known_before_it_is_asked)",
    },
];
