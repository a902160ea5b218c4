//! A small valid file, and everything that can be wrong with one.

use proptest::prelude::*;

use super::*;

/// Writes GGUF files, valid ones and others.
#[derive(Clone)]
pub(crate) struct File {
    version: u32,
    keys: Vec<(String, Vec<u8>)>,
    tensors: Vec<(String, Vec<u64>, u32, u64)>,
    data: Vec<u8>,
}

impl Default for File {
    fn default() -> Self {
        Self { version: 3, keys: Vec::new(), tensors: Vec::new(), data: Vec::new() }
    }
}

fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

/// A text value with its type.
pub(crate) fn scalar(text: &str) -> Vec<u8> {
    [8u32.to_le_bytes().to_vec(), string(text.as_bytes())].concat()
}

fn typed(kind: u32, bytes: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes(), bytes].concat()
}

fn array(kind: u32, count: u64, elements: &[u8]) -> Vec<u8> {
    [&9u32.to_le_bytes(), &kind.to_le_bytes(), count.to_le_bytes().as_slice(), elements].concat()
}

/// A 32-bit number with its type.
pub(crate) fn number(value: u32) -> Vec<u8> {
    typed(4, &value.to_le_bytes())
}

/// A float with its type.
pub(crate) fn float(value: f32) -> Vec<u8> {
    typed(6, &value.to_le_bytes())
}

/// A truth value with its type.
pub(crate) fn boolean(value: bool) -> Vec<u8> {
    typed(7, &[value.into()])
}

/// A list of truth values with its type.
pub(crate) fn booleans(values: &[bool]) -> Vec<u8> {
    array(7, values.len() as u64, &values.iter().map(|value| u8::from(*value)).collect::<Vec<u8>>())
}

/// A list of texts with its type.
pub(crate) fn strings(texts: &[&str]) -> Vec<u8> {
    array(8, texts.len() as u64, &texts.iter().flat_map(|text| string(text.as_bytes())).collect::<Vec<u8>>())
}

/// A list of signed numbers with its type.
pub(crate) fn numbers(values: &[i32]) -> Vec<u8> {
    array(5, values.len() as u64, &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())
}

/// A list of 32-bit floats with its type.
pub(crate) fn floats(values: &[f32]) -> Vec<u8> {
    array(6, values.len() as u64, &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())
}

impl File {
    pub(crate) fn without(mut self, key: &str) -> Self {
        self.keys.retain(|(known, _)| known != key);
        self
    }

    pub(crate) fn key(mut self, key: &str, value: Vec<u8>) -> Self {
        self.keys.push((key.to_owned(), value));
        self
    }

    pub(crate) fn tensor(mut self, name: &str, shape: &[u64], kind: u32, offset: u64) -> Self {
        self.tensors.push((name.to_owned(), shape.to_vec(), kind, offset));
        self
    }

