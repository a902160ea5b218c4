//! Guesses decide how many tokens a step brings, and nothing else.

use super::tests::{CONFIG, label, sealer};
use super::*;
use crate::compute::tracer::Tracer;
use crate::running::Running;
use crate::steps::{StepError, Usage};
use engine_scheduler::{Tenancy, TenantTerms};
use policies_domain::FinishReason;
use proptest::prelude::*;
use std::sync::atomic::Ordering;

const GUESSING: EngineConfig = EngineConfig { speculation: true, ..CONFIG };

/// One request.
#[derive(Clone, Copy, Debug)]
struct Asked {
    tenant: u32,
    prompt: usize,
    answer: usize,
    sampling: usize,
}

/// What came of it.
#[derive(Debug, Default, PartialEq)]
struct Told {
    text: String,
    tokens: u32,
    finish: Option<FinishReason>,
    usage: Usage,
    error: Option<StepError>,
}

struct Run {
    executor: StepExecutor<Tracer>,
    open: Vec<Steps>,
    told: Vec<Told>,
    /// Tokens that each step of each request brought.
    brought: Vec<Vec<u32>>,
}

fn sampling(kind: usize, answer: usize) -> Sampling {
    let plain = Sampling { max_tokens: Some(answer), temperature: 0.0, seed: kind as u64, ..Sampling::default() };
    match kind % 7 {
        1 => Sampling { temperature: 1.0, ..plain },
        2 => Sampling { temperature: 2.5, top_p: 0.9, ..plain },
        3 => Sampling { repetition_penalty: 1.5, presence_penalty: 1.0, ..plain },
        4 => Sampling { temperature: 1.5, top_k: 5, min_p: 0.01, frequency_penalty: 0.7, ..plain },
        5 => Sampling { stop: vec!["abcd".into(), "da".into()], ..plain },
        6 => Sampling { temperature: 1.0, stop: vec!["cb".into()], ..plain },
        _ => plain,
    }
}

impl Run {
    fn new(config: EngineConfig, breaks_at: Option<usize>) -> Self {
        let executor = StepExecutor::new(Tracer::with_habits(config.pages, breaks_at), config, [1; 32]);
        Self { executor, open: Vec::new(), told: Vec::new(), brought: Vec::new() }
    }

    fn ask(&mut self, asked: Asked) {
        let Asked { tenant, prompt, answer, sampling: kind } = asked;
        let prompt = (0..prompt as u32).map(|token| token * (tenant + 2) % 7).collect();
        self.submit(tenant, prompt, sampling(kind, answer));
    }

    fn submit(&mut self, tenant: u32, prompt: Vec<u32>, sampling: Sampling) {
        let (label, request) = (label(tenant), RequestId::from_bytes([self.open.len() as u8 + 1; 16]));
        self.open.push(self.executor.submit(label, request, prompt, sampling, sealer(label, request)).unwrap());
        self.told.push(Told::default());
        self.brought.push(Vec::new());
    }

    fn step(&mut self) -> bool {
        let goes_on = self.executor.step();
        for ((steps, told), brought) in self.open.iter_mut().zip(&mut self.told).zip(&mut self.brought) {
            while let Some(step) = steps.try_next() {
                match step {
                    Ok(step) => {
                        told.text += step.text.reveal();
                        told.tokens += step.tokens;
                        told.finish = step.finish;
                        brought.push(step.tokens);
                    }
                    Err(error) => told.error = Some(error),
                }
            }
            told.usage = steps.usage();
        }
        goes_on
    }

    /// To the end; whatever is done meanwhile is done between two steps.
    fn finish(mut self, acts: &[usize]) -> Self {
        let mut acts = acts.iter();
        for _ in 0..2_000 {
            match acts.next() {
                Some(0) => drop(self.executor.preempt(0)),
                Some(1) => drop(self.executor.preempt(1)),
                Some(2) => drop(self.executor.evict()),
                _ => (),
            }
            if !self.step() && acts.len() == 0 {
                break;
            }
        }
        assert!(self.executor.pool().counts().free == CONFIG.pages && self.executor.compute().is_scrubbed());
        self
    }

