//! Which crate may depend on which, ours and those from outside.

use super::{Finding, Workspace};
use std::collections::BTreeSet;

/// What a crate may depend on among ours.
enum Reach {
    /// These and no others.
    Only(&'static [&'static str]),
    /// Every product crate.
    Anything,
}
use Reach::{Anything, Only};

/// The table of ARCHITECTURE.md: the arrows point one way, and a crate that is not here may not exist.
const ARROWS: &[(&str, &str, Reach)] = &[
    (
        "gateway-server",
        "gateway/server",
        Only(&[
            "gateway-auth",
            "engine-runtime",
            "engine-model",
            "engine-handoff",
            "engine-kv",
            "engine-link",
            "engine-scheduler",
            "engine-kernels",
            "engine-cuda",
            "audit-tlog",
            "audit-provenance",
            "audit-log",
            "audit-evidence",
            "audit-feed",
            "audit-verify",
            "policies-authz",
            "policies-domain",
            "rig",
        ]),
    ),
    ("gateway-auth", "gateway/auth", Only(&["policies-domain"])),
    (
        "engine-runtime",
        "engine/runtime",
        Only(&[
            "engine-handoff",
            "engine-kv",
            "engine-link",
            "engine-model",
            "engine-kernels",
            "engine-cuda",
            "engine-scheduler",
            "policies-domain",
        ]),
    ),
    ("engine-model", "engine/model", Only(&["engine-kernels"])),
    ("engine-handoff", "engine/handoff", Only(&["policies-domain"])),
    ("engine-kv", "engine/kv", Only(&["policies-domain"])),
    ("engine-link", "engine/link", Only(&[])),
    ("engine-scheduler", "engine/scheduler", Only(&["policies-domain"])),
    ("engine-kernels", "engine/kernels", Only(&[])),
    ("engine-cuda", "engine/cuda", Only(&["engine-kernels"])),
    ("audit-tlog", "audit/tlog", Only(&[])),
    ("audit-provenance", "audit/provenance", Only(&["policies-domain"])),
    ("audit-log", "audit/log", Only(&["audit-tlog", "audit-provenance", "policies-domain"])),
    ("audit-evidence", "audit/evidence", Only(&["audit-tlog", "audit-provenance", "policies-domain"])),
    ("audit-verify", "audit/verify", Only(&["audit-evidence", "audit-tlog", "audit-provenance", "policies-domain"])),
    ("audit-feed", "audit/feed", Only(&["policies-domain"])),
    ("audit-witness", "audit/witness", Only(&["audit-tlog"])),
    (
        "audit-auditor",
        "audit/auditor",
        Only(&["audit-feed", "audit-verify", "audit-witness", "audit-tlog", "audit-provenance", "policies-domain"]),
    ),
    ("audit-signer", "audit/signer", Only(&["audit-tlog"])),
    ("policies-authz", "policies/authz", Only(&["policies-domain"])),
    ("policies-domain", "policies/domain", Only(&[])),
    (
        "rig",
        "tests/rig",
        Only(&[
            "engine-runtime",
            "engine-model",
            "engine-kv",
            "engine-kernels",
            "audit-provenance",
            "policies-authz",
            "policies-domain",
        ]),
    ),
    ("e2e", "tests", Anything),
    ("xtask", "deploy/xtask", Only(&[])),
];

/// Arrows that tests need and code must not have: the verifier is tested on what the log writes, the log with witnesses, and a
/// signer with the log that it signs for.
const TEST_ARROWS: &[(&str, &str)] =
    &[("audit-verify", "audit-log"), ("audit-log", "audit-witness"), ("audit-signer", "audit-log")];

