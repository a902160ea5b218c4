//! Who waits and for how long, who is sent away, and whose steps are its own.

use super::tests::{CONFIG, label, prompt, sealer};
use super::*;
use crate::compute::tracer::Tracer;
use crate::steps::StepError;
use engine_scheduler::TenantTerms;
use std::collections::HashMap;

fn executor(config: EngineConfig) -> StepExecutor<Tracer> {
    StepExecutor::new(Tracer::new(config.pages), config, [1; 32])
}

fn submit(
    executor: &mut StepExecutor<Tracer>,
    request: u8,
    tenant: u32,
    tokens: u32,
    answer: usize,
) -> Result<Steps, SubmitError> {
    let sampling = Sampling { max_tokens: Some(answer), temperature: 0.0, ..Sampling::default() };
    let (label, request) = (label(tenant), RequestId::from_bytes([request; 16]));
    executor.submit(label, request, prompt(tenant, tokens), sampling, sealer(label, request))
}

fn read(steps: &mut Steps, text: &mut String) -> Option<StepError> {
    while let Some(step) = steps.try_next() {
        match step {
            Ok(step) => *text += step.text.reveal(),
            Err(error) => return Some(error),
        }
    }
    None
}

#[test]
fn whoever_waits_for_too_long_is_told_when_to_come_back_and_holds_no_place() {
    let mut executor = executor(EngineConfig { sequences_max: 1, queue_wait_max_ms: 1000, ..CONFIG });
    let mut first = submit(&mut executor, 1, 1, 20, 40).unwrap();
    assert!(executor.step());
    let mut second = submit(&mut executor, 2, 1, 20, 4).unwrap();
    let (mut text, mut nothing) = (String::new(), String::new());
    executor.step();
    executor.pass(Duration::from_millis(1000));
    executor.step();
    assert_eq!(read(&mut second, &mut nothing), None, "just in time");
    executor.pass(Duration::from_millis(1));
    while executor.step() {
        assert_eq!(read(&mut first, &mut text), None);
    }
    assert_eq!(text, Tracer::answer(&prompt(1, 20), 40), "whoever has a slot is not hurried");
    let expired = read(&mut second, &mut nothing);
    assert!(matches!(expired, Some(StepError::Expired { retry_after_ms: 1000.. })), "{expired:?}");
    assert_eq!(nothing, "");
    let stepper = &mut executor.stepper;
    assert_eq!((stepper.running.len(), stepper.waiting.len()), (0, 0));
    assert_eq!((stepper.scheduler.running(), stepper.scheduler.waiting()), (0, 0));
    assert_eq!(stepper.inbox.waiting(), 0);
}

#[test]
fn whoever_left_before_it_was_taken_in_holds_no_place_after_the_next_look() {
    let mut executor = executor(CONFIG);
    let mut first = submit(&mut executor, 1, 1, 20, 40).unwrap();
    let others: Vec<Steps> = (2..6).map(|request| submit(&mut executor, request, 1, 20, 4).unwrap()).collect();
    drop(others);
    assert!(executor.step());
    assert_eq!((executor.stepper.running.len(), executor.stepper.waiting.len()), (1, 0));
    let inside = |load: engine_scheduler::Load| (load.running, load.waiting);
    executor.stepper.inbox.look(|queue| {
        assert_eq!(queue.inside.values().copied().map(inside).collect::<Vec<_>>(), [(1, 0)]);
    });
    assert_eq!(read(&mut first, &mut String::new()), None);
}

#[test]
fn each_who_is_sent_away_is_told_to_wait_longer_than_the_one_before() {
    let mut executor = executor(CONFIG);
    let places = CONFIG.sequences_max + CONFIG.queue_max;
    let mut all: Vec<Steps> = Vec::new();
    let mut request = 0;
    let mut next = |executor: &mut StepExecutor<Tracer>, tenant| {
        request += 1;
        submit(executor, request, tenant, 100, 200)
    };
    let full = loop {
        match next(&mut executor, 1) {
            Ok(steps) => all.push(steps),
            Err(full) => break full,
        }
    };
    assert!(matches!(full, SubmitError::TenantFull { .. }), "{full:?}");
    assert_eq!(all.len(), places - places / 4, "a quarter is left to the others");
    all.extend((0..places / 4).map(|_| next(&mut executor, 2).unwrap()));
    let mut waits = Vec::new();
    for _ in 0..200 {
        match next(&mut executor, 3) {
            Err(SubmitError::Full { retry_after_ms }) => waits.push(retry_after_ms),
            other => panic!("{:?}", other.map(|_| ())),
        }
    }
    assert!(waits.is_sorted() && waits[0] < waits[199] && waits[199] <= 60_000, "{waits:?}");
    // Another tenant is told what it would have been told without them: it is the second of its own.
    let told = |refused: Result<Steps, SubmitError>| match refused {
        Err(SubmitError::Full { retry_after_ms } | SubmitError::TenantFull { retry_after_ms }) => retry_after_ms,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("there is no place"),
    };
    assert_eq!(told(next(&mut executor, 2)), waits[0], "the first of its own");
    // Whoever leaves makes room at once, before the engine looks; one who got in is not all who were told to come back.
    drop(all.pop());
    all.push(next(&mut executor, 3).unwrap());
    assert!(told(next(&mut executor, 3)) > waits[0]);
}

