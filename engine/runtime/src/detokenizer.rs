//! Token bytes to text: whole characters only, and nothing that could still become a stop string.

/// Text that became final with one token.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Detokenized {
    pub(crate) text: String,
    /// A stop string was met; the text ends before it.
    pub(crate) stopped: bool,
}

/// The tail of one response that is not final yet.
pub(crate) struct Detokenizer {
    /// Bounded: shorter than the longest stop string plus one character plus one token.
    pending: Vec<u8>,
    stops: Vec<Vec<u8>>,
}

impl Detokenizer {
    /// Empty stop strings are ignored: they would stop everything.
    pub(crate) fn new(stops: &[String]) -> Self {
        let stops = stops.iter().filter(|stop| !stop.is_empty()).map(|stop| stop.clone().into_bytes()).collect();
        Self { pending: Vec::new(), stops }
    }

    /// Takes the bytes of one token.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Detokenized {
        self.pending.extend_from_slice(bytes);
        if let Some(end) = self.stops.iter().filter_map(|stop| find(&self.pending, stop)).min() {
            let text = String::from_utf8_lossy(&self.pending[..end]).into_owned();
            self.pending.clear();
            return Detokenized { text, stopped: true };
        }
        let open = self.stops.iter().map(|stop| open_prefix(&self.pending, stop)).max().unwrap_or(0);
        Detokenized { text: self.take_characters(self.pending.len() - open), stopped: false }
    }

    /// The response ends: whatever is held is final now. An unfinished character becomes U+FFFD.
    pub(crate) fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        text
    }

    /// Takes whole characters from the first `limit` bytes; bytes that can never become one turn into U+FFFD.
    fn take_characters(&mut self, limit: usize) -> String {
        let mut text = String::new();
        let mut start = 0;
        while start < limit {
            match std::str::from_utf8(&self.pending[start..limit]) {
                Ok(valid) => {
                    text.push_str(valid);
                    start = limit;
                }
                Err(error) => {
                    let valid = start + error.valid_up_to();
                    text.push_str(&String::from_utf8_lossy(&self.pending[start..valid]));
                    start = valid;
                    let Some(invalid) = error.error_len() else { break };
                    text.push(char::REPLACEMENT_CHARACTER);
                    start += invalid;
                }
            }
        }
        self.pending.drain(..start);
        text
    }
}

fn find(text: &[u8], needle: &[u8]) -> Option<usize> {
    text.windows(needle.len()).position(|window| window == needle)
}

/// Length of the longest end of `text` that begins `stop` without completing it.
fn open_prefix(text: &[u8], stop: &[u8]) -> usize {
    let longest = (stop.len() - 1).min(text.len());
    (1..=longest).rev().find(|length| text.ends_with(&stop[..*length])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], tokens: &[&[u8]]) -> (String, bool) {
        let stops: Vec<String> = stops.iter().map(ToString::to_string).collect();
        let mut detokenizer = Detokenizer::new(&stops);
        let mut text = String::new();
        for token in tokens {
            let Detokenized { text: more, stopped } = detokenizer.push(token);
            text += &more;
            if stopped {
                return (text, true);
            }
        }
        text += &detokenizer.finish();
        (text, false)
    }

    #[test]
    fn a_character_cut_between_tokens_is_held() {
        let mut detokenizer = Detokenizer::new(&[]);
        assert_eq!(detokenizer.push(&"é".as_bytes()[..1]).text, "");
        assert_eq!(detokenizer.push(&"é".as_bytes()[1..]).text, "é");
        assert_eq!(run(&[], &[b"a", &[0xf0, 0x9f]]).0, "a\u{fffd}");
        assert_eq!(run(&[], &[&[0xff, b'b']]).0, "\u{fffd}b");
    }

    #[test]
    fn a_stop_string_across_tokens_never_leaves() {
        assert_eq!(run(&["###"], &[b"a#", b"#", b"#b"]), ("a".into(), true));
        assert_eq!(run(&["###"], &[b"a##", b"b"]), ("a##b".into(), false));
        assert_eq!(run(&["###"], &[b"a##"]), ("a##".into(), false));
        assert_eq!(run(&["bc", "abcd"], &[b"xab", b"cd"]), ("x".into(), true), "the earliest match counts");
        assert_eq!(run(&[""], &[b"a"]), ("a".into(), false));
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(text in "[ab#é🙂]{0,30}", cuts in proptest::collection::vec(0..60usize, 0..8)) {
            let bytes = text.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|w| &bytes[w[0]..w[1]]).collect();
            prop_assert_eq!(run(&[], &pieces).0, text.clone());
            let expected = text.find("##").map_or((text.clone(), false), |i| (text[..i].into(), true));
            prop_assert_eq!(run(&["##"], &pieces), expected);
        }
    }
}
