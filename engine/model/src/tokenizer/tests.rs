//! Against an independent tokenizer on awkward strings, and what must hold for every string.

use std::sync::LazyLock;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::Value as Json;

use super::*;
use crate::test_model;

static GGUF: LazyLock<Gguf> = LazyLock::new(|| Gguf::open(&test_model::path()).expect("the test model opens"));
static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::from_gguf(&GGUF).expect("its tokenizer loads"));

static SPLITS: LazyLock<Vec<Split>> =
    LazyLock::new(|| ["smollm", "gpt-2", "llama-bpe", "qwen2", "default"].map(|pre| Split::named(pre).unwrap()).into());

fn json(path: &str) -> Json {
    let path = format!("{}/../../tests/{path}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn tokens(json: &Json) -> Vec<u32> {
    json.as_array().unwrap().iter().map(|token| u32::try_from(token.as_u64().unwrap()).unwrap()).collect()
}

fn bytes_of(tokenizer: &Tokenizer, tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|&token| tokenizer.token_bytes(token).unwrap()).copied().collect()
}

/// The text without the bytes that the vocabulary cannot write.
fn writable(tokenizer: &Tokenizer, text: &str) -> Vec<u8> {
    text.bytes().filter(|&byte| tokenizer.merges.byte_token(byte) != NONE).collect()
}

