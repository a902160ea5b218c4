//! The result of `bulkhead bench engine`, as JSON and as a table.

use super::figures::Figures;
use super::spread::Spread;
use super::{ceilings, exactness, kernels, neighbour, scaling, scheduled, work};
use crate::cli::machine::Machine;
use serde::Serialize;
use std::fmt;

/// A load average above this says that others had a share of the machine.
const QUIET_LOAD_MAX: f64 = 0.5;

/// The whole result. Speeds are in tokens per second; a spread is over the repetitions.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(super) bulkhead: &'static str,
    pub(super) machine: Machine,
    pub(super) load_average_before: Option<f64>,
    pub(super) load_average_after: Option<f64>,
    pub(super) model: ModelFacts,
    pub(super) kernels: &'static str,
    pub(super) threads: usize,
    pub(super) repetitions: usize,
    pub(super) load_seconds: f64,
    pub(super) peak_resident_bytes: Option<u64>,
    pub(super) exactness: exactness::Report,
    /// The engine's forward pass.
    pub(super) engine: Figures<Spread>,
    /// The engine's forward pass through the fastest peer's on the same file, repetition by repetition.
    pub(super) same_file: Option<Figures<Ratio>>,
    /// The same through the fastest peer on any file that it was given.
    pub(super) best_peer: Option<Figures<Ratio>>,
    pub(super) roofline: Roofline,
    pub(super) ceilings: ceilings::Report,
    pub(super) work: work::Work,
    pub(super) kernel_table: Vec<kernels::Row>,
    pub(super) scheduled: scheduled::Report,
    pub(super) neighbour: neighbour::Report,
    pub(super) peers: Vec<PeerReport>,
    pub(super) scaling: Option<scaling::Report>,
}

#[derive(Debug, Serialize)]
pub(super) struct ModelFacts {
    pub(super) name: String,
    pub(super) sha256: String,
    pub(super) file_bytes: u64,
}

/// A speed through a peer's.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Ratio {
    #[serde(flatten)]
    pub(super) ratio: Spread,
    /// The peer's name in [`Report::peers`].
    pub(super) peer: String,
}

/// What the engine reaches of the ceilings that were measured beside it: 1 is all of it.
#[derive(Debug, Serialize)]
pub(super) struct Roofline {
    /// Bytes of weights and K and V, of the bytes that can be read.
    pub(super) decode_b1_bandwidth: Spread,
    /// Operations of the matrices, of the integer operations that can be done. Attention counts as nothing here.
    pub(super) decode_b16_int8: Spread,
    pub(super) prefill_512_int8: Spread,
    pub(super) prefill_2048_int8: Spread,
    /// As before, attention counted at the peak of f32.
    pub(super) prefill_512_int8_and_f32: Spread,
    pub(super) prefill_2048_int8_and_f32: Spread,
}

/// Another engine, measured in turn with ours.
#[derive(Debug, Serialize)]
pub(super) struct PeerReport {
    pub(super) name: String,
    pub(super) version: String,
    /// The instructions that it was compiled for.
    pub(super) system: String,
    pub(super) batches_repacked: bool,
    /// It ran the engine's own file, not one made from it.
    pub(super) same_file: bool,
    pub(super) tokens_per_second: Figures<Spread>,
    /// The settings that were its fastest.
    pub(super) settings: Figures<String>,
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
        writeln!(f, "bits compared in {} schedules: equal", self.exactness.schedule_count())?;
        writeln!(f, "\nforward pass, tokens/s")?;
        for (name, spread) in self.engine.named() {
            writeln!(f, "  {name:<14}{spread}")?;
        }
        for (title, ratios) in [("same file", &self.same_file), ("best peer", &self.best_peer)] {
            let Some(ratios) = ratios else { continue };
            writeln!(f, "\ntimes the speed of the {title}")?;
            for (name, Ratio { ratio, peer }) in ratios.named() {
                writeln!(f, "  {name:<14}{ratio}   {peer}")?;
            }
        }
        self.write_roofline(f)?;
        writeln!(f, "\nalone, us         tokens  predicted    reached  share")?;
        for row in &self.kernel_table {
            writeln!(f, "  {row}")?;
        }
        self.write_scheduled(f)?;
        writeln!(f, "\ndecode beside a busy process, share of the speed alone")?;
        writeln!(f, "  {:<14}{}", "engine", self.neighbour.engine)?;
        if let Some(neighbour::PeerShare { peer, share }) = &self.neighbour.peer {
            writeln!(f, "  {peer:<14}{share}")?;
        }
        for peer in &self.peers {
            writeln!(f, "\n{}, tokens/s", peer.name)?;
            for ((name, spread), (_, settings)) in std::iter::zip(peer.tokens_per_second.named(), peer.settings.named())
            {
                writeln!(f, "  {name:<14}{spread}   {settings}")?;
            }
        }
        Ok(())
    }
}

impl Report {
    fn write_roofline(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Roofline {
            decode_b1_bandwidth,
            decode_b16_int8,
            prefill_512_int8,
            prefill_2048_int8,
            prefill_512_int8_and_f32,
            prefill_2048_int8_and_f32,
        } = &self.roofline;
        writeln!(f, "\nshare of the ceiling ({})", self.ceilings)?;
        for (name, share) in [
            ("decode_b1, bytes", decode_b1_bandwidth),
            ("decode_b16, int8", decode_b16_int8),
            ("prefill_512, int8", prefill_512_int8),
            ("prefill_2048, int8", prefill_2048_int8),
            ("prefill_512, with attention", prefill_512_int8_and_f32),
            ("prefill_2048, with attention", prefill_2048_int8_and_f32),
        ] {
            writeln!(f, "  {name:<28}{share}")?;
        }
        Ok(())
    }

    fn write_scheduled(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nthrough the engine's scheduler")?;
        for scheduled::Prefill { prompt_tokens, tokens_per_second, ttft_ms } in &self.scheduled.prefill {
            writeln!(f, "  prefill {prompt_tokens:>4} tokens   {tokens_per_second} tokens/s")?;
            writeln!(f, "  first token at {prompt_tokens:>4}   {ttft_ms} ms")?;
        }
        for scheduled::Decode { batch, tokens_per_second } in &self.scheduled.decode {
            writeln!(f, "  decode batch {batch:>3}      {tokens_per_second} tokens/s")?;
        }
        writeln!(f, "  load model          {:>8.2} s", self.load_seconds)?;
        let file = self.model.file_bytes >> 20;
        match self.peak_resident_bytes {
            Some(bytes) => writeln!(f, "  peak memory         {:>8} MiB (model file {file} MiB)", bytes >> 20),
            None => writeln!(f, "  peak memory         unknown"),
        }
    }
}
