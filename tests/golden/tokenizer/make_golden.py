"""Makes the vocabularies and tokens of this folder: small tokenizers, and what independent programs read with them.

    python3 -m venv venv
    venv/bin/pip install gguf==0.19.0 llama-cpp-python==0.3.36 sentencepiece==0.2.3 tokenizers==0.23.3
    venv/bin/python tests/golden/tokenizer/make_golden.py

The vocabularies are trained here, on the licence text beside the golden files of the model and the strings below.
`sentence_piece.gguf` is read by llama.cpp, `bytes.json` and `characters.json` by the crate `tokenizers`, each in
several variants, since what differs between the families are a few entries around the same vocabulary.
"""

import io
import json
from pathlib import Path

import gguf
import llama_cpp
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = Path(__file__).parent
TEXT = (HERE.parent / "model" / "long_prompt.txt").read_text()
STRINGS = [
    "",
    " ",
    "  ",
    "\n",
    "a",
    " a",
    "  a  b   c ",
    "Hello, world!",
    "Hello  world\n\n\nagain\t\ttabs \n x",
    "trailing space ",
    "the sea and the village and the sea",
    "I'll we'VE it's IT'S don'T they'd",
    "'\u017f it'\u017f",
    "1234567 12 3,141.59 x86_64 2x",
    "\u0661\u0662\u0663 \u216b \u00bd\u00b2",
    "caf\u00e9 cafe\u0301 na\u00efve \u00c5ngstr\u00f6m A\u030angstro\u0308m",
    "\u212b \u212a \u2126 \u1112\u1161\u11ab \ufb01",
    "\u65e5\u672c\u8a9e\u306e\u6587 \ud55c\uad6d\uc5b4 \u0939\u093f\u0928\u094d\u0926\u0940",
    "\U0001f600\U0001f44d\U0001f3fd a\u200db",
    "\u3000\u3000wide\u00a0space\u2003em",
    "\r\nwindows\r\n\r\nlines\r",
    "fn main() { println!(\"{x:?}\"); } // a/b\\c",
    "a\u2581b \u2581\u2581c",
    "<s>a</s> <unk> <0x0A> <0x41>",
    "<|begin|>a<|end|>b <tool>c</tool>  <tool>",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "        indented\n            more",
    "CamelCaseWords HTTPServer iPhone \u01c5\u02b0a\u0301B",
    "a\x00b\x04c\x7f\u0085d",
    "...!?--==>> ///\n//\r\n x/\n",
    "e\u0323\u0302\u0301 \u0344 \u0340a",
]
SPECIAL = ["<|begin|>", "<|end|>"]
ADDED = ["<tool>", "</tool>"]


