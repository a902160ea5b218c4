//! The client against answers as a gateway gives them.

use super::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const MODELS: &str = r#"{"object":"list","data":[{"id":"m","fingerprint":"ab","max_model_len":512}]}"#;

/// Gives each connection what `answer` makes of its request.
async fn gateway(answer: impl Fn(&str) -> String + Send + 'static) -> Address {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = Address::of(listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut asked = vec![0; 1 << 16];
            let read = stream.read(&mut asked).await.unwrap();
            let answer = answer(&String::from_utf8_lossy(&asked[..read]));
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    address
}

fn keys() -> Keys {
    Keys { victim: "bk_a".to_owned(), attacker: "bk_b".to_owned() }
}

fn whole(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn events(events: &[&str]) -> String {
    let events: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    format!("HTTP/1.1 200 OK\r\n\r\n{events}")
}

async fn connected(completion: impl Fn(&str) -> String + Send + 'static) -> HttpGateway {
    let address =
        gateway(move |asked| if asked.starts_with("GET") { whole("200 OK", MODELS) } else { completion(asked) }).await;
    let (gateway, server) = HttpGateway::connect(address, keys(), 512).await.unwrap();
    assert_eq!((server.model.as_str(), server.fingerprint.as_deref()), ("m", Some("ab")));
    gateway
}

#[tokio::test]
async fn each_party_asks_with_its_own_key_and_learns_what_was_cached() {
    let completion = |asked: &str| {
        assert!(asked.contains(r#""max_tokens":1,"#) && asked.contains(r#""include_usage":true"#), "{asked}");
        let cached = if asked.contains("Bearer bk_a") { 48 } else { 0 };
        let usage =
            format!(r#"{{"usage":{{"prompt_tokens":70,"prompt_tokens_details":{{"cached_tokens":{cached}}}}}}}"#);
        events(&[r#"{"choices":[{"text":"x"}]}"#, &usage, "[DONE]"])
    };
    let mut gateway = connected(completion).await;
    let victim = gateway.ask(Party::Victim, "a b").await.unwrap();
    assert_eq!((victim.prompt_tokens, victim.cached_tokens), (70, 48));
    assert!(victim.first_us > 0.0);
    assert_eq!(gateway.ask(Party::Attacker, "a b").await.unwrap().cached_tokens, 0);
    let batch = vec![(Party::Attacker, "a".to_owned()), (Party::Victim, "b".to_owned())];
    let cached: Vec<u64> = gateway.ask_at_once(batch).await.unwrap().iter().map(|one| one.cached_tokens).collect();
    assert_eq!(cached, [0, 48], "in the order in which they were asked");
}

#[tokio::test]
async fn a_stream_has_the_size_of_its_events_with_what_pads_them() {
    let text = r#"{"choices":[{"text":"x"}]}"#;
    let completion = move |_: &str| {
        format!(
            "HTTP/1.1 200 OK\r\n\r\n: {}\ndata: {text}\n\ndata: {text}\n\ndata: {{}}\n\ndata: [DONE]\n\n",
            "-".repeat(98)
        )
    };
    let shape = connected(completion).await.stream(Party::Victim, "a").await.unwrap();
    let lines = 101 + 2 * ("data: \n\n".len() + text.len());
    assert!((shape.bytes - lines as f64 / 2.0).abs() < 1e-9, "{shape:?}");
}

#[tokio::test]
async fn what_a_gateway_refuses_ends_the_audit_in_its_words_and_never_in_the_prompts() {
    let refused = |_: &str| whole("400 Bad Request", r#"{"error":{"message":"The prompt is too long."}}"#);
    let error = connected(refused).await.ask(Party::Victim, "secret words").await.unwrap_err();
    assert_eq!(error.to_string(), "400: The prompt is too long.");
    let stopped = |_: &str| whole("500 Error", r#"{"error":{"message":"Stopped.","code":"isolation_fault"}}"#);
    assert!(connected(stopped).await.ask(Party::Attacker, "secret words").await.unwrap().stopped);
    let cut = |_: &str| events(&[]);
    let error = connected(cut).await.ask(Party::Victim, "secret words").await.unwrap_err();
    assert!(error.to_string().contains("before its first event"), "{error}");
    let broken = |_: &str| events(&[r#"{"error":{"message":"stopped\u001b[1m"}}"#]);
    let error = connected(broken).await.ask(Party::Victim, "secret words").await.unwrap_err();
    assert_eq!(error.to_string(), "the gateway ended an answer: stopped\u{fffd}[1m");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_never_comes_is_waited_for_so_long_and_a_stop_counts_once() {
    let begun = tokio::time::Instant::now();
    let error = in_time(std::future::pending::<Result<()>>()).await.unwrap_err();
    assert_eq!(error.to_string(), "an answer took more than 120 s");
    assert_eq!(begun.elapsed().as_secs(), 120);
    let stopped = async {
        // As after a stop: all at once, an hour has passed.
        tokio::time::advance(Duration::from_secs(3_600)).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        anyhow::Ok(7)
    };
    assert_eq!(in_time(stopped).await.unwrap(), 7);
}

#[tokio::test]
async fn keys_of_different_models_are_refused() {
    let other = MODELS.replace("\"m\"", "\"n\"");
    let address =
        gateway(move |asked| whole("200 OK", if asked.contains("bk_a") { MODELS } else { other.as_str() })).await;
    let Err(error) = HttpGateway::connect(address, keys(), 512).await else { panic!("the models differ") };
    assert!(error.to_string().contains("the same model"), "{error}");
}

#[tokio::test]
async fn prompts_that_the_gateway_does_not_take_are_refused_before_anything_is_measured() {
    let address = gateway(|_| whole("200 OK", MODELS)).await;
    let Err(error) = HttpGateway::connect(address, keys(), 513).await else { panic!("the prompts are too long") };
    assert_eq!(error.to_string(), "prompts of 513 tokens are too long for the gateway, which takes 512 tokens");
}

#[tokio::test]
async fn the_result_goes_to_the_log_as_it_is_or_the_reason_is_told() {
    let address = gateway(|asked| {
        assert!(asked.starts_with("POST /v1/isolation/audits ") && asked.contains("Bearer bk_a"), "{asked}");
        assert!(asked.ends_with(r#"{"verdict":"void"}"#), "{asked}");
        whole("201 Created", r#"{"index":7,"leaf":"ab"}"#)
    })
    .await;
    let recorded = record(&address, &keys(), r#"{"verdict":"void"}"#.to_owned()).await.unwrap();
    assert!(matches!(recorded, Recorded::At { index: 7, .. }), "{recorded:?}");
    let address = gateway(|_| whole("403 Forbidden", r#"{"error":{"message":"Not a probe."}}"#)).await;
    let recorded = record(&address, &keys(), "{}".to_owned()).await.unwrap();
    assert!(matches!(&recorded, Recorded::Not { reason } if reason == "403: Not a probe."), "{recorded:?}");
}
