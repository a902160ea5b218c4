//! Prefixes that an operator declares, on the real model: every tenant finds them, no bit changes, nothing else is shared.

mod rig;

use engine_kernels::KvKind;
use engine_model::ChatMessage;
use engine_runtime::{Engine, EngineConfig, PromptInput, PublicPrefix, Split};
use policies_domain::Label;
use rig::{ACME, Answer, GLOBEX, answer, declaring, engine, greedy, submit_input, tenant};

const SMALL: EngineConfig = EngineConfig {
    threads: 2,
    pages: 256,
    sequences_max: 8,
    queue_max: 16,
    prefill_chunk_tokens: 32,
    step_target_ms: 60_000,
    queue_wait_max_ms: 600_000,
    prefix_cache: true,
    speculation: false,
    swap_mib: 0,
    context_tokens_max: None,
    kv: KvKind::Bf16,
    split: Split::Off,
    decode_threads: None,
    preallocate: false,
};
const PREAMBLE: &str = "You are the assistant of a library. Answer in one short sentence, name the shelf where a book stands, \
                        and say so when you do not know it. Never speak of prices. Be kind to children and patient with all.";

fn chat(system: &str, user: &str) -> PromptInput {
    let message = |role: &str, content: &str| ChatMessage { role: role.into(), content: content.into() };
    PromptInput::Chat(vec![message("system", system), message("user", user)])
}

fn declared() -> [PublicPrefix; 2] {
    [PublicPrefix::System(PREAMBLE.into()), PublicPrefix::Text("Once upon a time there was a small village ".repeat(4))]
}

async fn ask(engine: &Engine, number: u32, request: u8, prompt: &PromptInput) -> Answer {
    answer(submit_input(engine, number, request, prompt, greedy(16))).await
}

#[tokio::test]
async fn a_declared_prefix_is_found_by_every_tenant_and_changes_no_bit() {
    for split in [Split::Off, Split::Relabel, Split::Copy] {
        let plain = engine(EngineConfig { prefix_cache: false, split, ..SMALL });
        let sharing = declaring(EngineConfig { split, ..SMALL }, &declared()).unwrap();
        let question = "Where do the stories about whales stand, and who may read them at home over the long winter?";
        let text = "Once upon a time there was a small village ".repeat(4) + "by the sea, and in it";
        for (kind, prompt) in [chat(PREAMBLE, question), PromptInput::Text(text)].iter().enumerate() {
            let without = ask(&plain, ACME, 1, prompt).await;
            let mut cached = Vec::new();
            for number in [ACME, GLOBEX] {
                let with = ask(&sharing, number, 2, prompt).await;
                assert_eq!(with.text, without.text, "{split:?}");
                assert_eq!(with.usage.prompt_tokens, without.usage.prompt_tokens);
                let own = Label::of(tenant(number));
                assert!(with.read.contains(&Label::PUBLIC), "{split:?}");
                assert!(with.read.iter().all(|read| read.flows_to(own)), "{split:?}");
                cached.push(with.usage.cached_tokens);
            }
            let [acme, globex] = cached[..] else { panic!("two tenants") };
            assert!(acme >= 32 && acme % 16 == 0, "{split:?}: {acme}");
            assert_eq!(acme, globex, "{split:?}: what acme said behind the prefix is acme's");
            let again = ask(&sharing, ACME, 3, prompt).await;
            assert_eq!(again.text, without.text);
            assert!(kind == 1 || again.usage.cached_tokens > acme, "{split:?}: its own goes on behind the prefix");
        }
        // Nothing is found of another prompt, and nothing else is shared.
        let other =
            chat("You are somebody else altogether, and you like to talk about the weather all day long.", question);
        for (number, request) in [(ACME, 4), (GLOBEX, 5)] {
            let found = ask(&sharing, number, request, &other).await;
            assert!(found.usage.cached_tokens == 0 && !found.read.contains(&Label::PUBLIC), "{split:?}");
        }
    }
}

#[test]
fn what_cannot_be_declared_is_refused_with_numbers() {
    let refused = |config, declared: &[PublicPrefix]| declaring(config, declared).err().map(|error| error.to_string());
    let text = |words: usize| PublicPrefix::Text("village ".repeat(words));
    let short = refused(SMALL, &[text(40), PublicPrefix::Text("Once".into())]).unwrap();
    assert!(short.starts_with("public prefix 2 has ") && short.ends_with("a page takes 16"), "{short}");
    let long = refused(EngineConfig { pages: 64, ..SMALL }, &[text(60), text(90)]);
    let wanted = "the public prefixes need 8 pages, 6 at most can be everybody's: a tenth of engine setting `pages`";
    assert_eq!(long.as_deref(), Some(wanted));
    let without = refused(EngineConfig { prefix_cache: false, ..SMALL }, &[text(40)]);
    let wanted = "public prefixes need a prefix cache in this process, and engine setting `prefix_cache` is off";
    assert_eq!(without.as_deref(), Some(wanted));
    assert_eq!(refused(EngineConfig { prefix_cache: false, ..SMALL }, &[]), None);
}

#[test]
fn a_request_has_to_fit_beside_what_is_everybodys() {
    let config = EngineConfig { pages: 40, ..SMALL };
    let of = |declared: &[PublicPrefix]| declaring(config, declared).unwrap().context_max();
    assert_eq!([of(&[]), of(&[PublicPrefix::Text("village ".repeat(40))])], [640, 640 - 32]);
}
