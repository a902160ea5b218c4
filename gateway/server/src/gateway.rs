//! A running gateway: what its requests share, its start and its end.

use crate::audits::Audits;
use crate::bounded_file;
use crate::config::{Config, IndexKind, Limits, MetricsReaders, StreamShape};
use crate::engine_feed;
use crate::exchange::Entrance;
use crate::host::{self, Host};
use crate::metrics::{Metrics, StartMetricsError};
use crate::open_files;
use crate::operators::Operators;
use crate::own_entries::OwnEntriesTurns;
use crate::replays::{ReplaySettings, Replays};
use crate::respond::RequestError;
use crate::second_opinion::SecondOpinions;
use crate::self_tests::{SelfTests, detectors};
use crate::tls::{self, LoadTlsError};
use crate::turns::{Turns, WAITING_MAX};
use crate::webhooks::{StartWebhookError, Webhooks};
use crate::witnesses;
use audit_feed::OpenFeedError;
use audit_log::{AuditConfig, AuditLog, Handover, IndexHealth, IndexStore, OpenLogError, SignerPlace};
use engine_runtime::{Engine, Replayer, Split, StartEngineError, Witness};
use gateway_auth::{BuildKeyRingError, KeyRing, KeySecret, OpenSecretError};
use policies_authz::{Authz, ReadRulesError};
use policies_domain::{Digest, ModelName, ParseNameError, RequestId, SealKey, TenantId, TenantName};
use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A rule file is read whole; 1,024 rules of ordinary length take a tenth of this.
const RULES_BYTES_MAX: u64 = 4 << 20;

/// Threads that compute answers again: one, which everything else goes before.
const REPLAY_THREADS: usize = 1;

/// What all requests share. Made once, never changed.
pub(crate) struct Services {
    pub(crate) keys: KeyRing,
    pub(crate) authz: Authz,
    pub(crate) engine: Engine,
    pub(crate) audit: AuditLog,
    pub(crate) audits: Audits,
    pub(crate) operators: Operators,
    pub(crate) own_entries: OwnEntriesTurns,
    /// Whether connections are encrypted.
    pub(crate) tls: bool,
    pub(crate) replays: Replays,
    pub(crate) second_opinions: SecondOpinions,
    pub(crate) self_tests: SelfTests,
    pub(crate) webhooks: Webhooks,
    pub(crate) metrics: Metrics,
    pub(crate) metrics_readers: MetricsReaders,
    pub(crate) limits: Limits,
    /// Whose streams have a constant shape.
    constant_shapes: HashSet<TenantId>,
    pub(crate) model: ModelName,
    pub(crate) model_digest: Digest,
    pub(crate) model_fingerprint: Digest,
    /// The beginning of it, as the OpenAI API writes such a thing.
    pub(crate) system_fingerprint: Arc<str>,
    /// Unix seconds.
    pub(crate) started: u64,
    /// One for each prompt that may be tokenized at the same time.
    pub(crate) tokenizers: Arc<Turns>,
    draining: AtomicBool,
}

impl Services {
    /// The served model, if that is what it is called.
    pub(crate) fn find_model(&self, name: &str) -> Result<&ModelName, RequestError> {
        if name == self.model.as_str() { Ok(&self.model) } else { Err(RequestError::UnknownModel) }
    }

    /// A new request's identity, and the secret that seals its answer: minted here, whatever the client sent.
    pub(crate) fn mint_request(&self) -> Result<(RequestId, SealKey), RequestError> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(|_| RequestError::Entropy)?;
        Ok((RequestId::from_bytes(uuid::Uuid::now_v7().into_bytes()), SealKey::from_bytes(secret)))
    }

    /// What this tenant's streams look like.
    pub(crate) fn stream_shape(&self, tenant: TenantId) -> StreamShape {
        if self.constant_shapes.contains(&tenant) { StreamShape::ConstantShape } else { StreamShape::AsItComes }
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }
}

