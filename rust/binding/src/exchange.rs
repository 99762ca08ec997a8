//! A reply on its way from a backend to a client. It outlives the backend connection: a retry or a continuation goes on with it.
//!
//! The lock is never held while Python is called: a write to the client may call back into `client_paused`.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferrule_core::chat::{Passage, PassageOptions};
use ferrule_core::exchange::{End, Exchange as Http, Rest, Step, Telling};
use ferrule_core::histogram::Histogram as Buckets;
use ferrule_core::message::{Options, PING};
use ferrule_core::outcome::{ErrorKind, Fault};
use ferrule_core::translator::Translator;
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::client::Client;
use crate::clock::now_s;
use crate::histogram::Histogram;
use crate::options::{Outcome, ReplyOptions};
use crate::pump::Pump;

/// Room for a chunk's size in front of the payload: 8 hex digits and CRLF.
const CHUNK_HEAD_BYTES: usize = 10;
/// The shared output buffer is given back past this.
const KEPT_BUFFER_BYTES: usize = 1 << 20;
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
const COMMENT: &[u8] = b": ping\n\n";

thread_local! {
    /// What one read became; written out before the next one, so one buffer serves all streams.
    static OUT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Where the reply comes from: the backend's transport, and who reads its socket.
pub struct Source {
    transport: Option<Py<PyAny>>,
    pump: Option<(Py<Pump>, i32)>,
}

impl Source {
    pub fn new(transport: Py<PyAny>, pump: Option<Py<Pump>>, descriptor: Option<i32>) -> Self {
        Self { transport: Some(transport), pump: pump.zip(descriptor) }
    }

    pub fn none() -> Self {
        Self { transport: None, pump: None }
    }

    fn clone_ref(&self, py: Python<'_>) -> Self {
        Self {
            transport: self.transport.as_ref().map(|transport| transport.clone_ref(py)),
            pump: self.pump.as_ref().map(|(pump, descriptor)| (pump.clone_ref(py), *descriptor)),
        }
    }

    fn set_paused(&self, py: Python<'_>, is_paused: bool) -> PyResult<()> {
        if let Some((pump, descriptor)) = &self.pump {
            return pump.get().set_paused(*descriptor, is_paused);
        }
        let method = if is_paused { intern!(py, "pause_reading") } else { intern!(py, "resume_reading") };
        self.transport.as_ref().map_or(Ok(()), |transport| transport.call_method0(py, method).map(drop))
    }

    /// Cuts the connection; the relay hears of it by `connection_lost`.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        if let Some((pump, descriptor)) = &self.pump {
            pump.get().forget(*descriptor);
        }
        self.transport.as_ref().map_or(Ok(()), |transport| transport.call_method0(py, intern!(py, "abort")).map(drop))
    }
}

/// What happened on the backend's connection.
pub enum Arrival<'a> {
    Bytes(&'a [u8]),
    Eof,
    /// Reset, or lost in another way.
    Lost,
}

#[pyclass(frozen, module = "ferrule._core")]
pub struct Exchange {
    state: Mutex<State>,
    is_client_paused: AtomicBool,
}

/// Seconds; `started_s` and later are points of the monotonic clock, 0 before they come.
struct Times {
    first_event_s: f64,
    idle_s: f64,
    total_s: f64,
    ping_after_s: f64,
    began_at: f64,
    sent_at: f64,
    first_event_at: f64,
    progress_at: f64,
    piece_at: f64,
    told_at: f64,
}

struct State {
    telling: Telling,
    recipe: Recipe,
    /// Nothing was told to it yet: the first attempt needs no other.
    is_fresh: bool,
    /// Every further answer goes on with the telling instead of beginning anew.
    goes_on: bool,
    http: Http,
    client: Option<Client>,
    is_chunked: bool,
    head: Vec<u8>,
    is_committed: bool,
    is_closed: bool,
    end: Option<&'static str>,
    waiter: Option<Py<PyAny>>,
    on_first_event: Option<Py<PyAny>>,
    source: Option<Source>,
    per_token: Option<Arc<Buckets>>,
    times: Times,
}

/// How to begin a telling: once, and again for each attempt at another backend.
struct Recipe {
    telling: String,
    options: Option<Py<ReplyOptions>>,
    budget_tokens: Option<u64>,
    passage: PassageOptions,
}

