//! What a log believes of whoever signs for it, and what a signer signs.

use super::Mutation;

const PACKAGES: &[&str] = &["audit-tlog", "audit-log", "audit-signer"];
const CONVERSATION: &str = "audit/signer/src/conversation.rs";
const ONE_HISTORY: &str = "test(one_history_of_one_log_is_signed_and_nothing_else)";
const ANOTHER_PROGRAM: &str = "test(a_log_s_key_may_be_in_another_program)";

pub(super) const SIGNED_ELSEWHERE: &[Mutation] = &[
    Mutation {
        name: "signer: a signature from elsewhere is verified",
        file: "audit/tlog/src/key.rs",
        find: "if key.verifies(message, &signature) { Ok(signature) }",
        replace: "if !key.name.is_empty() { Ok(signature) }",
        packages: PACKAGES,
        tests: "test(a_signature_from_elsewhere_is_verified_before_it_is_used)",
    },
    Mutation {
        name: "signer: its key is the log's",
        file: "audit/log/src/keys.rs",
        find: "&& published != log",
        replace: "&& published.name() != log.name()",
        packages: PACKAGES,
        tests: ANOTHER_PROGRAM,
    },
    Mutation {
        name: "signer: its key is of the log's origin",
        file: "audit/log/src/signer.rs",
        find: "if key.name() != origin {",
        replace: "if key.name().is_empty() {",
        packages: PACKAGES,
        tests: "test(whoever_does_not_sign_is_no_signer)",
    },
    Mutation {
        name: "signer: of one log",
        file: CONVERSATION,
        find: "ensure!(checkpoint.origin == origin, ",
        replace: "ensure!(!checkpoint.origin.is_empty(), ",
        packages: PACKAGES,
        tests: ONE_HISTORY,
    },
    Mutation {
        name: "signer: no smaller tree",
        file: CONVERSATION,
        find: "ensure!(checkpoint.size >= last.size, ",
        replace: "ensure!(checkpoint.size < u64::MAX, ",
        packages: PACKAGES,
        tests: ONE_HISTORY,
    },
    Mutation {
        name: "signer: no second tree of one size",
        file: CONVERSATION,
        find: "ensure!(checkpoint.size > last.size || checkpoint.root == last.root, ",
        replace: "ensure!(checkpoint.size < u64::MAX, ",
        packages: PACKAGES,
        tests: ONE_HISTORY,
    },
    Mutation {
        name: "signer: a key that others may read is not used",
        file: "audit/signer/src/file.rs",
        find: "ensure!(kind.permissions().mode() & 0o077 == 0, ",
        replace: "ensure!(kind.permissions().mode() != 0, ",
        packages: PACKAGES,
        tests: ANOTHER_PROGRAM,
    },
];
