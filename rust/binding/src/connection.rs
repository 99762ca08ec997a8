//! The asyncio protocol of one backend connection. Between a backend's bytes and the client's
//! socket no coroutine wakes and no Python bytecode runs.
//!
//! With a poller, its socket is read there; without one (TLS) the transport delivers what it has
//! decrypted.

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferrule_core::http1::Body;
use ferrule_core::response_reader::{ConnectionFate, drain};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::clock::now_s;
use crate::effects::UpstreamHandle;
use crate::io::{ReadEvent, SocketWriter};
use crate::poller::{Poller, Readable};
use crate::stream::ResponseStream;

/// Past this, putting head and body together costs more than a second system call.
const ONE_PACKET_BYTES: usize = 16 << 10;

#[pyclass(frozen, weakref, module = "ferrule._core")]
pub struct UpstreamConnection {
    poller: Option<Py<Poller>>,
    state: Mutex<ConnectionState>,
}

#[derive(Default)]
struct ConnectionState {
    transport: Option<Py<PyAny>>,
    /// The socket, while the poller reads it.
    descriptor: Option<RawFd>,
    writer: Option<SocketWriter>,
    stream: Option<Py<ResponseStream>>,
    /// The response is over, the end of its framing is still to come.
    tail: Option<Body>,
    is_closed: bool,
    idle_since: f64,
}

impl Readable for Py<UpstreamConnection> {
    fn handle_read(&self, py: Python<'_>, event: &ReadEvent<'_>) -> PyResult<()> {
        self.get().handle_read(py, event)
    }

    fn handle_close(&self, py: Python<'_>, event: &ReadEvent<'_>) -> PyResult<()> {
        let read = self.get().handle_read(py, event);
        self.get().close(py)?;
        read
    }
}

impl UpstreamConnection {
    /// None once the connection is closed.
    fn open_transport(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        let state = self.lock();
        let transport = state.transport.as_ref().filter(|_| !state.is_closed)?;
        Some(transport.clone_ref(py))
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle_read(&self, py: Python<'_>, event: &ReadEvent<'_>) -> PyResult<()> {
        let stream = self.lock().stream.as_ref().map(|stream| stream.clone_ref(py));
        let fate = match &stream {
            Some(stream) => match stream.get().handle_read(py, event)? {
                None => return Ok(()),
                Some(fate) => fate,
            },
            None => self.handle_idle_read(event),
        };
        let mut state = self.lock();
        state.stream = None;
        state.idle_since = now_s();
        match fate {
            ConnectionFate::Reuse => state.tail = None,
            ConnectionFate::Drain(body) => state.tail = Some(body),
            ConnectionFate::Close => {
                drop(state);
                self.close(py)?;
            }
        }
        Ok(())
    }

    /// A read while there is no stream: the end of the last response's framing, or unsolicited
    /// bytes.
    fn handle_idle_read(&self, event: &ReadEvent<'_>) -> ConnectionFate {
        match (event, self.lock().tail.take()) {
            (ReadEvent::Bytes(bytes), Some(body)) => drain(body, bytes),
            _ => ConnectionFate::Close,
        }
    }

    fn forget_socket(&self) {
        let mut state = self.lock();
        let (writer, descriptor) = (state.writer.take(), state.descriptor.take());
        drop(state);
        drop(writer);
        if let (Some(poller), Some(descriptor)) = (&self.poller, descriptor) {
            poller.get().forget(descriptor);
        }
    }

    /// Moves the reading from the transport to the poller, once per connection: a transport starts
    /// reading only after `connection_made`. Nothing is locked while the transport is called.
    fn take_over_reading(slf: &Bound<'_, Self>, transport: &Py<PyAny>) -> PyResult<()> {
        let (py, connection) = (slf.py(), slf.get());
        let Some(poller) = &connection.poller else { return Ok(()) };
        if connection.lock().descriptor.is_some() {
            return Ok(());
        }
        let name = intern!(py, "socket");
        let socket = transport.call_method1(py, intern!(py, "get_extra_info"), (name,))?;
        let descriptor: RawFd = socket.call_method0(py, intern!(py, "fileno"))?.extract(py)?;
        transport.call_method0(py, intern!(py, "pause_reading"))?;
        poller.get().watch(descriptor, Arc::new(slf.clone().unbind()))?;
        let mut state = connection.lock();
        state.descriptor = Some(descriptor);
        state.writer = Some(SocketWriter::new(transport.clone_ref(py), Some(descriptor)));
        Ok(())
    }

    /// A small request goes in one packet.
    fn send(&self, py: Python<'_>, transport: &Py<PyAny>, parts: &[PyBackedBytes]) -> PyResult<()> {
        if parts.iter().map(|part| part.len()).sum::<usize>() <= ONE_PACKET_BYTES {
            let whole = parts.iter().map(AsRef::as_ref).collect::<Vec<&[u8]>>().concat();
            return self.send_part(py, transport, &whole);
        }
        parts.iter().try_for_each(|part| self.send_part(py, transport, part))
    }

    fn send_part(&self, py: Python<'_>, transport: &Py<PyAny>, part: &[u8]) -> PyResult<()> {
        let unsent = match &mut self.lock().writer {
            Some(writer) => writer.send(py, part)?,
            None => Some(PyBytes::new(py, part).unbind()),
        };
        unsent.map_or(Ok(()), |unsent| {
            transport.call_method1(py, intern!(py, "write"), (unsent,)).map(drop)
        })
    }
}

#[pymethods]
impl UpstreamConnection {
    #[new]
    #[pyo3(signature = (poller=None))]
    fn new(poller: Option<Py<Poller>>) -> Self {
        Self { poller, state: Mutex::new(ConnectionState::default()) }
    }

    /// Sends a request, in parts, and feeds its response to `stream`; `waiter` (a future) gets its
    /// result when that is over.
    fn start(
        slf: &Bound<'_, Self>,
        py: Python<'_>,
        stream: Py<ResponseStream>,
        waiter: Py<PyAny>,
        parts: Vec<PyBackedBytes>,
    ) -> PyResult<()> {
        let connection = slf.get();
        let Some(transport) = connection.open_transport(py) else {
            stream.get().begin_attempt(py, UpstreamHandle::none(), waiter)?;
            stream.get().handle_read(py, &ReadEvent::Lost)?;
            return Ok(());
        };
        Self::take_over_reading(slf, &transport)?;
        let mut state = connection.lock();
        state.stream = Some(stream.clone_ref(py));
        let descriptor = state.descriptor;
        drop(state);
        let poller = connection.poller.as_ref().map(|poller| poller.clone_ref(py));
        let upstream = UpstreamHandle::new(transport.clone_ref(py), poller, descriptor);
        stream.get().begin_attempt(py, upstream, waiter)?;
        connection.send(py, &transport, &parts)
    }

    /// Aborts and does not flush: a backend that responded without reading the whole request would
    /// keep the connection open for ever.
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

    /// Open, even if the end of the last response's framing is still to come.
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
        let transport = state.transport.take();
        drop(state);
        drop(transport);
        Ok(())
    }

    #[expect(clippy::unused_self, reason = "asyncio calls it on the protocol")]
    fn pause_writing(&self) {}

    #[expect(clippy::unused_self, reason = "asyncio calls it on the protocol")]
    fn resume_writing(&self) {}
}
