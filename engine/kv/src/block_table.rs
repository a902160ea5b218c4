//! Where the tokens of one sequence lie: position to page.

use crate::ledger::{AllocateError, PagePool};
use crate::page::{Capability, FillingPage, PAGE_TOKENS, SealedPage};
use policies_domain::Label;

/// The pages of one sequence, in order. Dropping it gives all of them back.
#[derive(Debug)]
pub struct BlockTable {
    pool: PagePool,
    label: Label,
    sealed: Vec<SealedPage>,
    /// Allocated, not full; the first is the one being written.
    filling: std::collections::VecDeque<FillingPage>,
}

impl BlockTable {
    /// An empty table for data of `label`.
    #[must_use]
    pub fn new(pool: &PagePool, label: Label) -> Self {
        Self { pool: pool.clone(), label, sealed: Vec::new(), filling: std::collections::VecDeque::new() }
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
            let page = self.pool.allocate(self.label)?;
            assign(page.capability());
            self.filling.push_back(page);
        }
        Ok(())
    }

    /// Takes note that the next `tokens` tokens were written; full pages are sealed.
    ///
    /// # Panics
    /// When more is noted than the table has room for: the kernel would have written outside of its pages.
    pub fn advance(&mut self, mut tokens: usize) {
        while tokens > 0 {
            let mut page = self.filling.pop_front();
            assert!(page.is_some(), "tokens were written beyond the block table");
            if let Some(mut filling) = page.take() {
                tokens -= filling.fill(tokens);
                match filling.seal() {
                    Ok(sealed) => self.sealed.push(sealed),
                    Err(filling) => self.filling.push_front(filling),
                }
            }
        }
    }

    /// The capabilities of the pages that hold the first `tokens` tokens, appended to `out`.
    pub fn capabilities(&self, tokens: usize, out: &mut Vec<Capability>) {
        let pages = tokens.div_ceil(PAGE_TOKENS);
        let all =
            self.sealed.iter().map(SealedPage::capability).chain(self.filling.iter().map(FillingPage::capability));
        out.extend(all.take(pages));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use policies_domain::TenantId;
    use proptest::prelude::*;

    fn label(number: u32) -> Label {
        Label::of(TenantId::new(number).unwrap())
    }

    #[test]
    fn a_table_grows_by_whole_pages_and_gives_all_of_them_back() {
        let pool = PagePool::new(3, [0; 32]);
        let mut table = BlockTable::new(&pool, label(1));
        let mut assigned = Vec::new();
        table.grow(17, |page| assigned.push(page)).unwrap();
        assert_eq!((table.pages(), table.tokens(), assigned.len()), (2, 0, 2));
        table.advance(17);
        assert_eq!(table.tokens(), 17);
        let mut capabilities = Vec::new();
        table.capabilities(17, &mut capabilities);
        assert_eq!(capabilities, assigned);
        assert!(table.grow(49, |_| ()).is_err(), "four pages are one too many");
        drop(table);
        pool.reclaim(|_| true);
        assert_eq!(pool.counts().free, 3);
    }

    #[derive(Clone, Debug)]
    enum Operation {
        Grow { table: usize, tokens: usize },
        Drop { table: usize },
        Reclaim,
    }

    fn operation() -> impl Strategy<Value = Operation> {
        prop_oneof![
            4 => (0..4usize, 1..60usize).prop_map(|(table, tokens)| Operation::Grow { table, tokens }),
            2 => (0..4usize).prop_map(|table| Operation::Drop { table }),
            1 => Just(Operation::Reclaim),
        ]
    }

    proptest! {
        /// Against a naive model: no page has two owners, none is lost, the ledger names the owner's label.
        #[test]
        fn every_page_has_one_owner(operations in proptest::collection::vec(operation(), 1..60)) {
            let pool = PagePool::new(12, [3; 32]);
            let mut tables: Vec<BlockTable> = (0..4).map(|i| BlockTable::new(&pool, label(1 + i % 2))).collect();
            for operation in operations {
                match operation {
                    Operation::Grow { table, tokens } => {
                        let target = tables[table].tokens() + tokens;
                        if tables[table].grow(target, |_| ()).is_ok() {
                            tables[table].advance(tokens);
                        }
                    }
                    Operation::Drop { table } => tables[table] = BlockTable::new(&pool, label(1 + table as u32 % 2)),
                    Operation::Reclaim => { pool.reclaim(|_| true); }
                }
                let mut owned = std::collections::HashSet::new();
                for (i, table) in tables.iter().enumerate() {
                    let mut capabilities = Vec::new();
                    table.capabilities(table.pages() * PAGE_TOKENS, &mut capabilities);
                    for read in pool.trace(&capabilities).unwrap().pages {
                        prop_assert!(owned.insert(read.page), "{} has two owners", read.page);
                        prop_assert_eq!(read.label, label(1 + i as u32 % 2));
                    }
                }
                let counts = pool.counts();
                prop_assert_eq!(counts.filling + counts.sealed, owned.len());
                prop_assert_eq!(counts.free + counts.returned + owned.len(), 12);
            }
        }
    }
}
