//! What a gateway does with its self-tests. When they are due is not waited for.

use super::*;
use crate::metrics::SelfTestMetrics;
use audit_log::{AuditConfig, Detected, IncidentReport, IncidentStage};
use policies_domain::{
    Binding, Canary, Completion, ConnectionId, Epoch, Generation, Label, Layer, PageId, PageRead, PageTrace, SealKey,
    Step,
};
use std::path::Path;

fn log(folder: &Path) -> AuditLog {
    AuditLog::open(AuditConfig::new(folder.join("log"), "localhost/test")).unwrap()
}

/// A detector that works as long as it is said to.
fn detector(works: &Arc<AtomicBool>) -> Detector {
    let works = Arc::clone(works);
    Detector::new("gate", move || Trial { control_passed: true, fault_found: works.load(Ordering::SeqCst) })
}

/// Of these detectors, in an hour again.
fn start(detectors: Vec<Detector>, log: &AuditLog) -> SelfTests {
    SelfTests::start(Some(Duration::from_secs(3_600)), detectors, log.clone(), SelfTestMetrics::unread()).unwrap()
}

fn incidents(log: &AuditLog) -> Vec<IncidentReport> {
    log.incident_reports().unwrap().0
}

#[test]
fn while_a_detector_does_not_work_nobody_is_answered() {
    let (folder, works) = (tempfile::tempdir().unwrap(), Arc::new(AtomicBool::new(true)));
    let log = log(folder.path());
    let before = log.health().size;
    let tests = start(vec![detector(&works)], &log);
    assert!(tests.ask().is_ok());
    assert_eq!(log.health().size, before + 1, "one is in the log before anybody is answered");
    let last = tests.describe();
    assert_eq!((&last["answering"], &last["last"]["passed"]), (&json!(true), &json!(true)));
    assert_eq!(last["last"]["detectors"][0], json!({"detector": "gate", "control_passed": true, "fault_found": true}));

    works.store(false, Ordering::SeqCst);
    tests.shared.try_all();
    let Err(RequestError::DetectorFailed { retry_after_ms }) = tests.ask() else { panic!("it answers") };
    assert_eq!(retry_after_ms, 60_000, "it is not an hour until the next one");
    let report = incidents(&log).pop().unwrap();
    assert!(matches!(&report.detected, Detected::SelfTest(test) if test.failed() == ["gate"]), "{report:?}");
    assert_eq!(tests.describe()["last"]["incident"], report.id.to_string());
    tests.shared.try_all();
    assert!(tests.ask().is_err() && incidents(&log).len() == 1, "it goes on");

    works.store(true, Ordering::SeqCst);
    tests.shared.try_all();
    assert!(tests.ask().is_ok());
    assert_eq!(incidents(&log).pop().unwrap().stage(), IncidentStage::Contained);
    assert_eq!(log.health().size, before + 5, "four self-tests, and the end of the incident");
}

#[test]
fn a_detector_that_is_dead_at_the_start_answers_nobody() {
    let (folder, works) = (tempfile::tempdir().unwrap(), Arc::new(AtomicBool::new(false)));
    let log = log(folder.path());
    let tests = start(vec![detector(&Arc::new(AtomicBool::new(true))), Detector::new("seal", Trial::default)], &log);
    assert!(tests.ask().is_err());
    let tests = start(vec![detector(&works)], &log);
    assert!(tests.ask().is_err());
    assert_eq!(incidents(&log).len(), 1);
}

#[test]
fn a_detector_that_panics_does_not_work() {
    let folder = tempfile::tempdir().unwrap();
    let log = log(folder.path());
    let tests = start(vec![Detector::new("gate", || panic!("as a kernel that is handed nonsense"))], &log);
    assert!(tests.ask().is_err());
    assert_eq!(incidents(&log).len(), 1);
}

#[test]
fn what_cannot_be_written_down_answers_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let log = log(folder.path());
    let tests = start(vec![detector(&Arc::new(AtomicBool::new(true)))], &log);
    assert!(tests.ask().is_ok());
    log.shutdown();
    tests.shared.try_all();
    assert!(tests.ask().is_err());
}

#[test]
fn without_a_period_nothing_is_tried() {
    let folder = tempfile::tempdir().unwrap();
    let log = log(folder.path());
    let size = log.health().size;
    let dead = Detector::new("gate", Trial::default);
    let tests = SelfTests::start(None, vec![dead], log.clone(), SelfTestMetrics::unread()).unwrap();
    assert!(tests.ask().is_ok());
    assert_eq!((log.health().size, &tests.describe()["last"]), (size, &Value::Null));
}

/// A canary's first step that read a page of this label.
fn step(reader: Canary, label: Label) -> Step {
    let pages = vec![PageRead { page: PageId(0), generation: Generation(1), label, shared: false }];
    let binding = Binding { request: reader.request(), label: reader.label(), connection: ConnectionId(0) };
    let seal = SealKey::from_bytes([0; 32]).sealer(Layer::Text, binding).seal(Epoch(0), 0, b"", None);
    let (request, text) = (reader.request(), Completion::new(String::new()));
    let trace = PageTrace { kept: 0, pages };
    Step { request, index: 0, trace, restarted: false, tokens: 0, text, finish: None, seal }
}

#[test]
fn the_gate_is_tried_with_a_control_and_with_a_fault() {
    let of = |reader: Canary, page_of: Canary| step(reader, page_of.label());
    assert!(gate::tried(of).passed());
    let own = gate::tried(|reader, _| step(reader, reader.label()));
    assert_eq!((own.control_passed, own.fault_found), (true, false), "where it stops nothing it does not work");
    let foreign = gate::tried(|reader, _| step(reader, Canary::B.label()));
    assert_eq!((foreign.control_passed, foreign.fault_found), (false, true), "nor where it lets nothing pass");
    // Stopped for another reason is not found.
    let other = gate::tried(|reader, page_of| Step { index: 1, ..step(reader, page_of.label()) });
    assert_eq!((other.control_passed, other.fault_found), (false, false));
    let nobodys = gate::tried(|reader, page_of| match page_of == reader {
        true => step(reader, reader.label()),
        false => step(reader, Label::NOBODY),
    });
    assert_eq!((nobodys.control_passed, nobodys.fault_found), (true, false));
}

#[test]
fn the_seals_and_the_log_are_tried() {
    assert!(seal::tried().passed(), "{:?}", seal::tried());
    let folder = tempfile::tempdir().unwrap();
    let log = log(folder.path());
    assert!(log.try_inclusion().passed(), "of the first entry");
    let tests = start(vec![detector(&Arc::new(AtomicBool::new(true)))], &log);
    tests.shared.try_all();
    assert!(log.try_inclusion().passed(), "of a self-test, as soon as it is published");
}
