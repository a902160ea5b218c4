//! Published faults of other servers' handoffs, planted here as scripts: each with the fault, without it, and with a legal
//! look-alike. The shadow says what is true; the sides must have said so before a token left.

use super::scenario::Scenario;
use super::world::{Defect, Mail, Progress, Request, Work, World};
use crate::{Check, DecodeInput, Message, Outcome, PageSlot, Party, PrefillState, Refusal, Route};
use policies_domain::{Generation, PageId};
use std::time::Duration;

const ONE: &[Request] = &[Request { tenant: 1, pages: 1 }];

fn world(off: &[Check], requests: &[Request]) -> (World, Scenario) {
    let scenario = Scenario::new(off).requests(requests, [4, 4]);
    (World::new(&scenario.configs, requests, scenario.pages, scenario.budget), scenario)
}

fn route(world: &World, request: usize) -> Route {
    match world.requests[request].1 {
        Progress::Open(route) => route,
        other => panic!("request {request} is {other:?}"),
    }
}

fn offers(world: &World) -> usize {
    world.mail.iter().filter(|mail| matches!(mail, Mail::Message { message: Message::Offer(_), .. })).count()
}

/// The next work of that kind, taken out of the queue.
fn take_work(world: &mut World, kind: impl Fn(&Work) -> bool) -> Work {
    world.run_until(|world| world.work.iter().any(&kind));
    let at = world.work.iter().position(kind).unwrap();
    world.work.remove(at)
}

/// What was said by the end: routes that decode, and what each incident refused.
fn end(world: &mut World) -> (Vec<Route>, Vec<(Party, Route, Refusal)>) {
    world.run_until(|_| false);
    let refused = |incident: &crate::Incident| (incident.seen_by, incident.route, incident.refusal);
    (world.seen.drained.clone(), world.seen.incidents.iter().map(refused).collect())
}

/// metadata-slot-race: the first token that comes with B's pages is A's.
#[test]
fn metadata_slot_race() {
    let requests = [Request { tenant: 1, pages: 1 }, Request { tenant: 2, pages: 1 }, Request { tenant: 3, pages: 1 }];
    let script = |off: &[Check], race: bool| {
        let (mut world, _) = world(off, &requests);
        world.open(0, false);
        world.open(1, false);
        let (a, b) = (route(&world, 0), route(&world, 1));
        // The sender of the first is slow.
        world.run_until(|world| offers(world) == 1);
        let slow = world.mail.iter().position(|mail| matches!(mail, Mail::Message { message: Message::Offer(_), .. }));
        let slow = world.mail.remove(slow.unwrap());
        world.run_until(|world| offers(world) == 1);
        world.mail.insert(0, slow);
        let mut firsts = Vec::new();
        for mail in &mut world.mail {
            if let Mail::Message { message: Message::Offer(offer), .. } = mail {
                if let Some(first) = firsts.first().filter(|_| race) {
                    offer.manifest.first = *first;
                }
                firsts.push(offer.manifest.first);
            }
        }
        assert_eq!(firsts.len(), 2);
        world.open(2, false);
        let clean = route(&world, 2);
        let (decoding, refused) = end(&mut world);
        (world, decoding, refused, [a, b, clean])
    };
    let (world, decoding, refused, [a, b, clean]) = script(&[], true);
    assert_eq!((decoding, world.seen.broken), (vec![a, clean], 0), "B goes nowhere, nobody else is hurt");
    assert_eq!(refused, [(Party::Decode, b, Refusal::BrokenSeal)]);
    let (world, decoding, refused, routes) = script(&[], false);
    assert_eq!((decoding.len(), refused.len(), world.seen.broken), (routes.len(), 0, 0), "control");
    // Without the check the shadow sees the leak.
    let (world, decoding, ..) = script(&[Check::V2], true);
    assert!(decoding.contains(&b) && world.seen.broken != 0);
}

/// metadata-slot-race, twin: two requests of one prompt have the same first token by right.
#[test]
fn metadata_slot_race_twin() {
    let (mut world, _) = world(&[], &[ONE[0], ONE[0]]);
    world.open(0, false);
    world.open(1, false);
    let (decoding, refused) = end(&mut world);
    assert_eq!((decoding.len(), refused.len(), world.seen.broken), (2, 0, 0));
}

