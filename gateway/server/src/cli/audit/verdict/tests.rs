//! The audit against a gateway that is drawn, with and without something planted in it. No clock and no sockets.

use super::super::measure::{Answered, Party, Probed, measure};
use super::super::prompts::{Prompts, Random};
use super::*;
use anyhow::Result;
use std::collections::HashMap;

const PAGE_TOKENS: usize = 16;
/// Tokens of the attacker's that evict the victim's prefixes, where that is planted.
const POOL_TOKENS: usize = 600;

/// What can be wrong with a gateway.
#[derive(Clone, Copy, Default)]
struct Planted {
    /// It has no prefix cache at all.
    no_cache: bool,
    /// It has none after so many requests.
    no_cache_from: Option<usize>,
    /// What one tenant sent saves the other time.
    shared_time: bool,
    /// What one tenant sent is reported to the other.
    shared_report: bool,
    /// What one tenant sent would be read by the other, and the answer is stopped.
    stopped: bool,
    /// What a tenant sent itself is stopped.
    own_stopped: bool,
    /// Among those who wait, whoever matches anybody's cache goes first.
    shared_order: bool,
    /// One tenant's prompts push out the other's.
    eviction: bool,
    /// Streams of repetitive prompts have larger events.
    sizes: bool,
}

/// A gateway whose times are drawn.
struct Drawn {
    planted: Planted,
    random: Random,
    /// Prompts by who sent them and how they begin.
    cache: HashMap<(Party, String), Vec<String>>,
    attacker_tokens: usize,
    asked: usize,
}

impl Drawn {
    fn new(planted: Planted, seed: u64) -> Self {
        Self { planted, random: Random::new(seed), cache: HashMap::new(), attacker_tokens: 0, asked: 0 }
    }

    fn beginning(prompt: &str) -> String {
        prompt.split(' ').take(PAGE_TOKENS).collect::<Vec<_>>().join(" ")
    }

    fn cached(&self, of: &[Party], prompt: &str) -> usize {
        let common = |other: &String| prompt.split(' ').zip(other.split(' ')).take_while(|(a, b)| a == b).count();
        let of_party = |party: &Party| self.cache.get(&(*party, Self::beginning(prompt)));
        let longest = of.iter().filter_map(of_party).flatten().map(common).max().unwrap_or(0);
        let gone = self.planted.no_cache || self.planted.no_cache_from.is_some_and(|from| self.asked > from);
        if gone { 0 } else { longest / PAGE_TOKENS * PAGE_TOKENS }
    }

    fn keep(&mut self, party: Party, prompt: &str) {
        self.cache.entry((party, Self::beginning(prompt))).or_default().push(prompt.to_owned());
        if party == Party::Attacker {
            self.attacker_tokens += prompt.split(' ').count();
        } else {
            self.attacker_tokens = 0;
        }
        if self.planted.eviction && self.attacker_tokens > POOL_TOKENS {
            self.cache.retain(|(owner, _), _| *owner == Party::Attacker);
        }
    }

    /// Noise as machines have it: mostly small, sometimes large, and slowly drifting.
    fn noise_us(&mut self) -> f64 {
        let unit = |random: &mut Random| (random.next() >> 11) as f64 / (1_u64 << 53) as f64;
        let drift = ((self.asked / 50) % 7) as f64 * 40.0;
        -300.0 * (1.0 - unit(&mut self.random)).ln() + drift
    }

    fn answer(&mut self, party: Party, prompt: &str) -> Answered {
        self.asked += 1;
        let everybody = [Party::Victim, Party::Attacker];
        let own = [party];
        let saved = self.cached(if self.planted.shared_time { &everybody } else { &own }, prompt);
        let reported = self.cached(if self.planted.shared_report { &everybody } else { &own }, prompt);
        let tokens = prompt.split(' ').count();
        let first_us = 900.0 + 25.0 * (tokens - saved) as f64 + self.noise_us();
        let of_others = self.cached(&everybody, prompt) > self.cached(&own, prompt);
        let stopped = self.planted.stopped && of_others || self.planted.own_stopped && self.cached(&own, prompt) > 0;
        self.keep(party, prompt);
        Answered { first_us, prompt_tokens: tokens as u64, cached_tokens: reported as u64, stopped }
    }
}

