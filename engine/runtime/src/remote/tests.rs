//! Two groups with a real link between them, over a model whose answers say what was read.

use super::connecting::{Connecting, RemoteWorker};
use super::door::Door;
use super::exchange::Parted;
use super::introduction::{self, MeetError, Requests};
use super::link_terms;
use super::stream_words::{AfterWord, StepWord, StreamWord, SubmitWord};
use super::streams::{Known, Place, Streams};
use super::wire::{
    self, Came, Hello, PartyWord, Peer, PromptBounds, Reader, Refused, VERSION, Welcome, Word, WordError,
};
use super::worker::{Deciding, Serving};
use crate::compute::{Compute, tracer::Tracer};
use crate::config::EngineConfig;
use crate::engine::{Counters, enqueue, enqueue_after};
use crate::executor::tests::{label, sealer};
use crate::inbox::Inbox;
use crate::machine::{Machine, Pages};
use crate::outlet::{Outlet, Said};
use crate::sampling::{Sampler, Sampling};
use crate::sequence::Sequence;
use crate::split::{DecodeGroup, Parcel, Prompt, Terms};
use crate::step::{Role, Stepper};
use crate::steps::{StepError, Steps, Timings, Usage};
use crate::ticket::{Ticket, Ticketed};
use engine_handoff::{AbortReason, Attempt, HandoffId, HandoffKey, Incarnation, Message, Party, Route};
use engine_kv::{PAGE_TOKENS, PageFormat};
use engine_link::{Address, Authority, Frame, Identity, IdentityFiles, Link, LinkTerms, Listener, connect};
use policies_domain::{
    Completion, Epoch, Generation, Layer, PageId, PageRead, PageTrace, RequestId, SealError, SealKey, Step,
};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tempfile::TempDir;

const CONFIG: EngineConfig = EngineConfig { pages: 64, queue_max: 60, ..crate::executor::tests::CONFIG };
const CONTEXT: usize = 1024;
const FINGERPRINT: [u8; 32] = [7; 32];

/// Of tokens that the model has.
fn prompt(tenant: u32, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|token| (tenant * 5 + token * (tenant + 2) + token * token) % 26).collect()
}

fn terms() -> LinkTerms {
    link_terms(1 << 12, CONTEXT)
}

/// Certificates, and a place for the socket.
struct Site(TempDir);

impl Site {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        Authority::write(&folder.path().join("keys")).unwrap();
        Self(folder)
    }

    fn identity(&self, role: engine_link::Role) -> Identity {
        let files = IdentityFiles::in_folder(&self.0.path().join("keys"), role);
        Identity::load(role, &files).unwrap()
    }

    fn address(&self) -> Address {
        Address::Unix(self.0.path().join("worker.sock"))
    }

    fn listener(&self) -> Listener {
        Listener::bind(&self.address(), &self.identity(engine_link::Role::Prefill), terms()).unwrap()
    }

    fn connect(&self) -> Link {
        connect(&self.address(), &self.identity(engine_link::Role::Decode), terms()).unwrap()
    }
}

fn machine(pages: usize) -> Machine<Tracer> {
    let pages = Pages { count: pages, first: 0, boot_secret: [3; 32], format: PageFormat::F32, compat: 0 };
    Machine::new(Tracer::new(pages.count), pages)
}

const BOUNDS: PromptBounds = PromptBounds { vocabulary: 26, context_length: CONTEXT };

fn serving(config: EngineConfig, fingerprint: [u8; 32]) -> Serving<Tracer> {
    Serving::new(machine(config.pages), config, fingerprint, BOUNDS, Requests::There, Arc::new(Counters::new()))
        .unwrap()
}

fn deciding(inbox: &Arc<Inbox>, counters: &Arc<Counters>) -> (Deciding, DecodeGroup, Machine<Tracer>) {
    let machine = machine(CONFIG.pages);
    let stepper = Stepper::new(Role::Decode, inbox.clone(), counters.clone(), CONFIG);
    let (deciding, group) = Deciding::new(stepper, &machine, FINGERPRINT, CONTEXT).unwrap();
    (deciding, group, machine)
}

/// A worker that works for so many links, one after the other, and is a new process for each of them if that is wanted.
fn worker(site: &Site, links: usize, anew: bool) -> JoinHandle<Vec<Result<Parted, MeetError>>> {
    let listener = site.listener();
    thread::spawn(move || {
        let mut serving = self::serving(CONFIG, FINGERPRINT);
        let mut ends = Vec::new();
        for _ in 0..links {
            if anew {
                serving = self::serving(CONFIG, FINGERPRINT);
            }
            ends.push(serving.serve(listener.accept().unwrap().shake_hands().unwrap(), None));
            assert_eq!(serving.machine.pool.counts().free, CONFIG.pages, "pages are left from a link that has ended");
            assert!(serving.machine.compute.is_scrubbed());
        }
        ends
    })
}

/// What runs in a scope ends with it, whatever was found out.
struct Stops<'a>(&'a Inbox);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// The gateway's half of an engine, without a gateway.
struct Half {
    inbox: Arc<Inbox>,
    counters: Arc<Counters>,
    threads: Vec<JoinHandle<()>>,
    runtime: tokio::runtime::Runtime,
    submitted: u8,
}

fn connecting(site: &Site, role: engine_link::Role, inbox: &Arc<Inbox>) -> Connecting {
    let worker = RemoteWorker { address: site.address(), identity: site.identity(role) };
    Connecting { worker, terms: terms(), inbox: inbox.clone() }
}

impl Half {
    fn new(site: &Site) -> Self {
        let (inbox, counters) = (Arc::new(Inbox::new(64)), Arc::new(Counters::new()));
        let (mut deciding, group, machine) = deciding(&inbox, &counters);
        let between = deciding.between.clone();
        let connecting = connecting(site, engine_link::Role::Decode, &inbox);
        let threads = vec![
            thread::spawn(move || between.run_decode(group, machine)),
            thread::spawn(move || connecting.to_prefill(&mut deciding)),
        ];
        Self::with(inbox, counters, threads)
    }