#[test]
fn awkward_strings_are_the_tokens_that_llama_cpp_gives() {
    let (corpus, golden) = (json("corpus/strings.json"), json("golden/model/tokenizer.json"));
    let (corpus, cases) = (corpus.as_array().unwrap(), golden["cases"].as_array().unwrap());
    assert!(corpus.len() >= 60 && corpus.len() == cases.len());
    let mut wrong = Vec::new();
    for (string, case) in corpus.iter().zip(cases) {
        assert_eq!(string["name"], case["name"]);
        let text = string["text"].as_str().unwrap();
        for (allow_special, key) in [(false, "ordinary"), (true, "special")] {
            if TOKENIZER.encode(text, allow_special).unwrap() != tokens(&case[key]) {
                wrong.push(format!("{} ({key})", string["name"]));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_other_pre_tokenizers_give_the_tokens_that_llama_cpp_gives() {
    let (corpus, golden) = (json("corpus/strings.json"), json("golden/model/tokenizer.json"));
    let mut wrong = Vec::new();
    for pre in ["gpt-2", "llama-bpe", "qwen2", "default"] {
        let tokenizer = Tokenizer::with_pre(&GGUF, pre).unwrap();
        let cases = golden["other_splits"][pre].as_array().unwrap();
        for (string, case) in corpus.as_array().unwrap().iter().zip(cases) {
            if tokenizer.encode(string["text"].as_str().unwrap(), false).unwrap() != tokens(case) {
                wrong.push(format!("{pre}: {}", string["name"]));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_tokens_of_every_awkward_string_are_its_bytes() {
    let corpus = json("corpus/strings.json");
    for string in corpus.as_array().unwrap() {
        let text = string["text"].as_str().unwrap();
        for allow_special in [false, true] {
            let tokens = TOKENIZER.encode(text, allow_special).unwrap();
            assert_eq!(bytes_of(&TOKENIZER, &tokens), writable(&TOKENIZER, text), "{}", string["name"]);
        }
    }
}

#[test]
fn only_the_known_bytes_cannot_be_written() {
    assert_eq!(TOKENIZER.byte_tokens_missing(), 21);
    assert_eq!(writable(&TOKENIZER, "a\u{4}b\u{6}\u{13}\u{14}\u{16}\u{1d}c\0"), b"abc\0");
}

#[test]
fn facts_of_the_file() {
    assert_eq!((TOKENIZER.vocab(), TOKENIZER.bos(), TOKENIZER.eos()), (49_152, Some(1), Some(2)));
    assert!(!TOKENIZER.adds_bos());
    assert!(TOKENIZER.is_end(2) && TOKENIZER.is_end(0) && !TOKENIZER.is_end(1) && !TOKENIZER.is_end(17));
    assert!((0..17).all(|token| TOKENIZER.is_control(token)) && !TOKENIZER.is_control(17));
    assert_eq!(TOKENIZER.token_bytes(2), Some(b"<|im_end|>".as_slice()));
    for beyond in [49_152, NONE] {
        assert_eq!(TOKENIZER.token_bytes(beyond), None);
        assert!(!TOKENIZER.is_control(beyond) && !TOKENIZER.is_end(beyond));
    }
}

#[test]
fn control_tokens_are_found_by_their_text_only_when_allowed() {
    for token in 0..17 {
        let text = String::from_utf8(TOKENIZER.token_bytes(token).unwrap().to_vec()).unwrap();
        assert_eq!(TOKENIZER.encode(&text, true).unwrap(), [token]);
        let ordinary = TOKENIZER.encode(&text, false).unwrap();
        assert!(ordinary.len() > 1 && ordinary.iter().all(|&token| !TOKENIZER.is_control(token)));
    }
}

/// CPU time of the calling thread: what other processes do does not count.
fn thread_cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
}

/// A megabyte of one thing, with a bound on this thread's CPU time that quadratic work would pass by far.
#[test]
fn a_hostile_megabyte_takes_linear_time() {
    let parts = ["a", " ", "\n", " \n", "😀", "9", "<|im_end", "<", "'", "\u{301}", "ab\u{4}", "x"];
    for (pre, bytes) in [("smollm", 1 << 20), ("llama-bpe", 1 << 18), ("default", 1 << 18)] {
        let tokenizer = Tokenizer::with_pre(&GGUF, pre).unwrap();
        for part in parts {
            // The `x` is what look-ahead over a run of white space has to notice.
            let text = &(part.repeat(bytes / part.len()) + "x");
            let before = thread_cpu_time();
            let tokens = tokenizer.encode(text, true).unwrap();
            let took = thread_cpu_time() - before;
            assert_eq!(bytes_of(&tokenizer, &tokens), writable(&tokenizer, text));
            assert!(took.as_secs() < 10, "{pre}: {took:?} for {part:?}");
        }
    }
}

#[test]
fn a_text_above_the_bound_is_refused() {
    let text = "a".repeat(TEXT_BYTES_MAX + 1);
    let error = TOKENIZER.encode(&text, false).unwrap_err();
    assert_eq!(error, TokenizeError::TooLarge { bytes: TEXT_BYTES_MAX + 1, bytes_max: TEXT_BYTES_MAX });
}

#[test]
fn an_unknown_pre_tokenizer_is_refused_by_name() {
    let error = Tokenizer::with_pre(&GGUF, "tekken").unwrap_err();
    assert!(error.to_string().contains("`tekken`"), "{error}");
}

fn awkward_text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        any::<String>(),
        "[ \t\r\n]{0,5}",
        "[a-z0-9']{0,8}",
        Just("<|im_end|>".to_owned()),
        Just("<|im_start|>".to_owned()),
        Just("<|im_".to_owned()),
        "[<|>a-z_]{0,6}",
    ];
    proptest::collection::vec(part, 0..8).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn every_text_round_trips(text in awkward_text(), allow_special: bool) {
        let tokens = TOKENIZER.encode(&text, allow_special).unwrap();
        prop_assert_eq!(bytes_of(&TOKENIZER, &tokens), writable(&TOKENIZER, &text));
    }

    #[test]
    fn ordinary_text_never_makes_a_control_token(text in awkward_text()) {
        let tokens = TOKENIZER.encode(&text, false).unwrap();
        prop_assert!(tokens.iter().all(|&token| !TOKENIZER.is_control(token)));
    }

    #[test]
    fn pieces_are_the_text_for_every_pre_tokenizer(text in awkward_text()) {
        for split in SPLITS.iter() {
            let mut joined = String::new();
            split.pieces(&text, &mut |piece| joined.push_str(piece));
            prop_assert_eq!(&joined, &text);
        }
    }
}
