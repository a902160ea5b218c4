//! Receipts of a real log: genuine ones pass with all evidence, and no single changed byte does.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod real_log;

use audit_log::ReceiptError;
use audit_provenance::{Disclosure, Openings, SealReason};
use audit_tlog::{CoseError, CoseReceipt, Cosigner, LogSigner, TlogProof, VerifierKey, leaf_hash};
use audit_verify::{Evidence, ReceiptRefusal, Unchecked, Witnesses, check_consistency, check_receipt};
use policies_domain::{Label, RequestId, TenantId};
use real_log::{REQUEST_BODY, RealLog, principal};

fn key(log: &RealLog) -> VerifierKey {
    VerifierKey::parse(&log.log.verifier_key()).unwrap()
}

fn evidence<'a>(request: &'a [u8], response: &'a str) -> Evidence<'a> {
    Evidence { request: Some(request), response: Some(response.as_bytes()), ..Evidence::default() }
}

#[tokio::test]
async fn a_streamed_and_a_whole_answer_are_genuine_to_the_last_byte() {
    let log = RealLog::open();
    let events = log.streamed(&log.acme, 1).await;
    let body = log.whole(&log.globex, 2).await;

    let receipt = log.receipt(&log.acme, 1);
    assert!(receipt.len() <= 4_096, "{} bytes", receipt.len());
    let report = check_receipt(receipt.as_bytes(), &key(&log), evidence(REQUEST_BODY, &events)).unwrap();
    assert_eq!(report.tenant_name.as_deref(), Some("acme"));
    assert_eq!((report.sealed.reason, report.sealed.chunks, report.sealed.steps), (SealReason::Stop, 4, 5));
    assert_eq!((report.sealed.pages.own, report.sealed.pages.public, report.sealed.pages.foreign), (5, 0, 0));
    assert!(report.sealed.coverage.label_gate && report.sealed.coverage.kernel_tags);
    let all = ["format", "signature", "inclusion", "pairing", "tenant", "trace", "pages", "request", "response"];
    assert_eq!(report.passed, all);

    let receipt = log.receipt(&log.globex, 2);
    let report = check_receipt(receipt.as_bytes(), &key(&log), evidence(REQUEST_BODY, &body)).unwrap();
    assert_eq!((report.sealed.pages.own, report.sealed.pages.public), (0, 2));
}

fn every_change_is_refused(log: &RealLog, receipt: &[u8], events: &str) {
    for position in 0..receipt.len() {
        for flip in [0x01, 0x20, 0x80] {
            let mut changed = receipt.to_vec();
            changed[position] ^= flip;
            let checked = check_receipt(&changed, &key(log), evidence(REQUEST_BODY, events));
            assert!(checked.is_err(), "byte {position} changed by {flip:#x}");
        }
    }
    for length in 0..receipt.len() {
        assert!(check_receipt(&receipt[..length], &key(log), Evidence::default()).is_err(), "cut to {length}");
    }
}

#[tokio::test]
async fn any_changed_byte_is_refused() {
    let log = RealLog::open();
    let events = log.streamed(&log.acme, 1).await;
    log.whole(&log.globex, 2).await;
    let receipt = log.receipt(&log.acme, 1).into_bytes();
    every_change_is_refused(&log, &receipt, &events);
}

/// Salts of what was not given are all that may change unnoticed, and the report says that they were not checked.
#[tokio::test]
async fn a_changed_byte_that_passes_lies_in_a_part_that_is_reported_as_unchecked() {
    let log = RealLog::open();
    let events = log.streamed(&log.acme, 1).await;
    let receipt = log.receipt(&log.acme, 1).into_bytes();
    let disclosed = |receipt: &[u8]| {
        let proof = TlogProof::parse(receipt).unwrap();
        (Disclosure::decode(proof.extra.as_ref().unwrap()).unwrap(), TlogProof { extra: None, ..proof })
    };
    let (genuine, proof) = disclosed(&receipt);
    let request_only = Evidence { request: Some(REQUEST_BODY), response: None, ..Evidence::default() };
    let response_only = Evidence { request: None, response: Some(events.as_bytes()), ..Evidence::default() };
    for evidence in [Evidence::default(), request_only, response_only] {
        let mut passed = 0;
        for position in 0..receipt.len() {
            let mut changed = receipt.clone();
            changed[position] ^= 1;
            let Ok(report) = check_receipt(&changed, &key(&log), evidence) else { continue };
            passed += 1;
            let (mut found, found_proof) = disclosed(&changed);
            let (openings, held) = (found.openings.as_mut().unwrap(), genuine.openings.as_ref().unwrap());
            for part in &report.unchecked {
                match part {
                    Unchecked::Request => openings.request = held.request,
                    Unchecked::Response => openings.response = held.response,
                    Unchecked::Chunks => openings.chunks = held.chunks,
                    Unchecked::Replay => openings.replay = held.replay,
                    Unchecked::Tenant | Unchecked::Trace | Unchecked::Opened => {
                        panic!("{part:?} was there, byte {position}")
                    }
                }
            }
            assert!(found == genuine && found_proof == proof, "byte {position} passes, and nothing says so");
        }
        assert!(passed > 0, "the salts are said to be unchecked and are checked");
    }
}

