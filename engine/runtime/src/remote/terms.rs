//! What a link between two groups allows.

use engine_handoff::FRAME_BYTES_MAX;
use engine_kv::PAGE_TOKENS;
use engine_link::LinkTerms;

/// Frames that wait on each end: as many pages are in memory twice.
const FRAMES_MAX: usize = 8;
/// Of a token in a prompt, at most.
const TOKEN_BYTES: usize = 5;
/// Of a page in a trace, at most: page, life, label.
const READ_BYTES: usize = 20;
/// For what is around them, such as the strings that end an answer.
const HEAD_BYTES: usize = 64 << 10;

/// Room for a page, a prompt of the whole context, what such a prompt reads, and the protocol's longest message.
pub(crate) fn link_terms(page_bytes: usize, context_length: usize) -> LinkTerms {
    let prompt = context_length.saturating_mul(TOKEN_BYTES);
    let trace = context_length.div_ceil(PAGE_TOKENS).saturating_mul(READ_BYTES);
    let longest = page_bytes.max(prompt).max(trace).max(FRAME_BYTES_MAX);
    LinkTerms { frame_bytes_max: longest.saturating_add(HEAD_BYTES), frames_max: FRAMES_MAX }
}
