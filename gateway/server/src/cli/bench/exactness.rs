//! Before anything is timed: the bits of every logit must not depend on what is computed beside it, on how a prompt is
//! cut, on where pages lie or on the number of threads. An engine that is fast and wrong has no speed.

use super::own::store;
use anyhow::{Context, Result, bail, ensure};
use engine_model::{Forward, KvStore, Model, PAGE_TOKENS, PageRef, Span};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// Sequences of the batch.
const SEQUENCES: usize = 16;
/// Tokens that each decodes greedily after its prompt.
const DECODED: usize = 6;
/// The first sequence's prompt: more than the attention of one segment, and more than one chunk of most schedules.
const LONG_PROMPT: usize = 530;
/// The others' are as long as their number times this, plus the shortest.
const PROMPT_STEP: usize = 5;
const PROMPT_MIN: usize = 1;

/// What was compared, and the digest that all schedules gave.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    schedules: Vec<String>,
    sequences: usize,
    logit_rows_each: usize,
    /// SHA-256 of all logits' bits and the tokens that were chosen by them.
    sha256: String,
}

impl Report {
    pub(super) fn schedule_count(&self) -> usize {
        self.schedules.len()
    }
}

/// One way to compute the same sequences.
#[derive(Clone, Copy, Debug)]
struct Schedule {
    name: &'static str,
    threads: usize,
    /// Prompt tokens of a sequence in one pass.
    chunk: usize,
    /// Sequences that are computed together.
    together: usize,
    /// Pages are taken from the end of the store.
    backwards: bool,
}

/// Computes the same sequences in every schedule and compares.
///
/// # Errors
/// When bits differ: nothing may be timed then.
pub(super) fn check(model: &Arc<Model>, threads: usize, prompt: &[u32]) -> Result<Report> {
    let schedule = |name, threads, chunk, together, backwards| Schedule { name, threads, chunk, together, backwards };
    let whole = LONG_PROMPT;
    let schedules = [
        schedule("alone, all threads", threads, whole, 1, false),
        schedule("alone, one thread", 1, whole, 1, true),
        schedule("alone, prompts in chunks of 7", threads, 7, 1, false),
        schedule("alone, one token at a time", threads, 1, 1, false),
        schedule("16 together, prompts in chunks of 64 beside decodes", threads, 64, SEQUENCES, true),
        schedule("16 together, one thread", 1, 33, SEQUENCES, false),
    ];
    let prompts: Vec<Vec<u32>> = (0..SEQUENCES)
        .map(|number| {
            let length = if number == 0 { LONG_PROMPT } else { PROMPT_MIN + number * PROMPT_STEP };
            prompt.iter().copied().cycle().skip(number).take(length).collect()
        })
        .collect();
    let mut reference: Option<Vec<[u8; 32]>> = None;
    for schedule in schedules {
        let digests = digests(model, &prompts, schedule).with_context(|| format!("schedule `{}`", schedule.name))?;
        match &reference {
            None => reference = Some(digests),
            Some(reference) => compare(reference, &digests, schedule.name)?,
        }
    }
    let mut all = Sha256::new();
    reference.iter().flatten().for_each(|digest| all.update(digest));
    Ok(Report {
        schedules: schedules.iter().map(|schedule| schedule.name.to_owned()).collect(),
        sequences: SEQUENCES,
        logit_rows_each: SEQUENCES * (DECODED + 1),
        sha256: hex::encode(all.finalize()),
    })
}

fn compare(wanted: &[[u8; 32]], found: &[[u8; 32]], schedule: &str) -> Result<()> {
    ensure!(wanted.len() == found.len(), "schedule `{schedule}` computed {} sequences", found.len());
    match std::iter::zip(wanted, found).position(|(wanted, found)| wanted != found) {
        None => Ok(()),
        Some(sequence) => bail!(
            "the engine is not exact: in the schedule `{schedule}` sequence {sequence} has other bits than computed \
             alone; nothing was timed"
        ),
    }
}

