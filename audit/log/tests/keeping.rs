//! Erasing a key and holding what is not to be erased: whatever fails on the way, a key is gone exactly when the log says so.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod story;

use audit_log::{
    AppendError, AuditLog, EraseKey, ErasureBasis, HoldReason, KeepingError, OpenLogError, PlaceHold, Recorded,
    Storage as _,
};
use audit_provenance::{Body, Disclosure, Entry, Keeping, Openings};
use audit_tlog::{TlogProof, leaf_hash};
use policies_domain::{Digest, Principal, RequestId, TenantName};
use proptest::prelude::*;
use story::memory::{Kind, MemoryDisk};
use story::{START_US, Told, check_told, entries, facts, history, open, outcome, permit, principal, published};

const LATER_US: u64 = START_US + 100_000_000_000;
/// Half-years since 1970.
const EPOCH: u64 = 115;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn acme() -> Principal {
    principal(1, "acme")
}

fn globex() -> Principal {
    principal(2, "globex")
}

fn key_path(tenant: &str, epoch: u64) -> String {
    format!("keys/tenants/{tenant}.{epoch}.key")
}

async fn answered(log: &AuditLog, who: &Principal, request: u8) -> Told {
    let entry = log.open_request(&permit(who, request), facts()).await.unwrap();
    let sealed = entry.seal(outcome()).await.unwrap();
    published(log);
    Told { who: who.clone(), request, sealed: Some(sealed.index) }
}

async fn erase(log: &AuditLog, tenant: &str, epoch: u64) -> Result<Recorded, AppendError> {
    let [actor, second] = ["ada", "ben"].map(|name| log.actor(&TenantName::parse(name).unwrap()));
    let tenant = TenantName::parse(tenant).unwrap();
    log.erase_key(EraseKey { tenant, epoch, basis: ErasureBasis::Request, actor, second }).await
}

fn hold(log: &AuditLog, tenant: Option<&str>) -> PlaceHold {
    let tenant = tenant.map(|name| TenantName::parse(name).unwrap());
    let actor = log.actor(&TenantName::parse("ada").unwrap());
    PlaceHold { tenant, first_us: 0, last_us: None, reason: HoldReason::Litigation, actor }
}

fn disclosed(log: &AuditLog, who: &Principal, request: u8) -> Disclosure {
    let receipt = log.receipt(who, RequestId::from_bytes([request; 16])).unwrap();
    Disclosure::decode(&TlogProof::parse(receipt.as_bytes()).unwrap().extra.unwrap()).unwrap()
}

fn openings(log: &AuditLog, who: &Principal, request: u8) -> Option<Openings> {
    disclosed(log, who, request).openings
}

fn epoch_of(log: &AuditLog, who: &Principal, request: u8) -> u64 {
    match Entry::decode(&disclosed(log, who, request).opened).unwrap().body {
        Body::Opened(opened) => opened.epoch,
        other => panic!("{other:?}"),
    }
}

/// All entries, taken in as a verifier does.
fn keeping(disk: &MemoryDisk) -> Keeping {
    let mut keeping = Keeping::default();
    for (index, entry) in (0..).zip(entries(disk)) {
        keeping.note(index, Digest(leaf_hash(&entry.encode()).0), &entry).unwrap();
    }
    keeping
}

fn kinds(disk: &MemoryDisk, name: &str) -> usize {
    entries(disk).iter().filter(|entry| entry.body.name() == name).count()
}

/// Whether any file holds this.
fn is_stored(disk: &MemoryDisk, secret: &[u8]) -> bool {
    let holds = |path: &String| disk.content(path).unwrap().windows(secret.len()).any(|bytes| bytes == secret);
    disk.paths().iter().any(holds)
}

/// The secret's digits.
fn secret(disk: &MemoryDisk, tenant: &str) -> Vec<u8> {
    disk.content(&key_path(tenant, EPOCH)).unwrap()[..64].to_vec()
}

