//! `bulkhead worker`: a part of the engine in a process of its own.

use super::output::note;
use super::serve::{Signals, identity, load_model, read_config};
use anyhow::{Context, Result, bail};
use engine_link::{Address, Authority, Role};
use engine_runtime::PrefillWorker;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often it is looked whether the worker's threads still run.
const LOOK: Duration = Duration::from_millis(500);

/// Computes prompts until a signal; listens at `listen` instead of where the configuration says.
pub(crate) async fn run(config: &Path, listen: Option<Address>) -> Result<()> {
    let mut signals = Signals::listen()?;
    let config = read_config(config)?;
    let workers = config.workers.as_ref().context(
        "the configuration has no [workers]: it says where the worker listens, and which certificates it has (see \
         `deploy/bulkhead.toml` of the sources)",
    )?;
    let identity = identity(workers, Role::Prefill)?;
    let address = listen.unwrap_or_else(|| workers.prefill.clone());
    let work = async {
        let model = load_model(&config).await?;
        anyhow::Ok(PrefillWorker::start(model, config.engine, &address, &identity)?)
    };
    let Some(worker) = signals.unless(work).await else { return Ok(()) };
    let worker = worker?;
    note(format_args!("prefill worker, waiting for a gateway at {}", worker.address()));
    let ended = async {
        while worker.is_alive() {
            tokio::time::sleep(LOOK).await;
        }
    };
    let ended = signals.unless(ended).await;
    worker.withdraw();
    if ended.is_some() {
        bail!("the worker's threads have ended");
    }
    note("stopped");
    Ok(())
}

/// Makes certificates for all parts of an engine. Nothing that exists is replaced.
pub(crate) fn certificates(folder: &Path) -> Result<Vec<PathBuf>> {
    Authority::write(folder).context("the certificates were not made")
}
