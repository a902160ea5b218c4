//! One fault at every call of the storage, in every kind, with and without a loss of power: whatever was acknowledged is
//! in the log that the next start finds, and a log that failed takes nothing more.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod memory;

use audit_log::{
    AppendError, AuditConfig, AuditLog, LogFault, OpenLogError, Outcome, ReceiptError, RequestFacts, SealReason,
    Storage,
};
use audit_provenance::{Body, Disclosure, Entry, SealReason as Sealed};
use audit_tlog::{Checkpoint, TlogProof, VerifierKey, check_inclusion, leaf_hash};
use memory::{Kind, MemoryDisk, TestClock};
use policies_domain::{
    Completion, Digest, Generation, Label, ModelName, PageId, PageRead, PageTrace, Permit, PolicyDecision, Principal,
    RequestId, Step, TenantId, TenantName,
};
use std::sync::Arc;

const START_US: u64 = 1_796_000_000_000_000;

fn config() -> AuditConfig {
    let mut config = AuditConfig::new("unused", "log.example");
    config.build = Some(Digest([1; 32]));
    config.heartbeat = None;
    config
}

fn open(disk: &MemoryDisk, wall_us: u64) -> Result<AuditLog, OpenLogError> {
    AuditLog::open_on(&config(), Arc::new(disk.clone()), Arc::new(TestClock::at(wall_us)))
}

fn principal(number: u32, name: &str) -> Principal {
    Principal::authenticated(TenantId::new(number).unwrap(), TenantName::parse(name).unwrap())
}

fn permit(principal: &Principal, request: u8) -> Permit {
    let decision = PolicyDecision { rules: Digest([0; 32]), determining: vec!["rule".into()] };
    let request = RequestId::from_bytes([request; 16]);
    Permit::granted_by_authz(principal.clone(), request, ModelName::parse("m").unwrap(), decision)
}

fn step(permit: &Permit, index: u32, label: Label) -> Step {
    let pages = vec![PageRead { page: PageId(7), generation: Generation(1), label }];
    let (request, text) = (permit.request(), Completion::new("word".into()));
    Step { request, index, trace: PageTrace { pages }, restarted: false, tokens: 1, text, finish: None }
}

fn facts() -> RequestFacts<'static> {
    RequestFacts { body: b"{}", model: Digest([2; 32]), stream: true }
}

fn outcome() -> Outcome {
    let reason = SealReason::Stop;
    Outcome { reason, prompt_tokens: 1, completion_tokens: 1, queued_us: 1, prefill_us: 1, decode_us: 1 }
}

/// What a client was told.
#[derive(Debug)]
struct Told {
    who: Principal,
    request: u8,
    /// Index of the sealed entry, if it was acknowledged.
    sealed: Option<u64>,
}

/// Spins until all that is committed is published, or the log has stopped. The test's clock lets nothing wait.
fn published(log: &AuditLog) {
    loop {
        let health = log.health();
        if health.failed.is_some() || health.published == health.size {
            return;
        }
        std::thread::yield_now();
    }
}

/// Two tenants: one answer sealed, one dropped, one stopped by an isolation fault, one left open. Ends at the first error.
async fn run(log: &AuditLog, told: &mut Vec<Told>) -> Result<(), AppendError> {
    let (acme, globex) = (principal(1, "acme"), principal(2, "globex"));
    let first = permit(&acme, 1);
    let mut answer = log.open_request(&first, facts()).await?;
    told.push(Told { who: acme.clone(), request: 1, sealed: None });
    let dropped = log.open_request(&permit(&globex, 2), facts()).await?;
    told.push(Told { who: globex.clone(), request: 2, sealed: None });
    published(log);
    let released = answer.check(step(&first, 0, first.label())).unwrap();
    answer.sent(b"payload", &released);
    told[0].sealed = Some(answer.seal(outcome()).await?.index);
    drop(dropped);
    published(log);
    let third = permit(&acme, 3);
    let mut stopped = log.open_request(&third, facts()).await?;
    told.push(Told { who: acme.clone(), request: 3, sealed: None });
    stopped.check(step(&third, 0, Label::of(globex.tenant()))).unwrap_err();
    stopped.refuse().await?;
    let open = log.open_request(&permit(&globex, 4), facts()).await?;
    told.push(Told { who: globex, request: 4, sealed: None });
    // The process ends while this request is open.
    log.shutdown();
    drop(open);
    Ok(())
}