    /// The half that computes prompts, and has the readers.
    fn of_prefill(site: &Site) -> Self {
        let (inbox, counters) = (Arc::new(Inbox::new(64)), Arc::new(Counters::new()));
        counters.worker_away.store(true, Ordering::SeqCst);
        let requests = Requests::Here { context_max: CONTEXT as u64 };
        let mut serving =
            Serving::new(machine(CONFIG.pages), CONFIG, FINGERPRINT, BOUNDS, requests, counters.clone()).unwrap();
        let streams = Arc::new(Streams::new(inbox.clone(), counters.clone()));
        let (of_streams, connecting) = (streams.clone(), connecting(site, engine_link::Role::Prefill, &inbox));
        let threads = vec![
            thread::spawn(move || of_streams.run()),
            thread::spawn(move || connecting.to_decode(&mut serving, &streams)),
        ];
        Self::with(inbox, counters, threads)
    }

    fn with(inbox: Arc<Inbox>, counters: Arc<Counters>, threads: Vec<JoinHandle<()>>) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        Self { inbox, counters, threads, runtime, submitted: 0 }
    }

    fn submit(&mut self, tenant: u32, tokens: u32, wanted: usize) -> Asked {
        let sampling = Sampling { max_tokens: Some(wanted), temperature: 0.0, ..Sampling::default() };
        self.submit_with(tenant, tokens, wanted, sampling)
    }

    fn submit_with(&mut self, tenant: u32, tokens: u32, wanted: usize, sampling: Sampling) -> Asked {
        self.submitted += 1;
        let (prompt, request) = (prompt(tenant, tokens), RequestId::from_bytes([self.submitted; 16]));
        let sequence = Sequence { tokens: prompt.clone(), label: label(tenant), request };
        let steps = enqueue(&self.inbox, CONTEXT, sequence, sampling, sealer(label(tenant), request)).unwrap();
        Asked { tenant, prompt, wanted, steps }
    }

    /// Reads all of an answer, with the eyes of the gate.
    fn answer(&self, mut asked: Asked) -> Result<Vec<PageTrace>, StepError> {
        let (mut text, mut traces) = (String::new(), Vec::new());
        self.runtime.block_on(async {
            while let Some(step) = asked.steps.next().await {
                let step = step?;
                assert!(step.trace.pages.iter().all(|read| read.label == label(asked.tenant)));
                text += step.text.reveal();
                traces.push(step.trace);
            }
            assert_eq!(text, Tracer::answer(&asked.prompt, asked.wanted));
            Ok(traces)
        })
    }
}

struct Asked {
    tenant: u32,
    prompt: Vec<u32>,
    wanted: usize,
    steps: Steps,
}

impl Drop for Half {
    fn drop(&mut self) {
        self.inbox.stop();
        let ended: Vec<_> = self.threads.drain(..).map(JoinHandle::join).collect();
        assert!(thread::panicking() || ended.iter().all(Result::is_ok));
    }
}

#[test]
fn prompts_that_a_worker_computes_give_the_same_answers() {
    let site = Site::new();
    let worker = worker(&site, 1, false);
    let mut half = Half::new(&site);
    let asked: Vec<Asked> =
        [(1, 1, 3), (2, 16, 40), (3, 17, 17), (1, 100, 30), (4, 33, 1), (5, 300, 60), (2, 1000, 20)]
            .map(|(tenant, tokens, wanted)| half.submit(tenant, tokens, wanted))
            .into();
    let mut prefilled = 0;
    for asked in asked {
        let tokens = asked.prompt.len();
        let traces = half.answer(asked).unwrap();
        let own = |read: &PageRead| (read.page.0 as usize) < CONFIG.pages;
        // What a prompt read is in the worker's memory, and has numbers of its own.
        let (remote, here): (Vec<_>, Vec<_>) = traces.iter().partition(|trace| !trace.pages.iter().all(own));
        assert!(remote.iter().all(|trace| !trace.pages.iter().any(own)));
        // More when it was computed anew, with what was sampled before.
        let last = remote.last().unwrap();
        assert!(last.kept + last.pages.len() >= tokens.div_ceil(PAGE_TOKENS), "all of the prompt was read");
        assert!(!here.is_empty());
        prefilled += remote.len();
    }
    assert!(prefilled > 7, "long prompts are computed in chunks");
    assert!(!half.counters.worker_away.load(Ordering::SeqCst));
    drop(half);
    assert!(matches!(worker.join().unwrap()[..], [Ok(Parted::Link(_) | Parted::Stopped)]));
}

#[test]
fn a_sampler_goes_on_where_it_was_in_the_other_process() {
    let site = Site::new();
    let _worker = worker(&site, 1, false);
    let mut half = Half::new(&site);
    let sampling = Sampling {
        max_tokens: Some(30),
        temperature: 0.7,
        seed: 11,
        top_k: 1,
        repetition_penalty: 1.0,
        ..Sampling::default()
    };
    // The likeliest alone: the answer is the greedy one, whatever is drawn.
    let asked = half.submit_with(1, 50, 30, sampling);
    half.answer(asked).unwrap();
}

/// Lets a number of bytes through in each direction, then cuts both.
fn cut_after(site: &Site, behind: &Address, limits: Vec<usize>) -> JoinHandle<()> {
    use std::io::{Read, Write};
    use std::net::Shutdown;
    use std::os::unix::net::{UnixListener, UnixStream};
    let (Address::Unix(front), Address::Unix(behind)) = (site.address(), behind.clone()) else { unreachable!() };
    let listener = UnixListener::bind(front).unwrap();
    thread::spawn(move || {
        for limit in limits {
            let (near, _) = listener.accept().unwrap();
            let far = UnixStream::connect(&behind).unwrap();
            let passed = Arc::new(AtomicUsize::new(0));
            let pass = |mut from: UnixStream, mut to: UnixStream| {
                let passed = passed.clone();
                thread::spawn(move || {
                    let mut bytes = [0; 512];
                    while let Ok(read @ 1..) = from.read(&mut bytes) {
                        if passed.fetch_add(read, Ordering::SeqCst) + read > limit
                            || to.write_all(&bytes[..read]).is_err()
                        {
                            break;
                        }
                    }
                    for stream in [from, to] {
                        let _closed = stream.shutdown(Shutdown::Both);
                    }
                })
            };
            let ways = [pass(near.try_clone().unwrap(), far.try_clone().unwrap()), pass(far, near)];
            ways.into_iter().for_each(|way| way.join().unwrap());
        }
    })
}

