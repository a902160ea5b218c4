//! `bulkhead bench engine`: how fast the engine is on this machine, with the facts without which a number means nothing.
//!
//! Every figure is repeated and given as minimum, median and maximum. A peer is measured in the same run, repetition by
//! repetition in turn with the engine, on the same file with the same number of threads.

mod peer;

use super::machine::{self, Machine};
use super::output::note;
use anyhow::{Context, Result, bail};
use engine_model::Model;
use engine_runtime::{Engine, EngineConfig, PromptInput, Sampling, Steps};
use gateway_auth::{ApiKey, KeyRing, KeySecret, TenantKey};
use indicatif::{ProgressBar, ProgressStyle};
use peer::Peer;
use policies_authz::{Authz, Facts};
use policies_domain::{Credential, ModelName, Permit, Principal, RequestId, TenantName};
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Prompt lengths whose prefill is measured.
const PROMPTS: [usize; 2] = [32, 512];
/// Sequences that decode together.
const BATCHES: [usize; 3] = [1, 4, 16];
/// The prompt of a decode measurement: short, so that it is about decoding.
const DECODE_PROMPT: usize = 32;
/// Tokens that each sequence decodes in one repetition.
const DECODE_TOKENS: usize = 64;
/// A load average above this says that others had a share of the machine.
const QUIET_LOAD_MAX: f64 = 0.5;
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
    /// The Python that has `llama-cpp-python`, when the peer is wanted.
    pub(crate) peer_python: Option<PathBuf>,
}

/// The whole result.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    bulkhead: &'static str,
    machine: Machine,
    load_average_before: Option<f64>,
    load_average_after: Option<f64>,
    model: ModelFacts,
    kernels: &'static str,
    threads: usize,
    repetitions: usize,
    load_seconds: f64,
    prefill: Vec<Prefill>,
    decode: Vec<Decode>,
    peak_resident_bytes: Option<u64>,
    peer: Option<peer::Report>,
}

#[derive(Debug, Serialize)]
struct ModelFacts {
    name: String,
    sha256: String,
    file_bytes: u64,
}

#[derive(Debug, Serialize)]
struct Prefill {
    prompt_tokens: usize,
    tokens_per_second: Spread,
    /// From submission to the first token, alone in the engine.
    ttft_ms: Spread,
}

#[derive(Debug, Serialize)]
struct Decode {
    batch: usize,
    /// Of all sequences together, while all of them decode.
    tokens_per_second: Spread,
}

/// Several measurements of one thing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Spread {
    min: f64,
    median: f64,
    max: f64,
}

impl Spread {
    /// `None` without measurements.
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let median = *values.get(values.len() / 2)?;
        Some(Self { min: *values.first()?, median, max: *values.last()? })
    }
}

/// Measurements of one kind that are not a [`Spread`] yet.
type Series = Vec<f64>;

/// Measures everything that the options ask for.
pub(crate) async fn engine(options: &Options) -> Result<Report> {
    let load_average_before = machine::load_average();
    let start = Instant::now();
    let model = Model::load(&options.model, options.threads)
        .with_context(|| format!("the model `{}` cannot be loaded", options.model.display()))?;
    let load_seconds = start.elapsed().as_secs_f64();
    let model = Arc::new(model);
    let config = EngineConfig { threads: options.threads, ..EngineConfig::default() };
    let engine = Engine::start(model.clone(), config)?;
    let bench = Bench { engine, caller: Caller::new(&model)?, prompt: prompt(&model)? };
    let mut peer = match &options.peer_python {
        Some(python) => Some(Peer::start(python, &options.model, options.threads)?),
        None => None,
    };
    let progress = progress(options.repetitions * (PROMPTS.len() + BATCHES.len()));

    let (mut prefill, mut decode) = (Vec::new(), Vec::new());
    let mut peer_report = peer.as_ref().map(Peer::report);
    for prompt_tokens in PROMPTS {
        let (mut speed, mut ttft, mut peers): (Series, Series, Series) = Default::default();
        // The first repetition warms caches and is not counted.
        for repetition in 0..=options.repetitions {
            let (prefill, first) = bench.prefill(prompt_tokens).await?;
            let other = peer.as_mut().map(|peer| peer.prefill(&bench.prompt(prompt_tokens))).transpose()?;
            if repetition > 0 {
                speed.push(prompt_tokens as f64 / prefill.as_secs_f64());
                ttft.push(first.as_secs_f64() * 1e3);
                peers.extend(other.map(|time| prompt_tokens as f64 / time.as_secs_f64()));
                progress.inc(1);
            }
        }
        let tokens_per_second = Spread::of(speed).context("nothing was measured")?;
        if let (Some(report), Some(spread)) = (&mut peer_report, Spread::of(peers)) {
            report.add_prefill(prompt_tokens, spread, tokens_per_second);
        }
        let ttft_ms = Spread::of(ttft).context("nothing was measured")?;
        prefill.push(Prefill { prompt_tokens, tokens_per_second, ttft_ms });
    }
    for batch in BATCHES {
        let (mut speed, mut peers): (Series, Series) = Default::default();
        for repetition in 0..=options.repetitions {
            let own = bench.decode(batch).await?;
            // The peer's simple interface decodes one sequence.
            let other = match &mut peer {
                Some(peer) if batch == 1 => Some(peer.decode(&bench.prompt(DECODE_PROMPT), DECODE_TOKENS)?),
                _ => None,
            };
            if repetition > 0 {
                speed.push(own);
                peers.extend(other.map(|time| DECODE_TOKENS as f64 / time.as_secs_f64()));
                progress.inc(1);
            }
        }
        let tokens_per_second = Spread::of(speed).context("nothing was measured")?;
        if let (Some(report), Some(spread)) = (&mut peer_report, Spread::of(peers)) {
            report.add_decode(batch, spread, tokens_per_second);
        }
        decode.push(Decode { batch, tokens_per_second });
    }
    progress.finish_and_clear();
    Ok(Report {
        bulkhead: env!("CARGO_PKG_VERSION"),
        machine: Machine::read(),
        load_average_before,
        load_average_after: machine::load_average(),
        model: ModelFacts {
            name: model.name().to_owned(),
            sha256: hex::encode(model.digest()),
            file_bytes: std::fs::metadata(&options.model)?.len(),
        },
        kernels: model.kernels(),
        threads: options.threads,
        repetitions: options.repetitions,
        load_seconds,
        prefill,
        decode,
        peak_resident_bytes: machine::peak_resident_bytes(),
        peer: peer_report,
    })
}

