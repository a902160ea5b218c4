//! What a worker that decodes tells the readers in the gateway.

use super::stream_words::{StepWord, StreamWord, Submitted};
use super::wire::{self, PromptBounds, Word, WordError};
use crate::engine::{Counters, SubmitError, enqueue_after};
use crate::inbox::Inbox;
use crate::sequence::Sequence;
use crate::steps::{STEPS_AHEAD, StepError, Steps, Timings, Usage};
use engine_link::LinkSender;
use policies_domain::{Epoch, Layer};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};

/// Words of the gateway that wait to be taken in.
const WORDS_MAX: usize = 256;

/// Between two looks for a place.
const PLACE_PAUSE: Duration = Duration::from_millis(20);

/// Takes words about streams in, from the thread that receives them.
pub(super) struct Relay(mpsc::Sender<(u64, Order)>);

enum Order {
    Submit(Box<Submitted>),
    Cancel,
    Room(u32),
}

/// Says what there is to say, on a thread of its own, until the [`Relay`] is dropped. Then nobody reads any more.
pub(super) struct Relaying {
    orders: mpsc::Receiver<(u64, Order)>,
    inbox: Arc<Inbox>,
    counters: Arc<Counters>,
    context_max: usize,
    sender: LinkSender,
}

struct Stream {
    task: AbortHandle,
    room: Arc<Semaphore>,
}

impl Relay {
    pub(super) fn new(
        inbox: Arc<Inbox>,
        counters: Arc<Counters>,
        context_max: usize,
        sender: LinkSender,
    ) -> (Self, Relaying) {
        let (words, orders) = mpsc::channel(WORDS_MAX);
        (Self(words), Relaying { orders, inbox, counters, context_max, sender })
    }

    pub(super) fn take(&self, stream: u64, word: StreamWord, bounds: PromptBounds) -> Result<(), WordError> {
        let order = match word {
            StreamWord::Submit(submit) => Order::Submit(Box::new(submit.submitted(bounds)?)),
            StreamWord::Cancel => Order::Cancel,
            StreamWord::Room(read) => Order::Room(read),
            StreamWord::Step(_) | StreamWord::Failed(..) => return Err(WordError::NotHere),
        };
        // When nobody takes it, the link is about to end.
        let _taken = self.0.blocking_send((stream, order));
        Ok(())
    }
}

impl Relaying {
    pub(super) async fn run(mut self) {
        let mut streams: HashMap<u64, Stream> = HashMap::new();
        let mut tasks = JoinSet::new();
        loop {
            tokio::select! {
                order = self.orders.recv() => match order {
                    None => return,
                    Some((stream, Order::Submit(submitted))) => {
                        let unread = submitted.after.unread as usize;
                        let room = Arc::new(Semaphore::new(STEPS_AHEAD.saturating_sub(unread)));
                        let told = Told { stream, room: room.clone(), sender: self.sender.clone() };
                        let steps = self.submit(*submitted);
                        let task = tasks.spawn(async { told.tell(steps.await).await });
                        streams.insert(stream, Stream { task, room });
                    }
                    Some((stream, Order::Cancel)) => {
                        if let Some(stream) = streams.remove(&stream) {
                            stream.task.abort();
                        }
                    }
                    Some((stream, Order::Room(read))) => {
                        if let Some(stream) = streams.get(&stream) {
                            let permits = STEPS_AHEAD.saturating_sub(stream.room.available_permits());
                            stream.room.add_permits(permits.min(read as usize));
                        }
                    }
                },
                Some(ended) = tasks.join_next() => {
                    if let Ok(stream) = ended {
                        streams.remove(&stream);
                    }
                }
            }
        }
    }

    /// As soon as there is a place. The gateway counts them, too, so that this is only for those who are about to leave.
    fn submit(&self, submitted: Submitted) -> impl Future<Output = Result<Steps, StepError>> + use<> {
        let Submitted { label, request, tokens, sampling, sealer, after } = submitted;
        let (inbox, context_max) = (self.inbox.clone(), self.context_max);
        self.counters.go_on_from(Epoch(after.epoch));
        let binding = *sealer.binding();
        let key = sealer.key().clone();
        async move {
            loop {
                let sequence = Sequence { tokens: tokens.clone(), label, request };
                let sealer = key.sealer(Layer::Text, binding);
                match enqueue_after(&inbox, context_max, sequence, sampling.clone(), sealer, after.steps) {
                    Ok(steps) => return Ok(steps),
                    Err(SubmitError::Full { .. } | SubmitError::TenantFull { .. }) => {
                        tokio::time::sleep(PLACE_PAUSE).await
                    }
                    Err(SubmitError::Stopped) => return Err(StepError::Stopped),
                    Err(SubmitError::TooLong { .. } | SubmitError::PermitMismatch) => return Err(StepError::Internal),
                }
            }
        }
    }
}

/// One stream.
struct Told {
    stream: u64,
    room: Arc<Semaphore>,
    sender: LinkSender,
}

impl Told {
    /// Until the last step, an error, or the link's end. Gives the stream's number.
    async fn tell(self, steps: Result<Steps, StepError>) -> u64 {
        let mut steps = match steps {
            Ok(steps) => steps,
            Err(error) => {
                self.say(StreamWord::failed(error, Usage::default(), Timings::default())).await;
                return self.stream;
            }
        };
        while let Some(result) = steps.next().await {
            // Never closed.
            let Ok(permit) = self.room.acquire().await else { break };
            permit.forget();
            let last = result.as_ref().map_or(true, |step| step.finish.is_some());
            let word = match &result {
                Ok(step) => StreamWord::Step(StepWord::of(step, steps.usage(), steps.timings(), steps.record())),
                Err(error) => StreamWord::failed(*error, steps.usage(), steps.timings()),
            };
            if !self.say(word).await || last {
                break;
            }
        }
        self.stream
    }

    async fn say(&self, word: StreamWord) -> bool {
        self.sender.send_async(wire::write(&Word::Stream(self.stream, word))).await
    }
}