#[test]
fn a_link_that_is_cut_anywhere_costs_time_and_nothing_else() {
    for anew in [false, true] {
        let site = Site::new();
        let behind = Address::Unix(site.0.path().join("behind.sock"));
        let listener = Listener::bind(&behind, &site.identity(engine_link::Role::Prefill), terms()).unwrap();
        // Somewhere among prompts, pages and commits; the last one holds.
        let limits = vec![9_000, 14_000, 30_000, usize::MAX];
        let links = limits.len();
        let proxy = cut_after(&site, &behind, limits);
        let worker = thread::spawn(move || {
            let mut serving = self::serving(CONFIG, FINGERPRINT);
            for _ in 0..links {
                if anew {
                    serving = self::serving(CONFIG, FINGERPRINT);
                }
                if let Ok(link) = listener.accept().unwrap().shake_hands() {
                    let _parted = serving.serve(link, None);
                }
                assert_eq!(serving.machine.pool.counts().free, CONFIG.pages);
            }
        });
        let mut half = Half::new(&site);
        let asked: Vec<Asked> = (1..6).map(|tenant| half.submit(tenant, 150, 40)).collect();
        for asked in asked {
            half.answer(asked).unwrap();
        }
        drop(half);
        worker.join().unwrap();
        proxy.join().unwrap();
    }
}

#[test]
fn without_a_worker_requests_wait_a_while_and_are_told_then() {
    let (inbox, counters) = (Arc::new(Inbox::new(64)), Arc::new(Counters::new()));
    let mut machine = machine(CONFIG.pages);
    let terms = Terms::new([9; 32], machine.compute.content_bytes(), FINGERPRINT, false, 4).unwrap();
    let stepper = Stepper::new(Role::Decode, inbox.clone(), counters, CONFIG);
    let mut group = DecodeGroup::new(stepper, terms, Incarnation(5), None, [1; 32]);
    let submit = |id: u8| {
        let request = RequestId::from_bytes([id; 16]);
        let sequence = Sequence { tokens: prompt(1, 20), label: label(1), request };
        let sampling = Sampling { max_tokens: Some(4), ..Sampling::default() };
        enqueue(&inbox, CONTEXT, sequence, sampling, sealer(label(1), request)).unwrap()
    };
    let second = |seconds: u64| Duration::from_secs(seconds);
    let mut steps = submit(1);
    let look = |machine: &mut Machine<Tracer>, group: &mut DecodeGroup, now| {
        inbox.look(|queue| group.look(machine, now, queue));
    };
    look(&mut machine, &mut group, second(9));
    assert!(steps.try_next().is_none() && group.awaits() && group.outbox.is_empty());
    look(&mut machine, &mut group, second(10));
    assert!(matches!(steps.try_next(), Some(Err(StepError::WorkerAway))));
    let mut late = submit(2);
    look(&mut machine, &mut group, second(11));
    assert!(matches!(late.try_next(), Some(Err(StepError::WorkerAway))), "at once: it has been away for long");
    // It comes, goes, and is waited for again.
    group.receive(&mut machine, second(20), Parcel::Peer { life: Some(Incarnation(6)) });
    let mut steps = submit(3);
    look(&mut machine, &mut group, second(21));
    assert!(steps.try_next().is_none() && !group.outbox.is_empty());
    group.outbox.clear();
    group.receive(&mut machine, second(30), Parcel::Peer { life: None });
    look(&mut machine, &mut group, second(39));
    assert!(steps.try_next().is_none(), "it may come back");
    group.receive(&mut machine, second(39), Parcel::Peer { life: Some(Incarnation(7)) });
    look(&mut machine, &mut group, second(40));
    let of_new = |parcel: &Parcel| matches!(parcel, Parcel::Prompt { route, .. } if route.prefill == Incarnation(7));
    assert!(group.outbox.iter().any(of_new), "it is computed anew by the one that is there");
    assert_eq!(machine.pool.counts().quarantined, 0);
}

fn refused_by(site: &Site, serving: Serving<Tracer>, hello: Hello) -> Refused {
    let mut serving = serving;
    let listener = site.listener();
    let worker = thread::spawn(move || serving.serve(listener.accept().unwrap().shake_hands().unwrap(), None));
    let (sender, mut receiver) = site.connect().split();
    let told = introduction::introduce(hello, &sender, &mut receiver);
    let Err(MeetError::Refused(refused)) = told else { panic!("{told:?}") };
    assert!(matches!(worker.join().unwrap(), Err(MeetError::Refusing(same)) if same == refused));
    refused
}

fn hello() -> Hello {
    let (secret, fingerprint, context_max) = ([9; 32].into(), FINGERPRINT.into(), CONTEXT as u32);
    Hello { version: VERSION, secret, life: 5, fingerprint, slots: 4, context_max, boot: 1, pages: 64, places: 9 }
}

#[test]
fn who_does_not_fit_is_told_why() {
    let site = Site::new();
    let small = EngineConfig { pages: 63, ..CONFIG };
    for (serving, hello, wanted) in [
        (serving(CONFIG, FINGERPRINT), Hello { version: 2, ..hello() }, Refused::Version(VERSION)),
        (serving(CONFIG, [8; 32]), hello(), Refused::Model),
        (serving(small, FINGERPRINT), hello(), Refused::Pages(63 * 16, 1024)),
    ] {
        assert_eq!(refused_by(&site, serving, hello), wanted);
    }
}

/// A worker that decodes, for so many links.
fn deciding_worker(site: &Site, links: usize) -> JoinHandle<()> {
    let listener = Listener::bind(&site.address(), &site.identity(engine_link::Role::Decode), terms()).unwrap();
    thread::spawn(move || {
        let (inbox, counters) = (Arc::new(Inbox::new(64)), Arc::new(Counters::new()));
        let (mut deciding, group, machine) = deciding(&inbox, &counters);
        let (between, pool) = (deciding.between.clone(), machine.pool.clone());
        let decoding = thread::spawn(move || between.run_decode(group, machine));
        for _ in 0..links {
            if let Ok(link) = listener.accept().unwrap().shake_hands() {
                let _parted = deciding.meet(link, Some(BOUNDS));
            }
        }
        // Whoever read there is gone, and holds nothing.
        while counters.running.load(Ordering::SeqCst) > 0 || pool.counts().free < CONFIG.pages {
            thread::sleep(Duration::from_millis(5));
        }
        inbox.stop();
        decoding.join().unwrap();
    })
}

