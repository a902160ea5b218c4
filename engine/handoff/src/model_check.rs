//! The protocol against everything that a bounded world can do to it: every order of messages, losses, repetitions,
//! crashes, clocks, clients that leave, and planted defects. What is explored are the two sides and the desk themselves.
//!
//! A scenario bounds how often what may go wrong; within its bounds every state is visited and the invariants I1 to I14
//! are asked of each. Then the same with one check switched off at a time: an invariant must break.

mod cast;
mod catalogue;
mod invariants;
mod pages;
mod scenario;
mod world;

use crate::{Check, Party};
use scenario::{Action, Scenario};
use world::{Budget, Defect, Request};

const ONE: &[Request] = &[Request { tenant: 1, pages: 1 }];
const TWO_PAGES: &[Request] = &[Request { tenant: 1, pages: 2 }];
const TWO_TENANTS: &[Request] = &[Request { tenant: 1, pages: 1 }, Request { tenant: 2, pages: 1 }];

fn one(off: &[Check], budget: Budget) -> Scenario {
    Scenario::new(off).requests(ONE, [1, 1]).budget(budget)
}

fn planted(off: &[Check], defect: Defect, budget: Budget) -> Scenario {
    Scenario::new(off).requests(TWO_PAGES, [2, 2]).budget(budget).defects(&[defect])
}

fn script(way: &[Action]) -> String {
    way.iter().map(|action| format!("\n    {}", action.line())).collect()
}

