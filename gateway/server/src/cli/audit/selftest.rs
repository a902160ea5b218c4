//! Is the audit itself any good? Two gateways in this process, one with a prefix cache that its tenants share: the audit must
//! find the channel there and none in the other.

use super::probe::Keys;
use super::verdict::Verdict;
use super::{Size, sidechannel};
use crate::cli::http_client::Address;
use crate::cli::{default_model, note, say, serve};
use anyhow::{Context, Result, bail};
use gateway_auth::{ApiKey, TenantKey};
use gateway_server::{Config, Gateway};
use policies_domain::TenantName;
use std::path::PathBuf;
use std::time::Duration;

const TENANTS: [&str; 2] = ["victim", "attacker"];
/// Lengths that show a channel within minutes.
const PREFIX_TOKENS: [usize; 2] = [64, 256];
const FLOOD_TOKENS: usize = 2_048;
/// Nothing is in progress when the audit has ended.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// Audits both, the one with the defect first.
pub(crate) async fn run(model: Option<PathBuf>, seed: u64) -> Result<()> {
    let model = tokio::task::spawn_blocking(move || model.map_or_else(default_model, Ok)).await??;
    for shared in [true, false] {
        note(if shared { "With one prefix cache for all tenants" } else { "With a prefix cache for each tenant" });
        let verdict = audit(&model, seed, shared).await?;
        match (shared, verdict) {
            (true, Verdict::ChannelFound) | (false, Verdict::Isolated | Verdict::Inconclusive) => {}
            (true, _) => bail!("the audit did not find the cache that was shared"),
            (false, _) => bail!("the audit found a channel, or had no power, where each tenant has a cache of its own"),
        }
    }
    Ok(())
}

async fn audit(model: &std::path::Path, seed: u64, shared: bool) -> Result<Verdict> {
    let data_dir = tempfile::Builder::new().prefix("bulkhead-selftest-").tempdir().context("no temporary folder")?;
    let secret = Gateway::key_secret(data_dir.path())?;
    let mut config = Config::new(data_dir.path(), model);
    config.listen = "127.0.0.1:0".parse()?;
    let keys = [ApiKey::mint()?, ApiKey::mint()?];
    for (name, key) in TENANTS.iter().zip(&keys) {
        config.tenants.push(TenantKey { tenant: TenantName::parse(name)?, hash: secret.hash(key) });
    }
    let engine = serve::start_engine(&config).await?;
    if shared {
        engine.share_prefixes();
    }
    let gateway = Gateway::start(config, engine).await?;
    let [victim, attacker] = keys.map(|key| key.reveal().to_owned());
    let plan = Size::QUICK.plan(PREFIX_TOKENS.to_vec(), FLOOD_TOKENS, false);
    let report = sidechannel(Address::of(gateway.address()), Keys { victim, attacker }, plan, seed).await;
    gateway.drain(DRAIN_LIMIT).await;
    let report = report?;
    say(&report)?;
    Ok(report.judgement.verdict)
}