#[test]
fn requests_that_a_worker_decodes_give_the_same_answers() {
    let site = Site::new();
    let worker = deciding_worker(&site, 1);
    let mut half = Half::of_prefill(&site);
    let asked: Vec<Asked> = [(1, 1, 3), (2, 16, 40), (3, 17, 170), (1, 100, 30), (4, 33, 1), (5, 300, 60)]
        .map(|(tenant, tokens, wanted)| half.submit(tenant, tokens, wanted))
        .into();
    for asked in asked {
        let traces = half.answer(asked).unwrap();
        // Numbers that the worker gave: its own pages first, then the ones here.
        let all = 2 * CONFIG.pages as u32;
        assert!(traces.iter().flat_map(|trace| &trace.pages).all(|read| read.page.0 < all));
        assert!(traces.iter().any(|trace| trace.pages.iter().all(|read| read.page.0 >= CONFIG.pages as u32)));
        assert!(traces.iter().any(|trace| trace.pages.iter().all(|read| read.page.0 < CONFIG.pages as u32)));
    }
    // Those who leave are not decoded on, and one who does not read makes nobody else wait.
    let (leaves, stalls, reads) = (half.submit(1, 20, 900), half.submit(2, 20, 400), half.submit(3, 20, 300));
    half.answer(reads).unwrap();
    drop(leaves);
    half.answer(stalls).unwrap();
    assert_eq!(half.inbox.waiting(), 0);
    drop(half);
    worker.join().unwrap();
}

#[test]
fn a_link_to_who_decodes_that_is_cut_ends_what_was_begun_and_nothing_else() {
    let site = Site::new();
    let behind = Address::Unix(site.0.path().join("behind.sock"));
    let limits = vec![12_000, 60_000, usize::MAX];
    let links = limits.len();
    let listener = Listener::bind(&behind, &site.identity(engine_link::Role::Decode), terms()).unwrap();
    let proxy = cut_after(&site, &behind, limits);
    let worker = thread::spawn(move || {
        let (inbox, counters) = (Arc::new(Inbox::new(64)), Arc::new(Counters::new()));
        let (mut deciding, group, machine) = deciding(&inbox, &counters);
        let (between, pool) = (deciding.between.clone(), machine.pool.clone());
        let decoding = thread::spawn(move || between.run_decode(group, machine));
        for _ in 0..links {
            if let Ok(link) = listener.accept().unwrap().shake_hands() {
                let _parted = deciding.meet(link, Some(BOUNDS));
            }
        }
        while pool.counts().free < CONFIG.pages {
            thread::sleep(Duration::from_millis(5));
        }
        inbox.stop();
        decoding.join().unwrap();
    });
    let mut half = Half::of_prefill(&site);
    let (mut right, mut cut) = (0, 0);
    for _ in 0..40 {
        let asked: Vec<Asked> = (1..6).map(|tenant| half.submit(tenant, 150, 40)).collect();
        for asked in asked {
            match half.answer(asked) {
                Ok(_) => right += 1,
                Err(error) => {
                    assert_eq!(error, StepError::WorkerAway);
                    cut += 1;
                }
            }
        }
        if proxy.is_finished() || (right > 20 && cut > 0) {
            break;
        }
    }
    assert!(right > 5 && cut > 0 && cut < right, "{right} right, {cut} cut");
    drop(half);
    worker.join().unwrap();
    proxy.join().unwrap();
}

#[test]
fn a_prompt_that_comes_back_as_another_one_is_an_isolation_fault() {
    let (inbox, counters) = (Arc::new(Inbox::new(64)), Arc::new(Counters::new()));
    let streams = Streams::new(inbox.clone(), counters);
    let site = Site::new();
    let listener = site.listener();
    let near = thread::spawn(move || listener.accept().unwrap().shake_hands().unwrap().split());
    let (sender, _receiver) = site.connect().split();
    let (_near_sender, mut near_receiver) = near.join().unwrap();
    streams.join(sender, Place { first_page: 0, pages: 100, places: 3 }, &Arc::new(Inbox::new(1)));
    let request = RequestId::from_bytes([6; 16]);
    let sequence = Sequence { tokens: vec![1, 2, 3], label: label(3), request };
    let sampling = Sampling { max_tokens: Some(9), ..Sampling::default() };
    let _steps = enqueue(&inbox, CONTEXT, sequence, sampling, sealer(label(3), request)).unwrap();
    let known = |label, tokens: &[u32]| {
        let prompt = Prompt { label, ..a_prompt(tokens.to_vec(), tokens.len()) };
        streams.knows(&prompt)
    };
    assert_eq!(known(label(3), &[1, 2, 3]), Known::Gone, "it was not submitted");
    thread::scope(|scope| {
        scope.spawn(|| streams.run());
        let _stops = Stops(&inbox);
        let submitted = near_receiver.receive().unwrap();
        assert!(matches!(wire::read(&submitted), Ok(Word::Stream(0, StreamWord::Submit(_)))));
        assert_eq!(known(label(3), &[1, 2, 3]), Known::Yes);
        assert_eq!(known(label(3), &[1, 2, 3, 9]), Known::Yes, "with what was sampled before");
        for (label, tokens) in [(label(4), &[1, 2, 3][..]), (label(3), &[1, 2, 4]), (label(3), &[1, 2])] {
            assert_eq!(known(label, tokens), Known::Other);
        }
    });
}

/// A request in the gateway, and what the worker is told of it.
fn request_of(inbox: &Arc<Inbox>, id: u8, tenant: u32) -> Steps {
    let (request, label) = (RequestId::from_bytes([id; 16]), label(tenant));
    let sequence = Sequence { tokens: vec![1, 2, 3], label, request };
    enqueue(inbox, CONTEXT, sequence, Sampling::default(), sealer(label, request)).unwrap()
}

