//! Two tenants and what they were told, on a disk in memory.
#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod memory;

use audit_log::{AppendError, AuditConfig, AuditLog, OpenLogError, Outcome, RequestFacts, SealReason};
use audit_provenance::{Body, Disclosure, Entry, SealReason as Sealed};
use audit_tlog::{Checkpoint, TlogProof, VerifierKey, check_inclusion, leaf_hash};
use memory::{MemoryDisk, TestClock};
use policies_domain::{
    Binding, Completion, ConnectionId, Digest, Epoch, Generation, Label, Layer, ModelName, PageId, PageRead, PageTrace,
    Permit, PolicyDecision, Principal, RequestId, SealKey, Step, TenantId, TenantName,
};
use std::sync::Arc;

pub(crate) const START_US: u64 = 1_796_000_000_000_000;

pub(crate) fn config() -> AuditConfig {
    let mut config = AuditConfig::new("unused", "log.example");
    config.build = Some(Digest([1; 32]));
    config.heartbeat = None;
    config
}

pub(crate) fn open(disk: &MemoryDisk, wall_us: u64) -> Result<AuditLog, OpenLogError> {
    AuditLog::open_on(&config(), Arc::new(disk.clone()), Arc::new(TestClock::at(wall_us)))
}

pub(crate) fn principal(number: u32, name: &str) -> Principal {
    Principal::authenticated(TenantId::new(number).unwrap(), TenantName::parse(name).unwrap())
}

pub(crate) fn permit(principal: &Principal, request: u8) -> Permit {
    let decision = PolicyDecision { rules: Digest([0; 32]), determining: vec!["rule".into()] };
    let request = RequestId::from_bytes([request; 16]);
    Permit::granted_by_authz(principal.clone(), request, ModelName::parse("m").unwrap(), decision)
}

pub(crate) fn step(permit: &Permit, index: u32, label: Label) -> Step {
    let pages = vec![PageRead { page: PageId(7), generation: Generation(1), label, shared: false }];
    let (request, text) = (permit.request(), Completion::new("word".into()));
    let sealer = SealKey::from_bytes([1; 32]).sealer(Layer::Text, Binding::of(permit, ConnectionId(1)));
    let seal = sealer.seal(Epoch(1), index, b"word", None);
    Step { request, index, trace: PageTrace { kept: 0, pages }, restarted: false, tokens: 1, text, finish: None, seal }
}

pub(crate) fn facts() -> RequestFacts<'static> {
    RequestFacts { body: b"{}", model: Digest([2; 32]), fingerprint: Digest([3; 32]), stream: true }
}

pub(crate) fn outcome() -> Outcome {
    let reason = SealReason::Stop;
    Outcome { reason, prompt_tokens: 1, completion_tokens: 1, queued_us: 1, prefill_us: 1, decode_us: 1, replay: None }
}

/// What a client was told.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) who: Principal,
    pub(crate) request: u8,
    /// Index of the sealed entry, if it was acknowledged.
    pub(crate) sealed: Option<u64>,
}

/// Spins until all that is committed is published, or the log has stopped. The test's clock lets nothing wait.
pub(crate) fn published(log: &AuditLog) {
    loop {
        let health = log.health();
        if health.failed.is_some() || health.published == health.size {
            return;
        }
        std::thread::yield_now();
    }
}

/// Two tenants: one answer sealed, one dropped, one stopped by an isolation fault, one left open. Ends at the first error.
pub(crate) async fn run(log: &AuditLog, told: &mut Vec<Told>) -> Result<(), AppendError> {
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

/// All entries of the first segment, as docs/log-format.md lays out its frames.
pub(crate) fn entries(disk: &MemoryDisk) -> Vec<Entry> {
    let segment = disk.content("segments/00000000000000000000").unwrap();
    let (mut entries, mut rest) = (Vec::new(), segment.as_slice());
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let (frame, after) = after.split_at(36 + u32::from_be_bytes(*length) as usize);
        entries.push(Entry::decode(&frame[36..]).unwrap());
        rest = after;
    }
    entries
}

/// Everything that a client was told stands in the log, and verifies.
pub(crate) fn check_told(log: &AuditLog, told: &[Told]) {
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

/// A log with some history, closed.
pub(crate) async fn history() -> MemoryDisk {
    let disk = MemoryDisk::default();
    let log = open(&disk, START_US).unwrap();
    run(&log, &mut Vec::new()).await.unwrap();
    disk
}
