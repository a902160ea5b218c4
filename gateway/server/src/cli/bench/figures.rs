//! The four figures that engines are compared by.

use super::own::Own;
use super::peer::Peer;
use anyhow::Result;
use serde::Serialize;
use std::time::Duration;

/// The prompt of a decode measurement: short, so that it is about decoding.
pub(super) const DECODE_PROMPT: usize = 32;
/// Steps of one repetition.
pub(super) const DECODE_STEPS: usize = 64;

/// One thing that is timed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Figure {
    /// Sequences that decode a token each per step.
    Decode { batch: usize },
    /// A prompt of one sequence.
    Prefill { tokens: usize },
}

impl Figure {
    /// Tokens that one timing computes.
    fn tokens(self) -> usize {
        match self {
            Self::Decode { batch } => batch * DECODE_STEPS,
            Self::Prefill { tokens } => tokens,
        }
    }

    /// Sequences, and the most tokens of one.
    pub(super) fn room(self) -> (usize, usize) {
        match self {
            Self::Decode { batch } => (batch, DECODE_PROMPT + DECODE_STEPS),
            Self::Prefill { tokens } => (1, tokens),
        }
    }

    /// Tokens per second of the engine.
    pub(super) fn time_own(self, own: &mut Own, prompt: &[u32]) -> Result<f64> {
        let time = match self {
            Self::Decode { batch } => own.decode(batch, DECODE_STEPS, &first(prompt, DECODE_PROMPT))?,
            Self::Prefill { tokens } => own.prefill(&first(prompt, tokens))?,
        };
        Ok(self.per_second(time))
    }

    /// Tokens per second of a peer, and the settings that it chose.
    pub(super) fn time_peer(self, peer: &mut Peer, prompt: &[u32]) -> Result<(f64, String)> {
        let (time, settings) = match self {
            Self::Decode { batch } => peer.decode(batch, DECODE_STEPS, &first(prompt, DECODE_PROMPT))?,
            Self::Prefill { tokens } => peer.prefill(&first(prompt, tokens))?,
        };
        Ok((self.per_second(time), settings))
    }

    fn per_second(self, time: Duration) -> f64 {
        self.tokens() as f64 / time.as_secs_f64()
    }
}

fn first(prompt: &[u32], tokens: usize) -> Vec<u32> {
    prompt.iter().copied().cycle().take(tokens).collect()
}

/// Something for each of them.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figures<T> {
    pub(super) decode_b1: T,
    pub(super) decode_b16: T,
    pub(super) prefill_512: T,
    pub(super) prefill_2048: T,
}

impl Figures<Figure> {
    pub(super) const ALL: Self = Self {
        decode_b1: Figure::Decode { batch: 1 },
        decode_b16: Figure::Decode { batch: 16 },
        prefill_512: Figure::Prefill { tokens: 512 },
        prefill_2048: Figure::Prefill { tokens: 2_048 },
    };
}

impl<T> Figures<T> {
    /// The first error ends it.
    pub(super) fn try_map<'a, U>(&'a self, mut each: impl FnMut(&'a T) -> Result<U>) -> Result<Figures<U>> {
        Ok(Figures {
            decode_b1: each(&self.decode_b1)?,
            decode_b16: each(&self.decode_b16)?,
            prefill_512: each(&self.prefill_512)?,
            prefill_2048: each(&self.prefill_2048)?,
        })
    }

    /// With their names.
    pub(super) fn named(&self) -> [(&'static str, &T); 4] {
        [
            ("decode_b1", &self.decode_b1),
            ("decode_b16", &self.decode_b16),
            ("prefill_512", &self.prefill_512),
            ("prefill_2048", &self.prefill_2048),
        ]
    }
}
