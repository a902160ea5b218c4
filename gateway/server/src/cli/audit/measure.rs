//! What is asked of the gateway, in what order, and what came of it. Nothing is judged here.
//!
//! Whatever is compared is measured in pairs or rounds whose order is drawn, so that what the machine does meanwhile falls on
//! both sides alike; and the control of a length is measured among the pairs between tenants, so that both have the same noise.
//! A judge looks in a few times that were fixed before and may say that the rest would change nothing.

use super::prompts::Prompts;
use anyhow::{Result, bail};

/// The two tenants as whom the audit asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Party {
    /// Whose requests are to be hidden.
    Victim,
    /// Who looks.
    Attacker,
}

/// What a client learns from one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered {
    /// From the request to the first event of the answer, in microseconds.
    pub(crate) first_us: f64,
    pub(crate) prompt_tokens: u64,
    /// Tokens of the prompt that the gateway says it did not compute.
    pub(crate) cached_tokens: u64,
    /// The gateway stopped the answer for an isolation fault. Nobody's text was seen, and that somebody sent the same was.
    pub(crate) stopped: bool,
}

/// What the stream of one answer looks like from outside, on average over its events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Length of an event, in bytes.
    pub(crate) bytes: f64,
    /// Time from one event to the next, in microseconds.
    pub(crate) gap_us: f64,
}

/// A gateway as two of its tenants see it.
pub(crate) trait Probed {
    /// Asks for one token.
    async fn ask(&mut self, party: Party, prompt: &str) -> Result<Answered>;
    /// Asks for one token each, all at once; times count from the moment that all begin.
    async fn ask_at_once(&mut self, batch: Vec<(Party, String)>) -> Result<Vec<Answered>>;
    /// Asks for a longer answer as a stream.
    async fn stream(&mut self, party: Party, prompt: &str) -> Result<Shape>;
}

/// How much is measured.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub(crate) struct Plan {
    /// Lengths of the shared prefixes, in tokens, ascending.
    pub(crate) prefix_tokens: Vec<usize>,
    /// Pairs of each positive control, at most.
    pub(crate) control_pairs: usize,
    /// Pairs of each arm between tenants, at most, and at least as many as of its control.
    pub(crate) cross_pairs: usize,
    /// Rounds of the order oracle.
    pub(crate) order_rounds: usize,
    /// Pairs of the eviction oracle.
    pub(crate) eviction_pairs: usize,
    /// Tokens that the attacker sends between a victim's request and its repetition.
    pub(crate) flood_tokens: usize,
    /// Pairs of streams.
    pub(crate) stream_pairs: usize,
    /// Whether the victim asked for streams of a constant shape, which then is a promise to be kept.
    pub(crate) constant_shape: bool,
}

impl Plan {
    /// Tokens of the longest request, its answer included. Words may come to a few more than wanted: an ending is left for them.
    pub(crate) fn prompt_tokens_max(&self) -> usize {
        self.prefix_tokens.last().copied().unwrap_or_default().max(EVICTION_TOKENS) + 2 * ENDING_TOKENS
    }
}

/// How often the judge looks whether a comparison is complete, at most: after each of so many equal parts.
pub(crate) const PARTS: usize = 5;
/// In thousandths of the whole: before the first part the judge looks so often whether there is a difference already.
const EARLY: [usize; 3] = [20, 40, 100];
/// How often the judge looks in all.
pub(crate) const LOOKS: usize = PARTS + EARLY.len();
/// Tokens behind a shared prefix, so that no two prompts are equal.
const ENDING_TOKENS: usize = 16;
/// Words of the prompt from which the tokens of a word are learnt.
const CALIBRATION_WORDS: usize = 200;
/// Of the order oracle: how many of the attacker's prompts are compared...
pub(crate) const CANDIDATES: usize = 10;
/// ...and how many go ahead of them to keep the engine busy.
const DUMMIES: usize = 6;
/// Tokens of its prompts.
const ORDER_TOKENS: usize = 128;
/// Tokens of the eviction oracle's prompts that may be evicted.
const EVICTION_TOKENS: usize = 256;
/// The attacker's prompts at the same time in a flood.
const FLOOD_AT_ONCE: usize = 4;
/// Tokens of the speculation oracle's prompts, and after how many words the repetitive ones repeat.
const STREAM_TOKENS: usize = 96;
const PERIOD_WORDS: usize = 6;

