//! The checks between two processes of one engine.

use super::Mutation;

pub(super) const LINK: &[Mutation] = &[
    Mutation {
        name: "link: a peer is the other part of the engine",
        file: "engine/link/src/connection.rs",
        find: "if !certificate.is_some_and(|certificate| identity::is_of(certificate, wanted)) {",
        replace: "if !certificate.is_some_and(|certificate| !certificate.is_empty()) {",
        packages: &["engine-link"],
        tests: "test(a_client_of_the_wrong_part_is_refused_by_the_one_that_listens_too)",
    },
    Mutation {
        name: "link: a peer speaks this protocol",
        file: "engine/link/src/connection.rs",
        find: "if !identity::speaks(session.alpn_protocol()) {",
        replace: "if !identity::speaks(session.alpn_protocol()) && session.is_handshaking() {",
        packages: &["engine-link"],
        tests: "test(one_that_speaks_no_tls_or_another_protocol_is_refused)",
    },
    Mutation {
        name: "link: a peer shows a certificate",
        file: "engine/link/src/identity.rs",
        find: ".with_client_cert_verifier(clients)",
        replace: ".with_no_client_auth()",
        packages: &["engine-link"],
        tests: "test(a_peer_without_a_certificate_is_refused) | test(only_the_other_part_of_the_same_engine_is_let_in)",
    },
    Mutation {
        name: "link: the length of a frame is bounded before there is room for it",
        file: "engine/link/src/frame.rs",
        find: "if length as usize > bytes_max {",
        replace: "if length as usize > bytes_max && length == u32::MAX {",
        packages: &["engine-link"],
        tests: "test(a_frame_beyond_the_terms_is_neither_sent_nor_taken)",
    },
];
