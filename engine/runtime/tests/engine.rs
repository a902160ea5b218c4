//! The engine on the real model: exact whoever shares a step, cancelled at once, fair to slow readers.

mod rig;

use engine_kernels::KvKind;
use engine_runtime::{Engine, EngineConfig, PromptInput, Sampling, Split, StepError, SubmitError, TokenizeError};
use policies_domain::{FinishReason, Label};
use rig::{ACME, GLOBEX, answer, engine, greedy, permit, sealer, submit, verifier};
use std::time::{Duration, Instant};

const SMALL: EngineConfig = EngineConfig {
    threads: 2,
    pages: 256,
    sequences_max: 16,
    queue_max: 16,
    prefill_chunk_tokens: 32,
    step_target_ms: 60_000,
    queue_wait_max_ms: 600_000,
    prefix_cache: false,
    speculation: false,
    swap_mib: 0,
    context_tokens_max: None,
    kv: KvKind::Bf16,
    split: Split::Relabel,
    decode_threads: None,
    preallocate: false,
};
const STORY: &str = "Once upon a time there was a small village by the sea, and in it";

#[tokio::test]
async fn an_answer_is_the_same_alone_and_in_company() {
    let engine = engine(SMALL);
    let alone = answer(submit(&engine, ACME, 1, STORY, greedy(24))).await;
    assert_eq!(alone.finish, Some(FinishReason::Length));
    assert_eq!((alone.tokens, alone.usage.completion_tokens), (24, 24));
    let neighbours: Vec<_> = (0..7)
        .map(|i| {
            let prompt = format!("Number {i}. {}", "The quick brown fox jumps over the lazy dog. ".repeat(i + 1));
            tokio::spawn(answer(submit(&engine, GLOBEX, 10 + i as u8, &prompt, Sampling { seed: 3, ..greedy(40) })))
        })
        .collect();
    for round in 0..3 {
        let again = answer(submit(&engine, ACME, 2 + round, STORY, greedy(24))).await;
        assert_eq!(again.text, alone.text);
    }
    for neighbour in neighbours {
        assert!(neighbour.await.unwrap().tokens > 0);
    }
}

#[tokio::test]
async fn an_answer_is_the_same_with_guesses_and_takes_fewer_steps() {
    let repeats = &"red, green, blue, ".repeat(8);
    let drawn = Sampling { temperature: 0.7, top_p: 0.9, seed: 5, ..greedy(60) };
    let penalised = Sampling { presence_penalty: 0.4, frequency_penalty: 0.2, ..drawn.clone() };
    let stopped = Sampling { stop: vec!["blue, red, gr".into()], ..greedy(60) };
    let asked =
        [(repeats.as_str(), greedy(60)), (STORY, greedy(60)), (repeats, drawn), (STORY, penalised), (repeats, stopped)];
    for (split, kv) in [(Split::Relabel, KvKind::Bf16), (Split::Off, KvKind::Int8)] {
        let plain = engine(EngineConfig { split, kv, ..SMALL });
        let guessing = engine(EngineConfig { split, kv, speculation: true, ..SMALL });
        let mut steps = Vec::new();
        for (request, (prompt, sampling)) in (1..).zip(&asked) {
            let without = answer(submit(&plain, ACME, request, prompt, sampling.clone())).await;
            let with = answer(submit(&guessing, ACME, request, prompt, sampling.clone())).await;
            assert_eq!(with.text, without.text, "request {request}");
            assert_eq!((with.tokens, with.finish, with.usage), (without.tokens, without.finish, without.usage));
            assert_eq!(without.steps, without.tokens);
            steps.push((with.steps, with.tokens));
        }
        assert!(steps[0].0 * 2 < steps[0].1, "what repeats itself: {steps:?} steps and tokens");
        let (plain, stats) = (plain.stats(), guessing.stats());
        assert_eq!((plain.tokens_guessed_total, plain.tokens_accepted_total), (0, 0));
        assert!(0 < stats.tokens_accepted_total && stats.tokens_accepted_total <= stats.tokens_guessed_total);
        let saved: u32 = steps.iter().map(|(steps, tokens)| tokens - steps).sum();
        // What was right behind an answer's end saved nothing.
        assert!(u64::from(saved) <= stats.tokens_accepted_total, "{steps:?}, {stats:?}");
        assert_eq!(stats.tokens_decoded_total, plain.tokens_decoded_total, "each is counted when it is right");
    }
}