fn cose(log: &RealLog, who: &policies_domain::Principal, request: u8) -> Vec<u8> {
    log.log.shutdown();
    log.log.cose_receipt(who, RequestId::from_bytes([request; 16])).unwrap()
}

#[tokio::test]
async fn a_cose_receipt_says_what_the_text_says() {
    let log = RealLog::open();
    let events = log.streamed(&log.acme, 1).await;
    log.whole(&log.globex, 2).await;
    let (text, bytes) = (log.receipt(&log.acme, 1), cose(&log, &log.acme, 1));
    assert!(bytes.len() < text.len() * 3 / 4, "{} bytes against {}", bytes.len(), text.len());
    let evidence = evidence(REQUEST_BODY, &events);
    let of_text = check_receipt(text.as_bytes(), &key(&log), evidence).unwrap();
    let of_cose = check_receipt(&bytes, &key(&log), evidence).unwrap();
    let of_text_size = of_text.checkpoint.size;
    assert_eq!(of_cose.passed, of_text.passed);
    assert_eq!((of_cose.unchecked, of_text.unchecked), (vec![Unchecked::Opened], vec![]));
    assert_eq!((of_cose.checkpoint, of_cose.index, of_cose.entry), (of_text.checkpoint, of_text.index, of_text.entry));
    assert_eq!((of_cose.opened, of_cose.sealed), (of_text.opened, of_text.sealed));
    let check = |request, response: &str| {
        let evidence = Evidence { request: Some(request), response: Some(response.as_bytes()), witnesses: None };
        check_receipt(&bytes, &key(&log), evidence).unwrap_err().check()
    };
    assert_eq!((check(b"{}", &events), check(REQUEST_BODY, "data: {}\n\n")), ("request", "response"));
    let other = LogSigner::from_seed(key(&log).name(), &[3; 32]).unwrap().verifier_key();
    assert_eq!(check_receipt(&bytes, &other, Evidence::default()).unwrap_err().check(), "signature");
    // There are no cosignatures to look at, and who asks for them is told so.
    let witness = Cosigner::from_seed("witness.example", &[4; 32]).unwrap().verifier_key();
    let witnesses = Witnesses::new(vec![witness], 1).unwrap();
    let asked = Evidence { witnesses: Some(&witnesses), ..Evidence::default() };
    assert_eq!(check_receipt(&bytes, &key(&log), asked).unwrap_err(), ReceiptRefusal::NoCosignatures);
    // Whoever keeps it can ask whether the log has only grown since.
    let answer = log.log.consistency(of_text_size).unwrap();
    assert!(check_consistency(&bytes, answer.as_bytes(), &key(&log), None).is_ok());
    let mut changed = bytes.clone();
    changed[30] ^= 1;
    assert!(check_consistency(&changed, answer.as_bytes(), &key(&log), None).is_err());
    let nobody = RequestId::from_bytes([9; 16]);
    assert_eq!(log.log.cose_receipt(&log.globex, RequestId::from_bytes([1; 16])), Err(ReceiptError::NotFound));
    assert_eq!(log.log.cose_receipt(&log.acme, nobody), Err(ReceiptError::NotFound));
}

#[tokio::test]
async fn any_changed_byte_of_a_cose_receipt_is_refused() {
    let log = RealLog::open();
    let events = log.streamed(&log.acme, 1).await;
    log.whole(&log.globex, 2).await;
    let receipt = cose(&log, &log.acme, 1);
    every_change_is_refused(&log, &receipt, &events);
}