/// Everything that a client was told stands in the log, and verifies.
fn check_told(log: &AuditLog, told: &[Told]) {
    let key = VerifierKey::parse(&log.verifier_key()).unwrap();
    for told in told {
        let receipt = log.receipt(&told.who, RequestId::from_bytes([told.request; 16]));
        let receipt = receipt.unwrap_or_else(|error| panic!("request {}: {error}", told.request));
        let proof = TlogProof::parse(receipt.as_bytes()).unwrap();
        let checkpoint = Checkpoint::open(proof.checkpoint.as_bytes(), &key).unwrap();
        let disclosure = Disclosure::decode(&proof.extra.unwrap()).unwrap();
        let leaf = leaf_hash(&disclosure.sealed);
        check_inclusion(&proof.hashes, checkpoint.size, checkpoint.root, proof.index, leaf).unwrap();
        let Body::Sealed(sealing) = Entry::decode(&disclosure.sealed).unwrap().body else { panic!("not sealed") };
        match told.sealed {
            Some(index) => assert_eq!((proof.index, sealing.reason), (index, Sealed::Stop)),
            None => assert!(!matches!(sealing.reason, Sealed::Length | Sealed::Error), "request {}", told.request),
        }
    }
}

async fn one_fault(call: usize, kind: Kind, power_lost: bool) -> Option<String> {
    let disk = MemoryDisk::default();
    disk.fail_at(call, kind);
    let mut told = Vec::new();
    let mut committed = 0;
    if let Ok(log) = open(&disk, START_US) {
        let result = run(&log, &mut told).await;
        let health = log.health();
        committed = health.size;
        if health.failed.is_some() {
            let again = log.open_request(&permit(&principal(1, "acme"), 9), facts()).await.unwrap_err();
            assert!(matches!(again, AppendError::Failed { .. } | AppendError::Closed), "{again}");
        } else {
            assert!(result.is_ok() || disk.copy().content("slot").is_some());
        }
    }
    let failed = disk.heal()?;
    if power_lost {
        disk.crash(call as u64 * 0x9e37_79b9 + 77);
    }
    let log = open(&disk, START_US + 100_000_000_000)
        .unwrap_or_else(|error| panic!("fault {kind:?} at {call} ({failed}), power lost: {power_lost}: {error}"));
    assert!(log.health().size >= committed, "{failed}");
    check_told(&log, &told);
    // And it goes on.
    let mut more = Vec::new();
    let extra = permit(&principal(1, "acme"), 8);
    let entry = log.open_request(&extra, facts()).await.unwrap();
    let index = entry.seal(outcome()).await.unwrap().index;
    more.push(Told { who: principal(1, "acme"), request: 8, sealed: Some(index) });
    log.shutdown();
    check_told(&log, &more);
    Some(failed)
}

async fn every_fault(kind: Kind) {
    let mut met = std::collections::BTreeSet::new();
    for power_lost in [false, true] {
        for call in 0.. {
            let Some(failed) = one_fault(call, kind, power_lost).await else {
                assert!(call > 100, "only {call} calls: the faults do not reach the log");
                break;
            };
            met.insert(failed.split(' ').next().unwrap_or_default().to_owned());
        }
    }
    for call in ["open", "write", "rename", "sync", "read"] {
        assert!(met.contains(call), "no `{call}` ever failed");
    }
}

#[tokio::test]
async fn a_call_that_failed_and_did_nothing() {
    every_fault(Kind::NotPersisted).await;
}

#[tokio::test]
async fn a_call_that_failed_and_was_done() {
    every_fault(Kind::Persisted).await;
}

#[tokio::test]
async fn a_call_that_failed_half_way() {
    every_fault(Kind::Half).await;
}

