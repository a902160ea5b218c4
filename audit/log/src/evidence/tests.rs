//! What is gathered against what is there, at every kind of edge, and folders in which something was changed.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use super::*;
use crate::segment::segment_path;
use crate::story::memory::TestClock;
use crate::story::{self, START_US, facts, outcome, principal};
use crate::{AuditConfig, AuditLog, FolderStorage, TenantNames};
use audit_provenance::{Commitment, Field};
use audit_tlog::{check_inclusion, leaf_hash};
use policies_domain::{Digest, Label, ModelName, Permit, PolicyDecision, Principal, RequestId};
use std::sync::Arc;

/// Several segments of the small ones that tests have, and more than one tile.
const REQUESTS: u64 = 300;

struct History {
    folder: tempfile::TempDir,
    /// Still written to.
    log: AuditLog,
}

fn permit(who: &Principal, number: u64) -> Permit {
    let decision = PolicyDecision { rules: Digest([0; 32]), determining: vec!["rule".into()] };
    let request = RequestId::from_bytes((u128::from(number + 1) << 64 | 9).to_be_bytes());
    Permit::granted_by_authz(who.clone(), request, ModelName::parse("m").unwrap(), decision)
}

/// Every seventh request of acme's meets a page of globex'.
fn history() -> History {
    let folder = tempfile::tempdir().unwrap();
    let config = AuditConfig { build: Some(Digest([1; 32])), ..story::config() };
    let storage = Arc::new(FolderStorage::open(&folder.path().join("log")).unwrap());
    let log = AuditLog::open_on(&config, storage, Arc::new(TestClock::at(START_US))).unwrap();
    let (acme, globex) = (principal(1, "acme"), principal(2, "globex"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for number in 0..REQUESTS {
        let who = if number % 3 == 0 { &globex } else { &acme };
        runtime.block_on(async {
            let permit = permit(who, number);
            let mut entry = log.open_request(&permit, facts()).await.unwrap();
            if number % 7 == 1 && who == &acme {
                entry.check(story::step(&permit, 0, Label::of(globex.tenant()))).unwrap_err();
                entry.refuse().await.unwrap();
                return;
            }
            let released = entry.check(story::step(&permit, 0, permit.label())).unwrap();
            entry.sent(b"payload", &released);
            entry.seal(outcome()).await.unwrap();
        });
    }
    story::published(&log);
    History { folder, log }
}

impl History {
    fn dir(&self) -> std::path::PathBuf {
        self.folder.path().join("log")
    }

    fn ask(&self, name: &str, from_us: u64, to_us: u64) -> Result<Gathered, EvidenceError> {
        let name = policies_domain::TenantName::parse(name).unwrap();
        let tenant = TenantNames::read(&self.dir()).unwrap().reference(&name);
        let query = EvidenceQuery { tenant, name, time_us: from_us..=to_us, entries_max: 2_000, threads: 2 };
        gather_evidence(&self.dir(), &query, |_, _, _| {})
    }

    /// Every entry that is committed, as the segments have it.
    fn entries(&self) -> Vec<(u64, Entry)> {
        let folder = Folder::open(&self.dir(), self.log.health().published).unwrap();
        let mut all = Vec::new();
        for segment in 0..folder.segments() {
            let bytes = folder.entries(segment).unwrap();
            let mut rest = bytes.as_slice();
            for index in folder.range(segment) {
                all.push((index, Entry::decode(next_frame(&mut rest).unwrap().0).unwrap()));
            }
        }
        all
    }
}

#[test]
fn what_is_gathered_is_the_tenants_and_proven_at_every_edge_of_the_time() {
    let history = history();
    let all = history.entries();
    for name in ["acme", "globex"] {
        let parsed = policies_domain::TenantName::parse(name).unwrap();
        let tenant = TenantNames::read(&history.dir()).unwrap().reference(&parsed);
        let ours: Vec<(u64, u64, bool)> = all
            .iter()
            .filter(|(_, entry)| entry.head.tenant.is_some_and(|link| link.tenant == tenant))
            .map(|(index, entry)| (*index, entry.head.wall_us, !matches!(entry.body, Body::Incident(_))))
            .collect();
        let last = ours.len() - 1;
        for (first, end) in [(0, last), (0, 0), (last, last), (1, last - 1), (17, 130), (50, 51), (40, 44), (41, 44)] {
            let (from_us, to_us) = (ours[first].1, ours[end].1);
            let gathered = history.ask(name, from_us, to_us).unwrap();
            // Written down once more: from the last given one before the time to the first given one after it.
            let before =
                ours.iter().filter(|(_, wall, given)| *given && *wall < from_us).map(|(index, ..)| *index).max();
            let after = ours.iter().filter(|(_, wall, given)| *given && *wall > to_us).map(|(index, ..)| *index).min();
            let (low, high) = (before.unwrap_or(0), after.unwrap_or(u64::MAX));
            let wanted: Vec<(u64, bool)> = ours
                .iter()
                .filter(|(index, ..)| (low..=high).contains(index))
                .map(|(index, _, given)| (*index, *given))
                .collect();
            let held: Vec<(u64, bool)> =
                gathered.entries.iter().map(|proven| (proven.index, proven.entry.is_some())).collect();
            assert_eq!(held, wanted);
            let withheld: Vec<u64> = gathered.withheld.iter().map(|(index, ..)| *index).collect();
            assert_eq!(
                withheld,
                wanted.iter().filter(|(_, given)| !given).map(|(index, _)| *index).collect::<Vec<_>>()
            );
            let checkpoint = &gathered.checkpoint;
            for Proven { index, leaf, entry, proof } in &gathered.entries {
                check_inclusion(proof, checkpoint.size, checkpoint.root, *index, *leaf).unwrap();
                assert!(entry.as_ref().is_none_or(|entry| leaf_hash(entry) == *leaf));
            }
            if let Some((index, salt)) = gathered.name {
                let (_, entry) = &all[usize::try_from(index).unwrap()];
                let Body::Opened(opened) = &entry.body else { panic!("not opened") };
                assert_eq!(Commitment::of(Field::Tenant, &salt, name.as_bytes()), opened.tenant_name);
            }
        }
    }
}

#[test]
fn a_victim_is_told_of_incidents_and_a_recipient_has_its_own() {
    let history = history();
    let incidents = history.entries().iter().filter(|(_, entry)| matches!(entry.body, Body::Incident(_))).count();
    assert!(incidents > 10);
    let victim = history.ask("globex", 0, u64::MAX).unwrap();
    assert_eq!(victim.as_victim.len(), incidents);
    assert!(victim.as_victim.iter().all(|(at, _, stage, updated)| *stage == IncidentStage::Contained && updated >= at));
    assert!(history.ask("acme", 0, u64::MAX).unwrap().as_victim.is_empty());
}

#[test]
fn self_tests_of_the_time_are_counted_and_no_others() {
    let history = history();
    let tried = |fault_found| {
        let trial = policies_domain::Trial { control_passed: true, fault_found };
        vec![audit_provenance::DetectorTrial { detector: "gate".into(), trial }]
    };
    for works in [true, false, false, true] {
        history.log.record_self_test(tried(works)).unwrap();
    }
    story::published(&history.log);
    let at: Vec<u64> = history
        .entries()
        .iter()
        .filter(|(_, entry)| matches!(entry.body, Body::SelfTest(_)))
        .map(|(_, entry)| entry.head.wall_us)
        .collect();
    let longest = |times: &[u64]| times.windows(2).map(|two| two[1] - two[0]).max().unwrap_or(0);
    let asked = |from: u64, to: u64| {
        let SelfTestsFound { tests, failed, longest_gap_us, .. } = history.ask("acme", from, to).unwrap().self_tests;
        (tests, failed, longest_gap_us)
    };
    assert_eq!(asked(0, u64::MAX), (4, 2, longest(&at)));
    assert_eq!(asked(0, at[1]), (2, 1, at[1] - at[0]));
    assert_eq!(asked(0, at[0]), (1, 0, 0));
    assert_eq!(asked(0, at[0] - 1), (0, 0, 0));
}

#[test]
fn nobody_and_no_time_give_no_evidence() {
    let history = history();
    assert!(matches!(history.ask("nobody", 0, u64::MAX), Err(EvidenceError::UnknownTenant)));
    for (from, to) in [(0, 1), (u64::MAX - 1, u64::MAX)] {
        assert!(matches!(history.ask("acme", from, to), Err(EvidenceError::EmptyTime { entries: 400.. })), "{from}");
    }
    let name = policies_domain::TenantName::parse("acme").unwrap();
    let tenant = TenantNames::read(&history.dir()).unwrap().reference(&name);
    let query = EvidenceQuery { tenant, name, time_us: 0..=u64::MAX, entries_max: 10, threads: 1 };
    let refused = gather_evidence(&history.dir(), &query, |_, _, _| {});
    assert!(matches!(refused, Err(EvidenceError::TooMany { entries: 400.., entries_max: 10 })), "{refused:?}");
}

#[test]
fn a_log_in_which_something_is_missing_or_changed_gives_no_evidence() {
    let history = history();
    history.log.shutdown();
    let path = history.dir().join(segment_path(0));
    let bytes = std::fs::read(&path).unwrap();
    for place in [20, 60, bytes.len() / 2, bytes.len() - 3] {
        let mut changed = bytes.clone();
        changed[place] ^= 1;
        std::fs::write(&path, changed).unwrap();
        assert!(matches!(history.ask("acme", 0, u64::MAX), Err(EvidenceError::Log(_))), "byte {place}");
    }
    std::fs::write(&path, &bytes).unwrap();
    assert!(history.ask("acme", 0, u64::MAX).is_ok());
    // An entry that another one was put in the place of, with all sums as they have to be.
    let mut rest = bytes.as_slice();
    let mut frames = Vec::new();
    let mut number = 0;
    while let Some((entry, leaf)) = next_frame(&mut rest) {
        let mut entry = Entry::decode(entry).unwrap();
        if number == 5 {
            entry.head.blind[0] ^= 1;
        }
        let bytes = entry.encode();
        let leaf = if number == 5 { leaf_hash(&bytes) } else { leaf };
        crate::segment::encode_frame(&mut frames, leaf, &bytes).unwrap();
        number += 1;
    }
    std::fs::write(&path, frames).unwrap();
    let refused = history.ask("globex", 0, u64::MAX);
    assert!(matches!(refused, Err(EvidenceError::Log(BlastRadiusError::Root { .. }))), "{refused:?}");
}
