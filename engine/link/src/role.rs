//! The parts of an engine that may be processes of their own.

use rustls::pki_types::{DnsName, ServerName};

/// Which part of an engine a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Computes prompts.
    Prefill,
    /// Goes on from there.
    Decode,
}

impl Role {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Prefill, Self::Decode];

    /// `prefill` or `decode`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }

    /// The role with this [`Role::name`].
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }

    /// The one that this one speaks to.
    #[must_use]
    pub fn peer(self) -> Self {
        match self {
            Self::Prefill => Self::Decode,
            Self::Decode => Self::Prefill,
        }
    }

    /// The name in its certificate. `internal` is reserved for what is not in the public name system.
    #[must_use]
    pub fn certificate_name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill.bulkhead.internal",
            Self::Decode => "decode.bulkhead.internal",
        }
    }

    /// [`Role::certificate_name`] as TLS takes it.
    pub(crate) fn server_name(self) -> Option<ServerName<'static>> {
        DnsName::try_from(self.certificate_name()).ok().map(ServerName::DnsName)
    }
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
