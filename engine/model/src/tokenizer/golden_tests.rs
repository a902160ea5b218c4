//! Small vocabularies of every kind against the programs that are not ours: llama.cpp and the crate `tokenizers`.

use serde_json::Value as Json;

use super::tests::{bytes_of, exactly_fits, json, tokens};
use super::*;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/tokenizer/");

pub(super) fn read(file: &str) -> Vec<u8> {
    std::fs::read(format!("{FOLDER}{file}")).unwrap()
}

/// The names of the strings whose tokens are others than those of the golden file.
pub(super) fn wrong(tokenizer: &Tokenizer, strings: &Json, golden: &Json, allow_special: bool) -> Vec<String> {
    let (strings, golden) = (strings.as_array().unwrap(), golden.as_array().unwrap());
    assert!(strings.len() >= 30 && strings.len() == golden.len());
    let differ = |(text, wanted): (&Json, &Json)| {
        let (text, wanted) = (text.as_str().unwrap(), tokens(wanted));
        let found = tokenizer.encode(text, allow_special).unwrap();
        exactly_fits(tokenizer, text, allow_special, &found);
        (found != wanted).then(|| format!("{text:?}: {found:?} instead of {wanted:?}"))
    };
    strings.iter().zip(golden).filter_map(differ).collect()
}

/// The vocabulary of SentencePiece, with or without a space before texts.
fn sentence_piece(adds_space: bool) -> Tokenizer {
    let mut bytes = read("sentence_piece.gguf");
    let key = b"tokenizer.ggml.add_space_prefix";
    let at = bytes.windows(key.len()).position(|window| window == key).unwrap() + key.len() + 4;
    bytes[at] = adds_space.into();
    Tokenizer::from_gguf(&Gguf::from_bytes(bytes).unwrap()).unwrap()
}

#[test]
fn a_vocabulary_of_sentence_piece_gives_the_tokens_that_llama_cpp_gives() {
    let golden = json("golden/tokenizer/tokens.json");
    for (name, adds_space) in [("plain", false), ("prefix", true)] {
        let tokenizer = sentence_piece(adds_space);
        for (kind, allow_special) in [("ordinary", false), ("special", true)] {
            let cases = &golden["sentence_piece"][format!("{name} {kind}")];
            let wrong = wrong(&tokenizer, &golden["strings"], cases, allow_special);
            assert!(wrong.is_empty(), "{name} {kind}: {wrong:#?}");
        }
    }
}

#[test]
fn a_vocabulary_of_sentence_piece_writes_every_byte_and_begins_with_bos() {
    let tokenizer = sentence_piece(true);
    assert_eq!((tokenizer.byte_tokens_missing(), tokenizer.kind(), tokenizer.pre()), (0, "SentencePiece BPE", "none"));
    assert!(tokenizer.adds_bos() && tokenizer.bos() == Some(1) && tokenizer.is_end(2));
    let text = "h\u{e9}\u{1f600}\u{0} x";
    let tokens = tokenizer.encode(text, false).unwrap();
    assert_eq!(bytes_of(&tokenizer, &tokens), format!(" {text}").as_bytes());
}

#[test]
fn a_hostile_megabyte_takes_linear_time_without_pieces_too() {
    let tokenizer = sentence_piece(false);
    for part in ["a", " ", "\n", "😀", "the", "<|end|", "<tool", "\u{301}", "ab\u{4}", "th"] {
        let text = &(part.repeat((1 << 20) / part.len()) + "x");
        let before = super::tests::thread_cpu_seconds();
        let tokens = tokenizer.encode(text, true).unwrap();
        let took = super::tests::thread_cpu_seconds() - before;
        assert_eq!(bytes_of(&tokenizer, &tokens), text.as_bytes());
        assert!(took < 10.0, "{took} s for {part:?}");
    }
}
