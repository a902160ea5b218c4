//! Old traces go, by whole files and with a word in the log, and nothing else does.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use super::{DAY_US, TRACES};
use crate::segment::next_frame;
use crate::story::memory::{Kind, MemoryDisk, TestClock};
use crate::story::{self, START_US, Told, check_told, facts, outcome, permit, principal, published, step};
use crate::{AuditConfig, AuditLog, BlastRadiusQuery, HoldReason, OpenLogError, PlaceHold, Storage as _, Suspect};
use audit_provenance::{Body, Disclosure, Entry, Keeping, Prune};
use audit_tlog::{TlogProof, leaf_hash};
use policies_domain::{Digest, Generation, PageId, RequestId, TenantName};
use std::num::NonZeroU32;
use std::sync::Arc;

/// Requests of each part of the history: some files of traces.
const REQUESTS: u8 = 120;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn open(disk: &MemoryDisk, day: u64, retention_days: Option<u32>) -> Result<AuditLog, OpenLogError> {
    let config = AuditConfig { retention_days: retention_days.and_then(NonZeroU32::new), ..story::config() };
    AuditLog::open_on(&config, Arc::new(disk.clone()), Arc::new(TestClock::at(START_US + day * DAY_US)))
}

async fn answer(log: &AuditLog, request: u8) -> Told {
    let acme = principal(1, "acme");
    let permit = permit(&acme, request);
    let mut entry = log.open_request(&permit, facts()).await.unwrap();
    let released = entry.check(step(&permit, 0, permit.label())).unwrap();
    entry.sent(b"payload", &released);
    let sealed = entry.seal(outcome()).await.unwrap().index;
    Told { who: acme, request, sealed: Some(sealed) }
}

/// Requests on the first day, and as many on the tenth.
fn history() -> (MemoryDisk, Vec<Told>) {
    history_of(REQUESTS)
}

fn history_of(requests: u8) -> (MemoryDisk, Vec<Told>) {
    let (disk, mut told) = (MemoryDisk::default(), Vec::new());
    for (day, first) in [(0, 1), (10, 1 + requests)] {
        let log = open(&disk, day, None).unwrap();
        runtime().block_on(async {
            for request in first..first + requests {
                told.push(answer(&log, request).await);
            }
        });
        log.shutdown();
    }
    (disk, told)
}

/// Lets whatever is due be done: it comes before the next entry.
fn turn(log: &AuditLog) {
    let audit = crate::IsolationAudit {
        verdict: crate::AuditVerdict::Isolated,
        result: Digest([0; 32]),
        arms: 1,
        power: 1,
        strongest: 1,
    };
    runtime().block_on(log.record_audit(&principal(1, "acme"), audit)).unwrap();
    published(log);
}

fn files(disk: &MemoryDisk, folder: &str) -> Vec<u64> {
    let mut files: Vec<u64> = disk.list(folder).unwrap().iter().map(|name| name.parse().unwrap()).collect();
    files.sort_unstable();
    files
}

fn entries(disk: &MemoryDisk) -> Vec<Entry> {
    let mut entries = Vec::new();
    for first in files(disk, "segments") {
        let bytes = disk.content(&crate::segment::segment_path(first)).unwrap();
        let mut rest = bytes.as_slice();
        while let Some((entry, _)) = next_frame(&mut rest) {
            entries.push(Entry::decode(entry).unwrap());
        }
    }
    entries
}

/// What was dropped, as a verifier takes it in.
fn prunes(disk: &MemoryDisk) -> Vec<Prune> {
    let (mut keeping, mut prunes) = (Keeping::default(), Vec::new());
    for (index, entry) in (0..).zip(entries(disk)) {
        keeping.note(index, Digest(leaf_hash(&entry.encode()).0), &entry).unwrap();
        if let Body::Prune(prune) = entry.body {
            prunes.push(prune);
        }
    }
    prunes
}

fn has_trace(log: &AuditLog, told: &Told) -> bool {
    let receipt = log.receipt(&told.who, RequestId::from_bytes([told.request; 16])).unwrap();
    let extra = TlogProof::parse(receipt.as_bytes()).unwrap().extra.unwrap();
    Disclosure::decode(&extra).unwrap().trace.is_some()
}

