//! The authority over pages: whose each is, in which life and state, who else may touch it, and what is free.
//!
//! A plain value: no lock, no clock, no I/O, and the same operations give the same ledger. A model checker holds it as
//! state; [`PagePool`](crate::PagePool) puts a lock around it. What a caller may not do is refused with an error and
//! changes nothing; what the ledger itself may not do is an assertion, in release builds too.

mod read;
mod reclaim;
mod refusal;
mod sharing;
mod soundness;
mod ticket_book;
mod transfer;

pub(crate) use crate::capability::{Capability, Grant, PAGE_TOKENS};
use crate::custody_log::CustodyLog;
use crate::fault::LedgerFault;
pub(crate) use crate::page_label::{PageFormat, PageLabel, PageState};
use crate::tag::TagKey;
use policies_domain::{
    CustodyAct, CustodyEvent, CustodyRecord, Generation, HolderId, Label, Owner, PageId, PageLife, QuarantineReason,
    SequenceId, TicketKind,
};
pub use refusal::{AllocateError, RetireError, TicketError, TraceError, UseError};
use std::collections::{BTreeMap, BTreeSet};
pub use ticket_book::TICKETS_PER_PAGE_MAX;

/// All pages of one store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ledger {
    tag_key: TagKey,
    records: Vec<Record>,
    /// The next page to be allocated comes last.
    free: Vec<PageId>,
    /// In the order in which they were given back.
    draining: Vec<PageId>,
    /// Open tickets. `true`: its holder could not say how its work ended.
    tickets: BTreeMap<(PageId, HolderId, TicketKind), bool>,
    /// Who holds which shared page.
    attached: BTreeSet<(PageId, SequenceId)>,
    /// Sequences that compute nothing: each keeps one shared page for those that come later.
    keepers: BTreeSet<SequenceId>,
    /// Pages that are not free, of each domain that has any.
    held: BTreeMap<Label, usize>,
    /// Those of them that only keepers hold.
    kept_alone: BTreeMap<Label, usize>,
    counts: PageCounts,
    step_issued: u64,
    step_retired: u64,
    sequence_next: SequenceId,
    log: Option<CustodyLog>,
    faults: Vec<LedgerFault>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Record {
    label: PageLabel,
    tag: u32,
    /// The page is not free before this step has retired.
    fence: u64,
    /// Open tickets.
    tickets: u8,
    /// Sequences that hold it while it is shared.
    holders: u32,
    /// Those of them that only keep it.
    keepers: u32,
    /// A transfer's write ended well, and none failed after it.
    landed: bool,
    /// Its owner has let go of it.
    given_back: bool,
    /// It goes to quarantine, or is there.
    suspicion: Option<QuarantineReason>,
}

/// What a ledger is made from.
#[derive(Clone, Copy, Debug)]
pub struct LedgerConfig {
    /// Pages of the store.
    pub pages: u32,
    /// Fresh random bytes; tags are made under them.
    pub boot_secret: [u8; 32],
    /// How K and V stand in the pages.
    pub format: PageFormat,
    /// Model and layout, folded to 16 bits.
    pub compat: u16,
    /// Custody events that are kept for their reader; 0 keeps none and counts none.
    pub events_max: usize,
}

/// How many pages are in which state. They always add up to `total`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PageCounts {
    /// Pages of the pool.
    pub total: usize,
    /// Scrubbed and nobody's.
    pub free: usize,
    /// Promised to transfers.
    pub inbound: usize,
    /// Being written by their sequence.
    pub open: usize,
    /// Written completely, owned by a sequence.
    pub sealed: usize,
    /// Held by any number of sequences of one tenant.
    pub shared: usize,
    /// Offered to transfers.
    pub outbound: usize,
    /// Given back, waiting for tickets, steps or their scrub.
    pub draining: usize,
    /// Out of use, bytes untouched.
    pub quarantined: usize,
}

impl PageCounts {
    fn of(&mut self, state: PageState) -> &mut usize {
        match state {
            PageState::Free => &mut self.free,
            PageState::Inbound => &mut self.inbound,
            PageState::Open => &mut self.open,
            PageState::Sealed => &mut self.sealed,
            PageState::Shared => &mut self.shared,
            PageState::Outbound => &mut self.outbound,
            PageState::Draining => &mut self.draining,
            PageState::Quarantined => &mut self.quarantined,
        }
    }

