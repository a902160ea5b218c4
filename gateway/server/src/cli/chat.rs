//! `bulkhead chat`: a conversation in the terminal, through the gateway's ordinary API.

use super::http_client::{Address, Request, RequestError, Response, send};
use super::output::{say, say_piece};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::io::{self, BufRead, IsTerminal};
use tokio::sync::mpsc;

/// Low: a small model that is sampled at 1 loses its thread within a sentence.
const TEMPERATURE: f32 = 0.3;

/// What a line of the user means.
#[derive(Debug, PartialEq, Eq)]
enum Line<'a> {
    Say(&'a str),
    New,
    Quit,
    Help,
    Unknown(&'a str),
    Nothing,
}

fn parse(line: &str) -> Line<'_> {
    match line.trim() {
        "" => Line::Nothing,
        "/quit" | "/exit" => Line::Quit,
        "/new" => Line::New,
        "/help" => Line::Help,
        command if command.starts_with('/') => Line::Unknown(command),
        text => Line::Say(text),
    }
}

const HELP: &str = "/new starts over, /quit ends, Ctrl-C stops an answer. Everything else is said to the model.";

/// Runs until the user quits or the input ends.
pub(crate) async fn run(address: &str, key: &str) -> Result<()> {
    let address = Address::parse(address)?;
    if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        bail!("the key is empty, or holds a line break, a space or another character that no key has");
    }
    let model = model(&address, key).await?;
    say(format_args!("{model} at {address}. {HELP}"))?;
    let mut lines = read_lines();
    let mut messages: Vec<Value> = Vec::new();
    loop {
        if io::stdin().is_terminal() {
            say_piece("\n> ")?;
        }
        let line = tokio::select! {
            line = lines.recv() => line,
            _ = tokio::signal::ctrl_c() => None,
        };
        let Some(line) = line else { break };
        let line = line.context("the input cannot be read")?;
        match parse(&line) {
            Line::Nothing => {}
            Line::Quit => break,
            Line::Help => say(HELP)?,
            Line::Unknown(command) => {
                say(format_args!("there is no command `{}`. {HELP}", printable(command)))?;
            }
            Line::New => {
                messages.clear();
                say("a new conversation")?;
            }
            Line::Say(text) => {
                messages.push(json!({"role": "user", "content": text}));
                match answer(&address, key, &model, &messages).await {
                    Ok(Some(text)) => messages.push(json!({"role": "assistant", "content": text})),
                    // Stopped or refused: as if it had not been said.
                    Ok(None) => drop(messages.pop()),
                    Err(error) => {
                        messages.pop();
                        say(format_args!("error: {error:#}"))?;
                    }
                }
            }
        }
    }
    say("")?;
    Ok(())
}

/// Standard input, line by line, on a thread of its own: reading it cannot be cancelled.
fn read_lines() -> mpsc::Receiver<io::Result<String>> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let failed = line.is_err();
            if sender.blocking_send(line).is_err() || failed {
                break;
            }
        }
    });
    receiver
}

/// The first model that the key may use; also the check that address and key are right.
async fn model(address: &Address, key: &str) -> Result<String> {
    let request = Request { method: "GET", path: "/v1/models", key: Some(key), body: None };
    let response = send(address, request).await?;
    if response.status != 200 {
        bail!(refusal(response).await);
    }
    let list: Value = serde_json::from_slice(&response.body().await?).context("the list of models is not JSON")?;
    let model = list.pointer("/data/0/id").and_then(Value::as_str).context("this key may use no model")?;
    Ok(printable(model))
}

/// Streams one answer to the terminal. `None` when the user stopped it.
async fn answer(address: &Address, key: &str, model: &str, messages: &[Value]) -> Result<Option<String>> {
    let body = json!({"model": model, "messages": messages, "stream": true, "temperature": TEMPERATURE}).to_string();
    let request = Request { method: "POST", path: "/v1/chat/completions", key: Some(key), body: Some(body) };
    let work = async {
        let mut response = send(address, request).await?;
        if response.status != 200 {
            bail!(refusal(response).await);
        }
        let receipt = response.header("x-isolation-id").map(printable);
        let text = stream(&mut response).await?;
        say("")?;
        if let Some(receipt) = receipt {
            say(format_args!("[receipt {receipt}]"))?;
        }
        Ok(text)
    };
    tokio::select! {
        answer = work => answer.map(Some),
        // Dropping the work closes the connection, and the gateway stops computing.
        _ = tokio::signal::ctrl_c() => {
            say("\n[stopped]")?;
            Ok(None)
        }
    }
}

