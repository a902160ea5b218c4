//! Guesses at what a request says next: what followed when it said the same before (prompt lookup).
//!
//! A guess is a token of the request's own prompt or answer, found by the phrase in front of it; nothing of anybody else is
//! ever looked at. What is kept are places, not tokens: even the places of another request would give guesses of one's own
//! tokens. Guesses are verified in one step, all together, and change no bit of an answer. How many are made follows from how
//! many of the request's own turned out right, from the rows that share the pass and from what a row costs on this machine, and
//! from nothing else.
//!
//! Source: prompt lookup decoding (Saxena 2023), verified as in speculative decoding, arXiv:2211.17192, with the one
//! difference that a guess is right when the sampler itself draws it.

/// Rows of a pass with guesses, sure ones included: as many as the widest matrix kernel takes at once.
pub(crate) const ROWS_MAX: usize = 8;
/// Guesses of one request in one step.
pub(crate) const GUESSES_MAX: usize = ROWS_MAX - 1;
/// Tokens of the phrases that are looked up, the surer ones first.
const PHRASES: [usize; 2] = [3, 2];
/// Places that are remembered, for the longest contexts: 256 KiB. Among more, later ones take the place of earlier ones.
const PLACES_MAX: usize = 1 << 16;
/// For the shortest contexts.
const PLACES_MIN: usize = 1 << 8;
/// A guess has to bring this many times what its row costs: sampling, and the pages that are looked at, are in no row's cost.
const GAIN_MIN: f32 = 1.1;
/// Rates begin here, so that the first phrase that is found is followed at once where that is cheap.
const RATE_AT_FIRST: f32 = 0.5;
/// How fast a rate follows: two wrong guesses in the beginning are enough to stop.
const RATE_WEIGHT: f32 = 0.25;
/// When guesses do not pay, one is made all the same after so many that were not: what is said may have changed. Twice as many
/// after each of these that was wrong, and no more than the latter, so that new text costs less than a hundredth of its passes.
const PROBE_AFTER: [u32; 2] = [16, 128];

/// The guesses of one request.
pub(crate) struct Draft {
    /// Length at which the request's response is cut.
    tokens_max: usize,
    /// By a phrase's number, the place of what followed it when it was said last; 0: it was not, or is forgotten.
    places: Vec<u32>,
    /// So many of the request's tokens are in `places`.
    known: usize,
    guesses: [u32; GUESSES_MAX],
    made: usize,
    /// Which one of [`PHRASES`] found them.
    phrase: usize,
    /// The part of the guesses after a phrase of each kind that turned out right lately.
    rates: [f32; PHRASES.len()],
    /// Times that there was something to guess and nothing was guessed, one after the other.
    held_back: u32,
    /// After how many of them one is guessed all the same.
    probe_after: u32,
}

impl Draft {
    /// Of a request whose response is cut at so many tokens, prompt included. Takes no memory before it is asked.
    pub(crate) fn new(tokens_max: usize) -> Self {
        Self {
            tokens_max,
            places: Vec::new(),
            known: 0,
            guesses: [0; GUESSES_MAX],
            made: 0,
            phrase: 0,
            rates: [RATE_AT_FIRST; PHRASES.len()],
            held_back: 0,
            probe_after: PROBE_AFTER[0],
        }
    }

    /// Guesses what follows the request's `tokens`, where that pays in a pass of so many sure `rows`, when a row adds
    /// `row_part` of what a pass of one row takes; gives how many guesses it made. `tokens` go on where they ended before.
    pub(crate) fn make(&mut self, tokens: &[u32], rows: usize, row_part: f32) -> usize {
        self.made = 0;
        // The last token of a response needs no row.
        let room = share(rows).min(self.tokens_max.saturating_sub(tokens.len() + 1));
        if room == 0 {
            return 0;
        }
        self.learn_phrases(tokens);
        let Some((phrase, place)) = self.look_up(tokens) else { return 0 };
        self.phrase = phrase;
        let made = self.worthwhile(rows, row_part, room);
        for guess in 0..made {
            // What repeats itself without an end is followed past the end of what there is.
            let next = tokens.get(place + guess).or_else(|| self.guesses.get(place + guess - tokens.len()));
            self.guesses[guess] = next.copied().unwrap_or_default();
        }
        self.made = made;
        made
    }

    /// As they were made last, in order.
    pub(crate) fn guesses(&self) -> &[u32] {
        &self.guesses[..self.made]
    }

    /// Lets go of all guesses but the first ones.
    pub(crate) fn shorten(&mut self, left: usize) {
        self.made = self.made.min(left);
    }

