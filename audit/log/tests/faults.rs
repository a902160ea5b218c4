//! One fault at every call of the storage, in every kind, with and without a loss of power: whatever was acknowledged is
//! in the log that the next start finds, and a log that failed takes nothing more.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod story;

use audit_log::{
    AppendError, AuditLog, AuditVerdict, EngineFaultClass, IsolationAudit, LogFault, OpenLogError, Outcome,
    ReceiptError, SealReason, Storage as _,
};
use audit_provenance::Body;
use policies_domain::{Digest, RequestId};
use std::sync::Arc;
use story::memory::{Kind, MemoryDisk, TestClock};
use story::{
    START_US, Told, check_told, config, entries, facts, history, open, outcome, permit, principal, published, run, step,
};

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

/// The next start finds what the last one wrote, but only in memory: a sync that failed leaves it there as if it were on the disk.
/// Whatever that start comes to, what it has published is not lost.
#[tokio::test]
async fn a_commit_whose_sync_failed_is_written_again_before_it_is_believed() {
    let disk = MemoryDisk::default();
    let log = open(&disk, START_US).unwrap();
    published(&log);
    disk.fail_on("sync slot", Kind::Half);
    log.open_request(&permit(&principal(1, "acme"), 1), facts()).await.unwrap_err();
    drop(log);
    assert_eq!(disk.heal().as_deref(), Some("sync slot"));
    for call in 0.. {
        let started = disk.copy();
        started.fail_at(call, Kind::NotPersisted);
        drop(open(&started, START_US + 100_000_000_000));
        if started.heal().is_none() {
            assert!(call > 10, "only {call} calls");
            break;
        }
        for seed in 1..8 {
            let disk = started.copy();
            disk.crash(seed * 0x9e37_79b9);
            open(&disk, START_US + 200_000_000_000).unwrap_or_else(|error| panic!("call {call}, seed {seed}: {error}"));
        }
    }
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
    let bundles = disk.paths().into_iter().filter(|path| path.starts_with("tile/entries"));
    let width: usize = bundles.map(|path| path.rsplit_once('/').unwrap().1.parse().unwrap()).max().unwrap();
    let next = format!("tile/0/000.p/{}", width + 1);
    disk.write(&next, b"other").unwrap();
    let refused = open(&disk, START_US + 100_000_000_000);
    assert!(matches!(refused, Err(OpenLogError::Fault(LogFault::Conflict { path })) if path == next));
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
    survives_losses_of_power(&disk, &told);
}

/// What was told is there after each of some losses of power, and the log goes on.
fn survives_losses_of_power(disk: &MemoryDisk, told: &[Told]) -> Vec<AuditLog> {
    let lost = |seed: u64| {
        let disk = disk.copy();
        disk.crash(seed * 0x9e37_79b9);
        let log = open(&disk, START_US + 200_000_000_000).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        check_told(&log, told);
        log
    };
    (1..20).map(lost).collect()
}

/// The process ended before the sync of the tiles' folder: the next one finds the tiles, under names that only memory has.
#[tokio::test]
async fn tiles_whose_folder_was_not_synced_survive_a_loss_of_power_later() {
    let acme = principal(1, "acme");
    for folder in ["tile/0", "tile/entries"] {
        let disk = MemoryDisk::default();
        let log = open(&disk, START_US).unwrap();
        disk.fail_on(&format!("sync folder {folder}"), Kind::NotPersisted);
        let mut told = Vec::new();
        for request in 1..=200 {
            let Ok(entry) = log.open_request(&permit(&acme, request), facts()).await else { break };
            told.push(Told { who: acme.clone(), request, sealed: None });
            let Ok(sealed) = entry.seal(outcome()).await else { break };
            told.last_mut().unwrap().sealed = Some(sealed.index);
        }
        log.shutdown();
        drop(log);
        assert!(disk.heal().is_some(), "the folder was never synced");
        let log = open(&disk, START_US + 100_000_000_000).unwrap();
        published(&log);
        log.shutdown();
        drop(log);
        survives_losses_of_power(&disk, &told);
    }
}

