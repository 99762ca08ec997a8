//! The contents of a chunk. Strings are escaped JSON text, borrowed from the event.

use thiserror::Error;

use crate::outcome::Usage;

/// The contents of one event of the backend. Absent, null and empty mean the same.
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

impl Chunk<'_> {
    /// Whether the chunk counts as the first event, after which no other backend is tried: content,
    /// reasoning, a tool call, a finish reason or generated tokens. A role alone does not, nor does
    /// usage without generated tokens.
    pub fn is_event(&self) -> bool {
        !self.reasoning.is_empty()
            || !self.content.is_empty()
            || !self.tool_calls.is_empty()
            || !self.finish.is_empty()
            || self.usage.is_some_and(|usage| usage.completion_tokens > 0)
    }
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

/// The event is not a chunk of a chat completion.
#[derive(Debug, Error)]
pub enum ChunkFault {
    #[error("the chunk is not UTF-8")]
    NotUtf8,
    #[error("the chunk is not valid JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("`{member}` of the chunk is not {expected}")]
    Shape { member: &'static str, expected: &'static str },
}

/// One choice. Of two members with the same name the later one counts.
#[derive(Default)]
pub(super) struct Choice<'a> {
    pub(super) delta: Delta<'a>,
    pub(super) finish: &'a str,
    pub(super) stop_reason: Option<&'a str>,
    pub(super) matched_stop: Option<&'a str>,
}

#[derive(Default)]
pub(super) struct Delta<'a> {
    pub(super) reasoning: &'a str,
    pub(super) reasoning_content: &'a str,
    pub(super) content: &'a str,
    pub(super) tool_calls: Vec<ToolDelta<'a>>,
}

impl<'a> Choice<'a> {
    pub(super) fn into_chunk(self, usage: Option<Usage>, error: Option<BackendError>) -> Chunk<'a> {
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
mod tests {
    use super::*;

    #[test]
    fn the_first_event() {
        let usage = |completion_tokens| {
            Some(Usage { prompt_tokens: 7, completion_tokens, ..Usage::default() })
        };
        for (chunk, is_event) in [
            (Chunk::default(), false),
            (Chunk { usage: usage(0), ..Chunk::default() }, false),
            (Chunk { usage: usage(1), ..Chunk::default() }, true),
            (Chunk { content: "a", ..Chunk::default() }, true),
            (Chunk { reasoning: "a", ..Chunk::default() }, true),
            (Chunk { finish: "stop", ..Chunk::default() }, true),
            (Chunk { tool_calls: vec![ToolDelta::default()], ..Chunk::default() }, true),
        ] {
            assert_eq!(chunk.is_event(), is_event, "{chunk:?}");
        }
    }
}
