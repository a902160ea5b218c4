//! Prefixes that are everybody's: nothing but a declaration makes one, and no tenant's load takes one away.

use super::tests::{CONFIG, label, prompt, sealer};
use super::*;
use crate::compute::tracer::Tracer;
use crate::split::SplitExecutor;
use crate::steps::Usage;
use engine_scheduler::TenantTerms;

/// With a cache, and room for guarantees; what gives way is kept outside.
const CACHED: EngineConfig = EngineConfig { prefix_cache: true, swap_mib: 1, pages: 40, ..CONFIG };
const DECLARED: u32 = 32;

enum Rig {
    Whole(Box<StepExecutor<Tracer>>),
    Split(Box<SplitExecutor<Tracer>>),
}

struct Answer {
    text: String,
    usage: Usage,
    /// Whose pages its steps named.
    read: Vec<Label>,
}

impl Rig {
    /// In one group, in two that share a pool, in two with a pool each.
    fn all(config: EngineConfig) -> [Self; 3] {
        let terms = |tenant| (label(tenant), TenantTerms::default());
        let tenancy = Tenancy::new([1, 2].map(terms)).unwrap();
        let tracer = || Tracer::new(config.pages);
        let split = |of_prefill| SplitExecutor::new(tracer(), of_prefill, config, [1; 32]).for_tenants(&tenancy);
        [
            Self::Whole(Box::new(StepExecutor::new(tracer(), config, [1; 32]).for_tenants(&tenancy))),
            Self::Split(Box::new(split(None))),
            Self::Split(Box::new(split(Some(tracer())))),
        ]
    }

    fn declare(&mut self, tokens: &[u32]) {
        match self {
            Self::Whole(executor) => executor.declare(tokens),
            Self::Split(executor) => executor.declare(tokens),
        }
        .unwrap();
    }

    fn submit(&mut self, tenant: u32, number: u8, prompt: &[u32], answer: usize) -> Steps {
        let sampling = Sampling { max_tokens: Some(answer), temperature: 0.0, ..Sampling::default() };
        let (label, request) = (label(tenant), RequestId::from_bytes([number; 16]));
        let (prompt, sealer) = (prompt.to_vec(), sealer(label, request));
        match self {
            Self::Whole(executor) => executor.submit(label, request, prompt, sampling, sealer),
            Self::Split(executor) => executor.submit(label, request, prompt, sampling, sealer),
        }
        .unwrap()
    }

    fn step(&mut self) -> bool {
        match self {
            Self::Whole(executor) => executor.step(),
            Self::Split(executor) => executor.step(),
        }
    }

    /// Until all of them are over.
    fn run(&mut self, mut all: Vec<Steps>) -> Vec<Answer> {
        let mut over: Vec<Option<Answer>> = all.iter().map(|_| None).collect();
        let mut said = vec![(String::new(), Vec::new()); all.len()];
        for _ in 0..20_000 {
            let found = self.step();
            for (number, steps) in all.iter_mut().enumerate() {
                while let Some(step) = steps.try_next() {
                    let step = step.unwrap();
                    said[number].0 += step.text.reveal();
                    said[number].1.extend(step.trace.pages.iter().map(|page| page.label));
                    if step.finish.is_some() {
                        let (text, read) = said[number].clone();
                        over[number] = Some(Answer { text, read, usage: steps.usage() });
                    }
                }
            }
            if over.iter().all(Option::is_some) {
                return over.into_iter().flatten().collect();
            }
            if let (false, Self::Split(executor)) = (found, &mut *self) {
                executor.pass(std::time::Duration::from_millis(1100));
            }
        }
        panic!("it does not end");
    }

    fn ask(&mut self, tenant: u32, number: u8, prompt: &[u32], answer: usize) -> Answer {
        let steps = self.submit(tenant, number, prompt, answer);
        self.run(vec![steps]).pop().unwrap()
    }

    /// Pages that are everybody's, in all pools.
    fn public(&self) -> usize {
        match self {
            Self::Whole(executor) => executor.pool().held_by(Label::PUBLIC),
            Self::Split(executor) => {
                let (pool, of_prefill) = executor.pools();
                pool.held_by(Label::PUBLIC) + of_prefill.map_or(0, |pool| pool.held_by(Label::PUBLIC))
            }
        }
    }
}

/// The declared prefix, and something behind it.
fn behind(own: u32, tokens: u32) -> Vec<u32> {
    [prompt(9, DECLARED), prompt(own, tokens)].concat()
}

