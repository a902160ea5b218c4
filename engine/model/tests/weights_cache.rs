//! The cache of repacked weights: it changes nothing but the time, and cannot change anything unseen.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../src/test_model.rs"]
mod test_model;

use std::path::{Path, PathBuf};

use engine_model::{CacheUse, KvKind, LoadOptions, Loaded, Model};

fn load(model: &Path, cache: &Path) -> Loaded {
    Model::load_with(model, &LoadOptions { weights_cache: Some(cache.to_owned()), ..LoadOptions::new(2) }).unwrap()
}

/// The cache's one file.
fn only_file(cache: &Path) -> PathBuf {
    let mut files = std::fs::read_dir(cache).unwrap();
    let path = files.next().unwrap().unwrap().path();
    assert!(files.next().is_none());
    path
}

#[test]
fn a_second_start_computes_with_the_same_weights() {
    let (path, folder) = (test_model::path(), tempfile::tempdir().unwrap());
    let cache = folder.path().join("weights");
    let plain = Model::load(&path, 1).unwrap();
    let Loaded { model, cache: CacheUse::Unsaved(unsaved) } = load(&path, &cache) else { panic!("there was a cache") };
    assert_eq!((model.digest(), model.weights_digest()), (plain.digest(), plain.weights_digest()));
    assert!(unsaved.reason().is_none());
    unsaved.save().unwrap();
    // Made of what the model is, and of no name that a tenant could guess from it.
    let name = only_file(&cache).file_name().unwrap().to_str().unwrap().to_owned();
    assert!(name.starts_with(&hex::encode(model.digest())), "{name}");
    let Loaded { model, cache: CacheUse::Restored } = load(&path, &cache) else { panic!("the cache was not used") };
    assert_eq!((model.digest(), model.weights_digest()), (plain.digest(), plain.weights_digest()));
}

/// The bytes of the head before the packed bytes, and where its digests are, as the module says.
const HEAD: usize = 188;
const CONTENT: std::ops::Range<usize> = 124..156;

#[test]
fn weights_that_were_changed_in_the_cache_have_another_digest() {
    let (path, folder) = (test_model::path(), tempfile::tempdir().unwrap());
    let CacheUse::Unsaved(unsaved) = load(&path, folder.path()).cache else { panic!("there was a cache") };
    unsaved.save().unwrap();
    let honest = load(&path, folder.path()).model;
    // Somebody changes one weight, and makes every digest in the file fit.
    let file = only_file(folder.path());
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let pieces: Vec<u8> = bytes[HEAD..].chunks(1 << 20).flat_map(|piece| *blake3::hash(piece).as_bytes()).collect();
    bytes[CONTENT].copy_from_slice(blake3::hash(&pieces).as_bytes());
    let head = blake3::hash(&bytes[..CONTENT.end]);
    bytes[CONTENT.end..HEAD].copy_from_slice(head.as_bytes());
    std::fs::write(&file, &bytes).unwrap();
    let Loaded { model, cache: CacheUse::Restored } = load(&path, folder.path()) else {
        panic!("the cache was not used")
    };
    assert_eq!(model.digest(), honest.digest());
    assert_ne!(model.weights_digest(), honest.weights_digest());
    assert_ne!(model.fingerprint(KvKind::Bf16), honest.fingerprint(KvKind::Bf16));
}

#[test]
fn the_cache_of_a_file_that_looks_the_same_is_not_used() {
    let (path, folder) = (test_model::path(), tempfile::tempdir().unwrap());
    let cache = folder.path().join("weights");
    let CacheUse::Unsaved(unsaved) = load(&path, &cache).cache else { panic!("there was a cache") };
    unsaved.save().unwrap();
    // The same beginning, end and length: only one weight in the middle differs.
    let other = folder.path().join("other.gguf");
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    // Whatever it is in a block, a lowest bit makes nothing infinite.
    bytes[middle & !1] ^= 1;
    std::fs::write(&other, &bytes).unwrap();
    let plain = Model::load(&other, 2).unwrap();
    let Loaded { model, cache: CacheUse::Unsaved(unsaved) } = load(&other, &cache) else { panic!("it was used") };
    assert!(unsaved.reason().is_none(), "nothing is wrong with the other's: {:?}", unsaved.reason());
    assert_eq!((model.digest(), model.weights_digest()), (plain.digest(), plain.weights_digest()));
    assert_ne!(model.weights_digest(), load(&path, &cache).model.weights_digest());
    // Now the folder has both, and whichever is looked at first, either gets its own weights out of it.
    unsaved.save().unwrap();
    let digests = [(&path, load(&path, folder.path()).model.weights_digest()), (&other, plain.weights_digest())];
    for (file, digest) in digests {
        let Loaded { model, cache: CacheUse::Restored } = load(file, &cache) else { panic!("the cache was not used") };
        assert_eq!(model.weights_digest(), digest);
    }
}
