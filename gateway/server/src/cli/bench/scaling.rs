//! How speed grows with the batch, the prompt and the threads, each beside what the measured ceilings allow.

use super::ceilings::{Ceilings, Sample};
use super::figures::{DECODE_PROMPT, DECODE_STEPS, Figure};
use super::own::Own;
use super::peer::Peer;
use super::spread::{Series, Spread};
use super::work::Work;
use anyhow::Result;
use engine_model::Model;
use serde::Serialize;
use std::sync::Arc;

const BATCHES: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
const PROMPTS: [usize; 10] = [16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096, 8_000];
/// Peers are slower, and each new size makes them try all of their settings: fewer points, shorter prompts.
const PEER_BATCHES: [usize; 4] = [1, 4, 16, 64];
const PEER_PROMPTS: [usize; 4] = [64, 256, 512, 2_048];

#[derive(Debug, Serialize)]
pub(super) struct Report {
    decode: Vec<Row>,
    prefill: Vec<Row>,
    threads: Vec<ThreadsRow>,
}

/// One size: sequences of a batch or tokens of a prompt.
#[derive(Debug, Serialize)]
struct Row {
    size: usize,
    tokens_per_second: Spread,
    /// What the ceilings allow.
    roofline: f64,
    peers: Vec<PeerPoint>,
}

#[derive(Debug, Serialize)]
struct PeerPoint {
    peer: String,
    tokens_per_second: Spread,
}

#[derive(Debug, Serialize)]
struct ThreadsRow {
    threads: usize,
    decode_b1: Spread,
    decode_b1_roofline: f64,
    prefill_512: Spread,
    prefill_512_roofline: f64,
}

/// Everything that does not change from size to size.
pub(super) struct Scaling<'a> {
    pub(super) model: &'a Arc<Model>,
    pub(super) work: Work,
    pub(super) threads: usize,
    pub(super) repetitions: usize,
    pub(super) prompt: &'a [u32],
}

impl Scaling<'_> {
    /// `peers` with the names that they have in the report.
    pub(super) fn measure(&self, peers: &mut [(String, &mut Peer)]) -> Result<Report> {
        let mut ceilings = Ceilings::new(self.threads, self.work.weight_bytes)?;
        let (mut decode, mut prefill) = (Vec::new(), Vec::new());
        for batch in BATCHES {
            let peers = if PEER_BATCHES.contains(&batch) { &mut *peers } else { &mut [] };
            decode.push(self.row(batch, Figure::Decode { batch }, &mut ceilings, peers)?);
        }
        let context_length = self.model.config().context_length;
        for tokens in PROMPTS.into_iter().filter(|tokens| *tokens <= context_length) {
            let peers = if PEER_PROMPTS.contains(&tokens) { &mut *peers } else { &mut [] };
            prefill.push(self.row(tokens, Figure::Prefill { tokens }, &mut ceilings, peers)?);
        }
        drop(ceilings);
        let threads = (1..=self.threads).map(|threads| self.threads_row(threads)).collect::<Result<_>>()?;
        Ok(Report { decode, prefill, threads })
    }

    fn row(
        &self,
        size: usize,
        figure: Figure,
        ceilings: &mut Ceilings,
        peers: &mut [(String, &mut Peer)],
    ) -> Result<Row> {
        let (sequences, tokens) = figure.room();
        let mut own = Own::new(self.model, self.threads, sequences, tokens)?;
        let (mut speed, mut rooflines) = (Series::new(), Series::new());
        let mut peer_speeds = vec![Series::new(); peers.len()];
        // The first repetition warms caches and is not counted.
        for repetition in 0..=self.repetitions {
            let (own, sample) = (figure.time_own(&mut own, self.prompt)?, ceilings.sample());
            for ((_, peer), speeds) in std::iter::zip(&mut *peers, &mut peer_speeds) {
                let (speed, _) = figure.time_peer(peer, self.prompt)?;
                if repetition > 0 {
                    speeds.push(speed);
                }
            }
            if repetition > 0 {
                speed.push(own);
                rooflines.push(roofline(figure, &self.work, sample));
            }
        }
        let peers = std::iter::zip(&*peers, peer_speeds)
            .map(|((peer, _), speeds)| Ok(PeerPoint { peer: peer.clone(), tokens_per_second: Spread::of(&speeds)? }))
            .collect::<Result<_>>()?;
        Ok(Row { size, tokens_per_second: Spread::of(&speed)?, roofline: Spread::of(&rooflines)?.median, peers })
    }

    fn threads_row(&self, threads: usize) -> Result<ThreadsRow> {
        let mut ceilings = Ceilings::new(threads, self.work.weight_bytes)?;
        let on_threads = Scaling { threads, ..*self };
        let mut row = |figure| on_threads.row(0, figure, &mut ceilings, &mut []);
        let (decode, prefill) = (row(Figure::Decode { batch: 1 })?, row(Figure::Prefill { tokens: 512 })?);
        Ok(ThreadsRow {
            threads,
            decode_b1: decode.tokens_per_second,
            decode_b1_roofline: decode.roofline,
            prefill_512: prefill.tokens_per_second,
            prefill_512_roofline: prefill.roofline,
        })
    }
}

/// Tokens per second if all bytes came and all operations were done as fast as the ceilings say: a decode step waits for
/// the slower of the two, a prompt's matrices are integers and its attention floats.
pub(super) fn roofline(figure: Figure, work: &Work, ceiling: Sample) -> f64 {
    match figure {
        Figure::Decode { batch } => {
            let seconds = (work.decode_bytes(batch, DECODE_PROMPT + DECODE_STEPS / 2) / ceiling.bytes)
                .max(work.decode_operations(batch) / ceiling.int8_operations);
            batch as f64 / seconds
        }
        Figure::Prefill { tokens } => {
            let computing = work.prefill_operations(tokens) / ceiling.int8_operations
                + work.prefill_attention(tokens) / ceiling.f32_operations;
            tokens as f64 / computing.max(work.decode_bytes(1, tokens) / ceiling.bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_roofline_is_the_slower_of_memory_and_arithmetic() {
        let work = Work {
            weight_bytes: 1_000,
            kv_bytes: 0,
            layer_operations: 100,
            head_operations: 100,
            attention_operations: 0,
        };
        let ceiling = Sample { bytes: 1e4, int8_operations: 1e4, f32_operations: 1e4 };
        let decode = |batch| roofline(Figure::Decode { batch }, &work, ceiling);
        // Ten steps a second until the arithmetic of five sequences takes as long as the reading.
        assert_eq!([1, 4, 5, 50].map(decode), [10.0, 40.0, 50.0, 50.0]);
        let prefill = |tokens| roofline(Figure::Prefill { tokens }, &work, ceiling);
        // One token waits for the weights; of many, only the last one has a head.
        assert_eq!([1, 9, 99].map(prefill), [10.0, 90.0, 99.0]);
    }
}
