//! Files that were changed, lost or exchanged behind the log's back: it says which, keeps what is whole, and never hands
//! out a receipt that does not verify.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod story;

use audit_log::{AppendError, AuditLog, EraseKey, ErasureBasis, OpenLogError, ReceiptError, Storage as _};
use audit_provenance::{Disclosure, Entry};
use audit_tlog::{TlogProof, leaf_hash};
use policies_domain::{Principal, RequestId, TenantName};
use std::sync::Arc;
use story::memory::{MemoryDisk, TestClock};
use story::{START_US, Told, check_told, config, facts, history, open, outcome, permit, principal, run};

const LATER_US: u64 = START_US + 100_000_000_000;
const SEGMENT: &str = "segments/00000000000000000000";
const TRACES: &str = "traces/00000000000000000000";

fn disclosed(log: &AuditLog, who: &Principal, request: u8) -> Disclosure {
    let receipt = log.receipt(who, RequestId::from_bytes([request; 16])).unwrap();
    Disclosure::decode(&TlogProof::parse(receipt.as_bytes()).unwrap().extra.unwrap()).unwrap()
}

fn key_of(disk: &MemoryDisk, tenant: &str) -> String {
    let start = format!("keys/tenants/{tenant}.");
    disk.paths().into_iter().find(|path| path.starts_with(&start) && path.ends_with(".key")).unwrap()
}

#[tokio::test]
async fn any_flipped_bit_of_what_was_committed_is_found_at_the_next_start() {
    let disk = history().await;
    let later = START_US + 100_000_000_000;
    let path = "segments/00000000000000000000";
    for position in (0..disk.content(path).unwrap().len()).step_by(7) {
        let copy = disk.copy();
        copy.edit(path, |bytes| bytes[position] ^= 0x10);
        assert!(open(&copy, later).is_err(), "byte {position}");
    }
    for position in (0..disk.content("checkpoint").unwrap().len()).step_by(3) {
        let copy = disk.copy();
        copy.edit("checkpoint", |bytes| bytes[position] ^= 1);
        assert!(matches!(open(&copy, later), Err(OpenLogError::Checkpoint { .. })), "byte {position}");
    }
    let copy = disk.copy();
    copy.edit(path, |bytes| bytes.truncate(bytes.len() - 1));
    assert!(matches!(open(&copy, later), Err(OpenLogError::Entry { .. })));
    let copy = disk.copy();
    copy.edit("slot", |bytes| bytes.iter_mut().for_each(|byte| *byte ^= 1));
    assert!(matches!(open(&copy, later), Err(OpenLogError::Slot)));
    let copy = disk.copy();
    copy.edit("slot", Vec::clear);
    assert!(matches!(open(&copy, later), Err(OpenLogError::RolledBack { committed: 0, .. })));
    assert!(open(&disk, later).is_ok());
}

#[tokio::test]
async fn a_rollback_behind_the_published_checkpoint_is_refused() {
    let disk = MemoryDisk::default();
    let log = open(&disk, START_US).unwrap();
    log.shutdown();
    let old = disk.copy();
    let log = open(&disk, START_US + 100_000_000_000).unwrap();
    run(&log, &mut Vec::new()).await.unwrap();
    let newer = disk.content("checkpoint").unwrap();
    old.edit("checkpoint", |bytes| *bytes = newer);
    assert!(matches!(open(&old, START_US + 200_000_000_000), Err(OpenLogError::RolledBack { committed: 1, .. })));
}

#[tokio::test]
async fn two_histories_under_one_key_are_refused() {
    let disk = MemoryDisk::default();
    let log = open(&disk, START_US).unwrap();
    log.shutdown();
    drop(log);
    let fork = disk.copy();
    for disk in [&disk, &fork] {
        open(disk, START_US + 100_000_000_000).unwrap().shutdown();
    }
    let other = fork.content("checkpoint").unwrap();
    disk.edit("checkpoint", |bytes| *bytes = other);
    assert!(matches!(open(&disk, START_US + 200_000_000_000), Err(OpenLogError::Forked { size: 2 })));
}

