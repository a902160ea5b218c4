//! Whoever knows only a former key of a log follows the entries that name the next ones, and believes no other key.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod forged;
mod real_log;

use audit_log::{AuditConfig, AuditLog, drop_former_key, rotate_key};
use audit_provenance::{Body, KeyRotation, KeyRotationStage};
use audit_tlog::{AddCheckpoint, CoseReceipt, KeyChain, LogSigner, TiledTree, TlogProof, VerifierKey};
use audit_verify::{
    Evidence, LogReport, NamedKey, check_consistency, check_log, check_receipt, follow_rotations, named_keys,
};
use forged::{ACME, Forge, signer, trace};
use policies_domain::{Digest, RequestId};
use real_log::{ORIGIN, RealLog};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

fn key(line: &str) -> VerifierKey {
    VerifierKey::parse(line).unwrap()
}

fn checked(dir: &Path, key: &VerifierKey) -> Result<LogReport, (&'static str, String)> {
    check_log(dir, key, None, |_, _| {}).map_err(|refusal| (refusal.check(), refusal.to_string()))
}

fn signed_by(dir: &Path, key: &VerifierKey) -> Vec<(VerifierKey, u64)> {
    checked(dir, key).unwrap().signed_by.into_iter().map(|named| (named.key, named.entry)).collect()
}

fn config(dir: &TempDir) -> AuditConfig {
    AuditConfig { build: Some(Digest([7; 32])), heartbeat: None, ..AuditConfig::new(dir.path(), ORIGIN) }
}

/// One more answer, in a log that is opened and closed for it; its receipt.
async fn answered(log: RealLog, request: u8) -> (RealLog, String) {
    let RealLog { dir, log, acme, globex } = log;
    drop(log);
    let log = RealLog { log: AuditLog::open(config(&dir)).unwrap(), dir, acme, globex };
    log.streamed(&log.acme, request).await;
    log.log.shutdown();
    let receipt = log.log.receipt(&log.acme, RequestId::from_bytes([request; 16])).unwrap();
    (log, receipt)
}

/// Closes it, does something, and opens it again.
fn between(log: RealLog, act: impl FnOnce(&AuditConfig)) -> RealLog {
    let RealLog { dir, log, acme, globex } = log;
    drop(log);
    act(&config(&dir));
    RealLog { log: AuditLog::open(config(&dir)).unwrap(), dir, acme, globex }
}

