//! Start, models, metrics, receipts, and the end.

use crate::world::{Client, PATIENCE, start};
use gateway_server::{Config, Gateway, MetricsReaders, StartError};
use serde_json::json;
use std::time::Duration;

const CHAT: &str = "/v1/chat/completions";

fn chat(stream: bool, max_tokens: u32) -> String {
    json!({"model": "smol", "messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": max_tokens,
        "stream": stream, "temperature": 0})
    .to_string()
}

#[tokio::test]
async fn the_detectors_are_tried_before_anybody_is_answered() {
    let world = start(|_| ()).await;
    let shown = world.get("/v1/isolation/self-test").await.json();
    assert_eq!(
        (&shown["answering"], &shown["period_seconds"], &shown["last"]["passed"]),
        (&json!(true), &json!(3_600), &json!(true))
    );
    let tried = shown["last"]["detectors"].as_array().unwrap();
    let names: Vec<_> = tried.iter().map(|tried| tried["detector"].as_str().unwrap()).collect();
    assert_eq!(names, ["gate", "kernel tags", "ledger", "handoff seal", "text seal", "inclusion proof"]);
    for tried in tried {
        assert_eq!((&tried["control_passed"], &tried["fault_found"]), (&json!(true), &json!(true)), "{tried}");
    }
    let metrics = world.get("/metrics").await.body;
    for line in ["bulkhead_self_tests_total{outcome=\"passed\"} 1", "bulkhead_self_tests_total{outcome=\"failed\"} 0"] {
        assert!(metrics.lines().any(|found| found == line), "{line}: {metrics}");
    }
    // It is no secret among tenants, and nothing for others.
    let mut stranger = Client::connect(world.address()).await;
    stranger.send("GET /v1/isolation/self-test HTTP/1.1\r\nhost: test\r\n\r\n".to_owned()).await;
    assert_eq!(stranger.response().await.status, 401);
}

