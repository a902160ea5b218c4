//! Three verifiers that share no code with the product, in three languages, on receipts of a real log: all accept them, and
//! all refuse them after one changed byte. A bundle of evidence carries one of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod made_bundle;
mod real_log;

use audit_evidence::{Files, MANIFEST, REPORT_JSON};
use audit_provenance::Disclosure;
use audit_tlog::TlogProof;
use policies_domain::{Label, RequestId, TenantId};
use real_log::RealLog;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn verifier(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/verifiers").join(name)
}

fn python(key: &Path, receipt: &Path) -> Output {
    assert!(found("openssl", "version"), "`openssl` is missing: apt-get install openssl");
    let run = Command::new("python3").arg(verifier("receipt.py")).args([key, receipt]).output();
    run.expect("`python3` is missing: apt-get install python3")
}

fn found(program: &str, argument: &str) -> bool {
    Command::new(program).arg(argument).output().is_ok_and(|output| output.status.success())
}

/// Compiles the Go verifier with the packages of the distribution, without network.
fn build_go(folder: &Path) -> PathBuf {
    let program = folder.join("receipt-go");
    let built = Command::new("go")
        .args(["build", "-o"])
        .args([&program, &verifier("receipt.go")])
        .envs([("GO111MODULE", "off"), ("GOPATH", "/usr/share/gocode"), ("GOFLAGS", ""), ("GOPROXY", "off")])
        .env("GOCACHE", folder.join("go-cache"))
        .output()
        .expect("`go` is missing: apt-get install golang-go golang-golang-x-mod-dev");
    let errors = String::from_utf8_lossy(&built.stderr);
    let install = "apt-get install golang-go golang-golang-x-mod-dev";
    assert!(built.status.success(), "{install}\n{errors}");
    program
}

/// Receipts with one changed byte each: in either entry, the proofs, the index, the checkpoint and the signature.
fn tampered(receipt: &str) -> Vec<(&'static str, Vec<u8>)> {
    let proof = TlogProof::parse(receipt.as_bytes()).unwrap();
    let mut changed = Vec::new();
    let extra = proof.extra.clone().unwrap();
    for offset in [6, 40, 120, 300] {
        let mut extra = extra.clone();
        extra[offset] ^= 1;
        changed.push(("entry", TlogProof { extra: Some(extra), ..proof.clone() }.encode().into_bytes()));
    }
    let disclosure = Disclosure::decode(&extra).unwrap();
    let with = |change: &dyn Fn(&mut Disclosure)| {
        let mut disclosure = disclosure.clone();
        change(&mut disclosure);
        TlogProof { extra: Some(disclosure.encode()), ..proof.clone() }.encode().into_bytes()
    };
    let fingerprint = disclosure.opened.windows(32).position(|window| *window == [3; 32]).unwrap();
    changed.push(("fingerprint", with(&|disclosure| disclosure.opened[fingerprint] ^= 1)));
    changed.push(("version", with(&|disclosure| disclosure.opened[2] ^= 7)));
    changed.push(("opened index", with(&|disclosure| disclosure.opened_index ^= 1)));
    changed.push(("opened proof", with(&|disclosure| disclosure.opened_proof[0][5] ^= 1)));
    changed.push(("the sealed entry twice", with(&|disclosure| disclosure.opened = disclosure.sealed.clone())));
    for place in 0..proof.hashes.len() {
        let mut proof = proof.clone();
        proof.hashes[place].0[17] ^= 1;
        changed.push(("proof", proof.encode().into_bytes()));
    }
    changed.push(("index", TlogProof { index: proof.index ^ 1, ..proof.clone() }.encode().into_bytes()));
    let checkpoint = receipt.len() - proof.checkpoint.len();
    let lines: Vec<usize> = proof.checkpoint.match_indices('\n').map(|(at, _)| checkpoint + at).collect();
    let bytes = |what, position: usize| {
        let mut bytes = receipt.as_bytes().to_vec();
        bytes[position] ^= 1;
        (what, bytes)
    };
    changed.push(bytes("origin", checkpoint + 3));
    changed.push(bytes("size", lines[1] - 1));
    changed.push(bytes("root", lines[1] + 5));
    changed.push(bytes("key name", lines[3] + 8));
    changed.push(bytes("key id", lines[4] - 90));
    changed.push(bytes("signature", lines[4] - 40));
    changed
}