#[tokio::test]
async fn the_former_key_leads_to_the_next_one_through_the_log_s_entry() {
    let (log, before) = answered(RealLog::open(), 1).await;
    let former = key(&log.log.verifier_key());
    let held = std::fs::read(log.dir.path().join("checkpoint")).unwrap();
    let mut named = None;
    let log = between(log, |config| named = Some(rotate_key(config).unwrap()));
    let named = named.unwrap();
    let next = key(&named.next);

    // While both sign, either is enough.
    let (log, during) = answered(log, 2).await;
    for known in [&former, &next] {
        assert_eq!(signed_by(log.dir.path(), known), [(former.clone(), 0), (next.clone(), named.begin)]);
        check_receipt(during.as_bytes(), known, Evidence::default()).unwrap();
    }

    let log = between(log, |config| drop(drop_former_key(config).unwrap()));
    let (log, after) = answered(log, 3).await;
    let dir = log.dir.path();
    for known in [&former, &next] {
        assert_eq!(signed_by(dir, known), [(next.clone(), named.begin)]);
    }
    let stranger = LogSigner::from_seed(ORIGIN, &[5; 32]).unwrap().verifier_key();
    assert_eq!(checked(dir, &stranger).unwrap_err().0, "signature");

    // A receipt alone says nothing to who knows only the former key; with the proofs of the entries it does.
    let refused = check_receipt(after.as_bytes(), &former, Evidence::default()).unwrap_err();
    assert_eq!(refused.check(), "signature");
    let proofs = ["rotations/1", "rotations/2"].map(|path| std::fs::read(dir.join(path)).unwrap());
    let keys = follow_rotations(&former, &proofs).unwrap();
    assert_eq!(named_keys(&keys), [NamedKey { key: next.clone(), entry: named.begin }]);
    let report = check_receipt(after.as_bytes(), &keys, Evidence::default()).unwrap();
    assert_eq!(report.signed_by.as_slice(), std::slice::from_ref(&next));
    let report = check_receipt(before.as_bytes(), &keys, Evidence::default()).unwrap();
    assert_eq!(report.signed_by.as_slice(), std::slice::from_ref(&former));
    let report = check_receipt(during.as_bytes(), &keys, Evidence::default()).unwrap();
    assert_eq!(report.signed_by, [former.clone(), next.clone()]);
    let alone = follow_rotations(&next, &proofs).unwrap();
    assert_eq!(named_keys(&alone), [], "they say nothing of the key that they lead to");
    // The one signature of a COSE receipt is of the key that goes on.
    let cose = log.log.cose_receipt(&log.acme, RequestId::from_bytes([3; 16])).unwrap();
    assert_eq!(
        check_receipt(&cose, &keys, Evidence::default()).unwrap().signed_by.as_slice(),
        std::slice::from_ref(&next)
    );
    assert_eq!(
        check_receipt(&cose, &next, Evidence::default()).unwrap().signed_by.as_slice(),
        std::slice::from_ref(&next)
    );
    let refused = check_receipt(&cose, &former, Evidence::default()).unwrap_err();
    assert!(refused.check() == "signature" && refused.to_string().contains("by another key"), "{refused}");
    let report =
        check_consistency(&cose, log.log.consistency(report_size(&cose, &next)).unwrap().as_bytes(), &keys, None);
    assert_eq!(report.unwrap().signed_by.as_slice(), std::slice::from_ref(&next));

    // From a checkpoint under the one to a checkpoint under the other.
    let answer = log.log.consistency(audit_tlog::Checkpoint::open(&held, &former).unwrap().size).unwrap();
    let report = check_consistency(&held, answer.as_bytes(), &keys, None).unwrap();
    assert_eq!(report.signed_by.as_slice(), std::slice::from_ref(&next));
    assert_eq!(check_consistency(&held, answer.as_bytes(), &next, None).unwrap_err().check(), "signature");
    assert_eq!(check_consistency(&held, answer.as_bytes(), &former, None).unwrap_err().check(), "signature");

    command(dir, &former, &next, named.begin, &after);
}

fn report_size(cose: &[u8], key: &VerifierKey) -> u64 {
    check_receipt(cose, key, Evidence::default()).unwrap().checkpoint.size
}

/// The same from a shell.
fn command(dir: &Path, former: &VerifierKey, next: &VerifierKey, entry: u64, receipt: &str) {
    let run = |arguments: &[&str]| {
        let output =
            Command::new(env!("CARGO_BIN_EXE_bulkhead-verify")).args(arguments).current_dir(dir).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    let signed = format!("signed with {next}, which entry {entry} names\n");
    std::fs::write(dir.join("receipt"), receipt).unwrap();
    let former = former.to_string();
    let (code, text, errors) = run(&["log", ".", "--key", &former]);
    assert!(code == 0 && text.contains(&signed), "{text}{errors}");
    assert!(text.contains("2 key_rotation"), "{text}");
    let (code, text, _) = run(&["receipt", "receipt", "--key", &former]);
    assert!(code == 1 && text.contains("check       signature"), "{text}");
    let (code, text, errors) = run(&["receipt", "receipt", "--key", &former, "--rotation", "rotations/1"]);
    assert!(code == 0 && text.contains(&signed), "{text}{errors}");
    let (code, text, _) = run(&["receipt", "receipt", "--key", &former, "--rotation", "rotations/1", "--json"]);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &value["signed_by"]), (0, &serde_json::json!([next.to_string()])));
    let both = ["receipt", "receipt", "--key", &former, "--rotation", "rotations/1", "--rotation", "rotations/2"];
    let (code, text, errors) = run(&both);
    assert!(code == 0 && text.contains(&signed), "{text}{errors}");
    let (code, text, errors) = run(&["receipt", "receipt", "--key", &former, "--rotation", "receipt"]);
    assert!(code == 1 && text.is_empty() && errors.contains("REFUSED (format)"), "{text}{errors}");
}

