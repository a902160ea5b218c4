//! The pages of a whole sequence on their way: offered by one, promised to another.
//!
//! Whatever goes wrong half-way, the pages go back to the pool and nobody reads them: a table is handed over or received
//! completely, or not at all.

use crate::block_table::{BlockTable, TablePage};
use crate::ledger::{AllocateError, Capability, PAGE_TOKENS, UseError};
use crate::page::{FullPage, InboundPage, OutboundPage, SharedPage};
use crate::pool::PagePool;
use policies_domain::{Label, PageLife, SequenceId, TransferId};

/// The written pages of a sequence that ended its part, sealed and open to copies. Dropping it gives them back, after the
/// last ticket on them.
///
/// Pages that other sequences may hold are not offered: they stay shared, held by the sequence as before, and may be copied
/// all the same.
#[derive(Debug)]
pub struct OutboundTable {
    pool: PagePool,
    label: Label,
    sequence: SequenceId,
    pages: Vec<OfferedPage>,
}

#[derive(Debug)]
enum OfferedPage {
    Outbound(OutboundPage),
    Shared(SharedPage),
}

impl OfferedPage {
    fn of(page: FullPage) -> Result<Self, UseError> {
        match page {
            FullPage::Sealed(page) => page.offer().map(Self::Outbound).map_err(|(_, error)| error),
            FullPage::Shared(page) => Ok(Self::Shared(page)),
        }
    }

    fn withdraw(self) -> Result<TablePage, UseError> {
        match self {
            Self::Outbound(page) => page.withdraw().map(TablePage::from).map_err(|(_, error)| error),
            Self::Shared(page) => Ok(TablePage::Full(FullPage::Shared(page))),
        }
    }
}

impl OutboundTable {
    /// Seals and offers all pages that `table` has written to; those that it has not go back.
    ///
    /// # Errors
    /// [`UseError`] when a page is out of use or under suspicion; all pages go back then.
    pub fn offer(table: BlockTable) -> Result<Self, UseError> {
        let (pool, label, sequence) = (table.pool().clone(), table.label(), table.sequence());
        let pages = table.into_full()?.into_iter().map(OfferedPage::of).collect::<Result<_, _>>()?;
        Ok(Self { pool, label, sequence, pages })
    }

    /// Each page with what its reader needs and the tokens in it, in the order of the sequence, shared ones among them.
    pub fn pages(&self) -> impl ExactSizeIterator<Item = (PageLife, Capability, usize)> {
        self.pages.iter().map(|page| match page {
            OfferedPage::Outbound(page) => (page.life(), page.capability(), page.filled()),
            OfferedPage::Shared(page) => (page.life(), page.capability(), page.filled()),
        })
    }

    /// Nobody took the offer, or whoever did has copied the pages: the sequence has them as before, and may go on or
    /// publish them.
    ///
    /// # Errors
    /// [`UseError`] when a page was put out of use meanwhile; all pages go back then.
    pub fn withdraw(self) -> Result<BlockTable, UseError> {
        let Self { pool, label, sequence, pages } = self;
        let pages = pages.into_iter().map(OfferedPage::withdraw).collect::<Result<_, _>>()?;
        Ok(BlockTable::of(pool, label, sequence, pages))
    }

    /// Becomes another sequence's of the same tenant in this pool, without a copy. `relabel` puts the new tag in the
    /// place of the old one in the store; `false` says that it could not.
    ///
    /// The other sequence holds shared pages as well, in the same life: for these `relabel` is called with two equal
    /// capabilities, so that whoever counts along or compares tags does so for every page.
    ///
    /// # Errors
    /// [`UseError`] when a copy or a step is under way, or a page is under suspicion; all pages go back then.
    pub fn hand_over(self, mut relabel: impl FnMut(Capability, Capability) -> bool) -> Result<BlockTable, UseError> {
        let Self { pool, label, pages, .. } = self;
        let to = pool.open_sequence();
        let owned = pages.into_iter().map(|page| match page {
            OfferedPage::Outbound(page) => {
                let before = page.capability();
                let owned = page.hand_over(to).map_err(|(_, error)| error)?;
                relabelled(before, owned.into(), &mut relabel)
            }
            OfferedPage::Shared(page) => {
                // The old hold ends with the new one there: the page is never without a holder.
                let shared = page.attach(label, to)?;
                relabelled(shared.capability(), TablePage::Full(FullPage::Shared(shared)), &mut relabel)
            }
        });
        let owned = owned.collect::<Result<Vec<TablePage>, _>>()?;
        Ok(BlockTable::of(pool, label, to, owned))
    }
}

/// Pages that are promised to a transfer. Dropping it gives them back, after the last ticket on them.
#[derive(Debug)]
pub struct InboundTable {
    pool: PagePool,
    label: Label,
    pages: Vec<InboundPage>,
}

