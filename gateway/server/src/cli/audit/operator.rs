//! A running gateway, as an operator asks it: it alone writes to the log.

use crate::cli::environment;
use crate::cli::http_client::{Address, Request, send};
use anyhow::{Context, Result, bail};
use serde_json::Value;

pub(super) struct Gateway {
    address: Address,
    key: String,
}

impl Gateway {
    /// At this address, with the key of the environment.
    pub(super) fn of(address: &str) -> Result<Self> {
        let key = environment::operator_key().context("no key: set BULKHEAD_OPERATOR_KEY to an operator's key")?;
        if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            bail!("the key holds a line break, a space or another character that no key has");
        }
        Ok(Self { address: Address::parse(address)?, key })
    }

    /// Status and body of an answer that is none of an error.
    pub(super) async fn ask(&self, method: &str, path: &str, body: Option<Value>) -> Result<(u16, Value)> {
        let body = body.map(|body| body.to_string());
        let response = send(&self.address, Request { method, path, key: Some(&self.key), body }).await?;
        let status = response.status;
        let answer: Value = serde_json::from_slice(&response.body().await?).unwrap_or_default();
        if !(200..300).contains(&status) {
            let message = answer.pointer("/error/message").and_then(Value::as_str).unwrap_or("no reason was given");
            let shown: String = message.chars().filter(|c| !c.is_control()).take(300).collect();
            bail!("the gateway refused ({status}): {shown}");
        }
        Ok((status, answer))
    }
}
