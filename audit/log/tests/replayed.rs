//! What came of computing an answer again, as entries.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod story;

use audit_log::{AuditLog, Outcome, ReplayOutcome, ReplayTime, Replayed, Violation};
use audit_provenance::{Body, Commitment, Disclosure, Entry, Field, IncidentClass, Replay, SealReason};
use audit_tlog::TlogProof;
use policies_domain::{Digest, RequestId};
use std::sync::Arc;
use story::memory::{MemoryDisk, TestClock};
use story::{entries, facts, outcome, permit, principal};

const DIGEST: Digest = Digest([9; 32]);

fn open(disk: &MemoryDisk) -> AuditLog {
    let clock = TestClock::at(1_796_000_000_000_000);
    AuditLog::open_on(&story::config(), Arc::new(disk.clone()), Arc::new(clock)).unwrap()
}

fn replayed(outcome: ReplayOutcome, when: ReplayTime) -> Replayed {
    Replayed { outcome, tokens: 12, first_difference: None, when, cpu_us: 7 }
}

#[tokio::test]
async fn what_was_computed_again_is_written_down_with_its_incident() {
    let disk = MemoryDisk::default();
    let log = open(&disk);
    let acme = principal(1, "acme");
    let mut sealed = Vec::new();
    for (request, found) in [(1, ReplayOutcome::Same), (2, ReplayOutcome::Different), (3, ReplayOutcome::NotDone)] {
        let entry = log.open_request(&permit(&acme, request), facts()).await.unwrap();
        let place = entry.seal(Outcome { replay: Some(DIGEST), ..outcome() }).await.unwrap();
        let incident = log.record_replay(&place, replayed(found, ReplayTime::AfterRelease)).await.unwrap();
        assert_eq!(incident.is_some(), found == ReplayOutcome::Different);
        sealed.push(place);
    }
    // Held back and not the same: the incident is there before the end.
    let mut entry = log.open_request(&permit(&acme, 4), facts()).await.unwrap();
    entry.fault(Violation::Replay);
    let refused = entry.refuse_as(Outcome { replay: Some(DIGEST), ..outcome() }).await.unwrap();
    let found = replayed(ReplayOutcome::Different, ReplayTime::BeforeRelease);
    assert_eq!(log.record_replay(&refused.sealed, found).await, Ok(None), "it has its incident already");
    log.shutdown();

    let entries = entries(&disk);
    let replays: Vec<&Replay> = entries
        .iter()
        .filter_map(|entry| if let Body::Replay(replay) = &entry.body { Some(replay) } else { None })
        .collect();
    let told: Vec<_> = replays.iter().map(|replay| (replay.request.bytes()[0], replay.outcome, replay.when)).collect();
    assert_eq!(
        told,
        [
            (1, ReplayOutcome::Same, ReplayTime::AfterRelease),
            (2, ReplayOutcome::Different, ReplayTime::AfterRelease),
            (3, ReplayOutcome::NotDone, ReplayTime::AfterRelease),
            (4, ReplayOutcome::Different, ReplayTime::BeforeRelease),
        ]
    );
    for (replay, place) in replays.iter().zip(&sealed) {
        assert_eq!((replay.sealed_index, replay.sealed_leaf), (place.index, place.leaf_hash));
    }
    let incidents: Vec<_> = entries
        .iter()
        .filter_map(|entry| if let Body::Incident(incident) = &entry.body { Some(incident) } else { None })
        .map(|incident| (incident.request.bytes()[0], incident.class))
        .collect();
    assert_eq!(incidents, [(2, IncidentClass::Replay), (4, IncidentClass::Replay)]);
    let reasons: Vec<_> = entries
        .iter()
        .filter_map(|entry| {
            if let Body::Sealed(sealed) = &entry.body { Some((sealed.reason, sealed.replay.is_some())) } else { None }
        })
        .collect();
    assert_eq!(reasons.last(), Some(&(SealReason::Isolation, true)));
}

#[tokio::test]
async fn a_receipt_opens_the_replay_digest_where_one_was_sealed() {
    let disk = MemoryDisk::default();
    let log = open(&disk);
    let acme = principal(1, "acme");
    for (request, replay) in [(1, Some(DIGEST)), (2, None)] {
        let entry = log.open_request(&permit(&acme, request), facts()).await.unwrap();
        entry.seal(Outcome { replay, ..outcome() }).await.unwrap();
    }
    log.shutdown();
    for (request, replay) in [(1, Some(DIGEST)), (2, None)] {
        let receipt = log.receipt(&acme, RequestId::from_bytes([request; 16])).unwrap();
        let disclosure = Disclosure::decode(&TlogProof::parse(receipt.as_bytes()).unwrap().extra.unwrap()).unwrap();
        let Body::Sealed(sealed) = Entry::decode(&disclosure.sealed).unwrap().body else { panic!("not sealed") };
        let salt = disclosure.openings.unwrap().replay;
        let opened = salt.zip(replay).map(|(salt, digest)| Commitment::of(Field::Replay, &salt, &digest.0));
        assert_eq!((sealed.replay, salt.is_some()), (opened, replay.is_some()));
    }
}
