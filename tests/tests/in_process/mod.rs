//! A gateway in the test's own process, so that its engine can be told to go wrong.

use anyhow::Result;
use e2e::{Client, model_path};
use engine_model::Model;
use engine_runtime::{Engine, EngineConfig, PublicPrefix, Setup, Split};
use gateway_auth::{ApiKey, TenantKey};
use gateway_server::{Agreement, Config, Gateway};
use policies_domain::{ModelName, TenantName};
use std::sync::Arc;
use tempfile::TempDir;

pub(crate) const MODEL: &str = "smol";

/// It and two tenants of it.
pub(crate) struct World {
    pub(crate) gateway: Gateway,
    pub(crate) engine: Engine,
    pub(crate) acme: Client,
    pub(crate) globex: Client,
    pub(crate) data_dir: TempDir,
}

/// With this agreement with acme, and with these texts declared everybody's.
pub(crate) async fn start(acme: Agreement, declared: &[PublicPrefix]) -> Result<World> {
    let data_dir = tempfile::tempdir()?;
    let secret = Gateway::key_secret(data_dir.path())?;
    let keys = [ApiKey::mint()?, ApiKey::mint()?];
    let mut config = Config::new(data_dir.path(), model_path()?);
    config.listen = "127.0.0.1:0".parse()?;
    config.served_name = Some(ModelName::parse(MODEL)?);
    // The planted faults mix up requests that are computed in one group.
    config.engine = EngineConfig { threads: 2, pages: 256, split: Split::Off, ..EngineConfig::default() };
    let tenants = ["acme", "globex"].into_iter().zip(&keys);
    config.tenants = tenants
        .map(|(name, key)| Ok(TenantKey { tenant: TenantName::parse(name)?, hash: secret.hash(key) }))
        .collect::<Result<_>>()?;
    config.agreements.insert(TenantName::parse("acme")?, acme);
    let model = Arc::new(Model::load(&config.model, 2)?);
    let setup = Setup { tenancy: config.tenancy()?, public_prefixes: declared, ..Setup::default() };
    let engine = Engine::start_with(model, config.engine, setup)?;
    let gateway = Gateway::start(config, engine.clone()).await?;
    let client = |key: &ApiKey| Client::new(gateway.address(), Some(key.reveal()));
    Ok(World { acme: client(&keys[0]), globex: client(&keys[1]), gateway, engine, data_dir })
}
