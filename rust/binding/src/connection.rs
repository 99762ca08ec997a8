//! The asyncio protocol of one backend connection. Between a backend's bytes and the client's
//! socket no coroutine wakes and no Python bytecode runs.
//!
//! With a poller, its socket is read there; without one (TLS) the transport delivers what it has
//! decrypted.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ferrule_core::http1::Body;
use ferrule_core::response_reader::{ConnectionFate, drain};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::clock::now_s;
use crate::effects::UpstreamHandle;
use crate::io::SocketWriter;
use crate::poller::Poller;
use crate::state::ReadEvent;
use crate::stream::ResponseStream;

/// Past this, putting head and body together costs more than a second system call.
const ONE_PACKET_BYTES: usize = 16 << 10;

#[pyclass(frozen, weakref, module = "ferrule._core")]
pub struct UpstreamConnection {
    poller: Option<Py<Poller>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    transport: Option<Py<PyAny>>,
    /// The socket, while the poller reads it.
    descriptor: Option<i32>,
    writer: Option<SocketWriter>,
    stream: Option<Py<ResponseStream>>,
    /// The reply is over, the end of its framing is still to come.
    tail: Option<Body>,
    is_closed: bool,
    idle_since: f64,
}

impl UpstreamConnection {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn handle_read(&self, py: Python<'_>, event: &ReadEvent<'_>) -> PyResult<()> {
        let stream = self.lock().stream.as_ref().map(|stream| stream.clone_ref(py));
        let rest = match &stream {
            Some(stream) => match stream.get().take(py, event)? {
                None => return Ok(()),
                Some(rest) => rest,
            },
            None => self.handle_idle_read(event),
        };
        let mut state = self.lock();
        state.stream = None;
        state.idle_since = now_s();
        match rest {
            ConnectionFate::Reuse => state.tail = None,
            ConnectionFate::Drain(body) => state.tail = Some(body),
            ConnectionFate::Close => {
                drop(state);
                self.close(py)?;
            }
        }
        Ok(())
    }

    /// The poller has read the end of the connection.
    pub fn handle_close(&self, py: Python<'_>, event: &ReadEvent<'_>) -> PyResult<()> {
        let result = self.handle_read(py, event);
        self.close(py)?;
        result
    }

    fn forget_socket(&self) {
        let mut state = self.lock();
        state.writer = None;
        let descriptor = state.descriptor.take();
        drop(state);
        if let (Some(poller), Some(descriptor)) = (&self.poller, descriptor) {
            poller.get().forget(descriptor);
        }
    }

    /// Moves the reading from the transport to the poller, once per connection; a transport starts
    /// reading only after `connection_made`.
    fn take_over_reading(&self, slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let Some(poller) = &self.poller else { return Ok(()) };
        let mut state = self.lock();
        if state.descriptor.is_some() || state.is_closed {
            return Ok(());
        }
        let Some(transport) = state.transport.as_ref().map(|transport| transport.clone_ref(py))
        else {
            return Ok(());
        };
        let socket =
            transport.call_method1(py, intern!(py, "get_extra_info"), (intern!(py, "socket"),))?;
        let descriptor: i32 = socket.call_method0(py, intern!(py, "fileno"))?.extract(py)?;
        transport.call_method0(py, intern!(py, "pause_reading"))?;
        poller.get().watch(descriptor, slf.clone().unbind())?;
        state.descriptor = Some(descriptor);
        state.writer = Some(SocketWriter::new(transport, Some(descriptor)));
        Ok(())
    }

    /// A small request goes in one packet.
    fn send(
        &self,
        py: Python<'_>,
        transport: &Py<PyAny>,
        deltas: &[PyBackedBytes],
    ) -> PyResult<()> {
        if deltas.iter().map(|chunk| chunk.len()).sum::<usize>() <= ONE_PACKET_BYTES {
            return self.send_chunk(
                py,
                transport,
                &deltas.iter().map(AsRef::as_ref).collect::<Vec<&[u8]>>().concat(),
            );
        }
        deltas.iter().try_for_each(|chunk| self.send_chunk(py, transport, chunk))
    }

