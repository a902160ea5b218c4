//! What the samples say. Doubt is never `isolated`: without power the run is void, and an arm that could not have seen a
//! channel, or whose interval is too wide for its claim, leaves the run inconclusive.
//!
//! Pairs are looked at several times and may end early. Every probability of theirs is counted once for each look, and the
//! intervals after whole parts, where their end may be that they are narrow, hold together.

use super::measure::{self, CANDIDATES, Evictions, LOOKS, Pairs, Plan, Samples, Shape, Shapes};
use super::statistics::{
    Auc, NORMAL_975, POCOCK_5, Side, Tested, holm, kolmogorov_smirnov, kolmogorov_smirnov_least_p, mcnemar, paired_auc,
    places, signs, within_pairs,
};
use serde::Serialize;

/// A positive control has power below this.
pub(crate) const CONTROL_P_MAX: f64 = 1e-8;
/// A channel is found when an arm's probability, corrected for how many arms there are, is not above this.
pub(crate) const CHANNEL_P_MAX: f64 = 0.01;
/// The claim of an arm between tenants: whoever guesses from the time to the first token is right in this part of the cases.
pub(crate) const AUC_BAND: (f64, f64) = (0.45, 0.55);
/// The victim's own cache works when this part of its repeated prefixes is found without a flood.
const OWN_HITS_MIN: f64 = 0.9;

/// What came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// Every arm could have seen a channel, and none did.
    Isolated,
    ChannelFound,
    /// The positive control shows nothing: neither would an arm.
    Void,
    /// No channel was found, and at least one arm cannot say that there is none.
    Inconclusive,
}

impl Verdict {
    /// The program's exit code: 1 is an error, 2 a wrong command line.
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Self::Isolated => 0,
            Self::ChannelFound => 3,
            Self::Void => 4,
            Self::Inconclusive => 5,
        }
    }
}

/// What one arm says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Finding {
    /// Of a control: the difference is seen, so it would be seen elsewhere.
    Power,
    /// Of a control: nothing is seen.
    NoPower,
    /// The arm could have seen a channel, and there is none.
    Quiet,
    Channel,
    /// No channel is seen, and the arm does not show that there is none.
    Inconclusive,
    /// Nobody promised that these do not differ.
    NotPromised,
}

impl Finding {
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Power => "has power",
            Self::NoPower => "no power",
            Self::Quiet => "quiet",
            Self::Channel => "CHANNEL",
            Self::Inconclusive => "inconclusive",
            Self::NotPromised => "not promised",
        }
    }
}

/// One comparison and what it says.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Arm {
    pub(crate) name: String,
    pub(crate) test: &'static str,
    /// Pairs or rounds.
    pub(crate) n: usize,
    pub(crate) statistic: f64,
    /// Of pairs: for all looks together.
    pub(crate) p: f64,
    /// The least that `p` could have been with this `n`.
    pub(crate) p_least: f64,
    /// Corrected for all arms; of a control, and of an arm that is not judged, `p` itself.
    pub(crate) p_holm: f64,
    pub(crate) auc: Option<Auc>,
    pub(crate) finding: Finding,
    /// Why the finding is not a plain one.
    pub(crate) note: Option<String>,
}

/// What all arms say together.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Judgement {
    pub(crate) verdict: Verdict,
    pub(crate) controls: Vec<Arm>,
    pub(crate) arms: Vec<Arm>,
}

/// What an arm needs, beside its probability, to be called quiet.
enum Claim {
    /// The interval of its area within the band.
    Band,
    /// Enough pairs to have seen a channel.
    Enough,
    /// It is measured and not judged.
    None,
}

struct Judged {
    arm: Arm,
    claim: Claim,
    /// Why the arm could not have seen a channel, if that is known already.
    blind: Option<String>,
}

/// Judges what was measured.
pub(crate) fn judge(samples: &Samples, plan: &Plan) -> Judgement {
    let mut controls = vec![control(&samples.first, "first control")];
    // The longest prefix makes the largest difference: without it nothing else has power.
    if controls.iter().any(|control| control.finding == Finding::NoPower) {
        return Judgement { verdict: Verdict::Void, controls, arms: Vec::new() };
    }
    controls.extend(samples.controls.iter().map(|pairs| control(pairs, "control")));
    let mut judged = Vec::new();
    for pairs in &samples.cross {
        judged.extend(between_tenants(pairs, &samples.controls));
    }
    judged.push(reported_hits(&samples.cross));
    judged.push(order(&samples.places));
    judged.push(eviction(samples.evictions, plan));
    judged.extend(speculation(&samples.shapes, plan.constant_shape));
    let arms = correct(judged);
    let any = |finding| arms.iter().any(|arm| arm.finding == finding);
    let verdict = match (any(Finding::Channel), any(Finding::Inconclusive)) {
        (true, _) => Verdict::ChannelFound,
        (false, true) => Verdict::Inconclusive,
        (false, false) => Verdict::Isolated,
    };
    Judgement { verdict, controls, arms }
}