    /// So many of the guesses turned out right, from the first one on, and the one behind them, if there was one, was wrong.
    pub(crate) fn learn(&mut self, right: usize) {
        let rate = &mut self.rates[self.phrase];
        for _ in 0..right.min(self.made) {
            *rate += RATE_WEIGHT * (1.0 - *rate);
        }
        if right < self.made {
            *rate -= RATE_WEIGHT * *rate;
        }
        if self.made > 0 {
            let [least, most] = PROBE_AFTER;
            self.probe_after = if right > 0 { least } else { (2 * self.probe_after).min(most) };
        }
        self.made = 0;
    }

    /// Gives its memory back; it is made anew when guesses are wanted again.
    pub(crate) fn rest(&mut self) {
        (self.places, self.known, self.made) = (Vec::new(), 0, 0);
    }

    /// Remembers what followed each phrase. Each token costs something once.
    fn learn_phrases(&mut self, tokens: &[u32]) {
        if self.places.is_empty() {
            let places = (PHRASES.len() * self.tokens_max).next_power_of_two().clamp(PLACES_MIN, PLACES_MAX);
            self.places = vec![0; places];
        }
        for place in self.known..tokens.len() {
            for length in PHRASES {
                if let Some(phrase) = place.checked_sub(length).and_then(|first| tokens.get(first..place)) {
                    let number = self.number(phrase);
                    self.places[number] = u32::try_from(place).unwrap_or_default();
                }
            }
        }
        self.known = tokens.len();
    }

    /// The longest phrase that the tokens end with and that was followed by something before: which one, and the place of
    /// what followed it last.
    fn look_up(&self, tokens: &[u32]) -> Option<(usize, usize)> {
        PHRASES.into_iter().enumerate().find_map(|(kind, length)| {
            let phrase = &tokens[tokens.len().checked_sub(length)?..];
            let place = self.places[self.number(phrase)] as usize;
            // Phrases may have the same number.
            (tokens.get(place.checked_sub(length)?..place)? == phrase).then_some((kind, place))
        })
    }

    /// How many guesses are worth their rows: each is right less often than the one in front of it, and the next one has to
    /// give more for its row than the pass gives without it.
    fn worthwhile(&mut self, rows: usize, row_part: f32, room: usize) -> usize {
        let (rate, rows) = (self.rates[self.phrase], rows as f32);
        let (mut chance, mut expected, mut cost) = (rate, rows, 1.0 + (rows - 1.0) * row_part);
        let mut guesses = 0;
        while guesses < room && chance * cost > expected * row_part * GAIN_MIN {
            guesses += 1;
            expected += chance;
            cost += row_part;
            chance *= rate;
        }
        let probes = guesses == 0 && self.held_back >= self.probe_after;
        self.held_back = if guesses > 0 || probes { 0 } else { self.held_back + 1 };
        guesses.max(usize::from(probes))
    }

    fn number(&self, phrase: &[u32]) -> usize {
        // Fibonacci hashing, token by token; the length tells phrases apart that begin alike.
        let mix =
            |hash: u64, token: &u32| (hash ^ u64::from(*token)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        phrase.iter().fold((phrase.len() as u64) << 32, mix) as usize & (self.places.len() - 1)
    }
}

/// Guesses that each of so many rows may have.
fn share(rows: usize) -> usize {
    ROWS_MAX.saturating_sub(rows).checked_div(rows).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Of the default model on two cores.
    const ROW_PART: f32 = 0.3;

    /// With every guess that there is room for.
    fn sure(tokens_max: usize) -> Draft {
        let mut draft = Draft::new(tokens_max);
        draft.rates = [1.0; PHRASES.len()];
        draft
    }

    fn guessed(tokens: &[u32]) -> Vec<u32> {
        let mut draft = sure(100);
        draft.make(tokens, 1, ROW_PART);
        draft.guesses().to_vec()
    }

    #[test]
    fn what_followed_the_same_phrase_last_is_guessed() {
        assert_eq!(guessed(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]), [4, 5, 6, 7, 8, 9, 1]);
        assert_eq!(guessed(&[1, 2, 3, 4, 0, 1, 2, 3, 5, 0, 1, 2, 3])[..2], [5, 0], "the latest of two");
        assert_eq!(guessed(&[1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3])[..2], [4, 9], "the longer phrase, though it is older");
        assert_eq!(guessed(&[2, 3, 4, 1, 2, 3])[..3], [4, 1, 2], "two tokens are enough");
        assert_eq!(guessed(&[7, 7, 7, 7]), [7; 7], "what repeats itself goes on");
        assert_eq!(guessed(&[1, 2, 1, 2, 1]), [2, 1, 2, 1, 2, 1, 2]);
        for nothing in [&[][..], &[1], &[1, 1], &[1, 2, 3, 4], &[5, 1, 6, 1]] {
            assert!(guessed(nothing).is_empty(), "{nothing:?}");
        }
    }