/// Prints the text of a stream as it comes.
async fn stream(response: &mut Response) -> Result<String> {
    let mut text = String::new();
    loop {
        match response.event().await? {
            Some(event) if event == "[DONE]" => return Ok(text),
            Some(event) => {
                let event: Value = serde_json::from_str(&event).context("an event of the stream is not JSON")?;
                if let Some(message) = event.pointer("/error/message").and_then(Value::as_str) {
                    bail!("the gateway ended the answer: {}", printable(message));
                }
                if let Some(piece) = event.pointer("/choices/0/delta/content").and_then(Value::as_str) {
                    say_piece(printable(piece))?;
                    text.push_str(piece);
                }
            }
            None => bail!(RequestError::Protocol("the stream ended before it was done")),
        }
    }
}

/// The message of an OpenAI-shaped error.
async fn refusal(response: Response) -> String {
    let status = response.status;
    let body = response.body().await.unwrap_or_default();
    let error: Value = serde_json::from_slice(&body).unwrap_or_default();
    match error.pointer("/error/message").and_then(Value::as_str) {
        Some(message) => format!("{status}: {}", printable(message)),
        None => format!("the gateway answered {status}"),
    }
}

/// Text from elsewhere without what would steer the terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// A gateway that gives every connection this answer.
    async fn gateway(answer: &'static str) -> Address {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = Address::of(listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut asked = [0; 4096];
                let _ = stream.read(&mut asked).await.unwrap();
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        address
    }

    async fn answer_to(events: &'static str) -> Result<Option<String>> {
        answer(&gateway(events).await, "bk_1", "m", &[json!({"role": "user", "content": "hi"})]).await
    }

    #[test]
    fn lines_are_commands_or_said() {
        assert_eq!(parse("  /quit "), Line::Quit);
        assert_eq!(parse("/new"), Line::New);
        assert_eq!(parse("/news"), Line::Unknown("/news"));
        assert_eq!(parse("   "), Line::Nothing);
        assert_eq!(parse(" hello /quit"), Line::Say("hello /quit"));
    }

    #[test]
    fn a_model_cannot_steer_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\u{9b}c\r\n\td"), "a\u{fffd}[2Jb\u{fffd}c\u{fffd}\n\td");
    }

    #[tokio::test]
    async fn a_key_that_cannot_be_sent_is_said_to_be_one() {
        for key in ["", "bk_1\n", "bk_1 ", "bk_\u{e9}", "bk_\r\nhost: x"] {
            let error = run("http://127.0.0.1:1", key).await.unwrap_err().to_string();
            assert!(error.contains("the key"), "{key:?}: {error}");
        }
    }

    #[tokio::test]
    async fn an_answer_is_put_together_from_its_pieces() {
        let events = "HTTP/1.1 200 OK\r\n\r\n: alive\n\ndata: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n\
                      data: {\"choices\":[{\"delta\":{\"content\":\"Hel\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"lo\"}}]}\n\n\
                      data: {\"choices\":[]}\n\ndata: [DONE]\n\n";
        assert_eq!(answer_to(events).await.unwrap().as_deref(), Some("Hello"));
    }

    #[tokio::test]
    async fn an_answer_that_breaks_off_is_an_error() {
        let cut = "HTTP/1.1 200 OK\r\n\r\ndata: {\"choices\":[{\"delta\":{\"content\":\"Hel\"}}]}\n\n";
        assert!(answer_to(cut).await.unwrap_err().to_string().contains("before it was done"));
        let incident = "HTTP/1.1 200 OK\r\n\r\ndata: {\"error\":{\"message\":\"stopped\\u001b[1m\"}}\n\n";
        assert_eq!(
            answer_to(incident).await.unwrap_err().to_string(),
            "the gateway ended the answer: stopped\u{fffd}[1m"
        );
        let garbage = "HTTP/1.1 200 OK\r\n\r\ndata: {\n\n";
        assert!(answer_to(garbage).await.unwrap_err().to_string().contains("not JSON"));
    }

    #[tokio::test]
    async fn a_refusal_is_said_in_the_gateways_words() {
        let refused =
            "HTTP/1.1 401 Unauthorized\r\ncontent-length: 40\r\n\r\n{\"error\":{\"message\":\"unknown API key\"}} ";
        assert_eq!(model(&gateway(refused).await, "bk_1").await.unwrap_err().to_string(), "401: unknown API key");
        let other = "HTTP/1.1 502 Bad Gateway\r\ncontent-length: 5\r\n\r\n<htm>";
        assert_eq!(model(&gateway(other).await, "bk_1").await.unwrap_err().to_string(), "the gateway answered 502");
        let none = "HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n{\"data\":[]}";
        assert!(model(&gateway(none).await, "bk_1").await.unwrap_err().to_string().contains("no model"));
    }
}