#[tokio::test]
async fn keys_are_made_once_and_missed_when_they_are_gone() {
    let disk = history().await;
    let later = START_US + 100_000_000_000;
    let edit = |path: &str, content: Option<&str>| {
        let copy = disk.copy();
        match content {
            Some(content) => copy.edit(path, |bytes| *bytes = content.as_bytes().to_vec()),
            None => copy.remove(path).unwrap(),
        }
        open(&copy, later)
    };
    assert!(matches!(edit("keys/log.skey", None), Err(OpenLogError::KeyMissing { .. })));
    assert!(matches!(edit("keys/pseudonym.key", None), Err(OpenLogError::KeyMissing { .. })));
    assert!(matches!(edit("keys/log.skey", Some("nonsense")), Err(OpenLogError::Key { .. })));
    assert!(matches!(edit("keys/pseudonym.key", Some("00")), Err(OpenLogError::KeyDamaged { .. })));
    assert!(edit("log.vkey", Some("nonsense")).is_ok());
    let mut other = config();
    other.origin = "other.example".into();
    let opened = AuditLog::open_on(&other, Arc::new(disk.copy()), Arc::new(TestClock::at(later)));
    assert!(matches!(opened, Err(OpenLogError::Origin { .. })));
    other.origin = "two words".into();
    let opened = AuditLog::open_on(&other, Arc::new(MemoryDisk::default()), Arc::new(TestClock::at(later)));
    assert!(matches!(opened, Err(OpenLogError::Key { .. })));
}

#[tokio::test]
async fn a_destroyed_key_leaves_a_receipt_that_opens_nothing() {
    let disk = history().await;
    disk.remove(&key_of(&disk, "acme")).unwrap();
    let log = open(&disk, START_US + 100_000_000_000).unwrap();
    let told = |who, request| Told { who, request, sealed: None };
    check_told(&log, &[told(principal(1, "acme"), 1), told(principal(2, "globex"), 2)]);
    assert!(disclosed(&log, &principal(1, "acme"), 1).openings.is_none());
    assert!(disclosed(&log, &principal(2, "globex"), 2).openings.is_some());
}

#[tokio::test]
async fn stored_files_that_lie_give_no_receipt() {
    let disk = history().await;
    let log = open(&disk, START_US + 100_000_000_000).unwrap();
    let acme = principal(1, "acme");
    let request = RequestId::from_bytes([1; 16]);
    let whole = log.receipt(&acme, request).unwrap();
    // A lost or changed trace is left out; a changed bundle or tile is noticed.
    disk.edit("traces/00000000000000000000", |bytes| bytes[20] ^= 1);
    let without = log.receipt(&acme, request).unwrap();
    assert!(without.len() < whole.len());
    let size = log.health().published;
    let bundle = format!("tile/entries/000.p/{size}");
    let uuid = disk.content(&bundle).unwrap().windows(16).position(|bytes| bytes == [1; 16]).unwrap();
    for (path, position) in [(bundle, uuid), (format!("tile/0/000.p/{size}"), 70)] {
        disk.edit(&path, |bytes| bytes[position] ^= 2);
        assert!(matches!(log.receipt(&acme, request), Err(ReceiptError::Damaged { .. })), "{path}");
        disk.edit(&path, |bytes| bytes[position] ^= 2);
        assert_eq!(log.receipt(&acme, request).as_ref(), Ok(&without));
    }
}

#[tokio::test]
async fn a_rewritten_entry_with_right_sums_does_not_have_the_signed_root() {
    let disk = history().await;
    let mut entry = Vec::new();
    disk.edit("segments/00000000000000000000", |segment| {
        let mut start = 0;
        let length = |at: usize| u32::from_be_bytes(segment[at..at + 4].try_into().unwrap()) as usize + 40;
        while start + length(start) < segment.len() {
            start += length(start);
        }
        entry = segment[start + 40..].to_vec();
        // A byte of the blind, which may be anything.
        entry[30] ^= 1;
        let leaf = leaf_hash(&entry).0;
        let sum = crc32c::crc32c(&[&leaf[..], &entry].concat());
        segment[start + 4..start + 8].copy_from_slice(&sum.to_be_bytes());
        segment[start + 8..start + 40].copy_from_slice(&leaf);
        segment[start + 40..].copy_from_slice(&entry);
    });
    assert!(Entry::decode(&entry).is_ok());
    assert!(matches!(open(&disk, START_US + 100_000_000_000), Err(OpenLogError::Forked { .. })));
    disk.remove("checkpoint").unwrap();
    assert!(matches!(open(&disk, START_US + 100_000_000_000), Err(OpenLogError::Root { .. })));
}

