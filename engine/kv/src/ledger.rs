//! The authority over pages: states, generations, labels, and the free list.

use crate::page::{Capability, FillingPage, FreePage};
use crate::tag::TagKey;
use policies_domain::{Generation, Label, PageId, PageRead, PageTrace};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// All pages of one store. Clones share the ledger.
#[derive(Clone)]
pub struct PagePool(Arc<Mutex<Ledger>>);

struct Ledger {
    tag_key: TagKey,
    entries: Vec<Entry>,
    free: Vec<FreePage>,
    /// Given back by their owners, not yet scrubbed.
    returned: Vec<PageId>,
    counts: PageCounts,
}

#[derive(Clone, Copy)]
struct Entry {
    generation: Generation,
    label: Label,
    state: State,
    /// Evidence: never goes back to the free list.
    suspect: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Filling,
    Sealed,
    Returned,
    Quarantined,
}

/// How many pages are in which state. They always add up to `total`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCounts {
    /// Pages of the pool.
    pub total: usize,
    /// Scrubbed and nobody's.
    pub free: usize,
    /// Being written by their sequence.
    pub filling: usize,
    /// Full, owned by a sequence.
    pub sealed: usize,
    /// Given back, waiting for their scrub.
    pub returned: usize,
    /// Kept as evidence of an isolation fault, bytes untouched.
    pub quarantined: usize,
}

impl PageCounts {
    fn of(&mut self, state: State) -> &mut usize {
        match state {
            State::Free => &mut self.free,
            State::Filling => &mut self.filling,
            State::Sealed => &mut self.sealed,
            State::Returned => &mut self.returned,
            State::Quarantined => &mut self.quarantined,
        }
    }

    fn conserved(&self) -> bool {
        self.free + self.filling + self.sealed + self.returned + self.quarantined == self.total
    }
}

/// Why a page could not be allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    /// No free page is left.
    #[error("page pool exhausted: 0 of {pages_total} pages are free")]
    PoolExhausted {
        /// Pages of the pool.
        pages_total: usize,
    },
    /// Data of nobody, or of everybody, has no sequence that could own it.
    #[error("a page cannot be labelled `{label}`: it belongs to exactly one tenant")]
    NotATenant {
        /// The label asked for.
        label: Label,
    },
}

/// Why a block table could not be traced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// The block table names a page that the pool does not have.
    #[error("block table names `{page}`, the pool ends at {pages_total} pages")]
    OutOfRange {
        /// The page named.
        page: PageId,
        /// Pages of the pool.
        pages_total: usize,
    },
}

impl PagePool {
    /// `boot_secret`: fresh random bytes; tags are made under it.
    #[must_use]
    pub fn new(pages: u32, boot_secret: [u8; 32]) -> Self {
        let entry = Entry { generation: Generation(0), label: Label::NOBODY, state: State::Free, suspect: false };
        let total = pages as usize;
        Self(Arc::new(Mutex::new(Ledger {
            tag_key: TagKey::new(boot_secret),
            entries: vec![entry; total],
            // Low numbers first: memory that was touched once is used again.
            free: (0..pages).rev().map(|page| FreePage(PageId(page))).collect(),
            returned: Vec::with_capacity(total),
            counts: PageCounts { total, free: total, ..PageCounts::default() },
        })))
    }

    /// A free page for one tenant's data, in a fresh generation.
    ///
    /// The caller must hand the capability to the store before it writes to the page.
    ///
    /// # Errors
    /// [`AllocateError`]; nothing has changed then.
    pub fn allocate(&self, label: Label) -> Result<FillingPage, AllocateError> {
        if label == Label::NOBODY || label == Label::PUBLIC {
            return Err(AllocateError::NotATenant { label });
        }
        let mut ledger = self.lock();
        let Some(FreePage(page)) = ledger.free.pop() else {
            return Err(AllocateError::PoolExhausted { pages_total: ledger.counts.total });
        };
        ledger.enter(page, State::Free, State::Filling, label);
        let generation = ledger.entry(page).generation;
        let tag = ledger.tag_key.tag(page, generation, label);
        drop(ledger);
        Ok(FillingPage::new(self.clone(), Capability::new(page, tag), generation, label))
    }

