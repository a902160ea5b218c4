//! The real model under random schedules: the logits of a token have the bits of one token at a time, on one thread,
//! whoever shares its run, however its prompt was cut, wherever its pages lie, and when it lost them and was computed anew.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "../src/test_model.rs"]
mod test_model;

use std::sync::{Arc, OnceLock};

use engine_model::{Forward, KernelFamily, KvShape, KvStore, Model, PAGE_TOKENS, PageRef, Span};
use proptest::prelude::*;

/// Tokens of each sequence: over several pages, and none of a whole number of them.
const TOKENS: [usize; 3] = [21, 53, 90];
const PAGES: u32 = 24;
const RUN_TOKENS_MAX: usize = 64;

fn model() -> &'static Arc<Model> {
    static MODEL: OnceLock<Arc<Model>> = OnceLock::new();
    MODEL.get_or_init(|| Arc::new(Model::load(&test_model::path(), 2).unwrap()))
}

fn store() -> KvStore {
    let config = model().config();
    let shape =
        KvShape { layers: config.layers, kv_heads: config.kv_heads, head_dim: config.head_dim, pages: PAGES as usize };
    KvStore::new(shape).unwrap()
}

/// Ordinary text, so that logits differ from place to place.
fn prompts() -> &'static [Vec<u32>; 3] {
    static PROMPTS: OnceLock<[Vec<u32>; 3]> = OnceLock::new();
    PROMPTS.get_or_init(|| {
        let text = "When the ship came in, nobody on the quay was sure what it carried: corn, coal or 1,250 letters. ";
        let tokens = model().tokenizer().encode(&text.repeat(8), false).unwrap();
        [0, 1, 2].map(|number| tokens[number * 7..][..TOKENS[number]].to_vec())
    })
}

fn bits(logits: &[f32]) -> Vec<u32> {
    assert!(logits.iter().all(|logit| logit.is_finite()));
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// The bits of every position of every prompt, one token at a time.
fn reference() -> &'static [Vec<Vec<u32>>; 3] {
    static REFERENCE: OnceLock<[Vec<Vec<u32>>; 3]> = OnceLock::new();
    REFERENCE.get_or_init(|| {
        let mut forward = Forward::new(Arc::clone(model()), 1, 1);
        [0, 1, 2].map(|number| {
            let mut store = store();
            let pages: Vec<PageRef> = (0..PAGES).map(|page| PageRef { page, tag: 1 }).collect();
            pages.iter().for_each(|page| store.assign(*page).unwrap());
            let mut all = Vec::new();
            for (position, token) in prompts()[number].iter().enumerate() {
                let span = Span { ticket: 0, tokens: &[*token], position, pages: &pages, logits: true };
                forward.run(&mut store, &[span], &|| false).unwrap();
                all.push(bits(forward.logits(0, 0).unwrap()));
            }
            all
        })
    })
}

#[derive(Default)]
struct Sequence {
    done: usize,
    pages: Vec<PageRef>,
}

/// Pages that nobody has, and tags that nobody had.
struct Pool {
    free: Vec<u32>,
    tag: u32,
}

impl Pool {
    fn take(&mut self, store: &mut KvStore, tokens: usize, place: usize) -> Vec<PageRef> {
        self.tag += 1;
        let take = |_| {
            let page = PageRef { page: self.free.remove(place % self.free.len()), tag: self.tag };
            store.assign(page).unwrap();
            page
        };
        (0..tokens.div_ceil(PAGE_TOKENS)).map(take).collect()
    }

    fn give_back(&mut self, store: &mut KvStore, pages: Vec<PageRef>) {
        for PageRef { page, .. } in pages {
            store.scrub(page).unwrap();
            self.free.push(page);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, max_shrink_iters: 20, ..ProptestConfig::default() })]

    #[test]
    fn the_real_model_gives_the_bits_of_the_serial_reference_under_any_schedule(
        threads in 1usize..4,
        family in 0..KernelFamily::ALL.len(),
        choices in proptest::collection::vec(any::<u16>(), 48),
    ) {
        // Plain Rust takes a second for a few tokens: the small random models are for that one.
        let fast = KernelFamily::ALL[family] != KernelFamily::Scalar;
        let forward = fast.then(|| Forward::with_family(Arc::clone(model()), threads, RUN_TOKENS_MAX, KernelFamily::ALL[family]));
        let mut forward = forward.flatten().unwrap_or_else(|| Forward::new(Arc::clone(model()), threads, RUN_TOKENS_MAX));
        // The turn is mixed in, so that no series of choices stands still.
        let mut choices = (0usize..).zip(choices.into_iter().cycle()).map(|(turn, choice)| turn / 48 + usize::from(choice));
        let mut choose = |count: usize| choices.next().map_or(0, |choice| choice % count);
        let (mut store, mut pool) = (store(), Pool { free: (0..PAGES).collect(), tag: 0 });
        let mut sequences = [(); 3].map(|()| Sequence::default());
        let mut preemptions = 3;
        while (0..3).any(|number| sequences[number].done < TOKENS[number]) {
            let mut spans: Vec<(usize, usize, usize)> = Vec::new();
            let mut room = RUN_TOKENS_MAX;
            for place in 0..3 {
                // In any order: whoever comes first in a run is not always the same.
                let number = (place + choose(3)) % 3;
                let sequence = &mut sequences[number];
                if spans.iter().any(|&(other, ..)| other == number) {
                    continue;
                }
                if sequence.done > 0 && preemptions > 0 && choose(5) == 0 {
                    preemptions -= 1;
                    sequence.done = 0;
                    pool.give_back(&mut store, std::mem::take(&mut sequence.pages));
                }
                if sequence.pages.is_empty() {
                    sequence.pages = pool.take(&mut store, TOKENS[number], choose(7));
                }
                let count = [0, 1, 1 + choose(20), RUN_TOKENS_MAX][choose(4)].min(TOKENS[number] - sequence.done).min(room);
                if count > 0 {
                    spans.push((number, sequence.done, count));
                    sequence.done += count;
                    room -= count;
                }
            }
            let run: Vec<Span<'_>> = spans.iter().map(|&(number, position, count)| {
                let tokens = &prompts()[number][position..][..count];
                Span { ticket: 0, tokens, position, pages: &sequences[number].pages, logits: true }
            }).collect();
            forward.run(&mut store, &run, &|| false).unwrap();
            for (span, &(number, position, count)) in spans.iter().enumerate() {
                let wanted = &reference()[number][position + count - 1];
                prop_assert_eq!(&bits(forward.logits(span, 0).unwrap()), wanted, "sequence {}, {:?}", number, spans);
            }
        }
    }
}
