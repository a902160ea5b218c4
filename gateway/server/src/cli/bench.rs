//! `bulkhead bench engine`: how fast the engine is on this machine, with the facts without which a number means nothing.
//!
//! First the bits are compared: a batch, a chunked prompt and one thread must give what a sequence alone gives, or
//! nothing is timed. Then everything is measured in turn, repetition by repetition: the engine, each peer with the same
//! number of threads, and the machine's own ceilings. Ratios are of such neighbours, so that a machine which changes its
//! speed meanwhile changes both sides.

pub(crate) mod audited;
mod callers;
mod ceilings;
mod exactness;
mod figures;
mod kernels;
mod neighbour;
mod own;
mod peer;
mod report;
mod scaling;
mod scheduled;
mod spread;
pub(crate) mod tenants;
mod work;

use super::machine::{self, Machine};
use super::output::note;
use super::templates;
use anyhow::{Context, Result, bail, ensure};
use ceilings::{Ceilings, Sample};
use engine_model::{LoadOptions, Model};
use figures::{Figure, Figures};
use indicatif::{ProgressBar, ProgressStyle};
use own::Own;
use peer::Peer;
use report::{ModelFacts, PeerReport, Ratio, Report, Roofline};
use scaling::{Scaling, roofline};
use spread::{Series, Spread};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use work::Work;

/// Text whose tokens make the prompts.
const TEXT: &str = "The lighthouse keeper wrote down every ship that passed, its course, its cargo and the hour, because \
    a ledger that nobody checks is only a story, and the island had stories enough. When the fog came she rang the bell \
    and counted the answers, one for each captain who had learned to listen, and in the morning she went down to the \
    harbour to compare her numbers with theirs. ";

/// What to measure.
pub(crate) struct Options {
    pub(crate) model: PathBuf,
    pub(crate) threads: usize,
    pub(crate) repetitions: usize,
    /// Pythons that have `llama-cpp-python`: each is a peer on each of the files.
    pub(crate) peer_pythons: Vec<PathBuf>,
    /// Files made from the model for the peers, beside the model's own.
    pub(crate) peer_files: Vec<PathBuf>,
    /// Also over batches, prompts and threads.
    pub(crate) scaling: bool,
    /// Where the report is written, too.
    pub(crate) output: Option<PathBuf>,
}

impl Options {
    /// What would only show after minutes of work.
    fn check(&self) -> Result<()> {
        if let Some(output) = &self.output {
            ensure!(!output.is_dir(), "`{}` is a folder", output.display());
            let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            // Gone again at once.
            tempfile::NamedTempFile::new_in(folder)
                .with_context(|| format!("`{}` cannot be written", output.display()))?;
        }
        self.peer_pythons.iter().try_for_each(|python| peer::check(python))
    }
}

