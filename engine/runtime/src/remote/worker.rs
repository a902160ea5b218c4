//! A process that computes prompts for a gateway.

use super::exchange::{Parted, Ways, carry};
use super::introduction::{self, MeetError, Offer};
use super::link_terms;
use super::wire::{Peer, PromptBounds, Reader, Refused, Welcome, Word};
use crate::compute::Compute;
use crate::config::{EngineConfig, StartEngineError};
use crate::engine::{Counters, cpu_machine, random_number};
use crate::inbox::Inbox;
use crate::machine::Machine;
use crate::split::{Between, PrefillGroup};
use crate::step::{Role, Stepper};
use engine_handoff::Incarnation;
use engine_link::{Address, ConnectError, Identity, Incoming, Link, Listener};
use engine_model::Model;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

/// Connections whose handshake is not over; one more is closed.
const HANDSHAKES_MAX: usize = 8;
/// After the system could not give a connection, as when there are no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why a worker did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartWorkerError {
    /// Its engine.
    #[error(transparent)]
    Engine(#[from] StartEngineError),
    /// Nobody could reach it.
    #[error("the worker cannot listen")]
    Listen(#[source] ConnectError),
    /// Its certificate is that of another part of the engine.
    #[error("the worker's certificate is not one of a prefill worker")]
    Role,
}

/// Computes prompts for one gateway at a time, which connects to it. Ends with its process.
pub struct PrefillWorker {
    address: Address,
    listener: Arc<Listener>,
    alive: Arc<AtomicBool>,
}

impl PrefillWorker {
    /// Makes the KV store, begins to listen and starts the worker's threads. Of `config` it takes `threads`, `pages`,
    /// `prefill_chunk_tokens` and `kv`; how many requests there may be is the gateway's to say.
    ///
    /// # Errors
    /// [`StartWorkerError`].
    pub fn start(
        model: Arc<Model>,
        config: EngineConfig,
        address: &Address,
        identity: &Identity,
    ) -> Result<Self, StartWorkerError> {
        if identity.role() != engine_link::Role::Prefill {
            return Err(StartWorkerError::Role);
        }
        let (machine, page_bytes) = cpu_machine(&model, config, config.threads, 0)?;
        let terms = link_terms(page_bytes, model.config().context_length);
        let listener = Listener::bind(address, identity, terms).map_err(StartWorkerError::Listen)?;
        let (listener, alive) = (Arc::new(listener), Arc::new(AtomicBool::new(true)));
        let serving = Serving::new(machine, config, model.fingerprint(config.kv), model.config().context_length)?;
        let (to_group, links) = sync_channel(1);
        let door = Arc::new(Door { busy: AtomicBool::new(false), handshakes: AtomicUsize::new(0), to_group });
        let (ends, own_door) = (Ends(alive.clone()), door.clone());
        let start = |name: &str, run: Box<dyn FnOnce() + Send>| {
            thread::Builder::new().name(name.to_owned()).spawn(run).map_err(StartEngineError::Thread)
        };
        start(
            "engine-prefill",
            Box::new(move || {
                let _ends = ends;
                serving.run(&links, &own_door);
            }),
        )?;
        let (ends, waiting) = (Ends(alive.clone()), listener.clone());
        start(
            "worker-listen",
            Box::new(move || {
                let _ends = ends;
                door.listen(&waiting);
            }),
        )?;
        Ok(Self { address: listener.address().clone(), listener, alive })
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

impl fmt::Debug for PrefillWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrefillWorker({})", self.address)
    }
}

/// Lowers the flag however a thread ends.
struct Ends(Arc<AtomicBool>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// Where gateways come in.
struct Door {
    /// One is in, or about to be.
    busy: AtomicBool,
    handshakes: AtomicUsize,
    to_group: SyncSender<Link>,
}

impl Door {
    fn listen(self: &Arc<Self>, listener: &Listener) {
        loop {
            match listener.accept() {
                Ok(incoming) => self.receive(incoming),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be taken");
                    thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }

    /// A handshake takes as long as the other end likes, up to a limit: nobody else waits for it.
    fn receive(self: &Arc<Self>, incoming: Incoming) {
        if self.handshakes.fetch_add(1, Ordering::SeqCst) >= HANDSHAKES_MAX {
            self.handshakes.fetch_sub(1, Ordering::SeqCst);
            tracing::warn!("too many connections at once: one is closed");
            return;
        }
        let door = self.clone();
        let shaking = thread::Builder::new().name("worker-handshake".to_owned()).spawn(move || {
            let link = incoming.shake_hands();
            door.handshakes.fetch_sub(1, Ordering::SeqCst);
            match link {
                Ok(link) => door.let_in(link),
                Err(error) => tracing::warn!(%error, "a connection was refused"),
            }
        });
        if let Err(error) = shaking {
            self.handshakes.fetch_sub(1, Ordering::SeqCst);
            tracing::warn!(%error, "a connection could not be taken");
        }
    }

    fn let_in(&self, link: Link) {
        if self.busy.swap(true, Ordering::SeqCst) {
            tracing::warn!("a second gateway was refused");
            let (sender, _receiver) = link.split();
            // It may be gone already.
            let _said = introduction::say(&sender, &Word::Refused(Refused::Busy));
            return;
        }
        if self.to_group.send(link).is_err() {
            self.busy.store(false, Ordering::SeqCst);
        }
    }
}

/// What computes, and what it keeps from one gateway's link to the next.
pub(super) struct Serving<C> {
    pub(super) machine: Machine<C>,
    pub(super) config: EngineConfig,
    pub(super) offer: Offer,
    pub(super) context_length: usize,
}

impl<C: Compute> Serving<C> {
    /// `machine` is a fresh one.
    pub(super) fn new(
        machine: Machine<C>,
        config: EngineConfig,
        fingerprint: [u8; 32],
        context_length: usize,
    ) -> Result<Self, StartEngineError> {
        let pages = u32::try_from(config.pages).unwrap_or(u32::MAX);
        let welcome = Welcome { life: 0, boot: random_number()?, pages };
        let offer = Offer { fingerprint, welcome, content_bytes: machine.compute.content_bytes() };
        Ok(Self { machine, config, offer, context_length })
    }

    fn run(mut self, links: &Receiver<Link>, door: &Door) {
        while let Ok(link) = links.recv() {
            match self.serve(link) {
                Ok(Parted::Word(error)) => tracing::error!(%error, "the gateway said what it cannot"),
                Ok(Parted::Link(end)) => tracing::info!(?end, "the gateway is gone"),
                Ok(Parted::Stopped) => (),
                Err(error) => tracing::warn!(%error, "a gateway was not served"),
            }
            door.busy.store(false, Ordering::SeqCst);
        }
    }

    /// One life of the group.
    pub(super) fn serve(&mut self, link: Link) -> Result<Parted, MeetError> {
        let (sender, mut receiver) = link.split();
        let life = Incarnation(random_number().map_err(|_| MeetError::Entropy)?);
        let offer = Offer { welcome: Welcome { life: life.0, ..self.offer.welcome }, ..self.offer };
        let (terms, slots) = introduction::answer(offer, &sender, &mut receiver)?;
        tracing::info!(slots, "a gateway is connected");
        let inbox = Arc::new(Inbox::new(slots));
        let config = EngineConfig { sequences_max: slots, ..self.config };
        let stepper = Stepper::new(Role::Prefill, inbox.clone(), Arc::new(Counters::new()), config);
        let (vocabulary, context_length) = (self.machine.compute.vocabulary(), self.context_length);
        let reader = Reader::new(terms.key.clone(), Peer::Decode(PromptBounds { vocabulary, context_length }));
        let group = PrefillGroup::new(stepper, terms, life);
        let between = Between::new(inbox);
        let parted = thread::scope(|scope| {
            let carrying = scope.spawn(|| {
                let _stops = Stops(&between.inbox);
                let ways = Ways { outgoing: &between.to_decode, incoming: &between.to_prefill, inbox: &between.inbox };
                carry(sender, receiver, reader, &ways)
            });
            between.run_prefill(group, &mut self.machine);
            carrying.join()
        });
        // Whatever was computed for that gateway is nobody's now.
        self.machine.reclaim();
        self.machine.compute.give_back(crate::step::PAGES_KEPT);
        Ok(parted.unwrap_or(Parted::Stopped))
    }
}

/// Stops the group when its link has ended, however that came.
struct Stops<'a>(&'a Inbox);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}
