//! What an observer of the wire sees of streams of constant shape, and what it cannot: sizes and times of everything that is
//! written, in a time that stands still until somebody waits for it.

use super::catalogue::{Side, World, transcript};
use super::nothing_done;
use crate::reply::{Format, Reply, StepSource};
use crate::respond::{RequestError, refusal};
use crate::shape::EVENT_CHARACTERS;
use audit_log::{Leg, SealReason};
use engine_runtime::{StepError, Usage};
use policies_domain::{Completion, Step};
use serde_json::Value;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

const PERIOD: Duration = Duration::from_millis(100);

/// The engine: steps, and the milliseconds after which each is there.
struct Script {
    steps: VecDeque<(Instant, Result<Step, StepError>)>,
    taken_at: Vec<Instant>,
}

impl StepSource for Script {
    async fn next(&mut self) -> Option<Result<Step, StepError>> {
        sleep_until(self.steps.front()?.0).await;
        self.taken_at.push(Instant::now());
        Some(self.steps.pop_front()?.1)
    }
}

/// What was seen of one response.
struct Seen {
    /// When each event was written, in milliseconds, and its length.
    events: Vec<(u128, usize)>,
    /// The same of the end.
    end: Option<(u128, usize)>,
    /// When the steps were taken from the engine, in milliseconds.
    taken: Vec<u128>,
    /// All that came to the client, head included.
    transcript: String,
    error: Option<RequestError>,
    unanswered: bool,
}

impl Seen {
    fn payloads(&self) -> Vec<Value> {
        let data = self.transcript.split("data: ").skip(1).filter_map(|rest| rest.split("\n\n").next());
        data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
    }

    fn texts(&self) -> Vec<String> {
        let payloads = self.payloads();
        let texts = payloads.iter().filter_map(|payload| payload["choices"].get(0));
        texts.map(|choice| choice["delta"]["content"].as_str().unwrap_or_default().to_owned()).collect()
    }
}

/// What `serve` does with one request whose steps come at these milliseconds.
async fn respond(side: Side, steps: Vec<(u64, Result<Step, StepError>)>) -> Seen {
    let Side { permit, key, binding, mut http, mut entry, client } = side;
    let begun = Instant::now();
    let steps = steps.into_iter().map(|(at, step)| (begun + Duration::from_millis(at), step)).collect();
    let mut script = Script { steps, taken_at: Vec::new() };
    let mut reply = Reply::new(&mut http, Format::shaped(&permit, PERIOD), &key, binding);
    let answer = async {
        loop {
            let step = reply.next(&mut entry, &mut script).await?;
            let released = entry.check(step).expect("its own pages, in order");
            let finish = released.finish();
            reply.send(&mut entry, released).await?;
            if finish.is_some() {
                break;
            }
        }
        reply.close(&mut entry, Usage { prompt_tokens: 9, cached_tokens: 0, completion_tokens: 2 }).await?;
        let sealed = entry.seal(nothing_done(SealReason::Stop)).await?;
        Ok::<_, RequestError>(reply.finish(&sealed).await?)
    };
    let error = answer.await.err();
    let since = |at: &Instant| at.duration_since(begun).as_millis();
    let mut events: Vec<_> = http.writes.iter().map(|(at, length)| (since(at), *length)).collect();
    let end = if error.is_none() { events.pop() } else { None };
    let unanswered = http.is_unanswered();
    drop(http);
    let taken = script.taken_at.iter().map(since).collect();
    Seen { events, end, taken, transcript: transcript(client).await, error, unanswered }
}

/// A prefill chunk at once, then one of the words every so many milliseconds.
fn paced(side: &Side, words: &[String], every: u64) -> Vec<(u64, Result<Step, StepError>)> {
    let steps = side.saying(words, &vec![1; words.len() + 1]);
    steps.into_iter().zip(0..).map(|(step, number)| (number * every, Ok(step))).collect()
}

fn words(text: &str, characters: usize) -> Vec<String> {
    let characters_of_text: Vec<char> = text.chars().collect();
    characters_of_text.chunks(characters).map(|word| word.iter().collect()).collect()
}

async fn answered(text: &str, characters: usize, every: u64) -> Seen {
    let world = World::open([0, 1]);
    let side = world.side(0).await;
    let steps = paced(&side, &words(text, characters), every);
    let seen = respond(side, steps).await;
    assert!(seen.error.is_none(), "{:?}", seen.error);
    assert_eq!(seen.texts().concat(), text);
    world.close();
    seen
}

/// Of one size, one in each period, the end in the period after the last.
fn assert_constant(seen: &Seen) {
    let (first, size) = seen.events[0];
    let end = seen.end.unwrap().0;
    let times: Vec<_> = seen.events.iter().map(|event| event.0).chain([end]).collect();
    let wanted: Vec<_> = (0..times.len() as u128).map(|number| first + number * PERIOD.as_millis()).collect();
    assert_eq!(times, wanted);
    assert!(first % PERIOD.as_millis() == 0, "{first}");
    assert!(seen.events.iter().all(|event| event.1 == size), "{:?}", seen.events);
}