/// Times of prompts whose prefix was sent before, and of prompts that are new, in pairs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pairs {
    /// Tokens of the prefix.
    pub(crate) tokens: usize,
    pub(crate) warm_us: Vec<f64>,
    pub(crate) cold_us: Vec<f64>,
    /// Pairs in which the gateway said, by its counts or by stopping the answer, that it had the prefix of the one, and not
    /// that of the other.
    pub(crate) only_warm_hits: usize,
    pub(crate) only_cold_hits: usize,
}

impl Pairs {
    fn of(tokens: usize) -> Self {
        Self { tokens, ..Self::default() }
    }
}

/// Whether the victim's own prefixes were still there, in pairs without and with a flood of the attacker's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Evictions {
    pub(crate) pairs: usize,
    pub(crate) quiet_hits: usize,
    pub(crate) flooded_hits: usize,
    pub(crate) only_quiet: usize,
    pub(crate) only_flooded: usize,
}

/// The shapes of streams about repetitive and about other prompts, in pairs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shapes {
    pub(crate) repetitive: Vec<Shape>,
    pub(crate) other: Vec<Shape>,
}

/// Everything that was measured.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples {
    /// Within one tenant, with the longest prefix, before anything else.
    pub(crate) first: Pairs,
    /// Within one tenant, for each length, among the pairs between tenants.
    pub(crate) controls: Vec<Pairs>,
    /// Between two tenants, for each length.
    pub(crate) cross: Vec<Pairs>,
    /// In which place the candidate came that the victim's waiting request begins with.
    pub(crate) places: Vec<usize>,
    pub(crate) evictions: Evictions,
    pub(crate) shapes: Shapes,
}

/// Told what is measured, how much of it is done, and of how much.
pub(crate) type Progress<'a> = &'a mut dyn FnMut(&str, usize, usize);

/// Who looks at what there is of a comparison, and says whether the rest can be saved.
pub(crate) trait Looks {
    /// The control shows what it must.
    fn has_power(&self, control: &Pairs) -> bool;
    /// The arm shows a channel.
    fn is_found(&self, cross: &Pairs) -> bool;
    /// The arm shows that there is none. Asked after whole parts alone.
    fn is_quiet(&self, cross: &Pairs, control: &Pairs) -> bool;
}

/// Measures everything. When the first control, that of the longest prefix, shows nothing, nothing after it could, and it ends
/// there.
pub(crate) async fn measure(
    gateway: &mut impl Probed,
    plan: &Plan,
    prompts: &mut Prompts,
    looks: &impl Looks,
    progress: Progress<'_>,
) -> Result<Samples> {
    calibrate(gateway, prompts).await?;
    let longest = plan.prefix_tokens.last().copied().unwrap_or_default();
    let first = first_control(gateway, longest, plan.control_pairs, prompts, looks, progress).await?;
    let mut samples = Samples { first, ..Samples::default() };
    if !looks.has_power(&samples.first) {
        return Ok(samples);
    }
    for tokens in &plan.prefix_tokens {
        let (cross, control) = between_tenants(gateway, *tokens, plan, prompts, looks, progress).await?;
        samples.cross.push(cross);
        samples.controls.push(control);
    }
    for round in 0..plan.order_rounds {
        progress("order", round, plan.order_rounds);
        samples.places.push(place(gateway, prompts).await?);
    }
    for pair in 0..plan.eviction_pairs {
        progress("eviction", pair, plan.eviction_pairs);
        evict(gateway, plan, prompts, &mut samples.evictions).await?;
    }
    for pair in 0..plan.stream_pairs {
        progress("speculation", pair, plan.stream_pairs);
        shapes(gateway, prompts, &mut samples.shapes).await?;
    }
    Ok(samples)
}

