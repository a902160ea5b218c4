//! What came of the gateway's trying its own detectors: an entry each time, and one incident from the first that failed to the
//! next that passed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod story;

use audit_log::{
    AppendError, AuditLog, Containment, Detected, DetectorTrial, IncidentMove, IncidentReport, IncidentStage,
};
use audit_provenance::Body;
use policies_domain::{Digest, TenantName, Trial};
use story::memory::MemoryDisk;
use story::{START_US, entries, open, principal, published};

fn tried(gate_works: bool) -> Vec<DetectorTrial> {
    let of = |detector: &str, fault_found| DetectorTrial {
        detector: detector.to_owned(),
        trial: Trial { control_passed: true, fault_found },
    };
    vec![of("gate", gate_works), of("seal", true)]
}

fn incidents(log: &AuditLog) -> Vec<IncidentReport> {
    log.incident_reports().unwrap().0
}

#[test]
fn each_self_test_is_an_entry_of_nobody() {
    let disk = MemoryDisk::default();
    let log = open(&disk, START_US).unwrap();
    for _ in 0..2 {
        let (recorded, incident) = log.record_self_test(tried(true)).unwrap();
        assert_eq!((recorded.index < log.health().size, incident), (true, None));
    }
    assert!(incidents(&log).is_empty());
    published(&log);
    log.shutdown();
    let tests: Vec<_> = entries(&disk).into_iter().filter(|entry| matches!(entry.body, Body::SelfTest(_))).collect();
    assert_eq!(tests.len(), 2);
    for entry in tests {
        let Body::SelfTest(test) = entry.body else { panic!("another entry") };
        assert_eq!((entry.head.tenant, test.incident, test.detectors), (None, None, tried(true)));
    }
}

#[test]
fn a_failure_is_one_incident_until_a_self_test_passes() {
    let disk = MemoryDisk::default();
    let log = open(&disk, START_US).unwrap();
    let (recorded, first) = log.record_self_test(tried(false)).unwrap();
    let report = incidents(&log).pop().unwrap();
    assert_eq!((Some(report.id), report.index, report.stage()), (first, recorded.index, IncidentStage::Detected));
    let Detected::SelfTest(test) = &report.detected else { panic!("{report:?}") };
    assert_eq!(test.failed(), ["gate"]);
    assert!(log.incidents_of(&principal(1, "acme")).unwrap().is_empty(), "it is no tenant's");
    assert_eq!(log.record_self_test(tried(false)).unwrap().1, first, "it goes on");
    log.shutdown();
    drop(log);

    // A start does not make another one of it.
    let log = open(&disk, START_US + 60_000_000).unwrap();
    assert_eq!(log.record_self_test(tried(false)).unwrap().1, first);
    assert_eq!(incidents(&log).len(), 1);
    assert_eq!(log.record_self_test(tried(true)).unwrap().1, None);
    assert_eq!(log.record_self_test(tried(true)).unwrap().1, None);
    let report = incidents(&log).pop().unwrap();
    let moves: Vec<_> = report.moves.iter().map(|moved| (moved.state.state, moved.state.actor)).collect();
    assert_eq!(moves, [(IncidentStage::Contained, None)], "it is over once");
    assert_eq!(report.moves[0].state.action, Containment::EngineDrained);
    // The next time is another one.
    let (_, second) = log.record_self_test(tried(false)).unwrap();
    assert!(second.is_some() && second != first);
    assert_eq!(incidents(&log).len(), 2);
    assert_eq!(log.health().failed, None);
}

#[test]
fn what_goes_on_after_persons_have_closed_it_is_another_incident() {
    let disk = MemoryDisk::default();
    let log = open(&disk, START_US).unwrap();
    let (_, first) = log.record_self_test(tried(false)).unwrap();
    let [actor, second] = ["ada", "ben"].map(|name| Some(log.actor(&TenantName::parse(name).unwrap())));
    let closing = IncidentMove {
        incident: first.unwrap(),
        to: IncidentStage::FalsePositive,
        actor,
        second,
        evidence: Some(Digest([7; 32])),
        action: Containment::None,
        notice: None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(log.move_incident(closing)).unwrap();
    let (_, next) = log.record_self_test(tried(false)).unwrap();
    assert!(next.is_some() && next != first);
}

#[test]
fn what_no_entry_can_tell_of_is_not_recorded() {
    let disk = MemoryDisk::default();
    let log = open(&disk, START_US).unwrap();
    let size = log.health().size;
    let twice = [tried(true), tried(true)].concat();
    for detectors in [Vec::new(), twice] {
        assert_eq!(log.record_self_test(detectors).unwrap_err(), AppendError::SelfTest);
    }
    assert_eq!((log.health().size, log.health().failed), (size, None));
}
