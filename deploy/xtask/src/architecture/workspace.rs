//! What the rules look at: crates with their dependencies and manifests, and the text of every file in the repository.

use anyhow::{Context, Result, bail};
use cargo_metadata::{DependencyKind, MetadataCommand, TargetKind};
use std::path::Path;
use std::process::Command;

/// The workspace as the rules see it.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    /// Every member.
    pub(crate) crates: Vec<Crate>,
    /// Every text file of the repository.
    pub(crate) files: Vec<File>,
}

/// One member of the workspace.
#[derive(Debug, Default)]
pub(crate) struct Crate {
    /// As `Cargo.toml` names it.
    pub(crate) name: String,
    /// Its folder, relative to the root.
    pub(crate) folder: String,
    /// The text of its `Cargo.toml`.
    pub(crate) manifest: String,
    /// Paths of its library's and programs' root files, relative to the root.
    pub(crate) roots: Vec<String>,
    /// What it depends on, in every kind.
    pub(crate) dependencies: Vec<Dependency>,
}

/// One arrow from a crate.
#[derive(Debug)]
pub(crate) struct Dependency {
    /// The other crate.
    pub(crate) name: String,
    /// For tests only: a `dev-dependency`.
    pub(crate) tests_only: bool,
    /// Only with a feature of the crate that has it.
    pub(crate) optional: bool,
    /// Features that it asks for.
    pub(crate) features: Vec<String>,
}

/// One text file.
#[derive(Debug)]
pub(crate) struct File {
    /// Relative to the root, with `/`.
    pub(crate) path: String,
    /// Its whole text.
    pub(crate) text: String,
}

impl Workspace {
    /// Reads the manifests through cargo and the files that git knows or would add.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let metadata = MetadataCommand::new()
            .manifest_path(root.join("Cargo.toml"))
            .no_deps()
            .exec()
            .context("`cargo metadata` failed")?;
        let base = metadata.workspace_root.as_std_path().to_owned();
        let relative = |path: &Path| -> Result<String> {
            Ok(path
                .strip_prefix(&base)
                .with_context(|| format!("{} lies outside", path.display()))?
                .display()
                .to_string())
        };
        let mut crates = Vec::new();
        for package in metadata.workspace_packages() {
            let manifest = package.manifest_path.as_std_path();
            let code = |target: &&cargo_metadata::Target| {
                target.kind.iter().any(|kind| matches!(kind, TargetKind::Lib | TargetKind::Bin))
            };
            crates.push(Crate {
                name: package.name.to_string(),
                folder: relative(manifest.parent().context("a manifest lies in a folder")?)?,
                manifest: std::fs::read_to_string(manifest)?,
                roots: package
                    .targets
                    .iter()
                    .filter(code)
                    .map(|target| relative(target.src_path.as_std_path()))
                    .collect::<Result<_>>()?,
                dependencies: package
                    .dependencies
                    .iter()
                    .map(|dependency| Dependency {
                        name: dependency.name.clone(),
                        tests_only: dependency.kind == DependencyKind::Development,
                        optional: dependency.optional,
                        features: dependency.features.clone(),
                    })
                    .collect(),
            });
        }
        Ok(Self { crates, files: read_files(&base)? })
    }

    /// The Rust files of one crate that are not its tests: neither in its `tests/` nor a `#[cfg(test)] mod name;`.
    pub(crate) fn code_of<'a>(&'a self, krate: &'a Crate) -> impl Iterator<Item = &'a File> {
        let prefix = format!("{}/", krate.folder);
        let rust = move |file: &&File| {
            file.path.ends_with(".rs")
                && file.path.strip_prefix(&prefix).is_some_and(|path| {
                    !["tests/", "benches/", "examples/"].iter().any(|folder| path.starts_with(folder))
                })
        };
        let for_tests: Vec<String> = self.files.iter().filter(rust.clone()).flat_map(test_modules).collect();
        self.files.iter().filter(rust).filter(move |file| !for_tests.contains(&file.path))
    }
}