/// rendezvous-id-not-unique: the id of a living handoff is drawn again, for another tenant.
#[test]
fn rendezvous_id_not_unique() {
    let requests = [Request { tenant: 1, pages: 1 }, Request { tenant: 2, pages: 1 }];
    let script = |off: &[Check], repeat: bool| {
        let (mut world, _) = world(off, &requests);
        world.open(0, false);
        let first = route(&world, 0);
        world.run_until(|world| offers(world) == 1);
        world.open(1, repeat);
        let (decoding, refused) = end(&mut world);
        (world, decoding, refused, first)
    };
    let (world, decoding, refused, first) = script(&[], true);
    assert_eq!(world.requests[1].1, Progress::Over, "the second is refused");
    assert_eq!((decoding, refused.len(), world.seen.broken), (vec![first], 0, 0), "and the first does not notice");
    let (world, decoding, refused, _) = script(&[], false);
    assert_eq!((decoding.len(), refused.len(), world.seen.broken), (2, 0, 0), "control");
    // If the desk lets it through, both workers refuse a living id, and the first is still alone.
    let (world, decoding, ..) = script(&[Check::G1], true);
    assert_eq!(decoding.iter().filter(|route| **route == first).count(), 1);
    assert_ne!(world.seen.broken, 0, "the shadow sees the shared id");
}

/// rendezvous-id-not-unique, twin: a retry is the same request under another id.
#[test]
fn rendezvous_id_not_unique_twin() {
    let (mut world, _) = world(&[], ONE);
    world.budget.retries = 1;
    world.open(0, false);
    let failed = route(&world, 0);
    let prefill = take_work(&mut world, |work| matches!(work, Work::Prefill { .. }));
    world.finish(prefill, Some(Defect::PrefillFails));
    world.run_until(|_| false);
    world.open(0, false);
    let retry = route(&world, 0);
    assert!(retry.id != failed.id && retry.attempt > failed.attempt);
    let (decoding, refused) = end(&mut world);
    assert_eq!((decoding, refused.len(), world.seen.broken), (vec![retry], 0, 0));
}

/// stale-peer-after-restart: the prefill worker comes back at its address with nothing of what it offered.
#[test]
fn stale_peer_after_restart() {
    for news in [true, false] {
        let (mut world, scenario) = world(&[], ONE);
        world.open(0, false);
        let old = route(&world, 0);
        world.run_until(|world| offers(world) == 1);
        world.crash(Party::Prefill, &scenario.configs);
        if !news {
            // The map is cached by address: nobody hears of the restart.
            world.mail.retain(|mail| !matches!(mail, Mail::Gone { .. }));
        }
        let (decoding, refused) = end(&mut world);
        assert_eq!((decoding.len(), refused.len(), world.seen.broken), (0, 0, 0));
        assert!(world.settles(), "the pages that were kept for it come back");
        assert_eq!(world.prefill.state(old.id), None, "the new life takes nothing of the old one's");
    }
    let (mut world, _) = world(&[], ONE);
    world.open(0, false);
    assert_eq!(end(&mut world).0.len(), 1, "control");
}

/// stale-peer-after-restart, twin: after the commit the decode side needs no peer.
#[test]
fn stale_peer_after_restart_twin() {
    let (mut world, scenario) = world(&[], ONE);
    world.open(0, false);
    world.run_until(|world| !world.seen.committed.is_empty());
    world.crash(Party::Prefill, &scenario.configs);
    let (decoding, refused) = end(&mut world);
    assert_eq!((decoding.len(), refused.len(), world.seen.broken), (1, 0, 0));
}

/// aborted-prefill-still-decoded: a placeholder of one token is reported as a success.
#[test]
fn aborted_prefill_still_decoded() {
    let script = |off: &[Check], defect: Option<Defect>| {
        let (mut world, _) = world(off, ONE);
        world.open(0, false);
        let route = route(&world, 0);
        let prefill = take_work(&mut world, |work| matches!(work, Work::Prefill { .. }));
        world.finish(prefill, defect);
        let (decoding, refused) = end(&mut world);
        (world, decoding, refused, route)
    };
    let (world, decoding, refused, route) = script(&[], Some(Defect::Placeholder));
    assert_eq!((decoding.len(), world.seen.broken), (0, 0));
    let refusal = Refusal::Incomplete { pages: 1, tokens: 1, tokens_held: 13 };
    assert_eq!(refused, [(Party::Decode, route, refusal)]);
    assert_eq!(world.prefill.ended(route.id), Some(Outcome::Quarantined), "the source pages are evidence");
    let (world, decoding, refused, _) = script(&[], None);
    assert_eq!((decoding.len(), refused.len(), world.seen.broken), (1, 0, 0), "control");
    // Twin: an error that is said to be one is no fault of isolation.
    let (world, decoding, refused, route) = script(&[], Some(Defect::PrefillFails));
    assert_eq!((decoding.len(), refused.len(), world.seen.broken), (0, 0, 0));
    assert_eq!(world.prefill.ended(route.id), Some(Outcome::Freed));
    let (world, decoding, ..) = script(&[Check::V6], Some(Defect::Placeholder));
    assert!(decoding.len() == 1 && world.seen.broken != 0, "without the check the shadow sees it");
}