    fn send_chunk(&self, py: Python<'_>, transport: &Py<PyAny>, chunk: &[u8]) -> PyResult<()> {
        let rest = match &mut self.lock().writer {
            Some(writer) => writer.send(py, chunk)?,
            None => Some(PyBytes::new(py, chunk).unbind()),
        };
        rest.map_or(Ok(()), |rest| {
            transport.call_method1(py, intern!(py, "write"), (rest,)).map(drop)
        })
    }

    /// Bytes while no stream is under way: the end of the last reply's framing, or something nobody
    /// asked for.
    fn handle_idle_read(&self, event: &ReadEvent<'_>) -> ConnectionFate {
        match (event, self.lock().tail.take()) {
            (ReadEvent::Bytes(bytes), Some(body)) => drain(body, bytes),
            _ => ConnectionFate::Close,
        }
    }
}

#[pymethods]
impl UpstreamConnection {
    #[new]
    #[pyo3(signature = (poller=None))]
    fn new(poller: Option<Py<Poller>>) -> Self {
        Self { poller, state: Mutex::new(State::default()) }
    }

    /// Sends a request, in deltas, and tells its reply to `stream`; `waiter` (a future) gets its
    /// result when that is over.
    fn start(
        slf: &Bound<'_, Self>,
        py: Python<'_>,
        stream: Py<ResponseStream>,
        waiter: Py<PyAny>,
        deltas: Vec<PyBackedBytes>,
    ) -> PyResult<()> {
        let connection = slf.get();
        connection.take_over_reading(slf)?;
        let mut state = connection.lock();
        let Some(transport) = state
            .transport
            .as_ref()
            .filter(|_| !state.is_closed)
            .map(|transport| transport.clone_ref(py))
        else {
            drop(state);
            stream.get().begin(py, UpstreamHandle::none(), waiter)?;
            stream.get().take(py, &ReadEvent::Lost)?;
            return Ok(());
        };
        state.stream = Some(stream.clone_ref(py));
        let upstream = UpstreamHandle::new(
            transport.clone_ref(py),
            connection.poller.as_ref().map(|poller| poller.clone_ref(py)),
            state.descriptor,
        );
        drop(state);
        stream.get().begin(py, upstream, waiter)?;
        connection.send(py, &transport, &deltas)
    }

    /// At once: the rest of a request that the backend has answered without reading it would hold
    /// the connection for ever.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.forget_socket();
        let mut state = self.lock();
        state.is_closed = true;
        let transport = state.transport.take();
        drop(state);
        transport
            .map_or(Ok(()), |transport| transport.call_method0(py, intern!(py, "abort")).map(drop))
    }

    #[getter]
    fn is_reusable(&self) -> bool {
        let state = self.lock();
        !state.is_closed && state.stream.is_none() && state.tail.is_none()
    }

    /// Is open, whether or not the end of the last reply's framing is still to come.
    #[getter]
    fn is_open(&self) -> bool {
        !self.lock().is_closed
    }

    #[getter]
    fn idle_since(&self) -> f64 {
        self.lock().idle_since
    }

    // asyncio.Protocol

    fn connection_made(&self, transport: Py<PyAny>) {
        let mut state = self.lock();
        state.transport = Some(transport);
        state.idle_since = now_s();
    }

    fn data_received(&self, py: Python<'_>, data: &Bound<'_, PyBytes>) -> PyResult<()> {
        self.handle_read(py, &ReadEvent::Bytes(data.as_bytes()))
    }

    fn eof_received(&self, py: Python<'_>) -> PyResult<bool> {
        self.handle_read(py, &ReadEvent::Eof)?;
        Ok(false)
    }

    fn connection_lost(&self, py: Python<'_>, exception: Option<Py<PyAny>>) -> PyResult<()> {
        self.forget_socket();
        self.handle_read(py, if exception.is_some() { &ReadEvent::Lost } else { &ReadEvent::Eof })?;
        let mut state = self.lock();
        state.is_closed = true;
        state.transport = None;
        Ok(())
    }

    #[expect(clippy::unused_self, reason = "asyncio calls it on the protocol")]
    fn pause_writing(&self) {}

    #[expect(clippy::unused_self, reason = "asyncio calls it on the protocol")]
    fn resume_writing(&self) {}
}