#[test]
fn who_has_got_no_token_is_submitted_again_and_goes_on_where_its_reader_is() {
    let (inbox, counters) = (Arc::new(Inbox::new(64)), Arc::new(Counters::new()));
    let streams = Streams::new(inbox.clone(), counters);
    let site = Site::new();
    let listener = site.listener();
    let near = thread::spawn(move || [0, 1].map(|_| listener.accept().unwrap().shake_hands().unwrap().split().1));
    let senders = [0, 1].map(|_| site.connect().split());
    let [mut first, mut second] = near.join().unwrap();
    let [(first_sender, _first), (second_sender, _second)] = senders;
    let place = Place { first_page: 0, pages: 100, places: 9 };
    let group = Arc::new(Inbox::new(1));
    streams.join(first_sender, place, &group);
    let mut steps = request_of(&inbox, 6, 3);
    let mut begun = request_of(&inbox, 7, 3);
    let (own, request) = (sealer(label(3), RequestId::from_bytes([6; 16])), RequestId::from_bytes([6; 16]));
    let step = |index: u32, tokens| {
        let seal = own.seal(Epoch(40), index, b"", None);
        let (trace, text) = (PageTrace::default(), Completion::new(String::new()));
        let step = Step { request, index, trace, restarted: false, tokens, text, finish: None, seal };
        let usage = Usage { prompt_tokens: 3, completion_tokens: tokens as usize };
        StreamWord::Step(StepWord::of(&step, usage, Timings::default()))
    };
    thread::scope(|scope| {
        scope.spawn(|| streams.run());
        let _stops = Stops(&inbox);
        for _ in 0..2 {
            first.receive().unwrap();
        }
        streams.take(0, step(0, 0)).unwrap();
        streams.take(0, step(1, 0)).unwrap();
        streams.take(1, step(0, 1)).unwrap();
        assert!(steps.try_next().unwrap().is_ok());
        streams.part();
        assert!(begun.try_next().unwrap().is_ok());
        assert!(matches!(begun.try_next(), Some(Err(StepError::WorkerAway))), "what it said cannot be taken back");
        assert!(steps.try_next().unwrap().is_ok() && steps.try_next().is_none());
        streams.join(second_sender, place, &group);
        let word = wire::read(&second.receive().unwrap());
        let Ok(Word::Stream(0, StreamWord::Submit(again))) = word else { panic!("{word:?}") };
        let again = again.submitted(BOUNDS).unwrap();
        assert_eq!((again.after.steps, again.after.epoch, again.after.unread), (2, 40, 0));
        // The worker goes on from there.
        let (of_worker, counters) = (Arc::new(Inbox::new(4)), Counters::new());
        counters.go_on_from(Epoch(again.after.epoch));
        assert!(counters.next_epoch() > Epoch(40));
        let sequence = Sequence { tokens: again.tokens, label: again.label, request: again.request };
        let _steps = enqueue_after(&of_worker, CONTEXT, sequence, again.sampling, again.sealer, 2).unwrap();
        of_worker.look(|queue| {
            let Outlet::Reader(reader) = &mut queue.waiting[0].outlet else { panic!("no reader") };
            assert_eq!(reader.seal("", None).0, 2);
            assert!(queue.waiting[0].restarted, "its pages are others");
        });
    });
}

#[test]
fn cancelled_command_desync() {
    let (inbox, counters) = (Arc::new(Inbox::new(64)), Arc::new(Counters::new()));
    let streams = Streams::new(inbox.clone(), counters);
    let site = Site::new();
    let listener = site.listener();
    let near = thread::spawn(move || listener.accept().unwrap().shake_hands().unwrap().split().1);
    let (sender, _receiver) = site.connect().split();
    let mut near = near.join().unwrap();
    streams.join(sender, Place { first_page: 0, pages: 100, places: 9 }, &Arc::new(Inbox::new(1)));
    let step_of = |id: u8, tenant: u32, index: u32| {
        let request = RequestId::from_bytes([id; 16]);
        let seal = sealer(label(tenant), request).seal(Epoch(4), index, b"secret", None);
        let (trace, text) = (PageTrace::default(), Completion::new("secret".to_owned()));
        let step = Step { request, index, trace, restarted: false, tokens: 1, text, finish: None, seal };
        StreamWord::Step(StepWord::of(&step, Usage { prompt_tokens: 3, completion_tokens: 1 }, Timings::default()))
    };
    thread::scope(|scope| {
        scope.spawn(|| streams.run());
        let _stops = Stops(&inbox);
        let mut others = Vec::new();
        // Whoever is cancelled before, after and between its answers: the next one gets none of them.
        for (round, answers) in (0..6).zip([0, 1, 2, 0, 1, 2]) {
            let [first, second] = [2 * round, 2 * round + 1];
            let cancelled = request_of(&inbox, first as u8, 1);
            near.receive().unwrap();
            for index in 0..answers {
                streams.take(first, step_of(first as u8, 1, index)).unwrap();
            }
            drop(cancelled);
            let word = wire::read(&near.receive().unwrap());
            assert!(matches!(word, Ok(Word::Stream(stream, StreamWord::Cancel)) if stream == first), "{word:?}");
            let mut next = request_of(&inbox, second as u8, 2);
            near.receive().unwrap();
            // The late answer to the cancelled one, then its own.
            streams.take(first, step_of(first as u8, 1, answers)).unwrap();
            assert!(next.try_next().is_none());
            streams.take(second, step_of(second as u8, 2, 0)).unwrap();
            let got = next.try_next().unwrap().unwrap();
            assert_eq!(
                (got.request, got.seal.origin().binding.label),
                (RequestId::from_bytes([second as u8; 16]), label(2))
            );
            // The fault: answers are taken for those of whoever came next. The seal's own check finds out.
            streams.take(second, step_of(first as u8, 1, 1)).unwrap();
            let foreign = next.try_next().unwrap().unwrap();
            let binding = *sealer(label(2), RequestId::from_bytes([second as u8; 16])).binding();
            let mut verifier = SealKey::from_bytes([second as u8; 32]).verifier(Layer::Text, binding);
            assert_eq!(verifier.verify(&got.seal, b"secret", None), Ok(()));
            let refused = verifier.verify(&foreign.seal, b"secret", None);
            assert!(matches!(refused, Err(SealError::Foreign { .. })), "{refused:?}");
            others.push(next);
        }
    });
}

