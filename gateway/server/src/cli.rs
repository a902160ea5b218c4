//! The command line: what can be asked for, and who answers it.
//!
//! Results go to stdout, everything said on the way there to stderr; see `output`.

mod audit;
mod bench;
mod chat;
mod demo;
mod doctor;
mod environment;
mod fetch;
mod http_client;
mod key;
mod machine;
mod output;
mod pull;
mod selftest;
mod serve;
mod worker;

pub(crate) use output::{is_reader_gone, note};

use anyhow::{Context, Result, bail};
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use engine_link::{Address, Role};
use engine_model::{CompileChat, LoadOptions, printable};
use engine_runtime::EngineConfig;
use gateway_server::{RenderProcesses, WeightsCache};
use output::{say, say_piece};
use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tracing::field::Field;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::{EnvFilter, LevelFilter};
use tracing_subscriber::fmt::format::{self, Writer};

/// Multi-tenant LLM gateway that can prove who saw what
#[derive(Parser)]
#[command(name = "bulkhead", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start a gateway with two tenants on this machine and show how to use it
    Demo(DemoArguments),
    /// Start a gateway from a configuration file
    Serve {
        /// The TOML file; deploy/bulkhead.toml shows every setting
        #[arg(long)]
        config: PathBuf,
        /// Folder for repacked weights, which make the next start faster, or `off`; instead of what the file says
        #[arg(long, value_name = "DIR|off", value_parser = weights_cache)]
        weights_cache: Option<WeightsCache>,
    },
    /// Run a part of the engine in a process of its own
    Worker {
        /// Which part: `prefill` computes prompts, `decode` goes on from there; the gateway that connects does the other
        #[arg(long, value_enum)]
        role: WorkerRole,
        /// The gateway's TOML file, or one like it; its [worker] says where to listen
        #[arg(long)]
        config: PathBuf,
        /// Where to listen instead: `unix:/PATH` or `tcp:HOST:PORT`
        #[arg(long, value_name = "ADDRESS")]
        listen: Option<Address>,
    },
    /// Talk to a running gateway
    Chat {
        /// Where the gateway listens
        #[arg(long, default_value = "http://127.0.0.1:8080")]
        address: String,
        /// API key; better given as BULKHEAD_API_KEY, which others on this machine do not see
        #[arg(long)]
        key: Option<String>,
    },
    /// Get or describe model files
    #[command(subcommand)]
    Model(ModelCommand),
    /// Measure
    #[command(subcommand)]
    Bench(BenchCommand),
    /// API keys
    #[command(subcommand)]
    Key(KeyCommand),
    /// Say what Bulkhead finds on this machine
    Doctor,
    /// Look for what one tenant can see of another
    #[command(subcommand)]
    Audit(audit::Audit),
    /// Bring defects back and see that they are caught
    #[command(subcommand)]
    Selftest(selftest::Selftest),
    /// Render chat templates for the process that started this one
    #[command(hide = true)]
    RenderChat,
}

#[derive(Clone, Copy, ValueEnum)]
enum WorkerRole {
    Prefill,
    Decode,
}

impl From<WorkerRole> for Role {
    fn from(role: WorkerRole) -> Self {
        match role {
            WorkerRole::Prefill => Self::Prefill,
            WorkerRole::Decode => Self::Decode,
        }
    }
}

#[derive(Args)]
struct DemoArguments {
    /// Print one line of JSON when ready, and nothing else, to stdout
    #[arg(long)]
    json: bool,
    /// A GGUF file or a folder of safetensors, of the Llama family, instead of the default model
    #[arg(long)]
    model: Option<PathBuf>,
    /// Where to listen; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Folder for the audit log and the key secret, kept afterwards; a temporary one when not given, which stays behind when
    /// the demo is killed (remove `bulkhead-demo-*` from the folder for temporary files then)
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Folder for repacked weights, which make the next start faster, or `off`; in the user's cache when not given
    #[arg(long, value_name = "DIR|off", value_parser = weights_cache)]
    weights_cache: Option<WeightsCache>,
}

