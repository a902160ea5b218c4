//! Tables that begin with shared pages on their way.

use super::*;
use crate::OutboundTable;
use policies_domain::{HolderId, Outcome, TicketKind};

#[test]
fn a_table_behind_a_prefix_is_offered_withdrawn_and_published() {
    let mut rig = Rig::new(16);
    let tokens = prompt(1, 3);
    rig.learn(tenant(1), &tokens[..40], MANY);
    let table = rig.prefill(tenant(1), &tokens);
    let before = capabilities(&table);
    let outbound = OutboundTable::offer(table).unwrap();
    let listed: Vec<_> = outbound.pages().map(|(_, capability, tokens)| (capability, tokens)).collect();
    assert_eq!(listed, before.iter().copied().zip([16, 16, 16, 5]).collect::<Vec<_>>());
    assert_eq!((rig.pool.counts().shared, rig.pool.counts().outbound), (2, 2));
    // The shared ones are copied like the others.
    for (life, ..) in outbound.pages() {
        let ticket = rig.pool.ticket(life, TicketKind::Read, HolderId(1)).unwrap();
        ticket.settle(Outcome::Done).unwrap();
    }
    rig.audit();
    let mut table = outbound.withdraw().unwrap();
    assert_eq!((capabilities(&table), table.tokens()), (before, tokens.len()));
    assert_eq!(rig.cache.publish(&tokens, &mut table, MANY), 1);
    rig.agrees(&table);
    table.grow(tokens.len() + 16, |_| ()).unwrap();
    table.advance(16).unwrap();
    rig.agrees(&table);
    drop(OutboundTable::offer(table).unwrap());
    assert_eq!((rig.free(), rig.cache.cached_alone(tenant(1))), (13, 3), "only the cache has them");
}

#[test]
fn a_prefix_is_handed_over_as_it_is_and_the_rest_in_a_new_life() {
    let mut rig = Rig::new(16);
    let tokens = prompt(1, 4);
    rig.learn(tenant(1), &tokens[..40], MANY);
    let mut table = rig.prefill(tenant(1), &tokens);
    rig.cache.publish(&tokens[..48], &mut table, MANY);
    let before = capabilities(&table);
    let from = table.sequence();
    let mut relabelled = Vec::new();
    let table = OutboundTable::offer(table).unwrap().hand_over(|before, now| {
        relabelled.push((before, now));
        true
    });
    let mut table = table.unwrap();
    let now = capabilities(&table);
    assert_eq!(relabelled, before.iter().copied().zip(now.iter().copied()).collect::<Vec<_>>(), "one call a page");
    assert_eq!(before[..3], now[..3]);
    assert!(before[3..].iter().zip(&now[3..]).all(|(before, now)| before.tag() != now.tag()));
    rig.agrees(&table);
    assert!(rig.view.pages(from, 0).is_err(), "whoever had them has none");
    table.grow(tokens.len() + 20, |_| ()).unwrap();
    table.advance(20).unwrap();
    rig.agrees(&table);
    drop(table);
    assert_eq!((rig.cache.cached_alone(tenant(1)), rig.free()), (3, 13));
}

#[test]
fn a_prefix_that_cannot_be_handed_over_goes_back_whole() {
    let mut rig = Rig::new(16);
    let tokens = prompt(1, 2);
    for act in 0..3 {
        rig.learn(tenant(1), &tokens, MANY);
        let outbound = OutboundTable::offer(rig.prefill(tenant(1), &tokens)).unwrap();
        let lives: Vec<_> = outbound.pages().map(|(life, ..)| life).collect();
        let handed_over = match act {
            0 => outbound.hand_over(|before, now| before != now),
            1 => outbound.hand_over(|before, now| before == now),
            _ => {
                rig.pool.quarantine(lives[1].page, QuarantineReason::TagMismatch);
                outbound.hand_over(|_, _| true)
            }
        };
        assert!(handed_over.is_err(), "{act}");
        rig.audit();
        rig.cache.clear(tenant(1));
        assert_eq!(rig.free() + rig.pool.counts().quarantined, 16);
    }
}
