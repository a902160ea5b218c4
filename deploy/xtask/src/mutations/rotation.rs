//! Whose word makes a key the log's, which keys sign, and whom a verifier follows.

use super::Mutation;

const TLOG: &str = "audit/tlog/src/rotation.rs";
const KEYS: &str = "audit/log/src/keys.rs";
const FOLDER: &str = "audit/verify/src/folder.rs";
const FOLLOWED: &str = "audit/verify/src/rotation.rs";
const LOG: &[&str] = &["audit-log"];
const VERIFY: &[&str] = &["audit-verify"];
const WORD_OF_BOTH: &str = "test(a_rotation_takes_the_word_of_both_keys)";
const CHAIN: &str = "test(a_chain_goes_from_each_key_to_the_one_that_it_names)";
const BOTH_SIGN: &str = "test(both_keys_sign_from_the_entry_on_until_the_former_is_dropped)";
const NOT_IN_THE_LOG: &str = "test(a_rotation_that_is_not_in_the_log_leads_nowhere)";
const HISTORY: &str = "test(the_history_before_a_rotation_is_the_one_that_both_keys_have_signed)";
const COUNTS: &str = "test(the_key_that_counts_is_the_newest_that_the_tree_names)";
const STOLEN: &str = "test(a_former_key_counts_for_no_tree_behind_the_rotation)";
const NEWEST: &str = "test(the_newest_key_that_an_entry_names_signs_every_checkpoint)";
const AUDITED: &str = "test(a_log_that_changed_its_key_is_audited_under_either_and_under_no_other)";
const NO_ENTRY: &str = "test(a_key_that_no_entry_names_signs_nothing)";