fn other(seed: u8) -> LogSigner {
    LogSigner::from_seed(forged::ORIGIN, &[seed; 32]).unwrap()
}

/// A log of an answer, what `act` does with it, and another answer; these keys sign its checkpoint.
fn log(act: impl FnOnce(&mut Forge), signers: &[&LogSigner]) -> TempDir {
    let mut forge = Forge::new();
    forge.answer(ACME, 1);
    act(&mut forge);
    forge.answer(ACME, 2);
    let dir = tempfile::tempdir().unwrap();
    forge.write_signed(dir.path(), signers);
    dir
}

fn refused(dir: &TempDir, key: &VerifierKey) -> (&'static str, String) {
    checked(dir.path(), key).unwrap_err()
}

#[test]
fn a_key_that_no_entry_names_signs_nothing() {
    let (first, second, stranger) = (signer(), other(2), other(9));
    // Its line beside the log's is ignored, and alone it is no signature.
    let beside = log(|_| {}, &[&first, &stranger]);
    assert_eq!(signed_by(beside.path(), &first.verifier_key()), [(first.verifier_key(), 0)]);
    assert_eq!(refused(&beside, &stranger.verifier_key()).0, "keys", "its line is there, and no entry names it");
    let alone = log(|_| {}, &[&stranger]);
    assert_eq!(refused(&alone, &first.verifier_key()).0, "signature");
    let instead = log(|forge| _ = forge.begin(&first, &second), &[&stranger]);
    assert_eq!(refused(&instead, &first.verifier_key()).0, "signature");
    // A rotation by who has not the log's key, or to a key that has not agreed.
    let forged = log(|forge| _ = forge.begin(&stranger, &second), &[&first, &second]);
    let (check, reason) = refused(&forged, &first.verifier_key());
    assert!(check == "keys" && reason.starts_with("entry 3: "), "{check}: {reason}");
    let disagrees = |forge: &mut Forge| {
        let rotation = forge.rotation(KeyRotationStage::Begin, &first, &second);
        let without = KeyRotation { by_next: rotation.by_previous, ..rotation };
        forge.add(None, Body::KeyRotation(without));
    };
    assert_eq!(
        refused(&log(disagrees, &[&first, &second]), &first.verifier_key()),
        ("keys", "entry 3: the rotation is not signed by both keys".into())
    );
    // Nor does it lead anybody from the former key to the other one.
    let forged = log(|forge| _ = forge.begin(&stranger, &second), &[&second]);
    assert_eq!(refused(&forged, &first.verifier_key()).0, "signature");
}

