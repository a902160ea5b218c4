//! What label checks and read-set digests cost: the forward pass with them against the same without them.
//!
//! "Without" is a copy of the tree in which the checks are taken out of the kernels' text; nothing else differs, and no
//! switch for it exists in the product. Time hardly shows half a percent, so instructions are counted
//! (`valgrind --tool=callgrind`); valgrind knows no AVX-512, so these are the kernels of AVX2. The machine's own kernels
//! are then timed, with and without in turn.

use super::result_file;
use crate::phase::execute;
use crate::setup;
use crate::tree::{self, apply};
use anyhow::{Context, Result, ensure};
use serde_json::{Value as Json, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// One check, and the text without it.
struct Removal {
    file: &'static str,
    find: &'static str,
    replace: &'static str,
}

const REMOVALS: &[Removal] = &[
    Removal {
        file: "engine/kernels/src/kv_store.rs",
        find: "Option<Slab<'_>> {\n        if page.tag == 0 || self.tags.get(page.page as usize) != Some(&page.tag) {\n            return None;\n        }\n",
        replace: "Option<Slab<'_>> {\n",
    },
    Removal {
        file: "engine/kernels/src/kv_store.rs",
        find: "(slab.tag() == page.tag).then_some(slab)",
        replace: "Some(slab)",
    },
    Removal {
        file: "engine/kernels/src/kv_store.rs",
        find: "Option<SlabMut<'_>> {\n        if page.tag == 0 || self.tags.get(page.page as usize) != Some(&page.tag) {\n            return None;\n        }\n",
        replace: "Option<SlabMut<'_>> {\n",
    },
    Removal {
        file: "engine/kernels/src/kv_store.rs",
        find: "        if first_token {\n            bytes[..4].copy_from_slice(&tag);\n        } else if bytes[..4] != tag {\n            return None;\n        }\n",
        replace: "        let _ = (first_token, tag);\n",
    },
    Removal {
        file: "engine/kernels/src/attention.rs",
        find: "        if self.faults.of(tile.span).is_some() {\n            return None;\n        }\n        let span",
        replace: "        let span",
    },
    Removal {
        file: "engine/kernels/src/attention.rs",
        find: "let seen_later = if next < end { first_page(next, self.window) } else { usize::MAX };",
        replace: "let (seen_later, _) = (0, next);",
    },
];

/// Only what this function and its callees do is counted.
const COUNTED: &str = "engine_model::forward::Forward::run*";
/// Tokens of the prompt, and of the decodes after it.
const PROMPT: usize = 512;
const DECODES: usize = 16;
/// Timed runs of each of the two programs.
const TIMINGS: usize = 9;

pub(super) fn run(root: &Path) -> Result<()> {
    let model = super::model(&super::bulkhead(root)?)?;
    let folder = setup::target(root).join("checks");
    let tree = folder.join("tree");
    tree::copy(root, &tree)?;
    let checked = build(root, &tree, &folder, "checked")?;
    for Removal { file, find, replace } in REMOVALS {
        let path = tree.join(file);
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {file}"))?;
        std::fs::write(&path, apply(&text, find, replace)?).with_context(|| format!("cannot write {file}"))?;
    }
    let unchecked = build(root, &tree, &folder, "unchecked")?;

    let (checked_counts, unchecked_counts) = (Counts::of(&checked, &model)?, Counts::of(&unchecked, &model)?);
    ensure!(checked_counts.prefill > unchecked_counts.prefill, "the checks cost nothing: they were not taken out");
    let row = |with: u64, without: u64| json!({"with": with, "without": without, "share": (with as f64 - without as f64) / with as f64});
    let (mut prefill, mut decode) = (Vec::new(), Vec::new());
    for repetition in 0..=TIMINGS {
        let (with, without) = (timed(&checked, &model)?, timed(&unchecked, &model)?);
        // The first repetition warms caches and is not counted.
        if repetition > 0 {
            prefill.push(with.0 / without.0);
            decode.push(with.1 / without.1);
        }
    }
    let result = json!({
        "removed": REMOVALS.iter().map(|removal| removal.file).collect::<std::collections::BTreeSet<_>>(),
        "counted_kernels": "avx2",
        "prefill": row(checked_counts.prefill, unchecked_counts.prefill),
        "prefill_tokens": PROMPT,
        "decode": row(checked_counts.decode, unchecked_counts.decode),
        "decode_context": PROMPT,
        "timed_runs": TIMINGS,
        "timed_prefill": spread(prefill),
        "timed_decode": spread(decode),
    });
    for phase in ["prefill", "decode"] {
        let share = result[phase]["share"].as_f64().unwrap_or(f64::NAN);
        let timed = result[format!("timed_{phase}")]["median"].as_f64().unwrap_or(f64::NAN);
        println!("{phase:<8} checks are {:.3} % of the instructions; speed with them {timed:.3}", share * 100.0);
    }
    let file = result_file(root, "checks.json");
    std::fs::write(&file, serde_json::to_string_pretty(&result)? + "\n")
        .with_context(|| format!("cannot write {}", file.display()))
}

/// Builds the program that runs forward passes, and keeps it under a name.
fn build(root: &Path, tree: &Path, folder: &Path, name: &str) -> Result<PathBuf> {
    let target = folder.join("build");
    execute(
        setup::cargo(root)
            .current_dir(tree)
            .args(["build", "--release", "--locked", "-p", "engine-model", "--example", "speed"])
            .env("CARGO_TARGET_DIR", &target),
    )?;
    let kept = folder.join(name);
    std::fs::copy(target.join("release/examples/speed"), &kept).context("the program was not built")?;
    Ok(kept)
}

/// Instructions of one prompt, and of the decodes after it.
struct Counts {
    prefill: u64,
    decode: u64,
}

impl Counts {
    fn of(program: &Path, model: &Path) -> Result<Self> {
        // The program warms up with one repetition and counts another; it decodes at least once.
        let (short, long) = (count(program, model, 1)?, count(program, model, 1 + DECODES)?);
        Ok(Self { prefill: short, decode: long - short })
    }
}

fn count(program: &Path, model: &Path, decodes: usize) -> Result<u64> {
    let out = program.with_extension(format!("{decodes}.callgrind"));
    let mut command = Command::new("valgrind");
    command
        .arg("--tool=callgrind")
        .arg(format!("--toggle-collect={COUNTED}"))
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(program)
        .arg(model)
        .args(["--threads", "1", "--repeats", "1", "--family", "avx2"])
        .args(["--prompt", &PROMPT.to_string(), "--generate", &decodes.to_string()]);
    execute(&mut command).context("valgrind is needed (on Debian: apt-get install valgrind)")?;
    let text = std::fs::read_to_string(&out).with_context(|| format!("cannot read {}", out.display()))?;
    total(&text).with_context(|| format!("nothing was counted: is `{COUNTED}` still the name of the forward pass?"))
}

/// The sum over the whole run, in callgrind's output. `None` when it is 0.
///
/// Source: the "Callgrind Format Specification" of valgrind's manual.
fn total(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("totals:").or_else(|| line.strip_prefix("summary:")))?;
    line.split_whitespace().next()?.parse().ok().filter(|total| *total > 0)
}