pub(super) const ROTATION: &[Mutation] = &[
    Mutation {
        name: "log key: the log's key has named the next one",
        file: TLOG,
        find: "if by_previous && by_next {",
        replace: "if by_next {",
        packages: &["audit-tlog"],
        tests: WORD_OF_BOTH,
    },
    Mutation {
        name: "log key: the next key has agreed",
        file: TLOG,
        find: "if by_previous && by_next {",
        replace: "if by_previous {",
        packages: &["audit-tlog"],
        tests: WORD_OF_BOTH,
    },
    Mutation {
        name: "log key: it begins at the newest key",
        file: TLOG,
        find: "if rotation.previous != self.current {",
        replace: "if rotation.previous.name() != self.current.name() {",
        packages: &["audit-tlog"],
        tests: CHAIN,
    },
    Mutation {
        name: "log key: no key comes back",
        file: TLOG,
        find: "if self.former.iter().any(|(key, _)| key.key_id() == rotation.next.key_id()) {",
        replace: "if self.former.iter().any(|(key, _)| key.name() != rotation.next.name()) {",
        packages: &["audit-tlog"],
        tests: CHAIN,
    },
    Mutation {
        name: "log key: both keys sign",
        file: KEYS,
        find: "Some(next) => checkpoint.sign_with(&[&self.signer, next]),",
        replace: "Some(_) => checkpoint.sign(&self.signer),",
        packages: LOG,
        tests: BOTH_SIGN,
    },
    Mutation {
        name: "log key: what no entry names does not sign",
        file: KEYS,
        find: "tracing::warn!(path = NEXT_KEY,",
        replace: "self.both = true;\n                tracing::warn!(path = NEXT_KEY,",
        packages: LOG,
        tests: "test(a_key_that_no_entry_names_signs_nothing_and_is_taken_by_the_next_rotation)",
    },
    Mutation {
        name: "log key: nothing is signed without the key that an entry names",
        file: KEYS,
        find: "if next.as_ref() != Some(named.current()) {",
        replace: "if next.as_ref().is_some_and(|next| next.name() != held.name()) {",
        packages: LOG,
        tests: "test(without_the_key_that_an_entry_names_nothing_is_signed)",
    },
    Mutation {
        name: "log key: secret files stay bound to the log's first key",
        file: KEYS,
        find: "let first = if log_exists { first_key(&*storage)? } else { None };",
        replace: "let first = if log_exists { first_key(&*storage)?.filter(|_| false) } else { None };",
        packages: LOG,
        tests: BOTH_SIGN,
    },
    Mutation {
        name: "log key: the former key's file is overwritten",
        file: KEYS,
        find: "zero(&*former, SIGNING_KEY)?;",
        replace: "drop(former);",
        packages: LOG,
        tests: BOTH_SIGN,
    },
    Mutation {
        name: "log key: the given key is one that the entries name",
        file: FOLDER,
        find: "if !keys.has(key) {",
        replace: "if keys.current().name() != key.name() {",
        packages: VERIFY,
        tests: NO_ENTRY,
    },
    Mutation {
        name: "log key: a rotation is bound to the history before it",
        file: TLOG,
        find: "if (self.size, self.root) == (index, root) {",
        replace: "if self.size == index || self.root == root || self.size > 0 {",
        packages: VERIFY,
        tests: HISTORY,
    },
    Mutation {
        name: "log key: what both keys sign has the root before it",
        file: TLOG,
        find: "let Self { previous, next, size, root, .. } = self;",
        replace: "let (Self { previous, next, size, .. }, root) = (self, 0);",
        packages: &["audit-tlog"],
        tests: WORD_OF_BOTH,
    },
    Mutation {
        name: "log key: a folder's history is the one that both keys mean",
        file: FOLDER,
        find: "let before = rotates.then(|| self.edge.root());",
        replace: "let before = rotates.then(|| self.edge.root()).filter(|_| false);",
        packages: VERIFY,
        tests: HISTORY,
    },
    Mutation {
        name: "log key: a proof's history is the one that both keys mean",
        file: FOLLOWED,
        find: "rotation.stands_at(proof.index, before)?;",
        replace: "let _history = rotation.stands_at(proof.index, before);",
        packages: VERIFY,
        tests: HISTORY,
    },
    Mutation {
        name: "log key: the newest key is demanded of what stands alone",
        file: TLOG,
        find: "if has_signed(newest) && beside.is_none_or(has_signed) {",
        replace: "if beside.is_none_or(has_signed) || has_signed(newest) {",
        packages: &["audit-tlog"],
        tests: COUNTS,
    },
    Mutation {
        name: "log key: a stolen former key is refused of a receipt",
        file: TLOG,
        find: "if has_signed(newest) && beside.is_none_or(has_signed) {",
        replace: "if beside.is_none_or(has_signed) || !has_signed(newest) {",
        packages: VERIFY,
        tests: STOLEN,
    },
    Mutation {
        name: "log key: both must have signed within the window",
        file: TLOG,
        find: "window.finish.filter(|finish| size <= *finish)",
        replace: "window.finish.filter(|finish| size > *finish && size <= *finish)",
        packages: &["audit-tlog"],
        tests: COUNTS,
    },
    Mutation {
        name: "log key: the next key has no word before it is named",
        file: TLOG,
        find: "take_while(|(_, window)| window.begin < size)",
        replace: "take_while(|(_, window)| window.begin < size || size > 0)",
        packages: &["audit-tlog"],
        tests: COUNTS,
    },
    Mutation {
        name: "log key: a COSE receipt is signed by the key that counts",
        file: "audit/tlog/src/cose.rs",
        find: "if keys.key_at(receipt.size) != key {",
        replace: "if keys.key_at(receipt.size).name() != key.name() {",
        packages: &["audit-tlog"],
        tests: "test(of_a_log_that_changed_its_key_the_one_of_the_receipt_s_size_counts)",
    },
    Mutation {
        name: "log key: a log signs a COSE receipt with the key that goes on",
        file: KEYS,
        find: "_ => Some(self.newest()),",
        replace: "_ => Some(&self.signer),",
        packages: LOG,
        tests: "test(a_receipt_with_one_signature_is_signed_by_the_key_that_counts)",
    },
    Mutation {
        name: "log key: one rotation is finished before the next one",
        file: TLOG,
        find: "let finish = window.finish.ok_or(RotationError::Open)?;",
        replace: "let finish = window.finish.unwrap_or_default();",
        packages: &["audit-tlog"],
        tests: CHAIN,
    },
    Mutation {
        name: "log key: what is finished has begun",
        file: TLOG,
        find: "if !its_keys || window.finish.is_some() || rotation.size <= window.begin {",
        replace: "if !its_keys && rotation.size == 0 {",
        packages: &["audit-tlog"],
        tests: CHAIN,
    },
    Mutation {
        name: "log key: the former key is dropped by an entry",
        file: "audit/log/src/recover.rs",
        find: "Start::Finish => Some(keys.finish_rotation(committed, root)?),",
        replace: "Start::Finish => keys.finish_rotation(committed, root).map(Some)?.filter(|_| false),",
        packages: LOG,
        tests: BOTH_SIGN,
    },
    Mutation {
        name: "log key: what an entry drops is dropped by the next start",
        file: KEYS,
        find: "if window.finish.is_some() {",
        replace: "if window.finish == Some(0) {",
        packages: LOG,
        tests: "test(a_former_key_that_an_entry_drops_goes_with_the_next_start)",
    },
    Mutation {
        name: "log key: both keys are there while both sign",
        file: KEYS,
        find: "&& window.finish.is_none()\n            {\n                return Err(OpenLogError::FormerKeyMissing",
        replace: "&& window.finish == Some(0)\n            {\n                return Err(OpenLogError::FormerKeyMissing",
        packages: LOG,
        tests: "test(without_the_key_that_an_entry_names_nothing_is_signed)",
    },
    Mutation {
        name: "log key: a whole log is signed by both while both sign",
        file: FOLDER,
        find: "Some((former, window)) if window.finish.is_none() && Checkpoint::open(note, former).is_err() => {",
        replace: "Some((former, window)) if window.begin == 0 && Checkpoint::open(note, former).is_err() => {",
        packages: VERIFY,
        tests: NEWEST,
    },
    Mutation {
        name: "log key: a dropped key signs no page of own entries",
        file: "audit/verify/src/mine.rs",
        find: "let checkpoint = keys.open(page.checkpoint.as_bytes()).map_err(signature)?;",
        replace: "let any: Vec<VerifierKey> = keys.keys().cloned().collect();\n        \
                  let opened = Checkpoint::open_under(page.checkpoint.as_bytes(), &any);\n        \
                  let checkpoint = opened.map_err(signature)?.0;",
        packages: VERIFY,
        tests: "test(a_key_that_was_dropped_signs_no_page)",
    },
    Mutation {
        name: "log key: a dropped key vouches for no report key",
        file: "audit/verify/src/bundle.rs",
        find: "voucher.is_some_and(|voucher| !later.is_some_and(|later| later.has(voucher)))",
        replace: "voucher.is_some_and(|voucher| later.is_some() && voucher.name().is_empty())",
        packages: VERIFY,
        tests: "test(a_key_that_was_dropped_vouches_for_no_bundle)",
    },
    Mutation {
        name: "log key: a witness that has seen the next key demands it",
        file: "audit/witness/src/witness.rs",
        find: "if latest.as_ref().is_some_and(|seen| newest(&own_note) < newest(&seen.note)) {",
        replace: "if latest.as_ref().is_some_and(|seen| newest(&own_note).is_none() && newest(&seen.note).is_some()) {",
        packages: &["audit-witness"],
        tests: "test(a_log_that_changes_its_key_is_followed_under_both)",
    },
    Mutation {
        name: "log key: an auditor demands the newest key",
        file: "audit/auditor/src/auditor.rs",
        find: "self.is_signed(checkpoint, note)?;",
        replace: "let _signed = self.is_signed(checkpoint, note);",
        packages: &["audit-auditor"],
        tests: AUDITED,
    },
    Mutation {
        name: "log key: the newest key signs every checkpoint",
        file: FOLDER,
        find: "follower.is_signed(&note)?;",
        replace: "drop(follower.is_signed(&note));",
        packages: VERIFY,
        tests: NEWEST,
    },
    Mutation {
        name: "log key: a verifier compares what was written",
        file: FOLLOWED,
        find: "self.chain.as_mut().ok_or(RotationError::Order)?.follow(&rotation)?;",
        replace: "let _followed = self.chain.as_mut().ok_or(RotationError::Order)?.follow(&rotation);",
        packages: VERIFY,
        tests: NO_ENTRY,
    },
    Mutation {
        name: "log key: its entry is in the log",
        file: FOLLOWED,
        find: "check_inclusion(&proof.hashes, checkpoint.size, checkpoint.root, proof.index, *leaf)?;",
        replace: "drop(check_inclusion(&proof.hashes, checkpoint.size, checkpoint.root, proof.index, *leaf));",
        packages: VERIFY,
        tests: NOT_IN_THE_LOG,
    },
    Mutation {
        name: "log key: its proof is under a checkpoint of the log",
        file: FOLLOWED,
        find: "let checkpoint = chain.open(proof.checkpoint.as_bytes())?;",
        replace: "let (text, _) = proof.checkpoint.split_once(\"\\n\\n\").unwrap_or_default();\n        \
                  let checkpoint = audit_tlog::Checkpoint::from_text(format!(\"{text}\\n\").as_bytes())?;",
        packages: VERIFY,
        tests: NOT_IN_THE_LOG,
    },
    Mutation {
        name: "log key: an auditor's key is the log's",
        file: "audit/auditor/src/auditor.rs",
        find: "if !self.follower.names_key() {",
        replace: "if self.follower.size() == 0 {",
        packages: &["audit-auditor"],
        tests: AUDITED,
    },
];