#[tokio::test]
async fn an_answer_is_the_same_however_its_pages_come_to_who_decodes() {
    let sampling = |seed| Sampling { max_tokens: Some(40), seed, temperature: 1.0, top_p: 0.95, ..Sampling::default() };
    let long = "The quick brown fox jumps over the lazy dog. ".repeat(20);
    let mut answers = Vec::new();
    for split in [Split::Off, Split::Relabel, Split::Copy] {
        let engine = engine(EngineConfig { split, ..SMALL });
        assert_eq!(engine.split(), split);
        let asked = [(STORY, greedy(40)), (STORY, sampling(1)), (&long, sampling(2)), (&long, sampling(3))];
        let all: Vec<_> = (0..4)
            .map(|id| {
                tokio::spawn(answer(submit(
                    &engine,
                    ACME,
                    id,
                    asked[usize::from(id)].0,
                    asked[usize::from(id)].1.clone(),
                )))
            })
            .collect();
        let mut texts = Vec::new();
        for one in all {
            let one = one.await.unwrap();
            assert_eq!(one.restarts, usize::from(split != Split::Off));
            texts.push(one.text);
        }
        answers.push((texts, engine.model_fingerprint()));
    }
    assert!(answers.windows(2).all(|two| two[0] == two[1]), "{answers:?}");
}

#[tokio::test]
async fn two_groups_with_pools_of_their_own_share_out_and_give_back() {
    let split = Split::Copy;
    let engine = engine(EngineConfig { split, pages: 20, sequences_max: 4, preallocate: true, ..SMALL });
    let alone = answer(submit(&engine, ACME, 1, STORY, greedy(100))).await;
    let all: Vec<_> = (2..10).map(|id| submit(&engine, 1 + u32::from(id) % 2, id, STORY, greedy(100))).collect();
    for (index, mut steps) in all.into_iter().enumerate() {
        if index % 3 == 2 {
            steps.next().await.unwrap().unwrap();
            drop(steps);
        } else {
            assert_eq!(answer(steps).await.text, alone.text);
        }
    }
    all_pages_free(&engine, 40).await;
}

#[tokio::test]
async fn every_step_reads_pages_of_its_own_tenant_only() {
    let engine = engine(SMALL);
    let other = tokio::spawn(answer(submit(&engine, GLOBEX, 1, &STORY.repeat(4), greedy(40))));
    let mut steps = submit(&engine, ACME, 2, &STORY.repeat(4), greedy(20));
    let (mut index, mut reads) = (0, 0);
    while let Some(step) = steps.next().await {
        let step = step.unwrap();
        assert_eq!(step.index, index);
        assert!(step.trace.kept <= reads, "it reads on in pages that a step has named");
        assert!(step.trace.pages.iter().all(|read| read.label == Label::of(rig::tenant(ACME))));
        reads = step.trace.kept + step.trace.pages.len();
        assert!(reads > 0);
        index += 1;
    }
    let tokens = steps.usage().prompt_tokens + steps.usage().completion_tokens;
    assert_eq!(reads, (tokens - 1).div_ceil(16), "the last step reads every page of the sequence");
    assert!(steps.timings().prefill_us > 0 && steps.timings().decode_us > 0);
    other.await.unwrap();
}

#[tokio::test]
async fn dropping_the_steps_frees_the_pages() {
    let engine = engine(EngineConfig { prefill_chunk_tokens: 1024, ..SMALL });
    let mut decoding = submit(&engine, ACME, 1, STORY, greedy(500));
    decoding.next().await.unwrap().unwrap();
    // A prefill of about a thousand tokens in one chunk takes several hundred milliseconds.
    let prefilling = submit(&engine, ACME, 2, &"lorem ipsum dolor sit amet ".repeat(160), greedy(1));
    while engine.stats().sequences_running < 2 {
        decoding.next().await.unwrap().unwrap();
    }
    drop(prefilling);
    drop(decoding);
    all_pages_free(&engine, 256).await;
    assert_eq!(engine.stats().sequences_running, 0);
}