    /// Of several pools.
    #[must_use]
    pub fn sum(all: impl IntoIterator<Item = Self>) -> Self {
        all.into_iter().fold(Self::default(), |sum, counts| Self {
            total: sum.total + counts.total,
            free: sum.free + counts.free,
            inbound: sum.inbound + counts.inbound,
            open: sum.open + counts.open,
            sealed: sum.sealed + counts.sealed,
            shared: sum.shared + counts.shared,
            outbound: sum.outbound + counts.outbound,
            draining: sum.draining + counts.draining,
            quarantined: sum.quarantined + counts.quarantined,
        })
    }

    /// No page is lost and none is counted twice.
    #[must_use]
    pub fn conserved(&self) -> bool {
        let owned = self.inbound + self.open + self.sealed + self.shared + self.outbound;
        self.free + owned + self.draining + self.quarantined == self.total
    }
}

impl Ledger {
    /// All pages free, in generation 0.
    #[must_use]
    pub fn new(config: LedgerConfig) -> Self {
        let LedgerConfig { pages, boot_secret, format, compat, events_max } = config;
        let label = PageLabel {
            domain: Label::NOBODY,
            generation: Generation(0),
            fill: 0,
            state: PageState::Free,
            format,
            compat,
            owner: Owner::Nobody,
        };
        let record = Record {
            label,
            tag: 0,
            fence: 0,
            tickets: 0,
            holders: 0,
            keepers: 0,
            landed: false,
            given_back: true,
            suspicion: None,
        };
        let total = pages as usize;
        Self {
            tag_key: TagKey::new(boot_secret, compat),
            records: vec![record; total],
            // Low numbers first: memory that was touched once is used again.
            free: (0..pages).rev().map(PageId).collect(),
            draining: Vec::with_capacity(total),
            tickets: BTreeMap::new(),
            attached: BTreeSet::new(),
            keepers: BTreeSet::new(),
            held: BTreeMap::new(),
            kept_alone: BTreeMap::new(),
            counts: PageCounts { total, free: total, ..PageCounts::default() },
            step_issued: 0,
            step_retired: 0,
            sequence_next: SequenceId::FIRST,
            log: (events_max > 0).then(|| CustodyLog::new(events_max)),
            faults: Vec::new(),
        }
    }

    /// A number for a new sequence. Comes back after [`SequenceId::MAX`] others, but for those of keepers, which may live
    /// as long as the ledger.
    pub fn open_sequence(&mut self) -> SequenceId {
        let mut sequence = self.sequence_next;
        while self.keepers.contains(&sequence) {
            sequence = sequence.following();
        }
        self.sequence_next = sequence.following();
        sequence
    }

    /// A free page for one tenant's sequence, in a fresh generation: [`PageState::Open`].
    ///
    /// # Errors
    /// [`AllocateError`].
    pub fn allocate(&mut self, domain: Label, owner: SequenceId) -> Result<Grant, AllocateError> {
        let grant = self.take(domain, Owner::Sequence(owner), PageState::Open)?;
        self.note(grant.life().page, CustodyAct::Allocated { tag: grant.capability().tag() });
        Ok(grant)
    }

    /// A free page for data that an operator has declared to be everybody's. Nothing else makes such pages.
    ///
    /// # Errors
    /// [`AllocateError::PoolExhausted`].
    pub fn allocate_public(&mut self, owner: SequenceId) -> Result<Grant, AllocateError> {
        let grant = self.take_for(Label::PUBLIC, Owner::Sequence(owner), PageState::Open)?;
        self.note(grant.life().page, CustodyAct::Allocated { tag: grant.capability().tag() });
        Ok(grant)
    }

    /// Notes `tokens` more tokens in a page of `owner`; returns how many fitted, which is 0 for a full page.
    ///
    /// # Errors
    /// [`UseError`]: not the owner's page, not in this life, or not open. An ownerless write has no way to ask.
    pub fn append(&mut self, life: PageLife, owner: SequenceId, tokens: usize) -> Result<usize, UseError> {
        let record = *self.owned(life, Owner::Sequence(owner))?;
        if record.label.state != PageState::Open {
            return Err(UseError::WrongState { page: life.page, state: record.label.state });
        }
        let taken = tokens.min(PAGE_TOKENS - usize::from(record.label.fill));
        if taken > 0 {
            let fill = record.label.fill + taken as u16;
            self.records[life.page.0 as usize].label.fill = fill;
            self.note(life.page, CustodyAct::Appended { fill });
        }
        Ok(taken)
    }

