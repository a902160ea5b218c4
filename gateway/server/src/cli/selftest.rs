//! `bulkhead selftest`: the engine with its defects brought back, in a build that has them.

use anyhow::{Result, bail};
use clap::Subcommand;

/// What can be tested.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Selftest {
    /// Play the incident again in which responses carried other tenants' data, without and with the checks
    Incident {
        /// As JSON
        #[arg(long)]
        json: bool,
        /// The same seed gives the same run
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Responses to ask for
        #[arg(long, default_value_t = 8_000, value_parser = clap::value_parser!(u32).range(50..=100_000))]
        requests: u32,
    },
    /// Plant every fault that the engine can have, and count what was caught, when, and what was not
    Leaks {
        /// As JSON
        #[arg(long)]
        json: bool,
        /// Runs of each kind of fault
        #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
        runs: u64,
    },
    /// Audit a gateway whose tenants share one prefix cache, and one whose do not: the first must be found out
    ///
    /// Ten minutes on two cores. Work beside it makes it longer, and inconclusive or void when it is too much.
    Sidechannel {
        /// Both results as JSON
        #[arg(long)]
        json: bool,
        /// A GGUF file of the default model's size instead of the default model
        #[arg(long)]
        model: Option<std::path::PathBuf>,
        /// Draws prompts and orders
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Random traces of requests, without a fault and with one: nothing foreign may leave, nobody be accused wrongly
    Traces {
        /// Seeds to try, from `--seed` on; each is four schedules
        #[arg(long, default_value_t = 5_000)]
        runs: u64,
        /// The first seed
        #[arg(long, default_value_t = 0)]
        seed: u64,
    },
}

#[cfg(feature = "selftest")]
pub(crate) fn run(what: Selftest) -> Result<()> {
    use indicatif::{ProgressBar, ProgressStyle};
    let bar = |length: u64, what: &'static str| {
        let style = ProgressStyle::with_template("{msg} {bar:32} {pos}/{len}, {eta} left");
        ProgressBar::new(length).with_message(what).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
    };
    match what {
        Selftest::Incident { json, seed, requests } => {
            let incident = rig::Incident::play(seed, requests);
            super::print(&incident, json)?;
            if !incident.holds() {
                bail!("the incident was not caught as it must be");
            }
        }
        Selftest::Leaks { json, runs } => {
            let bar = bar(rig::Survey::length(runs), "planting faults");
            let survey = rig::Survey::take(runs, || bar.inc(1));
            bar.finish_and_clear();
            super::print(&survey, json)?;
            if !survey.holds() {
                bail!("a fault was missed or found too late, or somebody was accused wrongly");
            }
        }
        Selftest::Sidechannel { json, model, seed } => {
            super::block_on(super::audit::selftest::run(model, seed, json))?;
        }
        Selftest::Traces { runs, seed } => {
            let bar = bar(runs, "random traces");
            for seed in seed..seed.saturating_add(runs) {
                if let Err(script) = rig::fuzzer::check(seed) {
                    bar.abandon();
                    bail!("seed {seed} is not as it must be; the shortest script that shows it:\n{script}");
                }
                bar.inc(1);
            }
            bar.finish_and_clear();
            super::say(format_args!("{} random schedules were as they must be", runs * rig::fuzzer::SCHEDULES))?;
        }
    }
    Ok(())
}

#[cfg(not(feature = "selftest"))]
pub(crate) fn run(_: Selftest) -> Result<()> {
    bail!(
        "this program was built without the defects that it would bring back, as it should be where it serves; \
         `./x selftest` builds one with them and runs it"
    )
}
