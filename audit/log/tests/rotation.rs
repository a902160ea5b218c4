//! A log whose key is changed, from a folder: who signs when, what survives it, and what a crash in between leaves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod story;

use audit_log::{
    AuditConfig, AuditLog, OpenLogError, ReportKey, RotateKeyError, RotatedKey, SignerPlace, TenantNames,
    drop_former_key, rotate_key,
};
use audit_provenance::{Body, Disclosure, Entry, KeyRotationStage};
use audit_tlog::{Checkpoint, CoseError, CoseReceipt, LogSigner, TlogProof, VerifierKey};
use policies_domain::{RequestId, TenantName};
use std::path::Path;
use story::{facts, outcome, permit, principal};
use tempfile::TempDir;

const NEXT: &str = "keys/log.next.skey";
const CURRENT: &str = "keys/log.skey";

fn config(folder: &TempDir) -> AuditConfig {
    AuditConfig { dir: folder.path().to_owned(), ..story::config() }
}

fn open(folder: &TempDir) -> AuditLog {
    AuditLog::open(config(folder)).unwrap()
}

/// One answer for `acme`.
async fn answer(log: &AuditLog, request: u8) {
    let entry = log.open_request(&permit(&principal(1, "acme"), request), facts()).await.unwrap();
    entry.seal(outcome()).await.unwrap();
}

fn key(line: &str) -> VerifierKey {
    VerifierKey::parse(line.trim_end()).unwrap()
}

fn text(folder: &TempDir, path: &str) -> String {
    std::fs::read_to_string(folder.path().join(path)).unwrap()
}

/// Which of these keys have signed the published checkpoint, and how many lines it has.
fn signed(folder: &TempDir, keys: &[&str]) -> (Vec<bool>, usize) {
    let note = text(folder, "checkpoint");
    let by = keys.iter().map(|line| Checkpoint::open(note.as_bytes(), &key(line)).is_ok()).collect();
    (by, note.lines().filter(|line| line.starts_with('—')).count())
}

/// The receipt of a request, its openings included.
fn receipt(log: &AuditLog, request: u8) -> TlogProof {
    let receipt = log.receipt(&principal(1, "acme"), RequestId::from_bytes([request; 16])).unwrap();
    let proof = TlogProof::parse(receipt.as_bytes()).unwrap();
    assert!(Disclosure::decode(proof.extra.as_ref().unwrap()).unwrap().openings.is_some(), "its tenant's key is there");
    proof
}

