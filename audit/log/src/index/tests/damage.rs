//! Damage: of a store's files, and of the segments behind the index's back.

use super::*;
use std::fs;
use std::path::{Path, PathBuf};

/// The files of an index that is complete and closed.
fn files(disk: &MemoryDisk, folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let dir = folder.join("whole");
    let lookup = lookup(disk, sled_store(&dir));
    ready(&lookup);
    lookup.end();
    let mut files = Vec::new();
    let mut folders = vec![dir.clone()];
    while let Some(at) = folders.pop() {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push((path.strip_prefix(&dir).unwrap().to_owned(), fs::read(&path).unwrap()));
            }
        }
    }
    files.sort();
    assert!(files.iter().any(|(path, _)| path == Path::new("db")), "{files:?}");
    files
}

/// Opens the index with one file changed, and asks.
fn ask_with(
    disk: &MemoryDisk,
    model: &Model,
    files: &[(PathBuf, Vec<u8>)],
    changed: usize,
    bytes: &[u8],
    every: usize,
) {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("index");
    for (place, (path, content)) in files.iter().enumerate() {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, if place == changed { bytes } else { content }).unwrap();
    }
    let lookup = lookup(disk, sled_store(&dir));
    // Whether it is opened by now or not: asked while it is opened, and again when it is there or given up.
    check(&lookup, model, every).unwrap();
    lookup.end();
}

/// Flips one bit in every `step`th byte, beginning with the `first`.
fn flip_bits(first: usize, step: usize) {
    let (disk, model) = history();
    let folder = tempfile::tempdir().unwrap();
    let files = files(&disk, folder.path());
    for (changed, (path, content)) in files.iter().enumerate() {
        for position in (first..content.len()).step_by(step) {
            let mut bytes = content.clone();
            bytes[position] ^= 1 << (position / step % 8);
            eprintln!("{} byte {position}", path.display());
            ask_with(&disk, &model, &files, changed, &bytes, 37);
        }
    }
}

#[test]
fn a_flipped_bit_in_the_stores_files_changes_no_answer() {
    flip_bits(5, 4_001);
}

/// Hours: `cargo nextest run -p audit-log --run-ignored only every_bit`.
#[test]
#[ignore = "takes hours"]
fn every_bit_of_the_stores_files_changes_no_answer() {
    let (disk, model) = history();
    let folder = tempfile::tempdir().unwrap();
    let files = files(&disk, folder.path());
    for (changed, (_, content)) in files.iter().enumerate() {
        for bit in 0..content.len() * 8 {
            let mut bytes = content.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            ask_with(&disk, &model, &files, changed, &bytes, 97);
        }
    }
}

#[test]
fn files_that_are_cut_zeroed_or_gone_change_no_answer() {
    let (disk, model) = history();
    let folder = tempfile::tempdir().unwrap();
    let files = files(&disk, folder.path());
    for (changed, (_, content)) in files.iter().enumerate() {
        for part in 0..8 {
            let middle = content.len() * part / 8;
            ask_with(&disk, &model, &files, changed, &content[..middle], 23);
            let mut zeroed = content.clone();
            let end = zeroed.len().min(middle + 4_096);
            zeroed[middle..end].fill(0);
            ask_with(&disk, &model, &files, changed, &zeroed, 23);
        }
    }
}

#[test]
fn a_folder_that_cannot_be_used_leaves_the_log_without_an_index_and_right() {
    let (disk, model) = history();
    let folder = tempfile::tempdir().unwrap();
    // A file in its place is put aside. Below a file, and below what no system lets anybody write to, there is no folder.
    let file = folder.path().join("file");
    fs::write(&file, "not a folder").unwrap();
    let replaced = lookup(&disk, sled_store(&file));
    check(&replaced, &model, 11).unwrap();
    ready(&replaced);
    check(&replaced, &model, 11).unwrap();
    replaced.end();
    assert!(file.is_dir());
    let below = folder.path().join("below");
    fs::write(&below, "not a folder").unwrap();
    for unusable in [below.join("index"), PathBuf::from("/proc/self/index")] {
        let lookup = lookup(&disk, sled_store(&unusable));
        check(&lookup, &model, 11).unwrap();
        while !lookup.health().given_up {
            std::thread::yield_now();
        }
        check(&lookup, &model, 11).unwrap();
        lookup.end();
    }
}

#[test]
fn a_segment_that_was_changed_since_the_start_gives_no_answer() {
    let (disk, model) = history();
    let lookup = lookup(&disk, memory_store());
    ready(&lookup);
    // Of an entry that is not in memory any more: a byte of its blind, with right sums over it.
    let sealed = *model.incidents.first().unwrap();
    assert!(sealed < BLOCK);
    let path = "segments/00000000000000000000";
    let mut bytes = lookup.source.storage.read(path, 1 << 24).unwrap();
    let entry_length = u32::from_be_bytes(bytes[..4].try_into().unwrap()) as usize;
    bytes[40 + 30] ^= 1;
    let leaf = audit_tlog::leaf_hash(&bytes[40..40 + entry_length]).0;
    bytes[8..40].copy_from_slice(&leaf);
    let sum = crc32c::crc32c(&bytes[8..40 + entry_length]);
    bytes[4..8].copy_from_slice(&sum.to_be_bytes());
    lookup.source.storage.write(path, &bytes).unwrap();
    assert!(matches!(lookup.source.group(0), Err(LookupError::Damaged { .. })));
    assert!(lookup.incidents().is_err());
    let first = model.requests.iter().find(|(_, (opened, _))| *opened < BLOCK).unwrap().0;
    assert!(lookup.request(*first).is_err());
    lookup.end();
}
