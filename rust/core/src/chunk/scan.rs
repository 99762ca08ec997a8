//! The fast scanner for the chunks that engines emit per token: compact JSON, known members,
//! nothing nested that is unknown.
//!
//! One pass, no allocation but for tool calls. `None` means "not supported", never "invalid":
//! [`super::parse`] then decides. Whatever is accepted here gives the same result there.

use super::types::{Arguments, Choice, Chunk, Delta, ToolDelta};
use crate::outcome::Usage;

pub(super) fn scan(text: &str) -> Option<Chunk<'_>> {
    let mut scanner = Scanner { text, at: 0 };
    let (mut choice, mut usage) = (Choice::default(), None);
    scanner.object(|s, key| {
        match key {
            b"choices" => choice = s.choices()?,
            b"usage" => usage = if s.null() { None } else { s.usage()?.none_if_empty() },
            b"object" if s.string()? == "error" => return None,
            b"object" => {}
            b"error" | b"detail" | b"message" => return s.null().then_some(()),
            _ => s.skip()?,
        }
        Some(())
    })?;
    (scanner.at == text.len()).then(|| choice.into_chunk(usage, None))
}

struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scanner<'a> {
    fn choices(&mut self) -> Option<Choice<'a>> {
        let mut choice = Choice::default();
        if self.null() || self.literal("[]") {
            return Some(choice);
        }
        self.expect(b'[')?;
        self.object(|s, key| {
            match key {
                b"delta" => choice.delta = s.delta()?,
                b"finish_reason" => choice.finish = s.string_or_null()?,
                b"stop_reason" => choice.stop_reason = s.stop()?,
                b"matched_stop" => choice.matched_stop = s.stop()?,
                b"index" => s.expect(b'0')?,
                _ => s.skip()?,
            }
            Some(())
        })?;
        self.expect(b']')?;
        Some(choice)
    }

    fn delta(&mut self) -> Option<Delta<'a>> {
        let mut delta = Delta::default();
        if self.null() {
            return Some(delta);
        }
        self.object(|s, key| {
            match key {
                b"content" => delta.content = s.string_or_null()?,
                b"reasoning" => delta.reasoning = s.string_or_null()?,
                b"reasoning_content" => delta.reasoning_content = s.string_or_null()?,
                b"tool_calls" => delta.tool_calls = s.tool_calls()?,
                _ => s.skip()?,
            }
            Some(())
        })?;
        Some(delta)
    }

    fn tool_calls(&mut self) -> Option<Vec<ToolDelta<'a>>> {
        let mut calls = Vec::new();
        if self.null() || self.literal("[]") {
            return Some(calls);
        }
        self.expect(b'[')?;
        loop {
            calls.push(self.tool_delta()?);
            if self.expect(b',').is_none() {
                self.expect(b']')?;
                return Some(calls);
            }
        }
    }

    fn tool_delta(&mut self) -> Option<ToolDelta<'a>> {
        let mut call = ToolDelta::default();
        self.object(|s, key| {
            match key {
                b"index" => call.index = s.count()?.map(u32::try_from).transpose().ok()?,
                b"id" => call.id = s.string_or_null()?,
                b"function" => (call.name, call.arguments) = s.function()?,
                _ => s.skip()?,
            }
            Some(())
        })?;
        Some(call)
    }

    fn function(&mut self) -> Option<(&'a str, Arguments<'a>)> {
        let (mut name, mut arguments) = ("", "");
        if !self.null() {
            self.object(|s, key| {
                match key {
                    b"name" => name = s.string_or_null()?,
                    b"arguments" => arguments = s.string_or_null()?,
                    _ => s.skip()?,
                }
                Some(())
            })?;
        }
        Some((
            name,
            if arguments.is_empty() { Arguments::None } else { Arguments::Text(arguments) },
        ))
    }

    fn usage(&mut self) -> Option<Usage> {
        let mut usage = Usage::default();
        let mut detailed = None;
        self.object(|s, key| {
            match key {
                b"prompt_tokens" => usage.prompt_tokens = s.count()?.unwrap_or(0),
                b"completion_tokens" => usage.completion_tokens = s.count()?.unwrap_or(0),
                b"reasoning_tokens" => usage.reasoning_tokens = s.count()?,
                b"prompt_tokens_details" => {
                    usage.cached_tokens = s.detail(b"cached_tokens")?.unwrap_or(0)
                }
                b"completion_tokens_details" => detailed = s.detail(b"reasoning_tokens")?,
                _ => s.skip()?,
            }
            Some(())
        })?;
        usage.reasoning_tokens = detailed.or(usage.reasoning_tokens);
        Some(usage)
    }

    /// One count of an object of details, or null.
    fn detail(&mut self, name: &[u8]) -> Option<Option<u64>> {
        let mut detail = None;
        if !self.null() {
            self.object(|s, key| {
                if key == name {
                    detail = s.count()?;
                } else {
                    s.skip()?;
                }
                Some(())
            })?;
        }
        Some(detail)
    }

    /// A token id or null is no stop string.
    fn stop(&mut self) -> Option<Option<&'a str>> {
        if self.peek() == Some(b'"') {
            return self.string().map(|stop| (!stop.is_empty()).then_some(stop));
        }
        self.skip().map(|()| None)
    }

    fn string_or_null(&mut self) -> Option<&'a str> {
        if self.null() { Some("") } else { self.string() }
    }

    fn count(&mut self) -> Option<Option<u64>> {
        if self.null() {
            return Some(None);
        }
        self.number()?.parse().ok().map(Some)
    }

    fn skip(&mut self) -> Option<()> {
        match self.peek()? {
            b'"' => self.string().map(drop),
            b'-' | b'0'..=b'9' => self.number().map(drop),
            _ => (self.null() || self.literal("false") || self.literal("true")).then_some(()),
        }
    }

    /// A whole number; what follows it (a fraction, an exponent) is refused where a comma is
    /// expected.
    fn number(&mut self) -> Option<&'a str> {
        let start = self.at;
        let _sign = self.expect(b'-');
        let first_digit = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        match self.text.as_bytes().get(first_digit..self.at)? {
            [] | [b'0', _, ..] => None,
            _ => self.text.get(start..self.at),
        }
    }

    fn object(
        &mut self,
        mut on_member: impl FnMut(&mut Self, &'a [u8]) -> Option<()>,
    ) -> Option<()> {
        self.expect(b'{')?;
        if self.expect(b'}').is_some() {
            return Some(());
        }
        loop {
            let key = self.name()?;
            self.expect(b':')?;
            on_member(self, key)?;
            if self.expect(b',').is_none() {
                return self.expect(b'}');
            }
        }
    }

    /// A name without escapes; an escaped one may spell a known name, and is left to the parser.
    fn name(&mut self) -> Option<&'a [u8]> {
        self.expect(b'"')?;
        let rest = self.text.as_bytes().get(self.at..)?;
        let name = rest.get(..plain_length(rest))?;
        self.at += name.len();
        self.expect(b'"')?;
        Some(name)
    }

    fn string(&mut self) -> Option<&'a str> {
        self.expect(b'"')?;
        let start = self.at;
        loop {
            self.at += plain_length(self.text.as_bytes().get(self.at..)?);
            match self.peek()? {
                b'"' => {
                    let text = self.text.get(start..self.at);
                    self.at += 1;
                    return text;
                }
                b'\\' => self.escape()?,
                _ => return None,
            }
        }
    }

    fn escape(&mut self) -> Option<()> {
        let bytes = self.text.as_bytes();
        self.at += match bytes.get(self.at + 1)? {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => 2,
            b'u' if bytes.get(self.at + 2..self.at + 6)?.iter().all(u8::is_ascii_hexdigit) => 6,
            _ => return None,
        };
        Some(())
    }

    fn null(&mut self) -> bool {
        self.literal("null")
    }

    fn literal(&mut self, word: &str) -> bool {
        let is_next = self
            .text
            .as_bytes()
            .get(self.at..)
            .is_some_and(|rest| rest.starts_with(word.as_bytes()));
        if is_next {
            self.at += word.len();
        }
        is_next
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }
}

/// How many bytes come before the first quote, backslash or control byte; eight at a time, because
/// most strings are shorter than what makes a call into memchr worth it.
fn plain_length(bytes: &[u8]) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    // Marks bytes below `limit`. A borrow may mark more, but only above a byte that is marked
    // correctly.
    let below = |word: u64, limit: u8| word.wrapping_sub(ONES * u64::from(limit)) & !word & HIGH;
    let (words, tail) = bytes.as_chunks::<8>();
    for (i, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let quote = below(word ^ (ONES * u64::from(b'"')), 1);
        let backslash = below(word ^ (ONES * u64::from(b'\\')), 1);
        let found = quote | backslash | below(word, 0x20);
        if found != 0 {
            return i * 8 + found.trailing_zeros() as usize / 8;
        }
    }
    let ends = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..0x20);
    words.len() * 8 + tail.iter().position(ends).unwrap_or(tail.len())
}