#[derive(Subcommand)]
enum ModelCommand {
    /// Fetch the default model (93 MB) into the user's data folder, if it is not there
    Fetch,
    /// Fetch a model from a hub and print where it is, for --model
    Pull {
        /// OWNER/NAME, or OWNER/NAME@REVISION for a branch, a tag or a commit
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        repository: String,
        /// Only this file, such as one GGUF file of several
        #[arg(long, value_parser = NonEmptyStringValueParser::new())]
        file: Option<String>,
        /// The hub's address; that of HF_ENDPOINT, or Hugging Face's, when not given
        #[arg(long, value_parser = NonEmptyStringValueParser::new())]
        endpoint: Option<String>,
    },
    /// Say what a model holds and whether it can be served
    Inspect {
        /// A GGUF file, or a folder of safetensors
        file: PathBuf,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Subcommand)]
enum BenchCommand {
    /// Prefill and decode speed, time to first token and memory of the engine
    Engine {
        /// As JSON
        #[arg(long)]
        json: bool,
        /// A GGUF file instead of the default model
        #[arg(long)]
        model: Option<PathBuf>,
        /// Compute threads; as many as there are cores when not given
        #[arg(long, value_parser = clap::value_parser!(u16).range(1..=EngineConfig::LARGEST.threads as i64))]
        threads: Option<u16>,
        /// Counted repetitions of each measurement
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
        repetitions: u16,
        /// Another engine to measure in turn with ours
        #[arg(long)]
        peer: Option<PeerName>,
        /// The Python that has the peer's package; several for several builds of it
        #[arg(long, default_value = "python3", requires = "peer")]
        peer_python: Vec<PathBuf>,
        /// A file made from the model for the peer, in another quantisation; several for several
        #[arg(long, requires = "peer")]
        peer_file: Vec<PathBuf>,
        /// Also measure over batches, prompt lengths and threads; minutes
        #[arg(long)]
        scaling: bool,
        /// Also write the JSON here
        #[arg(long)]
        output: Option<PathBuf>,
    },
    /// What tenants have of the engine beside each other, and what fairness costs; prints JSON
    Scheduler {
        /// A GGUF file instead of the default model
        #[arg(long)]
        model: Option<PathBuf>,
        /// Compute threads; as many as there are cores when not given
        #[arg(long, value_parser = clap::value_parser!(u16).range(1..=EngineConfig::LARGEST.threads as i64))]
        threads: Option<u16>,
        /// Counted repetitions of each measurement
        #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1000))]
        repetitions: u16,
        /// How long one side of a measurement over time takes
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=3600))]
        seconds: u16,
        /// Only these parts
        #[arg(long, value_enum, value_delimiter = ',')]
        parts: Vec<bench::tenants::Part>,
    },
    /// What the audit log can take, what its proofs cost, and what an answer pays for both; prints JSON
    Audit {
        /// A GGUF file instead of the default model
        #[arg(long)]
        model: Option<PathBuf>,
        /// Compute threads; as many as there are cores when not given
        #[arg(long, value_parser = clap::value_parser!(u16).range(1..=EngineConfig::LARGEST.threads as i64))]
        threads: Option<u16>,
        /// Counted repetitions of each measurement
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
        repetitions: u16,
        /// A folder on the disk that is to be measured; logs are made in it and removed again
        #[arg(long, default_value = ".")]
        folder: PathBuf,
        /// Only these parts
        #[arg(long, value_enum, value_delimiter = ',')]
        parts: Vec<bench::audited::Part>,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum PeerName {
    /// llama.cpp through its Python package
    LlamaCppPython,
}

#[derive(Subcommand)]
enum KeyCommand {
    /// Make the certificates with which a gateway and its worker know each other
    Worker {
        /// A folder, which is made when it is not there; nothing in it is replaced
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
    /// Make a key: shows it once on stderr, and prints the lines for the configuration to stdout
    New {
        /// The tenant's name: 1 to 63 of `a-z`, `0-9`, `-`
        tenant: String,
        /// The gateway's configuration, whose data folder holds the secret that the hash is made with
        #[arg(long, conflicts_with = "data_dir", required_unless_present = "data_dir")]
        config: Option<PathBuf>,
        /// The data folder itself
        #[arg(long)]
        data_dir: Option<PathBuf>,
        /// For a person who looks after incidents, not for a tenant
        #[arg(long)]
        operator: bool,
    },
}

/// With what code the program ends after this error.
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    let isolation = error.downcast_ref::<audit::NotIsolated>().map(|verdict| verdict.exit_code());
    let replay = error.downcast_ref::<audit::NotTheSame>().map(audit::NotTheSame::exit_code);
    isolation.or(replay).unwrap_or(1)
}

/// Reads the command line and does what it says.
pub(crate) fn run() -> Result<()> {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        // Help and version are results; mistakes end the program with clap's own exit code.
        Err(help) if !help.use_stderr() => return Ok(say_piece(help.render())?),
        Err(mistake) => mistake.exit(),
    };
    match arguments.command {
        Command::Demo(DemoArguments { json, model, listen, data_dir, weights_cache }) => {
            start_log(LevelFilter::WARN)?;
            let weights_cache = weights_cache.unwrap_or(WeightsCache::User);
            block_on(demo::run(demo::Options { json, model, listen, data_dir, weights_cache }))
        }
        Command::Serve { config, weights_cache } => {
            start_log(LevelFilter::INFO)?;
            block_on(serve::run(&config, weights_cache))
        }
        Command::Worker { role, config, listen } => {
            start_log(LevelFilter::INFO)?;
            block_on(worker::run(role.into(), &config, listen))
        }
        Command::Chat { address, key } => {
            let key = key.or_else(environment::api_key).context("no key: give --key KEY or set BULKHEAD_API_KEY")?;
            block_on(chat::run(&address, &key))
        }
        Command::Model(ModelCommand::Fetch) => Ok(say(default_model()?.display())?),
        Command::Model(ModelCommand::Pull { repository, file, endpoint }) => {
            let folder =
                environment::data_home().context("there is no folder for models: set HOME or XDG_DATA_HOME")?;
            let endpoint = endpoint.or_else(environment::hub_endpoint);
            let folder = folder.join("bulkhead/models/hub");
            let options = pull::Options { repository, file, endpoint, token: environment::hub_token(), folder };
            Ok(say(pull::pull(&options)?.display())?)
        }
        Command::Model(ModelCommand::Inspect { file, json }) => {
            let options = LoadOptions { templates: templates(1)?, ..LoadOptions::new(machine::cores()) };
            let inspection = engine_model::inspect(&file, &options)
                .with_context(|| format!("`{}` is not a model file", file.display()))?;
            print(&inspection, json)?;
            // What was asked is answered above; the exit code is for scripts.
            if inspection.refusal.is_some() {
                bail!("the engine does not run this model");
            }
            Ok(())
        }
        Command::Bench(BenchCommand::Engine {
            json,
            model,
            threads,
            repetitions,
            peer,
            peer_python,
            peer_file,
            scaling,
            output,
        }) => {
            let options = bench::Options {
                model: model.map_or_else(default_model, Ok)?,
                threads: threads.map_or_else(machine::cores, usize::from).min(EngineConfig::LARGEST.threads),
                repetitions: repetitions.into(),
                peer_pythons: peer.map_or_else(Vec::new, |PeerName::LlamaCppPython| peer_python),
                peer_files: peer_file,
                scaling,
                output,
            };
            let report = block_on(bench::engine(&options))?;
            if let Some(output) = &options.output {
                let written = std::fs::write(output, serde_json::to_string_pretty(&report)? + "\n");
                written.with_context(|| format!("`{}` cannot be written", output.display()))?;
            }
            print(&report, json)
        }
        Command::Bench(BenchCommand::Scheduler { model, threads, repetitions, seconds, parts }) => {
            let options = bench::tenants::Options {
                model: model.map_or_else(default_model, Ok)?,
                threads: threads.map_or_else(machine::cores, usize::from).min(EngineConfig::LARGEST.threads),
                repetitions: repetitions.into(),
                seconds: seconds.into(),
                parts,
            };
            Ok(say(block_on(bench::tenants::measure(&options))?)?)
        }
        Command::Bench(BenchCommand::Audit { model, threads, repetitions, folder, parts }) => {
            let options = bench::audited::Options {
                model: Box::new(|| model.map_or_else(default_model, Ok)),
                threads: threads.map_or_else(machine::cores, usize::from).min(EngineConfig::LARGEST.threads),
                repetitions: repetitions.into(),
                folder,
                parts,
            };
            Ok(say(block_on(bench::audited::measure(options))?)?)
        }
        Command::Key(KeyCommand::New { tenant, config, data_dir, operator }) => {
            let new = key::new(&tenant, config.as_deref(), data_dir.as_deref(), operator)?;
            // The key first: a line in the configuration for a key that nobody saw is of no use.
            writeln!(io::stderr(), "# The key; it is stored nowhere:\n{}", new.key.reveal())
                .context("the key cannot be shown")?;
            Ok(say(new.lines)?)
        }
        Command::Key(KeyCommand::Worker { folder }) => {
            for file in worker::certificates(&folder)? {
                say(file.display())?;
            }
            Ok(())
        }
        Command::Audit(what) => block_on(audit::run(what)),
        Command::Selftest(what) => selftest::run(what),
        Command::RenderChat => Ok(gateway_server::render_chat()?),
        Command::Doctor => {
            let mut report = Vec::new();
            doctor::report(&mut report)?;
            Ok(say_piece(String::from_utf8_lossy(&report))?)
        }
    }
}

