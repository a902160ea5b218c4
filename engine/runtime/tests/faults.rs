//! Planted faults: what the engine reports of a wrong page. Whether text may leave is not decided here.
#![cfg(feature = "fault-injection")]

mod rig;

use engine_kernels::KvKind;
use engine_runtime::{EngineConfig, Fault, PromptInput, Split, StepError};
use policies_domain::{Label, PageRead};
use rig::{ACME, GLOBEX, answer, engine, greedy, sealer, submit, tenant};

const CONFIG: EngineConfig = EngineConfig {
    threads: 2,
    pages: 64,
    sequences_max: 4,
    queue_max: 4,
    prefill_chunk_tokens: 32,
    step_target_ms: 60_000,
    queue_wait_max_ms: 600_000,
    prefix_cache: false,
    speculation: false,
    swap_mib: 0,
    context_tokens_max: None,
    kv: KvKind::Bf16,
    split: Split::Off,
    decode_threads: None,
    preallocate: false,
};

#[tokio::test]
async fn a_foreign_capability_shows_in_the_trace_with_its_owner() {
    let engine = engine(CONFIG);
    let mut victim = submit(&engine, GLOBEX, 1, "The secret of globex is", greedy(200));
    victim.next().await.unwrap().unwrap();
    engine.plant(vec![Fault::ForeignCapability { reader: tenant(ACME) }]);
    let mut steps = submit(&engine, ACME, 2, "Tell me", greedy(2));
    let step = steps.next().await.unwrap().unwrap();
    let PageRead { label, .. } = step.trace.pages[0];
    assert_eq!(label, Label::of(tenant(GLOBEX)));
}

#[tokio::test]
async fn a_foreign_page_index_is_caught_by_the_kernel_and_hurts_nobody_else() {
    let engine = engine(CONFIG);
    let alone = answer(submit(&engine, GLOBEX, 9, "The secret of globex is", greedy(40))).await;
    let mut victim = submit(&engine, GLOBEX, 1, "The secret of globex is", greedy(40));
    let first = victim.next().await.unwrap().unwrap();
    engine.plant(vec![Fault::ForeignPageIndex { reader: tenant(ACME) }]);
    let mut steps = submit(&engine, ACME, 2, "Tell me", greedy(2));
    let error = steps.next().await.unwrap().unwrap_err();
    assert!(matches!(error, StepError::PageFault { page, .. } if page == first.trace.pages[0].page));
    assert!(steps.next().await.is_none(), "nothing follows a fault");
    let rest = answer(victim).await;
    assert_eq!(first.text.reveal().to_string() + &rest.text, alone.text, "the owner's answer is untouched");
    assert_eq!(answer(submit(&engine, GLOBEX, 3, "The secret of globex is", greedy(40))).await.text, alone.text);
    assert_eq!(engine.stats().pages.quarantined, 1, "the page is kept as evidence");
}

#[tokio::test]
async fn ones_own_pages_in_the_wrong_order_are_caught_by_what_was_read() {
    let engine = engine(CONFIG);
    let alone = answer(submit(&engine, GLOBEX, 9, "The secret of globex is", greedy(40))).await;
    let victim = submit(&engine, GLOBEX, 1, "The secret of globex is", greedy(40));
    engine.plant(vec![Fault::SwappedPages { reader: tenant(ACME) }]);
    // Enough words for three pages: every page is the reader's own and carries its tag.
    let mut steps = submit(&engine, ACME, 2, &"Tell me about the harbour. ".repeat(8), greedy(2));
    let error = loop {
        if let Err(error) = steps.next().await.expect("it ended without a reason") {
            break error;
        }
    };
    assert_eq!(error, StepError::ReadSet);
    assert!(steps.next().await.is_none(), "nothing follows a fault");
    assert_eq!(answer(victim).await.text, alone.text, "the other tenant's answer is untouched");
    engine.plant(Vec::new());
    assert_eq!(answer(submit(&engine, ACME, 3, "Tell me", greedy(2))).await.tokens, 2, "the server goes on");
}

