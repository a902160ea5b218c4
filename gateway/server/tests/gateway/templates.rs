//! Chat templates that came with a hostile model: what they cost is their own request.

use crate::world::{Client, World, post_as, start};
use engine_model::{CompileChat, LoadTemplateError};
use gateway_server::RenderProcesses;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const CHAT: &str = "/v1/chat/completions";
const GOOD: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: ";

/// What one template does when a conversation begins with its name. Each passes every check at the start.
const HOSTILE: &[(&str, &str)] = &[
    ("nest and drop", "{{ deep(NEST) }}"),
    ("nest and print", "{{ deep(NEST) }}{{ ns.x }}"),
    ("nest and write as json", "{{ deep(NEST) }}{{ ns.x|tojson }}"),
    ("nest and compare", "{{ deep(NEST) }}{{ ns.x == ns.x }}"),
    ("double a list", "{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x|length }}"),
    ("sum a doubled list", "{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x|sum }}"),
    ("compare long texts", "{% for i in range(90000) %}{% set z = a == b %}{% endfor %}"),
    ("index a long text", "{% for i in range(90000) %}{% set z = a[9999999] %}{% endfor %}"),
    ("search a long text", "{% for i in range(90000) %}{% set z = 'b' in a %}{% endfor %}"),
    ("join", "{{ range(100000)|list|join('x' * 1000000) }}"),
    ("count for ever", "{% for i in range(90000) %}{% for i in range(90000) %}{% endfor %}{% endfor %}"),
];

/// Nests deeper than what any stack of ordinary size can drop.
const NEST: &str = "{% for j in range(5) %}{% for i in range(90000) %}{% set ns.x = [ns.x] %}{% endfor %}{% endfor %}";

fn seeds() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/seeds")
}

/// A small model with this template.
fn model(template: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (seed, name) in [
        ("model/config.json", "config.json"),
        ("tokenizer_json/byte_level.json", "tokenizer.json"),
        ("safetensors/bf16.safetensors", "model.safetensors"),
    ] {
        fs::copy(seeds().join(seed), folder.path().join(name)).unwrap();
    }
    fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    folder
}

async fn serve(template: &str) -> (World, TempDir) {
    let folder = model(template);
    let world = start(|config| folder.path().clone_into(&mut config.model)).await;
    (world, folder)
}

fn chat(contents: &[&str]) -> String {
    let messages: Vec<_> = contents.iter().map(|content| json!({"role": "user", "content": content})).collect();
    json!({"model": "smol", "messages": messages, "max_tokens": 2}).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_template_costs_its_own_request_and_nobody_elses() {
    let branches: String = HOSTILE
        .iter()
        .map(|(name, body)| {
            format!("{{% elif messages[0].content == '{name}' %}}{}", body.replace("{{ deep(NEST) }}", NEST))
        })
        .collect();
    let before = "{% set a = 'a' * 10000000 %}{% set b = 'a' * 10000000 %}{% set ns = namespace(x=[1]) %}";
    let (world, _folder) = serve(&format!("{before}{{% if false %}}{branches}{{% endif %}}{GOOD}")).await;
    for (name, _) in HOSTILE {
        let mut other = Client::connect(world.address()).await;
        let plain = json!({"model": "smol", "prompt": "Hello", "max_tokens": 2}).to_string();
        let (hostile, ()) = tokio::join!(
            async { world.ask(CHAT, &chat(&[name])).await },
            other.send(post_as(&world.globex, "/v1/completions", &plain)),
        );
        assert_eq!(hostile.error(), (400, "invalid_conversation".to_owned(), Some("messages".to_owned())), "{name}");
        let message = hostile.json()["error"]["message"].as_str().unwrap().to_owned();
        assert_eq!(message, "The model's chat template takes too much work.", "{name}");
        assert_eq!(other.response().await.status, 200, "{name}: another tenant's completion");
        assert_eq!(world.ask(CHAT, &chat(&["Hello"])).await.status, 200, "after {name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_template_refuses_is_told_in_its_own_words_across_processes() {
    let refuses = "{% if messages|length > 1 %}{{ raise_exception('One question only.') }}{% endif %}";
    let (world, _folder) = serve(&format!("{refuses}{GOOD}")).await;
    let refused = world.ask(CHAT, &chat(&["a", "b"])).await;
    assert_eq!(refused.error().0, 400);
    let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(message, "The model's chat template refuses the conversation: One question only..");
    assert_eq!(world.ask(CHAT, &chat(&["a"])).await.status, 200);
    let (world, _folder) = serve("{{ messages[0].content.CANARY() }}").await;
    let failed = world.ask(CHAT, &chat(&["CANARY-7"])).await;
    assert!(failed.error().0 == 400 && !failed.body.contains("CANARY-7"), "{}", failed.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_makes_nothing_is_said_to_be_one() {
    let (world, _folder) = serve("").await;
    assert_eq!(world.ask(CHAT, &chat(&["a"])).await.error().1, "no_chat_template");
    let (world, _folder) = serve("{# nothing #}").await;
    let refused = world.ask(CHAT, &chat(&["a"])).await;
    assert!(refused.body.contains("makes nothing of the conversation"), "{}", refused.body);
}

#[test]
fn a_template_that_overflows_its_parser_is_refused() {
    let processes = RenderProcesses::new(Path::new(env!("CARGO_BIN_EXE_bulkhead")), 1);
    let compile = |source: &str| processes.compile(source).map(drop);
    assert!(compile("{{ 1 ~ 1 }}").is_ok());
    assert!(matches!(compile("{{ 1 ~ }}"), Err(LoadTemplateError::Mistake { line: 1, .. })));
    let many = |times: usize, begin: &str, part: &str, end: &str| format!("{begin}{}{end}", part.repeat(times));
    for source in [
        many(30_000, "{{ 1", "~1", " }}"),
        many(100_000, "{{ 1", "+1", " }}"),
        many(100_000, "{{ a", ".b", " }}"),
        many(100_000, "{{ 1", " and 1", " }}"),
        many(100_000, "{{ 1", "|string", " }}"),
        many(50_000, "{% if 0 %}", "{% elif 0 %}", "{% endif %}"),
    ] {
        let error = compile(&source).unwrap_err();
        assert!(matches!(error, LoadTemplateError::TooMuchWork), "{}: {error}", &source[..20]);
    }
    // Near the bound either is right, as long as somebody is left to say it.
    let near = compile(&many(5_000, "{{ 1", "~1", " }}"));
    assert!(matches!(near, Ok(()) | Err(LoadTemplateError::TooMuchWork)), "{near:?}");
}
