//! Responses that go well, clients that leave, and clients that do not read.

use crate::world::{Client, start};
use gateway_server::{Agreement, StreamShape};
use policies_domain::TenantName;
use serde_json::{Value, json};
use std::time::Duration;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

fn chat(changes: &Value) -> String {
    let mut body = json!({"model": "smol", "messages": [{"role": "user", "content": "Count to ten."}],
        "max_tokens": 12, "temperature": 0});
    body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    body.to_string()
}

/// The text of a stream, from its chunks.
fn text_of(events: &[Value]) -> String {
    events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["content"].as_str().or(event["choices"][0]["text"].as_str()))
        .collect()
}

#[tokio::test]
async fn a_stream_says_the_same_as_a_whole_response() {
    let world = start(|_| ()).await;
    let whole = world.ask(CHAT, &chat(&json!({}))).await;
    assert_eq!(whole.status, 200, "{}", whole.body);
    let body = whole.json();
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["model"], "smol");
    assert_eq!(body["choices"][0]["message"]["role"], "assistant");
    let usage = &body["usage"];
    assert_eq!(usage["completion_tokens"], 12);
    assert!(usage["prompt_tokens_details"]["cached_tokens"].as_u64() < usage["prompt_tokens"].as_u64());
    assert_eq!(usage["total_tokens"].as_u64(), Some(12 + usage["prompt_tokens"].as_u64().unwrap()));

    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    let stream = world.ask(CHAT, &chat(&options)).await;
    assert_eq!(stream.status, 200);
    assert!(stream.complete);
    assert_eq!(stream.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let events = stream.events();
    assert_eq!(events.last(), Some(&"[DONE]"));
    let events: Vec<Value> =
        events[..events.len() - 1].iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    assert_eq!(text_of(&events), body["choices"][0]["message"]["content"].as_str().unwrap());
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    let (last, usage_event) = (&events[events.len() - 2], &events[events.len() - 1]);
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    assert_eq!(usage_event["choices"], json!([]));
    // The second time the prompt may be in the tenant's cache: that is said, and nothing else differs.
    let mut usage = usage.clone();
    usage["prompt_tokens_details"] = usage_event["usage"]["prompt_tokens_details"].clone();
    assert_eq!(usage_event["usage"], usage);
    assert!(events.iter().all(|event| event["id"] == events[0]["id"] && event["object"] == "chat.completion.chunk"));

    // The place in the log stands between the text and the end.
    let place = stream.body.split("\n\n").find_map(|event| event.strip_prefix(": isolation ")).unwrap();
    let place: Value = serde_json::from_str(place).unwrap();
    assert_eq!(place["id"].as_str(), stream.header("x-isolation-id"));
    assert_eq!(place["chain_head"].as_str().map(str::len), Some(64));
    assert!(stream.body.find(": isolation").unwrap() < stream.body.find("[DONE]").unwrap());
    for response in [&whole, &stream] {
        let id = response.header("x-isolation-id").unwrap();
        assert_eq!(response.header("x-isolation-mode"), Some("enforce"));
        let link = format!("</v1/isolation/receipts/{id}>; rel=\"isolation-receipt\"");
        assert_eq!(response.header("link"), Some(link.as_str()));
    }
    assert_ne!(whole.header("x-isolation-id"), stream.header("x-isolation-id"));
}

#[tokio::test]
async fn plain_completions_come_whole_and_in_pieces() {
    let world = start(|_| ()).await;
    let body = |stream: bool| json!({"model": "smol", "prompt": ["Once upon a time"], "max_tokens": 8, "temperature": 0, "stream": stream});
    let whole = world.ask(TEXT, &body(false).to_string()).await.json();
    assert_eq!(
        (&whole["object"], &whole["choices"][0]["finish_reason"]),
        (&json!("text_completion"), &json!("length"))
    );
    let stream = world.ask(TEXT, &body(true).to_string()).await;
    let events: Vec<Value> = stream.events().iter().filter_map(|event| serde_json::from_str(event).ok()).collect();
    assert_eq!(text_of(&events), whole["choices"][0]["text"].as_str().unwrap());
}

#[tokio::test]
async fn a_connection_serves_one_request_after_another() {
    let world = start(|_| ()).await;
    let mut client = Client::connect(world.address()).await;
    for stream in [true, false, true] {
        client.send(world.post(CHAT, &chat(&json!({"stream": stream, "max_tokens": 2})))).await;
        let response = client.response().await;
        assert_eq!((response.status, response.complete), (200, true));
        assert_eq!(response.header("connection"), Some("keep-alive"));
    }
}

