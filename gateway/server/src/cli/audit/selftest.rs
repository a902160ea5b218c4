//! Is the audit itself any good? Two gateways in this process, one with a prefix cache that its tenants share: the audit must
//! find the channel there and none in the other.

use super::probe::Keys;
use super::report::Report;
use super::verdict::Verdict;
use super::{Size, sidechannel};
use crate::cli::http_client::Address;
use crate::cli::{default_model, note, say, serve};
use anyhow::{Context, Result, bail};
use gateway_auth::{ApiKey, TenantKey};
use gateway_server::{Config, Gateway};
use policies_domain::TenantName;
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;

const TENANTS: [&str; 2] = ["victim", "attacker"];
/// Four pages. Longer prefixes differ more and take longer: with these a thousand pairs take five minutes on two cores.
const PREFIX_TOKENS: usize = 64;
/// Enough for every verdict, `isolated` among them: without a channel the pairs end where the interval is narrow enough. These
/// gateways promise nobody a constant shape.
const SIZE: Size =
    Size { control_pairs: 250, cross_pairs: 1_500, order_rounds: 12, eviction_pairs: 12, stream_pairs: 0 };
/// KV pages of these gateways: the order oracle's prompts fit beside each other...
const PAGES: usize = 192;
/// ...and a flood takes all of them.
const FLOOD_TOKENS: usize = 3_072;
/// Nothing is in progress when the audit has ended.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// Audits both, the one with the defect first.
pub(crate) async fn run(model: Option<PathBuf>, seed: u64, json: bool) -> Result<()> {
    let model = tokio::task::spawn_blocking(move || model.map_or_else(default_model, Ok)).await??;
    let mut reports = Vec::new();
    for shared in [true, false] {
        note(if shared { "With one prefix cache for all tenants" } else { "With a prefix cache for each tenant" });
        let report = audit(&model, seed, shared).await?;
        if !json {
            say(format_args!("{report}\n"))?;
        }
        reports.push(report);
    }
    let [with_one, with_own] = &reports[..] else { bail!("two audits gave something else than two results") };
    if json {
        say(json!({"one_cache": with_one, "own_caches": with_own}))?;
    }
    match with_one.judgement.verdict {
        Verdict::ChannelFound => {}
        Verdict::Void => bail!("{NO_POWER}"),
        Verdict::Isolated | Verdict::Inconclusive => bail!("the audit did not find the cache that was shared"),
    }
    match with_own.judgement.verdict {
        Verdict::Isolated => note("The audit found the shared cache, and no channel where each tenant has its own"),
        Verdict::Inconclusive => note(
            "The audit found the shared cache, and no channel where each tenant has its own, \
             but the machine was too busy for a proof that there is none",
        ),
        Verdict::Void => bail!("{NO_POWER}"),
        Verdict::ChannelFound => bail!("the audit found a channel where each tenant has a cache of its own"),
    }
    Ok(())
}

const NO_POWER: &str = "not even within one tenant was a difference seen: the machine is too busy for this test";

async fn audit(model: &std::path::Path, seed: u64, shared: bool) -> Result<Report> {
    let data_dir = tempfile::Builder::new().prefix("bulkhead-selftest-").tempdir().context("no temporary folder")?;
    let secret = Gateway::key_secret(data_dir.path())?;
    let mut config = Config::new(data_dir.path(), model);
    config.listen = "127.0.0.1:0".parse()?;
    config.engine.pages = PAGES;
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
    let plan = SIZE.plan(vec![PREFIX_TOKENS], FLOOD_TOKENS, false);
    let report = sidechannel(Address::of(gateway.address()), Keys { victim, attacker }, plan, seed).await;
    gateway.drain(DRAIN_LIMIT).await;
    report
}