/// Every invariant holds in every state.
fn holds(name: &str, scenario: Scenario) {
    let (states, failures) = scenario.explore();
    println!("{name}: {states} states");
    let failures: Vec<String> =
        failures.iter().map(|(invariant, way)| format!("{name} breaks {invariant}:{}", script(way))).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn an_undisturbed_handoff_ends_in_decoding() {
    assert!(Scenario::new(&[]).reaches_a_commit());
    holds("undisturbed", Scenario::new(&[]));
    assert!(Scenario::new(&[]).in_place().requests(ONE, [1, 0]).reaches_a_commit());
}

#[test]
fn loss_repetition_and_clients_that_leave() {
    let budget = Budget { losses: 1, duplicates: 1, clients_that_leave: 1, ..Budget::default() };
    holds("loss", one(&[], budget));
    holds("loss and a retry", one(&[], Budget { losses: 1, retries: 1, ..Budget::default() }));
}

#[test]
fn leases_that_end_between_any_two_steps() {
    holds("time", one(&[], Budget { ticks: [0, 2, 2], ..Budget::default() }));
    let late = Budget { ticks: [0, 2, 1], ..Budget::default() };
    holds("time, late reaper", one(&[], late).late_reaper());
    holds("time and loss", one(&[], Budget { ticks: [1, 1, 1], losses: 1, ..Budget::default() }));
}

#[test]
fn restarts_at_every_state() {
    let all = [Party::Gateway, Party::Prefill, Party::Decode];
    let budget = Budget { crashes: 1, duplicates: 1, ..Budget::default() };
    holds("restart", one(&[], budget).crashes(&all));
    let retry = Budget { crashes: 1, retries: 1, ..Budget::default() };
    holds("restart and a retry", one(&[], retry).crashes(&all));
    let twice = Budget { crashes: 2, ..Budget::default() };
    holds("two restarts", one(&[], twice).crashes(&all));
}

#[test]
fn two_tenants_on_the_same_pools() {
    let budget = Budget { clients_that_leave: 1, ..Budget::default() };
    holds("two tenants", Scenario::new(&[]).requests(TWO_TENANTS, [1, 1]).budget(budget));
}

#[test]
fn pages_that_stay_where_they_are() {
    let leave = Budget { clients_that_leave: 1, duplicates: 1, ..Budget::default() };
    let time = Budget { ticks: [0, 2, 2], ..Budget::default() };
    for (name, budget) in [("in place, client leaves", leave), ("in place, time", time)] {
        holds(name, Scenario::new(&[]).in_place().requests(ONE, [1, 0]).budget(budget));
    }
}

#[test]
fn planted_defects_break_nothing() {
    use Defect::*;
    let budget = Budget { duplicates: 1, ..Budget::default() };
    for defect in [
        FlipManifest,
        FlipPage,
        FlipTag,
        WrongDomain,
        OtherRequest,
        ShuffledPages,
        MissingPage,
        OddToken,
        PrefillFails,
        KeptPageGivenAway,
        OfferedPageGivenAway,
    ] {
        holds(&format!("{defect:?}"), planted(&[], defect, budget));
    }
    holds("another model", one(&[], budget).other_model());
    holds("a repeated id", Scenario::new(&[]).requests(TWO_TENANTS, [1, 1]).defects(&[RepeatedId]));
}

#[test]
fn a_timer_sets_pages_aside_and_frees_none() {
    use pages::State;
    use world::{Work, World};
    let scenario = one(&[], Budget::default());
    let fresh = || World::new(&scenario.configs, ONE, [1, 1], Budget::default());
    let fence = |work: &Work| matches!(work, Work::Fence { .. });
    // A credit, and a lease, that nobody uses.
    let mut decode = fresh();
    decode.open(0, false);
    decode.run_until(|world| world.target.0[0].state == State::Inbound);
    (0..2).for_each(|_| decode.tick(Party::Decode, true));
    assert_eq!(decode.target.0[0].state, State::Quarantined);
    decode.run_until(|world| !world.work.iter().any(fence));
    assert_eq!(decode.target.0[0].state, State::Free, "after somebody said that nothing holds it");
    let mut prefill = fresh();
    prefill.open(0, false);
    prefill.run_until(|world| world.source.0[0].state == State::Outbound);
    (0..2).for_each(|_| prefill.tick(Party::Prefill, true));
    assert_eq!(prefill.source.0[0].state, State::Quarantined);
    prefill.run_until(|world| !world.work.iter().any(fence));
    assert_eq!(prefill.source.0[0].state, State::Free);
}

/// Where the absence of each check shows.
fn world_that_needs(check: Check) -> Scenario {
    let off = &[check];
    let defect = |defect| planted(off, defect, Budget::default());
    let leave = Budget { clients_that_leave: 1, ..Budget::default() };
    match check {
        Check::V1 => one(off, Budget { duplicates: 1, ..Budget::default() }),
        Check::V2 => defect(Defect::FlipManifest),
        Check::V3 => defect(Defect::WrongDomain),
        Check::V4 => defect(Defect::OtherRequest),
        Check::V5 => one(off, Budget::default()).other_model(),
        Check::V6 => defect(Defect::ShuffledPages),
        Check::V7 => defect(Defect::FlipPage),
        Check::V8 => defect(Defect::FlipTag),
        Check::V9 => defect(Defect::KeptPageGivenAway),
        Check::V10 => defect(Defect::OddToken),
        Check::A1 | Check::A2 | Check::A3 | Check::A7 => one(off, leave),
        // An aborted handoff's pages are not sealed any more: C3 stands behind C1.
        Check::C1 => one(&[Check::C1, Check::C3], leave),
        Check::A4 => one(off, Budget { ticks: [0, 0, 2], ..Budget::default() }),
        Check::A5 => defect(Defect::PrefillFails),
        Check::A6 => defect(Defect::FlipPage),
        Check::C2 => one(off, Budget { ticks: [0, 2, 0], ..Budget::default() }).late_reaper(),
        Check::C3 => defect(Defect::OfferedPageGivenAway),
        Check::K1 => one(off, Budget::default()),
        Check::G1 => Scenario::new(off).requests(TWO_TENANTS, [1, 1]).defects(&[Defect::RepeatedId]),
    }
}

#[test]
fn the_one_check_is_enough_where_two_stand() {
    let leave = Budget { clients_that_leave: 1, ..Budget::default() };
    holds("C1 without C3", one(&[Check::C3], leave));
    holds("C3 without C1", one(&[Check::C1], leave));
    // What the pages list is compared with the prompt, with what was kept, and with what landed.
    holds("without V6, a page is missing", planted(&[Check::V6], Defect::MissingPage, Budget::default()));
}

#[test]
fn without_any_one_check_an_invariant_breaks() {
    let mut unnoticed = Vec::new();
    for check in Check::ALL {
        match world_that_needs(check).first_failure() {
            Some((invariant, way)) => println!("without {check:?}: {invariant}{}", script(&way)),
            None => unnoticed.push(check),
        }
    }
    assert!(unnoticed.is_empty(), "switched off and not noticed: {unnoticed:?}");
}
