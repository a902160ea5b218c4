use super::*;
use crate::TenantTerms;
use policies_domain::TenantId;

const COSTS: Costs =
    Costs { decode_us: 1000.0, row_us: 100.0, read_us: 0.0, prefill_us: 500.0, token_us: 100.0, depth_us: 0.0 };

fn label(number: u32) -> Label {
    Label::of(TenantId::new(number).unwrap())
}

fn scheduler(tenants: &[(u32, TenantTerms)]) -> Scheduler {
    let tenancy = Tenancy::new(tenants.iter().map(|(tenant, terms)| (label(*tenant), *terms))).unwrap();
    let age_bound = Duration::from_secs(2);
    Scheduler::new(SchedulerConfig { tenancy, costs: COSTS, slots: 10, pages: 100, chunk_tokens_max: 256, age_bound })
}

fn arrival(tenant: u32, prompt_tokens: usize) -> Arrival {
    Arrival { tenant: label(tenant), prompt_tokens, cached_tokens: 0, restarts: 0 }
}

fn arrive(scheduler: &mut Scheduler, tenant: u32, keys: impl IntoIterator<Item = Key>) {
    for key in keys {
        scheduler.arrive(Duration::ZERO, key, arrival(tenant, 100));
    }
}

fn admit_all(scheduler: &mut Scheduler, slots: usize) -> Vec<Key> {
    let mut admitted = Vec::new();
    while scheduler.running() < slots
        && let Some(key) = scheduler.next(Duration::ZERO, |_| Fit::Now)
    {
        scheduler.admit(key);
        admitted.push(key);
    }
    admitted
}

fn plan(scheduler: &Scheduler, left_us: f64, rest: impl Fn(Key) -> Option<Row>) -> Vec<(Key, usize)> {
    let mut chunks = Vec::new();
    scheduler.plan_prefill(left_us, rest, &mut chunks);
    chunks.into_iter().map(|Chunk { key, tokens }| (key, tokens)).collect()
}

#[test]
fn slots_go_round_between_tenants_however_many_requests_each_has() {
    let mut scheduler = scheduler(&[]);
    arrive(&mut scheduler, 1, 0..20);
    arrive(&mut scheduler, 2, 20..22);
    arrive(&mut scheduler, 3, 22..42);
    let admitted = admit_all(&mut scheduler, 10);
    let of = |keys: std::ops::Range<Key>| admitted.iter().filter(|key| keys.contains(key)).count();
    assert_eq!([of(0..20), of(20..22), of(22..42)], [4, 2, 4]);
    assert_eq!((scheduler.running(), scheduler.waiting()), (10, 32));
}

#[test]
fn one_tenant_s_requests_go_in_the_order_in_which_they_came() {
    let mut scheduler = scheduler(&[]);
    arrive(&mut scheduler, 1, 0..16);
    assert_eq!(admit_all(&mut scheduler, 10), (0..10).collect::<Vec<_>>());
    assert_eq!(scheduler.victim_for_slot(label(1)), None);
    assert_eq!(plan(&scheduler, 15_500.0, |_| Some(Row { tokens: 100, depth: 0 })), [(0, 100), (1, 48)]);
}

#[test]
fn what_was_prepaid_and_not_used_comes_back() {
    let mut scheduler = scheduler(&[]);
    arrive(&mut scheduler, 1, 0..100);
    arrive(&mut scheduler, 2, 100..200);
    // The first one's requests end at once, as those of clients that leave: that costs nothing.
    for _ in 0..40 {
        let key = scheduler.next(Duration::ZERO, |_| Fit::Now).unwrap();
        scheduler.admit(key);
        if key < 100 {
            scheduler.charge(key, 1000);
            scheduler.forget(key);
        } else {
            scheduler.charge(key, 30_000_000);
        }
    }
    assert!(scheduler.slots_of(label(2)) <= 1, "{:?}", scheduler.slots_of(label(2)));
}

