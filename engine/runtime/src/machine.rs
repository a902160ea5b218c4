//! What a group of requests is computed on: a model with its pages, the ledger that says whose they are, and its log.

mod calibration;
mod declared;
mod swap;

pub use declared::DeclareError;
pub(crate) use swap::{Swap, SwapInError, Swapped};

use crate::compute::Compute;
use crate::custody::{self, Custody, Difference};
use crate::steps::StepError;
use crate::traced_table::TracedTable;
use crate::witness::Witness;
use engine_kernels::PageRef;
use engine_kv::{
    AllocateError, BlockTable, Capability, HeldPage, Hit, KnownPrefix, Ledger, LedgerConfig, PageFormat, PagePool,
    PrefixCache, PrefixCacheConfig,
};
use engine_scheduler::Costs;
use policies_domain::{Label, PageId, PageRead, PageTrace, RequestId};
use std::sync::Arc;

/// A model, its pages, and what is known of them. One thread works on it at a time.
pub(crate) struct Machine<C> {
    pub(crate) compute: C,
    pub(crate) pool: PagePool,
    /// What the log of the pool says, apart from the block tables.
    pub(crate) custody: Custody,
    pub(crate) entries: Entries,
    /// Number of its first page in all that others are told: no two pools of an engine have a page of the same number.
    pub(crate) first_page: u32,
    /// What its passes cost.
    pub(crate) costs: Costs,
    /// What earlier requests have left for later ones of their tenants, where that is wanted.
    pub(crate) cache: Option<PrefixCache>,
    /// Where pages are kept of requests that gave way, where that is wanted.
    pub(crate) swap: Option<Swap>,
    /// Whoever is told what happens to the pages.
    pub(crate) witness: Option<Arc<dyn Witness>>,
}

/// What a machine's ledger is made from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pages {
    /// Below `u32::MAX`, as [`EngineConfig::check`](crate::EngineConfig) has it.
    pub(crate) count: usize,
    pub(crate) first: u32,
    /// Fresh random bytes; tags are made under them.
    pub(crate) boot_secret: [u8; 32],
    pub(crate) format: PageFormat,
    /// Model and layout, folded to 16 bits.
    pub(crate) compat: u16,
}

/// Memory for one row of a pass, reused from row to row: the part of a block table that is traced, what the ledger says of
/// it, and what the log says that it should be.
#[derive(Default)]
pub(crate) struct Entries {
    pub(crate) capabilities: Vec<Capability>,
    pub(crate) reads: Vec<PageRead>,
    pub(crate) held: Vec<HeldPage>,
}

impl Entries {
    pub(crate) fn emptied(&mut self) -> &mut Self {
        self.capabilities.clear();
        self.reads.clear();
        self.held.clear();
        self
    }
}

impl<C: Compute> Machine<C> {
    /// `compute` has these pages, and all of them are free.
    pub(crate) fn new(compute: C, pages: Pages) -> Self {
        let Pages { count, first, boot_secret, format, compat } = pages;
        let pages = u32::try_from(count).unwrap_or(u32::MAX);
        let config = LedgerConfig { pages, boot_secret, format, compat, events_max: custody::events_max(pages) };
        let pool = PagePool::new(Ledger::new(config));
        Self {
            compute,
            pool,
            custody: Custody::new(pages),
            entries: Entries::default(),
            first_page: first,
            costs: Costs::GUESS,
            cache: None,
            swap: None,
            witness: None,
        }
    }

    /// Measures what passes cost, before anybody has a page. Costs stay guessed when a pass could not be made.
    pub(crate) fn calibrate(&mut self) {
        if let Some(costs) = calibration::measure(&mut self.compute, self.pool.counts().total) {
            self.costs = costs;
        }
    }

    /// Scrubs and frees what was given back.
    pub(crate) fn reclaim(&mut self) {
        let compute = &mut self.compute;
        self.pool.reclaim(|page| compute.scrub(page.0).is_ok());
        self.follow();
    }

    /// From here on pages of earlier requests are used again. `secret`: fresh random bytes; `fingerprint`: of all that decides
    /// what is in a page besides the tokens.
    pub(crate) fn keep_prefixes(&mut self, secret: [u8; 32], fingerprint: [u8; 32]) {
        let config = PrefixCacheConfig { boot_secret: secret, fingerprint, adapter_generation: 0 };
        self.cache = Some(PrefixCache::new(&self.pool, config));
    }

    /// What the tenant's cache has of the beginning of a prompt.
    pub(crate) fn found(&self, tenant: Label, tokens: &[u32]) -> KnownPrefix {
        self.cache.as_ref().map_or_else(KnownPrefix::default, |cache| cache.peek(tenant, tokens, prefix_max(tokens)))
    }

    /// A block table for these tokens: it begins with what the tenant's cache has of them, which is its own from now on. The
    /// last token is always computed.
    pub(crate) fn begin_table(&mut self, tenant: Label, tokens: &[u32]) -> BlockTable {
        let table = match &mut self.cache {
            Some(cache) => BlockTable::with_prefix(cache.lookup(tenant, tokens, prefix_max(tokens))),
            None => BlockTable::new(&self.pool, tenant),
        };
        self.follow();
        table
    }

    /// What the tenant's cache has of these tokens stays there as long as this is held.
    pub(crate) fn pin(&mut self, tenant: Label, tokens: &[u32]) -> Option<Hit> {
        let pinned = self.cache.as_mut().map(|cache| cache.lookup(tenant, tokens, prefix_max(tokens)));
        self.follow();
        pinned
    }

