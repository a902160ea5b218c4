//! An incident from its detection to its end: what the program does by itself, what persons decide and what takes two of
//! them, what each side is told, and what was touched. The leak is planted; the log is checked offline.

use anyhow::{Context, Result, ensure};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use e2e::{Client, Response, binary, chat, model_path, run};
use engine_model::Model;
use engine_runtime::{Engine, EngineConfig, Fault, Split};
use gateway_auth::{ApiKey, KeySecret, TenantKey};
use gateway_server::{Config, Gateway, WebhookPlace};
use hmac::{Hmac, Mac as _};
use policies_domain::{ModelName, TenantId, TenantName};
use serde_json::{Value, json};
use sha2::Sha256;
use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use url::Url;

const MODEL: &str = "smol";

/// Two tenants, and two persons who look after incidents.
struct World {
    gateway: Gateway,
    engine: Engine,
    acme: Client,
    globex: Client,
    ada: Client,
    ben: Client,
    ada_key: String,
    data_dir: TempDir,
}

fn key_of(name: &str, key: &ApiKey, secret: &KeySecret) -> Result<TenantKey> {
    Ok(TenantKey { tenant: TenantName::parse(name)?, hash: secret.hash(key) })
}

/// With these receivers of events.
async fn start(webhooks: Vec<WebhookPlace>) -> Result<World> {
    start_in(tempfile::tempdir()?, webhooks).await
}

async fn start_in(data_dir: TempDir, webhooks: Vec<WebhookPlace>) -> Result<World> {
    let secret = Gateway::key_secret(data_dir.path())?;
    let keys = [ApiKey::mint()?, ApiKey::mint()?, ApiKey::mint()?, ApiKey::mint()?];
    let mut config = Config::new(data_dir.path(), model_path()?);
    config.listen = "127.0.0.1:0".parse()?;
    config.served_name = Some(ModelName::parse(MODEL)?);
    config.engine = EngineConfig { threads: 2, pages: 256, split: Split::Off, ..EngineConfig::default() };
    config.tenants = vec![key_of("acme", &keys[0], &secret)?, key_of("globex", &keys[1], &secret)?];
    config.operators = vec![key_of("ada", &keys[2], &secret)?, key_of("ben", &keys[3], &secret)?];
    config.webhooks = webhooks;
    let model = Arc::new(Model::load(&config.model, 2)?);
    let engine = Engine::start(model, config.engine)?;
    let gateway = Gateway::start(config, engine.clone()).await?;
    let client = |key: &ApiKey| Client::new(gateway.address(), Some(key.reveal()));
    let [acme, globex, ada, ben] = [0, 1, 2, 3].map(|place: usize| client(&keys[place]));
    Ok(World { acme, globex, ada, ben, ada_key: keys[2].reveal().to_owned(), gateway, engine, data_dir })
}

/// Runs blocking client code beside the gateway's tasks.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await?
}

/// Lets acme's request read a page of globex', whose stream stays open meanwhile.
async fn leak(world: &Arc<World>) -> Result<()> {
    let w = world.clone();
    let victim = blocking(move || {
        let body = chat(MODEL, "Globex' secret is the number 8841. Write a very long story about it.", 1_500, true);
        let (_, mut events) = w.globex.stream("/v1/chat/completions", &body)?;
        events.next().context("the victim's stream is empty")??;
        Ok(events)
    })
    .await?;
    let reader = TenantId::new(1).context("1 is a tenant's number")?;
    world.engine.plant(vec![Fault::ForeignCapability { reader }]);
    let w = world.clone();
    blocking(move || {
        let response = w.acme.post("/v1/chat/completions", &chat(MODEL, "Say hello.", 12, false))?;
        ensure!(response.status == 500, "{}", response.text()?);
        Ok(())
    })
    .await?;
    world.engine.plant(Vec::new());
    drop(victim);
    Ok(())
}

fn data(response: &Response) -> Result<Vec<Value>> {
    ensure!(response.status == 200, "{}: {}", response.status, response.text()?);
    Ok(response.json()?["data"].as_array().context("no list")?.clone())
}

fn expect(response: &Response, status: u16, word: &str) -> Result<()> {
    let text = response.text()?;
    ensure!(response.status == status && text.contains(word), "{} instead of {status} {word}: {text}", response.status);
    Ok(())
}