#[test]
fn inside_a_tenant_the_longest_prefix_goes_first_until_the_oldest_has_waited_too_long() {
    let mut scheduler = scheduler(&[]);
    scheduler.arrive(Duration::ZERO, 1, arrival(1, 500));
    scheduler.arrive(Duration::from_secs(1), 2, Arrival { cached_tokens: 480, ..arrival(1, 500) });
    scheduler.arrive(Duration::from_secs(1), 3, Arrival { cached_tokens: 160, ..arrival(1, 500) });
    let next = |scheduler: &Scheduler, seconds| scheduler.next(Duration::from_secs(seconds), |_| Fit::Now);
    assert_eq!(next(&scheduler, 1), Some(2));
    assert_eq!(next(&scheduler, 2), Some(1), "it has waited for two seconds");
    scheduler.note_cached(3, 496);
    assert_eq!(next(&scheduler, 1), Some(3));
    // The prefix of one tenant's request says nothing about another tenant's turn.
    scheduler.charge(1, 1_000_000_000);
    scheduler.arrive(Duration::from_secs(1), 4, arrival(2, 2000));
    assert_eq!(next(&scheduler, 1), Some(4), "tenant 2 was lifted to a quarter of a second before it");
    scheduler.charge(4, 250_000_000);
    assert_eq!(next(&scheduler, 1), Some(3));
    scheduler.charge(1, 1);
    assert_eq!(next(&scheduler, 1), Some(4));
}

#[test]
fn who_does_not_fit_lets_others_pass_for_a_while() {
    let mut scheduler = scheduler(&[]);
    scheduler.arrive(Duration::ZERO, 1, arrival(1, 5000));
    scheduler.arrive(Duration::ZERO, 2, arrival(2, 10));
    let fits = |key| if key == 2 { Fit::Now } else { Fit::Later };
    assert_eq!(scheduler.next(Duration::from_secs(1), fits), Some(2));
    assert_eq!(scheduler.next(Duration::from_secs(2), fits), None);
    assert_eq!(scheduler.next(Duration::from_secs(1), |key| if key == 2 { Fit::Now } else { Fit::Hold }), None);
    let rather = |key| if key == 2 { Fit::Now } else { Fit::Rather };
    assert_eq!(scheduler.next(Duration::from_secs(60), rather), Some(2), "who waits of its own accord holds nobody up");
}

#[test]
fn whoever_has_more_slots_than_its_share_gives_one_up() {
    let mut scheduler = scheduler(&[(2, TenantTerms { weight: 3, ..TenantTerms::default() })]);
    arrive(&mut scheduler, 1, 0..10);
    assert_eq!(admit_all(&mut scheduler, 10).len(), 10);
    assert_eq!(scheduler.victim_for_slot(label(3)), Some(9), "the youngest");
    assert_eq!(scheduler.victim_for_slot(label(1)), None);
    arrive(&mut scheduler, 3, 10..20);
    for turn in 0..4 {
        let victim = scheduler.victim_for_slot(label(3)).unwrap();
        scheduler.forget(victim);
        let restarted = Arrival { restarts: 1, ..arrival(1, 100) };
        scheduler.arrive(Duration::ZERO, victim, restarted);
        scheduler.admit(10 + turn);
    }
    assert_eq!(scheduler.victim_for_slot(label(3)), None, "what ends makes up for the rest");
    // Three times the weight: three times the slots.
    assert!(scheduler.victim_for_slot(label(2)).is_some());
}

#[test]
fn who_gave_way_often_is_spared() {
    let mut scheduler = scheduler(&[]);
    arrive(&mut scheduler, 1, 0..3);
    scheduler.arrive(Duration::ZERO, 3, Arrival { restarts: 2, ..arrival(1, 100) });
    scheduler.arrive(Duration::ZERO, 4, Arrival { restarts: 1, ..arrival(1, 100) });
    admit_all(&mut scheduler, 10);
    let mut order = Vec::new();
    while let Some(victim) = scheduler.victim_for_slot(label(2)) {
        order.push(victim);
        scheduler.forget(victim);
    }
    assert_eq!(order, [2, 1, 0, 4]);
}

#[test]
fn a_more_urgent_class_takes_slots_but_for_the_floor() {
    let class = |class| TenantTerms { class, ..TenantTerms::default() };
    let mut scheduler = scheduler(&[(1, class(Class::Batch)), (2, class(Class::Interactive))]);
    arrive(&mut scheduler, 1, 0..10);
    admit_all(&mut scheduler, 10);
    arrive(&mut scheduler, 2, 10..30);
    let mut taken = 0;
    while let Some(victim) = scheduler.victim_for_slot(label(2)) {
        scheduler.forget(victim);
        scheduler.admit(10 + taken);
        taken += 1;
    }
    assert_eq!((taken, scheduler.slots_of(label(1))), (9, 1), "a tenth is the batch class's");
    assert_eq!(scheduler.victim_for_slot(label(1)), None);
    scheduler.forget(0);
    scheduler.admit(19);
    assert!(scheduler.victim_for_slot(label(1)).is_some(), "it gets its floor back");
}

