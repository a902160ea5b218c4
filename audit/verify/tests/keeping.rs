//! Whoever has the key of the log destroys what is held, uses what is erased, or drops what is young: the log says so itself.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod forged;

use audit_provenance::{Body, Erased, Erasure, ErasureBasis, Hold, HoldReason, Opened, Prune, Release, TenantRef};
use audit_verify::{LogReport, check_log};
use forged::{ACME, Forge, GLOBEX, START_US, opened_body, signer};
use policies_domain::Digest;

const DAY_US: u64 = 24 * 3_600 * 1_000_000;
const EPOCH: u64 = 115;

fn check(forge: &Forge) -> Result<LogReport, String> {
    let dir = tempfile::tempdir().unwrap();
    forge.write(dir.path());
    let checked = check_log(dir.path(), &signer().verifier_key(), None, |_, _| {});
    checked.map_err(|refusal| format!("{}: {refusal}", refusal.check()))
}

#[track_caller]
fn refused(forge: &Forge, words: &str) {
    let refusal = check(forge).unwrap_err();
    assert!(refusal.starts_with("keeping: ") && refusal.contains(words), "{refusal}");
}

fn erasure(epoch: u64) -> Body {
    Body::Erasure(Erasure { epoch, key: None, basis: ErasureBasis::Request, actor: [1; 16], second: [2; 16] })
}

fn erased(epoch: u64, at: (u64, Digest)) -> Body {
    Body::Erased(Erased { epoch, erasure_index: at.0, erasure_leaf: at.1, files: 1 })
}

fn hold(id: u8) -> Body {
    let (first_us, last_us, reason) = (0, None, HoldReason::Litigation);
    Body::Hold(Hold { hold: [id; 16], first_us, last_us, reason, actor: [1; 16] })
}

fn release(id: u8) -> Body {
    Body::Release(Release { hold: [id; 16], actor: [1; 16], second: [2; 16] })
}

fn opened_in(request: u8, epoch: u64) -> Body {
    Body::Opened(Opened { epoch, ..opened_body(request) })
}

fn log() -> Forge {
    let mut forge = Forge::new();
    forge.answer(ACME, 1);
    forge.answer(GLOBEX, 2);
    forge
}

#[test]
fn erasures_holds_and_dropped_traces_are_counted() {
    let mut forge = log();
    let at = forge.add(Some(ACME), erasure(EPOCH));
    assert_eq!(check(&forge).unwrap().erasures, (1, 1));
    forge.add(Some(ACME), erased(EPOCH, at));
    forge.add(Some(ACME), opened_in(3, EPOCH + 1));
    forge.add(Some(GLOBEX), hold(1));
    forge.add(None, hold(2));
    forge.add(None, release(2));
    let report = check(&forge).unwrap();
    assert_eq!((report.erasures, report.holds, report.pruned_before), ((1, 0), 1, 0));
    forge.add(Some(GLOBEX), release(1));
    forge.later_us = 31 * DAY_US;
    forge.add(None, Body::Prune(Prune { before: 5, newest_us: START_US + 4_000, retention_days: 30 }));
    let report = check(&forge).unwrap();
    assert_eq!((report.holds, report.pruned_before), (0, 5));
}

#[test]
fn an_erased_key_is_used_by_nobody() {
    let mut forge = log();
    forge.add(Some(ACME), erasure(EPOCH));
    forge.add(Some(GLOBEX), opened_in(3, EPOCH));
    check(&forge).unwrap();
    forge.add(Some(ACME), opened_in(4, EPOCH));
    refused(&forge, "entry 7: the key of epoch 115 is erased, as entry 5 says");
    let mut twice = log();
    twice.add(Some(ACME), erasure(EPOCH));
    twice.add(Some(ACME), erasure(EPOCH));
    refused(&twice, "entry 6: the key of epoch 115 is erased, as entry 5 says");
}

#[test]
fn what_is_held_is_not_destroyed() {
    for tenant in [Some(ACME), None] {
        let mut forge = log();
        forge.add(tenant, hold(7));
        let mut erases = forge;
        erases.add(Some(ACME), erasure(EPOCH));
        refused(&erases, "entry 6: hold 07070707070707070707070707070707 forbids it");
    }
    let mut drops = log();
    drops.add(Some(ACME), hold(7));
    drops.later_us = 31 * DAY_US;
    drops.add(None, Body::Prune(Prune { before: 3, newest_us: START_US + 2_000, retention_days: 30 }));
    refused(&drops, "entry 6: hold 07070707070707070707070707070707 forbids it");
}

#[test]
fn nothing_is_said_to_be_done_or_ended_that_was_not_begun() {
    let with = |tenant: Option<TenantRef>, body: Body, words: &str| {
        let mut forge = log();
        forge.add(tenant, body);
        refused(&forge, words);
    };
    with(Some(ACME), erased(EPOCH, (1, Digest([0; 32]))), "entry 5: no such erasure of epoch 115 stands before it");
    with(Some(ACME), release(1), "entry 5: there is no such hold");
    with(None, erasure(EPOCH), "entry 5: it has no tenant");
    let mut other = log();
    other.add(Some(ACME), hold(1));
    other.add(Some(GLOBEX), release(1));
    refused(&other, "entry 6: there is no such hold");
}

#[test]
fn traces_are_dropped_for_their_age_and_no_other_reason() {
    let dropped = |later_days: u64, before: u64, newest_us: u64| {
        let mut forge = Forge::new();
        (0..140).for_each(|request| forge.answer(ACME, request));
        forge.later_us = later_days * DAY_US;
        forge.add(None, Body::Prune(Prune { before, newest_us, retention_days: 30 }));
        check(&forge).map(|report| report.pruned_before)
    };
    assert_eq!(dropped(30, 256, START_US + 255_000), Ok(256));
    assert!(dropped(29, 256, START_US + 255_000).is_err(), "too young");
    assert!(dropped(30, 256, START_US + 254_000).is_err(), "newer than it says");
    assert!(dropped(30, 282, START_US + 300_000).is_err(), "not there");
    assert!(dropped(30, 0, 0).is_err(), "nothing");
}
