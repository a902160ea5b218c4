//! From logits to one token.

use crate::replay_digest::ReplayDigest;
use engine_handoff::SamplerState;
use engine_kernels::{KernelFamily, logits};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::fmt;

/// How a request wants its tokens chosen. The caller has checked the ranges.
///
/// Order of the steps: penalties, temperature, `min_p`, `top_k`, `top_p`, draw (as vLLM documents it).
#[derive(Clone, PartialEq)]
pub struct Sampling {
    /// Completion tokens at most; `None`: to the end of the context.
    pub max_tokens: Option<usize>,
    /// 0 is greedy: the likeliest token, the lower id of two equals.
    pub temperature: f32,
    /// Smallest set of tokens whose probability reaches this; 1 is off.
    pub top_p: f32,
    /// The likeliest so many; 0 is off.
    pub top_k: usize,
    /// At least this fraction of the likeliest token's probability; 0 is off.
    pub min_p: f32,
    /// The same seed, prompt and model give the same tokens.
    pub seed: u64,
    /// Divides the positive logits of tokens seen in prompt or completion, multiplies the negative ones; 1 is off.
    pub repetition_penalty: f32,
    /// Taken from the logit of every token seen in the completion; 0 is off.
    pub presence_penalty: f32,
    /// Taken from the logit once for each time the token was seen in the completion; 0 is off.
    pub frequency_penalty: f32,
    /// The completion ends before the first of these.
    pub stop: Vec<String>,
    /// A digest is made of what each token was sampled from, so that the answer can be computed again and compared.
    pub digests: bool,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            max_tokens: None,
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            seed: 0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            stop: Vec::new(),
            digests: false,
        }
    }
}

impl fmt::Debug for Sampling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Stop strings are the client's text.
        write!(f, "Sampling(temperature {}, {} stop strings)", self.temperature, self.stop.len())
    }
}

/// Chooses the tokens of one sequence. Draws one number for each token, so that its state is a function of the seed
/// and the number of tokens alone.
#[derive(Clone)]
pub(crate) struct Sampler {
    sampling: Sampling,
    generator: ChaCha8Rng,
    prompt: HashSet<u32>,
    completion: HashMap<u32, u32>,
    /// Numbers drawn.
    steps: u64,
    /// Of all that it has sampled, where that is wanted.
    digest: Option<ReplayDigest>,
}

/// A candidate: its weight (not normalised) and its token.
type Candidate = (f32, u32);

/// What a sampler needs for a moment; one for all sequences, because they are sampled one after the other.
#[derive(Debug)]
pub(crate) struct SamplingScratch {
    family: KernelFamily,
    /// Weight of each token of the vocabulary, not normalised.
    weights: Vec<f32>,
    candidates: Vec<Candidate>,
    /// Logits on their way into a digest.
    bytes: Vec<u8>,
}

impl SamplingScratch {
    pub(crate) fn new() -> Self {
        Self { family: KernelFamily::detect(), weights: Vec::new(), candidates: Vec::new(), bytes: Vec::new() }
    }
}

/// Tokens whose weights are summed at a time; a draw looks into one of these sums only.
const WEIGHTS_AT_ONCE: usize = 256;

impl Sampler {
    pub(crate) fn new(sampling: Sampling, prompt: &[u32]) -> Self {
        let repeats = sampling.repetition_penalty != 1.0;
        let prompt = if repeats { prompt.iter().copied().collect() } else { HashSet::new() };
        let generator = ChaCha8Rng::seed_from_u64(sampling.seed);
        let digest = sampling.digests.then(ReplayDigest::default);
        Self { sampling, generator, prompt, completion: HashMap::new(), steps: 0, digest }
    }

    /// Of a request that was begun elsewhere: `tokens` are its prompt of `prompt_tokens`, and what was sampled after it.
    pub(crate) fn resume(sampling: Sampling, tokens: &[u32], prompt_tokens: usize) -> Self {
        let (prompt, completion) = tokens.split_at(prompt_tokens.min(tokens.len()));
        let mut sampler = Self::new(sampling, prompt);
        completion.iter().for_each(|token| sampler.skip(*token));
        sampler
    }

    /// As the request wants it.
    pub(crate) fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// `logits` [vocab]. `None` when one of them is not finite: the model computed nonsense, and the token that stands out
    /// of it would look like any other.
    pub(crate) fn sample(&mut self, logits: &[f32], scratch: &mut SamplingScratch) -> Option<u32> {
        let mut best = logits::largest(scratch.family, logits)?;
        let draw = self.draw_number();
        let adjusted = self.penalise(logits);
        if let Some(adjusted) = &adjusted {
            best = logits::largest(scratch.family, adjusted)?;
        }
        let logits = adjusted.as_deref().unwrap_or(logits);
        let token = match self.sampling.temperature {
            0.0 => u32::try_from(best.0).ok()?,
            _ => self.draw(logits, best.1, draw, scratch)?,
        };
        if let Some(digest) = &mut self.digest {
            digest.push(logits, token, &mut scratch.bytes);
        }
        self.note(token);
        Some(token)
    }

