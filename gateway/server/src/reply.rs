//! The response to a generating request: OpenAI's JSON, whole or as server-sent events.
//!
//! [`Reply::send`] takes nothing but [`Released`]: there is no way from the engine to the socket around the gate. On that
//! way the text is compared with its seals twice here, as it comes from the engine and as it is encoded, and a third time
//! by the connection's writer; each look has its own memory of what came before, so the one that refuses names the leg.
//! The head of a stream goes out with the first released text, so that a refusal before it is an ordinary error
//! response; only a keep-alive comment, due when a prefill takes long, can send it earlier.
//!
//! A stream of constant shape ([`crate::shape`]) keeps what was released until the next whole period and sends events of one
//! size then: what passes the gate and the looks is the same, and so is who refuses it.

use crate::config::StreamShape;
use crate::exchange::{Exchange, Gone, Parcel};
use crate::gateway::Services;
use crate::generate::{Api, Generate};
use crate::respond::{Refusal, RequestError};
use crate::shape::{EVENT_CHARACTERS, Event, Flow, Pace, WIDEST};
use audit_log::{Leg, OpenEntry, Released, ReleasedSteps, Sealed};
use bytes::Bytes;
use engine_runtime::{StepError, Steps, Usage};
use policies_domain::{
    Binding, Epoch, FinishReason, Layer, ModelName, Permit, RequestId, SealError, SealKey, Sealer, Step, Verifier,
};
use serde::Serialize;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::{Instant, sleep_until};

/// What a reply looks like.
#[derive(Debug)]
pub(crate) struct Format {
    pub(crate) stream: bool,
    api: Api,
    request: RequestId,
    model: ModelName,
    system_fingerprint: Arc<str>,
    include_usage: bool,
    /// The longest silence on a stream.
    comment_interval: Duration,
    /// Of a stream that has a constant shape.
    period: Option<Duration>,
}

impl Format {
    pub(crate) fn of(generate: &Generate, api: Api, permit: &Permit, on: &Services) -> Self {
        let Generate { stream, include_usage, .. } = *generate;
        let (request, model) = (permit.request(), permit.model().clone());
        let (system_fingerprint, comment_interval) = (on.system_fingerprint.clone(), on.limits.comment_interval);
        let is_constant = on.stream_shape(permit.principal().tenant()) == StreamShape::ConstantShape;
        let period = (stream && is_constant).then_some(on.limits.constant_shape_period);
        Self { stream, api, request, model, system_fingerprint, include_usage, comment_interval, period }
    }
}

/// A response in the making.
pub(crate) struct Reply<'a> {
    http: &'a mut Exchange,
    format: Format,
    id: String,
    created: u64,
    /// What was released last: still to be sent, or kept because the token counts belong to it.
    held: Option<Released>,
    held_is_sent: bool,
    /// A piece of text or the finish has been sent.
    begun: bool,
    quiet_since: Instant,
    /// Of the steps as they come from the engine.
    arrivals: Verifier,
    /// Of the same steps as they are encoded.
    departures: Verifier,
    /// For the connection's writer.
    parcels: Sealer,
    parcels_made: u32,
    shaped: Option<Shaped>,
}

/// What a stream of constant shape has besides.
struct Shaped {
    pace: Pace,
    flow: Flow,
    /// Of every payload.
    payload_bytes: usize,
    /// What the last event came from.
    steps: Option<ReleasedSteps>,
}

/// Where steps come from.
pub(crate) trait StepSource {
    /// The next one; `None` after the last.
    fn next(&mut self) -> impl Future<Output = Option<Result<Step, StepError>>> + Send;
}

impl StepSource for Steps {
    async fn next(&mut self) -> Option<Result<Step, StepError>> {
        Steps::next(self).await
    }
}

/// What comes next.
enum Turn {
    Step(Option<Result<Step, StepError>>),
    /// An event of a constant shape.
    Event,
    Comment,
}

impl<'a> Reply<'a> {
    /// The writer of `http` is to have a verifier of the same key.
    pub(crate) fn new(http: &'a mut Exchange, format: Format, seal_key: &SealKey, binding: Binding) -> Self {
        let prefix = match format.api {
            Api::Chat => "chatcmpl-",
            Api::Text => "cmpl-",
        };
        let id = format!("{prefix}{}", format.request);
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let (quiet_since, period) = (Instant::now(), format.period);
        let mut reply = Self {
            http,
            format,
            id,
            created,
            held: None,
            held_is_sent: false,
            begun: false,
            quiet_since,
            arrivals: seal_key.verifier(Layer::Text, binding),
            departures: seal_key.verifier(Layer::Text, binding),
            parcels: seal_key.sealer(Layer::Payload, binding),
            parcels_made: 0,
            shaped: None,
        };
        reply.shaped = period.map(|period| Shaped {
            pace: Pace::new(quiet_since, period),
            flow: Flow::default(),
            payload_bytes: reply.payload_bytes_max(),
            steps: None,
        });
        reply
    }

