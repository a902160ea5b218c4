//! `bulkhead worker`: a part of the engine in a process of its own.

use super::output::note;
use super::serve::{Signals, identity, load_model, read_config};
use anyhow::{Context, Result, bail};
use engine_link::{Address, Authority, Role};
use engine_runtime::Worker;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often it is looked whether the worker's threads still run.
const LOOK: Duration = Duration::from_millis(500);

/// Does its part until a signal; listens at `listen` instead of where the configuration says.
pub(crate) async fn run(role: Role, config: &Path, listen: Option<Address>) -> Result<()> {
    let mut signals = Signals::listen()?;
    let config = read_config(config)?;
    let place = config.worker.as_ref().context(
        "the configuration has no [worker]: it says where the worker listens, and which certificates it has (see \
         `deploy/bulkhead.toml` of the sources)",
    )?;
    if place.role != role {
        bail!("this is to be the {role} worker, and the configuration has a {} worker", place.role);
    }
    let identity = identity(place, role)?;
    let address = listen.unwrap_or_else(|| place.address.clone());
    let work = async {
        let model = load_model(&config).await?;
        anyhow::Ok(Worker::start(&model, config.engine, config.tenancy()?, &address, &identity)?)
    };
    let Some(worker) = signals.unless(work).await else { return Ok(()) };
    let worker = worker?;
    note(format_args!("{role} worker, waiting for a gateway at {}", worker.address()));
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

/// Makes certificates for both parts of an engine. Nothing that exists is replaced.
pub(crate) fn certificates(folder: &Path) -> Result<Vec<PathBuf>> {
    Authority::write(folder).context("the certificates were not made")
}
