//! Response state, and its transitions on a read, a deadline or a call: bytes for the client, an
//! end, and effects to run once the lock is released.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ferrule_core::error::{ErrorKind, Fault};
use ferrule_core::histogram::Histogram;
use ferrule_core::message::PING;
use ferrule_core::response_reader::{ConnectionFate, End, Progress, ResponseMode, ResponseReader};
use pyo3::prelude::*;

use crate::client_writer::{CHUNK_HEAD_BYTES, ClientWriter, Unsent};
use crate::clock::now_s;
use crate::deadlines::StreamDeadlines;
use crate::effects::{Effects, UpstreamHandle};
use crate::io::ReadEvent;
use crate::options::{ResponseEnd, ResponseSpec};

/// A keep-alive on the chat route.
const COMMENT: &[u8] = b": ping\n\n";

/// One attempt at one backend: the response being read, and the future that waits for its end.
#[derive(Default)]
pub struct Attempt {
    pub reader: ResponseReader,
    pub end: Option<ResponseEnd>,
    pub waiter: Option<Py<PyAny>>,
    pub upstream: Option<UpstreamHandle>,
    pub sent_at: f64,
}

/// Points of the monotonic clock, in seconds; 0 before they come.
pub struct Timing {
    pub began_at: f64,
    pub first_event_at: f64,
    pub progress_at: f64,
    pub delta_at: f64,
}

pub struct StreamState {
    pub spec: Py<ResponseSpec>,
    pub deadlines: Py<StreamDeadlines>,
    pub mode: ResponseMode,
    /// Nothing was fed to `mode` yet: the first attempt begins with it.
    pub is_fresh: bool,
    /// Every further attempt continues the same message.
    pub is_continuation: bool,
    pub attempt: Attempt,
    /// None where the response is not streamed to the client.
    pub client: Option<ClientWriter>,
    pub on_first_event: Option<Py<PyAny>>,
    pub per_token: Option<Arc<Histogram>>,
    pub timing: Timing,
}

impl StreamState {
    /// Feeds what was read and sends what the client gets for it. `Some(fate)`: the response is
    /// over, and that is what to do with the backend's connection.
    pub fn advance(
        &mut self,
        py: Python<'_>,
        event: &ReadEvent<'_>,
        out: &mut Vec<u8>,
    ) -> PyResult<(Effects, Option<ConnectionFate>)> {
        if self.attempt.end.is_some() {
            return Ok((Effects::default(), Some(ConnectionFate::Close)));
        }
        let progress = self.feed(event, out);
        let now = now_s();
        self.record_progress(now, progress.deltas, out.len() > CHUNK_HEAD_BYTES);
        let has_started = self.mode.has_started();
        let end = self.end_of(&progress);
        if end == Some(ResponseEnd::Broken) && has_started {
            self.mode.fail(self.fault(), out);
        }
        let is_last = match end {
            Some(ResponseEnd::Complete) => true,
            Some(ResponseEnd::Broken) => has_started,
            Some(_) | None => false,
        };
        let unsent = self.write(py, out, is_last, now)?;
        let mut effects = Effects { unsent, ..Effects::default() };
        if has_started {
            effects.first_event = self.on_first_event.take();
        }
        if end.is_none() {
            return Ok((effects, None));
        }
        self.attempt.end = end;
        effects.released = self.attempt.upstream.take();
        effects.waiter = self.attempt.waiter.take();
        // `Close` where the backend is still sending.
        Ok((effects, Some(self.attempt.reader.take_fate())))
    }

