//! A writer that is killed again and again, in the middle of whatever it does: what it told is there afterwards.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use audit_log::{AuditConfig, AuditLog, IndexStore};
use policies_domain::{Principal, RequestId, TenantId, TenantName};
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const ROUNDS: usize = 24;

/// The example `append`, which cargo builds together with the tests.
fn writer() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.parent().and_then(Path::parent).unwrap().join("examples/append");
    assert!(program.exists(), "`{}` is missing: cargo build -p audit-log --examples", program.display());
    program
}

#[test]
fn whatever_a_killed_writer_told_is_in_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("log");
    // request -> (tenant, index of the sealed entry)
    let mut told: BTreeMap<RequestId, (String, Option<u64>)> = BTreeMap::new();
    for round in 0..ROUNDS {
        let mut child =
            Command::new(writer()).arg(&dir).args(["5", "1000000", "--tell"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // Killed after another number of lines each time, so in another place of the commit.
        for line in lines.by_ref().take(1 + round * 7 % 40) {
            note(&mut told, &line.unwrap());
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // What it had told before the signal came counts as well; a torn last line does not.
        for line in lines.map_while(Result::ok) {
            note(&mut told, &line);
        }
    }
    assert!(told.len() >= ROUNDS, "only {} requests were told", told.len());
    let log = AuditLog::open(AuditConfig::new(&dir, "append.example")).unwrap();
    for (request, (tenant, index)) in &told {
        let who = Principal::authenticated(TenantId::new(1).unwrap(), TenantName::parse(tenant).unwrap());
        let receipt = log.receipt(&who, *request).unwrap_or_else(|error| panic!("{request}: {error}"));
        let proof = audit_tlog::TlogProof::parse(receipt.as_bytes()).unwrap();
        if let Some(index) = index {
            assert_eq!(proof.index, *index, "{request}");
        }
    }
}

/// Blocks of the index are complete every few rounds, and the killing hits the writing of some of them.
#[test]
fn a_writer_that_is_killed_while_it_indexes_answers_as_before() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("log");
    let config = || {
        let index = IndexStore::Sled(dir.join("index"));
        AuditConfig { index, ..AuditConfig::new(&dir, "append.example") }
    };
    let mut told: BTreeMap<RequestId, (String, Option<u64>)> = BTreeMap::new();
    for round in 0..4 {
        let mut child =
            Command::new(writer()).arg(&dir).args(["600", "1000000", "--tell"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        for line in lines.by_ref().take(3_000 + round * 577) {
            note(&mut told, &line.unwrap());
        }
        child.kill().unwrap();
        child.wait().unwrap();
        for line in lines.map_while(Result::ok) {
            note(&mut told, &line);
        }
        let log = AuditLog::open(config()).unwrap();
        let mut checked = 0;
        for (request, (tenant, index)) in told.iter().step_by(1 + told.len() / 300) {
            let who = Principal::authenticated(TenantId::new(1).unwrap(), TenantName::parse(tenant).unwrap());
            let receipt = log.receipt(&who, *request).unwrap_or_else(|error| panic!("{request}: {error}"));
            let proof = audit_tlog::TlogProof::parse(receipt.as_bytes()).unwrap();
            assert!(index.is_none_or(|index| proof.index == index), "{request}");
            checked += 1;
        }
        assert!(checked > 100, "{checked}");
        log.shutdown();
    }
    let log = AuditLog::open(config()).unwrap();
    while !log.health().index.is_ready() && !log.health().index.given_up {
        std::thread::yield_now();
    }
    assert!(log.health().index.indexed > 8_192, "{:?}", log.health().index);
    assert_eq!(log.health().index.rebuilds, 0, "what a killed process had written was there");
}

fn note(told: &mut BTreeMap<RequestId, (String, Option<u64>)>, line: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    match words.as_slice() {
        ["opened", tenant, request] if RequestId::parse(request).is_some() => {
            told.insert(RequestId::parse(request).unwrap(), ((*tenant).to_owned(), None));
        }
        ["sealed", tenant, request, index] if RequestId::parse(request).is_some() => {
            let index = index.parse().unwrap();
            told.insert(RequestId::parse(request).unwrap(), ((*tenant).to_owned(), Some(index)));
        }
        _ => {}
    }
}
