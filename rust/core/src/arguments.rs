//! Arguments of a tool call: finds where its one JSON object begins and ends, however a backend
//! splits it.
//!
//! The fragments written concatenate to one JSON object (or, cut by the token limit, to a prefix of
//! one).

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::text::{SurrogateJoiner, Unit, decode, escape_into, skip_blank, unit};

/// Finds where the one JSON object of a call begins and ends, fragment by fragment, in escaped
/// text.
#[derive(Debug, Default)]
pub struct ArgumentScan {
    state: ScanState,
    depth: u32,
    is_string: bool,
    is_escape: bool,
    /// Only blank text since the opening brace.
    is_empty: bool,
    /// `{}` came and was not written: a placeholder, or the whole of it.
    has_placeholder: bool,
    /// Input that is not an object; escaped.
    foreign: String,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum ScanState {
    #[default]
    Before,
    Inside,
    Done,
    Foreign,
}

impl ArgumentScan {
    /// Takes the next fragment; returns the part of it to write.
    pub fn feed<'a>(&mut self, fragment: &'a str) -> &'a str {
        let mut start = 0;
        loop {
            match self.state {
                ScanState::Done => return "",
                ScanState::Foreign => {
                    self.foreign.push_str(&fragment[start..]);
                    return "";
                }
                ScanState::Inside => return &fragment[..self.walk(fragment, 0)],
                ScanState::Before => {
                    start += skip_blank(&fragment[start..]);
                    if start == fragment.len() {
                        return "";
                    }
                    if fragment.as_bytes()[start] != b'{' {
                        self.state =
                            if self.has_placeholder { ScanState::Done } else { ScanState::Foreign };
                        continue;
                    }
                    self.state = ScanState::Inside;
                    self.is_empty = true;
                    let end = self.walk(fragment, start);
                    if self.state == ScanState::Done && self.is_empty {
                        self.has_placeholder = true;
                        self.state = ScanState::Before;
                        start = end;
                        continue;
                    }
                    self.has_placeholder = false;
                    return &fragment[start..end];
                }
            }
        }
    }

    /// Follows the object from `at`; where it ends, or the end of the fragment.
    fn walk(&mut self, fragment: &str, mut at: usize) -> usize {
        while at < fragment.len() {
            let (decoded, length) = unit(fragment, at);
            at += length;
            let c = match decoded {
                Unit::Char(c) => c,
                Unit::Half(_) => '\u{fffd}',
            };
            if self.is_string {
                match c {
                    _ if self.is_escape => self.is_escape = false,
                    '\\' => self.is_escape = true,
                    '"' => self.is_string = false,
                    _ => {}
                }
                continue;
            }
            match c {
                '{' | '[' => {
                    self.is_empty &= self.depth == 0;
                    self.depth = self.depth.saturating_add(1);
                }
                '}' | ']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        self.state = ScanState::Done;
                        return at;
                    }
                }
                c if c.is_whitespace() => {}
                c => {
                    self.is_empty = false;
                    self.is_string = c == '"';
                }
            }
        }
        at
    }

    /// Anything but white space came.
    pub fn has_begun(&self) -> bool {
        self.state != ScanState::Before || self.has_placeholder
    }

    /// The object is closed, or `{}` came, which may still turn out to be a placeholder.
    pub fn is_complete(&self) -> bool {
        self.state == ScanState::Done || self.is_placeholder()
    }

    /// The object is closed: nothing more belongs to it.
    pub fn is_settled(&self) -> bool {
        self.state == ScanState::Done
    }

    fn is_placeholder(&self) -> bool {
        self.has_placeholder && self.state == ScanState::Before
    }

    /// What remains to be written when the call ends: `{}` if nothing was, and the object that a
    /// quoted text held.
    pub fn end(&mut self) -> Cow<'static, str> {
        let rest = match self.state {
            ScanState::Inside => Cow::Borrowed(""),
            ScanState::Done if !self.has_placeholder => Cow::Borrowed(""),
            ScanState::Done | ScanState::Before => Cow::Borrowed("{}"),
            ScanState::Foreign => {
                unquote_object(&self.foreign).map_or(Cow::Borrowed("{}"), Cow::Owned)
            }
        };
        if self.state != ScanState::Inside {
            self.state = ScanState::Done;
            self.has_placeholder = false;
        }
        rest
    }
}

/// Arguments that were encoded twice: the object inside the string, escaped once.
fn unquote_object(foreign: &str) -> Option<String> {
    let inner: String = serde_json::from_str(&decode(foreign)).ok()?;
    if !is_object(&inner) {
        return None;
    }
    let mut escaped = String::new();
    escape_into(inner.trim(), &mut escaped);
    Some(escaped)
}

