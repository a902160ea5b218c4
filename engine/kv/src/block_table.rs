//! Where the tokens of one sequence lie: position to page.

use crate::ledger::{AllocateError, Capability, PAGE_TOKENS, UseError};
use crate::page::{FillingPage, FullPage, OwnedPage, SharedPage};
use crate::pool::PagePool;
use crate::prefix_cache::Hit;
use policies_domain::{Label, SequenceId};
use std::collections::VecDeque;

/// The pages of one sequence, in order. Dropping it gives all of them back.
///
/// Some of the full ones may be shared with other sequences of the tenant: the first ones, which the sequence found in the
/// [`PrefixCache`](crate::PrefixCache), and those of its own that it published there. Nobody writes to these any more.
#[derive(Debug)]
pub struct BlockTable {
    pool: PagePool,
    label: Label,
    sequence: SequenceId,
    /// What it computes is everybody's, because an operator said so.
    public: bool,
    full: Vec<FullPage>,
    /// Allocated, not full; the first is the one being written.
    filling: VecDeque<FillingPage>,
    /// So many of its pages, the first ones, were shown to whoever keeps their bytes, and can be written to.
    shown: usize,
}

/// A page on its way into a table.
#[derive(Debug)]
pub(crate) enum TablePage {
    Full(FullPage),
    Filling(FillingPage),
}

impl TablePage {
    pub(crate) fn capability(&self) -> Capability {
        match self {
            Self::Full(page) => page.capability(),
            Self::Filling(page) => page.capability(),
        }
    }
}

impl From<OwnedPage> for TablePage {
    fn from(page: OwnedPage) -> Self {
        match page {
            OwnedPage::Sealed(page) => Self::Full(FullPage::Sealed(page)),
            OwnedPage::Filling(page) => Self::Filling(page),
        }
    }
}

impl BlockTable {
    /// An empty table for data of `label`, of a sequence of its own.
    #[must_use]
    pub fn new(pool: &PagePool, label: Label) -> Self {
        Self::of(pool.clone(), label, pool.open_sequence(), Vec::new())
    }

    /// An empty table for data that an operator has declared to be everybody's, under [`Label::PUBLIC`]. There is no other
    /// way to such pages: [`BlockTable::new`] under that label gets none.
    #[must_use]
    pub fn new_public(pool: &PagePool) -> Self {
        Self { public: true, ..Self::new(pool, Label::PUBLIC) }
    }

    /// A table that begins with pages that others have computed. The sequence goes on behind them.
    ///
    /// It never writes to them: they are full. Whoever asked for the hit left at least one token of the prompt to be
    /// computed, since there are no logits otherwise: see [`PrefixCache::lookup`](crate::PrefixCache::lookup).
    #[must_use]
    pub fn with_prefix(hit: Hit) -> Self {
        let (pool, label, sequence, pages) = hit.into_parts();
        Self::of(pool, label, sequence, pages.into_iter().map(|page| TablePage::Full(FullPage::Shared(page))).collect())
    }

    /// Of pages that the sequence holds: all full but the last.
    pub(crate) fn of(pool: PagePool, label: Label, sequence: SequenceId, pages: Vec<TablePage>) -> Self {
        let (mut full, mut filling) = (Vec::with_capacity(pages.len()), VecDeque::new());
        for page in pages {
            match page {
                TablePage::Full(page) => {
                    assert!(filling.is_empty(), "a page before the last one has room");
                    full.push(page);
                }
                TablePage::Filling(page) => filling.push_back(page),
            }
        }
        let shown = full.len() + filling.len();
        Self { pool, label, sequence, public: false, full, filling, shown }
    }

    /// All pages that were written to, in order, the last one sealed as it is; the others go back.
    pub(crate) fn into_full(self) -> Result<Vec<FullPage>, UseError> {
        let Self { mut full, filling, .. } = self;
        for page in filling.into_iter().filter(|page| page.filled() > 0) {
            full.push(FullPage::Sealed(page.seal().map_err(|(_, error)| error)?));
        }
        Ok(full)
    }

    /// Full pages, which are written completely.
    pub(crate) fn pages_full(&self) -> usize {
        self.full.len()
    }

