//! One behaviour each. Every one of them is followed by an auditor of the custody log.

mod eviction;
mod transfer;

use super::*;
use crate::custody_view::CustodyView;
use crate::{AllocateError, Capability, Ledger, LedgerConfig, LedgerFault, PageFormat, UseError};
use policies_domain::{CustodyRecord, QuarantineReason, TenantId};

/// Pages that a domain may keep, where that is not what a test is about.
pub(super) const MANY: usize = 100;

pub(super) fn tenant(number: u32) -> Label {
    Label::of(TenantId::new(number).unwrap())
}

/// A prompt of this many pages, and a few tokens more. Prompts of other kinds have no page in common with it.
pub(super) fn prompt(kind: u32, pages: u32) -> Vec<u32> {
    (0..pages * PAGE_TOKENS as u32 + 5).map(|token| kind * 1000 + token).collect()
}

pub(super) fn config() -> PrefixCacheConfig {
    PrefixCacheConfig { boot_secret: [9; 32], fingerprint: [8; 32], adapter_generation: 0 }
}

/// A pool with a cache, and an auditor that follows both.
pub(super) struct Rig {
    pub(super) pool: PagePool,
    pub(super) cache: PrefixCache,
    view: CustodyView,
}

impl Rig {
    pub(super) fn new(pages: u32) -> Self {
        let (boot_secret, format, compat, events_max) = ([1; 32], PageFormat::Bf16, 0, 100_000);
        let pool = PagePool::new(Ledger::new(LedgerConfig { pages, boot_secret, format, compat, events_max }));
        let cache = PrefixCache::new(&pool, config());
        Self { pool, cache, view: CustodyView::new(pages) }
    }

    pub(super) fn with(pages: u32, cache: &[CacheFault], ledger: &[LedgerFault]) -> Self {
        let mut rig = Self::new(pages);
        rig.cache.plant(cache.to_vec());
        rig.pool.lock().plant(ledger.to_vec());
        rig
    }

    /// Computes a whole prompt behind what the cache knows of it.
    pub(super) fn prefill(&mut self, label: Label, tokens: &[u32]) -> BlockTable {
        let hit = self.cache.lookup(label, tokens, tokens.len() - 1);
        self.compute(BlockTable::with_prefix(hit), tokens)
    }

    pub(super) fn compute(&mut self, mut table: BlockTable, tokens: &[u32]) -> BlockTable {
        table.grow(tokens.len(), |_| ()).unwrap();
        let step = self.pool.issue_step();
        self.pool.retire_step(step).unwrap();
        table.advance(tokens.len() - table.tokens()).unwrap();
        self.audit();
        table
    }

    /// A prompt is computed, published, and its sequence ends.
    pub(super) fn learn(&mut self, label: Label, tokens: &[u32], pages_max: usize) -> usize {
        let mut table = self.prefill(label, tokens);
        let published = self.cache.publish(tokens, &mut table, pages_max);
        drop(table);
        self.audit();
        published
    }

    /// Pages that a lookup finds; they go back at once.
    pub(super) fn found(&mut self, label: Label, tokens: &[u32]) -> usize {
        let peeked = self.cache.peek(label, tokens, tokens.len()).pages;
        let hit = self.cache.lookup(label, tokens, tokens.len());
        assert_eq!(hit.pages(), peeked);
        let pages = hit.pages();
        drop(hit);
        self.audit();
        pages
    }

    /// The ledger is sound, and its log alone says the same of each sequence that reads.
    pub(super) fn audit(&mut self) {
        self.pool.lock().assert_sound();
        let mut records: Vec<CustodyRecord> = Vec::new();
        self.pool.drain(&mut records);
        records.iter().for_each(|record| self.view.follow(record).unwrap());
    }

    /// The log knows the table's pages, in its order.
    pub(super) fn agrees(&mut self, table: &BlockTable) {
        self.audit();
        let mut capabilities = Vec::new();
        table.capabilities(0, table.pages() * PAGE_TOKENS, &mut capabilities);
        let held = self.view.pages(table.sequence(), 0).unwrap();
        let told: Vec<_> = held.map(|page| (page.life.page, page.tag)).collect();
        let used: Vec<_> = capabilities.iter().map(|page| (page.page(), page.tag())).collect();
        assert_eq!(told, used);
        assert_eq!(self.view.tokens(table.sequence()), Ok(table.tokens()));
    }

