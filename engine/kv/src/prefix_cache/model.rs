//! The cache against a naive model: sets of prefixes, walked from end to end for every answer.

use super::tests::{Rig, tenant};
use super::*;
use policies_domain::PageId;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Tables that live at a time; the oldest ends when another one comes.
const READERS_MAX: usize = 4;

/// A prefix as the pages that it consists of, each with whether it is everybody's.
type Prefix = Vec<(bool, u8)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Copy {
    /// Which computation of a page this is. Never used again.
    number: usize,
    public: bool,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    copy: Copy,
    used: usize,
}

#[derive(Default)]
struct Naive {
    domains: BTreeMap<u32, BTreeMap<Prefix, Known>>,
    readers: Vec<Vec<Copy>>,
    copies: usize,
    clock: usize,
}

#[derive(Clone, Debug)]
enum Operation {
    /// Somebody computes a prompt behind what is known of it, or all of it, and perhaps publishes it.
    Compute {
        number: u32,
        prompt: Vec<u8>,
        anew: bool,
        publishes: bool,
        pages_max: usize,
    },
    Evict {
        number: u32,
        pages: usize,
    },
    Clear {
        number: u32,
    },
    /// The oldest reader ends.
    End,
}

fn operation() -> impl Strategy<Value = Operation> {
    let prompt = proptest::collection::vec(0..3u8, 1..5);
    let number = prop_oneof![2 => Just(0u32), 5 => Just(1), 3 => Just(2)];
    let pages_max = prop_oneof![1 => 0..4usize, 3 => 4..12usize];
    let compute = (number.clone(), prompt, any::<bool>(), any::<bool>(), pages_max);
    prop_oneof![
        10 => compute.prop_map(|(number, prompt, anew, publishes, pages_max)| {
            Operation::Compute { number, prompt, anew, publishes, pages_max }
        }),
        2 => (number.clone(), 0..4usize).prop_map(|(number, pages)| Operation::Evict { number, pages }),
        1 => number.prop_map(|number| Operation::Clear { number }),
        3 => Just(Operation::End),
    ]
}

/// 0 is everybody.
fn label(number: u32) -> Label {
    if number == 0 { Label::PUBLIC } else { tenant(number) }
}

fn tokens(prompt: &[u8]) -> Vec<u32> {
    let pages = prompt.iter().flat_map(|page| (0..PAGE_TOKENS as u32).map(|token| u32::from(*page) * 100 + token));
    pages.chain([7, 7, 7]).collect()
}

impl Naive {
    /// The longest prefix that the domain knows: everybody's first, then its own.
    fn walk(&self, number: u32, prompt: &[u8]) -> (Prefix, Vec<Copy>) {
        let (mut prefix, mut copies) = (Prefix::new(), Vec::new());
        for (domain, public) in [(0, true), (number, false)] {
            for page in &prompt[prefix.len()..] {
                let longer: Prefix = prefix.iter().copied().chain([(public, *page)]).collect();
                let Some(known) = self.domains.get(&domain).and_then(|known| known.get(&longer)) else { break };
                prefix = longer;
                copies.push(known.copy);
            }
        }
        (prefix, copies)
    }

    fn touch(&mut self, number: u32, path: &Prefix) {
        self.clock += 1;
        for end in 1..=path.len() {
            let domain = if path[end - 1].0 { 0 } else { number };
            self.domains.get_mut(&domain).unwrap().get_mut(&path[..end]).unwrap().used = self.clock;
        }
    }

    /// The copies that a new table reads.
    fn compute(&mut self, number: u32, prompt: &[u8], anew: bool) -> Vec<Copy> {
        let mut copies = Vec::new();
        if !anew {
            let (path, known) = self.walk(number, prompt);
            self.touch(number, &path);
            copies = known;
        }
        while copies.len() < prompt.len() {
            self.copies += 1;
            copies.push(Copy { number: self.copies, public: number == 0 });
        }
        copies
    }

    fn publish(&mut self, number: u32, prompt: &[u8], copies: &[Copy], pages_max: usize) -> usize {
        self.shrink(number, pages_max);
        let (mut path, _) = self.walk(number, prompt);
        self.touch(number, &path);
        let mut published = 0;
        for place in path.len()..prompt.len() {
            let own = path.iter().filter(|(public, _)| *public == (number == 0)).count();
            if own >= pages_max || (copies[place].public && number != 0) {
                break;
            }
            self.shrink(number, pages_max - 1);
            path.push((number == 0, prompt[place]));
            let known = Known { copy: copies[place], used: self.clock };
            self.domains.entry(number).or_default().insert(path.clone(), known);
            published += 1;
        }
        published
    }

    /// The prefix that nothing goes on from and that was not used for the longest time goes.
    fn evict(&mut self, number: u32) -> Option<Copy> {
        let known = self.domains.get_mut(&number)?;
        let is_leaf = |prefix: &Prefix| known.keys().all(|other| other[..other.len() - 1] != prefix[..]);
        let oldest = known.iter().filter(|(prefix, _)| is_leaf(prefix)).min_by_key(|(_, known)| known.used)?;
        let prefix = oldest.0.clone();
        known.remove(&prefix).map(|known| known.copy)
    }

