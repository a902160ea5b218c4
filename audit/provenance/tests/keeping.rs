//! What may be held, erased and dropped, after what.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use audit_provenance::{
    Body, DecodeError, Entry, EntryVersion, Erased, Erasure, ErasureBasis, Head, Hold, HoldReason, Keeping,
    KeepingError, Opened, Prune, Release, TenantLink, TenantRef,
};
use policies_domain::Digest;
use proptest::prelude::*;

const ACME: TenantRef = [0xac; 16];
const GLOBEX: TenantRef = [0x61; 16];
const DAY_US: u64 = 24 * 3_600 * 1_000_000;
const ADA: [u8; 16] = [1; 16];
const BEN: [u8; 16] = [2; 16];

/// A log of such entries, at the times that the test says.
#[derive(Clone, Default)]
struct Log {
    keeping: Keeping,
    size: u64,
    now_us: u64,
}

impl Log {
    fn entry(&self, tenant: Option<TenantRef>, body: Body) -> Entry {
        let link = |tenant| TenantLink { tenant, number: 0, previous: Digest([0; 32]) };
        let head = Head {
            version: EntryVersion::CURRENT,
            uuid: [0; 16],
            blind: [0; 32],
            boot: [0; 16],
            wall_us: self.now_us,
            mono_us: 0,
            tenant: tenant.map(link),
        };
        Entry { head, body }
    }

    fn leaf(index: u64) -> Digest {
        Digest(std::array::from_fn(|at| index.to_be_bytes()[at % 8]))
    }

    fn add(&mut self, tenant: Option<TenantRef>, body: Body) -> Result<u64, KeepingError> {
        let entry = self.entry(tenant, body);
        // What the writer asks before and what a verifier finds afterwards are the same.
        let asked = self.keeping.check_body(self.size, self.now_us, tenant, &entry.body);
        let noted = self.keeping.note(self.size, Self::leaf(self.size), &entry);
        assert_eq!(asked, noted);
        noted?;
        // What may stand in a log is read back from it.
        if !matches!(entry.body, Body::Heartbeat) {
            assert_eq!(Entry::decode(&entry.encode()), Ok(entry));
        }
        self.size += 1;
        Ok(self.size - 1)
    }

    fn open(&mut self, tenant: TenantRef, epoch: u64) -> Result<u64, KeepingError> {
        let digest = Digest([1; 32]);
        self.add(
            Some(tenant),
            Body::Opened(Opened {
                epoch,
                request: [1; 32],
                tenant_name: [1; 32],
                rules: digest,
                determining: digest,
                model: digest,
                fingerprint: Some(digest),
                build: digest,
                stream: true,
            }),
        )
    }

    fn erase(&mut self, tenant: TenantRef, epoch: u64) -> Result<u64, KeepingError> {
        self.add(Some(tenant), erasure(epoch))
    }

    fn hold(
        &mut self,
        tenant: Option<TenantRef>,
        id: u8,
        first_us: u64,
        last_us: Option<u64>,
    ) -> Result<u64, KeepingError> {
        let hold = Hold { hold: [id; 16], first_us, last_us, reason: HoldReason::Inquiry, actor: ADA };
        self.add(tenant, Body::Hold(hold))
    }

    fn release(&mut self, tenant: Option<TenantRef>, id: u8) -> Result<u64, KeepingError> {
        self.add(tenant, Body::Release(Release { hold: [id; 16], actor: ADA, second: BEN }))
    }

    fn prune(&mut self, before: u64, newest_us: u64, retention_days: u64) -> Result<u64, KeepingError> {
        self.add(None, Body::Prune(Prune { before, newest_us, retention_days }))
    }
}

fn erasure(epoch: u64) -> Body {
    Body::Erasure(Erasure { epoch, key: None, basis: ErasureBasis::Order, actor: ADA, second: BEN })
}

fn erased(epoch: u64, index: u64) -> Body {
    Body::Erased(Erased { epoch, erasure_index: index, erasure_leaf: Log::leaf(index), files: 1 })
}

#[test]
fn an_erased_key_is_not_used_or_erased_again_and_the_next_epoch_takes_its_place() {
    let mut log = Log::default();
    log.open(ACME, 7).unwrap();
    log.open(GLOBEX, 7).unwrap();
    let at = log.erase(ACME, 7).unwrap();
    let again = Err(KeepingError::ErasedKey { epoch: 7, erasure: at });
    assert_eq!(log.open(ACME, 7), again);
    assert_eq!(log.erase(ACME, 7), again);
    assert!(log.open(GLOBEX, 7).is_ok() && log.open(ACME, 8).is_ok());
    assert_eq!((log.keeping.epoch_from(ACME, 7), log.keeping.epoch_from(GLOBEX, 7)), (8, 7));
    log.erase(ACME, 8).unwrap();
    assert_eq!((log.keeping.epoch_from(ACME, 6), log.keeping.epoch_from(ACME, 7)), (6, 9));
    assert_eq!(log.add(None, erasure(9)), Err(KeepingError::NoTenant));
}