    /// A panic breaks this response and no other.
    fn feed(&mut self, event: &ReadEvent<'_>, out: &mut Vec<u8>) -> Progress {
        let (reader, mode) = (&mut self.attempt.reader, &mut self.mode);
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

    fn end_of(&self, progress: &Progress) -> Option<ResponseEnd> {
        // Takes precedence over any other end: a continuation is requested from the reasoning so
        // far.
        if self.mode.is_budget_spent() {
            return Some(ResponseEnd::BudgetSpent);
        }
        progress.end.map(|end| match end {
            End::Complete => ResponseEnd::Complete,
            End::Collected => ResponseEnd::Collected,
            End::Broken => ResponseEnd::Broken,
            End::NoResponse => ResponseEnd::NoResponse,
        })
    }

    pub fn fault(&self) -> Fault {
        let message = self.attempt.reader.fault().unwrap_or("the reply could not be read");
        Fault { kind: ErrorKind::Api, message: message.to_owned() }
    }

    fn record_progress(&mut self, now: f64, deltas: u64, has_output: bool) {
        let timing = &mut self.timing;
        if deltas > 0 {
            if timing.delta_at > 0.0
                && let Some(histogram) = &self.per_token
            {
                histogram.observe((now - timing.delta_at) / deltas as f64, deltas);
            }
            timing.delta_at = now;
            timing.progress_at = now;
        }
        if has_output {
            timing.progress_at = now;
        }
        if timing.first_event_at == 0.0 && self.mode.has_started() {
            timing.first_event_at = now;
        }
    }

    /// Sends `out` to a client that streams. Called under the lock: see `SocketWriter::send`.
    fn write(
        &mut self,
        py: Python<'_>,
        out: &mut Vec<u8>,
        is_last: bool,
        now: f64,
    ) -> PyResult<Option<Unsent>> {
        self.client.as_mut().map_or(Ok(None), |client| client.write(py, out, is_last, now))
    }

    /// The client has the head: a status can no longer be sent.
    pub fn is_committed(&self) -> bool {
        self.client.as_ref().is_some_and(|client| client.is_committed)
    }

    pub fn is_finished(&self) -> bool {
        self.client.as_ref().is_some_and(|client| client.is_finished)
    }

    /// Writes the error and ends. Where the client has nothing yet, nothing is written: the error
    /// becomes a response with a status.
    pub fn end_with(
        &mut self,
        py: Python<'_>,
        fault: Fault,
        end: ResponseEnd,
    ) -> PyResult<Effects> {
        let mut out = vec![0; CHUNK_HEAD_BYTES];
        let has_started = self.mode.has_started();
        if has_started {
            self.mode.fail(fault, &mut out);
        } else if self.is_committed() {
            self.mode.write_error(&fault, &mut out);
        }
        let unsent = if self.is_committed() || has_started {
            self.write(py, &mut out, true, now_s())?
        } else {
            None
        };
        self.attempt.end = Some(end);
        let (waiter, abort) = (self.attempt.waiter.take(), self.attempt.upstream.take());
        Ok(Effects { unsent, waiter, abort, ..Effects::default() })
    }

    /// The expired deadline, if any, and the message of its error.
    pub fn overdue(&self, now: f64, is_client_paused: bool) -> Option<(ResponseEnd, &'static str)> {
        let (timing, deadlines) = (&self.timing, self.deadlines.get());
        if now - timing.began_at > deadlines.total_s {
            return Some((ResponseEnd::Overtime, "The answer took too long."));
        }
        let is_reading = self.attempt.upstream.is_some() && !is_client_paused;
        if matches!(self.mode, ResponseMode::Buffered) || !is_reading {
            return None;
        }
        if timing.first_event_at == 0.0 {
            return (now - self.attempt.sent_at > deadlines.first_event_s)
                .then_some((ResponseEnd::Silent, "The backend did not answer in time."));
        }
        (now - timing.progress_at > deadlines.idle_s)
            .then_some((ResponseEnd::Silent, "The backend stopped answering."))
    }

    pub fn ping(&mut self, py: Python<'_>, now: f64) -> PyResult<Effects> {
        let ping_after_s = self.deadlines.get().ping_after_s;
        let is_due = |client: &ClientWriter| now - client.written_at >= ping_after_s;
        if !self.client.as_ref().is_some_and(is_due) {
            return Ok(Effects::default());
        }
        let mut out = vec![0; CHUNK_HEAD_BYTES];
        out.extend_from_slice(match self.mode {
            ResponseMode::Chat(_) => COMMENT,
            ResponseMode::Events(_) | ResponseMode::Aggregated(..) | ResponseMode::Buffered => PING,
        });
        Ok(Effects { unsent: self.write(py, &mut out, false, now)?, ..Effects::default() })
    }
}
