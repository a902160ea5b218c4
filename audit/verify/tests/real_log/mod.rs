//! A real log, written by `audit-log` into a temporary folder: two tenants, whole answers and broken ones.
#![allow(dead_code, reason = "each test file uses its part")]

use audit_log::{AuditConfig, AuditLog, Outcome, RequestFacts, SealReason};
use policies_domain::{
    Binding, Completion, ConnectionId, Digest, Epoch, FinishReason, Generation, Label, Layer, ModelName, PageId,
    PageRead, PageTrace, Permit, PolicyDecision, Principal, RequestId, SealKey, Step, TenantId, TenantName,
};
use std::path::PathBuf;
use tempfile::TempDir;

pub(crate) const ORIGIN: &str = "bulkhead.example/isolation/2026h2";
pub(crate) const REQUEST_BODY: &[u8] = br#"{"model":"m","messages":[{"role":"user","content":"yes"}]}"#;

pub(crate) fn principal(number: u32, name: &str) -> Principal {
    Principal::authenticated(TenantId::new(number).unwrap(), TenantName::parse(name).unwrap())
}

pub(crate) fn permit(principal: &Principal, request: u8) -> Permit {
    let decision = PolicyDecision { rules: Digest([1; 32]), determining: vec!["tenants-may-generate".into()] };
    let request = RequestId::from_bytes([request; 16]);
    Permit::granted_by_authz(principal.clone(), request, ModelName::parse("m").unwrap(), decision)
}

/// A step that reads `pages` pages, all labelled alike.
pub(crate) fn step(permit: &Permit, index: u32, pages: u32, label: Label, text: &str, last: bool) -> Step {
    let read = |page| PageRead { page: PageId(page), generation: Generation(1), label, shared: false };
    let finish = last.then_some(FinishReason::Stop);
    let sealer = SealKey::from_bytes([1; 32]).sealer(Layer::Text, Binding::of(permit, ConnectionId(1)));
    Step {
        request: permit.request(),
        index,
        restarted: false,
        trace: PageTrace { kept: 0, pages: (0..pages).map(read).collect() },
        tokens: 1,
        text: Completion::new(text.to_owned()),
        finish,
        seal: sealer.seal(Epoch(1), index, text.as_bytes(), finish),
    }
}

pub(crate) fn outcome(reason: SealReason) -> Outcome {
    Outcome {
        reason,
        prompt_tokens: 31,
        completion_tokens: 5,
        queued_us: 10,
        prefill_us: 2_000,
        decode_us: 9_000,
        replay: None,
    }
}

pub(crate) struct RealLog {
    pub(crate) dir: TempDir,
    pub(crate) log: AuditLog,
    pub(crate) acme: Principal,
    pub(crate) globex: Principal,
}

impl RealLog {
    pub(crate) fn open() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = AuditConfig::new(dir.path(), ORIGIN);
        config.build = Some(Digest([7; 32]));
        config.heartbeat = None;
        let log = AuditLog::open(config).unwrap();
        Self { dir, log, acme: principal(1, "acme"), globex: principal(2, "globex") }
    }

    /// A streamed answer of five chunks; the events as a client saves them.
    pub(crate) async fn streamed(&self, who: &Principal, request: u8) -> String {
        let permit = permit(who, request);
        let facts =
            RequestFacts { body: REQUEST_BODY, model: Digest([2; 32]), fingerprint: Digest([3; 32]), stream: true };
        let mut entry = self.log.open_request(&permit, facts).await.unwrap();
        let mut events = String::from(": keep-alive\n\n");
        for index in 0..5 {
            let words = ["To", " be", "", ", or", " not"];
            let word = words[index as usize];
            let released = entry.check(step(&permit, index, 3 + index / 2, permit.label(), word, index == 4)).unwrap();
            if !word.is_empty() {
                let payload = format!("{{\"content\":\"{}\"}}", released.text().reveal());
                entry.sent(payload.as_bytes(), &released);
                events.push_str(&format!("data: {payload}\n\n"));
            }
        }
        let sealed = entry.seal(outcome(SealReason::Stop)).await.unwrap();
        events.push_str(&format!("event: isolation\ndata: {{\"index\":{}}}\n\ndata: [DONE]\n\n", sealed.index));
        events
    }

    /// An answer in one piece.
    pub(crate) async fn whole(&self, who: &Principal, request: u8) -> String {
        let permit = permit(who, request);
        let facts =
            RequestFacts { body: REQUEST_BODY, model: Digest([2; 32]), fingerprint: Digest([3; 32]), stream: false };
        let mut entry = self.log.open_request(&permit, facts).await.unwrap();
        let mut all = entry.check(step(&permit, 0, 2, Label::PUBLIC, "", false)).unwrap();
        all.append(entry.check(step(&permit, 1, 2, Label::PUBLIC, "yes", true)).unwrap()).unwrap();
        let body = format!("{{\"content\":\"{}\"}}", all.text().reveal());
        entry.sent(body.as_bytes(), &all);
        entry.seal(outcome(SealReason::Stop)).await.unwrap();
        body
    }

    /// An answer that a foreign page stopped before its first byte.
    pub(crate) async fn refused(&self, who: &Principal, request: u8, foreign: Label) {
        let permit = permit(who, request);
        let facts =
            RequestFacts { body: REQUEST_BODY, model: Digest([2; 32]), fingerprint: Digest([3; 32]), stream: true };
        let mut entry = self.log.open_request(&permit, facts).await.unwrap();
        entry.check(step(&permit, 0, 4, foreign, "leak", false)).unwrap_err();
        entry.refuse().await.unwrap();
    }

    /// Ends the log, so that everything is published; receipts can still be had.
    pub(crate) fn receipt(&self, who: &Principal, request: u8) -> String {
        self.log.shutdown();
        self.log.receipt(who, RequestId::from_bytes([request; 16])).unwrap()
    }

    pub(crate) fn key_file(&self) -> PathBuf {
        self.dir.path().join("log.vkey")
    }
}