#[tokio::test]
async fn a_key_whose_folder_was_not_synced_survives_a_loss_of_power_later() {
    let acme = principal(1, "acme");
    for again in [false, true] {
        let disk = MemoryDisk::default();
        let mut log = open(&disk, START_US).unwrap();
        disk.fail_on("sync folder keys/tenants", Kind::NotPersisted);
        let refused = log.open_request(&permit(&acme, 1), facts()).await.unwrap_err();
        assert!(matches!(refused, AppendError::Key { .. }), "{refused}");
        assert!(disk.heal().is_some());
        if again {
            drop(log);
            log = open(&disk, START_US + 100_000_000_000).unwrap();
        }
        // The key is found, and used.
        let sealed = log.open_request(&permit(&acme, 2), facts()).await.unwrap().seal(outcome()).await.unwrap().index;
        log.shutdown();
        drop(log);
        let told = [Told { who: acme.clone(), request: 2, sealed: Some(sealed) }];
        for log in survives_losses_of_power(&disk, &told) {
            log.open_request(&permit(&acme, 3), facts()).await.unwrap().seal(outcome()).await.unwrap();
        }
    }
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
async fn what_the_engine_failed_has_a_fault_entry_and_ends_as_an_error() {
    let disk = MemoryDisk::default();
    let log = open(&disk, START_US).unwrap();
    let acme = principal(1, "acme");
    // Whatever its gateway claims, and also when its client leaves at that moment.
    for (request, ending) in [(1, Some(SealReason::Error)), (2, Some(SealReason::Stop)), (3, None)] {
        let of_acme = permit(&acme, request);
        let mut entry = log.open_request(&of_acme, facts()).await.unwrap();
        let released = entry.check(step(&of_acme, 0, of_acme.label())).unwrap();
        entry.sent(b"payload", &released);
        entry.engine_fault(EngineFaultClass::NotANumber);
        match ending {
            Some(reason) => drop(entry.seal(Outcome { reason, ..outcome() }).await.unwrap()),
            None => drop(entry),
        }
    }
    log.shutdown();
    let entries = entries(&disk);
    for request in 1..=3 {
        let request = RequestId::from_bytes([request; 16]);
        let of_request: Vec<&Body> = entries
            .iter()
            .map(|entry| &entry.body)
            .filter(|body| match body {
                Body::Fault(fault) => fault.request == request,
                Body::Sealed(sealed) => sealed.request == request,
                _ => false,
            })
            .collect();
        let [Body::Fault(fault), Body::Sealed(sealed)] = of_request[..] else { panic!("{of_request:?}") };
        assert_eq!((fault.class, fault.steps, fault.bytes_released), (EngineFaultClass::NotANumber, 1, 7));
        assert_eq!((fault.opened_index, fault.opened_leaf), (sealed.opened_index, sealed.opened_leaf));
        assert_eq!(sealed.reason, SealReason::Error);
    }
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

#[tokio::test]
async fn what_a_probe_says_is_an_entry_of_its_tenant_between_its_requests() {
    let disk = MemoryDisk::default();
    let log = open(&disk, START_US).unwrap();
    let acme = principal(1, "acme");
    let entry = log.open_request(&permit(&acme, 1), facts()).await.unwrap();
    let audit = IsolationAudit {
        verdict: AuditVerdict::Inconclusive,
        result: Digest([7; 32]),
        arms: 6,
        power: 9_000,
        strongest: 12,
    };
    let recorded = log.record_audit(&acme, audit.clone()).await.unwrap();
    let sealed = entry.seal(outcome()).await.unwrap();
    assert!(recorded.index < sealed.index);
    log.shutdown();
    let refused = log.record_audit(&acme, audit.clone()).await.unwrap_err();
    assert_eq!(refused, AppendError::Closed);
    let entries = entries(&disk);
    let written = &entries[usize::try_from(recorded.index).unwrap()];
    assert_eq!(written.body, Body::Audit(audit));
    let [opened, ended] = [1, 3].map(|index: usize| entries[index].head.tenant.unwrap());
    let link = written.head.tenant.unwrap();
    assert_eq!((link.tenant, link.number), (opened.tenant, 1));
    assert_eq!((ended.tenant, ended.number, ended.previous), (link.tenant, 2, recorded.leaf_hash));
    check_told(&log, &[Told { who: acme, request: 1, sealed: Some(sealed.index) }]);
}
