//! Folders in Hugging Face's layout that are made here, whole and damaged, and one of them beside a GGUF file.

use std::fs;

use serde_json::{Value as Json, json};

use super::safetensors::tests::file as safetensors_file;
use super::*;
use crate::chat_template::InProcess;
use crate::test_model;

const ROWS: usize = 700;
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/tokenizer/");

/// A folder with a model of one layer, all of whose weights are 0.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.json(
            "config.json",
            &json!({
                "model_type": "llama", "num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 4,
                "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": ROWS, "eos_token_id": [420],
                "max_position_embeddings": 600, "rms_norm_eps": 1e-5, "tie_word_embeddings": true,
            }),
        );
        folder.json("generation_config.json", &json!({"eos_token_id": 0}));
        fs::copy(format!("{GOLDEN}bytes.json"), folder.0.path().join("tokenizer.json")).unwrap();
        let template = "{{ bos_token }}{% for m in messages %}{{ m.content }}<|end|>{% endfor %}";
        let settings =
            json!({"bos_token": {"content": "<|begin|>"}, "eos_token": "<|end|>", "chat_template": template});
        folder.json("tokenizer_config.json", &settings);
        folder.write("model.safetensors", &weights(&TENSORS));
        folder
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.0.path().join(name), bytes).unwrap();
    }

    fn json(&self, name: &str, value: &Json) {
        self.write(name, value.to_string().as_bytes());
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.0.path().join(name)).unwrap();
    }

    fn open(&self) -> Result<Checkpoint, OpenCheckpointError> {
        Checkpoint::open(self.0.path())
    }

    fn error(&self) -> String {
        self.open().unwrap_err().to_string()
    }
}

const TENSORS: [(&str, &[usize]); 12] = [
    ("model.embed_tokens.weight", &[ROWS, 64]),
    ("model.norm.weight", &[64]),
    ("lm_head.weight", &[ROWS, 64]),
    ("model.layers.0.input_layernorm.weight", &[64]),
    ("model.layers.0.post_attention_layernorm.weight", &[64]),
    ("model.layers.0.self_attn.q_proj.weight", &[64, 64]),
    ("model.layers.0.self_attn.k_proj.weight", &[32, 64]),
    ("model.layers.0.self_attn.v_proj.weight", &[32, 64]),
    ("model.layers.0.self_attn.o_proj.weight", &[64, 64]),
    ("model.layers.0.mlp.gate_proj.weight", &[96, 64]),
    ("model.layers.0.mlp.up_proj.weight", &[96, 64]),
    ("model.layers.0.mlp.down_proj.weight", &[64, 96]),
];

