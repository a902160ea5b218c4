//! `bulkhead demo`: a gateway with two tenants on this machine, proven with one request each, explained on the screen.

use super::http_client::{Address, Request, send};
use super::output::{note, say, say_piece};
use super::serve::{Signals, drain, start_engine};
use super::{default_model, fetch};
use anyhow::{Context, Result, bail};
use gateway_auth::{ApiKey, KeySecret, TenantKey};
use gateway_server::{Config, Gateway, WeightsCache};
use policies_domain::{ModelName, TenantName};
use serde_json::{Value, json};
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const TENANTS: [&str; 2] = ["acme", "globex"];
/// A receipt is there as soon as the entry's checkpoint is published: well within this.
const RECEIPT_TIMEOUT: Duration = Duration::from_secs(10);
const RECEIPT_POLL: Duration = Duration::from_millis(50);

/// How the demo is to run.
pub(crate) struct Options {
    pub(crate) json: bool,
    pub(crate) model: Option<PathBuf>,
    pub(crate) listen: SocketAddr,
    pub(crate) data_dir: Option<PathBuf>,
    pub(crate) weights_cache: WeightsCache,
}

struct Tenant {
    name: TenantName,
    key: ApiKey,
}

/// A tenant's first answer.
struct Proof {
    request: String,
    text: String,
    took: Duration,
}

/// Runs until a signal.
pub(crate) async fn run(options: Options) -> Result<()> {
    let mut signals = Signals::listen()?;
    check_free(options.listen)?;
    // Removed when the demo ends.
    let temporary = match &options.data_dir {
        Some(_) => None,
        None => Some(tempfile::Builder::new().prefix("bulkhead-demo-").tempdir().context("no temporary folder")?),
    };
    let data_dir = match (&options.data_dir, &temporary) {
        (Some(folder), _) => folder.clone(),
        (None, Some(folder)) => folder.path().to_owned(),
        (None, None) => bail!("there is no data folder"),
    };
    let work = async {
        let model = options.model.clone();
        let model = tokio::task::spawn_blocking(move || model.map_or_else(default_model, Ok)).await??;
        let tenants = tenants(&data_dir)?;
        note(format_args!("Loading {}", model.display()));
        let begun = Instant::now();
        let mut config = Config::new(&data_dir, model);
        config.listen = options.listen;
        config.weights_cache.clone_from(&options.weights_cache);
        config.tenants.clone_from(&tenants.1);
        let engine = start_engine(&config).await?;
        if fetch::is_default(engine.model().digest()) {
            config.served_name = Some(ModelName::parse(fetch::DEFAULT_NAME)?);
        }
        let gateway = Gateway::start(config, engine).await?;
        let address = reachable(gateway.address());
        let mut proofs = Vec::new();
        for tenant in &tenants.0 {
            let proof = prove(&Address::of(address), gateway.model().as_str(), tenant).await;
            proofs.push(proof.with_context(|| format!("the first request of tenant `{}` failed", tenant.name))?);
        }
        anyhow::Ok((gateway, address, tenants.0, proofs, begun.elapsed()))
    };
    let Some(started) = signals.unless(work).await else { return Ok(()) };
    let (gateway, address, tenants, proofs, took) = started?;
    let log_dir = Gateway::log_dir(&data_dir);
    if options.json {
        say(ready_line(address, &log_dir, gateway.model().as_str(), &tenants))?;
    } else {
        let kept = temporary.is_none();
        say_piece(guide(address, &log_dir, kept, gateway.model().as_str(), &tenants, &proofs, took))?;
    }
    if !address.ip().is_loopback() {
        note(format_args!(
            "warning: {} is not a loopback address: keys and prompts cross the network unencrypted",
            address.ip()
        ));
    }
    signals.next().await;
    drain(gateway, &mut signals).await
}

/// Fails before anything is fetched or loaded when the port is taken.
fn check_free(listen: SocketAddr) -> Result<()> {
    match TcpListener::bind(listen) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            let (ip, port) = (listen.ip(), listen.port());
            bail!("port {port} of {ip} is in use; `--listen {}` takes a free one", SocketAddr::new(ip, 0))
        }
        Err(error) => {
            Err(error).with_context(|| format!("cannot listen on {listen}; choose another address with `--listen`"))
        }
    }
}