/// stale-reference-read-fails-open: of five kinds of reference only the fresh one is served.
#[test]
fn stale_reference_read_fails_open() {
    let offered = || {
        let (mut world, _) = world(&[], ONE);
        world.open(0, false);
        let route = route(&world, 0);
        world.run_until(|world| offers(world) == 1);
        (world, route)
    };
    // Fresh.
    let (mut fresh, route) = offered();
    assert_eq!(end(&mut fresh), (vec![route], vec![]));
    // Unknown.
    let (mut unknown, route) = offered();
    let mut other = route;
    other.id = crate::HandoffId::from_bytes([0xee; 16]);
    let fetch = |route| Mail::Message { from: Party::Decode, to: Party::Prefill, message: Message::Fetch { route } };
    unknown.deliver(fetch(other));
    assert!(!unknown.work.iter().any(|work| matches!(work, Work::Send { .. })), "nothing is read");
    assert_eq!(end(&mut unknown), (vec![route], vec![]));
    // Out of range: the bytes are said to lie where there is no page.
    let (mut outside, route) = offered();
    let receive = take_work(&mut outside, |work| matches!(work, Work::Receive { .. }));
    let nowhere = PageSlot { page: PageId(99), generation: Generation(1), tag: 1 };
    assert_eq!(receive.route(), route);
    outside.tell_decode(DecodeInput::Arrived { route, pages: vec![nowhere] });
    outside.work.retain(|work| !matches!(work, Work::Measure { .. }));
    let landed = crate::Landed { pages: vec![], layers: vec![] };
    outside.tell_decode(DecodeInput::Measured { route, landed });
    let (decoding, refused) = end(&mut outside);
    assert!(decoding.is_empty() && refused.len() == 1);
    // Consumed: what was committed and drained is not read a second time.
    let (mut consumed, route) = offered();
    end(&mut consumed);
    consumed.deliver(fetch(route));
    assert!(consumed.work.is_empty() && consumed.seen.committed.len() == 1);
    // Recycled: the lease is over, the page somebody else's, and only the reference still says otherwise.
    for fetched in [false, true] {
        let (mut recycled, route) = offered();
        if fetched {
            recycled.run_until(|world| world.decode.state(route.id) == Some(crate::DecodeState::Verified));
            recycled.run_until(|world| world.work.is_empty());
        }
        if recycled.prefill.state(route.id) == Some(PrefillState::Offered) {
            recycled.source.give_away(0);
            let (decoding, refused) = end(&mut recycled);
            assert_eq!((decoding.len(), recycled.seen.broken), (0, 0), "fetched: {fetched}");
            assert_eq!(refused, [(Party::Prefill, route, Refusal::SourceChanged)]);
        } else {
            panic!("the handoff was to be offered still");
        }
    }
}

/// stale-reference-read-fails-open, twin: a lease that a heartbeat renewed just before its end.
#[test]
fn stale_reference_read_fails_open_twin() {
    let script = |heartbeats: bool| {
        // The lease has 1000 ms, the decode side's share of it 800, and the bytes take 1800.
        let scenario = Scenario::new(&[]).heartbeat(Duration::from_millis(300));
        let mut world = World::new(&scenario.configs, ONE, scenario.pages, scenario.budget);
        world.tick = Duration::from_millis(300);
        world.open(0, false);
        let receive = take_work(&mut world, |work| matches!(work, Work::Receive { .. }));
        for _ in 0..6 {
            world.tick(Party::Decode, true);
            if !heartbeats {
                world.mail.retain(|mail| !matches!(mail, Mail::Message { message: Message::Heartbeat { .. }, .. }));
            }
            world.run_until(|_| false);
            world.tick(Party::Prefill, true);
            world.run_until(|_| false);
        }
        world.work.push(receive);
        let (decoding, refused) = end(&mut world);
        (decoding.len(), refused.len())
    };
    assert_eq!(script(true), (1, 0), "renewed in time");
    assert_eq!(script(false), (0, 0), "not renewed");
}
