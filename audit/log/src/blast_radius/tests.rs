//! Answers against a model that was there, and folders in which something is missing or was changed.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use super::*;
use crate::segment::{encode_frame, next_frame, segment_path, traces_path};
use crate::story::memory::TestClock;
use crate::story::{self, START_US, facts, outcome, principal};
use crate::trace_file::{encode_trace, first_trace};
use crate::{AuditConfig, AuditLog, FolderStorage, OpenEntry, Outcome};
use audit_provenance::Body;
use audit_tlog::leaf_hash;
use policies_domain::{Label, ModelName, PageRead, PageTrace, Permit, PolicyDecision, Principal, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Several segments of the small ones that tests have.
const REQUESTS: u64 = 400;
/// Everybody's page.
const PUBLIC: (u32, u32) = (500, 1);

/// A response as it was made.
#[derive(Debug, Clone)]
struct Made {
    request: RequestId,
    tenant: TenantRef,
    build: u8,
    pages: BTreeSet<(u32, u32)>,
    opened_us: u64,
    sealed_us: u64,
}

struct History {
    folder: tempfile::TempDir,
    /// By sealed entry.
    made: BTreeMap<u64, Made>,
    log: AuditLog,
    open: Vec<(u64, OpenEntry)>,
}

fn request(number: u64) -> RequestId {
    RequestId::from_bytes((u128::from(number + 1) << 64 | 9).to_be_bytes())
}

fn who(number: u64) -> Principal {
    if number.is_multiple_of(3) { principal(2, "globex") } else { principal(1, "acme") }
}

/// Two pages of the request's own, and one that a few of its tenant's read one after the other: a chain through all of them.
fn pages(number: u64) -> Vec<(u32, u32)> {
    let number = u32::try_from(number).unwrap();
    let lane = number % 3 * 100;
    let own = (lane + number / 3 % 20, 1 + number / 60);
    let chained = (lane + 30 + number / 24, 7);
    let mut pages = vec![own, chained];
    if number % 24 > 20 {
        pages.push((lane + 30 + number / 24 + 1, 7));
    }
    if number % 5 == 0 {
        pages.push(PUBLIC);
    }
    pages
}

fn step(permit: &Permit, number: u64) -> Step {
    let mut step = story::step(permit, 0, permit.label());
    let page = |(page, life)| {
        let label = if (page, life) == PUBLIC { Label::PUBLIC } else { permit.label() };
        PageRead { page: PageId(page), generation: Generation(life), label, shared: label == Label::PUBLIC }
    };
    step.trace = PageTrace { kept: 0, pages: pages(number).into_iter().map(page).collect() };
    step
}

fn permit(number: u64) -> Permit {
    let decision = PolicyDecision { rules: Digest([0; 32]), determining: vec!["rule".into()] };
    Permit::granted_by_authz(who(number), request(number), ModelName::parse("m").unwrap(), decision)
}

fn open(dir: &Path, build: u8, wall_us: u64) -> AuditLog {
    let config = AuditConfig { build: Some(Digest([build; 32])), ..story::config() };
    AuditLog::open_on(&config, Arc::new(FolderStorage::open(dir).unwrap()), Arc::new(TestClock::at(wall_us))).unwrap()
}

/// A log of two builds that is still written to, with requests that have not ended.
fn history() -> History {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("log");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (mut sealed, mut left) = (Vec::new(), Vec::new());
    let mut log = open(&dir, 1, START_US);
    for number in 0..REQUESTS {
        if number == REQUESTS / 2 {
            log.shutdown();
            drop(log);
            log = open(&dir, 2, START_US + 3_600_000_000);
        }
        runtime.block_on(async {
            let permit = permit(number);
            let mut entry = log.open_request(&permit, facts()).await.unwrap();
            let released = entry.check(step(&permit, number)).unwrap();
            if number >= REQUESTS - 2 {
                left.push((number, entry));
                return;
            }
            entry.sent(b"payload", &released);
            sealed.push((number, entry.seal(Outcome { ..outcome() }).await.unwrap().index));
        });
    }
    // Published when the last was acknowledged, or a moment later.
    while log.health().published < log.health().size {
        std::thread::yield_now();
    }
    let entries = entries(&dir);
    let made = sealed.into_iter().map(|(number, index)| {
        let Body::Sealed(sealing) = &entries[&index].body else { panic!("{index} is not sealed") };
        let opened = &entries[&sealing.opened_index];
        let Body::Opened(facts) = &opened.body else { panic!("not opened") };
        let made = Made {
            request: request(number),
            tenant: opened.head.tenant.unwrap().tenant,
            build: facts.build.0[0],
            pages: pages(number).into_iter().collect(),
            opened_us: opened.head.wall_us,
            sealed_us: entries[&index].head.wall_us,
        };
        (index, made)
    });
    History { made: made.collect(), folder, log, open: left }
}

impl History {
    fn dir(&self) -> std::path::PathBuf {
        self.folder.path().join("log")
    }

    fn ask(&self, query: &BlastRadiusQuery) -> Result<BlastRadius, BlastRadiusError> {
        blast_radius(&self.dir(), query, |_, done, of| assert!(done <= of))
    }

    /// The answer by definition.
    fn expected(&self, query: &BlastRadiusQuery) -> BTreeMap<u64, bool> {
        let direct = |made: &Made| match query.suspect {
            Suspect::Page { .. } => false,
            Suspect::Time { first_us, last_us } => made.opened_us <= last_us && made.sealed_us >= first_us,
            Suspect::Tenant(tenant) => made.tenant == tenant,
            Suspect::Build(build) => build == Digest([made.build; 32]),
            Suspect::Request(request) => made.request == request,
        };
        let followed = |made: &Made| {
            let lives = made.pages.iter().copied();
            lives.filter(|life| query.through_public || *life != PUBLIC).collect::<Vec<_>>()
        };
        let mut lives: BTreeSet<(u32, u32)> = BTreeSet::new();
        for made in self.made.values() {
            if direct(made) {
                lives.extend(followed(made));
            }
            if let Suspect::Page { page, generation } = query.suspect {
                let asked =
                    |life: &&(u32, u32)| life.0 == page.0 && generation.is_none_or(|generation| generation.0 == life.1);
                lives.extend(made.pages.iter().filter(asked));
            }
        }
        let mut grown = query.transitive;
        while grown {
            let before = lives.len();
            for made in self.made.values().filter(|made| !made.pages.is_disjoint(&lives)).cloned().collect::<Vec<_>>() {
                lives.extend(followed(&made));
            }
            grown = lives.len() > before;
        }
        let row = |(index, made): (&u64, &Made)| (*index, direct(made), !made.pages.is_disjoint(&lives));
        self.made.iter().map(row).filter(|(_, direct, read)| *direct || *read).map(|row| (row.0, row.1)).collect()
    }
}

fn entries(dir: &Path) -> BTreeMap<u64, Entry> {
    let mut entries = BTreeMap::new();
    for first in segments(dir) {
        let bytes = std::fs::read(dir.join(segment_path(first))).unwrap();
        let mut rest = bytes.as_slice();
        while let Some((entry, _)) = next_frame(&mut rest) {
            entries.insert(entries.len() as u64, Entry::decode(entry).unwrap());
        }
    }
    entries
}

fn segments(dir: &Path) -> Vec<u64> {
    let names = std::fs::read_dir(dir.join("segments")).unwrap();
    let mut segments: Vec<u64> =
        names.map(|file| file.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    segments.sort_unstable();
    segments
}

fn query(suspect: Suspect) -> BlastRadiusQuery {
    BlastRadiusQuery { suspect, transitive: false, through_public: false, threads: 2 }
}

fn page(page: u32, generation: Option<u32>) -> Suspect {
    Suspect::Page { page: PageId(page), generation: generation.map(Generation) }
}

#[test]
fn every_question_is_answered_as_the_model_says_while_the_log_is_written_to() {
    let history = history();
    assert!(segments(&history.dir()).len() > 3, "several segments");
    let some = history.made.values().nth(150).unwrap().clone();
    let suspects = [
        page(31, None),
        page(31, Some(7)),
        page(31, Some(8)),
        page(PUBLIC.0, None),
        page(9_999, None),
        Suspect::Time { first_us: some.opened_us, last_us: some.sealed_us },
        Suspect::Time { first_us: 0, last_us: 1 },
        Suspect::Tenant(some.tenant),
        Suspect::Tenant([9; 16]),
        Suspect::Build(Digest([2; 32])),
        Suspect::Build(Digest([3; 32])),
        Suspect::Request(some.request),
    ];
    let mut answers = BTreeSet::new();
    for suspect in suspects {
        for (transitive, through_public, threads) in [(false, false, 1), (true, false, 3), (true, true, 2)] {
            let query = BlastRadiusQuery { suspect, transitive, through_public, threads };
            let answer = history.ask(&query).unwrap();
            let rows: BTreeMap<u64, bool> = answer.rows.iter().map(|row| (row.index, row.direct)).collect();
            assert_eq!(rows, history.expected(&query), "{query:?}");
            assert_eq!(answer.direct_count, rows.values().filter(|direct| **direct).count() as u64);
            assert_eq!((answer.unknown.crashed.count, answer.unknown.trace_gone.count), (0, 0));
            for row in &answer.rows {
                let made = &history.made[&row.index];
                assert_eq!((row.request, row.tenant, row.sealed_us), (made.request, made.tenant, made.sealed_us));
                assert!(row.pages.iter().all(|run| made.pages.contains(&(run.page.0, run.generation.0))), "{row:?}");
                assert_eq!(row.pages_count, row.pages.len() as u64);
            }
            for shared in &answer.lives {
                let life = (shared.page.0, shared.generation.0);
                let readers: Vec<u64> =
                    history.made.iter().filter(|(_, made)| made.pages.contains(&life)).map(|(i, _)| *i).collect();
                assert_eq!(shared.readers_count, readers.len() as u64, "{shared:?}");
                assert_eq!(shared.readers, readers[..readers.len().min(SHOWN_MAX)]);
            }
            answers.insert(rows.len());
        }
    }
    assert!(answers.len() > 4, "the questions have different answers: {answers:?}");
}

#[test]
fn what_has_not_ended_is_said() {
    let mut history = history();
    let answer = history.ask(&query(page(1, None))).unwrap();
    let open: Vec<u64> = entries(&history.dir())
        .into_iter()
        .filter(|(_, entry)| {
            matches!(entry.body, Body::Opened(_))
                && history.open.iter().any(|(number, _)| entry.head.uuid == request(*number).bytes())
        })
        .map(|(index, _)| index)
        .collect();
    assert_eq!((answer.unknown.in_flight.count, answer.unknown.in_flight.first), (2, open));
    history.open.clear();
    history.log.shutdown();
    let answer = history.ask(&query(page(1, None))).unwrap();
    assert_eq!(answer.unknown.in_flight.count, 0);
}

#[test]
fn everybody_s_pages_are_followed_only_when_that_is_asked_and_counted_otherwise() {
    let history = history();
    let (_, some) = history.made.iter().find(|(_, made)| made.pages.contains(&PUBLIC)).unwrap();
    let asked = query(Suspect::Request(some.request));
    let without = history.ask(&asked).unwrap();
    let with = history.ask(&BlastRadiusQuery { through_public: true, ..asked }).unwrap();
    assert_eq!((without.unknown.public_pages, with.unknown.public_pages), (1, 0));
    assert!(without.tenants.len() == 1 && with.tenants.len() == 2);
    assert!(with.rows.len() > without.rows.len());
}

/// Of a trace that is gone, damaged, or another one, nobody says that it read nothing.
#[test]
fn a_trace_that_is_gone_or_was_changed_is_said_and_never_believed() {
    let history = history();
    let asked = query(page(31, Some(7)));
    let before = history.ask(&asked).unwrap();
    let victim = before.rows.first().unwrap().index;
    let segment = *segments(&history.dir()).iter().rfind(|first| **first <= victim).unwrap();
    let path = history.dir().join(traces_path(segment));
    let bytes = std::fs::read(&path).unwrap();
    let frames = |change: &dyn Fn(u64, &[u8]) -> Vec<u8>| {
        let (mut rest, mut changed) = (bytes.as_slice(), Vec::new());
        while let Some((index, trace, length)) = first_trace(rest) {
            changed.extend(if index == victim { change(index, trace) } else { rest[..length].to_vec() });
            rest = &rest[length..];
        }
        changed
    };
    let innocent = audit_provenance::Trace::default().encode();
    let frame_of = |index, trace: &[u8]| {
        let mut frame = Vec::new();
        encode_trace(&mut frame, index, trace);
        frame
    };
    let forged = frames(&|index, _| frame_of(index, &innocent));
    std::fs::write(&path, forged).unwrap();
    let answer = history.ask(&asked).unwrap();
    assert_eq!((answer.unknown.trace_changed.first, answer.rows.len()), (vec![victim], before.rows.len() - 1));

    let torn = frames(&|index, trace| {
        let mut frame = frame_of(index, trace);
        frame[20] ^= 1;
        frame
    });
    std::fs::write(&path, torn).unwrap();
    let answer = history.ask(&asked).unwrap();
    assert_eq!((answer.unknown.trace_gone.first, answer.rows.len()), (vec![victim], before.rows.len() - 1));

    std::fs::remove_file(&path).unwrap();
    let answer = history.ask(&asked).unwrap();
    assert!(answer.unknown.trace_gone.count > 1 && answer.unknown.trace_gone.first.contains(&victim));
    // Suspects without pages are said as well.
    let (_, made) = history.made.iter().find(|(index, _)| **index == victim).unwrap();
    let answer = history.ask(&query(Suspect::Request(made.request))).unwrap();
    assert_eq!((answer.direct_count, answer.unknown.suspects_without_pages), (1, 1));
}

#[test]
fn a_log_of_which_something_is_missing_or_changed_gives_no_answer() {
    let history = history();
    let asked = query(page(31, Some(7)));
    let first = segments(&history.dir())[1];
    let path = history.dir().join(segment_path(first));
    let bytes = std::fs::read(&path).unwrap();

    let mut flipped = bytes.clone();
    flipped[bytes.len() / 2] ^= 1;
    std::fs::write(&path, &flipped).unwrap();
    assert!(matches!(history.ask(&asked), Err(BlastRadiusError::Missing { .. })));

    // With right sums and the hash that it has: an entry that somebody wrote in another's place.
    let (mut rest, mut forged) = (bytes.as_slice(), Vec::new());
    while let Some((entry, leaf)) = next_frame(&mut rest) {
        let mut decoded = Entry::decode(entry).unwrap();
        if forged.is_empty() {
            decoded.head.blind[0] ^= 1;
            let changed = decoded.encode();
            encode_frame(&mut forged, leaf_hash(&changed), &changed).unwrap();
        } else {
            encode_frame(&mut forged, leaf, entry).unwrap();
        }
    }
    std::fs::write(&path, &forged).unwrap();
    assert!(matches!(history.ask(&asked), Err(BlastRadiusError::Root { .. })));

    std::fs::remove_file(&path).unwrap();
    assert!(matches!(history.ask(&asked), Err(BlastRadiusError::Missing { .. })));
    std::fs::write(&path, &bytes).unwrap();
    assert!(history.ask(&asked).is_ok());
    std::fs::remove_file(history.dir().join(segment_path(0))).unwrap();
    assert!(matches!(history.ask(&asked), Err(BlastRadiusError::Missing { index: 0 })));
}

#[test]
fn a_checkpoint_of_another_key_gives_no_answer() {
    let (history, other) = (history(), history());
    std::fs::copy(other.dir().join("log.vkey"), history.dir().join("log.vkey")).unwrap();
    assert!(matches!(history.ask(&query(page(1, None))), Err(BlastRadiusError::Checkpoint(_))));
}
