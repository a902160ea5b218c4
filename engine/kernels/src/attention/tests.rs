//! Attention against its definition, and what the label checks do.

use super::*;
use crate::kv_store::{KvShape, PageRef};
use crate::rope::{HeadTransform, Rope, RopePairs, rotate_and_append};
use crate::{KernelFamily, KvKind, PageFault, ReadSetRule};

const SHAPE: HeadShape = HeadShape { heads: 6, kv_heads: 2, head_dim: 80 };
const ROPE_BASE: f32 = 1e4;
const ROPE_DIMS: usize = 64;

fn values(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 7) % 2_001) as f32 / 500.0 - 2.0).collect()
}

fn pages(count: usize, first: u32, tag: u32) -> Vec<PageRef> {
    // Backwards, so that the order in the store is not the order in the sequence.
    (0..count as u32).map(|index| PageRef { page: first + count as u32 - 1 - index, tag }).collect()
}

fn store(count: usize, tables: &[&[PageRef]]) -> KvStore {
    store_of(KvKind::default(), count, tables)
}

fn store_of(kind: KvKind, count: usize, tables: &[&[PageRef]]) -> KvStore {
    let shape = KvShape { layers: 2, kv_heads: SHAPE.kv_heads, head_dim: SHAPE.head_dim, pages: count };
    let mut store = KvStore::with_kind(shape, kind).unwrap();
    tables.iter().flat_map(|table| table.iter()).for_each(|page| store.assign(*page).unwrap());
    store
}