impl Probed for Drawn {
    async fn ask(&mut self, party: Party, prompt: &str) -> Result<Answered> {
        Ok(self.answer(party, prompt))
    }

    async fn ask_at_once(&mut self, batch: Vec<(Party, String)>) -> Result<Vec<Answered>> {
        let mut order: Vec<(bool, u64, usize)> = Vec::new();
        for (index, (_, prompt)) in batch.iter().enumerate() {
            let known = self.cached(&[Party::Victim, Party::Attacker], prompt) > 0;
            order.push((self.planted.shared_order && !known, self.random.next(), index));
        }
        order.sort_unstable();
        let mut answered: Vec<Answered> = batch.iter().map(|(party, prompt)| self.answer(*party, prompt)).collect();
        for (place, (.., index)) in order.into_iter().enumerate() {
            answered[index].first_us = 1_000.0 * (place + 1) as f64;
        }
        Ok(answered)
    }

    async fn stream(&mut self, _: Party, prompt: &str) -> Result<Shape> {
        self.asked += 1;
        let words: Vec<&str> = prompt.split(' ').collect();
        let repetitive = words[..6] == words[6..12];
        let bytes = if self.planted.sizes && repetitive { 300.0 } else { 256.0 };
        Ok(Shape { bytes, gap_us: 20_000.0 + self.noise_us() })
    }
}

fn plan(control_pairs: usize, cross_pairs: usize) -> Plan {
    Plan {
        prefix_tokens: vec![64, 192],
        control_pairs,
        cross_pairs,
        order_rounds: 20,
        eviction_pairs: 20,
        flood_tokens: 1_000,
        stream_pairs: 20,
        constant_shape: true,
    }
}

/// Few pairs: enough for every channel, and for no interval.
fn small() -> Plan {
    plan(40, 40)
}

async fn audit(planted: Planted, plan: &Plan) -> Judgement {
    judge(&samples(&mut Drawn::new(planted, 11), plan).await.unwrap(), plan)
}

async fn samples(gateway: &mut Drawn, plan: &Plan) -> Result<Samples> {
    let mut prompts = Prompts::new(Random::new(5));
    measure(gateway, plan, &mut prompts, &Looks::of(plan), &mut |_, _, _| {}).await
}

fn arms(judgement: &Judgement, finding: Finding) -> Vec<&str> {
    judgement.arms.iter().filter(|arm| arm.finding == finding).map(|arm| arm.name.as_str()).collect()
}

#[tokio::test]
async fn a_gateway_that_isolates_is_isolated() {
    let judgement = audit(Planted::default(), &plan(60, 1_500)).await;
    assert_eq!(judgement.verdict, Verdict::Isolated, "{judgement:#?}");
    assert_eq!(judgement.arms.len(), 9);
    assert!(judgement.arms.iter().all(|arm| arm.finding == Finding::Quiet));
    assert!(judgement.controls.iter().all(|control| control.finding == Finding::Power));
}

/// The arms that see times.
const IN_TIMES: [&str; 4] = [
    "between tenants, 64 tokens",
    "within pairs, 64 tokens",
    "between tenants, 192 tokens",
    "within pairs, 192 tokens",
];

#[tokio::test]
async fn a_cache_that_is_shared_is_found_by_its_times_and_by_its_reports() {
    let planted = Planted { shared_time: true, shared_report: true, ..Planted::default() };
    let judgement = audit(planted, &small()).await;
    assert_eq!(judgement.verdict, Verdict::ChannelFound);
    let found = arms(&judgement, Finding::Channel);
    assert_eq!(found[..4], IN_TIMES);
    assert_eq!(found[4..], ["reported hits"]);
    // It shows at an early look, and nobody is asked what is known.
    assert!(judgement.arms.iter().take(4).all(|arm| arm.n < 40), "{judgement:#?}");
}

