//! What a receipt in COSE has to show before it is believed.

use super::Mutation;

const TLOG: &str = "audit/tlog/src/cose.rs";
const VERIFY: &str = "audit/verify/src/receipt.rs";
const BITS: &str = "test(what_is_signed_opens_and_no_changed_bit_of_it_does)";
const OTHERS: &str = "test(another_entry_key_place_or_size_is_refused)";
const DISHONEST: &str = "test(a_cose_receipt_about_another_request_is_refused)";

const fn of(
    name: &'static str,
    file: &'static str,
    find: &'static str,
    replace: &'static str,
    tests: &'static str,
) -> Mutation {
    Mutation { name, file, find, replace, packages: &["audit-tlog", "audit-verify"], tests }
}

pub(super) const COSE_RECEIPTS: &[Mutation] = &[
    of(
        "cose: the signature is checked",
        TLOG,
        "if key.verifies(bytes, signature) {",
        "if key.verifies(bytes, signature) || !bytes.is_empty() {",
        OTHERS,
    ),
    of(
        "cose: a receipt has one form",
        TLOG,
        "if again.to_tagged_vec().ok().as_deref() != Some(bytes) {",
        "if again.to_tagged_vec().is_err() {",
        BITS,
    ),
    of("cose: the size is signed", TLOG, "            (Value::from(TREE_SIZE), Value::from(self.size)),\n", "", OTHERS),
    of(
        "cose: the origin is the key's name",
        TLOG,
        "if receipt.origin != key.name() {",
        "if receipt.origin.is_empty() {",
        OTHERS,
    ),
    of(
        "cose: a key that is elsewhere is not asked",
        TLOG,
        "if !signer.is_here() {",
        "if signer.name().is_empty() {",
        "test(a_key_that_is_elsewhere_is_not_asked)",
    ),
    of(
        "cose: the claims name the entry's request",
        VERIFY,
        "|subject| *subject != sealed.request.to_string()",
        "|subject| subject.is_empty()",
        DISHONEST,
    ),
    of(
        "cose: a proof that nobody checks is refused",
        VERIFY,
        "if !disclosure.opened_proof.is_empty() {",
        "if disclosure.sealed.is_empty() {",
        DISHONEST,
    ),
    of(
        "cose: witnesses that were asked for are not passed over",
        VERIFY,
        "    if witnesses.is_some() {\n",
        "    if witnesses.is_some() && receipt.subject.is_empty() {\n",
        "test(a_cose_receipt_says_what_the_text_says)",
    ),
];
