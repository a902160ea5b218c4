//! The workspace's rules, checked on every run of CI: which crate may know which, and a few promises about the text.
//!
//! The rules are functions from a [`Workspace`] to findings, so that each of them is tested on a made-up one that breaks
//! it. `cargo xtask architecture` runs them on the real one; so does a test here.

mod arrows;
mod sources;
mod workspace;

pub(crate) use workspace::Workspace;

use std::fmt;

/// One place that breaks one rule.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// The rule's name.
    pub(crate) rule: &'static str,
    /// A crate, or a file and line.
    pub(crate) place: String,
    /// What is wrong, and what to do instead.
    pub(crate) message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.rule, self.place, self.message)
    }
}

/// Every rule, in the order in which one would read them.
pub(crate) fn check(workspace: &Workspace) -> Vec<Finding> {
    let rules: [fn(&Workspace) -> Vec<Finding>; 11] = [
        arrows::only_allowed,
        arrows::outside_things_have_one_home,
        arrows::faults_stay_in_tests,
        arrows::code_map_is_this_table,
        sources::manifests_inherit,
        sources::unsafe_is_forbidden,
        sources::crates_are_not_empty,
        sources::proofs_have_their_one_maker,
        sources::environment_is_read_in_one_place,
        sources::no_words_of_a_machine,
        sources::named_tests_exist,
    ];
    rules.iter().flat_map(|rule| rule(workspace)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_workspace_keeps_its_rules() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let workspace = Workspace::read(&root).unwrap();
        // A reader that finds nothing would find nothing wrong either.
        assert!(workspace.crates.len() >= 15 && workspace.files.len() > 40, "the workspace was not read");
        assert!(workspace.crates.iter().any(|krate| !krate.dependencies.is_empty()), "no dependencies were read");
        let findings: Vec<String> = check(&workspace).iter().map(ToString::to_string).collect();
        assert!(findings.is_empty(), "{}", findings.join("\n"));
    }
}
