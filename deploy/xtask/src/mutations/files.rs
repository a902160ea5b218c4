//! What comes from elsewhere: models of a hub, and what their files say.

use super::Mutation;

pub(super) const FILES: &[Mutation] = &[
    Mutation {
        name: "files: a hub's token goes to the hub alone",
        file: "gateway/server/src/cli/pull/hub.rs",
        find: "                authorization = None;",
        replace: "                authorization = self.authorization.as_ref();",
        packages: &["gateway-server"],
        tests: "test(the_token_goes_to_the_hub_and_to_nobody_else)",
    },
    Mutation {
        name: "files: a hub on another port does not get the token either",
        file: "gateway/server/src/cli/pull/hub.rs",
        find: "            if url.origin() != self.endpoint.origin() {",
        replace: "            if url.host() != self.endpoint.host() {",
        packages: &["gateway-server"],
        tests: "test(a_hub_on_another_port_is_another_hub)",
    },
    Mutation {
        name: "files: a download ends where it was announced to end",
        file: "gateway/server/src/cli/pull/hub.rs",
        find: "if piece.len() as u64 > bytes - there {",
        replace: "if bytes == 0 {",
        packages: &["gateway-server"],
        tests: "test(a_body_beyond_its_announced_end_is_cut_and_removed)",
    },
    Mutation {
        name: "files: nothing is fetched that is larger than any file",
        file: "gateway/server/src/cli/pull/hub.rs",
        find: "if bytes > FILE_BYTES_MAX {",
        replace: "if bytes > u64::MAX - FILE_BYTES_MAX && bytes == 0 {",
        packages: &["gateway-server"],
        tests: "test(a_file_larger_than_any_is_not_fetched_at_all)",
    },
    Mutation {
        name: "files: what ends an answer is read or refused",
        file: "engine/model/src/checkpoint/hugging_face.rs",
        find: "numbers.ok_or_else(|| self.kind(key, \"a token's number or a list of such numbers\"))",
        replace: "Ok(numbers.unwrap_or_default())",
        packages: &["engine-model"],
        tests: "test(what_ends_an_answer_is_a_number_or_is_refused_by_name)",
    },
    Mutation {
        name: "files: a tensor that would be passed over is refused",
        file: "engine/model/src/weights.rs",
        find: " && number.to_string() == layer) {",
        replace: ") {",
        packages: &["engine-model"],
        tests: "test(a_folder_is_loaded_and_inspected_as_a_file_is)",
    },
    Mutation {
        name: "files: nonsense for a list of normalizers is refused",
        file: "engine/model/src/tokenizer/json.rs",
        find: "None => unsupported(format!(\"a sequence whose `{list}` are no list\")),",
        replace: "None => Ok(Vec::new()),",
        packages: &["engine-model"],
        tests: "test(what_has_no_counterpart_is_refused)",
    },
];