/// Fresh keys, and their hashes for the configuration.
fn tenants(data_dir: &Path) -> Result<(Vec<Tenant>, Vec<TenantKey>)> {
    std::fs::create_dir_all(data_dir).with_context(|| format!("cannot make the folder {}", data_dir.display()))?;
    let secret = KeySecret::open_or_create(&data_dir.join(Gateway::KEY_SECRET_FILE))?;
    let (mut tenants, mut keys) = (Vec::new(), Vec::new());
    for name in TENANTS {
        let (name, key) = (TenantName::parse(name)?, ApiKey::mint()?);
        keys.push(TenantKey { tenant: name.clone(), hash: secret.hash(&key) });
        tenants.push(Tenant { name, key });
    }
    Ok((tenants, keys))
}

/// The address to type: "every address of this machine" is reached through loopback.
fn reachable(address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() { (Ipv4Addr::LOCALHOST, address.port()).into() } else { address }
}

/// One request through the front door, and its receipt.
async fn prove(address: &Address, model: &str, tenant: &Tenant) -> Result<Proof> {
    let begun = Instant::now();
    let body = json!({
        "model": model,
        "messages": [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}],
        "max_tokens": 16,
        "temperature": 0,
    });
    let key = Some(tenant.key.reveal());
    let request = Request { method: "POST", path: "/v1/chat/completions", key, body: Some(body.to_string()) };
    let response = send(address, request).await?;
    let status = response.status;
    let request = response.header("x-isolation-id").map(str::to_owned);
    let body: Value = serde_json::from_slice(&response.body().await?).context("the answer is not JSON")?;
    if status != 200 {
        bail!(
            "the gateway answered {status}: {}",
            body.pointer("/error/message").and_then(Value::as_str).unwrap_or("?")
        );
    }
    let text = body.pointer("/choices/0/message/content").and_then(Value::as_str).context("the answer has no text")?;
    let request = request.context("the answer has no X-Isolation-Id")?;
    let took = begun.elapsed();
    receipt(address, &request, tenant.key.reveal()).await?;
    Ok(Proof { request, text: text.trim().to_owned(), took })
}

/// Waits until the gateway hands out the receipt.
async fn receipt(address: &Address, request: &str, key: &str) -> Result<()> {
    let path = format!("/v1/isolation/receipts/{request}");
    let begun = Instant::now();
    loop {
        let response = send(address, Request { method: "GET", path: &path, key: Some(key), body: None }).await?;
        match response.status {
            200 => return Ok(()),
            202 if begun.elapsed() < RECEIPT_TIMEOUT => tokio::time::sleep(RECEIPT_POLL).await,
            status => bail!("its receipt is not there: the gateway answered {status}"),
        }
    }
}

fn ready_line(address: SocketAddr, log_dir: &Path, model: &str, tenants: &[Tenant]) -> String {
    let tenants: Vec<Value> =
        tenants.iter().map(|tenant| json!({"id": tenant.name.as_str(), "key": tenant.key.reveal()})).collect();
    json!({"address": format!("http://{address}"), "log_dir": log_dir, "model": model, "tenants": tenants}).to_string()
}

/// What a newcomer needs, ready to paste.
fn guide(
    address: SocketAddr,
    log_dir: &Path,
    kept: bool,
    model: &str,
    tenants: &[Tenant],
    proofs: &[Proof],
    took: Duration,
) -> String {
    let mut text =
        format!("\nBulkhead is ready at http://{address} with {model} after {:.1} s.\n\n", took.as_secs_f64());
    for (tenant, proof) in tenants.iter().zip(proofs) {
        let said: String = proof.text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let _ = writeln!(
            text,
            "  {:<7} asked and was told \"{said}\" in {} ms",
            tenant.name.as_str(),
            proof.took.as_millis()
        );
    }
    let _ = writeln!(text, "\nIn another terminal:\n\n  export BULKHEAD_URL=http://{address}");
    for tenant in tenants {
        let name = tenant.name.as_str().to_uppercase();
        let _ = writeln!(text, "  export BULKHEAD_KEY_{name}={}", tenant.key.reveal());
    }
    let request = proofs.first().map_or("ID", |proof| proof.request.as_str());
    let log_dir = log_dir.display();
    let _ = write!(
        text,
        r#"
An answer, whole and as a stream:

  curl -s "$BULKHEAD_URL/v1/chat/completions" \
    -H "Authorization: Bearer $BULKHEAD_KEY_ACME" -H "Content-Type: application/json" \
    -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "What is a lighthouse?"}}]}}'

  curl -sN "$BULKHEAD_URL/v1/chat/completions" \
    -H "Authorization: Bearer $BULKHEAD_KEY_GLOBEX" -H "Content-Type: application/json" \
    -d '{{"model": "{model}", "stream": true, "messages": [{{"role": "user", "content": "Count to five."}}]}}'