    fn free(&mut self) -> usize {
        self.pool.reclaim(|_| true);
        self.audit();
        self.pool.counts().free
    }
}

fn capabilities(table: &BlockTable) -> Vec<Capability> {
    let mut capabilities = Vec::new();
    table.capabilities(0, table.tokens(), &mut capabilities);
    capabilities
}

#[test]
fn what_a_tenant_computed_before_is_found_by_it_and_read_in_place() {
    let mut rig = Rig::new(16);
    let (first, mut second) = (prompt(1, 3), prompt(1, 3));
    second.extend(prompt(2, 1));
    let mut table = rig.prefill(tenant(1), &first);
    assert_eq!(rig.cache.publish(&first, &mut table, MANY), 3);
    rig.agrees(&table);
    let before = capabilities(&table);
    assert_eq!(table.tokens(), first.len(), "it goes on as before");
    let mut reader = rig.prefill(tenant(1), &second);
    assert_eq!(capabilities(&reader)[..3], before[..3]);
    assert_ne!(capabilities(&reader)[3], before[3], "what is not full is nobody else's");
    rig.agrees(&reader);
    reader.grow(second.len() + 20, |_| ()).unwrap();
    reader.advance(20).unwrap();
    rig.agrees(&reader);
    let counts = rig.cache.counts(tenant(1));
    assert_eq!((counts.hits, counts.misses), (3, 3 + 1));
}

#[test]
fn a_hit_leaves_what_the_caller_keeps_for_itself() {
    let mut rig = Rig::new(8);
    let tokens = &prompt(1, 2)[..32];
    rig.learn(tenant(1), &prompt(1, 2), MANY);
    for (tokens_max, found) in [(0, 0), (15, 0), (16, 16), (31, 16), (32, 32), (usize::MAX, 32)] {
        assert_eq!(rig.cache.lookup(tenant(1), tokens, tokens_max).tokens(), found, "at most {tokens_max}");
    }
    let table = rig.prefill(tenant(1), tokens);
    assert_eq!((table.tokens(), table.pages()), (32, 2), "the last token is computed, in a page of its own");
    rig.agrees(&table);
}

#[test]
fn the_same_tokens_of_two_tenants_never_meet() {
    let mut rig = Rig::new(32);
    let tokens = prompt(1, 3);
    rig.learn(tenant(1), &tokens, MANY);
    assert_eq!((rig.found(tenant(2), &tokens), rig.found(tenant(1), &tokens)), (0, 3));
    rig.learn(tenant(2), &tokens, MANY);
    let (first, second) = (rig.prefill(tenant(1), &tokens), rig.prefill(tenant(2), &tokens));
    let pages = [&first, &second].map(capabilities);
    assert!(pages[0].iter().all(|page| pages[1].iter().all(|other| page.page() != other.page())));
    for label in [Label::NOBODY, Label::PUBLIC, tenant(3)] {
        assert_eq!(rig.found(label, &tokens), 0, "{label}");
    }
}

#[test]
fn a_key_is_of_one_domain_model_adapter_and_start() {
    let tokens: &PageTokens = &[7; PAGE_TOKENS];
    let key = |config, label| BootKey::new(config).of_domain(label, false).node(NodeKey::ROOT, tokens);
    let usual = config();
    let keys = [
        key(usual, tenant(1)),
        key(usual, tenant(2)),
        key(usual, Label::PUBLIC),
        key(PrefixCacheConfig { boot_secret: [7; 32], ..usual }, tenant(1)),
        key(PrefixCacheConfig { fingerprint: [7; 32], ..usual }, tenant(1)),
        key(PrefixCacheConfig { adapter_generation: 1, ..usual }, tenant(1)),
        BootKey::new(usual).of_domain(tenant(1), false).node(key(usual, tenant(1)), tokens),
    ];
    for (place, one) in keys.iter().enumerate() {
        assert!(keys[..place].iter().all(|other| other != one), "key {place} is another's, too");
    }
    assert!(key(usual, tenant(1)) == keys[0]);
}

