//! Readers in the gateway of requests that a worker decodes.

use super::stream_words::{AfterWord, StreamWord, SubmitWord};
use super::wire::{self, Word, WordError};
use crate::engine::Counters;
use crate::inbox::{Inbox, Queue, work_ns};
use crate::outlet::Outlet;
use crate::replay_digest::AnswerRecord;
use crate::running::Running;
use crate::split::Prompt;
use crate::steps::{Delivery, STEPS_AHEAD, StepError, Timings, Usage, WORKER_AWAITED};
use engine_link::LinkSender;
use engine_scheduler::{Load, places_of_one};
use policies_domain::Label;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often it is looked for those who have waited for too long.
const LOOK: Duration = Duration::from_millis(250);
/// The worker is told of so many steps that were read at once.
const ROOM_STEP: u32 = 8;

/// All requests that were not answered to their end.
pub(crate) struct Streams {
    inbox: Arc<Inbox>,
    counters: Arc<Counters>,
    state: Mutex<State>,
}

struct State {
    open: BTreeMap<u64, Open>,
    next: u64,
    link: Option<Joined>,
    away_since: Instant,
}

/// The worker's link.
struct Joined {
    sender: LinkSender,
    place: Place,
    /// Of the group that computes prompts here for this link.
    group: Arc<Inbox>,
}

/// What a worker has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Its pages have these numbers here.
    pub(super) first_page: u32,
    pub(super) pages: u32,
    /// Requests that may run and wait there.
    pub(super) places: usize,
}

struct Open {
    request: Running,
    /// On this link.
    submitted: bool,
    /// Steps that came on this link, with those that were not read before; and those of them that the worker knows to be
    /// read.
    came: u32,
    told: u32,
    /// All that came, on any link.
    after: AfterWord,
    usage: Usage,
    timings: Timings,
}

/// Whether a prompt is what this end submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// It is.
    Yes,
    /// Its reader is gone.
    Gone,
    /// The request was submitted, and is another tenant's or of other tokens.
    Other,
}

impl Open {
    /// Steps that were read and that the worker does not know of.
    fn read(&self) -> u32 {
        self.came.saturating_sub(self.waiting()).saturating_sub(self.told)
    }

    /// The client has got, or will get, something that cannot be taken back.
    fn has_begun(&self) -> bool {
        self.usage.completion_tokens > 0
    }

    fn waiting(&self) -> u32 {
        if let Outlet::Reader(reader) = &self.request.outlet { reader.waiting() } else { 0 }
    }

    fn deliver(&self, result: Result<policies_domain::Step, StepError>) -> bool {
        self.deliver_with(result, None)
    }

    fn deliver_with(
        &self,
        result: Result<policies_domain::Step, StepError>,
        record: Option<Box<AnswerRecord>>,
    ) -> bool {
        let Outlet::Reader(reader) = &self.request.outlet else { return false };
        let failed = result.is_err();
        let sent = reader.send(Delivery { result, usage: self.usage, timings: self.timings, record });
        if failed {
            reader.presence.note_failure();
        }
        sent
    }
}

impl State {
    /// Whether the worker has a place for a request of this tenant.
    fn has_place(link: Option<&Joined>, submitted: &BTreeMap<Label, usize>, label: Label) -> bool {
        let Some(Joined { place: Place { places, .. }, .. }) = link else { return false };
        let of_one = submitted.get(&label).copied().unwrap_or_default();
        submitted.values().sum::<usize>() < *places && of_one < places_of_one(*places)
    }

    /// By tenant.
    fn submitted(&self) -> BTreeMap<Label, usize> {
        let mut submitted = BTreeMap::new();
        for open in self.open.values().filter(|open| open.submitted) {
            *submitted.entry(open.request.label).or_insert(0) += 1;
        }
        submitted
    }

    fn may_submit(&self) -> bool {
        let submitted = self.submitted();
        let mut waiting = self.open.values().filter(|open| !open.submitted);
        waiting.any(|open| Self::has_place(self.link.as_ref(), &submitted, open.request.label))
    }
}

impl Streams {
    pub(crate) fn new(inbox: Arc<Inbox>, counters: Arc<Counters>) -> Self {
        let state = State { open: BTreeMap::new(), next: 0, link: None, away_since: Instant::now() };
        Self { inbox, counters, state: Mutex::new(state) }
    }

    /// Submits, cancels and tells what was read, until the engine's handle is gone.
    pub(crate) fn run(&self) {
        loop {
            let mut new = Vec::new();
            if !self.inbox.wait_until(Some(LOOK), |queue| self.look(queue, &mut new)) {
                break;
            }
            // Not under the lock: a link that is full must not keep what comes from it waiting.
            if let Some((sender, words)) = self.round(new) {
                for (stream, word) in words {
                    if !sender.send(wire::write(&Word::Stream(stream, word))) {
                        break;
                    }
                }
            }
        }
        let mut state = self.lock();
        // The link ends when nobody has anything to send any more.
        if let Some(Joined { group, .. }) = state.link.take() {
            group.stop();
        }
        for (_, open) in std::mem::take(&mut state.open) {
            open.deliver(Err(StepError::Stopped));
        }
    }

    /// Takes the new ones. `false`: there is nothing to say.
    fn look(&self, queue: &mut Queue, new: &mut Vec<Running>) -> bool {
        let state = self.lock();
        new.extend(queue.came.drain(..));
        queue.inside.clear();
        for request in state.open.values().map(|open| &open.request).chain(&*new) {
            let load = Load { running: 0, waiting: 1, work_ns: work_ns(&queue.costs, request) };
            let inside = queue.inside.entry(request.label).or_default();
            *inside = inside.and(load);
        }
        let news = |open: &Open| open.request.cancelled() || open.read() >= ROOM_STEP;
        !new.is_empty() || state.may_submit() || state.open.values().any(news)
    }

