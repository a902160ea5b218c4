//! The configuration: one TOML file, every mistake in it reported at once, no maybes left afterwards.

mod agreement;
mod public_prefix;
mod webhooks;
mod witnesses;

pub use agreement::{Agreement, ReplayTerms, SecondOpinion, StreamShape};
pub use webhooks::WebhookPlace;
pub use witnesses::{WitnessPlace, WitnessSettings};

use crate::bounded_file;
use crate::exchange::ConnectionLimits;
use crate::tls::TlsFiles;
use engine_link::{Address, Role};
use engine_runtime::{EngineConfig, KvKind, Overpromised, PublicPrefix, Split, Tenancy};
use gateway_auth::{KeyHash, KeyRing, TenantKey};
use policies_domain::{Label, ModelName, TenantName};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::{Table, Value};

/// A configuration file has a few lines for each tenant; this is room for 4,096 of them.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Everything that a gateway needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// TLS of the listener; plain HTTP when `None`.
    pub tls: Option<TlsFiles>,
    /// Folder of the key secret and of the audit log. Made when it is not there.
    pub data_dir: PathBuf,
    /// The model's GGUF file.
    pub model: PathBuf,
    /// Where repacked weights are kept from one start to the next.
    pub weights_cache: WeightsCache,
    /// The name that clients use; the file's own name for itself when `None`.
    pub served_name: Option<ModelName>,
    /// The rule file; the built-in rules when `None`.
    pub rules: Option<PathBuf>,
    /// The log's name in its checkpoints.
    pub origin: String,
    /// Whose keys are accepted.
    pub tenants: Vec<TenantKey>,
    /// What was agreed with each of them; the defaults with whoever is not here.
    pub agreements: BTreeMap<TenantName, Agreement>,
    /// Sizes of the engine.
    pub engine: EngineConfig,
    /// The part of the engine that is a process of its own, if one is.
    pub worker: Option<WorkerPlace>,
    /// What every tenant's prompts may begin with without computing it again; whoever can guess one can tell that it is here.
    pub public_prefixes: Vec<PublicPrefix>,
    /// Bounds of the gateway.
    pub limits: Limits,
    /// Who may read `/metrics`, which shows the tenants' names and how much they use.
    pub metrics: MetricsReaders,
    /// Tenants that may write audits of the isolation to the log.
    pub probes: BTreeSet<TenantName>,
    /// Who looks after incidents: names of persons, and the hashes of their keys.
    pub operators: Vec<TenantKey>,
    /// Who cosigns the audit log's checkpoints.
    pub witnesses: WitnessSettings,
    /// Who is told of incidents.
    pub webhooks: Vec<WebhookPlace>,
    /// The program that signs for the log, and its arguments; empty when the key is in the log's folder.
    pub signer: Vec<String>,
    /// Whether the log's group may read what is published of it.
    pub group_may_read: bool,
    /// What the log's index is kept in.
    pub index: IndexKind,
    /// A digest is made of what every answer is sampled from; else of those of tenants whose answers are computed again.
    pub replay_digest: bool,
    /// The engine's feed for an auditor has so many mebibytes at most; 0: there is none.
    pub feed_mib: usize,
    /// Traces of the log are dropped when they are so many days old; never when it is `None`.
    pub retention_days: Option<NonZeroU32>,
    /// How often the detectors are tried; never when it is `None`.
    pub self_test_period: Option<Duration>,
}

/// An hour: what a dead detector let through is no older, and a year of entries is small beside a day's requests.
const SELF_TEST_PERIOD: Duration = Duration::from_secs(3_600);
/// A week.
const SELF_TEST_SECONDS_MAX: u64 = 604_800;
const SELF_TEST_SECONDS_WANTED: &str = "a whole number of seconds from 0 to 604800";

/// A thousand years.
const RETENTION_DAYS_MAX: u32 = 365_000;
const RETENTION_DAYS_WANTED: &str = "a whole number of days from 1 to 365000";

/// A part of the engine that is a process of its own, perhaps on another machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerPlace {
    /// Which part.
    pub role: Role,
    /// Where it listens.
    pub address: Address,
    /// Folder of the certificates with which the parts know each other.
    pub certificates: PathBuf,
}

