//! The checks of the page's verifier, and what keeps the page from sending anything. Each of the verifier's goes red in the
//! comparison with `bulkhead-verify`.

use super::Mutation;

const FORMS: &str = "audit/verify/page/forms.js";
const VERIFIER: &str = "audit/verify/page/verifier.js";

const OPERATOR: &str = "test(of_what_a_dishonest_operator_signs_both_say_the_same)";
const DAMAGE: &str = "test(of_receipts_of_a_real_log_and_of_every_damage_to_one_both_say_the_same)";
const CHECKPOINTS: &str = "test(of_every_form_of_a_checkpoint_and_of_a_key_both_say_the_same)";
const ENTRIES: &str = "test(of_every_form_of_a_trace_and_of_an_entry_both_say_the_same)";

const fn of(
    name: &'static str,
    file: &'static str,
    find: &'static str,
    replace: &'static str,
    tests: &'static str,
) -> Mutation {
    Mutation { name, file, find, replace, packages: &["audit-verify"], tests }
}

pub(super) const PAGE: &[Mutation] = &[
    of("page: the signature is checked", VERIFIER, "must(genuine, check,", "must(genuine || true, check,", DAMAGE),
    of(
        "page: the origin is the key's name",
        VERIFIER,
        "must(origin === key.name, check,",
        "must(origin !== \"\", check,",
        CHECKPOINTS,
    ),
    of(
        "page: a key of small order is no key",
        VERIFIER,
        "if (isWeak(key)) throw",
        "if (isWeak(key) && name === \"\") throw",
        CHECKPOINTS,
    ),
    of(
        "page: the proof leads to the root",
        VERIFIER,
        "return last === 0n && equal(result, root);",
        "return last === 0n;",
        DAMAGE,
    ),
    of(
        "page: both entries are in the log",
        VERIFIER,
        "    included(\"opened\", disclosure.opened, disclosure.openedIndex, disclosure.openedProof);\n",
        "",
        OPERATOR,
    ),
    of(
        "page: the entries are of one request",
        VERIFIER,
        "same(equal(sealed.requestId, opened.uuid), \"the request\");",
        "",
        OPERATOR,
    ),
    of(
        "page: the sealed entry names the opened one",
        VERIFIER,
        "same(equal(sealed.openedLeaf, openedLeaf), \"the leaf hash\");",
        "",
        OPERATOR,
    ),
    of(
        "page: the entries are one tenant's",
        VERIFIER,
        "equal(sealed.tenant, opened.tenant), \"the tenant\")",
        "true, \"the tenant\")",
        OPERATOR,
    ),
    of(
        "page: the tenant's name opens its commitment",
        VERIFIER,
        "must(equal(named, opened.tenantName), \"tenant\",",
        "must(named, \"tenant\",",
        OPERATOR,
    ),
    of(
        "page: the trace is the one that was sealed",
        VERIFIER,
        "must(sealed.trace && equal(sealed.trace, sha256(bytes)), check,",
        "must(sealed.trace, check,",
        OPERATOR,
    ),
    of(
        "page: the trace has the entry's counts",
        VERIFIER,
        "must(same, check, \"the trace has other page counts",
        "must(same || true, check, \"the trace has other page counts",
        OPERATOR,
    ),
    of(
        "page: foreign pages stop a response",
        VERIFIER,
        "sealed.pages.foreign === 0n || sealed.reason === \"isolation\"",
        "sealed.pages.foreign >= 0n",
        OPERATOR,
    ),
    of(
        "page: the request is the one of the entry",
        VERIFIER,
        "must(same, \"request\",",
        "must(same || true, \"request\",",
        DAMAGE,
    ),
    of(
        "page: the response is the one of the entry",
        VERIFIER,
        "must(equal(commit(\"response\", openings.response, ...payloads), sealed.response), check,",
        "must(sealed.response, check,",
        OPERATOR,
    ),
    of(
        "page: the chain is the one of the entry",
        VERIFIER,
        "must(equal(head, sealed.chain), check,",
        "must(head, check,",
        OPERATOR,
    ),
    of(
        "page: numbers have one form in CBOR",
        FORMS,
        "if (number < least) this.refuse(\"a CBOR number is not in its shortest form\");",
        "",
        ENTRIES,
    ),
    of(
        "page: nothing follows an entry",
        FORMS,
        "if (this.at !== this.bytes.length) this.refuse(\"bytes follow the end\");",
        "",
        ENTRIES,
    ),
    of(
        "page: base64 has one form",
        FORMS,
        "return (held & ((1 << bits) - 1)) === 0 ? bytes : null;",
        "return bytes;",
        CHECKPOINTS,
    ),
    Mutation {
        name: "page: it may load and send nothing",
        file: "audit/verify/src/page.rs",
        find: "\"default-src 'none'; script-src",
        replace: "\"default-src 'self'; script-src",
        packages: &["e2e"],
        tests: "test(a_person_sees_what_a_receipt_proves_and_that_a_changed_one_proves_nothing)",
    },
];