#[test]
fn those_whose_time_is_up_together_do_not_meet_again() {
    let mut executor = executor(EngineConfig { sequences_max: 1, queue_max: 64, queue_wait_max_ms: 1000, ..CONFIG });
    let mut all: Vec<Steps> = (1..42).map(|request| submit(&mut executor, request, 1, 200, 100).unwrap()).collect();
    let mut other = submit(&mut executor, 99, 2, 200, 100).unwrap();
    assert!(executor.step());
    executor.pass(Duration::from_millis(1001));
    assert!(executor.step());
    let mut told = |steps: &mut Steps| match read(steps, &mut String::new()) {
        Some(StepError::Expired { retry_after_ms }) => Some(retry_after_ms),
        _ => None,
    };
    let waits: Vec<u64> = all.iter_mut().filter_map(&mut told).collect();
    assert!(waits.len() == 40 && waits.is_sorted() && waits[0] < waits[39], "{waits:?}");
    // Of another tenant, the first.
    assert_eq!(told(&mut other), Some(waits[0]));
}

#[test]
fn when_to_come_back_says_nothing_of_other_tenants() {
    let told = |others: u8, tokens: u32, answer: usize| {
        let mut executor =
            executor(EngineConfig { sequences_max: 1, queue_max: 64, queue_wait_max_ms: 1000, ..CONFIG });
        let _others: Vec<Steps> =
            (1..=others).map(|request| submit(&mut executor, request, 1, tokens, answer).unwrap()).collect();
        let mut own: Vec<Steps> =
            (80..95).map(|request| submit(&mut executor, request, 2, 200, 100).unwrap()).collect();
        assert!(executor.step());
        executor.pass(Duration::from_millis(1001));
        assert!(executor.step());
        let told = |steps: &mut Steps| match read(steps, &mut String::new()) {
            Some(StepError::Expired { retry_after_ms }) => retry_after_ms,
            other => panic!("{other:?}"),
        };
        own.iter_mut().map(told).collect::<Vec<u64>>()
    };
    let beside_one = told(1, 20, 10);
    assert!(beside_one.is_sorted() && beside_one[0] < beside_one[14], "{beside_one:?}");
    assert_eq!(told(40, 100, 60), beside_one);
}

fn exclusive() -> Tenancy {
    Tenancy::new([(label(1), TenantTerms { exclusive: true, ..TenantTerms::default() })]).unwrap()
}

#[test]
fn an_exclusive_tenant_shares_no_pass() {
    let mut executor = executor(CONFIG).for_tenants(&exclusive());
    let mut all: Vec<(u32, Steps, String)> = [(1, 1), (2, 2), (3, 1), (4, 3)]
        .map(|(request, tenant)| (tenant, submit(&mut executor, request, tenant, 40, 20).unwrap(), String::new()))
        .into();
    let mut tenants: HashMap<u64, Label> = HashMap::new();
    let mut seen = 0;
    loop {
        let found = executor.step();
        let rows = executor.stepper.running.iter().map(|request| (request.ticket.row(), request.label));
        tenants.extend(rows);
        let passes = std::mem::take(&mut executor.compute().passes);
        for pass in passes {
            let of = |ticket: &u64| tenants.get(ticket).copied();
            let alone = pass.iter().all(|ticket| of(ticket) == of(&pass[0]));
            let without = pass.iter().all(|ticket| of(ticket).is_some_and(|tenant| tenant != label(1)));
            assert!(alone || without, "{pass:?}");
            seen += usize::from(pass.len() > 1);
        }
        for (_, steps, text) in &mut all {
            assert_eq!(read(steps, text), None);
        }
        if !found {
            break;
        }
    }
    assert!(seen > 10, "nobody shared anything: it is no test");
    for (tenant, _, text) in &all {
        assert_eq!(*text, Tracer::answer(&prompt(*tenant, 40), 20));
    }
}

#[test]
fn steps_of_an_exclusive_tenant_begin_at_fixed_times_whatever_others_do() {
    for company in [false, true] {
        let config = EngineConfig { step_target_ms: 100, ..CONFIG };
        let mut executor = executor(config).for_tenants(&exclusive());
        let mut steps = submit(&mut executor, 1, 1, 20, 6).unwrap();
        let mut others = company.then(|| submit(&mut executor, 2, 2, 20, 60).unwrap());
        let (mut text, mut before, mut times) = (String::new(), 0, Vec::new());
        for time in 0..120 {
            executor.pass(Duration::from_millis(10));
            executor.step();
            assert_eq!(read(&mut steps, &mut text), None);
            if let Some(others) = &mut others {
                read(others, &mut String::new());
            }
            if text.len() > before {
                (before, times) = (text.len(), [times, vec![10 + time * 10]].concat());
            }
        }
        assert_eq!(times.len(), 5, "the first step has the prompt, and two tokens");
        assert!(times[1..].iter().all(|time| time % 100 == 0), "{times:?}");
        assert!(times.windows(2).skip(1).all(|pair| pair[1] - pair[0] == 100), "{times:?}");
    }
}
