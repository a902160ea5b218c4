//! Public defects of prefix caches re-created: each with its fault, a control without it, and a legal look-alike.
//!
//! A shadow remembers of each page who computed it, and for which tokens. It, not the checks, says whether anybody was
//! given what is not its own.

use super::tests::{MANY, Rig, config, tenant};
use super::*;
use crate::fault::CacheFault::{NoTokenComparison, OneTree, ToyHash};
use crate::fault::LedgerFault::ForeignAttach;
use crate::{LedgerFault, OutboundTable};
use policies_domain::PageId;
use proptest::prelude::Rng;
use std::collections::BTreeMap;

/// Who computed a page, and all the tokens up to its end.
type Origin = (Label, Vec<u32>);

/// A cache with its shadow. Pages are never freed here, so that each has one origin.
struct Shadowed {
    rig: Rig,
    origins: BTreeMap<PageId, Origin>,
    tables: Vec<BlockTable>,
}

/// What was given to somebody for whom it is not: computed by another tenant, or for other tokens.
#[derive(Debug, Default, PartialEq)]
struct Given {
    pages: usize,
    foreign: usize,
    wrong: usize,
}

impl Shadowed {
    fn new(cache: &[CacheFault], ledger: &[LedgerFault]) -> Self {
        Self { rig: Rig::with(256, cache, ledger), origins: BTreeMap::new(), tables: Vec::new() }
    }

    /// One request from its lookup to its publication.
    fn serve(&mut self, label: Label, tokens: &[u32], given: &mut Given) -> usize {
        let hit = self.rig.cache.lookup(label, tokens, tokens.len() - 1);
        let (found, table) = (hit.pages(), BlockTable::with_prefix(hit));
        let mut table = self.rig.compute(table, tokens);
        let mut capabilities = Vec::new();
        table.capabilities(0, tokens.len(), &mut capabilities);
        for (place, capability) in capabilities.iter().enumerate() {
            let end = tokens.len().min((place + 1) * PAGE_TOKENS);
            if place >= found {
                self.origins.insert(capability.page(), (label, tokens[..end].to_vec()));
            } else {
                let (by, of) = &self.origins[&capability.page()];
                given.pages += 1;
                given.foreign += usize::from(*by != label);
                given.wrong += usize::from(*of != tokens[..end]);
            }
        }
        self.rig.cache.publish(tokens, &mut table, MANY);
        self.tables.push(table);
        found
    }
}

/// Prompts of two tenants, some of them asked twice.
fn random_prompts(cache: &[CacheFault], ledger: &[LedgerFault]) -> Given {
    let mut shadowed = Shadowed::new(cache, ledger);
    let mut random = proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha);
    let mut given = Given::default();
    for _ in 0..50 {
        let tokens: Vec<u32> = (0..2 * PAGE_TOKENS + 1).map(|_| random.next_u32()).collect();
        let number = 1 + random.next_u32() % 2;
        shadowed.serve(tenant(number), &tokens, &mut given);
        if random.next_u32().is_multiple_of(2) {
            shadowed.serve(tenant(number), &tokens, &mut given);
        }
    }
    given
}

#[test]
fn weak_block_hash() {
    // Fault: keys of eight bits, and whatever they lead to is taken.
    let given = random_prompts(&[ToyHash, NoTokenComparison], &[]);
    assert!(given.wrong > 0, "pages of other tokens were given out: {given:?}");
    assert_eq!(given.foreign, 0, "the trees of two tenants do not meet under the same key either");
    let given = random_prompts(&[OneTree, ToyHash, NoTokenComparison], &[ForeignAttach]);
    assert!(given.foreign > 0, "{given:?}");
    // Tokens are compared: a collision is a miss, whatever the hash.
    let given = random_prompts(&[ToyHash], &[]);
    assert!(given.pages > 0 && given.wrong == 0 && given.foreign == 0, "{given:?}");
    let given = random_prompts(&[OneTree, ToyHash], &[ForeignAttach]);
    assert!(given.pages > 0 && given.wrong == 0 && given.foreign == 0, "{given:?}");
    // Control: the keys alone tell them apart. Twin: the same prompt asked again is found.
    let control = random_prompts(&[NoTokenComparison], &[]);
    assert!(control.pages > 0 && control.wrong == 0 && control.foreign == 0, "{control:?}");
    assert_eq!(random_prompts(&[], &[]), control);
}

/// Pages of a probe that one tenant still has to compute, which is what its first token waits for, after another one
/// has asked for the same, for something else, or for nothing.
fn steps_of_a_probe(cache: &[CacheFault], ledger: &[LedgerFault], history: Option<u32>, probe: u32) -> usize {
    let mut shadowed = Shadowed::new(cache, ledger);
    let prompt = |kind: u32| (0..161).map(|token| kind * 1000 + token).collect::<Vec<u32>>();
    let mut given = Given::default();
    if let Some(kind) = history {
        shadowed.serve(tenant(1), &prompt(kind), &mut given);
    }
    let tokens = prompt(probe);
    tokens.len().div_ceil(PAGE_TOKENS) - shadowed.serve(tenant(2), &tokens, &mut given)
}

