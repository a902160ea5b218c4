//! What the custody log alone says about pages: an auditor's ledger.
//!
//! Nothing here is taken from the ledger, the block tables or the scheduler, and no code is shared with them. Every event
//! is checked against what the events before it made possible; after one that was not, or that is missing, the view says
//! nothing any more.

use policies_domain::{
    CustodyAct, CustodyEvent, CustodyRecord, Generation, HolderId, Label, Outcome, Owner, PageId, PageLife, SequenceId,
    TicketKind,
};
use std::collections::{BTreeMap, BTreeSet};

/// Tokens of a page, as the log's reader knows it.
const PAGE_TOKENS: u16 = 16;

/// Who holds which pages, replayed from events.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CustodyView {
    pages: Vec<Page>,
    sequences: BTreeMap<SequenceId, Held>,
    /// Number of the next event.
    next: u64,
    broken: Option<CustodyError>,
    /// Pages may be free under open tickets: for tests of what stands behind that rule.
    forgives: bool,
}

/// A page that a sequence holds, in the order of the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeldPage {
    /// Which page, in which life.
    pub life: PageLife,
    /// Whose data it is.
    pub label: Label,
    /// The tag that a reader of this life finds in it.
    pub tag: u32,
    /// Tokens written.
    pub fill: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Page {
    life: PageLife,
    label: Label,
    tag: u32,
    fill: u16,
    phase: Phase,
    owner: Owner,
    holders: BTreeSet<SequenceId>,
    tickets: BTreeSet<(HolderId, TicketKind)>,
    /// The newest step that had been issued when it was sealed or offered, or when its last owner let go of it.
    back_at: u64,
    /// The last owner has let go of it.
    back: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Free,
    Inbound,
    Open,
    Sealed,
    Shared,
    Outbound,
    Back,
    Quarantined,
}

/// The pages of one sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Held {
    pages: Vec<PageId>,
    /// Tokens in them.
    tokens: usize,
    /// Not everybody may read all of them.
    confined: bool,
    /// How many of them it holds no more. It reads nothing after the first.
    gone: usize,
    /// One that was put out of use while it held it. It reads nothing from then on.
    unreadable: Option<PageId>,
}

/// Why the view says nothing any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum CustodyError {
    /// An event is missing, doubled or out of order.
    #[error("custody event {found} came where {wanted} was due")]
    Gap {
        /// The number that came.
        found: u64,
        /// The number that was due.
        wanted: u64,
    },
    /// The reader was too slow.
    #[error("{events} custody events from {first} on were lost")]
    Lost {
        /// Number of the first lost one.
        first: u64,
        /// How many.
        events: u64,
    },
    /// What the event tells cannot have happened after what the others told.
    #[error("custody event {number} cannot have happened to `{page}`")]
    Impossible {
        /// Number of the event.
        number: u64,
        /// Its page.
        page: PageId,
    },
    /// The sequence holds no pages, or has begun to give them back.
    #[error("{sequence} holds no pages")]
    NotHeld {
        /// The sequence.
        sequence: SequenceId,
    },
    /// The sequence holds a page that may not be read.
    #[error("`{page}` is not to be read")]
    Unreadable {
        /// The page.
        page: PageId,
    },
}

impl CustodyView {
    /// Of a ledger of this many pages that has done nothing so far.
    #[must_use]
    pub fn new(pages: u32) -> Self {
        let page = |page| Page {
            life: PageLife { page: PageId(page), generation: Generation(0) },
            label: Label::NOBODY,
            tag: 0,
            fill: 0,
            phase: Phase::Free,
            owner: Owner::Nobody,
            holders: BTreeSet::new(),
            tickets: BTreeSet::new(),
            back_at: 0,
            back: true,
        };
        Self {
            pages: (0..pages).map(page).collect(),
            sequences: BTreeMap::new(),
            next: 0,
            broken: None,
            forgives: false,
        }
    }

