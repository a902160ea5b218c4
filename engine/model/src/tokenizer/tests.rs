//! Against an independent tokenizer on awkward strings, and what must hold for every string.

use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::Value as Json;

use super::split::Split;
use super::*;
use crate::gguf::tests::{File, boolean, floats, number, numbers, scalar, strings};
use crate::test_model;

static GGUF: LazyLock<Gguf> = LazyLock::new(|| Gguf::open(&test_model::path()).expect("the test model opens"));
static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::from_gguf(&GGUF).expect("its tokenizer loads"));

static SPLITS: LazyLock<Vec<Split>> = LazyLock::new(|| {
    ["smollm", "gpt-2", "llama-bpe", "qwen2", "tekken", "default"].map(|pre| Split::named(pre).unwrap()).into()
});

/// The test model's vocabulary behind another pre-tokenizer.
fn with_pre(pre: &str) -> Result<Tokenizer, LoadTokenizerError> {
    gguf::byte_level(&crate::config::Keys { gguf: &GGUF }, pre)
}

pub(super) fn json(path: &str) -> Json {
    let path = format!("{}/../../tests/{path}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

pub(super) fn tokens(json: &Json) -> Vec<u32> {
    json.as_array().unwrap().iter().map(|token| u32::try_from(token.as_u64().unwrap()).unwrap()).collect()
}

pub(super) fn bytes_of(tokenizer: &Tokenizer, tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|&token| tokenizer.token_bytes(token).unwrap()).copied().collect()
}

/// The text without the bytes that the vocabulary cannot write.
fn writable(tokenizer: &Tokenizer, text: &str) -> Vec<u8> {
    text.bytes().filter(|&byte| tokenizer.algorithm.byte_token(byte) != NONE).collect()
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
        let tokenizer = with_pre(pre).unwrap();
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
    assert_eq!(TOKENIZER.longest_token_bytes(), 81);
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

/// CPU seconds of the calling thread: what other processes do does not count.
pub(super) fn thread_cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    // The name, which may hold anything, ends at the last parenthesis; the state follows, then numbers.
    let numbers = stat.rsplit_once(')').unwrap().1;
    let ticks = numbers.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>();
    ticks / 100.0
}

/// A megabyte of one thing, with a bound on this thread's CPU time that quadratic work would pass by far.
#[test]
fn a_hostile_megabyte_takes_linear_time() {
    let parts = ["a", " ", "\n", " \n", "😀", "9", "<|im_end", "<", "'", "\u{301}", "ab\u{4}", "x"];
    for (pre, bytes) in [("smollm", 1 << 20), ("llama-bpe", 1 << 18), ("default", 1 << 18)] {
        let tokenizer = with_pre(pre).unwrap();
        for part in parts {
            // The `x` is what look-ahead over a run of white space has to notice.
            let text = &(part.repeat(bytes / part.len()) + "x");
            let before = thread_cpu_seconds();
            let tokens = tokenizer.encode(text, true).unwrap();
            let took = thread_cpu_seconds() - before;
            assert_eq!(bytes_of(&tokenizer, &tokens), writable(&tokenizer, text));
            assert!(took < 10.0, "{pre}: {took} s for {part:?}");
        }
    }
}

#[test]
fn a_text_above_the_bound_is_refused() {
    let text = "a".repeat(TEXT_BYTES_MAX + 1);
    let error = TOKENIZER.encode(&text, false).unwrap_err();
    assert_eq!(error, TokenizeError::TooLarge { bytes: TEXT_BYTES_MAX + 1, bytes_max: TEXT_BYTES_MAX });
}

/// What is said early of a text's tokens is never more than they are.
pub(super) fn exactly_fits(tokenizer: &Tokenizer, text: &str, allow_special: bool, tokens: &[u32]) {
    let within = |tokens_max| tokenizer.encode_within(text, allow_special, tokens_max);
    assert_eq!(within(tokens.len()).as_deref(), Ok(tokens), "{text:?}");
    assert!(tokens.is_empty() || within(tokens.len() - 1).is_err(), "{text:?}");
}

#[test]
fn a_text_of_too_many_tokens_is_given_up_before_they_are_made() {
    let given_up = |text: &str, tokens_max| match TOKENIZER.encode_within(text, true, tokens_max) {
        Err(TokenizeError::TooMany { tokens, tokens_max: said }) if said == tokens_max => tokens,
        other => panic!("{:?}", other.map(|tokens| tokens.len())),
    };
    // Merging them would leave 10,000.
    assert_eq!(given_up(&" ".repeat(640_000), 8_191), 9_997);
    // One piece after the other, and one control token after the other.
    assert_eq!(given_up(&"the sea ".repeat(50_000), 50_000), 50_001);
    assert_eq!(given_up(&"<|im_start|>".repeat(70_000), 8_191), 8_192);
    assert_eq!(given_up(&"<|im_start|>a".repeat(70_000), 8_191), 8_192);
    let text = "What the sea wants, the sea will have. <|im_end|>  ";
    let all = TOKENIZER.encode(text, true).unwrap();
    assert_eq!(TOKENIZER.encode_within(text, true, all.len()).as_ref(), Ok(&all));
    assert_eq!(given_up(text, all.len() - 1), all.len());
}

#[test]
fn an_unknown_pre_tokenizer_is_refused_by_name() {
    let error = with_pre("tekken2").unwrap_err();
    assert!(error.to_string().contains("`tekken2`"), "{error}");
}

/// A vocabulary of `a`, `b`, `ab`, a space and a control token.
fn tiny() -> File {
    File::default()
        .key("tokenizer.ggml.model", scalar("gpt2"))
        .key("tokenizer.ggml.tokens", strings(&["a", "b", "ab", "\u{120}", "<end>", "<tool>"]))
        .key("tokenizer.ggml.token_type", numbers(&[1, 1, 1, 1, 3, 4]))
        .key("tokenizer.ggml.merges", strings(&["a b"]))
        .key("tokenizer.ggml.eos_token_id", number(4))
}

fn load(file: &File) -> Result<Tokenizer, LoadTokenizerError> {
    Tokenizer::from_gguf(&Gguf::from_bytes(file.bytes()).unwrap())
}

fn error(file: &File) -> String {
    load(file).unwrap_err().to_string()
}

#[test]
fn a_tiny_vocabulary_is_enough() {
    let tokenizer = load(&tiny()).unwrap();
    assert_eq!((tokenizer.pre(), tokenizer.byte_tokens_missing()), ("default", 253));
    assert_eq!(tokenizer.encode("abb a?", false).unwrap(), [2, 1, 3, 0]);
    assert_eq!(tokenizer.encode("a<end>b<tool>", true).unwrap(), [0, 4, 1, 5]);
    let ordinary = tokenizer.encode("a<end>b<tool>", false).unwrap();
    assert_eq!(ordinary, [0, 1, 5], "an added token is text, a control token is not");
    assert!(tokenizer.is_end(4) && tokenizer.is_control(4) && !tokenizer.is_control(5));
}

#[test]
fn a_pre_tokenizer_can_ask_for_whole_pieces_and_for_bos() {
    let file = tiny()
        .without("tokenizer.ggml.merges")
        .key("tokenizer.ggml.merges", strings(&[]))
        .key("tokenizer.ggml.pre", scalar("llama-bpe"))
        .key("tokenizer.ggml.bos_token_id", number(4));
    let tokenizer = load(&file).unwrap();
    assert_eq!(tokenizer.encode("ab", false).unwrap(), [2], "a whole piece that is a token needs no merge");
    assert!(tokenizer.adds_bos());
    let refused = file.key("tokenizer.ggml.add_bos_token", boolean(false));
    assert!(!load(&refused).unwrap().adds_bos());
}

#[test]
fn more_tokens_to_be_found_than_any_model_has_are_counted() {
    let texts: Vec<String> = (0..8_193).map(|number| format!("<{number}>")).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let file = tiny().without("tokenizer.ggml.tokens").without("tokenizer.ggml.token_type");
    let file = file.key("tokenizer.ggml.tokens", strings(&texts));
    let file = file.key("tokenizer.ggml.token_type", numbers(&[4; 8_193]));
    let file = file.without("tokenizer.ggml.merges").key("tokenizer.ggml.merges", strings(&[]));
    assert_eq!(error(&file), "there are 8193 control and added tokens, at most 8192 are accepted");
}

#[test]
fn mistakes_of_a_vocabulary_are_named() {
    for key in ["tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.merges"] {
        assert_eq!(error(&tiny().without(key)), format!("metadata key `{key}` is missing"));
    }
    let with = |key: &str, value: Vec<u8>| error(&tiny().without(key).key(key, value));
    let tokens = |texts: &[&str]| with("tokenizer.ggml.tokens", strings(texts));
    assert!(with("tokenizer.ggml.model", scalar("t5")).contains("tokenizer model `t5` is not supported"));
    assert!(with("tokenizer.ggml.pre", scalar("viking")).contains("pre-tokenizer `viking` is not supported"));
    assert!(with("tokenizer.ggml.pre", number(1)).contains("`tokenizer.ggml.pre` is not text"));
    assert!(with("tokenizer.ggml.tokens", numbers(&[1])).contains("is not a list of strings"));
    assert!(with("tokenizer.ggml.token_type", numbers(&[1])).contains("1 token types for 6 tokens"));
    assert!(with("tokenizer.ggml.eos_token_id", number(6)).contains("is 6, outside 0 to 5"));
    let empty = tiny().without("tokenizer.ggml.tokens").without("tokenizer.ggml.token_type");
    let empty = empty.without("tokenizer.ggml.eos_token_id").key("tokenizer.ggml.tokens", strings(&[]));
    assert!(error(&empty.key("tokenizer.ggml.eos_token_id", number(0))).contains("a vocabulary without tokens"));
    assert!(tokens(&["a", "b", "ab", "a", "<end>", "<tool>"]).contains("token 3 has the text of an earlier token"));
    assert!(tokens(&["a", "b", "ab", " ", "<end>", "<tool>"]).contains("token 3 is not byte-level text"));
    assert_eq!(tokens(&["a", "b", "ab", "c", "", "<tool>"]), "token 4 is a control or added token and has no text");
    let long = tokens(&["a", "b", "ab", "c", &"x".repeat(257), "<tool>"]);
    assert_eq!(long, "token 4 is a control or added token of 257 bytes, at most 256 are accepted");
    let inert = tokens(&["a", "b", "ab", "c", "<\u{1}>", "<tool>"]);
    assert_eq!(inert, "token 4 is a control or added token with the character U+0001");
    for kind in [7, 99, 255] {
        let error = with("tokenizer.ggml.token_type", numbers(&[1, 1, kind, 1, 3, 4]));
        assert_eq!(error, format!("token 2 has type {kind}, which is none"));
    }
    for merge in ["a c", "ab", "b a", "a  b", "< end>", ""] {
        let error = with("tokenizer.ggml.merges", strings(&["a b", merge]));
        assert_eq!(error, "merge 1 does not make a token of two tokens", "{merge:?}");
    }
}

/// A vocabulary of SentencePiece: three control tokens, two letters, a byte, an addition.
fn tiny_scored() -> File {
    File::default()
        .key("tokenizer.ggml.model", scalar("llama"))
        .key("tokenizer.ggml.tokens", strings(&["<unk>", "<s>", "</s>", "a", "\u{2581}a", "<0xC3>", "<tool>", "</"]))
        .key("tokenizer.ggml.token_type", numbers(&[2, 3, 3, 1, 1, 6, 4, 1]))
        .key("tokenizer.ggml.scores", floats(&[0.0, 0.0, 0.0, -2.0, -1.0, 0.0, 0.0, -3.0]))
        .key("tokenizer.ggml.bos_token_id", number(1))
        .key("tokenizer.ggml.eos_token_id", number(2))
}

#[test]
fn a_tiny_scored_vocabulary_is_enough() {
    let tokenizer = load(&tiny_scored()).unwrap();
    assert_eq!((tokenizer.byte_tokens_missing(), tokenizer.adds_bos()), (255, true));
    assert_eq!(tokenizer.encode("a a\u{e9}<tool>a", false).unwrap(), [4, 4, 5, 6, 4]);
    assert_eq!(tokenizer.encode("</s>", true).unwrap(), [2]);
    assert_eq!(tokenizer.encode("</s>", false).unwrap(), [7], "what has no token is left out");
    let without = tiny_scored().key("tokenizer.ggml.add_space_prefix", boolean(false));
    let without = load(&without.key("tokenizer.ggml.add_bos_token", boolean(false))).unwrap();
    assert_eq!((without.encode("a", false).unwrap(), without.adds_bos()), (vec![3], false));
}

#[test]
fn mistakes_of_a_scored_vocabulary_are_named() {
    for key in ["tokenizer.ggml.scores", "tokenizer.ggml.token_type"] {
        assert_eq!(error(&tiny_scored().without(key)), format!("metadata key `{key}` is missing"));
    }
    let with = |key: &str, value: Vec<u8>| error(&tiny_scored().without(key).key(key, value));
    assert!(with("tokenizer.ggml.scores", floats(&[0.0])).contains("1 token scores for 8 tokens"));
    assert!(
        with("tokenizer.ggml.scores", numbers(&[0; 8])).contains("`tokenizer.ggml.scores` is not a list of floats")
    );
    let scores = [0.0, 0.0, 0.0, f32::NAN, 0.0, 0.0, 0.0, 0.0];
    assert_eq!(with("tokenizer.ggml.scores", floats(&scores)), "the score of token 3 is not a number");
    let byte = with("tokenizer.ggml.token_type", numbers(&[2, 3, 3, 6, 1, 6, 4, 1]));
    assert_eq!(byte, "token 3 is not a byte written like `<0x0A>`");
    let tokens = |texts: &[&str]| with("tokenizer.ggml.tokens", strings(texts));
    assert!(tokens(&["<unk>", "<s>", "</s>", "a", "a", "<0xC3>", "<tool>", "b"]).contains("token 4 has the text of"));
}

#[test]
fn what_frames_a_conversation_is_a_control_token_whatever_the_file_says() {
    for text in ["<start_of_turn>", "<end_of_turn>", "<|im_start|>"] {
        let texts = ["<unk>", "<s>", "</s>", "a", "\u{2581}a", "<0xC3>", text, "b"];
        let file = tiny_scored().without("tokenizer.ggml.tokens").key("tokenizer.ggml.tokens", strings(&texts));
        let tokenizer = load(&file).unwrap();
        assert!(tokenizer.is_control(6) && !tokenizer.encode(text, false).unwrap().contains(&6), "{text}");
        assert_eq!(tokenizer.is_end(6), text == "<end_of_turn>");
    }
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
        exactly_fits(&TOKENIZER, &text, allow_special, &tokens);
        prop_assert_eq!(bytes_of(&TOKENIZER, &tokens), writable(&TOKENIZER, &text));
    }

    #[test]
    fn ordinary_text_never_makes_a_control_token(text in awkward_text()) {
        let tokens = TOKENIZER.encode(&text, false).unwrap();
        prop_assert!(tokens.iter().all(|&token| !TOKENIZER.is_control(token)));
    }

    #[test]
    fn damaged_vocabularies_never_panic(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = tiny().bytes();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(gguf) = Gguf::from_bytes(bytes)
            && let Ok(tokenizer) = Tokenizer::from_gguf(&gguf)
        {
            let tokens = tokenizer.encode("abab a<end>", true).unwrap();
            prop_assert!(tokens.iter().all(|&token| tokenizer.token_bytes(token).is_some()));
        }
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
