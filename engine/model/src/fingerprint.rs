//! The model's fingerprint: one digest of everything that decides which tokens a request gets.
//!
//! Two programs with the same fingerprint give a prompt the same tokens and those tokens the same logits, bit for bit.
//! It goes into every record, so that an answer can be computed again by somebody else, and a difference has a name.

use engine_kernels::KvKind;

use crate::model::Parts;
use crate::numerics;

/// Raised when a line is added or means something else.
const FINGERPRINT_VERSION: u32 = 1;

/// The fingerprint as text: a line for each part, each ended by a line feed. Documented in `docs/log-format.md`.
pub(crate) fn description(file: [u8; 32], parts: &Parts, kv: KvKind) -> String {
    let (template, none) = (parts.chat_template.as_ref(), || "none".to_owned());
    let template = template.map_or_else(none, |template| hex::encode(template.digest()));
    let (file, numerics) = (hex::encode(file), hex::encode(numerics::profile(&parts.weights, kv)));
    let (weights, tokenizer) = (hex::encode(parts.weights.digest), hex::encode(parts.tokenizer.digest()));
    format!(
        "bulkhead model fingerprint\nversion {FINGERPRINT_VERSION}\nfile {file}\nnumerics {numerics}\n\
         weights {weights}\ntokenizer {tokenizer}\nchat template {template}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::Gguf;
    use crate::gguf::tests::{File, number, numbers, strings};
    use crate::{ChatTemplate, InProcess, LoadOptions, Model, Tokenizer, inspect, test_model};
    use std::collections::BTreeSet;

    #[test]
    fn the_text_names_every_part_and_inspection_shows_its_digest() {
        let path = test_model::path();
        let model = Model::load(&path, 2).unwrap();
        let text = model.fingerprint_text(KvKind::Bf16);
        let lines: Vec<&str> = text.lines().collect();
        let file = format!("file {}", hex::encode(model.digest()));
        let numerics = format!("numerics {}", hex::encode(model.numerics_profile(KvKind::Bf16)));
        let weights = format!("weights {}", hex::encode(model.weights_digest()));
        assert_eq!(lines[..5], ["bulkhead model fingerprint", "version 1", &file, &numerics, &weights]);
        // Another digest here means that records of the same tokenizer and template no longer compare.
        let tokenizer = "tokenizer 7cbfcee3c7eb634035cb7fb7692d423c58000ebfee9fdcac9add1b517cb4aa76";
        let template = "chat template 872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788";
        assert_eq!(lines[5..], [tokenizer, template]);
        assert!(text.ends_with('\n'));
        let of: BTreeSet<_> = KvKind::ALL.map(|kv| model.fingerprint(kv)).into();
        assert_eq!(of.len(), KvKind::ALL.len(), "what K and V are stored as decides bits");
        let inspection = inspect(&path, &LoadOptions::new(2)).unwrap();
        assert_eq!(inspection.fingerprint, Some(hex::encode(model.fingerprint(KvKind::Bf16))));
    }

    #[test]
    fn whatever_changes_tokens_changes_the_digest() {
        let file = || {
            File::default()
                .key("tokenizer.ggml.model", crate::gguf::tests::scalar("gpt2"))
                .key("tokenizer.ggml.pre", crate::gguf::tests::scalar("gpt-2"))
                .key("tokenizer.ggml.tokens", strings(&["a", "b", "ab", "<x>", "<y>"]))
                .key("tokenizer.ggml.token_type", numbers(&[1, 1, 1, 3, 3]))
                .key("tokenizer.ggml.merges", strings(&["a b"]))
                .key("tokenizer.ggml.eos_token_id", number(3))
        };
        let digest = |file: File| Tokenizer::from_gguf(&Gguf::from_bytes(file.bytes()).unwrap()).unwrap().digest();
        let with = |key: &str, value: Vec<u8>| digest(file().without(key).key(key, value));
        let digests = [
            digest(file()),
            with("tokenizer.ggml.pre", crate::gguf::tests::scalar("smollm")),
            with("tokenizer.ggml.tokens", strings(&["a", "b", "ab", "<x>", "<z>"])),
            with("tokenizer.ggml.tokens", strings(&["b", "a", "ab", "<x>", "<y>"])),
            with("tokenizer.ggml.token_type", numbers(&[1, 1, 1, 3, 4])),
            with("tokenizer.ggml.merges", strings(&[])),
            with("tokenizer.ggml.eos_token_id", number(4)),
            with("tokenizer.ggml.bos_token_id", number(4)),
            with("tokenizer.ggml.add_bos_token", crate::gguf::tests::boolean(true)),
        ];
        assert_eq!(digests.iter().collect::<BTreeSet<_>>().len(), digests.len());
        assert_eq!(digest(file()), digests[0]);
        let template = |source| ChatTemplate::new(source, &InProcess).unwrap().digest();
        assert_ne!(template("{{ 1 }}"), template("{{ 1 }} "));
    }
}