/// Bounds of the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest request body.
    pub body_bytes_max: usize,
    /// Connections at the same time. A newcomer beyond takes the place of the one that has waited longest for its client.
    pub connections_max: usize,
    /// Prompts that are tokenized at the same time.
    pub tokenizers_max: usize,
    /// The longest silence on a stream; a comment breaks it.
    pub comment_interval: Duration,
    /// From one event to the next on a stream of constant shape.
    pub constant_shape_period: Duration,
    /// What one connection may take.
    pub connection: ConnectionLimits,
}

/// Where repacked weights are kept from one start to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WeightsCache {
    /// In the cache folder of the user, which only the program knows.
    User,
    /// Nowhere: they are repacked at every start.
    Off,
    /// In this folder, which is made when it is not there.
    Folder(PathBuf),
}

impl WeightsCache {
    /// `off` or a folder; `None` for an empty text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "" => None,
            "off" => Some(Self::Off),
            folder => Some(Self::Folder(folder.into())),
        }
    }
}

/// What the log's index is kept in. Nothing that it says is believed, whatever it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexKind {
    /// A sled database beside the log's data. It takes disk and little memory, and is there at the next start.
    Sled,
    /// The process's memory: as much as all requests of the log and what they read, and made anew at every start.
    Memory,
}

/// Who may read `/metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsReaders {
    /// Connections from this machine. A proxy on this machine must not forward the path.
    Loopback,
    /// Everybody who reaches the listener.
    Everyone,
    /// Nobody.
    Nobody,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // Half a million tokens of English: more than any context.
            body_bytes_max: 2 << 20,
            // Each takes a file descriptor, of which a process has 1,024 by default on many systems.
            connections_max: 900,
            // Tokenizing shares the cores with the engine.
            tokenizers_max: 2,
            // Below the 30 to 60 seconds after which intermediaries give up on silence.
            comment_interval: Duration::from_secs(15),
            // Read as a flow of text, and little to carry: ten events of some 700 bytes a second.
            constant_shape_period: Duration::from_millis(100),
            connection: ConnectionLimits {
                head_timeout: Duration::from_secs(10),
                idle_timeout: Duration::from_secs(60),
                body_timeout: Duration::from_secs(60),
                write_timeout: Duration::from_secs(30),
                // A stream of ten tokens a second is about 2,500 bytes a second.
                send_bytes_per_second_min: 256,
            },
        }
    }
}

/// A configuration could not be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("configuration `{}`: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// Larger than any configuration.
    #[error("configuration `{}` is larger than 4 MiB", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// Read, and not a configuration.
    #[error("configuration `{}`: {source}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: ParseConfigError,
    },
}

/// A text is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ParseConfigError {
    /// Not TOML.
    #[error("{0}")]
    Syntax(#[from] toml::de::Error),
    /// TOML, and wrong.
    #[error("{}", list(mistakes))]
    Mistakes {
        /// All of them, in the order of the settings.
        mistakes: Vec<Mistake>,
    },
}

/// One thing that is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The setting, as in `limits.body_bytes_max`.
    pub setting: String,
    /// What is wrong with it.
    pub problem: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}", self.setting, self.problem)
    }
}

fn list(mistakes: &[Mistake]) -> String {
    let lines: Vec<_> = mistakes.iter().map(|mistake| format!("\n  {mistake}")).collect();
    let things = if lines.len() == 1 { "setting is" } else { "settings are" };
    format!("{} {things} wrong:{}", lines.len(), lines.concat())
}

impl Config {
    /// The port that is listened on when the configuration does not say.
    pub const PORT: u16 = 8080;
    /// The log's name when the configuration does not say.
    pub const ORIGIN: &'static str = "localhost/isolation";

