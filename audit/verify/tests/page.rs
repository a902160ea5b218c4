//! The page's verifier, in JavaScript, and this one say the same of every receipt: genuine ones, damaged ones, and ones that a
//! dishonest operator signed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod forged;
mod real_log;

use audit_provenance::{
    ChunkRun, Disclosure, DisclosureVersion, EntryVersion, PageClass, PageRun, SealReason, Sealing, Trace,
};
use audit_tlog::{LogSigner, TlogProof, VerifierKey};
use audit_verify::{Evidence, check_receipt};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use forged::{ACME, Forge, GLOBEX, PAYLOADS, opened, sealed, signer, trace};
use policies_domain::{Digest, Generation, Label, PageId, RequestId, TenantId};
use real_log::{REQUEST_BODY, RealLog};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::path::Path;
use std::process::Command;

struct Case {
    what: String,
    key: String,
    receipt: Vec<u8>,
    request: Option<Vec<u8>>,
    response: Option<Vec<u8>>,
}

/// Cases of one kind under one key, with the same evidence unless they say otherwise.
struct Cases {
    key: String,
    request: Option<Vec<u8>>,
    response: Option<Vec<u8>>,
    all: Vec<Case>,
}

impl Cases {
    fn of(key: &VerifierKey) -> Self {
        Self { key: key.to_string(), request: None, response: None, all: Vec::new() }
    }

    fn add(&mut self, what: impl Into<String>, receipt: impl Into<Vec<u8>>) {
        let (key, request, response) = (self.key.clone(), self.request.clone(), self.response.clone());
        self.all.push(Case { what: what.into(), key, receipt: receipt.into(), request, response });
    }
}

/// What this verifier says, in the words of the other one.
fn said_here(case: &Case) -> Value {
    let Ok(key) = VerifierKey::parse(case.key.trim()) else { return json!({"result": "key"}) };
    let evidence =
        Evidence { request: case.request.as_deref(), response: case.response.as_deref(), ..Evidence::default() };
    match check_receipt(&case.receipt, &key, evidence) {
        Err(refusal) => json!({"result": "refused", "check": refusal.check()}),
        Ok(report) => {
            let (opened, sealed) = (&report.opened, &report.sealed);
            let text = |number: u64| number.to_string();
            json!({
                "result": "genuine", "checked": report.passed,
                "unchecked": report.unchecked.iter().map(|part| part.name()).collect::<Vec<_>>(),
                "origin": report.checkpoint.origin, "treeSize": text(report.checkpoint.size), "index": text(report.index),
                "openedIndex": text(sealed.opened_index), "request": sealed.request.to_string(),
                "openedUs": text(report.opened_us), "sealedUs": text(report.sealed_us), "tenant": report.tenant_name,
                "tenantRef": hex::encode(report.tenant.tenant), "tenantNumber": text(report.tenant.number),
                "model": opened.model.to_string(), "fingerprint": opened.fingerprint.map(|digest| digest.to_string()),
                "build": opened.build.to_string(), "rules": opened.rules.to_string(), "stream": opened.stream,
                "reason": sealed.reason.as_str(),
                "pages": {"own": text(sealed.pages.own), "public": text(sealed.pages.public), "foreign": text(sealed.pages.foreign)},
                "coverage": {
                    "labelGate": sealed.coverage.label_gate, "kernelTags": sealed.coverage.kernel_tags,
                    "handover": sealed.coverage.handover.as_str(),
                },
                "steps": text(sealed.steps), "chunks": text(sealed.chunks), "promptTokens": text(sealed.prompt_tokens),
                "completionTokens": text(sealed.completion_tokens), "queuedUs": text(sealed.queued_us),
                "prefillUs": text(sealed.prefill_us), "decodeUs": text(sealed.decode_us),
            })
        }
    }
}

