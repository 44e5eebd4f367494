//! Names in what persons read.
//!
//! A name may be any bytes, and whoever made it may not be whoever reads it: on a terminal some of
//! them move the cursor, hide text, or look like lines that were not written.  So what persons read
//! has them escaped, as `ls -b` does, whether it goes to a terminal or not.  What programs read
//! (`--json`, `-z`, patches) is exact.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Characters that are not shown but do something: control characters, ends of lines and
/// paragraphs, and those that change the direction of the text.
fn acts(c: char) -> bool {
    let direction = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}');
    c.is_control() || direction || matches!(c, '\u{2028}' | '\u{2029}' | '\u{2066}'..='\u{2069}')
}

/// The text of a name, or of a line that has names in it: what is no text, and what acts, as in C
/// (`\n`, `\t`, `\033`).
pub fn shown(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes)
        && !text.contains(acts)
    {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(bytes.len() + 8);
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\n' => out.push_str("\\n"),
                '\t' => out.push_str("\\t"),
                c if acts(c) => octal(&mut out, c.encode_utf8(&mut [0; 4]).as_bytes()),
                c => out.push(c),
            }
        }
        octal(&mut out, chunk.invalid());
    }
    Cow::Owned(out)
}

/// The same of text with lines and columns, which stay what they are.
pub fn shown_lines(bytes: &[u8]) -> String {
    let columns = |line: &[u8]| {
        let columns = line.split(|b| *b == b'\t').map(|column| shown(column).into_owned());
        columns.collect::<Vec<_>>().join("\t")
    };
    bytes.split(|b| *b == b'\n').map(columns).collect::<Vec<_>>().join("\n")
}

fn octal(out: &mut String, bytes: &[u8]) {
    for byte in bytes {
        let _ = write!(out, "\\{byte:03o}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_acts_is_escaped_and_nothing_else() {
        for plain in ["", "a b", "Grüße 日本", "back\\slash", "emoji 🦀", "~'\"`$"] {
            assert!(matches!(shown(plain.as_bytes()), Cow::Borrowed(text) if text == plain));
        }
        let cases: [(&[u8], &str); 8] = [
            (b"a\x1b[2Jb", "a\\033[2Jb"),
            (b"a\nb\tc\rd", "a\\nb\\tc\\015d"),
            (b"\x7f\x00\x07", "\\177\\000\\007"),
            ("\u{9b}31m".as_bytes(), "\\302\\23331m"),
            ("a\u{202e}b".as_bytes(), "a\\342\\200\\256b"),
            ("a\u{2028}b".as_bytes(), "a\\342\\200\\250b"),
            (b"\xff\xfe", "\\377\\376"),
            (b"ok\xc3", "ok\\303"),
        ];
        for (bytes, text) in cases {
            assert_eq!(shown(bytes), text);
        }
        assert_eq!(shown_lines(b"a\tb\x1b\nc\r\n"), "a\tb\\033\nc\\015\n");
    }

    #[test]
    fn whatever_it_is_given_what_is_shown_does_nothing() {
        for first in 0..=255u8 {
            for second in 0..=255u8 {
                let bytes = [b'x', first, second, b'y'];
                assert!(!shown(&bytes).contains(acts), "{bytes:?}");
                assert!(!shown_lines(&bytes).contains(|c| acts(c) && c != '\n' && c != '\t'));
            }
        }
    }
}
