//! A reply on its way from a backend to a client. It outlives the backend connection: a retry or a
//! continuation goes on with it.
//!
//! While the lock is held nothing of Python is called that could call back: a write to the client's
//! transport may pause us.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ferrule_core::chat_passthrough::ChatOptions;
use ferrule_core::outcome::{ErrorKind, Fault};
use ferrule_core::response_reader::{ConnectionFate, ResponseMode, ResponseReader};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::clock::now_s;
use crate::effects::{Effects, UpstreamHandle};
use crate::histogram::Histogram;
use crate::io::SocketWriter;
use crate::options::{Outcome, ResponseOptions};
use crate::state::{CHUNK_HEAD_BYTES, ReadEvent, ResponseSpec, State, Timing};

/// The shared output buffer is given back past this.
const KEPT_BUFFER_BYTES: usize = 1 << 20;

thread_local! {
    /// What one read became; written out before the next one, so one buffer serves all streams.
    static OUT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

#[pyclass(frozen, module = "ferrule._core")]
pub struct ResponseStream {
    state: Mutex<State>,
    is_client_paused: AtomicBool,
}

impl ResponseStream {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what arrived on the backend's connection. `Some(rest)`: the stream is over and the
    /// connection is to do this.
    pub fn take(&self, py: Python<'_>, event: &ReadEvent<'_>) -> PyResult<Option<ConnectionFate>> {
        let mut out = OUT.with(|shared| shared.take());
        out.clear();
        out.resize(CHUNK_HEAD_BYTES, 0);
        let (effects, rest) = self.lock().advance(py, event, &mut out)?;
        if out.capacity() <= KEPT_BUFFER_BYTES {
            OUT.with(|shared| shared.replace(out));
        }
        effects.run(py)?;
        Ok(rest)
    }

    /// A request goes out for it.
    pub fn begin(
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
            state.mode = state.spec.make()?;
        }
        state.reader = ResponseReader::default();
        state.end = None;
        state.waiter = Some(waiter);
        state.upstream = Some(upstream);
        state.times.sent_at = now;
        state.times.progress_at = now;
        Ok(())
    }

    fn set_upstream_paused(&self, py: Python<'_>, is_paused: bool) -> PyResult<()> {
        self.is_client_paused.store(is_paused, Ordering::Relaxed);
        let mut state = self.lock();
        state.times.progress_at = now_s();
        let upstream = state.upstream.as_ref().map(|upstream| upstream.clone_ref(py));
        drop(state);
        upstream.map_or(Ok(()), |upstream| upstream.set_paused(py, is_paused))
    }
}