    /// A configuration with every default, for a program that fills in the rest.
    #[must_use]
    pub fn new(data_dir: impl Into<PathBuf>, model: impl Into<PathBuf>) -> Self {
        Self {
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), Self::PORT),
            tls: None,
            data_dir: data_dir.into(),
            model: model.into(),
            weights_cache: WeightsCache::User,
            served_name: None,
            rules: None,
            origin: Self::ORIGIN.to_owned(),
            tenants: Vec::new(),
            agreements: BTreeMap::new(),
            engine: EngineConfig::default(),
            worker: None,
            public_prefixes: Vec::new(),
            webhooks: Vec::new(),
            limits: Limits::default(),
            metrics: MetricsReaders::Loopback,
            probes: BTreeSet::new(),
            operators: Vec::new(),
            witnesses: WitnessSettings::default(),
            signer: Vec::new(),
            group_may_read: false,
            // A log grows for half a year; what grows with it belongs on the disk.
            index: IndexKind::Sled,
            replay_digest: false,
            feed_mib: FEED_MIB,
            retention_days: None,
            self_test_period: Some(SELF_TEST_PERIOD),
        }
    }

    /// Reads a file. Relative paths in it count from the file's folder.
    ///
    /// # Errors
    /// [`ConfigError`], with all mistakes at once.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let failed = |source| ConfigError::Read { path: path.to_owned(), source };
        let text = bounded_file::read_text(path, FILE_BYTES_MAX).map_err(|error| match error.kind() {
            std::io::ErrorKind::FileTooLarge => ConfigError::TooLarge { path: path.to_owned() },
            _ => failed(error),
        })?;
        let parsed = Self::parse(&text);
        let mut config = parsed.map_err(|source| ConfigError::Parse { path: path.to_owned(), source })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        config.data_dir = folder.join(&config.data_dir);
        config.model = folder.join(&config.model);
        config.rules = config.rules.map(|rules| folder.join(rules));
        if let WeightsCache::Folder(cache) = &mut config.weights_cache {
            *cache = folder.join(&cache);
        }
        if let Some(worker) = &mut config.worker {
            worker.certificates = folder.join(&worker.certificates);
        }
        config.tls = config.tls.map(|tls| TlsFiles {
            certificate: folder.join(tls.certificate),
            private_key: folder.join(tls.private_key),
            client_authorities: tls.client_authorities.map(|path| folder.join(path)),
        });
        Ok(config)
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// [`ParseConfigError`], with all mistakes at once.
    pub fn parse(text: &str) -> Result<Self, ParseConfigError> {
        let mut mistakes = Vec::new();
        let mut settings = Settings { path: String::new(), table: text.parse::<Table>()?, mistakes: &mut mistakes };
        let data_dir = settings.required_path("data_dir");
        let model = settings.required_path("model");
        let mut config = Self::new(data_dir, model);
        settings.set("listen", "an address such as \"127.0.0.1:8080\"", &mut config.listen, |value| {
            value.as_str()?.parse().ok()
        });
        settings.set("weights_cache", "a path or \"off\"", &mut config.weights_cache, |value| {
            WeightsCache::parse(value.as_str()?)
        });
        settings.set("served_name", "a name of letters, digits and `-_.:/`", &mut config.served_name, |value| {
            ModelName::parse(value.as_str()?).ok().map(Some)
        });
        settings.set("rules", "a path", &mut config.rules, |value| non_empty(value).map(|path| Some(path.into())));
        settings.set("origin", "a name without spaces and `+`", &mut config.origin, |value| {
            let legal = |name: &&str| !name.contains(|c: char| c.is_whitespace() || c.is_control() || c == '+');
            non_empty(value).filter(legal).map(str::to_owned)
        });
        settings.set("metrics", "\"loopback\", \"everyone\" or \"nobody\"", &mut config.metrics, |value| {
            match value.as_str()? {
                "loopback" => Some(MetricsReaders::Loopback),
                "everyone" => Some(MetricsReaders::Everyone),
                "nobody" => Some(MetricsReaders::Nobody),
                _ => None,
            }
        });
        settings.inside("tls", |tls| {
            let certificate = tls.required_path("certificate");
            let private_key = tls.required_path("private_key");
            let mut client_authorities = None;
            tls.set("client_authorities", "a path", &mut client_authorities, |value| {
                non_empty(value).map(|path| Some(PathBuf::from(path)))
            });
            config.tls = Some(TlsFiles { certificate, private_key, client_authorities });
        });
        settings.inside("engine", |engine| read_engine(engine, &mut config.engine));
        settings.inside("worker", |worker| {
            let wanted = "must be \"prefill\" or \"decode\"";
            let role = worker.required("role", wanted, |value| Role::parse(value.as_str()?));
            let wanted = "must be an address such as \"unix:/run/bulkhead/prefill.sock\" or \"tcp:10.0.0.7:7443\"";
            let address = worker.required("address", wanted, |value| value.as_str()?.parse().ok());
            let certificates = worker.required_path("certificates");
            config.worker = role.zip(address).map(|(role, address)| WorkerPlace { role, address, certificates });
        });
        let keeps_prefixes = config.engine.prefix_cache && config.worker.is_none();
        config.public_prefixes = public_prefix::read_all(&mut settings, keeps_prefixes);
        settings.inside("limits", |limits| read_limits(limits, &mut config.limits));
        config.tenants = read_keys(&mut settings, "tenants");
        config.operators = read_keys(&mut settings, "operators");
        config.webhooks = webhooks::read_all(&mut settings);
        settings.inside("audit", |audit| {
            config.probes = read_probes(audit, &config.tenants);
            config.witnesses = witnesses::read(audit);
            audit.set("signer", "a list of words, a program and its arguments", &mut config.signer, words);
            audit.set("index", "\"sled\" or \"memory\"", &mut config.index, |value| match value.as_str()? {
                "sled" => Some(IndexKind::Sled),
                "memory" => Some(IndexKind::Memory),
                _ => None,
            });
            audit.switch("replay_digest", &mut config.replay_digest);
            audit.count("feed_mib", 0..=FEED_MIB_MAX, &mut config.feed_mib);
            audit.switch("group_may_read", &mut config.group_may_read);
            audit.set("retention_days", RETENTION_DAYS_WANTED, &mut config.retention_days, |value| {
                let days = u32::try_from(value.as_integer()?).ok().filter(|days| *days <= RETENTION_DAYS_MAX)?;
                NonZeroU32::new(days).map(Some)
            });
            audit.set("self_test_seconds", SELF_TEST_SECONDS_WANTED, &mut config.self_test_period, |value| {
                let seconds = u64::try_from(value.as_integer()?).ok().filter(|it| *it <= SELF_TEST_SECONDS_MAX)?;
                Some((seconds > 0).then(|| Duration::from_secs(seconds)))
            });
        });
        settings.inside("scheduler", |scheduler| {
            config.agreements = agreement::read_all(scheduler, &config.tenants, config.engine.queue_max);
        });
        // What nobody says cannot be waited for.
        let wants = |agreement: &Agreement| agreement.second_opinion != SecondOpinion::Observe;
        if !config.witnesses.has_second_opinion()
            && let Some((name, _)) = config.agreements.iter().find(|(_, agreement)| wants(agreement))
        {
            let problem = "takes `[audit] cosigner_lag_seconds` and, of the `witnesses`, one with `auditor = true`";
            settings.mistake(&format!("scheduler.tenants.{name}.second_opinion"), problem.to_owned());
        }
        if let Err(error) = config.tenancy() {
            settings.mistake("scheduler.tenants", format!("cannot be kept: {error}"));
        }
        settings.finish();
        if mistakes.is_empty() { Ok(config) } else { Err(ParseConfigError::Mistakes { mistakes }) }
    }

    /// Everybody's terms, by the number that labels carry. Whoever has a key is among them, so that everyone's guarantee
    /// counts. Every process of one engine must be given the same tenants in the same order.
    ///
    /// # Errors
    /// [`Overpromised`].
    pub fn tenancy(&self) -> Result<Tenancy, Overpromised> {
        let numbers = KeyRing::numbers(&self.tenants);
        Tenancy::new(numbers.into_iter().map(|(name, number)| (Label::of(number), self.agreement(name).terms)))
    }

    /// What was agreed with this tenant.
    #[must_use]
    pub fn agreement(&self, tenant: &TenantName) -> Agreement {
        self.agreements.get(tenant).copied().unwrap_or_default()
    }
}