#[tokio::test]
async fn a_cache_that_is_shared_and_not_reported_is_found_by_its_times() {
    let judgement = audit(Planted { shared_time: true, ..Planted::default() }, &small()).await;
    assert_eq!(arms(&judgement, Finding::Channel), IN_TIMES);
}

#[tokio::test]
async fn a_report_of_anothers_prefix_is_a_channel_without_any_time() {
    let judgement = audit(Planted { shared_report: true, ..Planted::default() }, &small()).await;
    assert_eq!(judgement.verdict, Verdict::ChannelFound);
    assert_eq!(arms(&judgement, Finding::Channel), ["reported hits"]);
}

#[tokio::test]
async fn an_answer_that_is_stopped_because_of_anothers_prefix_tells_of_it() {
    let judgement = audit(Planted { stopped: true, ..Planted::default() }, &small()).await;
    assert_eq!(judgement.verdict, Verdict::ChannelFound);
    assert_eq!(arms(&judgement, Finding::Channel), ["reported hits"]);
}

#[tokio::test]
async fn a_gateway_that_stops_answers_within_one_tenant_is_not_audited_past_it() {
    let mut gateway = Drawn::new(Planted { own_stopped: true, ..Planted::default() }, 11);
    let error = samples(&mut gateway, &small()).await.unwrap_err();
    assert!(error.to_string().contains("no other tenant"), "{error}");
    // Two to calibrate, and the first pair ends it.
    assert_eq!(gateway.asked, 2 + 3);
}

#[tokio::test]
async fn without_a_cache_the_run_is_void_and_ends_there() {
    let plan = plan(100, 100);
    let mut gateway = Drawn::new(Planted { no_cache: true, shared_order: true, ..Planted::default() }, 11);
    let judgement = judge(&samples(&mut gateway, &plan).await.unwrap(), &plan);
    assert_eq!(judgement.verdict, Verdict::Void);
    assert!(judgement.arms.is_empty());
    // Two to calibrate, three for each pair of the first control, and nothing of another tenant's.
    assert_eq!(gateway.asked, 2 + 3 * 100);
}

#[test]
fn without_any_control_the_run_is_void() {
    assert_eq!(judge(&Samples::default(), &small()).verdict, Verdict::Void);
}

#[tokio::test]
async fn whoever_goes_first_because_of_another_tenant_is_found() {
    let judgement = audit(Planted { shared_order: true, ..Planted::default() }, &small()).await;
    assert_eq!(arms(&judgement, Finding::Channel), ["order"]);
}

#[tokio::test]
async fn prefixes_that_another_tenant_pushes_out_are_found() {
    let judgement = audit(Planted { eviction: true, ..Planted::default() }, &small()).await;
    assert_eq!(arms(&judgement, Finding::Channel), ["eviction"]);
}

#[tokio::test]
async fn events_that_tell_repetitive_prompts_are_found_where_a_shape_was_promised() {
    let planted = Planted { sizes: true, ..Planted::default() };
    let judgement = audit(planted, &small()).await;
    assert_eq!(arms(&judgement, Finding::Channel), ["speculation, size"]);
    let judgement = audit(planted, &Plan { constant_shape: false, ..small() }).await;
    assert_eq!(arms(&judgement, Finding::NotPromised), ["speculation, size", "speculation, period"]);
    assert!(arms(&judgement, Finding::Channel).is_empty());
}

#[tokio::test]
async fn few_pairs_find_no_channel_and_prove_nothing() {
    let judgement = audit(Planted::default(), &small()).await;
    assert_eq!(judgement.verdict, Verdict::Inconclusive);
    let open = arms(&judgement, Finding::Inconclusive);
    assert_eq!(open, ["between tenants, 64 tokens", "between tenants, 192 tokens"]);
    for arm in judgement.arms.iter().filter(|arm| arm.finding == Finding::Inconclusive) {
        assert!(arm.note.as_ref().is_some_and(|note| note.contains("pairs would tell")), "{arm:?}");
    }
}

