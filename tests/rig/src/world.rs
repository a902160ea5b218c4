//! An engine that stands still, its clients, and what is found out about them in the end.

use crate::act::Act;
use crate::cast::{self, Cast};
use crate::client::{self, Client, Seals, State};
use crate::engine::Engine;
use crate::quiet::quietly;
use crate::tracer::ForeignRead;
use engine_kernels::KvKind;
use engine_kv::{CacheFault, LedgerFault};
use engine_runtime::{EngineConfig, Fault, Sampling, StepError};
use std::collections::BTreeSet;

/// What a world is made from.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Who appears.
    pub cast: Cast,
    /// Sizes of the engine.
    pub config: EngineConfig,
    /// Defects of the prefix cache.
    pub cache_faults: Vec<CacheFault>,
    /// Defects of the ledger.
    pub ledger_faults: Vec<LedgerFault>,
    /// Defects of the step loop.
    pub faults: Vec<Fault>,
    /// Checks that are on.
    pub checks: Checks,
    /// The kernels do not know where a page's tokens end.
    pub reads_whole_pages: bool,
    /// The engine's output goes to each newcomer from another tenant's stream, and the other way round.
    pub exchanges_streams: bool,
    /// Who computes what.
    pub groups: Groups,
    /// A setting that nobody should choose: whoever sends pages has a right to write into the receiver's memory.
    pub one_sided: bool,
    /// With that: pages of a handoff that ends do not wait for bytes that are on their way, and the ledger does not notice.
    pub frees_early: bool,
}

/// Who computes prompts and who goes on from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Groups {
    /// One step loop does both.
    One,
    /// Two groups with one pool: pages change hands where they are.
    InPlace,
    /// Two groups with a pool each: pages are copied.
    Copied,
}

/// Which checks are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checks {
    /// Tags of pages, where they are read and written.
    pub tags: bool,
    /// What the step loop compares: with the custody log, and with what the kernels say that they read.
    pub steps: bool,
    /// Labels of what a step read, and the seals of its text, before that leaves.
    pub gate: bool,
}

impl Checks {
    /// As shipped.
    pub const ALL: Self = Self { tags: true, steps: true, gate: true };
    /// Nobody looks.
    pub const NONE: Self = Self { tags: false, steps: false, gate: false };
}

impl Setup {
    /// A small engine that is always short of pages, without faults.
    #[must_use]
    pub fn small() -> Self {
        let config = EngineConfig {
            threads: 1,
            pages: 40,
            sequences_max: 6,
            queue_max: 12,
            prefill_chunk_tokens: 32,
            context_tokens_max: None,
            kv: KvKind::F32,
            ..EngineConfig::default()
        };
        let cast = Cast { tenants: 4, requests: 64 };
        Self {
            cast,
            config,
            cache_faults: Vec::new(),
            ledger_faults: Vec::new(),
            faults: Vec::new(),
            checks: Checks::ALL,
            reads_whole_pages: false,
            exchanges_streams: false,
            groups: Groups::One,
            one_sided: false,
            frees_early: false,
        }
    }
}

