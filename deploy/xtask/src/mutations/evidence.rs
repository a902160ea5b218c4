//! The checks on evidence bundles, and what keeps other tenants out of them.

use super::Mutation;

const BUNDLE: &str = "audit/verify/src/bundle.rs";
const STORY: &str = "audit/verify/src/bundle/story.rs";
const CONTAINER: &str = "audit/evidence/src/container.rs";
const MANIFEST: &str = "audit/evidence/src/manifest.rs";
const GATHER: &str = "audit/log/src/evidence.rs";
const NAMED: &str = "test(each_part_of_a_bundle_that_was_changed_is_named)";

pub(super) const EVIDENCE: &[Mutation] = &[
    Mutation {
        name: "evidence: no byte of the archive is without a meaning",
        file: CONTAINER,
        find: "if rest.rest.is_empty() { Ok(files) } else { Err(ContainerError::Form) }",
        replace: "if rest.rest.len() < archive.len() { Ok(files) } else { Err(ContainerError::Form) }",
        packages: &["audit-evidence"],
        tests: "test(an_archive_is_read_back_and_has_one_form)",
    },
    Mutation {
        name: "evidence: a bundle holds plain files alone",
        file: CONTAINER,
        find: "place.filter(|_| regular)",
        replace: "place.filter(|_| regular || next == 0)",
        packages: &["audit-evidence"],
        tests: "test(links_paths_and_strange_files_are_refused)",
    },
    Mutation {
        name: "evidence: every file is the one that was signed for",
        file: MANIFEST,
        find: "    if signed == wanted {",
        replace: "    if signed.lines().count() == wanted.lines().count() {",
        packages: &["audit-verify"],
        tests: NAMED,
    },
    Mutation {
        name: "evidence: the log's word is for a report key of this log",
        file: MANIFEST,
        find: "&& key.name() == report_key_name(log.name());",
        replace: "|| key.name() != report_key_name(log.name());",
        packages: &["audit-verify"],
        tests: "test(a_file_that_is_missing_or_vouched_for_by_nobody_is_named)",
    },
    Mutation {
        name: "evidence: what is signed for something else is never read as a checkpoint",
        file: "audit/tlog/src/signed_text.rs",
        find: "&& Checkpoint::from_text(text.as_bytes()).is_err()",
        replace: "&& !text.is_empty()",
        packages: &["audit-tlog"],
        tests: "test(a_signed_text_is_never_a_checkpoint)",
    },
    Mutation {
        name: "evidence: each entry is proven under the checkpoint",
        file: BUNDLE,
        find: "            .map_err(|source| BundleRefusal::Inclusion { index, source })?;",
        replace: "            .map_err(|source| BundleRefusal::Inclusion { index, source }).ok();",
        packages: &["audit-verify"],
        tests: NAMED,
    },
    Mutation {
        name: "evidence: no entry between is missing",
        file: BUNDLE,
        find: "            if link.number != wanted {",
        replace: "            if link.number < wanted {",
        packages: &["audit-verify"],
        tests: NAMED,
    },
    Mutation {
        name: "evidence: an entry names the tenant's one before",
        file: BUNDLE,
        find: "            if link.previous != previous {",
        replace: "            if link.previous != previous && link.number == 0 {",
        packages: &["audit-verify"],
        tests: "test(what_a_dishonest_operator_wrote_into_the_chain_is_named)",
    },
    Mutation {
        name: "evidence: entries are of one tenant",
        file: BUNDLE,
        find: ".filter(|link| link.tenant == tenant).ok_or(BundleRefusal::Tenant { index })?;",
        replace: ".filter(|link| link.tenant != [0; 16]).ok_or(BundleRefusal::Tenant { index })?;",
        packages: &["audit-verify"],
        tests: NAMED,
    },
    Mutation {
        name: "evidence: the one before the time is there, or there is none",
        file: BUNDLE,
        find: "    if !earlier && !is_first {",
        replace: "    if !earlier && !is_first && span.entries.is_empty() {",
        packages: &["audit-verify"],
        tests: "test(a_time_within_is_closed_at_both_ends)",
    },
    Mutation {
        name: "evidence: each entry that is withheld is spoken of",
        file: BUNDLE,
        find: "    if spoken == withheld {",
        replace: "    if spoken.len() <= withheld.len() {",
        packages: &["audit-verify"],
        tests: NAMED,
    },
    Mutation {
        name: "evidence: the tenant's name opens a commitment",
        file: BUNDLE,
        find: "if Commitment::of(Field::Tenant, &salt, statement.tenant.as_bytes()) == opened.tenant_name =>",
        replace: "if Commitment::of(Field::Tenant, &salt, statement.tenant.as_bytes()) != [0; 32] && opened.epoch < u64::MAX =>",
        packages: &["audit-verify"],
        tests: NAMED,
    },
    Mutation {
        name: "evidence: figures and pages follow from the entries",
        file: BUNDLE,
        find: "            if file(&files, name)? != bytes {",
        replace: "            if file(&files, name)?.len() != bytes.len() {",
        packages: &["audit-verify"],
        tests: NAMED,
    },
    Mutation {
        name: "evidence: what read a foreign page was stopped",
        file: STORY,
        find: "        if foreign > 0 && !stopped {",
        replace: "        if foreign > 0 && !stopped && crashed {",
        packages: &["audit-verify"],
        tests: "test(what_a_dishonest_operator_wrote_into_the_chain_is_named)",
    },
    Mutation {
        name: "evidence: the end of a response agrees with its incidents",
        file: STORY,
        find: "        if !crashed && (request.stopped && !stopped",
        replace: "        if crashed && (request.stopped && !stopped",
        packages: &["audit-verify"],
        tests: "test(what_a_dishonest_operator_wrote_into_the_chain_is_named)",
    },
    Mutation {
        name: "evidence: a replay is of the response that it names",
        file: STORY,
        find: "if is_of && agrees && (has_digest || !done)",
        replace: "if agrees && (has_digest || !done || is_of)",
        packages: &["audit-verify"],
        tests: "test(what_a_dishonest_operator_wrote_into_the_chain_is_named)",
    },
    Mutation {
        name: "evidence: no entry leaves that names another tenant",
        file: GATHER,
        find: "let given = (!names_another(&entry, query.tenant)).then(|| bytes.to_vec());",
        replace: "let given = (leaf != Hash([0; 32])).then(|| bytes.to_vec());",
        packages: &["audit-log", "audit-verify"],
        tests: "test(what_is_gathered_is_the_tenants_and_proven_at_every_edge_of_the_time) \
                | test(a_bundle_of_a_real_log_is_genuine_and_says_nothing_of_others)",
    },
    Mutation {
        name: "evidence: it is made of all that the log signed, or not at all",
        file: GATHER,
        find: "if self.edge.size() != checkpoint.size || self.edge.root() != checkpoint.root {",
        replace: "if self.edge.size() != checkpoint.size {",
        packages: &["audit-log"],
        tests: "test(a_log_in_which_something_is_missing_or_changed_gives_no_evidence)",
    },
    Mutation {
        name: "evidence: what did not happen is not shown",
        file: "audit/evidence/src/controls.rs",
        find: "        (0, 0) => Finding::NotExercised,\n        (_, 0) => Finding::Shown,\n        _ => Finding::NotMet,\n    }\n}\n\nfn incidents_are_closed",
        replace: "        (_, 0) => Finding::Shown,\n        _ => Finding::NotMet,\n    }\n}\n\nfn incidents_are_closed",
        packages: &["audit-evidence"],
        tests: "test(a_control_is_not_shown_by_nothing_and_not_by_the_contrary)",
    },
    Mutation {
        name: "evidence: a page escapes what it is told",
        file: "audit/evidence/src/html.rs",
        find: "text.replace('&', \"&amp;\").replace('<', \"&lt;\")",
        replace: "text.replace('&', \"&amp;\")",
        packages: &["audit-evidence"],
        tests: "test(a_page_runs_nothing_loads_nothing_and_escapes_what_it_is_told)",
    },
];
