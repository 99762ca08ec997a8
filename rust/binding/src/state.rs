//! What an stream knows, and what becomes of what arrives: bytes for the client, an end, and things
//! to do once the lock is gone.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ferrule_core::chat_passthrough::{ChatOptions, ChatPassthrough};
use ferrule_core::histogram::Histogram as Buckets;
use ferrule_core::message::{Options, PING};
use ferrule_core::outcome::{ErrorKind, Fault};
use ferrule_core::response_reader::{ConnectionFate, End, Progress, ResponseMode, ResponseReader};
use ferrule_core::translator::Translator;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::clock::now_s;
use crate::effects::{Effects, UpstreamHandle};
use crate::io::SocketWriter;
use crate::options::ResponseOptions;

/// Room for a chunk's size in front of the payload: 8 hex digits and CRLF.
pub const CHUNK_HEAD_BYTES: usize = 10;
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
const COMMENT: &[u8] = b": ping\n\n";

/// What happened on the backend's connection.
pub enum ReadEvent<'a> {
    Bytes(&'a [u8]),
    Eof,
    /// Reset, or lost in another way.
    Lost,
}

/// Seconds; `started_s` and later are points of the monotonic clock, 0 before they come.
pub struct Timing {
    pub first_event_s: f64,
    pub idle_s: f64,
    pub total_s: f64,
    pub ping_after_s: f64,
    pub began_at: f64,
    pub sent_at: f64,
    pub first_event_at: f64,
    pub progress_at: f64,
    pub delta_at: f64,
    pub written_at: f64,
}

pub struct State {
    pub mode: ResponseMode,
    pub spec: ResponseSpec,
    /// Nothing was told to it yet: the first attempt needs no other.
    pub is_fresh: bool,
    /// Every further answer goes on with the mode instead of beginning anew.
    pub is_continuation: bool,
    pub reader: ResponseReader,
    pub client: Option<SocketWriter>,
    pub is_chunked: bool,
    pub head: Vec<u8>,
    pub is_committed: bool,
    pub is_closed: bool,
    pub end: Option<&'static str>,
    pub waiter: Option<Py<PyAny>>,
    pub on_first_event: Option<Py<PyAny>>,
    pub upstream: Option<UpstreamHandle>,
    pub per_token: Option<Arc<Buckets>>,
    pub times: Timing,
}

/// How to begin a mode: once, and again for each attempt at another backend.
pub struct ResponseSpec {
    pub mode: String,
    pub options: Option<Py<ResponseOptions>>,
    pub budget_tokens: Option<u64>,
    pub chat: ChatOptions,
}

impl ResponseSpec {
    pub fn make(&self) -> PyResult<ResponseMode> {
        let options = self.options.as_ref().map(|options| Options {
            budget_tokens: self.budget_tokens,
            ..options.get().0.clone()
        });
        match (self.mode.as_str(), options) {
            ("events", Some(options)) => {
                Ok(ResponseMode::Events(Box::new(Translator::new(options))))
            }
            ("folded", Some(options)) => {
                Ok(ResponseMode::Aggregated(Box::new(Translator::new(options)), Box::default()))
            }
            ("chat", _) => {
                Ok(ResponseMode::Chat(Box::new(ChatPassthrough::new(self.chat.clone()))))
            }
            ("whole", _) => Ok(ResponseMode::Buffered),
            _ => Err(PyValueError::new_err(
                "mode: expected events or folded (with options), chat or whole",
            )),
        }
    }
}

impl State {
    /// Feeds what arrived and sends what the client gets for it. `Some(rest)`: the stream is over.
    pub fn advance(
        &mut self,
        py: Python<'_>,
        event: &ReadEvent<'_>,
        out: &mut Vec<u8>,
    ) -> PyResult<(Effects, Option<ConnectionFate>)> {
        if self.end.is_some() {
            return Ok((Effects::default(), Some(ConnectionFate::Close)));
        }
        let step = self.step(event, out);
        let now = now_s();
        self.note(now, step.deltas, out.len() > CHUNK_HEAD_BYTES);
        let has_started = self.mode.has_started();
        // Whatever else came with it: the answer is asked for anew, from what was thought so far.
        let is_spent = self.mode.is_budget_spent();
        if step.end == Some(End::Broken) && has_started && !is_spent {
            self.mode.fail(self.broken(), out);
        }
        let is_written = !is_spent
            && (step.end == Some(End::Complete) || (step.end == Some(End::Broken) && has_started));
        let mut effects =
            Effects { rest: self.write(py, out, is_written, now)?, ..Effects::default() };
        if has_started {
            effects.first_event = self.on_first_event.take();
        }
        let end = if is_spent { Some("budget") } else { step.end.map(name) };
        if end.is_none() {
            return Ok((effects, None));
        }
        self.end = end;
        self.upstream = None;
        effects.waiter = self.waiter.take();
        // Close, where the backend is still at it.
        Ok((effects, Some(self.reader.take_fate())))
    }