    /// Takes it for possible that pages are freed under open tickets.
    #[cfg(feature = "fault-injection")]
    pub fn forgive_open_tickets(&mut self) {
        self.forgives = true;
    }

    /// Takes the next record of the log.
    ///
    /// # Errors
    /// [`CustodyError`]; every later call and question gets the same one.
    pub fn follow(&mut self, record: &CustodyRecord) -> Result<(), CustodyError> {
        if let Some(error) = self.broken {
            return Err(error);
        }
        let followed = match record {
            CustodyRecord::Lost { first, events } => Err(CustodyError::Lost { first: *first, events: *events }),
            CustodyRecord::Event(event) if event.number != self.next => {
                Err(CustodyError::Gap { found: event.number, wanted: self.next })
            }
            CustodyRecord::Event(event) => {
                self.replay(event).ok_or(CustodyError::Impossible { number: event.number, page: event.life.page })
            }
        };
        self.broken = followed.err();
        self.next += 1;
        followed
    }

    /// The pages of a sequence, in order, without the `first` of them, which cost nothing.
    ///
    /// What is said of a page in its place stays as it is as long as this is no error, but for a fill that grows: whoever
    /// knew the first pages knows them still.
    ///
    /// # Errors
    /// [`CustodyError`]: the view is broken, or the sequence may not read: it holds none, has given one back, or one of
    /// them is out of use.
    pub fn pages(
        &self,
        sequence: SequenceId,
        first: usize,
    ) -> Result<impl ExactSizeIterator<Item = HeldPage>, CustodyError> {
        let held = self.held(sequence)?;
        if let Some(page) = held.unreadable {
            return Err(CustodyError::Unreadable { page });
        }
        Ok(held.pages.get(first..).unwrap_or_default().iter().map(|page| {
            let Page { life, label, tag, fill, .. } = self.pages[page.0 as usize];
            HeldPage { life, label, tag, fill }
        }))
    }

    /// Tokens written to the pages of a sequence.
    ///
    /// # Errors
    /// [`CustodyError`], unless it holds pages and has given none back.
    pub fn tokens(&self, sequence: SequenceId) -> Result<usize, CustodyError> {
        Ok(self.held(sequence)?.tokens)
    }

    /// Who holds this life of a page alone; `None` for a life that is over or shared.
    #[must_use]
    pub fn owner(&self, life: PageLife) -> Option<Owner> {
        let page = self.page(life.page)?;
        let held = page.life == life && !page.back && page.phase != Phase::Shared;
        (held && self.broken.is_none()).then_some(page.owner)
    }

    /// Sequences that hold pages.
    #[must_use]
    pub fn sequences(&self) -> usize {
        self.sequences.len()
    }

    fn held(&self, sequence: SequenceId) -> Result<&Held, CustodyError> {
        if let Some(error) = self.broken {
            return Err(error);
        }
        let held = self.sequences.get(&sequence).filter(|held| held.gone == 0);
        held.ok_or(CustodyError::NotHeld { sequence })
    }

    fn page(&self, page: PageId) -> Option<&Page> {
        self.pages.get(page.0 as usize)
    }

