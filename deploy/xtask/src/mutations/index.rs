//! The checks that let the log have an index which is believed in nothing.

use super::Mutation;

const LOOKUP: &str = "audit/log/src/index/lookup.rs";
const SERVICE: &str = "audit/log/src/index/service.rs";

pub(super) const INDEX: &[Mutation] = &[
    Mutation {
        name: "index: the entry that it names is read and is the request's",
        file: LOOKUP,
        find: "                && is_of(&read, kind, request)\n",
        replace: "                && (is_of(&read, kind, request) || index < u64::MAX)\n",
        packages: &["audit-log"],
        tests: "test(a_lie_about_any_kind_of_record_is_noticed)",
    },
    Mutation {
        name: "index: what it does not have is looked for where it may be",
        file: LOOKUP,
        find: "for block in blocks {",
        replace: "for block in blocks.into_iter().take(usize::from(answer.is_none())) {",
        packages: &["audit-log"],
        tests: "test(a_lie_about_any_kind_of_record_is_noticed)",
    },
    Mutation {
        name: "index: one that lost a record is made anew",
        file: LOOKUP,
        find: "&& index < answer.indexed",
        replace: "&& index > answer.indexed",
        packages: &["audit-log"],
        tests: "test(a_lie_about_any_kind_of_record_is_noticed)",
    },
    Mutation {
        name: "index: a tenant's entry is the tenant's and has the number",
        file: LOOKUP,
        find: "Some((index, _)) => reader.entry(index)?.filter(|read| is(read)),",
        replace: "Some((index, _)) => reader.entry(index)?.filter(|read| is(read) || index < u64::MAX),",
        packages: &["audit-log"],
        tests: "test(a_lie_about_any_kind_of_record_is_noticed)",
    },
    Mutation {
        name: "index: a block has as many incidents as were counted",
        file: LOOKUP,
        find: "if found.len() as u64 != wanted {",
        replace: "if found.len() as u64 > wanted {",
        packages: &["audit-log"],
        tests: "test(a_lie_about_any_kind_of_record_is_noticed)",
    },
    Mutation {
        name: "index: what it says of a page is whole or not used",
        file: "audit/log/src/index/pages.rs",
        find: "|| tag(tag_key, bucket, block, records) != **held {",
        replace: "|| tag(tag_key, bucket, block, records).len() > held.len() {",
        packages: &["audit-log"],
        tests: "test(a_lie_about_any_kind_of_record_is_noticed)",
    },
    Mutation {
        name: "index: another log's is not used",
        file: SERVICE,
        find: "*key == mark_key(block) && *value == mark_value(&self.origin, block, of_log.root)",
        replace: "*key == mark_key(block) && value.len() == mark_value(&self.origin, block, of_log.root).len()",
        packages: &["audit-log"],
        tests: "test(the_index_of_another_log_or_of_a_later_one_is_made_anew)",
    },
    Mutation {
        name: "index: a store that panicked is not dropped on the way out",
        file: SERVICE,
        find: "Some(store) if std::thread::panicking() => std::mem::forget(store),",
        replace: "Some(store) if std::thread::panicking() => drop(store),",
        packages: &["audit-log"],
        tests: "test(a_store_that_panics_anywhere_takes_nothing_along)",
    },
    Mutation {
        name: "index: a segment that changed after the start gives no answer",
        file: "audit/log/src/index/source.rs",
        find: "if edge.size() != GROUP || edge.root() != group.hash {",
        replace: "if edge.size() != GROUP {",
        packages: &["audit-log"],
        tests: "test(a_segment_that_was_changed_since_the_start_gives_no_answer)",
    },
    Mutation {
        name: "index: what is too slow for it stays to be found",
        file: "audit/log/src/index/source.rs",
        find: "if range.start >= known.tail.first() {",
        replace: "if range.start >= known.tail.first() || known.tail.first() > 0 {",
        packages: &["audit-log"],
        tests: "test(every_answer_is_the_one_that_the_entries_give)",
    },
];