#[test]
fn that_a_key_is_gone_is_said_of_an_erasure_that_stands_before() {
    let mut log = Log::default();
    let none = Err(KeepingError::NoErasure { epoch: 7 });
    assert_eq!(log.add(Some(ACME), erased(7, 0)), none);
    let at = log.erase(ACME, 7).unwrap();
    assert_eq!(log.add(Some(GLOBEX), erased(7, at)), none);
    assert_eq!(log.add(Some(ACME), erased(8, at)), Err(KeepingError::NoErasure { epoch: 8 }));
    assert_eq!(log.add(Some(ACME), erased(7, at + 1)), none);
    assert_eq!(log.add(None, erased(7, at)), none);
    assert_eq!(log.keeping.erasure(ACME, 7).unwrap().done, 0);
    // As often as files are found.
    log.add(Some(ACME), erased(7, at)).unwrap();
    log.add(Some(ACME), erased(7, at)).unwrap();
    assert_eq!(log.keeping.erasure(ACME, 7).unwrap().done, 2);
}

#[test]
fn what_is_held_is_not_erased() {
    let mut log = Log { now_us: 100, ..Log::default() };
    log.open(ACME, 7).unwrap();
    log.now_us = 200;
    log.open(ACME, 7).unwrap();
    log.open(ACME, 8).unwrap();
    log.open(GLOBEX, 7).unwrap();
    let held = |log: &Log, tenant, epoch| match log.clone().erase(tenant, epoch) {
        Ok(_) => false,
        Err(KeepingError::Held { .. }) => true,
        Err(error) => panic!("{error}"),
    };
    for (first, last, holds_it) in [
        (0, None, true),
        (0, Some(99), false),
        (0, Some(100), true),
        (150, Some(160), true),
        (200, None, true),
        (201, None, false),
    ] {
        let mut log = log.clone();
        log.hold(Some(ACME), 1, first, last).unwrap();
        assert_eq!(held(&log, ACME, 7), holds_it, "{first} {last:?}");
        assert!(!held(&log, GLOBEX, 7), "another tenant's");
        assert!(held(&log, ACME, 99), "what was never used is held whenever its tenant is");
        log.release(Some(ACME), 1).unwrap();
        assert!(!held(&log, ACME, 7));
    }
    log.hold(None, 1, 150, Some(160)).unwrap();
    log.hold(Some(ACME), 2, 150, Some(160)).unwrap();
    assert!(held(&log, ACME, 7) && !held(&log, ACME, 8) && !held(&log, GLOBEX, 7), "they began at 200");
    log.release(None, 1).unwrap();
    assert!(held(&log, ACME, 7), "the other one stays");
}

#[test]
fn holds_have_one_life_each() {
    let mut log = Log::default();
    assert_eq!(log.release(None, 1), Err(KeepingError::NoHold));
    assert_eq!(log.hold(None, 1, 5, Some(4)), Err(KeepingError::HoldTime));
    log.hold(Some(ACME), 1, 0, None).unwrap();
    assert_eq!(log.hold(Some(ACME), 1, 0, None), Err(KeepingError::HoldTwice));
    assert_eq!(log.release(Some(GLOBEX), 1), Err(KeepingError::NoHold));
    assert_eq!(log.release(None, 1), Err(KeepingError::NoHold));
    log.release(Some(ACME), 1).unwrap();
    assert_eq!(log.release(Some(ACME), 1), Err(KeepingError::NoHold));
    assert_eq!(log.hold(Some(ACME), 1, 0, None), Err(KeepingError::HoldTwice), "it would come back by its old name");
    assert!(log.keeping.holds().is_empty());
}

#[test]
fn destroying_and_letting_destroy_takes_two_persons() {
    let mut log = Log::default();
    log.hold(None, 1, 0, Some(0)).unwrap();
    let alone = Erasure { epoch: 7, key: None, basis: ErasureBasis::Order, actor: ADA, second: ADA };
    let release = Release { hold: [1; 16], actor: ADA, second: ADA };
    let refused = Err(DecodeError::Range { field: "second" });
    for (tenant, body) in [(Some(ACME), Body::Erasure(alone)), (None, Body::Release(release))] {
        assert_eq!(log.add(tenant, body.clone()), Err(KeepingError::SecondPerson));
        assert_eq!(Entry::decode(&log.entry(tenant, body).encode()), refused);
    }
}

