//! Planted leaks: the engine is told to read another tenant's page, and nothing of what it then says may leave.
//!
//! The same requests without the fault are answered; `cargo xtask mutations` switches each check off and expects
//! these tests to go red.

mod in_process;

use anyhow::{Context, Result, ensure};
use e2e::{Client, binary, chat, run};
use engine_runtime::{Fault, PublicPrefix};
use gateway_server::Agreement;
use in_process::{MODEL, World};
use policies_domain::TenantId;
use serde_json::{Value, json};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// Tenants are numbered in the order of the configuration.
fn acme() -> Result<TenantId> {
    TenantId::new(1).context("1 is a tenant's number")
}

async fn start() -> Result<World> {
    in_process::start(Agreement::default(), &[]).await
}

impl World {
    /// A stream of globex's that stays open: its pages are live, and its reader does not read on.
    fn victim(&self) -> Result<impl Iterator<Item = Result<e2e::Event>> + use<>> {
        let body = chat(MODEL, "Globex' secret is the number 8841. Write a very long story about it.", 1_500, true);
        let (_, mut events) = self.globex.stream("/v1/chat/completions", &body)?;
        events.next().context("the victim's stream is empty")??;
        Ok(events)
    }

    /// Ends the gateway and has the whole log checked by the offline verifier.
    async fn log_report(self) -> Result<Value> {
        drop(self.engine);
        ensure!(self.gateway.drain(Duration::from_secs(30)).await, "the gateway did not drain");
        let log = self.data_dir.path().join("log");
        let output = run(Command::new(binary("bulkhead-verify")?).arg("log").arg(&log).arg("--json"))?;
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

fn ask(stream: bool) -> Value {
    chat(MODEL, "Say hello.", 12, stream)
}

/// Runs blocking client code beside the gateway's tasks.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await?
}

/// One planted fault, a whole answer and a streamed one: nothing leaves, the incident is in the log, the victim goes on.
async fn nothing_leaves(fault: Fault) -> Result<()> {
    let world = Arc::new(start().await?);
    let w = world.clone();
    let victim = blocking(move || w.victim()).await?;
    world.engine.plant(vec![fault]);
    let w = world.clone();
    blocking(move || {
        for stream in [false, true] {
            let response = w.acme.post("/v1/chat/completions", &ask(stream))?;
            let text = response.text()?;
            ensure!(response.status == 500, "status {} with {text}", response.status);
            let error: Value = serde_json::from_str(&text)?;
            ensure!(error["error"]["code"] == "isolation_fault", "{text}");
            ensure!(!text.contains("choices") && !text.contains("data:"), "something left: {text}");
        }
        Ok(())
    })
    .await?;
    world.engine.plant(Vec::new());
    let w = world.clone();
    let stream_end = blocking(move || {
        // Without the fault the very same request is answered.
        let (text, _) = w.acme.ask(&ask(false))?;
        ensure!(!text.is_empty(), "no answer without the fault");
        // The victim's own stream ends as if nothing had happened.
        Ok(victim.collect::<Result<Vec<_>>>()?.pop().context("the victim's stream broke")?.data)
    })
    .await?;
    ensure!(stream_end == "[DONE]", "the victim's stream ended with {stream_end}");
    let report = Arc::into_inner(world).context("the world is still in use")?.log_report().await?;
    ensure!(report["entries"]["incident"] == 2, "two incidents were expected: {report}");
    ensure!(report["responses"]["isolation"] == 2, "two refused responses were expected: {report}");
    ensure!(report["unsealed"] == 0, "{report}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_page_stops_the_response_before_its_first_byte() -> Result<()> {
    nothing_leaves(Fault::ForeignCapability { reader: acme()? }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_corrupted_block_table_is_stopped_by_the_kernel() -> Result<()> {
    nothing_leaves(Fault::ForeignPageIndex { reader: acme()? }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_in_another_order_than_was_written_down_are_stopped_by_what_was_read() -> Result<()> {
    nothing_leaves(Fault::SwappedPages { reader: acme()? }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fault_in_the_middle_of_a_stream_cuts_it_there() -> Result<()> {
    let world = Arc::new(start().await?);
    let w = world.clone();
    let (victim, mut events) = blocking(move || {
        let victim = w.victim()?;
        let body = chat(MODEL, "Count from one to a hundred in words.", 400, true);
        let (_, mut events) = w.acme.stream("/v1/chat/completions", &body)?;
        events.next().context("no first event")??;
        Ok((victim, events))
    })
    .await?;
    world.engine.plant(vec![Fault::ForeignCapability { reader: acme()? }]);
    let rest = blocking(move || Ok(events.by_ref().filter_map(Result::ok).collect::<Vec<_>>())).await?;
    drop(victim);
    ensure!(rest.iter().all(|event| event.data != "[DONE]"), "a cut stream must not look complete");
    let last = rest.last().context("the stream ended without a word")?;
    let error: Value = serde_json::from_str(&last.data)?;
    ensure!(error["error"]["code"] == "isolation_fault", "the stream ended with {}", last.data);
    let report = Arc::into_inner(world).context("the world is still in use")?.log_report().await?;
    ensure!(report["entries"]["incident"] == 1, "{report}");
    ensure!(report["pages"]["foreign"] == 1, "the foreign read is counted in its response: {report}");
    Ok(())
}

/// Not an isolation fault, and no answer either: an error, a fault entry, and everybody else goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_that_is_no_number_ends_one_answer_and_is_on_record() -> Result<()> {
    let world = Arc::new(start().await?);
    let w = world.clone();
    let (victim, mut events) = blocking(move || {
        let victim = w.victim()?;
        let body = chat(MODEL, "Count from one to a hundred in words.", 400, true);
        let (_, mut events) = w.acme.stream("/v1/chat/completions", &body)?;
        events.next().context("no first event")??;
        Ok((victim, events))
    })
    .await?;
    world.engine.plant(vec![Fault::Logit { reader: acme()?, value: f32::NAN }]);
    let w = world.clone();
    let (rest, whole) = blocking(move || {
        let rest = events.by_ref().filter_map(Result::ok).collect::<Vec<_>>();
        Ok((rest, w.acme.post("/v1/chat/completions", &ask(false))?))
    })
    .await?;
    ensure!(rest.iter().all(|event| event.data != "[DONE]"), "a cut stream must not look complete");
    ensure!(rest.iter().all(|event| !event.data.contains("\"finish_reason\":\"")), "nor finished");
    let last: Value = serde_json::from_str(&rest.last().context("the stream ended without a word")?.data)?;
    ensure!(last["error"]["code"] == "output_not_a_number", "the stream ended with {last}");
    ensure!(whole.status == 500, "status {}", whole.status);
    ensure!(whole.text()?.contains("output_not_a_number"));
    world.engine.plant(Vec::new());
    let w = world.clone();
    blocking(move || {
        ensure!(!w.acme.ask(&ask(false))?.0.is_empty(), "no answer without the fault");
        let end = victim.collect::<Result<Vec<_>>>()?.pop().context("the other's stream broke")?.data;
        ensure!(end == "[DONE]", "the other's stream ended with {end}");
        Ok(())
    })
    .await?;
    let report = Arc::into_inner(world).context("the world is still in use")?.log_report().await?;
    ensure!(report["entries"]["fault"] == 2 && report["responses"]["error"] == 2, "{report}");
    ensure!(report["entries"]["incident"].as_u64().unwrap_or(0) == 0, "{report}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_traffic_without_a_fault_leaves_no_incident() -> Result<()> {
    let world = Arc::new(start().await?);
    let w = world.clone();
    blocking(move || {
        let victim = w.victim()?;
        let mut answers = Vec::new();
        for _ in 0..3 {
            answers.push(w.acme.ask(&ask(false))?.0);
        }
        ensure!(answers.iter().all(|answer| *answer == answers[0]), "greedy answers differ: company changes them");
        victim.collect::<Result<Vec<_>>>()?;
        let unknown = Client::new(w.gateway.address(), Some("bk_wrong")).post("/v1/chat/completions", &json!({}))?;
        ensure!(unknown.status == 401, "status {}", unknown.status);
        Ok(())
    })
    .await?;
    let report = Arc::into_inner(world).context("the world is still in use")?.log_report().await?;
    ensure!(report["entries"]["incident"].as_u64().unwrap_or(0) == 0, "{report}");
    ensure!(report["pages"]["foreign"] == 0 && report["pages"]["own"].as_u64() > Some(0), "{report}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_declared_is_public_in_every_receipt_and_everything_else_the_tenants_own() -> Result<()> {
    const PREAMBLE: &str = "You are the assistant of a library. Answer in one short sentence, and name the shelf.";
    let world = Arc::new(in_process::start(Agreement::default(), &[PublicPrefix::System(PREAMBLE.to_owned())]).await?);
    let w = world.clone();
    blocking(move || {
        let folder = tempfile::tempdir()?;
        let messages =
            json!([{"role": "system", "content": PREAMBLE}, {"role": "user", "content": "Where are whales?"}]);
        let body = json!({"model": MODEL, "messages": messages, "max_tokens": 4, "temperature": 0});
        for client in [&w.acme, &w.globex] {
            let response = client.post("/v1/chat/completions", &body)?;
            let answer = response.json()?;
            let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().context("no usage")?;
            ensure!(cached >= 16, "{answer}");
            let receipt = client.receipt(response.header("x-isolation-id").context("no isolation id")?)?;
            std::fs::write(folder.path().join("receipt"), receipt)?;
            std::fs::write(folder.path().join("log.vkey"), &client.get("/v1/isolation/key")?.body)?;
            let mut verify = Command::new(binary("bulkhead-verify")?);
            let arguments = ["receipt", "receipt", "--key", "log.vkey"];
            let shown = String::from_utf8(run(verify.args(arguments).current_dir(folder.path()))?.stdout)?;
            ensure!(shown.contains(&format!("{} public, 0 foreign", cached / 16)), "{shown}");
        }
        Ok(())
    })
    .await?;
    let report = Arc::into_inner(world).context("the world is still in use")?.log_report().await?;
    let pages = &report["pages"];
    ensure!(pages["foreign"] == 0 && pages["public"].as_u64() > Some(1) && pages["own"].as_u64() > Some(1), "{report}");
    ensure!(report["entries"]["incident"].as_u64().unwrap_or(0) == 0, "{report}");
    Ok(())
}
