//! What a witness answers, request by request, and what it remembers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod made_log;

use audit_tlog::{AddCheckpoint, Cosigner, LogSigner};
use audit_witness::{Answer, OpenWitnessError, Witness, make_key};
use made_log::{MadeLog, ORIGIN};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const NOW: u64 = 1_790_000_000;

fn witness(log: &MadeLog) -> (TempDir, Witness) {
    let folder = tempfile::tempdir().unwrap();
    make_key(folder.path(), "witness.example/w1").unwrap();
    let witness = Witness::open(folder.path(), vec![log.key()]).unwrap();
    (folder, witness)
}

/// The one file of the one log, in `logs` or in `evidence`.
fn file(folder: &Path, of: &str) -> Option<PathBuf> {
    let files: Vec<_> = std::fs::read_dir(folder.join(of)).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(files.len() <= 1, "{files:?}");
    files.into_iter().next()
}

#[test]
fn a_log_that_grows_is_cosigned_and_its_size_is_remembered() {
    let log = MadeLog::new("", 300);
    let (folder, witness) = witness(&log);
    let key = witness.verifier_key();
    let sizes = [0, 1, 2, 2, 3, 7, 8, 100, 256, 257, 300];
    for (old, new) in std::iter::once(0).chain(sizes).zip(sizes) {
        let Answer::Cosigned(line) = witness.add_checkpoint(log.request(old, new).as_bytes(), NOW) else {
            panic!("{old} to {new} was not cosigned")
        };
        let cosignature = key.find(&log.checkpoint(new), line.as_bytes()).unwrap().unwrap();
        assert_eq!((cosignature.unix_seconds, cosignature.line), (NOW, line));
    }
    // What is served has the log's signature and the witness's.
    let kept = std::fs::read_to_string(file(folder.path(), "logs").unwrap()).unwrap();
    let hash = file(folder.path(), "logs").unwrap().file_name().unwrap().to_str().unwrap().to_owned();
    assert_eq!(witness.checkpoint(&hash), Some(kept.clone()));
    assert!(kept.starts_with(&log.note(300)) && key.find(&log.checkpoint(300), kept.as_bytes()).unwrap().is_some());
    assert_eq!(witness.checkpoint(&hash[1..]), None);
    for old in [0, 1, 299] {
        assert_eq!(witness.add_checkpoint(log.request(old, 300).as_bytes(), NOW), Answer::OtherSize(300));
    }
    // Nothing is rolled back, not even to a tree that was seen before.
    assert_eq!(witness.add_checkpoint(log.request(100, 257).as_bytes(), NOW), Answer::OtherSize(300));

    drop(witness);
    let again = Witness::open(folder.path(), vec![log.key()]).unwrap();
    assert_eq!(again.add_checkpoint(log.request(0, 300).as_bytes(), NOW), Answer::OtherSize(300));
    assert!(matches!(again.add_checkpoint(log.request(300, 300).as_bytes(), NOW), Answer::Cosigned(_)));
}

#[test]
fn a_second_history_is_not_cosigned() {
    let (log, other) = (MadeLog::new("", 300), MadeLog::new("other", 90));
    let (folder, witness) = witness(&log);
    assert!(matches!(witness.add_checkpoint(log.request(0, 100).as_bytes(), NOW), Answer::Cosigned(_)));
    // Longer, with a proof of its own; longer, with the true proof of the first history; and of the same size.
    let borrowed = AddCheckpoint { old_size: 100, proof: log.proof(100, 200), checkpoint: other.note(200) }.encode();
    let none = AddCheckpoint { old_size: 100, proof: Vec::new(), checkpoint: other.note(200) }.encode();
    for request in [other.request(100, 200), borrowed, none] {
        assert!(matches!(witness.add_checkpoint(request.as_bytes(), NOW), Answer::Inconsistent(_)), "{request}");
    }
    assert_eq!(file(folder.path(), "evidence"), None, "anybody can add a wrong proof to a log's checkpoint");
    assert!(matches!(witness.add_checkpoint(other.request(100, 100).as_bytes(), NOW), Answer::Inconsistent(_)));
    // Two trees of one size, both signed by the log: that convicts it.
    let evidence = std::fs::read_to_string(file(folder.path(), "evidence").unwrap()).unwrap();
    assert!(evidence.contains(&log.note(100)) && evidence.ends_with(&other.note(100)), "{evidence}");
    // Nothing of that moved what is remembered, and the first history goes on.
    assert!(matches!(witness.add_checkpoint(log.request(100, 101).as_bytes(), NOW), Answer::Cosigned(_)));
}