    /// What a block table reads, as the ledger knows it at this moment, whatever the table's maker believed.
    ///
    /// # Errors
    /// [`TraceError`] when the table names a page that does not exist.
    pub fn trace(&self, block_table: &[Capability]) -> Result<PageTrace, TraceError> {
        let ledger = self.lock();
        let pages = block_table.iter().map(|capability| {
            let page = capability.page();
            match ledger.entries.get(page.0 as usize) {
                Some(entry) => Ok(PageRead { page, generation: entry.generation, label: entry.label }),
                None => Err(TraceError::OutOfRange { page, pages_total: ledger.counts.total }),
            }
        });
        Ok(PageTrace { pages: pages.collect::<Result<_, _>>()? })
    }

    /// Scrubs the pages that were given back, then frees them. Returns how many.
    ///
    /// `scrub` destroys the page's bytes and its tag in the store; a page whose scrub fails is quarantined.
    pub fn reclaim(&self, mut scrub: impl FnMut(PageId) -> bool) -> usize {
        let mut ledger = self.lock();
        let returned = std::mem::take(&mut ledger.returned);
        let mut freed = 0;
        for page in &returned {
            if ledger.entry(*page).suspect || !scrub(*page) {
                let label = ledger.entry(*page).label;
                ledger.enter(*page, State::Returned, State::Quarantined, label);
            } else {
                ledger.enter(*page, State::Returned, State::Free, Label::NOBODY);
                ledger.free.push(FreePage(*page));
                freed += 1;
            }
        }
        // Keeps the allocation: this runs between two steps.
        ledger.returned = returned;
        ledger.returned.clear();
        freed
    }

    /// Marks a page as evidence: when its owner gives it back it is kept, with its bytes. `false`: no such page.
    pub fn quarantine(&self, page: PageId) -> bool {
        let mut ledger = self.lock();
        let Some(entry) = ledger.entries.get_mut(page.0 as usize) else { return false };
        entry.suspect = true;
        if entry.state == State::Free {
            ledger.free.retain(|free| free.0 != page);
            ledger.enter(page, State::Free, State::Quarantined, Label::NOBODY);
        }
        true
    }

    /// How many pages are in which state.
    #[must_use]
    pub fn counts(&self) -> PageCounts {
        self.lock().counts
    }

    pub(crate) fn note_sealed(&self, page: PageId, generation: Generation) {
        let mut ledger = self.lock();
        ledger.assert_life(page, generation);
        let label = ledger.entry(page).label;
        ledger.enter(page, State::Filling, State::Sealed, label);
    }

    pub(crate) fn give_back(&self, page: PageId, generation: Generation) {
        let mut ledger = self.lock();
        ledger.assert_life(page, generation);
        let Entry { state, label, .. } = ledger.entry(page);
        ledger.enter(page, state, State::Returned, label);
        ledger.returned.push(page);
    }

    fn lock(&self) -> MutexGuard<'_, Ledger> {
        // A panic while the ledger was locked is one of its own assertions: whoever comes next must not go on with it,
        // but `Drop` must not panic twice either. The assertions below see whatever is wrong.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ledger {
    fn entry(&self, page: PageId) -> Entry {
        self.entries[page.0 as usize]
    }

    /// The one place where a page changes its state.
    fn enter(&mut self, page: PageId, from: State, to: State, label: Label) {
        let entry = &mut self.entries[page.0 as usize];
        assert_eq!(entry.state, from, "{page} is in another state than its holder believes");
        // INVARIANT: a label changes only on the way out of the free list and into it.
        assert!(entry.label == label || from == State::Free || to == State::Free, "{page} would change its label");
        if from == State::Free && to == State::Filling || to == State::Free {
            entry.generation = Generation(entry.generation.0.wrapping_add(1));
        }
        entry.state = to;
        entry.label = label;
        *self.counts.of(from) -= 1;
        *self.counts.of(to) += 1;
        assert!(self.counts.conserved(), "pages were lost or doubled: {:?}", self.counts);
    }

    fn assert_life(&self, page: PageId, generation: Generation) {
        assert_eq!(self.entry(page).generation, generation, "{page} is used by a handle of an earlier life");
    }
}