/// Why a gateway did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data folder cannot be made or written.
    #[error("data folder `{}` is not usable: {source}", path.display())]
    DataDir {
        /// The folder.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The address is taken, or not one of this machine's.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// As configured.
        address: SocketAddr,
        /// What the operating system said.
        source: io::Error,
    },
    /// The key secret.
    #[error(transparent)]
    Secret(#[from] OpenSecretError),
    /// Certificate, key or client authorities.
    #[error(transparent)]
    Tls(#[from] LoadTlsError),
    /// The tenants' keys.
    #[error(transparent)]
    Keys(#[from] BuildKeyRingError),
    /// A key stands for a tenant and for an operator.
    #[error("a key is a tenant's and an operator's: each has keys of its own")]
    OperatorKey,
    /// The rule file could not be read.
    #[error("rule file `{}`: {source}", path.display())]
    ReadRules {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The rules are wrong.
    #[error("the rules cannot be used: {0}")]
    Rules(#[from] ReadRulesError),
    /// The engine's feed.
    #[error(transparent)]
    Feed(#[from] OpenFeedError),
    /// The audit log.
    #[error("the audit log did not open: {0}")]
    Log(#[from] OpenLogError),
    /// The model's own name for itself is no name.
    #[error("the model's name cannot be served, set `served_name`: {0}")]
    ModelName(ParseNameError),
    /// The metrics.
    #[error(transparent)]
    Metrics(#[from] StartMetricsError),
    /// The part of the engine that computes answers again.
    #[error("answers cannot be computed again: {0}")]
    Replayer(#[from] StartEngineError),
    /// Whoever is to be told of incidents.
    #[error(transparent)]
    Webhook(#[from] StartWebhookError),
    /// The system gave no thread.
    #[error("the system gave no thread: {source}")]
    Thread {
        /// What it said.
        source: io::Error,
    },
    /// The operating system has no random bytes.
    #[error("the system gave no random bytes")]
    Entropy,
    /// A start-up task was cut short.
    #[error("the gateway's start was interrupted")]
    Interrupted,
}

/// A gateway that answers. Dropping it stops accepting; [`Gateway::drain`] ends it well.
pub struct Gateway {
    host: Host,
    services: Arc<Services>,
}

impl Gateway {
    /// File of the installation's key secret, in the data folder.
    pub const KEY_SECRET_FILE: &'static str = "key-secret";
    /// The audit log's folder, in the data folder.
    pub const LOG_FOLDER: &'static str = "log";

    /// Where the audit log of a data folder lies.
    #[must_use]
    pub fn log_dir(data_dir: &Path) -> PathBuf {
        data_dir.join(Self::LOG_FOLDER)
    }

    /// Begins the engine's feed in the data folder, which an auditor reads: what the engine is to be started with. `None` where the
    /// configuration wants none, and where a worker has a part of the pages.
    ///
    /// # Errors
    /// [`StartError::DataDir`], [`StartError::Feed`] and [`StartError::Entropy`].
    pub fn engine_feed(config: &Config) -> Result<Option<Arc<dyn Witness>>, StartError> {
        if config.feed_mib == 0 || config.worker.is_some() {
            return Ok(None);
        }
        make_data_dir(&config.data_dir)?;
        let mut run = [0; 16];
        getrandom::fill(&mut run).map_err(|_| StartError::Entropy)?;
        Ok(Some(engine_feed::open(&config.data_dir, config.feed_mib, config.group_may_read, run)?))
    }

    /// Opens (at first: makes) the secret with which this data folder's keys are hashed.
    ///
    /// # Errors
    /// [`StartError::DataDir`] and [`StartError::Secret`].
    pub fn key_secret(data_dir: &Path) -> Result<KeySecret, StartError> {
        make_data_dir(data_dir)?;
        Ok(KeySecret::open_or_create(&data_dir.join(Self::KEY_SECRET_FILE))?)
    }

    /// Starts to answer. Must be called within a tokio runtime with its timer and I/O enabled.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left running then.
    pub async fn start(config: Config, engine: Engine) -> Result<Self, StartError> {
        // The address first: a second gateway on the same port must not touch the first one's log.
        let address = config.listen;
        let listener = host::listen(address).map_err(|source| StartError::Listen { address, source })?;
        let tls = config.tls.as_ref().map(tls::load).transpose()?;
        if tls.is_none() && !address.ip().to_canonical().is_loopback() {
            tracing::warn!(%address, "keys and texts travel in clear: set `tls` or listen on loopback behind a TLS proxy");
        }
        open_files::make_room(config.limits.connections_max);
        let opening = tokio::task::spawn_blocking(move || open(config, engine));
        let (services, limits) = opening.await.map_err(|_| StartError::Interrupted)??;
        let services = Arc::new(services);
        let entrance = Entrance::new(services.clone(), limits.connection, tls);
        let host = Host::start(listener, entrance, limits.connections_max)
            .map_err(|source| StartError::Listen { address, source })?;
        let (address, model) = (host.address(), services.model.as_str());
        tracing::info!(%address, model, rules = %services.authz.digest(), "gateway started");
        Ok(Self { host, services })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.host.address()
    }

    /// The name under which the model is served.
    #[must_use]
    pub fn model(&self) -> &ModelName {
        &self.services.model
    }

    /// How the index of the audit log does.
    #[must_use]
    pub fn index(&self) -> IndexHealth {
        self.services.audit.health().index
    }

    /// How the configured log is opened; how pages are handed over is not known before the engine runs.
    #[must_use]
    pub fn log_config(config: &Config) -> AuditConfig {
        let audit = AuditConfig::new(Self::log_dir(&config.data_dir), config.origin.clone());
        let index = match config.index {
            IndexKind::Sled => IndexStore::Sled(audit.dir.join("index")),
            IndexKind::Memory => IndexStore::Memory,
        };
        let signer =
            if config.signer.is_empty() { SignerPlace::File } else { SignerPlace::Command(config.signer.clone()) };
        let witnesses = witnesses::policy(&config.witnesses);
        let (group_may_read, retention_days) = (config.group_may_read, config.retention_days);
        AuditConfig { group_may_read, signer, witnesses, index, retention_days, ..audit }
    }

    /// Makes `/readyz` say no while everything else goes on: for a balancer that needs time to notice.
    pub fn announce_drain(&self) {
        self.services.draining.store(true, Ordering::SeqCst);
    }

    /// Ends: not ready, no new connections, responses in progress may finish until `limit`, the rest is cut (and
    /// sealed as aborted), then the audit log is committed and closed. True when nothing had to be cut.
    ///
    /// # Cancel safety
    /// A dropped future cuts everything at once; the audit log then recovers at its next start.
    pub async fn drain(self, limit: Duration) -> bool {
        self.announce_drain();
        let all_ended = self.host.drain(limit).await;
        let services = self.services.clone();
        let close = move || {
            // Before the log: what is not done is written down.
            services.self_tests.stop();
            services.replays.stop();
            services.webhooks.stop();
            services.audit.shutdown();
        };
        let closed = tokio::task::spawn_blocking(close).await.is_ok();
        tracing::info!(all_ended, "gateway stopped");
        all_ended && closed
    }
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gateway({}, {})", self.address(), self.services.model)
    }
}

fn make_data_dir(path: &Path) -> Result<(), StartError> {
    std::fs::create_dir_all(path).map_err(|source| StartError::DataDir { path: path.to_owned(), source })
}

/// Opens everything that lies in files. Blocks.
fn open(config: Config, engine: Engine) -> Result<(Services, Limits), StartError> {
    let secret = Gateway::key_secret(&config.data_dir)?;
    let keys = KeyRing::new(secret, &config.tenants)?;
    let operators = KeyRing::new(Gateway::key_secret(&config.data_dir)?, &config.operators)?;
    if keys.shares_a_key(&operators) {
        return Err(StartError::OperatorKey);
    }
    if config.tenants.is_empty() {
        tracing::warn!("no tenant is configured, so every request is refused: `bulkhead key new` makes a key for one");
    }
    let authz = match &config.rules {
        None => Authz::read(Authz::DEFAULT_RULES)?,
        Some(path) => Authz::read(&read_rules(path)?)?,
    };
    let model = match config.served_name {
        Some(ref name) => name.clone(),
        None => ModelName::parse(engine.model().name()).map_err(StartError::ModelName)?,
    };
    let handover = match engine.split() {
        Split::Auto | Split::Off => Handover::None,
        Split::Relabel => Handover::Relabel,
        Split::Copy => Handover::Copy,
        Split::Staged => Handover::Staged,
    };
    let audit = AuditLog::open(AuditConfig { handover, ..Gateway::log_config(&config) })?;
    let metrics = Metrics::start(&engine, &audit, &keys.principals())?;
    let second_opinions = SecondOpinions::of(&keys.principals(), |name| config.agreements.get(name));
    let replays = start_replays(&config, &keys, &engine, &audit, &metrics)?;
    let webhooks = Webhooks::start(&config.webhooks, &config.data_dir, &config.origin, &audit, metrics.webhooks())?;
    if config.metrics == MetricsReaders::Everyone {
        tracing::warn!("everyone who reaches the listener may read the tenants' names and usage under /metrics");
    }
    let (tokens, context) = (engine.context_max(), engine.model().config().context_length);
    if tokens < config.engine.context_tokens_max.unwrap_or(context) {
        tracing::warn!(tokens, context, "no request longer than the KV pool is answered: give `engine.pages` more");
    }
    let model_fingerprint = Digest(engine.model_fingerprint());
    match engine.model().check_chat() {
        Err(reason) => tracing::warn!(%model, %reason, "chat requests will be refused; plain completions work"),
        Ok(refused) => {
            for refused in refused {
                tracing::warn!(%model, %refused, "some chat requests will be refused: the template does not take them");
            }
        }
    }
    let constant_shapes = keys.principals().into_iter().filter(|principal| {
        config.agreements.get(principal.name()).is_some_and(|agreement| agreement.stream == StreamShape::ConstantShape)
    });
    let constant_shapes = constant_shapes.map(|principal| principal.tenant()).collect();
    let tried = detectors(&engine, config.engine.kv, &audit);
    let self_tests = SelfTests::start(config.self_test_period, tried, audit.clone(), metrics.self_tests())
        .map_err(|source| StartError::Thread { source })?;
    let services = Services {
        constant_shapes,
        keys,
        authz,
        model,
        model_digest: Digest(engine.model().digest()),
        model_fingerprint,
        system_fingerprint: format!("fp_{}", &model_fingerprint.to_string()[..16]).into(),
        engine,
        audit,
        audits: Audits::new(config.probes),
        operators: Operators::new(operators),
        own_entries: OwnEntriesTurns::default(),
        tls: config.tls.is_some(),
        replays,
        second_opinions,
        self_tests,
        webhooks,
        metrics,
        metrics_readers: config.metrics,
        limits: config.limits,
        started: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        tokenizers: Arc::new(Turns::new(config.limits.tokenizers_max, WAITING_MAX)),
        draining: AtomicBool::new(false),
    };
    Ok((services, config.limits))
}

fn start_replays(
    config: &Config,
    keys: &KeyRing,
    engine: &Engine,
    audit: &AuditLog,
    metrics: &Metrics,
) -> Result<Replays, StartError> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(|_| StartError::Entropy)?;
    let agreement = |name: &TenantName| config.agreements.get(name);
    let settings = ReplaySettings::of(&keys.principals(), agreement, config.replay_digest, secret);
    let replayer = match settings.need_a_replayer() {
        true => Some(Replayer::new(engine.model().clone(), config.engine, engine.context_max(), REPLAY_THREADS)?),
        false => None,
    };
    let (runtime, metrics) = (tokio::runtime::Handle::current(), metrics.replays());
    Replays::start(settings, replayer, audit.clone(), metrics, runtime).map_err(|source| StartError::Thread { source })
}

fn read_rules(path: &Path) -> Result<String, StartError> {
    bounded_file::read_text(path, RULES_BYTES_MAX)
        .map_err(|source| StartError::ReadRules { path: path.to_owned(), source })
}
