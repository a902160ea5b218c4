//! What the digests of a handoff cost, as a share of the prefill that they follow, as JSON:
//! `handoff_share MODEL [THREADS [REPEATS]]`.
//!
//! Wall-clock figures: run it on a quiet machine.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement that cannot be made fails")]

use engine_handoff::{ContentDigest, ContentKey, HandoffKey};
use engine_kernels::{KernelFamily, KvShape, KvStore};
use engine_model::Model;
use engine_runtime::{Engine, EngineConfig, PromptInput, Sampling, Split};
use policies_domain::{
    Binding, ConnectionId, Digest, Layer, ModelName, Permit, PolicyDecision, Principal, RequestId, SealKey, TenantId,
    TenantName,
};
use std::sync::Arc;
use std::time::Instant;

const PROMPT_TOKENS: [usize; 4] = [64, 256, 1024, 2048];
/// More than what caches hold, of which the larger part of what a long prompt leaves has gone.
const DIGESTED_PAGES: usize = 128;

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().unwrap();
    let mut number = |default: usize| arguments.next().map_or(default, |number| number.parse().unwrap());
    let (threads, repeats) = (number(2), number(5).max(1));
    let model = Arc::new(Model::load(path.as_ref(), threads).unwrap());
    let mut rows = Vec::new();
    for split in [Split::Relabel, Split::Copy] {
        let engine = Engine::start(model.clone(), EngineConfig { threads, split, ..EngineConfig::default() }).unwrap();
        for tokens in PROMPT_TOKENS {
            let (mut prefill, mut digests, mut share) = (Vec::new(), Vec::new(), Vec::new());
            // The first one warms up.
            for repeat in 0..=repeats {
                let took = handed_over(&engine, tokens, repeat).await;
                if repeat > 0 {
                    prefill.push(took.0);
                    digests.push(took.1);
                    share.push(100.0 * took.1 / took.0);
                }
            }
            rows.push(format!(
                "{{\"transport\":\"{}\",\"prompt_tokens\":{tokens},\"prefill_ms\":{},\"digests_ms\":{},\"share_percent\":{}}}",
                split.as_str(),
                spread(&mut prefill),
                spread(&mut digests),
                spread(&mut share),
            ));
        }
    }
    let (slab_bytes, mut speed) = digest_speed(&model, repeats);
    println!(
        "{{\"threads\":{threads},\"repeats\":{repeats},\"kernels\":\"{}\",\"model\":\"{}\",\"slab_bytes\":{slab_bytes},\
         \"digest_gigabytes_per_second\":{},\"handoffs\":[{}]}}",
        KernelFamily::detect(),
        std::path::Path::new(&path).file_name().unwrap().to_string_lossy(),
        spread(&mut speed),
        rows.join(",")
    );
}

/// Milliseconds of the prefill of one prompt, and of the digests on both ends after it.
async fn handed_over(engine: &Engine, tokens: usize, repeat: usize) -> (f64, f64) {
    let tenant = Principal::authenticated(TenantId::new(1).unwrap(), TenantName::parse("acme").unwrap());
    let decision = PolicyDecision { rules: Digest([0; 32]), determining: Vec::new() };
    let request = RequestId::from_bytes([repeat as u8 + 1; 16]);
    let permit = Permit::granted_by_authz(tenant, request, ModelName::parse("test").unwrap(), decision);
    let prompt = PromptInput::Tokens((0..tokens).map(|token| 100 + ((token + repeat) % 1000) as u32).collect());
    let sequence = engine.tokenize(&permit, &prompt).unwrap();
    let before = engine.stats().handoff_verified;
    let sampling = Sampling { max_tokens: Some(1), temperature: 0.0, ..Sampling::default() };
    let sealer = SealKey::from_bytes([1; 32]).sealer(Layer::Text, Binding::of(&permit, ConnectionId(1)));
    let mut steps = engine.submit(&permit, sequence, sampling, sealer).unwrap();
    while steps.next().await.is_some() {}
    let digests = engine.stats().handoff_verified - before;
    assert!(!digests.is_zero(), "nothing was handed over");
    (steps.timings().prefill_us as f64 / 1e3, digests.as_secs_f64() * 1e3)
}

/// Bytes of a slab, and how fast digests of slabs are made when they are not in a cache, in GB/s.
fn digest_speed(model: &Model, repeats: usize) -> (usize, Vec<f64>) {
    let config = model.config();
    let shape =
        KvShape { layers: config.layers, kv_heads: config.kv_heads, head_dim: config.head_dim, pages: DIGESTED_PAGES };
    let slab_bytes = KvStore::new(shape).unwrap().content_bytes();
    let key = ContentKey::new(&HandoffKey::new([1; 32]), slab_bytes).unwrap();
    let bytes: Vec<u8> = (0..slab_bytes * config.layers * DIGESTED_PAGES).map(|at| (at * 31 / 8) as u8).collect();
    let speed = |_| {
        let start = Instant::now();
        let sum = ContentDigest::sum((0..).zip(bytes.chunks_exact(slab_bytes)).map(|(at, slab)| key.slab(at, 0, slab)));
        std::hint::black_box(sum);
        bytes.len() as f64 / start.elapsed().as_secs_f64() / 1e9
    };
    (slab_bytes, (0..=repeats).map(speed).skip(1).collect())
}

fn spread(figures: &mut [f64]) -> String {
    figures.sort_by(f64::total_cmp);
    let (median, least, most) = (figures[figures.len() / 2], figures[0], figures[figures.len() - 1]);
    format!("{{\"median\":{median:.3},\"min\":{least:.3},\"max\":{most:.3}}}")
}
