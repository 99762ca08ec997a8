//! Tool calls: their ids, their arguments, and when a call is complete.
//!
//! Whatever pieces a backend sends, the pieces told concatenate to one JSON object (or, cut by the token limit, to the beginning of one).

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::value::RawValue;

use crate::text::{Seam, Unit, decode, escape_into, skip_blank, unit};

/// Longer backend ids are not carried along: the client gets a fresh one.
const ORIGINAL_ID_LIMIT_BYTES: usize = 256;
const SAFE_PREFIXES: [&str; 3] = ["chatcmpl-tool-", "call_", "toolu_"];

/// The id a client sees for call `number` of message `message_id`, made when the backend's own is not safe to show.
///
/// Form: `toolu_` + 18 hex digits (14 from the message id, 4 the call's number), and, when the backend gave an id,
/// `_` + that id in unpadded base64url, so that the request side can restore it from the tool result alone.
pub fn tool_id(message_id: &str, number: u16, original: &str) -> String {
    let hash = fnv1a(message_id.as_bytes()) & 0x00ff_ffff_ffff_ffff;
    let mut id = format!("toolu_{hash:014x}{number:04x}");
    if !original.is_empty() && original.len() <= ORIGINAL_ID_LIMIT_BYTES {
        id.push('_');
        URL_SAFE_NO_PAD.encode_string(original, &mut id);
    }
    id
}

/// True for ids that can be shown as they are: clean letters and so random that they are unique in a conversation.
/// `call_0`, `functions.f:0` and Mistral's nine characters are not.
pub fn is_safe_id(id: &str) -> bool {
    if is_made_id(id) || id.len() > ORIGINAL_ID_LIMIT_BYTES {
        return false;
    }
    if SAFE_PREFIXES
        .iter()
        .any(|prefix| id.strip_prefix(prefix).is_some_and(|rest| rest.len() >= 16 && rest.bytes().all(|b| b.is_ascii_alphanumeric())))
    {
        return true;
    }
    let clean = id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    // A long name with a counter behind it is clean and long, and still the same in every turn: ask for a run that looks random.
    let random = id.split(['_', '-']).any(|run| run.len() >= 12 && run.bytes().any(|b| b.is_ascii_digit()));
    clean && id.len() >= 20 && random
}

/// True for the long form of [`tool_id`]: shown again, it would be taken for one of ours.
fn is_made_id(id: &str) -> bool {
    id.strip_prefix("toolu_")
        .and_then(|rest| rest.split_at_checked(18))
        .is_some_and(|(digits, rest)| rest.starts_with('_') && digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)))
}

/// FNV-1a, 64 bit.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// One call of the message that is being told.
#[derive(Debug, Default)]
pub struct Call {
    /// The backend's index, where it gave one.
    pub index: Option<u32>,
    /// The backend's id, escaped; empty when it gave none.
    pub id: String,
    /// The name so far, escaped.
    pub name: String,
    pub arguments: ArgumentScan,
    /// What is to be told once the call has the floor and a name; escaped.
    pub waiting: String,
    /// The block was opened.
    pub is_started: bool,
    /// The block was closed; what still comes has nowhere to go.
    pub is_closed: bool,
    seam: Seam,
}

impl Call {
    pub fn new(index: Option<u32>) -> Self {
        Self { index, ..Self::default() }
    }

    /// A name comes whole, in pieces, again and again, or growing.
    pub fn add_name(&mut self, piece: &str) {
        if piece == self.name {
            return;
        }
        if piece.starts_with(self.name.as_str()) {
            self.name.clear();
        }
        self.name.push_str(piece);
    }

    /// The piece with halves of surrogate pairs joined over the borders of pieces.
    pub fn join<'a>(&mut self, piece: &'a str) -> Cow<'a, str> {
        self.seam.push(piece)
    }

    pub fn end_of_pieces(&mut self) -> Option<&'static str> {
        self.seam.end()
    }

    /// The name as the backend meant it. Harmony models leak channel markup behind it: `<|channel|>commentary`.
    pub fn shown_name(&self) -> Cow<'_, str> {
        let cut = self.name.find("<|").unwrap_or(self.name.len());
        decode(&self.name[..cut])
    }

    pub fn has_name(&self) -> bool {
        !self.name.is_empty() && !self.name.starts_with("<|")
    }
}

/// Finds where the one JSON object of a call begins and ends, piece by piece, in escaped text.
#[derive(Debug, Default)]
pub struct ArgumentScan {
    state: State,
    depth: u32,
    is_string: bool,
    is_escape: bool,
    /// Only blank text since the opening brace.
    is_empty: bool,
    /// `{}` came and was not told: a placeholder, or the whole of it.
    has_placeholder: bool,
    /// Something that is no object; escaped.
    foreign: String,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Before,
    Inside,
    Done,
    Foreign,
}