impl fmt::Debug for PagePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PagePool({:?})", self.counts())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::PAGE_TOKENS;
    use policies_domain::TenantId;

    fn tenant(number: u32) -> Label {
        Label::of(TenantId::new(number).unwrap())
    }

    #[test]
    fn a_page_needs_the_label_of_one_tenant() {
        let pool = PagePool::new(2, [1; 32]);
        for label in [Label::NOBODY, Label::PUBLIC] {
            assert_eq!(pool.allocate(label).err(), Some(AllocateError::NotATenant { label }));
        }
        assert_eq!(pool.counts().free, 2);
    }

    #[test]
    fn a_page_is_not_free_before_it_is_scrubbed() {
        let pool = PagePool::new(1, [1; 32]);
        drop(pool.allocate(tenant(1)).unwrap());
        assert_eq!(pool.counts().returned, 1);
        assert_eq!(pool.allocate(tenant(2)).err(), Some(AllocateError::PoolExhausted { pages_total: 1 }));
        let mut scrubbed = Vec::new();
        assert_eq!(
            pool.reclaim(|page| {
                scrubbed.push(page);
                true
            }),
            1
        );
        assert_eq!(scrubbed, [PageId(0)]);
        assert_eq!(pool.allocate(tenant(2)).unwrap().label(), tenant(2));
    }

    #[test]
    fn a_page_that_cannot_be_scrubbed_is_never_used_again() {
        let pool = PagePool::new(1, [1; 32]);
        drop(pool.allocate(tenant(1)).unwrap());
        assert_eq!(pool.reclaim(|_| false), 0);
        assert_eq!(pool.counts(), PageCounts { total: 1, quarantined: 1, ..PageCounts::default() });
        assert!(pool.allocate(tenant(1)).is_err());
    }

    #[test]
    fn a_quarantined_page_keeps_its_bytes_and_never_returns() {
        let pool = PagePool::new(2, [1; 32]);
        let page = pool.allocate(tenant(1)).unwrap();
        let id = page.capability().page();
        assert!(pool.quarantine(id) && !pool.quarantine(PageId(7)));
        drop(page);
        let mut scrubbed = Vec::new();
        pool.reclaim(|page| {
            scrubbed.push(page);
            true
        });
        assert!(scrubbed.is_empty(), "evidence was destroyed");
        assert_eq!(pool.counts().quarantined, 1);
        assert!(pool.quarantine(PageId(1 - id.0)), "a free page can be taken out of use as well");
        assert_eq!(pool.counts().quarantined, 2);
        assert!(pool.allocate(tenant(1)).is_err());
    }

    #[test]
    fn every_life_of_a_page_has_its_own_tag() {
        let pool = PagePool::new(1, [1; 32]);
        let mut seen = Vec::new();
        for round in 0..50u32 {
            let page = pool.allocate(tenant(1 + round % 2)).unwrap();
            let read = pool.trace(&[page.capability()]).unwrap().pages[0];
            assert_eq!(read.generation.0 % 2, 1, "an owned page is in an odd generation");
            assert_eq!(read.label, page.label());
            assert!(!seen.contains(&page.capability().tag()));
            seen.push(page.capability().tag());
            drop(page);
            pool.reclaim(|_| true);
        }
        let other_boot = PagePool::new(1, [2; 32]).allocate(tenant(1)).unwrap().capability().tag();
        assert!(!seen.contains(&other_boot));
    }

    #[test]
    fn the_trace_tells_the_ledgers_truth_about_a_stale_capability() {
        let pool = PagePool::new(1, [1; 32]);
        let page = pool.allocate(tenant(1)).unwrap();
        let stale = page.capability();
        drop(page);
        pool.reclaim(|_| true);
        assert_eq!(pool.trace(&[stale]).unwrap().pages[0].label, Label::NOBODY);
        let _now = pool.allocate(tenant(2)).unwrap();
        assert_eq!(pool.trace(&[stale]).unwrap().pages[0].label, tenant(2));
        let beyond = Capability::new(PageId(9), 1);
        assert_eq!(pool.trace(&[beyond]), Err(TraceError::OutOfRange { page: PageId(9), pages_total: 1 }));
    }

    #[test]
    fn only_full_pages_seal() {
        let pool = PagePool::new(1, [1; 32]);
        let mut page = pool.allocate(tenant(1)).unwrap();
        assert_eq!(page.fill(PAGE_TOKENS - 1), PAGE_TOKENS - 1);
        let mut page = page.seal().unwrap_err();
        assert_eq!(page.fill(5), 1);
        assert_eq!(page.seal().unwrap().label(), tenant(1));
        assert_eq!(pool.counts().returned, 1, "a sealed page is given back by drop as well");
    }
}
