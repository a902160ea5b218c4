//! Bodies that are no request: each gets its own status, code and param, and the server serves on.

use crate::world::{Client, post_as, start};
use serde_json::{Value, json};

type Expected<'a> = (u16, &'a str, Option<&'a str>);

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

/// A good body with one field changed, removed (`null`) or added.
fn chat(changes: Value) -> String {
    changed(json!({"model": "smol", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}), changes)
}

fn text(changes: Value) -> String {
    changed(json!({"model": "smol", "prompt": "hi", "max_tokens": 1}), changes)
}

fn changed(mut body: Value, changes: Value) -> String {
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => body.as_object_mut().unwrap().remove(name),
            value => body.as_object_mut().unwrap().insert(name.clone(), value.clone()),
        };
    }
    body.to_string()
}

fn message(message: Value) -> String {
    chat(json!({"messages": [{"role": "user", "content": "hi"}, message]}))
}

fn many(messages: usize) -> Vec<Value> {
    vec![json!({"role": "user", "content": "hi"}); messages]
}

#[tokio::test]
async fn every_bad_body_has_its_own_answer() {
    let world = start(|_| ()).await;
    let unsupported = |field: &str, value: Value| {
        let mut changes = serde_json::Map::new();
        changes.insert(field.to_owned(), value);
        chat(Value::Object(changes))
    };
    let part = |part: Value| message(json!({"role": "user", "content": [part]}));
    let table: Vec<(&str, String, Expected<'_>)> = vec![
        // Not JSON, or not a request.
        (CHAT, String::new(), (400, "invalid_json", None)),
        (CHAT, "{".into(), (400, "invalid_json", None)),
        (CHAT, "[]".into(), (400, "invalid_type", None)),
        (CHAT, "null".into(), (400, "invalid_type", None)),
        (CHAT, chat(json!({})) + "x", (400, "invalid_json", None)),
        (CHAT, chat(json!({})).replace("\"hi\"", "\"\\ud800\""), (400, "invalid_json", None)),
        (CHAT, chat(json!({})).replace("1}", "NaN}"), (400, "invalid_json", None)),
        (CHAT, chat(json!({})).replace("1}", "1,\"temperature\":NaN}"), (400, "invalid_json", None)),
        (CHAT, chat(json!({})).replace("1}", "1,\"temperature\":Infinity}"), (400, "invalid_json", None)),
        (CHAT, chat(json!({})).replace("1}", "1,\"temperature\":1e999}"), (400, "invalid_json", None)),
        (CHAT, chat(json!({})).replace("1}", "1,\"model\":\"smol\"}"), (400, "duplicate_parameter", Some("model"))),
        (CHAT, "[".repeat(100_000), (400, "json_too_deep", None)),
        (
            CHAT,
            chat(json!({})).replace(r#""role""#, r#""role":"user","role""#),
            (400, "duplicate_parameter", Some("messages[0].role")),
        ),
        (CHAT, chat(json!({"stop": vec![0; 100_000]})), (400, "json_too_large", None)),
        // The model.
        (CHAT, chat(json!({"model": null})), (400, "missing_required_parameter", Some("model"))),
        (CHAT, chat(json!({"model": 1})), (400, "invalid_type", Some("model"))),
        (CHAT, chat(json!({"model": "gpt-4o"})), (404, "model_not_found", Some("model"))),
        (CHAT, chat(json!({"model": ""})), (404, "model_not_found", Some("model"))),
        (CHAT, chat(json!({"model": "x".repeat(100_000)})), (404, "model_not_found", Some("model"))),
        // Messages.
        (CHAT, chat(json!({"messages": null})), (400, "missing_required_parameter", Some("messages"))),
        (CHAT, chat(json!({"messages": []})), (400, "empty_value", Some("messages"))),
        (CHAT, chat(json!({"messages": "hi"})), (400, "invalid_type", Some("messages"))),
        (CHAT, chat(json!({"messages": ["hi"]})), (400, "invalid_type", Some("messages[0]"))),
        (CHAT, message(json!({"content": "x"})), (400, "missing_required_parameter", Some("messages[1].role"))),
        (CHAT, message(json!({"role": "root", "content": "x"})), (400, "invalid_value", Some("messages[1].role"))),
        (CHAT, message(json!({"role": 7, "content": "x"})), (400, "invalid_type", Some("messages[1].role"))),
        (CHAT, message(json!({"role": "user"})), (400, "missing_required_parameter", Some("messages[1].content"))),
        (
            CHAT,
            message(json!({"role": "user", "content": null})),
            (400, "missing_required_parameter", Some("messages[1].content")),
        ),
        (CHAT, chat(json!({"messages": many(4_096)})), (400, "context_length_exceeded", Some("messages"))),
        (CHAT, chat(json!({"messages": many(4_097)})), (400, "array_above_max_length", Some("messages"))),
        (CHAT, chat(json!({"messages": many(15_000)})), (400, "array_above_max_length", Some("messages"))),
        (CHAT, message(json!({"role": "user", "content": 1})), (400, "invalid_type", Some("messages[1].content"))),
        (CHAT, message(json!({"role": "user", "content": []})), (400, "empty_value", Some("messages[1].content"))),
        (
            CHAT,
            message(json!({"role": "user", "content": "x", "weight": 1})),
            (400, "unknown_parameter", Some("messages[1].weight")),
        ),
        (
            CHAT,
            message(json!({"role": "assistant", "content": "x", "tool_calls": [{}]})),
            (400, "unsupported_parameter", Some("messages[1].tool_calls")),
        ),
        (CHAT, part(json!("x")), (400, "invalid_type", Some("messages[1].content[0]"))),
        (CHAT, part(json!({"text": "x"})), (400, "missing_required_parameter", Some("messages[1].content[0].type"))),
        (
            CHAT,
            part(json!({"type": "image_url", "image_url": {"url": "data:"}})),
            (400, "unsupported_parameter", Some("messages[1].content[0].type")),
        ),
        (CHAT, part(json!({"type": "text"})), (400, "missing_required_parameter", Some("messages[1].content[0].text"))),
        // Numbers.
        (CHAT, chat(json!({"max_tokens": 0})), (400, "below_min_value", Some("max_tokens"))),
        (CHAT, chat(json!({"max_tokens": -1})), (400, "below_min_value", Some("max_tokens"))),
        (CHAT, chat(json!({"max_tokens": 1.5})), (400, "invalid_type", Some("max_tokens"))),
        (CHAT, chat(json!({"max_tokens": "1"})), (400, "invalid_type", Some("max_tokens"))),
        (CHAT, chat(json!({"max_tokens": u64::MAX})), (400, "above_max_value", Some("max_tokens"))),
        (CHAT, chat(json!({"max_tokens": 1_000_000})), (400, "context_length_exceeded", Some("max_tokens"))),
        (CHAT, chat(json!({"max_completion_tokens": 2})), (400, "contradicting_parameters", Some("max_tokens"))),
        (CHAT, chat(json!({"temperature": -0.1})), (400, "below_min_value", Some("temperature"))),
        (CHAT, chat(json!({"temperature": 2.1})), (400, "above_max_value", Some("temperature"))),
        (CHAT, chat(json!({"temperature": 1e300})), (400, "above_max_value", Some("temperature"))),
        (CHAT, chat(json!({"temperature": "hot"})), (400, "invalid_type", Some("temperature"))),
        (CHAT, chat(json!({"top_p": 1.01})), (400, "above_max_value", Some("top_p"))),
        (CHAT, chat(json!({"top_k": -1})), (400, "below_min_value", Some("top_k"))),
        (CHAT, chat(json!({"min_p": -1})), (400, "below_min_value", Some("min_p"))),
        (CHAT, chat(json!({"repetition_penalty": 0})), (400, "below_min_value", Some("repetition_penalty"))),
        (CHAT, chat(json!({"presence_penalty": 3})), (400, "above_max_value", Some("presence_penalty"))),
        (CHAT, chat(json!({"frequency_penalty": -3})), (400, "below_min_value", Some("frequency_penalty"))),
        (CHAT, chat(json!({"seed": 0.5})), (400, "invalid_type", Some("seed"))),
        (CHAT, chat(json!({"seed": 1e30})), (400, "above_max_value", Some("seed"))),
        // Stop strings.
        (CHAT, chat(json!({"stop": 1})), (400, "invalid_type", Some("stop"))),
        (CHAT, chat(json!({"stop": [1]})), (400, "invalid_type", Some("stop"))),
        (CHAT, chat(json!({"stop": ""})), (400, "empty_value", Some("stop"))),
        (CHAT, chat(json!({"stop": "x".repeat(257)})), (400, "string_above_max_length", Some("stop"))),
        (CHAT, chat(json!({"stop": vec!["x"; 17]})), (400, "array_above_max_length", Some("stop"))),
        (CHAT, chat(json!({"stop": vec!["x"; 10_000]})), (400, "array_above_max_length", Some("stop"))),
        // Options.
        (CHAT, chat(json!({"stream": "yes"})), (400, "invalid_type", Some("stream"))),
        (
            CHAT,
            chat(json!({"stream_options": {"include_usage": true}})),
            (400, "contradicting_parameters", Some("stream_options")),
        ),
        (
            CHAT,
            chat(json!({"stream": true, "stream_options": {"include_use": true}})),
            (400, "unknown_parameter", Some("stream_options.include_use")),
        ),
        (CHAT, chat(json!({"user": "u".repeat(513)})), (400, "string_above_max_length", Some("user"))),
        // Known, not honoured.
        (CHAT, unsupported("n", json!(2)), (400, "unsupported_parameter", Some("n"))),
        (CHAT, unsupported("tools", json!([{}])), (400, "unsupported_parameter", Some("tools"))),
        (CHAT, unsupported("tool_choice", json!("required")), (400, "unsupported_parameter", Some("tool_choice"))),
        (CHAT, unsupported("logprobs", json!(true)), (400, "unsupported_parameter", Some("logprobs"))),
        (CHAT, unsupported("logit_bias", json!({"1": 1})), (400, "unsupported_parameter", Some("logit_bias"))),
        (
            CHAT,
            unsupported("response_format", json!({"type": "json_object"})),
            (400, "unsupported_parameter", Some("response_format")),
        ),
        (CHAT, unsupported("audio", json!({})), (400, "unsupported_parameter", Some("audio"))),
        (CHAT, unsupported("store", json!(true)), (400, "unsupported_parameter", Some("store"))),
        (CHAT, unsupported("cache_salt", json!("a")), (400, "unsupported_parameter", Some("cache_salt"))),
        (CHAT, unsupported("cache_salt", json!("")), (400, "unsupported_parameter", Some("cache_salt"))),
        (CHAT, unsupported("prompt", json!("x")), (400, "unsupported_parameter", Some("prompt"))),
        (CHAT, unsupported("temprature", json!(1)), (400, "unknown_parameter", Some("temprature"))),
        // Plain completions.
        (TEXT, text(json!({"prompt": null})), (400, "missing_required_parameter", Some("prompt"))),
        (TEXT, text(json!({"prompt": 1})), (400, "invalid_type", Some("prompt"))),
        (TEXT, text(json!({"prompt": []})), (400, "empty_value", Some("prompt"))),
        (TEXT, text(json!({"prompt": [1, 2]})), (400, "array_above_max_length", Some("prompt"))),
        (TEXT, text(json!({"prompt": ["a", "b"]})), (400, "array_above_max_length", Some("prompt"))),
        (TEXT, text(json!({"prompt": [[1]]})), (400, "invalid_type", Some("prompt"))),
        (TEXT, text(json!({"prompt": ""})), (400, "empty_prompt", Some("prompt"))),
        (TEXT, text(json!({"messages": []})), (400, "unsupported_parameter", Some("messages"))),
        (TEXT, text(json!({"max_completion_tokens": 1})), (400, "unknown_parameter", Some("max_completion_tokens"))),
        (TEXT, text(json!({"echo": true})), (400, "unsupported_parameter", Some("echo"))),
        (TEXT, text(json!({"best_of": 2})), (400, "unsupported_parameter", Some("best_of"))),
        (TEXT, text(json!({"logprobs": 5})), (400, "unsupported_parameter", Some("logprobs"))),
        (TEXT, text(json!({"prompt": "word ".repeat(20_000)})), (400, "context_length_exceeded", Some("prompt"))),
    ];
    // One connection for all: a refused body costs nobody anything.
    let mut client = Client::connect(world.address()).await;
    for (path, body, (status, code, param)) in table {
        client.send(world.post(path, &body)).await;
        let response = client.response().await;
        let shown: String = body.chars().take(200).collect();
        assert_eq!(response.error(), (status, code.to_owned(), param.map(str::to_owned)), "{shown}");
    }
    client.send(world.post(TEXT, &text(json!({})))).await;
    assert_eq!(client.response().await.status, 200);
}

#[tokio::test]
async fn a_body_that_is_not_utf_8_says_where() {
    let world = start(|_| ()).await;
    let mut client = Client::connect(world.address()).await;
    let mut request = world.post(TEXT, &text(json!({"prompt": "##"}))).into_bytes();
    let at = request.windows(2).position(|two| two == b"##").unwrap();
    request[at] = 0xff;
    client.send(request).await;
    assert_eq!(client.response().await.error(), (400, "invalid_utf8".to_owned(), None));
}

#[tokio::test]
async fn values_that_ask_for_nothing_special_are_accepted() {
    let world = start(|_| ()).await;
    let harmless = json!({
        "n": 1.0, "tools": [], "tool_choice": "auto", "function_call": "none", "top_logprobs": 0, "logprobs": false, "logit_bias": {}, "store": false, "metadata": {},
        "response_format": {"type": "text"}, "modalities": ["text"], "user": "someone", "seed": -1, "stop": ["\u{0}x"],
        "temperature": 0, "top_p": 0, "top_k": 0, "min_p": 0, "repetition_penalty": 1, "presence_penalty": 0,
        "frequency_penalty": 0, "max_completion_tokens": 1.0, "stream": false,
    });
    let response = world.ask(CHAT, &chat(harmless)).await;
    assert_eq!(response.status, 200, "{}", response.body);
    let mut nulls = chat(json!({}));
    nulls.pop();
    nulls.push_str(
        r#","tools":null,"temperature":null,"stop":null,"stream_options":null,"cache_salt":null,"seed":null,"unknown":null}"#,
    );
    assert_eq!(world.ask(CHAT, &nulls).await.status, 200);
    let roles = json!({"messages": [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d", "tool_calls": null, "refusal": null, "audio": null, "function_call": null},
        {"role": "user", "content": "e"},
        {"role": "assistant", "content": null, "tool_calls": []},
        {"role": "assistant"},
        {"role": "user", "content": "f", "name": null, "unknown": null},
    ]});
    let response = world.ask(CHAT, &chat(roles)).await;
    assert_eq!(response.status, 200, "{}", response.body);
}

#[tokio::test]
async fn keys_that_are_not_ours_open_nothing() {
    let world = start(|_| ()).await;
    let mistyped = world.acme.replace(|c: char| c.is_ascii_digit(), "7") + "x";
    let stranger = gateway_auth::ApiKey::mint().unwrap();
    let ask = async |request: String| {
        let mut client = Client::connect(world.address()).await;
        client.send(request).await;
        client.response().await
    };
    let routes = ["/v1/models", "/v1/models/smol", "/v1/isolation/receipts/00000000-0000-0000-0000-000000000000"];
    for header in [
        String::new(),
        "authorization: Bearer\r\n".to_owned(),
        "authorization: Bearer \r\n".to_owned(),
        format!("authorization: {}\r\n", world.acme),
        format!("authorization: Basic {}\r\n", world.acme),
        format!("authorization: Bearer {mistyped}\r\n"),
        format!("authorization: Bearer {}\r\n", stranger.reveal()),
        format!("authorization: Bearer {} {}\r\n", world.acme, world.globex),
        format!("x-api-key: {}\r\n", world.acme),
    ] {
        let mut requests: Vec<_> =
            routes.iter().map(|path| format!("GET {path} HTTP/1.1\r\nhost: t\r\n{header}\r\n")).collect();
        requests.extend(
            [CHAT, TEXT]
                .map(|path| format!("POST {path} HTTP/1.1\r\nhost: t\r\n{header}content-length: 2\r\n\r\n{{}}")),
        );
        for request in requests {
            let response = ask(request.clone()).await;
            assert_eq!(response.error(), (401, "invalid_api_key".to_owned(), None), "{request}");
            assert_eq!(response.header("www-authenticate"), Some("Bearer"));
            assert!(!response.body.contains(&world.acme), "{}", response.body);
        }
    }
    // And one that is.
    assert_eq!(ask(post_as(&world.globex, TEXT, &text(json!({})))).await.status, 200);
}

#[tokio::test]
async fn paths_and_methods_outside_the_table_are_named() {
    let world = start(|_| ()).await;
    let ask = async |method: &str, path: &str| {
        let mut client = Client::connect(world.address()).await;
        let key = &world.acme;
        client
            .send(format!(
                "{method} {path} HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {key}\r\ncontent-length: 0\r\n\r\n"
            ))
            .await;
        client.response().await
    };
    for path in
        ["/", "/v1", "/v1/", "/v1/embeddings", "/v1/chat/completions/", "/V1/models", "//healthz", "/..", "/%2e%2e"]
    {
        assert_eq!(ask("GET", path).await.error(), (404, "unknown_path".to_owned(), None), "{path}");
    }
    for (method, path, allow) in [
        ("GET", CHAT, "POST"),
        ("PUT", TEXT, "POST"),
        ("DELETE", "/v1/models", "GET, HEAD"),
        ("POST", "/healthz", "GET, HEAD"),
        ("POST", "/metrics", "GET, HEAD"),
        ("OPTIONS", CHAT, "POST"),
        ("get", "/healthz", "GET, HEAD"),
    ] {
        let response = ask(method, path).await;
        assert_eq!(response.error(), (405, "method_not_allowed".to_owned(), None), "{method} {path}");
        assert_eq!(response.header("allow"), Some(allow), "{method} {path}");
    }
    assert_eq!(ask("GET", "/v1/models/other").await.error().1, "model_not_found");
    for id in ["x", "00000000-0000-0000-0000-000000000000", "../../key-secret", "00000000000000000000000000000000"] {
        let response = ask("GET", &format!("/v1/isolation/receipts/{id}")).await;
        assert_eq!(response.error(), (404, "receipt_not_found".to_owned(), None), "{id}");
    }
}
