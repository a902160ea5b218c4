//! Public defects of batch rows re-created: a record of one request stands in the place of another's. Each with its fault,
//! a control without it, and a legal look-alike.
//!
//! The model's answer is a function of the tokens that it read, and each request has its own: what a request gets alone
//! says what it may get in company. That, not the tickets, decides whether anything leaked.

use super::tests::{CONFIG, label, prompt, sealer};
use super::*;
use crate::compute::tracer::Tracer;
use crate::running::Running;
use crate::steps::StepError;
use policies_domain::TenantId;
use proptest::prelude::*;
use std::mem::swap;

/// Three requests. The first and the second are one tenant's; the first has penalties and a seed of its own.
const REQUESTS: [(u8, u32); 3] = [(1, 1), (2, 1), (3, 2)];
const ANSWER: usize = 24;

struct Batch {
    executor: StepExecutor<Tracer>,
    steps: Vec<Steps>,
    texts: Vec<String>,
    errors: Vec<Option<StepError>>,
}

fn sampling(request: u8, answer: usize) -> Sampling {
    let plain = Sampling { max_tokens: Some(answer), temperature: 0.0, ..Sampling::default() };
    match request {
        1 => Sampling { temperature: 0.8, seed: 7, presence_penalty: 2.0, frequency_penalty: 0.5, ..plain },
        2 => Sampling { stop: vec!["qqqq".into()], ..plain },
        _ => plain,
    }
}

fn submit(executor: &mut StepExecutor<Tracer>, request: u8, tenant: u32, answer: usize) -> Steps {
    let (label, id) = (label(tenant), RequestId::from_bytes([request; 16]));
    let prompt = prompt(request.into(), 20);
    executor.submit(label, id, prompt, sampling(request, answer), sealer(label, id)).unwrap()
}

impl Batch {
    /// All of them decode, and have said something.
    fn running() -> Self {
        let mut executor = StepExecutor::new(Tracer::new(CONFIG.pages), CONFIG, [1; 32]);
        let steps = REQUESTS.map(|(request, tenant)| submit(&mut executor, request, tenant, ANSWER)).into();
        let mut batch = Self { executor, steps, texts: vec![String::new(); 3], errors: vec![None; 3] };
        while batch.texts.iter().any(String::is_empty) {
            batch.step();
        }
        // They were admitted in another order; whole requests may change places.
        batch.executor.stepper.running.sort_by_key(|request| request.request);
        batch
    }

    fn step(&mut self) -> bool {
        let goes_on = self.executor.step();
        for (number, steps) in self.steps.iter_mut().enumerate() {
            while let Some(step) = steps.try_next() {
                match step {
                    Ok(step) => self.texts[number] += step.text.reveal(),
                    Err(error) => self.errors[number] = Some(error),
                }
            }
        }
        goes_on
    }

    fn rows(&mut self) -> &mut [Running] {
        let running = &mut self.executor.stepper.running;
        assert_eq!(running.len(), 3, "one is at its end already");
        running
    }

    fn two_rows(&mut self, a: usize, b: usize) -> (&mut Running, &mut Running) {
        let [a, b] = self.rows().get_disjoint_mut([a, b]).unwrap();
        (a, b)
    }

    /// Until nobody goes on: who was stopped got nothing after `texts`, and everybody else has the whole answer.
    fn check(mut self, stopped: &[usize]) {
        let before = self.texts.clone();
        while self.step() {}
        for (number, (request, tenant)) in REQUESTS.into_iter().enumerate() {
            if stopped.contains(&number) {
                assert_eq!(self.errors[number], Some(StepError::RowBinding), "request {request}");
                assert_eq!(self.texts[number], before[number], "request {request} got what was not its own");
            } else {
                assert_eq!(self.errors[number], None, "request {request}");
                assert_eq!(self.texts[number], alone(request, tenant), "request {request}");
            }
        }
    }
}

fn alone(request: u8, tenant: u32) -> String {
    let mut executor = StepExecutor::new(Tracer::new(CONFIG.pages), CONFIG, [1; 32]);
    let (mut steps, mut text) = (submit(&mut executor, request, tenant, ANSWER), String::new());
    while executor.step() {
        while let Some(step) = steps.try_next() {
            text += step.unwrap().text.reveal();
        }
    }
    text
}

#[test]
fn recycled_row_keeps_mask() {
    // Fault: the second request is in a row whose sampler was moved there from the first and never reset.
    let mut batch = Batch::running();
    let (first, second) = batch.two_rows(0, 1);
    second.sampler = first.sampler.clone();
    batch.check(&[1]);
    // Control.
    Batch::running().check(&[]);
    // Twin: pages are taken away, and the request is admitted again with all its records.
    let mut batch = Batch::running();
    let (stepper, machine) = (&mut batch.executor.stepper, &mut batch.executor.machine);
    stepper.preempt(machine, 0);
    batch.check(&[]);
}

