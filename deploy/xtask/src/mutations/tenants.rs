//! The checks that keep what the operator agreed with each tenant.

use super::Mutation;

pub(super) const TENANTS: &[Mutation] = &[
    Mutation {
        name: "tenants: no more is promised than there is",
        file: "engine/scheduler/src/terms.rs",
        find: "if promised > permille_max {",
        replace: "if promised > permille_max << 10 {",
        packages: &["gateway-server"],
        tests: "test(more_than_there_is_cannot_be_promised)",
    },
    Mutation {
        name: "tenants: what is agreed with nobody is a mistake",
        file: "gateway/server/src/config/agreement.rs",
        find: "None => tenant.wrong(\"is of nobody: there is no key of that name under [[tenants]]\"),",
        replace: "None => {}",
        packages: &["gateway-server"],
        tests: "test(what_is_agreed_with_nobody_or_contradicts_itself_is_a_mistake)",
    },
    Mutation {
        name: "tenants: a constant shape goes without speculation",
        file: "gateway/server/src/config/agreement.rs",
        find: "terms.speculates = stream == StreamShape::AsItComes && speculation",
        replace: "terms.speculates = speculation",
        packages: &["gateway-server"],
        tests: "test(a_tenant_whose_streams_have_a_constant_shape_does_not_speculate)",
    },
    Mutation {
        name: "tenants: whoever has a key counts in the guarantees",
        file: "gateway/server/src/config.rs",
        find: "let numbers = KeyRing::numbers(&self.tenants);",
        replace: "let mut numbers = KeyRing::numbers(&self.tenants);\n        numbers.retain(|name, _| self.agreements.contains_key(*name));",
        packages: &["gateway-server"],
        tests: "test(whoever_has_a_key_has_terms_under_the_number_that_its_labels_carry)",
    },
    Mutation {
        name: "constant shape: every event has the one size",
        file: "gateway/server/src/reply.rs",
        find: "\"0\".repeat(missing.ok_or(RequestError::Internal)?)",
        replace: "\"0\".repeat(missing.ok_or(RequestError::Internal)?.min(8))",
        packages: &["gateway-server"],
        tests: "test(the_characters_of_the_text_show_in_nothing_but_their_number)",
    },
    Mutation {
        name: "constant shape: escapes are counted in the size",
        file: "gateway/server/src/shape.rs",
        find: "pub(crate) const WIDEST: &str = \"\\0\";",
        replace: "pub(crate) const WIDEST: &str = \"a\";",
        packages: &["gateway-server"],
        tests: "test(no_character_is_wider_in_json_than_the_widest) | test(the_characters_of_the_text_show_in_nothing_but_their_number)",
    },
    Mutation {
        name: "constant shape: events leave at whole periods",
        file: "gateway/server/src/shape.rs",
        find: "self.next.get_or_insert(self.after(now));",
        replace: "self.next.get_or_insert(now);",
        packages: &["gateway-server"],
        tests: "test(one_token_a_step_or_five_show_alike)",
    },
    Mutation {
        name: "constant shape: what waits is looked at before any of it leaves",
        file: "gateway/server/src/shape.rs",
        find: "look(piece)?;",
        replace: "let _unseen = &mut look;",
        packages: &["gateway-server"],
        tests: "test(cross_talk_without_evidence)",
    },
    Mutation {
        name: "constant shape: what waits is bounded",
        file: "gateway/server/src/shape.rs",
        find: "self.waiting < WAITING_BYTES_MAX",
        replace: "self.waiting < WAITING_BYTES_MAX << 10",
        packages: &["gateway-server"],
        tests: "test(what_waits_for_its_period_is_bounded_and_the_rest_stays_with_the_engine)",
    },
];
