//! One `chat.completion.chunk`: what it says, whatever it looks like.
//!
//! Strings stay as they stand in the JSON, still escaped and without their quotes, so that content
//! can be copied and need not be decoded. Two readers give the same answer: [`scan`] knows the
//! shapes that engines emit token after token and touches every byte once; [`parse`] (serde) knows
//! all the others, and decides what is an error.

mod error;
mod json;
mod parse;
mod scan;
mod types;

pub use types::{Arguments, BackendError, Chunk, ChunkFault, ToolDelta};

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

#[cfg(test)]
mod tests;