#[test]
fn nothing_is_dropped_unless_it_is_said_for_how_long_it_is_kept() {
    let (disk, told) = history();
    let log = open(&disk, 100_000, None).unwrap();
    turn(&log);
    assert_eq!(files(&disk, TRACES), files(&disk, "segments"));
    assert!(told.iter().all(|told| has_trace(&log, told)));
    log.shutdown();
    assert!(prunes(&disk).is_empty());
}

#[test]
fn what_is_older_goes_with_a_word_in_the_log_and_its_receipts_stay() {
    let (disk, told) = history();
    let tenth = entries(&disk).iter().position(|entry| entry.head.wall_us >= START_US + 10 * DAY_US).unwrap() as u64;
    let (segments, before) = (files(&disk, "segments"), files(&disk, TRACES));
    assert!(segments.len() > 3 && before == segments);
    let log = open(&disk, 20, Some(15)).unwrap();
    turn(&log);
    // The file that the tenth day begins in has traces of that day, and stays.
    let kept: Vec<u64> = segments.windows(2).filter(|pair| pair[1] > tenth).map(|pair| pair[0]).collect();
    let first = kept[0];
    assert!(first > 0 && files(&disk, TRACES)[0] == first);
    check_told(&log, &told);
    for told in &told {
        assert_eq!(has_trace(&log, told), told.sealed.unwrap() >= first, "request {}", told.request);
    }
    let readers = log.page_readers(PageId(7), Generation(1)).unwrap();
    let expected = |kept: bool| -> Vec<u64> {
        told.iter().filter_map(|told| told.sealed).filter(|sealed| (*sealed >= first) == kept).collect()
    };
    assert_eq!((readers.readers, readers.unknown), (expected(true), expected(false)));
    log.shutdown();
    drop(log);
    let dropped = prunes(&disk);
    assert_eq!(dropped.iter().map(|prune| (prune.before, prune.retention_days)).collect::<Vec<_>>(), [(first, 15)]);
    // A start drops nothing twice, makes no files anew, and takes away what came back from a backup.
    let backup = disk.content(&crate::segment::traces_path(first)).unwrap();
    disk.write(&crate::segment::traces_path(0), &backup).unwrap();
    let log = open(&disk, 21, Some(15)).unwrap();
    turn(&log);
    check_told(&log, &told);
    assert!(!has_trace(&log, &told[0]) && has_trace(&log, told.last().unwrap()));
    assert_eq!(files(&disk, TRACES)[0], first);
    log.shutdown();
    drop(log);
    assert_eq!(prunes(&disk).len(), 1);
    // What is dropped later comes on top.
    let log = open(&disk, 40, Some(15)).unwrap();
    turn(&log);
    assert_eq!(files(&disk, TRACES), files(&disk, "segments")[files(&disk, "segments").len() - 1..]);
    check_told(&log, &told);
    log.shutdown();
    assert_eq!(prunes(&disk).len(), 2);
}

#[test]
fn a_day_later_it_is_looked_at_again_and_not_before() {
    let (disk, _) = history();
    let clock = Arc::new(TestClock::at(START_US + 14 * DAY_US));
    let config = AuditConfig { retention_days: NonZeroU32::new(15), ..story::config() };
    let log = AuditLog::open_on(&config, Arc::new(disk.clone()), clock.clone()).unwrap();
    turn(&log);
    assert_eq!(files(&disk, TRACES)[0], 0);
    clock.set_wall(START_US + 20 * DAY_US);
    turn(&log);
    assert_eq!(files(&disk, TRACES)[0], 0, "it was looked at a moment ago");
    clock.set_mono(2 * DAY_US);
    turn(&log);
    turn(&log);
    assert!(files(&disk, TRACES)[0] > 0);
}

#[test]
fn what_is_held_is_not_dropped() {
    for (held_day, drops) in [(0, false), (30, true)] {
        let (disk, told) = history();
        let log = open(&disk, 12, None).unwrap();
        let (tenant, actor) = (TenantName::parse("acme").unwrap(), [1; 16]);
        let first_us = START_US + held_day * DAY_US;
        let hold = PlaceHold { tenant: Some(tenant), first_us, last_us: None, reason: HoldReason::Litigation, actor };
        let (hold, _) = runtime().block_on(log.place_hold(hold)).unwrap();
        log.shutdown();
        drop(log);
        let log = open(&disk, 20, Some(15)).unwrap();
        turn(&log);
        assert_eq!(files(&disk, TRACES)[0] > 0, drops, "held from day {held_day}");
        assert_eq!(has_trace(&log, &told[0]), !drops);
        runtime().block_on(log.release_hold(hold, [1; 16], [2; 16])).unwrap();
        log.shutdown();
        drop(log);
        let log = open(&disk, 21, Some(15)).unwrap();
        turn(&log);
        assert!(files(&disk, TRACES)[0] > 0);
        log.shutdown();
        prunes(&disk);
    }
}