/// Paths of the modules that a file declares for tests only.
fn test_modules(file: &File) -> Vec<String> {
    let folder = match file.path.rsplit_once('/') {
        Some((folder, "lib.rs" | "main.rs")) => folder,
        _ => file.path.trim_end_matches(".rs"),
    };
    let lines: Vec<&str> = file.text.lines().collect();
    let declared = lines.windows(2).filter(|pair| pair.first() == Some(&"#[cfg(test)]")).filter_map(|pair| {
        let name = pair.get(1)?.strip_suffix(';')?.rsplit_once("mod ")?.1;
        Some(format!("{folder}/{name}.rs"))
    });
    declared.collect()
}

fn read_files(root: &Path) -> Result<Vec<File>> {
    let output = Command::new("git")
        // A checkout that belongs to another user is read all the same.
        .args(["-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("git is needed to list the repository's files")?;
    if !output.status.success() {
        bail!("`git ls-files` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let mut files = Vec::new();
    for path in output.stdout.split(|byte| *byte == 0).filter(|path| !path.is_empty()) {
        let path = String::from_utf8_lossy(path).into_owned();
        // Deleted but still listed, or binary: nothing to read.
        if let Ok(text) = std::fs::read_to_string(root.join(&path)) {
            files.push(File { path, text });
        }
    }
    Ok(files)
}

/// The lines of a Rust file that are code and not its tests, with their numbers counted from 1.
///
/// Whole-line comments and the file's `#[cfg(test)] mod ... { ... }` are left out; both are found by the shape that
/// rustfmt gives them.
pub(crate) fn code_lines(text: &str) -> Vec<(usize, &str)> {
    let mut lines = Vec::new();
    let mut rest = text.lines().enumerate().peekable();
    while let Some((index, line)) = rest.next() {
        if line == "#[cfg(test)]"
            && rest.peek().is_some_and(|(_, next)| next.starts_with("mod ") && next.ends_with('{'))
        {
            rest.by_ref().find(|(_, line)| *line == "}");
            continue;
        }
        let code = line.trim_start();
        if !code.is_empty() && !code.starts_with("//") {
            lines.push((index + 1, line));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_and_comments_are_no_code() {
        let text = "//! About.\nfn a() {} // b\n\n#[cfg(test)]\nmod tests {\n    fn t() {}\n}\nfn c() {}\n";
        assert_eq!(code_lines(text), [(2, "fn a() {} // b"), (8, "fn c() {}")]);
    }

    #[test]
    fn what_is_behind_a_test_only_item_still_counts() {
        // Only a whole module is left out: a `cfg(test)` function must not hide what follows it.
        let text = "#[cfg(test)]\nfn helper() {\n}\nfn real() {}\n";
        assert!(code_lines(text).contains(&(4, "fn real() {}")));
        assert!(code_lines("#[cfg(test)]\nmod elsewhere;\nfn real() {}\n").contains(&(3, "fn real() {}")));
    }

    #[test]
    fn a_crates_tests_folder_is_not_its_code() {
        let file = |path: &str| File { path: path.into(), text: String::new() };
        let workspace = Workspace {
            files: ["a/b/src/lib.rs", "a/b/tests/x.rs", "a/b/README.md", "a/bc/src/lib.rs"].map(file).into(),
            ..Workspace::default()
        };
        let krate = Crate { folder: "a/b".into(), ..Crate::default() };
        assert_eq!(workspace.code_of(&krate).map(|file| file.path.as_str()).collect::<Vec<_>>(), ["a/b/src/lib.rs"]);
    }

    #[test]
    fn a_module_for_tests_only_is_not_code_and_its_neighbours_are() {
        let file = |(path, text): (&str, &str)| File { path: path.into(), text: text.into() };
        let workspace = Workspace {
            files: [
                ("a/src/lib.rs", "mod page;\n#[cfg(test)]\nmod fixture;\nmod other;\n"),
                ("a/src/fixture.rs", ""),
                ("a/src/other.rs", ""),
                ("a/src/page.rs", "#[cfg(test)]\npub(crate) mod tests;\n"),
                ("a/src/page/tests.rs", ""),
                ("a/src/tests.rs", ""),
            ]
            .map(file)
            .into(),
            ..Workspace::default()
        };
        let krate = Crate { folder: "a".into(), ..Crate::default() };
        let code: Vec<&str> = workspace.code_of(&krate).map(|file| file.path.as_str()).collect();
        assert_eq!(code, ["a/src/lib.rs", "a/src/other.rs", "a/src/page.rs", "a/src/tests.rs"]);
    }
}