/// One layer over a run: rotation, append, attention.
fn run(team: &mut Team, store: &mut KvStore, spans: &[Span<'_>], qkv: &[f32], faults: &mut PageFaults) -> Vec<f32> {
    run_through(None, team, store, spans, qkv, faults)
}

fn run_through(
    window: Option<usize>,
    team: &mut Team,
    store: &mut KvStore,
    spans: &[Span<'_>],
    qkv: &[f32],
    faults: &mut PageFaults,
) -> Vec<f32> {
    let mut qkv = qkv.to_vec();
    let tokens: usize = spans.iter().map(|span| span.tokens.len()).sum();
    let frequency = |pair: usize| f64::from(ROPE_BASE).powf(-2.0 * pair as f64 / ROPE_DIMS as f64);
    let mut rope = Rope::new(RopePairs::Neighbours, (0..ROPE_DIMS / 2).map(frequency).collect(), 1.0);
    let mut plan = AttentionPlan::default();
    let mut out = vec![f32::NAN; tokens * SHAPE.query_width()];
    rope.prepare(spans);
    plan.prepare(spans, SHAPE, team.threads());
    faults.reset(spans.len());
    let scale = 1.0 / (SHAPE.head_dim as f32).sqrt();
    let transform = HeadTransform { norms: None, rope: Some(&rope), scale };
    rotate_and_append(team, store, 1, SHAPE, &transform, spans, &mut qkv, faults);
    attention(team, store, 1, SHAPE, window, &mut plan, spans, &qkv, faults, &mut out);
    out
}

/// The definition, in f64.
fn definition(qkv: &[f32], tokens: usize, window: usize) -> Vec<f64> {
    let head_dim = SHAPE.head_dim;
    let rotated = |token: usize, start: usize| -> Vec<f64> {
        let x = &qkv[token * SHAPE.qkv_width() + start..][..head_dim];
        let mut out: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        for pair in 0..ROPE_DIMS / 2 {
            let angle = token as f64 * f64::from(ROPE_BASE).powf(-2.0 * pair as f64 / ROPE_DIMS as f64);
            let (a, b) = (out[2 * pair], out[2 * pair + 1]);
            out[2 * pair] = a * angle.cos() - b * angle.sin();
            out[2 * pair + 1] = a * angle.sin() + b * angle.cos();
        }
        out
    };
    let mut out = Vec::new();
    for token in 0..tokens {
        for head in 0..SHAPE.heads {
            let kv_head = head / (SHAPE.heads / SHAPE.kv_heads);
            let query = rotated(token, head * head_dim);
            let first = (token + 1).saturating_sub(window);
            let scores: Vec<f64> = (first..=token)
                .map(|other| {
                    let key = rotated(other, SHAPE.query_width() + kv_head * head_dim);
                    std::iter::zip(&query, &key).map(|(q, k)| q * k).sum::<f64>() / (head_dim as f64).sqrt()
                })
                .collect();
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|score| (score - largest).exp()).sum();
            for dim in 0..head_dim {
                let at = SHAPE.query_width() + SHAPE.kv_width() + kv_head * head_dim + dim;
                let value = |other: usize| f64::from(qkv[other * SHAPE.qkv_width() + at]);
                let weighted: f64 =
                    (first..).zip(&scores).map(|(other, score)| (score - largest).exp() * value(other)).sum();
                out.push(weighted / sum);
            }
        }
    }
    out
}

/// A window that hides whole segments, one that begins inside a page, one of a few tokens, and none.
const WINDOWS: [Option<usize>; 4] = [None, Some(300), Some(77), Some(5)];

#[test]
fn attention_is_near_the_definition_however_values_are_stored() {
    // Three segments. Values are of up to 2: half a step of what is stored, hence the tolerances.
    let tokens = 530;
    let qkv = values(tokens * SHAPE.qkv_width(), 1);
    let table = pages(tokens.div_ceil(PAGE_TOKENS), 3, 5);
    let span = Span { ticket: 0, tokens: &vec![0; tokens], position: 0, pages: &table, logits: false };
    for window in WINDOWS {
        let wanted = definition(&qkv, tokens, window.unwrap_or(usize::MAX));
        for (kind, tolerance) in [(KvKind::F32, 4e-6), (KvKind::Bf16, 2.5e-2), (KvKind::Int8, 6e-2)] {
            let mut store = store_of(kind, 40, &[&table]);
            let out = run_through(window, &mut Team::new(2), &mut store, &[span], &qkv, &mut PageFaults::default());
            for (index, (value, wanted)) in std::iter::zip(&out, &wanted).enumerate() {
                let error = (f64::from(*value) - wanted).abs();
                assert!(error < tolerance, "{kind} {window:?}, value {index}: {value} for {wanted}");
            }
        }
    }
}

#[test]
fn the_bits_do_not_depend_on_division_threads_pages_or_family() {
    let tokens = 300;
    let width = SHAPE.qkv_width();
    let qkv = values(tokens * width, 2);
    let ids = vec![0; tokens];
    for (kind, window) in KvKind::ALL.into_iter().flat_map(|kind| [(kind, None), (kind, Some(70))]) {
        // One token at a time, one thread, plain Rust.
        let table = pages(19, 0, 1);
        let mut team = Team::with_family(1, KernelFamily::Scalar).unwrap();
        let mut serial_store = store_of(kind, 19, &[&table]);
        let mut reference = Vec::new();
        for position in 0..tokens {
            let span = Span { ticket: 0, tokens: &ids[..1], position, pages: &table, logits: false };
            let qkv = &qkv[position * width..][..width];
            let mut faults = PageFaults::default();
            reference.extend(run_through(window, &mut team, &mut serial_store, &[span], qkv, &mut faults));
        }
        for family in KernelFamily::ALL {
            for (threads, chunk) in [(1, 300), (2, 300), (3, 37), (2, 1), (8, 7), (4, 256)] {
                let Some(mut team) = Team::with_family(threads, family) else { continue };
                let table = pages(19, 2, 4_000_000_000);
                let mut store = store_of(kind, 30, &[&table]);
                let mut out = Vec::new();
                for first in (0..tokens).step_by(chunk) {
                    let tokens = &ids[first..(first + chunk).min(tokens)];
                    let span = Span { ticket: 0, tokens, position: first, pages: &table, logits: false };
                    let qkv = &qkv[first * width..][..tokens.len() * width];
                    let mut faults = PageFaults::default();
                    out.extend(run_through(window, &mut team, &mut store, &[span], qkv, &mut faults));
                }
                assert!(
                    out.iter().map(|x| x.to_bits()).eq(reference.iter().map(|x| x.to_bits())),
                    "{kind} {window:?} {family} {threads} {chunk}"
                );
            }
        }
    }
}

/// What the kernel says that it read is what the owner of the pages expects, and nothing else is.
#[test]
fn the_read_set_is_the_one_that_the_owners_pages_give() {
    let width = SHAPE.qkv_width();
    for window in WINDOWS {
        // Layer 1 of two is run: of layer 0 nothing is read.
        let rule = ReadSetRule::new(SHAPE.kv_heads, [window, window]);
        let above = ReadSetRule::new(SHAPE.kv_heads, [window]);
        for (threads, tokens, position) in
            [(1, 530, 0), (2, 530, 0), (4, 1, 528), (1, 1, 528), (3, 19, 500), (2, 3, 14)]
        {
            let (mine, theirs) = (pages(40, 0, 11), pages(40, 40, 22));
            let mut store = store(80, &[&mine, &theirs]);
            let mut team = Team::new(threads);
            let mut faults = PageFaults::default();
            let ids = vec![0; 530];
            let whole = |pages| Span { ticket: 0, tokens: &ids, position: 0, pages, logits: false };
            let qkv = values(2 * 530 * width, 3);
            run_through(window, &mut team, &mut store, &[whole(&mine), whole(&theirs)], &qkv, &mut faults);
            let span = |pages| Span { ticket: 0, tokens: &ids[..tokens], position, pages, logits: false };
            let qkv = &qkv[..2 * tokens * width];
            run_through(window, &mut team, &mut store, &[span(&mine), span(&theirs)], qkv, &mut faults);
            for (number, pages) in [(0, &mine), (1, &theirs)] {
                let expected =
                    rule.expected(position, tokens, pages).wrapping_sub(above.expected(position, tokens, pages));
                assert_eq!(faults.read_set(number), Some(expected), "{window:?} {threads} {tokens} {position}");
            }
            assert_ne!(faults.read_set(0), faults.read_set(1));
        }
    }
}

#[test]
fn a_page_of_ones_own_in_the_wrong_place_shows_in_the_read_set_alone() {
    let mine = pages(3, 0, 11);
    let width = SHAPE.qkv_width();
    let ids = [0; 40];
    let mut store = store(3, &[&mine]);
    let mut faults = PageFaults::default();
    let mut team = Team::new(1);
    let span = |pages| Span { ticket: 0, tokens: &ids, position: 0, pages, logits: false };
    run(&mut team, &mut store, &[span(&mine)], &values(40 * width, 3), &mut faults);
    let rule = ReadSetRule::new(SHAPE.kv_heads, [None, None]);
    let above = ReadSetRule::new(SHAPE.kv_heads, [None]);
    let swapped = [mine[1], mine[0], mine[2]];
    let step = Span { ticket: 0, tokens: &ids[..1], position: 40, pages: &swapped, logits: false };
    run(&mut team, &mut store, &[step], &values(width, 4), &mut faults);
    assert_eq!(faults.of(0), None, "every page is the reader's own");
    let expected = rule.expected(40, 1, &mine).wrapping_sub(above.expected(40, 1, &mine));
    assert_ne!(faults.read_set(0), Some(expected));
}

#[test]
fn a_foreign_page_hurts_its_own_span_only() {
    let (mine, theirs) = (pages(3, 0, 11), pages(3, 3, 22));
    let width = SHAPE.qkv_width();
    let (prompts, next) = (values(80 * width, 3), values(2 * width, 4));
    let ids = [0; 40];
    for threads in [1, 2, 4] {
        let mut team = Team::new(threads);
        let mut faults = PageFaults::default();
        let mut store = store(8, &[&mine, &theirs]);
        let prompt = |pages| Span { ticket: 0, tokens: &ids, position: 0, pages, logits: false };
        run(&mut team, &mut store, &[prompt(&mine), prompt(&theirs)], &prompts, &mut faults);
        fn step(pages: &[PageRef]) -> Span<'_> {
            Span { ticket: 0, tokens: &[0], position: 40, pages, logits: false }
        }
        let clean = run(&mut team, &mut store, &[step(&mine), step(&theirs)], &next, &mut faults);
        assert_eq!((faults.of(0), faults.of(1)), (None, None));

        for (index, planted, page) in [
            (0, PageRef { tag: 11, ..theirs[0] }, 5), // theirs, in my table
            (0, PageRef { tag: 12, ..mine[0] }, 2),   // an old tag of my page
            (1, PageRef { page: 8, tag: 11 }, 8),     // outside
            (1, PageRef { page: u32::MAX, tag: 11 }, u32::MAX),
            (1, PageRef { page: 6, tag: 11 }, 6),  // free
            (2, PageRef { tag: 0, ..mine[2] }, 0), // nobody's, at the append
            (2, PageRef { tag: 22, ..mine[2] }, 0),
        ] {
            let mut table = mine.clone();
            table[index] = planted;
            let out = run(&mut team, &mut store, &[step(&table), step(&theirs)], &next, &mut faults);
            assert_eq!(faults.of(0), Some(PageFault { layer: 1, page }), "{planted:?}");
            assert_eq!(faults.of(1), None);
            let half = SHAPE.query_width();
            assert_eq!(out[half..], clean[half..], "the other span is as before");
            assert!(out[..half].iter().all(|x| *x == 0.0), "nothing of the page is seen");
        }
        // Nothing was harmed.
        let again = run(&mut team, &mut store, &[step(&mine), step(&theirs)], &next, &mut faults);
        assert_eq!(again, clean);
    }
}

