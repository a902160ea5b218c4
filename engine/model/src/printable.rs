//! Words out of files and templates on their way to people: into a log, an error, a terminal or an answer.

/// Longest words of a file or template that are repeated, bytes.
pub const PRINTABLE_BYTES_MAX: usize = 256;
/// What stands for the rest of a text that is cut.
const CUT: &str = "...";

/// `text` in one line that moves no cursor: without characters that control a terminal or hide others, and cut to
/// `bytes_max` bytes.
#[must_use]
pub fn printable(text: &str, bytes_max: usize) -> String {
    let mut shown = String::with_capacity(text.len().min(bytes_max));
    for character in text.chars() {
        let character = if is_plain(character) { character } else { char::REPLACEMENT_CHARACTER };
        shown.push(character);
        if shown.len() > bytes_max {
            shown.truncate(shown.floor_char_boundary(bytes_max.saturating_sub(CUT.len())));
            shown.push_str(CUT);
            break;
        }
    }
    shown
}

/// Not a control character, nor one of those that reorder or hide what stands beside them, nor a line end of Unicode's.
fn is_plain(character: char) -> bool {
    !character.is_control()
        && !matches!(
            character,
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e0fff}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_word_of_a_file_begins_a_line_or_moves_a_cursor() {
        let forged = "x\r\nERROR all is lost\u{1b}[2J\u{1b}]0;own\u{7}\u{9b}2J\u{202e}\u{2028}\0";
        let shown = printable(forged, PRINTABLE_BYTES_MAX);
        assert_eq!(
            shown,
            "x\u{fffd}\u{fffd}ERROR all is lost\u{fffd}[2J\u{fffd}]0;own\u{fffd}\u{fffd}2J\u{fffd}\u{fffd}\u{fffd}"
        );
        assert_eq!(
            printable("tensor `\u{e9}\u{6f22}\u{1f600}`", PRINTABLE_BYTES_MAX),
            "tensor `\u{e9}\u{6f22}\u{1f600}`"
        );
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(printable(&"x".repeat(256), 256), "x".repeat(256));
        let cut = printable(&"\u{6f22}".repeat(1_000_000), 256);
        assert_eq!(cut, format!("{}...", "\u{6f22}".repeat(84)));
        // What replaces a character may be longer than it.
        assert!(printable(&"\n".repeat(256), 256).len() <= 256);
    }
}
