//! What one step of the engine did for one request: what it read, what it says.

use crate::{Completion, Generation, Label, PageId, RequestId, Seal};

/// One KV page as it stood in a kernel's block table, with the label that the page's ledger held at that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageRead {
    /// Which page.
    pub page: PageId,
    /// In which life of it.
    pub generation: Generation,
    /// Whose it was.
    pub label: Label,
    /// Several of the tenant's requests may hold it, and nobody writes to it: it stays in its life when one of them begins anew.
    pub shared: bool,
}

/// Every page that one step read for one request, in sequence order.
///
/// Written where the kernel's block table is built, not by the scheduler that chose the pages: the checker does not
/// take its evidence from the suspect. A step says what is new in it: a page is named when it comes into the block table,
/// and again when anything about it is different.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageTrace {
    /// Places of the block table, from the first on, in which stands what stood there in the request's step before, in the
    /// same life and under the same label. None in its first step and in a restarted one.
    pub kept: usize,
    /// One for each entry of the block table behind these.
    pub pages: Vec<PageRead>,
}

/// Why a response ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// The model ended its turn, or a stop string of the request was met.
    Stop,
    /// The token limit of the request or the model's context was reached.
    Length,
}

impl FinishReason {
    /// As the OpenAI API writes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

/// What one engine step produced for one request. Not yet fit to be sent: only the provenance gate makes it so.
#[derive(Clone, Debug)]
pub struct Step {
    /// The request that the engine computed this for; the gate compares it with the permit.
    pub request: RequestId,
    /// Counts this request's steps from 0, without a gap. Prefill chunks that sample nothing are steps too.
    pub index: u32,
    /// What the step read.
    pub trace: PageTrace,
    /// The sequence lost all its pages before this step (preemption) and is computed anew from its first token.
    pub restarted: bool,
    /// Completion tokens sampled in this step: 0 (prefill chunk) or 1.
    pub tokens: u32,
    /// Text that became final in this step; may be empty (an unfinished character, a possible stop string).
    pub text: Completion,
    /// Set in the last step only.
    pub finish: Option<FinishReason>,
    /// Ties `text` and `finish` to the request, its admission, this step and the connection; made at sampling.
    pub seal: Seal,
}
