//! The one function of the crate `dirs` that our dependencies call.
#![forbid(unsafe_code)]

use std::path::PathBuf;

/// The user's home directory: `$HOME`, or what the system's user database says.
#[must_use]
pub fn home_dir() -> Option<PathBuf> {
    std::env::home_dir().filter(|path| !path.as_os_str().is_empty())
}
