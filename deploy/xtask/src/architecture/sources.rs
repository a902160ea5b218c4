//! Promises about the text: manifests, crate roots, who makes a proof, what no file may name.

use super::workspace::{Crate, code_lines};
use super::{Finding, Workspace};

/// Crates that may hold `unsafe`: the ones at the machine.
const UNSAFE_ALLOWED: &[&str] = &["engine-kernels", "engine-cuda"];

/// A crate with fewer lines of code than this is an empty folder with a name.
const CODE_LINES_MIN: usize = 20;

/// What grants something, the crate that may make it, and in how many places.
const PROOFS: &[Proof] = &[
    Proof { name: "granted_by_authz", maker: "policies-authz", places: Some(1) },
    Proof { name: "Principal::authenticated", maker: "gateway-auth", places: None },
];

struct Proof {
    name: &'static str,
    maker: &'static str,
    places: Option<usize>,
}

/// Files that may read the environment; everything else is told what it needs.
const ENVIRONMENT_READERS: &[&str] = &["gateway/server/src/cli/environment.rs"];

/// Hosts of package registries and folders of one machine. In pieces, so that this file does not hold them.
const MACHINE_WORDS: &[&str] = &[
    concat!("py", "pi.org"),
    concat!("files.python", "hosted"),
    concat!("crates", ".io"),
    concat!("registry.npm", "js"),
    concat!("deb.deb", "ian"),
    concat!("hugging", "face.co/api"),
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
    concat!("/wo", "rk/"),
    concat!("/Us", "ers/"),
];

/// Versions, edition, lints and licence stand once, in the root manifest.
pub(super) fn manifests_inherit(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    for krate in &workspace.crates {
        let lines: Vec<&str> = krate.manifest.lines().map(str::trim).collect();
        let mut missing: Vec<String> = ["version", "edition", "rust-version", "license", "publish"]
            .iter()
            .map(|key| format!("{key}.workspace = true"))
            .filter(|line| !lines.contains(&line.as_str()))
            .collect();
        if !lines.windows(2).any(|pair| pair == ["[lints]", "workspace = true"]) {
            missing.push("[lints] workspace = true".into());
        }
        for line in missing {
            findings.push(Finding {
                rule: "manifests",
                place: format!("{}/Cargo.toml", krate.folder),
                message: format!("lacks `{line}`"),
            });
        }
    }
    findings
}

/// Every library and program outside the two crates at the machine forbids `unsafe`.
pub(super) fn unsafe_is_forbidden(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    for krate in workspace.crates.iter().filter(|krate| !UNSAFE_ALLOWED.contains(&krate.name.as_str())) {
        for root in &krate.roots {
            let forbids = workspace
                .files
                .iter()
                .any(|file| file.path == *root && file.text.lines().any(|line| line == "#![forbid(unsafe_code)]"));
            if !forbids {
                findings.push(Finding {
                    rule: "unsafe",
                    place: root.clone(),
                    message: "lacks `#![forbid(unsafe_code)]`".into(),
                });
            }
        }
    }
    findings
}

/// A crate needs a boundary worth compiling apart, and something behind it.
pub(super) fn crates_are_not_empty(workspace: &Workspace) -> Vec<Finding> {
    let lines = |krate: &Crate| workspace.code_of(krate).map(|file| code_lines(&file.text).len()).sum::<usize>();
    // The code of `e2e` is its tests.
    let tests = |krate: &Crate| {
        let prefix = format!("{}/", krate.folder);
        let rust = workspace.files.iter().filter(|file| file.path.starts_with(&prefix) && file.path.ends_with(".rs"));
        rust.map(|file| file.text.lines().count()).sum::<usize>()
    };
    workspace
        .crates
        .iter()
        .filter(|krate| if krate.name == "e2e" { tests(krate) } else { lines(krate) } < CODE_LINES_MIN)
        .map(|krate| Finding {
            rule: "empty crates",
            place: krate.name.clone(),
            message: format!("has fewer than {CODE_LINES_MIN} lines of code"),
        })
        .collect()
}

/// A value that grants something is made by one crate, in as many places as were agreed on.
pub(super) fn proofs_have_their_one_maker(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    for proof in PROOFS {
        let definition = format!("fn {}", proof.name.rsplit("::").next().unwrap_or(proof.name));
        let mut calls = Vec::new();
        // `e2e` and `rig` are tests all through.
        let is_code = |krate: &&Crate| !["e2e", "rig", "xtask"].contains(&krate.name.as_str());
        for krate in workspace.crates.iter().filter(is_code) {
            for file in workspace.code_of(krate) {
                let uses = code_lines(&file.text)
                    .into_iter()
                    .filter(|(_, line)| line.contains(proof.name) && !line.contains(&definition));
                calls.extend(uses.map(|(number, _)| (krate.name.as_str(), format!("{}:{number}", file.path))));
            }
        }
        for (maker, place) in &calls {
            if *maker != proof.maker {
                findings.push(Finding {
                    rule: "proofs",
                    place: place.clone(),
                    message: format!("`{}` is for `{}` alone", proof.name, proof.maker),
                });
            }
        }
        let own = calls.iter().filter(|(maker, _)| *maker == proof.maker).count();
        if proof.places.is_some_and(|places| places != own) {
            findings.push(Finding {
                rule: "proofs",
                place: proof.maker.into(),
                message: format!("uses `{}` in {own} places, one is allowed", proof.name),
            });
        }
    }
    findings
}