/// A tenant sees its side, and neither key opens the other's doors.
fn each_side_sees_its_own(w: &World) -> Result<String> {
    let (recipient, victim) =
        (data(&w.acme.get("/v1/isolation/incidents")?)?, data(&w.globex.get("/v1/isolation/incidents")?)?);
    ensure!((recipient.len(), victim.len()) == (1, 1), "{recipient:?} {victim:?}");
    ensure!((&recipient[0]["side"], &victim[0]["side"]) == (&json!("recipient"), &json!("victim")), "{recipient:?}");
    let all = data(&w.ada.get("/v1/operator/incidents")?)?;
    let full = all.first().context("no incident")?;
    let (request, page) = (full["request"].as_str().context("no request")?, full["page"].as_u64().context("no page")?);
    ensure!(recipient[0]["request"] == request && victim[0]["page"] == page, "{recipient:?} {victim:?} {full}");
    for (side, other) in
        [(&victim[0], ["request", "recipient", "opened_entry"]), (&recipient[0], ["page", "generation", "victim"])]
    {
        ensure!(other.iter().all(|field| side.get(field).is_none()), "too much is said: {side}");
    }
    ensure!(!victim[0].to_string().contains(full["recipient"].as_str().context("no recipient")?), "{victim:?}");
    ensure!(!recipient[0].to_string().contains(full["victim"].as_str().context("no victim")?), "{recipient:?}");
    expect(&w.acme.get("/v1/operator/incidents")?, 401, "invalid_api_key")?;
    expect(&w.ada.get("/v1/isolation/incidents")?, 401, "invalid_api_key")?;
    expect(&w.ada.post("/v1/chat/completions", &chat(MODEL, "Say hello.", 2, false))?, 401, "invalid_api_key")?;
    ensure!(full["state"] == "contained" && full["moves"][0]["action"] == "request_ended", "{full}");
    ensure!(full["moves"][0]["actor"].is_null(), "the program did it by itself: {full}");
    Ok(full["id"].as_str().context("no id")?.to_owned())
}

/// The recipient's own entries show that there are incidents among them, and nothing of the other side or of persons.
fn own_entries_name_nobody_else(w: &World) -> Result<()> {
    let full = data(&w.ada.get("/v1/operator/incidents")?)?.swap_remove(0);
    let hex = |field: &str| -> Result<Vec<u8>> { Ok(hex::decode(full[field].as_str().context("no reference")?)?) };
    let (victim, recipient) = (hex("victim")?, hex("recipient")?);
    let (mut mine, mut tries) = (w.acme.get("/v1/isolation/mine")?, 0);
    // Until the last move is published.
    while mine.status == 202 || !mine.json()?["next"].is_null() {
        tries += 1;
        ensure!(tries < 200, "not published within ten seconds");
        std::thread::sleep(Duration::from_millis(50));
        mine = w.acme.get("/v1/isolation/mine")?;
    }
    let page = mine.json()?;
    let entries = page["entries"].as_array().context("no entries")?;
    let holds = |entry: &Value, needle: &[u8]| {
        let bytes = entry["entry"].as_str().and_then(|text| BASE64_STANDARD.decode(text).ok()).unwrap_or_default();
        bytes.windows(needle.len()).any(|window| window == needle)
    };
    ensure!(!entries.iter().any(|entry| holds(entry, &victim)), "the victim is named");
    ensure!(entries.iter().any(|entry| holds(entry, &recipient)), "they are the recipient's");
    // The incident itself and what persons did; the program's own move is shown.
    let withheld = entries.iter().filter(|entry| entry["leaf"].is_string()).count();
    ensure!(withheld == full["moves"].as_array().context("no moves")?.len(), "{withheld} are withheld: {full}");
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("mine.json"), &mine.body)?;
    std::fs::write(folder.path().join("log.vkey"), &w.acme.get("/v1/isolation/key")?.body)?;
    let mut command = Command::new(binary("bulkhead-verify")?);
    let said = run(command.args(["mine", "mine.json", "--json"]).current_dir(folder.path()))?;
    let said: Value = serde_json::from_slice(&said.stdout)?;
    ensure!(said["withheld"] == withheld && said["responses"]["isolation"] == 1, "{said}");
    Ok(())
}