#[tokio::test]
async fn a_lost_key_that_was_used_is_never_replaced_in_silence() {
    let disk = history().await;
    let (acme, globex) = (principal(1, "acme"), principal(2, "globex"));
    let key = key_of(&disk, "acme");
    disk.remove(&key).unwrap();
    let log = open(&disk, LATER_US).unwrap();
    let refused = log.open_request(&permit(&acme, 5), facts()).await.unwrap_err();
    let AppendError::Key { reason } = &refused else { panic!("{refused}") };
    assert!(reason.contains(&key) && reason.contains("bulkhead audit erase") && reason.contains("backup"), "{reason}");
    assert!(disk.content(&key).is_none(), "a key was made");
    // Nobody else is hurt.
    let other = log.open_request(&permit(&globex, 6), facts()).await.unwrap();
    other.seal(outcome()).await.unwrap();

    // Two operators say that it is gone: what is old opens nothing, what is new opens again.
    let [actor, second] = ["ada", "ben"].map(|name| log.actor(&TenantName::parse(name).unwrap()));
    let (tenant, basis) = (TenantName::parse("acme").unwrap(), ErasureBasis::KeyLost);
    log.erase_key(EraseKey { tenant, epoch: 115, basis, actor, second }).await.unwrap();
    let entry = log.open_request(&permit(&acme, 7), facts()).await.unwrap();
    entry.seal(outcome()).await.unwrap();
    log.shutdown();
    drop(log);
    let log = open(&disk, LATER_US + 100_000_000_000).unwrap();
    let told = |request| Told { who: acme.clone(), request, sealed: None };
    check_told(&log, &[told(1), told(7)]);
    assert!(disclosed(&log, &acme, 1).openings.is_none(), "a receipt with salts that are not its own");
    assert!(disclosed(&log, &acme, 7).openings.is_some());
}

/// As programs before this one made it at an operator's word: a second key of the same epoch.
#[tokio::test]
async fn a_receipt_has_no_salts_of_another_key_of_its_epoch() {
    let disk = history().await;
    let other = MemoryDisk::default();
    for path in ["keys/log.skey", "keys/pseudonym.key", "log.vkey"] {
        other.write(path, &disk.content(path).unwrap()).unwrap();
    }
    let acme = principal(1, "acme");
    let log = open(&other, START_US).unwrap();
    log.open_request(&permit(&acme, 1), facts()).await.unwrap().seal(outcome()).await.unwrap();
    log.shutdown();
    let key = key_of(&other, "acme");
    assert_ne!(disk.content(&key), other.content(&key));
    disk.write(&key, &other.content(&key).unwrap()).unwrap();
    let log = open(&disk, LATER_US).unwrap();
    assert!(disclosed(&log, &acme, 1).openings.is_none());
}

#[tokio::test]
async fn a_damaged_secret_refuses_the_start_and_is_named() {
    let disk = history().await;
    let refused = |disk: &MemoryDisk, wanted: &str| {
        let error = open(disk, LATER_US).map(drop).unwrap_err();
        assert!(matches!(&error, OpenLogError::KeyDamaged { path } if path == wanted), "{wanted}: {error}");
        assert!(error.to_string().contains(wanted), "{error}");
    };
    let (acme, globex) = (key_of(&disk, "acme"), key_of(&disk, "globex"));
    for path in ["keys/pseudonym.key", &acme] {
        for position in 0..disk.content(path).unwrap().len() {
            let copy = disk.copy();
            copy.edit(path, |bytes| bytes[position] ^= 1);
            refused(&copy, path);
        }
        let copy = disk.copy();
        copy.edit(path, |bytes| bytes.truncate(64));
        refused(&copy, path);
    }
    // A whole file in the wrong place: of another tenant, and of another log.
    let exchanged = disk.copy();
    let content = disk.content(&globex).unwrap();
    exchanged.edit(&acme, |bytes| *bytes = content);
    refused(&exchanged, &acme);
    let content = history().await.content("keys/pseudonym.key").unwrap();
    disk.edit("keys/pseudonym.key", |bytes| *bytes = content);
    refused(&disk, "keys/pseudonym.key");
}

