//! The audit's result, for people and as the JSON whose digest goes to the log.

use super::measure::{LOOKS, PARTS, Plan};
use super::statistics::POCOCK_5;
use super::verdict::{AUC_BAND, Arm, CHANNEL_P_MAX, CONTROL_P_MAX, Judgement, Verdict};
use serde::Serialize;
use std::fmt::{self, Display};

/// Which gateway was asked.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Server {
    pub(crate) address: String,
    pub(crate) model: String,
    /// The model's fingerprint, as the gateway gives it.
    pub(crate) fingerprint: Option<String>,
}

/// The result.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) audit: &'static str,
    /// Of the program that asked.
    pub(crate) version: &'static str,
    pub(crate) server: Server,
    pub(crate) seed: u64,
    pub(crate) plan: Plan,
    pub(crate) levels: Levels,
    #[serde(flatten)]
    pub(crate) judgement: Judgement,
}

/// What the probabilities and intervals were compared with.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Levels {
    control_p_max: f64,
    channel_p_max: f64,
    auc_low: f64,
    auc_high: f64,
    /// How often pairs were looked at, at most: their probabilities are for all looks together.
    looks: usize,
    /// How often they may have ended for a narrow interval: their 95 % intervals are for all of these together...
    interval_looks: usize,
    /// ...and have this many standard errors to each side.
    interval_errors: f64,
}

impl Levels {
    pub(crate) const ALL: Self = Self {
        control_p_max: CONTROL_P_MAX,
        channel_p_max: CHANNEL_P_MAX,
        auc_low: AUC_BAND.0,
        auc_high: AUC_BAND.1,
        looks: LOOKS,
        interval_looks: PARTS,
        interval_errors: POCOCK_5,
    };
}

/// The words of a verdict.
pub(crate) fn conclusion(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Isolated => "isolated: every arm could have seen a channel between the tenants, and none did",
        Verdict::ChannelFound => "a channel between the tenants was found",
        Verdict::Void => {
            "void, no power: not even within one tenant is a warm prompt told from a cold one, so nothing was judged"
        }
        Verdict::Inconclusive => "inconclusive: no channel was found, and some arms cannot say that there is none",
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Server { address, model, fingerprint } = &self.server;
        writeln!(f, "{model} at {address}, fingerprint {}", fingerprint.as_deref().unwrap_or("not given"))?;
        writeln!(f, "seed {}\n", self.seed)?;
        writeln!(f, "{:<30} {:>6} {:>9} {:>9} {:>9}  {:<18} finding", "arm", "n", "statistic", "p", "p (Holm)", "AUC")?;
        for arm in self.judgement.controls.iter().chain(&self.judgement.arms) {
            write_arm(f, arm)?;
        }
        write!(f, "\n{}", conclusion(self.judgement.verdict))
    }
}

fn write_arm(f: &mut fmt::Formatter<'_>, arm: &Arm) -> fmt::Result {
    let auc = match arm.auc {
        Some(auc) => format!("{:.3} {:.3}-{:.3}", auc.value, auc.low, auc.high),
        None => "-".to_owned(),
    };
    let (p, p_holm) = (probability(arm.p), probability(arm.p_holm));
    let (name, words) = (&arm.name, arm.finding.words());
    writeln!(f, "{name:<30} {:>6} {:>9.3} {p:>9} {p_holm:>9}  {auc:<18} {words}", arm.n, arm.statistic)?;
    match &arm.note {
        Some(note) => writeln!(f, "{:<30} {note}", ""),
        None => Ok(()),
    }
}

fn probability(p: f64) -> String {
    if p == 0.0 {
        "<1e-300".to_owned()
    } else if p < 0.001 {
        format!("{p:.1e}")
    } else {
        format!("{p:.3}")
    }
}
