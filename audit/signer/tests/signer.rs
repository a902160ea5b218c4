//! A log whose key is kept by `bulkhead-signer`, and what a log does with signers that are none.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use audit_log::{AuditConfig, AuditLog, OpenLogError, SignerPlace};
use audit_tlog::{Checkpoint, VerifierKey};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const ORIGIN: &str = "signer.example/log";
const SIGNER: &str = env!("CARGO_BIN_EXE_bulkhead-signer");

fn command(words: &[&str]) -> SignerPlace {
    SignerPlace::Command(words.iter().map(|word| (*word).to_owned()).collect())
}

fn shell(script: &str) -> SignerPlace {
    command(&["sh", "-c", script])
}

fn open(dir: &Path, signer: SignerPlace) -> Result<AuditLog, OpenLogError> {
    let mut config = AuditConfig::new(dir, ORIGIN);
    config.signer = signer;
    config.heartbeat = None;
    AuditLog::open(config)
}

/// Runs the program; its first line of output.
fn said(arguments: &[&str]) -> String {
    let output = Command::new(SIGNER).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

fn published(dir: &Path, key: &str) -> Checkpoint {
    let key = VerifierKey::parse(key).unwrap();
    Checkpoint::open(&std::fs::read(dir.join("checkpoint")).unwrap(), &key).unwrap()
}

/// Opens it, closes it, and sees it grow under that key.
fn grows(dir: &Path, signer: &SignerPlace, key: &str) {
    let size = |_: &AuditLog| published(dir, key).size;
    let first = open(dir, signer.clone()).unwrap();
    assert_eq!(first.verifier_key(), key);
    first.shutdown();
    let before = size(&first);
    drop(first);
    let second = open(dir, signer.clone()).unwrap();
    second.shutdown();
    assert!(size(&second) >= before && before > 0);
    assert!(!dir.join("keys/log.skey").exists(), "the gateway has no key");
}

#[test]
fn a_log_s_key_may_be_in_another_program() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, key_file) = (folder.path().join("log"), folder.path().join("key"));
    let key_file = key_file.to_str().unwrap();
    let key = said(&["key", ORIGIN, "--key", key_file]);
    let signer = command(&[SIGNER, "file", "--key", key_file]);
    grows(&dir, &signer, &key);
    // Another key is another log's.
    let other = folder.path().join("other");
    said(&["key", ORIGIN, "--key", other.to_str().unwrap()]);
    let refused = open(&dir, command(&[SIGNER, "file", "--key", other.to_str().unwrap()])).unwrap_err();
    let OpenLogError::Signer { reason, .. } = &refused else { panic!("{refused}") };
    assert!(reason.starts_with(&format!("the log is signed by {key}, its key is {ORIGIN}+")), "{reason}");
    published(&dir, &key);
    // Nor does a new key in the folder take its place.
    assert!(matches!(open(&dir, SignerPlace::File), Err(OpenLogError::KeyMissing { .. })));
    // A key that others may read is not used.
    std::process::Command::new("chmod").args(["644", key_file]).status().unwrap();
    assert!(matches!(open(&dir, signer), Err(OpenLogError::Signer { .. })));
}

#[test]
fn the_key_of_a_gateway_can_move_to_a_signer() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, moved) = (folder.path().join("log"), folder.path().join("moved"));
    let log = open(&dir, SignerPlace::File).unwrap();
    log.shutdown();
    let key = log.verifier_key();
    drop(log);
    std::fs::rename(dir.join("keys/log.skey"), &moved).unwrap();
    grows(&dir, &command(&[SIGNER, "file", "--key", moved.to_str().unwrap()]), &key);
}

#[test]
fn whoever_does_not_sign_is_no_signer() {
    let folder = tempfile::tempdir().unwrap();
    let key_file = folder.path().join("key");
    let key = said(&["key", ORIGIN, "--key", key_file.to_str().unwrap()]);
    let other = said(&["key", "other.example", "--key", folder.path().join("other").to_str().unwrap()]);
    let greets = format!("read line; echo '{key}'");
    let zeros = format!("{}==", "A".repeat(86));
    let cases: [(&str, String, &str); 9] = [
        ("none", "exit 1".to_owned(), "it has ended"),
        ("says no", "read line; echo 'error the token is locked'".to_owned(), "it says: the token is locked"),
        ("no key", "read line; echo hello".to_owned(), "its first answer is no verifier key"),
        ("another origin", format!("read line; echo '{other}'"), "its key is for `other.example`"),
        ("too long", "read line; head -c 9000 /dev/zero | tr '\\0' x; echo".to_owned(), "too long or is cut off"),
        ("not text", "read line; printf '\\377\\376\\n'".to_owned(), "valid UTF-8"),
        ("ends then", greets.clone(), "could not be signed"),
        ("rubbish", format!("{greets}; read line; echo rubbish; cat > /dev/null"), "could not be signed"),
        ("false", format!("{greets}; read line; echo '{zeros}'; cat > /dev/null"), "could not be signed"),
    ];
    for (what, script, wanted) in cases {
        let dir = folder.path().join(what.replace(' ', "-"));
        let refused = open(&dir, shell(&script)).map(|log| log.verifier_key()).unwrap_err().to_string();
        assert!(refused.contains(wanted), "{what}: {refused}");
        assert!(!dir.join("checkpoint").exists(), "{what}: something was signed");
    }
    for nothing in [command(&[]), command(&["/nonexistent/signer"])] {
        assert!(matches!(open(&folder.path().join("no"), nothing), Err(OpenLogError::Signer { .. })));
    }
}

#[test]
fn a_signer_that_hangs_does_not_hang_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let started = Instant::now();
    let refused = open(&folder.path().join("log"), shell("exec sleep 120")).unwrap_err().to_string();
    assert!(refused.contains("timed out"), "{refused}");
    assert!(started.elapsed() < Duration::from_secs(60), "bounded by its timeouts");
}