#[test]
fn pages_come_from_whoever_has_more_than_its_guarantee_and_from_its_cache_first() {
    let mut scheduler = scheduler(&[1, 2, 3].map(|tenant| (tenant, TenantTerms::default())));
    for tenant in 1..=3 {
        arrive(&mut scheduler, tenant, [tenant.into()]);
    }
    admit_all(&mut scheduler, 10);
    assert_eq!(scheduler.guaranteed_pages(label(1)), 26);
    scheduler.note_pages(label(1), 26, 20);
    scheduler.note_pages(label(2), 40, 3);
    scheduler.note_pages(label(3), 30, 30);
    assert_eq!(scheduler.reclaim_for(label(1)), Some(Reclaim::Cache(label(2), 3)));
    scheduler.note_pages(label(2), 37, 0);
    assert_eq!(scheduler.reclaim_for(label(1)), Some(Reclaim::Request(2)));
    assert_eq!(scheduler.reclaim_for(label(2)), Some(Reclaim::Request(2)), "its own newest");
    scheduler.note_pages(label(2), 20, 0);
    assert_eq!(scheduler.reclaim_for(label(1)), Some(Reclaim::Cache(label(3), 4)));
    scheduler.note_pages(label(3), 26, 26);
    assert_eq!(scheduler.reclaim_for(label(2)), Some(Reclaim::Request(2)), "nobody else has too much");
    assert_eq!(scheduler.reclaim_for(label(1)), Some(Reclaim::Cache(label(1), 20)));
}

#[test]
fn prompts_get_what_a_step_has_left_and_nobody_more_than_half_while_others_wait() {
    let mut scheduler = scheduler(&[]);
    arrive(&mut scheduler, 1, [1, 2]);
    arrive(&mut scheduler, 2, [3]);
    admit_all(&mut scheduler, 10);
    let rest = |_| Some(Row { tokens: 1000, depth: 0 });
    // 16 ms are 160 tokens after the pass's own half a millisecond.
    assert_eq!(plan(&scheduler, 16_500.0, rest), [(1, 80), (3, 80)]);
    scheduler.charge(1, 1);
    assert_eq!(plan(&scheduler, 16_500.0, rest), [(3, 80), (1, 80)], "by the work that was done");
    let short = |key| Some(Row { tokens: if key == 3 { 1000 } else { 20 }, depth: 0 });
    assert_eq!(plan(&scheduler, 16_500.0, short), [(3, 120), (1, 20), (2, 20)]);
    assert_eq!(plan(&scheduler, 0.0, rest), [(3, 32)], "somebody always goes on");
    assert_eq!(plan(&scheduler, -1e9, rest), [(3, 32)]);

    assert_eq!(plan(&scheduler, 1e9, rest), [(3, 128), (1, 128)], "a step takes 256 tokens at most");
    let stalled = |key| (key == 2).then_some(Row { tokens: 1000, depth: 0 });
    assert_eq!(plan(&scheduler, 1e9, stalled), [(2, 256)], "half is for who can use it");
    assert_eq!(plan(&scheduler, 1e9, |_| None), []);
    scheduler.prefilled(3);
    assert_eq!(plan(&scheduler, 16_500.0, rest), [(1, 160)]);
    scheduler.charge(1, 1_000_000_000);
    scheduler.forget(3);
    arrive(&mut scheduler, 2, [5]);
    scheduler.admit(5);
    assert_eq!(plan(&scheduler, 5_000.0, rest).len(), 1, "less than two chunks is one chunk");
    scheduler.assert_sound();
}

#[test]
fn a_prompt_of_a_less_urgent_class_gets_what_is_left_and_its_floor() {
    let class = |class| TenantTerms { class, ..TenantTerms::default() };
    let mut scheduler = scheduler(&[(1, class(Class::Batch)), (2, class(Class::Interactive))]);
    arrive(&mut scheduler, 1, [1]);
    arrive(&mut scheduler, 2, [2]);
    admit_all(&mut scheduler, 10);
    let rest = |_| Some(Row { tokens: 1000, depth: 0 });
    assert_eq!(plan(&scheduler, 16_500.0, rest), [(2, 160)]);
    let short = |key| Some(Row { tokens: if key == 2 { 40 } else { 1000 }, depth: 0 });
    assert_eq!(plan(&scheduler, 16_500.0, short), [(2, 40), (1, 120)]);
    scheduler.charge(2, 16_000_000);
    assert_eq!(plan(&scheduler, 16_500.0, rest), [(1, 160)], "it is owed 1.6 ms");
    scheduler.charge(1, 16_000_000);
    for _ in 0..9 {
        assert_eq!(plan(&scheduler, 16_500.0, rest), [(2, 160)]);
        scheduler.charge(2, 16_000_000);
    }
    scheduler.charge(2, 1_000_000);
    assert_eq!(plan(&scheduler, 16_500.0, rest), [(1, 160)]);
}

