//! The read-set digest: what attention really read, in one number, and the number that it should be.
//!
//! While attention compares the tag of a page with the reader's, it adds a term for the page, made of the tag that it
//! loaded, to the digest of the span: once for each layer and group of heads, times a factor of theirs. Sums are modulo
//! 2^64 and do not depend on any order. Whoever knows which pages a sequence owns, from another source than the block
//! table that the kernels were given, computes the same number with [`ReadSetRule::expected`], or, from
//! sums that go on as the sequence does, with [`ReadSetRule::expected_by_sums`].
//!
//! Factors are odd and no term is 0 but by a chance of 2^-64: a page that is missing, doubled or exchanged for another in
//! one group of heads of one layer shows; other differences go unseen with a chance of about 2^-64, as long as nobody
//! chooses them against these constants. The price is two multiplications for a page, layer and group of heads.

use crate::kv_store::{PAGE_TOKENS, PageRef};

/// The term of a page that holds `tokens` of its sequence at a place with this factor: see [`place_factor`].
#[inline]
pub(crate) fn page_term(page: PageRef, place: u64, tokens: usize) -> u64 {
    let whose = u64::from(page.page) << 32 | u64::from(page.tag);
    // The upper half of the product depends on all bits: it becomes the lower one, whose differences count most.
    whose.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32).wrapping_add(tokens as u64).wrapping_mul(place)
}

/// The factor of the `index`-th page of a sequence.
#[inline]
pub(crate) fn place_factor(index: usize) -> u64 {
    mix(index as u64) | 1
}

/// The factor of a layer and a group of heads.
#[inline]
pub(crate) fn factor(layer: usize, kv_head: usize) -> u64 {
    mix((layer as u64) << 32 | kv_head as u64 | 1 << 63) | 1
}

/// Tokens that the `index`-th page of a sequence holds when the sequence ends before `end`.
#[inline]
pub(crate) fn tokens_of_page(index: usize, end: usize) -> usize {
    end.saturating_sub(index * PAGE_TOKENS).min(PAGE_TOKENS)
}

/// The first page that the token at `position` sees through a window.
#[inline]
pub(crate) fn first_page(position: usize, window: Option<usize>) -> usize {
    window.map_or(0, |window| (position + 1).saturating_sub(window) / PAGE_TOKENS)
}

/// The finaliser of SplitMix64, a bijection (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators).
#[inline]
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The terms of a sequence's pages, summed up as the sequence gets them: each costs something once, when it comes.
///
/// A page is counted as full. Only the last one that a span reads may not be, and that one is counted anew for each span.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadSums {
    /// Up to and with each page.
    sums: Vec<u64>,
}

impl ReadSums {
    /// Pages that are in it.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.sums.len()
    }

    /// The sequence's next page.
    pub fn push(&mut self, page: PageRef) {
        let index = self.sums.len();
        let term = page_term(page, place_factor(index), PAGE_TOKENS);
        self.sums.push(self.before(index).wrapping_add(term));
    }

    /// Of the pages before the `index`-th.
    fn before(&self, index: usize) -> u64 {
        index.checked_sub(1).map_or(0, |last| self.sums[last])
    }
}

/// How the layers of a model read: what the factors sum up to, for each kind of window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadSetRule {
    /// Each window once, with the sum of the factors of its layers and their heads.
    windows: Vec<(Option<usize>, u64)>,
}

impl ReadSetRule {
    /// For a model with this many groups of heads, whose layers have these windows, in tokens.
    #[must_use]
    pub fn new(kv_heads: usize, layers: impl IntoIterator<Item = Option<usize>>) -> Self {
        let mut windows: Vec<(Option<usize>, u64)> = Vec::new();
        for (layer, window) in layers.into_iter().enumerate() {
            let factors = (0..kv_heads).fold(0u64, |sum, kv_head| sum.wrapping_add(factor(layer, kv_head)));
            match windows.iter_mut().find(|(known, _)| *known == window) {
                Some((_, sum)) => *sum = sum.wrapping_add(factors),
                None => windows.push((window, factors)),
            }
        }
        Self { windows }
    }

    /// The digest of a span of `tokens` (at least 1) from `position` on, in a sequence whose pages have these sums and whose
    /// page of the span's last token is `last`. As [`ReadSetRule::expected`], but the number of pages does not matter.
    ///
    /// # Panics
    /// When the sums lack a page that the span fills.
    #[must_use]
    pub fn expected_by_sums(&self, position: usize, tokens: usize, sums: &ReadSums, last: PageRef) -> u64 {
        let end = position + tokens;
        let (full, rest) = (end / PAGE_TOKENS, end % PAGE_TOKENS);
        let rest = if rest == 0 { 0 } else { page_term(last, place_factor(full), rest) };
        self.windows.iter().fold(0u64, |digest, (window, factors)| {
            let terms = sums.before(full).wrapping_sub(sums.before(first_page(position, *window))).wrapping_add(rest);
            digest.wrapping_add(terms.wrapping_mul(*factors))
        })
    }

