//! The index against a model that was there, with stores that are right, wrong, gone, slow or in pieces.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod damage;
mod stores;

use super::disk::DiskStore;
use super::memory::MemoryStore;
use super::service::StoreKeeper;
use super::store::{Store, StoreFault};
use super::{BLOCK, IndexStore, Lookup, LookupError, PageReaders, TraceAt};
use crate::story::memory::{MemoryDisk, TestClock};
use crate::story::{self, START_US, facts, outcome, principal};
use crate::{AuditConfig, AuditLog, Outcome, SealReason, Storage};
use audit_provenance::{Entry, TenantRef};
use policies_domain::{
    Digest, Generation, Label, ModelName, PageId, PageRead, PageTrace, Permit, PolicyDecision, Principal, RequestId,
    Step,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Two blocks and a part of a third.
const REQUESTS: u64 = 330;
/// Pages are taken from so many.
const PAGES: u64 = 90;

/// What the log of these tests must answer.
#[derive(Debug, Clone, Default)]
struct Model {
    requests: BTreeMap<RequestId, (u64, Option<u64>)>,
    tenants: BTreeMap<&'static str, Vec<u64>>,
    incidents: Vec<u64>,
    times: Vec<u64>,
    readers: BTreeMap<(u32, u32), Vec<u64>>,
    unknown: Vec<u64>,
}

fn request(number: u64) -> RequestId {
    RequestId::from_bytes((u128::from(number + 1) << 64 | 7).to_be_bytes())
}

fn who(number: u64) -> (Principal, &'static str) {
    if number.is_multiple_of(3) { (principal(2, "globex"), "globex") } else { (principal(1, "acme"), "acme") }
}

fn permit(number: u64) -> Permit {
    let decision = PolicyDecision { rules: Digest([0; 32]), determining: vec!["rule".into()] };
    Permit::granted_by_authz(who(number).0, request(number), ModelName::parse("m").unwrap(), decision)
}

/// The pages that a request reads: three of its own, and one that many share.
fn pages(number: u64) -> Vec<(u32, u32)> {
    let page = |of: u64| u32::try_from((number * 3 + of) % PAGES).unwrap();
    let life = u32::try_from(number * 3 / PAGES).unwrap();
    vec![(page(0), life), (page(1), life), (page(2), life), (1_000, 1)]
}

fn step(permit: &Permit, number: u64, label: Label) -> Step {
    let mut step = story::step(permit, 0, label);
    let page = |(page, life)| PageRead { page: PageId(page), generation: Generation(life), label, shared: false };
    step.trace = PageTrace { kept: 0, pages: pages(number).into_iter().map(page).collect() };
    step
}

fn config(index: IndexStore) -> AuditConfig {
    AuditConfig { index, ..story::config() }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Writes requests: most are sealed, some are stopped, some are left open and sealed by the next start.
fn write(log: &AuditLog, numbers: std::ops::Range<u64>, left: &mut Vec<crate::OpenEntry>) {
    runtime().block_on(async {
        for number in numbers {
            let permit = permit(number);
            let mut entry = log.open_request(&permit, facts()).await.unwrap();
            match number % 41 {
                5 => {
                    let other = Label::of(who(number + 1).0.tenant());
                    let other = if other == permit.label() { Label::of(who(number + 2).0.tenant()) } else { other };
                    entry.check(step(&permit, number, other)).unwrap_err();
                    entry.refuse().await.unwrap();
                }
                7 => left.push(entry),
                _ => {
                    let released = entry.check(step(&permit, number, permit.label())).unwrap();
                    entry.sent(b"payload", &released);
                    let reason = SealReason::Stop;
                    entry.seal(Outcome { reason, ..outcome() }).await.unwrap();
                }
            }
        }
    });
}

/// A log with several segments and blocks, closed and opened once, so that what was left open is sealed; and what it says.
fn history() -> (MemoryDisk, Model) {
    static MADE: Mutex<Option<(MemoryDisk, Model)>> = Mutex::new(None);
    let mut made = MADE.lock().unwrap();
    let (disk, model) = made.get_or_insert_with(|| {
        let disk = MemoryDisk::default();
        let mut left = Vec::new();
        let log = open(&disk, START_US, IndexStore::Memory);
        write(&log, 0..REQUESTS, &mut left);
        log.shutdown();
        drop(left);
        drop(log);
        open(&disk, later(1), IndexStore::Memory).shutdown();
        let model = model(&disk);
        (disk, model)
    });
    (disk.copy(), model.clone())
}

fn later(starts: u64) -> u64 {
    START_US + starts * 1_000_000_000_000
}

fn open(disk: &MemoryDisk, wall_us: u64, index: IndexStore) -> AuditLog {
    AuditLog::open_on(&config(index), Arc::new(disk.clone()), Arc::new(TestClock::at(wall_us))).unwrap()
}

/// Reads all entries, from the first on.
fn model(disk: &MemoryDisk) -> Model {
    let mut model = Model::default();
    let mut of_tenant: BTreeMap<TenantRef, Vec<u64>> = BTreeMap::new();
    let mut names = BTreeMap::new();
    let mut index = 0;
    let segments: Vec<String> = disk.paths().into_iter().filter(|path| path.starts_with("segments/")).collect();
    assert!(segments.len() > 3, "{segments:?}");
    for segment in segments {
        let bytes = disk.content(&segment).unwrap();
        let mut rest = bytes.as_slice();
        while let Some((bytes, _)) = crate::segment::next_frame(&mut rest) {
            let entry = Entry::decode(bytes).unwrap();
            note(&mut model, &mut of_tenant, &mut names, index, &entry);
            index += 1;
        }
    }
    assert!(index > 2 * BLOCK + 40, "{index}");
    for (tenant, entries) in of_tenant {
        model.tenants.insert(names[&tenant], entries);
    }
    model
}

fn note(
    model: &mut Model,
    of_tenant: &mut BTreeMap<TenantRef, Vec<u64>>,
    names: &mut BTreeMap<TenantRef, &'static str>,
    index: u64,
    entry: &Entry,
) {
    use audit_provenance::{Body, SealReason};
    model.times.push(entry.head.wall_us);
    if let Some(link) = entry.head.tenant {
        of_tenant.entry(link.tenant).or_default().push(index);
    }
    let number = |request: RequestId| (u128::from_be_bytes(request.bytes()) >> 64) as u64 - 1;
    match &entry.body {
        Body::Opened(_) => {
            let request = RequestId::from_bytes(entry.head.uuid);
            names.insert(entry.head.tenant.unwrap().tenant, who(number(request)).1);
            model.requests.insert(request, (index, None));
        }
        Body::Sealed(sealed) => {
            model.requests.get_mut(&sealed.request).unwrap().1 = Some(index);
            match sealed.reason {
                SealReason::Crash => model.unknown.push(index),
                _ => {
                    for page in pages(number(sealed.request)) {
                        model.readers.entry(page).or_default().push(index);
                    }
                }
            }
        }
        Body::Incident(_) => model.incidents.push(index),
        _ => {}
    }
}

/// The log's index over a store, without the log's threads.
fn lookup(disk: &MemoryDisk, keeper: StoreKeeper) -> Lookup {
    let storage: Arc<dyn Storage> = Arc::new(disk.copy());
    let clock = Arc::new(TestClock::at(later(9)));
    let opened = crate::recover::open(Arc::clone(&storage), clock, &config(IndexStore::Memory)).unwrap();
    let (origin, tags) = (opened.keys.signer().name().to_owned(), opened.keys.index_tags());
    Lookup::start_on(storage, opened.known, keeper, origin, tags).unwrap()
}

fn keeper(open: impl Fn() -> Result<Box<dyn Store>, StoreFault> + Send + Sync + 'static) -> StoreKeeper {
    StoreKeeper { open: Arc::new(open), put_aside: Arc::new(|| Ok(())) }
}

fn nothing() -> StoreKeeper {
    keeper(|| Err(StoreFault::Failed("there is none".to_owned())))
}

/// Waits for the store to have what it can have.
fn ready(lookup: &Lookup) {
    while !lookup.health().is_ready() {
        std::thread::yield_now();
    }
}

/// Every answer is the model's. `every` says which requests and pages are asked for.
fn check(lookup: &Lookup, model: &Model, every: usize) -> Result<(), LookupError> {
    let keys = |name| lookup_tenant(lookup, model, name);
    for (request, (opened, sealed)) in model.requests.iter().step_by(every) {
        let record = lookup.request(*request)?.unwrap_or_else(|| panic!("{request} was not found"));
        assert_eq!((record.opened, record.sealed), (*opened, *sealed), "{request}");
        check_trace(lookup, &record, model);
    }
    for number in [REQUESTS, REQUESTS + 1, 900_000] {
        assert_eq!(lookup.request(request(number))?, None);
    }
    for name in ["acme", "globex"] {
        let entries = &model.tenants[name];
        assert_eq!(lookup.tenant_entries(keys(name), 0, u64::MAX)?, *entries, "{name}");
        let part = &entries[entries.len() / 2..entries.len() / 2 + 9];
        assert_eq!(lookup.tenant_entries(keys(name), entries.len() as u64 / 2, 9)?, part, "{name}");
    }
    assert_eq!(lookup.tenant_entries([9; 16], 0, 10)?, []);
    assert_eq!(lookup.incidents()?, model.incidents);
    for (page, readers) in model.readers.iter().step_by(every) {
        let said = lookup.page_readers(PageId(page.0), Generation(page.1))?;
        assert_eq!(said, PageReaders { readers: readers.clone(), unknown: model.unknown.clone() }, "{page:?}");
    }
    assert_eq!(lookup.page_readers(PageId(77_777), Generation(1))?.readers, []);
    for (first, last) in [(0, 9), (40, 41), (200, 500), (3, model.times.len() - 1)] {
        let wanted: Vec<u64> = (first as u64..=last as u64).collect();
        assert_eq!(lookup.entries_between(model.times[first], model.times[last])?, wanted);
    }
    Ok(())
}

fn lookup_tenant(lookup: &Lookup, model: &Model, name: &str) -> TenantRef {
    let first = model.tenants[name][0];
    lookup.source.entry(first).unwrap().unwrap().entry.head.tenant.unwrap().tenant
}

fn check_trace(lookup: &Lookup, record: &super::RequestRecord, model: &Model) {
    let sealed = record.sealed.unwrap();
    let read = lookup.source.entry(sealed).unwrap().unwrap();
    let audit_provenance::Body::Sealed(sealing) = read.entry.body else { panic!("not sealed") };
    let Some(digest) = sealing.trace else {
        assert!(model.unknown.contains(&sealed));
        return;
    };
    assert!(record.trace != TraceAt::Nowhere, "entry {sealed} has a trace");
    assert!(lookup.trace(sealed, digest, record.trace).is_some(), "the trace of entry {sealed}");
}

fn memory_store() -> StoreKeeper {
    keeper(|| Ok(Box::new(MemoryStore::default())))
}

fn sled_store(folder: &std::path::Path) -> StoreKeeper {
    StoreKeeper::new(&IndexStore::Sled(folder.to_owned()))
}

#[test]
fn every_answer_is_the_one_that_the_entries_give() {
    let (disk, model) = history();
    let folder = tempfile::tempdir().unwrap();
    for keeper in [memory_store(), sled_store(&folder.path().join("index"))] {
        let lookup = lookup(&disk, keeper);
        // While it is made, and when it is there.
        check(&lookup, &model, 17).unwrap();
        ready(&lookup);
        check(&lookup, &model, 1).unwrap();
        assert_eq!(lookup.health().rebuilds, 0, "{:?}", lookup.health());
        assert!(lookup.health().indexed >= 2 * BLOCK);
        lookup.end();
        check(&lookup, &model, 17).unwrap();
    }
    let without = lookup(&disk, nothing());
    check(&without, &model, 3).unwrap();
    without.end();
}

#[test]
fn a_store_on_disk_goes_on_where_it_was() {
    let (disk, model) = history();
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("index");
    let first = lookup(&disk, sled_store(&dir));
    ready(&first);
    first.end();
    // It writes nothing that it has: a second time it would not be allowed to.
    let read_only = keeper(move || Ok(Box::new(stores::ReadOnly(DiskStore::open(&dir)?))));
    let second = lookup(&disk, read_only);
    ready(&second);
    check(&second, &model, 1).unwrap();
    assert_eq!(second.health().rebuilds, 0);
    second.end();
}

#[test]
fn a_running_log_drops_what_its_index_has_and_answers_as_before() {
    let folder = tempfile::tempdir().unwrap();
    let disk = MemoryDisk::default();
    let log = open(&disk, START_US, IndexStore::Sled(folder.path().join("index")));
    let mut left = Vec::new();
    write(&log, 0..REQUESTS, &mut left);
    left.clear();
    while !log.health().index.is_ready() {
        std::thread::yield_now();
    }
    story::published(&log);
    for number in (0..REQUESTS).filter(|number| number % 41 != 5) {
        let (who, _) = who(number);
        assert!(log.receipt(&who, request(number)).is_ok(), "{number}");
    }
    let (acme, _) = who(1);
    assert_eq!(log.receipt(&acme, request(0)), Err(crate::ReceiptError::NotFound), "another tenant's");
    assert_eq!(log.receipt(&acme, request(REQUESTS)), Err(crate::ReceiptError::NotFound));
    assert_eq!(log.incidents().unwrap().len(), 8);
    assert!(!log.page_readers(PageId(1_000), Generation(1)).unwrap().readers.is_empty());
    assert!(!log.tenant_entries(&acme, 0, 5).unwrap().is_empty());
    log.shutdown();
}
