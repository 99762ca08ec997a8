//! What an exchange knows, and what becomes of what arrives: bytes for the client, an end, and things to do once the lock is gone.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ferrule_core::chat::{Passage, PassageOptions};
use ferrule_core::exchange::{End, Exchange as Http, Rest, Step, Telling};
use ferrule_core::histogram::Histogram as Buckets;
use ferrule_core::message::{Options, PING};
use ferrule_core::outcome::{ErrorKind, Fault};
use ferrule_core::translator::Translator;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::clock::now_s;
use crate::options::ReplyOptions;
use crate::outlet::Outlet;
use crate::todo::{Source, Todo};

/// Room for a chunk's size in front of the payload: 8 hex digits and CRLF.
pub const CHUNK_HEAD_BYTES: usize = 10;
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
const COMMENT: &[u8] = b": ping\n\n";

/// What happened on the backend's connection.
pub enum Arrival<'a> {
    Bytes(&'a [u8]),
    Eof,
    /// Reset, or lost in another way.
    Lost,
}

/// Seconds; `started_s` and later are points of the monotonic clock, 0 before they come.
pub struct Times {
    pub first_event_s: f64,
    pub idle_s: f64,
    pub total_s: f64,
    pub ping_after_s: f64,
    pub began_at: f64,
    pub sent_at: f64,
    pub first_event_at: f64,
    pub progress_at: f64,
    pub piece_at: f64,
    pub told_at: f64,
}

pub struct State {
    pub telling: Telling,
    pub recipe: Recipe,
    /// Nothing was told to it yet: the first attempt needs no other.
    pub is_fresh: bool,
    /// Every further answer goes on with the telling instead of beginning anew.
    pub goes_on: bool,
    pub http: Http,
    pub client: Option<Outlet>,
    pub is_chunked: bool,
    pub head: Vec<u8>,
    pub is_committed: bool,
    pub is_closed: bool,
    pub end: Option<&'static str>,
    pub waiter: Option<Py<PyAny>>,
    pub on_first_event: Option<Py<PyAny>>,
    pub source: Option<Source>,
    pub per_token: Option<Arc<Buckets>>,
    pub times: Times,
}

/// How to begin a telling: once, and again for each attempt at another backend.
pub struct Recipe {
    pub telling: String,
    pub options: Option<Py<ReplyOptions>>,
    pub budget_tokens: Option<u64>,
    pub passage: PassageOptions,
}

impl Recipe {
    pub fn make(&self) -> PyResult<Telling> {
        let options = self.options.as_ref().map(|options| Options { budget_tokens: self.budget_tokens, ..options.get().0.clone() });
        match (self.telling.as_str(), options) {
            ("events", Some(options)) => Ok(Telling::Events(Box::new(Translator::new(options)))),
            ("folded", Some(options)) => Ok(Telling::Folded(Box::new(Translator::new(options)), Box::default())),
            ("chat", _) => Ok(Telling::Chat(Box::new(Passage::new(self.passage.clone())))),
            ("whole", _) => Ok(Telling::Whole),
            _ => Err(PyValueError::new_err("telling: expected events or folded (with options), chat or whole")),
        }
    }
}

impl State {
    /// Feeds what arrived and sends what the client gets for it. `Some(rest)`: the exchange is over.
    pub fn advance(&mut self, py: Python<'_>, arrival: &Arrival<'_>, out: &mut Vec<u8>) -> PyResult<(Todo, Option<Rest>)> {
        if self.end.is_some() {
            return Ok((Todo::default(), Some(Rest::Close)));
        }
        let step = self.step(arrival, out);
        let now = now_s();
        self.note(now, step.pieces, out.len() > CHUNK_HEAD_BYTES);
        let has_started = self.telling.has_started();
        // Whatever else came with it: the answer is asked for anew, from what was thought so far.
        let is_spent = self.telling.is_budget_spent();
        if step.end == Some(End::Broken) && has_started && !is_spent {
            self.telling.fail(self.broken(), out);
        }
        let is_told = !is_spent && (step.end == Some(End::Complete) || (step.end == Some(End::Broken) && has_started));
        let mut todo = Todo { rest: self.tell(py, out, is_told, now)?, ..Todo::default() };
        if has_started {
            todo.first_event = self.on_first_event.take();
        }
        let end = if is_spent { Some("budget") } else { step.end.map(name) };
        if end.is_none() {
            return Ok((todo, None));
        }
        self.end = end;
        self.source = None;
        todo.waiter = self.waiter.take();
        // Close, where the backend is still at it.
        Ok((todo, Some(self.http.take_rest())))
    }