fn read_engine(settings: &mut Settings<'_>, engine: &mut EngineConfig) {
    let largest = EngineConfig::LARGEST;
    settings.count("threads", 1..=largest.threads, &mut engine.threads);
    settings.count("pages", 1..=largest.pages, &mut engine.pages);
    settings.count("sequences_max", 1..=largest.sequences_max, &mut engine.sequences_max);
    settings.count("queue_max", 1..=largest.queue_max, &mut engine.queue_max);
    settings.count("prefill_chunk_tokens", 1..=largest.prefill_chunk_tokens, &mut engine.prefill_chunk_tokens);
    settings.count("step_target_ms", 1..=largest.step_target_ms, &mut engine.step_target_ms);
    settings.count("queue_wait_max_ms", 1..=largest.queue_wait_max_ms, &mut engine.queue_wait_max_ms);
    settings.switch("prefix_cache", &mut engine.prefix_cache);
    settings.switch("speculation", &mut engine.speculation);
    settings.switch("preallocate", &mut engine.preallocate);
    settings.count("swap_mib", 0..=SWAP_MIB_MAX, &mut engine.swap_mib);
    settings.set("context_tokens_max", "a whole number from 2", &mut engine.context_tokens_max, |value| {
        usize::try_from(value.as_integer()?).ok().filter(|tokens| *tokens > 1).map(Some)
    });
    settings.set("split", "\"auto\", \"off\", \"relabel\", \"copy\" or \"staged\"", &mut engine.split, |value| {
        Split::parse(value.as_str()?)
    });
    settings.set("decode_threads", "a whole number from 1", &mut engine.decode_threads, |value| {
        usize::try_from(value.as_integer()?).ok().filter(|threads| *threads > 0).map(Some)
    });
    settings.set("kv", "\"bf16\", \"f32\" or \"int8\"", &mut engine.kv, |value| KvKind::parse(value.as_str()?));
}

