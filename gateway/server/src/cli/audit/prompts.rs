//! Prompts that nobody has sent before, and chance that a seed repeats.

/// Words that most tokenizers write as one token. As many as six bits tell apart: the first page of a prompt, 16 tokens, has
/// 2^96 possible contents, and two of them begin alike by chance never.
const WORDS: [&str; 64] = [
    "able", "area", "back", "bank", "base", "bear", "blue", "body", "book", "call", "card", "case", "city", "cold",
    "cost", "dark", "data", "deep", "door", "down", "draw", "east", "face", "fall", "farm", "fish", "food", "foot",
    "form", "game", "gold", "good", "hand", "hard", "head", "hill", "home", "hope", "kind", "lake", "land", "late",
    "life", "line", "long", "main", "mind", "moon", "name", "north", "page", "park", "past", "rain", "road", "rock",
    "room", "ship", "snow", "south", "star", "time", "tree", "wind",
];

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): the same numbers from the same seed in every release.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to `bound`, which is excluded and far below 2^32: the bias is below 2^-32.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (((self.next() >> 32) * bound as u64) >> 32) as usize
    }

    pub(crate) fn coin(&mut self) -> bool {
        self.next() >> 63 == 1
    }
}

/// Makes prompts.
pub(crate) struct Prompts {
    pub(crate) random: Random,
    /// Of this gateway's tokenizer, as measured.
    tokens_per_word: f64,
}

impl Prompts {
    pub(crate) fn new(random: Random) -> Self {
        Self { random, tokens_per_word: 1.0 }
    }

    /// What a prompt of so many words came to in tokens.
    pub(crate) fn calibrate(&mut self, words: usize, tokens: u64) {
        self.tokens_per_word = (tokens as f64 / words as f64).max(0.1);
    }

    fn words_for(&self, tokens: usize) -> usize {
        (tokens as f64 / self.tokens_per_word).ceil() as usize
    }

    /// So many words that nobody has sent before.
    pub(crate) fn words(&mut self, count: usize) -> String {
        let mut text = String::new();
        for _ in 0..count {
            text.push_str(if text.is_empty() { "" } else { " " });
            text.push_str(WORDS[self.random.below(WORDS.len())]);
        }
        text
    }

    /// About so many tokens that nobody has sent before.
    pub(crate) fn fresh(&mut self, tokens: usize) -> String {
        let words = self.words_for(tokens);
        self.words(words)
    }

    /// A prompt that goes on with an end of its own.
    pub(crate) fn ending(&mut self, prefix: &str, tokens: usize) -> String {
        format!("{prefix} {}", self.fresh(tokens))
    }

    /// About so many tokens that say the same few words again and again.
    pub(crate) fn repetitive(&mut self, tokens: usize, period: usize) -> String {
        let phrase = self.words(period);
        vec![phrase; self.words_for(tokens).div_ceil(period)].join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_the_published_one() {
        let mut random = Random::new(1_234_567);
        let published = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423_u64];
        assert_eq!([random.next(), random.next(), random.next()], published);
    }

    #[test]
    fn prompts_of_a_seed_are_the_same_and_of_another_seed_others() {
        let prompts = |seed| {
            let mut prompts = Prompts::new(Random::new(seed));
            [prompts.fresh(20), prompts.fresh(20)]
        };
        assert_eq!(prompts(1), prompts(1));
        assert_ne!(prompts(1), prompts(2));
        assert_ne!(prompts(1)[0], prompts(1)[1]);
    }

    #[test]
    fn a_prompt_has_as_many_tokens_as_wanted_when_words_have_several() {
        let mut prompts = Prompts::new(Random::new(1));
        prompts.calibrate(200, 300);
        assert_eq!(prompts.fresh(512).split(' ').count(), 342);
        let repeated = prompts.repetitive(30, 5);
        assert_eq!(repeated.split(' ').count(), 20);
        assert_eq!(repeated.split(' ').next(), repeated.split(' ').nth(5));
    }
}
