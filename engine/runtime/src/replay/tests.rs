//! What nothing else sees, replay does: influences between requests that carry the right labels, tags and tickets. Each is
//! planted under many seeds; without a replay the answer leaves as if nothing were wrong.
//!
//! The model's logits are a function of what was read, so that the answer of a request alone is known.

use super::*;
use crate::compute::tracer::Tracer;
use crate::executor::StepExecutor;
use crate::executor::tests::{CONFIG, label, prompt, sealer};
use crate::fault::Fault;
use crate::machine::Pages as LedgerPages;
use crate::steps::Steps;
use engine_kv::PageFormat;
use policies_domain::{RequestId, TenantId};

const SEEDS: u64 = 64;
const ANSWER: usize = 40;

fn replayer() -> Replaying<Tracer> {
    let pages = LedgerPages { count: CONFIG.pages, first: 0, boot_secret: [9; 32], format: PageFormat::F32, compat: 0 };
    Replaying::new(Machine::new(Tracer::new(CONFIG.pages), pages))
}

fn sampling(seed: u64) -> Sampling {
    Sampling {
        max_tokens: Some(ANSWER),
        temperature: 0.9,
        seed,
        presence_penalty: 0.5,
        frequency_penalty: 0.25,
        digests: true,
        ..Sampling::default()
    }
}

/// Two tenants do not draw the same numbers.
fn seed_of(tenant: u32, seed: u64) -> u64 {
    seed + u64::from(tenant - 1) * 1_000
}

fn asked(tenant: u32, seed: u64) -> AskedPrompt {
    let tokens = prompt(tenant, 20 + (seed % 30) as u32);
    AskedPrompt { tokens, label: label(tenant) }
}

/// Two tenants' requests in one batch.
struct Batch {
    executor: StepExecutor<Tracer>,
    steps: [Steps; 2],
    texts: [String; 2],
    failed: bool,
}

impl Batch {
    /// Both decode.
    fn running(seed: u64) -> Self {
        Self::on(StepExecutor::new(Tracer::new(CONFIG.pages), CONFIG, [1; 32]), seed)
    }

    fn on(mut executor: StepExecutor<Tracer>, seed: u64) -> Self {
        let steps = [1, 2].map(|tenant| {
            let (label, request) = (label(tenant), RequestId::from_bytes([tenant as u8; 16]));
            let prompt = asked(tenant, seed).tokens;
            executor.submit(label, request, prompt, sampling(seed_of(tenant, seed)), sealer(label, request)).unwrap()
        });
        let mut batch = Self { executor, steps, texts: Default::default(), failed: false };
        while batch.texts.iter().any(|text| text.len() < 4) {
            assert!(batch.step());
        }
        batch
    }

    fn step(&mut self) -> bool {
        let found = self.executor.step();
        for (steps, text) in self.steps.iter_mut().zip(&mut self.texts) {
            while let Some(step) = steps.try_next() {
                match step {
                    Ok(step) => *text += step.text.reveal(),
                    Err(_) => self.failed = true,
                }
            }
        }
        found
    }

    /// To the end. What the first tenant's answer was sampled from.
    fn record(mut self) -> (AnswerRecord, String) {
        while self.step() {}
        assert!(!self.failed, "something else has noticed it");
        let [text, _] = self.texts;
        assert_eq!(text.len(), ANSWER, "the whole answer has left");
        (self.steps[0].record().unwrap().clone(), text)
    }
}

fn verdict(seed: u64, answer: AnswerRecord) -> ReplayVerdict {
    let mut replaying = replayer();
    let job = ReplayJob { asked: asked(1, seed), sampling: sampling(seed), answer };
    let verdict = replaying.replay(&job, &mut || true).unwrap();
    let counts = replaying.machine.pool.counts();
    assert!(counts.free == counts.total && replaying.machine.compute.is_scrubbed(), "nothing is left of it");
    verdict
}

/// Found in every run in which it was planted, by replay alone.
fn is_found(plant: impl Fn(&mut Batch)) {
    let mut texts_changed = 0;
    for seed in 0..SEEDS {
        let (clean, clean_text) = Batch::running(seed).record();
        assert_eq!(verdict(seed, clean), ReplayVerdict::Same, "seed {seed}: nothing was planted");
        let mut batch = Batch::running(seed);
        plant(&mut batch);
        let (record, text) = batch.record();
        assert!(matches!(verdict(seed, record), ReplayVerdict::Different { .. }), "seed {seed}");
        texts_changed += u64::from(text != clean_text);
    }
    // What no text shows is found as well.
    assert!(texts_changed <= SEEDS);
}

#[test]
fn an_activation_row_of_another_request_is_found_by_replay_alone() {
    let reader = TenantId::new(1).unwrap();
    is_found(|batch| batch.executor.plant(vec![Fault::SwappedActivations { reader }]));
}

#[test]
fn a_bias_that_comes_from_another_request_is_found_by_replay_alone() {
    let reader = TenantId::new(1).unwrap();
    is_found(|batch| batch.executor.plant(vec![Fault::ForeignBias { reader }]));
}

#[test]
fn a_penalty_table_of_another_request_is_found_by_replay_alone() {
    is_found(|batch| {
        let rows = batch.executor.running();
        let [first, second] = rows.get_disjoint_mut([0, 1]).unwrap();
        let (to, from) = if first.label == label(1) { (first, second) } else { (second, first) };
        let theirs = from.sampler.of(from.ticket).unwrap().clone();
        let ticket = to.ticket;
        to.sampler.of_mut(ticket).unwrap().plant_penalties_of(&theirs);
    });
}

