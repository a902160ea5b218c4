//! The log and its witnesses: cosignatures in receipts, rollbacks and forks that are refused, and witnesses that lie.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod story;

use audit_log::{
    AuditLog, Clock, Containment, CosignerRole, Detected, IncidentMove, IncidentReport, IncidentStage, OpenLogError,
    WITNESS_ANSWER_BYTES_MAX, Witness, WitnessAnswer, WitnessPolicy, WitnessTransport,
};
use audit_tlog::{AddCheckpoint, Checkpoint, Cosigner, CosignerKey, TlogProof, VerifierKey};
use audit_witness::Answer;
use policies_domain::{Digest, RequestId, TenantName};
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use story::memory::{MemoryDisk, TestClock};
use story::{START_US, check_told, config, open, principal, run};
use tempfile::TempDir;

const STEP_US: u64 = 100_000_000_000;
const NOW: u64 = 1_796_000_000;

/// A real witness in this process, that can be unplugged.
struct Real {
    folder: TempDir,
    witness: Mutex<Option<audit_witness::Witness>>,
    key: CosignerKey,
}

impl Real {
    fn new(name: &str, log: &VerifierKey) -> Arc<Self> {
        let folder = tempfile::tempdir().unwrap();
        let key = audit_witness::make_key(folder.path(), name).unwrap();
        let witness = audit_witness::Witness::open(folder.path(), vec![log.clone()]).unwrap();
        Arc::new(Self { folder, witness: Mutex::new(Some(witness)), key })
    }

    fn unplug(&self) {
        *self.witness.lock().unwrap() = None;
    }

    fn plug(&self, log: &VerifierKey) {
        *self.witness.lock().unwrap() =
            Some(audit_witness::Witness::open(self.folder.path(), vec![log.clone()]).unwrap());
    }
}

struct To(Arc<Real>);

impl WitnessTransport for To {
    fn add_checkpoint(&self, body: &str) -> io::Result<WitnessAnswer> {
        let witness = self.0.witness.lock().unwrap();
        let witness = witness.as_ref().ok_or(io::ErrorKind::ConnectionRefused)?;
        let (status, body) = match witness.add_checkpoint(body.as_bytes(), NOW) {
            Answer::Cosigned(line) => (200, line),
            Answer::Malformed(reason) => (400, reason.to_owned()),
            Answer::NotSigned => (403, String::new()),
            Answer::UnknownLog => (404, String::new()),
            Answer::OtherSize(size) => (409, format!("{size}\n")),
            Answer::Inconsistent(reason) => (422, reason.to_owned()),
            Answer::Refused(reason) => (422, format!("audit: {reason}\n")),
            Answer::Failed => (500, String::new()),
        };
        Ok(WitnessAnswer { status, body: body.into_bytes() })
    }
}

/// A witness that is a function.
struct Made<F>(F);

impl<F: Fn(&AddCheckpoint) -> io::Result<WitnessAnswer> + Send + Sync + 'static> WitnessTransport for Made<F> {
    fn add_checkpoint(&self, body: &str) -> io::Result<WitnessAnswer> {
        (self.0)(&AddCheckpoint::parse(body.as_bytes()).unwrap())
    }
}

fn liar(
    key: &CosignerKey,
    lie: impl Fn(&AddCheckpoint) -> io::Result<WitnessAnswer> + Send + Sync + 'static,
) -> Witness {
    Witness { key: key.clone(), transport: Arc::new(Made(lie)), role: CosignerRole::Witness }
}

fn answer(status: u16, body: impl Into<Vec<u8>>) -> io::Result<WitnessAnswer> {
    Ok(WitnessAnswer { status, body: body.into() })
}

fn policy(reals: &[&Arc<Real>]) -> WitnessPolicy {
    let witness = |real: &&Arc<Real>| {
        let transport = Arc::new(To(Arc::clone(real)));
        Witness { key: real.key.clone(), transport, role: CosignerRole::Witness }
    };
    let witnesses = reals.iter().map(witness).collect();
    WitnessPolicy { witnesses, quorum: reals.len(), ..WitnessPolicy::default() }
}