#[test]
fn the_empty_tree_has_one_root_and_needs_no_proof() {
    let log = MadeLog::new("", 300);
    let (_folder, witness) = witness(&log);
    let signer = LogSigner::from_seed(ORIGIN, &[9; 32]).unwrap();
    let wrong = audit_tlog::Checkpoint { size: 0, ..log.checkpoint(5) }.sign(&signer).unwrap();
    let request = AddCheckpoint { old_size: 0, proof: Vec::new(), checkpoint: wrong }.encode();
    assert!(matches!(witness.add_checkpoint(request.as_bytes(), NOW), Answer::Inconsistent(_)));
    let request = AddCheckpoint { old_size: 0, proof: log.proof(3, 5), checkpoint: log.note(5) }.encode();
    assert!(matches!(witness.add_checkpoint(request.as_bytes(), NOW), Answer::Inconsistent(_)));
    assert!(matches!(witness.add_checkpoint(log.request(0, 0).as_bytes(), NOW), Answer::Cosigned(_)));
    assert!(matches!(witness.add_checkpoint(log.request(0, 5).as_bytes(), NOW), Answer::Cosigned(_)));
}

#[test]
fn strangers_forgeries_and_rubbish_have_their_own_answers() {
    let log = MadeLog::new("", 300);
    let (_folder, witness) = witness(&log);
    let answer = |old_size, checkpoint: String| {
        let request = AddCheckpoint { old_size, proof: Vec::new(), checkpoint };
        witness.add_checkpoint(request.encode().as_bytes(), NOW)
    };
    let signed = |origin: &str, seed| {
        let signer = LogSigner::from_seed(origin, &[seed; 32]).unwrap();
        audit_tlog::Checkpoint { origin: origin.into(), ..log.checkpoint(5) }.sign(&signer).unwrap()
    };
    assert_eq!(answer(0, signed("other.example", 9)), Answer::UnknownLog);
    assert_eq!(answer(0, signed(ORIGIN, 8)), Answer::NotSigned, "another key of the same name");
    let forged = log.note(5).replacen("\n5\n", "\n6\n", 1);
    assert_eq!(answer(0, forged), Answer::NotSigned, "a true signature of another checkpoint");
    assert_eq!(answer(6, log.note(5)), Answer::Malformed("the old size is larger than the checkpoint's"));
    for note in ["", "one line", &format!("{ORIGIN}\n"), &format!("{ORIGIN}\n5\nroot\n\nno signature\n")] {
        assert!(matches!(answer(0, note.into()), Answer::Malformed(_) | Answer::UnknownLog), "{note:?}");
    }
    assert!(matches!(witness.add_checkpoint(b"", NOW), Answer::Malformed(_)));
    assert!(matches!(witness.add_checkpoint(&[0xff; 100], NOW), Answer::Malformed(_)));
    // Signatures of others are ignored, whatever they are.
    let line = Cosigner::from_seed("somebody.example", &[1; 32]).unwrap().cosign(&log.checkpoint(5), NOW).unwrap();
    assert!(matches!(answer(0, log.note(5) + &line), Answer::Cosigned(_)));
}

#[test]
fn what_cannot_be_kept_is_not_signed() {
    let log = MadeLog::new("", 300);
    let (folder, witness) = witness(&log);
    assert!(matches!(witness.add_checkpoint(log.request(0, 10).as_bytes(), NOW), Answer::Cosigned(_)));
    let staged = file(folder.path(), "logs").unwrap().with_extension("new");
    std::fs::create_dir(&staged).unwrap();
    assert_eq!(witness.add_checkpoint(log.request(10, 20).as_bytes(), NOW), Answer::Failed);
    assert_eq!(witness.add_checkpoint(log.request(20, 30).as_bytes(), NOW), Answer::OtherSize(10));
    std::fs::remove_dir(&staged).unwrap();
    assert_eq!(witness.add_checkpoint(log.request(10, 20).as_bytes(), 0), Answer::Failed, "a clock without a time");
    assert!(matches!(witness.add_checkpoint(log.request(10, 20).as_bytes(), NOW), Answer::Cosigned(_)));
}

#[test]
fn a_damaged_memory_is_not_gone_on_with() {
    let log = MadeLog::new("", 300);
    let (folder, witness) = witness(&log);
    assert!(matches!(witness.add_checkpoint(log.request(0, 10).as_bytes(), NOW), Answer::Cosigned(_)));
    drop(witness);
    let path = file(folder.path(), "logs").unwrap();
    let kept = std::fs::read(&path).unwrap();
    let refused = |bytes: &[u8], keys| {
        std::fs::write(&path, bytes).unwrap();
        matches!(Witness::open(folder.path(), keys), Err(OpenWitnessError::Damaged { .. }))
    };
    for position in 0..kept.len() {
        let mut changed = kept.clone();
        changed[position] ^= 1;
        assert!(refused(&changed, vec![log.key()]), "byte {position}");
    }
    assert!(refused(&kept[..kept.len() / 2], vec![log.key()]));
    assert!(refused(b"", vec![log.key()]), "an empty file is not a log that was never seen");
    assert!(refused(log.note(10).as_bytes(), vec![log.key()]), "never cosigned");
    let exchanged = LogSigner::from_seed(ORIGIN, &[8; 32]).unwrap().verifier_key();
    assert!(refused(&kept, vec![exchanged]), "the same origin under another key would be a second history");
    std::fs::write(&path, &kept).unwrap();
    assert!(matches!(
        Witness::open(folder.path(), vec![log.key(), log.key()]),
        Err(OpenWitnessError::Twice { origin }) if origin == ORIGIN
    ));
    assert!(Witness::open(folder.path(), vec![log.key()]).is_ok());
}

