//! Every fuzz target over its seeds and over changes of them, the same ones on every run: nothing panics, and memory stays
//! within a bound. Longer runs, which look for new inputs, are `cargo fuzz`'s (see `tests/fuzz/README.md`).
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../fuzz/src/lib.rs"]
#[allow(dead_code, unreachable_pub, reason = "a library to the fuzzer, a module here")]
mod targets;

use std::alloc::{GlobalAlloc, Layout, System};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Changes of each seed.
const CHANGES: u64 = 200;

/// One target at a time, for the peak is the whole process's.
static ALONE: Mutex<()> = Mutex::new(());

/// Counts what is allocated.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(held, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The next of a series of numbers that is the same on every machine.
fn next(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 16) as usize
}

/// Numbers at which lengths, counts and shifts go wrong.
const NUMBERS: [u64; 12] =
    [0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 1 << 32, i64::MAX as u64, u64::MAX];

/// One to four changes of `seed`, with pieces of `other`.
fn changed(seed: &[u8], other: &[u8], state: &mut u64) -> Vec<u8> {
    let mut input = seed.to_vec();
    for _ in 0..1 + next(state) % 4 {
        let at = next(state) % (input.len() + 1);
        // Heads are where most is decided: half of the changes go there.
        let at = if next(state).is_multiple_of(2) { at.min(next(state) % 2_000) } else { at };
        match next(state) % 8 {
            0 => input.truncate(at),
            1 | 2 if at < input.len() => input[at] ^= 1 << (next(state) % 8),
            3 if at < input.len() => input[at] = NUMBERS[next(state) % 5] as u8,
            4 => {
                let number = NUMBERS[next(state) % NUMBERS.len()].to_le_bytes();
                let width = [1, 2, 4, 8][next(state) % 4].min(input.len() - at);
                input[at..at + width].copy_from_slice(&number[..width]);
            }
            5 => {
                let end = (at + next(state) % 64).min(input.len());
                input.drain(at..end);
            }
            6 => {
                let end = (at + next(state) % 64).min(input.len());
                let piece = input[at..end].to_vec();
                let to = next(state) % (input.len() + 1);
                input.splice(to..to, piece);
            }
            _ => {
                let from = next(state) % (other.len() + 1);
                let end = (from + next(state) % 64).min(other.len());
                input.splice(at..at, other[from..end].iter().copied());
            }
        }
    }
    input
}

/// Runs a target over its seeds and their changes; none may take more than `bytes_max` at a time.
fn exercise(name: &str, bytes_max: usize, target: fn(&[u8])) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(name);
    let mut paths: Vec<PathBuf> = std::fs::read_dir(&folder).unwrap().map(|item| item.unwrap().path()).collect();
    paths.sort();
    let seeds: Vec<Vec<u8>> = paths.iter().map(|path| std::fs::read(path).unwrap()).collect();
    assert!(!seeds.is_empty(), "no seeds in {}", folder.display());
    let run = |what: String, input: &[u8]| {
        let before = HELD.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        let ended = catch_unwind(AssertUnwindSafe(|| target(input)));
        let taken = PEAK.load(Ordering::Relaxed).saturating_sub(before);
        if ended.is_err() || taken > bytes_max {
            let kept = std::env::temp_dir().join(format!("fuzz-{name}-input"));
            std::fs::write(&kept, input).unwrap();
            panic!("{name}, {what}: panicked: {}, {taken} bytes taken; input in {}", ended.is_err(), kept.display());
        }
    };
    // What is made once for all inputs is not counted.
    target(&seeds[0]);
    for (seed, path) in std::iter::zip(&seeds, &paths) {
        run(format!("seed {}", path.display()), seed);
        let mut state = 0x9e37_79b9_7f4a_7c15 ^ seed.len() as u64;
        for number in 0..CHANGES {
            let other = &seeds[next(&mut state) % seeds.len()];
            run(format!("change {number} of {}", path.display()), &changed(seed, other, &mut state));
        }
    }
}

/// The seed model and its tokenizer take 1 MB.
const MODEL_BYTES_MAX: usize = 32 << 20;
/// What the fuel of a rendering allows, twice over: see `engine/model/src/chat_template.rs`.
const TEMPLATE_BYTES_MAX: usize = 600 << 20;
/// Far above what any of the others needs for its few kilobytes of input.
const SMALL_BYTES_MAX: usize = 4 << 20;

/// Otherwise the targets would only see that everything is refused.
#[test]
fn the_seeds_of_models_are_models() {
    let seeds = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
    engine_model::Model::load(&seeds.join("gguf/q8_0.gguf"), 1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for (seed, name) in [
        ("model/config.json", "config.json"),
        ("tokenizer_json/byte_level.json", "tokenizer.json"),
        ("safetensors/bf16.safetensors", "model.safetensors"),
    ] {
        std::fs::copy(seeds.join(seed), folder.path().join(name)).unwrap();
    }
    engine_model::Model::load(folder.path(), 1).unwrap();
}

#[test]
fn gguf() {
    exercise("gguf", MODEL_BYTES_MAX, targets::gguf);
}

#[test]
fn safetensors() {
    exercise("safetensors", MODEL_BYTES_MAX, targets::safetensors);
}

#[test]
fn tokenizer_json() {
    exercise("tokenizer_json", MODEL_BYTES_MAX, targets::tokenizer_json);
}

#[test]
fn chat_template() {
    exercise("chat_template", TEMPLATE_BYTES_MAX, targets::chat_template);
}

#[test]
fn prompt() {
    exercise("prompt", SMALL_BYTES_MAX, targets::prompt);
}

#[test]
fn request_body() {
    exercise("request_body", SMALL_BYTES_MAX, targets::request_body);
}

#[test]
fn receipt() {
    exercise("receipt", SMALL_BYTES_MAX, targets::receipt);
}

#[test]
fn mine() {
    exercise("mine", SMALL_BYTES_MAX, targets::mine);
}

#[test]
fn entry() {
    exercise("entry", SMALL_BYTES_MAX, targets::entry);
}

#[test]
fn bundle() {
    exercise("bundle", SMALL_BYTES_MAX, targets::bundle);
}