/// Measures everything that the options ask for.
pub(crate) async fn engine(options: &Options) -> Result<Report> {
    let Options { model: path, threads, repetitions, .. } = options;
    let (threads, repetitions) = (*threads, *repetitions);
    options.check()?;
    let load_average_before = machine::load_average();
    let start = Instant::now();
    let load = LoadOptions { templates: templates(1)?, ..LoadOptions::new(threads) };
    let loaded = Model::load_with(path, &load);
    let model = loaded.with_context(|| format!("the model `{}` cannot be loaded", path.display()))?.model;
    let (load_seconds, model) = (start.elapsed().as_secs_f64(), Arc::new(model));
    check_context(model.config().context_length)?;
    let prompt = prompt(&model)?;
    let work = Work::read(path, model.config())?;

    note("comparing bits");
    let exactness = exactness::check(&model, threads, &prompt)?;
    // Its memory is the product's; what follows needs more.
    let scheduled = scheduled::measure(&model, threads, repetitions, &prompt).await?;
    let peak_resident_bytes = machine::peak_resident_bytes();

    let mut peers = Peers::start(options)?;
    let mut ceilings = Ceilings::new(threads, work.weight_bytes)?;
    let bench = Bench { model: &model, threads, repetitions, prompt: &prompt };
    let progress = progress(4 * (repetitions + 1));
    let measured = Figures::ALL.try_map(|figure| bench.measure(*figure, &mut peers.peers, &mut ceilings, &progress))?;
    progress.finish_and_clear();
    let kernel_table = kernels::measure(path, model.config(), threads, repetitions, &mut ceilings)?;
    let samples: Vec<Sample> = measured.named().iter().flat_map(|(_, measured)| measured.ceilings.clone()).collect();
    let ceilings = ceilings.report(&samples)?;

    let same_file = peers.ratios(&measured, |peer| peer.same_file)?;
    let best_peer = peers.ratios(&measured, |_| true)?;
    note("measuring beside a busy process");
    let chosen = same_file.as_ref().map(|ratios| ratios.decode_b1.peer.clone());
    let neighbour = neighbour::measure(&model, threads, repetitions, &prompt, peers.named(chosen))?;
    let scaling = match options.scaling {
        false => None,
        true => {
            note("measuring batches, prompts and threads");
            let chosen: Vec<&str> =
                [&same_file, &best_peer].into_iter().flatten().map(|ratios| ratios.decode_b16.peer.as_str()).collect();
            let mut chosen: Vec<(String, &mut Peer)> = std::iter::zip(&peers.names, &mut peers.peers)
                .filter(|(name, _)| chosen.contains(&name.as_str()))
                .map(|(name, peer)| (name.clone(), &mut peer.running))
                .collect();
            let repetitions = repetitions.div_ceil(2);
            let scaling = Scaling { model: &model, work, threads, repetitions, prompt: &prompt };
            Some(scaling.measure(&mut chosen)?)
        }
    };
    Ok(Report {
        bulkhead: env!("CARGO_PKG_VERSION"),
        machine: Machine::read(),
        load_average_before,
        load_average_after: machine::load_average(),
        model: ModelFacts {
            name: model.name().to_owned(),
            sha256: hex::encode(model.digest()),
            file_bytes: std::fs::metadata(path)?.len(),
        },
        kernels: model.kernels(),
        threads,
        repetitions,
        load_seconds,
        peak_resident_bytes,
        exactness,
        engine: measured.try_map(|measured| Spread::of(&measured.own))?,
        same_file,
        best_peer,
        roofline: rooflines(&measured, &work)?,
        ceilings,
        work,
        kernel_table,
        scheduled,
        neighbour,
        peers: peers.reports(&measured)?,
        scaling,
    })
}

fn progress(steps: usize) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64);
    if bar.is_hidden() {
        note("measuring; minutes with peers");
    }
    if let Ok(style) = ProgressStyle::with_template("measuring {bar:30} {pos}/{len} {elapsed}") {
        bar.set_style(style);
    }
    bar
}

/// Said before anything is measured, and not by whichever measurement comes to it first.
fn check_context(context_length: usize) -> Result<()> {
    let needed = scheduled::CONTEXT_TOKENS;
    ensure!(context_length >= needed, "the model's context has {context_length} tokens, the benchmark needs {needed}");
    Ok(())
}

/// The text's tokens, to be repeated as often as a prompt needs.
fn prompt(model: &Model) -> Result<Vec<u32>> {
    let tokens = model.tokenizer().encode(TEXT, false).context("the prompt's text cannot be tokenized")?;
    if tokens.is_empty() {
        bail!("the model's tokenizer makes nothing of the prompt's text");
    }
    Ok(tokens)
}

struct Bench<'a> {
    model: &'a Arc<Model>,
    threads: usize,
    repetitions: usize,
    prompt: &'a [u32],
}

/// One figure, measured repetition by repetition: the same index is the same time.
struct Measured {
    figure: Figure,
    own: Series,
    /// For each peer.
    peers: Vec<Series>,
    settings: Vec<String>,
    ceilings: Vec<Sample>,
}