    #[test]
    fn guesses_end_with_the_answer_and_leave_room_for_others() {
        let tokens = [1, 2, 3, 1, 2, 3, 1, 2, 3];
        // With one token left, the sure row gives it.
        for (tokens_max, guesses) in [(9, 0), (10, 0), (11, 1), (13, 3), (100, 7)] {
            assert_eq!(sure(tokens_max).make(&tokens, 1, ROW_PART), guesses, "{tokens_max}");
        }
        let of = |rows| sure(100).make(&tokens, rows, ROW_PART);
        assert_eq!([1, 2, 3, 4, 5, 8, 9, 64].map(of), [7, 3, 1, 1, 0, 0, 0, 0]);
        assert_eq!(of(0), 0);
        assert!((1..100).all(|rows| rows >= ROWS_MAX || rows * (1 + of(rows)) <= ROWS_MAX));
    }

    #[test]
    fn who_guesses_wrong_stops_and_tries_again_ever_less() {
        let (mut draft, tokens) = (Draft::new(1000), [1, 2, 3, 1, 2, 3]);
        let mut made = Vec::new();
        for _ in 0..1000 {
            made.push(draft.make(&tokens, 1, ROW_PART));
            draft.learn(0);
        }
        assert_eq!(made[..4], [1, 1, 0, 0]);
        let probes: Vec<usize> = (2..1000).filter(|at| made[*at] > 0).collect();
        assert_eq!(probes[..4], [66, 195, 324, 453], "after 64 that were not made, and 128 ever after");
        // And who guesses right gets bold.
        let mut made = Vec::new();
        for _ in 0..200 {
            let guesses = draft.make(&tokens, 1, ROW_PART);
            made.push(guesses);
            draft.learn(guesses);
        }
        assert_eq!(made[190..], [7; 10]);
        // From then on a wrong one costs the first pause again, and the first longer one.
        let mut made = Vec::new();
        for _ in 0..80 {
            made.push(draft.make(&tokens, 1, ROW_PART));
            draft.learn(0);
        }
        let wrong = made.iter().take_while(|guesses| **guesses > 0).count();
        assert!(wrong < 6, "{made:?}");
        assert!(made[wrong..].iter().sum::<usize>() <= 1);
    }

    #[test]
    fn a_guess_has_to_be_surer_when_others_share_the_pass_or_rows_are_dear() {
        let tokens = [1, 2, 3, 1, 2, 3];
        let made = |rate: f32, rows, row_part| {
            let mut draft = sure(100);
            draft.rates = [rate; 2];
            draft.make(&tokens, rows, row_part)
        };
        let of = |rows, row_part| [0.2, 0.4, 0.6, 0.8, 0.9, 1.0].map(|rate| made(rate, rows, row_part));
        assert_eq!(of(1, ROW_PART), [0, 1, 1, 3, 4, 7]);
        assert_eq!(of(2, ROW_PART), [0, 0, 1, 2, 3, 3]);
        assert_eq!(of(4, ROW_PART), [0, 0, 0, 1, 1, 1]);
        assert_eq!(of(1, 0.02), [2, 3, 5, 7, 7, 7]);
        assert_eq!(of(1, 0.6), [0, 0, 0, 1, 2, 6]);
        assert_eq!(of(1, 1.0), [0; 6], "a row for each token is what there is without guesses");
    }

    #[test]
    fn memory_is_bounded_and_comes_back() {
        let mut draft = sure(10 << 20);
        let tokens: Vec<u32> = (0..200_000).map(|place| place % 5_000).collect();
        assert!(draft.make(&tokens, 1, ROW_PART) == 7 && draft.places.len() == PLACES_MAX);
        assert_eq!(draft.guesses(), [0, 1, 2, 3, 4, 5, 6]);
        draft.rest();
        assert_eq!((draft.places.capacity(), draft.guesses()), (0, &[][..]));
        assert_eq!(draft.make(&tokens, 1, ROW_PART), 7, "and is there again when it is wanted");
        assert_eq!(sure(5).places.len(), 0);
    }

    proptest! {
        /// Whatever was said: a guess is what followed the phrase when it was said last, as a plain search finds it.
        #[test]
        fn guesses_are_what_a_plain_search_finds(tokens in prop::collection::vec(0u32..4, 0..60), step in 1usize..5) {
            // So many places that no two of these phrases have the same.
            let mut draft = sure(1 << 20);
            for end in (0..=tokens.len()).step_by(step) {
                let tokens = &tokens[..end];
                let found = PHRASES.iter().find_map(|length| {
                    let phrase = &tokens[tokens.len().checked_sub(*length)?..];
                    (*length..tokens.len()).rev().find(|place| &tokens[place - length..*place] == phrase)
                });
                let mut wanted = tokens.to_vec();
                if let Some(place) = found {
                    (place..place + 7).for_each(|place| wanted.push(wanted[place]));
                }
                draft.make(tokens, 1, ROW_PART);
                prop_assert_eq!(draft.guesses(), &wanted[end..], "{:?}", tokens);
            }
        }
    }
}
