//! The checks that let a witness sign one history of a log, and that keep its word from being forged.

use super::Mutation;

const COSIGNATURE: &str = "audit/tlog/src/cosignature.rs";
const WITNESS: &str = "audit/witness/src/witness.rs";
const STORE: &str = "audit/witness/src/store.rs";
const SERVE: &str = "audit/witness/src/serve.rs";

pub(super) const WITNESSES: &[Mutation] = &[
    Mutation {
        name: "witness: a tree that does not continue the last one is not signed",
        file: WITNESS,
        find: "if check_consistency(&request.proof, checkpoint.size, checkpoint.root, old_size, old_root).is_err() {",
        replace: "if check_consistency(&request.proof, checkpoint.size, checkpoint.root, old_size, old_root).is_err() && unix_seconds == 0 {",
        packages: &["audit-witness"],
        tests: "test(a_second_history_is_not_cosigned)",
    },
    Mutation {
        name: "witness: two trees of one size are kept as evidence",
        file: WITNESS,
        find: "&& seen.checkpoint.root != checkpoint.root",
        replace: "&& seen.checkpoint.root != checkpoint.root && unix_seconds == 0",
        packages: &["audit-witness"],
        tests: "test(a_second_history_is_not_cosigned)",
    },
    Mutation {
        name: "witness: nothing is signed from an older state",
        file: WITNESS,
        find: "if request.old_size != old_size {",
        replace: "if request.old_size > old_size {",
        packages: &["audit-witness"],
        tests: "test(a_log_that_grows_is_cosigned_and_its_size_is_remembered)",
    },
    Mutation {
        name: "witness: the empty tree has one root",
        file: WITNESS,
        find: "if checkpoint.size == 0 && checkpoint.root != empty {",
        replace: "if checkpoint.size == 0 && checkpoint.root != empty && unix_seconds == 0 {",
        packages: &["audit-witness"],
        tests: "test(the_empty_tree_has_one_root_and_needs_no_proof)",
    },
    Mutation {
        name: "witness: what cannot be kept is not signed",
        file: WITNESS,
        find: "if let Err(error) = self.store.keep(&log.origin_hash, &note) {",
        replace: "if let Err(error) = self.store.keep(&log.origin_hash, &note).or_else(|_| Ok::<(), std::io::Error>(())) {",
        packages: &["audit-witness"],
        tests: "test(what_cannot_be_kept_is_not_signed)",
    },
    Mutation {
        name: "witness: what was kept must be its own word",
        file: WITNESS,
        find: "witness.find(&checkpoint, &note)?.ok_or(CheckpointError::Signature)?;",
        replace: "let _found = witness.find(&checkpoint, &note)?;",
        packages: &["audit-witness"],
        tests: "test(a_damaged_memory_is_not_gone_on_with)",
    },
    Mutation {
        name: "witness: one that forgot does not go on under its key",
        file: STORE,
        find: "if !logs.is_dir() {",
        replace: "if !logs.is_dir() && !dir.is_dir() {",
        packages: &["audit-witness"],
        tests: "test(a_witness_that_forgot_does_not_go_on_under_its_key)",
    },
    Mutation {
        name: "witness: a folder has one witness",
        file: STORE,
        find: "Err(TryLockError::WouldBlock) => Err(StoreError::Locked { dir: dir.to_owned() }),",
        replace: "Err(TryLockError::WouldBlock) => Ok(file),",
        packages: &["audit-witness"],
        tests: "test(a_key_is_made_once_and_is_its_owners_alone)",
    },
    Mutation {
        name: "witness: a request's body is bounded",
        file: SERVE,
        find: "Limited::new(body, ADD_CHECKPOINT_BYTES_MAX).collect()",
        replace: "Limited::new(body, usize::MAX).collect()",
        packages: &["audit-witness"],
        tests: "test(what_one_client_may_take_is_bounded)",
    },
    Mutation {
        name: "witness: a body that does not come is given up",
        file: SERVE,
        find: "match timeout(limits.body_timeout, Limited",
        replace: "match timeout(limits.body_timeout * 1_000, Limited",
        packages: &["audit-witness"],
        tests: "test(what_one_client_may_take_is_bounded)",
    },
    Mutation {
        name: "cosignature: it is the witness's",
        file: COSIGNATURE,
        find: "self.key.verify_strict(message.as_bytes(), &Signature::from_bytes(bytes)).ok()?;",
        replace: "let _unchecked = self.key.verify_strict(message.as_bytes(), &Signature::from_bytes(bytes));",
        packages: &["audit-tlog"],
        tests: "test(any_flipped_bit_of_a_cosignature_is_no_cosignature)",
    },
    Mutation {
        name: "cosignature: it has a time",
        file: COSIGNATURE,
        find: "if unix_seconds == 0 || unix_seconds > SECONDS_MAX {\n            return None;",
        replace: "if unix_seconds == 0 && unix_seconds > SECONDS_MAX {\n            return None;",
        packages: &["audit-tlog"],
        tests: "test(a_time_that_is_none_is_not_signed_and_not_believed)",
    },
    Mutation {
        name: "cosignature: a log's key is no witness's, and the other way round",
        file: "audit/tlog/src/key.rs",
        find: "Some((found, key)) if *found == algorithm => key",
        replace: "Some((found, key)) if *found > 0 || algorithm == 0 => key",
        packages: &["audit-tlog"],
        tests: "test(keys_of_witnesses_and_logs_are_told_apart)",
    },
];