    /// The digest of a span of `tokens` (at least 1) from `position` on, in a sequence that owns `pages`, in order. Says
    /// what the digest is, page by page.
    #[must_use]
    pub fn expected(&self, position: usize, tokens: usize, pages: &[PageRef]) -> u64 {
        let end = position + tokens;
        let pages = &pages[..pages.len().min(end.div_ceil(PAGE_TOKENS))];
        self.windows.iter().fold(0u64, |digest, (window, factors)| {
            let first = first_page(position, *window);
            let terms = pages.iter().enumerate().skip(first);
            let terms = terms.map(|(index, page)| page_term(*page, place_factor(index), tokens_of_page(index, end)));
            digest.wrapping_add(terms.fold(0u64, u64::wrapping_add).wrapping_mul(*factors))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(count: u32) -> Vec<PageRef> {
        (0..count).map(|page| PageRef { page: 7 * page, tag: 1_000 + page }).collect()
    }

    #[test]
    fn any_other_set_of_pages_has_another_digest() {
        let rule = ReadSetRule::new(3, [None, Some(40), None]);
        let right = rule.expected(70, 3, &pages(5));
        assert_eq!(rule.expected(70, 3, &pages(6)), right, "a page behind the last token is not read");
        for index in 0..5 {
            let with = |change: fn(&mut PageRef)| {
                let mut other = pages(5);
                change(&mut other[index]);
                rule.expected(70, 3, &other)
            };
            assert_ne!(with(|page| page.tag += 1), right);
            assert_ne!(with(|page| page.page += 1), right);
        }
        let mut swapped = pages(5);
        swapped.swap(1, 2);
        assert_ne!(rule.expected(70, 3, &swapped), right, "the order counts");
        assert_ne!(rule.expected(69, 3, &pages(5)), right, "so does how far the last page is filled");
        assert_ne!(rule.expected(70, 3, &pages(4)), right);
        assert_ne!(ReadSetRule::new(2, [None, Some(40), None]).expected(70, 3, &pages(5)), right);
        assert_ne!(ReadSetRule::new(3, [None, None, None]).expected(70, 3, &pages(5)), right);
    }

    #[test]
    fn one_missing_or_other_term_shows_in_any_layer_and_head() {
        let term = |page, tag| page_term(PageRef { page, tag }, place_factor(4), 16);
        for layer in 0..40 {
            for kv_head in 0..8 {
                let factor = factor(layer, kv_head);
                assert_ne!(term(3, 9).wrapping_mul(factor), 0, "missing, or there twice");
                assert_ne!(term(3, 9).wrapping_mul(factor), term(3, 10).wrapping_mul(factor));
                assert_ne!(term(3, 9).wrapping_mul(factor), term(4, 9).wrapping_mul(factor));
            }
        }
    }

    #[test]
    fn the_sums_of_pages_give_what_the_pages_give() {
        let (all, windows) = (pages(12), [None, Some(1), Some(16), Some(40), Some(1_000)]);
        let mut sums = ReadSums::default();
        all.iter().for_each(|page| sums.push(*page));
        assert_eq!(sums.pages(), 12);
        for rule in [ReadSetRule::new(2, windows), ReadSetRule::new(1, [None]), ReadSetRule::new(3, [Some(17)])] {
            for position in 0..150 {
                for tokens in 1..=12 * PAGE_TOKENS - position {
                    let end = position + tokens;
                    let last = all[(end - 1) / PAGE_TOKENS];
                    let right = rule.expected(position, tokens, &all);
                    assert_eq!(rule.expected_by_sums(position, tokens, &sums, last), right, "{tokens} from {position}");
                    let other = PageRef { tag: last.tag + 1, ..last };
                    assert_eq!(
                        rule.expected_by_sums(position, tokens, &sums, other) == right,
                        end % PAGE_TOKENS == 0,
                        "a full page is in the sums"
                    );
                }
            }
        }
    }

    #[test]
    fn sums_tell_an_exchanged_a_missing_and_a_doubled_page() {
        let (right, rule) = (pages(6), ReadSetRule::new(2, [None]));
        let expected = |pages: &[PageRef]| {
            let mut sums = ReadSums::default();
            pages.iter().for_each(|page| sums.push(*page));
            rule.expected_by_sums(80, 1, &sums, pages[5])
        };
        let digest = rule.expected(80, 1, &right);
        assert_eq!(expected(&right), digest);
        for index in 0..4 {
            let with = |change: &dyn Fn(&mut Vec<PageRef>)| {
                let mut other = right.clone();
                change(&mut other);
                expected(&other)
            };
            assert_ne!(with(&|pages| pages.swap(index, index + 1)), digest);
            assert_ne!(with(&|pages| pages[index].tag += 1), digest);
            assert_ne!(with(&|pages| pages[index] = pages[index + 1]), digest, "doubled, and one missing");
        }
    }

    #[test]
    fn pages_that_only_the_first_tokens_of_a_span_see_count_too() {
        let rule = ReadSetRule::new(1, [Some(16)]);
        let right = rule.expected(16, 112, &pages(8));
        for index in 0..8 {
            let mut other = pages(8);
            other[index].tag += 1;
            assert_ne!(rule.expected(16, 112, &other), right, "page {index}");
        }
        let mut other = pages(8);
        other[0].tag += 1;
        assert_eq!(rule.expected(31, 97, &other), rule.expected(31, 97, &pages(8)), "position 31 sees 16 to 31");
    }

    #[test]
    fn no_two_pages_of_a_long_sequence_can_change_places_unseen() {
        let rule = ReadSetRule::new(1, [None]);
        // The tags are alike in the worst way: all the same, and the pages differ in one bit.
        let pages: Vec<PageRef> = (0..600).map(|page| PageRef { page: page << 7, tag: 1 }).collect();
        let right = rule.expected(600 * PAGE_TOKENS - 1, 1, &pages);
        for first in (0..600).step_by(7) {
            for second in first + 1..600 {
                let place = |index: usize, page: usize| page_term(pages[page], place_factor(index), PAGE_TOKENS);
                let before = place(first, first).wrapping_add(place(second, second));
                let after = place(first, second).wrapping_add(place(second, first));
                assert_ne!(before, after, "{first} and {second}");
            }
        }
        let mut swapped = pages;
        swapped.swap(3, 400);
        assert_ne!(rule.expected(600 * PAGE_TOKENS - 1, 1, &swapped), right);
    }
}
