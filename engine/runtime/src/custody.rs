//! Which pages a request may read, as the custody log tells it: neither the scheduler nor the block tables are asked.

use engine_kernels::{PageRef, ReadSums};
use engine_kv::{CustodyError, CustodyView, HeldPage, PAGE_TOKENS, PagePool};
use policies_domain::{CustodyAct, CustodyEvent, CustodyRecord, Owner, PageRead, SequenceId};
use std::collections::BTreeMap;

/// Custody events kept for the step loop. Between two looks at the log each page is given back, freed, allocated, filled,
/// sealed and kept once at most, and one sequence at a time begins to hold it or lets go of it; the rest is for tickets.
const EVENTS_PER_PAGE: usize = 8;
/// For the smallest pools.
const EVENTS_MIN: usize = 1024;
/// 64 MiB, enough for 8 million tokens that change hands between two looks.
const EVENTS_MAX: usize = 1 << 20;

/// The log's follower. On the step loop's thread, which lets no event be lost.
pub(crate) struct Custody {
    view: CustodyView,
    /// Of the pages of each sequence that was asked for and has let go of none.
    sums: BTreeMap<SequenceId, ReadSums>,
    /// Reused from look to look.
    records: Vec<CustodyRecord>,
    /// Everything that was ever read, when a test wants it.
    #[cfg(feature = "fault-injection")]
    pub(crate) kept: Option<Vec<CustodyRecord>>,
}

/// The first place where a block table is not what the log says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    /// Place among those that were compared.
    pub(crate) index: usize,
    /// What the table reads.
    pub(crate) read: Option<PageRead>,
    /// What the log says.
    pub(crate) held: Option<HeldPage>,
}

