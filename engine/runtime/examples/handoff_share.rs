//! What the digests of a handoff cost, as a share of the prefill that they follow: `handoff_share MODEL [THREADS]`.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement that cannot be made fails")]

use engine_model::Model;
use engine_runtime::{Engine, EngineConfig, PromptInput, Sampling, Split};
use policies_domain::{
    Binding, ConnectionId, Digest, Layer, ModelName, Permit, PolicyDecision, Principal, RequestId, SealKey, TenantId,
    TenantName,
};
use std::sync::Arc;

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().unwrap();
    let threads = arguments.next().map_or(2, |threads| threads.parse().unwrap());
    let model = Arc::new(Model::load(path.as_ref(), threads).unwrap());
    println!("split tokens prefill_ms digests_ms share_percent");
    for split in [Split::Relabel, Split::Copy] {
        let engine = Engine::start(model.clone(), EngineConfig { threads, split, ..EngineConfig::default() }).unwrap();
        for tokens in [64u32, 256, 1024, 2048] {
            let tenant = Principal::authenticated(TenantId::new(1).unwrap(), TenantName::parse("acme").unwrap());
            let decision = PolicyDecision { rules: Digest([0; 32]), determining: Vec::new() };
            let request = RequestId::from_bytes([tokens as u8; 16]);
            let permit = Permit::granted_by_authz(tenant, request, ModelName::parse("test").unwrap(), decision);
            let prompt = PromptInput::Tokens((0..tokens).map(|token| 100 + token % 1000).collect());
            let sequence = engine.tokenize(&permit, &prompt).unwrap();
            let before = engine.stats().handoff_verified;
            let sampling = Sampling { max_tokens: Some(1), temperature: 0.0, ..Sampling::default() };
            let binding = Binding::of(&permit, ConnectionId(1));
            let sealer = SealKey::from_bytes([1; 32]).sealer(Layer::Text, binding);
            let mut steps = engine.submit(&permit, sequence, sampling, sealer).unwrap();
            while steps.next().await.is_some() {}
            let digests = (engine.stats().handoff_verified - before).as_secs_f64() * 1e3;
            let prefill = steps.timings().prefill_us as f64 / 1e3;
            println!("{} {tokens} {prefill:.1} {digests:.2} {:.2}", split.as_str(), 100.0 * digests / prefill);
        }
    }
}