/// A sequence on its way.
struct Sequence {
    tokens: Vec<u32>,
    /// Tokens whose K and V are in the pages.
    done: usize,
    prompt: usize,
    pages: Vec<PageRef>,
    digest: Sha256,
}

impl Sequence {
    fn is_finished(&self) -> bool {
        self.done == self.prompt + DECODED
    }
}

/// For each sequence the digest of its logits after the prompt and each decoded token.
fn digests(model: &Arc<Model>, prompts: &[Vec<u32>], schedule: Schedule) -> Result<Vec<[u8; 32]>> {
    let pages_of = |prompt: &Vec<u32>| (prompt.len() + DECODED).div_ceil(PAGE_TOKENS);
    let pages_total: usize = prompts.iter().map(pages_of).sum();
    let mut store = store(model, pages_total)?;
    let mut free: Vec<u32> = (0..u32::try_from(pages_total)?).collect();
    if !schedule.backwards {
        free.reverse();
    }
    let mut sequences = Vec::new();
    for (tag, prompt) in (1u32..).zip(prompts) {
        let numbers = free.split_off(free.len() - pages_of(prompt));
        let pages: Vec<PageRef> = numbers.into_iter().map(|page| PageRef { page, tag }).collect();
        for page in &pages {
            store.assign(*page)?;
        }
        sequences.push(Sequence {
            tokens: prompt.clone(),
            done: 0,
            prompt: prompt.len(),
            pages,
            digest: Sha256::new(),
        });
    }
    let tokens_max = schedule.chunk * schedule.together;
    let mut forward = Forward::new(Arc::clone(model), schedule.threads, tokens_max);
    for group in sequences.chunks_mut(schedule.together) {
        while group.iter().any(|sequence| !sequence.is_finished()) {
            step(&mut forward, &mut store, group, schedule.chunk)?;
        }
    }
    Ok(sequences.into_iter().map(|sequence| sequence.digest.finalize().into()).collect())
}

/// One pass: a chunk of each prompt that is not computed yet, a token of each other sequence.
fn step(forward: &mut Forward, store: &mut KvStore, group: &mut [Sequence], chunk: usize) -> Result<()> {
    let mut running: Vec<&mut Sequence> = group.iter_mut().filter(|sequence| !sequence.is_finished()).collect();
    let spans: Vec<Span<'_>> = running
        .iter()
        .map(|sequence| {
            let end = sequence.tokens.len().min(sequence.done + chunk);
            let tokens = sequence.tokens.get(sequence.done..end).unwrap_or_default();
            Span {
                ticket: 0,
                tokens,
                position: sequence.done,
                pages: &sequence.pages,
                logits: end == sequence.tokens.len(),
            }
        })
        .collect();
    let ends: Vec<usize> = spans.iter().map(|span| span.position + span.tokens.len()).collect();
    forward.run(store, &spans, &|| false)?;
    for (number, (sequence, end)) in std::iter::zip(&mut running, ends).enumerate() {
        ensure!(forward.fault(number).is_none(), "a page was refused to its owner");
        sequence.done = end;
        if end < sequence.tokens.len() {
            continue;
        }
        let logits = forward.logits(number, 0).context("no logits")?;
        logits.iter().for_each(|logit| sequence.digest.update(logit.to_le_bytes()));
        let best = (0u32..).zip(logits).reduce(|best, next| if next.1 > best.1 { next } else { best });
        let (token, _) = best.context("an empty vocabulary")?;
        sequence.digest.update(token.to_le_bytes());
        sequence.tokens.push(token);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_sequence_with_other_bits_stops_the_benchmark() {
        let alone = [[1; 32], [2; 32], [3; 32]];
        assert!(compare(&alone, &alone, "x").is_ok());
        let error = compare(&alone, &[[1; 32], [2; 32], [4; 32]], "16 together").unwrap_err().to_string();
        assert!(error.contains("`16 together` sequence 2") && error.contains("nothing was timed"), "{error}");
        assert!(compare(&alone, &alone[..2], "x").is_err(), "a sequence is missing");
    }
}