fn open_with(disk: &MemoryDisk, wall_us: u64, witnesses: WitnessPolicy) -> Result<AuditLog, OpenLogError> {
    let mut config = config();
    config.witnesses = witnesses;
    AuditLog::open_on(&config, Arc::new(disk.clone()), Arc::new(TestClock::at(wall_us)))
}

/// A disk with a log of one entry, and the log's key.
fn begun() -> (MemoryDisk, VerifierKey) {
    let disk = MemoryDisk::default();
    let log = open(&disk, START_US).unwrap();
    log.shutdown();
    let key = VerifierKey::parse(&log.verifier_key()).unwrap();
    (disk, key)
}

/// Waits until it is so; the threads of the witnesses need real time.
fn until(what: &str, so: impl Fn() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !so() {
        assert!(Instant::now() < limit, "it never came to that: {what}");
        std::thread::yield_now();
    }
}

fn witnessed(log: &AuditLog) {
    until("all entries are witnessed", || {
        let health = log.health();
        health.witnessed == health.size
    });
}

#[tokio::test]
async fn what_is_published_is_cosigned_and_receipts_carry_it() {
    let (disk, key) = begun();
    let (one, two) = (Real::new("one.example", &key), Real::new("two.example", &key));
    let log = open_with(&disk, START_US + STEP_US, policy(&[&one, &two])).unwrap();
    let mut told = Vec::new();
    // `run` ends the log; what its last entries say is witnessed at the next start.
    run(&log, &mut told).await.unwrap();
    drop(log);
    let log = open_with(&disk, START_US + 2 * STEP_US, policy(&[&one, &two])).unwrap();
    witnessed(&log);
    until("the publisher has written it", || {
        disk.content("checkpoint") == disk.content("checkpoint.witnessed")
            && log.health().witnessed == log.health().size
    });
    check_told(&log, &told);
    let receipt = log.receipt(&principal(1, "acme"), RequestId::from_bytes([1; 16])).unwrap();
    let proof = TlogProof::parse(receipt.as_bytes()).unwrap();
    let checkpoint = Checkpoint::open(proof.checkpoint.as_bytes(), &key).unwrap();
    assert_eq!(checkpoint.size, log.health().size);
    for real in [&one, &two] {
        for note in [proof.checkpoint.as_bytes(), &disk.content("checkpoint").unwrap()] {
            let cosignature = real.key.find(&checkpoint, note).unwrap().unwrap();
            assert_eq!(cosignature.unix_seconds, NOW);
        }
    }
    let health = log.health();
    let sizes: Vec<_> = health.witnesses.iter().map(|one| (&*one.name, one.cosigned, one.away)).collect();
    assert_eq!(sizes, [("one.example", health.size, false), ("two.example", health.size, false)]);
    assert!(health.witnesses.iter().all(|witness| witness.alarm.is_none()) && health.failed.is_none());
}

#[tokio::test]
async fn a_rolled_back_folder_is_refused() {
    let (disk, key) = begun();
    let witness = Real::new("one.example", &key);
    let without_log = disk.copy();
    let old = disk.copy();
    let log = open_with(&disk, START_US + STEP_US, policy(&[&witness])).unwrap();
    witnessed(&log);
    drop(log);
    // The whole folder is older: nothing in it contradicts anything else in it.
    assert!(open(&old.copy(), START_US + 2 * STEP_US).is_ok(), "without a witness nobody knows");
    let refused = open_with(&old, START_US + 2 * STEP_US, policy(&[&witness])).unwrap_err();
    assert!(
        matches!(&refused, OpenLogError::WitnessAhead { witness, theirs: 2, ours: 1 } if witness == "one.example"),
        "{refused}"
    );
    // Refused is refused: no further entry was signed in the attempt.
    assert_eq!(old.content("slot"), without_log.content("slot"));
    // A folder with nothing but its keys is an older state, too.
    let only_keys = MemoryDisk::default();
    for path in without_log.paths().iter().filter(|path| path.starts_with("keys/")) {
        use audit_log::Storage as _;
        only_keys.write(path, &without_log.content(path).unwrap()).unwrap();
    }
    let refused = open_with(&only_keys, START_US + 2 * STEP_US, policy(&[&witness])).unwrap_err();
    assert!(matches!(refused, OpenLogError::WitnessAhead { theirs: 2, ours: 0, .. }), "{refused}");
    // The true folder goes on.
    assert!(open_with(&disk, START_US + 3 * STEP_US, policy(&[&witness])).is_ok());
}

