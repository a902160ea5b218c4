//! Two groups with a real link between them, over a model whose answers say what was read.

mod streams;
mod words;

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
use engine_scheduler::{Tenancy, TenantTerms};
use policies_domain::{
    Completion, Epoch, Generation, Layer, PageId, PageRead, PageTrace, RequestId, SealError, SealKey, Step,
};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
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
    deciding_for(&Tenancy::default(), inbox, counters)
}

fn deciding_for(
    tenancy: &Tenancy,
    inbox: &Arc<Inbox>,
    counters: &Arc<Counters>,
) -> (Deciding, DecodeGroup, Machine<Tracer>) {
    let machine = machine(CONFIG.pages);
    let stepper = Stepper::new(Role::Decode, inbox.clone(), counters.clone(), CONFIG).for_tenants(tenancy);
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
        Self::for_tenants(&Tenancy::default(), site)
    }

    fn for_tenants(tenancy: &Tenancy, site: &Site) -> Self {
        let (inbox, counters) = (Arc::new(Inbox::new(64)), Arc::new(Counters::new()));
        let (mut deciding, group, machine) = deciding_for(tenancy, &inbox, &counters);
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
        self.submit_tokens(tenant, prompt(tenant, tokens), wanted, sampling)
    }

    fn submit_tokens(&mut self, tenant: u32, prompt: Vec<u32>, wanted: usize, sampling: Sampling) -> Asked {
        self.submitted += 1;
        let request = RequestId::from_bytes([self.submitted; 16]);
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

/// Tokens of the prompt that the worker's cache had.
fn cached(half: &Half, mut asked: Asked) -> usize {
    let mut text = String::new();
    half.runtime.block_on(async {
        while let Some(step) = asked.steps.next().await {
            text += step.unwrap().text.reveal();
        }
    });
    assert_eq!(text, Tracer::answer(&asked.prompt, asked.wanted));
    asked.steps.usage().cached_tokens
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
fn a_worker_keeps_prefixes_as_long_as_its_link_and_no_longer() {
    let site = Site::new();
    let listener = site.listener();
    let caching = EngineConfig { prefix_cache: true, ..CONFIG };
    let tenancy = Tenancy::new([1, 2].map(|tenant| (label(tenant), TenantTerms::default()))).unwrap();
    let of_worker = tenancy.clone();
    let worker = thread::spawn(move || {
        let mut serving = self::serving(caching, FINGERPRINT);
        serving.tenancy = of_worker;
        for _ in 0..2 {
            serving.serve(listener.accept().unwrap().shake_hands().unwrap(), None).unwrap();
            assert_eq!(serving.machine.pool.counts().free, CONFIG.pages, "whose they are, nobody knows any more");
            assert!(serving.machine.compute.is_scrubbed());
        }
    });
    for link in 0..2 {
        let mut half = Half::for_tenants(&tenancy, &site);
        let greedy = Sampling { max_tokens: Some(5), temperature: 0.0, ..Sampling::default() };
        let asked = [(1, 100), (1, 100), (2, 100), (1, 120), (3, 100), (3, 100)];
        let found = asked.map(|(tenant, tokens)| {
            // Everybody's prompt is the same one.
            let asked = half.submit_tokens(tenant, prompt(1, tokens), 5, greedy.clone());
            cached(&half, asked)
        });
        assert_eq!(found, [0, 96, 0, 96, 0, 0], "link {link}");
    }
    worker.join().unwrap();
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
    let tenancy = Some(Tenancy::default().digest().into());
    let (slots, boot, pages, places) = (4, 1, 64, 9);
    Hello { version: VERSION, secret, life: 5, fingerprint, slots, context_max, boot, pages, places, tenancy }
}

#[test]
fn who_does_not_fit_is_told_why() {
    let site = Site::new();
    let small = EngineConfig { pages: 63, ..CONFIG };
    for (serving, hello, wanted) in [
        (serving(CONFIG, FINGERPRINT), Hello { version: 1, tenancy: None, ..hello() }, Refused::Version(VERSION)),
        (serving(CONFIG, FINGERPRINT), Hello { tenancy: Some([0; 32].into()), ..hello() }, Refused::Tenancy),
        (serving(CONFIG, FINGERPRINT), Hello { tenancy: None, ..hello() }, Refused::Tenancy),
        (serving(CONFIG, [8; 32]), hello(), Refused::Model),
        (serving(small, FINGERPRINT), hello(), Refused::Pages(63 * 16, 1024)),
    ] {
        assert_eq!(refused_by(&site, serving, hello), wanted);
    }
}

/// A worker that decodes, for so many links.
fn deciding_worker(listener: Listener, links: usize) -> JoinHandle<()> {
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
    let listener = Listener::bind(&site.address(), &site.identity(engine_link::Role::Decode), terms()).unwrap();
    let worker = deciding_worker(listener, 1);
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
    // Counted again at the next look, which the end of an answer does not wait for.
    let begun = Instant::now();
    while half.inbox.waiting() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(30), "a request that left keeps its place");
        thread::sleep(Duration::from_millis(5));
    }
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
    let worker = deciding_worker(listener, links);
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