#[tokio::test]
async fn a_damaged_trace_takes_no_other_with_it() {
    let disk = history().await;
    let traces = disk.content(TRACES).unwrap();
    let (acme, globex) = (principal(1, "acme"), principal(2, "globex"));
    let length = |at: usize| u32::from_be_bytes(traces[at..at + 4].try_into().unwrap()) as usize + 16;
    let second = length(0);
    let third = second + length(second);
    assert_eq!(third + length(third), traces.len(), "three answers have a trace");
    let all = [(&acme, 1, 0..second), (&globex, 2, second..third), (&acme, 3, third..traces.len())];
    for position in 0..traces.len() {
        let copy = disk.copy();
        copy.edit(TRACES, |bytes| bytes[position] ^= 0x40);
        let log = open(&copy, LATER_US).unwrap();
        for (who, request, place) in &all {
            let kept = disclosed(&log, who, *request).trace.is_some();
            assert_eq!(kept, !place.contains(&position), "trace of {request}, byte {position}");
        }
    }
    // What comes after the damage is found at the start after this one too, and what is torn off goes.
    disk.edit(TRACES, |bytes| {
        bytes[second + 3] ^= 1;
        bytes.extend_from_slice(&[0; 40]);
    });
    let log = open(&disk, LATER_US).unwrap();
    assert_eq!(disk.content(TRACES).unwrap().len(), traces.len());
    log.open_request(&permit(&acme, 8), facts()).await.unwrap().seal(outcome()).await.unwrap();
    log.shutdown();
    drop(log);
    let log = open(&disk, LATER_US + 100_000_000_000).unwrap();
    let kept = |who, request| disclosed(&log, who, request).trace.is_some();
    assert_eq!([kept(&acme, 1), kept(&globex, 2), kept(&acme, 3), kept(&acme, 8)], [true, false, true, true]);
}

#[tokio::test]
async fn traces_behind_a_long_stretch_of_damage_are_found() {
    let disk = history().await;
    // Longer than what is searched at a time, and with a head in it that promises more than there is.
    let mut damage = vec![0xff; 200_000];
    damage.splice(70_000..70_016, [0, 0, 0, 9, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 4]);
    disk.edit(TRACES, |bytes| drop(bytes.splice(0..0, damage)));
    let log = open(&disk, LATER_US).unwrap();
    assert!(disclosed(&log, &principal(1, "acme"), 1).trace.is_some());
    assert!(disclosed(&log, &principal(2, "globex"), 2).trace.is_some());
}

#[tokio::test]
async fn what_does_not_fit_is_named_with_a_way_out() {
    let disk = history().await;
    let refusal = |path: &str, edit: &dyn Fn(&mut Vec<u8>)| {
        let copy = disk.copy();
        copy.edit(path, edit);
        open(&copy, LATER_US).map(drop).map_err(|error| error.to_string())
    };
    // One copy of the slot is the newest; without the other nothing is lost.
    let copies = [refusal("slot", &|bytes| bytes[100] ^= 1), refusal("slot", &|bytes| bytes[4_196] ^= 1)];
    let refused: Vec<_> = copies.into_iter().filter_map(Result::err).collect();
    assert_eq!(refused.len(), 1, "{refused:?}");
    let words = ["`slot`", "the slot is damaged or the folder was rolled back", "from a backup"];
    assert!(words.iter().all(|word| refused[0].contains(word)), "{refused:?}");
    for edit in [&(|bytes: &mut Vec<u8>| bytes[500] ^= 1) as &dyn Fn(&mut Vec<u8>), &|bytes| bytes.truncate(500)] {
        let refused = refusal(SEGMENT, edit).unwrap_err();
        assert!(refused.contains(SEGMENT) && refused.contains("from a backup"), "{refused}");
    }
    let refused = refusal("checkpoint", &|bytes| bytes[5] ^= 1).unwrap_err();
    assert!(refused.contains("`checkpoint`"), "{refused}");
}
