//! One `chat.completion.chunk`: what it says, whatever it looks like.
//!
//! Strings stay as they stand in the JSON, still escaped and without their quotes, so that content
//! can be copied and need not be decoded. Two readers give the same answer: [`scan`] knows the
//! shapes that engines emit token after token and touches every byte once; [`parse`] (serde) knows
//! all the others, and decides what is an error.

mod error;
mod parse;
mod scan;

use thiserror::Error;

use crate::outcome::Usage;

/// What one event of the backend says. Absent, null and empty mean the same: nothing.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Chunk<'a> {
    /// `delta.reasoning` or `delta.reasoning_content`; one of them when both are there. Escaped
    /// JSON string text.
    pub reasoning: &'a str,
    /// `delta.content`. Escaped JSON string text.
    pub content: &'a str,
    pub tool_calls: Vec<ToolDelta<'a>>,
    /// `finish_reason`; escaped JSON string text, empty when there is none.
    pub finish: &'a str,
    /// The stop string that was hit (vLLM `stop_reason`, SGLang `matched_stop`); numbers are token
    /// ids and count as none.
    pub matched_stop: Option<&'a str>,
    pub usage: Option<Usage>,
    /// An error object in place of a chunk.
    pub error: Option<BackendError>,
}

/// One element of `delta.tool_calls`. Text members are escaped JSON string text; empty means
/// absent, null or empty.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct ToolDelta<'a> {
    pub index: Option<u32>,
    pub id: &'a str,
    pub name: &'a str,
    pub arguments: Arguments<'a>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub enum Arguments<'a> {
    #[default]
    None,
    /// A fragment of JSON, inside a JSON string: escaped.
    Text(&'a str),
    /// A whole JSON object, not inside a string: raw, with whatever whitespace (line ends too) is
    /// between its tokens.
    Object(&'a str),
}

/// An error in any of the shapes engines use: nested, flat, a bare string, `detail`.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct BackendError {
    /// HTTP status named by the error (`code`), when it is one.
    pub status: Option<u16>,
    pub kind: String,
    /// Decoded text.
    pub message: String,
    /// llama.cpp names the two numbers of an overflow.
    pub prompt_tokens: Option<u64>,
    pub context_window: Option<u64>,
}

/// The event is not something that a chat completion's stream may hold.
#[derive(Debug, Error)]
pub enum ChunkFault {
    #[error("the chunk is not UTF-8")]
    NotUtf8,
    #[error("the chunk is not valid JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("`{member}` of the chunk is not {expected}")]
    Shape { member: &'static str, expected: &'static str },
}

/// Reads the data of one event. Only the choice with index 0 counts: nobody asks for more than one.
pub fn read(data: &[u8]) -> Result<Chunk<'_>, ChunkFault> {
    let text = std::str::from_utf8(data).map_err(|_| ChunkFault::NotUtf8)?;
    scan::scan(text).map_or_else(|| parse::parse(text), Ok)
}

/// The same by the slow reader alone, which is what the quick one is measured against.
#[doc(hidden)]
pub fn read_with_serde(data: &[u8]) -> Result<Chunk<'_>, ChunkFault> {
    parse::parse(std::str::from_utf8(data).map_err(|_| ChunkFault::NotUtf8)?)
}

/// The event that ends a stream. `[DONE]` inside something else is content.
pub fn is_done(data: &[u8]) -> bool {
    data.trim_ascii() == b"[DONE]"
}

/// A choice as it stands; the later one of two members with the same name counts.
#[derive(Default)]
struct Choice<'a> {
    delta: Delta<'a>,
    finish: &'a str,
    stop_reason: Option<&'a str>,
    matched_stop: Option<&'a str>,
}

#[derive(Default)]
struct Delta<'a> {
    reasoning: &'a str,
    reasoning_content: &'a str,
    content: &'a str,
    tool_calls: Vec<ToolDelta<'a>>,
}

impl<'a> Choice<'a> {
    fn into_chunk(self, usage: Option<Usage>, error: Option<BackendError>) -> Chunk<'a> {
        let Delta { reasoning, reasoning_content, content, tool_calls } = self.delta;
        Chunk {
            reasoning: if reasoning.is_empty() { reasoning_content } else { reasoning },
            content,
            tool_calls,
            finish: self.finish,
            matched_stop: self.stop_reason.or(self.matched_stop),
            usage,
            error,
        }
    }
}

#[cfg(test)]
mod tests;
