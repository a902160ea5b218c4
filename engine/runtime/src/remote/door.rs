//! Where gateways come in to a worker.

use super::introduction;
use super::wire::{Refused, Word};
use engine_link::{Closer, Incoming, Link, Listener};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Connections whose handshake is not over. A newcomer beyond takes the place of the oldest: a real handshake takes
/// milliseconds, and whoever only connects keeps nobody out.
const HANDSHAKES_MAX: usize = 32;
/// After the system could not give a connection, as when there are no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Between two lines in the log about connections that were refused: anybody who reaches the address can cause them.
const LOG_PAUSE: Duration = Duration::from_secs(10);

/// Lets one gateway in at a time.
pub(super) struct Door {
    /// One is in, or about to be.
    busy: AtomicBool,
    handshakes: Mutex<Handshakes>,
    refused: Mutex<RefusedSoFar>,
    to_group: SyncSender<Link>,
}

#[derive(Default)]
struct Handshakes {
    /// In the order in which they came.
    open: BTreeMap<u64, Closer>,
    next: u64,
}

#[derive(Default)]
struct RefusedSoFar {
    told: Option<Instant>,
    /// Since then.
    untold: u64,
}

impl Door {
    /// And what comes through it.
    pub(super) fn new() -> (Self, Receiver<Link>) {
        let (to_group, links) = sync_channel(1);
        let (handshakes, refused) = (Mutex::default(), Mutex::default());
        (Self { busy: AtomicBool::new(false), handshakes, refused, to_group }, links)
    }

    /// Whoever was in is gone.
    pub(super) fn open(&self) {
        self.busy.store(false, Ordering::SeqCst);
    }

    /// For as long as the process lives.
    pub(super) fn listen(self: &Arc<Self>, listener: &Listener) {
        loop {
            match listener.accept() {
                Ok(incoming) => self.receive(incoming),
                Err(error) => {
                    self.note_refused(&error.to_string());
                    thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }

    /// A handshake takes as long as the other end likes, up to a limit: nobody else waits for it.
    fn receive(self: &Arc<Self>, incoming: Incoming) {
        let Ok(closer) = incoming.closer() else { return self.note_refused("no descriptor is left") };
        let number = {
            let mut handshakes = self.handshakes();
            if handshakes.open.len() >= HANDSHAKES_MAX
                && let Some((_, oldest)) = handshakes.open.pop_first()
            {
                oldest.close();
            }
            let number = handshakes.next;
            handshakes.next += 1;
            handshakes.open.insert(number, closer);
            number
        };
        let door = self.clone();
        let shaking = thread::Builder::new().name("worker-handshake".to_owned()).spawn(move || {
            let link = incoming.shake_hands();
            door.handshakes().open.remove(&number);
            match link {
                Ok(link) => door.let_in(link),
                Err(error) => door.note_refused(&error.to_string()),
            }
        });
        if let Err(error) = shaking {
            self.handshakes().open.remove(&number);
            self.note_refused(&error.to_string());
        }
    }

    fn let_in(&self, link: Link) {
        if self.busy.swap(true, Ordering::SeqCst) {
            self.note_refused("a second gateway");
            let (sender, _receiver) = link.split();
            // It may be gone already.
            let _said = introduction::say(&sender, &Word::Refused(Refused::Busy));
            return;
        }
        if self.to_group.send(link).is_err() {
            self.busy.store(false, Ordering::SeqCst);
        }
    }

    /// One line now and then.
    fn note_refused(&self, reason: &str) {
        let mut so_far = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if so_far.told.is_some_and(|told| told.elapsed() < LOG_PAUSE) {
            so_far.untold += 1;
            return;
        }
        tracing::warn!(%reason, others = so_far.untold, "a connection was refused");
        *so_far = RefusedSoFar { told: Some(Instant::now()), untold: 0 };
    }

    fn handshakes(&self) -> MutexGuard<'_, Handshakes> {
        self.handshakes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