#[test]
fn a_late_write_into_a_page_is_found_by_replay_alone() {
    is_found(|batch| {
        let page = batch.executor.running().iter().find(|row| row.label == label(1)).unwrap().entries()[0].page;
        // Behind the tag, which stays as it was.
        batch.executor.compute().page(page)[64] ^= 1;
    });
}

/// The honest part: where a check of the step loop already sees it, the answer ends there and is not replayed.
#[test]
fn a_row_that_the_tickets_catch_needs_no_replay() {
    let reader = TenantId::new(1).unwrap();
    let mut batch = Batch::running(1);
    batch.executor.plant(vec![Fault::RowOffset { reader, rows: 1, of: 2 }]);
    while batch.step() {}
    assert!(batch.failed && batch.steps[0].record().is_none());
}

#[test]
fn an_answer_is_the_same_however_it_was_computed() {
    let speculating = crate::config::EngineConfig { speculation: true, ..CONFIG };
    let executors: [fn(crate::config::EngineConfig) -> StepExecutor<Tracer>; 2] = [
        |config| StepExecutor::new(Tracer::new(config.pages), config, [1; 32]),
        |config| StepExecutor::new(Tracer::with_habits(config.pages, None), config, [1; 32]),
    ];
    for seed in 0..SEEDS {
        // With guesses, whose wrong ones count for nothing.
        let batch = Batch::on(executors[0](speculating), seed);
        assert_eq!(verdict(seed, batch.record().0), ReplayVerdict::Same);
        // With pages taken away in the middle.
        let mut batch = Batch::on(executors[0](CONFIG), seed);
        assert!(batch.executor.preempt(0));
        assert_eq!(verdict(seed, batch.record().0), ReplayVerdict::Same);
        // And with guesses as without, where much of them is right.
        let [plain, guessed] = [CONFIG, speculating].map(|config| Batch::on(executors[1](config), seed).record());
        assert!(plain == guessed);
    }
}

#[test]
fn an_answer_is_not_taken_for_another_one_s() {
    let (record, _) = Batch::running(3).record();
    let job = |asked: AskedPrompt, sampling: Sampling, answer: AnswerRecord| ReplayJob { asked, sampling, answer };
    let differs = |job: ReplayJob| matches!(replayer().replay(&job, &mut || true), Ok(ReplayVerdict::Different { .. }));
    assert!(!differs(job(asked(1, 3), sampling(3), record.clone())));
    assert!(differs(job(asked(1, 4), sampling(3), record.clone())), "another prompt");
    assert!(differs(job(asked(1, 3), sampling(4), record.clone())), "another seed");
    let warm = Sampling { temperature: 0.8, ..sampling(3) };
    assert!(differs(job(asked(1, 3), warm, record.clone())) || record.tokens.is_empty(), "another temperature");
    let mut other = record.clone();
    other.tokens[7] ^= 1;
    let verdict = replayer().replay(&job(asked(1, 3), sampling(3), other), &mut || true);
    assert_eq!(verdict, Ok(ReplayVerdict::Different { first_difference: Some(7) }));
    let mut other = record.clone();
    other.digest[0] ^= 1;
    let verdict = replayer().replay(&job(asked(1, 3), sampling(3), other), &mut || true);
    assert_eq!(verdict, Ok(ReplayVerdict::Different { first_difference: None }));
    let mut shorter = record;
    shorter.tokens.truncate(30);
    assert!(differs(job(asked(1, 3), sampling(3), shorter)), "the digest is of all of it");
}

#[test]
fn what_is_only_sampled_again_is_the_same_answer() {
    for seed in 0..SEEDS {
        let (record, text) = Batch::running(seed).record();
        let mut replaying = replayer();
        let made = replaying.regenerate(&asked(1, seed), &sampling(seed), ANSWER, &mut |_| true).unwrap();
        assert_eq!((made.digest, made.text, made.ended_early), (record.digest(), text, false));
    }
}

#[test]
fn whoever_drives_it_stops_it_and_nothing_stays() {
    let (record, _) = Batch::running(1).record();
    let mut replaying = replayer();
    let job = ReplayJob { asked: asked(1, 1), sampling: sampling(1), answer: record };
    let mut passes = 0;
    let stopped = replaying.replay(&job, &mut || {
        passes += 1;
        passes < 2
    });
    assert_eq!(stopped, Err(ReplayError::Stopped));
    let counts = replaying.machine.pool.counts();
    assert!(counts.free == counts.total && replaying.machine.compute.is_scrubbed());
    assert_eq!(replaying.replay(&job, &mut || true), Ok(ReplayVerdict::Same), "and it goes on with the next");
    let none = ReplayJob { answer: AnswerRecord { tokens: Vec::new(), digest: [0; 32] }, ..job };
    assert_eq!(replaying.replay(&none, &mut || true), Err(ReplayError::Empty));
    let long = AskedPrompt { tokens: prompt(1, 24 * 16 + 1), label: label(1) };
    let answer = AnswerRecord { tokens: vec![1], digest: [0; 32] };
    let long = ReplayJob { asked: long, sampling: sampling(1), answer };
    assert_eq!(replaying.replay(&long, &mut || true), Err(ReplayError::TooLong { tokens: 385, tokens_max: 384 }));
}

#[test]
fn the_spans_of_a_pass_have_logits_where_tokens_were_sampled() {
    assert_eq!(spans(0..32, 40), Vec::from_iter(std::iter::once(0..32)));
    assert_eq!(spans(32..44, 40), [32..41, 41..42, 42..43, 43..44]);
    assert_eq!(spans(44..46, 40), [44..45, 45..46]);
    assert_eq!(spans(0..41, 40), Vec::from_iter(std::iter::once(0..41)));
    assert_eq!(spans(40..42, 40), [40..41, 41..42]);
}
