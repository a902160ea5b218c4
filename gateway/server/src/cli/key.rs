//! `bulkhead key new`: a key for a tenant. The key is shown once; what is kept is its keyed hash.

use super::serve::read_config;
use anyhow::{Context, Result};
use gateway_auth::{ApiKey, KeySecret};
use gateway_server::Gateway;
use policies_domain::TenantName;
use std::path::Path;

/// A new key.
pub(crate) struct NewKey {
    pub(crate) key: ApiKey,
    /// For the end of the configuration file.
    pub(crate) lines: String,
}

/// Makes a key for `tenant` with the secret of the configured or given data folder, which is made when it is missing.
pub(crate) fn new(tenant: &str, config: Option<&Path>, data_dir: Option<&Path>, operator: bool) -> Result<NewKey> {
    let tenant = TenantName::parse(tenant).with_context(|| format!("`{tenant}` cannot be a tenant's name"))?;
    let folder = match (config, data_dir) {
        (Some(config), _) => read_config(config)?.data_dir,
        (None, Some(folder)) => folder.to_owned(),
        (None, None) => anyhow::bail!("a configuration or a data folder is needed"),
    };
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let secret = KeySecret::open_or_create(&folder.join(Gateway::KEY_SECRET_FILE))?;
    let key = ApiKey::mint()?;
    let list = if operator { "operators" } else { "tenants" };
    let lines = format!("\n[[{list}]]\nname = \"{tenant}\"\nkey_hash = \"{}\"", secret.hash(&key));
    Ok(NewKey { key, lines })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gateway_server::Config;

    #[test]
    fn the_printed_lines_are_a_tenant_at_the_end_of_a_configuration() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let new = new("acme", None, Some(&data), false).unwrap();
        let config = Config::parse(&format!("data_dir = \"d\"\nmodel = \"m\"\n[limits]{}\n", new.lines)).unwrap();
        assert_eq!(config.tenants[0].tenant.as_str(), "acme");
        // Another secret would make another hash: the folder's own was used.
        let secret = KeySecret::open_or_create(&data.join(Gateway::KEY_SECRET_FILE)).unwrap();
        assert_eq!(secret.hash(&new.key).to_string(), config.tenants[0].hash.to_string());
        assert!(!new.lines.contains(new.key.reveal()));
    }

    #[test]
    fn a_bad_name_or_configuration_makes_no_key() {
        let folder = tempfile::tempdir().unwrap();
        let new = |tenant, config, data_dir| new(tenant, config, data_dir, false).map(|_| ());
        assert!(new("Acme Corp", None, Some(folder.path())).unwrap_err().to_string().contains("Acme Corp"));
        let error = new("acme", Some(&folder.path().join("none.toml")), None).unwrap_err();
        assert!(error.to_string().contains("deploy/bulkhead.toml"), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
