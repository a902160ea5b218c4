//! A gateway that tries its own detectors each second: what the log and its verifier say of it, and what becomes of its clients when
//! a detector is dead. That it is dead is planted.

use anyhow::{Context, Result, ensure};
use e2e::{Client, Response, binary, chat, model_path, run};
use engine_model::Model;
use engine_runtime::{Engine, EngineConfig, Setup, Split};
use gateway_auth::{ApiKey, TenantKey};
use gateway_server::{Config, Gateway};
use policies_domain::{ModelName, TenantName};
use serde_json::{Value, json};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const MODEL: &str = "smol";
/// Nothing that is waited for takes so long on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

struct World {
    gateway: Gateway,
    engine: Engine,
    acme: Client,
    ada: Client,
    data_dir: TempDir,
}

/// With a self-test in each second.
async fn start() -> Result<World> {
    let data_dir = tempfile::tempdir()?;
    let secret = Gateway::key_secret(data_dir.path())?;
    let [acme_key, ada_key] = [ApiKey::mint()?, ApiKey::mint()?];
    let key_of = |name: &str, key: &ApiKey| -> Result<TenantKey> {
        Ok(TenantKey { tenant: TenantName::parse(name)?, hash: secret.hash(key) })
    };
    let mut config = Config::new(data_dir.path(), model_path()?);
    config.listen = "127.0.0.1:0".parse()?;
    config.served_name = Some(ModelName::parse(MODEL)?);
    config.engine = EngineConfig { threads: 2, pages: 256, split: Split::Off, ..EngineConfig::default() };
    config.tenants = vec![key_of("acme", &acme_key)?];
    config.operators = vec![key_of("ada", &ada_key)?];
    config.self_test_period = Some(Duration::from_secs(1));
    let model = Arc::new(Model::load(&config.model, 2)?);
    let engine = Engine::start_with(model, config.engine, Setup { tenancy: config.tenancy()?, ..Setup::default() })?;
    let gateway = Gateway::start(config, engine.clone()).await?;
    let client = |key: &ApiKey| Client::new(gateway.address(), Some(key.reveal()));
    Ok(World { acme: client(&acme_key), ada: client(&ada_key), gateway, engine, data_dir })
}

impl World {
    fn ask(&self) -> Result<Response> {
        self.acme.post("/v1/chat/completions", &chat(MODEL, "Say hello.", 4, false))
    }

    fn self_test(&self) -> Result<Value> {
        self.acme.get("/v1/isolation/self-test")?.json()
    }

    /// Asks until the newest self-test is as it is waited for.
    fn wait(&self, what: &str, is_it: impl Fn(&Value) -> bool) -> Result<Value> {
        let begun = Instant::now();
        loop {
            let shown = self.self_test()?;
            if is_it(&shown) {
                return Ok(shown);
            }
            ensure!(begun.elapsed() < PATIENCE, "{what}: {shown}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Before and while it lasts, and when it is over.
fn a_dead_detector_stops_everybody(w: &World) -> Result<()> {
    let first = w.self_test()?;
    ensure!(first["answering"] == true && first["last"]["passed"] == true, "{first}");
    ensure!(w.ask()?.status == 200);
    let entry = first["last"]["entry"].as_u64().context("no entry")?;
    w.wait("there is no second one", |shown| shown["last"]["entry"].as_u64() > Some(entry))?;

    w.engine.blind_canaries(true);
    let dead = w.wait("it is not found", |shown| shown["answering"] == false && shown["last"]["passed"] == false)?;
    let failed: Vec<_> = dead["last"]["detectors"].as_array().context("no detectors")?.iter().collect();
    ensure!(failed[0] == &json!({"detector": "gate", "control_passed": true, "fault_found": false}), "{dead}");
    ensure!(failed[1..].iter().all(|other| other["control_passed"] == true && other["fault_found"] == true), "{dead}");
    let refused = w.ask()?;
    let text = refused.text()?;
    ensure!(refused.status == 503 && text.contains("self_test_failed"), "{} {text}", refused.status);
    ensure!(refused.header("retry-after") == Some("1"), "{:?}", refused.header("retry-after"));
    ensure!(w.acme.get("/readyz")?.status == 503);
    let incidents = w.ada.get("/v1/operator/incidents")?.json()?;
    let incident = incidents["data"][0].clone();
    ensure!(incident["class"] == "detector_failed" && incident["severity"] == "critical", "{incidents}");
    ensure!(
        incident["detectors_failed"] == json!(["gate"]) && incident["id"] == dead["last"]["incident"],
        "{incidents}"
    );
    ensure!(w.acme.get("/v1/isolation/incidents")?.json()?["data"] == json!([]), "it is no tenant's");

    w.engine.blind_canaries(false);
    w.wait("it is not over", |shown| shown["answering"] == true && shown["last"]["passed"] == true)?;
    ensure!(w.ask()?.status == 200, "nobody is answered afterwards");
    ensure!(w.acme.get("/readyz")?.status == 200);
    let incidents = w.ada.get("/v1/operator/incidents")?.json()?;
    ensure!(incidents["total"] == 1 && incidents["data"][0]["state"] == "contained", "{incidents}");
    let metrics = w.acme.get("/metrics")?.text()?;
    let counts = |outcome: &str| {
        let line = format!("bulkhead_self_tests_total{{outcome=\"{outcome}\"}} ");
        metrics.lines().find_map(|found| found.strip_prefix(&line)?.parse::<u64>().ok()).unwrap_or_default()
    };
    ensure!(counts("passed") >= 3 && counts("failed") >= 1, "{metrics}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_detector_is_an_incident_and_nobody_is_answered() -> Result<()> {
    let world = start().await?;
    let world = tokio::task::spawn_blocking(move || a_dead_detector_stops_everybody(&world).map(|()| world)).await??;
    let World { gateway, engine, data_dir, .. } = world;
    drop(engine);
    ensure!(gateway.drain(Duration::from_secs(30)).await, "the gateway did not drain");
    let mut command = Command::new(binary("bulkhead-verify")?);
    let checked = run(command.arg("log").arg(data_dir.path().join("log")).arg("--json"))?;
    let report: Value = serde_json::from_slice(&checked.stdout)?;
    let tests = &report["self_tests"];
    let count = |name: &str| tests[name].as_u64().unwrap_or_default();
    ensure!(
        report["entries"]["self_test"] == tests["tests"] && count("tests") >= 4 && count("failed") >= 1,
        "{report}"
    );
    ensure!(count("longest_gap_us") > 0 && count("last_us") > count("first_us"), "{report}");
    ensure!(report["incidents"] == json!({"contained": 1}), "{report}");
    let mut command = Command::new(binary("bulkhead-verify")?);
    let said = String::from_utf8(run(command.arg("log").arg(data_dir.path().join("log")))?.stdout)?;
    ensure!(said.lines().any(|line| line.starts_with("self-tests") && line.ends_with(" failed")), "{said}");
    Ok(())
}
