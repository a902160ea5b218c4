//! Shows that the tests of the safety checks can fail: each check is switched off in a copy of the tree, and a named
//! test must go red. A mutation whose tests stay green is a hole in the tests.

mod audits;
mod blast_radius;
mod bounds;
mod cache;
mod cose;
mod custody;
mod delivery;
mod evidence;
mod exactness;
mod feeds;
mod files;
mod guesses;
mod handoff;
mod incidents;
mod index;
mod keeping;
mod kernels;
mod lag;
mod link;
mod own_entries;
mod page;
mod prefix;
mod remote;
mod replays;
mod rotation;
mod rows;
mod scheduler;
mod self_tests;
mod signer;
mod split;
mod swap;
mod templates;
mod tenants;
mod witnesses;

use crate::phase::command_line;
use crate::setup;
use crate::tree::{self, apply};
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Stdio;

/// One safety check and how to break it.
struct Mutation {
    /// What the check protects.
    name: &'static str,
    /// The file that holds it.
    file: &'static str,
    /// Text that stands exactly once in the file...
    find: &'static str,
    /// ...and what replaces it.
    replace: &'static str,
    /// The packages whose tests are run.
    packages: &'static [&'static str],
    /// A nextest filter expression; at least one test that it names must fail.
    tests: &'static str,
}

/// Every safety check of the product. A new check comes with its line here or in one of the lists beside this file.
fn all() -> impl Iterator<Item = &'static Mutation> {
    const OTHERS: &[&[Mutation]] = &[
        audits::AUDITS,
        blast_radius::BLAST_RADIUS,
        bounds::BOUNDS,
        cache::CACHE,
        cose::COSE_RECEIPTS,
        custody::CUSTODY,
        delivery::DELIVERY,
        evidence::EVIDENCE,
        exactness::EXACTNESS,
        files::FILES,
        guesses::GUESSES,
        handoff::HANDOFF,
        incidents::INCIDENT_LIVES,
        index::INDEX,
        keeping::KEEPING,
        kernels::KERNELS,
        feeds::FEEDS,
        lag::LAGS,
        link::LINK,
        own_entries::OWN_ENTRIES,
        page::PAGE,
        prefix::PREFIX,
        remote::REMOTE,
        replays::REPLAYS,
        rotation::ROTATION,
        rows::ROWS,
        scheduler::SCHEDULING,
        self_tests::SELF_TESTING,
        split::SPLIT,
        swap::SWAPPED,
        templates::TEMPLATES,
        tenants::TENANTS,
        signer::SIGNED_ELSEWHERE,
        witnesses::WITNESSES,
    ];
    MUTATIONS.iter().chain(OTHERS.iter().copied().flatten())
}