#[test]
fn a_page_that_was_freed_and_given_away_is_no_longer_read() {
    let table = pages(2, 0, 11);
    let width = SHAPE.qkv_width();
    let ids = [0; 20];
    let mut team = Team::new(2);
    let mut faults = PageFaults::default();
    let mut store = store(2, &[&table]);
    let prompt = Span { ticket: 0, tokens: &ids, position: 0, pages: &table, logits: false };
    run(&mut team, &mut store, &[prompt], &values(20 * width, 5), &mut faults);
    // Freed and reassigned behind the reader's back, then also written by the new holder.
    store.scrub(table[0].page).unwrap();
    let step = Span { ticket: 0, tokens: &ids[..1], position: 20, pages: &table, logits: false };
    run(&mut team, &mut store, &[step], &values(width, 6), &mut faults);
    assert_eq!(faults.of(0), Some(PageFault { layer: 1, page: table[0].page }));
    let other = [PageRef { tag: 99, ..table[0] }];
    store.assign(other[0]).unwrap();
    let new = Span { ticket: 0, tokens: &ids[..3], position: 0, pages: &other, logits: false };
    run(&mut team, &mut store, &[new, step], &values(4 * width, 7), &mut faults);
    assert_eq!((faults.of(0), faults.of(1)), (None, Some(PageFault { layer: 1, page: table[0].page })));
}