#[tokio::test]
async fn a_forked_folder_is_refused_at_any_size() {
    let (disk, key) = begun();
    let witness = Real::new("one.example", &key);
    let (fork, longer) = (disk.copy(), disk.copy());
    witnessed(&open_with(&disk, START_US + STEP_US, policy(&[&witness])).unwrap());
    // As many entries as the witness has seen, others.
    open(&fork, START_US + STEP_US).unwrap().shutdown();
    let refused = open_with(&fork, START_US + 2 * STEP_US, policy(&[&witness])).unwrap_err();
    assert!(matches!(refused, OpenLogError::WitnessForked { size: 2, ours: 2, .. }), "{refused}");
    // More than the witness has seen, and not its continuation.
    run(&open(&longer, START_US + STEP_US).unwrap(), &mut Vec::new()).await.unwrap();
    let refused = open_with(&longer, START_US + 2 * STEP_US, policy(&[&witness])).unwrap_err();
    assert!(matches!(refused, OpenLogError::WitnessForked { size: 2, ours, .. } if ours > 2), "{refused}");
    assert!(open_with(&disk, START_US + 3 * STEP_US, policy(&[&witness])).is_ok());
}

#[tokio::test]
async fn a_second_writer_that_runs_beside_is_an_alarm() {
    let (disk, key) = begun();
    let witness = Real::new("one.example", &key);
    let copy = disk.copy();
    let log = open_with(&disk, START_US + STEP_US, policy(&[&witness])).unwrap();
    witnessed(&log);
    witness.unplug();
    // The copy was started while the witness could not be reached.
    let second = open_with(&copy, START_US + STEP_US, policy(&[&witness])).unwrap();
    witness.plug(&key);
    until("the alarm", || second.health().witnesses[0].alarm.is_some());
    let health = second.health();
    assert!(health.witnesses[0].alarm.as_ref().unwrap().contains("another tree of 2 entries"), "{health:?}");
    assert_eq!((health.witnessed, health.failed), (0, None), "a witness alone does not stop a log that runs");
    assert_eq!(copy.content("checkpoint.witnessed"), None);
    assert_eq!(log.health().witnesses[0].alarm, None);
}

#[tokio::test]
async fn a_witness_that_is_behind_or_back_gets_a_proof_from_where_it_is() {
    let (disk, key) = begun();
    let (one, two) = (Real::new("one.example", &key), Real::new("two.example", &key));
    let both = || policy(&[&one, &two]);
    witnessed(&open_with(&disk, START_US + STEP_US, both()).unwrap());
    two.unplug();
    let log = open_with(&disk, START_US + 2 * STEP_US, policy(&[&one])).unwrap();
    run(&log, &mut Vec::new()).await.unwrap();
    drop(log);
    let log = open_with(&disk, START_US + 3 * STEP_US, both()).unwrap();
    until("one has cosigned", || log.health().witnesses[0].cosigned == log.health().size);
    assert_eq!(log.health().witnessed, 0, "one of two is no quorum of two");
    assert!(log.health().witnesses[1].away);
    two.plug(&key);
    witnessed(&log);
    assert!(!log.health().witnesses[1].away);
}