/// Tokens per second of prefill and decode with the machine's best kernels.
fn timed(program: &Path, model: &Path) -> Result<(f64, f64)> {
    let output = Command::new(program)
        .arg(model)
        .args(["--repeats", "3", "--prompt", &PROMPT.to_string(), "--generate", "64"])
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start {}", program.display()))?;
    ensure!(output.status.success(), "{} failed", program.display());
    let result: Json = serde_json::from_slice(&output.stdout).context("the program's answer is not JSON")?;
    let speed = |name: &str| result[name]["median"].as_f64().with_context(|| format!("there is no {name}"));
    Ok((speed("prefill_tokens_per_second")?, speed("decode_tokens_per_second")?))
}

fn spread(mut values: Vec<f64>) -> Json {
    values.sort_by(f64::total_cmp);
    json!({"median": values.get(values.len() / 2), "min": values.first(), "max": values.last()})
}

/// The shares of a `checks.json`, in percent: prefill, decode.
pub(super) fn percent(result: &Json) -> Option<(f64, f64)> {
    let share = |phase: &str| Some(result[phase]["share"].as_f64()? * 100.0);
    Some((share("prefill")?, share("decode")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_of_a_run_is_read() {
        assert_eq!(total("events: Ir\nfl=(1) a.rs\n10 5\nsummary: 1234\n\n\ntotals: 1234\n"), Some(1234));
        assert_eq!(total("events: Ir\ntotals: 0\n"), None);
        assert_eq!(total("events: Ir\n"), None);
    }

    #[test]
    fn a_spread_is_of_sorted_values() {
        assert_eq!(spread(vec![3.0, 1.0, 2.0]), json!({"median": 2.0, "min": 1.0, "max": 3.0}));
    }

    #[test]
    fn every_check_can_be_taken_out_of_the_tree_as_it_is() {
        let mut texts = std::collections::HashMap::new();
        for Removal { file, find, replace } in REMOVALS {
            let text = texts.entry(*file).or_insert_with(|| std::fs::read_to_string(crate::root().join(file)).unwrap());
            *text = apply(text, find, replace).unwrap();
        }
    }
}