/// The default model's path; fetches it when it is missing.
fn default_model() -> Result<PathBuf> {
    let folder = environment::data_home()
        .context("there is no folder for the model: set HOME or XDG_DATA_HOME, or give a file with --model PATH")?;
    fetch::fetch(&folder)
}

/// Where chat templates run: a model's file may come from anywhere.
fn templates(processes_max: usize) -> Result<Arc<dyn CompileChat>> {
    Ok(Arc::new(RenderProcesses::of_this_program(processes_max).context("this program's file is not found")?))
}

fn weights_cache(text: &str) -> Result<WeightsCache, &'static str> {
    WeightsCache::parse(text).ok_or("a folder or `off`")
}

fn print(result: &(impl serde::Serialize + std::fmt::Display), json: bool) -> Result<()> {
    let text = if json { serde_json::to_string(result)? } else { result.to_string() };
    Ok(say(text.trim_end())?)
}

fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(work);
    // A thread that waits for the terminal's next line is left behind rather than waited for.
    runtime.shutdown_background();
    result
}

/// Logs to stderr. The HTTP library's own messages are off at every level: they may repeat the head of a request, and
/// with it a key.
fn start_log(level: LevelFilter) -> Result<()> {
    let mut filter = EnvFilter::builder()
        .with_default_directive(level.into())
        .parse(environment::log_filter().unwrap_or_default())
        .context("BULKHEAD_LOG is not a log filter")?;
    for library in ["pingora", "pingora_core", "pingora_http", "pingora_error", "pingora_rustls"] {
        filter = filter.add_directive(format!("{library}=off").parse()?);
    }
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .fmt_fields(format::debug_fn(write_field).delimited(" "))
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        // It would say so with `eprintln!`, which panics when nobody reads stderr.
        .log_internal_errors(false)
        .try_init()
        .map_err(|error| anyhow::anyhow!("the log cannot be started: {error}"))
}