#[tokio::test]
async fn a_start_can_be_made_to_wait_for_nobody_or_for_a_quorum() {
    let (disk, key) = begun();
    let (one, two) = (Real::new("one.example", &key), Real::new("two.example", &key));
    two.unplug();
    let required = |quorum| WitnessPolicy { quorum, quorum_at_start: true, ..policy(&[&one, &two]) };
    let refused = open_with(&disk, START_US + STEP_US, required(2)).unwrap_err();
    assert!(matches!(refused, OpenLogError::WitnessQuorum { agreed: 1, quorum: 2 }), "{refused}");
    assert!(open_with(&disk, START_US + STEP_US, required(1)).is_ok());
    one.unplug();
    assert!(open_with(&disk, START_US + 2 * STEP_US, required(1)).is_err());
    assert!(open_with(&disk, START_US + 2 * STEP_US, policy(&[&one, &two])).is_ok());
}

/// Every lie that is not a size: the log goes on, and nothing of it gets into a checkpoint.
#[tokio::test]
async fn a_witness_that_lies_or_stalls_does_no_harm() {
    let honest = Cosigner::from_seed("liar.example", &[5; 32]).unwrap();
    let key = honest.verifier_key();
    let other = Cosigner::from_seed("other.example", &[6; 32]).unwrap();
    let (held, stalled): (Sender<()>, Receiver<()>) = channel();
    let stalled = Mutex::new(stalled);
    let sizes = AtomicUsize::new(0);
    let of = |request: &AddCheckpoint| {
        let mut lines = request.checkpoint.lines();
        let (origin, size, root) = (lines.next().unwrap(), lines.next().unwrap(), lines.next().unwrap());
        let root = audit_tlog::Hash::parse_hash(root).unwrap();
        Checkpoint { origin: origin.into(), size: size.parse().unwrap(), root }
    };
    let elsewhere = |checkpoint: Checkpoint| Checkpoint { size: checkpoint.size + 1, ..checkpoint };
    let namesake = Cosigner::from_seed("liar.example", &[7; 32]).unwrap();
    let lies: Vec<(&str, Witness)> = vec![
        ("an empty answer", liar(&key, |_| answer(200, ""))),
        ("rubbish", liar(&key, |_| answer(200, vec![0xff; 1_000]))),
        ("too much", liar(&key, |_| answer(200, vec![b'a'; WITNESS_ANSWER_BYTES_MAX + 1]))),
        ("another's line", liar(&key, move |request| answer(200, other.cosign(&of(request), NOW).unwrap()))),
        ("a namesake's line", liar(&key, move |request| answer(200, namesake.cosign(&of(request), NOW).unwrap()))),
        (
            "its own line of another checkpoint",
            liar(&key, move |request| answer(200, honest.cosign(&elsewhere(of(request)), NOW).unwrap())),
        ),
        ("no size", liar(&key, |_| answer(409, "many\n"))),
        ("no answer", liar(&key, |_| Err(io::ErrorKind::TimedOut.into()))),
        ("a failure", liar(&key, |_| answer(500, ""))),
        ("a redirect", liar(&key, |_| answer(307, ""))),
        ("a stranger's answer", liar(&key, |_| answer(404, ""))),
        // From 0 to whatever is asked about, in turns.
        (
            "another size each time",
            liar(&key, move |_| answer(409, format!("{}\n", sizes.fetch_add(1, Ordering::SeqCst) % 2))),
        ),
    ];
    for (name, lie) in lies {
        let (disk, log_key) = begun();
        let true_witness = Real::new("true.example", &log_key);
        let mut witnesses = policy(&[&true_witness]);
        witnesses.witnesses.push(lie);
        let log = open_with(&disk, START_US + STEP_US, witnesses).unwrap();
        let mut told = Vec::new();
        run(&log, &mut told).await.unwrap();
        check_told(&log, &told[..3]);
        let health = log.health();
        assert_eq!((health.failed, health.witnesses[1].cosigned), (None, 0), "{name}");
        assert_eq!(health.witnesses[1].alarm, None, "{name}");
        drop(log);
        for path in ["checkpoint", "checkpoint.witnessed"] {
            let note = String::from_utf8(disk.content(path).unwrap_or_default()).unwrap();
            assert!(!note.contains("liar.example") && !note.contains("other.example"), "{name}: {note}");
        }
        assert!(open(&disk, START_US + 2 * STEP_US).is_ok(), "{name}");
    }

    // One that keeps its caller waiting holds up neither entries nor the end, once the start is over.
    let (disk, _) = begun();
    let started = Arc::new(AtomicUsize::new(0));
    let asked = Arc::clone(&started);
    let slow = liar(&key, move |_| {
        if asked.fetch_add(1, Ordering::SeqCst) > 0 {
            let _end = stalled.lock().unwrap().recv();
        }
        Err(io::ErrorKind::TimedOut.into())
    });
    let log = open_with(&disk, START_US + STEP_US, WitnessPolicy { witnesses: vec![slow], ..WitnessPolicy::default() });
    let log = log.unwrap();
    until("it is asked", || started.load(Ordering::SeqCst) > 1);
    let mut told = Vec::new();
    run(&log, &mut told).await.unwrap();
    check_told(&log, &told[..3]);
    drop(log);
    assert!(open(&disk, START_US + 2 * STEP_US).is_ok());
    drop(held);
}