/// What an operator could sign that is not true: the entries of one request as another's.
#[tokio::test]
async fn a_cose_receipt_about_another_request_is_refused() {
    let log = RealLog::open();
    log.streamed(&log.acme, 1).await;
    let bytes = cose(&log, &log.acme, 1);
    let report = check_receipt(&bytes, &key(&log), Evidence::default()).unwrap();
    let leaf = leaf_hash(&report.entry);
    let (genuine, checkpoint) = CoseReceipt::open::<CoseError>(&bytes, &key(&log), |_| Ok(leaf)).unwrap();
    let signer =
        LogSigner::parse(std::fs::read_to_string(log.dir.path().join("keys/log.skey")).unwrap().trim()).unwrap();
    let check = |receipt: &CoseReceipt| {
        let bytes = receipt.sign(checkpoint.root, &signer).unwrap();
        check_receipt(&bytes, &key(&log), Evidence::default()).map_err(|refusal| refusal.check())
    };
    assert!(check(&genuine).is_ok());
    let subject = RequestId::from_bytes([2; 16]).to_string();
    assert_eq!(check(&CoseReceipt { subject, ..genuine.clone() }).unwrap_err(), "pairing");
    assert_eq!(check(&CoseReceipt { extra: None, ..genuine.clone() }).unwrap_err(), "disclosure");
    let disclosure = Disclosure::decode(genuine.extra.as_ref().unwrap()).unwrap();
    let with_proof = Disclosure { opened_proof: vec![[0; 32]], ..disclosure };
    assert_eq!(check(&CoseReceipt { extra: Some(with_proof.encode()), ..genuine }).unwrap_err(), "format");
}

#[tokio::test]
async fn another_request_or_response_is_refused() {
    let log = RealLog::open();
    let events = log.streamed(&log.acme, 1).await;
    let receipt = log.receipt(&log.acme, 1);
    let check = |request, response: &str| {
        check_receipt(receipt.as_bytes(), &key(&log), evidence(request, response)).unwrap_err()
    };
    assert_eq!(check(b"{}", &events), ReceiptRefusal::Request);
    assert_eq!(check(REQUEST_BODY, &events.replace("not", "now")), ReceiptRefusal::Response { part: "the text" });
    let number = ReceiptRefusal::Response { part: "the number of payloads" };
    assert_eq!(check(REQUEST_BODY, ""), number);
    assert_eq!(check(REQUEST_BODY, "data: {}\n\n"), number);
    // The same text in other pieces has the same length and another chain.
    let moved = events.replacen("{\"content\":\"To\"}\n\ndata: {", "{\"content\":\"To\"}{\n\ndata: ", 1);
    assert_eq!(check(REQUEST_BODY, &moved), ReceiptRefusal::Response { part: "the chunk chain" });
    assert_eq!(check(REQUEST_BODY, "<html>").check(), "response");
}

#[tokio::test]
async fn another_tenant_gets_no_receipt_and_cannot_tell_why() {
    let log = RealLog::open();
    log.streamed(&log.acme, 1).await;
    log.log.shutdown();
    let (mine, never) = (RequestId::from_bytes([1; 16]), RequestId::from_bytes([9; 16]));
    assert!(log.log.receipt(&log.acme, mine).is_ok());
    assert_eq!(log.log.receipt(&log.globex, mine), Err(ReceiptError::NotFound));
    assert_eq!(log.log.receipt(&log.acme, never), Err(ReceiptError::NotFound));
    // A tenant is its name: the number that a process gives it is not looked at.
    assert_eq!(log.log.receipt(&principal(1, "globex"), mine), Err(ReceiptError::NotFound));
    assert!(log.log.receipt(&principal(9, "acme"), mine).is_ok());
}

#[tokio::test]
async fn a_stopped_response_has_a_receipt_that_says_so_and_names_nobody() {
    let log = RealLog::open();
    log.streamed(&log.globex, 3).await;
    log.refused(&log.acme, 1, Label::of(TenantId::new(2).unwrap())).await;
    let receipt = log.receipt(&log.acme, 1);
    let report = check_receipt(receipt.as_bytes(), &key(&log), evidence(REQUEST_BODY, "")).unwrap();
    assert_eq!((report.sealed.reason, report.sealed.chunks), (SealReason::Isolation, 0));
    assert_eq!((report.sealed.pages.own, report.sealed.pages.foreign), (0, 4));
    let extra = TlogProof::parse(receipt.as_bytes()).unwrap().extra.unwrap();
    assert!(!extra.windows(6).any(|window| window == b"globex"));
}