/// Receipts that were handed out before the format had a fingerprint still verify.
fn check_before(run: impl Fn(&Path, &Path) -> Output) {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/audit");
    for (receipt, fingerprint) in [
        ("receipt-v1.tlog-proof", "none".to_owned()),
        ("receipt-v2.tlog-proof", "0a".repeat(32)),
        ("receipt-v3.tlog-proof", "0a".repeat(32)),
        ("receipt-v4.tlog-proof", "0a".repeat(32)),
        ("receipt.tlog-proof", "0a".repeat(32)),
    ] {
        let output = run(&golden.join("log.vkey"), &golden.join(receipt));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.starts_with("OK ") && text.ends_with(&format!(" fingerprint={fingerprint}\n")), "{text}");
    }
}

async fn check(run: impl Fn(&Path, &Path) -> Output) {
    let log = RealLog::open();
    log.streamed(&log.acme, 1).await;
    log.whole(&log.globex, 2).await;
    log.streamed(&log.acme, 3).await;
    let receipt = log.receipt(&log.acme, 3);
    let path = log.dir.path().join("receipt");
    std::fs::write(&path, &receipt).unwrap();
    let output = run(&log.key_file(), &path);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && text.starts_with("OK origin="), "{text}{errors}");
    let (model, fingerprint) = ("02".repeat(32), "03".repeat(32));
    assert!(text.ends_with(&format!(" model={model} fingerprint={fingerprint}\n")), "{text}");

    for (what, bytes) in tampered(&receipt) {
        std::fs::write(&path, bytes).unwrap();
        let output = run(&log.key_file(), &path);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{what}: {text}{errors}");
        assert!(text.starts_with("REFUSED"), "{what}: {text}{errors}");
    }

    // A pipe is refused and not waited for.
    let pipe = log.dir.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success(), "`mkfifo` failed");
    let text = String::from_utf8_lossy(&run(&log.key_file(), &pipe).stdout).into_owned();
    assert!(text.starts_with("REFUSED") && text.contains("not a regular file"), "{text}");

    // The right receipt under another log's key.
    let other = RealLog::open();
    std::fs::write(&path, &receipt).unwrap();
    assert_eq!(run(&other.key_file(), &path).status.code(), Some(1));
}

#[tokio::test]
async fn python_and_openssl_agree() {
    check_before(python);
    check(python).await;
}

#[tokio::test]
async fn python_and_openssl_agree_on_a_receipt_in_cose() {
    let log = RealLog::open();
    log.streamed(&log.acme, 1).await;
    log.whole(&log.globex, 2).await;
    log.streamed(&log.acme, 3).await;
    log.log.shutdown();
    let receipt = log.log.cose_receipt(&log.acme, RequestId::from_bytes([3; 16])).unwrap();
    let path = log.dir.path().join("receipt");
    let run = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let output = python(&log.key_file(), &path);
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, text) = run(&receipt);
    assert!(code == Some(0) && text.starts_with("OK origin="), "{text}");
    assert!(text.ends_with(&format!(" model={} fingerprint={}\n", "02".repeat(32), "03".repeat(32))), "{text}");
    // In the headers, the proof, the entries and the signature; not in the salts and the trace, which it does not look at.
    let sealed = receipt.windows(4).position(|window| window == 65_536u32.to_be_bytes()).unwrap();
    let places = (0..220)
        .step_by(7)
        .chain((sealed..sealed + 600).step_by(29))
        .chain((receipt.len() - 66..receipt.len()).step_by(5));
    for place in places {
        let mut changed = receipt.clone();
        changed[place] ^= 1;
        let (code, text) = run(&changed);
        assert!(code == Some(1) && text.starts_with("REFUSED"), "byte {place}: {text}");
    }
    for length in (0..receipt.len()).step_by(41) {
        let (code, text) = run(&receipt[..length]);
        assert!(code == Some(1) && text.starts_with("REFUSED"), "cut to {length}: {text}");
    }
    let other = RealLog::open();
    std::fs::write(&path, &receipt).unwrap();
    assert_eq!(python(&other.key_file(), &path).status.code(), Some(1));
}