const HOUR: Duration = Duration::from_secs(3_600);

/// A clock that runs as time does, and can be put forward.
struct Pace {
    begun: Instant,
    ahead_us: AtomicU64,
    wall_us: AtomicU64,
}

impl Pace {
    fn jump(&self, by: Duration) {
        self.ahead_us.fetch_add(by.as_micros() as u64, Ordering::SeqCst);
    }
}

impl Clock for Pace {
    fn wall_us(&self) -> u64 {
        self.wall_us.fetch_add(1_000, Ordering::SeqCst)
    }

    fn mono_us(&self) -> u64 {
        self.begun.elapsed().as_micros() as u64 + self.ahead_us.load(Ordering::SeqCst)
    }
}

fn open_at_pace(disk: &MemoryDisk, wall_us: u64, witnesses: WitnessPolicy) -> (AuditLog, Arc<Pace>) {
    let mut config = config();
    config.witnesses = witnesses;
    let (ahead_us, wall_us) = (AtomicU64::new(0), AtomicU64::new(wall_us));
    let pace = Arc::new(Pace { begun: Instant::now(), ahead_us, wall_us });
    (AuditLog::open_on(&config, Arc::new(disk.clone()), Arc::clone(&pace) as Arc<dyn Clock>).unwrap(), pace)
}

/// The auditor's incidents: how many there are, and where the last stands.
fn lags(log: &AuditLog) -> (usize, Option<IncidentStage>) {
    let (reports, _) = log.incident_reports().unwrap();
    assert!(reports.iter().all(|report| matches!(&report.detected, Detected::Lag(lag) if lag.cosigner == "a.example")));
    (reports.len(), reports.last().map(IncidentReport::stage))
}

#[tokio::test]
async fn an_auditor_that_falls_behind_is_one_incident_until_it_has_caught_up() {
    let (disk, key) = begun();
    let auditor = Real::new("a.example", &key);
    let watched = || {
        let mut policy = WitnessPolicy { lag_max: Some(HOUR), ..policy(&[&auditor]) };
        policy.witnesses.iter_mut().for_each(|witness| witness.role = CosignerRole::Auditor);
        policy
    };
    auditor.unplug();
    let (log, clock) = open_at_pace(&disk, START_US + STEP_US, watched());
    assert!(!log.auditor_lags(), "it has an hour");
    clock.jump(2 * HOUR);
    until("it has fallen behind", || log.auditor_lags());
    until("the log says so", || lags(&log) == (1, Some(IncidentStage::Detected)));
    log.shutdown();
    drop(log);

    let (log, clock) = open_at_pace(&disk, START_US + 2 * STEP_US, watched());
    assert!(log.auditor_lags(), "a start gives nobody more time");
    // What is written meanwhile makes no other incident of it.
    drop(log.open_request(&story::permit(&principal(1, "acme"), 1), story::facts()).await.unwrap());
    let id = log.incident_reports().unwrap().0[0].id;
    let [actor, second] = ["ada", "ben"].map(|name| Some(log.actor(&TenantName::parse(name).unwrap())));
    let to = |to| IncidentMove {
        incident: id,
        to,
        actor,
        second: None,
        evidence: None,
        action: Containment::None,
        notice: None,
    };
    log.move_incident(to(IncidentStage::Triaged)).await.unwrap();
    auditor.plug(&key);
    until("it has caught up", || !log.auditor_lags());
    until("the log says so, too", || lags(&log) == (1, Some(IncidentStage::Contained)));
    let report = log.incident_report(id).unwrap().unwrap();
    let actors: Vec<_> = report.moves.iter().map(|moved| moved.state.actor).collect();
    assert_eq!(actors, [actor, None], "persons looked, the program says that it is over");
    let closing = IncidentMove { second, evidence: Some(Digest([7; 32])), ..to(IncidentStage::Resolved) };
    log.move_incident(closing).await.unwrap();

    // The next time is another one.
    auditor.unplug();
    drop(log.open_request(&story::permit(&principal(1, "acme"), 2), story::facts()).await.unwrap());
    story::published(&log);
    clock.jump(2 * HOUR);
    until("it has fallen behind again", || log.auditor_lags() && lags(&log) == (2, Some(IncidentStage::Detected)));
    assert!(log.incidents_of(&principal(1, "acme")).unwrap().is_empty(), "it is no tenant's");
    assert_eq!(log.health().failed, None);
}