    /// The digest of all that it has sampled, or that another one had in whose place it goes on; `None` where none is made.
    pub(crate) fn digest(&self) -> Option<ReplayDigest> {
        self.digest
    }

    /// Another one sampled what this one has skipped, and its digest is this.
    pub(crate) fn take_digest(&mut self, digest: [u8; 32]) {
        if let Some(own) = &mut self.digest {
            *own = ReplayDigest::from_bytes(digest);
        }
    }

    /// Counts what another one has sampled as its own.
    #[cfg(all(test, feature = "fault-injection"))]
    pub(crate) fn plant_penalties_of(&mut self, other: &Self) {
        self.completion.clone_from(&other.completion);
    }

    /// Where it stands.
    pub(crate) fn state(&self) -> SamplerState {
        SamplerState { seed: self.sampling.seed, step: self.steps }
    }

    /// Where it stands after its next token.
    pub(crate) fn state_after_one(&self) -> SamplerState {
        SamplerState { seed: self.sampling.seed, step: self.steps + 1 }
    }

    /// Goes on as if it had sampled this token: a sampler in the same state did.
    pub(crate) fn skip(&mut self, token: u32) {
        self.draw_number();
        self.note(token);
    }

    /// What decides the tokens besides the prompt, in one encoding.
    pub(crate) fn facts(&self) -> Vec<u8> {
        let Sampling { temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, .. } =
            self.sampling;
        let mut facts = Vec::with_capacity(48);
        facts.extend(self.sampling.seed.to_le_bytes());
        facts.extend(self.steps.to_le_bytes());
        facts.extend((self.sampling.top_k as u64).to_le_bytes());
        for number in [temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty] {
            facts.extend(number.to_bits().to_le_bytes());
        }
        facts
    }

    fn draw_number(&mut self) -> u64 {
        self.steps += 1;
        self.generator.next_u64()
    }

    fn note(&mut self, token: u32) {
        if self.penalises() {
            *self.completion.entry(token).or_default() += 1;
        }
    }

    fn penalises(&self) -> bool {
        let Sampling { repetition_penalty, presence_penalty, frequency_penalty, .. } = self.sampling;
        repetition_penalty != 1.0 || presence_penalty != 0.0 || frequency_penalty != 0.0
    }

    fn penalise(&self, logits: &[f32]) -> Option<Vec<f32>> {
        if !self.penalises() {
            return None;
        }
        let mut logits = logits.to_vec();
        let repetition = self.sampling.repetition_penalty;
        let fresh = self.prompt.iter().filter(|token| !self.completion.contains_key(token));
        for token in fresh.chain(self.completion.keys()) {
            if let Some(logit) = logits.get_mut(*token as usize) {
                *logit = if *logit > 0.0 { *logit / repetition } else { *logit * repetition };
            }
        }
        for (token, count) in &self.completion {
            if let Some(logit) = logits.get_mut(*token as usize) {
                *logit -= self.sampling.presence_penalty + self.sampling.frequency_penalty * *count as f32;
            }
        }
        Some(logits)
    }

    fn draw(&self, logits: &[f32], best: f32, draw: u64, scratch: &mut SamplingScratch) -> Option<u32> {
        let Sampling { temperature, top_p, top_k, min_p, .. } = self.sampling;
        let SamplingScratch { family, weights, candidates, .. } = scratch;
        logits::weights(*family, logits, best, temperature, weights);
        // 53 random bits: uniform in [0, 1).
        let uniform = (draw >> 11) as f64 / (1u64 << 53) as f64;
        if top_p >= 1.0 && top_k == 0 && min_p == 0.0 {
            return draw_from_all(weights, uniform);
        }
        candidates.clear();
        // The likeliest has weight 1, so the weight is the fraction that `min_p` speaks of.
        let likely = weights.iter().copied().zip(0u32..).filter(|(weight, _)| *weight >= min_p && *weight > 0.0);
        candidates.extend(likely);
        if top_k > 0 && top_k < candidates.len() {
            candidates.select_nth_unstable_by(top_k - 1, likelier_first);
            candidates.truncate(top_k);
            candidates.sort_unstable_by(likelier_first);
        }
        if top_p < 1.0 {
            keep_top_p(candidates, top_p);
        }
        let total: f64 = candidates.iter().map(|(weight, _)| f64::from(*weight)).sum();
        let mut left = uniform * total;
        for (weight, token) in &*candidates {
            left -= f64::from(*weight);
            if left < 0.0 {
                return Some(*token);
            }
        }
        candidates.last().map(|(_, token)| *token)
    }
}

