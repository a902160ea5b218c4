//! A copy of the tree with something changed in it, to be built beside the tree itself.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Replaces the one place where `find` stands.
pub(crate) fn apply(text: &str, find: &str, replace: &str) -> Result<String> {
    match text.matches(find).count() {
        1 => Ok(text.replacen(find, replace, 1)),
        number => bail!("`{find}` stands {number} times in it, and must stand there once"),
    }
}

/// Copies what git tracks, leaving files alone that are the same already, so that little is built again.
pub(crate) fn copy(root: &Path, tree: &Path) -> Result<()> {
    let output = Command::new("git")
        .args(["-c", "safe.directory=*", "ls-files", "-z"])
        .current_dir(root)
        .output()
        .context("git is needed to list the repository's files")?;
    if !output.status.success() {
        bail!("`git ls-files` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let mut wanted = std::collections::BTreeSet::new();
    for path in output.stdout.split(|byte| *byte == 0).filter(|path| !path.is_empty()) {
        let path = PathBuf::from(String::from_utf8(path.to_vec()).context("a file's name is not UTF-8")?);
        let Ok(bytes) = std::fs::read(root.join(&path)) else { continue };
        let copy = tree.join(&path);
        if std::fs::read(&copy).ok().as_ref() != Some(&bytes) {
            std::fs::create_dir_all(copy.parent().context("a file lies in a folder")?)?;
            std::fs::write(&copy, bytes)?;
        }
        wanted.insert(path);
    }
    remove_others(tree, tree, &wanted)
}

fn remove_others(tree: &Path, folder: &Path, wanted: &std::collections::BTreeSet<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(tree, &path, wanted)?;
        } else if !wanted.contains(path.strip_prefix(tree)?) {
            std::fs::remove_file(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_to_be_replaced_stands_there_once() {
        assert_eq!(apply("if a { b }", "if a", "if true").unwrap(), "if true { b }");
        assert!(apply("if a { b }", "if c", "if true").unwrap_err().to_string().contains("0 times"));
        assert!(apply("a a", "a", "b").unwrap_err().to_string().contains("2 times"));
    }
}