const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "label: one tenant's data does not flow to another",
        file: "policies/domain/src/label.rs",
        find: "(Restriction::Tenant(a), Restriction::Tenant(b)) => a == b,",
        replace: "(Restriction::Tenant(_), Restriction::Tenant(_)) => true,",
        packages: &["policies-domain"],
        tests: "test(one_tenant_never_flows_to_another) | test(flow_is_an_order)",
    },
    Mutation {
        name: "label: what is nobody's flows to no tenant",
        file: "policies/domain/src/label.rs",
        find: "(Restriction::Tenant(_), Restriction::Public) | (Restriction::Nobody, _) => false,",
        replace: "(Restriction::Tenant(_), Restriction::Public) => false, (Restriction::Nobody, _) => true,",
        packages: &["policies-domain"],
        tests: "test(one_tenant_never_flows_to_another) | test(flow_is_an_order)",
    },
    Mutation {
        name: "label: a tenant's data does not flow to the public",
        file: "policies/domain/src/label.rs",
        find: "(Restriction::Tenant(_), Restriction::Public) | (Restriction::Nobody, _) => false,",
        replace: "(Restriction::Tenant(_), Restriction::Public) => true, (Restriction::Nobody, _) => false,",
        packages: &["policies-domain"],
        tests: "test(one_tenant_never_flows_to_another) | test(flow_is_an_order)",
    },
    Mutation {
        name: "label: joining two tenants is nobody's",
        file: "policies/domain/src/label.rs",
        find: "_ => Self::NOBODY,",
        replace: "_ => self,",
        packages: &["policies-domain"],
        tests: "test(join_is_the_least_upper_bound)",
    },
    Mutation {
        name: "gate: a foreign page stops the response",
        file: "audit/provenance/src/gate.rs",
        find: "if read.label.flows_to(self.clearance) {",
        replace: "if read.label.flows_to(self.clearance) || step < u32::MAX {",
        packages: &["audit-provenance"],
        tests: "test(a_foreign_page_anywhere_in_a_step_closes_the_gate_for_good)",
    },
    Mutation {
        name: "end to end: a planted foreign page reaches no client",
        file: "audit/provenance/src/gate.rs",
        find: "if read.label.flows_to(self.clearance) {",
        replace: "if read.label.flows_to(self.clearance) || step < u32::MAX {",
        // The verifier's package is built because the suite runs its program.
        packages: &["e2e", "audit-verify"],
        tests: "test(a_foreign_page_stops_the_response_before_its_first_byte)",
    },
    Mutation {
        name: "gate: a step of another request is refused",
        file: "audit/provenance/src/gate.rs",
        find: "if step.request != self.request {",
        replace: "if step.request != self.request && step.index == u32::MAX {",
        packages: &["audit-provenance"],
        tests: "test(another_request_a_gap_and_a_repetition_are_refused)",
    },
    Mutation {
        name: "gate: steps come without a gap",
        file: "audit/provenance/src/gate.rs",
        find: "if step.index != self.step_next {",
        replace: "if step.index < self.step_next {",
        packages: &["audit-provenance"],
        tests: "test(another_request_a_gap_and_a_repetition_are_refused)",
    },
    Mutation {
        name: "gate: a step keeps only what the step before it read",
        file: "audit/provenance/src/gate.rs",
        find: "if *kept > self.previous.len() {",
        replace: "if *kept > self.previous.len().max(8) {",
        packages: &["audit-provenance"],
        tests: "test(nothing_is_read_on_that_no_step_named)",
    },
    Mutation {
        name: "gate: a sequence that begins anew keeps nothing",
        file: "audit/provenance/src/gate.rs",
        find: "self.end_runs(0);",
        replace: "self.end_runs(self.previous.len());",
        packages: &["audit-provenance"],
        tests: "test(nothing_is_read_on_that_no_step_named)",
    },
    Mutation {
        name: "gate: what is read on is on record",
        file: "audit/provenance/src/gate.rs",
        find: "for number in &self.previous {",
        replace: "for number in self.previous.iter().take(0) {",
        packages: &["audit-provenance"],
        tests: "test(what_was_named_once_is_read_on_without_a_word) | test(runs_equal_a_record_of_every_read)",
    },
    Mutation {
        name: "gate: a page in a second life is refused",
        file: "audit/provenance/src/gate.rs",
        find: "if let Some(wanted) = stale {",
        replace: "if let Some(wanted) = stale.filter(|_| step == u32::MAX) {",
        packages: &["audit-provenance"],
        tests: "test(a_page_in_a_second_life_is_a_violation_even_with_the_right_label)",
    },
    Mutation {
        name: "gate: a life that is over is not read again",
        file: "audit/provenance/src/gate.rs",
        find: "None => self.ended.get(&read.page).copied().filter(|ended| match read.shared {",
        replace: "None => None::<Generation>.filter(|ended| match read.shared {",
        packages: &["audit-provenance"],
        tests: "test(a_restarted_sequence_reads_lives_that_are_no_older_than_before)",
    },
    Mutation {
        name: "gate: after a restart only a page that is shared goes on in its life",
        file: "audit/provenance/src/gate.rs",
        find: "filter(|ended| match read.shared {",
        replace: "filter(|ended| match read.shared || step < u32::MAX {",
        packages: &["audit-provenance"],
        tests: "test(a_restarted_sequence_does_not_go_on_with_a_page_that_only_it_had)",
    },
    Mutation {
        name: "gate: not even a page that is shared goes on in an older life",
        file: "audit/provenance/src/gate.rs",
        find: "true => read.generation < *ended,",
        replace: "true => false,",
        packages: &["audit-provenance"],
        tests: "test(a_restarted_sequence_does_not_go_on_with_a_page_that_only_it_had)",
    },
    Mutation {
        name: "ledger: a page is said to be shared when it is",
        file: "engine/kv/src/ledger/read.rs",
        find: "shared: state == PageState::Shared }",
        replace: "shared: state != PageState::Free }",
        packages: &["engine-kv"],
        tests: "all()",
    },
    Mutation {
        name: "gate: once closed it stays closed",
        file: "audit/provenance/src/gate.rs",
        find: "self.closed_by = Some(violation.clone());",
        replace: "",
        packages: &["audit-provenance"],
        tests: "test(a_foreign_page_anywhere_in_a_step_closes_the_gate_for_good)",
    },
    Mutation {
        name: "kernel: a read compares the tag of the page",
        file: "engine/kernels/src/kv_store.rs",
        find: "Option<Slab<'_>> {\n        if page.tag == 0 || self.tags.get(page.page as usize) != Some(&page.tag) {",
        replace: "Option<Slab<'_>> {\n        if page.tag == 0 || self.tags.get(page.page as usize).is_none() {",
        packages: &["engine-kernels"],
        tests: "all()",
    },
    Mutation {
        name: "kernel: a read compares the tag in the bytes",
        file: "engine/kernels/src/kv_store.rs",
        find: "(slab.tag() == page.tag).then_some(slab)",
        replace: "Some(slab)",
        packages: &["engine-kernels"],
        tests: "test(only_the_holder_reads_and_writes)",
    },
    Mutation {
        name: "kernel: an append compares the tag of the page",
        file: "engine/kernels/src/kv_store.rs",
        find: "Option<SlabMut<'_>> {\n        if page.tag == 0 || self.tags.get(page.page as usize) != Some(&page.tag) {",
        replace: "Option<SlabMut<'_>> {\n        if page.tag == 0 || self.tags.get(page.page as usize).is_none() {",
        packages: &["engine-kernels"],
        tests: "all()",
    },
    Mutation {
        name: "kernel: an append compares the tag in the bytes",
        file: "engine/kernels/src/kv_store.rs",
        find: "} else if bytes[..4] != tag {",
        replace: "} else if tag == [0; 4] {",
        packages: &["engine-kernels"],
        tests: "all()",
    },
    Mutation {
        name: "kernel: a freed page is overwritten whole",
        file: "engine/kernels/src/kv_store.rs",
        find: "page.fill(POISON);",
        replace: "page[..page.len() / 2].fill(POISON);",
        packages: &["engine-kernels"],
        tests: "test(a_slab_is_written_to_its_last_byte_and_scrubbed_to_it)",
    },
    Mutation {
        name: "engine: a sequence is submitted under its own permit",
        file: "engine/runtime/src/engine.rs",
        find: "if sequence.label != permit.label() || sequence.request != permit.request() {",
        replace: "if sequence.label != permit.label() && sequence.tokens.is_empty() {",
        packages: &["engine-runtime"],
        tests: "test(what_does_not_fit_is_refused_with_numbers)",
    },
    Mutation {
        name: "engine: what the kernels read is what was written down",
        file: "engine/runtime/src/step.rs",
        find: "if spans.clone().any(|span| machine.compute.read_set(span) != expected(span)) && self.checks() =>",
        replace: "if spans.clone().any(|span| machine.compute.read_set(span).is_none()) && self.checks() =>",
        // Built with it, the package has the feature that plants faults.
        packages: &["engine-runtime", "rig"],
        tests: "test(ones_own_pages_in_the_wrong_order_are_caught_by_what_was_read) | test(what_the_kernels_get_is_wrong_at_a_place_that_is_not_looked_up_any_more)",
    },
    Mutation {
        name: "engine: a row writes into pages of its own label alone",
        file: "engine/runtime/src/step.rs",
        find: "if written.any(|page| page.label != label) && checks {",
        replace: "if written.any(|page| page.label != label) && !checks {",
        packages: &["rig"],
        tests: "test(a_planted_fault_is_stopped_before_a_foreign_byte_leaves_and_leaks_without_the_checks)",
    },
    Mutation {
        name: "keys: only a key that fits opens",
        file: "gateway/auth/src/key_ring.rs",
        find: "let same = hash.same_as(&presented);",
        replace: "let same = hash.same_as(&presented) | Choice::from(1);",
        packages: &["gateway-auth"],
        tests: "test(nobody_else_gets_in) | test(each_key_stands_for_its_own_tenant)",
    },
    Mutation {
        name: "keys: the secret is its owner's alone",
        file: "gateway/auth/src/key_secret.rs",
        find: "if mode & 0o077 != 0 {",
        replace: "if mode & 0o007 != 0 {",
        packages: &["gateway-auth"],
        tests: "test(a_secret_that_others_may_read_is_refused)",
    },
    Mutation {
        name: "rules: what no rule permits is denied",
        file: "policies/authz/src/lib.rs",
        find: "(true, None) => Err(Denied::NoRule),",
        replace: "(true, None) => Ok(determining),",
        packages: &["policies-authz"],
        tests: "test(nothing_is_allowed_without_a_rule)",
    },
    Mutation {
        name: "rules: a forbid rule wins",
        file: "policies/authz/src/lib.rs",
        find: "Effect::Forbid => return Err(Denied::Forbidden { rule: rule.name.clone() }),",
        replace: "Effect::Forbid => {}",
        packages: &["policies-authz"],
        tests: "test(a_forbid_rule_wins_whatever_its_place)",
    },
    Mutation {
        name: "rules: a limit that was not stated is not kept",
        file: "policies/authz/src/lib.rs",
        find: "(Some(limit), _) => limit_missed = limit_missed.max(Some(limit)),",
        replace: "(Some(limit), Some(_)) => limit_missed = limit_missed.max(Some(limit)),\n                    (Some(_), None) => determining.push(rule.name.clone()),",
        packages: &["policies-authz"],
        tests: "test(a_limit_that_is_passed_or_cannot_be_compared_denies)",
    },
    Mutation {
        name: "template: a content makes no control token",
        file: "engine/model/src/chat_template.rs",
        find: "|content| break_control_text(tokenizer, content, mark))?;",
        replace: "|content| content.to_owned())?;",
        packages: &["engine-model"],
        tests: "test(control_text_in_a_content_stays_text) | test(a_content_cannot_complete_a_control_token_that_the_template_begins)",
    },
    Mutation {
        name: "log: another tenant's request has no receipt",
        file: "audit/log/src/receipt.rs",
        find: ".filter(|record| record.tenant == tenant);",
        replace: ".filter(|record| record.tenant == tenant || request.bytes() != [0; 16]);",
        packages: &["audit-log", "audit-verify"],
        tests: "all()",
    },
    Mutation {
        name: "log: hashes are compared with what was read back",
        file: "audit/log/src/sequence.rs",
        find: "Some((_, leaf)) if leaf == placed.leaf => self.edge.push(leaf),",
        replace: "Some(_) => self.edge.push(placed.leaf),",
        packages: &["audit-log"],
        tests: "all()",
    },
    Mutation {
        name: "log: entries are synced before a head is signed over them",
        file: "audit/log/src/segment.rs",
        find: "self.file.sync().map_err(storage(\"sync\", &path))?;",
        replace: "",
        packages: &["audit-log"],
        tests: "all()",
    },
    Mutation {
        name: "log: a head is synced before it is promised",
        file: "audit/log/src/slot.rs",
        find: "        self.file.sync().map_err(storage(\"sync\", SLOT))",
        replace: "        Ok(())",
        packages: &["audit-log"],
        tests: "all()",
    },
    Mutation {
        name: "log: a clock that goes back stops it",
        file: "audit/log/src/sequence.rs",
        find: "if now_us <= last_us {",
        replace: "if now_us < last_us && last_us == u64::MAX {",
        packages: &["audit-log"],
        tests: "test(a_clock_that_goes_back_stops_the_log)",
    },
    Mutation {
        name: "log keys: a secret has the sum of its log and file",
        file: "audit/log/src/keys.rs",
        find: "(sum == secret_sum(log, path, &secret)).then_some(secret)",
        replace: "(sum.len() == secret_sum(log, path, &secret).len()).then_some(secret)",
        packages: &["audit-log"],
        tests: "test(a_damaged_secret_refuses_the_start_and_is_named)",
    },
    Mutation {
        name: "log keys: a used key is not replaced in silence",
        file: "audit/log/src/keys.rs",
        find: "if used { Missing::Refuse } else { Missing::Make }",
        replace: "if used && epoch == u64::MAX { Missing::Refuse } else { Missing::Make }",
        packages: &["audit-log"],
        tests: "test(a_lost_key_that_was_used_is_never_replaced_in_silence)",
    },
    Mutation {
        name: "log keys: a receipt has no salts but its own",
        file: "audit/log/src/receipt.rs",
        find: ".filter(|openings| opens(openings, &commitments, record.opened));",
        replace: ".filter(|openings| opens(openings, &commitments, record.opened) || record.opened < u64::MAX);",
        packages: &["audit-log"],
        tests: "test(a_receipt_has_no_salts_of_another_key_of_its_epoch)",
    },
];

