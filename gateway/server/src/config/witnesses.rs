//! Who cosigns the log's checkpoints: `witnesses` and what belongs to it in `[audit]`. Without it, nobody.

use super::{Mistake, Settings, non_empty};
use audit_log::{CosignerKey, CosignerRole, WITNESSES_MAX};
use std::collections::BTreeSet;
use std::time::Duration;
use toml::Value;
use url::Url;

/// A day: whoever waits for longer does not want to know.
const LAG_SECONDS_MAX: u64 = 86_400;

/// The log's witnesses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WitnessSettings {
    /// Each of them.
    pub places: Vec<WitnessPlace>,
    /// Cosignatures with which a checkpoint counts as witnessed: more than half of the witnesses when not given.
    pub quorum: usize,
    /// Whether the start fails unless as many witnesses say that the log is the newest that they have seen.
    pub quorum_at_start: bool,
    /// Whoever has not cosigned what was published so long ago has fallen behind; nobody has when it is `None`.
    pub lag_max: Option<Duration>,
}

impl WitnessSettings {
    /// Whether there is an auditor who may fall behind.
    #[must_use]
    pub fn has_second_opinion(&self) -> bool {
        self.lag_max.is_some() && self.places.iter().any(|place| place.role == CosignerRole::Auditor)
    }
}

/// One witness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WitnessPlace {
    /// Where it takes checkpoints: `/add-checkpoint` under its submission prefix.
    pub url: Url,
    /// The key that its cosignatures are checked with.
    pub key: CosignerKey,
    /// Whether it reads what it cosigns.
    pub role: CosignerRole,
}

pub(super) fn read(settings: &mut Settings<'_>) -> WitnessSettings {
    const NAME: &str = "witnesses";
    let tables = match settings.table.remove(NAME) {
        None => Vec::new(),
        Some(Value::Array(tables)) => tables,
        Some(_) => {
            settings.mistake(NAME, "must be a list of tables".to_owned());
            Vec::new()
        }
    };
    if tables.len() > WITNESSES_MAX {
        settings.mistake(NAME, format!("has {} tables, {WITNESSES_MAX} are possible", tables.len()));
    }
    let mut places = Vec::new();
    for (index, table) in tables.into_iter().enumerate() {
        settings.inside_value(&format!("{NAME}[{index}]"), table, |witness| places.extend(read_one(witness)));
    }
    // Two lines of one key are one witness, and would be a quorum of two.
    let mut keys = BTreeSet::new();
    if let Some(twice) = places.iter().find(|place| !keys.insert(place.key.to_string())) {
        settings.mistake(NAME, format!("has the key of `{}` twice", twice.key.name()));
    }
    let mut quorum = places.len() / 2 + 1;
    settings.count("witness_quorum", 1..=places.len().max(1), &mut quorum);
    let wanted = format!("a whole number of seconds from 1 to {LAG_SECONDS_MAX}");
    let mut lag_max = None;
    settings.set("cosigner_lag_seconds", &wanted, &mut lag_max, |value| {
        let seconds = u64::try_from(value.as_integer()?).ok()?;
        (1..=LAG_SECONDS_MAX).contains(&seconds).then(|| Some(Duration::from_secs(seconds)))
    });
    let mut quorum_at_start = false;
    settings.switch("witness_quorum_at_start", &mut quorum_at_start);
    for (name, is_set) in [("witness_quorum_at_start", quorum_at_start), ("cosigner_lag_seconds", lag_max.is_some())] {
        if places.is_empty() && is_set {
            let setting = settings.path_of(name);
            settings.mistakes.push(Mistake { setting, problem: "takes `witnesses`".to_owned() });
        }
    }
    match places.is_empty() {
        true => WitnessSettings::default(),
        false => WitnessSettings { places, quorum, quorum_at_start, lag_max },
    }
}

fn read_one(witness: &mut Settings<'_>) -> Option<WitnessPlace> {
    let wanted = "must be an address such as \"https://witness.example.com/w1\"";
    let url = witness.required("url", wanted, |value| address(non_empty(value)?));
    let wanted = "must be the line that `bulkhead-witness key` prints";
    let key = witness.required("verifier_key", wanted, |value| CosignerKey::parse(value.as_str()?).ok());
    let mut auditor = false;
    witness.switch("auditor", &mut auditor);
    let role = if auditor { CosignerRole::Auditor } else { CosignerRole::Witness };
    url.zip(key).map(|(url, key)| WitnessPlace { url, key, role })
}

fn address(prefix: &str) -> Option<Url> {
    let url = Url::parse(&format!("{}/add-checkpoint", prefix.trim_end_matches('/'))).ok()?;
    let plain = url.query().is_none() && url.fragment().is_none() && url.password().is_none();
    let known = matches!(url.scheme(), "http" | "https") && url.has_host() && url.username().is_empty();
    (plain && known).then_some(url)
}
