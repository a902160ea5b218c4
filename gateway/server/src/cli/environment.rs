//! The one place that reads the process's environment. Everything else is told what it needs.

use std::path::PathBuf;

/// Where this user's data lives: `$XDG_DATA_HOME` when it is an absolute path, else `~/.local/share`.
pub(crate) fn data_home() -> Option<PathBuf> {
    home_for("XDG_DATA_HOME", ".local/share")
}

/// Where what this user can do without lives: `$XDG_CACHE_HOME` when it is an absolute path, else `~/.cache`.
pub(crate) fn cache_home() -> Option<PathBuf> {
    home_for("XDG_CACHE_HOME", ".cache")
}

/// The key that `chat` uses when none is given: an argument is seen by everybody on the machine, a variable is not.
pub(crate) fn api_key() -> Option<String> {
    std::env::var("BULKHEAD_API_KEY").ok().filter(|key| !key.is_empty())
}

/// The keys of the two tenants as whom `audit` asks.
pub(crate) fn audit_keys() -> [Option<String>; 2] {
    ["BULKHEAD_API_KEY_A", "BULKHEAD_API_KEY_B"].map(|name| std::env::var(name).ok().filter(|key| !key.is_empty()))
}

/// The key of the operator as whom `audit incidents` asks.
pub(crate) fn operator_key() -> Option<String> {
    std::env::var("BULKHEAD_OPERATOR_KEY").ok().filter(|key| !key.is_empty())
}

/// The hub that models are pulled from, when another one than the usual is wanted.
pub(crate) fn hub_endpoint() -> Option<String> {
    std::env::var("HF_ENDPOINT").ok().filter(|endpoint| !endpoint.is_empty())
}

/// What a hub knows this user by, for models that not everybody may have.
pub(crate) fn hub_token() -> Option<String> {
    std::env::var("HF_TOKEN").ok().filter(|token| !token.is_empty())
}

/// What to log, in `tracing`'s notation, such as `debug` or `warn,engine_runtime=debug`.
pub(crate) fn log_filter() -> Option<String> {
    std::env::var("BULKHEAD_LOG").ok().filter(|filter| !filter.is_empty())
}

fn home_for(variable: &str, below_home: &str) -> Option<PathBuf> {
    choose_home(std::env::var_os(variable).map(Into::into), std::env::var_os("HOME").map(Into::into), below_home)
}

fn choose_home(xdg: Option<PathBuf>, home: Option<PathBuf>, below_home: &str) -> Option<PathBuf> {
    // The specification says that a relative path is to be ignored.
    xdg.filter(|path| path.is_absolute()).or_else(|| home.map(|home| home.join(below_home)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_home_is_ignored() {
        let choose =
            |xdg: Option<&str>, home: Option<&str>| choose_home(xdg.map(Into::into), home.map(Into::into), "below");
        assert_eq!(choose(Some("/data"), Some("/h")), Some("/data".into()));
        assert_eq!(choose(Some("data"), Some("/h")), Some("/h/below".into()));
        assert_eq!(choose(Some(""), None), None);
    }
}