    /// `None`: impossible.
    fn replay(&mut self, event: &CustodyEvent) -> Option<()> {
        let CustodyEvent { life, label, owner, act, step_issued, step_retired, .. } = *event;
        let forgives = self.forgives;
        let page = self.pages.get_mut(life.page.0 as usize)?;
        let same_life = life == page.life && label == page.label;
        match act {
            CustodyAct::Allocated { tag } | CustodyAct::Reserved { tag } => {
                let begins = life.generation.0 == page.life.generation.0.wrapping_add(1) && life.generation.0 % 2 == 1;
                let somebodys = match label {
                    Label::NOBODY => false,
                    // Whatever a sequence computes depends on all that it holds.
                    Label::PUBLIC => {
                        matches!(act, CustodyAct::Allocated { .. }) && reads_only_public(&self.sequences, owner)
                    }
                    _ => true,
                };
                // Nobody may touch it: neither whoever had a ticket, nor a step that was under way when it was let go.
                let untouched = page.tickets.is_empty() && page.back_at <= step_retired;
                let (phase, fits) = match (act, owner) {
                    (CustodyAct::Allocated { .. }, Owner::Sequence(_)) => (Phase::Open, true),
                    (CustodyAct::Reserved { .. }, Owner::Transfer(_)) => (Phase::Inbound, true),
                    _ => (Phase::Free, false),
                };
                require(page.phase == Phase::Free && begins && somebodys && untouched && fits && tag != 0)?;
                (page.life, page.label, page.tag, page.owner) = (life, label, tag, owner);
                (page.fill, page.phase, page.back) = (0, phase, false);
                self.join(owner, life.page, 0)
            }
            CustodyAct::Committed { tag, fill, from } => {
                let begins = life.generation.0 == page.life.generation.0.wrapping_add(2) && label == page.label;
                let fits = match page.phase {
                    Phase::Inbound => matches!(from, Owner::Transfer(_)),
                    Phase::Outbound => fill == page.fill && page.back_at <= step_retired,
                    _ => false,
                };
                let written = (1..=PAGE_TOKENS).contains(&fill);
                require(begins && fits && written && page.owner == from && tag != 0 && tag != page.tag)?;
                require(page.tickets.is_empty() && matches!(owner, Owner::Sequence(_)))?;
                (page.life, page.tag, page.owner, page.fill) = (life, tag, owner, fill);
                page.phase = if fill == PAGE_TOKENS { Phase::Sealed } else { Phase::Open };
                self.leave(from)?;
                self.join(owner, life.page, fill)
            }
            CustodyAct::Appended { fill } => {
                require(same_life && page.phase == Phase::Open && page.owner == owner)?;
                require(fill > page.fill && fill <= PAGE_TOKENS)?;
                let written = fill - page.fill;
                page.fill = fill;
                let Owner::Sequence(sequence) = owner else { return None };
                self.sequences.get_mut(&sequence)?.tokens += usize::from(written);
                Some(())
            }
            CustodyAct::Sealed => {
                require(same_life && page.phase == Phase::Open && page.owner == owner && page.fill > 0)?;
                (page.phase, page.back_at) = (Phase::Sealed, step_issued);
                Some(())
            }
            CustodyAct::Shared => {
                let Owner::Sequence(sequence) = owner else { return None };
                require(same_life && page.phase == Phase::Sealed && page.owner == owner && page.fill == PAGE_TOKENS)?;
                // No step that may be writing it is under way.
                require(page.back_at <= step_retired)?;
                page.phase = Phase::Shared;
                page.holders.insert(sequence);
                Some(())
            }
            CustodyAct::Attached => {
                let Owner::Sequence(sequence) = owner else { return None };
                require(same_life && page.phase == Phase::Shared && page.holders.insert(sequence))?;
                self.join(owner, life.page, PAGE_TOKENS)
            }
            CustodyAct::Offered => {
                require(same_life && page.phase == Phase::Sealed && page.owner == owner)?;
                (page.phase, page.back_at) = (Phase::Outbound, step_issued);
                Some(())
            }
            CustodyAct::Withdrawn => {
                require(same_life && page.phase == Phase::Outbound && page.owner == owner)?;
                page.phase = if page.fill == PAGE_TOKENS { Phase::Sealed } else { Phase::Open };
                Some(())
            }
            CustodyAct::TicketOpened { kind, holder } => {
                let readable = matches!(page.phase, Phase::Open | Phase::Sealed | Phase::Shared | Phase::Outbound);
                let fits = match kind {
                    TicketKind::Read => readable,
                    TicketKind::Write => matches!(page.phase, Phase::Open | Phase::Inbound),
                };
                let alone = kind == TicketKind::Read || page.tickets.iter().all(|(_, kind)| *kind == TicketKind::Read);
                require(same_life && fits && alone && page.tickets.insert((holder, kind)))
            }
            CustodyAct::TicketSettled { .. } if forgives && !same_life => Some(()),
            CustodyAct::TicketSettled { kind, holder, outcome } => {
                // What nobody knows is not over.
                let known = outcome == Outcome::Unknown || page.tickets.remove(&(holder, kind));
                require(same_life && known && (outcome != Outcome::Unknown || page.tickets.contains(&(holder, kind))))
            }
            CustodyAct::GivenBack => {
                require(same_life && !page.back)?;
                match page.phase {
                    Phase::Shared => {
                        let Owner::Sequence(sequence) = owner else { return None };
                        require(page.holders.remove(&sequence))?;
                    }
                    Phase::Inbound | Phase::Open | Phase::Sealed | Phase::Outbound | Phase::Quarantined => {
                        require(page.owner == owner)?;
                    }
                    Phase::Free | Phase::Back => return None,
                }
                if page.holders.is_empty() {
                    (page.back, page.back_at) = (true, step_issued);
                    if page.phase != Phase::Quarantined {
                        page.phase = Phase::Back;
                    }
                }
                self.leave(owner)
            }
            CustodyAct::Freed => {
                let ends = life.generation.0 == page.life.generation.0.wrapping_add(1) && life.generation.0 % 2 == 0;
                if forgives {
                    page.tickets.clear();
                }
                let untouched = page.tickets.is_empty() && page.back_at <= step_retired;
                require(page.phase == Phase::Back && ends && untouched && page.back && label == Label::NOBODY)?;
                (page.life, page.label, page.tag, page.fill) = (life, label, 0, 0);
                (page.phase, page.owner) = (Phase::Free, Owner::Nobody);
                Some(())
            }
            CustodyAct::Suspected { .. } => require(same_life),
            CustodyAct::Quarantined { .. } => {
                require(same_life && page.phase != Phase::Quarantined)?;
                page.phase = Phase::Quarantined;
                let owner = match page.owner {
                    Owner::Sequence(sequence) if page.holders.is_empty() && !page.back => Some(sequence),
                    _ => None,
                };
                for sequence in page.holders.iter().copied().chain(owner) {
                    self.sequences.get_mut(&sequence)?.unreadable.get_or_insert(life.page);
                }
                Some(())
            }
            CustodyAct::Released => {
                require(same_life && page.phase == Phase::Quarantined && page.back && page.tickets.is_empty())?;
                page.phase = Phase::Back;
                Some(())
            }
        }
    }