/// Asks the other one about all of them, and compares. Gives how many were genuine, and how many checks refused one.
fn compare(cases: &[Case]) -> (usize, std::collections::BTreeMap<String, usize>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cases.json");
    let encoded = |bytes: &Option<Vec<u8>>| bytes.as_ref().map(|bytes| BASE64_STANDARD.encode(bytes));
    let case = |case: &Case| {
        json!({
            "key": case.key, "receipt": BASE64_STANDARD.encode(&case.receipt),
            "request": encoded(&case.request), "response": encoded(&case.response),
        })
    };
    std::fs::write(&path, Value::from(cases.iter().map(case).collect::<Vec<_>>()).to_string()).unwrap();
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/verifiers/receipt.mjs");
    let output = Command::new("node").arg(program).arg("--batch").arg(&path).output();
    let output = output.expect("`node` is missing: apt-get install nodejs");
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let there: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(there.len(), cases.len());
    let (mut genuine, mut refused) = (0, std::collections::BTreeMap::new());
    for (case, there) in cases.iter().zip(&there) {
        let here = said_here(case);
        for (name, value) in here.as_object().unwrap() {
            assert_eq!(&there[name], value, "{}: `{name}` differs: {there}", case.what);
        }
        match here["check"].as_str() {
            Some(check) => *refused.entry(check.to_owned()).or_default() += 1,
            None => genuine += usize::from(here["result"] == "genuine"),
        }
    }
    (genuine, refused)
}

/// A generator whose numbers do not change: what fails, fails again.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap()
    }

    fn change(&mut self, bytes: &mut Vec<u8>) {
        let at = self.below(bytes.len());
        match self.below(6) {
            0..3 => bytes[at] ^= 1 << self.below(8),
            3 => bytes[at] = u8::try_from(self.below(256)).unwrap(),
            4 => drop(bytes.remove(at)),
            _ => bytes.insert(at, u8::try_from(self.below(256)).unwrap()),
        }
    }
}

#[tokio::test]
async fn of_receipts_of_a_real_log_and_of_every_damage_to_one_both_say_the_same() {
    let log = RealLog::open();
    let events = log.streamed(&log.acme, 1).await;
    let body = log.whole(&log.globex, 2).await;
    log.refused(&log.acme, 3, Label::of(TenantId::new(2).unwrap())).await;
    let key = VerifierKey::parse(&log.log.verifier_key()).unwrap();
    let mut cases = Cases::of(&key);
    let error = "{\"error\":{\"code\":\"isolation\"}}";
    for (who, request, response) in
        [(&log.acme, 1, &*events), (&log.globex, 2, &*body), (&log.acme, 3, ""), (&log.acme, 3, error)]
    {
        let receipt = log.receipt(who, request);
        for request in [None, Some(REQUEST_BODY), Some(&b"{}"[..]), Some(&b""[..])] {
            for response in [None, Some(response), Some("data: {}\n\n"), Some("<html>"), Some("{\"content\":\"leak\"}")]
            {
                cases.request = request.map(Vec::from);
                cases.response = response.map(Vec::from);
                cases.add(format!("{request:?} and {response:?}"), receipt.as_bytes());
            }
        }
    }
    let receipt = log.receipt(&log.acme, 1).into_bytes();
    for (request, response) in [(None, None), (Some(REQUEST_BODY.to_vec()), Some(events.into_bytes()))] {
        (cases.request, cases.response) = (request, response);
        for position in 0..receipt.len() {
            let mut changed = receipt.clone();
            changed[position] ^= [0x01, 0x20, 0x80][position % 3];
            cases.add(format!("byte {position}"), changed);
        }
        for length in (0..receipt.len()).step_by(11) {
            cases.add(format!("cut to {length}"), &receipt[..length]);
        }
    }
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let proof = TlogProof::parse(&receipt).unwrap();
    for round in 0..600 {
        let mut extra = proof.extra.clone().unwrap();
        numbers.change(&mut extra);
        cases.add(format!("extra, round {round}"), TlogProof { extra: Some(extra), ..proof.clone() }.encode());
    }
    let (genuine, refused) = compare(&cases.all);
    assert!(genuine > 60 && cases.all.len() > 3_000, "{genuine} of {}", cases.all.len());
    for check in ["format", "signature", "disclosure", "inclusion", "tenant", "trace", "request", "response"] {
        assert!(refused.contains_key(check), "no case for `{check}`: {refused:?}");
    }
}