    /// A panic breaks this stream and no other.
    fn step(&mut self, arrival: &Arrival<'_>, out: &mut Vec<u8>) -> Step {
        let (http, telling) = (&mut self.http, &mut self.telling);
        let fed = catch_unwind(AssertUnwindSafe(|| match arrival {
            Arrival::Bytes(bytes) => http.feed(telling, bytes, out),
            Arrival::Eof => http.eof(telling, out),
            Arrival::Lost => http.lost(),
        }));
        fed.unwrap_or_else(|_| {
            out.truncate(CHUNK_HEAD_BYTES);
            Step { pieces: 0, end: Some(End::Broken) }
        })
    }

    pub fn broken(&self) -> Fault {
        let message = self.http.fault().unwrap_or("the reply could not be read");
        Fault { kind: ErrorKind::Api, message: message.to_owned() }
    }

    fn note(&mut self, now: f64, pieces: u64, has_output: bool) {
        let times = &mut self.times;
        if pieces > 0 {
            if times.piece_at > 0.0
                && let Some(buckets) = &self.per_token
            {
                buckets.observe((now - times.piece_at) / pieces as f64, pieces);
            }
            times.piece_at = now;
            times.progress_at = now;
        }
        if has_output {
            times.progress_at = now;
        }
        if times.first_event_at == 0.0 && self.telling.has_started() {
            times.first_event_at = now;
        }
    }

    /// Sends `out` (whose first `CHUNK_HEAD_BYTES` are room for the chunk's head) to the client, the answer's head before it if need be.
    fn tell(&mut self, py: Python<'_>, out: &mut Vec<u8>, is_last: bool, now: f64) -> PyResult<Option<(Py<PyAny>, Py<PyBytes>)>> {
        let length = out.len() - CHUNK_HEAD_BYTES;
        let Some(client) = &mut self.client else { return Ok(None) };
        if self.is_closed || (length == 0 && !is_last) {
            return Ok(None);
        }
        self.is_closed = is_last;
        self.times.told_at = now;
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

    /// Tells the error and ends; what the client has not begun to get is left to an answer with a status.
    pub fn end_with(&mut self, py: Python<'_>, fault: Fault, end: &'static str) -> PyResult<Todo> {
        let mut out = vec![0; CHUNK_HEAD_BYTES];
        if self.telling.has_started() {
            self.telling.fail(fault, &mut out);
        } else if self.is_committed {
            self.telling.write_error(&fault, &mut out);
        }
        let is_told = self.is_committed || self.telling.has_started();
        let rest = if is_told { self.tell(py, &mut out, true, now_s())? } else { None };
        self.end = Some(end);
        Ok(Todo { rest, waiter: self.waiter.take(), abort: self.source.take(), first_event: None })
    }

    /// What the time is up for, if for anything: the end and the text of its error.
    pub fn overdue(&self, now: f64, is_client_paused: bool) -> Option<(&'static str, &'static str)> {
        let times = &self.times;
        if now - times.began_at > times.total_s {
            return Some(("overtime", "The answer took too long."));
        }
        if matches!(self.telling, Telling::Whole) || self.source.is_none() || is_client_paused {
            return None;
        }
        if times.first_event_at == 0.0 {
            return (now - times.sent_at > times.first_event_s).then_some(("timeout", "The backend did not answer in time."));
        }
        (now - times.progress_at > times.idle_s).then_some(("timeout", "The backend stopped answering."))
    }

    pub fn ping(&mut self, py: Python<'_>, now: f64) -> PyResult<Todo> {
        if self.client.is_none() || now - self.times.told_at < self.times.ping_after_s {
            return Ok(Todo::default());
        }
        let mut out = vec![0; CHUNK_HEAD_BYTES];
        out.extend_from_slice(if matches!(self.telling, Telling::Chat(_)) { COMMENT } else { PING });
        Ok(Todo { rest: self.tell(py, &mut out, false, now)?, ..Todo::default() })
    }
}

fn name(end: End) -> &'static str {
    match end {
        End::Complete => "complete",
        End::Collected => "collected",
        End::Broken => "broken",
        End::Untouched => "untouched",
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
