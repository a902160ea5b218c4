//! Heads and bodies that are not what they seem, each on a connection of its own, and a server that serves on.

use crate::world::{Client, post_as, start};

const BODY: &str = r#"{"model":"smol","prompt":"a","max_tokens":1}"#;

#[tokio::test]
async fn heads_that_can_be_read_in_two_ways_get_400_and_no_second_request() {
    let world = start(|_| ()).await;
    let key = &world.acme;
    let head =
        |rest: &str| format!("POST /v1/completions HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {key}\r\n{rest}");
    // What a second server on the way could take for a request of its own.
    let smuggled = "GET /healthz HTTP/1.1\r\nhost: t\r\n\r\n";
    let chunked = format!("{:x}\r\n{BODY}\r\n0\r\n\r\n{smuggled}", BODY.len());
    let length = BODY.len();
    let table = [
        (
            "length and chunks",
            head(&format!("content-length: {length}\r\ntransfer-encoding: chunked\r\n\r\n{chunked}")),
        ),
        ("identity and chunks", head(&format!("transfer-encoding: identity, chunked\r\n\r\n{chunked}"))),
        ("chunks twice", head(&format!("transfer-encoding: chunked, chunked\r\n\r\n{chunked}"))),
        (
            "chunks in two headers",
            head(&format!("transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n{chunked}")),
        ),
        ("chunks not last", head(&format!("transfer-encoding: chunked, identity\r\n\r\n{chunked}"))),
        ("two lengths", head(&format!("content-length: {length}\r\ncontent-length: 3\r\n\r\n{BODY}"))),
        ("a list of lengths", head(&format!("content-length: {length}, {length}\r\n\r\n{BODY}"))),
        ("a signed length", head(&format!("content-length: +{length}\r\n\r\n{BODY}"))),
        ("a length beyond 64 bits", head(&format!("content-length: 18446744073709551620\r\n\r\n{BODY}"))),
        ("a folded header", head(&format!("x: a\r\n b\r\ncontent-length: {length}\r\n\r\n{BODY}"))),
        ("a space before the colon", head(&format!("content-length : {length}\r\n\r\n{BODY}"))),
        ("bare line feeds", head(&format!("x: a\ncontent-length: {length}\r\n\r\n{BODY}"))),
        ("no host", format!("GET /healthz HTTP/1.1\r\n\r\n{smuggled}")),
        ("two hosts", format!("GET /healthz HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n{smuggled}")),
        ("not HTTP", format!("\u{1}\u{2}garbage\r\n\r\n{smuggled}")),
        ("two credentials", head(&format!("authorization: Bearer {key}\r\ncontent-length: {length}\r\n\r\n{BODY}"))),
    ];
    for (what, request) in table {
        let mut client = Client::connect(world.address()).await;
        client.send(request).await;
        let response = client.response().await;
        let code = if what == "two credentials" { "several_credentials" } else { "invalid_framing" };
        assert_eq!(response.error(), (400, code.to_owned(), None), "{what}");
        assert_eq!(response.header("connection"), Some("close"), "{what}");
        assert!(client.is_closed().await, "{what}: a second response");
    }
    assert_eq!(world.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn a_head_that_is_refused_is_told_what_is_wrong_with_it() {
    let world = start(|_| ()).await;
    let get = |target: &str, rest: &str| format!("GET {target} HTTP/1.1\r\nhost: a\r\n{rest}\r\n");
    let table = [
        (get("/healthz", "host: b\r\n"), 400, "exactly one Host"),
        (get("/healthz", "host: a\r\n"), 400, "exactly one Host"),
        (get("http://b/healthz", ""), 400, "another host"),
        (get(&format!("/{}", "a".repeat(200_000)), ""), 414, "65534"),
        (get("/healthz", &"x: y\r\n".repeat(300)), 431, "256"),
        (get("/healthz", &format!("x: {}\r\n", "y".repeat(1_200_000))), 431, "1048575"),
    ];
    for (request, status, words) in table {
        let mut client = Client::connect(world.address()).await;
        client.send(request).await;
        let response = client.response().await;
        assert_eq!(response.status, status, "{words}");
        assert!(response.json()["error"]["message"].as_str().unwrap().contains(words), "{}", response.body);
        assert!(client.is_closed().await);
    }
}

#[tokio::test]
async fn a_target_in_absolute_form_is_accepted() {
    let world = start(|_| ()).await;
    let mut client = Client::connect(world.address()).await;
    client.send("GET http://test:1/healthz?x HTTP/1.1\r\nhost: test:1\r\n\r\n").await;
    assert_eq!(client.response().await.json()["status"], "ok");
    let request = world.post("http://test/v1/completions", BODY);
    client.send(request).await;
    assert_eq!(client.response().await.status, 200);
}

#[tokio::test]
async fn short_and_old_requests_are_answered() {
    let world = start(|_| ()).await;
    let mut client = Client::connect(world.address()).await;
    client.send("GET /healthz HTTP/1.0\r\n\r\n").await;
    let response = client.response().await;
    assert_eq!((response.status, response.header("connection")), (200, Some("close")));
    // In two parts, cut anywhere.
    let mut client = Client::connect(world.address()).await;
    client.send("GET /healthz HT").await;
    client.send("TP/1.1\r\nhost: t\r\n\r\n").await;
    assert_eq!(client.response().await.status, 200);
    // And again on the same connection.
    client.send("HEAD /healthz HTTP/1.1\r\nhost: t\r\n\r\n").await;
    assert!(client.sees("\r\n\r\n").await);
}

#[tokio::test]
async fn a_body_beyond_the_limit_gets_413_in_both_framings() {
    let world = start(|config| config.limits.body_bytes_max = 1024).await;
    let large = format!(r#"{{"model":"smol","prompt":"{}"}}"#, "a".repeat(300_000));
    let chunked = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {}\r\ntransfer-encoding: chunked\r\n\r\n\
         {:x}\r\n{large}\r\n0\r\n\r\n",
        world.acme,
        large.len()
    );
    for request in [world.post("/v1/completions", &large), chunked] {
        let mut client = Client::connect(world.address()).await;
        client.send(request).await;
        let response = client.response().await;
        assert_eq!(response.error(), (413, "body_too_large".to_owned(), None));
        assert_eq!(response.header("connection"), Some("close"));
        assert!(client.is_closed().await);
    }
    // Said before anything is read: the announced body is never sent.
    let mut client = Client::connect(world.address()).await;
    let head = "POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-length: 10485760\r\n";
    client.send(format!("{head}authorization: Bearer {}\r\n\r\n", world.acme)).await;
    assert_eq!(client.response().await.status, 413);
}

#[tokio::test]
async fn a_body_that_is_framed_wrongly_or_never_ends_is_refused() {
    let world = start(|config| config.limits.connection.body_timeout = std::time::Duration::from_millis(50)).await;
    let head = format!("POST /v1/completions HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {}\r\n", world.acme);
    let mut client = Client::connect(world.address()).await;
    client.send(format!("{head}transfer-encoding: chunked\r\n\r\nnot a size\r\n{BODY}")).await;
    assert_eq!(client.response().await.error(), (400, "invalid_framing".to_owned(), None));
    let mut client = Client::connect(world.address()).await;
    client.send(format!("{head}content-length: 100\r\n\r\n{{")).await;
    assert_eq!(client.response().await.error(), (408, "body_timeout".to_owned(), None));
    let mut client = Client::connect(world.address()).await;
    client.send(format!("{head}content-encoding: gzip\r\ncontent-length: 2\r\n\r\n{{}}")).await;
    assert_eq!(client.response().await.error(), (415, "unsupported_content_encoding".to_owned(), None));
}

#[tokio::test]
async fn continue_is_said_to_known_callers_only() {
    let world = start(|_| ()).await;
    let request = |key: &str| {
        let request = post_as(key, "/v1/completions", BODY);
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        (format!("{head}\r\nexpect: 100-continue\r\n\r\n"), body.to_owned())
    };
    let mut client = Client::connect(world.address()).await;
    let (head, body) = request(&world.acme);
    client.send(head).await;
    assert_eq!(client.response().await.status, 100);
    client.send(body).await;
    assert_eq!(client.response().await.status, 200);
    // Nobody else is asked for a body.
    let mut client = Client::connect(world.address()).await;
    client.send(request("bk_nobody").0).await;
    assert_eq!(client.response().await.status, 401);
}

#[tokio::test]
async fn a_head_that_never_ends_is_given_up() {
    let world = start(|config| config.limits.connection.head_timeout = std::time::Duration::from_millis(50)).await;
    let mut client = Client::connect(world.address()).await;
    client.send("GET /healthz HTTP/1.1\r\nhost: ").await;
    assert!(client.is_closed().await);
    // A head larger than a megabyte is no head.
    let mut client = Client::connect(world.address()).await;
    let huge = format!("GET /healthz HTTP/1.1\r\nhost: t\r\nx: {}\r\n\r\n", "a".repeat(2 << 20));
    let _ = tokio::io::AsyncWriteExt::write_all(&mut client.socket, huge.as_bytes()).await;
    assert!(client.maybe_response().await.is_none_or(|response| response.status == 431));
    assert_eq!(world.get("/healthz").await.status, 200);
}

const HEALTH: &str = "GET /healthz HTTP/1.1\r\nhost: t\r\n\r\n";
const STREAM: &str = r#"{"model":"smol","prompt":"a","max_tokens":150,"temperature":0,"stream":true}"#;

#[tokio::test]
async fn a_connection_beyond_the_limit_is_told_so_when_all_others_are_at_work() {
    let world = start(|config| config.limits.connections_max = 2).await;
    let (mut first, mut second) = (Client::connect(world.address()).await, Client::connect(world.address()).await);
    for client in [&mut first, &mut second] {
        client.send(world.post("/v1/completions", STREAM)).await;
        assert!(client.sees("data: ").await);
    }
    let mut third = Client::connect(world.address()).await;
    let response = third.response().await;
    assert_eq!(response.error(), (503, "too_many_connections".to_owned(), None));
    assert_eq!(response.header("retry-after"), Some("1"));
    assert!(third.is_closed().await);
    // A place that becomes free is given away, and the other goes on.
    drop(first);
    let fourth = async {
        loop {
            let mut client = Client::connect(world.address()).await;
            client.send(HEALTH).await;
            if client.maybe_response().await.is_some_and(|response| response.status == 200) {
                break;
            }
        }
    };
    tokio::time::timeout(crate::world::PATIENCE, fourth).await.unwrap();
    assert!(second.sees("data: [DONE]").await);
}

#[tokio::test]
async fn clients_that_say_nothing_shut_nobody_out() {
    let world = start(|config| config.limits.connections_max = 4).await;
    let mut working = Client::connect(world.address()).await;
    working.send(world.post("/v1/completions", STREAM)).await;
    assert!(working.sees("data: ").await);
    let mut silent = Client::connect(world.address()).await;
    let mut half = Client::connect(world.address()).await;
    half.send("GET /healthz HTTP/1.1\r\nhost: ").await;
    let mut kept = Client::connect(world.address()).await;
    kept.send(HEALTH).await;
    assert_eq!(kept.response().await.status, 200);
    // Each newcomer is served, one after the other takes the oldest place without a request.
    let mut newcomers = Vec::new();
    for idle in [&mut silent, &mut half, &mut kept] {
        let mut newcomer = Client::connect(world.address()).await;
        newcomer.send(HEALTH).await;
        assert_eq!(newcomer.response().await.status, 200);
        assert!(idle.is_closed().await);
        newcomers.push(newcomer);
    }
    // And so does any number of them, while the work in progress goes on.
    for _ in 0..20 {
        let mut newcomer = Client::connect(world.address()).await;
        newcomer.send(HEALTH).await;
        assert_eq!(newcomer.response().await.status, 200);
        newcomers.push(newcomer);
    }
    assert!(working.sees("data: [DONE]").await);
}
