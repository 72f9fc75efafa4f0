//! Text of a peer on its way to a log or a terminal.

/// `text` in one line of at most `bytes_max` bytes, which shows nothing but itself: a space takes the place of each
/// character that controls a terminal, ends a line, or changes the direction or the visibility of text.
///
/// A peer could otherwise forge lines of a log.
#[must_use]
pub fn printable(text: &str, bytes_max: usize) -> String {
    let mut shown = String::new();
    for letter in text.chars() {
        let letter = if is_hidden(letter) { ' ' } else { letter };
        if shown.len() + letter.len_utf8() > bytes_max {
            break;
        }
        shown.push(letter);
    }
    shown
}

/// Unicode's control characters (Cc), format characters of common use (Cf), and separators of lines.
fn is_hidden(letter: char) -> bool {
    letter.is_control()
        || matches!(letter,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_one_short_line_of_what_it_shows() {
        let check = |text: &str, expect: &str| assert_eq!(printable(text, 16), expect, "{text:?}");
        check("dpu0: größer", "dpu0: größer");
        check("a\nb\r\n\tc\0", "a b   c ");
        check("\u{1b}[31mred", " [31mred");
        // A reversed line, a line separator, and a space of no width.
        check("a\u{202e}b\u{2028}c\u{200b}", "a b c ");
        check("0123456789abcdefg", "0123456789abcdef");
        check("0123456789abcdeé", "0123456789abcde");
    }
}
