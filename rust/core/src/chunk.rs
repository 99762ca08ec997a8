//! One `chat.completion.chunk`: what it says, whatever it looks like.
//!
//! Strings stay as they stand in the JSON, still escaped and without their quotes, so that content can be copied and need not be decoded.

use crate::outcome::Usage;

/// What one event of the backend says. Absent, null and empty mean the same: nothing.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Chunk<'a> {
    /// `delta.reasoning` or `delta.reasoning_content`; one of them when both are there. Escaped JSON string text.
    pub reasoning: &'a str,
    /// `delta.content`. Escaped JSON string text.
    pub content: &'a str,
    pub tool_calls: Vec<ToolDelta<'a>>,
    /// `finish_reason`; escaped JSON string text, empty when there is none.
    pub finish: &'a str,
    /// The stop string that was hit (vLLM `stop_reason`, SGLang `matched_stop`); numbers are token ids and count as none.
    pub matched_stop: Option<&'a str>,
    pub usage: Option<Usage>,
    /// An error object in place of a chunk.
    pub error: Option<BackendError>,
}

/// One element of `delta.tool_calls`. Text members are escaped JSON string text; empty means absent, null or empty.
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
    /// A piece of JSON, inside a JSON string: escaped.
    Text(&'a str),
    /// A whole JSON object, not inside a string: raw.
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