    /// Nobody writes to the page any more, full or not.
    ///
    /// # Errors
    /// [`UseError`]: as for [`Ledger::append`], and for a page that nothing was written to or that is being written.
    pub fn seal(&mut self, life: PageLife, owner: SequenceId) -> Result<(), UseError> {
        let PageLife { page, .. } = life;
        let Record { label, .. } = *self.owned(life, Owner::Sequence(owner))?;
        if label.state != PageState::Open {
            return Err(UseError::WrongState { page, state: label.state });
        }
        if label.fill == 0 {
            return Err(UseError::NotWritten { page, fill: 0, wanted: 1 });
        }
        self.no_tickets(page, |kind| kind == TicketKind::Write)?;
        self.enter(page, PageState::Open, PageState::Sealed);
        // Steps issued so far may still be writing it: nobody else reads it before they have retired.
        self.records[page.0 as usize].fence = self.step_issued;
        self.note(page, CustodyAct::Sealed);
        Ok(())
    }

    /// The owner lets go of the page: it drains, or goes to quarantine when it is under suspicion. A shared page does
    /// so when the last one lets go of it.
    ///
    /// # Errors
    /// [`UseError`]: given back already, not the owner's, or a handle of an earlier life. Whoever gets one has lost count
    /// of its pages and must stop.
    pub fn give_back(&mut self, life: PageLife, owner: Owner) -> Result<(), UseError> {
        let PageLife { page, .. } = life;
        if self.planted(LedgerFault::DoubleFree) && self.records[page.0 as usize].given_back {
            self.draining.push(page);
            return Ok(());
        }
        let Record { label, given_back, .. } = *self.living(life)?;
        if given_back {
            return Err(UseError::AlreadyBack { page });
        }
        if label.state == PageState::Shared {
            let Owner::Sequence(sequence) = owner else {
                return Err(UseError::NotOwner { page, held: label.owner, wanted: owner });
            };
            if !self.detach(page, sequence) {
                return Err(UseError::NotOwner { page, held: label.owner, wanted: owner });
            }
        } else {
            self.owned(life, owner)?;
        }
        self.note_by(page, owner, CustodyAct::GivenBack);
        if self.records[page.0 as usize].holders == 0 {
            self.let_go(page);
        }
        Ok(())
    }

    /// What the ledger says of a page; `None` when there is no such page.
    #[must_use]
    pub fn label(&self, page: PageId) -> Option<PageLabel> {
        Some(self.records.get(page.0 as usize)?.label)
    }

    /// How many pages are in which state.
    #[must_use]
    pub fn counts(&self) -> PageCounts {
        self.counts
    }

    /// Pages of this domain that are not free: its sequences', its cache's, and what is draining or out of use.
    #[must_use]
    pub fn held_by(&self, domain: Label) -> usize {
        self.held.get(&domain).copied().unwrap_or_default()
    }

    /// Moves the custody events since the last call to the end of `into`. No memory is taken where `into` has room.
    pub fn drain(&mut self, into: &mut Vec<CustodyRecord>) {
        if let Some(log) = &mut self.log {
            log.drain(into);
        }
    }

    /// Replaces the planted faults.
    #[cfg(any(test, feature = "fault-injection"))]
    pub fn plant(&mut self, faults: Vec<LedgerFault>) {
        self.faults = faults;
    }

    /// See [`LedgerFault::SharedPrefixes`].
    #[must_use]
    pub fn shares_prefixes(&self) -> bool {
        self.planted(LedgerFault::SharedPrefixes)
    }

    fn planted(&self, fault: LedgerFault) -> bool {
        cfg!(any(test, feature = "fault-injection")) && self.faults.contains(&fault)
    }

    /// Takes a page off the free list.
    fn take(&mut self, domain: Label, owner: Owner, state: PageState) -> Result<Grant, AllocateError> {
        if domain == Label::NOBODY || domain == Label::PUBLIC {
            return Err(AllocateError::NotATenant { label: domain });
        }
        self.take_for(domain, owner, state)
    }

    fn take_for(&mut self, domain: Label, owner: Owner, state: PageState) -> Result<Grant, AllocateError> {
        let Some(page) = self.free.pop() else {
            return Err(AllocateError::PoolExhausted { pages_total: self.counts.total });
        };
        let record = &mut self.records[page.0 as usize];
        record.label.domain = domain;
        record.label.owner = owner;
        record.given_back = false;
        record.landed = false;
        self.enter(page, PageState::Free, state);
        count(&mut self.held, domain, true);
        Ok(self.renew(page, 1))
    }