#[test]
fn traces_are_dropped_when_all_of_them_are_old_and_nobody_holds_them() {
    let mut log = Log::default();
    for day in 0..600 {
        log.now_us = day * DAY_US;
        log.add(None, Body::Heartbeat).unwrap();
    }
    log.now_us = 600 * DAY_US;
    let refused = |log: &Log, before, newest_day, days| {
        let mut log = log.clone();
        let pruned = log.prune(before, newest_day * DAY_US, days);
        assert!(matches!(pruned, Ok(_) | Err(KeepingError::Prune)), "{pruned:?}");
        pruned.is_err()
    };
    assert!(!refused(&log, 300, 299, 301));
    assert!(refused(&log, 300, 299, 302), "too young");
    assert!(refused(&log, 300, 200, 301), "256 of them are newer than that");
    assert!(refused(&log, 601, 299, 1), "not there");
    assert!(refused(&log, 0, 0, 1), "nothing");
    for (first_day, holds_it) in [(0, true), (299, true), (300, false)] {
        let mut log = log.clone();
        log.hold(Some(ACME), 1, first_day * DAY_US, None).unwrap();
        let pruned = log.prune(300, 299 * DAY_US, 301);
        assert_eq!(pruned.is_err(), holds_it, "{first_day}");
        assert_eq!(log.keeping.pruned_before(), if holds_it { 0 } else { 300 });
    }
    log.prune(300, 299 * DAY_US, 301).unwrap();
    assert!(refused(&log, 300, 299, 301), "twice");
    assert!(!refused(&log, 301, 300, 300));
    assert!(
        Entry::decode(&log.entry(None, Body::Prune(Prune { before: 1, newest_us: 0, retention_days: 0 })).encode())
            .is_err()
    );
}

/// What a log may hold of this, said once more and by brute force: over everything that came before.
#[derive(Clone, Debug)]
enum Act {
    Open(bool, u64),
    Erase(bool, u64),
    Hold(Option<bool>, u8, u64, Option<u64>),
    Release(u8),
    Wait(u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        (any::<bool>(), 0..3u64).prop_map(|(tenant, epoch)| Act::Open(tenant, epoch)),
        (any::<bool>(), 0..3u64).prop_map(|(tenant, epoch)| Act::Erase(tenant, epoch)),
        (prop::option::of(any::<bool>()), 0..4u8, 0..40u64, prop::option::of(0..40u64))
            .prop_map(|(tenant, id, first, last)| Act::Hold(tenant, id, first, last)),
        (0..4u8).prop_map(Act::Release),
        (1..5u64).prop_map(Act::Wait),
    ]
}

/// Whose, its id, from when, until when, and whether it was not released.
type Modelled = (Option<bool>, u8, u64, Option<u64>, bool);

fn tenant(acme: bool) -> TenantRef {
    if acme { ACME } else { GLOBEX }
}

proptest! {
    #[test]
    fn nothing_is_erased_that_a_model_says_to_be_held(acts in prop::collection::vec(act(), 0..60)) {
        let mut log = Log::default();
        let mut opened: Vec<(bool, u64, u64)> = Vec::new();
        let mut erased: Vec<(bool, u64)> = Vec::new();
        let mut holds: Vec<Modelled> = Vec::new();
        for act in acts {
            match act {
                Act::Wait(us) => log.now_us += us,
                Act::Open(acme, epoch) => {
                    let allowed = !erased.contains(&(acme, epoch));
                    prop_assert_eq!(log.open(tenant(acme), epoch).is_ok(), allowed);
                    if allowed {
                        opened.push((acme, epoch, log.now_us));
                    }
                }
                Act::Erase(acme, epoch) => {
                    let times: Vec<u64> = opened.iter().filter(|(of, at, _)| (*of, *at) == (acme, epoch)).map(|(_, _, time)| *time).collect();
                    let span = times.iter().min().zip(times.iter().max());
                    let is_held = holds.iter().any(|(of, _, first, last, active)| {
                        let meets = span.is_none_or(|(min, max)| last.is_none_or(|last| *min <= last) && max >= first);
                        *active && of.is_none_or(|of| of == acme) && meets
                    });
                    let allowed = !is_held && !erased.contains(&(acme, epoch));
                    prop_assert_eq!(log.erase(tenant(acme), epoch).is_ok(), allowed);
                    if allowed {
                        erased.push((acme, epoch));
                    }
                }
                Act::Hold(of, id, first, last) => {
                    let allowed = !holds.iter().any(|hold| hold.1 == id) && last.is_none_or(|last| first <= last);
                    prop_assert_eq!(log.hold(of.map(tenant), id, first, last).is_ok(), allowed);
                    if allowed {
                        holds.push((of, id, first, last, true));
                    }
                }
                Act::Release(id) => {
                    let hold = holds.iter_mut().find(|hold| hold.1 == id && hold.4);
                    let of = hold.as_ref().and_then(|hold| hold.0);
                    prop_assert_eq!(log.release(of.map(tenant), id).is_ok(), hold.is_some());
                    if let Some(hold) = hold {
                        hold.4 = false;
                    }
                }
            }
        }
    }
}