/// A file with these tensors, in BF16.
fn weights(tensors: &[(&str, &[usize])]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for (name, shape) in tensors {
        let begin = end;
        end += 2 * shape.iter().product::<usize>();
        header.insert((*name).to_owned(), json!({"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}));
    }
    safetensors_file(&Json::Object(header).to_string(), &vec![0; end])
}

#[test]
fn a_folder_gives_what_a_gguf_file_gives() {
    let checkpoint = Folder::new().open().unwrap();
    let config = checkpoint.config().unwrap();
    assert_eq!((config.layers, config.vocab, config.is_tied), (1, ROWS, true));
    assert_eq!(checkpoint.architecture(), Some("llama"));
    let mut names: Vec<&str> = checkpoint.tensor_names().collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "blk.0.attn_k.weight",
            "blk.0.attn_norm.weight",
            "blk.0.attn_output.weight",
            "blk.0.attn_q.weight",
            "blk.0.attn_v.weight",
            "blk.0.ffn_down.weight",
            "blk.0.ffn_gate.weight",
            "blk.0.ffn_norm.weight",
            "blk.0.ffn_up.weight",
            "output_norm.weight",
            "token_embd.weight",
        ],
        "a tied head is not there twice"
    );
    let down = checkpoint.tensor("blk.0.ffn_down.weight").unwrap();
    assert_eq!((down.shape, down.kind.name(), down.bytes.len()), ([96, 64].as_slice(), "BF16", 96 * 64 * 2));
    let tokenizer = checkpoint.tokenizer().unwrap();
    assert_eq!((tokenizer.vocab(), tokenizer.bos(), tokenizer.eos()), (ROWS, Some(0), Some(1)));
    assert!([0, 1, 420].into_iter().all(|token| tokenizer.is_end(token)) && !tokenizer.is_end(2));
    let template = checkpoint.chat_template(&InProcess).unwrap().unwrap();
    let message = crate::ChatMessage { role: "user".to_owned(), content: "<|end|>".to_owned() };
    let tokens = template.tokens(&tokenizer, &[message], 8_192).unwrap();
    assert!(tokens.starts_with(&[0]) && tokens.ends_with(&[1]));
    assert_eq!(tokens.iter().filter(|&&token| tokenizer.is_control(token)).count(), 2);
}

#[test]
fn a_folder_in_the_cache_of_a_hub_has_the_name_of_its_repository() {
    let folder = Folder::new();
    assert_eq!(folder.open().unwrap().own_name(), None);
    let place = tempfile::tempdir().unwrap();
    let snapshots = place.path().join("models--acme--tiny-chat/snapshots");
    fs::create_dir_all(&snapshots).unwrap();
    std::os::unix::fs::symlink(folder.0.path(), snapshots.join("0123")).unwrap();
    assert_eq!(Checkpoint::open(&snapshots.join("0123")).unwrap().own_name(), Some("tiny-chat"));
}

#[test]
fn a_gguf_file_is_a_checkpoint_too() {
    let checkpoint = Checkpoint::open(&test_model::path()).unwrap();
    assert_eq!(checkpoint.architecture(), Some("llama"));
    assert_eq!(hex::encode(checkpoint.digest()), "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53");
    assert!(checkpoint.gguf().is_some() && checkpoint.has_chat_template() && checkpoint.bytes() == 98_362_432);
    assert_eq!(checkpoint.tensor_names().count(), 272);
}

#[test]
fn the_template_of_its_own_file_counts_and_of_several_the_default() {
    let folder = Folder::new();
    let render = || {
        let checkpoint = folder.open().unwrap();
        let message = crate::ChatMessage { role: "user".to_owned(), content: "x".to_owned() };
        let template = checkpoint.chat_template(&InProcess).unwrap();
        template.map(|template| template.tokens(&checkpoint.tokenizer().unwrap(), &[message], 8_192).unwrap())
    };
    let list = json!([{"name": "other", "template": "<|end|>"}, {"name": "default", "template": "<|begin|>"}]);
    folder.json("tokenizer_config.json", &json!({"chat_template": list}));
    assert_eq!(render(), Some(vec![0]));
    folder.write("chat_template.jinja", b"<|end|><|end|>");
    assert_eq!(render(), Some(vec![1, 1]));
    folder.remove("chat_template.jinja");
    folder.remove("tokenizer_config.json");
    assert_eq!(render(), None);
    for empty in [&b""[..], b" \n"] {
        folder.write("chat_template.jinja", empty);
        assert_eq!((render(), folder.open().unwrap().has_chat_template()), (None, false));
    }
    folder.write("chat_template.jinja", b"{% for");
    let error = folder.open().unwrap().chat_template(&InProcess).unwrap_err().to_string();
    assert!(error.contains("the chat template has a mistake"), "{error}");
    folder.json("tokenizer_config.json", &json!({"chat_template": [{"name": "default", "template": 4}]}));
    folder.remove("chat_template.jinja");
    assert!(
        folder
            .open()
            .unwrap()
            .chat_template(&InProcess)
            .unwrap_err()
            .to_string()
            .contains("`chat_template` is not text")
    );
    folder.write("chat_template.jinja", b"\xff");
    assert!(folder.open().unwrap().chat_template(&InProcess).unwrap_err().to_string().contains("is not text"));
}

#[test]
fn weights_may_be_divided_among_files() {
    let folder = Folder::new();
    let whole = folder.open().unwrap().digest();
    folder.remove("model.safetensors");
    let (first, second) = TENSORS.split_at(5);
    let (one, two) = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
    folder.write(one, &weights(first));
    folder.write(two, &weights(second));
    let map = |change: &dyn Fn(&mut serde_json::Map<String, Json>)| {
        let mut map = serde_json::Map::new();
        first.iter().for_each(|(name, _)| drop(map.insert((*name).to_owned(), one.into())));
        second.iter().for_each(|(name, _)| drop(map.insert((*name).to_owned(), two.into())));
        change(&mut map);
        folder.json("model.safetensors.index.json", &json!({"metadata": {}, "weight_map": map}));
    };
    map(&|_| ());
    let checkpoint = folder.open().unwrap();
    assert_eq!(checkpoint.tensor_names().count(), 11);
    assert!(checkpoint.tensor("blk.0.ffn_up.weight").is_some());
    assert_ne!(checkpoint.digest(), whole);

    map(&|map| map["model.norm.weight"] = two.into());
    assert!(folder.error().contains("tensor `model.norm.weight` is not where"), "{}", folder.error());
    map(&|map| drop(map.remove("model.norm.weight")));
    assert!(folder.error().contains("tensor `model.norm.weight` is not where"), "{}", folder.error());
    map(&|map| drop(map.insert("model.layers.1.mlp.up_proj.weight".to_owned(), two.into())));
    assert!(folder.error().contains("tensor `model.layers.1.mlp.up_proj.weight` is not where"), "{}", folder.error());
    for name in
        ["../model.safetensors", "/etc/passwd", "a/b.safetensors", ".safetensors", "x.bin", "a\u{0}.safetensors"]
    {
        map(&|map| map["model.norm.weight"] = name.into());
        assert!(folder.error().contains("which is no name of a safetensors file"), "{name:?}: {}", folder.error());
    }
    map(&|map| map["model.norm.weight"] = "model-0.safetensors".into());
    assert!(folder.error().contains("`model-0.safetensors` cannot be read"), "{}", folder.error());
    map(&|map| {
        for number in 0..1_025 {
            map.insert(format!("x{number}"), format!("{number}.safetensors").into());
        }
    });
    assert!(folder.error().contains("names 1027 files, at most 1024"), "{}", folder.error());
    folder.json("model.safetensors.index.json", &json!({"weight_map": 4}));
    assert!(folder.error().contains("`model.safetensors.index.json` is not valid"), "{}", folder.error());
}

#[test]
fn what_is_missing_damaged_or_too_large_is_named() {
    let folder = Folder::new();
    for (name, wanted) in [
        ("model.safetensors", "the folder has no `model.safetensors` and no `model.safetensors.index.json`"),
        ("tokenizer.json", "the folder has no `tokenizer.json`"),
        ("config.json", "the folder has no `config.json`"),
    ] {
        folder.remove(name);
        assert!(folder.error().contains(wanted), "{}", folder.error());
    }
    let folder = Folder::new();
    folder.write("config.json", b"{");
    assert!(folder.error().contains("`config.json` is not valid"), "{}", folder.error());
    folder.write("config.json", &vec![b' '; (1 << 20) + 1]);
    assert!(folder.error().contains("`config.json` has more than the 1048576 bytes"), "{}", folder.error());
    folder.remove("config.json");
    fs::create_dir(folder.0.path().join("config.json")).unwrap();
    assert!(folder.error().contains("`config.json` cannot be read: not a regular file"), "{}", folder.error());
    let folder = Folder::new();
    folder.write("model.safetensors", &weights(&TENSORS)[..1_000]);
    assert!(folder.error().contains("`model.safetensors`: it is cut short or damaged"), "{}", folder.error());
    for name in ["tokenizer_config.json", "generation_config.json"] {
        let folder = Folder::new();
        folder.write(name, b"{");
        assert!(folder.error().starts_with(&format!("`{name}` is not valid: EOF")), "{}", folder.error());
        folder.write(name, b"[5]");
        assert!(folder.error().contains("expected a map"), "{}", folder.error());
    }
    let folder = Folder::new();
    folder.json("generation_config.json", &json!({"eos_token_id": [ROWS]}));
    let error = folder.open().unwrap().tokenizer().unwrap_err().to_string();
    assert!(error.contains("token number 700 is taken, or is not one of the 700 rows"), "{error}");
}

#[test]
fn what_ends_an_answer_is_a_number_or_is_refused_by_name() {
    let tokenizer = |folder: &Folder| folder.open().unwrap().tokenizer().map_err(|error| error.to_string());
    for wrong in [json!("x"), json!(-1), json!(1.5), json!({}), json!(true), json!([1, "x"]), json!([[1]]), json!([-1])]
    {
        for name in ["generation_config.json", "config.json"] {
            let folder = Folder::new();
            let mut object: Json = serde_json::from_slice(&fs::read(folder.0.path().join(name)).unwrap()).unwrap();
            object["eos_token_id"] = wrong.clone();
            folder.json(name, &object);
            let wanted = "is not a token's number or a list of such numbers";
            let error = tokenizer(&folder).unwrap_err();
            assert_eq!(error, format!("metadata key `{name}: eos_token_id` {wanted}"), "{wrong}");
        }
    }
    let with = |settings: Json| {
        let folder = Folder::new();
        folder.json("tokenizer_config.json", &settings);
        tokenizer(&folder)
    };
    for wrong in [json!(4), json!({}), json!({"content": 4}), json!(["<|end|>"]), json!(false)] {
        for key in ["bos_token", "eos_token"] {
            let error = with(json!({key: wrong})).unwrap_err();
            assert_eq!(error, format!("metadata key `tokenizer_config.json: {key}` is not a token's text"), "{wrong}");
        }
    }
    let error = with(json!({"add_bos_token": "yes"})).unwrap_err();
    assert_eq!(error, "metadata key `tokenizer_config.json: add_bos_token` is not true or false");
    let nothing = json!({"bos_token": null, "eos_token": null, "add_bos_token": null});
    assert_eq!(with(nothing).unwrap().eos(), None);
}

#[test]
fn a_token_that_ends_answers_and_has_no_text_is_named() {
    let folder = Folder::new();
    let path = folder.0.path().join("tokenizer.json");
    let mut file: Json = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    file["added_tokens"] = json!([]);
    folder.json("tokenizer.json", &file);
    let error = folder.open().unwrap().tokenizer().unwrap_err().to_string();
    assert_eq!(error, "token 420 is a control or added token and has no text");
}

#[test]
fn a_head_that_the_family_ties_unless_stated_is_not_there_twice() {
    let folder = Folder::new();
    let path = folder.0.path().join("config.json");
    let mut config: Json = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    config.as_object_mut().unwrap().remove("tie_word_embeddings");
    for (family, is_tied) in [("llama", false), ("smollm3", true)] {
        config["model_type"] = family.into();
        folder.json("config.json", &config);
        let checkpoint = folder.open().unwrap();
        assert_eq!(checkpoint.config().unwrap().is_tied, is_tied);
        assert_eq!(checkpoint.tensor("output.weight").is_none(), is_tied, "{family}");
    }
}

#[test]
fn the_digest_is_that_of_the_list_of_all_files_that_are_used() {
    let folder = Folder::new();
    let before = folder.open().unwrap().digest();
    folder.write("README.md", b"not used");
    assert_eq!(folder.open().unwrap().digest(), before);
    folder.json("generation_config.json", &json!({"eos_token_id": 1}));
    assert_ne!(folder.open().unwrap().digest(), before);
    let mut lines = String::new();
    for name in
        ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    {
        let bytes = fs::read(folder.0.path().join(name)).unwrap();
        lines += &format!("{}  {name}\n", hex::encode(Sha256::digest(bytes)));
    }
    assert_eq!(folder.open().unwrap().digest(), <[u8; 32]>::from(Sha256::digest(lines)));
}

#[test]
fn a_folder_is_loaded_and_inspected_as_a_file_is() {
    let folder = Folder::new();
    let model = crate::Model::load(folder.0.path(), 1).unwrap();
    assert_eq!(model.digest(), folder.open().unwrap().digest());
    assert_eq!(model.config().vocab, model.tokenizer().vocab());
    let inspection = crate::inspect(folder.0.path(), &crate::LoadOptions::new(1)).unwrap();
    assert_eq!((inspection.refusal.as_deref(), inspection.gguf_version), (None, None));
    assert_eq!(inspection.tensors.iter().map(|share| share.tensors).sum::<usize>(), 11);
    assert!(inspection.to_string().contains("safetensors"), "{inspection}");
    folder.write("model.safetensors", &weights(&TENSORS[..11]));
    let error = crate::Model::load(folder.0.path(), 1).unwrap_err().to_string();
    assert_eq!(error, "tensor `blk.0.ffn_down.weight` is missing");
    let extra: Vec<_> = TENSORS.into_iter().chain([("model.layers.0.mlp.router.weight", [64].as_slice())]).collect();
    folder.write("model.safetensors", &weights(&extra));
    let error = crate::Model::load(folder.0.path(), 1).unwrap_err().to_string();
    assert!(error.contains("tensor `model.layers.0.mlp.router.weight` is not part of a model"), "{error}");
    // A layer's number has one form; another one would be passed over beside it.
    for name in [
        "model.layers.00.mlp.up_proj.weight",
        "model.layers.+0.mlp.up_proj.weight",
        "blk.00.ffn_up.weight",
        "blk.+0.ffn_up.weight",
        // A name of GGUF files is none here, beside the tensor that it would stand for or alone.
        "blk.0.ffn_up.weight",
        "output_norm.weight",
        "rope_freqs.weight",
        // Gemma's, and here the second norm under another name.
        "model.layers.0.pre_feedforward_layernorm.weight",
    ] {
        let shape = if name == "rope_freqs.weight" { [8].as_slice() } else { [96, 64].as_slice() };
        let extra: Vec<_> = TENSORS.into_iter().chain([(name, shape)]).collect();
        folder.write("model.safetensors", &weights(&extra));
        let error = crate::Model::load(folder.0.path(), 1).unwrap_err().to_string();
        assert_eq!(error, format!("tensor `{name}` is not part of a model that the engine runs"));
    }
}