    /// The page's next life but `lives - 1`, with a tag of its own.
    fn renew(&mut self, page: PageId, lives: u32) -> Grant {
        let record = &mut self.records[page.0 as usize];
        record.label.generation = Generation(record.label.generation.0.wrapping_add(lives));
        assert!(record.label.generation.0 % 2 == 1, "{page} is owned in an even generation");
        record.tag = self.tag_key.tag(page, record.label.generation, record.label.domain);
        Grant::new(Capability::new(page, record.tag), record.label.generation)
    }

    /// Nobody holds the page any more.
    fn let_go(&mut self, page: PageId) {
        let fence = self.step_issued;
        let record = &mut self.records[page.0 as usize];
        record.given_back = true;
        record.fence = fence;
        let Record { label, suspicion, .. } = *record;
        match (label.state, suspicion) {
            (PageState::Quarantined, _) => self.release(page),
            (state, Some(reason)) => {
                self.enter(page, state, PageState::Quarantined);
                self.note(page, CustodyAct::Quarantined { reason });
                self.release(page);
            }
            (state, None) => {
                self.enter(page, state, PageState::Draining);
                self.draining.push(page);
            }
        }
    }

    fn living(&self, life: PageLife) -> Result<&Record, UseError> {
        let PageLife { page, generation } = life;
        let record = self.records.get(page.0 as usize).ok_or(UseError::OutOfRange { page })?;
        if record.label.generation != generation {
            return Err(UseError::Stale { page, held: record.label.generation, wanted: generation });
        }
        Ok(record)
    }

    fn owned(&self, life: PageLife, owner: Owner) -> Result<&Record, UseError> {
        let record = self.living(life)?;
        if record.label.owner != owner {
            return Err(UseError::NotOwner { page: life.page, held: record.label.owner, wanted: owner });
        }
        Ok(record)
    }

    /// The one place where a page changes its state.
    fn enter(&mut self, page: PageId, from: PageState, to: PageState) {
        let record = &mut self.records[page.0 as usize];
        assert_eq!(record.label.state, from, "{page} is in another state than its holder believes");
        assert!(from.may_become(to), "{page} would go from {from} to {to}");
        record.label.state = to;
        *self.counts.of(from) -= 1;
        *self.counts.of(to) += 1;
        assert!(self.counts.conserved(), "pages were lost or doubled: {:?}", self.counts);
    }

    /// Asked when a step is issued, when the lists are as the counts have them: a page that is in no list, or in one too
    /// many, is nobody's.
    fn assert_lists(&self) {
        let (free, draining) = (self.free.len(), self.draining.len());
        let listed = free == self.counts.free && draining == self.counts.draining;
        assert!(
            listed,
            "pages were lost or doubled: {free} free and {draining} draining are listed, {:?}",
            self.counts
        );
    }

    fn note(&mut self, page: PageId, act: CustodyAct) {
        let owner = self.records[page.0 as usize].label.owner;
        self.note_by(page, owner, act);
    }

    fn note_by(&mut self, page: PageId, owner: Owner, act: CustodyAct) {
        let (step_issued, step_retired) = (self.step_issued, self.step_retired);
        let PageLabel { domain, generation, .. } = self.records[page.0 as usize].label;
        if let Some(log) = &mut self.log {
            let life = PageLife { page, generation };
            log.push(CustodyEvent { number: log.next(), step_issued, step_retired, life, label: domain, owner, act });
        }
    }

    /// Something about a life that is over, and of which nothing should be said any more.
    fn note_late(&mut self, life: PageLife, act: CustodyAct) {
        let (step_issued, step_retired, label, owner) =
            (self.step_issued, self.step_retired, Label::NOBODY, Owner::Nobody);
        if let Some(log) = &mut self.log {
            log.push(CustodyEvent { number: log.next(), step_issued, step_retired, life, label, owner, act });
        }
    }
}

/// One page more or less of a domain; a domain without any takes no room.
fn count(pages: &mut BTreeMap<Label, usize>, domain: Label, more: bool) {
    let of = pages.entry(domain).or_default();
    *of = if more { *of + 1 } else { *of - 1 };
    if *of == 0 {
        pages.remove(&domain);
    }
}

#[cfg(test)]
mod sharing_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod ticket_tests;