#[tokio::test]
async fn the_model_is_listed_and_the_gateway_is_ready() {
    let world = start(|_| ()).await;
    let list = world.get("/v1/models").await.json();
    assert_eq!((list["object"].as_str(), list["data"][0]["id"].as_str()), (Some("list"), Some("smol")));
    assert_eq!(world.get("/v1/models/smol").await.json()["object"], "model");
    assert_eq!(world.get("/v1/models?limit=1").await.status, 200);
    let wanted = json!({
        "draining": false, "engine": true, "workers": true, "audit_log": true, "witnesses": true, "detectors": true,
    });
    assert_eq!(world.get("/readyz").await.json(), wanted);
    world.gateway.announce_drain();
    assert_eq!(world.get("/readyz").await.status, 503);
    assert_eq!(world.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn metrics_count_and_name_configured_tenants_only() {
    let world = start(|_| ()).await;
    assert_eq!(world.ask(CHAT, &chat(false, 3)).await.status, 200);
    assert_eq!(world.ask(CHAT, "{").await.status, 400);
    assert_eq!(world.get("/junk/with/many/names").await.status, 404);
    let text = world.get("/metrics").await.body;
    for line in [
        r#"gateway_requests_total{route="chat_completions",status="2xx"} 1"#,
        r#"gateway_requests_total{route="chat_completions",status="4xx"} 1"#,
        r#"gateway_requests_total{route="unknown",status="4xx"} 1"#,
        r#"gateway_completion_tokens_total{tenant="acme"} 3"#,
        r#"gateway_completion_tokens_total{tenant="globex"} 0"#,
        r#"gateway_prompt_tokens_cached_total{tenant="globex"} 0"#,
        r#"gateway_queue_refusals_total{queue="queue_full",tenant="acme"} 0"#,
        r#"gateway_queue_refusals_total{queue="tenant_queue_full",tenant="globex"} 0"#,
        r#"gateway_queue_refusals_total{queue="waited_too_long",tenant="acme"} 0"#,
        r#"gateway_ttft_seconds_count{tenant="acme"} 1"#,
        r#"gateway_itl_seconds_count{tenant="acme"} 2"#,
        "gateway_incidents_total 0",
        "engine_sequences_running 0",
        "kv_pages_total 512",
        "kv_pages_quarantined 0",
        "audit_failed 0",
    ] {
        assert!(text.lines().any(|found| found == line), "no `{line}` in\n{text}");
    }
    assert!(text.contains("audit_tree_size ") && !text.contains("junk"));
}

#[tokio::test]
async fn metrics_can_be_closed() {
    let world = start(|config| config.metrics = MetricsReaders::Nobody).await;
    assert_eq!(world.get("/metrics").await.error(), (404, "unknown_path".to_owned(), None));
}

#[tokio::test]
async fn a_receipt_belongs_to_its_tenant() {
    let world = start(|_| ()).await;
    let id = world.ask(CHAT, &chat(false, 2)).await.header("x-isolation-id").unwrap().to_owned();
    let path = format!("/v1/isolation/receipts/{id}");
    let fetch = async || loop {
        let response = world.get(&path).await;
        if response.status != 202 {
            break response;
        }
        assert!(response.header("retry-after").is_some());
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let receipt = tokio::time::timeout(PATIENCE, fetch()).await.unwrap();
    assert_eq!(receipt.status, 200, "{}", receipt.body);
    assert!(receipt.body.starts_with("c2sp.org/tlog-proof@v1"), "{}", receipt.body);
    let mut other = Client::connect(world.address()).await;
    other.send(format!("GET {path} HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {}\r\n\r\n", world.globex)).await;
    assert_eq!(other.response().await.error(), (404, "receipt_not_found".to_owned(), None));
    let key = world.get("/v1/isolation/key").await.body;
    assert!(key.starts_with("localhost/isolation+"), "{key}");
}

#[tokio::test]
async fn rules_decide_who_may_use_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules.toml");
    let text = "[[rule]]\nname = \"acme-short\"\neffect = \"permit\"\ntenants = [\"acme\"]\nmodels = [\"smol\"]\n\
                completion_tokens_max = 4\n";
    std::fs::write(&rules, text).unwrap();
    let world = start(|config| config.rules = Some(rules)).await;
    assert_eq!(world.ask(CHAT, &chat(false, 4)).await.status, 200);
    let param = Some("max_tokens".to_owned());
    assert_eq!(world.ask(CHAT, &chat(false, 5)).await.error(), (403, "token_limit_exceeded".to_owned(), param));
    let mut globex = Client::connect(world.address()).await;
    globex.send(crate::world::post_as(&world.globex, CHAT, &chat(false, 1))).await;
    assert_eq!(globex.response().await.error(), (403, "permission_denied".to_owned(), None));
    globex.send(format!("GET /v1/models HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {}\r\n\r\n", world.globex)).await;
    assert_eq!(globex.response().await.json()["data"], json!([]));
}

#[tokio::test]
async fn draining_finishes_streams_and_refuses_new_connections() {
    let world = start(|_| ()).await;
    let address = world.address();
    let mut idle = Client::connect(address).await;
    idle.send("GET /healthz HTTP/1.1\r\nhost: t\r\n\r\n").await;
    assert_eq!(idle.response().await.status, 200);
    let mut client = Client::connect(address).await;
    client.send(world.post(CHAT, &chat(true, 40))).await;
    assert!(client.sees("data: ").await);
    let drain = tokio::spawn(world.gateway.drain(PATIENCE));
    assert!(idle.is_closed().await, "an idle connection is closed at once");
    let response = client.response().await;
    assert!(response.complete && response.body.ends_with("data: [DONE]\n\n"));
    drop(client);
    assert!(drain.await.unwrap());
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn draining_cuts_what_does_not_end() {
    let world = start(|_| ()).await;
    let mut client = Client::connect(world.address()).await;
    client.send(world.post(CHAT, &chat(true, 2000))).await;
    assert!(client.sees("data: ").await);
    let engine = world.engine.clone();
    assert!(!world.gateway.drain(Duration::ZERO).await);
    let response = client.response().await;
    assert!(!response.complete && !response.body.contains("[DONE]"));
    while engine.stats().sequences_running > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_gateway_that_cannot_start_says_why() {
    let world = start(|_| ()).await;
    let engine = world.engine.clone();
    let other = tempfile::tempdir().unwrap();
    let fails = async |adjust: &dyn Fn(&mut Config)| {
        let mut config = Config::new(other.path(), "unused");
        config.listen = "127.0.0.1:0".parse().unwrap();
        adjust(&mut config);
        Gateway::start(config, engine.clone()).await.unwrap_err()
    };
    let taken = world.address();
    let error = fails(&|config| config.listen = taken).await;
    assert!(matches!(&error, StartError::Listen { address, .. } if *address == taken), "{error}");
    assert!(error.to_string().contains("in use"), "{error}");

    let file = other.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = fails(&|config| config.data_dir = file.join("data")).await;
    assert!(matches!(error, StartError::DataDir { .. }), "{error}");
    assert!(error.to_string().contains("file/data"), "{error}");

    let error = fails(&|config| config.rules = Some(other.path().join("none.toml"))).await;
    assert!(error.to_string().contains("none.toml"), "{error}");
    std::fs::write(&file, "[[rule]]").unwrap();
    let error = fails(&|config| config.rules = Some(file.clone())).await;
    assert!(matches!(error, StartError::Rules(_)), "{error}");
}

/// All bytes of all files below a folder.
fn files(folder: &std::path::Path) -> Vec<Vec<u8>> {
    let entries: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries
        .iter()
        .flat_map(|path| if path.is_dir() { files(path) } else { vec![std::fs::read(path).unwrap()] })
        .collect()
}

#[tokio::test]
async fn neither_keys_nor_prompts_nor_answers_are_written_down() {
    let world = start(|_| ()).await;
    let prompt = "The password of the vault is quicksilver-4711. Repeat it.";
    let body =
        json!({"model": "smol", "messages": [{"role": "user", "content": prompt}], "max_tokens": 12, "temperature": 0});
    let answer = world.ask(CHAT, &body.to_string()).await.json();
    let answer = answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    assert!(answer.len() > 8, "{answer}");
    let key = world.acme.clone();
    let folder = world.data_dir;
    assert!(world.gateway.drain(PATIENCE).await);
    let files = files(folder.path());
    assert!(files.iter().map(Vec::len).sum::<usize>() > 1000, "the log is there");
    for secret in [prompt, "quicksilver-4711", &answer, &key, &key[3..46]] {
        let found = files.iter().any(|file| file.windows(secret.len()).any(|window| window == secret.as_bytes()));
        assert!(!found, "`{secret}` stands in a file");
    }
}