    fn guesses(&self) -> [u64; 2] {
        let counters = &self.executor.stepper.counters;
        [&counters.guessed, &counters.accepted].map(|count| count.load(Ordering::Relaxed))
    }

    fn has_single_steps(&self) -> bool {
        self.brought.iter().flatten().all(|tokens| *tokens <= 1)
    }
}

fn run(config: EngineConfig, breaks_at: Option<usize>, all: &[Asked], acts: &[usize]) -> Run {
    let mut run = Run::new(config, breaks_at);
    all.iter().for_each(|asked| run.ask(*asked));
    run.finish(acts)
}

#[test]
fn guesses_save_steps_and_wrong_ones_are_not_said() {
    let asked = Asked { tenant: 1, prompt: 20, answer: 200, sampling: 0 };
    let [plain, guessing] = [CONFIG, GUESSING].map(|config| run(config, None, &[asked], &[]));
    assert_eq!(guessing.told, plain.told);
    assert_eq!((guessing.told[0].tokens, guessing.told[0].finish), (200, Some(FinishReason::Length)));
    assert!(plain.has_single_steps() && plain.guesses() == [0, 0]);
    let [guessed, accepted] = guessing.guesses();
    assert!(50 < accepted && accepted < guessed, "{accepted} of {guessed} were right");
    let steps = guessing.brought[0].iter().filter(|tokens| **tokens > 0).count() as u64;
    assert_eq!(steps + accepted, 200, "each right guess saves a step");
    assert!(guessing.brought[0].iter().any(|tokens| *tokens as usize > PAGE_TOKENS / 4));
}

#[test]
fn who_asked_for_none_gets_no_guesses() {
    let asked = [1, 2].map(|tenant| Asked { tenant, prompt: 20, answer: 60, sampling: 0 });
    let of = |terms: Option<TenantTerms>| {
        let mut run = Run::new(GUESSING, None);
        let terms = terms.map(|terms| (label(1), terms));
        run.executor.stepper = run.executor.stepper.for_tenants(&Tenancy::new(terms).unwrap());
        asked.iter().for_each(|asked| run.ask(*asked));
        let run = run.finish(&[]);
        // The most that a step brought.
        [0, 1].map(|request: usize| run.brought[request].iter().copied().max().unwrap_or_default())
    };
    let plain = TenantTerms::default();
    for terms in [TenantTerms { speculates: false, ..plain }, TenantTerms { exclusive: true, ..plain }] {
        let [quiet, other] = of(Some(terms));
        assert!(quiet == 1 && other > 1, "{terms:?}");
    }
    // Control.
    assert!(of(None).into_iter().all(|most| most > 1));
}

#[test]
fn whoever_had_more_than_its_share_gets_none_while_others_wait() {
    let asked = |tenant| Asked { tenant, prompt: 20, answer: 330, sampling: 0 };
    // With one slot, and one that asks for it while the other has it.
    let brought = |waits: bool| {
        let mut run = Run::new(EngineConfig { sequences_max: 1, ..GUESSING }, None);
        run.ask(asked(1));
        run.step();
        if waits {
            run.ask(asked(2));
        }
        run.finish(&[]).brought.remove(0)
    };
    let several = |brought: &[u32]| brought.iter().filter(|tokens| **tokens > 1).count();
    let (alone, beside) = (brought(false), brought(true));
    let last = |brought: &[u32]| several(&brought[brought.len() - 10..]);
    assert!(last(&alone) > 5, "{alone:?}");
    assert!(
        several(&beside) > 5 && last(&beside) == 0,
        "a quarter of a second with guesses, and none after it: {beside:?}"
    );
}

