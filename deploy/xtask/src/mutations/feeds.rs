//! The engine's own account of its pages, and what an auditor compares with it.

use super::Mutation;

const ENGINE_SIDE: &str = "audit/auditor/src/engine_side.rs";
const PASSES: &str = "audit/auditor/src/engine_side/passes.rs";
const AUDITOR: &[&str] = &["audit-auditor"];
const FEED: &[&str] = &["audit-feed"];
const END_TO_END: &[&str] = &["e2e", "gateway-server", "audit-auditor"];
const SAYS_THE_SAME: &str = "test(the_engine_says_of_every_response_what_the_log_says)";

pub(super) const FEEDS: &[Mutation] = &[
    Mutation {
        name: "feed: a page is read in its life",
        file: PASSES,
        find: "Some((now, label)) if *now == generation => *label,",
        replace: "Some((_, label)) => *label,",
        packages: AUDITOR,
        tests: "test(a_page_is_read_in_its_life_and_never_after_it)",
    },
    Mutation {
        name: "feed: a life ends",
        file: PASSES,
        find: "                    self.lives.remove(&page);\n",
        replace: "",
        packages: AUDITOR,
        tests: "test(a_page_is_read_in_its_life_and_never_after_it)",
    },
    Mutation {
        name: "feed: a response reads pages of one tenant",
        file: PASSES,
        find: "label => *passes.label.get_or_insert(label) != label,",
        replace: "label => *passes.label.get_or_insert(label) == Label::NOBODY,",
        packages: AUDITOR,
        tests: "test(a_response_has_pages_of_its_tenant_and_of_everybody_alone)",
    },
    Mutation {
        name: "feed: a label is one tenant",
        file: ENGINE_SIDE,
        find: "tenant != claim.tenant || known != label",
        replace: "tenant != claim.tenant && known != label",
        packages: AUDITOR,
        tests: "test(a_tenant_has_one_label_and_a_label_one_tenant)",
    },
    Mutation {
        name: "feed: a trace invents no page",
        file: ENGINE_SIDE,
        find: "        if !fits {",
        replace: "        if !fits && claim.steps == 0 {",
        packages: AUDITOR,
        tests: "test(the_trace_names_what_was_read_and_nothing_else)",
    },
    Mutation {
        name: "feed: a trace hides no page",
        file: ENGINE_SIDE,
        find: "        Some((page, generation)) => Err(EngineFault::Hidden {",
        replace: "        Some((page, generation)) if claim.steps == 0 => Err(EngineFault::Hidden {",
        packages: AUDITOR,
        tests: "test(the_trace_names_what_was_read_and_nothing_else)",
    },
    Mutation {
        name: "feed: a response has no steps that the engine did not make",
        file: ENGINE_SIDE,
        find: "(true, true) => Err(EngineFault::Steps {",
        replace: "(true, true) if claim.steps == 0 => Err(EngineFault::Steps {",
        packages: AUDITOR,
        tests: "test(steps_that_the_engine_did_not_make_are_found_when_nothing_can_follow)",
    },
    Mutation {
        name: "feed: a pass that was taken out is found",
        file: PASSES,
        find: "kept > passes.table.len() && !passes.partial",
        replace: "kept > passes.table.len() && passes.partial",
        packages: AUDITOR,
        tests: "test(a_pass_that_was_taken_out_is_found)",
    },
    Mutation {
        name: "feed: of who is older than what is left of it the first passes may be missing",
        file: PASSES,
        find: "!self.blind && minted_us(request) >= self.sure_from_us",
        replace: "!self.blind || minted_us(request) >= self.sure_from_us",
        packages: AUDITOR,
        tests: "test(what_the_feed_does_not_have_is_not_known)",
    },
    Mutation {
        name: "feed: what the engine did wrong is remembered without a response",
        file: PASSES,
        find: "            self.unclaimed.insert(request, fault);\n",
        replace: "            let _ = (request, fault);\n",
        packages: AUDITOR,
        tests: "test(what_the_engine_did_wrong_for_nobody_s_response_is_not_forgotten)",
    },
    Mutation {
        name: "feed: what is missing makes blind",
        file: PASSES,
        find: "                self.blind = true;\n",
        replace: "",
        packages: AUDITOR,
        tests: "test(what_the_feed_does_not_have_is_not_known)",
    },
    Mutation {
        name: "feed: a feed that is taken away is missed",
        file: "audit/auditor/src/auditor.rs",
        find: "if unfed.saturating_mul(100) >",
        replace: "if unfed.saturating_mul(100) < audited.fed && unfed.saturating_mul(100) >",
        packages: AUDITOR,
        tests: "test(a_feed_that_is_not_there_is_an_objection_that_ends_when_it_is_not_asked_for)",
    },
    Mutation {
        name: "feed: a gap is no continuation",
        file: "audit/feed/src/reader.rs",
        find: "continues && !std::mem::take(&mut self.gap)",
        replace: "continues || std::mem::take(&mut self.gap)",
        packages: FEED,
        tests: "test(a_file_that_is_full_is_followed_by_one_that_says_what_there_is_and_old_ones_go)",
    },
    Mutation {
        name: "feed: what is damaged is not read",
        file: "audit/feed/src/reader.rs",
        find: "crc32c::crc32c(&self.block) != u32::from_be_bytes([s0, s1, s2, s3])",
        replace: "crc32c::crc32c(&self.block) != u32::from_be_bytes([s0, s1, s2, s3]) && length > BLOCK_BYTES_MAX",
        packages: FEED,
        tests: "test(what_is_damaged_or_gone_shows_as_a_gap)",
    },
    Mutation {
        name: "feed: it has one writer",
        file: "audit/feed/src/writer.rs",
        find: "TryLockError::WouldBlock => fault(io::Error::other(\"another process writes it\")),\n            TryLockError::Error(error) => fault(error),\n        })?;",
        replace: "TryLockError::WouldBlock => fault(io::Error::other(\"another process writes it\")),\n            TryLockError::Error(error) => fault(error),\n        }).ok();",
        packages: FEED,
        tests: "test(a_feed_is_read_while_it_is_written_and_has_one_writer)",
    },
    Mutation {
        name: "feed: every pass is told",
        file: "engine/runtime/src/step.rs",
        find: "        machine.witness_pass(request.request, &trace);\n",
        replace: "",
        packages: END_TO_END,
        tests: SAYS_THE_SAME,
    },
    Mutation {
        name: "feed: pages that another group had are told in their new lives",
        file: "engine/runtime/src/split/decode_group.rs",
        find: "    machine.witness_pass(request.request, &trace);\n",
        replace: "",
        packages: END_TO_END,
        tests: SAYS_THE_SAME,
    },
];
