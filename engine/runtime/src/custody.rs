//! Which pages a request may read, as the custody log tells it: neither the scheduler nor the block tables are asked.

use engine_kernels::PageRef;
use engine_kv::{CustodyError, CustodyView, HeldPage, PAGE_TOKENS, PagePool};
use policies_domain::{CustodyRecord, PageTrace, SequenceId};

/// Custody events kept for the step loop. Between two looks at the log each page is given back, freed, allocated, filled
/// and sealed once at most; the rest is for tickets.
const EVENTS_PER_PAGE: usize = 8;
/// For the smallest pools.
const EVENTS_MIN: usize = 1024;
/// 64 MiB, enough for 8 million tokens that change hands between two looks.
const EVENTS_MAX: usize = 1 << 20;

/// The log's follower. On the step loop's thread, which lets no event be lost.
pub(crate) struct Custody {
    view: CustodyView,
    /// Reused from look to look.
    records: Vec<CustodyRecord>,
    /// Everything that was ever read, when a test wants it.
    #[cfg(feature = "fault-injection")]
    pub(crate) kept: Option<Vec<CustodyRecord>>,
}

/// The first place where a block table is not what the log says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    /// Place in the block table.
    pub(crate) index: usize,
    /// What the log says.
    pub(crate) held: Option<HeldPage>,
}

impl Custody {
    /// Of a pool of this many pages, from its first event on.
    pub(crate) fn new(pages: u32) -> Self {
        Self {
            view: CustodyView::new(pages),
            records: Vec::with_capacity(events_max(pages)),
            #[cfg(feature = "fault-injection")]
            kept: None,
        }
    }

    /// Takes it for possible that pages are freed under open tickets.
    #[cfg(feature = "fault-injection")]
    pub(crate) fn forgive_open_tickets(&mut self) {
        self.view.forgive_open_tickets();
    }

    /// Takes everything that happened since the last look.
    ///
    /// # Panics
    /// When the log tells what cannot be, or was not read in time: nobody can say then whose pages are whose.
    pub(crate) fn follow(&mut self, pool: &PagePool) {
        self.records.clear();
        pool.drain(&mut self.records);
        #[cfg(feature = "fault-injection")]
        if let Some(kept) = &mut self.kept {
            kept.extend_from_slice(&self.records);
        }
        for record in &self.records {
            let followed = self.view.follow(record);
            assert!(followed.is_ok(), "the ledger and its log do not agree: {followed:?}");
        }
    }

    /// Appends to `into` the pages of a sequence that has written its first `first` tokens and reads as far as `end`.
    /// `false` when the log knows of another number of written tokens, or of too few pages.
    ///
    /// # Errors
    /// [`CustodyError`].
    pub(crate) fn pages(
        &self,
        sequence: SequenceId,
        first: usize,
        end: usize,
        into: &mut Vec<HeldPage>,
    ) -> Result<bool, CustodyError> {
        let pages = self.view.pages(sequence)?;
        let wanted = end.div_ceil(PAGE_TOKENS);
        let fits = self.view.tokens(sequence)? == first && pages.len() >= wanted;
        if fits {
            into.extend(pages.take(wanted));
        }
        Ok(fits)
    }

    /// The first page of whoever it is.
    #[cfg(feature = "fault-injection")]
    pub(crate) fn first_page(&self, sequence: SequenceId) -> Option<HeldPage> {
        self.view.pages(sequence).ok()?.next()
    }
}

/// Events that a pool of this many pages is to keep for [`Custody::follow`].
pub(crate) fn events_max(pages: u32) -> usize {
    (pages as usize * EVENTS_PER_PAGE + EVENTS_MIN).min(EVENTS_MAX)
}

/// Compares what a block table reads with what the log says that it may.
pub(crate) fn difference(trace: &PageTrace, held: &[HeldPage]) -> Option<Difference> {
    let pages = trace.pages.len().max(held.len());
    let differs = |index: &usize| {
        let (Some(read), Some(held)) = (trace.pages.get(*index), held.get(*index)) else { return true };
        read.page != held.life.page || read.generation != held.life.generation || read.label != held.label
    };
    let index = (0..pages).find(differs)?;
    Some(Difference { index, held: held.get(index).copied() })
}

/// As the kernels' rule of read sets takes it.
pub(crate) fn page_ref(held: &HeldPage) -> PageRef {
    PageRef { page: held.life.page.0, tag: held.tag }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine_kv::{BlockTable, Ledger, LedgerConfig, PageFormat};
    use policies_domain::{Label, TenantId};

    fn pool(pages: u32) -> PagePool {
        let (boot_secret, format, compat) = ([1; 32], PageFormat::Bf16, 0);
        PagePool::new(Ledger::new(LedgerConfig { pages, boot_secret, format, compat, events_max: events_max(pages) }))
    }

    fn label(number: u32) -> Label {
        Label::of(TenantId::new(number).unwrap())
    }

    #[test]
    fn the_log_gives_the_pages_of_the_block_table_and_notices_any_other() {
        let (pool, mut custody) = (pool(8), Custody::new(8));
        let mut tables = [BlockTable::new(&pool, label(1)), BlockTable::new(&pool, label(2))];
        for table in &mut tables {
            table.grow(40, |_| ()).unwrap();
            table.advance(33).unwrap();
        }
        custody.follow(&pool);
        let sequence = tables[0].sequence();
        let mut held = Vec::new();
        assert_eq!(custody.pages(sequence, 33, 40, &mut held), Ok(true));
        let mut capabilities = Vec::new();
        tables[0].capabilities(40, &mut capabilities);
        let refs: Vec<PageRef> = held.iter().map(page_ref).collect();
        let table: Vec<PageRef> =
            capabilities.iter().map(|entry| PageRef { page: entry.page().0, tag: entry.tag() }).collect();
        assert_eq!(refs, table);
        assert_eq!(difference(&pool.trace(&capabilities, 33).unwrap(), &held), None);
        let mut foreign = Vec::new();
        tables[1].capabilities(40, &mut foreign);
        for index in 0..3 {
            let mut wrong = capabilities.clone();
            wrong[index] = foreign[index];
            let found = difference(&pool.trace(&wrong, 0).unwrap(), &held).unwrap();
            assert_eq!(found, Difference { index, held: Some(held[index]) });
        }
        capabilities.swap(0, 1);
        assert_eq!(difference(&pool.trace(&capabilities, 0).unwrap(), &held).unwrap().index, 0);
        capabilities.swap(0, 1);
        let short = pool.trace(&capabilities[..2], 0).unwrap();
        assert_eq!(difference(&short, &held).unwrap().index, 2, "a page too few");
        let mut none = Vec::new();
        assert_eq!(custody.pages(sequence, 32, 40, &mut none), Ok(false), "it has written more than that");
        assert_eq!(custody.pages(sequence, 33, 49, &mut none), Ok(false), "it has no fourth page");
        drop(tables);
        custody.follow(&pool);
        assert_eq!(custody.pages(sequence, 33, 40, &mut none), Err(CustodyError::NotHeld { sequence }));
        assert_eq!(none, []);
    }

    #[test]
    #[should_panic(expected = "do not agree")]
    fn a_look_at_the_log_that_comes_too_late_is_noticed() {
        let (pool, mut custody) = (pool(8), Custody::new(8));
        for _ in 0..EVENTS_MIN {
            drop(pool.allocate(label(1), pool.open_sequence()));
            pool.reclaim(|_| true);
        }
        custody.follow(&pool);
    }
}