#[pymethods]
impl ResponseStream {
    #[new]
    #[pyo3(signature = (*, mode, options=None, model_json="", hide_usage=false, transport=None, descriptor=None,
        is_chunked=true, budget_tokens=None, per_token=None, ping_after_s=10.0, first_event_s=600.0, idle_s=120.0, total_s=3600.0))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn new(
        mode: &str,
        options: Option<Py<ResponseOptions>>,
        model_json: &str,
        hide_usage: bool,
        transport: Option<Py<PyAny>>,
        descriptor: Option<i32>,
        is_chunked: bool,
        budget_tokens: Option<u64>,
        per_token: Option<&Histogram>,
        ping_after_s: f64,
        first_event_s: f64,
        idle_s: f64,
        total_s: f64,
    ) -> PyResult<Self> {
        let chat = ChatOptions { model_json: model_json.to_owned(), hide_usage };
        let spec = ResponseSpec { mode: mode.to_owned(), options, budget_tokens, chat };
        let mode = spec.make()?;
        let now = now_s();
        let times = Timing {
            first_event_s,
            idle_s,
            total_s,
            ping_after_s,
            began_at: now,
            sent_at: 0.0,
            first_event_at: 0.0,
            progress_at: now,
            delta_at: 0.0,
            written_at: now,
        };
        let state = State {
            mode,
            spec,
            is_fresh: true,
            is_continuation: false,
            reader: ResponseReader::default(),
            client: transport.map(|transport| SocketWriter::new(transport, descriptor)),
            is_chunked,
            head: Vec::new(),
            is_committed: false,
            is_closed: false,
            end: None,
            waiter: None,
            on_first_event: None,
            upstream: None,
            per_token: per_token.map(|histogram| histogram.0.clone()),
            times,
        };
        Ok(Self { state: Mutex::new(state), is_client_paused: AtomicBool::new(false) })
    }

    /// `callback` is called once, when the first event comes.
    fn on_first_event(&self, callback: Py<PyAny>) {
        self.lock().on_first_event = Some(callback);
    }

    /// The head that goes before the first byte; ignored once that was sent.
    fn set_head(&self, head: &[u8]) {
        let mut state = self.lock();
        if !state.is_committed {
            state.head = head.to_vec();
        }
    }

    fn sweep(&self, py: Python<'_>, now: f64) -> PyResult<()> {
        let mut state = self.lock();
        if state.is_closed || matches!(state.end, Some("timeout" | "overtime")) {
            return Ok(());
        }
        let overdue = if state.end.is_none() {
            state.overdue(now, self.is_client_paused.load(Ordering::Relaxed))
        } else {
            None
        };
        let effects = match overdue {
            Some((end, message)) => state.end_with(
                py,
                Fault { kind: ErrorKind::Timeout, message: message.to_owned() },
                end,
            )?,
            None => state.ping(py, now)?,
        };
        drop(state);
        effects.run(py)
    }

    /// Ends with an error of ours, as far as the client has begun to get an answer. True: it was
    /// told.
    fn fail(&self, py: Python<'_>, kind: &str, message: &str) -> PyResult<bool> {
        let mut state = self.lock();
        if state.is_closed {
            return Ok(true);
        }
        let kind = ErrorKind::parse(kind).unwrap_or(ErrorKind::Api);
        let end = state.end.unwrap_or("failed");
        let effects = state.end_with(py, Fault { kind, message: message.to_owned() }, end)?;
        let is_written = state.is_committed;
        drop(state);
        effects.run(py)?;
        Ok(is_written)
    }

    /// Cuts the backend, when the client has gone or nobody waits any more.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        let mut state = self.lock();
        state.end = state.end.or(Some("aborted"));
        let effects = Effects { abort: state.upstream.take(), ..Effects::default() };
        state.waiter = None;
        drop(state);
        effects.run(py)
    }

    /// Whatever comes now is of a second answer, which goes on where the thinking budget ended the
    /// first.
    fn begin_continuation(&self) {
        let mut state = self.lock();
        state.mode.begin_continuation();
        state.is_continuation = true;
    }

    /// The client's transport holds back too much: the backend is not read until that is gone.
    fn client_paused(&self, py: Python<'_>) -> PyResult<()> {
        self.set_upstream_paused(py, true)
    }

    fn client_resumed(&self, py: Python<'_>) -> PyResult<()> {
        self.set_upstream_paused(py, false)
    }

    /// The client's connection is lost, and its socket about to be closed: nothing is written to it
    /// any more.
    fn client_lost(&self) {
        let client = self.lock().client.take();
        drop(client);
    }

    #[getter]
    fn end(&self) -> Option<&'static str> {
        self.lock().end
    }

    #[getter]
    fn is_committed(&self) -> bool {
        self.lock().is_committed
    }

    #[getter]
    fn has_started(&self) -> bool {
        self.lock().mode.has_started()
    }

    #[getter]
    fn status(&self) -> u16 {
        self.lock().reader.status()
    }

    #[getter]
    fn retry_after(&self) -> Option<String> {
        self.lock().reader.header("retry-after")
    }

    #[getter]
    fn fault(&self) -> String {
        self.lock().broken().message
    }

    /// The whole message (told once; read the outcome first), or the body that was collected.
    fn take_body<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let mut state = self.lock();
        if state.end == Some("complete") {
            return PyBytes::new(
                py,
                &std::mem::replace(&mut state.mode, ResponseMode::Buffered).into_message(),
            );
        }
        PyBytes::new(py, state.reader.collected())
    }

    #[getter]
    fn outcome(&self) -> Outcome {
        self.lock().mode.outcome().into()
    }

    #[getter]
    fn reasoning_text(&self) -> String {
        self.lock().mode.reasoning_text()
    }

    #[getter]
    fn sent_at(&self) -> f64 {
        self.lock().times.sent_at
    }

    #[getter]
    fn first_event_at(&self) -> f64 {
        self.lock().times.first_event_at
    }
}
