//! Prefixes that an operator declares, and what tenants see of them.

use crate::world::{Client, World, post_as, start};
use engine_runtime::PublicPrefix;
use serde_json::json;

const PREAMBLE: &str =
    "You are the assistant of a library. Answer in one short sentence, and name the shelf of the book.";

/// The text of an answer, and how many tokens of the prompt were there already.
async fn ask(world: &World, key: &str, system: &str) -> (String, u64) {
    let messages = json!([{"role": "system", "content": system}, {"role": "user", "content": "Where are whales?"}]);
    let body = json!({"model": "smol", "messages": messages, "max_tokens": 6, "temperature": 0}).to_string();
    let mut client = Client::connect(world.address()).await;
    client.send(post_as(key, "/v1/chat/completions", &body)).await;
    let answer = client.response().await.json();
    let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    (answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned(), cached)
}

#[tokio::test]
async fn tenants_share_what_was_declared_and_nothing_else() {
    let world = start(|config| config.public_prefixes = vec![PublicPrefix::System(PREAMBLE.to_owned())]).await;
    let plain = start(|config| config.engine.prefix_cache = false).await;
    let (wanted, none) = ask(&plain, &plain.acme, PREAMBLE).await;
    assert_eq!(none, 0);
    let [acme, globex] = [ask(&world, &world.acme, PREAMBLE).await, ask(&world, &world.globex, PREAMBLE).await];
    assert_eq!((&acme.0, &globex), (&wanted, &acme), "the same answers, and the same hits");
    assert!(acme.1 >= 16, "{acme:?}");
    let other = format!("{PREAMBLE} Be kind.").replace("library", "garden");
    let [acme, globex] = [ask(&world, &world.acme, &other).await, ask(&world, &world.globex, &other).await];
    assert!(acme.1 < 16 && globex.1 < 16, "{acme:?} {globex:?}");
}

#[tokio::test]
async fn without_a_declaration_nothing_is_shared() {
    let world = start(|_| ()).await;
    let first = [ask(&world, &world.acme, PREAMBLE).await.1, ask(&world, &world.globex, PREAMBLE).await.1];
    assert_eq!(first, [0, 0], "what acme asked is not found by globex");
    let again = [ask(&world, &world.acme, PREAMBLE).await.1, ask(&world, &world.globex, PREAMBLE).await.1];
    assert!(again[0] >= 16 && again[0] == again[1], "each finds its own: {again:?}");
}
