//! Reads one `chat.completion.chunk`, in any shape that engines give it.
//!
//! Strings stay escaped, without their quotes, so that content is copied and not decoded. Two
//! readers give the same answer: [`scan`] knows the shapes that engines emit token after token and
//! touches every byte once; [`parse`] (serde) reads everything else, and decides what is an error.

mod error;
mod json;
mod parse;
mod scan;
mod types;

pub use types::{Arguments, BackendError, Chunk, ChunkFault, ToolDelta};

/// Reads the data of one event. Only the choice with index 0 counts: requests never ask for more.
pub fn read(data: &[u8]) -> Result<Chunk<'_>, ChunkFault> {
    let text = std::str::from_utf8(data).map_err(|_| ChunkFault::NotUtf8)?;
    scan::scan(text).map_or_else(|| parse::parse(text), Ok)
}

/// The same with serde alone; tests compare the fast scanner with it.
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