impl Recipe {
    fn make(&self) -> PyResult<Telling> {
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

/// What is to be done outside the lock.
#[derive(Default)]
struct Todo {
    /// What the client's socket did not take, for its transport.
    rest: Option<(Py<PyAny>, Py<PyBytes>)>,
    waiter: Option<Py<PyAny>>,
    abort: Option<Source>,
    first_event: Option<Py<PyAny>>,
}

impl Todo {
    /// All of it, whatever part fails: a client that is gone must not leave anybody waiting. Returns the first failure.
    fn carry_out(self, py: Python<'_>) -> PyResult<()> {
        let Self { rest, waiter, abort, first_event } = self;
        let written = rest.map_or(Ok(()), |(transport, bytes)| transport.call_method1(py, intern!(py, "write"), (bytes,)).map(drop));
        let heard = first_event.map_or(Ok(()), |callback| callback.call0(py).map(drop));
        let cut = abort.map_or(Ok(()), |source| source.abort(py));
        written.and(heard).and(cut).and(waiter.map_or(Ok(()), |waiter| wake(py, &waiter)))
    }
}

/// Gives a future its result, unless it has one.
fn wake(py: Python<'_>, waiter: &Py<PyAny>) -> PyResult<()> {
    if waiter.call_method0(py, intern!(py, "done"))?.is_truthy(py)? {
        return Ok(());
    }
    waiter.call_method1(py, intern!(py, "set_result"), (py.None(),)).map(drop)
}

impl State {
    /// Feeds what arrived and sends what the client gets for it. `Some(rest)`: the exchange is over.
    fn advance(&mut self, py: Python<'_>, arrival: &Arrival<'_>, out: &mut Vec<u8>) -> PyResult<(Todo, Option<Rest>)> {
        if self.end.is_some() {
            return Ok((Todo::default(), Some(Rest::Close)));
        }
        let step = self.step(arrival, out);
        let now = now_s();
        self.note(now, step.pieces, out.len() > CHUNK_HEAD_BYTES);
        let has_started = self.telling.has_started();
        if step.end == Some(End::Broken) && has_started {
            self.telling.fail(self.broken(), out);
        }
        let is_spent = step.end.is_none() && self.telling.is_budget_spent();
        let is_told = step.end == Some(End::Complete) || (step.end == Some(End::Broken) && has_started);
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
        Ok((todo, Some(if is_spent { Rest::Close } else { self.http.take_rest() })))
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

    fn broken(&self) -> Fault {
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
    fn end_with(&mut self, py: Python<'_>, fault: Fault, end: &'static str) -> PyResult<Todo> {
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

    /// What the time is up for, if for anything.
    fn overdue(&self, now: f64, is_client_paused: bool) -> Option<&'static str> {
        let times = &self.times;
        if now - times.began_at > times.total_s {
            return Some("The answer took too long.");
        }
        if matches!(self.telling, Telling::Whole) || self.source.is_none() || is_client_paused {
            return None;
        }
        if times.first_event_at == 0.0 {
            return (now - times.sent_at > times.first_event_s).then_some("The backend did not answer in time.");
        }
        (now - times.progress_at > times.idle_s).then_some("The backend stopped answering.")
    }

    fn ping(&mut self, py: Python<'_>, now: f64) -> PyResult<Todo> {
        if self.client.is_none() || now - self.times.told_at < self.times.ping_after_s {
            return Ok(Todo::default());
        }
        let mut out = vec![0; CHUNK_HEAD_BYTES];
        out.extend_from_slice(if matches!(self.telling, Telling::Chat(_)) { COMMENT } else { PING });
        Ok(Todo { rest: self.tell(py, &mut out, false, now)?, ..Todo::default() })
    }
}

impl Exchange {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what arrived on the backend's connection. `Some(rest)`: the exchange is over and the connection is to do this.
    pub fn take(&self, py: Python<'_>, arrival: &Arrival<'_>) -> PyResult<Option<Rest>> {
        let mut out = OUT.with(|shared| shared.take());
        out.clear();
        out.resize(CHUNK_HEAD_BYTES, 0);
        let (todo, rest) = self.lock().advance(py, arrival, &mut out)?;
        if out.capacity() <= KEPT_BUFFER_BYTES {
            OUT.with(|shared| shared.replace(out));
        }
        todo.carry_out(py)?;
        Ok(rest)
    }

    /// A request goes out for it.
    pub fn begin(&self, py: Python<'_>, source: Source, waiter: Py<PyAny>) -> PyResult<()> {
        let now = now_s();
        if self.is_client_paused.load(Ordering::Relaxed) {
            source.set_paused(py, true)?;
        }
        let mut state = self.lock();
        if !std::mem::take(&mut state.is_fresh) && !state.goes_on {
            state.telling = state.recipe.make()?;
        }
        state.http = Http::default();
        state.end = None;
        state.waiter = Some(waiter);
        state.source = Some(source);
        state.times.sent_at = now;
        state.times.progress_at = now;
        Ok(())
    }

    fn set_source_paused(&self, py: Python<'_>, is_paused: bool) -> PyResult<()> {
        self.is_client_paused.store(is_paused, Ordering::Relaxed);
        let mut state = self.lock();
        state.times.progress_at = now_s();
        let source = state.source.as_ref().map(|source| source.clone_ref(py));
        drop(state);
        source.map_or(Ok(()), |source| source.set_paused(py, is_paused))
    }
}

#[pymethods]
impl Exchange {
    #[new]
    #[pyo3(signature = (*, telling, options=None, model_json="", hide_usage=false, transport=None, descriptor=None,
        is_chunked=true, budget_tokens=None, per_token=None, ping_after_s=10.0, first_event_s=600.0, idle_s=120.0, total_s=3600.0))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn new(
        telling: &str,
        options: Option<Py<ReplyOptions>>,
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
        let passage = PassageOptions { model_json: model_json.to_owned(), hide_usage };
        let recipe = Recipe { telling: telling.to_owned(), options, budget_tokens, passage };
        let telling = recipe.make()?;
        let now = now_s();
        let times = Times {
            first_event_s,
            idle_s,
            total_s,
            ping_after_s,
            began_at: now,
            sent_at: 0.0,
            first_event_at: 0.0,
            progress_at: now,
            piece_at: 0.0,
            told_at: now,
        };
        let state = State {
            telling,
            recipe,
            is_fresh: true,
            goes_on: false,
            http: Http::default(),
            client: transport.map(|transport| Client::new(transport, descriptor)),
            is_chunked,
            head: Vec::new(),
            is_committed: false,
            is_closed: false,
            end: None,
            waiter: None,
            on_first_event: None,
            source: None,
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
        if state.is_closed || state.end.is_some_and(|end| end == "timeout") {
            return Ok(());
        }
        let overdue = if state.end.is_none() { state.overdue(now, self.is_client_paused.load(Ordering::Relaxed)) } else { None };
        let todo = match overdue {
            Some(message) => state.end_with(py, Fault { kind: ErrorKind::Timeout, message: message.to_owned() }, "timeout")?,
            None => state.ping(py, now)?,
        };
        drop(state);
        todo.carry_out(py)
    }

    /// Ends with an error of ours, as far as the client has begun to get an answer. True: it was told.
    fn fail(&self, py: Python<'_>, kind: &str, message: &str) -> PyResult<bool> {
        let mut state = self.lock();
        if state.is_closed {
            return Ok(true);
        }
        let kind = ErrorKind::parse(kind).unwrap_or(ErrorKind::Api);
        let end = state.end.unwrap_or("failed");
        let todo = state.end_with(py, Fault { kind, message: message.to_owned() }, end)?;
        let is_told = state.is_committed;
        drop(state);
        todo.carry_out(py)?;
        Ok(is_told)
    }

    /// Cuts the backend, when the client has gone or nobody waits any more.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        let mut state = self.lock();
        state.end = state.end.or(Some("aborted"));
        let todo = Todo { abort: state.source.take(), ..Todo::default() };
        state.waiter = None;
        drop(state);
        todo.carry_out(py)
    }

    /// Whatever comes now is of a second answer, which goes on where the thinking budget ended the first.
    fn go_on(&self) {
        let mut state = self.lock();
        state.telling.begin_continuation();
        state.goes_on = true;
    }

    /// The client's transport holds back too much: the backend is not read until that is gone.
    fn client_paused(&self, py: Python<'_>) -> PyResult<()> {
        self.set_source_paused(py, true)
    }

    fn client_resumed(&self, py: Python<'_>) -> PyResult<()> {
        self.set_source_paused(py, false)
    }

    /// The client's connection is lost, and its socket about to be closed: nothing is written to it any more.
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
        self.lock().telling.has_started()
    }

    #[getter]
    fn status(&self) -> u16 {
        self.lock().http.status()
    }

    #[getter]
    fn retry_after(&self) -> Option<String> {
        self.lock().http.header("retry-after")
    }

    #[getter]
    fn fault(&self) -> String {
        self.lock().broken().message
    }

    /// The whole message (told once; read the outcome first), or the body that was collected.
    fn take_body<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let mut state = self.lock();
        if state.end == Some("complete") {
            return PyBytes::new(py, &std::mem::replace(&mut state.telling, Telling::Whole).into_message());
        }
        PyBytes::new(py, state.http.collected())
    }

    #[getter]
    fn outcome(&self) -> Outcome {
        self.lock().telling.outcome().into()
    }

    #[getter]
    fn reasoning_text(&self) -> String {
        self.lock().telling.reasoning_text()
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