    /// The engine's next step. Ends early, with [`Gone`], when the client leaves; keeps a waiting stream alive, and one of
    /// constant shape in its periods.
    pub(crate) async fn next(
        &mut self,
        entry: &mut OpenEntry,
        steps: &mut impl StepSource,
    ) -> Result<Step, RequestError> {
        let stream = self.format.stream;
        loop {
            let comment_due = self.quiet_since + self.format.comment_interval;
            let event_due = self.shaped.as_ref().and_then(|shaped| shaped.pace.due());
            let has_room = self.shaped.as_ref().is_none_or(|shaped| shaped.flow.has_room());
            let next = async {
                tokio::select! {
                    biased;
                    () = sleep_until(event_due.unwrap_or(comment_due)), if event_due.is_some() => Turn::Event,
                    step = steps.next(), if has_room => Turn::Step(step),
                    () = sleep_until(comment_due), if stream && event_due.is_none() => Turn::Comment,
                }
            };
            match self.http.while_connected(next).await? {
                // The engine ends with a finish or an error: both end the story before this.
                Turn::Step(step) => return self.arrived(step.ok_or(RequestError::Internal)??),
                Turn::Event => drop(self.send_event(entry).await?),
                Turn::Comment => self.comment(Bytes::from_static(b": keep-alive\n\n")).await?,
            }
        }
    }

    /// Waits for something while the answer is held back. Ends early, with [`Gone`], when the client leaves; keeps a waiting
    /// stream alive. One of a constant shape has not begun: its first period begins with the release.
    pub(crate) async fn hold<T>(&mut self, work: impl Future<Output = T>) -> Result<T, RequestError> {
        let mut work = std::pin::pin!(work);
        loop {
            let comment_due = self.quiet_since + self.format.comment_interval;
            let stream = self.format.stream;
            let next = async {
                tokio::select! {
                    biased;
                    done = work.as_mut() => Some(done),
                    () = sleep_until(comment_due), if stream => None,
                }
            };
            match self.http.while_connected(next).await? {
                Some(done) => return Ok(done),
                None => self.comment(Bytes::from_static(b": keep-alive\n\n")).await?,
            }
        }
    }

    /// The first look: is this the next step of this request?
    pub(crate) fn arrived(&mut self, step: Step) -> Result<Step, RequestError> {
        let verified = self.arrivals.verify(&step.seal, step.text.reveal().as_bytes(), step.finish);
        verified.map(|()| step).map_err(|error| RequestError::Seal { leg: Leg::EngineOutput, error })
    }

    /// The second look, right before the text is encoded.
    fn departs(&mut self, released: &Released) -> Result<(), RequestError> {
        let verified = released.verify(&mut self.departures);
        verified.map_err(|error| RequestError::Seal { leg: Leg::GatewayTask, error })
    }

    /// Hands bytes to the connection's writer, which takes the third look and keeps them.
    fn load(&mut self, bytes: Bytes) -> Result<(), RequestError> {
        let seal = self.parcels.seal(Epoch::default(), self.parcels_made, &bytes, None);
        self.parcels_made = self.parcels_made.saturating_add(1);
        self.http.load(Parcel { bytes, seal }).map_err(at_socket)
    }

    /// Sends what passed the gate, and chains it into the entry first: what leaves is on record, not the reverse.
    /// Steps without text, and all steps of a whole response, wait and leave together with what follows.
    pub(crate) async fn send(&mut self, entry: &mut OpenEntry, released: Released) -> Result<(), RequestError> {
        if let Some(Shaped { pace, flow, .. }) = &mut self.shaped {
            if !released.text().is_empty() || released.finish().is_some() {
                pace.begin(Instant::now());
            }
            flow.push(released);
            return Ok(());
        }
        let released = match self.held.take() {
            Some(mut held) if !self.held_is_sent => {
                if let Err(stray) = held.append(released) {
                    // The gate lets no gap pass: one of the two is not what came from it.
                    self.departs(&held)?;
                    self.departs(&stray)?;
                    return Err(RequestError::Internal);
                }
                held
            }
            _ => released,
        };
        self.held_is_sent = self.format.stream && (!released.text().is_empty() || released.finish().is_some());
        if self.held_is_sent {
            self.departs(&released)?;
            let payload = self.chunk(&released);
            self.load(frame(&payload))?;
            entry.sent(&payload, &released);
            self.begun = true;
            self.send_loaded().await?;
        }
        self.held = Some(released);
        Ok(())
    }