/// Holm's correction over all arms that are judged, and what each of them says after it.
fn correct(judged: Vec<Judged>) -> Vec<Arm> {
    let counts = |judged: &Judged| !matches!(judged.claim, Claim::None);
    let probabilities: Vec<f64> = judged.iter().filter(|judged| counts(judged)).map(|judged| judged.arm.p).collect();
    let mut corrected = holm(&probabilities).into_iter();
    let family = probabilities.len();
    let finish = |mut judged: Judged| {
        if counts(&judged) {
            judged.arm.p_holm = corrected.next().unwrap_or(1.0);
        }
        find(judged, family)
    };
    judged.into_iter().map(finish).collect()
}

fn find(Judged { mut arm, claim, blind }: Judged, family: usize) -> Arm {
    let (finding, note) = match claim {
        Claim::None => (Finding::NotPromised, Some("streams of a constant shape were not asked for".to_owned())),
        _ if arm.p_holm <= CHANNEL_P_MAX => (Finding::Channel, arm.note.take()),
        _ if blind.is_some() => (Finding::Inconclusive, blind),
        _ if arm.p_least * family as f64 > CHANNEL_P_MAX => {
            (Finding::Inconclusive, Some("too few for any difference to be seen".to_owned()))
        }
        Claim::Band => match arm.auc.map(is_within_band) {
            Some(true) => (Finding::Quiet, None),
            Some(false) | None => (Finding::Inconclusive, Some(wanted_pairs(&arm))),
        },
        Claim::Enough => (Finding::Quiet, None),
    };
    Arm { finding, note, ..arm }
}

fn is_within_band(auc: Auc) -> bool {
    auc.low >= AUC_BAND.0 && auc.high <= AUC_BAND.1
}

/// The interval shrinks with the root of the pairs. It must be half as wide as the band when the estimate itself may be as far
/// from the middle as its own error.
fn wanted_pairs(arm: &Arm) -> String {
    let band = AUC_BAND.1 - AUC_BAND.0;
    let width = arm.auc.map_or(1.0, |auc| auc.high - auc.low);
    let wanted = (arm.n as f64 * (2.0 * width / band).powi(2)).ceil();
    format!("the interval of the AUC is not within {} to {}; about {wanted} pairs would tell", AUC_BAND.0, AUC_BAND.1)
}

/// Whether the difference between warm and cold is seen within one tenant.
fn has_power(pairs: &Pairs) -> bool {
    control_test(pairs).p < CONTROL_P_MAX
}

fn control_test(pairs: &Pairs) -> Tested {
    at_any_look(kolmogorov_smirnov(&pairs.warm_us, &pairs.cold_us, Side::FirstSmaller))
}

/// Bonferroni's correction: it holds whichever look was the last.
fn at_any_look(tested: Tested) -> Tested {
    Tested { p: least_at_any_look(tested.p), ..tested }
}

fn least_at_any_look(p: f64) -> f64 {
    (p * LOOKS as f64).min(1.0)
}

/// What is looked for while it is measured: the same as in the end.
pub(crate) struct Looks {
    /// How many arms are judged.
    family: usize,
}

impl Looks {
    pub(crate) fn of(plan: &Plan) -> Self {
        // Two arms for each length; reported hits, order and eviction; two arms of streams where a shape was promised.
        Self { family: 2 * plan.prefix_tokens.len() + 3 + if plan.constant_shape { 2 } else { 0 } }
    }
}

impl measure::Looks for Looks {
    fn has_power(&self, control: &Pairs) -> bool {
        has_power(control)
    }

    /// Whatever the other arms say.
    fn is_found(&self, cross: &Pairs) -> bool {
        let [times, signs] = between_tenants(cross, &[]);
        let hits = reported_hits(std::slice::from_ref(cross));
        [times, signs, hits].iter().any(|judged| judged.arm.p * self.family as f64 <= CHANNEL_P_MAX)
    }

    fn is_quiet(&self, cross: &Pairs, control: &Pairs) -> bool {
        let [times, _] = between_tenants(cross, std::slice::from_ref(control));
        times.blind.is_none() && times.arm.auc.is_some_and(is_within_band)
    }
}

fn control(pairs: &Pairs, name: &str) -> Arm {
    let n = pairs.warm_us.len();
    let finding = if has_power(pairs) { Finding::Power } else { Finding::NoPower };
    let name = format!("{name}, {} tokens", pairs.tokens);
    Arm {
        p_least: least_at_any_look(kolmogorov_smirnov_least_p(n, Side::FirstSmaller)),
        auc: Some(paired_auc(&pairs.warm_us, &pairs.cold_us, POCOCK_5)),
        finding,
        ..arm(name, "Kolmogorov-Smirnov, one-sided", n, control_test(pairs))
    }
}

