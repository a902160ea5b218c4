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
];