/// An hour of a busy engine: an auditor reads it as it comes.
const FEED_MIB: usize = 256;
/// A terabyte.
const FEED_MIB_MAX: usize = 1 << 20;
/// A terabyte: more than the memory of the machines that this is for.
const SWAP_MIB_MAX: usize = 1 << 20;

fn read_limits(settings: &mut Settings<'_>, limits: &mut Limits) {
    settings.count("body_bytes_max", 1024..=1 << 30, &mut limits.body_bytes_max);
    settings.count("connections_max", 1..=1 << 20, &mut limits.connections_max);
    settings.count("tokenizers_max", 1..=1024, &mut limits.tokenizers_max);
    settings.milliseconds("sse_comment_interval_ms", &mut limits.comment_interval);
    settings.milliseconds("constant_shape_period_ms", &mut limits.constant_shape_period);
    settings.milliseconds("head_timeout_ms", &mut limits.connection.head_timeout);
    settings.milliseconds("idle_timeout_ms", &mut limits.connection.idle_timeout);
    settings.milliseconds("body_timeout_ms", &mut limits.connection.body_timeout);
    settings.milliseconds("write_timeout_ms", &mut limits.connection.write_timeout);
    let mut rate = usize::try_from(limits.connection.send_bytes_per_second_min).unwrap_or(usize::MAX);
    settings.count("send_bytes_per_second_min", 1..=1 << 30, &mut rate);
    limits.connection.send_bytes_per_second_min = rate as u64;
}

/// A probe that no key stands for would be a mistake in its name.
fn read_probes(settings: &mut Settings<'_>, tenants: &[TenantKey]) -> BTreeSet<TenantName> {
    let mut probes = BTreeSet::new();
    settings.set("probes", "a list of names of tenants that have a key", &mut probes, |value| {
        let known = |name: &TenantName| tenants.iter().any(|key| key.tenant == *name);
        let name = |value: &Value| TenantName::parse(value.as_str()?).ok().filter(known);
        value.as_array()?.iter().map(name).collect()
    });
    probes
}

/// At least one, and the first of them is not empty.
fn words(value: &Value) -> Option<Vec<String>> {
    let words: Option<Vec<String>> = value.as_array()?.iter().map(|word| word.as_str().map(str::to_owned)).collect();
    words.filter(|words| words.first().is_some_and(|program| !program.is_empty()))
}

