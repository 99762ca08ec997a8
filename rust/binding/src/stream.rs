//! One response on its way from a backend to a client. It outlives the backend's connection: a
//! retry or a continuation goes on with it.
//!
//! Under the lock nothing is called, and no Python object dropped, that could call back: a write to
//! the client's transport may pause us, and a finalizer may do anything. Calls are collected in
//! `Effects`. The one exception is in `SocketWriter::send`.

use std::cell::RefCell;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ferrule_core::error::{ErrorKind, Fault};
use ferrule_core::response_reader::{ConnectionFate, ResponseMode};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::client_writer::{CHUNK_HEAD_BYTES, ClientWriter};
use crate::clock::now_s;
use crate::deadlines::StreamDeadlines;
use crate::effects::{Effects, UpstreamHandle};
use crate::histogram::PyHistogram;
use crate::io::{ReadEvent, SocketWriter};
use crate::options::{PyOutcome, ResponseEnd, ResponseSpec};
use crate::state::{Attempt, StreamState, Timing};

/// The shared output buffer is freed past this.
const KEPT_BUFFER_BYTES: usize = 1 << 20;

thread_local! {
    /// The output of one read; written out before the next one, so one buffer serves all streams.
    static OUT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

#[pyclass(frozen, module = "ferrule._core")]
pub struct ResponseStream {
    state: Mutex<StreamState>,
    is_client_paused: AtomicBool,
}

impl ResponseStream {
    fn lock(&self) -> MutexGuard<'_, StreamState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles what was read from the backend. `Some(fate)`: the response is over, and that is what
    /// to do with the backend's connection.
    pub fn handle_read(
        &self,
        py: Python<'_>,
        event: &ReadEvent<'_>,
    ) -> PyResult<Option<ConnectionFate>> {
        let mut out = OUT.with(|shared| shared.take());
        out.clear();
        out.resize(CHUNK_HEAD_BYTES, 0);
        let (effects, fate) = self.lock().advance(py, event, &mut out)?;
        if out.capacity() <= KEPT_BUFFER_BYTES {
            OUT.with(|shared| shared.replace(out));
        }
        effects.run(py)?;
        Ok(fate)
    }

    /// Begins an attempt, just before its request is sent.
    pub fn begin_attempt(
        &self,
        py: Python<'_>,
        upstream: UpstreamHandle,
        waiter: Py<PyAny>,
    ) -> PyResult<()> {
        let now = now_s();
        if self.is_client_paused.load(Ordering::Relaxed) {
            upstream.set_paused(py, true)?;
        }
        let mut state = self.lock();
        if !std::mem::take(&mut state.is_fresh) && !state.is_continuation {
            state.mode = state.spec.get().begin();
        }
        let attempt = Attempt {
            waiter: Some(waiter),
            upstream: Some(upstream),
            sent_at: now,
            ..Attempt::default()
        };
        let previous = std::mem::replace(&mut state.attempt, attempt);
        state.timing.progress_at = now;
        drop(state);
        drop(previous);
        Ok(())
    }

    fn set_upstream_paused(&self, py: Python<'_>, is_paused: bool) -> PyResult<()> {
        self.is_client_paused.store(is_paused, Ordering::Relaxed);
        let mut state = self.lock();
        state.timing.progress_at = now_s();
        let upstream = state.attempt.upstream.as_ref().map(|upstream| upstream.clone_ref(py));
        drop(state);
        upstream.map_or(Ok(()), |upstream| upstream.set_paused(py, is_paused))
    }
}

#[pymethods]
impl ResponseStream {
    #[new]
    #[pyo3(signature = (spec, deadlines, *, transport=None, descriptor=None, is_chunked=true,
        per_token=None))]
    fn new(
        spec: Py<ResponseSpec>,
        deadlines: Py<StreamDeadlines>,
        transport: Option<Py<PyAny>>,
        descriptor: Option<RawFd>,
        is_chunked: bool,
        per_token: Option<&PyHistogram>,
    ) -> Self {
        let now = now_s();
        let client = transport.map(|transport| {
            ClientWriter::new(SocketWriter::new(transport, descriptor), is_chunked, now)
        });
        let timing = Timing { began_at: now, first_event_at: 0.0, progress_at: now, delta_at: 0.0 };
        let state = StreamState {
            mode: spec.get().begin(),
            spec,
            deadlines,
            is_fresh: true,
            is_continuation: false,
            attempt: Attempt::default(),
            client,
            on_first_event: None,
            per_token: per_token.map(|histogram| histogram.0.clone()),
            timing,
        };
        Self { state: Mutex::new(state), is_client_paused: AtomicBool::new(false) }
    }

    /// `callback` is called once, when the first event comes.
    fn on_first_event(&self, callback: Py<PyAny>) {
        let previous = self.lock().on_first_event.replace(callback);
        drop(previous);
    }

    /// The head that goes before the first byte; ignored once that was sent.
    fn set_head(&self, head: &[u8]) {
        if let Some(client) = &mut self.lock().client {
            client.set_head(head);
        }
    }

    fn sweep(&self, py: Python<'_>, now: f64) -> PyResult<()> {
        let mut state = self.lock();
        let has_expired =
            matches!(state.attempt.end, Some(ResponseEnd::Silent | ResponseEnd::Overtime));
        if state.is_finished() || has_expired {
            return Ok(());
        }
        let overdue = if state.attempt.end.is_none() {
            state.overdue(now, self.is_client_paused.load(Ordering::Relaxed))
        } else {
            None
        };
        let effects = match overdue {
            Some((end, message)) => {
                let fault = Fault { kind: ErrorKind::Timeout, message: message.to_owned() };
                state.end_with(py, fault, end)?
            }
            None => state.ping(py, now)?,
        };
        drop(state);
        effects.run(py)
    }

    /// Ends with an error of the gateway. True: the client got it, or the response was over.
    fn fail(&self, py: Python<'_>, kind: &str, message: &str) -> PyResult<bool> {
        let mut state = self.lock();
        if state.is_finished() {
            return Ok(true);
        }
        let kind = ErrorKind::parse(kind).unwrap_or(ErrorKind::Api);
        let end = state.attempt.end.unwrap_or(ResponseEnd::Failed);
        let effects = state.end_with(py, Fault { kind, message: message.to_owned() }, end)?;
        let is_written = state.is_committed();
        drop(state);
        effects.run(py)?;
        Ok(is_written)
    }

    /// Closes the backend's connection, because the client has disconnected or the request was
    /// cancelled.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        let mut state = self.lock();
        let attempt = &mut state.attempt;
        attempt.end = attempt.end.or(Some(ResponseEnd::Aborted));
        let effects = Effects { abort: attempt.upstream.take(), ..Effects::default() };
        let waiter = attempt.waiter.take();
        drop(state);
        drop(waiter);
        effects.run(py)
    }

    /// What follows is a second response, which continues where the thinking budget ended the
    /// first.
    fn begin_continuation(&self) {
        let mut state = self.lock();
        state.mode.begin_continuation();
        state.is_continuation = true;
    }

    /// The client's transport holds too much: the backend is not read until `client_resumed`.
    fn client_paused(&self, py: Python<'_>) -> PyResult<()> {
        self.set_upstream_paused(py, true)
    }

    fn client_resumed(&self, py: Python<'_>) -> PyResult<()> {
        self.set_upstream_paused(py, false)
    }

    /// The client's connection is lost, and its socket about to be closed.
    fn client_lost(&self) {
        let writer = self.lock().client.as_mut().and_then(ClientWriter::lose);
        drop(writer);
    }

    #[getter]
    fn end(&self) -> Option<ResponseEnd> {
        self.lock().attempt.end
    }

    #[getter]
    fn is_committed(&self) -> bool {
        self.lock().is_committed()
    }

    #[getter]
    fn has_started(&self) -> bool {
        self.lock().mode.has_started()
    }

    #[getter]
    fn status(&self) -> u16 {
        self.lock().attempt.reader.status()
    }

    #[getter]
    fn retry_after(&self) -> Option<String> {
        self.lock().attempt.reader.retry_after().map(str::to_owned)
    }

    #[getter]
    fn fault(&self) -> String {
        self.lock().fault().message
    }

    /// The whole message (taken once; read the outcome first), or the body that was collected.
    fn take_body<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let mut state = self.lock();
        if state.attempt.end == Some(ResponseEnd::Complete) {
            let mode = std::mem::replace(&mut state.mode, ResponseMode::Buffered);
            return PyBytes::new(py, &mode.into_message());
        }
        PyBytes::new(py, state.attempt.reader.collected())
    }

    #[getter]
    fn outcome(&self) -> PyOutcome {
        self.lock().mode.outcome().into()
    }

    #[getter]
    fn reasoning_text(&self) -> String {
        self.lock().mode.reasoning_text()
    }

    #[getter]
    fn sent_at(&self) -> f64 {
        self.lock().attempt.sent_at
    }

    #[getter]
    fn first_event_at(&self) -> f64 {
        self.lock().timing.first_event_at
    }
}