#[test]
fn a_page_under_a_key_that_is_not_its_own_is_no_hit() {
    let mut rig = Rig::new(8);
    let (tokens, others) = (prompt(1, 1), prompt(2, 1));
    rig.learn(tenant(1), &tokens, MANY);
    // The node of one prompt under the key of another, as a collision would have it.
    let tree = rig.cache.trees.get_mut(&tenant(1)).unwrap();
    let key = |tokens: &[u32]| tree.key_of(NodeKey::ROOT, tokens.first_chunk().unwrap());
    let (own, planted) = (key(&tokens), key(&others));
    tree.move_node(own, planted);
    assert_eq!(rig.found(tenant(1), &others), 0);
    // Once for the question, once for what comes to be published. Nothing takes the place either.
    assert_eq!(rig.learn(tenant(1), &others, MANY), 0);
    assert_eq!((rig.cache.counts(tenant(1)).collisions, rig.cache.pages_of(tenant(1))), (3, 1));
}

#[test]
fn the_same_page_behind_other_tokens_is_no_hit() {
    let mut rig = Rig::new(16);
    let [one, other] = [1, 2].map(|kind| [prompt(kind, 1)[..16].to_vec(), prompt(3, 1)].concat());
    rig.learn(tenant(1), &one, MANY);
    rig.learn(tenant(1), &other[..16], MANY);
    let tree = rig.cache.trees.get_mut(&tenant(1)).unwrap();
    let second = |tokens: &[u32]| {
        let first = tree.key_of(NodeKey::ROOT, tokens.first_chunk().unwrap());
        tree.key_of(first, tokens[16..].first_chunk().unwrap())
    };
    let (own, planted) = (second(&one), second(&other));
    tree.move_node(own, planted);
    assert_eq!((rig.found(tenant(1), &other), rig.cache.counts(tenant(1)).collisions), (1, 1));
}

#[test]
fn nothing_is_published_before_it_is_written() {
    let mut rig = Rig::new(8);
    let tokens = prompt(1, 2);
    let mut table = BlockTable::new(&rig.pool, tenant(1));
    table.grow(tokens.len(), |_| ()).unwrap();
    assert_eq!(rig.cache.publish(&tokens, &mut table, MANY), 0, "room is no content");
    let step = rig.pool.issue_step();
    table.advance(20).unwrap();
    assert_eq!(rig.cache.publish(&tokens, &mut table, MANY), 0, "the step that writes it is under way");
    rig.pool.retire_step(step).unwrap();
    assert_eq!(rig.cache.publish(&tokens, &mut table, MANY), 1, "the second page has room");
    assert_eq!(rig.found(tenant(1), &tokens), 1);
    rig.agrees(&table);
    table.advance(17).unwrap();
    assert_eq!(rig.cache.publish(&tokens[..31], &mut table, MANY), 0, "fewer tokens than the page has");
    assert_eq!(rig.cache.publish(&tokens, &mut table, MANY), 1);
    rig.agrees(&table);
}

#[test]
fn what_is_known_already_stays_where_it_is() {
    let mut rig = Rig::new(16);
    let tokens = prompt(1, 3);
    rig.learn(tenant(1), &tokens[..20], MANY);
    let fresh = BlockTable::new(&rig.pool, tenant(1));
    let mut table = rig.compute(fresh, &tokens);
    let before = capabilities(&table);
    assert_eq!(rig.cache.publish(&tokens, &mut table, MANY), 2, "the first page is known");
    assert_eq!(capabilities(&table), before);
    rig.agrees(&table);
    let reader = rig.prefill(tenant(1), &tokens);
    assert_ne!(capabilities(&reader)[0], before[0]);
    assert_eq!(capabilities(&reader)[1..3], before[1..3], "behind another copy of the first page");
    rig.agrees(&reader);
    assert_eq!(rig.cache.publish(&tokens, &mut table, MANY), 0);
}

#[test]
fn a_page_under_suspicion_is_found_by_nobody_with_all_that_follows() {
    let mut rig = Rig::new(16);
    let tokens = prompt(1, 3);
    rig.learn(tenant(1), &tokens, MANY);
    let reader = rig.prefill(tenant(1), &tokens);
    let suspected = capabilities(&reader)[1].page();
    rig.pool.quarantine(suspected, QuarantineReason::TagMismatch);
    assert_eq!(rig.cache.peek(tenant(1), &tokens, tokens.len()).tokens(), 16);
    assert_eq!((rig.found(tenant(1), &tokens), rig.cache.pages_of(tenant(1))), (1, 1));
    assert_eq!(rig.cache.counts(tenant(1)).withdrawn, 2);
    drop(reader);
    assert_eq!((rig.free(), rig.pool.counts().quarantined), (14, 1));
    // What is computed again takes its place.
    assert_eq!(rig.learn(tenant(1), &tokens, MANY), 2);
    assert_eq!(rig.found(tenant(1), &tokens), 3);
}

