//! A small HTTP client on top of `ureq`: whole responses and server-sent events.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::time::Duration;

/// No answer of a test takes longer; a hanging server fails the test instead of holding it.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Speaks to one gateway with one key.
#[derive(Debug, Clone)]
pub struct Client {
    agent: ureq::Agent,
    base: String,
    key: Option<String>,
}

/// A whole response.
#[derive(Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

/// One server-sent event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// `event:`; empty when the field is absent.
    pub name: String,
    /// `data:`.
    pub data: String,
}

/// The body of a greedy chat request with one user message.
#[must_use]
pub fn chat(model: &str, content: &str, max_tokens: u32, stream: bool) -> Value {
    json!({
        "model": model, "messages": [{"role": "user", "content": content}],
        "max_tokens": max_tokens, "temperature": 0, "stream": stream,
    })
}

impl Client {
    /// `key`: sent as a bearer token.
    #[must_use]
    pub fn new(address: SocketAddr, key: Option<&str>) -> Self {
        let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(TIMEOUT));
        let agent = ureq::Agent::new_with_config(config.build());
        Self { agent, base: format!("http://{address}"), key: key.map(str::to_string) }
    }

    /// # Errors
    /// When there is no HTTP answer.
    pub fn get(&self, path: &str) -> Result<Response> {
        self.get_as(path, "*/*")
    }

    /// The same for who takes these media types.
    ///
    /// # Errors
    /// When there is no HTTP answer.
    pub fn get_as(&self, path: &str, accept: &str) -> Result<Response> {
        let mut request = self.agent.get(format!("{}{path}", self.base)).header("accept", accept);
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        Response::read(request.call()?)
    }

    /// # Errors
    /// When there is no HTTP answer.
    pub fn post(&self, path: &str, body: &Value) -> Result<Response> {
        self.post_bytes(path, body.to_string().as_bytes())
    }

    /// The same with a body that need not be JSON.
    ///
    /// # Errors
    /// When there is no HTTP answer.
    pub fn post_bytes(&self, path: &str, body: &[u8]) -> Result<Response> {
        Response::read(self.send(path, body)?)
    }

    /// The events of a streamed answer, as they come; dropping the iterator closes the connection.
    ///
    /// # Errors
    /// When there is no HTTP answer, or none with status 200.
    pub fn stream(&self, path: &str, body: &Value) -> Result<(Response, impl Iterator<Item = Result<Event>> + use<>)> {
        let answer = self.send(path, body.to_string().as_bytes())?;
        let head = Response::head(&answer);
        if head.status != 200 {
            let failed = Response::read(answer)?;
            anyhow::bail!("status {}: {}", failed.status, String::from_utf8_lossy(&failed.body));
        }
        let mut lines = BufReader::new(answer.into_body().into_reader()).lines();
        let events = std::iter::from_fn(move || {
            let (mut name, mut data) = (String::new(), Vec::new());
            for line in lines.by_ref() {
                let line = match line {
                    Ok(line) => line,
                    Err(error) => return Some(Err(error.into())),
                };
                if let Some(text) = line.strip_prefix("event:") {
                    name = text.trim_start().to_string();
                } else if let Some(text) = line.strip_prefix("data:") {
                    data.push(text.trim_start().to_string());
                } else if line.is_empty() && !data.is_empty() {
                    return Some(Ok(Event { name, data: data.join("\n") }));
                }
            }
            None
        });
        Ok((head, events))
    }

    /// A chat answer's text and its isolation id.
    ///
    /// # Errors
    /// When the answer is not a success with both.
    pub fn ask(&self, body: &Value) -> Result<(String, String)> {
        let response = self.post("/v1/chat/completions", body)?;
        let json = response.json()?;
        ensure!(response.status == 200, "status {}: {json}", response.status);
        let text = json["choices"][0]["message"]["content"].as_str().context("no content")?.to_string();
        Ok((text, response.header("x-isolation-id").context("no isolation id")?.to_string()))
    }

    /// The receipt of one of this tenant's answers, as soon as it is published.
    ///
    /// # Errors
    /// When it is refused, or not published within the time that a test waits.
    pub fn receipt(&self, id: &str) -> Result<String> {
        for _ in 0..200 {
            let response = self.get(&format!("/v1/isolation/receipts/{id}"))?;
            match response.status {
                200 => return response.text(),
                202 => std::thread::sleep(Duration::from_millis(50)),
                status => anyhow::bail!("status {status}: {}", response.text()?),
            }
        }
        anyhow::bail!("the receipt was not published within ten seconds")
    }

    fn send(&self, path: &str, body: &[u8]) -> Result<ureq::http::Response<ureq::Body>> {
        let mut request = self.agent.post(format!("{}{path}", self.base)).header("content-type", "application/json");
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        Ok(request.send(body)?)
    }
}

impl Response {
    fn head(answer: &ureq::http::Response<ureq::Body>) -> Self {
        let headers = answer.headers().iter();
        let headers = headers.map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into()));
        Self { status: answer.status().as_u16(), headers: headers.collect(), body: Vec::new() }
    }

    fn read(answer: ureq::http::Response<ureq::Body>) -> Result<Self> {
        let mut response = Self::head(&answer);
        answer.into_body().into_reader().read_to_end(&mut response.body)?;
        Ok(response)
    }

    /// The first header of that name; names are in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// # Errors
    /// When the body is not UTF-8.
    pub fn text(&self) -> Result<String> {
        Ok(String::from_utf8(self.body.clone())?)
    }

    /// # Errors
    /// When the body is not JSON.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_slice(&self.body).with_context(|| format!("not JSON: {}", String::from_utf8_lossy(&self.body)))
    }
}