/// What persons decide; what takes two is not done by one.
fn persons_decide(w: &World, id: &str) -> Result<()> {
    let path = format!("/v1/operator/incidents/{id}");
    let say = |who: &Client, state: &str, evidence: Option<&str>| {
        who.post(&path, &json!({"state": state, "evidence": evidence.map(|digit| digit.repeat(64))}))
    };
    expect(&say(&w.ada, "reopened", None)?, 409, "incident_move_forbidden")?;
    expect(&say(&w.acme, "triaged", None)?, 401, "invalid_api_key")?;
    expect(&say(&w.ada, "triaged", None)?, 201, "triaged")?;
    expect(&say(&w.ben, "notified", None)?, 201, "notified")?;
    expect(&say(&w.ada, "resolved", None)?, 400, "evidence")?;
    expect(&say(&w.ada, "resolved", Some("a"))?, 202, "second person")?;
    expect(&say(&w.ada, "resolved", Some("a"))?, 409, "second_person_needed")?;
    expect(&w.ada.get(&path)?, 200, "\"state\":\"notified\"")?;
    expect(&say(&w.ben, "resolved", Some("b"))?, 202, "second person")?;
    expect(&say(&w.ada, "resolved", Some("b"))?, 201, "resolved")?;
    for state in ["triaged", "notified"] {
        expect(&say(&w.ben, state, None)?, 409, "incident_move_forbidden")?;
    }
    expect(&say(&w.ben, "reopened", None)?, 201, "reopened")?;
    expect(&say(&w.ben, "false_positive", Some("c"))?, 202, "second person")?;
    expect(&say(&w.ada, "false_positive", Some("c"))?, 201, "false_positive")?;
    let unknown = format!("/v1/operator/incidents/{}", "0".repeat(32));
    expect(&w.ada.post(&unknown, &json!({"state": "triaged"}))?, 404, "incident_not_found")?;
    let full = w.ada.get(&path)?.json()?;
    let closing = full["moves"].as_array().and_then(|moves| moves.get(3)).context("no closing")?;
    ensure!((&closing["actor"], &closing["second"]) == (&json!("ben"), &json!("ada")), "{full}");
    ensure!(closing["evidence"] == "b".repeat(64), "{full}");
    Ok(())
}

/// The program's own words for it, and what was touched, while the gateway runs.
fn the_program_says_so(address: SocketAddr, key: &str, log: &PathBuf, id: &str) -> Result<()> {
    let ask = |arguments: &[&str]| {
        let address = format!("http://{address}");
        let mut command = Command::new(binary("bulkhead")?);
        command.args(["audit", "incidents", "--address", &address]).args(arguments).env("BULKHEAD_OPERATOR_KEY", key);
        Ok::<_, anyhow::Error>(String::from_utf8(run(&mut command)?.stdout)?)
    };
    let list = ask(&[])?;
    ensure!(list.contains(id) && list.contains("false_positive") && list.contains("foreign_page"), "{list}");
    let shown = ask(&["show", id])?;
    ensure!(shown.contains("resolved by ben and ada") && shown.contains("contained by the program"), "{shown}");
    let findings = ask(&["--ocsf"])?;
    let classes: Vec<u64> =
        findings.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()?["class_uid"].as_u64()).collect();
    ensure!(classes == [2_004, 2_005], "{findings}");
    let incident: Value = serde_json::from_str(&ask(&["show", id, "--json"])?)?;
    let life = [&incident["page"], &incident["generation"]].map(ToString::to_string);
    let mut command = Command::new(binary("bulkhead")?);
    command.args(["audit", "blast-radius", "--json", "--page", &life[0], "--generation", &life[1], "--log"]).arg(log);
    let answer: Value = serde_json::from_slice(&run(&mut command)?.stdout)?;
    let rows = answer["rows"].as_array().context("no rows")?;
    let stopped = rows.iter().find(|row| row["request"] == incident["request"]).context("the recipient is missing")?;
    ensure!(stopped["tenant_name"] == "acme" && stopped["pages"][0]["class"] == "other", "{stopped}");
    ensure!(stopped["bytes_released"] == 0, "{stopped}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_incident_has_a_life_that_two_persons_end() -> Result<()> {
    let world = Arc::new(start(Vec::new()).await?);
    leak(&world).await?;
    let w = world.clone();
    blocking(move || {
        let id = each_side_sees_its_own(&w)?;
        persons_decide(&w, &id)?;
        own_entries_name_nobody_else(&w)?;
        let log = w.data_dir.path().join("log");
        the_program_says_so(w.gateway.address(), &w.ada_key, &log, &id)
    })
    .await?;
    let data_dir = end(world).await?;
    run(Command::new(binary("bulkhead-verify")?).arg("log").arg(data_dir.path().join("log")).arg("--json"))?;
    Ok(())
}

