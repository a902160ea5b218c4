//! What a tenant has computed before: prefixes of its own prompts, kept as pages.
//!
//! One tree for each isolation domain over one page pool; an edge is a whole page of tokens. There is no way to ask without
//! a [`Label`], and none from one domain's tree into another's, but for prefixes that an operator has declared to be
//! everybody's. A node's key is a keyed hash over all that decides the content of its page; its tokens are compared as well.
//!
//! Pages come here after they are written, never before ([`PrefixCache::publish`]), and are held here like by any
//! sequence: the ledger decides when one is free, and its custody log tells who holds it. Nothing here is ever written.
//!
//! Used by `engine/runtime`, which says how many pages a domain may keep and when one has to give some up.

#[cfg(test)]
mod catalogue;
mod hit;
mod key;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
mod tree;

use crate::block_table::BlockTable;
use crate::capability::PAGE_TOKENS;
use crate::fault::CacheFault;
use crate::pool::PagePool;
pub use hit::Hit;
use key::{BootKey, NodeKey};
use policies_domain::Label;
use std::collections::BTreeMap;
use std::fmt;
use tree::{Found, Tree};

/// The token ids of one page.
type PageTokens = [u32; PAGE_TOKENS];

/// What decides the content of a page besides its tokens and those before it. Pages under another one are not found.
#[derive(Clone, Copy)]
pub struct PrefixCacheConfig {
    /// Fresh random bytes: nobody can compute a key, not even who knows everything else.
    pub boot_secret: [u8; 32],
    /// Digest of the model, its adapters and the way it is computed.
    pub fingerprint: [u8; 32],
    /// One more each time that an adapter is loaded in the place of another.
    pub adapter_generation: u64,
}

impl fmt::Debug for PrefixCacheConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrefixCacheConfig(adapter generation {})", self.adapter_generation)
    }
}

/// What became of one domain's questions and pages, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixCacheCounts {
    /// Pages that were asked for and found.
    pub hits: u64,
    /// Pages that were asked for and not found.
    pub misses: u64,
    /// Pages that had to make room.
    pub evictions: u64,
    /// Pages that were found under a key of other tokens. There should be none.
    pub collisions: u64,
    /// Pages that were given up because they, or one before them, came under suspicion.
    pub withdrawn: u64,
}

/// The prefixes of all domains over one pool.
pub struct PrefixCache {
    pool: PagePool,
    boot: BootKey,
    trees: BTreeMap<Label, Tree>,
    /// Counts what is asked and published: the least recently used is the one with the lowest number.
    clock: u64,
    faults: Vec<CacheFault>,
}

/// The nodes of a prefix, as far as there are any.
#[derive(Default)]
struct Path {
    nodes: Vec<(Label, NodeKey)>,
    /// Where its end is no node that fits.
    broken: Vec<(Label, Broken)>,
}

enum Broken {
    Collision,
    /// The node's page may not be held any more.
    Unfit(NodeKey),
}

impl Path {
    fn end(&self) -> NodeKey {
        self.nodes.last().map_or(NodeKey::ROOT, |(_, key)| *key)
    }

    fn nodes_of(&self, domain: Label) -> usize {
        self.nodes.iter().filter(|(of, _)| *of == domain).count()
    }
}

/// What is there of a prompt, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KnownPrefix {
    /// All that a sequence would begin with.
    pub pages: usize,
    /// Of these, its domain's own; the others are everybody's.
    pub own: usize,
}

impl KnownPrefix {
    /// In tokens.
    #[must_use]
    pub fn tokens(self) -> usize {
        self.pages * PAGE_TOKENS
    }
}

impl PrefixCache {
    /// An empty cache of pages of this pool.
    #[must_use]
    pub fn new(pool: &PagePool, config: PrefixCacheConfig) -> Self {
        let boot = BootKey::new(config);
        Self { pool: pool.clone(), boot, trees: BTreeMap::new(), clock: 0, faults: Vec::new() }
    }