    /// A panic breaks this stream and no other.
    fn step(&mut self, event: &ReadEvent<'_>, out: &mut Vec<u8>) -> Progress {
        let (reader, mode) = (&mut self.reader, &mut self.mode);
        let fed = catch_unwind(AssertUnwindSafe(|| match event {
            ReadEvent::Bytes(bytes) => reader.feed(mode, bytes, out),
            ReadEvent::Eof => reader.eof(mode, out),
            ReadEvent::Lost => reader.lost(),
        }));
        fed.unwrap_or_else(|_| {
            out.truncate(CHUNK_HEAD_BYTES);
            Progress { deltas: 0, end: Some(End::Broken) }
        })
    }

    pub fn broken(&self) -> Fault {
        let message = self.reader.fault().unwrap_or("the reply could not be read");
        Fault { kind: ErrorKind::Api, message: message.to_owned() }
    }

    fn note(&mut self, now: f64, deltas: u64, has_output: bool) {
        let times = &mut self.times;
        if deltas > 0 {
            if times.delta_at > 0.0
                && let Some(buckets) = &self.per_token
            {
                buckets.observe((now - times.delta_at) / deltas as f64, deltas);
            }
            times.delta_at = now;
            times.progress_at = now;
        }
        if has_output {
            times.progress_at = now;
        }
        if times.first_event_at == 0.0 && self.mode.has_started() {
            times.first_event_at = now;
        }
    }

    /// Sends `out` (whose first `CHUNK_HEAD_BYTES` are room for the chunk's head) to the client,
    /// the answer's head before it if need be.
    fn write(
        &mut self,
        py: Python<'_>,
        out: &mut Vec<u8>,
        is_last: bool,
        now: f64,
    ) -> PyResult<Option<(Py<PyAny>, Py<PyBytes>)>> {
        let length = out.len() - CHUNK_HEAD_BYTES;
        let Some(client) = &mut self.client else { return Ok(None) };
        if self.is_closed || (length == 0 && !is_last) {
            return Ok(None);
        }
        self.is_closed = is_last;
        self.times.written_at = now;
        let mut from = CHUNK_HEAD_BYTES;
        if self.is_chunked {
            if length > 0 {
                from = write_chunk_head(out, length);
                out.extend_from_slice(b"\r\n");
            }
            if is_last {
                out.extend_from_slice(LAST_CHUNK);
            }
        }
        let rest = if self.is_committed {
            client.send(py, &out[from..])?
        } else {
            self.is_committed = true;
            let mut first = std::mem::take(&mut self.head);
            first.extend_from_slice(&out[from..]);
            client.send(py, &first)?
        };
        Ok(rest.map(|bytes| (client.transport(py), bytes)))
    }

    /// Tells the error and ends; what the client has not begun to get is left to an answer with a
    /// status.
    pub fn end_with(
        &mut self,
        py: Python<'_>,
        fault: Fault,
        end: &'static str,
    ) -> PyResult<Effects> {
        let mut out = vec![0; CHUNK_HEAD_BYTES];
        if self.mode.has_started() {
            self.mode.fail(fault, &mut out);
        } else if self.is_committed {
            self.mode.write_error(&fault, &mut out);
        }
        let is_written = self.is_committed || self.mode.has_started();
        let rest = if is_written { self.write(py, &mut out, true, now_s())? } else { None };
        self.end = Some(end);
        Ok(Effects {
            rest,
            waiter: self.waiter.take(),
            abort: self.upstream.take(),
            first_event: None,
        })
    }

    /// What the time is up for, if for anything: the end and the text of its error.
    pub fn overdue(
        &self,
        now: f64,
        is_client_paused: bool,
    ) -> Option<(&'static str, &'static str)> {
        let times = &self.times;
        if now - times.began_at > times.total_s {
            return Some(("overtime", "The answer took too long."));
        }
        if matches!(self.mode, ResponseMode::Buffered)
            || self.upstream.is_none()
            || is_client_paused
        {
            return None;
        }
        if times.first_event_at == 0.0 {
            return (now - times.sent_at > times.first_event_s)
                .then_some(("timeout", "The backend did not answer in time."));
        }
        (now - times.progress_at > times.idle_s)
            .then_some(("timeout", "The backend stopped answering."))
    }

    pub fn ping(&mut self, py: Python<'_>, now: f64) -> PyResult<Effects> {
        if self.client.is_none() || now - self.times.written_at < self.times.ping_after_s {
            return Ok(Effects::default());
        }
        let mut out = vec![0; CHUNK_HEAD_BYTES];
        out.extend_from_slice(if matches!(self.mode, ResponseMode::Chat(_)) {
            COMMENT
        } else {
            PING
        });
        Ok(Effects { rest: self.write(py, &mut out, false, now)?, ..Effects::default() })
    }
}

fn name(end: End) -> &'static str {
    match end {
        End::Complete => "complete",
        End::Collected => "collected",
        End::Broken => "broken",
        End::NoResponse => "untouched",
    }
}

/// Writes the chunk's size in front of the payload; returns where it begins.
fn write_chunk_head(out: &mut [u8], length: usize) -> usize {
    out[CHUNK_HEAD_BYTES - 2] = b'\r';
    out[CHUNK_HEAD_BYTES - 1] = b'\n';
    let (mut at, mut left) = (CHUNK_HEAD_BYTES - 2, length);
    while left > 0 && at > 0 {
        at -= 1;
        out[at] = b"0123456789abcdef"[left & 15];
        left >>= 4;
    }
    at
}
