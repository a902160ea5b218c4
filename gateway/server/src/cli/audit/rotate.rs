//! `bulkhead audit rotate`: the log's key is followed by another one. It needs the log's folder, so no gateway may have it open: it
//! is stopped, the command is run, and it is started again.

use crate::cli::say;
use crate::cli::serve::read_config;
use anyhow::Result;
use audit_log::{RotatedKey, drop_former_key, rotate_key};
use clap::Args;
use gateway_server::Gateway;
use serde_json::json;
use std::path::PathBuf;

// Whose key, and which of the two steps. (Its help is the command's.)
#[derive(Clone, Debug, Args)]
pub(crate) struct RotateArguments {
    /// The gateway's configuration
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Drop the former key, after everybody who checks the log has learnt the next one
    #[arg(long)]
    finish: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &RotateArguments) -> Result<()> {
    let config = Gateway::log_config(&read_config(&arguments.config)?);
    let rotated = if arguments.finish { drop_former_key(&config)? } else { rotate_key(&config)? };
    let RotatedKey { former, next, begin, finish } = &rotated;
    let said = match (arguments.json, arguments.finish) {
        (true, finished) => {
            json!({"former": former, "next": next, "entry": begin, "finish": finish, "both_sign": !finished})
                .to_string()
        }
        (false, true) => format!(
            "the log's key is {next}\nthe former key {former} is dropped, as entry {} says: it signs no more, and its file is \
             overwritten",
            finish.unwrap_or_default()
        ),
        (false, false) => format!(
            "entry {begin} names the next key: {next}\n\
             the former key {former} signs, too, until `bulkhead audit rotate --finish`\n\
             give the next key to everybody who checks the log, and to its witnesses and auditors, before that"
        ),
    };
    say(said)?;
    Ok(())
}
