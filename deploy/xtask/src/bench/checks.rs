//! What label checks and read-set digests cost, as a share of all instructions of a forward pass.
//!
//! Time cannot show half a percent; instructions can. `valgrind --tool=callgrind` counts them on every line, and here
//! those of the functions that check and digest are added up, wherever they were inlined. Valgrind knows no AVX-512, so
//! the kernels of AVX2 are counted. Those of AVX-512 do the same checks beside a third or so of the instructions for the
//! arithmetic: their shares are larger by as much.

use super::result_file;
use crate::phase::execute;
use crate::setup;
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value as Json, json};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

/// The functions whose lines count: the file, and the name that follows `fn`. All functions of that name count; what they
/// have inlined from the standard library does not.
const CHECKS: &[(&str, &str)] = &[
    ("engine/kernels/src/kv_store.rs", "slab"),
    ("engine/kernels/src/kv_store/slab.rs", "tag"),
    ("engine/kernels/src/attention.rs", "slabs"),
    ("engine/kernels/src/read_set.rs", "page_term"),
    ("engine/kernels/src/read_set.rs", "factor"),
    ("engine/kernels/src/read_set.rs", "tokens_of_page"),
    ("engine/kernels/src/read_set.rs", "mix"),
    ("engine/kernels/src/span.rs", "add_reads"),
    ("engine/kernels/src/span.rs", "of"),
];

/// Only what this function and its callees do is counted.
const COUNTED: &str = "engine_model::forward::Forward::run*";
/// Tokens of the prompt, and of the decodes after it.
const PROMPT: usize = 512;
const DECODES: usize = 16;

/// Instructions by file and line.
type Lines = HashMap<(String, u32), u64>;

pub(super) fn run(root: &Path) -> Result<()> {
    execute(
        setup::cargo(root)
            .args(["build", "--release", "--locked", "-p", "engine-model", "--example", "speed"])
            .env("CARGO_PROFILE_RELEASE_DEBUG", "line-tables-only"),
    )?;
    let bulkhead = super::bulkhead(root)?;
    let model = super::model(&bulkhead)?;
    let ranges = ranges(root)?;
    // The program warms up with one repetition and counts another; it decodes at least once.
    let short = count(root, &model, 1)?;
    let long = count(root, &model, 1 + DECODES)?;
    let prefill = share(&short, &ranges);
    let (short_checks, short_all) = prefill;
    let (long_checks, long_all) = share(&long, &ranges);
    ensure!(short_checks > 0 && long_checks > short_checks, "no instruction of a check was seen: correct the list");
    let decode = (long_checks - short_checks, long_all - short_all);
    let row = |(checks, all): (u64, u64)| json!({"instructions": all, "of_checks": checks, "share": checks as f64 / all as f64});
    let result = json!({
        "kernels": "avx2",
        "functions": CHECKS.iter().map(|(file, name)| format!("{file}: {name}")).collect::<Vec<_>>(),
        "prefill": row(prefill),
        "prefill_tokens": PROMPT,
        "decode": row(decode),
        "decode_context": PROMPT,
    });
    for phase in ["prefill", "decode"] {
        let share = result[phase]["share"].as_f64().unwrap_or(f64::NAN);
        println!("{phase:<8} {:.4} % of the instructions check labels and make digests", share * 100.0);
    }
    let file = result_file(root, "checks.json");
    std::fs::write(&file, serde_json::to_string_pretty(&result)? + "\n")
        .with_context(|| format!("cannot write {}", file.display()))
}

/// Counts a prompt and `decodes` tokens after it.
fn count(root: &Path, model: &Path, decodes: usize) -> Result<Lines> {
    let out = setup::target(root).join(format!("callgrind-{decodes}.out"));
    let numbers = [PROMPT.to_string(), decodes.to_string()];
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--dump-line=yes"])
        .arg(format!("--toggle-collect={COUNTED}"))
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(setup::target(root).join("release/examples/speed"))
        .arg(model)
        .args(["--threads", "1", "--repeats", "1", "--prompt", &numbers[0], "--generate", &numbers[1]])
        .args([OsStr::new("--family"), OsStr::new("avx2")]);
    execute(&mut command).context("valgrind is needed (on Debian: apt-get install valgrind)")?;
    let text = std::fs::read_to_string(&out).with_context(|| format!("cannot read {}", out.display()))?;
    let lines = parse(&text);
    ensure!(!lines.is_empty(), "nothing was counted: is `{COUNTED}` still the name of the forward pass?");
    Ok(lines)
}

