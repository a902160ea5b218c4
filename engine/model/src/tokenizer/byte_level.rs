//! GPT-2's alphabet: every byte is written as one printable character, so that a vocabulary of bytes is text.
//!
//! Printable Latin-1 stands for itself; the other bytes, in order, are U+0100 and up.
//! Source: `bytes_to_unicode` of the GPT-2 release.

/// The byte that a character of the alphabet stands for.
pub(super) fn byte_of(character: char) -> Option<u8> {
    let code = u32::from(character);
    match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => u8::try_from(code).ok(),
        // 33 bytes from 0, 34 from 0x7f, and the soft hyphen.
        0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// The bytes of a token that is written in the alphabet; `None` when a character is not of it.
pub(super) fn decode(token: &str) -> Option<Vec<u8>> {
    token.chars().map(byte_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_exactly_one_character() {
        let mut seen: Vec<u8> = (0..0x200).filter_map(char::from_u32).filter_map(byte_of).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..=255).collect::<Vec<u8>>());
    }

    #[test]
    fn spaces_and_line_ends_are_shifted_characters() {
        assert_eq!(decode("\u{120}a\u{10a}"), Some(b" a\n".to_vec()));
        assert_eq!(decode("\u{c3}\u{a9}"), Some("é".as_bytes().to_vec()));
        assert_eq!(decode("a b"), None, "a plain space is not of the alphabet");
        assert_eq!(decode("\u{144}"), None);
    }
}