/// Samples of a gateway that isolates, for tests of the judgement alone.
fn quiet() -> Samples {
    let apart = |tokens| {
        let (warm_us, cold_us) = ((0..60).map(f64::from).collect(), (0..60).map(|k| f64::from(k) + 100.0).collect());
        Pairs { tokens, warm_us, cold_us, ..Pairs::default() }
    };
    let mut random = Random::new(3);
    let mut drawn = |count| (0..count).map(|_| random.next() as f64).collect::<Vec<f64>>();
    let alike = |tokens, warm_us, cold_us| Pairs { tokens, warm_us, cold_us, ..Pairs::default() };
    let shapes = |gaps: Vec<f64>| gaps.into_iter().map(|gap_us| Shape { bytes: 256.0, gap_us }).collect();
    Samples {
        first: apart(192),
        controls: vec![apart(64), apart(192)],
        cross: vec![alike(64, drawn(2_000), drawn(2_000)), alike(192, drawn(2_000), drawn(2_000))],
        places: (0..20).map(|round| 1 + round % CANDIDATES).collect(),
        evictions: Evictions { pairs: 40, quiet_hits: 40, flooded_hits: 40, only_quiet: 0, only_flooded: 0 },
        shapes: Shapes { repetitive: shapes(drawn(20)), other: shapes(drawn(20)) },
    }
}

#[test]
fn one_arm_of_many_that_looks_odd_by_chance_is_no_channel() {
    let mut samples = quiet();
    assert_eq!(judge(&samples, &small()).verdict, Verdict::Isolated);
    samples.evictions = Evictions { flooded_hits: 31, only_quiet: 9, ..samples.evictions };
    let judgement = judge(&samples, &small());
    let eviction = judgement.arms.iter().find(|arm| arm.name == "eviction").unwrap();
    assert!(eviction.p < CHANNEL_P_MAX && eviction.p_holm > CHANNEL_P_MAX, "{eviction:?}");
    assert_eq!(judgement.verdict, Verdict::Isolated);
}

#[test]
fn an_arm_whose_own_control_has_no_power_proves_nothing() {
    let mut samples = quiet();
    samples.controls[0].cold_us = samples.controls[0].warm_us.clone();
    let judgement = judge(&samples, &small());
    assert_eq!(judgement.verdict, Verdict::Inconclusive);
    assert_eq!(arms(&judgement, Finding::Inconclusive), ["between tenants, 64 tokens", "within pairs, 64 tokens"]);
}

#[test]
fn what_drifts_from_pair_to_pair_hides_nothing_within_them() {
    let mut samples = quiet();
    let mut random = Random::new(9);
    let Pairs { warm_us, cold_us, .. } = &mut samples.cross[0];
    for (warm, cold) in warm_us.iter_mut().zip(cold_us) {
        *warm = random.next() as f64;
        *cold = *warm + if random.below(10) < 6 { 1e15 } else { -1e15 };
    }
    let judgement = judge(&samples, &small());
    assert_eq!(arms(&judgement, Finding::Channel), ["within pairs, 64 tokens"], "{judgement:#?}");
}

#[test]
fn a_probability_of_pairs_counts_for_every_look_at_them() {
    let mut samples = quiet();
    // Twelve of twelve: 2^-11, which is below the level for nine arms, and for eight looks at nine arms is not.
    samples.cross[0].only_warm_hits = 12;
    let judgement = judge(&samples, &small());
    let hits = judgement.arms.iter().find(|arm| arm.name == "reported hits").unwrap();
    assert!((hits.p - 8.0 / 2_048.0).abs() < 1e-12, "{hits:?}");
    assert_eq!(judgement.verdict, Verdict::Isolated);
    samples.cross[1].only_warm_hits = 4;
    assert_eq!(arms(&judge(&samples, &small()), Finding::Channel), ["reported hits"]);
}