#[tokio::test]
async fn what_a_client_sends_too_early_costs_it_no_answer() {
    let world = start(|_| ()).await;
    let next = "GET /healthz HTTP/1.1\r\nhost: t\r\n\r\n";
    for stream in [true, false] {
        for early in [next.to_owned(), format!("\r\n{next}"), "\r\n".to_owned()] {
            let request = world.post(CHAT, &chat(&json!({"stream": stream, "max_tokens": 12})));
            // In one piece with the request, and while the answer is being made.
            let mut client = Client::connect(world.address()).await;
            client.send(format!("{request}{early}")).await;
            let mut late = Client::connect(world.address()).await;
            late.send(&request).await;
            world.engine_is_busy().await;
            late.send(&early).await;
            for client in [&mut client, &mut late] {
                let response = client.response().await;
                assert_eq!((response.status, response.complete), (200, true), "{early:?}");
                if early == "\r\n" {
                    client.send(next).await;
                }
                assert_eq!(client.response().await.json()["status"], "ok", "{early:?}");
            }
        }
    }
}

#[tokio::test]
async fn an_early_request_is_checked_like_any_other() {
    let world = start(|_| ()).await;
    let request = world.post(CHAT, &chat(&json!({"max_tokens": 2})));
    let mut client = Client::connect(world.address()).await;
    client.send(format!("{request}GET /healthz HTTP/1.1\r\nhost: t\nx: y\r\n\r\n")).await;
    assert_eq!(client.response().await.status, 200);
    assert_eq!(client.response().await.error(), (400, "invalid_framing".to_owned(), None));
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn work_stops_when_the_client_leaves_a_stream() {
    let world = start(|_| ()).await;
    for half in [false, true] {
        let mut client = Client::connect(world.address()).await;
        client.send(world.post(CHAT, &chat(&json!({"stream": true, "max_tokens": 2000})))).await;
        assert!(client.sees("data: ").await);
        if half {
            // Closing the sending side only counts as leaving, too.
            tokio::io::AsyncWriteExt::shutdown(&mut client.socket).await.unwrap();
        } else {
            drop(client);
        }
        world.engine_is_idle().await;
    }
    world.clients_left("chat_completions", 2).await;
    let decoded = world.engine.stats().tokens_decoded_total;
    assert!(decoded < 2000, "{decoded} tokens decoded for two clients that left after the first of 2,000");
}

#[tokio::test]
async fn work_stops_when_the_client_leaves_before_the_first_byte() {
    let world = start(|_| ()).await;
    for stream in [true, false] {
        let mut client = Client::connect(world.address()).await;
        let long = "lorem ipsum dolor sit amet ".repeat(250);
        let messages = json!({"messages": [{"role": "user", "content": long}], "stream": stream, "max_tokens": 500});
        client.send(world.post(CHAT, &chat(&messages))).await;
        world.engine_is_busy().await;
        drop(client);
        world.engine_is_idle().await;
    }
    world.clients_left("chat_completions", 2).await;
    let stats = world.engine.stats();
    assert!(stats.tokens_decoded_total < 500, "{stats:?}: work went on for clients that had left");
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut() {
    let world = start(|config| config.limits.connection.write_timeout = Duration::from_millis(200)).await;
    // Small buffers, so that the server soon has to wait.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(1024).unwrap();
    let mut stalled = socket.connect(world.address()).await.unwrap();
    // A response of some 500,000 bytes: 2,000 chunks of 250. Buffers on the way hold less than half of it.
    let body = json!({"model": "smol", "prompt": "1, 2, 3, 4, 5, 6, 7,", "max_tokens": 2000, "stream": true, "temperature": 0});
    let request = world.post(TEXT, &body.to_string());
    tokio::io::AsyncWriteExt::write_all(&mut stalled, request.as_bytes()).await.unwrap();
    world.engine_is_busy().await;
    // Others are served meanwhile.
    assert_eq!(world.ask(CHAT, &chat(&json!({"max_tokens": 2}))).await.status, 200);
    world.engine_is_idle().await;
    world.clients_left("completions", 1).await;
}

#[tokio::test]
async fn a_full_queue_says_when_to_come_back() {
    let world = start(|config| (config.engine.sequences_max, config.engine.queue_max) = (1, 1)).await;
    let story = json!([{"role": "user", "content": "Tell me a very long story about a lighthouse keeper."}]);
    let long = json!({"messages": story, "stream": true, "max_tokens": 2000, "temperature": 0});
    let mut running = Client::connect(world.address()).await;
    running.send(world.post(CHAT, &chat(&long))).await;
    assert!(running.sees("data: ").await);
    let mut waiting = Client::connect(world.address()).await;
    waiting.send(world.post(CHAT, &chat(&long))).await;
    let queued = async {
        while world.engine.stats().sequences_waiting == 0 {
            tokio::task::yield_now().await
        }
    };
    tokio::time::timeout(crate::world::PATIENCE, queued).await.unwrap();
    for stream in [true, false] {
        let refused = world.ask(CHAT, &chat(&json!({"stream": stream}))).await;
        assert_eq!(refused.error(), (503, "engine_overloaded".to_owned(), None));
        assert!(refused.header("retry-after").is_some_and(|wait| wait.parse::<u64>().is_ok_and(|wait| wait >= 1)));
        assert!(refused.header("x-isolation-id").is_some(), "it is on record all the same");
    }
    let metrics = world.get("/metrics").await.body;
    let counted = r#"gateway_queue_refusals_total{queue="queue_full",tenant="acme"} 2"#;
    assert!(metrics.lines().any(|line| line == counted), "{metrics}");
    // A place in the queue is free as soon as its owner leaves.
    drop((running, waiting));
    world.engine_is_idle().await;
    assert_eq!(world.ask(CHAT, &chat(&json!({"max_tokens": 1}))).await.status, 200);
}

#[tokio::test]
async fn a_stream_of_constant_shape_says_the_same_in_events_of_one_size() {
    let world = start(|config| {
        let shape = StreamShape::ConstantShape;
        config
            .agreements
            .insert(TenantName::parse("acme").unwrap(), Agreement { stream: shape, ..Agreement::default() });
        config.limits.constant_shape_period = Duration::from_millis(20);
    })
    .await;
    let options = json!({"stream": true, "stream_options": {"include_usage": true, "include_obfuscation": true}});
    let stream = world.ask(CHAT, &chat(&options)).await;
    assert!(stream.complete && stream.status == 200, "{}", stream.body);
    let events = stream.events();
    let (done, events) = events.split_last().unwrap();
    assert_eq!(*done, "[DONE]");
    assert!(events.iter().all(|event| event.len() == events[0].len()), "{events:?}");
    let events: Vec<Value> = events.iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    // Another tenant's stream leaves as it comes, and says the same.
    let mut other = Client::connect(world.address()).await;
    other.send(crate::world::post_as(&world.globex, CHAT, &chat(&json!({"stream": true})))).await;
    let as_it_comes = other.response().await;
    let sizes: std::collections::BTreeSet<_> = as_it_comes.events().iter().map(|event| event.len()).collect();
    assert!(sizes.len() > 2, "{sizes:?}");
    let pieces: Vec<Value> = as_it_comes.events().iter().filter_map(|event| serde_json::from_str(event).ok()).collect();
    assert_eq!(text_of(&events), text_of(&pieces));
    assert_eq!(events.last().unwrap()["usage"]["completion_tokens"], 12);
    assert!(events.iter().all(|event| event["obfuscation"].is_string()));
    // Whole answers have no events, and whether there is padding is not the client's to say.
    assert_eq!(world.ask(CHAT, &chat(&json!({}))).await.json()["choices"][0]["finish_reason"], "length");
    let unpadded = json!({"stream": true, "stream_options": {"include_obfuscation": false}});
    let param = Some("stream_options.include_obfuscation".to_owned());
    assert_eq!(world.ask(CHAT, &chat(&unpadded)).await.error(), (400, "unsupported_parameter".to_owned(), param));
}

#[tokio::test]
async fn a_waiting_stream_is_kept_alive() {
    let world = start(|config| config.limits.comment_interval = Duration::from_millis(1)).await;
    let long = "lorem ipsum dolor sit amet ".repeat(40);
    let messages = json!({"messages": [{"role": "user", "content": long}], "stream": true, "max_tokens": 2});
    let response = world.ask(CHAT, &chat(&messages)).await;
    assert!(response.body.starts_with(": keep-alive\n\n"), "{}", response.body);
    assert!(response.complete && response.body.ends_with("data: [DONE]\n\n"));
    // Never in a body that is not a stream.
    let messages = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5});
    assert!(world.ask(CHAT, &chat(&messages)).await.json()["choices"].is_array());
}