/// Longest value of a field in the log, bytes.
const FIELD_BYTES_MAX: usize = 1_024;

/// A field of an event as it is logged. It may repeat the words of a file: see [`printable`].
fn write_field(writer: &mut Writer<'_>, field: &Field, value: &dyn std::fmt::Debug) -> std::fmt::Result {
    let value = printable(&format!("{value:?}"), FIELD_BYTES_MAX);
    if field.name() == "message" { write!(writer, "{value}") } else { write!(writer, "{}={value}", field.name()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parses(line: &str) -> bool {
        Arguments::try_parse_from(line.split(' ')).is_ok()
    }

    #[test]
    fn the_command_line_contradicts_itself_nowhere() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_command_is_read() {
        for line in [
            "bulkhead demo",
            "bulkhead demo --json --model m.gguf --listen 127.0.0.1:0 --data-dir d",
            "bulkhead serve --config c.toml",
            "bulkhead chat --address http://127.0.0.1:1 --key k",
            "bulkhead model inspect m.gguf --json",
            "bulkhead model fetch",
            "bulkhead model pull acme/tiny@v1 --file a.gguf --endpoint http://127.0.0.1:1",
            "bulkhead bench engine --json --model m --threads 2 --repetitions 1 --peer llama-cpp-python --peer-python p",
            "bulkhead bench engine --threads 256",
            "bulkhead key new acme --data-dir d",
            "bulkhead doctor",
            "bulkhead audit sidechannel",
            "bulkhead audit sidechannel --address http://127.0.0.1:1 --json --quick --seed 7 --output o.json",
            "bulkhead audit sidechannel --samples 400 --prefix-tokens 64,512 --flood-tokens 60000 --constant-shape",
            "bulkhead audit incidents --json",
            "bulkhead audit incidents --ocsf --address http://127.0.0.1:1",
            "bulkhead audit incidents show 07 --json",
            "bulkhead audit incidents resolve 07 --evidence e.txt --false-positive",
            "bulkhead key new ada --operator --data-dir d",
            "bulkhead audit blast-radius --log d --page 7 --generation 3 --json",
            "bulkhead audit blast-radius --config c.toml --from 2026-12-01 --to 2026-12-01T01:02:03Z --transitive",
            "bulkhead audit blast-radius --log d --tenant acme --through-public --threads 2",
            "bulkhead selftest incident --json --seed 3 --requests 500",
            "bulkhead selftest leaks --json --runs 5",
            "bulkhead selftest sidechannel --seed 3",
            "bulkhead selftest traces --runs 5 --seed 9",
        ] {
            assert!(parses(line), "{line}");
        }
    }

    #[test]
    fn half_commands_are_refused() {
        for line in [
            "bulkhead",
            "bulkhead serve",
            "bulkhead demo --listen 8080",
            "bulkhead demo --listen localhost",
            "bulkhead model inspect",
            "bulkhead model pull",
            "bulkhead model pull acme/tiny --file ",
            "bulkhead model pull acme/tiny --endpoint ",
            "bulkhead model pull ",
            "bulkhead bench engine --repetitions 0",
            "bulkhead bench engine --threads 0",
            "bulkhead bench engine --threads 257",
            "bulkhead bench engine --threads 100000",
            "bulkhead bench engine --peer-python p",
            "bulkhead bench engine --peer other",
            "bulkhead audit",
            "bulkhead audit sidechannel --samples 10",
            "bulkhead audit sidechannel --quick --samples 100",
            "bulkhead audit sidechannel --prefix-tokens 0",
            "bulkhead selftest",
            "bulkhead audit incidents resolve 07",
            "bulkhead audit incidents show",
            "bulkhead audit blast-radius --page 7",
            "bulkhead audit blast-radius --log d",
            "bulkhead audit blast-radius --log d --page 7 --tenant acme",
            "bulkhead audit blast-radius --log d --from 2026-12-01",
            "bulkhead audit blast-radius --log d --tenant acme --generation 3",
            "bulkhead audit blast-radius --log d --build beef",
            "bulkhead audit blast-radius --log d --from yesterday --to 2026-12-01",
            "bulkhead selftest leaks --runs 0",
            "bulkhead selftest incident --requests 10",
            "bulkhead key new --data-dir d",
            "bulkhead key new acme",
            "bulkhead key new acme --data-dir d --config c",
        ] {
            assert!(!parses(line), "{line}");
        }
    }

    #[test]
    fn no_word_of_a_file_begins_a_line_of_the_log() {
        #[derive(Clone, Default)]
        struct Written(Arc<std::sync::Mutex<Vec<u8>>>);
        impl Write for Written {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().unwrap().write(bytes)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let written = Written::default();
        let writer = written.clone();
        let subscriber = tracing_subscriber::fmt()
            .fmt_fields(format::debug_fn(write_field).delimited(" "))
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let reason = format!("no\nERROR all is lost \u{1b}[2J{}", "R".repeat(100_000));
            tracing::warn!(model = "m\n", %reason, "some are refused");
        });
        let written = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        assert!(written.contains(" some are refused model=\"m\\n\" reason=no\u{fffd}ERROR all"), "{written}");
        assert!(written.lines().count() == 1 && !written.contains('\u{1b}') && written.len() < 1_300, "{written}");
    }
}