#[test]
fn pairs_end_when_they_have_said_what_they_can_and_not_before() {
    let looks = Looks::of(&small());
    let is_quiet = |cross: &Pairs, control: &Pairs| measure::Looks::is_quiet(&looks, cross, control);
    let is_found = |cross: &Pairs| measure::Looks::is_found(&looks, cross);
    let samples = quiet();
    let (cross, control) = (&samples.cross[0], &samples.controls[0]);
    assert!(is_quiet(cross, control) && !is_found(cross), "the interval is narrow enough");
    let few = |of: &Pairs, count: usize| Pairs {
        warm_us: of.warm_us[..count].to_vec(),
        cold_us: of.cold_us[..count].to_vec(),
        ..of.clone()
    };
    assert!(!is_quiet(&few(cross, 100), control) && !is_found(&few(cross, 100)), "it is too wide");
    let blind = Pairs { cold_us: control.warm_us.clone(), ..control.clone() };
    assert!(!is_quiet(cross, &blind), "a difference would not have been seen");
    assert!(is_found(&few(control, 30)), "a channel is one without any control");
}

#[tokio::test]
async fn the_control_of_a_length_is_spread_over_its_arm() {
    let planted = Planted { no_cache_from: Some(300), ..Planted::default() };
    let mut gateway = Drawn::new(planted, 11);
    let samples = samples(&mut gateway, &Plan { prefix_tokens: vec![64], ..plan(60, 360) }).await.unwrap();
    assert_eq!((samples.controls[0].warm_us.len(), samples.cross[0].warm_us.len()), (60, 360));
    // The cache went away after the first control: the one beside the arm says so.
    let judgement = judge(&samples, &small());
    assert_eq!(
        judgement.controls.iter().map(|arm| arm.finding).collect::<Vec<_>>(),
        [Finding::Power, Finding::NoPower]
    );
    assert_ne!(judgement.verdict, Verdict::Isolated);
}

#[test]
fn a_cache_that_keeps_nothing_of_ones_own_cannot_show_an_eviction() {
    let mut samples = quiet();
    samples.evictions = Evictions { pairs: 40, quiet_hits: 30, flooded_hits: 30, only_quiet: 0, only_flooded: 0 };
    assert_eq!(arms(&judge(&samples, &small()), Finding::Inconclusive), ["eviction"]);
}

#[test]
fn oracles_of_too_few_rounds_prove_nothing() {
    let mut samples = quiet();
    samples.places.truncate(2);
    samples.evictions = Evictions { pairs: 5, quiet_hits: 5, flooded_hits: 5, only_quiet: 0, only_flooded: 0 };
    assert_eq!(arms(&judge(&samples, &small()), Finding::Inconclusive), ["order", "eviction"]);
}

#[test]
fn nothing_is_found_where_nothing_is() {
    // At a level of 1 in 100 for all arms together, 300 runs give 3 false alarms on average, and 12 once in 70,000 times.
    let plan = plan(30, 30);
    let false_alarms = (0..300).filter(|seed| {
        let mut random = Random::new(1_000 + seed);
        let mut drawn = || (0..30).map(|_| random.next() as f64).collect::<Vec<f64>>();
        let mut samples = quiet();
        for pairs in &mut samples.cross {
            (pairs.warm_us, pairs.cold_us) = (drawn(), drawn());
        }
        for shape in samples.shapes.repetitive.iter_mut().chain(&mut samples.shapes.other) {
            shape.gap_us = random.next() as f64;
        }
        samples.places = (0..20).map(|_| 1 + random.below(CANDIDATES)).collect();
        judge(&samples, &plan).verdict == Verdict::ChannelFound
    });
    let false_alarms = false_alarms.count();
    assert!(false_alarms < 12, "{false_alarms} of 300");
}