    /// The last thing before the seal: the token counts of a stream, the whole body otherwise.
    pub(crate) async fn close(&mut self, entry: &mut OpenEntry, usage: Usage) -> Result<(), RequestError> {
        if self.shaped.is_some() {
            return self.close_shaped(entry, usage).await;
        }
        let released = self.held.take().ok_or(RequestError::Internal)?;
        if !self.format.stream {
            self.departs(&released)?;
            let body = Bytes::from(self.whole(&released, usage));
            self.load(body.clone())?;
            entry.sent(&body, &released);
        } else if self.format.include_usage {
            let payload = self.encode(self.chunk_object(), &[], Some(usage.into()), None);
            self.load(frame(&payload))?;
            entry.sent(&payload, &released);
            self.send_loaded().await?;
        }
        Ok(())
    }

    /// One event in each period until all text has left, and one for the token counts.
    async fn close_shaped(&mut self, entry: &mut OpenEntry, usage: Usage) -> Result<(), RequestError> {
        loop {
            self.next_period().await?;
            if self.send_event(entry).await?.is_some() {
                break;
            }
        }
        if self.format.include_usage {
            let steps = self.shaped.as_ref().and_then(|shaped| shaped.steps).ok_or(RequestError::Internal)?;
            let payload = self.padded(&[], Some(usage.into()))?;
            self.next_period().await?;
            self.send_padded(entry, &payload, steps).await?;
        }
        Ok(())
    }

    /// Waits for the next whole period of a constant shape, unless the client leaves.
    async fn next_period(&mut self) -> Result<(), Gone> {
        let Some(shaped) = &self.shaped else { return Ok(()) };
        let due = shaped.pace.due().unwrap_or_else(|| shaped.pace.after(Instant::now()));
        self.http.while_connected(sleep_until(due)).await
    }

    /// The event of this period: some text, the rest of it with the finish, or nothing. The second look at each piece is
    /// here, right before the first of it is encoded.
    async fn send_event(&mut self, entry: &mut OpenEntry) -> Result<Option<FinishReason>, RequestError> {
        let Self { shaped, departures, .. } = self;
        let shaped = shaped.as_mut().ok_or(RequestError::Internal)?;
        let taken = shaped.flow.take(|released| released.verify(departures));
        let taken = taken.map_err(|error| RequestError::Seal { leg: Leg::GatewayTask, error })?;
        let Event { text, steps, finish } = taken.ok_or(RequestError::Internal)?;
        shaped.steps = Some(steps);
        let payload = self.padded(&[self.piece(&text, finish)], None)?;
        self.begun = true;
        self.send_padded(entry, &payload, steps).await?;
        Ok(finish)
    }

    async fn send_padded(
        &mut self,
        entry: &mut OpenEntry,
        payload: &[u8],
        steps: ReleasedSteps,
    ) -> Result<(), RequestError> {
        self.load(frame(payload))?;
        entry.sent_of(payload, steps);
        self.send_loaded().await?;
        if let Some(shaped) = &mut self.shaped {
            shaped.pace.passed(Instant::now());
        }
        Ok(())
    }

