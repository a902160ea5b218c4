//! Who is told of incidents: the tables `[[webhooks]]`. Without one, nobody is.

use super::{Settings, non_empty};
use std::path::PathBuf;
use toml::Value;
use url::{Host, Url};

/// Receivers, at most: each has a thread.
const WEBHOOKS_MAX: usize = 8;

/// One receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookPlace {
    /// Where events are sent to.
    pub url: Url,
    /// A file with the secret that they are signed with, `whsec_` and base64.
    pub secret_file: PathBuf,
}

pub(super) fn read_all(settings: &mut Settings<'_>) -> Vec<WebhookPlace> {
    const NAME: &str = "webhooks";
    let tables = match settings.table.remove(NAME) {
        None => return Vec::new(),
        Some(Value::Array(tables)) => tables,
        Some(_) => {
            settings.mistake(NAME, "must be a list of tables".to_owned());
            return Vec::new();
        }
    };
    if tables.len() > WEBHOOKS_MAX {
        settings.mistake(NAME, format!("has {} tables, {WEBHOOKS_MAX} are possible", tables.len()));
        return Vec::new();
    }
    let mut places: Vec<WebhookPlace> = Vec::new();
    for (index, table) in tables.into_iter().enumerate() {
        settings.inside_value(&format!("{NAME}[{index}]"), table, |webhook| {
            let wanted = "must be an address with https, or with http on this machine, such as \"https://siem.example.com/hook\"";
            let url = webhook.required("url", wanted, |value| address(non_empty(value)?));
            let secret_file = webhook.required_path("secret_file");
            let Some(url) = url else { return };
            // What was delivered is remembered by the address.
            match places.iter().any(|place| place.url == url) {
                true => webhook.mistake("url", "is there twice".to_owned()),
                false => places.push(WebhookPlace { url, secret_file }),
            }
        });
    }
    places
}

/// Events name tenants by their references: they cross a network encrypted or not at all.
fn address(text: &str) -> Option<Url> {
    let url = Url::parse(text).ok()?;
    let here = match url.host()? {
        Host::Domain(name) => name == "localhost",
        Host::Ipv4(address) => address.is_loopback(),
        Host::Ipv6(address) => address.is_loopback(),
    };
    let known = url.scheme() == "https" || url.scheme() == "http" && here;
    let plain = url.fragment().is_none() && url.username().is_empty() && url.password().is_none();
    (known && plain).then_some(url)
}