#[test]
fn an_erased_key_opens_nothing_and_nobody_else_is_hurt() {
    let disk = MemoryDisk::default();
    let log = open(&disk, START_US).unwrap();
    runtime().block_on(async {
        let told = [answered(&log, &acme(), 1).await, answered(&log, &globex(), 2).await];
        let secret = secret(&disk, "acme");
        let running = log.open_request(&permit(&acme(), 3), facts()).await.unwrap();
        assert!(openings(&log, &acme(), 1).is_some() && is_stored(&disk, &secret));

        let recorded = erase(&log, "acme", EPOCH).await.unwrap();
        assert!(!is_stored(&disk, &secret), "the key is still there");
        published(&log);
        check_told(&log, &told);
        assert!(openings(&log, &acme(), 1).is_none());
        assert!(openings(&log, &globex(), 2).is_some());
        // What is open ends; its receipt opens nothing either.
        let index = running.seal(outcome()).await.unwrap().index;
        published(&log);
        check_told(&log, &[Told { who: acme(), request: 3, sealed: Some(index) }]);
        assert!(openings(&log, &acme(), 3).is_none());
        // What comes next has a key of its own.
        let told = answered(&log, &acme(), 4).await;
        check_told(&log, &[told]);
        assert_eq!((epoch_of(&log, &acme(), 4), epoch_of(&log, &globex(), 2)), (EPOCH + 1, EPOCH));
        assert!(openings(&log, &acme(), 4).is_some());
        // Again is no second erasure.
        let again = KeepingError::ErasedKey { epoch: EPOCH, erasure: recorded.index };
        assert_eq!(erase(&log, "acme", EPOCH).await, Err(AppendError::Keeping(again)));
        assert_eq!(erase(&log, "acme", EPOCH + 2).await, Err(AppendError::NothingKept));
        assert_eq!(erase(&log, "initech", EPOCH).await, Err(AppendError::NothingKept));
    });
    log.shutdown();
    drop(log);
    assert_eq!((kinds(&disk, "erasure"), kinds(&disk, "erased")), (1, 1));
    let entries = entries(&disk);
    let at = entries.iter().position(|entry| entry.body.name() == "erasure").unwrap();
    assert_eq!(entries[at + 1].body.name(), "erased", "nothing stands between the word and the deed");
    let Body::Erasure(erasure) = &entries[at].body else { panic!("not erased") };
    assert!(erasure.key.is_some() && erasure.actor != erasure.second);
    let log = open(&disk, LATER_US).unwrap();
    assert!(openings(&log, &acme(), 1).is_none() && openings(&log, &acme(), 4).is_some());
    assert_eq!(kinds(&disk, "erased"), 1, "once is enough");
    keeping(&disk);
}

#[test]
fn an_erasure_takes_two_persons() {
    let disk = MemoryDisk::default();
    let log = open(&disk, START_US).unwrap();
    runtime().block_on(async {
        answered(&log, &acme(), 1).await;
        let actor = log.actor(&TenantName::parse("ada").unwrap());
        let tenant = TenantName::parse("acme").unwrap();
        let alone = EraseKey { tenant, epoch: EPOCH, basis: ErasureBasis::Other, actor, second: actor };
        assert_eq!(log.erase_key(alone).await, Err(AppendError::Keeping(KeepingError::SecondPerson)));
        let (held, _) = log.place_hold(hold(&log, None)).await.unwrap();
        let released = log.release_hold(held, actor, actor).await;
        assert_eq!(released, Err(AppendError::Keeping(KeepingError::SecondPerson)));
        assert!(openings(&log, &acme(), 1).is_some());
    });
}

#[test]
fn a_key_that_comes_back_from_a_backup_is_not_used_and_destroyed_again() {
    let disk = MemoryDisk::default();
    let log = open(&disk, START_US).unwrap();
    let (key, secret, backup) = runtime().block_on(async {
        answered(&log, &acme(), 1).await;
        let (key, secret) = (key_path("acme", EPOCH), secret(&disk, "acme"));
        let backup = disk.content(&key).unwrap();
        erase(&log, "acme", EPOCH).await.unwrap();
        // While the log is open.
        disk.write(&key, &backup).unwrap();
        assert!(openings(&log, &acme(), 1).is_none(), "an erased key was read");
        answered(&log, &acme(), 2).await;
        assert_eq!(epoch_of(&log, &acme(), 2), EPOCH + 1);
        (key, secret, backup)
    });
    log.shutdown();
    drop(log);
    disk.write(&format!("{key}.new"), &backup).unwrap();
    let log = open(&disk, LATER_US).unwrap();
    assert!(!is_stored(&disk, &secret), "an erased key was left where it was found");
    assert!(openings(&log, &acme(), 1).is_none() && openings(&log, &acme(), 2).is_some());
    let again = entries(&disk).into_iter().filter_map(|entry| match entry.body {
        Body::Erased(erased) => Some(erased.files),
        _ => None,
    });
    assert_eq!(again.collect::<Vec<_>>(), [1, 2]);
    log.shutdown();
    drop(log);
    // Half of one, as a crash or a bad copy leaves it: named where it counts, destroyed where it does not.
    disk.write(&key, &backup[..40]).unwrap();
    let log = open(&disk, LATER_US + 100_000_000_000).unwrap();
    assert!(disk.content(&key).is_none());
    log.shutdown();
    drop(log);
    let next = key_path("acme", EPOCH + 1);
    disk.edit(&next, |bytes| bytes.truncate(40));
    let refused = open(&disk, LATER_US + 200_000_000_000).map(drop).unwrap_err();
    assert!(matches!(&refused, OpenLogError::KeyDamaged { path } if *path == next), "{refused}");
    keeping(&disk);
}