async fn calibrate(gateway: &mut impl Probed, prompts: &mut Prompts) -> Result<()> {
    let prompt = prompts.words(CALIBRATION_WORDS);
    let answered = served(gateway.ask(Party::Victim, &prompt).await?)?;
    if answered.prompt_tokens == 0 {
        bail!("the gateway does not say how many tokens a prompt has");
    }
    prompts.calibrate(CALIBRATION_WORDS, answered.prompt_tokens);
    // The first request of a tenant may pay for what later ones find.
    gateway.ask(Party::Attacker, &prompts.words(CALIBRATION_WORDS)).await?;
    Ok(())
}

/// Do so many of `all` pairs end a part?
fn is_part(done: usize, all: usize) -> bool {
    (1..PARTS).any(|part| done == (all * part).div_ceil(PARTS))
}

fn is_look(done: usize, all: usize) -> bool {
    is_part(done, all) || EARLY.iter().any(|thousandths| done == (all * thousandths).div_ceil(1_000))
}

/// Is the attacker's own prefix answered sooner?
async fn first_control(
    gateway: &mut impl Probed,
    tokens: usize,
    all: usize,
    prompts: &mut Prompts,
    looks: &impl Looks,
    progress: Progress<'_>,
) -> Result<Pairs> {
    let (mut pairs, name) = (Pairs::of(tokens), format!("control, {tokens} tokens"));
    for done in 1..=all {
        progress(&name, done - 1, all);
        pair(gateway, Party::Attacker, &mut pairs, prompts).await?;
        if is_look(done, all) && looks.has_power(&pairs) {
            break;
        }
    }
    Ok(pairs)
}

/// Is the victim's prefix answered sooner to the attacker? With the control of this length among its pairs.
async fn between_tenants(
    gateway: &mut impl Probed,
    tokens: usize,
    plan: &Plan,
    prompts: &mut Prompts,
    looks: &impl Looks,
    progress: Progress<'_>,
) -> Result<(Pairs, Pairs)> {
    let (mut cross, mut control) = (Pairs::of(tokens), Pairs::of(tokens));
    let (all, controls) = (plan.cross_pairs, plan.control_pairs);
    let name = format!("between tenants, {tokens} tokens");
    for done in 1..=all {
        progress(&name, done - 1, all);
        pair(gateway, Party::Victim, &mut cross, prompts).await?;
        // As many of all controls as of all pairs.
        while control.warm_us.len() * all < done * controls {
            pair(gateway, Party::Attacker, &mut control, prompts).await?;
        }
        let is_found = is_look(done, all) && looks.is_found(&cross);
        if is_found || is_part(done, all) && looks.is_quiet(&cross, &control) {
            break;
        }
    }
    Ok((cross, control))
}

/// Is a prefix that `warmed_by` has sent before answered sooner to the attacker than one that nobody has sent?
async fn pair(gateway: &mut impl Probed, warmed_by: Party, pairs: &mut Pairs, prompts: &mut Prompts) -> Result<()> {
    let prefix = prompts.fresh(pairs.tokens);
    let first = prompts.ending(&prefix, ENDING_TOKENS);
    served(gateway.ask(warmed_by, &first).await?)?;
    let warm = prompts.ending(&prefix, ENDING_TOKENS);
    let unknown = prompts.fresh(pairs.tokens);
    let cold = prompts.ending(&unknown, ENDING_TOKENS);
    let warm_first = prompts.random.coin();
    let (one, other) = if warm_first { (&warm, &cold) } else { (&cold, &warm) };
    let one = gateway.ask(Party::Attacker, one).await?;
    let other = gateway.ask(Party::Attacker, other).await?;
    let (warm, cold) = if warm_first { (one, other) } else { (other, one) };
    served(cold)?;
    if warmed_by == Party::Attacker {
        served(warm)?;
    }
    pairs.warm_us.push(warm.first_us);
    pairs.cold_us.push(cold.first_us);
    let (warm, cold) = (is_hit(warm, pairs.tokens), is_hit(cold, pairs.tokens));
    pairs.only_warm_hits += usize::from(warm && !cold);
    pairs.only_cold_hits += usize::from(cold && !warm);
    Ok(())
}

/// An answer that is stopped although nobody else sent the like is a fault of the gateway, which no audit measures past.
fn served(answered: Answered) -> Result<Answered> {
    if answered.stopped {
        bail!("the gateway stopped an answer for an isolation fault where no other tenant had sent the like");
    }
    Ok(answered)
}

