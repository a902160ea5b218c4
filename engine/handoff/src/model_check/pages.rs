//! A ledger of pages that believes everything it is told: what keeps pages safe here are the two sides alone.

use crate::{ContentDigest, PageSlot, Party, Route};
use policies_domain::{Generation, PageId};

/// Who really wrote what: the shadow against which the sides are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Bytes {
    Scrubbed,
    Of { request: u8, logical: u32, writer: Route, flipped: bool },
    Strangers,
}

impl Bytes {
    /// Equal bytes have equal digests, whoever wrote them; a place in the sequence is part of what is hashed.
    pub(super) fn digest(self, place: u32) -> ContentDigest {
        let number = match self {
            Self::Scrubbed => 1,
            Self::Of { request, logical, flipped, .. } => {
                100 + 1000 * u64::from(request) + 10 * u64::from(logical) + u64::from(flipped)
            }
            Self::Strangers => 2,
        };
        ContentDigest([number * 1_000_003 + u64::from(place), number])
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum State {
    Free,
    Inbound,
    Open,
    Outbound,
    Quarantined,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Owner {
    Nobody,
    /// A side, for a handoff.
    Side(Party, Route),
    /// A sequence that has nothing to do with any handoff here.
    Stranger,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Page {
    pub(super) state: State,
    pub(super) generation: u32,
    pub(super) owner: Owner,
    pub(super) bytes: Bytes,
    /// The tag in the bytes.
    pub(super) tag: u32,
}

/// The pages of one pool.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pages(pub(super) Vec<Page>);

impl Pages {
    pub(super) fn new(pages: usize) -> Self {
        let page = Page { state: State::Free, generation: 0, owner: Owner::Nobody, bytes: Bytes::Scrubbed, tag: 0 };
        Self(vec![page; pages])
    }

    /// After a restart: nothing is anybody's, and no earlier life of a page comes back.
    pub(super) fn restart(&mut self) {
        for page in &mut self.0 {
            *page = Page { generation: page.generation + page.generation % 2, ..Self::new(1).0[0] };
        }
    }

    pub(super) fn allocate(&mut self, owner: Owner, state: State, count: u32) -> Option<Vec<PageSlot>> {
        let free = (0..self.0.len()).filter(|i| self.0[*i].state == State::Free).take(count as usize);
        let free: Vec<usize> = free.collect();
        if free.len() < count as usize {
            return None;
        }
        for i in &free {
            let page = &mut self.0[*i];
            page.generation += 1;
            *page = Page { state, owner, tag: tag(*i, page.generation), ..*page };
        }
        Some(free.into_iter().map(|i| self.slot(i)).collect())
    }

    pub(super) fn slot(&self, i: usize) -> PageSlot {
        let generation = self.0[i].generation;
        PageSlot { page: PageId(i as u32), generation: Generation(generation), tag: tag(i, generation) }
    }

    pub(super) fn at(&mut self, slot: PageSlot) -> &mut Page {
        &mut self.0[slot.page.0 as usize]
    }

    pub(super) fn of(&self, owner: Owner) -> impl Iterator<Item = usize> {
        let owned = self.0.iter().enumerate().filter(move |(_, page)| page.owner == owner);
        owned.map(|(i, _)| i)
    }

    pub(super) fn life(&self, owner: Owner, state: State, page: PageId) -> Option<Generation> {
        let page = self.0.get(page.0 as usize)?;
        (page.owner == owner && page.state == state).then_some(Generation(page.generation))
    }

    pub(super) fn release(&mut self, owner: Owner) {
        for i in self.of(owner).collect::<Vec<_>>() {
            let generation = self.0[i].generation + 1;
            self.0[i] = Page { generation, ..Self::new(1).0[0] };
        }
    }

    pub(super) fn quarantine(&mut self, owner: Owner) {
        for i in self.of(owner).collect::<Vec<_>>() {
            self.0[i].state = State::Quarantined;
        }
    }

    /// A new life for another owner, the bytes as they are.
    pub(super) fn relabel(&mut self, slot: PageSlot, owner: Owner) {
        let i = slot.page.0 as usize;
        let generation = self.0[i].generation + 2;
        self.0[i] = Page { state: State::Open, generation, owner, tag: tag(i, generation), ..self.0[i] };
    }

    /// The planted defect: a page is given to a stranger while a handoff still counts on it.
    pub(super) fn give_away(&mut self, i: usize) {
        let generation = self.0[i].generation + 2;
        let (state, owner, bytes) = (State::Open, Owner::Stranger, Bytes::Strangers);
        self.0[i] = Page { state, generation, owner, bytes, tag: tag(i, generation) };
    }
}

fn tag(page: usize, generation: u32) -> u32 {
    1 + 1000 * page as u32 + generation
}