#[test]
fn nobody_s_words_are_guessed_for_another() {
    // After any two letters, each prompt has a token that only its tenant has. What one gets guessed would be the other's if
    // phrases were looked up together, because both say the same letters.
    let mark = |tenant: u32, number: u32| tenant * 1_000 + number;
    let prompt =
        |tenant: u32| -> Vec<u32> { (0..16u32).flat_map(|pair| [pair / 4, pair % 4, mark(tenant, pair)]).collect() };
    let mut run = Run::new(GUESSING, None);
    for tenant in [1, 2] {
        run.submit(tenant, prompt(tenant), sampling(0, 100));
    }
    let mut run = run.finish(&[]);
    assert!(run.told.iter().all(|told| told.tokens == 100) && run.guesses()[0] > 0);
    let computed = std::mem::take(&mut run.executor.compute().computed);
    let tenants = |ticket: u64| computed.iter().filter(move |(of, ..)| *of == ticket).map(|(.., token)| token / 1_000);
    let tickets: std::collections::BTreeSet<u64> = computed.iter().map(|(ticket, ..)| *ticket).collect();
    assert_eq!(tickets.len(), 2);
    for ticket in tickets {
        let mut of: Vec<u32> = tenants(ticket).filter(|tenant| *tenant > 0).collect();
        let decoded = of.len();
        of.dedup();
        assert!(of.len() == 1 && decoded > 16, "marks of {of:?}, {decoded} of them: guesses, too, are of its own");
    }
}

#[test]
fn what_was_said_before_a_broken_number_leaves_and_nothing_after_it() {
    let asked = Asked { tenant: 1, prompt: 20, answer: 100, sampling: 0 };
    let mut in_the_middle = 0;
    for breaks_at in 25..90 {
        let [plain, guessing] = [CONFIG, GUESSING].map(|config| run(config, Some(breaks_at), &[asked], &[]));
        assert_eq!(plain.told[0].error, Some(StepError::NotANumber));
        assert_eq!((plain.told[0].tokens, plain.told[0].finish), (breaks_at as u32 - 20, None));
        assert_eq!(guessing.told, plain.told, "at {breaks_at}");
        in_the_middle += usize::from(guessing.brought[0].last() > Some(&1));
    }
    assert!(in_the_middle > 5);
}

#[test]
fn a_page_is_taken_for_a_guess_only_when_everybody_could_take_one() {
    let pages = |sequences_max| {
        let mut run = Run::new(EngineConfig { sequences_max, ..GUESSING }, None);
        run.submit(1, vec![0; 20], Sampling { temperature: 2.0, ..sampling(0, 200) });
        let mut spare = 0;
        while run.step() {
            let request = run.executor.stepper.running.first();
            let of = |request: &Running| request.pages() - request.computed.div_ceil(PAGE_TOKENS);
            spare = spare.max(request.map_or(0, of));
        }
        (spare, run.told.remove(0).tokens)
    };
    assert_eq!(pages(4), (1, 200), "a page more than its tokens need");
    assert_eq!(pages(CONFIG.pages), (0, 200), "and none where pages are short");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Whoever comes and gives way: each answer, its end and its counts are those of plain decoding.
    #[test]
    fn an_answer_with_guesses_is_the_plain_one(
        all in prop::collection::vec((1u32..4, 1usize..60, 1usize..90, 0usize..70), 1..6),
        acts in prop::collection::vec(0usize..12, 0..60),
        breaks_at in prop::option::weighted(0.2, 20usize..120),
    ) {
        let all: Vec<Asked> = all
            .into_iter()
            .map(|(tenant, prompt, answer, sampling)| Asked { tenant, prompt, answer, sampling })
            .collect();
        let guessing = run(GUESSING, breaks_at, &all, &acts);
        for (asked, told) in all.iter().zip(&guessing.told) {
            let alone = run(CONFIG, breaks_at, &[*asked], &[]);
            prop_assert_eq!(told, &alone.told[0], "{:?}", asked);
        }
    }
}