/// A run of acts on one engine.
#[derive(Debug)]
pub struct World {
    cast: Cast,
    /// `None`: it stopped itself.
    engine: Option<Engine>,
    clients: Vec<Client>,
    is_gated: bool,
    exchanges_streams: bool,
    refused: u32,
    gave_way: usize,
    restarts: usize,
    waits: usize,
}

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Responses that were begun.
    pub responses: usize,
    /// Times that an act took a request's slot away.
    pub gave_way: usize,
    /// Times that the prefill group began anew.
    pub restarts: usize,
    /// Times that nobody could go on before half a second had passed.
    pub waits: usize,
    /// Who found another tenant's content where it was told to read, and who had written it.
    pub foreign: BTreeSet<ForeignRead>,
    /// Who found what its tenant wrote in another sequence than its own.
    pub misread: BTreeSet<u32>,
    /// Responses with another tenant's content in what left for the client.
    pub leaked: BTreeSet<u32>,
    /// Responses that an isolation fault ended.
    pub caught: BTreeSet<u32>,
    /// Responses that ended for another reason, none of which there is when nothing is broken.
    pub failed: BTreeSet<u32>,
    /// Responses that ended because what the model said was no number.
    pub stopped: BTreeSet<u32>,
    /// Responses whose clients left before that.
    pub left: BTreeSet<u32>,
    /// Responses that ended whole and are not the answer.
    pub wrong: BTreeSet<u32>,
    /// Responses that should have ended and have not.
    pub stuck: BTreeSet<u32>,
    /// The engine stopped itself.
    pub halted: bool,
    /// Pages that are neither free nor kept as evidence although nobody holds any.
    pub pages_lost: usize,
}

impl Findings {
    /// Requests that read another tenant's content.
    #[must_use]
    pub fn readers(&self) -> BTreeSet<u32> {
        self.foreign.iter().filter(|read| read.was_read).map(|read| read.reader).collect()
    }

    /// As it must be when nothing is broken.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let Self { foreign, misread, leaked, caught, failed, stopped, wrong, stuck, halted, pages_lost, .. } = self;
        foreign.is_empty()
            && misread.is_empty()
            && leaked.is_empty()
            && caught.is_empty()
            && stopped.is_empty()
            && failed.is_empty()
            && wrong.is_empty()
            && stuck.is_empty()
            && !halted
            && *pages_lost == 0
    }

    /// As it must be whatever is broken: nothing of another tenant's left, and who read it and stayed was found out (or the
    /// engine stopped itself).
    #[must_use]
    pub fn is_safe(&self) -> bool {
        let is_known = |reader: &u32| [&self.caught, &self.stopped, &self.left].iter().any(|set| set.contains(reader));
        self.leaked.is_empty() && (self.halted || self.readers().iter().all(is_known))
    }
}

impl World {
    /// An engine without requests.
    #[must_use]
    pub fn new(setup: &Setup) -> Self {
        let engine = Some(Engine::new(setup));
        Self {
            cast: setup.cast,
            engine,
            clients: Vec::new(),
            is_gated: setup.checks.gate,
            exchanges_streams: setup.exchanges_streams,
            refused: 0,
            gave_way: 0,
            restarts: 0,
            waits: 0,
        }
    }

    /// One act. What makes no sense at this moment does nothing.
    pub fn act(&mut self, act: Act) {
        match act {
            Act::Arrive { prompt, answer } => self.arrive(prompt as usize, answer as usize),
            Act::Read { client, steps } => {
                if let Some(client) = self.client(client) {
                    client.read(steps as usize);
                }
            }
            Act::Leave { client } => {
                if let Some(client) = self.client(client) {
                    client.leave();
                }
            }
            act => {
                let happened = self.let_engine(|engine| engine.act(act)) == Some(true);
                self.gave_way += usize::from(happened && matches!(act, Act::Preempt { .. } | Act::Evict));
                self.restarts += usize::from(happened && matches!(act, Act::Restart { .. }));
            }
        }
    }

    fn client(&mut self, number: u32) -> Option<&mut Client> {
        let count = self.clients.len();
        (count > 0).then(|| &mut self.clients[number as usize % count])
    }

    fn arrive(&mut self, prompt: usize, answer: usize) {
        let request = self.clients.len() as u32;
        let Some(engine) = self.engine.as_mut().filter(|_| request < self.cast.requests) else { return };
        let label = cast::label(self.cast.tenant(request));
        let tokens = self.cast.prompt(request, prompt);
        let sampling = Sampling { max_tokens: Some(answer), temperature: 0.0, ..Sampling::default() };
        let Some(permit) = client::permit(self.cast.tenant(request), request) else { return };
        let seals = Seals::of(&permit, request);
        match engine.submit(label, cast::request_id(request), tokens, sampling, seals.sealer()) {
            Ok(steps) => {
                let checks = self.is_gated.then_some((&permit, seals));
                self.clients.push(Client::new(self.cast, request, answer, steps, checks));
                if self.exchanges_streams {
                    self.exchange_streams();
                }
            }
            Err(_) => self.refused += 1,
        }
    }