#[tokio::test]
async fn a_reader_that_stops_makes_nobody_else_wait() {
    let engine = engine(SMALL);
    let stalled = submit(&engine, GLOBEX, 1, STORY, greedy(200));
    let read = answer(submit(&engine, ACME, 2, STORY, greedy(60))).await;
    assert_eq!(read.tokens, 60);
    let read = answer(stalled).await;
    assert_eq!(read.tokens, 200, "whoever comes back late still gets everything");
}

#[tokio::test]
async fn readers_that_stop_hold_no_slot_against_those_who_wait() {
    let engine = engine(EngineConfig { sequences_max: 4, queue_max: 60, ..SMALL });
    let alone = answer(submit(&engine, GLOBEX, 1, STORY, greedy(60))).await;
    let mut stalled: Vec<_> = (10..30).map(|id| submit(&engine, ACME, id, STORY, greedy(60))).collect();
    let late = answer(submit(&engine, GLOBEX, 2, STORY, greedy(60)));
    let late = tokio::time::timeout(Duration::from_secs(60), late).await.expect("starved by readers that stopped");
    assert_eq!(late.text, alone.text);
    // Those who gave way go on where they were when somebody reads again.
    for steps in stalled.drain(18..) {
        assert_eq!(answer(steps).await.text, alone.text);
    }
    drop(stalled);
    all_pages_free(&engine, 256).await;
}

#[tokio::test]
async fn a_tenant_with_many_requests_gives_slots_to_one_with_few() {
    let engine = engine(EngineConfig { sequences_max: 4, queue_max: 60, ..SMALL });
    let alone = answer(submit(&engine, ACME, 1, STORY, greedy(200))).await;
    let busy: Vec<_> = (10..16).map(|id| tokio::spawn(answer(submit(&engine, ACME, id, STORY, greedy(200))))).collect();
    while engine.stats().sequences_running < 4 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let few = answer(submit(&engine, GLOBEX, 2, STORY, greedy(8))).await;
    assert_eq!(few.tokens, 8);
    assert!(busy.iter().filter(|one| one.is_finished()).count() < 4, "it waited until the busy tenant was done");
    let mut restarts = 0;
    for one in busy {
        let one = one.await.unwrap();
        assert_eq!(one.text, alone.text, "giving way changed an answer");
        restarts += one.restarts - 1;
    }
    assert!(restarts > 0, "nobody gave way: the test does not test what it says");
}

#[tokio::test]
async fn who_gave_way_goes_on_with_the_pages_that_it_had() {
    for split in [Split::Off, Split::Relabel] {
        let config = EngineConfig { sequences_max: 4, queue_max: 60, split, swap_mib: 256, ..SMALL };
        let engine = engine(config);
        let alone = answer(submit(&engine, ACME, 1, STORY, greedy(200))).await;
        let busy: Vec<_> =
            (10..16).map(|id| tokio::spawn(answer(submit(&engine, ACME, id, STORY, greedy(200))))).collect();
        // All of them write their answers: nothing is left to compute of any prompt.
        while engine.stats().sequences_running < 4 || engine.stats().tokens_decoded_total < 260 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        answer(submit(&engine, GLOBEX, 2, STORY, greedy(8))).await;
        for one in busy {
            assert_eq!(one.await.unwrap().text, alone.text, "giving way changed an answer");
        }
        let stats = engine.stats();
        assert!(stats.preemptions_total > 0, "nobody gave way: the test does not test what it says");
        assert_eq!(stats.swapped_in_total, stats.preemptions_total, "{split:?}");
        assert_eq!(stats.tokens_prefilled_total as usize, 8 * alone.usage.prompt_tokens, "{split:?}: computed again");
    }
}

#[tokio::test]
async fn one_tenant_cannot_take_every_place() {
    let engine = engine(EngineConfig { sequences_max: 4, queue_max: 4, ..SMALL });
    let submit = |tenant, id| {
        let permit = permit(tenant, id);
        let sequence = engine.tokenize(&permit, &PromptInput::Text(STORY.into())).unwrap();
        engine.submit(&permit, sequence, greedy(200), sealer(&permit))
    };
    // A burst: more than the queue holds, and not more than run and wait in all.
    let _burst: Vec<_> = (0..6).map(|id| submit(ACME, id).unwrap()).collect();
    assert!(matches!(submit(ACME, 6), Err(SubmitError::TenantFull { .. })), "six of eight places are a tenant's most");
    let _others = [submit(GLOBEX, 7).unwrap(), submit(GLOBEX, 8).unwrap()];
    assert!(matches!(submit(GLOBEX, 9), Err(SubmitError::Full { .. })), "there are eight places in all");
}