#[test]
fn of_many_at_once_one_is_checked_against_each_state() {
    let log = MadeLog::new("", 300);
    let (_folder, witness) = witness(&log);
    let mut old = 0;
    for round in 0..10 {
        let requests: Vec<String> = (1..=8).map(|more| log.request(old, old + more)).collect();
        let witness = &witness;
        let answers: Vec<Answer> = std::thread::scope(|scope| {
            let ask = |request: String| scope.spawn(move || witness.add_checkpoint(request.as_bytes(), NOW));
            let asked: Vec<_> = requests.into_iter().map(ask).collect();
            asked.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let cosigned = answers.iter().filter(|answer| matches!(answer, Answer::Cosigned(_))).count();
        assert_eq!(cosigned, 1, "round {round}: {answers:?}");
        let won = answers.iter().position(|answer| matches!(answer, Answer::Cosigned(_))).unwrap();
        old += won as u64 + 1;
        assert!(
            answers.iter().all(|answer| matches!(answer, Answer::Cosigned(_)) || *answer == Answer::OtherSize(old))
        );
    }
}

#[test]
fn a_log_that_changes_its_key_is_followed_under_both() {
    let log = MadeLog::new("", 300);
    let (former, next) = (log.signer(), &LogSigner::from_seed(ORIGIN, &[8; 32]).unwrap());
    let (old, new) = (former.verifier_key(), next.verifier_key());
    let folder = tempfile::tempdir().unwrap();
    make_key(folder.path(), "witness.example/w1").unwrap();
    let open = |keys: &[&audit_tlog::VerifierKey]| {
        Witness::open(folder.path(), keys.iter().map(|key| (*key).clone()).collect())
    };
    let ask = |witness: &Witness, from: u64, to: u64, signers: &[&LogSigner]| {
        let checkpoint = log.checkpoint(to).sign_with(signers).unwrap();
        let request = AddCheckpoint { old_size: from, proof: log.proof(from, to), checkpoint };
        witness.add_checkpoint(request.encode().as_bytes(), NOW)
    };
    // Whoever knows the former key alone takes what both have signed.
    let witness = open(&[&old]).unwrap();
    assert!(matches!(ask(&witness, 0, 3, &[former, next]), Answer::Cosigned(_)));
    assert_eq!(ask(&witness, 3, 4, &[next]), Answer::NotSigned);
    drop(witness);
    assert!(
        matches!(open(&[&new]), Err(OpenWitnessError::Damaged { .. })),
        "what is kept has no line of the key that was not known then"
    );
    let witness = open(&[&old, &new]).unwrap();
    assert!(matches!(ask(&witness, 3, 5, &[former, next]), Answer::Cosigned(_)));
    // It has seen the next one: without it nothing that comes after is the log's.
    assert_eq!(ask(&witness, 5, 6, &[former]), Answer::NotSigned);
    drop(witness);
    let witness = open(&[&old, &new]).unwrap();
    assert_eq!(ask(&witness, 5, 6, &[former]), Answer::NotSigned, "nor after a start");
    assert!(matches!(ask(&witness, 5, 6, &[next]), Answer::Cosigned(_)));
    drop(witness);
    let witness = open(&[&new]).unwrap();
    assert!(matches!(ask(&witness, 6, 8, &[next]), Answer::Cosigned(_)));
    assert_eq!(ask(&witness, 8, 9, &[former]), Answer::NotSigned, "the former key is dropped");
    drop(witness);
    // One history, whichever key signs it.
    let witness = open(&[&old, &new]).unwrap();
    let forked = MadeLog::new("another", 6);
    let checkpoint = forked.checkpoint(8).sign_with(&[next]).unwrap();
    let request = AddCheckpoint { old_size: 8, proof: Vec::new(), checkpoint };
    assert!(matches!(witness.add_checkpoint(request.encode().as_bytes(), NOW), Answer::Inconsistent(_)));
    drop(witness);
    let third = LogSigner::from_seed(ORIGIN, &[7; 32]).unwrap().verifier_key();
    for keys in [&[&new, &new][..], &[&old, &new, &third]] {
        assert!(matches!(open(keys), Err(OpenWitnessError::Twice { origin }) if origin == ORIGIN));
    }
}
