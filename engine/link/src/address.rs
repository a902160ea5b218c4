//! Where a peer listens.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Longest path of a Unix socket, bytes, with its end: `sun_path` of Linux.
const UNIX_PATH_BYTES_MAX: usize = 107;

/// `unix:/run/bulkhead/prefill.sock` or `tcp:10.0.0.7:7443`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A socket in the file system.
    Unix(PathBuf),
    /// Host (a name or an address) and port.
    Tcp {
        /// Without the brackets that an IPv6 address is written with.
        host: String,
        /// Not 0, but for a listener that takes any.
        port: u16,
    },
}

/// Why a text is no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Neither `unix:` nor `tcp:` in front.
    #[error("an address begins with `unix:` or `tcp:`")]
    Scheme,
    /// Not an absolute path, or too long a one.
    #[error("the path of a Unix socket is absolute and has at most {UNIX_PATH_BYTES_MAX} bytes")]
    Path,
    /// No host, or no port after it.
    #[error("a TCP address is `tcp:HOST:PORT`, an IPv6 host in brackets")]
    HostPort,
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(path) = text.strip_prefix("unix:") {
            let fits = path.starts_with('/') && path.len() <= UNIX_PATH_BYTES_MAX && !path.contains('\0');
            return if fits { Ok(Self::Unix(PathBuf::from(path))) } else { Err(AddressError::Path) };
        }
        let rest = text.strip_prefix("tcp:").ok_or(AddressError::Scheme)?;
        let (host, port) = rest.rsplit_once(':').ok_or(AddressError::HostPort)?;
        let port = port.parse::<u16>().map_err(|_| AddressError::HostPort)?;
        let host = match host.strip_prefix('[') {
            Some(host) => host.strip_suffix(']').ok_or(AddressError::HostPort)?,
            None if host.contains(':') => return Err(AddressError::HostPort),
            None => host,
        };
        if host.is_empty() || host.chars().any(|c| c.is_whitespace() || c.is_control() || c == '/') {
            return Err(AddressError::HostPort);
        }
        Ok(Self::Tcp { host: host.to_owned(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp { host, port } if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "tcp:{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_what_they_are_written_as() {
        for text in ["unix:/run/bulkhead/p.sock", "tcp:127.0.0.1:7443", "tcp:prefill-0:1", "tcp:[::1]:7443"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert_eq!("tcp:[::1]:80".parse(), Ok(Address::Tcp { host: "::1".to_owned(), port: 80 }));
    }

    #[test]
    fn what_is_no_address_is_refused() {
        let long = format!("unix:/{}", "x".repeat(107));
        for (text, wanted) in [
            ("", AddressError::Scheme),
            ("/run/p.sock", AddressError::Scheme),
            ("127.0.0.1:7443", AddressError::Scheme),
            ("unix:", AddressError::Path),
            ("unix:run/p.sock", AddressError::Path),
            ("unix:/a\0b", AddressError::Path),
            (long.as_str(), AddressError::Path),
            ("tcp:", AddressError::HostPort),
            ("tcp:host", AddressError::HostPort),
            ("tcp::7443", AddressError::HostPort),
            ("tcp:host:", AddressError::HostPort),
            ("tcp:host:65536", AddressError::HostPort),
            ("tcp:host:-1", AddressError::HostPort),
            ("tcp:a b:1", AddressError::HostPort),
            ("tcp:::1:7443", AddressError::HostPort),
            ("tcp:[::1:7443", AddressError::HostPort),
            ("tcp:[]:7443", AddressError::HostPort),
        ] {
            assert_eq!(text.parse::<Address>(), Err(wanted), "{text:?}");
        }
    }
}