#[tokio::test]
async fn a_full_disk_stops_the_log_and_space_heals_it() {
    let disk = MemoryDisk::default();
    let log = open(&disk, START_US).unwrap();
    let acme = principal(1, "acme");
    let entry = log.open_request(&permit(&acme, 1), facts()).await.unwrap();
    published(&log);
    disk.fill_at(0);
    let refused = log.open_request(&permit(&acme, 2), facts()).await.unwrap_err();
    assert!(matches!(&refused, AppendError::Failed { reason } if reason.contains("append to")), "{refused}");
    assert!(matches!(entry.seal(outcome()).await, Err(AppendError::Failed { .. })));
    assert_eq!(log.open_request(&permit(&acme, 3), facts()).await.unwrap_err(), refused);
    assert!(log.health().failed.is_some());
    log.shutdown();
    // Without space it does not open; with space it does, and owns up to the request that was cut off.
    assert!(matches!(open(&disk, START_US + 100_000_000_000), Err(OpenLogError::Fault(LogFault::Storage { .. }))));
    assert!(disk.heal().is_some());
    let log = open(&disk, START_US + 200_000_000_000).unwrap();
    check_told(&log, &[Told { who: acme.clone(), request: 1, sealed: None }]);
    assert_eq!(log.receipt(&acme, RequestId::from_bytes([2; 16])), Err(ReceiptError::NotFound));
}

/// A log with some history, closed.
async fn history() -> MemoryDisk {
    let disk = MemoryDisk::default();
    let log = open(&disk, START_US).unwrap();
    run(&log, &mut Vec::new()).await.unwrap();
    disk
}

#[tokio::test]
async fn a_clock_that_goes_back_stops_the_log() {
    let disk = MemoryDisk::default();
    let clock = Arc::new(TestClock::at(START_US));
    let log = AuditLog::open_on(&config(), Arc::new(disk.clone()), clock.clone()).unwrap();
    clock.set_wall(START_US - 1_000_000_000);
    let refused = log.open_request(&permit(&principal(1, "acme"), 1), facts()).await.unwrap_err();
    assert!(matches!(&refused, AppendError::Failed { reason } if reason.contains("clock")), "{refused}");
    log.shutdown();
    assert!(matches!(open(&disk, START_US - 1), Err(OpenLogError::Fault(LogFault::Clock { .. }))));
    assert!(open(&disk, START_US + 100_000_000_000).is_ok());
}