/// Names and the hashes of their keys: of tenants, or of operators.
fn read_keys(settings: &mut Settings<'_>, list: &str) -> Vec<TenantKey> {
    let tables = match settings.table.remove(list) {
        None => Vec::new(),
        Some(Value::Array(tables)) => tables,
        Some(_) => {
            settings.mistake(list, "must be a list of tables".to_owned());
            return Vec::new();
        }
    };
    let mut keys = Vec::new();
    for (index, table) in tables.into_iter().enumerate() {
        settings.inside_value(&format!("{list}[{index}]"), table, |tenant| {
            let wanted = "must be 1 to 63 of `a-z`, `0-9`, `-`";
            let name = tenant.required("name", wanted, |value| TenantName::parse(value.as_str()?).ok());
            let wanted = "must be the 64 hexadecimal digits that `bulkhead` prints for a key";
            let hash = tenant.required("key_hash", wanted, |value| KeyHash::parse(value.as_str()?));
            keys.extend(name.zip(hash).map(|(tenant, hash)| TenantKey { tenant, hash }));
        });
    }
    keys
}

fn non_empty(value: &Value) -> Option<&str> {
    value.as_str().filter(|text| !text.is_empty())
}

/// A table whose settings are taken one by one, and the mistakes found so far.
struct Settings<'a> {
    path: String,
    table: Table,
    mistakes: &'a mut Vec<Mistake>,
}

impl Settings<'_> {
    fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    fn mistake(&mut self, name: &str, problem: String) {
        let setting = self.path_of(name);
        self.mistakes.push(Mistake { setting, problem });
    }

    /// The table itself should not be there.
    fn wrong(&mut self, problem: &str) {
        self.mistakes.push(Mistake { setting: self.path.clone(), problem: problem.to_owned() });
    }

    /// Takes a setting if it is there.
    fn set<T>(&mut self, name: &str, wanted: &str, target: &mut T, read: impl Fn(&Value) -> Option<T>) {
        let Some(value) = self.table.remove(name) else { return };
        match read(&value) {
            Some(value) => *target = value,
            None => self.mistake(name, format!("must be {wanted}")),
        }
    }

    fn count(&mut self, name: &str, range: std::ops::RangeInclusive<usize>, target: &mut usize) {
        let wanted = format!("a whole number from {} to {}", range.start(), range.end());
        self.set(name, &wanted, target, |value| {
            usize::try_from(value.as_integer()?).ok().filter(|count| range.contains(count))
        });
    }

    fn switch(&mut self, name: &str, target: &mut bool) {
        self.set(name, "true or false", target, Value::as_bool);
    }

    fn milliseconds(&mut self, name: &str, target: &mut Duration) {
        const DAY_MS: u64 = 86_400_000;
        self.set(name, "a number of milliseconds from 1 to 86400000", target, |value| {
            let milliseconds = u64::try_from(value.as_integer()?).ok()?;
            (1..=DAY_MS).contains(&milliseconds).then(|| Duration::from_millis(milliseconds))
        });
    }

    fn required<T>(&mut self, name: &str, problem: &str, read: impl Fn(&Value) -> Option<T>) -> Option<T> {
        let read = self.table.remove(name).map(|value| read(&value));
        match read {
            Some(Some(value)) => return Some(value),
            Some(None) => self.mistake(name, problem.to_owned()),
            None => self.mistake(name, "is missing".to_owned()),
        }
        None
    }

    fn required_path(&mut self, name: &str) -> PathBuf {
        self.required(name, "must be a path", |value| non_empty(value).map(PathBuf::from)).unwrap_or_default()
    }

    fn inside(&mut self, name: &str, read: impl FnOnce(&mut Settings<'_>)) {
        if let Some(value) = self.table.remove(name) {
            self.inside_value(name, value, read);
        }
    }

    /// Every table of this one, by its name.
    fn each(&mut self, mut read: impl FnMut(&str, &mut Settings<'_>)) {
        for (name, value) in std::mem::take(&mut self.table) {
            self.inside_value(&name, value, |inside| read(&name, inside));
        }
    }

    fn inside_value(&mut self, name: &str, value: Value, read: impl FnOnce(&mut Settings<'_>)) {
        let Value::Table(table) = value else {
            return self.mistake(name, "must be a table".to_owned());
        };
        let mut settings = Settings { path: self.path_of(name), table, mistakes: self.mistakes };
        read(&mut settings);
        settings.finish();
    }

    /// What is left is not known here.
    fn finish(mut self) {
        let unknown: Vec<_> = self.table.keys().cloned().collect();
        for name in unknown {
            self.mistake(&name, "is not a setting".to_owned());
        }
    }
}

#[cfg(test)]
mod tests;