fn is_object(json: &str) -> bool {
    json.trim_start().starts_with('{') && serde_json::from_str::<&RawValue>(json).is_ok()
}

/// The `input` object of a whole message, from the fragments written.
///
/// Broken or cut JSON keeps the members of the top level that are certainly complete (a comma
/// follows); a truncated value is never passed on as a complete one.
pub fn input_object(escaped: &str) -> String {
    let decoded = decode(escaped);
    let json = replace_lone_halves(&decoded);
    if is_object(&json) {
        return json.trim().to_owned();
    }
    let mut prefix = match last_comma(&json) {
        Some(comma) => json[..comma].to_owned(),
        None => return "{}".to_owned(),
    };
    prefix.push('}');
    if is_object(&prefix) { prefix.trim().to_owned() } else { "{}".to_owned() }
}

/// Lone halves of surrogate pairs inside the object's own strings become U+FFFD: strict readers
/// refuse them.
fn replace_lone_halves(json: &str) -> Cow<'_, str> {
    let mut joiner = SurrogateJoiner::default();
    joiner.push(json)
}

/// Where the last comma between members of the outermost object stands.
fn last_comma(json: &str) -> Option<usize> {
    let (mut depth, mut is_string, mut is_escape, mut comma) = (0u32, false, false, None);
    for (at, byte) in json.bytes().enumerate() {
        match byte {
            _ if is_escape => is_escape = false,
            b'\\' if is_string => is_escape = true,
            b'"' => is_string = !is_string,
            _ if is_string => {}
            b'{' | b'[' => depth = depth.saturating_add(1),
            b'}' | b']' => depth = depth.saturating_sub(1),
            b',' if depth == 1 => comma = Some(at),
            _ => {}
        }
    }
    comma
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::escape;

    /// Everything written, the end included.
    fn feed_all(fragments: &[&str]) -> String {
        let mut scan = ArgumentScan::default();
        let mut output = String::new();
        for fragment in fragments {
            output.push_str(&decode(scan.feed(&escape(fragment))));
        }
        output.push_str(&decode(&scan.end()));
        output
    }

    #[test]
    fn assertion_14_fragments_concatenate_to_one_object() {
        for (fragments, object) in [
            (&["{\"a\":1}"][..], "{\"a\":1}"),
            (&["{}", "{\"a\":1}"], "{\"a\":1}"),
            (&["{}{\"a\":1}"], "{\"a\":1}"),
            (&["{ }", " ", "\n{\"a\":", "1}"], "{\"a\":1}"),
            (&["{\"a\":{\"b\":[]}}", "}", "garbage"], "{\"a\":{\"b\":[]}}"),
            (&["{\"a\":1}{\"a\":2}"], "{\"a\":1}"),
            (&["{", "}"], "{}"),
            (&["{}", "garbage"], "{}"),
            (&["{\"}\":\"\\\"}{\"}", "}"], "{\"}\":\"\\\"}{\"}"),
            (&[], "{}"),
            (&["", " "], "{}"),
            (&["null"], "{}"),
            (&["ls -la"], "{}"),
            (&["[1]"], "{}"),
            (&["\"{\\\"a\\\"", ":1}\""], "{\"a\":1}"),
            (&["\"text\""], "{}"),
        ] {
            assert_eq!(feed_all(fragments), object, "{fragments:?}");
        }
    }

    #[test]
    fn a_truncated_object_is_written_as_far_as_it_came() {
        assert_eq!(feed_all(&["{\"command\":\"ls -"]), "{\"command\":\"ls -");
    }

    #[test]
    fn completeness() {
        let mut scan = ArgumentScan::default();
        assert!(!scan.is_complete() && !scan.has_begun());
        scan.feed("{}");
        assert!(scan.is_complete() && scan.has_begun() && !scan.is_settled());
        scan.feed("{\\\"a\\\":");
        assert!(!scan.is_complete());
        scan.feed("1}");
        assert!(scan.is_complete() && scan.is_settled());
    }

    #[test]
    fn c07_broken_input_keeps_what_is_whole() {
        for (fragments, input) in [
            ("{\"a\": 1}", "{\"a\": 1}"),
            ("{\"command\": \"ls", "{}"),
            ("{\"path\":\"a\",\"content\":\"b", "{\"path\":\"a\"}"),
            ("{\"path\":\"a\",\"list\":[1,2", "{\"path\":\"a\"}"),
            ("{\"a\":1", "{}"),
            ("{\"a\": oops}", "{}"),
            ("{\"a\": oops, \"b\":1}", "{}"),
            ("{\"a\":\"\\ud83d\"}", "{\"a\":\"\\ufffd\"}"),
            ("", "{}"),
        ] {
            assert_eq!(input_object(&escape(fragments)), input, "{fragments}");
        }
    }
}
