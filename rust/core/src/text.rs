//! JSON string text: still escaped, without its quotes.
//!
//! Content is copied, not decoded. Only names, the reasoning of a signature and the arguments of an
//! aggregated message are decoded. Badly escaped text is never an error here.

use std::borrow::Cow;

use memchr::memchr;

/// Replaces a lone half of a surrogate pair.
pub const REPLACEMENT: &str = "\\ufffd";

/// True when the text is white space only (the empty text is).
pub fn is_blank(escaped: &str) -> bool {
    // The first byte decides for nearly every token.
    match escaped.as_bytes().first() {
        None => true,
        Some(b' ' | b'\\') => skip_blank(escaped) == escaped.len(),
        Some(byte) if byte.is_ascii() => false,
        Some(_) => skip_blank(escaped) == escaped.len(),
    }
}

/// Bytes of white space that the text begins with.
pub fn skip_blank(escaped: &str) -> usize {
    let bytes = escaped.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let (decoded, length) = unit(escaped, at);
        match decoded {
            Unit::Char(c) if c.is_whitespace() => at += length,
            _ => break,
        }
    }
    at
}

/// One character of escaped text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Char(char),
    /// `\ud800` to `\udfff`: half a pair.
    Half(u16),
}

/// The character at `at` (a character boundary inside the text) and its length in bytes.
pub fn unit(escaped: &str, at: usize) -> (Unit, usize) {
    let bytes = escaped.as_bytes();
    if bytes[at] != b'\\' {
        let c = escaped[at..].chars().next().unwrap_or('\u{fffd}');
        return (Unit::Char(c), c.len_utf8());
    }
    let plain = match bytes.get(at + 1) {
        Some(b'n') => '\n',
        Some(b'r') => '\r',
        Some(b't') => '\t',
        Some(b'b') => '\u{8}',
        Some(b'f') => '\u{c}',
        Some(b'u') => return unicode_unit(bytes, at),
        Some(byte) if byte.is_ascii() => char::from(*byte),
        _ => return (Unit::Char('\\'), 1),
    };
    (Unit::Char(plain), 2)
}

fn unicode_unit(bytes: &[u8], at: usize) -> (Unit, usize) {
    let Some(code) = hex4(bytes, at + 2) else { return (Unit::Char('u'), 2) };
    match char::from_u32(u32::from(code)) {
        Some(c) => (Unit::Char(c), 6),
        None => (Unit::Half(code), 6),
    }
}

fn hex4(bytes: &[u8], at: usize) -> Option<u16> {
    let digits = bytes.get(at..at + 4)?;
    digits
        .iter()
        .try_fold(0u16, |code, &digit| Some(code << 4 | char::from(digit).to_digit(16)? as u16))
}

fn is_high(half: u16) -> bool {
    half < 0xdc00
}

/// Decodes the text. Surrogate pairs are joined, lone halves become U+FFFD.
pub fn decode(escaped: &str) -> Cow<'_, str> {
    if memchr(b'\\', escaped.as_bytes()).is_none() {
        return Cow::Borrowed(escaped);
    }
    let mut text = String::with_capacity(escaped.len());
    let mut high = None;
    let mut at = 0;
    while at < escaped.len() {
        let (decoded, length) = unit(escaped, at);
        at += length;
        match (high.take(), decoded) {
            (Some(first), Unit::Half(second)) if !is_high(second) => text.push(join(first, second)),
            (before, Unit::Half(half)) => {
                if before.is_some() {
                    text.push('\u{fffd}');
                }
                if is_high(half) {
                    high = Some(half);
                } else {
                    text.push('\u{fffd}');
                }
            }
            (before, Unit::Char(c)) => {
                if before.is_some() {
                    text.push('\u{fffd}');
                }
                text.push(c);
            }
        }
    }
    if high.is_some() {
        text.push('\u{fffd}');
    }
    Cow::Owned(text)
}

fn join(high: u16, low: u16) -> char {
    let code = 0x10000 + ((u32::from(high) - 0xd800) << 10) + (u32::from(low) - 0xdc00);
    char::from_u32(code).unwrap_or('\u{fffd}')
}

/// Appends `text`, escaped for a JSON string.
pub fn escape_into(text: &str, escaped: &mut String) {
    escaped.reserve(text.len());
    for c in text.chars() {
        match c {
            '"' => escaped.push_str("\\\""),
            '\\' => escaped.push_str("\\\\"),
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            '\t' => escaped.push_str("\\t"),
            c if c < ' ' => {
                let code = u32::from(c);
                escaped.push_str("\\u00");
                escaped.extend(
                    [code >> 4, code & 15]
                        .into_iter()
                        .filter_map(|digit| char::from_digit(digit, 16)),
                );
            }
            c => escaped.push(c),
        }
    }
}

pub fn escape(text: &str) -> String {
    let mut escaped = String::new();
    escape_into(text, &mut escaped);
    escaped
}

/// Joins surrogate pairs that were split over two fragments: a high half at the end of one is held
/// back for the next.
#[derive(Debug, Default)]
pub struct SurrogateJoiner {
    high: Option<u16>,
}