/// Every third character is one that JSON escapes or that has several bytes.
fn text(characters: usize) -> String {
    let strange = ['"', '\\', '\n', 'é', '€', '𝄞', '\u{1}', '\u{2028}'];
    (0..characters).map(|number| if number % 3 == 0 { strange[number / 3 % strange.len()] } else { 'a' }).collect()
}

#[tokio::test(start_paused = true)]
async fn one_token_a_step_or_five_show_alike() {
    // Slower than the events: one step of five is there when the last of five steps is. Faster: events lag behind.
    for (milliseconds, characters) in [(10, 200), (1, 500)] {
        let text = text(characters);
        let ones = answered(&text, 1, milliseconds).await;
        let fives = answered(&text, 5, 5 * milliseconds).await;
        for seen in [&ones, &fives] {
            assert_constant(seen);
        }
        assert_eq!(ones.events, fives.events);
        assert_eq!(ones.end, fives.end);
    }
}

#[tokio::test(start_paused = true)]
async fn the_characters_of_the_text_show_in_nothing_but_their_number() {
    let same_length = ["a", "\u{0}", "\"", "é", "€", "𝄞"].map(|character| character.repeat(3 * EVENT_CHARACTERS + 7));
    let mut all = Vec::new();
    for text in same_length {
        let seen = answered(&text, 16, 2).await;
        assert_constant(&seen);
        all.push(seen.events);
    }
    assert!(all.iter().all(|events| *events == all[0]), "{all:?}");
}

#[tokio::test(start_paused = true)]
async fn a_pause_of_the_engine_is_filled_with_events_that_say_nothing() {
    let world = World::open([0, 1]);
    let side = world.side(0).await;
    let mut steps = paced(&side, &["first".into(), "second".into(), "third".into()], 10);
    steps[2].0 = 1_000;
    steps[3].0 = 1_010;
    let seen = respond(side, steps).await;
    assert_constant(&seen);
    // At 100, nine without text, both at 1,100, the token counts at 1,200.
    assert_eq!(
        seen.events.iter().map(|event| event.0).collect::<Vec<_>>(),
        (1..=12).map(|n| n * 100).collect::<Vec<_>>()
    );
    let texts = seen.texts();
    assert_eq!((texts[0].as_str(), texts.last().unwrap().as_str()), ("first", "secondthird"));
    assert!(texts[1..10].iter().all(String::is_empty));
    let payloads = seen.payloads();
    assert_eq!(payloads[0]["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(payloads[10]["choices"][0]["finish_reason"], "stop");
    assert_eq!(payloads[11]["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert!(seen.transcript.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n"), "{}", seen.transcript);
    assert!(seen.transcript.contains("no-transform"));
    world.close();
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_before_there_is_text_and_a_request_that_waited_too_long_is_an_error_of_its_own() {
    let world = World::open([0, 1]);
    let side = world.side(0).await;
    let seen = respond(side, vec![(9_000, Err(StepError::Expired { retry_after_ms: 1_500 }))]).await;
    assert!(seen.unanswered && seen.events.is_empty() && seen.transcript.is_empty(), "{}", seen.transcript);
    assert_eq!(refusal(&seen.error.unwrap()).status, 503);
    world.close();
}

#[tokio::test(start_paused = true)]
async fn a_piece_that_is_refused_ends_the_stream_before_it() {
    let world = World::open([0, 1]);
    let side = world.side(0).await;
    let mut steps = paced(&side, &["good".into(), "fine".into(), "last".into()], 150);
    let Ok(foreign) = &mut steps[2].1 else { panic!() };
    foreign.text = Completion::new("FOREIGN".into());
    let seen = respond(side, steps).await;
    assert!(matches!(seen.error, Some(RequestError::Seal { leg: Leg::EngineOutput, .. })), "{:?}", seen.error);
    assert!(seen.transcript.contains("good"), "{}", seen.transcript);
    assert!(!seen.transcript.contains("FOREIGN") && !seen.transcript.contains("last"), "{}", seen.transcript);
    world.close();
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_its_period_is_bounded_and_the_rest_stays_with_the_engine() {
    let text = "a".repeat(40 << 10);
    let seen = answered(&text, 1 << 10, 0).await;
    let in_the_first_period = seen.taken.iter().filter(|at| **at < 100).count();
    assert_eq!(in_the_first_period, 1 + 16, "the prefill step, and sixteen of a KiB");
    assert_eq!(seen.taken.len(), 41);
    assert_constant(&seen);
    assert_eq!(seen.events.len(), text.len().div_ceil(EVENT_CHARACTERS) + 1, "one more for the token counts");
}