#[test]
fn a_hold_from_the_middle_on_keeps_what_comes_after() {
    let (disk, told) = history();
    let log = open(&disk, 12, None).unwrap();
    let first_us = START_US + 5 * DAY_US;
    let hold = PlaceHold { tenant: None, first_us, last_us: None, reason: HoldReason::Incident, actor: [1; 16] };
    runtime().block_on(log.place_hold(hold)).unwrap();
    log.shutdown();
    drop(log);
    let log = open(&disk, 1_000, Some(15)).unwrap();
    turn(&log);
    assert!(!has_trace(&log, &told[0]));
    assert!(told.iter().skip(usize::from(REQUESTS)).all(|told| has_trace(&log, told)), "held, however old");
}

#[test]
fn whatever_fails_what_is_dropped_was_announced() {
    // One file of the first day is whole.
    let (whole, told) = history_of(60);
    // The segment that the entry goes to, and what is done then.
    let newest = files(&whole, "segments").pop().unwrap();
    let calls = [
        format!("sync {}", crate::segment::segment_path(newest)),
        "list traces".to_owned(),
        format!("remove {}", crate::segment::traces_path(0)),
        "sync folder traces".to_owned(),
    ];
    for call in &calls {
        for kind in [Kind::NotPersisted, Kind::Persisted, Kind::Half] {
            for power_lost in [false, true] {
                let disk = whole.copy();
                let log = open(&disk, 20, None).unwrap();
                published(&log);
                log.shutdown();
                drop(log);
                disk.fail_on(call, kind);
                if let Ok(log) = open(&disk, 21, Some(15)) {
                    // Committed and dropped, or stopped, before this comes to its turn.
                    let permit = permit(&principal(1, "acme"), 250);
                    drop(runtime().block_on(log.open_request(&permit, facts())));
                    log.shutdown();
                }
                assert_eq!(disk.heal().as_ref(), Some(call), "it was never reached");
                if power_lost {
                    disk.crash(0x9e37_79b9 + kind as u64);
                }
                let log = open(&disk, 22, None).unwrap_or_else(|error| panic!("{call}: {error}"));
                published(&log);
                check_told(&log, &told[..1]);
                check_told(&log, &told[told.len() - 1..]);
                log.shutdown();
                drop(log);
                let announced = prunes(&disk).last().map_or(0, |prune| prune.before);
                let there = files(&disk, TRACES);
                assert!(there.iter().all(|first| *first >= announced), "{call}: announced and not dropped");
                // Their names are not synced one by one, so a loss of power may take some.
                let wanted = files(&disk, "segments").into_iter().filter(|first| *first >= announced);
                let lost: Vec<u64> = wanted.filter(|first| !there.contains(first)).collect();
                assert!(lost.is_empty() || power_lost, "{call}: dropped and not announced: {lost:?}");
                let is_committed = call != &calls[0];
                assert!(announced > 0 || !is_committed, "{call}: what was committed is gone");
            }
        }
    }
}

#[test]
fn a_blast_radius_counts_what_was_dropped() {
    let (disk, told) = history();
    let log = open(&disk, 20, Some(15)).unwrap();
    turn(&log);
    log.shutdown();
    let dir = tempfile::tempdir().unwrap();
    for path in disk.paths() {
        let to = dir.path().join(&path);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::write(to, disk.content(&path).unwrap()).unwrap();
    }
    let suspect = Suspect::Page { page: PageId(7), generation: Some(Generation(1)) };
    let query = BlastRadiusQuery { suspect, transitive: false, through_public: false, threads: 1 };
    let answer = crate::blast_radius(dir.path(), &query, |_, _, _| {}).unwrap();
    let first = files(&disk, TRACES)[0];
    let dropped = told.iter().filter(|told| told.sealed.unwrap() < first).count() as u64;
    assert!(dropped > 0);
    assert_eq!((answer.rows.len() as u64, answer.unknown.trace_gone.count), (told.len() as u64 - dropped, dropped));
}