fn progress(steps: usize) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64);
    if bar.is_hidden() {
        note("measuring; this takes about a minute");
    }
    if let Ok(style) = ProgressStyle::with_template("measuring {bar:30} {pos}/{len} {elapsed}") {
        bar.set_style(style);
    }
    bar
}

/// As many tokens of the text as the longest prompt needs.
fn prompt(model: &Model) -> Result<Vec<u32>> {
    let tokens = model.tokenizer().encode(TEXT, false).context("the prompt's text cannot be tokenized")?;
    if tokens.is_empty() {
        bail!("the model's tokenizer makes nothing of the prompt's text");
    }
    Ok(tokens.iter().copied().cycle().take(PROMPTS.into_iter().max().unwrap_or(DECODE_PROMPT)).collect())
}

/// Somebody with a key, so that the engine is asked as it always is: with a permit.
struct Caller {
    principal: Principal,
    authz: Authz,
    model: ModelName,
}

impl Caller {
    fn new(model: &Model) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let secret = KeySecret::open_or_create(&folder.path().join("key-secret"))?;
        let key = ApiKey::mint()?;
        let tenant = TenantKey { tenant: TenantName::parse("bench")?, hash: secret.hash(&key) };
        let ring = KeyRing::new(secret, &[tenant])?;
        let principal = ring.authenticate(Some(&Credential::new(key.reveal().to_owned())))?;
        Ok(Self { principal, authz: Authz::read(Authz::DEFAULT_RULES)?, model: ModelName::parse(model.name())? })
    }

    fn permit(&self) -> Result<Permit> {
        let request = RequestId::from_bytes(uuid::Uuid::now_v7().into_bytes());
        let facts = Facts { completion_tokens_max: Some(DECODE_TOKENS as u64) };
        Ok(self.authz.permit(&self.principal, request, &self.model, &facts)?)
    }
}

struct Bench {
    engine: Engine,
    caller: Caller,
    prompt: Vec<u32>,
}

impl Bench {
    fn prompt(&self, tokens: usize) -> Vec<u32> {
        self.prompt.iter().copied().take(tokens).collect()
    }

    fn submit(&self, prompt: Vec<u32>, max_tokens: usize) -> Result<Steps> {
        let permit = self.caller.permit()?;
        let sequence = self.engine.tokenize(&permit, &PromptInput::Tokens(prompt))?;
        let sampling = Sampling { max_tokens: Some(max_tokens), temperature: 0.0, ..Sampling::default() };
        Ok(self.engine.submit(&permit, sequence, sampling)?)
    }

    /// Time in prefill steps, and from submission to the first token.
    async fn prefill(&self, tokens: usize) -> Result<(Duration, Duration)> {
        let start = Instant::now();
        let mut steps = self.submit(self.prompt(tokens), 1)?;
        let mut first = None;
        while let Some(step) = steps.next().await {
            if step?.tokens > 0 {
                first.get_or_insert_with(|| start.elapsed());
            }
        }
        let first = first.context("no token was sampled")?;
        Ok((Duration::from_micros(steps.timings().prefill_us), first))
    }

