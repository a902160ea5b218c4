//! The checks on what becomes of an incident.

use super::Mutation;

const INCIDENTS: &str = "audit/log/src/incidents.rs";
const OPERATORS: &str = "gateway/server/src/operators.rs";

pub(super) const INCIDENT_LIVES: &[Mutation] = &[
    Mutation {
        name: "incidents: the program contains one at once",
        file: "audit/log/src/open_entry.rs",
        find: "incident.into_iter().flatten().chain(fault)",
        replace: "incident.into_iter().flat_map(|drafts| drafts.into_iter().take(1)).chain(fault)",
        packages: &["audit-log"],
        tests: "test(an_incident_is_contained_by_the_program_before_anybody_looks)",
    },
    Mutation {
        name: "incidents: a move that may not be made is not written",
        file: INCIDENTS,
        find: "                        reply.refuse(error);\n                        continue;\n",
        replace: "                        drop(error);\n",
        packages: &["audit-log"],
        tests: "test(what_may_not_be_made_of_an_incident_is_refused_and_the_log_goes_on)",
    },
    Mutation {
        name: "incidents: a start knows where each stands",
        file: "audit/log/src/recover.rs",
        find: "self.incidents.note(index, Digest(leaf.0), entry).map_err(wrong)?;",
        replace: "Incidents::default().note(index, Digest(leaf.0), entry).map_err(wrong)?;",
        packages: &["audit-log"],
        tests: "test(where_an_incident_stands_is_what_its_entries_say_after_every_start)",
    },
    Mutation {
        name: "incidents: nobody is the second person of what he proposed",
        file: OPERATORS,
        find: "if waiting.by == *operator {",
        replace: "if waiting.by == *operator && now > waiting.until {",
        packages: &["gateway-server"],
        tests: "test(closing_takes_two_persons_who_say_the_same)",
    },
    Mutation {
        name: "incidents: the second person says the same of the same evidence",
        file: OPERATORS,
        find: "&& waiting.says == says",
        replace: "&& !says.is_empty()",
        packages: &["gateway-server"],
        tests: "test(closing_takes_two_persons_who_say_the_same)",
    },
    Mutation {
        name: "incidents: the victim is not told who received it",
        file: OPERATORS,
        find: "json!({\"side\": \"victim\", \"page\": incident.page, \"generation\": incident.generation})",
        replace: "json!({\"side\": \"victim\", \"page\": incident.page, \"request\": incident.request.to_string()})",
        packages: &["gateway-server"],
        tests: "test(neither_side_is_told_anything_of_the_other)",
    },
    Mutation {
        name: "incidents: a key stands for a tenant or for an operator",
        file: "gateway/auth/src/key_ring.rs",
        find: "                found |= hash.same_as(twin);\n",
        replace: "                found &= hash.same_as(twin);\n",
        packages: &["gateway-auth"],
        tests: "test(a_key_in_two_rings_is_noticed)",
    },
    Mutation {
        name: "webhooks: what did not arrive is sent again",
        file: "gateway/server/src/webhooks.rs",
        find: "if !status.is_success() {",
        replace: "if status.is_redirection() {",
        packages: &["e2e"],
        tests: "test(who_was_away_is_told_everything_in_order)",
    },
    Mutation {
        name: "webhooks: a start goes on where a receiver was",
        file: "gateway/server/src/webhooks/cursor.rs",
        find: "        self.next = next;\n",
        replace: "        self.next = next;\n        std::fs::remove_file(&self.path)?;\n",
        packages: &["e2e"],
        tests: "test(who_was_away_is_told_everything_in_order)",
    },
    Mutation {
        name: "webhooks: nothing goes over a network unencrypted",
        file: "gateway/server/src/config/webhooks.rs",
        find: "url.scheme() == \"http\" && here",
        replace: "url.scheme() == \"http\"",
        packages: &["gateway-server"],
        tests: "test(events_go_encrypted_to_addresses_that_are_there_once)",
    },
];