#[test]
fn the_newest_key_that_an_entry_names_signs_every_checkpoint() {
    let (first, second, third) = (signer(), other(2), other(3));
    let begun = |forge: &mut Forge| _ = forge.begin(&first, &second);
    let done = |forge: &mut Forge| {
        forge.begin(&first, &second);
        forge.finish(&first, &second);
    };
    let both = log(begun, &[&first, &second]);
    assert_eq!(checked(both.path(), &second.verifier_key()).unwrap().kinds["key_rotation"], 1);
    // Whoever has only the key that is to be dropped, or was, cannot go on with the log.
    let wanted = "the checkpoint is not signed by the newest key that its entries name";
    for dropped in [log(begun, &[&first]), log(done, &[&first])] {
        assert_eq!(refused(&dropped, &first.verifier_key()), ("keys", wanted.to_owned()));
    }
    // While both sign, nor can the next one without it.
    let alone = refused(&log(begun, &[&second]), &second.verifier_key());
    assert!(alone.0 == "keys" && alone.1.contains("is not signed by the former one as well"), "{}", alone.1);
    assert_eq!(signed_by(log(done, &[&second]).path(), &first.verifier_key()), [(second.verifier_key(), 3)]);
    // Over two of them, from each.
    let twice = |forge: &mut Forge| {
        forge.begin(&first, &second);
        forge.finish(&first, &second);
        forge.begin(&second, &third);
        forge.finish(&second, &third);
    };
    let twice = log(twice, &[&third]);
    for known in [&first, &second, &third] {
        assert_eq!(signed_by(twice.path(), &known.verifier_key()), [(third.verifier_key(), 5)]);
    }
    let at_once = |forge: &mut Forge| {
        forge.begin(&first, &second);
        forge.begin(&second, &third);
    };
    let unfinished = ("keys", "entry 4: the rotation before this one is not finished".into());
    assert_eq!(refused(&log(at_once, &[&first, &second]), &first.verifier_key()), unfinished);
    let of_nothing = log(|forge| _ = forge.finish(&first, &second), &[&first]);
    let reason = ("keys", "entry 3: it finishes no rotation that has begun".into());
    assert_eq!(refused(&of_nothing, &first.verifier_key()), reason);
    let back = |forge: &mut Forge| {
        done(forge);
        forge.begin(&second, &first);
    };
    let again = ("keys", "entry 5: the new key is not a new one".into());
    assert_eq!(refused(&log(back, &[&first, &second]), &first.verifier_key()), again);
    let of_a_tenant = {
        let mut forge = Forge::new();
        let rotation = forge.rotation(KeyRotationStage::Begin, &first, &second);
        forge.add(Some(ACME), Body::KeyRotation(rotation));
        let dir = tempfile::tempdir().unwrap();
        forge.write(dir.path());
        dir
    };
    assert_eq!(refused(&of_a_tenant, &first.verifier_key()).0, "keys");
}

/// Who has only the new key takes what both have signed, and puts another history before it.
#[test]
fn the_history_before_a_rotation_is_the_one_that_both_keys_have_signed() {
    let (first, second) = (signer(), other(2));
    let mut good = Forge::new();
    good.answer(ACME, 1);
    let rotation = good.rotation(KeyRotationStage::Begin, &first, &second);
    let end = {
        let mut good = good.prefix(3);
        good.add(None, Body::KeyRotation(rotation.clone()));
        good.rotation(KeyRotationStage::Finish, &first, &second)
    };
    let rewritten = |before: &dyn Fn(&mut Forge)| {
        let mut forge = Forge::new();
        before(&mut forge);
        forge.add(None, Body::KeyRotation(rotation.clone()));
        forge.add(None, Body::KeyRotation(end.clone()));
        forge
    };
    let history = "the history before the rotation is not the one that both keys have signed";
    for (what, before) in [
        ("another answer", &(|forge: &mut Forge| forge.answer(ACME, 9)) as &dyn Fn(&mut Forge)),
        ("one entry less", &|forge| _ = forge.add(None, Body::Heartbeat)),
    ] {
        let forge = rewritten(before);
        let dir = tempfile::tempdir().unwrap();
        forge.write_signed(dir.path(), &[&second]);
        for known in [&first, &second] {
            let (check, reason) = refused(&dir, &known.verifier_key());
            assert!(check == "keys" && reason.ends_with(history), "{what}: {check}: {reason}");
        }
        let at = forge.files().1.size - 2;
        let proof = proof(&forge, at, &[&second]).encode().into_bytes();
        let refusal = follow_rotations(&first.verifier_key(), &[proof]).unwrap_err();
        assert_eq!((refusal.check(), refusal.to_string().as_str()), ("rotation", history), "{what}");
    }
    // As it was it leads on.
    let forge = rewritten(&|forge| forge.answer(ACME, 1));
    let proofs = [3, 4].map(|index| proof(&forge, index, &[&second]).encode().into_bytes());
    assert_eq!(named_keys(&follow_rotations(&first.verifier_key(), &proofs).unwrap()).len(), 1);
}