#[test]
fn a_page_under_suspicion_is_not_published_and_gives_way_to_a_good_one() {
    let mut rig = Rig::new(16);
    let tokens = prompt(1, 3);
    let mut table = rig.prefill(tenant(1), &tokens);
    rig.pool.quarantine(capabilities(&table)[1].page(), QuarantineReason::TagMismatch);
    assert_eq!(rig.cache.publish(&tokens, &mut table, MANY), 1, "it ends what is published");
    rig.agrees(&table);
    rig.pool.quarantine(capabilities(&table)[0].page(), QuarantineReason::TagMismatch);
    let fresh = BlockTable::new(&rig.pool, tenant(1));
    let mut table = rig.compute(fresh, &tokens);
    assert_eq!(rig.cache.publish(&tokens, &mut table, MANY), 3);
    assert_eq!((rig.found(tenant(1), &tokens), rig.cache.counts(tenant(1)).withdrawn), (3, 1));
}

#[test]
fn what_is_everybodys_is_declared_found_first_and_gone_on_from() {
    let mut rig = Rig::new(32);
    let (preamble, mut tokens) = (prompt(1, 2)[..32].to_vec(), prompt(1, 2)[..32].to_vec());
    tokens.extend(prompt(2, 2));
    // Never inferred: a tenant's prefix is the tenant's, and the label alone makes no page.
    rig.learn(tenant(1), &tokens, MANY);
    assert_eq!((rig.found(tenant(2), &tokens), rig.found(Label::PUBLIC, &tokens)), (0, 0));
    let refused = Err(AllocateError::NotATenant { label: Label::PUBLIC });
    assert_eq!(BlockTable::new(&rig.pool, Label::PUBLIC).grow(1, |_| ()), refused);
    let declared = BlockTable::new_public(&rig.pool);
    let mut table = rig.compute(declared, &preamble);
    assert_eq!(rig.cache.publish(&preamble, &mut table, MANY), 2);
    let public = capabilities(&table);
    drop(table);
    for number in [1, 2] {
        assert_eq!(rig.found(tenant(number), &tokens), 2, "tenant {number}");
        let table = rig.prefill(tenant(number), &tokens);
        assert_eq!(capabilities(&table)[..2], public[..]);
        rig.agrees(&table);
    }
    assert_eq!(rig.learn(tenant(1), &tokens, MANY), 2, "behind what is everybody's");
    assert_eq!((rig.found(tenant(1), &tokens), rig.found(tenant(2), &tokens)), (4, 2));
    assert_eq!(rig.found(Label::NOBODY, &tokens), 0, "nobody reads");
    assert_eq!((rig.pool.held_by(Label::PUBLIC), rig.cache.cached_alone(Label::PUBLIC)), (2, 2));
    assert_eq!(rig.cache.evict(Label::PUBLIC, 2), 2);
    assert_eq!(rig.found(tenant(2), &tokens), 0);
}

#[test]
fn everybodys_pages_are_not_kept_as_a_tenants() {
    let mut rig = Rig::new(32);
    let tokens = prompt(1, 3);
    let declared = BlockTable::new_public(&rig.pool);
    let mut public = rig.compute(declared, &tokens[..32]);
    rig.cache.publish(&tokens[..32], &mut public, MANY);
    let mut table = rig.prefill(tenant(1), &tokens);
    rig.cache.clear(Label::PUBLIC);
    assert_eq!(rig.cache.publish(&tokens, &mut table, MANY), 0);
    assert!(matches!(table.keep(0), Err(UseError::Foreign { .. })));
    rig.agrees(&table);
}

#[test]
fn nothing_that_is_printed_has_tokens_in_it() {
    let mut rig = Rig::new(8);
    rig.learn(tenant(1), &prompt(77, 2), MANY);
    let hit = rig.cache.lookup(tenant(1), &prompt(77, 2), MANY);
    let printed = format!("{:?} {:?} {:?} {hit:?}", rig.cache, config(), rig.cache.counts(tenant(1)));
    assert!(!printed.contains("77") && !printed.contains("[9, 9"), "{printed}");
}