    /// The longest known prefix of `tokens` that `label` may read, of at most `tokens_max` tokens and whole pages. What is
    /// found is held from now on: it cannot go between this and its use. Counts as use.
    ///
    /// For a prompt, `tokens_max` is its length less one: a sequence needs the logits of its last token, so that one is
    /// computed, and it writes to no page that it found here.
    pub fn lookup(&mut self, label: Label, tokens: &[u32], tokens_max: usize) -> Hit {
        let pages_max = tokens.len().min(tokens_max) / PAGE_TOKENS;
        let path = self.walk(label, tokens, pages_max);
        self.mend(&path);
        let (sequence, now) = (self.pool.open_sequence(), self.tick());
        let mut pages = Vec::with_capacity(path.nodes.len());
        for (domain, key) in path.nodes {
            let Some(tree) = self.trees.get_mut(&domain) else { break };
            match tree.use_node(key, now).map(|page| page.attach(label, sequence)) {
                Some(Ok(page)) => pages.push(page),
                // Put under suspicion since the walk.
                _ => {
                    tree.withdraw(key);
                    break;
                }
            }
        }
        let counts = &mut self.tree(label).counts;
        counts.hits += pages.len() as u64;
        counts.misses += (pages_max - pages.len()) as u64;
        Hit::new(self.pool.clone(), label, sequence, pages)
    }

    /// What a [`PrefixCache::lookup`] would find now. Changes nothing and counts as no use.
    #[must_use]
    pub fn peek(&self, label: Label, tokens: &[u32], tokens_max: usize) -> KnownPrefix {
        let path = self.walk(label, tokens, tokens.len().min(tokens_max) / PAGE_TOKENS);
        KnownPrefix { pages: path.nodes.len(), own: path.nodes_of(self.domain_of(label)) }
    }

    /// Keeps the full pages of a table for later sequences of its tenant; `tokens` are the table's, from the first on.
    /// Returns how many are new. The domain keeps at most `pages_max` pages, and gives up its own least recently used ones
    /// for these.
    ///
    /// Only what is written completely is kept: a page that is still being filled, that a step under way may be writing, or
    /// that is under suspicion, ends what is published. Where a prefix is known already, the table keeps its own page.
    pub fn publish(&mut self, tokens: &[u32], table: &mut BlockTable, pages_max: usize) -> usize {
        let label = table.label();
        let pages = (tokens.len() / PAGE_TOKENS).min(table.pages_full());
        // The bound may be lower than it was.
        self.tree(label).shrink(pages_max);
        let path = self.walk(label, tokens, pages);
        self.mend(&path);
        let now = self.tick();
        for (domain, key) in &path.nodes {
            self.trees.get_mut(domain).and_then(|tree| tree.use_node(*key, now));
        }
        let room = pages_max.saturating_sub(path.nodes_of(self.domain_of(label)));
        let pages = tokens.as_chunks().0.iter().enumerate().take(pages).skip(path.nodes.len()).take(room);
        self.extend(path.end(), pages, table, pages_max, now)
    }

    /// Gives up the least recently used pages of this one domain until `pages` of them come back to the pool, or until no
    /// more would. Returns how many do: pages that a sequence holds as well come back when it ends.
    pub fn evict(&mut self, label: Label, pages: usize) -> usize {
        let mut freed = 0;
        while freed < pages && self.cached_alone(label) > 0 {
            match self.tree(label).evict() {
                Some(comes_back) => freed += usize::from(comes_back),
                None => break,
            }
        }
        freed
    }

    /// Gives up everything of this domain. Returns how many pages that were.
    pub fn clear(&mut self, label: Label) -> usize {
        self.tree(label).clear()
    }

    /// Domains for which something is kept.
    pub fn domains(&self) -> impl Iterator<Item = Label> {
        self.trees.iter().filter(|(_, tree)| tree.pages() > 0).map(|(domain, _)| *domain)
    }

    /// Pages that are kept for this domain.
    #[must_use]
    pub fn pages_of(&self, label: Label) -> usize {
        self.trees.get(&self.domain_of(label)).map_or(0, Tree::pages)
    }

