//! What an operator declares to be everybody's: the tables `[[public_prefixes]]`. Without one, nothing is.

use super::{Settings, non_empty};
use engine_runtime::PublicPrefix;
use toml::Value;

/// Products have a few preambles; each takes pages from the tenants for good.
const PREFIXES_MAX: usize = 16;
/// Some 16,000 tokens of English: more than a tenth of most pools, which is the engine's own bound.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// `keeps_prefixes`: this process has the cache that they are kept in.
pub(super) fn read_all(settings: &mut Settings<'_>, keeps_prefixes: bool) -> Vec<PublicPrefix> {
    const NAME: &str = "public_prefixes";
    let tables = match settings.table.remove(NAME) {
        None => return Vec::new(),
        Some(Value::Array(tables)) => tables,
        Some(_) => {
            settings.mistake(NAME, "must be a list of tables".to_owned());
            return Vec::new();
        }
    };
    if tables.len() > PREFIXES_MAX {
        settings.mistake(NAME, format!("has {} tables, {PREFIXES_MAX} are possible", tables.len()));
        return Vec::new();
    }
    if !tables.is_empty() && !keeps_prefixes {
        let problem = "cannot be kept: that takes `engine.prefix_cache`, and no [worker]";
        settings.mistake(NAME, problem.to_owned());
    }
    let mut prefixes = Vec::new();
    for (index, table) in tables.into_iter().enumerate() {
        settings.inside_value(&format!("{NAME}[{index}]"), table, |prefix| prefixes.extend(read(prefix)));
    }
    prefixes
}

fn read(settings: &mut Settings<'_>) -> Option<PublicPrefix> {
    let wanted = format!("a text of 1 to {TEXT_BYTES_MAX} bytes");
    let text = |value: &Value| non_empty(value).filter(|text| text.len() <= TEXT_BYTES_MAX).map(str::to_owned);
    let given = ["system", "text"].map(|name| settings.table.contains_key(name));
    if given[0] == given[1] {
        settings.wrong("must have one of `system` and `text`");
    }
    let mut prefix = None;
    settings.set("system", &wanted, &mut prefix, |value| text(value).map(|text| Some(PublicPrefix::System(text))));
    settings.set("text", &wanted, &mut prefix, |value| text(value).map(|text| Some(PublicPrefix::Text(text))));
    prefix
}