    /// A payload of the one size that all of them have.
    fn padded(&self, choices: &[Choice<'_>], usage: Option<UsageObject>) -> Result<Vec<u8>, RequestError> {
        let object = self.chunk_object();
        let bytes = self.shaped.as_ref().map_or(0, |shaped| shaped.payload_bytes);
        let missing = bytes.checked_sub(self.encode(object, choices, usage, Some("")).len());
        let padding = "0".repeat(missing.ok_or(RequestError::Internal)?);
        Ok(self.encode(object, choices, usage, Some(&padding)))
    }

    /// That size: of the longest payload that there can be.
    fn payload_bytes_max(&self) -> usize {
        // The prompt and the completion together are a number, too.
        let most = usize::MAX / 2;
        let usage = Usage { prompt_tokens: most, cached_tokens: most, completion_tokens: most };
        let text = WIDEST.repeat(EVENT_CHARACTERS);
        let choice = self.piece(&text, Some(FinishReason::Length));
        let of_usage = self.encode(self.chunk_object(), &[], Some(usage.into()), Some(""));
        of_usage.len().max(self.encode(self.chunk_object(), &[choice], None, Some("")).len())
    }

    /// After the seal: the place in the log, and the end.
    pub(crate) async fn finish(&mut self, sealed: &Sealed) -> Result<(), Gone> {
        self.next_period().await?;
        if !self.format.stream {
            let headers = vec![("content-type", "application/json".to_owned())];
            return self.http.send_loaded_whole(200, headers).await;
        }
        let place = Place {
            id: self.format.request.to_string(),
            chain_head: sealed.chain_head.to_string(),
            entry_index: sealed.index,
            leaf_hash: sealed.leaf_hash.to_string(),
            auditor: self.http.second_opinion_outstanding().then_some("outstanding"),
        };
        // A comment: clients of this API take the data of any event, whatever its name, for a chunk.
        let mut end = b": isolation ".to_vec();
        end.extend(serde_json::to_vec(&place).unwrap_or_default());
        end.extend_from_slice(b"\n\ndata: [DONE]\n\n");
        self.http.end(end.into()).await
    }

    /// A stream that cannot go on says so and is cut, without `[DONE]`. Nothing of a step is in it.
    pub(crate) async fn break_off(http: &mut Exchange, refusal: &Refusal) -> Result<(), Gone> {
        http.notice(frame(&refusal.json())).await
    }

    async fn send_loaded(&mut self) -> Result<(), Gone> {
        self.begin().await?;
        self.http.send_loaded().await
    }

    async fn comment(&mut self, bytes: Bytes) -> Result<(), Gone> {
        self.begin().await?;
        self.http.notice(bytes).await
    }

    async fn begin(&mut self) -> Result<(), Gone> {
        if self.http.is_unanswered() {
            // Compressed by somebody on the way, events of one size would have many.
            let caching = if self.shaped.is_some() { "no-cache, no-transform" } else { "no-cache" };
            let headers = vec![
                ("content-type", "text/event-stream; charset=utf-8".to_owned()),
                ("cache-control", caching.to_owned()),
                ("x-accel-buffering", "no".to_owned()),
            ];
            self.http.begin(200, headers).await?;
        }
        self.quiet_since = Instant::now();
        Ok(())
    }

    fn chunk_object(&self) -> &'static str {
        match self.format.api {
            Api::Chat => "chat.completion.chunk",
            Api::Text => "text_completion",
        }
    }

    fn chunk(&self, released: &Released) -> Vec<u8> {
        let choice = self.piece(released.text().reveal(), released.finish());
        self.encode(self.chunk_object(), &[choice], None, None)
    }

    fn piece<'b>(&self, text: &'b str, finish: Option<FinishReason>) -> Choice<'b> {
        let finish_reason = finish.map(FinishReason::as_str);
        match self.format.api {
            Api::Chat => Choice::chat_delta(text, !self.begun, finish_reason),
            Api::Text => Choice::text(text, finish_reason),
        }
    }

    fn whole(&self, released: &Released, usage: Usage) -> Vec<u8> {
        let text = released.text().reveal();
        let finish_reason = released.finish().map(FinishReason::as_str);
        let (object, choice) = match self.format.api {
            Api::Chat => ("chat.completion", Choice::chat_message(text, finish_reason)),
            Api::Text => ("text_completion", Choice::text(text, finish_reason)),
        };
        self.encode(object, &[choice], Some(usage.into()), None)
    }

    fn encode(
        &self,
        object: &'static str,
        choices: &[Choice<'_>],
        usage: Option<UsageObject>,
        obfuscation: Option<&str>,
    ) -> Vec<u8> {
        let completion = CompletionObject {
            id: &self.id,
            object,
            created: self.created,
            model: self.format.model.as_str(),
            system_fingerprint: &self.format.system_fingerprint,
            choices,
            usage,
            obfuscation,
        };
        // INVARIANT: strings and numbers always serialize.
        serde_json::to_vec(&completion).unwrap_or_default()
    }
}

fn at_socket(error: SealError) -> RequestError {
    RequestError::Seal { leg: Leg::ClientSocket, error }
}

fn frame(payload: &[u8]) -> Bytes {
    let mut event = Vec::with_capacity(payload.len() + 8);
    event.extend_from_slice(b"data: ");
    event.extend_from_slice(payload);
    event.extend_from_slice(b"\n\n");
    event.into()
}

#[derive(Serialize)]
struct Place {
    id: String,
    chain_head: String,
    entry_index: u64,
    leaf_hash: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    auditor: Option<&'static str>,
}