    /// Those of them that nobody else holds: as many come back when all are evicted.
    #[must_use]
    pub fn cached_alone(&self, label: Label) -> usize {
        self.pool.kept_alone(label)
    }

    /// What became of this domain's questions and pages.
    #[must_use]
    pub fn counts(&self, label: Label) -> PrefixCacheCounts {
        self.trees.get(&self.domain_of(label)).map(|tree| tree.counts).unwrap_or_default()
    }

    /// Replaces the planted faults.
    #[cfg(any(test, feature = "fault-injection"))]
    pub fn plant(&mut self, faults: Vec<CacheFault>) {
        self.faults = faults;
    }

    fn planted(&self, fault: CacheFault) -> bool {
        cfg!(any(test, feature = "fault-injection")) && self.faults.contains(&fault)
    }

    /// Whose tree a tenant's prefixes are in.
    fn domain_of(&self, label: Label) -> Label {
        if self.planted(CacheFault::OneTree) || self.pool.shares_prefixes() { Label::NOBODY } else { label }
    }

    fn tree(&mut self, label: Label) -> &mut Tree {
        let (domain, toy) = (self.domain_of(label), self.planted(CacheFault::ToyHash));
        self.trees.entry(domain).or_insert_with(|| Tree::new(self.boot.of_domain(domain, toy)))
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Everybody's prefixes first, as far as they go, and the domain's own from there on.
    fn walk(&self, label: Label, tokens: &[u32], pages_max: usize) -> Path {
        let mut path = Path::default();
        let mut pages = tokens.as_chunks().0.iter().take(pages_max).peekable();
        let own = Some(self.domain_of(label)).filter(|own| *own != Label::PUBLIC);
        // Nobody reads nothing, not even what is everybody's.
        let domains = [Label::PUBLIC].into_iter().chain(own).filter(|_| label != Label::NOBODY);
        for domain in domains {
            let Some(tree) = self.trees.get(&domain) else { continue };
            while let Some(tokens) = pages.peek() {
                let key = tree.key_of(path.end(), tokens);
                match tree.find(key, path.end(), tokens, label, !self.planted(CacheFault::NoTokenComparison)) {
                    Found::Node => path.nodes.push((domain, key)),
                    Found::Nothing => break,
                    Found::Collision => {
                        path.broken.push((domain, Broken::Collision));
                        break;
                    }
                    Found::Unfit => {
                        path.broken.push((domain, Broken::Unfit(key)));
                        break;
                    }
                }
                pages.next();
            }
        }
        path
    }

    /// Puts pages of a table behind `parent`, one behind the other, as far as they can be kept.
    fn extend<'a>(
        &mut self,
        mut parent: NodeKey,
        pages: impl Iterator<Item = (usize, &'a PageTokens)>,
        table: &mut BlockTable,
        pages_max: usize,
        now: u64,
    ) -> usize {
        let tree = self.tree(table.label());
        let mut published = 0;
        for (place, tokens) in pages {
            let key = tree.key_of(parent, tokens);
            if tree.holds(key) {
                // The walk has counted the first one.
                tree.counts.collisions += u64::from(published > 0);
                break;
            }
            let Ok(page) = table.keep(place) else { break };
            // INVARIANT: the path was used just now and is shorter than the bound, so its end is not what goes.
            tree.shrink(pages_max - 1);
            tree.insert(key, parent, *tokens, page, now);
            parent = key;
            published += 1;
        }
        published
    }

    /// What the walk stumbled over is counted, and goes where it must not be found again.
    fn mend(&mut self, path: &Path) {
        for (domain, broken) in &path.broken {
            let Some(tree) = self.trees.get_mut(domain) else { continue };
            match broken {
                Broken::Collision => tree.counts.collisions += 1,
                Broken::Unfit(key) => tree.withdraw(*key),
            }
        }
    }
}

impl fmt::Debug for PrefixCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pages: usize = self.trees.values().map(Tree::pages).sum();
        write!(f, "PrefixCache({} domains, {pages} pages)", self.trees.len())
    }
}