/// Instructions of each line itself, from callgrind's output. Lines of a call say what the callee cost: the line after
/// `calls=` is left out, because the callee's own lines are in the file too.
///
/// Source: the "Callgrind Format Specification" of valgrind's manual.
fn parse(text: &str) -> Lines {
    let mut names: HashMap<String, String> = HashMap::new();
    let (mut lines, mut file, mut line, mut of_call) = (Lines::new(), String::new(), 0u32, false);
    for row in text.lines() {
        if let Some(("fl" | "fi" | "fe", name)) = row.split_once('=') {
            file = full_name(&mut names, name);
        } else if let Some(("cfi" | "cfl", name)) = row.split_once('=') {
            full_name(&mut names, name);
        } else if row.starts_with("calls=") {
            of_call = true;
        } else if row.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) {
            let mut words = row.split_whitespace();
            let position = words.next().unwrap_or_default();
            line = match position.split_at(1) {
                ("*", _) => line,
                ("+", more) => line.saturating_add(more.parse().unwrap_or(0)),
                ("-", less) => line.saturating_sub(less.parse().unwrap_or(0)),
                _ => position.parse().unwrap_or(line),
            };
            let cost: u64 = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
            if !of_call {
                *lines.entry((file.clone(), line)).or_default() += cost;
            }
            of_call = false;
        }
    }
    lines
}

/// `(12) path` names a path for the first time, `(12)` says it again.
fn full_name(names: &mut HashMap<String, String>, name: &str) -> String {
    match name.split_once(' ') {
        Some((number, path)) if number.starts_with('(') => {
            names.insert(number.to_owned(), path.to_owned());
            path.to_owned()
        }
        _ => names.get(name).cloned().unwrap_or_else(|| name.to_owned()),
    }
}

/// A file and the lines of a function in it.
type FunctionLines = (&'static str, std::ops::RangeInclusive<u32>);

fn ranges(root: &Path) -> Result<Vec<FunctionLines>> {
    let mut ranges = Vec::new();
    for (file, name) in CHECKS {
        let text = std::fs::read_to_string(root.join(file)).with_context(|| format!("cannot read {file}"))?;
        let found = functions(&text, name);
        if found.is_empty() {
            bail!("{file} has no function `{name}` any more: correct the list of checks");
        }
        ranges.extend(found.into_iter().map(|range| (*file, range)));
    }
    Ok(ranges)
}

/// Lines of all functions of a name, by the shape that rustfmt gives them.
fn functions(text: &str, name: &str) -> Vec<std::ops::RangeInclusive<u32>> {
    let start = format!("fn {name}");
    let mut found = Vec::new();
    let mut open: Option<(u32, usize)> = None;
    for (number, line) in (1u32..).zip(text.lines()) {
        let indent = line.len() - line.trim_start().len();
        match open {
            None => {
                let is_it = line.split_once(&start).is_some_and(|(_, rest)| rest.starts_with(['(', '<']));
                if is_it {
                    open = Some((number, indent));
                }
            }
            Some((first, at)) if indent == at && line.trim_start().starts_with('}') => {
                found.push(first..=number);
                open = None;
            }
            Some(_) => {}
        }
    }
    found
}

/// Instructions of the checks, and of everything.
fn share(lines: &Lines, ranges: &[FunctionLines]) -> (u64, u64) {
    let all = lines.values().sum();
    let is_check =
        |file: &str, line: u32| ranges.iter().any(|(path, range)| file.ends_with(path) && range.contains(&line));
    let checks = lines.iter().filter(|((file, line), _)| is_check(file, *line)).map(|(_, cost)| cost).sum();
    (checks, all)
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
    fn instructions_are_added_up_by_line_wherever_they_were_inlined() {
        let out = "events: Ir\nfl=(1) /x/engine/a.rs\nfn=(1) run\n10 5\n+2 7\nfi=(2) /x/engine/kv.rs\n20 3\nfe=(1)\n* 1\n\
                   cfi=(3) /x/other.rs\ncfn=(2) callee\ncalls=1 30\n12 1000\n-2 2\nfl=(3)\nfn=(2)\n30 1000\n";
        let lines = parse(out);
        let of = |file: &str, line| lines.get(&(format!("/x/{file}"), line)).copied();
        assert_eq!(of("engine/a.rs", 10), Some(7));
        assert_eq!(of("engine/a.rs", 12), Some(7));
        assert_eq!(of("engine/a.rs", 20), Some(1), "a position is relative to the last one, whichever its file");
        assert_eq!(of("other.rs", 30), Some(1000), "counted where it is done, not where it is called");
        let checks = vec![("engine/kv.rs", 19..=21)];
        assert_eq!(share(&lines, &checks), (3, 7 + 7 + 1 + 3 + 1000));
        assert_eq!(share(&lines, &[("engine/kv.rs", 1..=2)]).0, 0);
    }

    #[test]
    fn a_functions_lines_end_with_its_brace() {
        let text = "impl X {\n    fn slab(&self) -> u8 {\n        if a {\n        }\n    }\n    fn slabs() {\n    }\n\
                    \n    pub unsafe fn slab<T>(\n    ) {\n    }\n}\n";
        assert_eq!(functions(text, "slab"), [2..=5, 9..=11]);
        assert_eq!(functions(text, "gone"), []);
    }

    #[test]
    fn every_check_of_the_list_is_in_the_tree() {
        assert!(ranges(&crate::root()).unwrap().len() >= CHECKS.len());
    }
}