#[test]
fn retry_record_dumps_payload() {
    // What is submitted, and again: nothing of it is in what a log could be given.
    let canary = "canary-7391";
    let inbox = Arc::new(Inbox::new(4));
    let request = RequestId::from_bytes([6; 16]);
    let sequence = Sequence { tokens: vec![17_391; 3], label: label(3), request };
    let sampling = Sampling { stop: vec![canary.to_owned()], ..Sampling::default() };
    let _steps = enqueue(&inbox, CONTEXT, sequence, sampling, sealer(label(3), request)).unwrap();
    let word =
        inbox.look(|queue| SubmitWord::of(&queue.waiting[0], AfterWord { steps: 2, epoch: 9, unread: 1 }).unwrap());
    let frame = wire::write(&Word::Stream(0, StreamWord::Submit(word)));
    let bounds = PromptBounds { vocabulary: 20_000, ..BOUNDS };
    let step = {
        let seal = sealer(label(3), request).seal(Epoch(1), 0, canary.as_bytes(), None);
        let (trace, text) = (PageTrace::default(), Completion::new(canary.to_owned()));
        let step = Step { request, index: 0, trace, restarted: false, tokens: 1, text, finish: None, seal };
        StreamWord::Step(StepWord::of(&step, Usage::default(), Timings::default()))
    };
    let prompt = sent(Parcel::Prompt { route: route(), prompt: Box::new(a_prompt(vec![17_391; 3], 3)) }).remove(0);
    let Ok(Word::Stream(_, StreamWord::Submit(submit))) = wire::read(&frame) else { panic!("no request") };
    let said = format!("{:?} {:?} {frame:?} {:?} {step:?}", wire::read(&frame), wire::read(&prompt), hello());
    let refused = submit.submitted(BOUNDS).err().map(|error| error.to_string()).unwrap();
    for secret in [canary, "17391", "[6, 6", "[9, 9"] {
        assert!(!said.contains(secret) && !refused.contains(secret), "{secret} in {said} {refused}");
    }
    // The control: it is all there for whoever computes it.
    let Ok(Word::Stream(_, StreamWord::Submit(submit))) = wire::read(&frame) else { panic!("no request") };
    let submitted = submit.submitted(bounds).unwrap();
    assert_eq!((submitted.tokens, submitted.sampling.stop), (vec![17_391; 3], vec![canary.to_owned()]));
}

#[test]
fn a_worker_is_given_no_more_than_it_has_places_for() {
    let (inbox, counters) = (Arc::new(Inbox::new(64)), Arc::new(Counters::new()));
    let streams = Streams::new(inbox.clone(), counters);
    let site = Site::new();
    let listener = site.listener();
    let near = thread::spawn(move || listener.accept().unwrap().shake_hands().unwrap().split().1);
    let (sender, _receiver) = site.connect().split();
    let mut near = near.join().unwrap();
    // Four places, of which one tenant may have three.
    streams.join(sender, Place { first_page: 0, pages: 100, places: 4 }, &Arc::new(Inbox::new(1)));
    let mut asked: Vec<Steps> = (0..5).map(|id| request_of(&inbox, id, 3)).collect();
    asked.extend([request_of(&inbox, 5, 4), request_of(&inbox, 6, 5)]);
    thread::scope(|scope| {
        scope.spawn(|| streams.run());
        let _stops = Stops(&inbox);
        let mut submitted = || match wire::read(&near.receive().unwrap()) {
            Ok(Word::Stream(stream, StreamWord::Submit(_))) => stream,
            word => panic!("{word:?}"),
        };
        assert_eq!([submitted(), submitted(), submitted(), submitted()], [0, 1, 2, 5]);
        // One has ended: there is a place.
        streams.take(1, StreamWord::failed(StepError::Internal, Usage::default(), Timings::default())).unwrap();
        assert_eq!(submitted(), 3);
    });
}

#[test]
fn whoever_only_connects_keeps_no_gateway_out() {
    let site = Site::new();
    let (door, links) = Door::new();
    let (door, listener) = (Arc::new(door), site.listener());
    // Ends with the test's process.
    thread::spawn(move || door.listen(&listener));
    let Address::Unix(path) = site.address() else { unreachable!() };
    let idle: Vec<_> = (0..200).map(|_| std::os::unix::net::UnixStream::connect(&path).unwrap()).collect();
    let link = site.connect();
    assert!(links.recv().is_ok());
    drop((idle, link));
}

#[test]
fn who_says_nothing_after_the_handshake_is_not_waited_for() {
    let site = Site::new();
    let listener = site.listener();
    let mut serving = serving(CONFIG, FINGERPRINT);
    let worker = thread::spawn(move || serving.serve(listener.accept().unwrap().shake_hands().unwrap(), None));
    // It pings.
    let _link = site.connect();
    assert!(matches!(worker.join().unwrap(), Err(MeetError::Ended)));
}

#[test]
fn a_worker_that_says_more_than_was_read_is_not_believed() {
    let (inbox, counters) = (Arc::new(Inbox::new(64)), Arc::new(Counters::new()));
    let streams = Streams::new(inbox.clone(), counters);
    let site = Site::new();
    let listener = site.listener();
    let near = thread::spawn(move || listener.accept().unwrap().shake_hands().unwrap().split());
    let (sender, _receiver) = site.connect().split();
    let (_near_sender, mut near_receiver) = near.join().unwrap();
    streams.join(sender, Place { first_page: 0, pages: 100, places: 3 }, &Arc::new(Inbox::new(1)));
    let request = RequestId::from_bytes([6; 16]);
    let sequence = Sequence { tokens: vec![1, 2, 3], label: label(3), request };
    let own = sealer(label(3), request);
    let mut steps = enqueue(&inbox, CONTEXT, sequence, Sampling::default(), sealer(label(3), request)).unwrap();
    let step = |index: u32, page: u32| {
        let read = PageRead { page: PageId(page), generation: Generation(7), label: label(2) };
        let (trace, seal) = (PageTrace { kept: 2, pages: vec![read] }, own.seal(Epoch(4), index, b"x", None));
        let text = Completion::new("x".to_owned());
        let step = Step { request, index, trace, restarted: false, tokens: 1, text, finish: None, seal };
        StreamWord::Step(StepWord::of(&step, Usage::default(), Timings::default()))
    };
    thread::scope(|scope| {
        scope.spawn(|| streams.run());
        let _stops = Stops(&inbox);
        near_receiver.receive().unwrap();
        assert!(matches!(streams.take(0, step(0, 100)), Err(WordError::Field("page"))), "a page that it has not");
        assert!(streams.take(7, step(0, 0)).is_ok(), "a stream that ended is not missed");
        assert!(matches!(streams.take(0, StreamWord::Cancel), Err(WordError::NotHere)));
        for index in 0..32 {
            streams.take(0, step(index, 5)).unwrap();
        }
        assert!(matches!(streams.take(0, step(32, 5)), Err(WordError::Field("steps"))));
        // What it says of itself comes through as it is: the gate judges it.
        let came = steps.try_next().unwrap().unwrap();
        assert_eq!((came.request, came.index, came.trace.kept), (request, 0, 2));
        assert_eq!(came.trace.pages[0].label, label(2));
        assert_eq!(came.seal, own.seal(Epoch(4), 0, b"x", None));
    });
}

