//! Credentials: from what a client presents to the [`policies_domain::Principal`] it stands for.
//!
//! Keys are never stored. The configuration holds a keyed hash of each, which is of no use without the secret file of
//! this installation, and every presented key is compared with all of them in constant time. What this crate refuses
//! to do: decide what a principal may do (that is `policies/authz`), or print a credential.
#![forbid(unsafe_code)]

mod api_key;
mod key_ring;
mod key_secret;

pub use api_key::{ApiKey, MintKeyError, ParseKeyError};
pub use key_ring::{AuthError, BuildKeyRingError, KeyRing, TenantKey};
pub use key_secret::{KeyHash, KeySecret, OpenSecretError};
