//! The incident that Bulkhead exists for, played again: prompts of many tenants are computed by one group and handed to
//! another, whose memory the first may write into, and pages of handoffs that end are given out again without waiting for
//! bytes that are on their way.
//!
//! The same seed is played twice: with nobody looking, and with every check of those who read. What the second run could
//! not prevent it finds out before the first foreign byte.

use crate::act::Act;
use crate::blast::{self, Window};
use crate::cast::Cast;
use crate::client::{Client, State, Verdict};
use crate::tracer::ForeignRead;
use crate::world::{Checks, Groups, Setup, World};
use audit_provenance::Violation;
use engine_runtime::{EngineConfig, StepError};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Acts of a run at most: many times what it needs.
const ACTS_MAX: usize = 2_000_000;
/// Responses that are open at a time.
const OPEN_MAX: usize = 10;
/// Leaked responses that are shown.
const SHOWN: usize = 2;

/// Both runs.
#[derive(Clone, Debug, Serialize)]
pub struct Incident {
    /// What decides everything.
    pub seed: u64,
    /// Of how many tenants.
    pub tenants: u32,
    /// Responses that were asked for.
    pub requests: u32,
    /// Nobody looks.
    pub unprotected: Run,
    /// As shipped, but for the rule that was broken.
    pub protected: Run,
    /// In both runs, the responses that could have been touched, computed from the log, are those that could be in truth.
    pub blast_radius_exact: bool,
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// Responses that were begun.
    pub responses: usize,
    /// Responses whose clients left.
    pub left: usize,
    /// Responses that carried another tenant's content to their clients.
    pub leaked: usize,
    /// Responses that were ended by an isolation fault, none of which had carried any.
    pub caught: usize,
    /// Responses that were caught although nothing could have touched them.
    pub false_alarms: usize,
    /// Responses that another tenant's content was under the eyes of, whoever noticed.
    pub foreign_readers: usize,
    /// Responses that ended whole and right.
    pub right: usize,
    /// Responses that could have been touched, by the log.
    pub touched_by_log: Vec<u32>,
    /// Responses that could have been touched, in truth.
    pub touched_in_truth: Vec<u32>,
    /// Some that leaked.
    pub shown: Vec<Leaked>,
    /// What ended those that were caught.
    pub verdicts: BTreeMap<String, usize>,
    /// Each of those.
    pub incidents: Vec<Caught>,
}

/// A response that an isolation fault ended.
#[derive(Clone, Debug, Serialize)]
pub struct Caught {
    /// Its number.
    pub request: u32,
    /// Whose it is.
    pub tenant: char,
    /// What noticed.
    pub by: String,
    /// The page, where one is to blame.
    pub page: Option<u32>,
}

/// A response that carried another tenant's content.
#[derive(Clone, Debug, Serialize)]
pub struct Leaked {
    /// Its number.
    pub request: u32,
    /// Whose it is.
    pub tenant: char,
    /// What its client got: each letter is the tenant whose content decided it.
    pub answer: String,
    /// The requests whose content it was.
    pub sources: Vec<Source>,
}

/// A request whose content went to somebody else.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Source {
    /// Its number.
    pub request: u32,
    /// Whose it is.
    pub tenant: char,
    /// The page in which it was found.
    pub page: u32,
}

impl Incident {
    /// Plays both runs.
    #[must_use]
    pub fn play(seed: u64, requests: u32) -> Self {
        let cast = Cast { tenants: 8, requests };
        let unprotected = play(&setup(cast, Checks::NONE), seed);
        let protected = play(&setup(cast, Checks::ALL), seed);
        let exact = |run: &Run| run.touched_by_log == run.touched_in_truth && !run.touched_by_log.is_empty();
        let blast_radius_exact = exact(&unprotected) && exact(&protected);
        Self { seed, tenants: cast.tenants, requests, unprotected, protected, blast_radius_exact }
    }

    /// What must hold: it leaked, nothing leaks any more, and nobody is caught for nothing.
    #[must_use]
    pub fn holds(&self) -> bool {
        let Self { unprotected, protected, blast_radius_exact, .. } = self;
        let is_caught = protected.leaked == 0 && protected.caught > 0 && protected.false_alarms == 0;
        unprotected.leaked > 0 && is_caught && *blast_radius_exact
    }
}

fn setup(cast: Cast, checks: Checks) -> Setup {
    let config =
        EngineConfig { pages: 96, sequences_max: 8, queue_max: 12, prefill_chunk_tokens: 64, ..Setup::small().config };
    Setup { cast, config, checks, groups: Groups::Copied, one_sided: true, frees_early: true, ..Setup::small() }
}

fn play(setup: &Setup, seed: u64) -> Run {
    let mut world = World::new(setup);
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let (mut windows, mut open) = (Windows::default(), Vec::new());
    for _ in 0..ACTS_MAX {
        open.retain(|client| world.clients()[*client as usize].is_open());
        let begun = world.clients().len() as u32;
        let idle = world.engine().is_none_or(|engine| !engine.has_parcels() && engine.pages_held() == 0);
        if begun == setup.cast.requests && open.is_empty() && idle {
            break;
        }
        let act = choose(&mut random, &open, begun < setup.cast.requests && open.len() < OPEN_MAX);
        windows.before(&mut world);
        world.act(act);
        windows.after(&mut world);
        open.extend(begun..world.clients().len() as u32);
    }
    told(world, &windows.seen)
}

