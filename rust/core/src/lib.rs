//! ferrule-core: what a reply says and how it is said again.
//!
//! Bytes go in, bytes come out; state lives inside, the clock stays outside. Nothing here knows Python, sockets or time.
//! A token's way through: [`http1`] (body framing) → [`sse`] (events) → [`chunk`] (what one event says) → [`message`] (the Messages stream).
#![forbid(unsafe_code)]

pub mod affinity;
pub mod chunk;
pub mod http1;
pub mod message;
pub mod outcome;
pub mod reply;
pub mod sse;
pub mod tokens;