#[tokio::test]
async fn a_broken_off_response_may_end_with_an_error_and_with_nothing_else() {
    let log = RealLog::open();
    let events = log.streamed(&log.globex, 3).await;
    log.refused(&log.acme, 1, Label::of(TenantId::new(2).unwrap())).await;
    let check = |who, request, response: &str| {
        let receipt = log.receipt(who, request);
        check_receipt(receipt.as_bytes(), &key(&log), evidence(REQUEST_BODY, response))
            .map_err(|refusal| refusal.check())
    };
    let error = "{\"error\":{\"code\":\"isolation\"}}";
    assert!(check(&log.acme, 1, error).is_ok());
    assert!(check(&log.acme, 1, &format!("data: {error}\n\n")).is_ok());
    assert_eq!(check(&log.acme, 1, &format!("data: {error}\n\ndata: {error}\n\n")).unwrap_err(), "response");
    assert_eq!(check(&log.acme, 1, "{\"error\":{},\"content\":\"leak\"}").unwrap_err(), "response");
    assert_eq!(check(&log.acme, 1, "{\"content\":\"leak\"}").unwrap_err(), "response");
    // A whole answer has no error at its end.
    assert!(check(&log.globex, 3, &events).is_ok());
    assert_eq!(check(&log.globex, 3, &format!("{events}data: {error}\n\n")).unwrap_err(), "response");
}

#[tokio::test]
async fn parts_of_another_receipt_do_not_fit() {
    let log = RealLog::open();
    log.streamed(&log.acme, 1).await;
    log.streamed(&log.acme, 2).await;
    let parse = |text: String| TlogProof::parse(text.as_bytes()).unwrap();
    let (first, second) = (parse(log.receipt(&log.acme, 1)), parse(log.receipt(&log.acme, 2)));
    let disclosed = |proof: &TlogProof| Disclosure::decode(proof.extra.as_ref().unwrap()).unwrap();
    let (one, two) = (disclosed(&first), disclosed(&second));
    let refused = |disclosure: Disclosure| {
        let changed = TlogProof { extra: Some(disclosure.encode()), ..first.clone() };
        check_receipt(changed.encode().as_bytes(), &key(&log), Evidence::default()).unwrap_err().check()
    };
    assert_eq!(refused(Disclosure { sealed: two.sealed.clone(), ..one.clone() }), "inclusion");
    let other_opened = Disclosure {
        opened: two.opened.clone(),
        opened_index: two.opened_index,
        opened_proof: two.opened_proof.clone(),
        ..one.clone()
    };
    assert_eq!(refused(other_opened), "pairing");
    assert_eq!(refused(Disclosure { trace: Some(b"\x82\x80\x80".to_vec()), ..one.clone() }), "trace");
    assert_eq!(refused(Disclosure { openings: two.openings.clone(), ..one.clone() }), "tenant");
    let renamed = Openings { tenant_name: "globex".into(), ..one.openings.clone().unwrap() };
    assert_eq!(refused(Disclosure { openings: Some(renamed), ..one.clone() }), "tenant");

    // Without salts the receipt is genuine, and content cannot be compared.
    let bare = TlogProof { extra: Some(Disclosure { openings: None, ..one }.encode()), ..first.clone() };
    let bare = bare.encode();
    assert!(check_receipt(bare.as_bytes(), &key(&log), Evidence::default()).is_ok());
    let with_request = Evidence { request: Some(REQUEST_BODY), response: None, ..Evidence::default() };
    let refusal = check_receipt(bare.as_bytes(), &key(&log), with_request).unwrap_err();
    assert_eq!(refusal, ReceiptRefusal::NoOpenings { content: "request" });
    let none = TlogProof { extra: None, ..first };
    let refusal = check_receipt(none.encode().as_bytes(), &key(&log), Evidence::default()).unwrap_err();
    assert_eq!(refusal, ReceiptRefusal::NoDisclosure);
}

#[tokio::test]
async fn another_key_of_the_same_name_is_refused() {
    let log = RealLog::open();
    log.streamed(&log.acme, 1).await;
    let receipt = log.receipt(&log.acme, 1);
    let other = LogSigner::from_seed(real_log::ORIGIN, &[5; 32]).unwrap().verifier_key();
    assert_eq!(check_receipt(receipt.as_bytes(), &other, Evidence::default()).unwrap_err().check(), "signature");
}