#[test]
fn without_a_worker_that_decodes_requests_wait_and_are_told() {
    let (inbox, counters) = (Arc::new(Inbox::new(64)), Arc::new(Counters::new()));
    let streams = Streams::new(inbox.clone(), counters.clone());
    streams.part();
    assert!(counters.worker_away.load(Ordering::SeqCst));
    let request = RequestId::from_bytes([6; 16]);
    let sequence = Sequence { tokens: vec![1, 2, 3], label: label(3), request };
    let mut steps = enqueue(&inbox, CONTEXT, sequence, Sampling::default(), sealer(label(3), request)).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| streams.run());
        let _stops = Stops(&inbox);
        inbox.wait_until(Some(Duration::from_millis(400)), |_| false);
        assert!(steps.try_next().is_none(), "it may come");
    });
    assert!(matches!(steps.try_next(), Some(Err(StepError::Stopped))));
}

fn route() -> Route {
    let id = HandoffId::from_bytes([1; 16]);
    Route { id, attempt: Attempt(2), prefill: Incarnation(3), decode: Incarnation(u64::MAX) }
}

fn key() -> HandoffKey {
    HandoffKey::new([4; 32])
}

fn of_decode() -> Reader {
    Reader::new(key(), Peer::Decode(PromptBounds { vocabulary: 100, context_length: 40 }), false)
}

/// The parcel that a frame is, or makes whole.
fn parcel(reader: &mut Reader, frame: &Frame) -> Result<Option<Parcel>, WordError> {
    match reader.take(frame)? {
        Came::Parcel(parcel) => Ok(Some(parcel)),
        Came::Nothing => Ok(None),
        Came::Stream(..) => panic!("there are no streams"),
    }
}

fn of_prefill() -> Reader {
    Reader::new(key(), Peer::Prefill { first_page: 1000, pages: 50 }, false)
}

fn a_prompt(tokens: Vec<u32>, prompt_tokens: usize) -> Prompt {
    let ticket = Ticket { request: RequestId::from_bytes([6; 16]), epoch: Epoch(9) };
    let sampling =
        Sampling { temperature: 0.3, top_k: 7, seed: u64::MAX, presence_penalty: -1.5, ..Sampling::default() };
    let sampler = Ticketed::new(ticket, Sampler::resume(sampling, &tokens, prompt_tokens));
    let (request, label) = (ticket.request, label(3));
    Prompt { request, ticket, label, tokens, prompt_tokens, tokens_max: 77, sampler, restarts: 2, presence: None }
}

fn sent(parcel: Parcel) -> Vec<Frame> {
    wire::frames(parcel, &key())
}

#[test]
fn a_prompt_comes_over_with_its_sampler() {
    let tokens = vec![1, 99, 0, 5, 5, 7];
    let frames = sent(Parcel::Prompt { route: route(), prompt: Box::new(a_prompt(tokens.clone(), 4)) });
    let Ok(Some(Parcel::Prompt { route: to, prompt })) = parcel(&mut of_decode(), &frames[0]) else {
        panic!("no prompt")
    };
    let terms = Terms::new([4; 32], 256, FINGERPRINT, false, 4).unwrap();
    assert_eq!((to, prompt.restarts, prompt.tokens_max, prompt.prompt_tokens), (route(), 2, 77, 4));
    assert_eq!(prompt.ticket, a_prompt(tokens.clone(), 4).ticket);
    assert_eq!(prompt.digest(&terms), a_prompt(tokens.clone(), 4).digest(&terms), "all that decides its first token");
    // Four tokens of the prompt or five: the sampler has drawn another number of times.
    assert_ne!(prompt.digest(&terms), a_prompt(tokens, 5).digest(&terms));
    assert!(!format!("{:?}", wire::read(&frames[0])).contains("99"), "no token in it");
}

#[test]
fn what_a_prompt_cannot_be_is_refused() {
    for (tokens, prompt_tokens) in [(vec![], 0), (vec![1; 41], 3), (vec![1, 100], 2), (vec![1, 2], 0), (vec![1, 2], 3)]
    {
        let frames = sent(Parcel::Prompt { route: route(), prompt: Box::new(a_prompt(tokens, prompt_tokens)) });
        assert!(matches!(parcel(&mut of_decode(), &frames[0]), Err(WordError::Field(_))));
    }
    let mut other = a_prompt(vec![1, 2], 2);
    other.ticket.epoch = Epoch(10);
    let frames = sent(Parcel::Prompt { route: route(), prompt: Box::new(other) });
    assert_eq!(frames.len(), 0, "a sampler of another admission does not travel");
}

#[test]
fn pages_come_whole_in_order_and_not_among_others() {
    let bytes: Vec<u8> = (0..96).collect();
    let frames = sent(Parcel::Bytes { route: route(), pages: 3, bytes: bytes.clone() });
    assert_eq!(frames.len(), 3);
    let mut reader = of_prefill();
    assert!(matches!(parcel(&mut reader, &frames[0]), Ok(None)));
    assert!(matches!(parcel(&mut reader, &frames[1]), Ok(None)));
    let whole = parcel(&mut reader, &frames[2]).unwrap();
    assert!(matches!(whole, Some(Parcel::Bytes { pages: 3, bytes: came, .. }) if came == bytes));
    let abort = Message::Abort { route: route(), reason: AbortReason::Expired };
    let message = sent(Parcel::Message { from: Party::Prefill, to: Party::Decode, message: abort });
    let other = sent(Parcel::Bytes { route: Route { attempt: Attempt(3), ..route() }, pages: 3, bytes: bytes.clone() });
    let more = sent(Parcel::Bytes { route: route(), pages: 4, bytes: (0..128).collect() });
    let longer = sent(Parcel::Bytes { route: route(), pages: 3, bytes: (0..99).collect() });
    for (first, second) in [
        (&frames[1], None),
        (&frames[0], Some(&frames[0])),
        (&frames[0], Some(&frames[2])),
        (&frames[0], Some(&message[0])),
        (&frames[0], Some(&other[1])),
        (&frames[0], Some(&more[1])),
        (&frames[0], Some(&longer[1])),
    ] {
        let mut reader = of_prefill();
        let came = match (parcel(&mut reader, first), second) {
            (Ok(None), Some(second)) => parcel(&mut reader, second),
            (came, _) => came,
        };
        assert!(matches!(came, Err(WordError::Order)), "{first:?} {second:?}");
    }
}

