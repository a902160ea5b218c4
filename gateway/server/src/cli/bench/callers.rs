//! Tenants with keys, so that the engine is asked as it always is: with a permit.

use anyhow::{Context, Result};
use engine_model::Model;
use engine_runtime::{Engine, PromptInput, Sampling, Sequence, Steps};
use gateway_auth::{ApiKey, KeyRing, KeySecret, TenantKey};
use policies_authz::{Authz, Facts};
use policies_domain::{
    Binding, ConnectionId, Credential, Label, Layer, ModelName, Permit, Principal, RequestId, SealKey, TenantName,
};

/// Tokens of an answer that a rule may be asked about: more than anybody wants here.
const COMPLETION_TOKENS_MAX: u64 = 4096;

/// Everybody who asks, by number from 0.
pub(super) struct Callers {
    principals: Vec<Principal>,
    authz: Authz,
    model: ModelName,
}

impl Callers {
    pub(super) fn new(model: &Model, count: usize) -> Result<Self> {
        Self::named(model.name(), count)
    }

    /// Who may use a model of this name.
    pub(super) fn named(model: &str, count: usize) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let secret = KeySecret::open_or_create(&folder.path().join("key-secret"))?;
        let (mut keys, mut hashes) = (Vec::new(), Vec::new());
        for number in 0..count {
            let key = ApiKey::mint()?;
            hashes.push(TenantKey { tenant: TenantName::parse(&format!("bench-{number}"))?, hash: secret.hash(&key) });
            keys.push(key);
        }
        let ring = KeyRing::new(secret, &hashes)?;
        let principals: Result<Vec<Principal>, _> =
            keys.iter().map(|key| ring.authenticate(Some(&Credential::new(key.reveal().to_owned())))).collect();
        Ok(Self { principals: principals?, authz: Authz::read(Authz::DEFAULT_RULES)?, model: ModelName::parse(model)? })
    }

    pub(super) fn count(&self) -> usize {
        self.principals.len()
    }

    pub(super) fn label(&self, number: usize) -> Result<Label> {
        Ok(self.permit(number)?.label())
    }

    pub(super) fn permit(&self, number: usize) -> Result<Permit> {
        let principal = self.principals.get(number).context("there is no such caller")?;
        let request = RequestId::from_bytes(uuid::Uuid::now_v7().into_bytes());
        let facts = Facts { completion_tokens_max: Some(COMPLETION_TOKENS_MAX) };
        Ok(self.authz.permit(principal, request, &self.model, &facts)?)
    }

    /// Greedily, `max_tokens` at most. A refusal of the engine is a [`engine_runtime::SubmitError`] in the error.
    pub(super) fn submit(&self, engine: &Engine, number: usize, prompt: Vec<u32>, max_tokens: usize) -> Result<Steps> {
        let permit = self.permit(number)?;
        let sequence = engine.tokenize(&permit, &PromptInput::Tokens(prompt))?;
        submit(engine, &permit, sequence, greedy(max_tokens))
    }
}

pub(super) fn greedy(max_tokens: usize) -> Sampling {
    Sampling { max_tokens: Some(max_tokens), temperature: 0.0, ..Sampling::default() }
}

/// Of whoever has the permit.
pub(super) fn submit(engine: &Engine, permit: &Permit, sequence: Sequence, sampling: Sampling) -> Result<Steps> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret)?;
    let binding = Binding::of(permit, ConnectionId(0));
    let sealer = SealKey::from_bytes(secret).sealer(Layer::Text, binding);
    Ok(engine.submit(permit, sequence, sampling, sealer)?)
}