#[tokio::test]
async fn a_foreign_entry_of_the_block_table_is_caught_by_the_custody_log() {
    let engine = engine(CONFIG);
    let alone = answer(submit(&engine, GLOBEX, 9, "The secret of globex is", greedy(40))).await;
    let mut victim = submit(&engine, GLOBEX, 1, "The secret of globex is", greedy(40));
    let first = victim.next().await.unwrap().unwrap();
    engine.plant(vec![Fault::ForeignEntry { reader: tenant(ACME) }]);
    // The tag that it brings along is the right one: no kernel can see it.
    let mut steps = submit(&engine, ACME, 2, "Tell me", greedy(2));
    assert_eq!(steps.next().await.unwrap().unwrap_err(), StepError::ReadSet);
    assert!(steps.next().await.is_none(), "nothing follows a fault");
    let rest = answer(victim).await;
    assert_eq!(first.text.reveal().to_string() + &rest.text, alone.text, "the owner's answer is untouched");
    assert_eq!(engine.stats().pages.quarantined, 0, "the page is as its owner wrote it");
}

#[tokio::test]
async fn a_trace_that_does_not_say_what_the_kernels_get_is_no_trace() {
    let engine = engine(CONFIG);
    let prompt = "Tell me about the harbour. ".repeat(8);
    assert_eq!(answer(submit(&engine, ACME, 1, &prompt, greedy(2))).await.tokens, 2);
    engine.plant(vec![Fault::FalseTrace { reader: tenant(ACME) }]);
    let mut steps = submit(&engine, ACME, 2, &prompt, greedy(2));
    let error = loop {
        if let Err(error) = steps.next().await.expect("it ended without a reason") {
            break error;
        }
    };
    assert_eq!(error, StepError::ReadSet);
    assert!(steps.next().await.is_none(), "nothing follows a fault");
}

#[tokio::test]
async fn output_that_is_no_number_ends_its_request_and_no_other() {
    let engine = engine(CONFIG);
    let alone = answer(submit(&engine, GLOBEX, 9, "The secret of globex is", greedy(40))).await;
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut other = submit(&engine, GLOBEX, 1, "The secret of globex is", greedy(40));
        let mut text = other.next().await.unwrap().unwrap().text.reveal().to_owned();
        let mut hit = submit(&engine, ACME, 2, "Tell me", greedy(200));
        // In the middle of an answer: what was delivered so far stays, and nothing says that it is finished.
        assert_eq!(hit.next().await.unwrap().unwrap().finish, None);
        engine.plant(vec![Fault::Logit { reader: tenant(ACME), value }]);
        let error = loop {
            match hit.next().await.expect("it ended without a reason") {
                Ok(step) => assert_eq!(step.finish, None),
                Err(error) => break error,
            }
        };
        assert_eq!(error, StepError::NotANumber);
        assert!(hit.next().await.is_none(), "nothing follows a fault");
        // At the first token, too.
        let mut first = submit(&engine, ACME, 3, "Tell me", greedy(2));
        assert_eq!(first.next().await.unwrap().unwrap_err(), StepError::NotANumber);
        text += &answer(other).await.text;
        assert_eq!(text, alone.text, "the other tenant's answer is untouched");
        engine.plant(Vec::new());
        assert_eq!(answer(submit(&engine, ACME, 4, "Tell me", greedy(2))).await.tokens, 2, "the server goes on");
    }
    assert_eq!(engine.stats().pages.quarantined, 0, "no page is to blame");
}

#[tokio::test]
async fn a_request_that_needs_a_quarantined_page_fails_and_does_not_wait_for_ever() {
    let engine = engine(EngineConfig { pages: 8, ..CONFIG });
    let mut victim = submit(&engine, GLOBEX, 1, "The secret of globex is", greedy(40));
    victim.next().await.unwrap().unwrap();
    engine.plant(vec![Fault::ForeignPageIndex { reader: tenant(ACME) }]);
    let mut steps = submit(&engine, ACME, 2, "Tell me", greedy(2));
    steps.next().await.unwrap().unwrap_err();
    engine.plant(Vec::new());
    drop(victim);
    let permit = rig::permit(ACME, 3);
    // Eight pages hold 128 tokens; seven are left.
    let sequence = engine.tokenize(&permit, &PromptInput::Tokens(vec![100; 120])).unwrap();
    let mut large = engine.submit(&permit, sequence, greedy(8), sealer(&permit)).unwrap();
    let error = loop {
        if let Err(error) = large.next().await.expect("it ended without a reason") {
            break error;
        }
    };
    assert_eq!(error, StepError::PoolExhausted);
    assert_eq!(answer(submit(&engine, ACME, 4, "Tell me", greedy(2))).await.tokens, 2, "smaller ones are served");
}