#[test]
fn mask_rows_misaligned() {
    // Fault: samplers are in another order than their requests.
    let mut batch = Batch::running();
    let (first, second) = batch.two_rows(0, 1);
    swap(&mut first.sampler, &mut second.sampler);
    let (second, third) = batch.two_rows(1, 2);
    swap(&mut second.sampler, &mut third.sampler);
    batch.check(&[0, 1, 2]);
    // Twin: whole requests in another order, each with all its own.
    let mut batch = Batch::running();
    batch.rows().rotate_left(1);
    batch.check(&[]);
}

#[test]
fn index_wraps_to_neighbour() {
    // Fault: the index of a row is taken modulo the rows that there were before the last one joined.
    let batch = Batch::running();
    let reader = TenantId::new(2).unwrap();
    batch.executor.plant(vec![Fault::RowOffset { reader, rows: 0, of: 2 }]);
    batch.check(&[2]);
    // Twin: modulo as many rows as there are.
    let mut batch = Batch::running();
    batch.executor.plant(vec![Fault::RowOffset { reader, rows: 3, of: 3 }]);
    while batch.errors.iter().all(Option::is_none) && batch.texts[0].len() < 12 {
        batch.step();
    }
    assert_eq!(batch.errors, [None; 3]);
}

#[test]
fn neighbour_rows_in_stride() {
    // Fault: each reads the row of the one behind, as with another number of rows for each request; beyond the end, too.
    for of in [3, 100] {
        let batch = Batch::running();
        let reader = TenantId::new(2).unwrap();
        batch.executor.plant(vec![Fault::RowOffset { reader, rows: 1, of }]);
        batch.check(&[2]);
        let batch = Batch::running();
        let reader = TenantId::new(1).unwrap();
        batch.executor.plant(vec![Fault::RowOffset { reader, rows: 1, of }]);
        batch.check(&[0, 1]);
    }
}

#[test]
fn shared_parser_or_event_hub() {
    // Fault: one detokenizer, with what it holds back, for two streams.
    let mut batch = Batch::running();
    let (first, second) = batch.two_rows(0, 1);
    swap(&mut first.detokenizer, &mut second.detokenizer);
    batch.check(&[0, 1]);
    // Control and twin: two of one tenant at the same time, each with its own.
    Batch::running().check(&[]);
}

#[test]
fn pages_of_the_same_tenant_s_other_request_are_not_read() {
    // Tags, labels and the custody log agree: the block table is a whole one, and its owner may be read by the reader.
    let mut batch = Batch::running();
    let (first, second) = batch.two_rows(0, 1);
    swap(&mut first.block_table, &mut second.block_table);
    batch.check(&[0, 1]);
}

#[test]
fn guesses_are_made_from_one_s_own_record() {
    let mut batch = Batch::running();
    let (first, second) = batch.two_rows(0, 1);
    swap(&mut first.draft, &mut second.draft);
    batch.check(&[0, 1]);
}

#[test]
fn text_does_not_go_out_another_s_way() {
    let mut batch = Batch::running();
    let (first, second) = batch.two_rows(0, 1);
    swap(&mut first.outlet, &mut second.outlet);
    batch.check(&[0, 1]);
}

#[test]
fn a_record_that_is_not_its_own_is_not_admitted_again() {
    // The faults above while nobody runs: the new ticket must not bless what it finds.
    let changes: [fn(&mut Running, &mut Running); 4] = [
        |a, b| swap(&mut a.sampler, &mut b.sampler),
        |a, b| swap(&mut a.draft, &mut b.draft),
        |a, b| swap(&mut a.detokenizer, &mut b.detokenizer),
        |a, b| swap(&mut a.outlet, &mut b.outlet),
    ];
    for change in changes {
        let mut batch = Batch::running();
        let (stepper, machine) = (&mut batch.executor.stepper, &mut batch.executor.machine);
        stepper.preempt(machine, 0);
        stepper.preempt(machine, 0);
        let [a, b] = stepper.waiting.get_disjoint_mut([0, 1]).unwrap();
        change(a, b);
        batch.check(&[0, 1]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whoever comes, leaves, loses pages and changes places: what one gets is a function of its own request.
    #[test]
    fn an_answer_is_a_function_of_its_request(acts in prop::collection::vec(0usize..6, 1..40)) {
        let mut batch = Batch::running();
        let mut left = None;
        for act in acts {
            let (stepper, machine) = (&mut batch.executor.stepper, &mut batch.executor.machine);
            match act {
                0 if !stepper.running.is_empty() => stepper.preempt(machine, 0),
                1 if stepper.running.len() > 1 => stepper.running.rotate_left(1),
                2 if stepper.running.len() > 1 => stepper.running.swap(0, 1),
                3 if left.is_none() => {
                    // The second one's client leaves; its place is another's.
                    left = Some(batch.texts[1].clone());
                    let (_, gone) = (batch.texts[1].clear(), batch.steps.remove(1));
                    drop(gone);
                    batch.steps.insert(1, submit(&mut batch.executor, 4, 2, ANSWER));
                }
                _ => drop(batch.step()),
            }
        }
        while batch.step() {}
        prop_assert!(batch.errors.iter().all(Option::is_none), "{:?}", batch.errors);
        let second = if left.is_some() { alone(4, 2) } else { alone(2, 1) };
        prop_assert_eq!(&batch.texts, &[alone(1, 1), second, alone(3, 2)]);
    }
}