/// Long prompts, short answers, clients that leave now and then, and bytes that are slower than words.
fn choose(random: &mut ChaCha8Rng, open: &[u32], may_arrive: bool) -> Act {
    let mut below = |bound: u32| random.next_u32() % bound;
    let client = open.get(below(open.len().max(1) as u32) as usize).copied();
    match below(100) {
        0..6 if may_arrive => Act::Arrive { prompt: 60 + below(100), answer: 12 + below(12) },
        0..20 => Act::Look,
        20..36 => Act::Prefill,
        36..50 => Act::Decode,
        50..64 => Act::ToPrefill,
        64..66 => Act::ToDecode,
        66..81 => Act::Overtake,
        81..83 => Act::Pass { milliseconds: below(50) },
        83..98 => client.map_or(Act::Look, |client| Act::Read { client, steps: 1 + below(8) }),
        _ => client.filter(|_| below(3) == 0).map_or(Act::Decode, |client| Act::Leave { client }),
    }
}

/// Keeps account of when bytes were on their way to pages that nobody waits for them in.
#[derive(Default)]
struct Windows {
    seen: Vec<Window>,
    clock: u64,
    pages: BTreeMap<u32, usize>,
}

impl Windows {
    fn before(&mut self, world: &mut World) {
        if let Some(engine) = world.engine().and_then(|engine| engine.split()) {
            self.clock = engine.computes().0.clock();
        }
    }

    fn after(&mut self, world: &mut World) {
        let Some(engine) = world.engine().and_then(|engine| engine.split()) else { return };
        let mut pages = BTreeMap::new();
        for page in engine.abandoned_pages() {
            *pages.entry(page).or_insert(0) += 1;
        }
        for (page, count) in &pages {
            for _ in self.pages.get(page).copied().unwrap_or(0)..*count {
                self.seen.push(Window { page: *page, from: self.clock, until: None });
            }
        }
        for (page, count) in &self.pages {
            for _ in pages.get(page).copied().unwrap_or(0)..*count {
                let open = self.seen.iter_mut().find(|window| window.page == *page && window.until.is_none());
                if let Some(window) = open {
                    window.until = Some(self.clock);
                }
            }
        }
        self.pages = pages;
    }
}

fn told(mut world: World, windows: &[Window]) -> Run {
    let findings = world.findings();
    let (mut records, mut first_page, mut stays) = (Vec::new(), 0, BTreeMap::new());
    if let Some(engine) = world.engine().and_then(|engine| engine.split()) {
        records = engine.records();
        first_page = engine.first_page();
        stays = engine.computes().0.stays().clone();
    }
    let clients = world.clients();
    let mut verdicts = BTreeMap::new();
    let mut incidents = Vec::new();
    for client in clients {
        if let State::Caught(verdict) = &client.state {
            *verdicts.entry(name(verdict)).or_insert(0) += 1;
            let (request, tenant) = (client.request(), Cast::letter(client.tenant()));
            incidents.push(Caught { request, tenant, by: name(verdict), page: page(verdict) });
        }
    }
    let in_truth = blast::touched_in_truth(clients, &stays, windows);
    let list = |requests: BTreeSet<u32>| requests.into_iter().collect::<Vec<u32>>();
    let shown = findings.leaked.iter().filter_map(|request| clients.get(*request as usize));
    Run {
        responses: findings.responses,
        left: findings.left.len(),
        leaked: findings.leaked.len(),
        caught: findings.caught.difference(&findings.leaked).count(),
        false_alarms: findings.caught.difference(&in_truth).count(),
        foreign_readers: findings.foreign.iter().map(|read| read.reader).collect::<BTreeSet<_>>().len(),
        right: clients.iter().filter(|client| client.is_right()).count(),
        touched_by_log: list(blast::touched_by_record(clients, &records, first_page)),
        touched_in_truth: list(in_truth),
        shown: shown.take(SHOWN).map(|client| leaked(world.cast(), client, &findings.foreign)).collect(),
        verdicts,
        incidents,
    }
}

fn page(verdict: &Verdict) -> Option<u32> {
    match verdict {
        Verdict::Engine(StepError::PageFault { page, .. }) => Some(page.0),
        Verdict::Gate(Violation::ForeignPage { page, .. } | Violation::StaleGeneration { page, .. }) => Some(page.0),
        Verdict::Engine(_) | Verdict::Gate(_) | Verdict::Seal(_) => None,
    }
}

/// What ended a response, without the numbers of pages.
fn name(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Engine(StepError::PageFault { .. }) => "page tag".to_owned(),
        Verdict::Engine(StepError::Handoff { check }) => format!("handoff check {check:?}"),
        Verdict::Engine(error) => error.to_string(),
        Verdict::Gate(_) => "gate".to_owned(),
        Verdict::Seal(_) => "seal".to_owned(),
    }
}

fn leaked(cast: Cast, client: &Client, foreign: &BTreeSet<ForeignRead>) -> Leaked {
    let of = foreign.iter().filter(|read| read.reader == client.request());
    let sources: BTreeSet<Source> = of
        .map(|read| Source { request: read.author, tenant: Cast::letter(cast.tenant(read.author)), page: read.page })
        .collect();
    Leaked {
        request: client.request(),
        tenant: Cast::letter(client.tenant()),
        answer: client.transcript.clone(),
        sources: sources.into_iter().collect(),
    }
}
