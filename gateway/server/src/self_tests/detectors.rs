//! Which detectors there are. Each is tried where it works: the engine's in the engine, the log's in the log.

use super::{gate, seal};
use audit_log::AuditLog;
use engine_runtime::{Engine, KvKind, try_ledger, try_manifest_seal, try_tag_check};
use policies_domain::Trial;

/// One of them.
pub(crate) struct Detector {
    /// As entries have it: part of the log's language, and not changed.
    pub(super) name: &'static str,
    pub(super) run: Box<dyn Fn() -> Trial + Send + Sync>,
}

impl Detector {
    pub(super) fn new(name: &'static str, run: impl Fn() -> Trial + Send + Sync + 'static) -> Self {
        Self { name, run: Box::new(run) }
    }
}

/// All that can be tried without touching anything of a request. `kv`: how pages of the engine are stored.
pub(crate) fn detectors(engine: &Engine, kv: KvKind, audit: &AuditLog) -> Vec<Detector> {
    let (engine, audit) = (engine.clone(), audit.clone());
    vec![
        Detector::new("gate", move || gate::tried(|reader, page_of| engine.canary_step(reader, page_of))),
        Detector::new("kernel tags", move || try_tag_check(kv)),
        Detector::new("ledger", try_ledger),
        Detector::new("handoff seal", || try_manifest_seal(seal::SECRET)),
        Detector::new("text seal", seal::tried),
        Detector::new("inclusion proof", move || audit.try_inclusion()),
    ]
}
