//! Where gateways come in to a worker.

use super::introduction;
use super::wire::{Refused, Word};
use engine_link::{Incoming, Link, Listener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

/// Connections whose handshake is not over; one more is closed.
const HANDSHAKES_MAX: usize = 8;
/// After the system could not give a connection, as when there are no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Lets one gateway in at a time.
pub(super) struct Door {
    /// One is in, or about to be.
    busy: AtomicBool,
    handshakes: AtomicUsize,
    to_group: SyncSender<Link>,
}

impl Door {
    /// And what comes through it.
    pub(super) fn new() -> (Self, Receiver<Link>) {
        let (to_group, links) = sync_channel(1);
        (Self { busy: AtomicBool::new(false), handshakes: AtomicUsize::new(0), to_group }, links)
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
