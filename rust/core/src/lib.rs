//! ferrule-core: sans-I/O translation of chat completions into Messages.
//!
//! Bytes go in, bytes come out; state lives inside, the clock stays outside. Nothing here knows
//! Python, sockets or time. The path of a token: [`http1`] (body framing) → [`sse`] (events) →
//! [`chunk`] (the contents of one event) → [`message`] (the Messages stream).
#![forbid(unsafe_code)]

pub mod affinity;
mod arguments;
mod block_writer;
mod calls;
pub mod chat_passthrough;
pub mod chunk;
pub mod error;
pub mod failure;
pub mod fold;
pub mod histogram;
pub mod http1;
pub mod message;
pub mod options;
pub mod outcome;
mod overflow;
pub mod reply;
pub mod response_reader;
mod sequencer;
pub mod sink;
mod split;
pub mod sse;
pub mod stop_reason;
mod stop_tracker;
pub mod text;
pub mod tokens;
pub mod tool_id;
mod tool_names;
pub mod translator;
mod usage_tracker;