/// Configuration is read once and handed down: no library asks the environment.
pub(super) fn environment_is_read_in_one_place(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    for krate in workspace.crates.iter().filter(|krate| krate.name != "e2e" && krate.name != "xtask") {
        for file in workspace.code_of(krate).filter(|file| !ENVIRONMENT_READERS.contains(&file.path.as_str())) {
            for (number, line) in code_lines(&file.text) {
                if ["env::var(", "env::var_os(", "env::vars(", "env::vars_os("].iter().any(|call| line.contains(call)) {
                    findings.push(Finding {
                        rule: "environment",
                        place: format!("{}:{number}", file.path),
                        message: format!("reads the environment; only {} does", ENVIRONMENT_READERS.join(", ")),
                    });
                }
            }
        }
    }
    findings
}

/// No file names a package registry's host or a folder of somebody's machine.
pub(super) fn no_words_of_a_machine(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in workspace.files.iter().filter(|file| !file.path.ends_with(".lock")) {
        for (index, line) in file.text.lines().enumerate() {
            for word in MACHINE_WORDS {
                // In the middle of a path it is a folder of ours: the word must start one.
                let starts_path = |at: usize| {
                    !word.starts_with('/')
                        || !line[..at].ends_with(|c: char| c.is_alphanumeric() || "_-.~}$".contains(c))
                };
                if line.match_indices(word).any(|(at, _)| starts_path(at)) {
                    findings.push(Finding {
                        rule: "machine words",
                        place: format!("{}:{}", file.path, index + 1),
                        message: format!("names `{word}`"),
                    });
                }
            }
        }
    }
    findings
}

/// Documents that name the tests which keep their promises.
const PROMISES: &[&str] = &["ARCHITECTURE.md", "docs/hazards.md"];

/// A test that a document names exists: a renamed or removed one takes the promise with it.
pub(super) fn named_tests_exist(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in workspace.files.iter().filter(|file| PROMISES.contains(&file.path.as_str())) {
        // What stands between backticks is every second piece.
        for name in file.text.split('`').skip(1).step_by(2).filter(|word| is_test_name(word)) {
            let definition = format!("fn {name}(");
            let exists = |file: &super::workspace::File| file.path.ends_with(".rs") && file.text.contains(&definition);
            if !workspace.files.iter().any(exists) {
                findings.push(Finding {
                    rule: "promises",
                    place: file.path.clone(),
                    message: format!("names the test `{name}`, which does not exist"),
                });
            }
        }
    }
    findings
}