async fn end(world: Arc<World>) -> Result<TempDir> {
    let World { gateway, engine, data_dir, .. } = Arc::into_inner(world).context("the world is still in use")?;
    drop(engine);
    ensure!(gateway.drain(Duration::from_secs(30)).await, "the gateway did not drain");
    Ok(data_dir)
}

/// The secret of the specification's examples.
const SECRET: &str = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// How long an event may take, with the pauses between the attempts.
const ARRIVES: Duration = Duration::from_secs(30);

/// One delivery as it came.
struct Delivery {
    id: String,
    event: Value,
}

/// Takes one delivery, checks its signature, and answers.
fn take(listener: &TcpListener, answer: u16) -> Result<Delivery> {
    let (stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(ARRIVES))?;
    let mut reader = BufReader::new(stream);
    let mut headers = HashMap::new();
    for line in reader.by_ref().lines() {
        let line = line?;
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(": ") {
            headers.insert(name.to_ascii_lowercase(), value.to_owned());
        }
    }
    let header = |name: &str| headers.get(name).cloned().with_context(|| format!("no {name}"));
    let mut body = vec![0; header("content-length")?.parse()?];
    reader.read_exact(&mut body)?;
    write!(reader.get_mut(), "HTTP/1.1 {answer} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")?;
    let (id, time) = (header("webhook-id")?, header("webhook-timestamp")?);
    let mut mac = Hmac::<Sha256>::new_from_slice(&BASE64_STANDARD.decode(SECRET)?)?;
    mac.update(format!("{id}.{time}.").as_bytes());
    mac.update(&body);
    let wanted = format!("v1,{}", BASE64_STANDARD.encode(mac.finalize().into_bytes()));
    ensure!(header("webhook-signature")? == wanted, "another signature");
    ensure!(header("content-type")?.starts_with("application/cloudevents+json"), "{headers:?}");
    Ok(Delivery { id, event: serde_json::from_slice(&body)? })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_away_is_told_everything_in_order() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let folder = tempfile::tempdir()?;
    let secret_file = folder.path().join("secret");
    std::fs::write(&secret_file, format!("whsec_{SECRET}\n"))?;
    let url = Url::parse(&format!("http://{address}/hook?token=unseen"))?;
    let webhooks = vec![WebhookPlace { url, secret_file }];
    let world = Arc::new(start(webhooks.clone()).await?);
    leak(&world).await?;
    // It is ill at first, the same event comes again; then it is away, and the gateway too.
    let (first, again) = blocking(move || Ok((take(&listener, 503)?, take(&listener, 200)?))).await?;
    ensure!(first.id == again.id && first.event == again.event, "{} {}", first.event, again.event);
    ensure!(again.event["type"] == "bulkhead.incident.detected" && again.event["data"]["class"] == "foreign_page");
    let data_dir = end(world).await?;
    let listener = Arc::new(TcpListener::bind(address)?);
    let world = Arc::new(start_in(data_dir, webhooks).await?);
    let l = listener.clone();
    let second = blocking(move || take(&l, 200)).await?;
    ensure!(second.event["type"] == "bulkhead.incident.contained", "{}", second.event);
    ensure!(second.event["subject"] == first.event["subject"] && second.id != first.id, "{}", second.event);
    let (w, id) = (world.clone(), first.event["subject"].as_str().context("no subject")?.to_owned());
    let third = blocking(move || {
        expect(&w.ada.post(&format!("/v1/operator/incidents/{id}"), &json!({"state": "triaged"}))?, 201, "triaged")?;
        take(&listener, 200)
    })
    .await?;
    ensure!(third.event["type"] == "bulkhead.incident.triaged", "{}", third.event);
    let person = third.event["data"]["moves"][1]["actor"].as_str().context("nobody did it")?.to_owned();
    ensure!(person.len() == 32 && person != "ada", "a person's name went out: {}", third.event);
    for event in [first.event, second.event, third.event] {
        let text = event.to_string();
        ensure!(!text.contains("acme") && !text.contains("globex") && !text.contains("8841"), "{text}");
    }
    end(world).await?;
    Ok(())
}
