//! A process that does one part of an engine's work for a gateway.

use super::door::Door;
use super::exchange::{Parted, Ways, carry};
use super::introduction::{self, Agreed, MeetError, Offer, PageNumbers, Requests};
use super::link_terms;
use super::relay::Relay;
use super::streams::{Known, Place, Streams};
use super::wire::{Hello, Peer, PromptBounds, Reader, VERSION, Welcome, WordError};
use crate::compute::Compute;
use crate::config::{EngineConfig, StartEngineError};
use crate::engine::{Counters, cpu_machine, random, random_number};
use crate::inbox::Inbox;
use crate::machine::Machine;
use crate::outlet::Said;
use crate::split::{Between, DecodeGroup, Parcel, PrefillGroup, Terms};
use crate::step::{PAGES_KEPT, Role as Part, Stepper};
use crate::steps::StepError;
use engine_handoff::Incarnation;
use engine_link::{Address, ConnectError, Identity, Link, Listener, Role};
use engine_model::Model;
use engine_scheduler::{Bounds, Tenancy};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Why a worker did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartWorkerError {
    /// Its engine.
    #[error(transparent)]
    Engine(#[from] StartEngineError),
    /// Nobody could reach it.
    #[error("the worker cannot listen")]
    Listen(#[source] ConnectError),
}

/// Does one part of the work for one gateway at a time, which connects to it. Ends with its process.
pub struct Worker {
    role: Role,
    address: Address,
    listener: Arc<Listener>,
    alive: Arc<AtomicBool>,
}

impl Worker {
    /// Makes the KV store, begins to listen and starts the worker's threads: which part it is, is its identity's to say. For
    /// prompts it takes `threads`, `pages`, `prefill_chunk_tokens` and `kv` of `config`, and how many requests there may be is
    /// the gateway's to say. `tenancy` is to be the gateway's: tenants come as numbers.
    ///
    /// # Errors
    /// [`StartWorkerError`].
    pub fn start(
        model: &Arc<Model>,
        config: EngineConfig,
        tenancy: Tenancy,
        address: &Address,
        identity: &Identity,
    ) -> Result<Self, StartWorkerError> {
        let role = identity.role();
        let (mut machine, page_bytes) = cpu_machine(model, config, config.threads, 0)?;
        let (fingerprint, context_length) = (model.fingerprint(config.kv), model.config().context_length);
        let bounds = PromptBounds { vocabulary: machine.compute.vocabulary(), context_length };
        let listener = Listener::bind(address, identity, link_terms(page_bytes, context_length));
        let listener = Arc::new(listener.map_err(StartWorkerError::Listen)?);
        let (door, links) = Door::new();
        let (door, alive) = (Arc::new(door), Arc::new(AtomicBool::new(true)));
        let start = |name: &str, run: Box<dyn FnOnce() + Send>| {
            let ends = Ends(alive.clone());
            let run = move || {
                let _ends = ends;
                run();
            };
            thread::Builder::new().name(name.to_owned()).spawn(run).map_err(StartEngineError::Thread)
        };
        let mut meet: Box<dyn FnMut(Link) -> Result<Parted, MeetError> + Send> = match role {
            Role::Prefill => {
                let mut serving =
                    Serving::new(machine, config, fingerprint, bounds, Requests::There, Arc::new(Counters::new()))?;
                serving.tenancy = tenancy;
                Box::new(move |link| serving.serve(link, None))
            }
            Role::Decode => {
                let bounds_of_queue = Bounds::new(config.sequences_max + config.queue_max, tenancy.clone());
                let inbox = Arc::new(Inbox::with_bounds(bounds_of_queue));
                let counters = Arc::new(Counters::new());
                let context_max = config.context_max(context_length);
                let stepper = Stepper::new(Part::Decode, inbox, counters, config).on_terms(&tenancy, machine.costs);
                machine.keep_swapped(random()?, config.swap_mib << 20);
                let (mut deciding, group) = Deciding::new(stepper, &machine, fingerprint, context_max)?;
                let between = deciding.between.clone();
                start("engine-decode", Box::new(move || between.run_decode(group, machine)))?;
                Box::new(move |link| deciding.meet(link, Some(bounds)))
            }
        };
        let own_door = door.clone();
        let serve = move || {
            while let Ok(link) = links.recv() {
                match meet(link) {
                    Ok(Parted::Word(error)) => tracing::error!(%error, "the gateway said what it cannot"),
                    Ok(Parted::Link(end)) => tracing::info!(?end, "the gateway is gone"),
                    Ok(Parted::Stopped) => (),
                    Err(error) => tracing::warn!(%error, "a gateway was not served"),
                }
                own_door.open();
            }
        };
        start(if role == Role::Prefill { "engine-prefill" } else { "worker-link" }, Box::new(serve))?;
        let waiting = listener.clone();
        start("worker-listen", Box::new(move || door.listen(&waiting)))?;
        Ok(Self { role, address: listener.address().clone(), listener, alive })
    }

    /// Which part it is.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Its threads run.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.alive.load(Ordering::SeqCst)
    }

    /// Nobody finds it any more: for the end of its process.
    pub fn withdraw(&self) {
        self.listener.withdraw();
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Worker({}, {})", self.role, self.address)
    }
}

/// Lowers the flag however a thread ends.
struct Ends(Arc<AtomicBool>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// What computes prompts, and what it keeps from one link to the next.
pub(crate) struct Serving<C> {
    pub(super) machine: Machine<C>,
    config: EngineConfig,
    offer: Offer,
    bounds: PromptBounds,
    numbers: PageNumbers,
    counters: Arc<Counters>,
    /// Everybody's terms; the defaults of a fresh one.
    pub(crate) tenancy: Tenancy,
}

impl<C: Compute> Serving<C> {
    /// `machine` is a fresh one.
    pub(crate) fn new(
        machine: Machine<C>,
        config: EngineConfig,
        fingerprint: [u8; 32],
        bounds: PromptBounds,
        requests: Requests,
        counters: Arc<Counters>,
    ) -> Result<Self, StartEngineError> {
        let pages = u32::try_from(config.pages).unwrap_or(u32::MAX);
        let welcome = Welcome { life: 0, boot: random_number()?, pages };
        let (numbers, tenancy) = (PageNumbers::from(0), Tenancy::default());
        let content_bytes = machine.compute.content_bytes();
        let offer = Offer { fingerprint, tenancy: tenancy.digest(), welcome, content_bytes, requests };
        Ok(Self { machine, config, offer, bounds, numbers, counters, tenancy })
    }

    /// One life of the group. With `streams`, requests come from here, and their readers are.
    pub(super) fn serve(&mut self, link: Link, streams: Option<&Streams>) -> Result<Parted, MeetError> {
        let (sender, mut receiver) = link.split();
        let life = Incarnation(random_number().map_err(|_| MeetError::Entropy)?);
        // Whose a tenant's number is, the other process decides: nothing is kept from one link to the next.
        if self.config.prefix_cache {
            self.machine.keep_prefixes(random().map_err(|_| MeetError::Entropy)?, self.offer.fingerprint);
        }
        let (welcome, tenancy) = (Welcome { life: life.0, ..self.offer.welcome }, self.tenancy.digest());
        let offer = Offer { welcome, tenancy, ..self.offer };
        let Agreed { terms, slots, boot, pages, places } = introduction::answer(offer, &sender, &mut receiver)?;
        let inbox = Arc::new(Inbox::new(slots));
        let config = EngineConfig { sequences_max: slots, ..self.config };
        let stepper = Stepper::new(Part::Prefill, inbox.clone(), self.counters.clone(), config);
        let stepper = stepper.on_terms(&self.tenancy, self.machine.costs);
        let reader = Reader::new(terms.key.clone(), Peer::Decode(self.bounds), streams.is_some());
        let group = PrefillGroup::new(stepper, terms, life);
        let between = Between::new(inbox);
        if let Some(streams) = streams {
            // The decode group has given numbers to the pages here, behind its own.
            let numbers = pages.checked_add(offer.welcome.pages).ok_or(MeetError::Numbers)?;
            let first_page = self.numbers.of(boot, numbers)?;
            streams.join(sender.clone(), Place { first_page, pages: numbers, places }, &between.inbox);
        }
        tracing::info!(slots, "the link is up");
        let parted = thread::scope(|scope| {
            let carrying = scope.spawn(|| {
                let _stops = Stops(&between.inbox);
                let ways = Ways { outgoing: &between.to_decode, incoming: &between.to_prefill, inbox: &between.inbox };
                let take = |stream, word| streams.map_or(Err(WordError::NotHere), |streams| streams.take(stream, word));
                carry(sender, receiver, reader, &ways, take, |parcel| passes(streams, parcel, &between))
            });
            between.run_prefill(group, &mut self.machine);
            carrying.join()
        });
        if let Some(streams) = streams {
            streams.part();
        }
        // Whatever was computed on that link is nobody's now, what was kept for later included.
        self.machine.cache = None;
        self.machine.reclaim();
        self.machine.compute.give_back(PAGES_KEPT);
        Ok(parted.unwrap_or(Parted::Stopped))
    }
}

/// A prompt is computed where its request comes from only as that request's.
fn passes(streams: Option<&Streams>, parcel: &Parcel, between: &Between) -> bool {
    let (Some(streams), Parcel::Prompt { route, prompt }) = (streams, parcel) else { return true };
    match streams.knows(prompt) {
        Known::Yes => true,
        Known::Gone => false,
        Known::Other => {
            tracing::error!(request_id = %prompt.request, "a prompt came back as another one than was submitted");
            let said = Said::Failed(StepError::RowBinding);
            between.to_decode.put(&mut VecDeque::from([Parcel::Said { route: *route, said }]));
            false
        }
    }
}

/// Stops the group when its link has ended, however that came.
struct Stops<'a>(&'a Inbox);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// What a decode group goes by that has its prefill group behind a link. The group itself has a thread of its own.
pub(crate) struct Deciding {
    pub(crate) between: Between,
    secret: [u8; 32],
    terms: Terms,
    life: Incarnation,
    slots: usize,
    places: usize,
    context_max: usize,
    boot: u64,
    pages: u32,
    numbers: PageNumbers,
    tenancy: [u8; 32],
    counters: Arc<Counters>,
}

impl Deciding {
    /// And the group, which works on `machine`, whose first page has the number 0.
    pub(crate) fn new(
        stepper: Stepper,
        machine: &Machine<impl Compute>,
        fingerprint: [u8; 32],
        context_max: usize,
    ) -> Result<(Self, DecodeGroup), StartEngineError> {
        let (secret, slots) = (random()?, stepper.config.sequences_max);
        let places = slots + stepper.config.queue_max;
        let terms = Terms::new(secret, machine.compute.content_bytes(), fingerprint, false, slots);
        let (terms, life) = (terms.ok_or(StartEngineError::Handoff)?, Incarnation(random_number()?));
        let pages = u32::try_from(stepper.config.pages).unwrap_or(u32::MAX);
        let (between, counters) = (Between::new(stepper.inbox.clone()), stepper.counters.clone());
        counters.worker_away.store(true, Ordering::SeqCst);
        let tenancy = stepper.scheduler.tenancy().digest();
        let group = DecodeGroup::new(stepper, terms.clone(), life, None, random()?);
        let (boot, numbers) = (random_number()?, PageNumbers::from(pages));
        let deciding =
            Self { between, secret, terms, life, slots, places, context_max, boot, pages, numbers, tenancy, counters };
        Ok((deciding, group))
    }

    /// One life of the prefill group. With `bounds` for their prompts, requests come from there, and their readers are.
    pub(super) fn meet(&mut self, link: Link, bounds: Option<PromptBounds>) -> Result<Parted, MeetError> {
        let (sender, mut receiver) = link.split();
        let hello = Hello {
            version: VERSION,
            secret: self.secret.into(),
            life: self.life.0,
            fingerprint: self.terms.fingerprint.0.into(),
            slots: u32::try_from(self.slots).unwrap_or(u32::MAX),
            context_max: u32::try_from(self.context_max).unwrap_or(u32::MAX),
            boot: self.boot,
            pages: self.pages,
            places: u32::try_from(self.places).unwrap_or(u32::MAX),
            tenancy: Some(self.tenancy.into()),
        };
        let welcome = introduction::introduce(hello, &sender, &mut receiver)?;
        let between = &self.between;
        // Where requests come from, everybody else is told other numbers: there, no two processes share one.
        let first_page = match bounds {
            Some(_) => self.pages,
            None => self.numbers.of(welcome.boot, welcome.pages)?,
        };
        let peer = Peer::Prefill { first_page, pages: welcome.pages };
        let reader = Reader::new(self.terms.key.clone(), peer, bounds.is_some());
        let ways = Ways { outgoing: &between.to_prefill, incoming: &between.to_decode, inbox: &between.inbox };
        // What was for an earlier one is nobody's.
        drop(between.to_prefill.take());
        self.announce(Some(Incarnation(welcome.life)));
        tracing::info!(pages = welcome.pages, "the link is up");
        let parted = thread::scope(|scope| {
            let Some(bounds) = bounds else {
                return carry(sender, receiver, reader, &ways, |_, _| Err(WordError::NotHere), |_| true);
            };
            let (relay, relaying) =
                Relay::new(between.inbox.clone(), self.counters.clone(), self.context_max, sender.clone());
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_time().build() {
                Ok(runtime) => runtime,
                Err(error) => {
                    tracing::error!(%error, "requests cannot be relayed");
                    return Parted::Stopped;
                }
            };
            // Ends when `relay` is dropped; then nobody reads any more.
            scope.spawn(move || runtime.block_on(relaying.run()));
            carry(sender, receiver, reader, &ways, move |stream, word| relay.take(stream, word, bounds), |_| true)
        });
        self.announce(None);
        Ok(parted)
    }

    fn announce(&self, life: Option<Incarnation>) {
        self.counters.worker_away.store(life.is_none(), Ordering::SeqCst);
        self.between.to_decode.put(&mut VecDeque::from([Parcel::Peer { life }]));
        self.between.inbox.wake_if_asleep();
    }
}