/// Somebody has stolen the former key, and signs with it what is checked alone.
#[test]
fn a_former_key_counts_for_no_tree_behind_the_rotation() {
    let (first, second) = (signer(), other(2));
    let mut forge = Forge::new();
    forge.answer(ACME, 1);
    let old = forge.files().1;
    let begin = forge.begin(&first, &second);
    let proofs_of = |forge: &Forge, at: &[u64], by: &[&LogSigner]| -> KeyChain {
        let proofs: Vec<Vec<u8>> = at.iter().map(|at| proof(forge, *at, by).encode().into_bytes()).collect();
        follow_rotations(&first.verifier_key(), &proofs).unwrap()
    };
    let begun = proofs_of(&forge, &[begin], &[&first, &second]);
    forge.answer(ACME, 2);
    let within = forge.receipt(4, 5, &trace());
    let during = forge.files().1;
    let finish = forge.finish(&first, &second);
    let done = proofs_of(&forge, &[begin, finish], &[&second]);
    forge.answer(ACME, 3);
    let after = forge.receipt(7, 8, &trace());
    let newest = forge.files().1;

    let receipt = |receipt: &TlogProof, of: &audit_tlog::Checkpoint, by: &[&LogSigner], keys: &KeyChain| {
        let receipt = TlogProof { checkpoint: of.sign_with(by).unwrap(), ..receipt.clone() };
        check_receipt(receipt.encode().as_bytes(), keys, Evidence::default())
            .map(drop)
            .map_err(|refusal| refusal.to_string())
    };
    let (one, other, both) = (&[&first][..], &[&second][..], &[&first, &second][..]);
    let not = |size: u64| {
        Err(format!("the checkpoint of {size} entries is not signed by the key that the log has at this size"))
    };
    for keys in [&begun, &done] {
        assert_eq!(receipt(&after, &newest, one, keys), not(newest.size), "the former key alone");
        assert_eq!(receipt(&after, &newest, other, keys), Ok(()));
        assert_eq!(receipt(&within, &during, one, keys), not(during.size), "while both sign");
        assert_eq!(receipt(&within, &during, both, keys), Ok(()));
    }
    assert_eq!(receipt(&within, &during, other, &done), not(during.size), "nor has the next one alone signed then");
    // Without a rotation in hand nobody can know.
    assert_eq!(receipt(&after, &newest, one, &KeyChain::new(first.verifier_key())), Ok(()));

    // The same in COSE, which has one signature: the newer key's.
    let cose = |of: &TlogProof, checkpoint: &audit_tlog::Checkpoint, by: &LogSigner| {
        let mut disclosure = audit_provenance::Disclosure::decode(of.extra.as_ref().unwrap()).unwrap();
        disclosure.opened_proof.clear();
        let subject = RequestId::from_bytes([if of.index == 5 { 2 } else { 3 }; 16]).to_string();
        let (origin, size, index) = (checkpoint.origin.clone(), checkpoint.size, of.index);
        let (hashes, extra) = (of.hashes.clone(), Some(disclosure.encode()));
        let receipt = CoseReceipt { origin, subject, size, index, hashes, extra }.sign(checkpoint.root, by).unwrap();
        check_receipt(&receipt, &done, Evidence::default()).map(drop).map_err(|refusal| refusal.check())
    };
    assert_eq!((cose(&after, &newest, &first), cose(&after, &newest, &second)), (Err("signature"), Ok(())));
    assert_eq!((cose(&within, &during, &first), cose(&within, &during, &second)), (Err("signature"), Ok(())));

    // And of what the log grew from and to.
    let (files, _) = forge.files();
    let tree = TiledTree::new(newest.size, newest.root, &files);
    let grown = |by: &[&LogSigner], since: &audit_tlog::Checkpoint, since_by: &[&LogSigner]| {
        let proof = tree.prove_consistency(since.size).unwrap();
        let answer = AddCheckpoint { old_size: since.size, proof, checkpoint: newest.sign_with(by).unwrap() };
        let held = since.sign_with(since_by).unwrap();
        check_consistency(held.as_bytes(), answer.encode().as_bytes(), &done, None)
            .map(drop)
            .map_err(|refusal| refusal.check())
    };
    assert_eq!(grown(other, &old, one), Ok(()));
    assert_eq!(grown(one, &old, one), Err("signature"));
    assert_eq!(grown(other, &old, other), Err("signature"), "the next key has no word before it is named");
    assert_eq!(grown(other, &during, one), Err("signature"));
}