#[test]
fn of_receipts_from_before_both_say_the_same() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/audit");
    let key = VerifierKey::parse(std::fs::read_to_string(golden.join("log.vkey")).unwrap().trim()).unwrap();
    let mut cases = Cases::of(&key);
    for name in ["receipt-v1.tlog-proof", "receipt-v2.tlog-proof", "receipt-v4.tlog-proof", "receipt.tlog-proof"] {
        cases.add(name, std::fs::read(golden.join(name)).unwrap());
    }
    assert_eq!(compare(&cases.all).0, 4);
}

/// A forged log's receipt, with a lie in the sealed entry and any trace.
fn lie(trace: &[u8], lie: impl FnOnce(&mut Sealing)) -> TlogProof {
    let mut forge = Forge::new();
    let at = forge.add(Some(ACME), opened(1));
    let last = forge.add(
        Some(ACME),
        sealed(1, at, |sealing| {
            sealing.trace = Some(Trace::root(trace));
            lie(sealing);
        }),
    );
    with(&forge.receipt(at.0, last.0, &Trace::default()), |disclosure| disclosure.trace = Some(trace.to_vec()))
}

fn with(proof: &TlogProof, change: impl FnOnce(&mut Disclosure)) -> TlogProof {
    let mut disclosure = Disclosure::decode(proof.extra.as_ref().unwrap()).unwrap();
    change(&mut disclosure);
    TlogProof { extra: Some(disclosure.encode()), ..proof.clone() }
}

fn streamed(payloads: &[&str]) -> Vec<u8> {
    payloads.iter().map(|payload| format!("data: {payload}\n\n")).collect::<String>().into_bytes()
}

