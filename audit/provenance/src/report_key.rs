//! The words by which a log's key vouches for the key that signs evidence bundles. They are signed as a note whose first line
//! says what it is for, and which can never be read as a checkpoint.

/// First line of the note.
pub const REPORT_KEY_PURPOSE: &str = "bulkhead report key v1";

/// The name of a log's report key.
#[must_use]
pub fn report_key_name(origin: &str) -> String {
    format!("{origin}/report")
}

/// The text that the log's key signs: the purpose, the log's origin, the report key's verifier key line.
#[must_use]
pub fn report_key_text(origin: &str, key_line: &str) -> String {
    format!("{REPORT_KEY_PURPOSE}\n{origin}\n{key_line}\n")
}