#[test]
fn tenants_whose_prompts_cannot_go_on_hide_nobody() {
    let mut scheduler = Scheduler::new(SchedulerConfig { slots: 40, ..scheduler(&[]).config });
    for tenant in 1..=40 {
        arrive(&mut scheduler, tenant, [tenant.into()]);
    }
    admit_all(&mut scheduler, 40);
    assert_eq!(plan(&scheduler, 16_500.0, |key| (key == 40).then_some(Row { tokens: 90, depth: 0 })), [(40, 90)]);
}

#[test]
fn nobody_gives_up_what_it_was_guaranteed_for_want_of_others() {
    let mut scheduler = scheduler(&[1, 2, 3].map(|tenant| (tenant, TenantTerms::default())));
    arrive(&mut scheduler, 1, [1]);
    admit_all(&mut scheduler, 10);
    scheduler.note_pages(label(1), 26, 26);
    // What the second one has is on its way: nothing of it can be taken, and the third one's turn is to wait.
    scheduler.note_pages(label(2), 40, 0);
    assert_eq!(scheduler.reclaim_for(label(3)), None);
    scheduler.note_pages(label(1), 27, 20);
    assert_eq!(scheduler.reclaim_for(label(3)), Some(Reclaim::Cache(label(1), 1)));
    assert_eq!(scheduler.reclaim_for(label(1)), Some(Reclaim::Cache(label(1), 20)), "its own");
}

#[test]
fn an_exclusive_tenant_s_prompt_shares_no_pass() {
    let exclusive = TenantTerms { exclusive: true, ..TenantTerms::default() };
    let mut scheduler = scheduler(&[(2, exclusive)]);
    arrive(&mut scheduler, 1, [1]);
    arrive(&mut scheduler, 2, [2, 3]);
    admit_all(&mut scheduler, 10);
    let rest = |_| Some(Row { tokens: 40, depth: 0 });
    let first = plan(&scheduler, 1e6, rest);
    let keys: Vec<Key> = first.iter().map(|(key, _)| *key).collect();
    assert!(keys == [1] || keys == [2, 3], "{keys:?}");
    scheduler.charge(1, 1_000_000_000);
    assert_eq!(plan(&scheduler, 1e6, rest), [(2, 40), (3, 40)]);
    scheduler.charge(2, 2_000_000_000);
    scheduler.charge(3, 2_000_000_000);
    assert_eq!(plan(&scheduler, 1e6, rest), [(1, 40)]);
}

#[test]
fn a_chunk_is_a_whole_number_of_steps_or_the_end_of_a_prompt() {
    let first = Some(32);
    assert_eq!(chunk_tokens(100, 45, first, 256), Some(40));
    assert_eq!(chunk_tokens(44, 45, first, 256), Some(44));
    assert_eq!(chunk_tokens(100, 5, first, 256), Some(32));
    assert_eq!(chunk_tokens(100, 5, Some(8), 256), Some(8));
    assert_eq!(chunk_tokens(100, 5, None, 256), None);
    assert_eq!(chunk_tokens(4, 5, None, 256), Some(4));
    assert_eq!(chunk_tokens(100, 500, first, 20), Some(20));
    assert_eq!(chunk_tokens(100, 500, None, 3), None);
    assert_eq!(chunk_tokens(100, 500, first, 3), Some(3));
}

#[test]
fn the_chunk_that_a_step_makes_in_any_case_is_short_where_tokens_are_dear() {
    let costs = Costs { token_us: 1000.0, depth_us: 1.0, ..COSTS };
    let mut scheduler = scheduler(&[]);
    *scheduler.costs_mut() = CostModel::new(costs);
    assert_eq!([0, 500, 2_000, 100_000].map(|depth| scheduler.least(depth)), [32, 26, 13, 8]);
}