/// Building and testing one mutation takes seconds to minutes; what takes longer is hanging.
const RUN_SECONDS_MAX: u32 = 1800;

/// What the tests said about one tree.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Green,
    Red,
    /// It did not build, or the filter names no test: says nothing about the check.
    Invalid(String),
}

/// The table of mutations.
pub(crate) fn list() {
    for mutation in all() {
        println!("{}\n    {}, tests: {}", mutation.name, mutation.file, mutation.tests);
    }
}

/// Runs those whose name contains `part`, and fails when a check could be switched off unnoticed.
pub(crate) fn run(root: &Path, part: Option<&str>) -> Result<()> {
    let chosen: Vec<&Mutation> =
        all().filter(|mutation| part.is_none_or(|part| mutation.name.contains(part))).collect();
    if chosen.is_empty() {
        bail!("no mutation has `{}` in its name; `--list` shows them all", part.unwrap_or_default());
    }
    setup::nextest(root)?;
    let folder = root.join("target/mutations");
    let tree = folder.join("tree");
    tree::copy(root, &tree)?;
    let build = folder.join("build");
    // All of them before the first change: what is changed and changed back is built once more each time.
    let before = chosen.iter().map(|mutation| test(mutation, root, &tree, &build)).collect::<Result<Vec<_>>>()?;
    let mut rows = Vec::new();
    for (mutation, before) in std::iter::zip(&chosen, before) {
        let verdict = match before {
            Verdict::Green => try_one(mutation, root, &tree, &build)?,
            Verdict::Red => Verdict::Invalid("its tests are red without it".into()),
            invalid @ Verdict::Invalid(_) => invalid,
        };
        eprintln!("== {}: {verdict:?}", mutation.name);
        rows.push((mutation.name, verdict));
    }
    let noticed = rows.iter().filter(|(_, verdict)| *verdict == Verdict::Red).count();
    for (name, verdict) in &rows {
        let said = match verdict {
            Verdict::Red => "noticed".to_owned(),
            Verdict::Green => "NOT NOTICED".to_owned(),
            Verdict::Invalid(reason) => format!("INVALID: {reason}"),
        };
        println!("{name:<64} {said}");
    }
    println!("{noticed} passed, {} failed", rows.len() - noticed);
    if noticed < rows.len() {
        bail!("{} of {} checks can be switched off without a test noticing", rows.len() - noticed, rows.len());
    }
    Ok(())
}