type Lie = (&'static str, fn(&mut Sealing));

const LIES: &[Lie] = &[
    ("the truth", |_| {}),
    ("a foreign page", |sealing| sealing.pages.foreign = 1),
    ("a foreign page that stopped it", |sealing| (sealing.pages.foreign, sealing.reason) = (1, SealReason::Isolation)),
    ("other counts", |sealing| sealing.pages.own = 3),
    ("a public page", |sealing| (sealing.pages.own, sealing.pages.public) = (1, 1)),
    ("fewer steps", |sealing| sealing.steps = 2),
    ("no steps", |sealing| sealing.steps = 0),
    ("as many steps as there can be", |sealing| sealing.steps = u64::MAX >> 1),
    ("more chunks", |sealing| sealing.chunks = 4),
    ("as many chunks as there can be", |sealing| sealing.chunks = u64::MAX),
    ("no chunks", |sealing| sealing.chunks = 0),
    ("another opened entry", |sealing| sealing.opened_index = 0),
    ("another leaf", |sealing| sealing.opened_leaf = Digest([1; 32])),
    ("another request", |sealing| sealing.request = RequestId::from_bytes([2; 16])),
    ("no trace", |sealing| sealing.trace = None),
    ("another trace", |sealing| sealing.trace = Some(Digest([1; 32]))),
    ("a crash", |sealing| {
        (sealing.reason, sealing.response, sealing.chain) = (SealReason::Crash, None, None);
    }),
    ("no chain", |sealing| sealing.chain = None),
    ("another chain", |sealing| sealing.chain = Some([1; 32])),
    ("another response", |sealing| sealing.response = Some([1; 32])),
    ("no replay digest", |sealing| sealing.replay = None),
    ("broken off", |sealing| sealing.reason = SealReason::Error),
    ("aborted", |sealing| sealing.reason = SealReason::Aborted),
    ("length", |sealing| sealing.reason = SealReason::Length),
    ("more steps than there can be", |sealing| (sealing.steps, sealing.reason) = (u64::MAX, SealReason::Isolation)),
    ("great times", |sealing| (sealing.queued_us, sealing.decode_us) = (u64::MAX, u64::MAX - 1)),
];

#[test]
fn of_what_a_dishonest_operator_signs_both_say_the_same() {
    let mut cases = Cases::of(&signer().verifier_key());
    let error = "{\"error\":{\"message\":\"\\u00e9 \\\"x\\\"\"}}";
    let responses: [Option<Vec<u8>>; 5] = [
        None,
        Some(streamed(&PAYLOADS)),
        Some(streamed(&[&PAYLOADS[..], &[error]].concat())),
        Some(streamed(&[&PAYLOADS[..], &["{\"error\":1,\"content\":2}"]].concat())),
        Some(streamed(&PAYLOADS[..2])),
    ];
    for (name, sealing) in LIES {
        for (place, response) in responses.iter().enumerate() {
            cases.response = response.clone();
            let receipt = lie(&trace().encode(), sealing);
            cases.add(format!("{name}, response {place}"), receipt.encode());
            let bare = with(&receipt, |disclosure| disclosure.trace = None);
            cases.add(format!("{name}, response {place}, no trace"), bare.encode());
        }
    }
    let truth = lie(&trace().encode(), |_| {});
    for response in [
        "data:{\"content\":\"a\"}\r\n\r\ndata: {\"content\":\"b\"}\n\ndata: {\"content\":\"c\"}\n\n",
        ": note\n\nid: 1\nretry: 5\ndata: {\"content\":\"a\"}\n\ndata: {\"content\":\"b\"}\n\ndata: {\"content\":\"c\"}\n\ndata: [DONE]\n\n",
        "data: {\"content\":\"a\"}\n\nevent: isolation\ndata: x\n\ndata: {\"content\":\"b\"}\n\ndata: {\"content\":\"c\"}\n\n",
        "event: other\ndata: {\"content\":\"a\"}\n\ndata: {\"content\":\"b\"}\n\ndata: {\"content\":\"c\"}\n\n",
        "data: {\"content\":\"a\"}\n\ndata: {\"content\":\"b\"}\n\ndata: {\"content\":\"c\"}\n",
        "data: {\"content\":\"a\"}\n\ndata: {\"content\":\"b\"}\n\ndata: {\"content\":\"c\"}\n\ndata: {\"content\":\"d\"}",
        "data:  {\"content\":\"a\"}\n\ndata: {\"content\":\"b\"}\n\ndata: {\"content\":\"c\"}\n\n",
        "data: {\"content\":\"a\"}\ndata: {\"content\":\"b\"}\n\ndata: {\"content\":\"c\"}\n\n",
        "data\n\ndata\n\ndata\n\n",
        "\u{feff}data: {\"content\":\"a\"}\n\n",
        "data: \u{feff}\n\nother: 1\n\n",
        "Data: 1\n\n",
        " \u{0c}\t\r\n",
        "  {\"content\":\"abc\"}  \n",
        "\u{0b}{}",
        "",
    ] {
        cases.response = Some(response.as_bytes().to_vec());
        cases.add(format!("{response:?}"), truth.encode());
    }
    cases.response = Some(b"data: \xff\xfe\n\n\xff: 1\n\n".to_vec());
    cases.add("no text", truth.encode());
    cases.response = None;
    let openings = forged::openings();
    for (what, changed) in [
        ("a short proof", with(&truth, |disclosure| disclosure.opened_proof.truncate(0))),
        ("a long proof", with(&truth, |disclosure| disclosure.opened_proof.push([0; 32]))),
        ("too long a proof", with(&truth, |disclosure| disclosure.opened_proof = vec![[0; 32]; 64])),
        ("no openings", with(&truth, |disclosure| disclosure.openings = None)),
        (
            "another name",
            with(&truth, |disclosure| disclosure.openings.as_mut().unwrap().tenant_name = "globex".into()),
        ),
        (
            "a long name",
            with(&truth, |disclosure| disclosure.openings.as_mut().unwrap().tenant_name = "\u{e9}".repeat(31) + "ab"),
        ),
        ("no trace", with(&truth, |disclosure| disclosure.trace = None)),
        ("an index beyond", with(&truth, |disclosure| disclosure.opened_index = u64::MAX)),
        ("the sealed entry twice", with(&truth, |disclosure| disclosure.opened = disclosure.sealed.clone())),
        (
            "version 1",
            with(&truth, |disclosure| {
                (disclosure.version, disclosure.openings) =
                    (DisclosureVersion::V1, Some(audit_provenance::Openings { replay: None, ..openings }));
            }),
        ),
        ("no extra", TlogProof { extra: None, ..truth.clone() }),
        ("an empty extra", TlogProof { extra: Some(Vec::new()), ..truth.clone() }),
        ("no proof", TlogProof { hashes: Vec::new(), ..truth.clone() }),
    ] {
        cases.add(what, changed.encode());
    }
    // Numbers at their end, without a trace that contradicts them.
    for response in [None, Some(streamed(&PAYLOADS)), Some(Vec::new())] {
        cases.response = response;
        for chunks in [0, 2, u64::MAX] {
            let changed =
                lie(&trace().encode(), |sealing| (sealing.chunks, sealing.reason) = (chunks, SealReason::Error));
            cases.add(format!("{chunks} chunks"), with(&changed, |disclosure| disclosure.trace = None).encode());
        }
    }
    cases.response = None;
    // Of two tenants: a number that does not follow, a tenant that differs, an order turned round.
    let mut forge = Forge::new();
    for request in 7..10 {
        forge.add(Some(GLOBEX), opened(request));
    }
    let (first, second) = (forge.add(Some(ACME), opened(1)), forge.add(Some(ACME), opened(2)));
    let (other, right) =
        (forge.add(Some(GLOBEX), sealed(1, first, |_| {})), forge.add(Some(ACME), sealed(1, first, |_| {})));
    let late = forge.add(Some(ACME), opened(3));
    let early = forge.add(Some(ACME), sealed(3, late, |_| {}));
    for (opened, sealed) in
        [(first, other), (first, right), (second, right), (late, right), (late, early), (first, early), (late, first)]
    {
        cases.add(format!("{} and {}", opened.0, sealed.0), forge.receipt(opened.0, sealed.0, &trace()).encode());
    }
    let (genuine, refused) = compare(&cases.all);
    assert!(genuine > 20, "{genuine} of {}", cases.all.len());
    for check in ["disclosure", "inclusion", "entry", "pairing", "tenant", "trace", "pages", "response"] {
        assert!(refused.contains_key(check), "no case for `{check}`: {refused:?}");
    }
}

#[test]
fn of_every_form_of_a_trace_and_of_an_entry_both_say_the_same() {
    let mut cases = Cases::of(&signer().verifier_key());
    let page = |page, class, first_step, last_step| PageRun {
        page: PageId(page),
        generation: Generation(1),
        class,
        first_step,
        last_step,
    };
    let run = |chunks, first_step, stride, span| ChunkRun { chunks, first_step, stride, span };
    let own = PageClass::Own;
    for trace in [
        Trace {
            pages: vec![page(4, own, 0, 1), page(4, own, 1, 2), page(5, own, 0, 0)],
            chunks: vec![run(3, 0, 1, 0)],
        },
        Trace { pages: vec![page(4, own, 0, 3), page(5, own, 0, 0)], chunks: vec![run(3, 0, 1, 0)] },
        Trace { pages: vec![page(4, own, 0, 2), page(4, PageClass::Other, 0, 0)], chunks: vec![run(3, 0, 1, 0)] },
        Trace { pages: vec![page(4, own, 0, 2), page(5, PageClass::Nobody, 0, 0)], chunks: vec![run(3, 0, 1, 0)] },
        Trace { pages: vec![page(4, own, 2, 1), page(5, own, 0, 0)], chunks: vec![run(3, 0, 1, 0)] },
        Trace {
            pages: vec![page(u32::MAX, own, 0, 2), page(5, own, 0, 0)],
            chunks: vec![run(1, 0, 0, 0), run(2, 1, 1, 0)],
        },
        Trace { pages: vec![page(4, own, 0, 2), page(5, own, 0, 0)], chunks: vec![run(3, u32::MAX, 0, 0)] },
        Trace { pages: vec![page(4, own, 0, 2), page(5, own, 0, 0)], chunks: vec![run(3, u32::MAX, 1, 0)] },
        Trace { pages: vec![page(4, own, 0, 2), page(5, own, 0, 0)], chunks: vec![run(3, 0, 0, u32::MAX)] },
        Trace { pages: vec![page(4, own, 0, 2), page(5, own, 0, 0)], chunks: vec![run(0, 0, 0, 0), run(3, 0, 1, 0)] },
        Trace { pages: vec![page(4, own, 0, 2), page(5, own, 0, 0)], chunks: vec![run(2, 0, 1, 0)] },
        Trace::default(),
    ] {
        for response in [None, Some(streamed(&PAYLOADS))] {
            cases.response = response;
            cases.add(format!("{trace:?}"), lie(&trace.encode(), |_| {}).encode());
        }
    }
    cases.response = None;
    let mut numbers = Numbers(0x2545_f491_4f6c_dd1d);
    let plain = trace().encode();
    for round in 0..400 {
        let mut changed = plain.clone();
        numbers.change(&mut changed);
        cases.add(format!("trace, round {round}"), lie(&changed, |_| {}).encode());
    }
    // Entries with anything in them, rightly hashed and signed.
    for version in [EntryVersion::V1, EntryVersion::V2, EntryVersion::V3] {
        let mut forge = Forge::of_version(version);
        let mut body = forged::opened_body(1);
        if version == EntryVersion::V1 {
            body.fingerprint = None;
        }
        let at = forge.add(Some(ACME), audit_provenance::Body::Opened(body));
        let last = forge.add(
            Some(ACME),
            sealed(1, at, |sealing| {
                if version < EntryVersion::V3 {
                    sealing.replay = None;
                }
            }),
        );
        let plain = forge.entries.clone();
        // A number in a longer form, and a byte behind the end.
        for (form, longer) in [
            (&[0x18, 0x73][..], &[0x19, 0x00, 0x73][..]),
            (&[0x01, 0x00], &[0x18, 0x01, 0x00]),
            (&[0x01, 0x00], &[0x01, 0x00, 0x00]),
        ] {
            forge.entries.clone_from(&plain);
            let entry = &mut forge.entries[usize::try_from(at.0).unwrap()];
            let place = entry.windows(form.len()).rposition(|window| window == form).unwrap();
            entry.splice(place..place + form.len(), longer.iter().copied());
            cases.add(format!("{longer:?}, {version:?}"), forge.receipt(at.0, last.0, &trace()).encode());
        }
        for round in 0..400 {
            forge.entries.clone_from(&plain);
            let which = if round % 2 == 0 { at.0 } else { last.0 };
            if round > 1 {
                numbers.change(&mut forge.entries[usize::try_from(which).unwrap()]);
            }
            let receipt = forge.receipt(at.0, last.0, &trace());
            let receipt = with(&receipt, |disclosure| disclosure.openings.as_mut().unwrap().replay = None);
            cases.add(format!("entry {which}, {version:?}, round {round}"), receipt.encode());
        }
    }
    let (genuine, refused) = compare(&cases.all);
    assert!(genuine > 50 && refused["entry"] > 100 && refused["trace"] > 100, "{genuine}, {refused:?}");
}

#[test]
fn of_every_form_of_a_checkpoint_and_of_a_key_both_say_the_same() {
    let mut cases = Cases::of(&signer().verifier_key());
    let truth = lie(&trace().encode(), |_| {});
    let (text, line) = truth.checkpoint.split_once("\n\n").unwrap();
    let text = format!("{text}\n");
    let signed = |text: &str, key: &LogSigner| {
        let key_id = key.verifier_key().to_string();
        let id = key_id.split('+').nth(1).unwrap().to_owned();
        let blob = [hex::decode(id).unwrap(), key.sign_bytes(text.as_bytes()).unwrap().to_vec()].concat();
        format!("\u{2014} {} {}\n", key.name(), BASE64_STANDARD.encode(blob))
    };
    let by = |text: &str| format!("{text}\n{}", signed(text, &signer()));
    let other = LogSigner::from_seed(forged::ORIGIN, &[5; 32]).unwrap();
    let rows: Vec<&str> = text.lines().collect();
    let [origin, size, root] = rows[..] else { panic!("not three lines") };
    let stranger = format!("\u{2014} stranger.example {}\n", BASE64_STANDARD.encode([7; 40]));
    let false_line = line.replacen(&line[line.len() - 20..line.len() - 18], "AB", 1);
    let mut notes = vec![
        by(&text),
        by(&format!("{origin}\n0{size}\n{root}\n")),
        by(&format!("{origin}\n+{size}\n{root}\n")),
        by(&format!("{origin}\n9223372036854775807\n{root}\n")),
        by(&format!("{origin}\n9223372036854775808\n{root}\n")),
        by(&format!("{origin}\n18446744073709551616\n{root}\n")),
        by(&format!("{origin}\n{size}\n{root}\nextension\n")),
        by(&format!("{origin}\n{size}\n{}\n", &root[..40])),
        by(&format!("{origin}\n{size}\n")),
        by(&format!("\n{size}\n{root}\n")),
        by(&format!("other.example\n{size}\n{root}\n")),
        by(&format!("{origin}\n{size}\n{root}\n\n")),
        by(&format!("{origin}\r\n{size}\n{root}\n")),
        by(&format!("{origin}\t\n{size}\n{root}\n")),
        format!("{text}\n{stranger}{line}"),
        format!("{text}\n{line}{stranger}{stranger}"),
        format!("{text}\n{line}{line}"),
        format!("{text}\n{line}{false_line}"),
        format!("{text}\n{false_line}{line}"),
        format!("{text}\n{}{line}", signed(&text, &other)),
        format!("{text}\n{}", signed(&text, &other)),
        format!("{text}\n{}", line.trim_end()),
        format!("{text}\n{line}\n"),
        format!("{text}\n\n{line}"),
        format!("{text}\n{}", line.replacen("\u{2014} ", "- ", 1)),
        format!("{text}\n{}", line.replacen(' ', "  ", 1)),
        format!("{text}\n\u{2014} a+b {}\n{line}", BASE64_STANDARD.encode([7; 40])),
        format!("{text}\n\u{2014} a\u{a0}b {}\n{line}", BASE64_STANDARD.encode([7; 40])),
        format!("{text}\n\u{2014} a\u{feff}b {}\n{line}", BASE64_STANDARD.encode([7; 40])),
        format!("{text}\n\u{2014} short {}\n{line}", BASE64_STANDARD.encode([7; 4])),
        format!("{text}\n\u{2014} empty \n{line}"),
        format!("{text}\n\u{2014} bad QQ\n{line}"),
        format!("{text}\n\u{2014} bad QR==\n{line}"),
        format!("{text}\n\u{2014} bad AAAAAAAAAA==\n{line}"),
        format!("{text}\n\u{2014} bad AAAAAAAAAB==\n{line}"),
        format!("{text}{line}"),
        String::from("\n"),
    ];
    notes.push(format!("{text}\n{}{line}", stranger.repeat(15)));
    notes.push(format!("{text}\n{}{line}", stranger.repeat(16)));
    for note in notes {
        cases.add(format!("{note:?}"), TlogProof { checkpoint: note, ..truth.clone() }.encode());
    }
    let encoded = truth.encode();
    for (what, text) in [
        ("a mark of byte order", format!("\u{feff}{encoded}")),
        ("carriage returns", encoded.replace('\n', "\r\n")),
        ("an index with a zero", encoded.replacen("\nindex 2", "\nindex 02", 1)),
        ("an index with a plus", encoded.replacen("\nindex 2", "\nindex +2", 1)),
        ("too large an index", encoded.replacen("\nindex 2", "\nindex 18446744073709551616", 1)),
        ("the largest index", encoded.replacen("\nindex 2", "\nindex 18446744073709551615", 1)),
        ("no index", encoded.replacen("\nindex 2", "", 1)),
        ("an empty extra", "c2sp.org/tlog-proof@v1\nextra \nindex 0\n\nx\n".into()),
        ("nothing", String::new()),
        ("too long", encoded.clone() + &"a".repeat(800_000)),
    ] {
        cases.add(what, text);
    }
    let key = signer().verifier_key().to_string();
    let weak = |point: [u8; 32]| {
        let material = [&[1][..], &point].concat();
        let id = Sha256::digest([&b"weak\n"[..], &material].concat());
        format!("weak+{}+{}", hex::encode(&id[..4]), BASE64_STANDARD.encode(material))
    };
    let mut identity = [0; 32];
    identity[0] = 1;
    for line in [
        other.verifier_key().to_string(),
        format!(" {key}\n"),
        key.to_uppercase(),
        key.replacen('+', "-", 1),
        key.replacen('+', "+0", 1),
        key.replacen("forged", "forget", 1),
        format!("{key}="),
        key[..key.len() - 4].to_owned(),
        String::new(),
        "a+b+c".into(),
        weak([0; 32]),
        weak(identity),
        format!("{}{key}", "a".repeat(500)),
    ] {
        cases.key = line.clone();
        cases.add(format!("key {line:?}"), truth.encode());
    }
    let (genuine, refused) = compare(&cases.all);
    assert!(genuine >= 6 && refused["signature"] > 20, "{genuine}, {refused:?}");
}