    /// The data section.
    pub(crate) fn data(self, data: Vec<u8>) -> Self {
        Self { data, ..self }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            out.extend(string(key.as_bytes()));
            out.extend(value);
        }
        for (name, shape, kind, offset) in &self.tensors {
            out.extend(string(name.as_bytes()));
            out.extend((shape.len() as u32).to_le_bytes());
            shape.iter().for_each(|dimension| out.extend(dimension.to_le_bytes()));
            out.extend(kind.to_le_bytes());
            out.extend(offset.to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend(&self.data);
        out
    }

    fn error(&self) -> String {
        Gguf::from_bytes(self.bytes()).unwrap_err().to_string()
    }
}

/// Every value type, two tensors.
fn small() -> File {
    let file = File { data: (0..=255).collect(), ..File::default() }
        .key("u8", typed(0, &[255]))
        .key("i8", typed(1, &[255]))
        .key("u16", typed(2, &[1, 2]))
        .key("i16", typed(3, &[254, 255]))
        .key("u32", typed(4, &7u32.to_le_bytes()))
        .key("i32", typed(5, &(-7i32).to_le_bytes()))
        .key("f32", typed(6, &1.5f32.to_le_bytes()))
        .key("bool", typed(7, &[1]))
        .key("text", scalar("caf\u{e9}"))
        .key("u64", typed(10, &u64::MAX.to_le_bytes()))
        .key("i64", typed(11, &i64::MIN.to_le_bytes()))
        .key("f64", typed(12, &(-0.25f64).to_le_bytes()))
        .key("texts", array(8, 2, &[string(b"a"), string(b"")].concat()))
        .key("numbers", array(5, 2, &[1i32.to_le_bytes(), 2i32.to_le_bytes()].concat()))
        .key("nothing", array(6, 0, &[]));
    file.tensor("a", &[32, 2], 8, 0).tensor("b", &[3], 0, 96)
}

#[test]
fn a_small_file_is_read_as_it_was_written() {
    for version in [2, 3] {
        let gguf = Gguf::from_bytes(File { version, ..small() }.bytes()).unwrap();
        assert_eq!(gguf.version(), version);
        let value = |key| gguf.metadata(key).cloned();
        assert_eq!(value("u8"), Some(Value::Unsigned(255)));
        assert_eq!(value("i8"), Some(Value::Signed(-1)));
        assert_eq!(value("u16"), Some(Value::Unsigned(513)));
        assert_eq!(value("i16"), Some(Value::Signed(-2)));
        assert_eq!(value("u32"), Some(Value::Unsigned(7)));
        assert_eq!(value("i32"), Some(Value::Signed(-7)));
        assert_eq!(value("f32"), Some(Value::Float(1.5)));
        assert_eq!(value("bool"), Some(Value::Bool(true)));
        assert_eq!(value("text"), Some(Value::String("caf\u{e9}".into())));
        assert_eq!(value("u64"), Some(Value::Unsigned(u64::MAX)));
        assert_eq!(value("i64"), Some(Value::Signed(i64::MIN)));
        assert_eq!(value("f64"), Some(Value::Float(-0.25)));
        assert_eq!(gguf.metadata("texts").unwrap().as_strings(), Some(["a".to_owned(), String::new()].as_slice()));
        assert_eq!(gguf.metadata("numbers").unwrap().as_unsigned(), Some(vec![1, 2]));
        assert_eq!(value("nothing"), Some(Value::Array(Array::Float(Vec::new()))));
        assert_eq!((value("absent"), gguf.metadata_len()), (None, 15));

        assert_eq!(gguf.tensor_names().collect::<Vec<_>>(), ["a", "b"]);
        let a = gguf.tensor("a").unwrap();
        assert_eq!((a.shape, a.kind.name(), a.bytes.len(), a.bytes[0]), ([32, 2].as_slice(), "Q8_0", 68, 0));
        let b = gguf.tensor("b").unwrap();
        assert_eq!((b.shape, b.kind, b.bytes.len(), b.bytes[0]), ([3].as_slice(), TensorKind::F32, 12, 96));
        assert!(gguf.tensor("c").is_none());
    }
}

#[test]
fn another_magic_or_version_is_refused() {
    for magic in [b"GGML".as_slice(), b"FUGG", b"", b"GGU"] {
        let bytes = [magic, &small().bytes()[4..]].concat();
        let bytes = if magic.len() < 4 { magic.to_vec() } else { bytes };
        assert!(matches!(Gguf::from_bytes(bytes), Err(GgufError::Magic)));
    }
    for version in [0, 1, 4, 3u32.swap_bytes()] {
        assert!(File { version, ..small() }.error().contains(&format!("version {version} ")));
    }
}

#[test]
fn every_truncation_is_an_error() {
    let bytes = small().bytes();
    // The last tensor ends at byte 108 of 256 bytes of data; what follows belongs to nothing.
    let needed = bytes.len() - 256 + 108;
    for length in 0..needed {
        assert!(Gguf::from_bytes(bytes[..length].to_vec()).is_err(), "{length}");
    }
    assert!(Gguf::from_bytes(bytes[..needed].to_vec()).is_ok());
    let error = Gguf::from_bytes(bytes[..12].to_vec()).unwrap_err().to_string();
    assert_eq!(error, "the file is cut short: the number of tensors at byte 8 needs 8 bytes, 4 are left");
}

#[test]
fn absurd_counts_are_refused_before_anything_is_allocated() {
    let with = |at: usize, value: u64| {
        let mut bytes = small().bytes();
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        Gguf::from_bytes(bytes).unwrap_err().to_string()
    };
    for count in [u64::MAX, 1 << 60, 1 << 40, 65_537] {
        assert!(with(8, count).contains(&format!("the number of tensors is {count}, its rest has room for")));
        assert!(with(16, count).contains(&format!("the number of keys is {count}, its rest has room for")));
        assert!(with(24, count).contains(&format!("a key's length is {count}, its rest has room for")));
    }
    for count in [u64::MAX, 1 << 40, 1_000] {
        let error = File::default().key("x", array(8, count, &[0; 64])).error();
        assert!(error.contains(&format!("an array's length is {count}, its rest has room for")), "{error}");
        let text = typed(8, &[count.to_le_bytes().as_slice(), b"x"].concat());
        let error = File::default().key("x", text).error();
        assert!(error.contains(&format!("a value's length is {count}, its rest has room for")), "{error}");
    }
    let error = File::default().key(&"k".repeat(257), scalar("x")).error();
    assert!(error.contains("a key's length is 257, more than the 256"), "{error}");
    let many = array(0, (1 << 21) + 1, &vec![0; (1 << 21) + 1]);
    let error = File::default().key("x", many).error();
    assert!(error.contains("an array's length is 2097153, more than the 2097152 accepted"), "{error}");
    let error = File::default().tensor("t", &[1; 5], 0, 0).error();
    assert!(error.contains("number of dimensions is 5, more than the 4"), "{error}");
    assert!(File::default().tensor("t", &[], 0, 0).error().contains("number of dimensions is 0"));
}

#[test]
fn values_of_no_known_type_are_refused() {
    for kind in [13, 99, u32::MAX] {
        assert!(File::default().key("x", typed(kind, &[0; 16])).error().contains(&format!("value type {kind}")));
    }
    // An array of arrays.
    assert!(File::default().key("x", array(9, 1, &[0; 64])).error().contains("value type 9"));
    assert!(File::default().key("x", typed(7, &[2])).error().contains("is 2"));
    let bad = typed(8, &string(b"\xff\xfe"));
    assert!(File::default().key("x", bad).error().contains("is not UTF-8"));
}

#[test]
fn the_same_key_or_tensor_twice_is_refused() {
    assert!(small().key("u8", typed(0, &[1])).error().contains("key `u8` occurs twice"));
    assert!(small().tensor("a", &[1], 0, 128).error().contains("tensor `a` occurs twice"));
}

#[test]
fn alignments_that_are_none_are_refused() {
    for alignment in [0u32, 3, 33, 131_072] {
        let error = small().key("general.alignment", typed(4, &alignment.to_le_bytes())).error();
        assert!(error.contains("general.alignment"), "{error}");
    }
    assert!(small().key("general.alignment", scalar("32")).error().contains("general.alignment"));
    let coarser = small().key("general.alignment", typed(4, &64u32.to_le_bytes()));
    assert!(coarser.error().contains("tensor `b` begins at byte 96 of the data, not a multiple of 64"));
}

#[test]
fn tensors_that_cannot_be_are_refused() {
    let error = |shape: &[u64], kind, offset| small().tensor("t", shape, kind, offset).error();
    assert!(error(&[1], 0, 127).contains("not a multiple of 32"));
    assert!(error(&[1], 4, 128).contains("unknown type 4"));
    assert!(error(&[0], 0, 128).contains("impossible shape [0]"));
    assert!(error(&[16], 8, 128).contains("impossible shape [16] for type Q8_0"));
    assert!(error(&[u64::MAX, 2], 0, 128).contains("impossible shape"));
    assert!(error(&[1 << 32, 1 << 32], 0, 128).contains("impossible shape"));
    assert!(error(&[1 << 62], 0, 128).contains("impossible shape"));
    assert!(error(&[64], 0, 128).contains("after the end of the file"));
    assert!(error(&[1], 0, 256).contains("after the end of the file"));
    assert!(error(&[1], 0, u64::MAX - 31).contains("after the end of the file"));
    assert!(error(&[1], 0, 64).contains("tensors `a` and `t` overlap"));
    assert!(error(&[1], 0, 96).contains("overlap"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Whatever happens to the file: an answer, no panic. What is answered lies inside the file.
    #[test]
    fn damaged_files_never_panic(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        wide in proptest::option::of((any::<prop::sample::Index>(), any::<u64>())),
        cut in any::<prop::sample::Index>(),
        whole: bool,
    ) {
        let mut bytes = small().bytes();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some((at, value)) = wide {
            let at = at.index(bytes.len() - 8);
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        if !whole {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(gguf) = Gguf::from_bytes(bytes) {
            let total: usize = gguf.tensor_names().map(|name| gguf.tensor(name).unwrap().bytes.len()).sum();
            prop_assert!(total <= gguf.file_bytes().len());
        }
    }
}