#[test]
fn a_request_gets_pages_from_whoever_has_too_much_or_waits() {
    let mut scheduler = scheduler(&[1, 2, 3].map(|tenant| (tenant, TenantTerms::default())));
    arrive(&mut scheduler, 2, [1, 2, 3]);
    arrive(&mut scheduler, 3, [4]);
    admit_all(&mut scheduler, 10);
    scheduler.note_pages(label(1), 0, 0);
    scheduler.note_pages(label(2), 60, 4);
    scheduler.note_pages(label(3), 30, 30);
    let pages_of = |_| 10;
    let claim =
        |tenant, needed: usize, free| scheduler.claim(label(tenant), needed, needed.saturating_sub(free), 0, pages_of);
    assert_eq!(claim(1, 20, 20), Some(vec![]));
    // 34 above its guarantee of 26: its cache first, then its newest ones.
    let cache_and = |keys: &[Key]| {
        let requests = keys.iter().map(|key| Reclaim::Request(*key));
        std::iter::once(Reclaim::Cache(label(2), 4)).chain(requests).collect::<Vec<_>>()
    };
    assert_eq!(claim(1, 20, 16), Some(cache_and(&[])));
    assert_eq!(claim(1, 20, 6), Some(cache_and(&[3])));
    assert_eq!(claim(1, 26, 0), Some(cache_and(&[3, 2, 1])));
    assert_eq!(claim(1, 60, 0), None);
    assert_eq!(claim(3, 40, 10), Some(vec![Reclaim::Cache(label(3), 30)]), "one's own cache is nobody else's matter");
    assert_eq!(claim(2, 20, 0), None, "it has more than anybody");
    let begins_with = |kept| scheduler.claim(label(3), 10, 10, kept, pages_of);
    assert_eq!(begins_with(20), Some(vec![Reclaim::Cache(label(3), 10)]));
    assert_ne!(begins_with(21), begins_with(20), "what it begins with does not go for it");
}

#[test]
fn nobody_gives_pages_to_who_would_have_more() {
    let mut scheduler = scheduler(&[]);
    arrive(&mut scheduler, 1, [1, 2, 3]);
    arrive(&mut scheduler, 2, [4]);
    admit_all(&mut scheduler, 10);
    scheduler.note_pages(label(1), 30, 0);
    let claim = |needed| scheduler.claim(label(2), needed, needed, 0, |_| 10);
    assert_eq!(claim(10), Some(vec![Reclaim::Request(3)]));
    assert_eq!(claim(20), None, "it would have twenty, and the other one ten");
}

#[test]
fn who_had_more_than_its_share_makes_no_guesses_while_others_wait() {
    let mut scheduler = scheduler(&[(3, TenantTerms { class: Class::Interactive, ..TenantTerms::default() })]);
    arrive(&mut scheduler, 1, [1]);
    scheduler.admit(1);
    scheduler.prefilled(1);
    scheduler.charge(1, 1_000_000_000);
    // Whoever comes stands at the clock of those who waited last.
    arrive(&mut scheduler, 1, [4]);
    scheduler.forget(4);
    assert!(scheduler.may_guess(label(1)), "nobody waits");
    arrive(&mut scheduler, 2, [2]);
    assert!(scheduler.may_guess(label(1)), "it is not more ahead than anybody may be");
    scheduler.charge(1, 1_000_000);
    assert!(!scheduler.may_guess(label(1)) && scheduler.may_guess(label(2)));
    scheduler.forget(2);
    assert!(scheduler.may_guess(label(1)));
    // Whatever it had: a more urgent one waits.
    arrive(&mut scheduler, 3, [3]);
    assert!(!scheduler.may_guess(label(2)) && scheduler.may_guess(label(3)));
    scheduler.admit(3);
    assert!(!scheduler.may_guess(label(2)), "also for the next chunk of a prompt");
    scheduler.prefilled(3);
    assert!(scheduler.may_guess(label(2)), "what has all that it wants waits for nothing");
}

#[test]
fn a_decision_looks_at_few_requests_however_many_wait() {
    let mut scheduler = scheduler(&[]);
    let looks = std::cell::Cell::new(0);
    let look = || looks.set(looks.get() + 1);
    for tenant in 1..=1000 {
        arrive(&mut scheduler, tenant, [Key::from(tenant)]);
    }
    let nobody_fits = |_| {
        look();
        Fit::Later
    };
    assert_eq!(scheduler.next(Duration::ZERO, nobody_fits), None);
    assert_eq!(looks.take(), TENANTS_LOOKED_AT, "one request each");
    (1..=1000).for_each(|key| scheduler.admit(key));
    let rest = |_| {
        look();
        Some(Row { tokens: 100, depth: 0 })
    };
    // Time for 60 tokens: the first one's chunk leaves too few for anybody, and gets them.
    assert_eq!(plan(&scheduler, 6_500.0, rest), [(1, 56)]);
    assert_eq!(looks.take(), 1 + PASSED_OVER_MAX + 1, "and one for what is left");
    plan(&scheduler, 1e9, rest);
    assert!(looks.take() <= 3 * TENANTS_LOOKED_AT);
}