/// A template's beginning or a public prefix may be there of every prompt; half of the prefix is no accident.
fn is_hit(answered: Answered, tokens: usize) -> bool {
    answered.stopped || answered.cached_tokens >= tokens as u64 / 2
}

/// The position test of PROMPTPEEK (Wu and others, NDSS 2025): while a request of the victim waits, the attacker sends
/// candidates for its beginning, one of them right, behind others that keep the engine busy. An engine that prefers what it
/// has in its cache answers the right one first.
async fn place(gateway: &mut impl Probed, prompts: &mut Prompts) -> Result<usize> {
    let prefix = prompts.fresh(ORDER_TOKENS);
    let known = prompts.ending(&prefix, ENDING_TOKENS);
    gateway.ask(Party::Victim, &known).await?;
    let mut batch = vec![(Party::Victim, prompts.ending(&prefix, ENDING_TOKENS))];
    for _ in 0..DUMMIES {
        batch.push((Party::Attacker, prompts.fresh(ORDER_TOKENS + ENDING_TOKENS)));
    }
    let right = prompts.random.below(CANDIDATES);
    for candidate in 0..CANDIDATES {
        let begins = if candidate == right { prefix.clone() } else { prompts.fresh(ORDER_TOKENS) };
        batch.push((Party::Attacker, prompts.ending(&begins, ENDING_TOKENS)));
    }
    let answered = gateway.ask_at_once(batch).await?;
    let candidates = answered.get(1 + DUMMIES..).unwrap_or_default();
    let Some(found) = candidates.get(right) else { bail!("a batch came back with less than was sent") };
    Ok(1 + candidates.iter().filter(|other| other.first_us < found.first_us).count())
}

/// Does the victim still find its own prefix after the attacker has sent much?
async fn evict(gateway: &mut impl Probed, plan: &Plan, prompts: &mut Prompts, evictions: &mut Evictions) -> Result<()> {
    let flooded_first = prompts.random.coin();
    let mut hits = [false; 2];
    for flooded in [flooded_first, !flooded_first] {
        let prefix = prompts.fresh(EVICTION_TOKENS);
        let first = prompts.ending(&prefix, ENDING_TOKENS);
        gateway.ask(Party::Victim, &first).await?;
        if flooded {
            flood(gateway, plan, prompts).await?;
        }
        let again = prompts.ending(&prefix, ENDING_TOKENS);
        let answered = served(gateway.ask(Party::Victim, &again).await?)?;
        hits[usize::from(flooded)] = is_hit(answered, EVICTION_TOKENS);
    }
    let [quiet, flooded] = hits;
    evictions.pairs += 1;
    evictions.quiet_hits += usize::from(quiet);
    evictions.flooded_hits += usize::from(flooded);
    evictions.only_quiet += usize::from(quiet && !flooded);
    evictions.only_flooded += usize::from(flooded && !quiet);
    Ok(())
}

async fn flood(gateway: &mut impl Probed, plan: &Plan, prompts: &mut Prompts) -> Result<()> {
    let each = plan.prefix_tokens.last().copied().unwrap_or(EVICTION_TOKENS).max(1);
    let mut left = plan.flood_tokens.div_ceil(each);
    while left > 0 {
        let now = left.min(FLOOD_AT_ONCE);
        gateway.ask_at_once((0..now).map(|_| (Party::Attacker, prompts.fresh(each))).collect()).await?;
        left -= now;
    }
    Ok(())
}

/// Does a stream show whether its prompt repeats itself?
async fn shapes(gateway: &mut impl Probed, prompts: &mut Prompts, shapes: &mut Shapes) -> Result<()> {
    let repetitive_first = prompts.random.coin();
    for repetitive in [repetitive_first, !repetitive_first] {
        if repetitive {
            let prompt = prompts.repetitive(STREAM_TOKENS, PERIOD_WORDS);
            shapes.repetitive.push(gateway.stream(Party::Victim, &prompt).await?);
        } else {
            let prompt = prompts.fresh(STREAM_TOKENS);
            shapes.other.push(gateway.stream(Party::Victim, &prompt).await?);
        }
    }
    Ok(())
}