#[tokio::test]
async fn both_keys_sign_from_the_entry_on_until_the_former_is_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(&folder);
    let former = log.verifier_key();
    answer(&log, 1).await;
    assert!(matches!(rotate_key(&config(&folder)), Err(RotateKeyError::Open(OpenLogError::Locked { .. }))));
    drop(log);
    let nothing = drop_former_key(&config(&folder)).unwrap_err();
    assert!(matches!(nothing, RotateKeyError::NotBegun), "{nothing}");

    let rotated = rotate_key(&config(&folder)).unwrap();
    let RotatedKey { former: before, next, begin: entry, finish } = rotated.clone();
    assert_eq!((before, finish), (former.clone(), None));
    assert_eq!(signed(&folder, &[&former, &next]), (vec![true, true], 2));
    assert_eq!(text(&folder, "log.vkey").trim_end(), former, "what strangers know stays");
    let again = rotate_key(&config(&folder)).unwrap_err();
    assert!(matches!(again, RotateKeyError::Open(OpenLogError::RotationOpen { .. })), "{again}");

    // A gateway goes on with both.
    let log = open(&folder);
    answer(&log, 2).await;
    log.shutdown();
    assert_eq!(signed(&folder, &[&former, &next]), (vec![true, true], 2));
    for line in [&former, &next] {
        Checkpoint::open(receipt(&log, 2).checkpoint.as_bytes(), &key(line)).unwrap();
    }
    // The proof of the entry that names the next key holds under the former one.
    let proof = log.rotation(1).unwrap().unwrap();
    assert_eq!(proof, text(&folder, "rotations/1"));
    let proof = TlogProof::parse(proof.as_bytes()).unwrap();
    assert_eq!(proof.index, entry);
    let checkpoint = Checkpoint::open(proof.checkpoint.as_bytes(), &key(&former)).unwrap();
    let bytes = proof.extra.unwrap();
    audit_tlog::check_inclusion(&proof.hashes, checkpoint.size, checkpoint.root, entry, audit_tlog::leaf_hash(&bytes))
        .unwrap();
    let Body::KeyRotation(rotation) = Entry::decode(&bytes).unwrap().body else { panic!("no rotation") };
    assert_eq!((rotation.previous.as_str(), rotation.next.as_str()), (former.as_str(), next.as_str()));
    // It has the history before it.
    let before = audit_tlog::root_before(&proof.hashes, checkpoint.size, entry).unwrap();
    assert_eq!((rotation.stage, rotation.size, rotation.root.0), (KeyRotationStage::Begin, entry, before.0));
    let word = ReportKey::read(folder.path()).unwrap().certificate.unwrap();
    assert!(
        audit_tlog::open_text(audit_provenance::REPORT_KEY_PURPOSE, &word, &key(&next)).is_ok(),
        "the newest key's"
    );
    assert_eq!((log.rotation(2).unwrap(), log.verifier_key()), (None, former.clone()));
    drop(log);

    // A link holds what is overwritten.
    let old_file = folder.path().join("link");
    std::fs::hard_link(folder.path().join(CURRENT), &old_file).unwrap();
    let secret = text(&folder, CURRENT);
    let finished = drop_former_key(&config(&folder)).unwrap();
    let finish = finished.finish.unwrap();
    assert_eq!(RotatedKey { finish: None, ..finished }, rotated);
    let said = TlogProof::parse(text(&folder, "rotations/2").as_bytes()).unwrap();
    let Body::KeyRotation(end) = Entry::decode(said.extra.as_ref().unwrap()).unwrap().body else { panic!("no end") };
    assert_eq!((end.stage, end.size, said.index), (KeyRotationStage::Finish, finish, finish));
    assert_eq!(std::fs::read(&old_file).unwrap(), vec![0; secret.len()], "the former key's file is overwritten");
    std::fs::remove_file(old_file).unwrap();
    assert!(!folder.path().join(NEXT).exists() && text(&folder, CURRENT) != secret);
    assert_eq!(text(&folder, "log.vkey").trim_end(), next);
    assert_eq!(signed(&folder, &[&former, &next]), (vec![true, true], 2), "whoever finds it finds both");
    let word = ReportKey::read(folder.path()).unwrap().certificate.unwrap();
    assert!(audit_tlog::open_text(audit_provenance::REPORT_KEY_PURPOSE, &word, &key(&next)).is_ok());
    assert!(matches!(drop_former_key(&config(&folder)), Err(RotateKeyError::NotBegun)));

    // The next key signs alone; what was committed under the former one opens as it did, new tenants' keys included.
    let log = open(&folder);
    answer(&log, 3).await;
    let globex = log.open_request(&permit(&principal(2, "globex"), 4), facts()).await.unwrap();
    globex.seal(outcome()).await.unwrap();
    log.shutdown();
    assert_eq!((signed(&folder, &[&former, &next]), log.verifier_key()), ((vec![false, true], 1), next.clone()));
    for request in 1..=3 {
        Checkpoint::open(receipt(&log, request).checkpoint.as_bytes(), &key(&next)).unwrap();
    }
    drop(log);
    let names = TenantNames::read(folder.path()).unwrap();
    let acme = TenantName::parse("acme").unwrap();
    assert_eq!(names.name(&names.reference(&acme)), Some(&acme));

    // And once more.
    let second = rotate_key(&config(&folder)).unwrap();
    assert_eq!(second.former, next);
    drop_former_key(&config(&folder)).unwrap();
    let log = open(&folder);
    answer(&log, 5).await;
    log.shutdown();
    assert_eq!(signed(&folder, &[&former, &next, &second.next]), (vec![false, false, true], 1));
    receipt(&log, 1);
    assert_eq!(TlogProof::parse(log.rotation(3).unwrap().unwrap().as_bytes()).unwrap().index, second.begin);
}

/// What was written when the process ended before the entry that names it.
#[tokio::test]
async fn a_key_that_no_entry_names_signs_nothing_and_is_taken_by_the_next_rotation() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(&folder);
    let former = log.verifier_key();
    drop(log);
    let prepared = LogSigner::from_seed("log.example", &[4; 32]).unwrap();
    let line = format!("{}\n", prepared.secret_line().unwrap().as_str());
    std::fs::write(folder.path().join(NEXT), &line).unwrap();
    let prepared = prepared.verifier_key().to_string();
    let log = open(&folder);
    answer(&log, 1).await;
    log.shutdown();
    drop(log);
    assert_eq!(signed(&folder, &[&former, &prepared]), (vec![true, false], 1));
    assert!(!folder.path().join("rotations").exists());
    assert_eq!(rotate_key(&config(&folder)).unwrap().next, prepared);
    assert_eq!(signed(&folder, &[&former, &prepared]), (vec![true, true], 2));
    // A damaged one, or another log's, is not stepped over.
    for bad in ["nonsense\n".to_owned(), line.replace("log.example", "log.elsewhere")] {
        std::fs::write(folder.path().join(NEXT), bad).unwrap();
        assert!(matches!(AuditLog::open(config(&folder)), Err(OpenLogError::Key { .. } | OpenLogError::Origin { .. })));
    }
}