#[test]
fn what_was_never_written_is_no_number_and_what_was_is_not_disturbed_by_it() {
    let table = pages(2, 0, 11);
    let width = SHAPE.qkv_width();
    let ids = [0; 20];
    let (prompt, next) = (values(20 * width, 5), values(width, 6));
    for (family, kind) in KernelFamily::ALL.into_iter().flat_map(|family| KvKind::ALL.map(|kind| (family, kind))) {
        let Some(mut team) = Team::with_family(2, family) else { continue };
        let mut store = store_of(kind, 2, &[&table]);
        // In memory that is new, in a page that had another life, and in memory that the system took back in between.
        for again in 0..3 {
            let mut faults = PageFaults::default();
            let span =
                |tokens, position| Span { ticket: 0, tokens: &ids[..tokens], position, pages: &table, logits: false };
            let out = run(&mut team, &mut store, &[span(20, 0)], &prompt, &mut faults);
            assert!(out.iter().all(|value| value.is_finite()), "{family} {kind}, {again}");
            // Positions 20 to 23 are skipped.
            let out = run(&mut team, &mut store, &[span(1, 24)], &next, &mut faults);
            assert!(out.iter().all(|value| value.is_nan()), "{family} {kind}, {again}");
            assert_eq!(faults.of(0), None, "the pages are its own");
            table.iter().for_each(|page| store.scrub(page.page).unwrap());
            if again == 1 {
                store.give_back(0);
            }
            assert!(table.iter().all(|page| store.is_scrubbed(page.page)), "{family} {kind}, {again}");
            table.iter().for_each(|page| store.assign(*page).unwrap());
        }
    }
}

#[test]
fn what_is_not_finite_stays_so_and_spreads_to_no_other_sequence() {
    let (tokens, width) = (300, SHAPE.qkv_width());
    let clean = values(2 * tokens * width, 3);
    let ids = vec![0; tokens];
    let tables = [pages(19, 0, 1), pages(19, 19, 2)];
    let spans = [0, 1].map(|n| Span { ticket: 0, tokens: &ids, position: 0, pages: &tables[n], logits: false });
    let group = SHAPE.heads / SHAPE.kv_heads;
    for family in KernelFamily::ALL {
        let Some(mut team) = Team::with_family(2, family) else { continue };
        let mut compute = |qkv: &[f32]| {
            run(&mut team, &mut store(38, &[&tables[0], &tables[1]]), &spans, qkv, &mut PageFaults::default())
        };
        let wanted = compute(&clean);
        // In the query of head 4, and in the key and value of the second group, of token 20 of the first sequence.
        let key = SHAPE.query_width() + SHAPE.head_dim;
        for (place, heads, seen_until) in [
            (4 * SHAPE.head_dim + 7, 4..5, 21),
            (key + 70, group..2 * group, tokens),
            (key + SHAPE.kv_width() + 3, group..2 * group, tokens),
        ] {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut qkv = clean.clone();
                qkv[20 * width + place] = bad;
                let out = compute(&qkv);
                for row in 0..2 * tokens * SHAPE.heads {
                    let (token, head) = (row / SHAPE.heads, row % SHAPE.heads);
                    let range = row * SHAPE.head_dim..(row + 1) * SHAPE.head_dim;
                    if (20..seen_until).contains(&token) && heads.contains(&head) {
                        assert!(out[range].iter().any(|x| !x.is_finite()), "{family}: {bad} at {place}, token {token}");
                    } else {
                        assert_eq!(out[range.clone()], wanted[range], "{family}: {bad} at {place}, token {token}");
                    }
                }
            }
        }
    }
}