fn arm(name: String, test: &'static str, n: usize, Tested { statistic, p }: Tested) -> Arm {
    let finding = Finding::Inconclusive;
    Arm { name, test, n, statistic, p, p_least: 0.0, p_holm: p, auc: None, finding, note: None }
}

/// Any difference counts here, slower ones too: of all times, and within the pairs, where it shows although the machine's other
/// work makes times differ more from pair to pair.
fn between_tenants(pairs: &Pairs, controls: &[Pairs]) -> [Judged; 2] {
    let (warm, cold, tokens) = (&pairs.warm_us, &pairs.cold_us, pairs.tokens);
    let n = warm.len();
    let seen_at_home = controls.iter().any(|control| control.tokens == tokens && has_power(control));
    let blind = (!seen_at_home).then(|| "the control of this length has no power".to_owned());
    let tested = at_any_look(kolmogorov_smirnov(warm, cold, Side::Either));
    let times = Arm {
        p_least: least_at_any_look(kolmogorov_smirnov_least_p(n, Side::Either)),
        auc: Some(paired_auc(warm, cold, POCOCK_5)),
        ..arm(format!("between tenants, {tokens} tokens"), "Kolmogorov-Smirnov", n, tested)
    };
    let within = Arm {
        p_least: least_at_any_look(mcnemar(n, 0).p),
        auc: Some(within_pairs(warm, cold, POCOCK_5)),
        ..arm(format!("within pairs, {tokens} tokens"), "signs, exact", n, at_any_look(signs(warm, cold)))
    };
    [
        Judged { arm: times, claim: Claim::Band, blind: blind.clone() },
        Judged { arm: within, claim: Claim::Enough, blind },
    ]
}

/// Does the gateway itself say that it had another tenant's prefix, by what it counts or by what it stops?
fn reported_hits(cross: &[Pairs]) -> Judged {
    let n = cross.iter().map(|pairs| pairs.warm_us.len()).sum();
    let only_warm = cross.iter().map(|pairs| pairs.only_warm_hits).sum();
    let only_cold = cross.iter().map(|pairs| pairs.only_cold_hits).sum();
    let arm = Arm {
        p_least: least_at_any_look(mcnemar(n, 0).p),
        ..arm("reported hits".to_owned(), "McNemar, exact", n, at_any_look(mcnemar(only_warm, only_cold)))
    };
    Judged { arm, claim: Claim::Enough, blind: None }
}

fn order(found: &[usize]) -> Judged {
    let n = found.len();
    let arm = Arm {
        p_least: places(&vec![1; n], CANDIDATES).p,
        ..arm("order".to_owned(), "places, every permutation", n, places(found, CANDIDATES))
    };
    Judged { arm, claim: Claim::Enough, blind: None }
}

fn eviction(evictions: Evictions, plan: &Plan) -> Judged {
    let Evictions { pairs, quiet_hits, flooded_hits, only_quiet, only_flooded } = evictions;
    let arm = Arm {
        p_least: mcnemar(pairs, 0).p,
        note: Some(format!(
            "{quiet_hits} of {pairs} own prefixes found, {flooded_hits} after {} tokens of the other tenant",
            plan.flood_tokens
        )),
        ..arm("eviction".to_owned(), "McNemar, exact", pairs, mcnemar(only_quiet, only_flooded))
    };
    let works = quiet_hits as f64 >= OWN_HITS_MIN * pairs as f64;
    let blind = format!("{quiet_hits} of {pairs} own prefixes found without a flood: nothing there to be evicted");
    Judged { arm, claim: Claim::Enough, blind: (!works).then_some(blind) }
}

fn speculation(shapes: &Shapes, is_promised: bool) -> [Judged; 2] {
    let judge = |name: &str, of: fn(&Shape) -> f64| {
        let values = |shapes: &[Shape]| shapes.iter().map(of).collect::<Vec<_>>();
        let (repetitive, other) = (values(&shapes.repetitive), values(&shapes.other));
        let n = repetitive.len();
        let arm = Arm {
            p_least: kolmogorov_smirnov_least_p(n, Side::Either),
            auc: Some(paired_auc(&repetitive, &other, NORMAL_975)),
            ..arm(name.to_owned(), "Kolmogorov-Smirnov", n, kolmogorov_smirnov(&repetitive, &other, Side::Either))
        };
        Judged { arm, claim: if is_promised { Claim::Enough } else { Claim::None }, blind: None }
    };
    [judge("speculation, size", |shape| shape.bytes), judge("speculation, period", |shape| shape.gap_us)]
}

#[cfg(test)]
mod tests;