impl ArgumentScan {
    /// Takes the next piece; the part of it that is to be told.
    pub fn feed<'a>(&mut self, piece: &'a str) -> &'a str {
        let mut start = 0;
        loop {
            match self.state {
                State::Done => return "",
                State::Foreign => {
                    self.foreign.push_str(&piece[start..]);
                    return "";
                }
                State::Inside => return &piece[..self.walk(piece, 0)],
                State::Before => {
                    start += skip_blank(&piece[start..]);
                    if start == piece.len() {
                        return "";
                    }
                    if piece.as_bytes()[start] != b'{' {
                        self.state = if self.has_placeholder { State::Done } else { State::Foreign };
                        continue;
                    }
                    self.state = State::Inside;
                    self.is_empty = true;
                    let end = self.walk(piece, start);
                    if self.state == State::Done && self.is_empty {
                        self.has_placeholder = true;
                        self.state = State::Before;
                        start = end;
                        continue;
                    }
                    self.has_placeholder = false;
                    return &piece[start..end];
                }
            }
        }
    }

    /// Follows the object from `at`; where it ends, or the end of the piece.
    fn walk(&mut self, piece: &str, mut at: usize) -> usize {
        while at < piece.len() {
            let (decoded, length) = unit(piece, at);
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
                        self.state = State::Done;
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

    /// Anything but blank text came.
    pub fn has_begun(&self) -> bool {
        self.state != State::Before || self.has_placeholder
    }

    /// The object is closed, or `{}` came, which may still turn out to be a placeholder.
    pub fn is_complete(&self) -> bool {
        self.state == State::Done || self.is_placeholder()
    }

    /// The object is closed, and whatever comes is not part of it.
    pub fn is_settled(&self) -> bool {
        self.state == State::Done
    }

    fn is_placeholder(&self) -> bool {
        self.has_placeholder && self.state == State::Before
    }

    /// What remains to be told when the call ends: `{}` if nothing was, and the object that a quoted text held.
    pub fn end(&mut self) -> Cow<'static, str> {
        let rest = match self.state {
            State::Inside => Cow::Borrowed(""),
            State::Done if !self.has_placeholder => Cow::Borrowed(""),
            State::Done | State::Before => Cow::Borrowed("{}"),
            State::Foreign => unquoted(&self.foreign).map_or(Cow::Borrowed("{}"), Cow::Owned),
        };
        if self.state != State::Inside {
            self.state = State::Done;
            self.has_placeholder = false;
        }
        rest
    }
}

/// Arguments that were encoded twice: the object inside the string, escaped once.
fn unquoted(foreign: &str) -> Option<String> {
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

/// The `input` object of a whole message, from the told pieces.
///
/// Broken or cut JSON keeps the members of the top level that are complete beyond doubt (a comma follows); a half value is never passed off
/// as a whole one.
pub fn input_object(pieces: &str) -> String {
    let decoded = decode(pieces);
    let json = repaired(&decoded);
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

/// Lone halves of surrogate pairs inside the object's own strings become U+FFFD: strict readers refuse them.
fn repaired(json: &str) -> Cow<'_, str> {
    let mut seam = Seam::default();
    seam.push(json)
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

    #[test]
    fn safe_ids_are_shown_as_they_are() {
        for id in [
            "chatcmpl-tool-9aca3e53f4fcd58d",
            "call_9d3bfe187bbb3cee",
            "call_0123456789abcdef01234567",
            "toolu_01A09q90qw90lq917835lq9",
            "Ab3Cd5Ef7Gh9Ij1Kl3Mn5Op7Qr9St1Uv",
            "3f2c8a1e-1111-4222-8333-9d3bfe187bbb",
        ] {
            assert!(is_safe_id(id), "{id}");
        }
    }

    #[test]
    fn c05_ids_that_repeat_over_turns_are_not() {
        for id in [
            "",
            "call_0",
            "c1",
            "functions.get_weather:0",
            "get_weather:12",
            "a1B2c3D4e",
            "get_weather_forecast_today_0",
            "call_9d3bfe187bbb3c\u{e9}e0000",
            &tool_id("msg_1", 0, "call_0"),
            &"a1".repeat(200),
        ] {
            assert!(!is_safe_id(id), "{id}");
        }
    }

    #[test]
    fn made_ids_carry_the_original() {
        let id = tool_id("msg_0f", 1, "functions.get_weather:0");
        let (head, original) = id.split_at(6 + 18);
        assert!(head.starts_with("toolu_") && head.ends_with("0001"), "{id}");
        assert_eq!(URL_SAFE_NO_PAD.decode(original.strip_prefix('_').unwrap()).unwrap(), b"functions.get_weather:0");
        assert!(id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-'));
        assert_eq!(tool_id("msg_0f", 1, "").len(), 6 + 18);
        assert_eq!(tool_id("msg_0f", 1, &"x".repeat(257)).len(), 6 + 18);
        assert_ne!(tool_id("msg_0f", 1, ""), tool_id("msg_10", 1, ""));
        assert_ne!(tool_id("msg_0f", 1, ""), tool_id("msg_0f", 2, ""));
    }

    #[test]
    fn names_come_in_every_way() {
        for (pieces, name) in [
            (&["read_file", "read_file", "read_file"][..], "read_file"),
            (&["read_", "file"], "read_file"),
            (&["read", "read_file"], "read_file"),
            (&["", "F"], "F"),
        ] {
            let mut call = Call::default();
            for piece in pieces {
                call.add_name(piece);
            }
            assert_eq!(call.name, name, "{pieces:?}");
        }
    }

    /// Everything told, and what is told at the end.
    fn told(pieces: &[&str]) -> String {
        let mut scan = ArgumentScan::default();
        let mut told = String::new();
        for piece in pieces {
            told.push_str(&decode(scan.feed(&escape(piece))));
        }
        told.push_str(&decode(&scan.end()));
        told
    }

    #[test]
    fn assertion_14_pieces_concatenate_to_one_object() {
        for (pieces, object) in [
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
            assert_eq!(told(pieces), object, "{pieces:?}");
        }
    }

    #[test]
    fn a_cut_object_is_told_as_far_as_it_came() {
        assert_eq!(told(&["{\"command\":\"ls -"]), "{\"command\":\"ls -");
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
        for (pieces, input) in [
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
            assert_eq!(input_object(&escape(pieces)), input, "{pieces}");
        }
    }
}
