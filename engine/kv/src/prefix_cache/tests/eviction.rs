//! What goes, when, and when its page comes back.

use super::*;

#[test]
fn a_domain_keeps_no_more_than_its_bound_and_the_most_recent() {
    let mut rig = Rig::new(64);
    for kind in 1..4 {
        assert_eq!(rig.learn(tenant(1), &prompt(kind, 2), 6), 2);
    }
    assert_eq!(rig.found(tenant(1), &prompt(1, 2)), 2, "used again");
    assert_eq!(rig.learn(tenant(1), &prompt(4, 2), 6), 2);
    let found = [1, 2, 3, 4].map(|kind| rig.found(tenant(1), &prompt(kind, 2)));
    assert_eq!(found, [2, 0, 2, 2], "the one that was used least recently goes");
    assert_eq!((rig.cache.pages_of(tenant(1)), rig.cache.counts(tenant(1)).evictions), (6, 2));
    assert_eq!(rig.learn(tenant(1), &prompt(5, 9), 4), 4, "as much of it as may be kept");
    assert_eq!((rig.found(tenant(1), &prompt(5, 9)), rig.cache.pages_of(tenant(1))), (4, 4));
    assert_eq!(rig.learn(tenant(1), &prompt(6, 1), 0), 0);
    assert_eq!(rig.cache.pages_of(tenant(1)), 0, "a bound of nothing keeps nothing");
}

#[test]
fn a_full_domain_never_gives_up_what_it_publishes_behind() {
    let mut rig = Rig::new(64);
    let tokens = prompt(1, 4);
    rig.learn(tenant(1), &tokens[..40], 3);
    rig.learn(tenant(1), &prompt(2, 1), 3);
    assert_eq!(rig.learn(tenant(1), &tokens, 3), 1, "two were known");
    assert_eq!((rig.found(tenant(1), &tokens), rig.found(tenant(1), &prompt(2, 1))), (3, 0));
    rig.cache.clear(tenant(1));
    assert_eq!(rig.free(), 64);
}

#[test]
fn eviction_moves_nothing_of_anybody_else() {
    let mut rig = Rig::new(64);
    for number in 1..4 {
        rig.learn(tenant(number), &prompt(number, 5), MANY);
    }
    let others = |rig: &mut Rig| {
        let tables = [1, 3].map(|number| rig.prefill(tenant(number), &prompt(number, 5)));
        let pages = tables.each_ref().map(|table| capabilities(table)[..5].to_vec());
        (pages, [1, 3].map(|number| rig.cache.counts(tenant(number)).evictions))
    };
    let before = others(&mut rig);
    assert_eq!(rig.cache.evict(tenant(2), 2), 2);
    assert_eq!((rig.cache.pages_of(tenant(2)), rig.found(tenant(2), &prompt(2, 5))), (3, 3), "from the leaves on");
    assert_eq!(rig.cache.evict(tenant(2), 100), 3, "and no more than there is");
    // One domain is full over and over, and forgets its own.
    for kind in 10..20 {
        rig.learn(tenant(2), &prompt(kind, 2), 4);
    }
    assert_eq!(rig.cache.clear(tenant(2)), 4);
    assert_eq!(others(&mut rig), before);
}

#[test]
fn an_evicted_page_comes_back_with_its_last_reader() {
    let mut rig = Rig::new(8);
    let tokens = prompt(1, 3);
    rig.learn(tenant(1), &tokens, MANY);
    assert_eq!((rig.free(), rig.cache.cached_alone(tenant(1))), (5, 3));
    let reader = rig.prefill(tenant(1), &tokens[..40]);
    assert_eq!((rig.cache.cached_alone(tenant(1)), rig.pool.held_by(tenant(1))), (1, 4));
    assert_eq!(rig.cache.evict(tenant(1), 3), 1, "two are being read");
    assert_eq!(rig.cache.cached_alone(tenant(1)), 0);
    rig.agrees(&reader);
    assert_eq!(rig.free(), 5);
    rig.cache.clear(tenant(1));
    assert_eq!(rig.free(), 5, "the reader holds them");
    rig.agrees(&reader);
    drop(reader);
    assert_eq!((rig.free(), rig.pool.held_by(tenant(1))), (8, 0));
}

#[test]
fn eviction_brings_back_what_it_promised_through_pages_that_are_read() {
    let mut rig = Rig::new(16);
    let tokens = prompt(1, 3);
    rig.learn(tenant(1), &tokens[..20], MANY);
    let fresh = BlockTable::new(&rig.pool, tenant(1));
    let mut table = rig.compute(fresh, &tokens);
    rig.cache.publish(&tokens, &mut table, MANY);
    // Nobody reads the first node's page, and two that are read hang on it.
    assert_eq!(rig.cache.cached_alone(tenant(1)), 1);
    assert_eq!(rig.cache.evict(tenant(1), 1), 1);
    assert_eq!((rig.cache.pages_of(tenant(1)), rig.cache.evict(tenant(1), 1)), (0, 0));
    rig.agrees(&table);
}

#[test]
fn a_hit_that_is_not_used_gives_everything_back() {
    let mut rig = Rig::new(8);
    let tokens = prompt(1, 3);
    rig.learn(tenant(1), &tokens, MANY);
    let hit = rig.cache.lookup(tenant(1), &tokens, tokens.len());
    // It holds its pages: nothing can come between a lookup and its use.
    rig.cache.clear(tenant(1));
    assert_eq!((rig.free(), hit.pages(), hit.label()), (5, 3, tenant(1)));
    let table = BlockTable::with_prefix(hit);
    rig.agrees(&table);
    drop(table);
    assert_eq!(rig.free(), 8);
}
