//! A gateway for one test, and a client that sends exactly the bytes it is told to.

use engine_model::{LoadOptions, Model};
use engine_runtime::{Engine, EngineConfig, Setup};
use gateway_auth::{ApiKey, TenantKey};
use gateway_server::{Config, Gateway, RenderProcesses};
use policies_domain::{ModelName, TenantName};
use serde_json::Value;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Nothing here takes so long on any machine; a test that waits for it has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

const MODEL: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

fn model_file() -> PathBuf {
    if let Some(path) = std::env::var_os("BULKHEAD_TEST_MODEL") {
        return path.into();
    }
    let data = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/share"));
    let file = data.or_else(home).unwrap_or_default().join("bulkhead/models").join(MODEL);
    assert!(file.exists(), "no model at {}: `./x test` fetches it, BULKHEAD_TEST_MODEL names another", file.display());
    file
}

pub(crate) struct World {
    pub(crate) gateway: Gateway,
    pub(crate) engine: Engine,
    pub(crate) acme: String,
    pub(crate) globex: String,
    pub(crate) data_dir: TempDir,
}

/// A gateway with two tenants and the defaults, but for what `adjust` changes.
pub(crate) async fn start(adjust: impl FnOnce(&mut Config)) -> World {
    let data_dir = tempfile::tempdir().unwrap();
    let secret = Gateway::key_secret(data_dir.path()).unwrap();
    let (acme, globex) = (ApiKey::mint().unwrap(), ApiKey::mint().unwrap());
    let mut config = Config::new(data_dir.path(), model_file());
    config.listen = "127.0.0.1:0".parse().unwrap();
    config.served_name = Some(ModelName::parse("smol").unwrap());
    config.engine = EngineConfig { threads: 2, pages: 512, ..EngineConfig::default() };
    config.tenants = [("acme", &acme), ("globex", &globex)]
        .map(|(name, key)| TenantKey { tenant: TenantName::parse(name).unwrap(), hash: secret.hash(key) })
        .to_vec();
    adjust(&mut config);
    // As the program does it; this test is not the program.
    let program = Path::new(env!("CARGO_BIN_EXE_bulkhead"));
    let templates = Arc::new(RenderProcesses::new(program, config.limits.tokenizers_max));
    let options = LoadOptions { templates, ..LoadOptions::new(config.engine.threads) };
    let model = Arc::new(Model::load_with(&config.model, &options).unwrap().model);
    let (tenancy, public) = (config.tenancy().unwrap(), &config.public_prefixes);
    let engine =
        Engine::start_with(model, config.engine, Setup { tenancy, public_prefixes: public, ..Setup::default() })
            .unwrap();
    let gateway = Gateway::start(config, engine.clone()).await.unwrap();
    let (acme, globex) = (acme.reveal().to_owned(), globex.reveal().to_owned());
    World { gateway, engine, acme, globex, data_dir }
}

impl World {
    pub(crate) fn address(&self) -> SocketAddr {
        self.gateway.address()
    }

    /// A request of acme's.
    pub(crate) fn post(&self, path: &str, body: &str) -> String {
        post_as(&self.acme, path, body)
    }

    /// Sends acme's request and reads the response.
    pub(crate) async fn ask(&self, path: &str, body: &str) -> Response {
        let mut client = Client::connect(self.address()).await;
        client.send(self.post(path, body)).await;
        client.response().await
    }

    pub(crate) async fn get(&self, path: &str) -> Response {
        let mut client = Client::connect(self.address()).await;
        client.send(format!("GET {path} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {}\r\n\r\n", self.acme)).await;
        client.response().await
    }

