//! The asyncio protocol of one backend connection. Between a backend's bytes and the client's socket no coroutine wakes
//! and no Python bytecode runs.
//!
//! With a pump, its socket is read there; without one (TLS) the transport delivers what it has decrypted.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ferrule_core::exchange::{Rest, drain};
use ferrule_core::http1::Body;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::clock::now_s;
use crate::exchange::Exchange;
use crate::outlet::Outlet;
use crate::pump::Pump;
use crate::state::Arrival;
use crate::todo::Source;

/// Past this, putting head and body together costs more than a second system call.
const ONE_PACKET_BYTES: usize = 16 << 10;

#[pyclass(frozen, weakref, module = "ferrule._core")]
pub struct Relay {
    pump: Option<Py<Pump>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    transport: Option<Py<PyAny>>,
    /// The socket, while the pump reads it.
    descriptor: Option<i32>,
    outlet: Option<Outlet>,
    exchange: Option<Py<Exchange>>,
    /// The reply is over, the end of its framing is still to come.
    tail: Option<Body>,
    is_closed: bool,
    idle_since: f64,
}

impl Relay {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn arrive(&self, py: Python<'_>, arrival: &Arrival<'_>) -> PyResult<()> {
        let exchange = self.lock().exchange.as_ref().map(|exchange| exchange.clone_ref(py));
        let rest = match &exchange {
            Some(exchange) => match exchange.get().take(py, arrival)? {
                None => return Ok(()),
                Some(rest) => rest,
            },
            None => self.between(arrival),
        };
        let mut state = self.lock();
        state.exchange = None;
        state.idle_since = now_s();
        match rest {
            Rest::Reuse => state.tail = None,
            Rest::Drain(body) => state.tail = Some(body),
            Rest::Close => {
                drop(state);
                self.close(py)?;
            }
        }
        Ok(())
    }

    /// The pump has read the end of the connection.
    pub fn hang_up(&self, py: Python<'_>, arrival: &Arrival<'_>) -> PyResult<()> {
        let told = self.arrive(py, arrival);
        self.close(py)?;
        told
    }

    fn forget_socket(&self) {
        let mut state = self.lock();
        state.outlet = None;
        let descriptor = state.descriptor.take();
        drop(state);
        if let (Some(pump), Some(descriptor)) = (&self.pump, descriptor) {
            pump.get().forget(descriptor);
        }
    }

    /// Moves the reading from the transport to the pump, once per connection; a transport starts reading only after `connection_made`.
    fn take_over_reading(&self, slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let Some(pump) = &self.pump else { return Ok(()) };
        let mut state = self.lock();
        if state.descriptor.is_some() || state.is_closed {
            return Ok(());
        }
        let Some(transport) = state.transport.as_ref().map(|transport| transport.clone_ref(py)) else { return Ok(()) };
        let socket = transport.call_method1(py, intern!(py, "get_extra_info"), (intern!(py, "socket"),))?;
        let descriptor: i32 = socket.call_method0(py, intern!(py, "fileno"))?.extract(py)?;
        transport.call_method0(py, intern!(py, "pause_reading"))?;
        pump.get().watch(descriptor, slf.clone().unbind())?;
        state.descriptor = Some(descriptor);
        state.outlet = Some(Outlet::new(transport, Some(descriptor)));
        Ok(())
    }

    /// A small request goes in one packet.
    fn send(&self, py: Python<'_>, transport: &Py<PyAny>, pieces: &[PyBackedBytes]) -> PyResult<()> {
        if pieces.iter().map(|piece| piece.len()).sum::<usize>() <= ONE_PACKET_BYTES {
            return self.send_piece(py, transport, &pieces.iter().map(AsRef::as_ref).collect::<Vec<&[u8]>>().concat());
        }
        pieces.iter().try_for_each(|piece| self.send_piece(py, transport, piece))
    }

    fn send_piece(&self, py: Python<'_>, transport: &Py<PyAny>, piece: &[u8]) -> PyResult<()> {
        let rest = match &mut self.lock().outlet {
            Some(outlet) => outlet.send(py, piece)?,
            None => Some(PyBytes::new(py, piece).unbind()),
        };
        rest.map_or(Ok(()), |rest| transport.call_method1(py, intern!(py, "write"), (rest,)).map(drop))
    }

    /// Bytes while no exchange is under way: the end of the last reply's framing, or something nobody asked for.
    fn between(&self, arrival: &Arrival<'_>) -> Rest {
        match (arrival, self.lock().tail.take()) {
            (Arrival::Bytes(bytes), Some(body)) => drain(body, bytes),
            _ => Rest::Close,
        }
    }
}

#[pymethods]
impl Relay {
    #[new]
    #[pyo3(signature = (pump=None))]
    fn new(pump: Option<Py<Pump>>) -> Self {
        Self { pump, state: Mutex::new(State::default()) }
    }

    /// Sends a request, in pieces, and tells its reply to `exchange`; `waiter` (a future) gets its result when that is over.
    fn start(slf: &Bound<'_, Self>, py: Python<'_>, exchange: Py<Exchange>, waiter: Py<PyAny>, pieces: Vec<PyBackedBytes>) -> PyResult<()> {
        let relay = slf.get();
        relay.take_over_reading(slf)?;
        let mut state = relay.lock();
        let Some(transport) = state.transport.as_ref().filter(|_| !state.is_closed).map(|transport| transport.clone_ref(py)) else {
            drop(state);
            exchange.get().begin(py, Source::none(), waiter)?;
            exchange.get().take(py, &Arrival::Lost)?;
            return Ok(());
        };
        state.exchange = Some(exchange.clone_ref(py));
        let source = Source::new(transport.clone_ref(py), relay.pump.as_ref().map(|pump| pump.clone_ref(py)), state.descriptor);
        drop(state);
        exchange.get().begin(py, source, waiter)?;
        relay.send(py, &transport, &pieces)
    }

    /// At once: the rest of a request that the backend has answered without reading it would hold the connection for ever.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.forget_socket();
        let mut state = self.lock();
        state.is_closed = true;
        let transport = state.transport.take();
        drop(state);
        transport.map_or(Ok(()), |transport| transport.call_method0(py, intern!(py, "abort")).map(drop))
    }

    #[getter]
    fn is_reusable(&self) -> bool {
        let state = self.lock();
        !state.is_closed && state.exchange.is_none() && state.tail.is_none()
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
        self.arrive(py, &Arrival::Bytes(data.as_bytes()))
    }

    fn eof_received(&self, py: Python<'_>) -> PyResult<bool> {
        self.arrive(py, &Arrival::Eof)?;
        Ok(false)
    }

    fn connection_lost(&self, py: Python<'_>, exception: Option<Py<PyAny>>) -> PyResult<()> {
        self.forget_socket();
        self.arrive(py, if exception.is_some() { &Arrival::Lost } else { &Arrival::Eof })?;
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