/// The tests, which were green before the change, must be red after it; the tree is as it was in the end.
fn try_one(mutation: &Mutation, root: &Path, tree: &Path, build: &Path) -> Result<Verdict> {
    let path = tree.join(mutation.file);
    let text = std::fs::read_to_string(&path).with_context(|| format!("{} cannot be read", mutation.file))?;
    let mutated = apply(&text, mutation.find, mutation.replace).with_context(|| mutation.file.to_owned())?;
    std::fs::write(&path, mutated)?;
    let verdict = test(mutation, root, tree, build);
    std::fs::write(&path, text)?;
    verdict
}

fn test(mutation: &Mutation, root: &Path, tree: &Path, build: &Path) -> Result<Verdict> {
    let mut command = setup::command(root, "timeout");
    command.args(["--kill-after=10", &RUN_SECONDS_MAX.to_string(), "cargo", "nextest", "run", "--locked"]);
    for package in mutation.packages {
        command.args(["-p", package]);
    }
    command.args(["-E", mutation.tests]).current_dir(tree).env("CARGO_TARGET_DIR", build);
    eprintln!("$ {}", command_line(&command));
    let status = command.stdin(Stdio::null()).status().context("`timeout` of coreutils is needed")?;
    Ok(verdict(status.code()))
}

/// Reads nextest's exit status: 100 says that tests ran and failed, 4 that there was none.
fn verdict(code: Option<i32>) -> Verdict {
    match code {
        Some(0) => Verdict::Green,
        Some(100) => Verdict::Red,
        Some(4) => Verdict::Invalid("its filter names no test".into()),
        Some(101) => Verdict::Invalid("it does not build".into()),
        Some(124) => Verdict::Invalid(format!("it took more than {RUN_SECONDS_MAX} s")),
        other => Verdict::Invalid(format!("the test runner ended with {other:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn only_failing_tests_count_as_noticed() {
        assert_eq!((verdict(Some(0)), verdict(Some(100))), (Verdict::Green, Verdict::Red));
        for code in [Some(4), Some(101), Some(124), Some(1), None] {
            assert!(matches!(verdict(code), Verdict::Invalid(_)), "{code:?}");
        }
    }

    #[test]
    fn every_mutation_fits_the_tree_as_it_is() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for mutation in all() {
            let text = std::fs::read_to_string(root.join(mutation.file)).unwrap();
            let mutated = apply(&text, mutation.find, mutation.replace);
            assert!(mutated.is_ok_and(|mutated| mutated != text), "{}", mutation.name);
        }
    }

    /// The names in a filter expression.
    fn named(filter: &str) -> impl Iterator<Item = &str> {
        filter.split("test(").skip(1).filter_map(|rest| rest.split(')').next())
    }

    fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, into);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                into.push(path);
            }
        }
    }

    /// Whether a file is compiled only with the feature that plants faults: by its own word, or where it is declared, or where
    /// what it is in is.
    fn needs_faults(package: &Path, file: &Path) -> bool {
        const FEATURE: &str = "feature = \"fault-injection\"";
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let of_its_tests = |text: &str| text.split_once("\nmod tests {").is_some_and(|(before, _)| gated(before));
        fn gated(before: &str) -> bool {
            before.lines().rev().take_while(|line| line.starts_with("#[")).any(|line| line.contains(FEATURE))
        }
        if text.contains(&format!("#![cfg({FEATURE})]")) || of_its_tests(&text) {
            return true;
        }
        let (Some(folder), Some(module)) = (file.parent(), file.file_stem().and_then(|stem| stem.to_str())) else {
            return false;
        };
        if !folder.starts_with(package.join("src")) || module == "lib" {
            return false;
        }
        let top = package.join("src/lib.rs");
        let above = if folder == package.join("src") { top } else { folder.with_extension("rs") };
        let text = std::fs::read_to_string(&above).unwrap_or_default();
        let declared = [format!("mod {module};"), format!("pub(crate) mod {module};")];
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let place = lines.iter().position(|line| declared.iter().any(|declared| line == declared));
        place.is_some_and(|place| gated(&lines[..place].join("\n"))) || needs_faults(package, &above)
    }

    #[test]
    fn every_test_that_a_mutation_names_is_built_for_it() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let folder = |package: &str| match package {
            "e2e" => root.join("tests"),
            "rig" => root.join("tests/rig"),
            package => root.join(package.replacen('-', "/", 1)),
        };
        for mutation in all() {
            let with_faults = mutation.packages.iter().any(|package| ["e2e", "rig"].contains(package));
            let files = mutation.packages.iter().flat_map(|package| {
                let mut files = Vec::new();
                sources(&folder(package), &mut files);
                files.into_iter().map(|file| (folder(package), std::fs::read_to_string(&file).unwrap(), file))
            });
            let files: Vec<(PathBuf, String, PathBuf)> = files.collect();
            for name in named(mutation.tests) {
                let is_there = files.iter().any(|(package, text, file)| {
                    text.contains(&format!("fn {name}")) && (with_faults || !needs_faults(package, file))
                });
                assert!(is_there, "{}: `{name}` is not built with {:?}", mutation.name, mutation.packages);
            }
        }
    }
}
