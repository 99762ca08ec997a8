//! ferrule-core: what a reply says and how it is said again.
//!
//! Bytes go in, bytes come out; state lives inside, the clock stays outside. Nothing here knows Python, sockets or time.
//! A token's way through: [`http1`] (body framing) → [`sse`] (events) → [`chunk`] (what one event says) → [`message`] (the Messages stream).
#![forbid(unsafe_code)]

pub mod affinity;
mod arguments;
mod blocks;
mod calls;
pub mod chat;
pub mod chunk;
pub mod exchange;
pub mod failure;
pub mod fold;
pub mod histogram;
pub mod http1;
mod ledger;
pub mod message;
pub mod options;
pub mod outcome;
mod overflow;
pub mod reply;
pub mod sink;
mod split;
pub mod sse;
mod teller;
pub mod text;
pub mod tokens;
pub mod tool_id;
pub mod translator;