#[test]
fn every_tenant_finds_what_was_declared_and_what_follows_is_its_own() {
    for (kind, mut rig) in Rig::all(CACHED).into_iter().enumerate() {
        rig.declare(&prompt(9, DECLARED));
        assert_eq!(rig.public(), 2);
        let asked = behind(3, 30);
        for (number, tenant) in [1, 2].into_iter().enumerate() {
            let answer = rig.ask(tenant, number as u8, &asked, 12);
            assert_eq!(answer.text, Tracer::answer(&asked, 12), "kind {kind}");
            assert_eq!(answer.usage.cached_tokens, 32, "kind {kind}: what the other one said behind it is not found");
            assert!(answer.read.iter().all(|read| *read == Label::PUBLIC || *read == label(tenant)), "kind {kind}");
        }
        let again = rig.ask(1, 3, &asked, 12);
        assert_eq!((again.text, again.usage.cached_tokens), (Tracer::answer(&asked, 12), 48), "its own goes on there");
        assert_eq!(rig.public(), 2, "and nothing became everybody's");
    }
}

#[test]
fn nothing_but_a_declaration_makes_a_page_everybodys() {
    for (kind, mut rig) in Rig::all(CACHED).into_iter().enumerate() {
        let asked = behind(3, 30);
        for number in 0..6 {
            let answer = rig.ask(1 + u32::from(number % 2), number, &asked, 4);
            let own = if number < 2 { 0 } else { 48 };
            assert_eq!(answer.usage.cached_tokens, own, "kind {kind}: what two tenants say alike is each one's own");
            assert!(answer.read.iter().all(|read| *read == label(1 + u32::from(number % 2))), "kind {kind}");
        }
        assert_eq!(rig.public(), 0, "kind {kind}");
    }
}

#[test]
fn no_load_takes_away_what_is_everybodys() {
    for swap_mib in [0, 1] {
        for (kind, mut rig) in Rig::all(EngineConfig { swap_mib, ..CACHED }).into_iter().enumerate() {
            rig.declare(&prompt(9, DECLARED));
            // Together they need far more pages than there are, half of them behind the prefix.
            let prompts: Vec<Vec<u32>> = (0..6)
                .map(|number| if number % 2 == 0 { behind(20 + number, 150) } else { prompt(20 + number, 180) })
                .collect();
            let all = prompts.iter().zip(0..).map(|(asked, number)| rig.submit(1, number, asked, 60)).collect();
            for (answer, asked) in rig.run(all).iter().zip(&prompts) {
                assert_eq!(answer.text, Tracer::answer(asked, 60), "kind {kind}");
            }
            assert_eq!(rig.public(), 2, "kind {kind}");
            // As large as the pool allows beside it.
            let large = prompt(50, 16 * 38 - 3);
            assert_eq!(rig.ask(1, 7, &large, 2).text, Tracer::answer(&large, 2));
            assert_eq!(rig.public(), 2, "kind {kind}");
            let asked = behind(3, 30);
            assert_eq!(rig.ask(2, 8, &asked, 4).usage.cached_tokens, 32, "kind {kind}: the other tenant sees nothing");
        }
    }
}

#[test]
fn what_can_never_fit_beside_it_fails_and_does_not_wait() {
    for (kind, mut rig) in Rig::all(CACHED).into_iter().enumerate() {
        rig.declare(&prompt(9, DECLARED));
        let mut steps = rig.submit(1, 1, &prompt(50, 16 * 39 + 2), 2);
        let error = (0..5_000).find_map(|_| {
            if let (false, Rig::Split(executor)) = (rig.step(), &mut rig) {
                executor.pass(std::time::Duration::from_millis(1100));
            }
            std::iter::from_fn(|| steps.try_next()).find_map(Result::err)
        });
        let whole_pool_is_its_own = kind == 2 && error.is_none();
        assert!(
            error == Some(crate::steps::StepError::PoolExhausted) && !whole_pool_is_its_own,
            "kind {kind}: {error:?}"
        );
    }
}

#[test]
fn what_is_everybodys_keeps_no_page_of_ones_own_cache_back() {
    let [Rig::Whole(mut executor), ..] = Rig::all(CACHED) else { panic!("the first one is in one group") };
    executor.declare(&prompt(9, DECLARED)).unwrap();
    let mut rig = Rig::Whole(executor);
    rig.ask(1, 1, &prompt(3, 70), 1);
    let mut all = vec![rig.submit(2, 2, &prompt(4, 200), 8)];
    (0..8).for_each(|_| assert!(rig.step()));
    // Two pages are everybody's, four its tenant's, 13 of 40 in use. Behind the prefix it needs 23, the other one another.
    all.push(rig.submit(1, 3, &behind(5, 367), 1));
    assert!(rig.step());
    let Rig::Whole(executor) = &rig else { return };
    assert_eq!((executor.stepper.running.len(), executor.stepper.waiting.len()), (2, 0));
    rig.run(all);
}
