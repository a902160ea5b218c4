//! Variants of two small vocabularies against the crate `tokenizers`, and what is refused.

use proptest::prelude::*;
use serde_json::json;

use super::super::golden_tests::{read as read_file, wrong};
use super::super::tests::{bytes_of, json as golden_json};
use super::*;

const ROWS: usize = 700;

fn settings() -> Settings {
    Settings { vocab: ROWS, bos: Some("<|begin|>".into()), eos: Some("<|end|>".into()), ..Settings::default() }
}

fn file(name: &str) -> Value {
    serde_json::from_slice(&read_file(name)).unwrap()
}

fn load(file: &Value) -> Result<Tokenizer, LoadTokenizerError> {
    read(file.to_string().as_bytes(), &settings())
}

#[test]
fn every_variant_gives_the_tokens_that_the_crate_gives() {
    let golden = golden_json("golden/tokenizer/tokens.json");
    let variants = golden["tokenizer_json"].as_array().unwrap();
    assert_eq!(variants.len(), 11);
    for variant in variants {
        let mut file = file(variant["base"].as_str().unwrap());
        for key in ["normalizer", "pre_tokenizer", "post_processor"] {
            file[key] = variant[key].clone();
        }
        file["model"]["ignore_merges"] = variant["ignore_merges"].clone();
        let tokenizer = load(&file).unwrap();
        for (kind, allow_special) in [("ordinary", false), ("special", true)] {
            let wrong = wrong(&tokenizer, &golden["strings"], &variant[kind], allow_special);
            assert!(wrong.is_empty(), "{} {kind}: {wrong:#?}", variant["name"]);
        }
        let begins = variant["post_processor"].to_string().contains("SpecialToken");
        assert_eq!(tokenizer.adds_bos(), begins, "{}", variant["name"]);
    }
}

/// Of `the sea and the sun`, from `transformers`, for a file that has both; the crate `tokenizers` by itself cuts and fills.
#[test]
fn texts_are_neither_cut_nor_filled_up_whatever_a_training_run_was_set_to() {
    let mut file = file("bytes.json");
    file["truncation"] = json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
    file["padding"] = json!({"strategy": {"Fixed": 40}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
        "pad_type_id": 0, "pad_token": "<|begin|>"});
    let tokens = load(&file).unwrap().encode("the sea and the sun", false).unwrap();
    assert_eq!(tokens, [297, 70, 222, 275, 66, 301, 271, 331, 79]);
}

#[test]
fn no_part_is_larger_than_any_real_one() {
    let with = |change: &dyn Fn(&mut Value)| {
        let mut file = file("bytes.json");
        change(&mut file);
        load(&file).unwrap_err().to_string()
    };
    for key in ["normalizer", "pre_tokenizer", "post_processor"] {
        let error = with(&|file| file[key] = vec![0; 100_000].into());
        assert!(error.contains("a part of more than 65536 values and bytes of text"), "{error}");
    }
    let error = with(&|file| file["added_tokens"] = vec![json!({"id": 264, "content": "x"}); 8_193].into());
    assert!(error.contains("a list of at most 8192 items"), "{error}");
}

#[test]
fn rows_without_a_token_are_never_found_and_stand_for_nothing() {
    let tokenizer = load(&file("bytes.json")).unwrap();
    assert_eq!((tokenizer.vocab(), tokenizer.token_bytes(ROWS as u32 - 1)), (ROWS, Some(b"".as_slice())));
    assert!(!tokenizer.is_control(ROWS as u32 - 1) && !tokenizer.is_end(ROWS as u32 - 1));
    assert_eq!((tokenizer.byte_tokens_missing(), tokenizer.kind()), (0, "byte-level BPE"));
}

#[test]
fn what_stands_beside_the_file_decides_about_the_ends() {
    let bytes = read_file("characters.json");
    let settings = Settings { adds_bos: Some(true), bos: Some("<s>".into()), ends: vec![2, 4], ..settings() };
    let tokenizer = read(&bytes, &settings).unwrap();
    assert!(tokenizer.adds_bos() && tokenizer.bos() == Some(1));
    assert!([2, 4].into_iter().all(|token| tokenizer.is_end(token)) && !tokenizer.is_end(3));
    let beyond = Settings { ends: vec![ROWS as u64], ..settings };
    let error = read(&bytes, &beyond).unwrap_err().to_string();
    assert_eq!(error, "token number 700 is taken, or is not one of the 700 rows of the embeddings");
}

