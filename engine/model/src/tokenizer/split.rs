//! Pre-tokenizers: where text is cut before merging. No token ever crosses a cut.
//!
//! Each is a list of patterns, applied one after the other: what a pattern matches becomes a piece, and so does what
//! lies between two matches. The published patterns end in `\s+(?!\S)`, which needs look-ahead; here that alternative
//! is `\s+` and [`Pattern::cut`] gives the last character back, so that a linear-time engine can run them.
//! Sources: the tokenizers of GPT-2, Llama 3, Qwen 2 and SmolLM, under the names that llama.cpp gave them.

use regex::Regex;

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";
const LLAMA3: &str = concat!(
    r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
);
const QWEN2: &str = concat!(
    r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
);
/// As above, but the case of contractions is ignored as Unicode has it: the long s is one.
const LLAMA3_FOLDED: &str = concat!(
    r"'[sS\u{17f}]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
);
const QWEN2_FOLDED: &str = concat!(
    r"'[sS\u{17f}]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
);
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+"
);

/// What follows a run of white space that a pattern's last alternative, `\s+`, matched.
#[derive(Clone, Copy)]
enum White {
    /// The pattern has no such alternative.
    Plain,
    /// The run leaves its last character to the word after it.
    Lookahead,
    /// The same, but a run that ends in a line end came from `\s*[\r\n]+` and is whole.
    LookaheadAfterLines,
}

struct Pattern {
    regex: Regex,
    white: White,
}

/// A pattern as `tokenizer.json` names it.
#[derive(Clone, Copy)]
pub(super) struct Rule {
    pattern: &'static str,
    white: White,
}

impl Rule {
    /// Every number character on its own.
    pub(super) fn digit() -> Self {
        Self { pattern: r"\p{N}", white: White::Plain }
    }

    /// GPT-2's words.
    pub(super) fn gpt2() -> Self {
        Self { pattern: GPT2, white: White::Lookahead }
    }

    /// A pattern word by word as its makers published it; `None` for any other.
    pub(super) fn published(pattern: &str) -> Option<Self> {
        const END: &str = r"|\s*[\r\n]+|\s+(?!\S)|\s+";
        const LLAMA3: &str =
            concat!(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}", r"| ?[^\s\p{L}\p{N}]+[\r\n]*");
        const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*";
        let words = |pattern| Some(Self { pattern, white: White::LookaheadAfterLines });
        if pattern == format!("{}|\\s+(?!\\S)|\\s+", GPT2.trim_end_matches(r"|\s+")) {
            return Some(Self::gpt2());
        }
        match pattern.strip_suffix(END)? {
            LLAMA3 => words(LLAMA3_FOLDED),
            QWEN2 => words(QWEN2_FOLDED),
            rest if TEKKEN.strip_prefix(rest) == Some(r"|\s*[\r\n]+|\s+") => words(TEKKEN),
            _ => None,
        }
    }
}

/// A pre-tokenizer.
pub(super) struct Split {
    patterns: Vec<Pattern>,
    /// A piece that is a token as a whole is that token, whatever the merges say (Llama 3).
    pub(super) whole_pieces_first: bool,
    /// What a file means that does not say whether prompts begin with BOS.
    pub(super) adds_bos: bool,
}