#[tokio::test]
async fn without_the_key_that_an_entry_names_nothing_is_signed() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(&folder));
    let (first, first_line) = (text(&folder, CURRENT), text(&folder, "log.vkey"));
    let RotatedKey { next, .. } = rotate_key(&config(&folder)).unwrap();
    let named = text(&folder, NEXT);
    let refused = |folder: &TempDir| AuditLog::open(config(folder)).map(drop).unwrap_err();
    std::fs::remove_file(folder.path().join(NEXT)).unwrap();
    assert!(matches!(refused(&folder), OpenLogError::KeyMissing { path } if path == NEXT));
    let other = LogSigner::from_seed("log.example", &[4; 32]).unwrap();
    std::fs::write(folder.path().join(NEXT), other.secret_line().unwrap().as_str()).unwrap();
    assert!(matches!(refused(&folder), OpenLogError::KeyMissing { path } if path == NEXT));
    // While both sign, the former one must be there, too.
    std::fs::remove_file(folder.path().join(NEXT)).unwrap();
    std::fs::write(folder.path().join(CURRENT), &named).unwrap();
    assert!(matches!(refused(&folder), OpenLogError::FormerKeyMissing { former } if former == first_line.trim_end()));
    std::fs::write(folder.path().join(CURRENT), &first).unwrap();
    std::fs::write(folder.path().join(NEXT), &named).unwrap();
    drop_former_key(&config(&folder)).unwrap();
    let log = open(&folder);
    log.shutdown();
    drop(log);
    assert_eq!(signed(&folder, &[&next, &first_line]), (vec![true, false], 1));
    // From a backup of before comes a key that was dropped.
    std::fs::write(folder.path().join(CURRENT), &first).unwrap();
    let error = refused(&folder);
    assert!(matches!(error, OpenLogError::Checkpoint { .. } | OpenLogError::KeyMissing { .. }), "{error}");
    // And a key that never was the log's.
    std::fs::write(folder.path().join(CURRENT), other.secret_line().unwrap().as_str()).unwrap();
    assert!(AuditLog::open(config(&folder)).is_err());
}

#[test]
fn a_key_that_is_elsewhere_or_not_there_is_not_changed() {
    let folder = tempfile::tempdir().unwrap();
    let absent = rotate_key(&config(&folder)).unwrap_err();
    assert!(matches!(absent, RotateKeyError::NoLog { .. }), "{absent}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is made");
    let signer = SignerPlace::Command(vec!["bulkhead-signer".to_owned()]);
    let elsewhere = AuditConfig { signer, ..config(&folder) };
    for refused in [rotate_key(&elsewhere), drop_former_key(&elsewhere)] {
        assert!(matches!(refused, Err(RotateKeyError::External)));
    }
    assert!(!Path::new(&elsewhere.dir.join("keys")).exists());
}

/// The entry that says so is committed, and the process ended before the file was gone.
#[tokio::test]
async fn a_former_key_that_an_entry_drops_goes_with_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(&folder);
    let former = log.verifier_key();
    drop(log);
    let next = rotate_key(&config(&folder)).unwrap().next;
    let files = [CURRENT, NEXT, "log.vkey"].map(|path| (path, text(&folder, path)));
    drop_former_key(&config(&folder)).unwrap();
    for (path, held) in files {
        std::fs::write(folder.path().join(path), held).unwrap();
    }
    let log = open(&folder);
    assert_eq!((log.verifier_key(), text(&folder, "log.vkey").trim_end()), (next.clone(), next.as_str()));
    answer(&log, 1).await;
    log.shutdown();
    assert_eq!(signed(&folder, &[&former, &next]), (vec![false, true], 1));
    assert!(!folder.path().join(NEXT).exists());
    drop(log);
    assert!(matches!(drop_former_key(&config(&folder)), Err(RotateKeyError::NotBegun)));
}

/// A COSE receipt has one signature: of the key that goes on.
#[tokio::test]
async fn a_receipt_with_one_signature_is_signed_by_the_key_that_counts() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(&folder);
    let former = log.verifier_key();
    answer(&log, 1).await;
    let signer = |log: &AuditLog| {
        let receipt = log.cose_receipt(&principal(1, "acme"), RequestId::from_bytes([1; 16])).unwrap();
        let leaf = |receipt: &CoseReceipt| {
            let disclosure = Disclosure::decode(receipt.extra.as_ref().unwrap()).unwrap();
            Ok::<_, CoseError>(audit_tlog::leaf_hash(&disclosure.sealed))
        };
        move |line: &str| CoseReceipt::open(&receipt, &key(line), leaf).map(|_| ())
    };
    log.shutdown();
    assert_eq!(signer(&log)(&former), Ok(()));
    drop(log);
    let next = rotate_key(&config(&folder)).unwrap().next;
    let log = open(&folder);
    let during = signer(&log);
    assert_eq!((during(&former), during(&next)), (Err(CoseError::OtherKey), Ok(())));
    drop(log);
    drop_former_key(&config(&folder)).unwrap();
    let after = signer(&open(&folder));
    assert_eq!((after(&former), after(&next)), (Err(CoseError::OtherKey), Ok(())));
}