/// The token at `uniform` (from 0 to before 1) of all weights laid side by side.
fn draw_from_all(weights: &[f32], uniform: f64) -> Option<u32> {
    let total: f64 = weights.chunks(WEIGHTS_AT_ONCE).map(sum).sum();
    let mut left = uniform * total;
    for (number, weights) in weights.chunks(WEIGHTS_AT_ONCE).enumerate() {
        let sum = sum(weights);
        if left < sum {
            let found = weights.iter().position(|weight| {
                left -= f64::from(*weight);
                left < 0.0
            });
            // Sums in another order may differ in their last bits: then it is the last one that has a weight.
            let place = found.or_else(|| weights.iter().rposition(|weight| *weight > 0.0))?;
            return u32::try_from(number * WEIGHTS_AT_ONCE + place).ok();
        }
        left -= sum;
    }
    weights.iter().rposition(|weight| *weight > 0.0).and_then(|last| u32::try_from(last).ok())
}

/// Eight sums side by side, then their sum: always in the same order.
fn sum(weights: &[f32]) -> f64 {
    let (eights, rest) = weights.as_chunks::<8>();
    let mut sums = [0.0; 8];
    for eight in eights {
        for (sum, weight) in sums.iter_mut().zip(eight) {
            *sum += f64::from(*weight);
        }
    }
    sums.into_iter().chain(rest.iter().copied().map(f64::from)).sum()
}