impl Bench<'_> {
    fn measure(
        &self,
        figure: Figure,
        peers: &mut [KnownPeer],
        ceilings: &mut Ceilings,
        progress: &ProgressBar,
    ) -> Result<Measured> {
        let (sequences, tokens) = figure.room();
        let mut own = Own::new(self.model, self.threads, sequences, tokens)?;
        let mut measured = Measured {
            figure,
            own: Series::new(),
            peers: vec![Series::new(); peers.len()],
            settings: vec![String::new(); peers.len()],
            ceilings: Vec::new(),
        };
        // The first repetition warms caches, lets peers try their settings, and is not counted.
        for repetition in 0..=self.repetitions {
            let (sample, speed) = (ceilings.sample(), figure.time_own(&mut own, self.prompt)?);
            if repetition > 0 {
                measured.own.push(speed);
                measured.ceilings.push(sample);
            }
            for (number, peer) in peers.iter_mut().enumerate() {
                let (speed, settings) = figure.time_peer(&mut peer.running, self.prompt)?;
                if repetition > 0 {
                    measured.peers[number].push(speed);
                    measured.settings[number] = settings;
                }
            }
            progress.inc(1);
        }
        Ok(measured)
    }
}

/// A running peer, and whether it has the engine's own file.
struct KnownPeer {
    running: Peer,
    same_file: bool,
}

struct Peers {
    peers: Vec<KnownPeer>,
    /// For each of them.
    names: Vec<String>,
}

impl Peers {
    fn start(options: &Options) -> Result<Self> {
        let mut started = Self { peers: Vec::new(), names: Vec::new() };
        for python in &options.peer_pythons {
            for (file, same_file) in
                std::iter::once((&options.model, true)).chain(options.peer_files.iter().map(|file| (file, false)))
            {
                let name = started.start_one(python, file, same_file, options.threads)?;
                note(format_args!("peer: {name}"));
            }
        }
        Ok(started)
    }

    fn start_one(&mut self, python: &Path, file: &Path, same_file: bool, threads: usize) -> Result<String> {
        let running = Peer::start(python, file, threads)
            .with_context(|| format!("the peer does not run on `{}`", file.display()))?;
        let facts = running.facts();
        let weights = facts.weights.split_whitespace().last().unwrap_or("?");
        let amx = if facts.system.contains("AMX_INT8 = 1") { " with AMX" } else { "" };
        let mut name = format!("llama.cpp {weights}{amx}");
        if self.names.contains(&name) {
            name = format!("{name} ({})", self.names.len() + 1);
        }
        self.peers.push(KnownPeer { running, same_file });
        self.names.push(name.clone());
        Ok(name)
    }

    /// The peer of a name.
    fn named(&mut self, name: Option<String>) -> Option<(String, &mut Peer)> {
        let number = self.names.iter().position(|known| Some(known) == name.as_ref())?;
        Some((name?, &mut self.peers.get_mut(number)?.running))
    }

    /// The engine through the fastest of the peers that count, figure by figure; `None` when none counts.
    fn ratios(
        &self,
        measured: &Figures<Measured>,
        counts: impl Fn(&KnownPeer) -> bool,
    ) -> Result<Option<Figures<Ratio>>> {
        if !self.peers.iter().any(&counts) {
            return Ok(None);
        }
        let ratios = measured.try_map(|measured| {
            let counted = |number: &usize| self.peers.get(*number).is_some_and(&counts);
            let mut fastest: Option<(f64, usize)> = None;
            for number in (0..self.peers.len()).filter(counted) {
                let median = Spread::of(&measured.peers[number])?.median;
                if fastest.is_none_or(|(best, _)| median > best) {
                    fastest = Some((median, number));
                }
            }
            let (_, number) = fastest.context("no peer counts")?;
            let ratio = Spread::of_ratios(&measured.own, &measured.peers[number])?;
            Ok(Ratio { ratio, peer: self.names[number].clone() })
        })?;
        Ok(Some(ratios))
    }

    fn reports(&self, measured: &Figures<Measured>) -> Result<Vec<PeerReport>> {
        let report = |(number, (peer, name)): (usize, (&KnownPeer, &String))| {
            let facts = peer.running.facts();
            Ok(PeerReport {
                name: name.clone(),
                version: format!("llama-cpp-python {}", facts.version),
                system: facts.system.clone(),
                batches_repacked: facts.batches_repacked,
                same_file: peer.same_file,
                tokens_per_second: measured.try_map(|measured| Spread::of(&measured.peers[number]))?,
                settings: measured.try_map(|measured| Ok(measured.settings[number].clone()))?,
            })
        };
        std::iter::zip(&self.peers, &self.names).enumerate().map(report).collect()
    }
}

