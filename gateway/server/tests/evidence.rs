//! `bulkhead audit report` as it is started from a shell: on a real log that a writer has open, and on what is no log.
#![allow(clippy::unwrap_used, reason = "a failed step fails its test")]

#[path = "../../../audit/verify/tests/real_log/mod.rs"]
mod real_log;

use audit_verify::{BundleEvidence, VerifierKey, check_bundle};
use policies_domain::{Label, TenantId};
use real_log::RealLog;
use std::path::Path;
use std::process::Command;

/// Exit code, stdout and stderr.
fn report(folder: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_bulkhead"))
        .current_dir(folder)
        .args(["audit", "report"])
        .args(arguments)
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

const EVER: [&str; 4] = ["--from", "1970-01-01", "--to", "2100-01-01T00:00:00Z"];

#[tokio::test]
async fn a_report_of_a_log_that_is_being_written_to_is_a_genuine_bundle() {
    let log = RealLog::open();
    log.streamed(&log.acme, 1).await;
    log.whole(&log.globex, 2).await;
    log.refused(&log.acme, 3, Label::of(TenantId::new(2).unwrap())).await;
    while log.log.health().published < log.log.health().size {
        tokio::task::yield_now().await;
    }
    let folder = tempfile::tempdir().unwrap();
    let dir = log.dir.path().to_str().unwrap();
    let key = VerifierKey::parse(&log.log.verifier_key()).unwrap();
    let ask = |tenant: &str| report(folder.path(), &[&["--log", dir, "--tenant", tenant][..], &EVER].concat());
    for (tenant, incidents, as_victim) in [("acme", 1, 0), ("globex", 0, 1)] {
        let (code, said, errors) = ask(tenant);
        assert_eq!(code, Some(0), "{errors}");
        let file = format!("evidence-{tenant}.tar");
        assert!(said.contains(&format!("bulkhead-verify bundle {file} --key KEY")), "{said}");
        let bundle = std::fs::read(folder.path().join(&file)).unwrap();
        let report = check_bundle(&bundle, &key, BundleEvidence::default(), |_, _| {}).unwrap();
        assert_eq!((report.facts.incidents.len(), report.statement.as_victim.len()), (incidents, as_victim));
        assert!(report.passed.contains(&"name") && report.passed.contains(&"report"));
    }
    // Nothing is written over, and the log is as it was.
    let (code, _, errors) = ask("acme");
    assert!(code == Some(1) && errors.contains("`evidence-acme.tar` is there already"), "{errors}");
    let (code, said, _) = report(
        folder.path(),
        &[&["--log", dir, "--tenant", "acme", "--output", "other.tar", "--json"][..], &EVER].concat(),
    );
    let value: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        (code, value["certified"].as_bool(), value["facts"]["responses"]["sealed"].as_u64()),
        (Some(0), Some(true), Some(2))
    );
    // Without the log's word for it the report key has to be told to the auditor.
    std::fs::write(log.dir.path().join("report.certificate"), "another word").unwrap();
    let (code, said, _) =
        report(folder.path(), &[&["--log", dir, "--tenant", "acme", "--output", "third.tar"][..], &EVER].concat());
    assert!(code == Some(0) && said.contains("gives it with --report-key"), "{said}");
    let report_key = VerifierKey::parse(said.lines().last().unwrap().trim()).unwrap();
    let bundle = std::fs::read(folder.path().join("third.tar")).unwrap();
    let beside = BundleEvidence { report_key: Some(&report_key), witnesses: None };
    assert!(check_bundle(&bundle, &key, beside, |_, _| {}).is_ok());
    assert!(check_bundle(&bundle, &key, BundleEvidence::default(), |_, _| {}).is_err());
    log.streamed(&log.acme, 4).await;
    log.log.shutdown();
    audit_verify::check_log(log.dir.path(), &key, None, |_, _| {}).unwrap();
}

#[tokio::test]
async fn what_gives_no_report_says_why() {
    let log = RealLog::open();
    log.streamed(&log.acme, 1).await;
    log.log.shutdown();
    let folder = tempfile::tempdir().unwrap();
    let dir = log.dir.path().to_str().unwrap();
    let refused = |arguments: &[&str], words: &str| {
        let (code, said, errors) = report(folder.path(), arguments);
        assert!(code != Some(0) && said.is_empty() && errors.contains(words), "{arguments:?}: {errors}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{arguments:?} left a file");
    };
    let with = |arguments: &[&'static str]| [&["--log", dir][..], arguments].concat();
    refused(&with(&["--tenant", "nobody", "--from", "0", "--to", "9999999999"]), "has no entry of that tenant");
    refused(&with(&["--tenant", "acme", "--from", "0", "--to", "1"]), "2 entries in the log and none in that time");
    refused(&with(&["--tenant", "acme", "--from", "2026-12-02", "--to", "2026-12-01"]), "`--to` is before `--from`");
    refused(&with(&["--tenant", "acme", "--from", "0", "--to", "253402300800"]), "is after the year 9999");
    refused(&with(&["--tenant", "acme", "--from", "yesterday", "--to", "1"]), "is no moment");
    refused(&with(&["--tenant", "a b", "--from", "0", "--to", "1"]), "is no tenant's name");
    refused(&with(&["--tenant", "acme", "--from", "0"]), "--to");
    refused(&["--tenant", "acme", "--from", "0", "--to", "1"], "--log");
    refused(&["--log", "/nowhere", "--tenant", "acme", "--from", "0", "--to", "1"], "is no log");
    let output = [&EVER[..], &["--tenant", "acme", "--output", "missing/there.tar"]].concat();
    refused(&with(&output), "is no folder");
    // A log whose report key was never made, or whose entries are not what was signed.
    let skey = log.dir.path().join("keys/report.skey");
    let kept = std::fs::read(&skey).unwrap();
    std::fs::remove_file(&skey).unwrap();
    let ever = with(&[&EVER[..], &["--tenant", "acme"]].concat());
    refused(&ever, "the gateway makes it at its next start");
    std::fs::write(&skey, kept).unwrap();
    let segment = log.dir.path().join("segments/00000000000000000000");
    let mut bytes = std::fs::read(&segment).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    refused(&ever, "gives no evidence");
}