/// Proof of the entry at `index`, under these keys.
fn proof(forge: &Forge, index: u64, signers: &[&LogSigner]) -> TlogProof {
    let (files, checkpoint) = forge.files();
    let tree = TiledTree::new(checkpoint.size, checkpoint.root, &files);
    TlogProof {
        extra: Some(tree.entry(index).unwrap()),
        index,
        hashes: tree.prove_inclusion(index).unwrap(),
        checkpoint: checkpoint.sign_with(signers).unwrap(),
    }
}

#[test]
fn a_rotation_that_is_not_in_the_log_leads_nowhere() {
    let (first, second, third, stranger) = (signer(), other(2), other(3), other(9));
    let mut forge = Forge::new();
    let one = forge.begin(&first, &second);
    let end = forge.finish(&first, &second);
    let two = forge.begin(&second, &third);
    forge.answer(ACME, 1);
    let follow = |known: &LogSigner, proofs: &[TlogProof]| {
        let proofs: Vec<Vec<u8>> = proofs.iter().map(|proof| proof.encode().into_bytes()).collect();
        let chain = follow_rotations(&known.verifier_key(), &proofs).map_err(|refusal| refusal.check());
        chain.map(|chain| chain.keys().skip(1).cloned().collect::<Vec<_>>())
    };
    // In any order, and twice.
    let [of_one, of_end, of_two] = [one, end, two].map(|index| proof(&forge, index, &[&third]));
    let proofs = [of_two.clone(), of_one.clone(), of_end.clone(), of_one.clone()];
    assert_eq!(follow(&first, &proofs), Ok(vec![second.verifier_key(), third.verifier_key()]));
    assert_eq!(follow(&first, std::slice::from_ref(&of_two)), Ok(Vec::new()), "the one before is missing");
    assert_eq!(follow(&first, &[of_two, of_one.clone()]), Err("rotation"), "its end is missing");
    assert_eq!(follow(&third, &[of_one, of_end]), Ok(Vec::new()), "of a key that came before");

    // What is at hand is under a checkpoint of a key that it leads to, and of the right one.
    let good = proof(&forge, one, &[&second]);
    assert_eq!(follow(&first, std::slice::from_ref(&good)), Ok(vec![second.verifier_key()]));
    assert_eq!(follow(&first, &[proof(&forge, one, &[&first])]), Err("signature"), "the former key alone");
    assert_eq!(follow(&first, &[proof(&forge, one, &[&stranger])]), Err("signature"));
    // Both keys have signed it, and the log does not have it.
    let mut elsewhere = Forge::new();
    elsewhere.answer(ACME, 2);
    let at = elsewhere.begin(&first, &second);
    let outside = TlogProof { extra: proof(&elsewhere, at, &[&second]).extra, ..good.clone() };
    assert_eq!(follow(&first, &[outside]), Err("inclusion"));
    assert_eq!(follow(&first, &[TlogProof { index: two, ..good.clone() }]), Err("inclusion"));
    assert_eq!(follow(&first, &[TlogProof { extra: None, ..good.clone() }]), Err("format"));
    let opened = forge.files().1.size - 1;
    assert_eq!(follow(&first, &[proof(&forge, opened, &[&second])]), Err("format"), "another entry");
    let mut bytes = good.extra.clone().unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    assert_eq!(follow(&first, &[TlogProof { extra: Some(bytes), ..good }]), Err("rotation"));
}