    /// The page is its new owner's next one.
    fn join(&mut self, owner: Owner, page: PageId, fill: u16) -> Option<()> {
        if let Owner::Sequence(sequence) = owner {
            let label = self.page(page)?.label;
            let held = self.sequences.entry(sequence).or_default();
            held.pages.push(page);
            held.confined |= !label.flows_to(Label::PUBLIC);
            held.tokens += usize::from(fill);
        }
        Some(())
    }

    /// One page less for its owner, which ends with the last one.
    fn leave(&mut self, owner: Owner) -> Option<()> {
        if let Owner::Sequence(sequence) = owner {
            let held = self.sequences.get_mut(&sequence)?;
            held.gone += 1;
            if held.gone == held.pages.len() {
                self.sequences.remove(&sequence);
            }
        }
        Some(())
    }
}

/// What the owner computes next is made of nothing but what everybody may read.
fn reads_only_public(sequences: &BTreeMap<SequenceId, Held>, owner: Owner) -> bool {
    match owner {
        Owner::Sequence(sequence) => sequences.get(&sequence).is_none_or(|held| !held.confined),
        Owner::Nobody | Owner::Transfer(_) => false,
    }
}

fn require(holds: bool) -> Option<()> {
    holds.then_some(())
}

#[cfg(test)]
mod tests;
