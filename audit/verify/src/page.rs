//! The page that checks a receipt in a browser: one file without anything from elsewhere, served by the gateway and usable from
//! a disk. It is a second implementation, in JavaScript, from docs/log-format.md; the tests hold it against this one.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use sha2::{Digest as _, Sha256};
use std::sync::OnceLock;

const STYLE: &str = include_str!("../page/style.css");
/// What checks; a test runs the same two files without a browser.
const FORMS: &str = include_str!("../page/forms.js");
const VERIFIER: &str = include_str!("../page/verifier.js");
/// What shows.
const SHOW: &str = include_str!("../page/show.js");
const TEMPLATE: &str = include_str!("../page/page.html");

/// The page, and what a server says of it.
#[derive(Debug)]
pub struct VerifierPage {
    /// The whole document.
    pub html: String,
    /// It may run its own scripts and have its own style, by their digests, and load or send nothing.
    pub content_security_policy: String,
}

/// The page, made once.
pub fn page() -> &'static VerifierPage {
    static PAGE: OnceLock<VerifierPage> = OnceLock::new();
    PAGE.get_or_init(|| {
        let [style, forms, verifier, show] = [STYLE, FORMS, VERIFIER, SHOW].map(source);
        // What a document says of itself cannot forbid frames; the header does.
        let of_document = format!(
            "default-src 'none'; script-src {forms} {verifier} {show}; style-src {style}; base-uri 'none'; form-action 'none'; \
             require-trusted-types-for 'script'; trusted-types 'none'"
        );
        let html = TEMPLATE
            .replacen("{{policy}}", &of_document, 1)
            .replacen("{{style}}", STYLE, 1)
            .replacen("{{forms}}", FORMS, 1)
            .replacen("{{verifier}}", VERIFIER, 1)
            .replacen("{{show}}", SHOW, 1);
        VerifierPage { html, content_security_policy: format!("{of_document}; frame-ancestors 'none'") }
    })
}

/// A script or style by its digest, as a policy names it.
fn source(text: &str) -> String {
    format!("'sha256-{}'", BASE64_STANDARD.encode(Sha256::digest(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_its_parts_whole_and_nothing_from_elsewhere() {
        let page = page();
        for part in [STYLE, FORMS, VERIFIER, SHOW] {
            assert_eq!(page.html.matches(part).count(), 1);
            assert!(page.content_security_policy.contains(&source(part)));
            assert!(!part.contains("</script") && !part.contains("</style") && !part.contains("{{"));
        }
        assert!(!page.html.contains("{{"));
        for elsewhere in
            ["http://", "https://", "src=", "@import", "url(", "fetch(", "XMLHttpRequest", "WebSocket", "innerHTML"]
        {
            assert!(!page.html.contains(elsewhere), "{elsewhere}");
        }
        assert!(page.content_security_policy.starts_with("default-src 'none'; "));
        assert!(!page.content_security_policy.contains("unsafe"));
    }
}
