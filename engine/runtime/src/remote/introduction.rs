//! The first words on a link: who is there, and whether they fit together.

use super::wire::{self, Hello, Refused, VERSION, Welcome, Word, WordError};
use crate::config::EngineConfig;
use crate::split::Terms;
use engine_kv::PAGE_TOKENS;
use engine_link::{ConnectError, LinkEnd, LinkReceiver, LinkSender};
use std::time::Duration;

/// How long the other end has for its first word: it has nothing to compute for that.
const LIMIT: Duration = Duration::from_secs(5);

/// Why two groups do not work together.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MeetError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("it was refused: {0}")]
    Refused(Refused),
    #[error("the other process was refused: {0}")]
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
    match wire::read(&receiver.receive_within(LIMIT)?)? {
        Word::Welcome(welcome) => Ok(welcome),
        Word::Refused(refused) => Err(MeetError::Refused(refused)),
        _ => Err(WordError::NotHere.into()),
    }
}

/// What a prefill group's process has to offer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    pub(super) fingerprint: [u8; 32],
    /// Digest of the tenants' terms.
    pub(super) tenancy: [u8; 32],
    pub(super) welcome: Welcome,
    /// Bytes of K and V of one layer of a page.
    pub(super) content_bytes: usize,
    /// Where requests come from.
    pub(super) requests: Requests,
}

/// Where the requests come from that two groups compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requests {
    /// From where the decode group is: all of its prompts must fit here.
    There,
    /// From here, of up to so many tokens: all of them must fit there.
    Here { context_max: u64 },
}

/// What both ends go by, as the decode group's process said it.
pub(super) struct Agreed {
    pub(super) terms: Terms,
    pub(super) slots: usize,
    pub(super) boot: u64,
    pub(super) pages: u32,
    /// Requests that may run and wait there.
    pub(super) places: usize,
}

/// The prefill group's part.
pub(super) fn answer(offer: Offer, sender: &LinkSender, receiver: &mut LinkReceiver) -> Result<Agreed, MeetError> {
    let Word::Hello(hello) = wire::read(&receiver.receive_within(LIMIT)?)? else {
        return Err(WordError::NotHere.into());
    };
    match judge(&hello, offer) {
        Ok(agreed) => {
            say(sender, &Word::Welcome(offer.welcome))?;
            Ok(agreed)
        }
        Err(refused) => {
            say(sender, &Word::Refused(refused))?;
            Err(MeetError::Refusing(refused))
        }
    }
}

fn judge(hello: &Hello, offer: Offer) -> Result<Agreed, Refused> {
    if hello.version != VERSION {
        return Err(Refused::Version(VERSION));
    }
    if *hello.fingerprint != offer.fingerprint {
        return Err(Refused::Model);
    }
    if hello.tenancy.is_none_or(|tenancy| *tenancy != offer.tenancy) {
        return Err(Refused::Tenancy);
    }
    let there = u64::from(hello.context_max);
    match offer.requests {
        Requests::There => {
            let tokens = u64::from(offer.welcome.pages) * PAGE_TOKENS as u64;
            if tokens < there {
                return Err(Refused::Pages(tokens, there));
            }
        }
        Requests::Here { context_max } if there < context_max => return Err(Refused::Context(there, context_max)),
        Requests::Here { .. } => (),
    }
    let slots = (hello.slots as usize).clamp(1, EngineConfig::LARGEST.sequences_max);
    let terms = Terms::new(*hello.secret, offer.content_bytes, offer.fingerprint, false, slots);
    let (terms, places) = (terms.ok_or(Refused::System)?, hello.places as usize);
    Ok(Agreed { terms, slots, boot: hello.boot, pages: hello.pages, places })
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

    /// The first one of the pages of a process: the same as long as it lives.
    pub(super) fn of(&mut self, boot: u64, pages: u32) -> Result<u32, MeetError> {
        if self.boot != Some(boot) {
            let next = self.next.checked_add(pages).ok_or(MeetError::Numbers)?;
            *self = Self { boot: Some(boot), first: self.next, next };
        }
        // A process does not change its pool.
        if self.next - self.first == pages { Ok(self.first) } else { Err(WordError::Field("pages").into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_processes_have_a_page_of_the_same_number() {
        let mut numbers = PageNumbers::from(100);
        assert_eq!(numbers.of(7, 50).unwrap(), 100);
        assert_eq!(numbers.of(7, 50).unwrap(), 100, "the same process, on another link");
        assert_eq!(numbers.of(8, 50).unwrap(), 150);
        assert_eq!(numbers.of(9, 10).unwrap(), 200);
        assert!(matches!(numbers.of(9, 11), Err(MeetError::Word(_))), "a pool that has grown");
        assert!(matches!(numbers.of(10, u32::MAX - 10), Err(MeetError::Numbers)));
        assert_eq!(numbers.of(11, 1).unwrap(), 210, "who was refused has taken none");
    }
}