    fn shrink(&mut self, number: u32, pages_max: usize) {
        while self.pages(number) > pages_max {
            self.evict(number);
        }
    }

    fn evict_pages(&mut self, number: u32, pages: usize) -> usize {
        let mut freed = 0;
        while freed < pages && self.alone(number) > 0 {
            let copy = self.evict(number).unwrap();
            freed += usize::from(!self.is_read(copy));
        }
        freed
    }

    fn pages(&self, number: u32) -> usize {
        self.domains.get(&number).map_or(0, BTreeMap::len)
    }

    fn is_read(&self, copy: Copy) -> bool {
        self.readers.iter().flatten().any(|read| *read == copy)
    }

    fn alone(&self, number: u32) -> usize {
        let known = self.domains.get(&number).into_iter().flatten();
        known.filter(|(_, known)| !self.is_read(known.copy)).count()
    }

    /// Pages of a domain that somebody holds, but for the half page at the end of each table. The tables are in the order
    /// of the readers.
    fn held(&self, number: u32, tables: &[BlockTable]) -> usize {
        let known = self.domains.get(&number).into_iter().flatten().map(|(_, known)| known.copy);
        let read = self.readers.iter().zip(tables).filter(|(_, table)| number == 0 || table.label() == label(number));
        let all = known.chain(read.flat_map(|(copies, _)| copies.iter().copied()));
        let own = all.filter(|copy| copy.public == (number == 0)).map(|copy| copy.number);
        own.collect::<BTreeSet<usize>>().len()
    }
}

struct Pair {
    rig: Rig,
    naive: Naive,
    tables: Vec<BlockTable>,
    /// Where each computation of a page lies.
    pages: BTreeMap<usize, PageId>,
}

impl Pair {
    fn apply(&mut self, operation: Operation) {
        let Self { rig, naive, .. } = self;
        match operation {
            Operation::Compute { number, prompt, anew, publishes, pages_max } => {
                self.compute(number, &prompt, anew, publishes.then_some(pages_max));
            }
            Operation::Evict { number, pages } => {
                assert_eq!(rig.cache.evict(label(number), pages), naive.evict_pages(number, pages));
            }
            Operation::Clear { number } => {
                assert_eq!(rig.cache.clear(label(number)), naive.pages(number));
                naive.domains.remove(&number);
            }
            Operation::End => self.end(),
        }
        self.compare();
    }

    fn compute(&mut self, number: u32, prompt: &[u8], anew: bool, publishes: Option<usize>) {
        let Self { rig, naive, tables, pages } = self;
        let tokens = tokens(prompt);
        let empty = match number {
            0 => BlockTable::new_public(&rig.pool),
            number => BlockTable::new(&rig.pool, tenant(number)),
        };
        // Nobody goes on from a hit of everybody's but a tenant.
        let anew = anew || number == 0;
        let mut table = match anew {
            true => rig.compute(empty, &tokens),
            false => rig.prefill(tenant(number), &tokens),
        };
        let copies = naive.compute(number, prompt, anew);
        let mut capabilities = Vec::new();
        table.capabilities(0, prompt.len() * PAGE_TOKENS, &mut capabilities);
        for (copy, capability) in copies.iter().zip(&capabilities) {
            let page = *pages.entry(copy.number).or_insert(capability.page());
            assert_eq!(page, capability.page(), "another computation than the one that was published");
        }
        naive.readers.push(copies.clone());
        if let Some(pages_max) = publishes {
            let published = rig.cache.publish(&tokens, &mut table, pages_max);
            assert_eq!(published, naive.publish(number, prompt, &copies, pages_max));
        }
        rig.agrees(&table);
        tables.push(table);
        if tables.len() > READERS_MAX {
            self.end();
        }
    }

    fn end(&mut self) {
        if !self.tables.is_empty() {
            self.tables.remove(0);
            self.naive.readers.remove(0);
        }
    }

    fn compare(&mut self) {
        let Self { rig, naive, tables, .. } = self;
        rig.pool.reclaim(|_| true);
        rig.audit();
        for number in 0..3 {
            let label = label(number);
            assert_eq!(rig.cache.pages_of(label), naive.pages(number), "{label}");
            assert_eq!(rig.cache.cached_alone(label), naive.alone(number), "{label}");
            let tails = tables.iter().filter(|table| table.label() == label).count();
            assert_eq!(rig.pool.held_by(label), naive.held(number, tables) + tails, "{label}");
            for prompt in [[0, 1, 2, 0], [1, 1, 0, 2], [2, 0, 1, 1], [0, 0, 0, 0]] {
                let known = naive.walk(number, &prompt).0.len() * PAGE_TOKENS;
                assert_eq!(rig.cache.peek(label, &tokens(&prompt), usize::MAX).tokens(), known, "{label}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// What is found is what was published, by this domain or for everybody, and nothing else moves.
    #[test]
    fn the_trees_and_sets_of_prefixes_agree(operations in proptest::collection::vec(operation(), 1..60)) {
        let (rig, naive) = (Rig::new(96), Naive::default());
        let mut pair = Pair { rig, naive, tables: Vec::new(), pages: BTreeMap::new() };
        for operation in operations {
            pair.apply(operation);
        }
    }
}
