//! Results of audits, written down for probes and for nobody else.

use crate::world::{Client, Response, World, post_as, start};
use policies_domain::TenantName;
use serde_json::json;

const PATH: &str = "/v1/isolation/audits";

fn result() -> String {
    json!({"audit": "sidechannel", "verdict": "void", "controls": [{"p": 0.4, "p_holm": 0.4}], "arms": []}).to_string()
}

async fn post(world: &World, key: &str, body: &str) -> Response {
    let mut client = Client::connect(world.address()).await;
    client.send(post_as(key, PATH, body)).await;
    client.response().await
}

#[tokio::test]
async fn nobody_records_audits_unless_the_operator_says_who() {
    let world = start(|_| {}).await;
    let refused = post(&world, &world.acme, &result()).await;
    assert_eq!(refused.error(), (403, "no_probe".into(), None));
    let unknown = post(&world, "bk_nobody", &result()).await;
    assert_eq!(unknown.error().0, 401);
    assert_eq!(world.get(PATH).await.error().0, 405);
}

#[tokio::test]
async fn a_probe_records_one_result_at_a_time_and_is_told_where_it_is() {
    let world = start(|config| {
        config.probes.insert(TenantName::parse("acme").unwrap());
    })
    .await;
    let recorded = post(&world, &world.acme, &result()).await;
    assert_eq!(recorded.status, 201);
    let entry = recorded.json();
    assert!(entry["index"].as_u64().is_some_and(|index| index > 0), "{entry}");
    assert_eq!(entry["leaf"].as_str().map(str::len), Some(64));
    let again = post(&world, &world.acme, &result()).await;
    assert_eq!(again.error(), (429, "audit_too_soon".into(), None));
    assert!(again.header("retry-after").is_some_and(|seconds| seconds.parse::<u64>().unwrap() <= 10));
    assert_eq!(post(&world, &world.globex, &result()).await.error().0, 403);
}

#[tokio::test]
async fn what_is_no_result_or_too_long_is_not_recorded() {
    let probe = |config: &mut gateway_server::Config| {
        config.probes.insert(TenantName::parse("acme").unwrap());
        config.probes.insert(TenantName::parse("globex").unwrap());
    };
    let world = start(probe).await;
    let refused = post(&world, &world.acme, r#"{"audit":"sidechannel","verdict":"fine"}"#).await;
    assert_eq!(refused.error(), (400, "invalid_value".into(), Some("verdict".into())));
    let long = format!("{{\"audit\":\"{}\"}}", "x".repeat(64 << 10));
    assert_eq!(post(&world, &world.globex, &long).await.error().0, 413);
}