/// Crates from outside that one of ours knows, by the start of their name.
const HOMES: &[(&str, &[&str])] = &[
    ("pingora", &["gateway-server"]),
    ("opentelemetry", &["gateway-server"]),
    ("stateright", &["engine-handoff"]),
    ("cudarc", &["engine-cuda"]),
    ("minijinja", &["engine-model"]),
    ("hyper", &["audit-witness"]),
    ("cryptoki", &["audit-signer"]),
    ("pdf-writer", &["audit-evidence"]),
    ("tar", &["audit-evidence"]),
    ("ed25519-dalek", &["audit-tlog", "gateway-auth"]),
    ("signed_note", &["audit-tlog"]),
    ("tlog_tiles", &["audit-tlog"]),
];

/// The feature that lets a test plant a wrong page; a shipped program must not be able to.
const FAULTS: &str = "fault-injection";
/// The crate that runs the product with them.
const RIG: &str = "rig";

fn row(name: &str) -> Option<&'static (&'static str, &'static str, Reach)> {
    ARROWS.iter().find(|(crate_name, ..)| *crate_name == name)
}

fn is_ours(name: &str) -> bool {
    row(name).is_some()
}

/// Everything below a crate, which is what its tests may use.
fn below(name: &str) -> BTreeSet<&'static str> {
    let arrows = |name: &str| match row(name) {
        Some((.., Only(arrows))) => *arrows,
        _ => &[],
    };
    let mut found = BTreeSet::new();
    let mut open = arrows(name).to_vec();
    while let Some(next) = open.pop() {
        if found.insert(next) {
            open.extend(arrows(next));
        }
    }
    found
}

/// Every crate is in the table at its place, and has no arrow that the table does not have.
pub(super) fn only_allowed(workspace: &Workspace) -> Vec<Finding> {
    let finding = |place: &str, message: String| Finding { rule: "arrows", place: place.into(), message };
    let mut findings = Vec::new();
    for krate in &workspace.crates {
        let Some((_, folder, reach)) = row(&krate.name) else {
            findings.push(finding(&krate.name, "a crate that the table of arrows does not have".into()));
            continue;
        };
        if krate.folder != *folder {
            findings.push(finding(&krate.name, format!("lies in `{}`, its place is `{folder}`", krate.folder)));
        }
        for dependency in krate.dependencies.iter().filter(|dependency| is_ours(&dependency.name)) {
            let name = dependency.name.as_str();
            let allowed = match reach {
                Anything => name != "xtask" && name != krate.name,
                Only(arrows) if dependency.tests_only => {
                    arrows.contains(&name)
                        || below(&krate.name).contains(name)
                        || TEST_ARROWS.contains(&(krate.name.as_str(), name))
                }
                Only(arrows) => arrows.contains(&name),
            };
            if !allowed {
                let kind = if dependency.tests_only { " for its tests" } else { "" };
                findings.push(finding(&krate.name, format!("depends on `{name}`{kind}, an arrow that is not allowed")));
            }
        }
    }
    for (name, folder, _) in ARROWS {
        if !workspace.crates.iter().any(|krate| krate.name == *name) {
            findings.push(finding(name, format!("missing from the workspace; its place is `{folder}`")));
        }
    }
    findings
}

/// One crate knows each thing from outside. Tests of the whole (`e2e`) may look at it from outside too.
pub(super) fn outside_things_have_one_home(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    for krate in workspace.crates.iter().filter(|krate| krate.name != "e2e") {
        for dependency in &krate.dependencies {
            for (start, homes) in HOMES {
                if dependency.name.starts_with(start) && !homes.contains(&krate.name.as_str()) {
                    findings.push(Finding {
                        rule: "outside things",
                        place: krate.name.clone(),
                        message: format!("depends on `{}`, which only {} may know", dependency.name, homes.join(", ")),
                    });
                }
            }
        }
    }
    findings
}

/// Nothing but tests and the rig asks for the feature that plants faults, and nobody has the rig without asking for it.
pub(super) fn faults_stay_in_tests(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    for krate in &workspace.crates {
        for dependency in &krate.dependencies {
            if dependency.tests_only {
                continue;
            }
            let mut found = |message| findings.push(Finding { rule: "faults", place: krate.name.clone(), message });
            if krate.name != RIG && dependency.features.iter().any(|feature| feature == FAULTS) {
                found(format!("asks `{}` for `{FAULTS}` outside its dev-dependencies", dependency.name));
            }
            if dependency.name == RIG && !dependency.optional {
                found(format!("has `{RIG}`, and the faults with it, whether or not it is asked for"));
            }
        }
    }
    findings
}

