//! The real model, permits for two tenants, and short ways to ask.
#![allow(dead_code, reason = "each suite uses its part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a rig that cannot be set up fails its test")]

use engine_model::Model;
use engine_runtime::{
    Engine, EngineConfig, PromptInput, PublicPrefix, Sampling, Setup, StartEngineError, Steps, Tenancy, TenantTerms,
    Usage,
};
use policies_domain::{
    Binding, ConnectionId, Digest, FinishReason, Label, Layer, ModelName, Permit, PolicyDecision, Principal, RequestId,
    SealKey, Sealer, TenantId, TenantName, Verifier,
};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

pub(crate) const ACME: u32 = 1;
pub(crate) const GLOBEX: u32 = 2;

pub(crate) fn engine(config: EngineConfig) -> Engine {
    Engine::start(model(), config).unwrap()
}

/// For two tenants with guarantees, so that they have caches.
pub(crate) fn declaring(config: EngineConfig, declared: &[PublicPrefix]) -> Result<Engine, StartEngineError> {
    let terms = |number| (Label::of(tenant(number)), TenantTerms::default());
    let tenancy = Tenancy::new([ACME, GLOBEX].map(terms)).unwrap();
    Engine::start_with(model(), config, Setup { tenancy, public_prefixes: declared, ..Setup::default() })
}

fn model() -> Arc<Model> {
    static MODEL: OnceLock<Arc<Model>> = OnceLock::new();
    let model = MODEL.get_or_init(|| {
        let path = model_path();
        let loaded = Model::load(&path, 2);
        Arc::new(loaded.unwrap_or_else(|error| panic!("{}: {error}; `./x test` fetches the model", path.display())))
    });
    model.clone()
}

fn model_path() -> PathBuf {
    if let Some(path) = std::env::var_os("BULKHEAD_TEST_MODEL") {
        return path.into();
    }
    let data = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from);
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".local/share");
    data.unwrap_or_else(home).join("bulkhead/models/SmolLM2-135M-Instruct.Q4_1.gguf")
}

pub(crate) fn tenant(number: u32) -> TenantId {
    TenantId::new(number).unwrap()
}

pub(crate) fn permit(number: u32, request: u8) -> Permit {
    let principal = Principal::authenticated(tenant(number), TenantName::parse(&format!("tenant-{number}")).unwrap());
    let decision = PolicyDecision { rules: Digest([0; 32]), determining: Vec::new() };
    let model = ModelName::parse("test").unwrap();
    Permit::granted_by_authz(principal, RequestId::from_bytes([request; 16]), model, decision)
}

/// The key, as if it had been drawn for this request.
fn seal_key(permit: &Permit) -> (SealKey, Binding) {
    let request = permit.request().bytes();
    let key = std::array::from_fn(|place| request[place % 16] ^ place as u8);
    (SealKey::from_bytes(key), Binding::of(permit, ConnectionId(1)))
}

pub(crate) fn sealer(permit: &Permit) -> Sealer {
    let (key, binding) = seal_key(permit);
    key.sealer(Layer::Text, binding)
}

pub(crate) fn verifier(permit: &Permit) -> Verifier {
    let (key, binding) = seal_key(permit);
    key.verifier(Layer::Text, binding)
}

pub(crate) fn greedy(max_tokens: usize) -> Sampling {
    Sampling { max_tokens: Some(max_tokens), temperature: 0.0, ..Sampling::default() }
}

pub(crate) fn submit(engine: &Engine, tenant: u32, request: u8, prompt: &str, sampling: Sampling) -> Steps {
    submit_input(engine, tenant, request, &PromptInput::Text(prompt.into()), sampling)
}

pub(crate) fn submit_input(
    engine: &Engine,
    tenant: u32,
    request: u8,
    prompt: &PromptInput,
    sampling: Sampling,
) -> Steps {
    let permit = permit(tenant, request);
    let sequence = engine.tokenize(&permit, prompt).unwrap();
    engine.submit(&permit, sequence, sampling, sealer(&permit)).unwrap()
}

pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) tokens: u32,
    /// Steps that brought tokens.
    pub(crate) steps: u32,
    pub(crate) finish: Option<FinishReason>,
    pub(crate) usage: Usage,
    pub(crate) restarts: usize,
    /// Whose pages it read.
    pub(crate) read: BTreeSet<Label>,
}

pub(crate) async fn answer(mut steps: Steps) -> Answer {
    let (mut text, mut tokens, mut saying, mut finish, mut restarts) = (String::new(), 0, 0, None, 0);
    let mut read = BTreeSet::new();
    while let Some(step) = steps.next().await {
        let step = step.unwrap();
        text += step.text.reveal();
        read.extend(step.trace.pages.iter().map(|page| page.label));
        tokens += step.tokens;
        saying += u32::from(step.tokens > 0);
        finish = step.finish;
        restarts += usize::from(step.restarted);
    }
    Answer { text, tokens, steps: saying, finish, usage: steps.usage(), restarts, read }
}
