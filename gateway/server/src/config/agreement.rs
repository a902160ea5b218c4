//! What the operator agreed with each tenant: the tables `[scheduler.tenants.NAME]`. A name without a key is a mistake, and so
//! is what contradicts itself; that all guarantees together can be kept is seen when the tenancy is made of them.

use super::Settings;
use audit_log::ReplayTime;
use engine_runtime::{Class, EngineConfig, TenantTerms};
use gateway_auth::TenantKey;
use policies_domain::TenantName;
use std::collections::BTreeMap;

/// What was agreed with one tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    /// What the engine keeps.
    pub terms: TenantTerms,
    /// How its streams leave.
    pub stream: StreamShape,
    /// Which of its answers are computed again.
    pub replay: ReplayTerms,
    /// What the auditor's opinion is to it.
    pub second_opinion: SecondOpinion,
}

/// What becomes of a tenant's answers while an auditor of the log has fallen behind. The gate decides before the release in any
/// case: this is about who reads the log behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SecondOpinion {
    /// They leave; the log has the incident.
    #[default]
    Observe,
    /// They leave and say that it is outstanding.
    Fence,
    /// There are none.
    Enforce,
}

impl SecondOpinion {
    /// As the configuration writes it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "observe" => Some(Self::Observe),
            "fence" => Some(Self::Fence),
            "enforce" => Some(Self::Enforce),
            _ => None,
        }
    }
}

/// Which answers of a tenant are computed again, alone, and compared bit for bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayTerms {
    /// So many of a million.
    pub per_million: u32,
    /// An answer leaves when its replay is the same, and not before.
    pub before_release: bool,
}

impl ReplayTerms {
    /// All of them.
    pub const ALL: u32 = 1_000_000;

    /// The part of all answers, from 0 to 1.
    #[must_use]
    pub fn rate(part: f64) -> Option<u32> {
        // In range, and rounded to whole ones: what is left of it fits.
        (0.0..=1.0).contains(&part).then(|| (part * f64::from(Self::ALL)).round() as u32)
    }

    pub(crate) fn is_on(self) -> bool {
        self.per_million > 0
    }

    /// Whether this answer is one of them; `drawn` is drawn from all numbers.
    pub(crate) fn takes(self, drawn: u64) -> bool {
        let bound = u128::from(self.per_million) << 64;
        u128::from(drawn) * u128::from(Self::ALL) < bound
    }

    pub(crate) fn when(self) -> ReplayTime {
        if self.before_release { ReplayTime::BeforeRelease } else { ReplayTime::AfterRelease }
    }
}

/// What the time and the size of a stream's events follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamShape {
    /// Each step's text leaves at once.
    #[default]
    AsItComes,
    /// One event of one size in every period, whatever the steps give. Goes without speculation.
    ConstantShape,
}

impl StreamShape {
    /// As the configuration writes it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "as-it-comes" => Some(Self::AsItComes),
            "constant-shape" => Some(Self::ConstantShape),
            _ => None,
        }
    }
}

/// Reads `[scheduler]`, which has nothing but tenants. `places`: how many requests of all tenants may wait.
pub(super) fn read_all(
    scheduler: &mut Settings<'_>,
    keys: &[TenantKey],
    places: usize,
) -> BTreeMap<TenantName, Agreement> {
    let mut agreements = BTreeMap::new();
    scheduler.inside("tenants", |tenants| {
        tenants.each(|name, tenant| {
            let agreement = read(tenant, places);
            match keys.iter().find(|key| key.tenant.as_str() == name) {
                Some(key) => drop(agreements.insert(key.tenant.clone(), agreement)),
                None => tenant.wrong("is of nobody: there is no key of that name under [[tenants]]"),
            }
        });
    });
    agreements
}

fn read(settings: &mut Settings<'_>, places: usize) -> Agreement {
    let Agreement { mut terms, mut stream, replay, mut second_opinion } = Agreement::default();
    let replay = read_replay(settings, replay);
    settings.set("class", "\"interactive\", \"standard\" or \"batch\"", &mut terms.class, |value| {
        Class::parse(value.as_str()?)
    });
    let wanted = format!("a whole number from 1 to {}", TenantTerms::WEIGHT_MAX);
    settings.set("weight", &wanted, &mut terms.weight, |value| {
        u32::try_from(value.as_integer()?).ok().filter(|weight| (1..=TenantTerms::WEIGHT_MAX).contains(weight))
    });
    settings.set("kv_permille", "a whole number from 0 to 1000", &mut terms.kv_permille, |value| {
        u32::try_from(value.as_integer()?).ok().filter(|permille| *permille <= 1000).map(Some)
    });
    let queue_max = EngineConfig::LARGEST.queue_max;
    settings.set("queue_max", &format!("a whole number from 1 to {queue_max}"), &mut terms.queue_max, |value| {
        usize::try_from(value.as_integer()?).ok().filter(|queue| (1..=queue_max).contains(queue)).map(Some)
    });
    if let Some(of_tenant) = terms.queue_max.filter(|of_tenant| *of_tenant > places) {
        let problem = format!("is {of_tenant}, but `engine.queue_max` lets {places} requests of all tenants wait");
        settings.mistake("queue_max", problem);
    }
    settings.switch("exclusive", &mut terms.exclusive);
    settings.set("stream", "\"as-it-comes\" or \"constant-shape\"", &mut stream, |value| {
        StreamShape::parse(value.as_str()?)
    });
    let wanted = "\"observe\", \"fence\" or \"enforce\"";
    settings.set("second_opinion", wanted, &mut second_opinion, |value| SecondOpinion::parse(value.as_str()?));
    let mut speculation = None;
    settings.set("speculation", "true or false", &mut speculation, |value| value.as_bool().map(Some));
    if stream == StreamShape::ConstantShape && speculation == Some(true) {
        let problem =
            "must not be true with `stream = \"constant-shape\"`: how well guesses fit would show in the time";
        settings.mistake("speculation", problem.to_owned());
    }
    terms.speculates = stream == StreamShape::AsItComes && speculation.unwrap_or(terms.speculates);
    Agreement { terms, stream, replay, second_opinion }
}

fn read_replay(settings: &mut Settings<'_>, default: ReplayTerms) -> ReplayTerms {
    let (mut rate, mut before_release) = (None, default.before_release);
    settings.set("replay", "a part of all answers, from 0.0 to 1.0", &mut rate, |value| {
        let part = value.as_float().or_else(|| value.as_integer().map(|whole| whole as f64))?;
        ReplayTerms::rate(part).map(Some)
    });
    settings.switch("replay_before_release", &mut before_release);
    if before_release && rate.is_some_and(|rate| rate < ReplayTerms::ALL) {
        let problem = "must be 1.0 with `replay_before_release = true`: no answer leaves without its replay then";
        settings.mistake("replay", problem.to_owned());
    }
    let all_of_them = if before_release { ReplayTerms::ALL } else { default.per_million };
    ReplayTerms { per_million: rate.unwrap_or(all_of_them), before_release }
}