/// The disk answers with another entry, whole and with right sums: only its hash tells that it is not the one written.
#[tokio::test]
async fn an_entry_that_is_not_read_back_as_written_is_never_signed() {
    let disk = MemoryDisk::default();
    let log = open(&disk, START_US).unwrap();
    let acme = principal(1, "acme");
    // The second and third entries of a tenant have the same length; the first has no predecessor.
    let _first = log.open_request(&permit(&acme, 1), facts()).await.unwrap();
    let _second = log.open_request(&permit(&acme, 2), facts()).await.unwrap();
    published(&log);
    let size = log.health().size;
    disk.misdirect_next_read();
    let refused = log.open_request(&permit(&acme, 3), facts()).await.unwrap_err();
    assert!(matches!(refused, AppendError::Failed { .. }), "{refused}");
    assert_eq!(log.health().size, size, "a head was signed over an entry that is not there");
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
async fn a_second_writer_that_got_past_the_lock_loses_at_the_slot() {
    let disk = MemoryDisk::default();
    let first = open(&disk, START_US).unwrap();
    let second = open(&disk, START_US + 100_000_000_000).unwrap();
    let refused = first.open_request(&permit(&principal(1, "acme"), 1), facts()).await.unwrap_err();
    assert!(
        matches!(&refused, AppendError::Failed { reason } if reason.contains("changed by somebody else")),
        "{refused}"
    );
    drop(second);
}

#[tokio::test]
async fn a_published_tile_with_other_content_stops_the_log() {
    let disk = history().await;
    let tile = disk.paths().into_iter().rfind(|path| path.starts_with("tile/entries")).unwrap();
    let width: usize = tile.rsplit_once('/').unwrap().1.parse().unwrap();
    let next = format!("tile/0/000.p/{}", width + 1);
    disk.write(&next, b"other").unwrap();
    let refused = open(&disk, START_US + 100_000_000_000);
    assert!(matches!(refused, Err(OpenLogError::Fault(LogFault::Conflict { path })) if path == next));
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
    assert!(matches!(edit("keys/pseudonym.key", Some("00")), Err(OpenLogError::SecretForm { .. })));
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
    let key = disk.paths().into_iter().find(|path| path.starts_with("keys/tenants/acme.")).unwrap();
    disk.remove(&key).unwrap();
    let log = open(&disk, START_US + 100_000_000_000).unwrap();
    let told = |who, request| Told { who, request, sealed: None };
    check_told(&log, &[told(principal(1, "acme"), 1), told(principal(2, "globex"), 2)]);
    let openings = |who: &Principal, request| {
        let receipt = log.receipt(who, RequestId::from_bytes([request; 16])).unwrap();
        Disclosure::decode(&TlogProof::parse(receipt.as_bytes()).unwrap().extra.unwrap()).unwrap().openings
    };
    assert!(openings(&principal(1, "acme"), 1).is_none());
    assert!(openings(&principal(2, "globex"), 2).is_some());
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
async fn entries_whose_waiters_are_gone_are_sealed() {
    let disk = MemoryDisk::default();
    let log = open(&disk, START_US).unwrap();
    let acme = principal(1, "acme");
    // The tenant's key is made with its first request; from then on one poll is enough to queue a draft.
    log.open_request(&permit(&acme, 1), facts()).await.unwrap().seal(outcome()).await.unwrap();
    for request in 2..=20 {
        let permit = permit(&acme, request);
        let mut opening = Box::pin(log.open_request(&permit, facts()));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let _maybe_ready = opening.as_mut().poll(&mut context).map(drop);
    }
    log.shutdown();
    drop(log);
    let log = open(&disk, START_US + 100_000_000_000).unwrap();
    let told: Vec<_> = (1..=20).map(|request| Told { who: acme.clone(), request, sealed: None }).collect();
    check_told(&log, &told);
}

#[tokio::test]
async fn complete_tiles_survive_a_loss_of_power() {
    let disk = MemoryDisk::default();
    let log = open(&disk, START_US).unwrap();
    let acme = principal(1, "acme");
    let mut told = Vec::new();
    for request in 1..=200 {
        let entry = log.open_request(&permit(&acme, request), facts()).await.unwrap();
        let index = entry.seal(outcome()).await.unwrap().index;
        told.push(Told { who: acme.clone(), request, sealed: Some(index) });
    }
    published(&log);
    log.shutdown();
    drop(log);
    for seed in 1..20 {
        let disk = disk.copy();
        disk.crash(seed * 0x9e37_79b9);
        check_told(&open(&disk, START_US + 100_000_000_000).unwrap(), &told);
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
async fn a_full_queue_refuses_new_requests_and_takes_what_is_owed() {
    let disk = MemoryDisk::default();
    let mut config = config();
    config.queue_max = 0;
    let log = AuditLog::open_on(&config, Arc::new(disk), Arc::new(TestClock::at(START_US))).unwrap();
    let refused = log.open_request(&permit(&principal(1, "acme"), 1), facts()).await.unwrap_err();
    assert!(matches!(refused, AppendError::Busy { retry_after_ms } if retry_after_ms > 0));
}

#[tokio::test]
async fn refusing_without_a_violation_is_an_error_and_seals() {
    let disk = MemoryDisk::default();
    let log = open(&disk, START_US).unwrap();
    let acme = principal(1, "acme");
    let entry = log.open_request(&permit(&acme, 1), facts()).await.unwrap();
    assert_eq!(entry.refuse().await.unwrap_err(), AppendError::NoViolation);
    log.shutdown();
    check_told(&log, &[Told { who: acme, request: 1, sealed: None }]);
}