    /// Keeps the full pages of a table, whose tokens these are, for later requests of its tenant, which keeps `pages_max` pages
    /// at most.
    pub(crate) fn publish(&mut self, tokens: &[u32], table: &mut BlockTable, pages_max: usize) {
        if let Some(cache) = &mut self.cache {
            cache.publish(tokens, table, pages_max);
            self.follow();
        }
    }

    /// Tenants that have a cache. What is everybody's is nobody's to give away: if it went when one tenant needs room, the
    /// others would see that.
    pub(crate) fn caching_tenants(&self) -> impl Iterator<Item = Label> {
        self.cache.iter().flat_map(PrefixCache::domains).filter(|domain| *domain != Label::PUBLIC)
    }

    /// Pages that are everybody's.
    pub(crate) fn pages_of_everybody(&self) -> usize {
        self.pool.held_by(Label::PUBLIC)
    }

    /// Pages that nobody works with, and that never come free: waiting for them would be for ever.
    pub(crate) fn never_free(&self) -> usize {
        self.pool.counts().quarantined + self.pool.kept_alone(Label::PUBLIC)
    }

    /// A tenant's pages, and those of them that nothing but its cache holds.
    pub(crate) fn pages_of(&self, tenant: Label) -> (usize, usize) {
        (self.pool.held_by(tenant), if self.cache.is_some() { self.pool.kept_alone(tenant) } else { 0 })
    }

    /// Pages that nothing but tenants' caches hold.
    pub(crate) fn cached(&self) -> usize {
        self.caching_tenants().map(|tenant| self.pool.kept_alone(tenant)).sum()
    }

    /// Takes pages from a tenant's cache. Returns how many came free.
    pub(crate) fn evict(&mut self, tenant: Label, pages: usize) -> usize {
        let Some(cache) = &mut self.cache else { return 0 };
        let freed = cache.evict(tenant, pages);
        self.reclaim();
        freed
    }

    /// Takes pages from whatever cache has some. Returns how many came free. Only for who would wait for ever.
    pub(crate) fn evict_anybody(&mut self, pages: usize) -> usize {
        let tenants: Vec<Label> = self.caching_tenants().collect();
        tenants.into_iter().fold(0, |freed, tenant| match pages.saturating_sub(freed) {
            0 => freed,
            missing => freed + self.evict(tenant, missing),
        })
    }

    /// Takes in what the log says. Any number of sequences may hold a page of a cache, and each that begins or ends is an event
    /// for each of its pages: whoever lets many of them begin or end looks at the log after each.
    pub(crate) fn follow(&mut self) {
        let records = self.custody.follow(&self.pool);
        if let Some(witness) = &self.witness {
            witness.custody(self.first_page, records);
        }
    }

    /// Room for `tokens` tokens in all.
    ///
    /// # Errors
    /// [`AllocateError`]; pages that were got before it stay with the table.
    pub(crate) fn grow(&mut self, block_table: &mut BlockTable, tokens: usize) -> Result<(), AllocateError> {
        let (compute, mut assigned) = (&mut self.compute, true);
        let grown = block_table.grow(tokens, |capability| assigned &= compute.assign(page_ref(capability)).is_ok());
        assert!(assigned, "the pool and the store disagree about which pages exist");
        grown
    }

    /// Lays what is not settled of a request's block table as the kernels are to get it, and takes what the log says of the
    /// same places. The request has written its first `first` tokens and reads as far as `end`.
    ///
    /// # Errors
    /// [`StepError::Internal`] when the log knows of another number of tokens, or of pages that are not to be read.
    pub(crate) fn lay(
        &mut self,
        block_table: &BlockTable,
        table: &mut TracedTable,
        first: usize,
        end: usize,
    ) -> Result<(), StepError> {
        let (entries, known) = (self.entries.emptied(), table.settled());
        block_table.capabilities(known, end, &mut entries.capabilities);
        table.lay(&entries.capabilities);
        match self.custody.pages(table.sequence(), known, first, end, &mut entries.held) {
            Ok(true) => Ok(()),
            _ => Err(StepError::Internal),
        }
    }

    /// Traces what was laid, and compares it with what the log says.
    ///
    /// # Errors
    /// [`StepError::Internal`] when an entry is of no page, or counts on more than was written.
    pub(crate) fn trace(&mut self, table: &mut TracedTable, first: usize) -> Result<Option<Difference>, StepError> {
        let Entries { capabilities, reads, held } = &mut self.entries;
        self.pool.trace(table.settled(), capabilities, first, reads).map_err(|_| StepError::Internal)?;
        table.note(reads, first);
        Ok(custody::difference(reads, held))
    }

    /// Says what a request reads, or goes on with, to whoever is told of it.
    pub(crate) fn witness_pass(&self, request: RequestId, trace: &PageTrace) {
        if let Some(witness) = &self.witness {
            witness.pass(request, trace);
        }
    }

    /// A trace as others are told it.
    pub(crate) fn told(&self, mut trace: PageTrace) -> PageTrace {
        for read in &mut trace.pages {
            read.page = PageId(self.first_page + read.page.0);
        }
        trace
    }
}

/// Of these tokens, how many may come from a cache: the logits after the last one are wanted.
fn prefix_max(tokens: &[u32]) -> usize {
    tokens.len().saturating_sub(1)
}

/// As the kernels take a capability.
pub(crate) fn page_ref(capability: Capability) -> PageRef {
    PageRef { page: capability.page().0, tag: capability.tag() }
}