impl Custody {
    /// Of a pool of this many pages, from its first event on.
    pub(crate) fn new(pages: u32) -> Self {
        Self {
            view: CustodyView::new(pages),
            sums: BTreeMap::new(),
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

    /// Takes everything that happened since the last look, and gives it.
    ///
    /// # Panics
    /// When the log tells what cannot be, or was not read in time: nobody can say then whose pages are whose.
    pub(crate) fn follow(&mut self, pool: &PagePool) -> &[CustodyRecord] {
        self.records.clear();
        pool.drain(&mut self.records);
        #[cfg(feature = "fault-injection")]
        if let Some(kept) = &mut self.kept {
            kept.extend_from_slice(&self.records);
        }
        for record in &self.records {
            let followed = self.view.follow(record);
            assert!(followed.is_ok(), "the ledger and its log do not agree: {followed:?}");
            if let Some(sequence) = let_go(record) {
                self.sums.remove(&sequence);
            }
        }
        &self.records
    }

    /// Appends to `into` the pages, without the `known` first ones, of a sequence that has written its first `first` tokens
    /// and reads as far as `end`. `false` when the log knows of another number of written tokens, or of too few pages.
    ///
    /// # Errors
    /// [`CustodyError`].
    pub(crate) fn pages(
        &self,
        sequence: SequenceId,
        known: usize,
        first: usize,
        end: usize,
        into: &mut Vec<HeldPage>,
    ) -> Result<bool, CustodyError> {
        let pages = self.view.pages(sequence, known)?;
        let wanted = end.div_ceil(PAGE_TOKENS).saturating_sub(known);
        let fits = self.view.tokens(sequence)? == first && pages.len() >= wanted;
        if fits {
            into.extend(pages.take(wanted));
        }
        Ok(fits)
    }

    /// The sums of all pages of a sequence. Each page costs something once: the log's pages stay in their places and lives
    /// until the sequence lets go of one.
    ///
    /// # Errors
    /// [`CustodyError`].
    pub(crate) fn sums(&mut self, sequence: SequenceId) -> Result<&ReadSums, CustodyError> {
        let known = self.sums.get(&sequence).map_or(0, ReadSums::pages);
        let new = self.view.pages(sequence, known)?;
        let sums = self.sums.entry(sequence).or_default();
        new.for_each(|held| sums.push(page_ref(&held)));
        Ok(sums)
    }

    /// As if the log had said so of a sequence's first page.
    #[cfg(feature = "fault-injection")]
    pub(crate) fn pretend(&mut self, sequence: SequenceId, first: Option<HeldPage>) {
        self.sums.remove(&sequence);
        if let (Some(first), Ok(pages)) = (first, self.view.pages(sequence, 1)) {
            let sums = self.sums.entry(sequence).or_default();
            std::iter::once(first).chain(pages).for_each(|held| sums.push(page_ref(&held)));
        }
    }

    /// The first page of whoever it is.
    #[cfg(feature = "fault-injection")]
    pub(crate) fn first_page(&self, sequence: SequenceId) -> Option<HeldPage> {
        self.view.pages(sequence, 0).ok()?.next()
    }
}

/// Events that a pool of this many pages is to keep for [`Custody::follow`].
pub(crate) fn events_max(pages: u32) -> usize {
    (pages as usize * EVENTS_PER_PAGE + EVENTS_MIN).min(EVENTS_MAX)
}

/// Who has one page less after this.
fn let_go(record: &CustodyRecord) -> Option<SequenceId> {
    let CustodyRecord::Event(CustodyEvent { owner, act, .. }) = record else { return None };
    match (act, owner) {
        (CustodyAct::GivenBack, Owner::Sequence(sequence))
        | (CustodyAct::Committed { from: Owner::Sequence(sequence), .. }, _) => Some(*sequence),
        _ => None,
    }
}

/// Compares what a block table reads, from any place on, with what the log says that it may, from the same place on.
pub(crate) fn difference(reads: &[PageRead], held: &[HeldPage]) -> Option<Difference> {
    let pages = reads.len().max(held.len());
    let differs = |index: &usize| {
        let (Some(read), Some(held)) = (reads.get(*index), held.get(*index)) else { return true };
        read.page != held.life.page || read.generation != held.life.generation || read.label != held.label
    };
    let index = (0..pages).find(differs)?;
    Some(Difference { index, read: reads.get(index).copied(), held: held.get(index).copied() })
}

/// As the kernels' rule of read sets takes it.
pub(crate) fn page_ref(held: &HeldPage) -> PageRef {
    PageRef { page: held.life.page.0, tag: held.tag }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine_kv::{BlockTable, Capability, Ledger, LedgerConfig, OutboundTable, PageFormat};
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
        assert_eq!(custody.pages(sequence, 0, 33, 40, &mut held), Ok(true));
        let mut capabilities = Vec::new();
        tables[0].capabilities(0, 40, &mut capabilities);
        let refs: Vec<PageRef> = held.iter().map(page_ref).collect();
        let table: Vec<PageRef> =
            capabilities.iter().map(|entry| PageRef { page: entry.page().0, tag: entry.tag() }).collect();
        assert_eq!(refs, table);
        let traced = |table: &[Capability]| {
            let mut reads = Vec::new();
            pool.trace(0, table, 0, &mut reads).unwrap();
            reads
        };
        assert_eq!(difference(&traced(&capabilities), &held), None);
        let mut foreign = Vec::new();
        tables[1].capabilities(0, 40, &mut foreign);
        for index in 0..3 {
            let mut wrong = capabilities.clone();
            wrong[index] = foreign[index];
            let reads = traced(&wrong);
            let found = difference(&reads, &held).unwrap();
            assert_eq!(found, Difference { index, read: Some(reads[index]), held: Some(held[index]) });
            // The same from any place on.
            for known in 0..3 {
                let mut rest = Vec::new();
                assert_eq!(custody.pages(sequence, known, 33, 40, &mut rest), Ok(true));
                assert_eq!(rest, held[known..]);
                let found = difference(&reads[known..], &rest).map(|found| known + found.index);
                assert_eq!(found, Some(index).filter(|index| *index >= known));
            }
        }
        capabilities.swap(0, 1);
        assert_eq!(difference(&traced(&capabilities), &held).unwrap().index, 0);
        capabilities.swap(0, 1);
        let short = traced(&capabilities[..2]);
        assert_eq!(difference(&short, &held).unwrap().index, 2, "a page too few");
        let mut none = Vec::new();
        for known in 0..4 {
            let short = custody.pages(sequence, known, 32, 40, &mut none);
            assert_eq!(short, Ok(false), "it has written more than that");
            assert_eq!(custody.pages(sequence, known, 33, 49, &mut none), Ok(false), "it has no fourth page");
        }
        drop(tables);
        custody.follow(&pool);
        assert_eq!(custody.pages(sequence, 0, 33, 40, &mut none), Err(CustodyError::NotHeld { sequence }));
        assert_eq!(none, []);
    }

    #[test]
    fn the_sums_of_a_sequence_are_those_of_its_pages_and_end_with_the_first_that_it_lets_go_of() {
        let (pool, mut custody) = (pool(8), Custody::new(8));
        let mut table = BlockTable::new(&pool, label(1));
        let sequence = table.sequence();
        assert_eq!(custody.sums(sequence).err(), Some(CustodyError::NotHeld { sequence }));
        for (written, end) in [(0, 20), (20, 21), (21, 33), (33, 34), (34, 70)] {
            table.grow(end, |_| ()).unwrap();
            custody.follow(&pool);
            let (mut held, mut sums) = (Vec::new(), ReadSums::default());
            assert_eq!(custody.pages(sequence, 0, written, end, &mut held), Ok(true));
            held.iter().for_each(|held| sums.push(page_ref(held)));
            assert_eq!(custody.sums(sequence), Ok(&sums), "{written} of {end}");
            table.advance(end - written).unwrap();
        }
        // What a sequence of the same number gets later is no continuation.
        drop(table);
        custody.follow(&pool);
        assert_eq!(custody.sums(sequence).err(), Some(CustodyError::NotHeld { sequence }));
        assert!(custody.sums.is_empty(), "nothing is kept of who is gone");
    }

    #[test]
    fn a_sequence_whose_page_was_handed_over_has_no_sums() {
        let (pool, mut custody) = (pool(4), Custody::new(4));
        let mut table = BlockTable::new(&pool, label(1));
        let sequence = table.sequence();
        table.grow(20, |_| ()).unwrap();
        table.advance(20).unwrap();
        custody.follow(&pool);
        assert_eq!(custody.sums(sequence).map(ReadSums::pages), Ok(2));
        let step = pool.issue_step();
        pool.retire_step(step).unwrap();
        let mut sums = ReadSums::default();
        let handed_over = OutboundTable::offer(table).unwrap().hand_over(|_, page| {
            sums.push(PageRef { page: page.page().0, tag: page.tag() });
            true
        });
        custody.follow(&pool);
        assert!(custody.sums(sequence).is_err() && custody.sums.is_empty());
        assert_eq!(custody.sums(handed_over.unwrap().sequence()), Ok(&sums));
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
