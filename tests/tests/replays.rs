//! Answers computed again: the same ones are, an influence that carries the right labels is found, and by nothing else.

mod in_process;

use anyhow::{Context, Result, ensure};
use e2e::{binary, chat, model_path, run};
use engine_runtime::Fault;
use gateway_server::{Agreement, ReplayTerms};
use in_process::{MODEL, World};
use policies_domain::TenantId;
use serde_json::{Value, json};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// An answer is computed again within this time on any machine.
const LOOKS_MAX: usize = 1_200;

/// Of acme's answers, which are computed again.
async fn start(replay: ReplayTerms) -> Result<Arc<World>> {
    Ok(Arc::new(in_process::start(Agreement { replay, ..Agreement::default() }, &[]).await?))
}

impl World {
    /// Waits until so many of acme's answers have this outcome.
    fn outcomes(&self, outcome: &str, count: usize) -> Result<()> {
        let line = format!("gateway_replays_total{{outcome=\"{outcome}\",tenant=\"acme\"}} {count}");
        for _ in 0..LOOKS_MAX {
            let metrics = self.acme.get("/metrics")?.text()?;
            if metrics.lines().any(|found| found == line) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        anyhow::bail!("never `{line}`")
    }

    /// Ends the gateway and has the whole log checked by the offline verifier.
    async fn log_report(self: Arc<Self>) -> Result<Value> {
        let world = Arc::into_inner(self).context("the world is still in use")?;
        drop(world.engine);
        ensure!(world.gateway.drain(Duration::from_secs(30)).await, "the gateway did not drain");
        let log = world.data_dir.path().join("log");
        let output = run(Command::new(binary("bulkhead-verify")?).arg("log").arg(&log).arg("--json"))?;
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

fn all() -> ReplayTerms {
    ReplayTerms { per_million: ReplayTerms::ALL, before_release: false }
}

/// Runs blocking client code beside the gateway's tasks.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await?
}

/// A stream of globex's that is read all the time, so that it is in every pass.
struct Company {
    leaves: Arc<AtomicBool>,
    reader: std::thread::JoinHandle<Result<()>>,
}

impl Company {
    fn of(world: &World) -> Result<Self> {
        let body = chat(MODEL, "Globex' secret is the number 8841. Write a very long story about it.", 1_500, true);
        let (_, mut events) = world.globex.stream("/v1/chat/completions", &body)?;
        events.next().context("the stream is empty")??;
        let leaves = Arc::new(AtomicBool::new(false));
        let seen = leaves.clone();
        let reader = std::thread::spawn(move || {
            for event in events {
                event?;
                if seen.load(Ordering::SeqCst) {
                    break;
                }
            }
            Ok(())
        });
        Ok(Self { leaves, reader })
    }

    fn leave(self) -> Result<()> {
        self.leaves.store(true, Ordering::SeqCst);
        self.reader.join().map_err(|_| anyhow::anyhow!("the reader ended"))?
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_computed_again_and_by_a_stranger_too() -> Result<()> {
    let world = start(all()).await?;
    let w = world.clone();
    blocking(move || {
        let mut warm = chat(MODEL, "Count from one to ten, twice.", 24, true);
        for (name, value) in [("temperature", json!(0.9)), ("presence_penalty", json!(0.4)), ("top_k", json!(40))] {
            warm[name] = value;
        }
        let mut stopped = chat(MODEL, "Say hello, then stop.", 24, false);
        stopped["stop"] = json!(["o"]);
        let requests = [chat(MODEL, "Name three colours.", 16, false), warm, stopped];
        for (number, request) in (1..).zip(&requests) {
            let folder = tempfile::tempdir()?;
            let body = request.to_string();
            let response = w.acme.post_bytes("/v1/chat/completions", body.as_bytes())?;
            let id = response.header("x-isolation-id").context("no isolation id")?.to_string();
            w.outcomes("same", number)?;
            let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes);
            write("receipt", w.acme.receipt(&id)?.as_bytes())?;
            write("log.vkey", &w.acme.get("/v1/isolation/key")?.body)?;
            write("request", body.as_bytes())?;
            write("response", &response.body)?;
            let replay = |arguments: &[&str]| {
                let files = ["--receipt", "receipt", "--request", "request", "--response", "response", "--json"];
                let mut command = Command::new(binary("bulkhead")?);
                command.args(["audit", "replay"]).args(files).arg("--model").arg(model_path()?).args(arguments);
                Ok::<_, anyhow::Error>(command.current_dir(folder.path()).output()?)
            };
            let output = replay(&[])?;
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            ensure!(output.status.code() == Some(0), "{errors}");
            let result: Value = serde_json::from_slice(&output.stdout)?;
            ensure!(result["result"] == "same" && result["request"] == id.as_str(), "{result}");
            if number == 1 {
                // Other bits of keys and values: another fingerprint, and nothing is compared.
                let other = replay(&["--kv", "f32"])?;
                ensure!(other.status.code() == Some(4), "{}", String::from_utf8_lossy(&other.stderr));
                write("request", body.replace("three", "seven").as_bytes())?;
                let other = replay(&[])?;
                let errors = String::from_utf8_lossy(&other.stderr).into_owned();
                ensure!(other.status.code() == Some(1) && errors.contains("refused"), "{errors}");
            }
        }
        Ok(())
    })
    .await?;
    let report = world.log_report().await?;
    ensure!(report["replays"] == json!({"same": 3}) && report["entries"]["replay"] == 3, "{report}");
    ensure!(report["incidents"] == json!({}), "{report}");
    Ok(())
}

/// What acme gets while a little of globex's logits is added to its own.
async fn influenced(world: &Arc<World>) -> Result<(u16, String)> {
    let (w, reader) = (world.clone(), TenantId::new(1).context("a number")?);
    blocking(move || {
        let company = Company::of(&w)?;
        w.engine.plant(vec![Fault::ForeignBias { reader }]);
        let response = w.acme.post("/v1/chat/completions", &chat(MODEL, "Say hello.", 16, false))?;
        w.engine.plant(Vec::new());
        company.leave()?;
        let status = response.status;
        Ok((status, response.text()?))
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_request_added_is_found_after_the_release_and_without_replays_by_nothing() -> Result<()> {
    let world = start(all()).await?;
    let (status, text) = influenced(&world).await?;
    ensure!(status == 200 && text.contains("choices"), "it has left: {text}");
    let w = world.clone();
    blocking(move || w.outcomes("different", 1)).await?;
    let report = world.log_report().await?;
    ensure!(report["replays"] == json!({"different": 1}), "{report}");
    ensure!(report["entries"]["incident"] == 1 && report["incidents"] == json!({"detected": 1}), "{report}");
    ensure!(report["responses"]["isolation"].is_null(), "{report}");

    let world = start(ReplayTerms::default()).await?;
    let (status, text) = influenced(&world).await?;
    ensure!(status == 200 && text.contains("choices"), "it has left: {text}");
    let report = world.log_report().await?;
    ensure!(report["entries"]["incident"].is_null() && report["entries"]["replay"].is_null(), "{report}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_request_added_does_not_leave_where_the_replay_comes_first() -> Result<()> {
    let world = start(ReplayTerms { before_release: true, ..all() }).await?;
    let (status, text) = influenced(&world).await?;
    ensure!(status == 500 && text.contains("isolation_fault") && !text.contains("choices"), "{status} {text}");
    let w = world.clone();
    blocking(move || {
        w.outcomes("different", 1)?;
        // Without the influence the very same request is answered, whole and as a stream, with the same text.
        let (whole, _) = w.acme.ask(&chat(MODEL, "Say hello.", 16, false))?;
        let (_, events) = w.acme.stream("/v1/chat/completions", &chat(MODEL, "Say hello.", 16, true))?;
        let mut streamed = String::new();
        for event in events {
            let event = event?;
            let Ok(chunk) = serde_json::from_str::<Value>(&event.data) else { continue };
            streamed += chunk["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
        }
        ensure!(whole == streamed && !whole.is_empty(), "{whole} / {streamed}");
        w.outcomes("same", 2)
    })
    .await?;
    let report = world.log_report().await?;
    ensure!(report["replays"] == json!({"different": 1, "same": 2}), "{report}");
    ensure!(report["responses"]["isolation"] == 1 && report["entries"]["incident"] == 1, "{report}");
    Ok(())
}