With the Python package `openai`:

  import os
  from openai import OpenAI
  client = OpenAI(base_url=os.environ["BULKHEAD_URL"] + "/v1", api_key=os.environ["BULKHEAD_KEY_ACME"])
  answer = client.chat.completions.create(model="{model}", messages=[{{"role": "user", "content": "Hello!"}}])
  print(answer.choices[0].message.content)

In the terminal:

  BULKHEAD_API_KEY=$BULKHEAD_KEY_ACME ./x chat --address $BULKHEAD_URL

The receipt of an answer (its X-Isolation-Id names it; this is acme's first), and the check of it, which needs no server:

  curl -s "$BULKHEAD_URL/v1/isolation/receipts/{request}" -H "Authorization: Bearer $BULKHEAD_KEY_ACME" -o receipt.txt
  curl -s "$BULKHEAD_URL/v1/isolation/key" -o log-key.txt
  ./x verify receipt receipt.txt --key log-key.txt

The whole audit log{kept}:

  ./x verify log {log_dir}

Ctrl-C stops the demo.
"#,
        kept = if kept { "" } else { " (in a temporary folder that goes with the demo; --data-dir keeps one)" },
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> Tenant {
        Tenant { name: TenantName::parse(name).unwrap(), key: ApiKey::mint().unwrap() }
    }

    #[test]
    fn a_taken_port_is_named_before_anything_is_loaded() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let error = check_free(address).unwrap_err().to_string();
        assert!(error.contains(&address.port().to_string()) && error.contains("--listen 127.0.0.1:0`"), "{error}");
        // Reserved for documentation: no machine has it.
        assert!(check_free("192.0.2.1:1".parse().unwrap()).unwrap_err().to_string().contains("192.0.2.1:1"));
        assert!(check_free("127.0.0.1:0".parse().unwrap()).is_ok());
    }

    #[test]
    fn the_ready_line_is_one_line_of_json() {
        let tenants = [tenant("acme"), tenant("globex")];
        let line = ready_line("127.0.0.1:9".parse().unwrap(), Path::new("d/log"), "m", &tenants);
        assert_eq!(line.lines().count(), 1);
        let value: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["address"], "http://127.0.0.1:9");
        assert_eq!((&value["log_dir"], &value["model"]), (&json!("d/log"), &json!("m")));
        assert_eq!(value["tenants"][1], json!({"id": "globex", "key": tenants[1].key.reveal()}));
    }

    #[test]
    fn the_guide_has_what_is_to_be_pasted_and_no_control_characters() {
        let tenants = [tenant("acme"), tenant("globex")];
        let proof = || Proof { request: "id-7".into(), text: "hi\u{1b}[2J".into(), took: Duration::from_millis(5) };
        let address = "127.0.0.1:9".parse().unwrap();
        let text = guide(address, Path::new("d/log"), true, "m", &tenants, &[proof(), proof()], Duration::ZERO);
        for part in
            ["http://127.0.0.1:9", tenants[0].key.reveal(), tenants[1].key.reveal(), "receipts/id-7", "d/log", "Ctrl-C"]
        {
            assert!(text.contains(part), "{part}");
        }
        assert!(!text.contains('\u{1b}') && !text.contains("{{"));
    }

    #[test]
    fn every_address_of_a_machine_is_reached_through_loopback() {
        assert_eq!(reachable("0.0.0.0:7".parse().unwrap()).to_string(), "127.0.0.1:7");
        assert_eq!(reachable("127.0.0.2:7".parse().unwrap()).to_string(), "127.0.0.2:7");
    }

    #[test]
    fn keys_are_fresh_at_every_start_and_only_their_hashes_are_configured() {
        let folder = tempfile::tempdir().unwrap();
        let (first, hashes) = tenants(folder.path()).unwrap();
        let (second, _) = tenants(folder.path()).unwrap();
        assert_ne!(first[0].key.reveal(), second[0].key.reveal());
        assert_ne!(first[0].key.reveal(), first[1].key.reveal());
        assert!(hashes.iter().zip(&first).all(|(hash, tenant)| hash.tenant == tenant.name));
    }
}