    /// The full page in this place is shared from now on, and a sequence of its own keeps it for later ones.
    pub(crate) fn keep(&mut self, place: usize) -> Result<SharedPage, UseError> {
        let label = self.full[place].label();
        if !self.label.flows_to(label) {
            // Everybody's page among a tenant's: whoever keeps it for the tenant would count it as the tenant's.
            return Err(UseError::Foreign {
                page: self.full[place].capability().page(),
                held: label,
                wanted: self.label,
            });
        }
        let (page, kept) = match self.full.swap_remove(place).share() {
            Ok(page) => {
                let kept = page.keep(self.label);
                (FullPage::Shared(page), kept)
            }
            Err((page, error)) => (page, Err(error)),
        };
        // Back to where it was, and the last one, too.
        self.full.push(page);
        let last = self.full.len() - 1;
        self.full.swap(place, last);
        kept
    }

    pub(crate) fn pool(&self) -> &PagePool {
        &self.pool
    }

    /// Whose data it is.
    #[must_use]
    pub fn label(&self) -> Label {
        self.label
    }

    /// Who holds the pages.
    #[must_use]
    pub fn sequence(&self) -> SequenceId {
        self.sequence
    }

    /// Tokens written.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.full.len() * PAGE_TOKENS + self.filling.front().map_or(0, FillingPage::filled)
    }

    /// Pages held.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.full.len() + self.filling.len()
    }

    /// Those of them that others may hold as well, a cache for one: they need not come free when the table goes.
    #[must_use]
    pub fn pages_shared(&self) -> usize {
        self.full.iter().filter(|page| matches!(page, FullPage::Shared(_))).count()
    }

    /// Gets pages for `tokens` tokens in all, so that nobody else has them. There is room in them after [`BlockTable::grow`].
    ///
    /// # Errors
    /// [`AllocateError`]; pages allocated before it stay with the table.
    pub fn reserve(&mut self, tokens: usize) -> Result<(), AllocateError> {
        while self.pages() * PAGE_TOKENS < tokens {
            let page = match self.public {
                true => self.pool.allocate_public(self.sequence)?,
                false => self.pool.allocate(self.label, self.sequence)?,
            };
            self.filling.push_back(page);
        }
        Ok(())
    }

    /// Makes room for `tokens` tokens in all; each page is shown to `assign` before anyone can write to it.
    ///
    /// # Errors
    /// [`AllocateError`]; pages allocated before it stay with the table.
    pub fn grow(&mut self, tokens: usize, mut assign: impl FnMut(Capability)) -> Result<(), AllocateError> {
        let reserved = self.reserve(tokens);
        let wanted = tokens.div_ceil(PAGE_TOKENS).min(self.pages());
        let pages = self.filling.iter().skip(self.shown - self.full.len()).take(wanted.saturating_sub(self.shown));
        for page in pages {
            assign(page.capability());
        }
        self.shown = self.shown.max(wanted);
        reserved
    }

    /// Tokens that there is room for.
    #[must_use]
    pub fn room(&self) -> usize {
        self.shown * PAGE_TOKENS
    }

    /// Takes note that the next `tokens` tokens were written; full pages are sealed.
    ///
    /// # Errors
    /// [`UseError`] when a page was put out of use meanwhile: the sequence cannot go on.
    ///
    /// # Panics
    /// When more is noted than the table has room for: the kernel would have written outside of its pages.
    pub fn advance(&mut self, mut tokens: usize) -> Result<(), UseError> {
        while tokens > 0 {
            let page = self.filling.front_mut();
            assert!(page.is_some() && self.full.len() < self.shown, "tokens were written beyond the block table");
            let Some(page) = page else { break };
            tokens -= page.fill(tokens)?;
            if page.is_full()
                && let Some(full) = self.filling.pop_front()
            {
                match full.seal() {
                    Ok(sealed) => self.full.push(FullPage::Sealed(sealed)),
                    Err((page, error)) => {
                        self.filling.push_front(page);
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }

    /// The capabilities of the pages that hold the first `tokens` tokens, without the `first` of them, appended to `out`.
    /// Those left out cost nothing.
    pub fn capabilities(&self, first: usize, tokens: usize, out: &mut Vec<Capability>) {
        let full = self.full.iter().skip(first).map(FullPage::capability);
        let filling = self.filling.iter().skip(first.saturating_sub(self.full.len())).map(FillingPage::capability);
        out.extend(full.chain(filling).take(tokens.div_ceil(PAGE_TOKENS).saturating_sub(first)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ledger, LedgerConfig, PageFormat};
    use policies_domain::{HolderId, TenantId, TicketKind};

    fn pool(pages: u32) -> PagePool {
        let (boot_secret, format, compat, events_max) = ([0; 32], PageFormat::Bf16, 0, 0);
        PagePool::new(Ledger::new(LedgerConfig { pages, boot_secret, format, compat, events_max }))
    }

    fn label() -> Label {
        Label::of(TenantId::new(1).unwrap())
    }

    #[test]
    fn a_table_grows_by_whole_pages_and_gives_all_of_them_back() {
        let pool = pool(3);
        let mut table = BlockTable::new(&pool, label());
        let mut assigned = Vec::new();
        table.grow(17, |page| assigned.push(page)).unwrap();
        assert_eq!((table.pages(), table.tokens(), assigned.len()), (2, 0, 2));
        table.advance(17).unwrap();
        assert_eq!(table.tokens(), 17);
        let mut capabilities = Vec::new();
        table.capabilities(0, 17, &mut capabilities);
        assert_eq!(capabilities, assigned);
        for first in 0..4 {
            capabilities.clear();
            table.capabilities(first, 17, &mut capabilities);
            assert_eq!(capabilities, assigned[first.min(2)..], "from place {first} on");
        }
        assert_eq!((pool.counts().sealed, pool.counts().open), (1, 1), "full pages are sealed");
        assert!(table.grow(49, |_| ()).is_err(), "four pages are one too many");
        drop(table);
        pool.reclaim(|_| true);
        assert_eq!(pool.counts().free, 3);
    }

    #[test]
    fn there_is_room_in_pages_that_were_shown_and_each_is_shown_once() {
        let pool = pool(4);
        let mut table = BlockTable::new(&pool, label());
        table.reserve(64).unwrap();
        assert_eq!((table.pages(), table.room(), pool.counts().free), (4, 0, 0));
        let mut shown = Vec::new();
        for (tokens, room) in [(1, 16), (16, 16), (17, 32), (40, 48), (20, 48), (64, 64)] {
            table.grow(tokens, |page| shown.push(page)).unwrap();
            assert_eq!((table.pages(), table.room(), shown.len()), (4, room, room / PAGE_TOKENS));
            table.advance(tokens.saturating_sub(table.tokens())).unwrap();
        }
        let mut capabilities = Vec::new();
        table.capabilities(0, 64, &mut capabilities);
        assert_eq!(shown, capabilities);
        assert!(table.grow(65, |page| shown.push(page)).is_err());
        assert_eq!(shown.len(), 4);
    }

    #[test]
    #[should_panic(expected = "tokens were written beyond the block table")]
    fn what_was_written_to_a_page_that_was_only_reserved_stops_the_worker() {
        let mut table = BlockTable::new(&pool(2), label());
        table.grow(1, |_| ()).unwrap();
        table.reserve(32).unwrap();
        table.advance(17).unwrap();
    }

    #[test]
    fn every_table_is_a_sequence_of_its_own() {
        let pool = pool(2);
        let tables = [(); 2].map(|()| BlockTable::new(&pool, label()));
        assert_ne!(tables[0].sequence(), tables[1].sequence());
    }

    #[test]
    fn a_table_with_a_page_out_of_use_does_not_go_on() {
        let pool = pool(1);
        let mut table = BlockTable::new(&pool, label());
        table.grow(9, |_| ()).unwrap();
        table.advance(4).unwrap();
        let life = table.filling.front().unwrap().life();
        drop(pool.ticket(life, TicketKind::Write, HolderId(1)).unwrap());
        assert!(matches!(table.advance(1), Err(UseError::WrongState { .. })));
        assert_eq!(table.tokens(), 4);
        drop(table);
        assert_eq!((pool.reclaim(|_| true), pool.counts().quarantined), (0, 1));
    }

    #[test]
    #[should_panic(expected = "tokens were written beyond the block table")]
    fn what_was_written_beyond_the_table_stops_the_worker() {
        let mut table = BlockTable::new(&pool(1), label());
        table.grow(1, |_| ()).unwrap();
        table.advance(17).unwrap();
    }
}