#[test]
fn what_is_held_is_not_erased_before_two_persons_release_it() {
    let disk = MemoryDisk::default();
    let log = open(&disk, START_US).unwrap();
    let holds = runtime().block_on(async {
        answered(&log, &acme(), 1).await;
        answered(&log, &globex(), 2).await;
        assert_eq!(log.place_hold(hold(&log, Some("initech"))).await, Err(AppendError::NothingKept));
        let backwards = PlaceHold { first_us: 2, last_us: Some(1), ..hold(&log, None) };
        assert_eq!(log.place_hold(backwards).await, Err(AppendError::Keeping(KeepingError::HoldTime)));
        let (of_acme, _) = log.place_hold(hold(&log, Some("acme"))).await.unwrap();
        let (of_all, _) = log.place_hold(hold(&log, None)).await.unwrap();
        [of_acme, of_all]
    });
    log.shutdown();
    drop(log);
    // A start knows of them.
    let log = open(&disk, LATER_US).unwrap();
    assert_eq!(log.holds().iter().map(|held| held.hold.hold).collect::<Vec<_>>(), holds.map(|hold| hold.0));
    let persons = ["ada", "ben"].map(|name| log.actor(&TenantName::parse(name).unwrap()));
    runtime().block_on(async {
        let is_held = |erased: Result<Recorded, AppendError>| {
            matches!(erased, Err(AppendError::Keeping(KeepingError::Held { .. })))
        };
        assert!(is_held(erase(&log, "acme", EPOCH).await) && is_held(erase(&log, "globex", EPOCH).await));
        log.release_hold(holds[1], persons[0], persons[1]).await.unwrap();
        assert!(is_held(erase(&log, "acme", EPOCH).await));
        erase(&log, "globex", EPOCH).await.unwrap();
        let again = log.release_hold(holds[1], persons[0], persons[1]).await;
        assert_eq!(again, Err(AppendError::Keeping(KeepingError::NoHold)));
        assert!(openings(&log, &acme(), 1).is_some());
        // Of two at once that exclude each other, the first counts.
        let (release, erased) =
            tokio::join!(log.release_hold(holds[0], persons[0], persons[1]), erase(&log, "acme", EPOCH));
        assert!(release.is_ok());
        assert!(erased.is_ok() == openings(&log, &acme(), 1).is_none());
    });
    log.shutdown();
    keeping(&disk);
}

#[test]
fn no_request_is_opened_under_a_key_that_is_erased_meanwhile() {
    for round in 0..20 {
        let disk = MemoryDisk::default();
        let log = open(&disk, START_US).unwrap();
        runtime().block_on(async {
            answered(&log, &acme(), 1).await;
            let permits: Vec<_> = (2..40).map(|request| permit(&acme(), request)).collect();
            let opening = permits.iter().map(|permit| log.open_request(permit, facts()));
            let mut tasks: Vec<_> = opening.map(Box::pin).collect();
            // Some are on their way when the erasure comes.
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            for task in tasks.iter_mut().take(round * 2) {
                let _maybe_ready = task.as_mut().poll(&mut context).map(drop);
            }
            let erased = erase(&log, "acme", EPOCH).await;
            assert!(erased.is_ok(), "{erased:?}");
        });
        log.shutdown();
        drop(log);
        // Taking them all in would find one.
        let erasure = keeping(&disk).erasure(open_ref(&disk), EPOCH).unwrap();
        assert_eq!((erasure.done, disk.content(&key_path("acme", EPOCH))), (1, None));
    }
}