impl InboundTable {
    /// Room for `tokens` tokens; each new page is shown to `assign` before anyone can write to it.
    ///
    /// # Errors
    /// [`AllocateError`]; no page is kept then.
    pub fn reserve(
        pool: &PagePool,
        label: Label,
        transfer: TransferId,
        tokens: usize,
        mut assign: impl FnMut(Capability),
    ) -> Result<Self, AllocateError> {
        let counts = pool.counts();
        if tokens.div_ceil(PAGE_TOKENS) > counts.total {
            return Err(AllocateError::PoolExhausted { pages_total: counts.total });
        }
        let pages = (0..tokens.div_ceil(PAGE_TOKENS)).map(|_| {
            let page = pool.reserve(label, transfer)?;
            assign(page.capability());
            Ok(page)
        });
        Ok(Self { pool: pool.clone(), label, pages: pages.collect::<Result<_, _>>()? })
    }

    /// Each page with what its writer needs, in the order of the sequence.
    pub fn pages(&self) -> impl ExactSizeIterator<Item = (PageLife, Capability)> {
        self.pages.iter().map(|page| (page.life(), page.capability()))
    }

    /// What landed was compared with what was promised: it is a new sequence's. `relabel` puts the new tag in the place
    /// of the old one in the store; `false` says that it could not.
    ///
    /// # Errors
    /// [`UseError`] when the pages are not exactly those of `tokens` tokens, nothing landed in one of them, a ticket is
    /// open, or a page is out of use; all pages go back then.
    pub fn commit(
        self,
        tokens: usize,
        mut relabel: impl FnMut(Capability, Capability) -> bool,
    ) -> Result<BlockTable, UseError> {
        let Self { pool, label, pages } = self;
        if let Some(last) = pages.last()
            && tokens.div_ceil(PAGE_TOKENS) != pages.len()
        {
            let fill = pages.len() * PAGE_TOKENS;
            return Err(UseError::NotWritten { page: last.life().page, fill, wanted: tokens });
        }
        let to = pool.open_sequence();
        let owned = pages.into_iter().enumerate().map(|(index, page)| {
            let before = page.capability();
            let here = (tokens - index * PAGE_TOKENS).min(PAGE_TOKENS);
            let owned = page.commit(to, here).map_err(|(_, error)| error)?;
            relabelled(before, owned.into(), &mut relabel)
        });
        let owned = owned.collect::<Result<Vec<TablePage>, _>>()?;
        Ok(BlockTable::of(pool, label, to, owned))
    }
}

