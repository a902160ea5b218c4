//! `bulkhead serve`, and what the demo shares with it: loading a model, starting a gateway, ending it well.

use super::output::note;
use super::{environment, templates};
use anyhow::{Context, Result};
use engine_link::{Identity, IdentityFiles, Role};
use engine_model::{CacheUse, LoadOptions, Loaded, Model, UnsavedWeights};
use engine_runtime::{Engine, RemoteWorker, Setup};
use gateway_server::{Config, Gateway, WeightsCache, WorkerPlace};
use indicatif::{ProgressBar, ProgressStyle};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Responses in progress may take this long after the first signal: several times a long answer.
const DRAIN_LIMIT: Duration = Duration::from_secs(120);

/// Between two looks at an index that is being made, and before the first: an index that is there is opened by then.
const INDEX_LOOK: Duration = Duration::from_secs(1);

/// Runs a gateway until a signal; `weights_cache` instead of what the configuration says.
pub(crate) async fn run(config: &Path, weights_cache: Option<WeightsCache>) -> Result<()> {
    // Listening from the beginning: a signal during the start must not be lost.
    let mut signals = Signals::listen()?;
    let mut config = read_config(config)?;
    if let Some(weights_cache) = weights_cache {
        config.weights_cache = weights_cache;
    }
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    let work = async {
        let engine = start_engine(&config).await?;
        anyhow::Ok(Gateway::start(config, engine).await?)
    };
    let Some(gateway) = signals.unless(work).await else { return Ok(()) };
    let gateway = gateway?;
    note(format_args!("listening on {scheme}://{}", gateway.address()));
    if signals.unless(show_index(&gateway)).await.is_some() {
        signals.next().await;
    }
    drain(gateway, &mut signals).await
}

/// Shows how the index of the audit log is made, while that takes long. Requests are answered meanwhile.
async fn show_index(gateway: &Gateway) {
    tokio::time::sleep(INDEX_LOOK).await;
    if gateway.index().is_ready() {
        return;
    }
    let bar = ProgressBar::new(gateway.index().indexable);
    if bar.is_hidden() {
        note("the index of the audit log is being made; requests are answered meanwhile");
    }
    if let Ok(style) = ProgressStyle::with_template("indexing the audit log {bar:30} {pos}/{len} {elapsed}") {
        bar.set_style(style);
    }
    loop {
        let health = gateway.index();
        bar.set_length(health.indexable);
        bar.set_position(health.indexed);
        if health.is_ready() || health.given_up {
            bar.finish_and_clear();
            note(match health.given_up {
                false => "the index of the audit log is complete",
                true => "the audit log has no index: looking things up takes longer",
            });
            return;
        }
        tokio::time::sleep(INDEX_LOOK).await;
    }
}

/// Reads the configuration; a missing one is the first thing that a new operator meets.
pub(crate) fn read_config(path: &Path) -> Result<Config> {
    let config = Config::read(path);
    if path.exists() {
        return Ok(config?);
    }
    config.context("there is no configuration yet: copy `deploy/bulkhead.toml` of the sources and adapt it")
}

/// Loads the model and starts the engine, or as much of it as is in this process.
pub(crate) async fn start_engine(config: &Config) -> Result<Engine> {
    let worker = match &config.worker {
        None => None,
        Some(worker) => {
            Some(RemoteWorker { address: worker.address.clone(), identity: identity(worker, worker.role.peer())? })
        }
    };
    let model = load_model(config).await?;
    if config.engine.preallocate {
        note(format_args!("taking the memory of all {} KV pages", config.engine.pages));
    }
    let (tenancy, witness) = (config.tenancy()?, Gateway::engine_feed(config)?);
    let setup = Setup { tenancy, worker, public_prefixes: &config.public_prefixes, witness };
    Ok(Engine::start_with(model, config.engine, setup)?)
}

/// Who this process is, as a part of the engine, towards the others.
pub(crate) fn identity(worker: &WorkerPlace, role: Role) -> Result<Identity> {
    let files = IdentityFiles::in_folder(&worker.certificates, role);
    if std::fs::metadata(&files.key).is_ok_and(|file| file.permissions().mode() & 0o077 != 0) {
        tracing::warn!(key = %files.key.display(), "others on this machine can read the private key");
    }
    Identity::load(role, &files)
        .context("the certificates cannot be used with which gateway and worker know each other (`bulkhead key worker DIR` makes them)")
}