#[tokio::test]
async fn a_pool_that_is_too_small_for_all_delays_and_changes_nothing() {
    let roomy = engine(SMALL);
    let expected = answer(submit(&roomy, ACME, 1, STORY, greedy(100))).await;
    assert_eq!(expected.restarts, 1, "its pages changed hands once");
    // 18 pages: each request needs 8 of them in the end, all are admitted with 2.
    let tight = engine(EngineConfig { pages: 18, ..SMALL });
    let all: Vec<_> = (1..5).map(|id| tokio::spawn(answer(submit(&tight, ACME, id, STORY, greedy(100))))).collect();
    let mut restarts = 0;
    for one in all {
        let one = one.await.unwrap();
        assert_eq!(one.text, expected.text);
        restarts += one.restarts - 1;
    }
    assert!(restarts > 0, "nothing was preempted: the test does not test what it says");
    all_pages_free(&tight, 18).await;
}

#[tokio::test]
async fn stop_strings_end_the_text_before_them() {
    let engine = engine(SMALL);
    let whole = answer(submit(&engine, ACME, 1, STORY, greedy(40))).await;
    let stop = whole.text.split_whitespace().nth(4).unwrap().to_string();
    let cut = answer(submit(&engine, ACME, 2, STORY, Sampling { stop: vec![stop.clone()], ..greedy(40) })).await;
    assert_eq!(cut.finish, Some(FinishReason::Stop));
    assert_eq!(cut.text, whole.text[..whole.text.find(&stop).unwrap()]);
}

#[tokio::test]
async fn a_seed_repeats_its_answer() {
    let engine = engine(SMALL);
    let sampling = |seed| Sampling { max_tokens: Some(30), seed, temperature: 1.0, ..Sampling::default() };
    let first = answer(submit(&engine, ACME, 1, STORY, sampling(5))).await;
    let second = answer(submit(&engine, ACME, 2, STORY, sampling(5))).await;
    let other = answer(submit(&engine, ACME, 3, STORY, sampling(6))).await;
    assert_eq!(first.text, second.text);
    assert_ne!(first.text, other.text);
}

#[tokio::test]
async fn a_smaller_context_than_the_model_s_can_be_set() {
    let engine = engine(EngineConfig { context_tokens_max: Some(20), ..SMALL });
    assert_eq!(engine.context_max(), 20);
    let permit = permit(ACME, 1);
    let sequence = engine.tokenize(&permit, &PromptInput::Tokens(vec![100; 15])).unwrap();
    let refused = engine.submit(&permit, sequence, greedy(6), sealer(&permit)).unwrap_err();
    assert_eq!(refused, SubmitError::TooLong { tokens: 21, tokens_max: 20 });
    let tokenize = |count| engine.tokenize(&permit, &PromptInput::Tokens(vec![100; count]));
    assert!(matches!(tokenize(20), Err(TokenizeError::TooLong { tokens_max: 19, .. })));
}

#[tokio::test]
async fn what_does_not_fit_is_refused_with_numbers() {
    let engine = engine(EngineConfig { pages: 4, ..SMALL });
    let permit = permit(ACME, 1);
    let tokenize = |text: String| engine.tokenize(&permit, &PromptInput::Text(text));
    assert!(matches!(tokenize(STORY.repeat(9)), Err(TokenizeError::TooLong { tokens_max: 63, tokens }) if tokens > 63));
    assert!(matches!(tokenize("a".repeat(10 << 20)), Err(TokenizeError::TooLong { tokens_max: 63, .. })));
    assert!(matches!(tokenize(String::new()), Err(TokenizeError::Empty)));
    let beyond = engine.tokenize(&permit, &PromptInput::Tokens(vec![u32::MAX]));
    assert!(matches!(beyond, Err(TokenizeError::UnknownToken { .. })));
    let sequence = tokenize("one two".into()).unwrap();
    let refused = engine.submit(&permit, sequence, greedy(64), sealer(&permit)).unwrap_err();
    assert!(matches!(refused, SubmitError::TooLong { tokens_max: 64, tokens } if tokens > 64));
    let sequence = tokenize("one two".into()).unwrap();
    let stranger = rig::permit(GLOBEX, 1);
    let refused = engine.submit(&stranger, sequence, greedy(1), sealer(&stranger)).unwrap_err();
    assert_eq!(refused, SubmitError::PermitMismatch);
    for other in [&stranger, &rig::permit(ACME, 2)] {
        let sequence = tokenize("one two".into()).unwrap();
        let refused = engine.submit(&permit, sequence, greedy(1), sealer(other)).unwrap_err();
        assert_eq!(refused, SubmitError::PermitMismatch, "a seal of another tenant or request");
    }
}