    /// Waits until the engine has nothing to do.
    pub(crate) async fn engine_is_idle(&self) {
        let idle = async {
            while self.engine.stats().sequences_running + self.engine.stats().sequences_waiting > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(PATIENCE, idle).await.expect("the engine still works for a client that left");
    }

    /// Waits until so many requests of a route have ended because their client left.
    pub(crate) async fn clients_left(&self, route: &str, count: usize) {
        let line = format!("gateway_requests_total{{route=\"{route}\",status=\"gone\"}} {count}");
        let counted = async { while !self.get("/metrics").await.body.lines().any(|found| found == line) {} };
        timeout(PATIENCE, counted).await.unwrap_or_else(|_| panic!("never `{line}`"));
    }

    /// Waits until the engine works for somebody.
    pub(crate) async fn engine_is_busy(&self) {
        let busy = async {
            while self.engine.stats().sequences_running == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(PATIENCE, busy).await.expect("the engine never started");
    }
}

pub(crate) fn post_as(key: &str, path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

pub(crate) struct Client {
    pub(crate) socket: TcpStream,
    unread: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    /// Chunks joined.
    pub(crate) body: String,
    /// The body ended as its framing promised.
    pub(crate) complete: bool,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.body))
    }

    /// Status, code and param of an error.
    pub(crate) fn error(&self) -> (u16, String, Option<String>) {
        let error = &self.json()["error"];
        let text = |name: &str| error[name].as_str().map(str::to_owned);
        assert!(text("message").is_some_and(|message| !message.is_empty()), "{}", self.body);
        (self.status, text("code").unwrap_or_default(), text("param"))
    }

    /// The data of the events of a stream.
    pub(crate) fn events(&self) -> Vec<&str> {
        self.body.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect()
    }
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self { socket: TcpStream::connect(address).await.unwrap(), unread: Vec::new() }
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.socket.write_all(bytes.as_ref()).await.unwrap();
    }

    /// One read; `false` at the end or after a reset.
    async fn fill(&mut self) -> bool {
        let mut part = [0; 16384];
        match timeout(PATIENCE, self.socket.read(&mut part)).await.expect("the server says nothing") {
            Ok(0) | Err(_) => false,
            Ok(length) => {
                self.unread.extend_from_slice(&part[..length]);
                true
            }
        }
    }

    /// Reads until the unread bytes hold `text`; `false` when the connection ends first.
    pub(crate) async fn sees(&mut self, text: &str) -> bool {
        while !String::from_utf8_lossy(&self.unread).contains(text) {
            if !self.fill().await {
                return false;
            }
        }
        true
    }

    async fn line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.unread.windows(2).position(|two| two == b"\r\n") {
                let line: Vec<u8> = self.unread.drain(..end + 2).collect();
                return Some(String::from_utf8(line[..end].to_vec()).unwrap());
            }
            if !self.fill().await {
                return None;
            }
        }
    }

    async fn bytes(&mut self, length: usize) -> Option<Vec<u8>> {
        while self.unread.len() < length {
            if !self.fill().await {
                return None;
            }
        }
        Some(self.unread.drain(..length).collect())
    }

    /// Reads one response, `100 Continue` excluded. Panics when there is none.
    pub(crate) async fn response(&mut self) -> Response {
        self.maybe_response().await.expect("the server closed the connection without a response")
    }

    pub(crate) async fn maybe_response(&mut self) -> Option<Response> {
        let status = self.line().await?;
        assert!(status.starts_with("HTTP/1."), "{status}");
        let status = status[9..12].parse().unwrap();
        let mut headers = Vec::new();
        loop {
            let line = self.line().await?;
            let Some((name, value)) = line.split_once(": ") else { break };
            headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        let mut response = Response { status, headers, body: String::new(), complete: true };
        let body = match response.header("content-length") {
            Some(length) => self.bytes(length.parse().unwrap()).await,
            None if response.header("transfer-encoding") == Some("chunked") => {
                let (body, complete) = self.chunks().await;
                response.complete = complete;
                Some(body)
            }
            None => Some(Vec::new()),
        };
        response.complete &= body.is_some();
        response.body = String::from_utf8(body.unwrap_or_default()).unwrap();
        Some(response)
    }

    async fn chunks(&mut self) -> (Vec<u8>, bool) {
        let mut body = Vec::new();
        loop {
            let Some(size) = self.line().await else { return (body, false) };
            let size = usize::from_str_radix(&size, 16).unwrap();
            let Some(mut chunk) = self.bytes(size + 2).await else { return (body, false) };
            if size == 0 {
                return (body, true);
            }
            chunk.truncate(size);
            body.extend(chunk);
        }
    }

    /// True when the server has closed: nothing more comes.
    pub(crate) async fn is_closed(&mut self) -> bool {
        self.unread.is_empty() && !self.fill().await
    }
}
