//! Where the tokens of one sequence lie: position to page.

use crate::ledger::{AllocateError, Capability, PAGE_TOKENS, UseError};
use crate::page::{FillingPage, OwnedPage, SealedPage};
use crate::pool::PagePool;
use policies_domain::{Label, SequenceId};

/// The pages of one sequence, in order. Dropping it gives all of them back.
#[derive(Debug)]
pub struct BlockTable {
    pool: PagePool,
    label: Label,
    sequence: SequenceId,
    sealed: Vec<SealedPage>,
    /// Allocated, not full; the first is the one being written.
    filling: std::collections::VecDeque<FillingPage>,
}

impl BlockTable {
    /// An empty table for data of `label`, of a sequence of its own.
    #[must_use]
    pub fn new(pool: &PagePool, label: Label) -> Self {
        let (sealed, filling) = (Vec::new(), std::collections::VecDeque::new());
        Self { pool: pool.clone(), label, sequence: pool.open_sequence(), sealed, filling }
    }

    /// Of pages that a sequence got whole: all full but the last.
    pub(crate) fn of(pool: PagePool, label: Label, sequence: SequenceId, pages: Vec<OwnedPage>) -> Self {
        let (mut sealed, mut filling) = (Vec::with_capacity(pages.len()), std::collections::VecDeque::new());
        for page in pages {
            match page {
                OwnedPage::Sealed(page) => {
                    assert!(filling.is_empty(), "a page before the last one has room");
                    sealed.push(page);
                }
                OwnedPage::Filling(page) => filling.push_back(page),
            }
        }
        Self { pool, label, sequence, sealed, filling }
    }

    /// All pages that were written to, in order, the last one sealed as it is; the others go back.
    pub(crate) fn into_sealed(self) -> Result<Vec<SealedPage>, UseError> {
        let Self { mut sealed, filling, .. } = self;
        for page in filling.into_iter().filter(|page| page.filled() > 0) {
            sealed.push(page.seal().map_err(|(_, error)| error)?);
        }
        Ok(sealed)
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
        self.sealed.len() * PAGE_TOKENS + self.filling.front().map_or(0, FillingPage::filled)
    }

    /// Pages held.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.sealed.len() + self.filling.len()
    }

    /// Makes room for `tokens` tokens in all; each new page is shown to `assign` before anyone can write to it.
    ///
    /// # Errors
    /// [`AllocateError`]; pages allocated before it stay with the table.
    pub fn grow(&mut self, tokens: usize, mut assign: impl FnMut(Capability)) -> Result<(), AllocateError> {
        while self.pages() * PAGE_TOKENS < tokens {
            let page = self.pool.allocate(self.label, self.sequence)?;
            assign(page.capability());
            self.filling.push_back(page);
        }
        Ok(())
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
            assert!(page.is_some(), "tokens were written beyond the block table");
            let Some(page) = page else { break };
            tokens -= page.fill(tokens)?;
            if page.is_full()
                && let Some(full) = self.filling.pop_front()
            {
                match full.seal() {
                    Ok(sealed) => self.sealed.push(sealed),
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
        let sealed = self.sealed.iter().skip(first).map(SealedPage::capability);
        let filling = self.filling.iter().skip(first.saturating_sub(self.sealed.len())).map(FillingPage::capability);
        out.extend(sealed.chain(filling).take(tokens.div_ceil(PAGE_TOKENS).saturating_sub(first)));
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