/// The code map in ARCHITECTURE.md shows the arrows of this table, so that a reader can believe it.
pub(super) fn code_map_is_this_table(workspace: &Workspace) -> Vec<Finding> {
    let finding = |message: String| Finding { rule: "code map", place: "ARCHITECTURE.md".into(), message };
    let Some(file) = workspace.files.iter().find(|file| file.path == "ARCHITECTURE.md") else {
        return vec![finding("missing".into())];
    };
    let mut findings = Vec::new();
    for (name, folder, reach) in ARROWS {
        let drawn = file.text.lines().find_map(|line| {
            let (first, rest) = line.split_once(' ')?;
            (first == *folder).then(|| rest.split_once("->").map_or("", |(_, arrows)| arrows).trim().to_owned())
        });
        let Some(drawn) = drawn else {
            findings.push(finding(format!("the code map has no line that starts with `{folder}`")));
            continue;
        };
        let wanted = match (*name, reach) {
            (_, Anything) => "anything".to_owned(),
            ("gateway-server", _) => "everything below".to_owned(),
            ("xtask", _) => "no product crate".to_owned(),
            (_, Only([])) => "nothing of ours".to_owned(),
            (_, Only(arrows)) => arrows
                .iter()
                .filter_map(|arrow| arrow.split_once('-'))
                .map(|(_, short)| short)
                .collect::<Vec<_>>()
                .join(", "),
        };
        if drawn != wanted {
            findings.push(finding(format!("`{folder}` is drawn with `{drawn}`, the table has `{wanted}`")));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::workspace::{Crate, Dependency, File};
    use super::*;

    /// A workspace with every crate of the table at its place and no arrows.
    fn made_up() -> Workspace {
        let krate = |(name, folder, _): &(&str, &str, Reach)| Crate {
            name: (*name).into(),
            folder: (*folder).into(),
            ..Crate::default()
        };
        Workspace { crates: ARROWS.iter().map(krate).collect(), files: Vec::new() }
    }

    fn with_arrow(from: &str, to: &str, tests_only: bool, features: &[&str]) -> Workspace {
        let mut workspace = made_up();
        let krate = workspace.crates.iter_mut().find(|krate| krate.name == from).unwrap();
        let features = features.iter().map(|feature| (*feature).to_owned()).collect();
        krate.dependencies.push(Dependency { name: to.into(), tests_only, optional: false, features });
        workspace
    }

    fn arrow(from: &str, to: &str) -> Vec<Finding> {
        only_allowed(&with_arrow(from, to, false, &[]))
    }

    #[test]
    fn arrows_against_the_table_are_found() {
        for (from, to) in [
            ("policies-domain", "engine-kv"),
            ("engine-runtime", "audit-provenance"),
            ("engine-kernels", "policies-domain"),
            ("audit-log", "engine-kv"),
            ("audit-tlog", "policies-domain"),
            ("policies-authz", "gateway-auth"),
            ("audit-verify", "audit-log"),
            ("gateway-server", "e2e"),
            ("gateway-server", "xtask"),
            ("xtask", "policies-domain"),
            ("e2e", "xtask"),
        ] {
            let findings = arrow(from, to);
            assert!(
                findings.len() == 1 && findings[0].place == from && findings[0].message.contains(to),
                "{from} -> {to}"
            );
        }
    }

    #[test]
    fn arrows_of_the_table_and_crates_from_outside_pass() {
        for (from, to) in [
            ("gateway-server", "audit-log"),
            ("engine-runtime", "engine-kv"),
            ("e2e", "engine-kv"),
            ("engine-kv", "blake3"),
        ] {
            assert_eq!(arrow(from, to), [], "{from} -> {to}");
        }
    }

    #[test]
    fn tests_may_use_what_is_below_and_nothing_above() {
        assert_eq!(only_allowed(&with_arrow("audit-verify", "audit-log", true, &[])), []);
        assert_eq!(only_allowed(&with_arrow("audit-log", "policies-domain", true, &[])), []);
        assert_eq!(only_allowed(&with_arrow("audit-tlog", "audit-log", true, &[])).len(), 1);
        assert_eq!(only_allowed(&with_arrow("policies-domain", "e2e", true, &[])).len(), 1);
    }

    #[test]
    fn a_crate_that_is_new_moved_or_gone_is_found() {
        let mut workspace = made_up();
        workspace.crates.push(Crate { name: "common".into(), folder: "common".into(), ..Crate::default() });
        workspace.crates[1].folder = "auth".into();
        workspace.crates.remove(2);
        let places: Vec<String> = only_allowed(&workspace).into_iter().map(|finding| finding.place).collect();
        assert_eq!(places, ["gateway-auth", "common", "engine-runtime"]);
    }

    #[test]
    fn an_outside_thing_in_a_second_crate_is_found() {
        for (from, to) in [
            ("audit-log", "pingora-core"),
            ("engine-runtime", "cudarc"),
            ("audit-log", "ed25519-dalek"),
            ("gateway-server", "hyper-util"),
            ("audit-verify", "signed_note"),
        ] {
            assert_eq!(outside_things_have_one_home(&with_arrow(from, to, false, &[])).len(), 1, "{from} -> {to}");
        }
        assert_eq!(outside_things_have_one_home(&with_arrow("gateway-server", "pingora", false, &[])), []);
    }

    #[test]
    fn planting_faults_outside_tests_is_found() {
        let asks = |tests_only, feature| {
            faults_stay_in_tests(&with_arrow("gateway-server", "engine-runtime", tests_only, &[feature])).len()
        };
        assert_eq!((asks(false, FAULTS), asks(true, FAULTS), asks(false, "other")), (1, 0, 0));
        assert_eq!(faults_stay_in_tests(&with_arrow(RIG, "engine-runtime", false, &[FAULTS])), []);
        let mut workspace = with_arrow("gateway-server", RIG, false, &[]);
        assert_eq!(faults_stay_in_tests(&workspace).len(), 1);
        let arrows = workspace.crates.iter_mut().flat_map(|krate| &mut krate.dependencies);
        arrows.filter(|arrow| arrow.name == RIG).for_each(|arrow| arrow.optional = true);
        assert_eq!(faults_stay_in_tests(&workspace), []);
    }

    #[test]
    fn a_code_map_that_differs_is_found() {
        let map = |change: (&str, &str)| {
            let mut workspace = made_up();
            let mut text = String::from("# Map\n");
            for (name, folder, reach) in ARROWS {
                let arrows = match (*name, reach) {
                    (_, Anything) => "anything".to_owned(),
                    ("gateway-server", _) => "everything below".to_owned(),
                    ("xtask", _) => "no product crate".to_owned(),
                    (_, Only([])) => "nothing of ours".to_owned(),
                    (_, Only(list)) => {
                        list.iter().map(|name| &name[name.find('-').unwrap() + 1..]).collect::<Vec<_>>().join(", ")
                    }
                };
                text.push_str(&format!("{folder} something -> {arrows}\n"));
            }
            text = text.replace(change.0, change.1);
            workspace.files.push(File { path: "ARCHITECTURE.md".into(), text });
            code_map_is_this_table(&workspace)
        };
        assert_eq!(map(("", "")), []);
        assert_eq!(map(("-> tlog, provenance, domain\naudit/verify", "-> tlog\naudit/verify")).len(), 1);
        assert_eq!(map(("engine/kv something", "engine/cache something")).len(), 1);
        assert_eq!(code_map_is_this_table(&made_up())[0].message, "missing");
    }
}