#[test]
fn prefix_hit_timing() {
    let histories = [None, Some(1), Some(2)];
    // Fault: the tenant is missing from the key and where pages are attached. A guess of A's prompt is faster for B.
    let seen = histories.map(|history| steps_of_a_probe(&[OneTree], &[ForeignAttach], history, 1));
    assert_eq!(seen, [11, 1, 11]);
    // It is missing from the key alone: the ledger lets nobody hold what does not flow to it.
    let seen = histories.map(|history| steps_of_a_probe(&[OneTree], &[], history, 1));
    assert_eq!(seen, [11, 11, 11]);
    // Control: what B waits for does not depend on what A asked, to the step.
    let seen = histories.map(|history| steps_of_a_probe(&[], &[], history, 1));
    assert_eq!(seen, [11, 11, 11]);
    // Twin: B's own question again is faster.
    let mut shadowed = Shadowed::new(&[], &[]);
    let (tokens, mut given) = ((0..161).collect::<Vec<u32>>(), Given::default());
    let found = [(); 2].map(|()| shadowed.serve(tenant(2), &tokens, &mut given));
    assert_eq!((found, given), ([0, 10], Given { pages: 10, foreign: 0, wrong: 0 }));
}

/// vllm-project/vllm PR 38715: blocks were found before they were written.
#[test]
fn blocks_are_not_registered_before_they_are_written() {
    let mut rig = Rig::new(16);
    let tokens: Vec<u32> = (0..40).collect();
    let mut table = BlockTable::new(&rig.pool, tenant(1));
    table.grow(40, |_| ()).unwrap();
    let step = rig.pool.issue_step();
    table.advance(40).unwrap();
    rig.cache.publish(&tokens, &mut table, MANY);
    assert_eq!(rig.found(tenant(1), &tokens), 0, "its step is under way");
    // The step failed, and the sequence with it: nothing of it is ever found.
    drop(table);
    rig.pool.retire_step(step).unwrap();
    assert_eq!((rig.found(tenant(1), &tokens), rig.cache.pages_of(tenant(1))), (0, 0));
    // Twin: a sequence that goes on while its first pages are read.
    let empty = BlockTable::new(&rig.pool, tenant(1));
    let mut table = rig.compute(empty, &tokens);
    rig.cache.publish(&tokens, &mut table, MANY);
    assert_eq!(rig.found(tenant(1), &tokens), 2);
    rig.agrees(&table);
}

/// vllm-project/vllm PR 37164: a block went to somebody else between the lookup that found it and its use.
#[test]
fn nothing_happens_between_a_lookup_and_its_use() {
    let mut rig = Rig::new(3);
    let tokens: Vec<u32> = (0..33).collect();
    rig.learn(tenant(1), &tokens, MANY);
    let hit = rig.cache.lookup(tenant(1), &tokens, 32);
    // Everything is evicted, and another tenant takes all that there is.
    assert_eq!(rig.cache.evict(tenant(1), 3), 0, "the hit holds it");
    rig.cache.clear(tenant(1));
    rig.pool.reclaim(|_| true);
    let mut greedy = BlockTable::new(&rig.pool, tenant(2));
    assert!(greedy.grow(48, |_| ()).is_err());
    assert_eq!(greedy.pages(), 1);
    let table = BlockTable::with_prefix(hit);
    rig.agrees(&table);
    assert_eq!(table.tokens(), 32);
    // Twin: the hit is not used, and the next one gets the pages scrubbed.
    drop(table);
    assert_eq!(rig.pool.reclaim(|_| true), 2);
    greedy.grow(48, |_| ()).unwrap();
    rig.audit();
}

/// Salts and keys that a caller chooses are the victim's as soon as the caller knows them.
#[test]
fn no_key_is_made_of_what_a_caller_chooses_alone() {
    let mut rig = Rig::new(16);
    let tokens: Vec<u32> = (0..40).collect();
    rig.learn(tenant(1), &tokens, MANY);
    // Who knows the tokens, the tenant, the model and the layout, but not the secret of this start, has none of its keys.
    let guess = PrefixCacheConfig { boot_secret: [0; 32], ..config() };
    let page = tokens.first_chunk().unwrap();
    let key = |config| BootKey::new(config).of_domain(tenant(1), false).node(NodeKey::ROOT, page);
    let tree = &rig.cache.trees[&tenant(1)];
    assert!(tree.holds(key(config())) && !tree.holds(key(guess)));
    // The label comes with the table that holds the pages: nobody publishes for somebody else.
    let mut table = rig.prefill(tenant(2), &tokens);
    rig.cache.publish(&tokens, &mut table, MANY);
    assert_eq!((rig.cache.pages_of(tenant(1)), rig.cache.pages_of(tenant(2))), (2, 2));
    let withdrawn = OutboundTable::offer(table).unwrap().withdraw().unwrap();
    assert_eq!(withdrawn.label(), tenant(2));
}