    /// Tokens per second of `batch` sequences together, from when all of them decode until the first is done.
    async fn decode(&self, batch: usize) -> Result<f64> {
        let mut tasks = Vec::new();
        for number in 0..batch {
            // Another beginning for each, as different conversations have.
            let prompt = self.prompt.iter().copied().cycle().skip(number).take(DECODE_PROMPT).collect();
            let mut steps = self.submit(prompt, DECODE_TOKENS)?;
            tasks.push(tokio::spawn(async move {
                let mut times = Vec::with_capacity(DECODE_TOKENS);
                while let Some(step) = steps.next().await {
                    if step?.tokens > 0 {
                        times.push(Instant::now());
                    }
                }
                Ok::<_, anyhow::Error>(times)
            }));
        }
        let mut sequences = Vec::with_capacity(batch);
        for task in tasks {
            sequences.push(task.await??);
        }
        together(&sequences).context("the sequences never decoded together: the model ended its answers at once")
    }
}

/// Tokens per second in the time in which every sequence decodes.
fn together(sequences: &[Vec<Instant>]) -> Option<f64> {
    let from = sequences.iter().map(|times| times.first()).collect::<Option<Vec<_>>>()?.into_iter().max()?;
    let to = sequences.iter().map(|times| times.last()).collect::<Option<Vec<_>>>()?.into_iter().min()?;
    let tokens = sequences.iter().flatten().filter(|time| *time > from && *time <= to).count();
    let seconds = to.checked_duration_since(*from)?.as_secs_f64();
    (tokens > 0 && seconds > 0.0).then(|| tokens as f64 / seconds)
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>9.1} ({:.1} to {:.1})", self.median, self.min, self.max)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let load = |load: Option<f64>| load.map_or_else(|| "?".to_owned(), |load| format!("{load:.2}"));
        let (before, after) = (load(self.load_average_before), load(self.load_average_after));
        writeln!(f, "{} on {}, {} threads, {} kernels", self.model.name, self.machine.cpu, self.threads, self.kernels)?;
        writeln!(f, "load average {before} before, {after} after; median of {} (min to max)", self.repetitions)?;
        if self.load_average_before.is_some_and(|load| load > QUIET_LOAD_MAX) {
            writeln!(
                f,
                "OTHER PROGRAMS WERE RUNNING: figures are too low, and a peer's may suffer more than ours or less"
            )?;
        }
        writeln!(f, "load model            {:>9.2} s", self.load_seconds)?;
        for Prefill { prompt_tokens, tokens_per_second, ttft_ms } in &self.prefill {
            writeln!(f, "prefill {prompt_tokens:>4} tokens   {tokens_per_second} tokens/s")?;
            writeln!(f, "first token at {prompt_tokens:>4}   {ttft_ms} ms")?;
        }
        for Decode { batch, tokens_per_second } in &self.decode {
            writeln!(f, "decode batch {batch:>3}      {tokens_per_second} tokens/s")?;
        }
        match self.peak_resident_bytes {
            Some(bytes) => writeln!(
                f,
                "peak memory           {:>9} MiB (model file {} MiB)",
                bytes >> 20,
                self.model.file_bytes >> 20
            )?,
            None => writeln!(f, "peak memory           unknown")?,
        }
        match &self.peer {
            Some(peer) => write!(f, "{peer}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_made_of_measurements_in_any_order() {
        assert_eq!(Spread::of(vec![3.0, 1.0, 2.0]), Some(Spread { min: 1.0, median: 2.0, max: 3.0 }));
        assert_eq!(Spread::of(vec![5.0]), Some(Spread { min: 5.0, median: 5.0, max: 5.0 }));
        assert_eq!(Spread::of(vec![]), None);
    }

    #[test]
    fn only_the_time_in_which_all_decode_counts() {
        let start = Instant::now();
        let at = |seconds: &[u64]| seconds.iter().map(|s| start + Duration::from_secs(*s)).collect::<Vec<_>>();
        // All decode from 2 to 4: tokens at 3 and 4 of the first, 4 of the second.
        assert_eq!(together(&[at(&[0, 1, 2, 3, 4]), at(&[2, 4, 6])]), Some(1.5));
        assert_eq!(together(&[at(&[0, 1]), at(&[2, 3])]), None, "they never decoded together");
        assert_eq!(together(&[at(&[0, 1]), at(&[])]), None, "one had no token");
        assert_eq!(together(&[at(&[1])]), None, "one token has no pace");
        assert_eq!(together(&[]), None);
    }
}