/// The model that the configuration names.
pub(crate) async fn load_model(config: &Config) -> Result<Arc<Model>> {
    let path = config.model.clone();
    let options = LoadOptions {
        threads: config.engine.threads,
        weights_cache: folder_of(&config.weights_cache),
        templates: templates(config.limits.tokenizers_max)?,
    };
    let path_is_missing = !path.exists();
    let load = tokio::task::spawn_blocking(move || {
        Model::load_with(&path, &options).with_context(|| {
            let path = path.display();
            match path_is_missing {
                true => format!(
                    "there is no model at `{path}` (`bulkhead model fetch` fetches the default one and prints where it \
                     is; `model` in the configuration names a file)"
                ),
                false => format!("the model `{path}` cannot be loaded"),
            }
        })
    });
    let Loaded { model, cache } = load.await.context("loading the model was interrupted")??;
    match cache {
        CacheUse::Off => {}
        CacheUse::Restored => tracing::debug!("the weights are from the cache"),
        CacheUse::Unsaved(weights) => save(weights),
    }
    Ok(Arc::new(model))
}

fn folder_of(cache: &WeightsCache) -> Option<PathBuf> {
    match cache {
        WeightsCache::User => environment::cache_home().map(|cache| cache.join("bulkhead/weights")),
        WeightsCache::Off => None,
        WeightsCache::Folder(folder) => Some(folder.clone()),
    }
}

/// Writes repacked weights for the next start, while this one goes on. The program's end does not wait for it.
fn save(weights: Box<UnsavedWeights>) {
    if let Some(reason) = weights.reason() {
        tracing::warn!(%reason, "repacked weights in the cache could not be used and are written anew");
    }
    let work = move || match weights.save() {
        Ok(()) => tracing::debug!("the weights are in the cache"),
        Err(error) => tracing::warn!(%error, "repacked weights are not kept for the next start"),
    };
    if let Err(error) = std::thread::Builder::new().name("weights-cache".to_owned()).spawn(work) {
        tracing::warn!(%error, "repacked weights are not kept for the next start");
    }
}

/// Lets responses in progress finish; a second signal ends them.
pub(crate) async fn drain(gateway: Gateway, signals: &mut Signals) -> Result<()> {
    note("stopping: responses in progress may finish; once more to stop at once");
    let again = async {
        signals.settle().await;
        signals.next().await;
    };
    let drained = tokio::select! {
        drained = gateway.drain(DRAIN_LIMIT) => Some(drained),
        () = again => None,
    };
    match drained {
        Some(true) => note("stopped"),
        Some(false) => note("stopped; some responses were cut and are in the log as aborted"),
        None => note("stopped at once"),
    }
    Ok(())
}

/// Signals this close together are one: the terminal, a parent and the process group may each send theirs.
const SETTLE: Duration = Duration::from_millis(500);

/// The signals that ask a process to end.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    pub(crate) fn listen() -> Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Forgets what came together with the last one.
    async fn settle(&mut self) {
        tokio::time::sleep(SETTLE).await;
        // Each of the two kinds may have one waiting.
        for _ in 0..2 {
            tokio::select! {
                biased;
                () = self.next() => {}
                () = std::future::ready(()) => {}
            }
        }
    }

    /// The work's result, unless a signal comes first; the work is dropped then.
    pub(crate) async fn unless<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            result = work => Some(result),
            () = self.next() => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_configuration_shows_the_defaults() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/bulkhead.toml");
        let shown = Config::read(&file).unwrap();
        let defaults = Config::new(&shown.data_dir, &shown.model);
        assert_eq!((shown.listen, shown.origin), (defaults.listen, defaults.origin));
        assert_eq!((shown.weights_cache, shown.index), (defaults.weights_cache, defaults.index));
        assert_eq!((shown.engine, shown.limits, shown.metrics), (defaults.engine, defaults.limits, defaults.metrics));
        assert_eq!(shown.witnesses, defaults.witnesses);
        assert!(
            shown.agreements.is_empty()
                && shown.probes.is_empty()
                && shown.operators.is_empty()
                && shown.public_prefixes.is_empty()
        );
        assert!(shown.tenants.is_empty() && shown.rules.is_none() && shown.tls.is_none() && shown.worker.is_none());
    }
}