def sentence_piece():
    """A vocabulary of SentencePiece in a GGUF file, and llama.cpp's tokens for it with and without the first space."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter((TEXT + "\n".join(STRINGS)).replace("\0", "").splitlines()),
        model_writer=model,
        model_type="bpe",
        vocab_size=640,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        user_defined_symbols=ADDED,
        control_symbols=SPECIAL,
        character_coverage=0.98,
        num_threads=1,
        minloglevel=2,
    )
    proto = model_pb2.ModelProto.FromString(model.getvalue())
    kinds = {1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 6}
    cases = {}
    for add_space in (False, True):
        path = HERE / "sentence_piece.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_tokenizer_model("llama")
        writer.add_token_list([piece.piece for piece in proto.pieces])
        writer.add_token_scores([piece.score for piece in proto.pieces])
        writer.add_token_types([kinds[piece.type] for piece in proto.pieces])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_add_bos_token(True)
        writer.add_add_space_prefix(add_space)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        reader = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
        for special in (False, True):
            cases[f"{'prefix' if add_space else 'plain'} {'special' if special else 'ordinary'}"] = [
                reader.tokenize(text.encode(), add_bos=False, special=special) for text in STRINGS
            ]
    return cases


LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split(pattern):
    parts = [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    return pre_tokenizers.Sequence(parts)


def begin(tokenizer, token):
    return processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A {token} $B", special_tokens=[(token, tokenizer.token_to_id(token))]
    )


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=SPECIAL,
    )
    tokenizer.train_from_iterator([TEXT, *STRINGS], trainer)
    tokenizer.add_tokens(ADDED)
    tokenizer.save(str(HERE / "bytes.json"), pretty=False)
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)])
    return tokenizer, {
        "gpt-2": {},
        "llama 3": {
            "pre_tokenizer": split(LLAMA3),
            "post_processor": processors.Sequence([processors.ByteLevel(), begin(tokenizer, "<|begin|>")]),
            "ignore_merges": True,
        },
        "smollm 2": {"pre_tokenizer": digits},
        "smollm 3": {"pre_tokenizer": split(LLAMA3)},
        "qwen": {"pre_tokenizer": split(QWEN2), "normalizer": normalizers.NFC()},
        "tekken": {"pre_tokenizer": split(TEKKEN), "ignore_merges": True},
    }


def characters():
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    space = normalizers.Replace(" ", "\u2581")
    prepend = normalizers.Sequence([normalizers.Prepend("\u2581"), space])
    tokenizer.normalizer = prepend
    trainer = trainers.BpeTrainer(
        vocab_size=640,
        show_progress=False,
        special_tokens=["<unk>", "<s>", "</s>", *SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))],
        limit_alphabet=90,
        max_token_length=12,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
    tokenizer.train_from_iterator([TEXT, *STRINGS], trainer)
    tokenizer.pre_tokenizer = None
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ADDED])
    described = json.loads(tokenizer.to_str())
    # The trainer knows no bytes: they are ordinary entries of the vocabulary.
    described["added_tokens"] = [
        token for token in described["added_tokens"] if not token["content"].startswith("<0x")
    ]
    (HERE / "characters.json").write_text(json.dumps(described, ensure_ascii=False, separators=(",", ":")) + "\n")
    tokenizer = Tokenizer.from_file(str(HERE / "characters.json"))
    return tokenizer, {
        "llama 2": {"post_processor": begin(tokenizer, "<s>")},
        "mistral": {"normalizer": None, "pre_tokenizer": pre_tokenizers.Metaspace(prepend_scheme="first", split=False)},
        "always": {"normalizer": None, "pre_tokenizer": pre_tokenizers.Metaspace(prepend_scheme="always", split=False)},
        "never": {"normalizer": None, "pre_tokenizer": pre_tokenizers.Metaspace(prepend_scheme="never", split=False)},
        "gemma": {"normalizer": space, "pre_tokenizer": pre_tokenizers.Split(" ", "merged_with_previous")},
    }


def tokens_of(variants, base):
    """For each variant what differs in the file, and its tokens: with control tokens as ordinary text, and as such."""
    result = []
    tokenizer, variants = variants
    for name, change in variants.items():
        variant = Tokenizer.from_str(tokenizer.to_str())
        for key in ("normalizer", "pre_tokenizer", "post_processor"):
            if key in change:
                setattr(variant, key, change[key])
        described = json.loads(variant.to_str())
        described["model"]["ignore_merges"] = change.get("ignore_merges", False)
        variant = Tokenizer.from_str(json.dumps(described))
        case = {"name": name, "base": base, "ignore_merges": described["model"]["ignore_merges"]}
        for key in ("normalizer", "pre_tokenizer", "post_processor"):
            case[key] = described[key]
        for key, ordinary in (("ordinary", True), ("special", False)):
            variant.encode_special_tokens = ordinary
            case[key] = [variant.encode(text, add_special_tokens=False).ids for text in STRINGS]
        result.append(case)
    return result


golden = {
    "strings": STRINGS,
    "sentence_piece": sentence_piece(),
    "tokenizer_json": tokens_of(byte_level(), "bytes.json") + tokens_of(characters(), "characters.json"),
}
lines = [f'"strings":{json.dumps(golden["strings"])}']
for key in ("sentence_piece", "tokenizer_json"):
    lines.append(f'"{key}":{json.dumps(golden[key], separators=(",", ":"))}')
(HERE / "tokens.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