/// A page with its next owner, if the store has it under the tag that it has then, too; else it goes back.
fn relabelled(
    before: Capability,
    page: TablePage,
    relabel: &mut impl FnMut(Capability, Capability) -> bool,
) -> Result<TablePage, UseError> {
    if relabel(before, page.capability()) { Ok(page) } else { Err(UseError::TagMismatch { page: before.page() }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ledger, LedgerConfig, PageFormat};
    use policies_domain::{HolderId, Outcome, TenantId, TicketKind};

    const COPY: HolderId = HolderId(2);

    fn pool(pages: u32) -> PagePool {
        let (boot_secret, format, compat, events_max) = ([1; 32], PageFormat::Bf16, 0, 0);
        PagePool::new(Ledger::new(LedgerConfig { pages, boot_secret, format, compat, events_max }))
    }

    fn label() -> Label {
        Label::of(TenantId::new(1).unwrap())
    }

    fn table(pool: &PagePool, room: usize, written: usize) -> BlockTable {
        let mut table = BlockTable::new(pool, label());
        table.grow(room, |_| ()).unwrap();
        table.advance(written).unwrap();
        table
    }

    fn inbound(pool: &PagePool, tokens: usize) -> InboundTable {
        InboundTable::reserve(pool, label(), TransferId::new(1).unwrap(), tokens, |_| ()).unwrap()
    }

    /// Every page is written and its writer done.
    fn land(pool: &PagePool, table: &InboundTable, outcome: Outcome) {
        for (life, _) in table.pages() {
            pool.ticket(life, TicketKind::Write, COPY).unwrap().settle(outcome).unwrap();
        }
    }

    fn all_come_back(pool: &PagePool) {
        pool.reclaim(|_| true);
        let counts = pool.counts();
        assert_eq!(counts.free, counts.total, "{counts:?}");
    }

    #[test]
    fn what_was_written_is_offered_and_what_was_not_goes_back() {
        let pool = pool(4);
        let outbound = OutboundTable::offer(table(&pool, 60, 20)).unwrap();
        assert_eq!(outbound.pages().map(|(.., tokens)| tokens).collect::<Vec<_>>(), [16, 4]);
        assert_eq!((pool.counts().outbound, pool.counts().draining), (2, 2));
        let mut table = outbound.withdraw().unwrap();
        assert_eq!((table.tokens(), table.pages()), (20, 2));
        table.grow(33, |_| ()).unwrap_err();
        pool.reclaim(|_| true);
        table.grow(33, |_| ()).unwrap();
        table.advance(13).unwrap();
        assert_eq!(table.tokens(), 33, "it goes on where it was");
        drop(table);
        all_come_back(&pool);
    }

    #[test]
    fn a_table_is_handed_over_under_new_tags_or_not_at_all() {
        let pool = pool(4);
        let outbound = OutboundTable::offer(table(&pool, 20, 20)).unwrap();
        let offered: Vec<Capability> = outbound.pages().map(|(_, capability, _)| capability).collect();
        let mut relabelled = Vec::new();
        let table = outbound.hand_over(|before, now| {
            relabelled.push((before, now));
            true
        });
        let table = table.unwrap();
        let mut now = Vec::new();
        table.capabilities(0, 20, &mut now);
        assert_eq!(relabelled, offered.iter().copied().zip(now.iter().copied()).collect::<Vec<_>>());
        assert!(offered.iter().zip(&now).all(|(old, new)| old.page() == new.page() && old.tag() != new.tag()));
        let outbound = OutboundTable::offer(table).unwrap();
        let (life, ..) = outbound.pages().last().unwrap();
        let reading = pool.ticket(life, TicketKind::Read, COPY).unwrap();
        assert!(matches!(outbound.hand_over(|_, _| true), Err(UseError::TicketsOpen { .. })), "a copy is under way");
        assert_eq!((pool.reclaim(|_| true), pool.counts().draining), (1, 1));
        reading.settle(Outcome::Done).unwrap();
        all_come_back(&pool);
    }

    #[test]
    fn a_store_that_cannot_relabel_gets_no_reader() {
        let pool = pool(2);
        let outbound = OutboundTable::offer(table(&pool, 20, 20)).unwrap();
        assert!(matches!(outbound.hand_over(|_, _| false), Err(UseError::TagMismatch { .. })));
        all_come_back(&pool);
        let table = inbound(&pool, 20);
        land(&pool, &table, Outcome::Done);
        assert!(matches!(table.commit(20, |_, _| false), Err(UseError::TagMismatch { .. })));
        all_come_back(&pool);
    }

    #[test]
    fn what_landed_completely_is_a_sequence_and_nothing_else_is() {
        let pool = pool(3);
        let table = inbound(&pool, 35);
        land(&pool, &table, Outcome::Done);
        let received = table.commit(35, |_, _| true).unwrap();
        assert_eq!((received.tokens(), received.pages()), (35, 3));
        drop(received);
        all_come_back(&pool);
        for (tokens, outcome) in [(32, Outcome::Done), (49, Outcome::Done), (0, Outcome::Done), (35, Outcome::Failed)] {
            let table = inbound(&pool, 35);
            land(&pool, &table, outcome);
            assert!(table.commit(tokens, |_, _| true).is_err(), "{tokens} tokens, {outcome:?}");
            all_come_back(&pool);
        }
        let table = inbound(&pool, 35);
        let (life, _) = table.pages().next().unwrap();
        let writing = pool.ticket(life, TicketKind::Write, COPY).unwrap();
        assert!(table.commit(35, |_, _| true).is_err());
        assert_eq!(pool.reclaim(|_| true), 2, "the third waits for its writer");
        writing.settle(Outcome::Done).unwrap();
        all_come_back(&pool);
    }

    #[test]
    fn more_than_there_is_is_not_reserved_in_part() {
        let pool = pool(3);
        let transfer = TransferId::new(1).unwrap();
        let reserve = |tokens| InboundTable::reserve(&pool, label(), transfer, tokens, |_| ()).map(|_| ());
        assert_eq!(reserve(usize::MAX), Err(AllocateError::PoolExhausted { pages_total: 3 }));
        let taken = table(&pool, 20, 20);
        assert_eq!(reserve(20), Err(AllocateError::PoolExhausted { pages_total: 3 }));
        drop(taken);
        all_come_back(&pool);
    }

    #[test]
    fn a_page_under_suspicion_is_not_offered() {
        let pool = pool(2);
        let table = table(&pool, 20, 20);
        let mut capabilities = Vec::new();
        table.capabilities(0, 20, &mut capabilities);
        pool.quarantine(capabilities[1].page(), policies_domain::QuarantineReason::TagMismatch);
        assert!(matches!(OutboundTable::offer(table), Err(UseError::Suspected { .. })));
        pool.reclaim(|_| true);
        assert_eq!((pool.counts().free, pool.counts().quarantined), (1, 1));
    }
}