fn rooflines(measured: &Figures<Measured>, work: &Work) -> Result<Roofline> {
    // Each repetition's speed through what the ceilings beside it allow, with some of them out of the way.
    let share = |measured: &Measured, ceiling: fn(Sample) -> Sample| {
        ensure!(measured.own.len() == measured.ceilings.len(), "a ceiling is missing");
        let allowed: Series =
            measured.ceilings.iter().map(|sample| roofline(measured.figure, work, ceiling(*sample))).collect();
        Spread::of_ratios(&measured.own, &allowed)
    };
    let bytes = |sample: Sample| Sample { int8_operations: f64::INFINITY, f32_operations: f64::INFINITY, ..sample };
    let int8 = |sample: Sample| Sample { bytes: f64::INFINITY, f32_operations: f64::INFINITY, ..sample };
    let arithmetic = |sample: Sample| Sample { bytes: f64::INFINITY, ..sample };
    Ok(Roofline {
        decode_b1_bandwidth: share(&measured.decode_b1, bytes)?,
        decode_b16_int8: share(&measured.decode_b16, int8)?,
        prefill_512_int8: share(&measured.prefill_512, int8)?,
        prefill_2048_int8: share(&measured.prefill_2048, int8)?,
        prefill_512_int8_and_f32: share(&measured.prefill_512, arithmetic)?,
        prefill_2048_int8_and_f32: share(&measured.prefill_2048, arithmetic)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(own: Series) -> Measured {
        let sample = Sample { bytes: 1e3, int8_operations: 1e6, f32_operations: 1e6 };
        let ceilings = vec![sample; own.len()];
        Measured { figure: Figure::Decode { batch: 1 }, own, peers: Vec::new(), settings: Vec::new(), ceilings }
    }

    #[test]
    fn a_model_whose_context_is_too_short_is_refused_in_words() {
        assert!(check_context(2_049).is_ok());
        for context_length in [128, 2_048] {
            let error = check_context(context_length).unwrap_err().to_string();
            assert_eq!(error, format!("the model's context has {context_length} tokens, the benchmark needs 2049"));
        }
    }

    #[test]
    fn what_would_only_show_at_the_end_is_refused_at_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let check = |output: Option<&Path>, python: Option<&Path>| {
            let options = Options {
                model: PathBuf::new(),
                threads: 1,
                repetitions: 1,
                peer_pythons: python.map(Path::to_owned).into_iter().collect(),
                peer_files: Vec::new(),
                scaling: false,
                output: output.map(Path::to_owned),
            };
            options.check().map_err(|error| error.to_string())
        };
        assert_eq!(check(Some(&folder.path().join("report.json")), None), Ok(()));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing stays behind");
        assert!(
            check(Some(Path::new("/nonexistent/x")), None).unwrap_err().contains("`/nonexistent/x` cannot be written")
        );
        assert!(check(Some(folder.path()), None).unwrap_err().contains("is a folder"));
        assert!(check(None, Some(Path::new("/nonexistent/python"))).unwrap_err().contains("cannot be started"));
        assert!(
            check(None, Some(Path::new("false"))).unwrap_err().contains("llama-cpp-python does not run in `false`")
        );
    }

    #[test]
    fn a_share_of_a_ceiling_is_of_the_repetition_beside_it() {
        let figures = Figures {
            decode_b1: measured(vec![5.0, 6.0, 7.0]),
            decode_b16: measured(vec![1.0]),
            prefill_512: measured(vec![1.0]),
            prefill_2048: measured(vec![1.0]),
        };
        // A step reads 100 bytes of 1,000 a second and does 100 operations of a million.
        let work =
            Work { weight_bytes: 100, kv_bytes: 0, layer_operations: 60, head_operations: 40, attention_operations: 0 };
        let roofline = rooflines(&figures, &work).unwrap();
        assert_eq!(roofline.decode_b1_bandwidth, Spread { median: 0.6, min: 0.5, max: 0.7 });
        assert_eq!(roofline.decode_b16_int8.median, 1e-4);
        let missing = Figures { decode_b1: Measured { ceilings: Vec::new(), ..measured(vec![1.0]) }, ..figures };
        assert!(rooflines(&missing, &work).is_err());
    }
}
