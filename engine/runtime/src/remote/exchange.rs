//! Parcels over a link, in both directions.

use super::stream_words::StreamWord;
use super::wire::{self, Came, Reader, WordError};
use crate::inbox::Inbox;
use crate::split::{Mailbox, Parcel};
use engine_handoff::HandoffKey;
use engine_link::{LinkEnd, LinkReceiver, LinkSender};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// How long a thread waits before it looks whether the link is over.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// Parcels that wait for a group; what is behind them stays with the peer.
const PARCELS_MAX: usize = 64;

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

/// Carries parcels in both directions until the link ends or the group is stopped. What comes about streams goes to
/// `streams`, and a parcel to the group only when `passes` says so.
pub(super) fn carry(
    sender: LinkSender,
    mut receiver: LinkReceiver,
    mut reader: Reader,
    ways: &Ways<'_>,
    mut streams: impl FnMut(u64, StreamWord) -> Result<(), WordError>,
    mut passes: impl FnMut(&Parcel) -> bool,
) -> Parted {
    let over = AtomicBool::new(false);
    let key = reader.key.clone();
    thread::scope(|scope| {
        scope.spawn(|| send(sender, &key, ways, &over));
        let mut take = |frame| match reader.take(&frame)? {
            Came::Nothing => Ok(true),
            Came::Stream(stream, word) => streams(stream, word).map(|()| true),
            Came::Parcel(parcel) => Ok(!passes(&parcel) || bring(parcel, ways)),
        };
        let parted = loop {
            match receiver.receive() {
                Err(_) if ways.inbox.is_stopped() => break Parted::Stopped,
                Err(end) => break Parted::Link(end),
                Ok(frame) => match take(frame) {
                    Ok(true) => (),
                    Ok(false) => break Parted::Stopped,
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