fn open_ref(disk: &MemoryDisk) -> audit_log::TenantRef {
    let opened = entries(disk).into_iter().find(|entry| matches!(entry.body, Body::Opened(_))).unwrap();
    opened.head.tenant.unwrap().tenant
}

/// An erasure of acme's key with one fault, perhaps a loss of power, and starts that meet faults themselves.
async fn with_faults(call: usize, kind: Kind, power_lost: bool, starts: &[(usize, Kind)]) -> Option<String> {
    let disk = history().await;
    let log = open(&disk, LATER_US).unwrap();
    let (key, secret) = (disk.content(&key_path("acme", EPOCH)).unwrap(), secret(&disk, "acme"));
    published(&log);
    disk.fail_at(call, kind);
    let erased = erase(&log, "acme", EPOCH).await;
    log.shutdown();
    drop(log);
    let failed = disk.heal()?;
    let mut seed = call as u64 * 0x9e37_79b9 + 77;
    let mut lose_power = |disk: &MemoryDisk| {
        seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        if power_lost {
            disk.crash(seed);
        }
    };
    lose_power(&disk);
    let mut now_us = LATER_US;
    for (call, kind) in starts {
        now_us += 100_000_000_000;
        disk.fail_at(*call, *kind);
        if let Ok(log) = open(&disk, now_us) {
            log.shutdown();
        }
        disk.heal();
        lose_power(&disk);
    }
    let log = open(&disk, now_us + 100_000_000_000)
        .unwrap_or_else(|error| panic!("fault {kind:?} at {call} ({failed}), power lost: {power_lost}: {error}"));
    published(&log);
    let name = TenantName::parse("acme").unwrap();
    let erasure = log.epoch_keys(&name).get(&EPOCH).and_then(|key| key.erasure);
    match erasure {
        Some(at) => {
            assert!(at.done > 0, "{failed}: nobody says that it was done");
            assert!(!is_stored(&disk, &secret), "{failed}: the key is still there");
            assert!(openings(&log, &acme(), 1).is_none());
        }
        None => {
            assert!(erased.is_err(), "{failed}: what was told to be erased is not");
            assert_eq!(disk.content(&key_path("acme", EPOCH)), Some(key), "{failed}: destroyed without a word");
            assert!(openings(&log, &acme(), 1).is_some());
        }
    }
    assert!(openings(&log, &globex(), 2).is_some(), "{failed}: another tenant's key is gone");
    let told = |who, request| Told { who, request, sealed: None };
    check_told(&log, &[told(acme(), 1), told(globex(), 2), told(acme(), 3), told(globex(), 4)]);
    let more = answered(&log, &acme(), 9).await;
    check_told(&log, &[more]);
    assert_eq!(epoch_of(&log, &acme(), 9), EPOCH + u64::from(erasure.is_some()));
    log.shutdown();
    keeping(&disk);
    Some(failed)
}

#[test]
fn whatever_fails_a_key_is_gone_exactly_when_the_log_says_so() {
    let mut met = std::collections::BTreeSet::new();
    for kind in [Kind::NotPersisted, Kind::Persisted, Kind::Half] {
        for power_lost in [false, true] {
            for call in 0.. {
                let Some(failed) = runtime().block_on(with_faults(call, kind, power_lost, &[])) else {
                    assert!(call > 20, "only {call} calls: the faults do not reach the erasure");
                    break;
                };
                met.insert(failed);
            }
        }
    }
    let key = key_path("acme", EPOCH);
    for call in ["open ", "measure ", "write at 0 ", "sync ", "remove "] {
        assert!(met.contains(&format!("{call}{key}")), "no `{call}{key}` ever failed: {met:?}");
    }
    assert!(met.contains("sync folder keys/tenants"), "{met:?}");
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![Just(Kind::NotPersisted), Just(Kind::Persisted), Just(Kind::Half)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn an_erasure_is_finished_however_often_its_starts_fail(
        call in 0..60usize,
        first in kind(),
        power_lost in any::<bool>(),
        starts in prop::collection::vec((0..120usize, kind()), 0..4),
    ) {
        runtime().block_on(with_faults(call, first, power_lost, &starts));
    }
}