#[tokio::test]
async fn go_and_its_reference_packages_agree() {
    let folder = tempfile::tempdir().unwrap();
    let program = build_go(folder.path());
    let go = |key: &Path, receipt: &Path| Command::new(&program).args([key, receipt]).output().unwrap();
    check_before(go);
    check(go).await;
}

/// Runs the verifier of bundles that stands in every one of them.
fn python_bundle(key: &Path, bundle: &Path) -> (Option<i32>, String) {
    assert!(found("openssl", "version"), "`openssl` is missing: apt-get install openssl");
    let run = Command::new("python3").arg(verifier("bundle.py")).args([key, bundle]).output();
    let output = run.expect("`python3` is missing: apt-get install python3");
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[tokio::test]
async fn a_bundle_is_checked_by_python_and_openssl_too() {
    let log = RealLog::open();
    log.streamed(&log.acme, 1).await;
    log.whole(&log.globex, 2).await;
    log.refused(&log.acme, 3, Label::of(TenantId::new(2).unwrap())).await;
    log.streamed(&log.acme, 4).await;
    log.log.shutdown();
    let parts = made_bundle::parts(log.dir.path(), "acme", 0, u64::MAX);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bundle.tar");
    let run = |bundle: &[u8]| {
        std::fs::write(&path, bundle).unwrap();
        python_bundle(&log.key_file(), &path)
    };
    let (code, text) = run(&parts.bundle());
    assert_eq!(code, Some(0), "{text}");
    assert!(text.starts_with("OK origin=") && text.ends_with(" entries=8 end=open name=opened\n"), "{text}");

    // Each lie is signed as the operator signs.
    type Lie = fn(&mut made_bundle::Parts);
    let lies: [(&str, Lie); 8] = [
        ("an entry of the tenant is missing", |parts| drop(parts.entries.remove(1))),
        ("the entry before the time is missing", |parts| drop(parts.entries.remove(0))),
        ("does not lead to the root hash", |parts| parts.entries[1].proof[0][3] ^= 1),
        ("is of another tenant", |parts| parts.statement.reference = "ab".repeat(16)),
        ("does not open the commitment", |parts| parts.statement.tenant = "initech".into()),
        ("what is withheld is not spoken of", |parts| parts.statement.withheld.clear()),
        ("the entries are not those of the time", |parts| parts.statement.to_us = 5),
        ("nobody vouches", |parts| parts.certificate = None),
    ];
    for (words, lie) in lies {
        let mut parts = made_bundle::parts(log.dir.path(), "acme", 0, u64::MAX);
        lie(&mut parts);
        let (code, text) = run(&parts.bundle());
        assert!(code == Some(1) && text.starts_with("REFUSED: ") && text.contains(words), "{words}: {text}");
    }
    let mut files = parts.files();
    let report = String::from_utf8(files.get(REPORT_JSON).unwrap().to_vec()).unwrap();
    let changed = report.replacen("\"sealed\": 3", "\"sealed\": 4", 2);
    assert_ne!(report, changed);
    files.put(REPORT_JSON, changed.into_bytes());
    let (code, text) = run(&parts.sealed(files.clone()));
    assert!(code == Some(1) && text.contains("the report counts other"), "{text}");
    files.put(MANIFEST, Files::from_archive(&parts.bundle()).unwrap().get(MANIFEST).unwrap().to_vec());
    let (code, text) = run(&files.to_archive().unwrap());
    assert!(code == Some(1) && text.contains("the manifest names other files"), "{text}");
    let other = RealLog::open();
    std::fs::write(&path, parts.bundle()).unwrap();
    assert_eq!(python_bundle(&other.key_file(), &path).0, Some(1));
    assert_eq!(run(b"no archive").0, Some(1));
}

/// The page's own verifier, without a browser. What it makes of everything else is in `page.rs`.
#[tokio::test]
async fn javascript_agrees() {
    let node = |key: &Path, receipt: &Path| {
        let run = Command::new("node").arg(verifier("receipt.mjs")).args([key, receipt]).output();
        run.expect("`node` is missing: apt-get install nodejs")
    };
    check_before(node);
    check(node).await;
}