    /// Of the newest request and of another tenant's that is open.
    fn exchange_streams(&mut self) {
        let Some((newest, others)) = self.clients.split_last_mut() else { return };
        let other = others.iter_mut().rev().find(|other| other.is_open() && other.tenant() != newest.tenant());
        if let Some(other) = other {
            newest.exchange(other);
        }
    }

    /// `None`: the engine has stopped itself, now or before.
    fn let_engine<T>(&mut self, work: impl FnOnce(&mut Engine) -> T) -> Option<T> {
        let engine = self.engine.as_mut()?;
        let result = quietly(|| work(engine));
        if result.is_none() {
            // What it holds may be in any state: it is not touched again.
            std::mem::forget(self.engine.take());
        }
        result
    }

    /// `false`: nobody can go on, and nothing is on its way. Time passes where somebody waits for that.
    fn go_on(&mut self) -> bool {
        let went_on = self.let_engine(|engine| engine.step() || engine.has_parcels());
        let waits = self.engine.as_ref().is_some_and(|engine| engine.pages_held() > 0);
        if went_on == Some(false) && waits {
            self.waits += 1;
            self.act(Act::Pass { milliseconds: 500 });
            // As its thread does now and then, whether or not there is work: what was given back is scrubbed and freed.
            self.act(Act::Prefill);
        }
        went_on == Some(true) || waits
    }

    /// Everybody reads and the engine goes on until all is done; then what was found.
    #[must_use]
    pub fn end(mut self, steps_max: usize) -> Findings {
        self.run_out(steps_max);
        self.findings()
    }

    /// Everybody reads and the engine goes on until all is done.
    pub fn run_out(&mut self, steps_max: usize) {
        for _ in 0..steps_max {
            self.clients.iter_mut().for_each(|client| client.read(usize::MAX));
            if !self.go_on() {
                break;
            }
        }
        self.clients.iter_mut().for_each(|client| client.read(usize::MAX));
    }

    /// What was found so far.
    #[must_use]
    pub fn findings(&mut self) -> Findings {
        let of = |holds: &dyn Fn(&Client) -> bool| {
            self.clients.iter().filter(|client| holds(client)).map(Client::request).collect::<BTreeSet<u32>>()
        };
        let mut findings = Findings {
            responses: self.clients.len(),
            gave_way: self.gave_way,
            restarts: self.restarts,
            waits: self.waits,
            leaked: of(&|client| !client.foreign_tenants().is_empty()),
            caught: of(&|client| matches!(client.state, State::Caught(_))),
            failed: of(&|client| matches!(client.state, State::Failed(error) if error != StepError::NotANumber)),
            stopped: of(&|client| client.state == State::Failed(StepError::NotANumber)),
            left: of(&|client| client.state == State::Left),
            wrong: of(&|client| client.state == State::Whole && !client.is_right()),
            stuck: of(&|client| client.state == State::Open),
            halted: self.engine.is_none(),
            ..Findings::default()
        };
        if let Some(engine) = &mut self.engine {
            findings.foreign = engine.foreign_reads();
            findings.misread = engine.misread();
            findings.pages_lost = engine.pages_held();
        } else {
            findings.stuck.clear();
        }
        findings
    }

    pub(crate) fn cast(&self) -> Cast {
        self.cast
    }

    pub(crate) fn engine(&mut self) -> Option<&mut Engine> {
        self.engine.as_mut()
    }

    /// The clients so far, in the order of their requests.
    #[must_use]
    pub fn clients(&self) -> &[Client] {
        &self.clients
    }
}
