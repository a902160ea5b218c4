//! What becomes of an incident: what the program writes by itself, what it refuses to write, and what the next start knows.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod story;

use audit_log::{
    AppendError, AuditLog, Containment, IncidentId, IncidentMove, IncidentMoveError, IncidentSide, IncidentStage,
};
use policies_domain::{Digest, Label, TenantName};
use story::memory::MemoryDisk;
use story::{START_US, facts, open, permit, principal, step};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// A request of acme's that read a page of globex', of whom the log has heard.
async fn leak(log: &AuditLog, request: u8) -> IncidentId {
    let (acme, globex) = (principal(1, "acme"), principal(2, "globex"));
    let other = log.open_request(&permit(&globex, request + 100), facts()).await.unwrap();
    let permit = permit(&acme, request);
    let mut entry = log.open_request(&permit, facts()).await.unwrap();
    entry.check(step(&permit, 0, Label::of(globex.tenant()))).unwrap_err();
    let refused = entry.refuse().await.unwrap();
    drop(other);
    refused.incident
}

fn wanted(incident: IncidentId, to: IncidentStage) -> IncidentMove {
    IncidentMove { incident, to, actor: None, second: None, evidence: None, action: Containment::None, notice: None }
}

fn closing(log: &AuditLog, incident: IncidentId, persons: [&str; 2]) -> IncidentMove {
    let [actor, second] = persons.map(|name| Some(log.actor(&TenantName::parse(name).unwrap())));
    IncidentMove { actor, second, evidence: Some(Digest([7; 32])), ..wanted(incident, IncidentStage::Resolved) }
}

#[test]
fn an_incident_is_contained_by_the_program_before_anybody_looks() {
    let disk = MemoryDisk::default();
    let log = open(&disk, START_US).unwrap();
    let incident = runtime().block_on(leak(&log, 1));
    let report = log.incident_report(incident).unwrap().unwrap();
    assert_eq!((report.stage(), report.moves.len()), (IncidentStage::Contained, 1));
    let contained = report.moves.first().unwrap();
    assert_eq!((contained.state.actor, contained.state.action), (None, Containment::RequestEnded));
    assert_eq!((contained.index, contained.state.previous), (report.index + 1, report.leaf), "right behind it");
    // The two sides are told of it, and nobody else.
    let sides = |number, name| log.incidents_of(&principal(number, name)).unwrap();
    assert_eq!(sides(1, "acme").first().unwrap().0, IncidentSide::Recipient);
    assert_eq!(sides(2, "globex").first().unwrap().0, IncidentSide::Victim);
    assert!(sides(3, "initech").is_empty());
}

#[test]
fn what_may_not_be_made_of_an_incident_is_refused_and_the_log_goes_on() {
    let disk = MemoryDisk::default();
    let log = open(&disk, START_US).unwrap();
    runtime().block_on(async {
        let incident = leak(&log, 1).await;
        let form = Err(AppendError::IncidentMove(IncidentMoveError::Form));
        let forbidden = |from, to| Err(AppendError::IncidentMove(IncidentMoveError::Forbidden { from, to }));
        let before = log.incident_reports().unwrap();
        // Without evidence, without persons, and with one person twice.
        assert_eq!(log.move_incident(wanted(incident, IncidentStage::Resolved)).await, form);
        let twice = closing(&log, incident, ["ada", "ada"]);
        assert_eq!(log.move_incident(twice).await, form);
        let unseen = IncidentMove { evidence: None, ..closing(&log, incident, ["ada", "ben"]) };
        assert_eq!(log.move_incident(unseen).await, form);
        assert_eq!(log.move_incident(wanted(incident, IncidentStage::Detected)).await, form);
        let early = wanted(incident, IncidentStage::Reopened);
        assert_eq!(log.move_incident(early).await, forbidden(IncidentStage::Contained, IncidentStage::Reopened));
        let none = wanted(IncidentId([9; 16]), IncidentStage::Triaged);
        assert_eq!(log.move_incident(none).await, Err(AppendError::NoIncident));
        assert_eq!(log.incident_reports().unwrap(), before, "nothing of that was written");

        log.move_incident(closing(&log, incident, ["ada", "ben"])).await.unwrap();
        for to in [IncidentStage::Triaged, IncidentStage::Notified, IncidentStage::Contained] {
            let refused = log.move_incident(wanted(incident, to)).await;
            assert_eq!(refused, forbidden(IncidentStage::Resolved, to));
        }
        // Of two at once that exclude each other, one is made.
        let both = tokio::join!(
            log.move_incident(wanted(incident, IncidentStage::Reopened)),
            log.move_incident(wanted(incident, IncidentStage::Reopened)),
        );
        assert!(both.0.is_ok() != both.1.is_ok(), "{both:?}");
        leak(&log, 2).await;
        assert!(log.health().failed.is_none());
    });
}

#[test]
fn where_an_incident_stands_is_what_its_entries_say_after_every_start() {
    let disk = MemoryDisk::default();
    let log = open(&disk, START_US).unwrap();
    let (first, second) = runtime().block_on(async { (leak(&log, 1).await, leak(&log, 2).await) });
    runtime().block_on(async {
        log.move_incident(closing(&log, first, ["ada", "ben"])).await.unwrap();
        log.move_incident(wanted(second, IncidentStage::Triaged)).await.unwrap();
    });
    let before = log.incident_reports().unwrap();
    log.shutdown();
    drop(log);
    let log = open(&disk, START_US + 1_000_000_000).unwrap();
    assert_eq!(log.incident_reports().unwrap(), before);
    assert_eq!(log.incident_stage(first), Some(IncidentStage::Resolved));
    runtime().block_on(async {
        assert!(log.move_incident(wanted(first, IncidentStage::Triaged)).await.is_err());
        log.move_incident(wanted(first, IncidentStage::Reopened)).await.unwrap();
        log.move_incident(wanted(second, IncidentStage::Notified)).await.unwrap();
    });
    assert_eq!(log.incident_stage(first), Some(IncidentStage::Reopened));
}
