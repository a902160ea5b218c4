//! The checks that keep one row's records out of another row.

use super::Mutation;

/// Built with the second one, the first has the feature that plants faults.
const PACKAGES: &[&str] = &["engine-runtime", "rig"];

pub(super) const ROWS: &[Mutation] = &[
    Mutation {
        name: "row: a record opens to its own ticket",
        file: "engine/runtime/src/ticket.rs",
        find: "if self.ticket == ticket { Ok(&mut self.record)",
        replace: "if self.ticket.epoch.0 > 0 || ticket.epoch.0 > 0 { Ok(&mut self.record)",
        packages: PACKAGES,
        tests: "test(recycled_row_keeps_mask) | test(mask_rows_misaligned)",
    },
    Mutation {
        name: "row: a record is renewed for its own request alone",
        file: "engine/runtime/src/ticket.rs",
        find: "        self.of(from)?;\n",
        replace: "        let _any = from;\n",
        packages: PACKAGES,
        tests: "test(a_record_that_is_not_its_own_is_not_admitted_again)",
    },
    Mutation {
        name: "row: logits are given to the span's ticket alone",
        file: "engine/model/src/forward.rs",
        find: " || self.tickets.get(span) != Some(&ticket) {",
        replace: " || self.tickets.get(span).is_none_or(|_| ticket == u64::MAX) {",
        packages: &["engine-model"],
        tests: "test(logits_are_given_to_their_ticket_alone)",
    },
    Mutation {
        name: "row: a part is computed for the request that it was planned for",
        file: "engine/runtime/src/running.rs",
        find: "if block_table.sequence() == table.sequence() {",
        replace: "if block_table.sequence() == table.sequence() || self.computed < usize::MAX {",
        packages: PACKAGES,
        tests: "test(pages_of_the_same_tenant_s_other_request_are_not_read)",
    },
    Mutation {
        name: "row: text goes out its own request's way",
        file: "engine/runtime/src/outlet.rs",
        find: "reader.sealer.binding().request == request,",
        replace: "reader.sealer.binding().request.bytes().len() == request.bytes().len(),",
        packages: PACKAGES,
        tests: "test(text_does_not_go_out_another_s_way)",
    },
];
