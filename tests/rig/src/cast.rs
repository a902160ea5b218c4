//! Who appears in a run, and how a token says who wrote it.

use engine_runtime::{Tenancy, TenantTerms};
use policies_domain::{Label, RequestId, TenantId};

/// A page, and less than a chunk: every chunk ends with a token of its own request, which says whose row it is.
const SHARED_TOKENS: usize = 16;

/// Tenants, and requests numbered through all of them: request `n` is tenant `n % tenants`'s.
///
/// A token of the tracer is a request and what it says: nothing (it stands in that request's prompt) or a tenant. So every
/// token in a page names its author, and every token of an answer names the tenant whose pages decided it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cast {
    /// At most 26: each has a letter.
    pub tenants: u32,
    /// Requests of a run at most.
    pub requests: u32,
}

impl Cast {
    /// Number of different tokens.
    #[must_use]
    pub fn vocabulary(self) -> u32 {
        self.requests * (self.tenants + 1)
    }

    /// A token of a request's prompt.
    #[must_use]
    pub fn prompt_token(self, request: u32) -> u32 {
        request * (self.tenants + 1)
    }

    /// A request's prompt. All longer ones of a tenant begin with the same page, which its first request wrote.
    #[must_use]
    pub fn prompt(self, request: u32, tokens: usize) -> Vec<u32> {
        let shared = if tokens > SHARED_TOKENS { SHARED_TOKENS } else { 0 };
        let mut prompt = vec![self.prompt_token(self.tenant(request)); shared];
        prompt.resize(tokens, self.prompt_token(request));
        prompt
    }

    /// Whether what `author` wrote in this place of its sequence stands in the same place of `reader`'s, too.
    #[must_use]
    pub fn says_the_same(self, reader: u32, author: u32, position: usize) -> bool {
        author == reader || (position < SHARED_TOKENS && author == self.tenant(reader))
    }

    /// Everybody is guaranteed a part of the pages, which it may keep for later.
    pub(crate) fn tenancy(self) -> Tenancy {
        Tenancy::new((0..self.tenants).map(|tenant| (label(tenant), TenantTerms::default()))).unwrap_or_default()
    }

    /// A token of a request's answer that names a tenant.
    #[must_use]
    pub fn answer_token(self, request: u32, tenant: u32) -> u32 {
        self.prompt_token(request) + 1 + tenant
    }

    /// The request that a token is of; `None` for what is no token.
    #[must_use]
    pub fn author(self, token: u32) -> Option<u32> {
        (token < self.vocabulary()).then(|| token / (self.tenants + 1))
    }

    /// The tenant that a token of an answer names.
    #[must_use]
    pub fn named(self, token: u32) -> Option<u32> {
        self.author(token)?;
        (token % (self.tenants + 1)).checked_sub(1)
    }

    /// Whose request it is.
    #[must_use]
    pub fn tenant(self, request: u32) -> u32 {
        request % self.tenants
    }

    /// The letter that stands for a tenant in an answer.
    #[must_use]
    pub fn letter(tenant: u32) -> char {
        char::from(b'a' + (tenant % 26) as u8)
    }

    /// The tenant that a letter stands for.
    #[must_use]
    pub fn of_letter(letter: char) -> Option<u32> {
        letter.is_ascii_lowercase().then(|| letter as u32 - 'a' as u32)
    }
}

/// As the engine knows a tenant.
pub(crate) fn tenant_id(tenant: u32) -> Option<TenantId> {
    TenantId::new(tenant + 1)
}

/// As the ledger labels what is a tenant's.
pub(crate) fn label(tenant: u32) -> Label {
    tenant_id(tenant).map_or(Label::NOBODY, Label::of)
}

/// As the gateway numbers a request.
pub(crate) fn request_id(request: u32) -> RequestId {
    let mut bytes = [0; 16];
    bytes[12..].copy_from_slice(&request.to_be_bytes());
    RequestId::from_bytes(bytes)
}