/// Tests are named by sentences: several words in snake case. Shorter names may be anything.
fn is_test_name(word: &str) -> bool {
    word.matches('_').count() >= 3 && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::super::workspace::File;
    use super::*;

    const MANIFEST: &str = "[package]\nname = \"x\"\nversion.workspace = true\nedition.workspace = true\n\
        rust-version.workspace = true\nlicense.workspace = true\npublish.workspace = true\n\n[lints]\nworkspace = true\n";

    fn made_up(name: &str, files: &[(&str, &str)]) -> Workspace {
        let krate = Crate {
            name: name.into(),
            folder: "a/x".into(),
            manifest: MANIFEST.into(),
            roots: vec!["a/x/src/lib.rs".into()],
            dependencies: Vec::new(),
        };
        let files = files.iter().map(|(path, text)| File { path: (*path).into(), text: (*text).into() });
        Workspace { crates: vec![krate], files: files.collect() }
    }

    fn lib(name: &str, text: &str) -> Workspace {
        made_up(name, &[("a/x/src/lib.rs", text)])
    }

    #[test]
    fn a_manifest_with_a_version_or_lints_of_its_own_is_found() {
        for line in ["version.workspace = true", "license.workspace = true", "workspace = true\n"] {
            let mut workspace = lib("x", "");
            let at = workspace.crates[0].manifest.rfind(line).unwrap();
            workspace.crates[0].manifest.replace_range(at..at + line.len(), "other = 1");
            assert_eq!(manifests_inherit(&workspace).len(), 1, "{line}");
        }
        assert_eq!(manifests_inherit(&lib("x", "")), []);
    }

    #[test]
    fn a_root_that_does_not_forbid_unsafe_is_found() {
        assert_eq!(unsafe_is_forbidden(&lib("x", "//! x\n#![forbid(unsafe_code)]\n")), []);
        assert_eq!(unsafe_is_forbidden(&lib("engine-kernels", "//! x\n")), []);
        assert_eq!(unsafe_is_forbidden(&lib("x", "//! x\n")).len(), 1);
        assert_eq!(unsafe_is_forbidden(&lib("x", "// #![forbid(unsafe_code)]\n")).len(), 1);
        assert_eq!(unsafe_is_forbidden(&lib("x", "#![deny(unsafe_code)]\n")).len(), 1);
        // In a module it protects nothing but the module.
        let elsewhere = made_up("x", &[("a/x/src/lib.rs", ""), ("a/x/src/b.rs", "#![forbid(unsafe_code)]\n")]);
        assert_eq!(unsafe_is_forbidden(&elsewhere).len(), 1);
    }

    #[test]
    fn an_empty_crate_is_found() {
        let code = "fn a() {}\n".repeat(CODE_LINES_MIN);
        assert_eq!(crates_are_not_empty(&lib("x", &code)), []);
        assert_eq!(crates_are_not_empty(&lib("x", &"// words\n".repeat(CODE_LINES_MIN))).len(), 1);
        assert_eq!(crates_are_not_empty(&made_up("x", &[("a/x/tests/t.rs", &code)])).len(), 1);
        assert_eq!(crates_are_not_empty(&made_up("e2e", &[("a/x/tests/t.rs", &code)])), []);
    }

    #[test]
    fn a_second_maker_of_a_proof_is_found() {
        let call = "let permit = Permit::granted_by_authz(a, b);\n";
        let places = |workspace| -> Vec<String> {
            let findings = proofs_have_their_one_maker(&workspace);
            findings
                .into_iter()
                .filter(|finding| finding.message.contains("granted"))
                .map(|finding| finding.place)
                .collect()
        };
        assert_eq!(places(lib("policies-authz", call)), [""; 0]);
        assert_eq!(places(lib("policies-authz", &call.repeat(2))), ["policies-authz"]);
        assert_eq!(places(lib("policies-authz", "")), ["policies-authz"]);
        assert_eq!(places(lib("engine-kv", &format!("\n{call}"))), ["a/x/src/lib.rs:2", "policies-authz"]);
        // Without the brackets of a call, and under another name of the type.
        assert_eq!(places(lib("engine-kv", "ok.map(P::granted_by_authz)\n"))[0], "a/x/src/lib.rs:1");
        // Tests make what they need, and the definition is no use.
        assert_eq!(
            places(lib("engine-kv", &format!("#[cfg(test)]\nmod tests {{\n    {call}}}\n"))),
            ["policies-authz"]
        );
        assert_eq!(places(lib("policies-domain", "pub fn granted_by_authz(\n")), ["policies-authz"]);
    }

    #[test]
    fn a_principal_made_outside_auth_is_found() {
        let call = "Principal::authenticated(tenant, name)\n";
        let count = |name: &str| {
            let findings = proofs_have_their_one_maker(&lib(name, call));
            findings.iter().filter(|finding| finding.message.contains("authenticated")).count()
        };
        assert_eq!((count("gateway-server"), count("gateway-auth")), (1, 0));
    }

    #[test]
    fn reading_the_environment_elsewhere_is_found() {
        let read = "let home = std::env::var(\"HOME\");\n";
        assert_eq!(environment_is_read_in_one_place(&lib("x", read)).len(), 1);
        assert_eq!(environment_is_read_in_one_place(&lib("x", "let home = env::var_os(\"HOME\");")).len(), 1);
        assert_eq!(environment_is_read_in_one_place(&lib("x", "let here = env!(\"CARGO_MANIFEST_DIR\");")), []);
        let mut home = made_up("gateway-server", &[(ENVIRONMENT_READERS[0], read)]);
        home.crates[0].folder = "gateway/server".into();
        assert_eq!(environment_is_read_in_one_place(&home), []);
    }

    #[test]
    fn a_promise_without_its_test_is_found() {
        let check = |document: &str, code: &str| {
            named_tests_exist(&made_up("x", &[(PROMISES[0], document), ("a/x/src/lib.rs", code)])).len()
        };
        let promise = "Kept by `a_thing_is_so` and by `Type`.";
        assert_eq!(check(promise, "    fn a_thing_is_so() {}"), 0);
        assert_eq!(check(promise, "    async fn a_thing_is_so() {}"), 0);
        assert_eq!(check(promise, "    fn a_thing_is_so_and_more() {}"), 1);
        assert_eq!(check(promise, "// a_thing_is_so"), 1);
        assert_eq!(check("Kept by `forbid(unsafe_code)`, `a_field`.", ""), 0);
    }

    #[test]
    fn hosts_and_folders_of_a_machine_are_found() {
        for word in MACHINE_WORDS {
            let workspace = made_up("x", &[("README.md", &format!("one\nsee {word}x\n"))]);
            let findings = no_words_of_a_machine(&workspace);
            assert!(findings.len() == 1 && findings[0].place == "README.md:2", "{word}");
        }
        assert_eq!(no_words_of_a_machine(&made_up("x", &[("Cargo.lock", MACHINE_WORDS[2])])), []);
        let inside = format!("target{}tree", MACHINE_WORDS[8]);
        assert_eq!(no_words_of_a_machine(&made_up("x", &[("README.md", &inside)])), []);
    }
}