#[test]
fn a_worker_s_pages_are_told_by_numbers_of_their_own_and_it_has_no_others() {
    let read = |page| PageRead { page: PageId(page), generation: Generation(7), label: label(2) };
    let said = |page| Said::Read { trace: PageTrace { kept: 3, pages: vec![read(page)] }, prefill_us: 5 };
    let frames = sent(Parcel::Said { route: route(), said: said(49) });
    let came = parcel(&mut of_prefill(), &frames[0]).unwrap();
    assert!(matches!(came, Some(Parcel::Said { said: came, .. }) if came == said(1049)));
    let fault = |page| Said::Failed(StepError::PageFault { page: PageId(page), layer: 3 });
    let frames = sent(Parcel::Said { route: route(), said: fault(0) });
    let came = parcel(&mut of_prefill(), &frames[0]).unwrap();
    assert!(matches!(came, Some(Parcel::Said { said: came, .. }) if came == fault(1000)));
    for said in [said(50), fault(u32::MAX)] {
        let frames = sent(Parcel::Said { route: route(), said });
        assert!(matches!(parcel(&mut of_prefill(), &frames[0]), Err(WordError::Field("page"))));
    }
    for error in [
        StepError::ReadSet,
        StepError::RowBinding,
        StepError::PoolExhausted,
        StepError::Stopped,
        StepError::NotANumber,
        StepError::Internal,
    ] {
        let frames = sent(Parcel::Said { route: route(), said: Said::Failed(error) });
        let came = parcel(&mut of_prefill(), &frames[0]).unwrap();
        assert!(matches!(came, Some(Parcel::Said { said: Said::Failed(came), .. }) if came == error));
    }
}

#[test]
fn a_message_goes_to_its_own_side_and_is_whole() {
    let abort = Message::Abort { route: route(), reason: AbortReason::Expired };
    let between = |from, to| sent(Parcel::Message { from, to, message: abort.clone() }).remove(0);
    for (from, to, of_prefill_passes, of_decode_passes) in [
        (Party::Prefill, Party::Decode, true, false),
        (Party::Prefill, Party::Gateway, true, false),
        (Party::Decode, Party::Prefill, false, true),
        (Party::Gateway, Party::Prefill, false, true),
        (Party::Decode, Party::Gateway, false, false),
        (Party::Prefill, Party::Prefill, false, false),
    ] {
        let frame = between(from, to);
        assert_eq!(parcel(&mut of_prefill(), &frame).is_ok(), of_prefill_passes, "{from:?} to {to:?}");
        assert_eq!(parcel(&mut of_decode(), &frame).is_ok(), of_decode_passes, "{from:?} to {to:?}");
    }
    let frame = between(Party::Prefill, Party::Decode);
    let mut other = Reader::new(HandoffKey::new([5; 32]), Peer::Prefill { first_page: 0, pages: 1 }, false);
    let other = parcel(&mut other, &frame);
    assert!(matches!(other, Err(WordError::Message(_))), "another boot's key");
    // Introductions are over.
    let welcome = wire::write(&Word::Welcome(Welcome { life: 1, boot: 2, pages: 3 }));
    assert!(matches!(parcel(&mut of_prefill(), &welcome), Err(WordError::NotHere)));
    let to_decode = Word::Message(PartyWord::Prefill, PartyWord::Decode, vec![1, 2, 3].into());
    assert!(matches!(parcel(&mut of_prefill(), &wire::write(&to_decode)), Err(WordError::Message(_))));
}

fn any_frames() -> Vec<Frame> {
    let abort = Message::Abort { route: route(), reason: AbortReason::Expired };
    let read = PageRead { page: PageId(4), generation: Generation(7), label: label(2) };
    let trace = PageTrace { kept: 2, pages: vec![read; 3] };
    [
        Parcel::Message { from: Party::Prefill, to: Party::Decode, message: abort },
        Parcel::Prompt { route: route(), prompt: Box::new(a_prompt(vec![1, 2, 3], 2)) },
        Parcel::Bytes { route: route(), pages: 2, bytes: vec![5; 64] },
        Parcel::Said { route: route(), said: Said::Read { trace, prefill_us: 9 } },
        Parcel::Said { route: route(), said: Said::Failed(StepError::Internal) },
    ]
    .into_iter()
    .flat_map(sent)
    .chain([wire::write(&Word::Hello(hello())), wire::write(&Word::Refused(Refused::Busy))])
    .collect()
}

proptest! {
    /// Whatever comes is a parcel or an error, and no message of the protocol survives a changed byte.
    #[test]
    fn bytes_that_are_no_word_are_refused(
        which in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        change in 1u8..,
        cut in any::<bool>(),
        noise in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        for mut reader in [of_decode(), of_prefill()] {
            let mut frame = which.get(&any_frames()).clone();
            let at = at.index(frame.bytes.len());
            if cut {
                frame.bytes.truncate(at);
                prop_assert!(parcel(&mut reader, &frame).is_err());
            } else {
                frame.bytes[at] ^= change;
                if let Ok(Some(Parcel::Message { .. })) = parcel(&mut reader, &frame) {
                    // Only who says it to whom is outside its seal.
                    prop_assert!(at < 4, "{at}");
                }
            }
            let mut longer = which.get(&any_frames()).clone();
            longer.bytes.push(0);
            prop_assert!(parcel(&mut reader, &longer).is_err());
            let _any = parcel(&mut reader, &Frame { kind: 1, bytes: noise.clone() });
            let other = parcel(&mut reader, &Frame { kind: 2, bytes: noise.clone() });
            prop_assert!(other.is_err());
        }
    }
}