#[derive(Serialize)]
struct CompletionObject<'a> {
    id: &'a str,
    object: &'a str,
    created: u64,
    model: &'a str,
    /// Changes when the same request may get another answer; the receipt has all of it.
    system_fingerprint: &'a str,
    choices: &'a [Choice<'a>],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<UsageObject>,
    /// Padding, under the name that the OpenAI API has for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    obfuscation: Option<&'a str>,
}

#[derive(Clone, Copy, Serialize)]
struct UsageObject {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptTokensDetails,
}

#[derive(Clone, Copy, Serialize)]
struct PromptTokensDetails {
    cached_tokens: usize,
}

impl From<Usage> for UsageObject {
    fn from(Usage { prompt_tokens, cached_tokens, completion_tokens }: Usage) -> Self {
        let total_tokens = prompt_tokens + completion_tokens;
        let prompt_tokens_details = PromptTokensDetails { cached_tokens };
        Self { prompt_tokens, completion_tokens, total_tokens, prompt_tokens_details }
    }
}

#[derive(Serialize)]
struct Choice<'a> {
    index: u32,
    #[serde(flatten)]
    content: Content<'a>,
    logprobs: Option<()>,
    finish_reason: Option<&'static str>,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Content<'a> {
    Message(Message<'a>),
    Delta(Message<'a>),
    Text(&'a str),
}

#[derive(Serialize)]
struct Message<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
}

impl<'a> Choice<'a> {
    fn of(content: Content<'a>, finish_reason: Option<&'static str>) -> Self {
        Self { index: 0, content, logprobs: None, finish_reason }
    }

    fn chat_message(text: &'a str, finish_reason: Option<&'static str>) -> Self {
        Self::of(Content::Message(Message { role: Some("assistant"), content: Some(text) }), finish_reason)
    }

    /// The first one names the role; the last one may have no text.
    fn chat_delta(text: &'a str, first: bool, finish_reason: Option<&'static str>) -> Self {
        let content = (first || !text.is_empty()).then_some(text);
        Self::of(Content::Delta(Message { role: first.then_some("assistant"), content }), finish_reason)
    }

    fn text(text: &'a str, finish_reason: Option<&'static str>) -> Self {
        Self::of(Content::Text(text), finish_reason)
    }
}

#[cfg(test)]
impl Format {
    /// Of a text completion.
    pub(crate) fn plain(stream: bool, permit: &Permit) -> Self {
        Self {
            stream,
            api: Api::Text,
            request: permit.request(),
            model: permit.model().clone(),
            system_fingerprint: "fp".into(),
            include_usage: true,
            comment_interval: Duration::from_secs(60),
            period: None,
        }
    }

    /// Of a chat stream in constant shape.
    pub(crate) fn shaped(permit: &Permit, period: Duration) -> Self {
        Self { api: Api::Chat, period: Some(period), ..Self::plain(true, permit) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn shape(choice: &Choice<'_>) -> Value {
        serde_json::to_value(choice).unwrap()
    }

    #[test]
    fn choices_have_the_shapes_of_the_openai_api() {
        assert_eq!(
            shape(&Choice::chat_message("hi", Some("stop"))),
            json!({"index": 0, "message": {"role": "assistant", "content": "hi"}, "logprobs": null, "finish_reason": "stop"})
        );
        assert_eq!(
            shape(&Choice::chat_delta("hi", true, None)),
            json!({"index": 0, "delta": {"role": "assistant", "content": "hi"}, "logprobs": null, "finish_reason": null})
        );
        assert_eq!(
            shape(&Choice::chat_delta("", false, Some("length"))),
            json!({"index": 0, "delta": {}, "logprobs": null, "finish_reason": "length"})
        );
        assert_eq!(
            shape(&Choice::text("hi", None)),
            json!({"index": 0, "text": "hi", "logprobs": null, "finish_reason": null})
        );
    }

    #[test]
    fn what_was_cached_is_among_the_prompt_s_tokens() {
        let usage = UsageObject::from(Usage { prompt_tokens: 70, cached_tokens: 64, completion_tokens: 5 });
        assert_eq!(
            serde_json::to_value(usage).unwrap(),
            json!({"prompt_tokens": 70, "completion_tokens": 5, "total_tokens": 75,
                "prompt_tokens_details": {"cached_tokens": 64}})
        );
    }

    #[test]
    fn an_event_is_one_line_whatever_the_text() {
        let payload = serde_json::to_vec(&Choice::text("a\nb\r\n\u{2028}data: x", None)).unwrap();
        let event = frame(&payload);
        assert!(event.starts_with(b"data: ") && event.ends_with(b"\n\n"));
        assert_eq!(event.iter().filter(|byte| **byte == b'\n' || **byte == b'\r').count(), 2);
    }
}
