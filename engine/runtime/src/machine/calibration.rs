//! What passes cost on this machine, measured before the first request: some passes over pages that are nobody's yet.

use crate::compute::Compute;
use engine_kernels::{PageRef, Span};
use engine_kv::PAGE_TOKENS;
use engine_scheduler::Costs;
use std::time::Instant;

/// Tokens of the prompts that are computed: a tile of the kernels, and three. With the passes below, less than a tenth of a
/// second on two cores.
const PROMPT_TOKENS: [usize; 2] = [16, 48];
/// Rows of the wider decode pass.
const ROWS: usize = 4;
/// Each pass counts as its fastest run: what disturbs it makes it slower.
const RUNS: usize = 2;

/// The pages of a row.
type Row = Vec<PageRef>;

/// Runs passes on the first pages of a store that nobody uses, and scrubs them. `None`: there are too few pages, or something
/// is wrong, which the first request will say.
pub(super) fn measure(compute: &mut impl Compute, pages: usize) -> Option<Costs> {
    let each = PROMPT_TOKENS[1].div_ceil(PAGE_TOKENS);
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

/// A short and a long prompt, and decode passes of one and of several rows.
fn passes(compute: &mut impl Compute, rows: &[Row]) -> Option<Costs> {
    let one = rows.get(..1)?;
    let tokens = [0; PROMPT_TOKENS[1]];
    let mut best = |rows: &[Row], tokens: &[u32]| {
        (0..RUNS).map(|_| run(compute, rows, tokens)).collect::<Option<Vec<f64>>>()?.into_iter().reduce(f64::min)
    };
    let [short_us, long_us] = [best(one, tokens.get(..PROMPT_TOKENS[0])?)?, best(one, &tokens)?];
    let [one_us, all_us] = [best(one, &tokens[..1])?, best(rows, &tokens[..1])?];
    let [short, long] = PROMPT_TOKENS.map(|tokens| tokens as f64);
    let token_us = ((long_us - short_us) / (long - short)).max(long_us / long / 2.0);
    let row_us = ((all_us - one_us) / (rows.len() - 1) as f64).max(one_us / 50.0);
    // Reading costs too little at these depths to be measured in so short a time: as the guess has it, a part of what a token
    // costs.
    let read_us = |of: f64, guessed: f64, guessed_of: f64| of * guessed / guessed_of;
    Some(Costs {
        decode_us: (one_us - row_us).max(0.0),
        row_us,
        read_us: read_us(row_us, Costs::GUESS.read_us, Costs::GUESS.row_us),
        prefill_us: (long_us - token_us * long).max(0.0),
        token_us,
        depth_us: read_us(token_us, Costs::GUESS.depth_us, Costs::GUESS.token_us),
    })
}

/// One pass of these tokens in every row, in microseconds.
fn run(compute: &mut impl Compute, rows: &[Row], tokens: &[u32]) -> Option<f64> {
    let span = |pages| Span { ticket: 0, tokens, position: 0, pages, logits: true };
    let spans: Vec<Span<'_>> = rows.iter().map(|row| span(row.as_slice())).collect();
    let started = Instant::now();
    compute.run(&spans, &|| false).ok()?;
    (0..spans.len()).all(|span| compute.fault(span).is_none()).then(|| started.elapsed().as_secs_f64() * 1e6)
}

#[cfg(test)]
#[cfg(feature = "fault-injection")]
mod tests {
    use super::*;
    use crate::compute::tracer::Tracer;

    #[test]
    fn what_is_measured_leaves_no_trace() {
        let mut compute = Tracer::new(16);
        let costs = measure(&mut compute, 16).unwrap();
        let all = [costs.decode_us, costs.row_us, costs.read_us, costs.prefill_us, costs.token_us, costs.depth_us];
        assert!(all.iter().all(|cost| cost.is_finite() && *cost >= 0.0) && costs.row_us > 0.0 && costs.token_us > 0.0);
        for page in 0..16 {
            assert!(compute.read_page(PageRef { page, tag: page + 1 }).is_err(), "nobody's");
            compute.assign(PageRef { page, tag: 100 }).unwrap();
        }
        assert_eq!(measure(&mut Tracer::new(11), 11), None, "too few pages to measure with");
    }
}