fn likelier_first(a: &Candidate, b: &Candidate) -> Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// Sorts only as many of the likeliest as are needed to reach `top_p`.
fn keep_top_p(candidates: &mut Vec<Candidate>, top_p: f32) {
    let total: f64 = candidates.iter().map(|(weight, _)| f64::from(*weight)).sum();
    let wanted = f64::from(top_p) * total;
    let mut sorted = 64;
    loop {
        let end = sorted.min(candidates.len());
        if end < candidates.len() {
            candidates.select_nth_unstable_by(end, likelier_first);
        }
        candidates[..end].sort_unstable_by(likelier_first);
        let mut sum = 0.0;
        for (kept, (weight, _)) in candidates[..end].iter().enumerate() {
            sum += f64::from(*weight);
            if sum >= wanted {
                candidates.truncate(kept + 1);
                return;
            }
        }
        if end == candidates.len() {
            return;
        }
        sorted *= 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 6] = [0.0, 3.0, 1.0, 3.0, -2.0, 2.0];

    fn scratch() -> SamplingScratch {
        SamplingScratch::new()
    }

    fn greedy() -> Sampling {
        Sampling { temperature: 0.0, ..Sampling::default() }
    }

    /// The set of tokens that 500 seeds draw.
    fn support(sampling: &Sampling) -> Vec<u32> {
        let mut seen: Vec<u32> = (0..500)
            .filter_map(|seed| Sampler::new(Sampling { seed, ..sampling.clone() }, &[]).sample(&LOGITS, &mut scratch()))
            .collect();
        seen.sort_unstable();
        seen.dedup();
        seen
    }

    #[test]
    fn greedy_takes_the_first_of_the_likeliest() {
        assert_eq!(Sampler::new(greedy(), &[]).sample(&LOGITS, &mut scratch()), Some(1));
    }

    #[test]
    fn nonsense_is_no_token() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for logits in [[bad, 1.0], [1.0, bad], [bad; 2]] {
                assert_eq!(Sampler::new(greedy(), &[]).sample(&logits, &mut scratch()), None);
                assert_eq!(Sampler::new(Sampling::default(), &[]).sample(&logits, &mut scratch()), None);
            }
        }
        assert_eq!(Sampler::new(greedy(), &[]).sample(&[], &mut scratch()), None);
    }

    #[test]
    fn limits_keep_what_they_say() {
        assert_eq!(support(&Sampling { top_k: 2, ..Sampling::default() }), [1, 3]);
        assert_eq!(support(&Sampling { top_k: 3, ..Sampling::default() }), [1, 3, 5]);
        // Weights 1, 1, 0.37, 0.14, 0.05, 0.007: two thirds are reached with the two likeliest.
        assert_eq!(support(&Sampling { top_p: 0.7, ..Sampling::default() }), [1, 3]);
        assert_eq!(support(&Sampling { top_p: 0.0, ..Sampling::default() }), [1]);
        assert_eq!(support(&Sampling { min_p: 0.3, ..Sampling::default() }), [1, 3, 5]);
        assert_eq!(support(&Sampling { min_p: 1.0, ..Sampling::default() }), [1, 3]);
        assert_eq!(support(&Sampling { temperature: 0.01, ..Sampling::default() }), [1, 3]);
        assert!(support(&Sampling { temperature: 2.0, ..Sampling::default() }).len() >= 5);
    }

    #[test]
    fn frequencies_follow_the_probabilities() {
        let logits = [0.0, (3.0f32).ln()];
        let mut sampler = Sampler::new(Sampling::default(), &[]);
        let ones = (0..20_000).filter(|_| sampler.sample(&logits, &mut scratch()) == Some(1)).count();
        assert!((14_600..15_400).contains(&ones), "three quarters expected, {ones} of 20,000 seen");
    }

    #[test]
    fn a_draw_from_all_finds_the_token_that_a_plain_walk_finds() {
        for count in [1usize, 7, 255, 256, 257, 5_000] {
            let weights: Vec<f32> = (0..count).map(|i| if i % 3 == 0 { 0.0 } else { (i % 17) as f32 / 16.0 }).collect();
            let total: f64 = weights.iter().copied().map(f64::from).sum();
            for step in 0..1_000 {
                let uniform = f64::from(step) / 1_000.0;
                let mut left = uniform * total;
                let wanted = weights.iter().position(|weight| {
                    left -= f64::from(*weight);
                    left < 0.0
                });
                assert_eq!(draw_from_all(&weights, uniform), wanted.map(|token| token as u32), "{count} at {uniform}");
            }
        }
        assert_eq!(draw_from_all(&[0.5, 0.5, 0.0], 1.0), Some(1), "never a token without a weight");
    }

    #[test]
    fn a_seed_repeats_and_another_differs() {
        let draw = |seed| {
            let mut sampler = Sampler::new(Sampling { seed, ..Sampling::default() }, &[]);
            (0..20).map(|_| sampler.sample(&LOGITS, &mut scratch())).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn penalties_push_seen_tokens_down() {
        let mut sampler = Sampler::new(Sampling { presence_penalty: 1.5, ..greedy() }, &[]);
        let first: Vec<_> = (0..3).filter_map(|_| sampler.sample(&LOGITS, &mut scratch())).collect();
        assert_eq!(first, [1, 3, 5]);
        let mut sampler = Sampler::new(Sampling { frequency_penalty: 0.6, ..greedy() }, &[]);
        let first: Vec<_> = (0..5).filter_map(|_| sampler.sample(&LOGITS, &mut scratch())).collect();
        assert_eq!(first, [1, 3, 1, 3, 5]);
        let mut sampler = Sampler::new(Sampling { repetition_penalty: 2.0, ..greedy() }, &[1, 3]);
        assert_eq!(sampler.sample(&LOGITS, &mut scratch()), Some(5), "the prompt counts for the repetition penalty");
    }

    #[test]
    fn the_digest_is_of_what_the_sampler_took() {
        let sampling = Sampling { presence_penalty: 1.5, digests: true, ..greedy() };
        let mut sampler = Sampler::new(sampling.clone(), &[]);
        let tokens: Vec<u32> = (0..2).filter_map(|_| sampler.sample(&LOGITS, &mut scratch())).collect();
        let mut wanted = ReplayDigest::default();
        wanted.push(&LOGITS, 1, &mut Vec::new());
        let penalised = [0.0, 1.5, 1.0, 3.0, -2.0, 2.0];
        wanted.push(&penalised, 3, &mut Vec::new());
        assert_eq!((tokens, sampler.digest()), (vec![1, 3], Some(wanted)));
        // Whoever goes on in another's place has its digest; who makes none has none.
        let mut later = Sampler::new(sampling, &[]);
        tokens_skipped(&mut later);
        later.take_digest(wanted.bytes());
        assert_eq!(later.sample(&LOGITS, &mut scratch()), sampler.sample(&LOGITS, &mut scratch()));
        assert_eq!(later.digest(), sampler.digest());
        let mut none = Sampler::new(greedy(), &[]);
        none.take_digest([1; 32]);
        assert!(none.sample(&LOGITS, &mut scratch()).is_some() && none.digest().is_none());
    }

    fn tokens_skipped(sampler: &mut Sampler) {
        [1, 3].into_iter().for_each(|token| sampler.skip(token));
    }

    #[test]
    fn top_p_agrees_with_a_full_sort() {
        let logits: Vec<f32> = (0..1000).map(|i| ((i * 7919) % 1000) as f32 / 200.0).collect();
        let weights = || logits.iter().zip(0u32..).map(|(l, t)| (l.exp(), t)).collect::<Vec<Candidate>>();
        for top_p in [0.1, 0.5, 0.9, 0.999] {
            let mut fast = weights();
            keep_top_p(&mut fast, top_p);
            let mut full = weights();
            full.sort_unstable_by(likelier_first);
            let total: f64 = weights().iter().map(|(w, _)| f64::from(*w)).sum();
            let mut sum = 0.0;
            let kept = full.iter().position(|(w, _)| {
                sum += f64::from(*w);
                sum >= f64::from(top_p) * total
            });
            assert_eq!(fast, full[..=kept.unwrap()]);
        }
    }
}
