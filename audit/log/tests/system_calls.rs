//! The writer's own system calls go wrong, one after the other: it is killed in the middle of one, or the system refuses it. What
//! it told before is in the log afterwards, and the log goes on. The system is the real one (`strace` injects), where the tests of
//! `faults.rs` have a disk of their own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![cfg(target_os = "linux")]

use audit_log::{AuditConfig, AuditLog};
use policies_domain::{Principal, RequestId, TenantId, TenantName};
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// All calls with which a log's folder is changed. Groups, because a system has several calls for one thing.
const CALLS: [&str; 7] = [
    "openat",
    "write,writev,pwrite64",
    "fdatasync",
    "fsync",
    "rename,renameat,renameat2",
    "mkdir,mkdirat",
    "ftruncate,fallocate",
];
const FAULTS: [&str; 3] = ["signal=KILL", "error=EIO", "error=ENOSPC"];
/// More calls of one kind than a thread of the writer makes.
const CALLS_MAX: usize = 2_000;

/// The example `append`, which cargo builds together with the tests.
fn writer() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.parent().and_then(Path::parent).unwrap().join("examples/append");
    assert!(program.exists(), "`{}` is missing: cargo build -p audit-log --examples", program.display());
    program
}

/// What the writer told: request, tenant, and the sealed entry's index when it got that far.
type Told = BTreeMap<RequestId, (String, Option<u64>)>;

/// Runs the writer on a folder that has a log already, with a fault in the call of this number (of each thread). `None`: nothing
/// went wrong, there are fewer calls.
fn run(dir: &Path, calls: &str, fault: &str, number: usize, told: &mut Told) -> Option<()> {
    let output = Command::new("strace")
        .args(["-f", "-qqq", "-e", "signal=none", "-e"])
        .arg(format!("inject={calls}:{fault}:when={number}"))
        .args(["-e", &format!("trace={calls}"), "-o"])
        .arg(dir.with_extension("trace"))
        .arg(writer())
        .arg(dir)
        .args(["2", "2", "--tell"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .expect("strace is missing: apt-get install strace");
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        note(told, line);
    }
    let trace = std::fs::read_to_string(dir.with_extension("trace")).unwrap_or_default();
    // strace ends as what it traced did.
    let injected = trace.contains("(INJECTED)") || output.status.signal() == Some(9);
    if !injected {
        assert!(output.status.success(), "{calls} {fault} {number}: it failed without a fault");
        return None;
    }
    Some(())
}

fn note(told: &mut Told, line: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    match words.as_slice() {
        ["opened", tenant, request] if RequestId::parse(request).is_some() => {
            told.insert(RequestId::parse(request).unwrap(), ((*tenant).to_owned(), None));
        }
        ["sealed", tenant, request, index] if RequestId::parse(request).is_some() => {
            told.insert(RequestId::parse(request).unwrap(), ((*tenant).to_owned(), index.parse().ok()));
        }
        _ => {}
    }
}

/// Opens the log as the next start would, and looks up everything that was told.
fn check(dir: &Path, told: &Told, what: &str) {
    let log = AuditLog::open(AuditConfig::new(dir, "append.example")).unwrap_or_else(|error| panic!("{what}: {error}"));
    for (request, (tenant, index)) in told {
        let who = Principal::authenticated(TenantId::new(1).unwrap(), TenantName::parse(tenant).unwrap());
        let receipt = log.receipt(&who, *request).unwrap_or_else(|error| panic!("{what}: {request}: {error}"));
        let proof = audit_tlog::TlogProof::parse(receipt.as_bytes()).unwrap();
        assert!(index.is_none_or(|index| proof.index == index), "{what}: {request}");
    }
    log.shutdown();
}

/// How many faults hit: each of them on the log that all earlier ones left.
fn every(stride: usize) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("log");
    let (mut told, mut hit) = (Told::new(), 0);
    for calls in CALLS {
        for fault in FAULTS {
            for number in (1..CALLS_MAX).step_by(stride) {
                let what = format!("{calls} {fault} {number}");
                if run(&dir, calls, fault, number, &mut told).is_none() {
                    break;
                }
                hit += 1;
                check(&dir, &told, &what);
            }
        }
    }
    assert!(told.len() > hit / 2, "only {} requests were told in {hit} runs", told.len());
    hit
}

#[test]
fn what_was_told_survives_faults_of_the_system() {
    let hit = every(7);
    assert!(hit > 20, "{hit}");
}

/// Minutes: `cargo nextest run -p audit-log --run-ignored only -E 'test(every_fault_of_the_system)'`.
#[test]
#[ignore = "minutes; a part of it is in the test above"]
fn what_was_told_survives_every_fault_of_the_system() {
    let hit = every(1);
    println!("{hit} faults");
    assert!(hit > 200, "{hit}");
}
