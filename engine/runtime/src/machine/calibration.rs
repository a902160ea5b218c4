//! What passes cost on this machine, measured before the first request: some passes over pages that are nobody's yet.

use crate::compute::Compute;
use engine_kernels::{PageRef, Span};
use engine_kv::PAGE_TOKENS;
use engine_scheduler::Costs;
use std::time::Instant;

/// Tokens of the longer prompt that is computed. With the passes below some tens of milliseconds on two cores.
const PROMPT_TOKENS: usize = 96;
/// Rows of the wider decode pass.
const ROWS: usize = 4;
/// Each pass counts as its fastest run: what disturbs it makes it slower.
const RUNS: usize = 2;

/// The pages of a row.
type Row = Vec<PageRef>;

/// Runs passes on the first pages of a store that nobody uses, and scrubs them. `None`: there are too few pages, or something
/// is wrong, which the first request will say.
pub(super) fn measure(compute: &mut impl Compute, pages: usize) -> Option<Costs> {
    let each = (PROMPT_TOKENS + RUNS * 2 + 1).div_ceil(PAGE_TOKENS);
    if pages < each * ROWS {
        return None;
    }
    let mut assigned = 0;
    let rows: Option<Vec<Row>> = (0..ROWS).map(|_| row(compute, each, &mut assigned)).collect();
    let costs = rows.and_then(|rows| passes(compute, &rows));
    let scrubbed = (0..assigned).all(|page| compute.scrub(page).is_ok());
    costs.filter(|_| scrubbed)
}

fn row(compute: &mut impl Compute, pages: usize, assigned: &mut u32) -> Option<Row> {
    let pages = (0..pages).map(|_| {
        let page = PageRef { page: *assigned, tag: *assigned + 1 };
        *assigned += 1;
        compute.assign(page).is_ok().then_some(page)
    });
    pages.collect()
}

/// A short and a long prompt, and decode passes of one and of several rows after it.
fn passes(compute: &mut impl Compute, rows: &[Row]) -> Option<Costs> {
    let half = PROMPT_TOKENS / 2;
    let tokens = vec![0; PROMPT_TOKENS];
    for row in rows.get(1..)? {
        run(compute, std::slice::from_ref(row), 0, &tokens)?;
    }
    let row = rows.first()?;
    let one = std::slice::from_ref(row);
    let best = |compute: &mut _, rows: &[Row], tokens: &[u32]| {
        (0..RUNS).map(|_| run(compute, rows, 0, tokens)).collect::<Option<Vec<f64>>>()?.into_iter().reduce(f64::min)
    };
    let (long_us, short_us) = (best(compute, one, &tokens)?, best(compute, one, &tokens[..half])?);
    run(compute, one, 0, &tokens)?;
    let next = |compute: &mut _, rows: &[Row]| {
        (0..RUNS)
            .map(|_| run(compute, rows, PROMPT_TOKENS, &[0]))
            .collect::<Option<Vec<f64>>>()?
            .into_iter()
            .reduce(f64::min)
    };
    let (one_us, all_us) = (next(compute, one)?, next(compute, rows)?);
    let token_us = ((long_us - short_us) / half as f64).max(long_us / PROMPT_TOKENS as f64 / 2.0);
    let row_us = ((all_us - one_us) / (rows.len() - 1) as f64).max(one_us / 50.0);
    // Reading costs little at these depths, and too little to be measured in so short a time: a part of a token's cost for each
    // thousand tokens before it, as the guess has it.
    let read = |of: f64, guessed: f64, guessed_of: f64| of * guessed / guessed_of;
    Some(Costs {
        decode_us: (one_us - row_us).max(0.0),
        row_us,
        read_us: read(row_us, Costs::GUESS.read_us, Costs::GUESS.row_us),
        prefill_us: (long_us - token_us * PROMPT_TOKENS as f64).max(0.0),
        token_us,
        depth_us: read(token_us, Costs::GUESS.depth_us, Costs::GUESS.token_us),
    })
}

/// One pass of these tokens in every row, in microseconds.
fn run(compute: &mut impl Compute, rows: &[Row], position: usize, tokens: &[u32]) -> Option<f64> {
    let span = |row| Span { ticket: 0, tokens, position, pages: row, logits: true };
    let spans: Vec<Span<'_>> = rows.iter().map(|row| span(row.as_slice())).collect();
    let started = Instant::now();
    compute.run(&spans, &|| false).ok()?;
    (0..spans.len()).all(|span| compute.fault(span).is_none()).then(|| started.elapsed().as_secs_f64() * 1e6)
}
