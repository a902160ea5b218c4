//! Parcels over a link, and the gateway's end of it.

use super::introduction::{self, MeetError, PageNumbers};
use super::wire::{self, Hello, Peer, Reader, VERSION, WordError};
use crate::engine::Counters;
use crate::inbox::Inbox;
use crate::split::{Between, Mailbox, Parcel, Terms};
use engine_handoff::{HandoffKey, Incarnation};
use engine_link::{Address, Identity, LinkEnd, LinkReceiver, LinkSender, LinkTerms, connect};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// How long a thread waits before it looks whether the link is over.
const LOOK: Duration = Duration::from_millis(100);
/// Parcels that wait for a group; what is behind them stays with the peer.
const PARCELS_MAX: usize = 64;
/// Between two tries to reach a worker: the first one, and as long as it grows.
const PAUSES: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(8)];

/// Where a prefill worker listens, and who the gateway is towards it: its identity is that of the decode part.
#[derive(Clone, Debug)]
pub struct RemotePrefill {
    /// Where.
    pub address: Address,
    /// Who.
    pub identity: Identity,
}

/// How a link came to its end.
#[derive(Debug)]
pub(super) enum Parted {
    /// This end stopped.
    Stopped,
    /// The link did.
    Link(LinkEnd),
    /// The peer said what it cannot.
    Word(WordError),
}

/// Where parcels of one group come from and go to.
pub(super) struct Ways<'a> {
    pub(super) outgoing: &'a Mailbox,
    pub(super) incoming: &'a Mailbox,
    /// Of the group: woken when something came; when it is stopped, so is this.
    pub(super) inbox: &'a Inbox,
}

/// Carries parcels in both directions until the link ends or the group is stopped.
pub(super) fn carry(sender: LinkSender, mut receiver: LinkReceiver, mut reader: Reader, ways: &Ways<'_>) -> Parted {
    let over = AtomicBool::new(false);
    let key = reader.key.clone();
    thread::scope(|scope| {
        scope.spawn(|| send(sender, &key, ways, &over));
        let parted = loop {
            match receiver.receive() {
                Err(_) if ways.inbox.is_stopped() => break Parted::Stopped,
                Err(end) => break Parted::Link(end),
                Ok(frame) => match reader.parcel(&frame) {
                    Ok(None) => (),
                    Ok(Some(parcel)) => {
                        if !bring(parcel, ways) {
                            break Parted::Stopped;
                        }
                    }
                    Err(error) => break Parted::Word(error),
                },
            }
        };
        over.store(true, Ordering::SeqCst);
        parted
    })
}

/// Waits while the group has enough to do. `false`: it is stopped.
fn bring(parcel: Parcel, ways: &Ways<'_>) -> bool {
    while !ways.incoming.has_room(PARCELS_MAX, LOOK) {
        if ways.inbox.is_stopped() {
            return false;
        }
    }
    ways.incoming.put(&mut VecDeque::from([parcel]));
    ways.inbox.wake_if_asleep();
    true
}

/// Dropping the sender at the end says farewell.
fn send(sender: LinkSender, key: &HandoffKey, ways: &Ways<'_>, over: &AtomicBool) {
    while !over.load(Ordering::SeqCst) && !ways.inbox.is_stopped() {
        for parcel in ways.outgoing.wait(LOOK) {
            for frame in wire::frames(parcel, key) {
                if !sender.send(frame) {
                    return;
                }
            }
        }
    }
}

/// The gateway's end: reaches the worker again and again, and tells the decode group of it.
pub(crate) struct RemotePeer {
    pub(crate) remote: RemotePrefill,
    pub(crate) link: LinkTerms,
    /// The keys of `terms` come from it.
    pub(crate) secret: [u8; 32],
    pub(crate) terms: Terms,
    pub(crate) life: Incarnation,
    pub(crate) slots: usize,
    pub(crate) context_max: usize,
    pub(crate) numbers: Arrivals,
    pub(crate) counters: Arc<Counters>,
}

/// Numbers for the pages of the workers that come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrivals(PageNumbers);

impl Arrivals {
    /// The gateway has so many pages of its own.
    pub(crate) fn beyond(pages: u32) -> Self {
        Self(PageNumbers::from(pages))
    }
}

impl RemotePeer {
    /// Runs until the engine's handle is gone.
    pub(crate) fn run(mut self, between: &Between) {
        let [mut pause, longest] = PAUSES;
        let mut said = String::new();
        while !between.inbox.is_stopped() {
            match self.meet(between) {
                Ok(parted) => {
                    pause = PAUSES[0];
                    said.clear();
                    match parted {
                        Parted::Stopped => return,
                        Parted::Link(end) => tracing::warn!(?end, "the link to the prefill worker ended"),
                        Parted::Word(error) => tracing::error!(%error, "the prefill worker said what it cannot"),
                    }
                }
                Err(error) => {
                    // Once for each reason: it is tried again until it succeeds.
                    let (address, reason) = (&self.remote.address, error.to_string());
                    if reason != said {
                        tracing::warn!(%address, %reason, "no prefill worker");
                        said = reason;
                    }
                    pause = (pause * 2).min(longest);
                }
            }
            let looks = pause.as_millis() / LOOK.as_millis();
            for _ in 0..looks.max(1) {
                if !between.inbox.is_stopped() {
                    thread::sleep(LOOK);
                }
            }
        }
    }

    /// One life of the worker's group, from its beginning to its end.
    fn meet(&mut self, between: &Between) -> Result<Parted, MeetError> {
        let (sender, mut receiver) = connect(&self.remote.address, &self.remote.identity, self.link)?.split();
        let hello = Hello {
            version: VERSION,
            secret: self.secret.into(),
            life: self.life.0,
            fingerprint: self.terms.fingerprint.0.into(),
            slots: u32::try_from(self.slots).unwrap_or(u32::MAX),
            context_max: u32::try_from(self.context_max).unwrap_or(u32::MAX),
        };
        let welcome = introduction::introduce(hello, &sender, &mut receiver)?;
        let first_page = self.numbers.0.of(welcome)?;
        tracing::info!(address = %self.remote.address, pages = welcome.pages, "a prefill worker is connected");
        // What was for an earlier one is nobody's.
        drop(between.to_prefill.take());
        self.announce(between, Some(introduction::life_of(welcome)));
        let peer = Peer::Prefill { first_page, pages: welcome.pages };
        let ways = Ways { outgoing: &between.to_prefill, incoming: &between.to_decode, inbox: &between.inbox };
        let parted = carry(sender, receiver, Reader::new(self.terms.key.clone(), peer), &ways);
        self.announce(between, None);
        Ok(parted)
    }

    fn announce(&self, between: &Between, life: Option<Incarnation>) {
        self.counters.prefill_away.store(life.is_none(), Ordering::SeqCst);
        between.to_decode.put(&mut VecDeque::from([Parcel::Peer { life }]));
        between.inbox.wake_if_asleep();
    }
}