#[tokio::test]
async fn nobody_falls_behind_where_no_time_is_set() {
    let (disk, key) = begun();
    let auditor = Real::new("a.example", &key);
    auditor.unplug();
    let (log, clock) = open_at_pace(&disk, START_US + STEP_US, policy(&[&auditor]));
    clock.jump(9 * HOUR);
    assert!(log.health().witnesses[0].lag.behind_us > 30_000_000_000);
    assert!(!log.auditor_lags() && log.incident_reports().unwrap().0.is_empty());
}

#[tokio::test]
async fn a_size_that_a_witness_makes_up_is_doubted_at_the_start_and_an_alarm_later() {
    let key = Cosigner::from_seed("liar.example", &[5; 32]).unwrap().verifier_key();
    let (disk, _) = begun();
    let claims = |key: &CosignerKey| liar(key, |_| answer(409, "1000000\n"));
    let alone = |witness| WitnessPolicy { witnesses: vec![witness], ..WitnessPolicy::default() };
    let refused = open_with(&disk, START_US + STEP_US, alone(claims(&key))).unwrap_err();
    assert!(matches!(refused, OpenLogError::WitnessAhead { theirs: 1_000_000, .. }), "{refused}");
    assert!(refused.to_string().contains("take it out of the configuration"), "{refused}");
    let later = AtomicUsize::new(0);
    let witness = liar(&key, move |_| match later.fetch_add(1, Ordering::SeqCst) {
        0 => Err(io::ErrorKind::ConnectionRefused.into()),
        _ => answer(409, "1000000\n"),
    });
    let log = open_with(&disk, START_US + STEP_US, alone(witness)).unwrap();
    until("the alarm", || log.health().witnesses[0].alarm.is_some());
    let mut told = Vec::new();
    run(&log, &mut told).await.unwrap();
    check_told(&log, &told[..3]);
    assert_eq!(log.health().failed, None);
}

#[tokio::test]
async fn what_an_auditor_objects_to_is_an_alarm_in_its_words() {
    let key = Cosigner::from_seed("auditor.example", &[5; 32]).unwrap().verifier_key();
    let (disk, _) = begun();
    let objects = liar(&key, |_| answer(422, "audit: entry 4: page 4 was another's\u{1b}[2J\n"));
    let policy = WitnessPolicy { witnesses: vec![objects], ..WitnessPolicy::default() };
    // It says nothing about which log is the newest: the start is warned, and goes on.
    let log = open_with(&disk, START_US + STEP_US, policy).unwrap();
    until("the alarm", || log.health().witnesses[0].alarm.is_some());
    let alarm = log.health().witnesses[0].alarm.clone().unwrap();
    assert_eq!(&*alarm, "it has looked into the log and does not cosign: entry 4: page 4 was another's[2J");
    assert_eq!(log.health().failed, None);
}