impl SurrogateJoiner {
    /// The fragment without lone halves; borrowed as it is when it has no half.
    pub fn push<'a>(&mut self, fragment: &'a str) -> Cow<'a, str> {
        if self.high.is_none() && !has_half(fragment) {
            return Cow::Borrowed(fragment);
        }
        let mut text = String::with_capacity(fragment.len() + 12);
        let mut at = 0;
        while at < fragment.len() {
            let (decoded, length) = unit(fragment, at);
            match (self.high.take(), decoded) {
                (Some(first), Unit::Half(second)) if !is_high(second) => {
                    push_half(first, &mut text);
                    push_half(second, &mut text);
                }
                (before, Unit::Half(half)) => {
                    push_lone(before, &mut text);
                    if is_high(half) {
                        self.high = Some(half);
                    } else {
                        text.push_str(REPLACEMENT);
                    }
                }
                (before, Unit::Char(_)) => {
                    push_lone(before, &mut text);
                    text.push_str(&fragment[at..at + length]);
                }
            }
            at += length;
        }
        Cow::Owned(text)
    }

    /// End of input: the replacement of a half that is still held back.
    pub fn end(&mut self) -> Option<&'static str> {
        self.high.take().map(|_| REPLACEMENT)
    }
}

fn push_lone(high: Option<u16>, text: &mut String) {
    if high.is_some() {
        text.push_str(REPLACEMENT);
    }
}

fn push_half(half: u16, text: &mut String) {
    text.push_str("\\u");
    text.extend(
        [12, 8, 4, 0]
            .into_iter()
            .filter_map(|shift| char::from_digit(u32::from(half >> shift & 15), 16)),
    );
}

fn has_half(fragment: &str) -> bool {
    let bytes = fragment.as_bytes();
    let mut at = 0;
    while let Some(found) = memchr(b'\\', &bytes[at..]) {
        at += found;
        match bytes.get(at + 1) {
            Some(b'u')
                if matches!(bytes.get(at + 2), Some(b'd' | b'D'))
                    && matches!(
                        bytes.get(at + 3),
                        Some(b'8'..=b'9' | b'a'..=b'f' | b'A'..=b'F')
                    ) =>
            {
                return true;
            }
            Some(_) => at += 2,
            None => return false,
        }
        if at >= bytes.len() {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_text() {
        for blank in ["", " ", "\\n", "\\n\\n", " \\t\\r", "\\u0020\\u000a", "\u{a0}"] {
            assert!(is_blank(blank), "{blank:?}");
        }
        for text in ["a", "\\n.", "\\\\n", " \\u0041", "\\\"", "北", "\\ud83d"] {
            assert!(!is_blank(text), "{text:?}");
        }
    }

    #[test]
    fn decode_reads_every_escape() {
        for (escaped, text) in [
            ("plain", "plain"),
            ("a\\\"b\\\\c\\/d", "a\"b\\c/d"),
            ("\\b\\f\\n\\r\\t", "\u{8}\u{c}\n\r\t"),
            ("\\u5317", "北"),
            ("\\ud83d\\ude00", "😀"),
            ("\\ud83dx", "\u{fffd}x"),
            ("\\ude00\\ud83d", "\u{fffd}\u{fffd}"),
            ("\\ud83d\\ud83d\\ude00", "\u{fffd}😀"),
            ("broken \\u12", "broken u12"),
            ("broken \\", "broken \\"),
        ] {
            assert_eq!(decode(escaped), text, "{escaped}");
        }
    }

    #[test]
    fn escape_is_read_back() {
        let text = "quote \" slash \\ line\nreturn\r tab\t bell\u{7} 北😀\u{2028}";
        assert_eq!(escape("\u{7}\u{1f}"), "\\u0007\\u001f");
        assert_eq!(decode(&escape(text)), text);
        assert_eq!(serde_json::from_str::<String>(&format!("\"{}\"", escape(text))).unwrap(), text);
    }

    #[test]
    fn b03_halves_are_joined_over_fragments() {
        for (fragments, expected) in [
            (&["\\ud83d", "\\ude00"][..], "\\ud83d\\ude00"),
            (&["a\\uD83D", "\\uDE00b"], "a\\ud83d\\ude00b"),
            (&["a\\ud83d\\ude00b"], "a\\ud83d\\ude00b"),
            (&["\\ud83d", "x"], "\\ufffdx"),
            (&["\\ud83d"], "\\ufffd"),
            (&["\\ude00x"], "\\ufffdx"),
            (&["\\ud83d", "\\ud83d", "\\ude00"], "\\ufffd\\ud83d\\ude00"),
            (&["\\\\ud83d", "\\\\ude00"], "\\\\ud83d\\\\ude00"),
            (&["\\ud7ff\\ue000"], "\\ud7ff\\ue000"),
        ] {
            let mut joiner = SurrogateJoiner::default();
            let mut text: String =
                fragments.iter().map(|fragment| joiner.push(fragment).into_owned()).collect();
            text.push_str(joiner.end().unwrap_or(""));
            assert_eq!(text, expected, "{fragments:?}");
            assert_eq!(joiner.end(), None);
        }
    }

    #[test]
    fn text_without_halves_is_not_copied() {
        assert!(matches!(
            SurrogateJoiner::default().push("a \\n \\u5317 \\\\ud83d"),
            Cow::Borrowed(_)
        ));
    }
}