    /// What is to be said now.
    fn round(&self, new: Vec<Running>) -> Option<(LinkSender, Vec<(u64, StreamWord)>)> {
        let mut state = self.lock();
        let mut submitted = state.submitted();
        let State { open, next, link, away_since } = &mut *state;
        for request in new {
            let usage = Usage { prompt_tokens: request.prompt_tokens, cached_tokens: 0, completion_tokens: 0 };
            let timings = Timings::default();
            let after = AfterWord::default();
            open.insert(*next, Open { request, submitted: false, came: 0, told: 0, after, usage, timings });
            *next += 1;
        }
        let mut words = Vec::new();
        open.retain(|stream, open| {
            let label = open.request.label;
            if open.request.cancelled() {
                if open.submitted {
                    *submitted.entry(label).or_insert(1) -= 1;
                    words.push((*stream, StreamWord::Cancel));
                }
                return false;
            }
            match (open.submitted, link.is_some()) {
                (false, true) if !State::has_place(link.as_ref(), &submitted, label) => (),
                (false, true) => {
                    match SubmitWord::of(&open.request, AfterWord { unread: open.waiting(), ..open.after }) {
                        Some(submit) => {
                            *submitted.entry(label).or_insert(0) += 1;
                            (open.submitted, open.came, open.told) = (true, open.waiting(), 0);
                            words.push((*stream, StreamWord::Submit(submit)));
                        }
                        None => {
                            open.deliver(Err(StepError::RowBinding));
                            return false;
                        }
                    }
                }
                (false, false) if away_since.elapsed() >= WORKER_AWAITED => {
                    open.deliver(Err(StepError::WorkerAway));
                    return false;
                }
                (true, true) if open.read() >= ROOM_STEP => {
                    let read = open.read();
                    open.told += read;
                    words.push((*stream, StreamWord::Room(read)));
                }
                _ => (),
            }
            true
        });
        self.counters.running.store(open.len(), Ordering::Relaxed);
        link.as_ref().map(|link| (link.sender.clone(), words))
    }

    /// A worker is connected, whose pages have these numbers.
    pub(super) fn join(&self, sender: LinkSender, place: Place, group: &Arc<Inbox>) {
        let mut state = self.lock();
        if self.inbox.is_stopped() {
            return group.stop();
        }
        state.link = Some(Joined { sender, place, group: group.clone() });
        drop(state);
        self.counters.worker_away.store(false, Ordering::SeqCst);
        self.inbox.wake_if_asleep();
    }

    /// It is gone. Whoever has got a token is told so; all others are submitted again.
    pub(super) fn part(&self) {
        self.counters.worker_away.store(true, Ordering::SeqCst);
        let mut state = self.lock();
        state.link = None;
        state.away_since = Instant::now();
        state.open.retain(|_, open| {
            let begun = open.submitted && open.has_begun();
            if begun {
                open.deliver(Err(StepError::WorkerAway));
            }
            open.submitted = false;
            !begun
        });
    }

    /// Something came about a stream. One that is not open any more is not missed.
    pub(super) fn take(&self, stream: u64, word: StreamWord) -> Result<(), WordError> {
        let mut state = self.lock();
        let Some(Joined { place: Place { first_page, pages, .. }, .. }) = state.link else { return Ok(()) };
        let (result, usage, timings, record) = match word {
            StreamWord::Step(step) => {
                let (step, usage, timings, record) = step.step(first_page, pages)?;
                (Ok(step), usage, timings, record.map(Box::new))
            }
            StreamWord::Failed(failure, counts) => {
                let (usage, timings) = counts.counts()?;
                (Err(failure.error(first_page, pages)?), usage, timings, None)
            }
            StreamWord::Submit(_) | StreamWord::Cancel | StreamWord::Room(_) => return Err(WordError::NotHere),
        };
        let Some(open) = state.open.get_mut(&stream).filter(|open| open.submitted) else { return Ok(()) };
        if open.came.saturating_sub(open.told) >= STEPS_AHEAD as u32 {
            return Err(WordError::Field("steps"));
        }
        let goes_on = result.as_ref().is_ok_and(|step| step.finish.is_none());
        if let Ok(step) = &result {
            self.counters.computed(false, step.tokens as usize);
            let epoch = step.seal.origin().epoch.0;
            open.after = AfterWord { steps: step.index.saturating_add(1), epoch, unread: 0 };
        }
        (open.usage, open.timings) = (usage, timings);
        open.came += 1;
        // Whoever does not take it is gone, and is noticed as such.
        let sent = open.deliver_with(result, record);
        if sent && !goes_on {
            state.open.remove(&stream);
            self.counters.running.store(state.open.len(), Ordering::Relaxed);
            drop(state);
            // There is a place now.
            self.inbox.wake_if_asleep();
        }
        Ok(())
    }

    /// Whether a prompt that is to be computed here is one of a request that was submitted from here.
    pub(super) fn knows(&self, prompt: &Prompt) -> Known {
        let state = self.lock();
        let submitted = |open: &&Open| open.submitted && open.request.request == prompt.request;
        match state.open.values().find(submitted).map(|open| &open.request) {
            None => Known::Gone,
            Some(own) if own.label != prompt.label || !prompt.tokens.starts_with(&own.tokens) => Known::Other,
            Some(_) => Known::Yes,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
