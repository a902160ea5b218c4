//! The model's fingerprint: one digest of everything that decides which tokens a request gets.
//!
//! Two programs with the same fingerprint give a prompt the same tokens and those tokens the same logits, bit for bit.
//! It goes into every record, so that an answer can be computed again by somebody else, and a difference has a name.

use crate::model::Model;

/// Raised when a line is added or means something else.
const FINGERPRINT_VERSION: u32 = 1;

/// The fingerprint as text: a line for each part, each ended by a line feed. Documented in `docs/log-format.md`.
pub(crate) fn description(model: &Model) -> String {
    let template = model.chat_template().map_or_else(|| "none".to_owned(), |template| hex::encode(template.digest()));
    let (file, numerics) = (hex::encode(model.digest()), hex::encode(model.numerics_profile()));
    let tokenizer = hex::encode(model.tokenizer().digest());
    format!(
        "bulkhead model fingerprint\nversion {FINGERPRINT_VERSION}\nfile {file}\nnumerics {numerics}\n\
         tokenizer {tokenizer}\nchat template {template}\n"
    )
}
