//! The first words on a link: who is there, and whether they fit together.

use super::wire::{self, Hello, Refused, VERSION, Welcome, Word, WordError};
use crate::config::EngineConfig;
use crate::split::Terms;
use engine_handoff::Incarnation;
use engine_kv::PAGE_TOKENS;
use engine_link::{ConnectError, LinkEnd, LinkReceiver, LinkSender};

/// Why two groups do not work together.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MeetError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the worker refused: {0}")]
    Refused(Refused),
    #[error("the gateway was refused: {0}")]
    Refusing(Refused),
    #[error("what came is no word of this protocol: {0}")]
    Word(#[from] WordError),
    #[error("the link ended before they were introduced")]
    Ended,
    #[error("the system gave no random bytes")]
    Entropy,
    #[error("so many workers were started that no numbers are left for their pages: start the gateway again")]
    Numbers,
}

impl From<LinkEnd> for MeetError {
    fn from(_: LinkEnd) -> Self {
        Self::Ended
    }
}

/// The decode group's part.
pub(super) fn introduce(hello: Hello, sender: &LinkSender, receiver: &mut LinkReceiver) -> Result<Welcome, MeetError> {
    say(sender, &Word::Hello(hello))?;
    match wire::read(&receiver.receive()?)? {
        Word::Welcome(welcome) => Ok(welcome),
        Word::Refused(refused) => Err(MeetError::Refused(refused)),
        _ => Err(WordError::NotHere.into()),
    }
}

/// What a prefill group's process has to offer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    pub(super) fingerprint: [u8; 32],
    pub(super) welcome: Welcome,
    /// Bytes of K and V of one layer of a page.
    pub(super) content_bytes: usize,
}

/// The prefill group's part; gives what both go by, and the life of the decode group.
pub(super) fn answer(
    offer: Offer,
    sender: &LinkSender,
    receiver: &mut LinkReceiver,
) -> Result<(Terms, usize), MeetError> {
    let Word::Hello(hello) = wire::read(&receiver.receive()?)? else { return Err(WordError::NotHere.into()) };
    let slots = (hello.slots as usize).clamp(1, EngineConfig::LARGEST.sequences_max);
    match judge(&hello, offer, slots) {
        Ok(terms) => {
            say(sender, &Word::Welcome(offer.welcome))?;
            Ok((terms, slots))
        }
        Err(refused) => {
            say(sender, &Word::Refused(refused))?;
            Err(MeetError::Refusing(refused))
        }
    }
}

fn judge(hello: &Hello, offer: Offer, slots: usize) -> Result<Terms, Refused> {
    if hello.version != VERSION {
        return Err(Refused::Version(VERSION));
    }
    if *hello.fingerprint != offer.fingerprint {
        return Err(Refused::Model);
    }
    let tokens = u64::from(offer.welcome.pages) * PAGE_TOKENS as u64;
    if tokens < u64::from(hello.context_max) {
        return Err(Refused::Pages(tokens, hello.context_max.into()));
    }
    Terms::new(*hello.secret, offer.content_bytes, offer.fingerprint, false, slots).ok_or(Refused::System)
}

pub(super) fn say(sender: &LinkSender, word: &Word) -> Result<(), MeetError> {
    if sender.send(wire::write(word)) { Ok(()) } else { Err(MeetError::Ended) }
}

/// A number for each page of each worker process: none of an earlier one is given again.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageNumbers {
    boot: Option<u64>,
    first: u32,
    next: u32,
}

impl PageNumbers {
    /// From this one on they are free.
    pub(super) fn from(next: u32) -> Self {
        Self { boot: None, first: next, next }
    }

    /// The first one of a worker's pages: the same as long as its process lives.
    pub(super) fn of(&mut self, welcome: Welcome) -> Result<u32, MeetError> {
        if self.boot != Some(welcome.boot) {
            let next = self.next.checked_add(welcome.pages).ok_or(MeetError::Numbers)?;
            *self = Self { boot: Some(welcome.boot), first: self.next, next };
        }
        // A process does not change its pool.
        if self.next - self.first == welcome.pages { Ok(self.first) } else { Err(WordError::Field("pages").into()) }
    }
}

pub(super) fn life_of(welcome: Welcome) -> Incarnation {
    Incarnation(welcome.life)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_processes_have_a_page_of_the_same_number() {
        let mut numbers = PageNumbers::from(100);
        let welcome = |boot, pages| Welcome { life: 1, boot, pages };
        assert_eq!(numbers.of(welcome(7, 50)).unwrap(), 100);
        assert_eq!(numbers.of(welcome(7, 50)).unwrap(), 100, "the same process, on another link");
        assert_eq!(numbers.of(welcome(8, 50)).unwrap(), 150);
        assert_eq!(numbers.of(welcome(9, 10)).unwrap(), 200);
        assert!(matches!(numbers.of(welcome(9, 11)), Err(MeetError::Word(_))), "a pool that has grown");
        assert!(matches!(numbers.of(welcome(10, u32::MAX - 10)), Err(MeetError::Numbers)));
        assert_eq!(numbers.of(welcome(11, 1)).unwrap(), 210, "who was refused has taken none");
    }
}