#[tokio::test]
async fn every_step_is_sealed_for_its_request_its_admission_and_nobody_else() {
    // As tight as above: some lose their pages and are admitted again.
    let tight = engine(EngineConfig { pages: 18, ..SMALL });
    let one = |id: u8| {
        let mut steps = submit(&tight, ACME, id, STORY, greedy(100));
        tokio::spawn(async move {
            let (mut own, mut epochs) = (verifier(&permit(ACME, id)), Vec::new());
            while let Some(step) = steps.next().await {
                let step = step.unwrap();
                let text = step.text.reveal().as_bytes();
                assert_eq!(own.verify(&step.seal, text, step.finish), Ok(()));
                assert!(verifier(&permit(ACME, id + 1)).verify(&step.seal, text, step.finish).is_err());
                let epoch = step.seal.origin().epoch;
                // A handoff begins new lives of pages in the same admission.
                let goes_on = epochs.last() == Some(&epoch);
                assert!(goes_on || step.restarted || step.index == 0, "{epochs:?} {epoch:?}");
                epochs.push(epoch);
            }
            epochs.dedup();
            epochs
        })
    };
    let mut epochs = Vec::new();
    for one in [1, 3, 5, 7].map(one) {
        epochs.extend(one.await.unwrap());
    }
    assert!(epochs.len() > 4, "nothing was preempted: the test does not test what it says");
    epochs.sort_unstable();
    let admissions = epochs.len();
    epochs.dedup();
    assert_eq!(epochs.len(), admissions, "two admissions have the same number");
}

#[tokio::test]
async fn a_full_queue_says_when_to_come_back() {
    let engine = engine(EngineConfig { sequences_max: 1, queue_max: 2, ..SMALL });
    let mut running = submit(&engine, ACME, 1, STORY, greedy(200));
    running.next().await.unwrap().unwrap();
    let _waiting = [2, 3].map(|id| submit(&engine, ACME, id, STORY, greedy(1)));
    let permit = permit(ACME, 4);
    let sequence = || engine.tokenize(&permit, &PromptInput::Text(STORY.into())).unwrap();
    let refused = engine.submit(&permit, sequence(), greedy(1), sealer(&permit)).unwrap_err();
    assert!(matches!(refused, SubmitError::Full { retry_after_ms } if retry_after_ms > 0));
    drop(_waiting);
    assert!(
        engine.submit(&permit, sequence(), greedy(1), sealer(&permit)).is_ok(),
        "whoever left the queue holds no place in it"
    );
}

#[tokio::test]
async fn stopping_the_engine_ends_every_request_with_a_reason() {
    let engine = engine(EngineConfig { sequences_max: 1, ..SMALL });
    let mut running = submit(&engine, ACME, 1, STORY, greedy(200));
    running.next().await.unwrap().unwrap();
    let mut waiting = submit(&engine, ACME, 2, STORY, greedy(200));
    drop(engine);
    assert_eq!(waiting.next().await.unwrap().unwrap_err(), StepError::Stopped);
    assert!(waiting.next().await.is_none());
    let last = loop {
        if let Err(error) = running.next().await.unwrap() {
            break error;
        }
    };
    assert_eq!(last, StepError::Stopped);
}

/// The engine's thread frees pages right after the last step was delivered, not before.
async fn all_pages_free(engine: &Engine, pages: usize) {
    let asked = Instant::now();
    while engine.stats().pages.free < pages {
        assert!(asked.elapsed() < Duration::from_secs(10), "pages are still held: {:?}", engine.stats());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