#[tokio::test]
async fn stop_strings_end_a_response_and_are_not_part_of_it() {
    let world = start(|_| ()).await;
    let whole = world.ask(CHAT, &chat(&json!({"max_tokens": 30}))).await.json();
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let stop: String = text.chars().skip(5).take(4).collect();
    let stopped = world.ask(CHAT, &chat(&json!({"max_tokens": 30, "stop": [stop]}))).await.json();
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    let kept = stopped["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(kept, &text[..text.find(&stop).unwrap()]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_tenants_at_once_get_their_own_answers() {
    let world = start(|_| ()).await;
    let ask = async |key: &str| {
        let mut client = Client::connect(world.address()).await;
        client.send(crate::world::post_as(key, CHAT, &chat(&json!({"stream": true})))).await;
        client.response().await
    };
    let (acme, globex) = tokio::join!(ask(&world.acme), ask(&world.globex));
    assert!(acme.complete && globex.complete);
    assert_ne!(acme.header("x-isolation-id"), globex.header("x-isolation-id"));
    // Greedy decoding of the same prompt: the company in the batch makes no difference.
    let words = |response: &crate::world::Response| {
        text_of(&response.events().iter().filter_map(|event| serde_json::from_str(event).ok()).collect::<Vec<_>>())
    };
    assert_eq!(words(&acme), words(&globex));
}