impl Split {
    /// The pre-tokenizer of that name in `tokenizer.ggml.pre`; `None` when it is not known.
    pub(super) fn named(name: &str) -> Option<Self> {
        let plain: fn(&'static str) -> (&'static str, White) = |source| (source, White::Plain);
        let words = |source| (source, White::LookaheadAfterLines);
        let patterns = match name {
            "smollm" | "starcoder" => vec![plain(r"\p{N}"), (GPT2, White::Lookahead)],
            "gpt-2" | "olmo" => vec![(GPT2, White::Lookahead)],
            "llama-bpe" | "llama3" | "llama-v3" | "falcon3" => vec![words(LLAMA3)],
            // SmolLM3's files say `smaug-bpe`.
            "smaug-bpe" | "dbrx" => vec![words(LLAMA3)],
            "qwen2" | "deepseek-r1-qwen" => vec![words(QWEN2)],
            "tekken" => vec![words(TEKKEN)],
            "default" => {
                let punctuation = plain(r"[\p{P}$+<=>^~|]+");
                vec![punctuation, (GPT2, White::Lookahead), plain(r"\p{N}+"), plain(r"[0-9][0-9][0-9]")]
            }
            _ => return None,
        };
        let is_llama3_or_tekken = matches!(name, "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "tekken");
        Self::of(&patterns, is_llama3_or_tekken)
    }

    /// By the rules of a `tokenizer.json`.
    pub(super) fn of_rules(rules: &[Rule], whole_pieces_first: bool) -> Option<Self> {
        Self::of(&rules.iter().map(|rule| (rule.pattern, rule.white)).collect::<Vec<_>>(), whole_pieces_first)
    }

    fn of(patterns: &[(&str, White)], whole_pieces_first: bool) -> Option<Self> {
        let patterns = patterns
            .iter()
            .map(|&(source, white)| Some(Pattern { regex: Regex::new(source).ok()?, white }))
            .collect::<Option<_>>()?;
        Some(Self { patterns, whole_pieces_first, adds_bos: whole_pieces_first })
    }

    /// The patterns, one a line, for a digest of them.
    pub(super) fn description(&self) -> String {
        self.patterns.iter().map(|pattern| format!("{}\n", pattern.regex.as_str())).collect()
    }

    /// Calls `piece` for every piece of `text`, in order; together they are the text.
    pub(super) fn pieces(&self, text: &str, piece: &mut impl FnMut(&str)) {
        split(&self.patterns, text, piece);
    }
}

/// Depth is the number of patterns, at most four.
fn split(patterns: &[Pattern], text: &str, piece: &mut impl FnMut(&str)) {
    if text.is_empty() {
        return;
    }
    let Some((pattern, rest)) = patterns.split_first() else { return piece(text) };
    let mut from = 0;
    while let Some(found) = pattern.regex.find_at(text, from) {
        let end = pattern.cut(text, found.start(), found.end());
        split(rest, &text[from..found.start()], piece);
        split(rest, &text[found.start()..end], piece);
        from = end;
    }
    split(rest, &text[from..], piece);
}

impl Pattern {
    /// Where the match from `start` to `end` is cut: `\s+(?!\S)` keeps all of a run at the end of the text, all but
    /// the last character of a longer run, and does not match a single character, for which `\s+` then stands in.
    fn cut(&self, text: &str, start: usize, end: usize) -> usize {
        let run = &text[start..end];
        let last = run.chars().next_back().unwrap_or('x');
        let trimmed = end - last.len_utf8();
        let looks_ahead = match self.white {
            White::Plain => false,
            // No other alternative ends in white space, but for the line ends of Llama 3.
            White::Lookahead => last.is_whitespace(),
            White::LookaheadAfterLines => last.is_whitespace() && last != '\r' && last != '\n',
        };
        if looks_ahead && end < text.len() && trimmed > start { trimmed } else { end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, text: &str, wanted: &[&str]) {
        let mut pieces = Vec::new();
        Split::named(name).unwrap().pieces(text, &mut |piece| pieces.push(piece.to_owned()));
        assert_eq!(pieces, wanted, "{name}: {text:?}");
    }

    #[test]
    fn unknown_names_are_refused() {
        for name in ["", "gpt2", "SMOLLM", "deepseek-llm"] {
            assert!(Split::named(name).is_none(), "{name}");
        }
    }

    #[test]
    fn a_run_of_white_space_leaves_its_last_character_to_the_word() {
        check("gpt-2", "a   b", &["a", "  ", " b"]);
        check("gpt-2", "a   ", &["a", "   "]);
        check("gpt-2", "a\tb", &["a", "\t", "b"]);
        check("gpt-2", "a\t b", &["a", "\t", " b"]);
        check("gpt-2", "a\u{3000}\u{3000}b", &["a", "\u{3000}", "\u{3000}", "b"]);
        check("gpt-2", "a\n\nb", &["a", "\n", "\n", "b"]);
        check("llama-bpe", "a \n\n  b", &["a", " \n\n", " ", " b"]);
        check("llama-bpe", "a.\n\nb", &["a", ".\n\n", "b"]);
    }

    #[test]
    fn digits_are_cut_as_each_vocabulary_expects() {
        check("smollm", "a 123", &["a", " ", "1", "2", "3"]);
        check("gpt-2", "a 123", &["a", " 123"]);
        check("llama-bpe", "a 1234", &["a", " ", "123", "4"]);
        check("qwen2", "12", &["1", "2"]);
        check("default", "x 1234", &["x", " ", "123", "4"]);
    }

    #[test]
    fn contractions_ignore_case_only_where_the_vocabulary_does() {
        check("gpt-2", "I'LL I'll", &["I", "'", "LL", " I", "'ll"]);
        check("llama-bpe", "I'LL", &["I", "'LL"]);
    }
}
