//! One request as its client sees it: what came out of the socket, and what ended it.

use crate::cast::{self, Cast};
use audit_provenance::{Gate, Violation};
use engine_runtime::{StepError, Steps};
use policies_authz::{Authz, Facts};
use policies_domain::{
    Binding, ConnectionId, Generation, Layer, ModelName, PageId, Permit, Principal, SealError, SealKey, Sealer,
    TenantName, Verifier,
};
use std::collections::BTreeSet;

/// What stopped a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The engine itself, before it gave a step out.
    Engine(StepError),
    /// The gate in front of the socket.
    Gate(Violation),
    /// Whoever writes to the socket: the text is not this response's.
    Seal(SealError),
}

/// How a response stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// More may come.
    Open,
    /// It has all of its tokens.
    Whole,
    /// The client left.
    Left,
    /// An isolation fault ended it.
    Caught(Verdict),
    /// Something else ended it.
    Failed(StepError),
}

/// One request of a run.
#[derive(Debug)]
pub struct Client {
    request: u32,
    tenant: u32,
    tokens: usize,
    steps: Option<Steps>,
    /// `None`: nobody looks at what the engine gives out.
    gate: Option<(Gate, Verifier)>,
    /// What left for this client.
    pub transcript: String,
    /// How it stands.
    pub state: State,
    /// Pages, in their lives, that the steps told of.
    pub read: BTreeSet<(PageId, Generation)>,
}

/// A permit for a request of the cast.
pub(crate) fn permit(tenant: u32, request: u32) -> Option<Permit> {
    let authz = Authz::read(Authz::DEFAULT_RULES).ok()?;
    let name = TenantName::parse(&format!("tenant-{}", Cast::letter(tenant))).ok()?;
    let principal = Principal::authenticated(cast::tenant_id(tenant)?, name);
    let model = ModelName::parse("tracer").ok()?;
    authz.permit(&principal, cast::request_id(request), &model, &Facts { completion_tokens_max: None }).ok()
}

/// What the seals of a request's text are made and checked with.
pub(crate) struct Seals {
    key: SealKey,
    binding: Binding,
}

impl Seals {
    pub(crate) fn of(permit: &Permit, request: u32) -> Self {
        let mut key = [0x5a; 32];
        key[..4].copy_from_slice(&request.to_le_bytes());
        let connection = ConnectionId(request.into());
        Self { key: SealKey::from_bytes(key), binding: Binding::of(permit, connection) }
    }

    pub(crate) fn sealer(&self) -> Sealer {
        self.key.sealer(Layer::Text, self.binding)
    }
}

impl Client {
    /// `checks`: what the text passes on its way to this client, if anything.
    pub(crate) fn new(cast: Cast, request: u32, tokens: usize, steps: Steps, checks: Option<(&Permit, Seals)>) -> Self {
        let tenant = cast.tenant(request);
        let gate =
            checks.map(|(permit, Seals { key, binding })| (Gate::new(permit), key.verifier(Layer::Text, binding)));
        let state = State::Open;
        let (transcript, read) = (String::new(), BTreeSet::new());
        Self { request, tenant, tokens, steps: Some(steps), gate, transcript, state, read }
    }

    /// Its number.
    #[must_use]
    pub fn request(&self) -> u32 {
        self.request
    }

    /// Whose it is.
    #[must_use]
    pub fn tenant(&self) -> u32 {
        self.tenant
    }

    /// Takes what the engine has given out, as far as the gate lets it.
    pub(crate) fn read(&mut self, most: usize) {
        for _ in 0..most {
            let Some(next) = self.steps.as_mut().and_then(Steps::try_next) else { return };
            match next {
                Ok(step) => {
                    let is_last = step.finish.is_some();
                    self.read.extend(step.trace.pages.iter().map(|read| (read.page, read.generation)));
                    let text = match &mut self.gate {
                        None => step.text.reveal().to_owned(),
                        Some((gate, verifier)) => match gate.check(step) {
                            Ok(released) => match released.verify(verifier) {
                                Ok(()) => released.text().reveal().to_owned(),
                                Err(error) => return self.end(State::Caught(Verdict::Seal(error))),
                            },
                            Err(violation) => return self.end(State::Caught(Verdict::Gate(violation))),
                        },
                    };
                    self.transcript += &text;
                    if is_last {
                        return self.end(State::Whole);
                    }
                }
                Err(error) if is_isolation_fault(error) => {
                    return self.end(State::Caught(Verdict::Engine(error)));
                }
                Err(error) => return self.end(State::Failed(error)),
            }
        }
    }

    /// Each gets what the engine says to the other.
    pub(crate) fn exchange(&mut self, other: &mut Self) {
        std::mem::swap(&mut self.steps, &mut other.steps);
    }

    pub(crate) fn leave(&mut self) {
        if self.state == State::Open {
            self.end(State::Left);
        }
    }

    fn end(&mut self, state: State) {
        (self.steps, self.state) = (None, state);
    }

    /// More may come.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Tenants other than its own whose content stands in what it got.
    #[must_use]
    pub fn foreign_tenants(&self) -> Vec<u32> {
        let mut tenants: Vec<u32> = self.transcript.chars().filter_map(Cast::of_letter).collect();
        tenants.retain(|tenant| *tenant != self.tenant);
        tenants.sort_unstable();
        tenants.dedup();
        tenants
    }

    /// It got exactly the answer that it was to get.
    #[must_use]
    pub fn is_right(&self) -> bool {
        self.state == State::Whole
            && self.transcript.len() == self.tokens
            && self.transcript.chars().all(|letter| letter == Cast::letter(self.tenant))
    }
}

/// The engine's checks found it.
#[must_use]
pub fn is_isolation_fault(error: StepError) -> bool {
    match error {
        StepError::PageFault { .. } | StepError::ReadSet | StepError::RowBinding | StepError::Handoff { .. } => true,
        StepError::PoolExhausted
        | StepError::Stopped
        | StepError::NotANumber
        | StepError::WorkerAway
        | StepError::Expired { .. }
        | StepError::Internal => false,
    }
}