#[test]
fn what_has_no_counterpart_is_refused() {
    let refused = |base: &str, change: &dyn Fn(&mut Value)| {
        let mut file = file(base);
        change(&mut file);
        load(&file).unwrap_err().to_string()
    };
    let set = |key: &'static str, value: Value| move |file: &mut Value| file[key] = value.clone();
    for (component, value, wanted) in [
        ("normalizer", json!({"type": "Lowercase"}), "the normalizer `Lowercase`"),
        ("normalizer", json!({"type": "NFKC"}), "the normalizer `NFKC`"),
        ("normalizer", json!({"type": "Prepend", "prepend": "\u{2581}"}), "spaces are not marked"),
        ("normalizer", json!({"type": "Sequence", "normalizers": 5}), "a sequence whose `normalizers` are no list"),
        ("normalizer", json!({"type": "Sequence"}), "a sequence whose `normalizers` are no list"),
        ("normalizer", json!({"type": "Sequence", "normalizers": [5]}), "the normalizer `?`"),
        ("normalizer", json!({"type": "Sequence", "normalizers": [null]}), "the normalizer `?`"),
        ("normalizer", json!(5), "the normalizer `?`"),
        ("normalizer", json!([]), "the normalizer `?`"),
        ("pre_tokenizer", json!({"type": "Sequence", "pretokenizers": {}}), "whose `pretokenizers` are no list"),
        ("post_processor", json!({"type": "Sequence", "processors": "x"}), "whose `processors` are no list"),
        (
            "post_processor",
            json!({"type": "TemplateProcessing", "single":
                [{"SpecialToken": {"id": 4}}, {"Sequence": {"id": "A"}}]}),
            "more than one token before the text",
        ),
        (
            "post_processor",
            json!({"type": "TemplateProcessing", "single":
                [{"SpecialToken": {"id": "<nowhere>"}}, {"Sequence": {"id": "A"}}]}),
            "a first token that is not in its vocabulary",
        ),
        ("pre_tokenizer", json!({"type": "Whitespace"}), "the pre-tokenizer `Whitespace`"),
        ("pre_tokenizer", json!({"type": "ByteLevel", "add_prefix_space": true}), "the pre-tokenizer `ByteLevel` with"),
        ("pre_tokenizer", json!({"type": "Digits", "individual_digits": false}), "the pre-tokenizer `Digits` with"),
        (
            "pre_tokenizer",
            json!({"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": false}),
            "not one of the known families'",
        ),
        (
            "pre_tokenizer",
            json!({"type": "Split", "pattern": {"Regex": "x"}, "behavior": "Removed", "invert": false}),
            "`Split` with its settings",
        ),
        ("pre_tokenizer", json!({"type": "Metaspace", "replacement": "_", "split": false}), "`Metaspace` with"),
        ("pre_tokenizer", json!(null), "without marked spaces"),
        ("post_processor", json!({"type": "BertProcessing"}), "the post-processor `BertProcessing`"),
        ("post_processor", json!({"type": "TemplateProcessing", "single": []}), "more than one token before the text"),
    ] {
        let error = refused("bytes.json", &set(component, value));
        assert!(error.contains(wanted), "{error}");
    }
    for (key, value, wanted) in [
        ("type", json!("Unigram"), "the model `Unigram`"),
        ("type", json!("WordPiece"), "the model `WordPiece`"),
        ("dropout", json!(0.1), "merges by chance"),
        ("continuing_subword_prefix", json!("##"), "marks inside or behind words"),
        ("byte_fallback", json!(true), "bytes as characters and by number"),
        ("merges", json!(["a"]), "merge 0 does not make a token"),
        ("merges", json!([["a", "\u{2581}"]]), "merge 0 does not make a token"),
        ("vocab", json!({"a": 1, "b": 1}), "token number 1 is taken"),
        ("vocab", json!({"a": 700}), "token number 700 is taken"),
        ("vocab", json!({"a": -1}), "cannot be read"),
        ("vocab", json!({" ": 9}), "token 9 is not byte-level text"),
    ] {
        let error = refused("bytes.json", &|file| file["model"][key] = value.clone());
        assert!(error.contains(wanted), "{key}: {error}");
    }
    for key in ["lstrip", "rstrip", "single_word"] {
        let error = refused("bytes.json", &|file| file["added_tokens"][0][key] = true.into());
        assert!(error.contains("look at the text around them"), "{error}");
    }
    let error = refused("characters.json", &|file| {
        let added = file["added_tokens"].as_array_mut().unwrap();
        added.last_mut().unwrap()["normalized"] = true.into();
    });
    assert!(error.contains("found behind a mark"), "{error}");
    let error = refused("characters.json", &|file| file["model"]["byte_fallback"] = false.into());
    assert!(error.contains("without bytes"), "{error}");
    let error = refused("characters.json", &|file| file["model"]["ignore_merges"] = true.into());
    assert!(error.contains("pieces of text"), "{error}");
    assert!(read(b"{", &settings()).unwrap_err().to_string().contains("`tokenizer.json` cannot be read"));
}

proptest! {
    #[test]
    fn damaged_files_never_panic(
        characters: bool,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = read_file(if characters { "characters.json" } else { "bytes.json" });
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(tokenizer) = read(&bytes, &settings()) {
            let tokens = tokenizer.encode("the sea <|end|> <tool>", false).unwrap();
            prop_assert!(tokens.iter().all(|&token| tokenizer.token_bytes(token).is_some()));
            prop_assert!(tokens.iter().all(|&token| !tokenizer.is_control(token)));
        }
    }

    #[test]
    fn a_text_comes_back_as_it_was(text: String) {
        let tokenizer = load(&file("bytes.json")).unwrap();
        let tokens = tokenizer.encode(&text, false).unwrap();
        prop_assert_eq!(bytes_of(&tokenizer, &tokens), text.as_bytes());
        prop_assert!(tokens.iter().all(|&token| !tokenizer.is_control(token)));
    }
}
