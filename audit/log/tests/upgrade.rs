//! A log that was begun before the format had the model's fingerprint: it verifies, gives its receipts, and goes on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod story;

use audit_log::{AuditLog, Storage as _};
use audit_provenance::{Body, Disclosure, Entry, EntryVersion};
use audit_tlog::TlogProof;
use policies_domain::{Digest, RequestId};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use story::memory::{MemoryDisk, TestClock};
use story::{entries, facts, outcome, permit, principal};

/// Written by version 1: the genesis, and one answer for each of `tenant-0` and `tenant-1`.
fn log_of_version_1() -> MemoryDisk {
    let disk = MemoryDisk::default();
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/audit/log-v1");
    copy(&root, &root, &disk);
    disk
}

fn copy(root: &Path, folder: &Path, disk: &MemoryDisk) {
    for item in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = item.path();
        if path.is_dir() {
            copy(root, &path, disk);
        } else {
            disk.write(path.strip_prefix(root).unwrap().to_str().unwrap(), &std::fs::read(&path).unwrap()).unwrap();
        }
    }
}

fn open(disk: &MemoryDisk) -> AuditLog {
    let mut config = story::config();
    config.origin = "append.example".to_owned();
    // A day after it was written.
    let clock = TestClock::at(1_796_100_000_000_000);
    AuditLog::open_on(&config, Arc::new(disk.clone()), Arc::new(clock)).unwrap()
}

fn opened_of(log: &AuditLog, tenant: &str, request: RequestId) -> Entry {
    let receipt = log.receipt(&principal(1, tenant), request).unwrap();
    let disclosure = Disclosure::decode(&TlogProof::parse(receipt.as_bytes()).unwrap().extra.unwrap()).unwrap();
    assert!(disclosure.openings.is_some(), "the keys of {tenant} still open their entries");
    Entry::decode(&disclosure.opened).unwrap()
}

#[tokio::test]
async fn a_log_of_version_1_goes_on_and_its_receipts_stay() {
    let disk = log_of_version_1();
    let before = entries(&disk);
    let log = open(&disk);
    let entry = log.open_request(&permit(&principal(1, "tenant-0"), 9), facts()).await.unwrap();
    entry.seal(outcome()).await.unwrap();
    log.shutdown();

    let after = entries(&disk);
    assert_eq!(after[..before.len()], before);
    let versions = |entries: &[Entry]| entries.iter().map(|entry| entry.head.version).collect::<Vec<_>>();
    assert_eq!(versions(&before), [EntryVersion::V1; 5]);
    assert_eq!(versions(&after[before.len()..]), [EntryVersion::V5; 3], "a start, opened and sealed");
    for (tenant, entry) in [("tenant-0", &before[1]), ("tenant-1", &before[2])] {
        let opened = opened_of(&log, tenant, RequestId::from_bytes(entry.head.uuid));
        assert_eq!(opened, *entry);
        let Body::Opened(opened) = opened.body else { panic!("not opened") };
        assert_eq!(opened.fingerprint, None);
    }
    let Body::Opened(opened) = opened_of(&log, "tenant-0", RequestId::from_bytes([9; 16])).body else {
        panic!("not opened")
    };
    assert_eq!(opened.fingerprint, Some(Digest([3; 32])));
}
