//! The asyncio protocol of one backend connection. Between a backend's bytes and the client's transport no coroutine wakes
//! and no Python bytecode runs.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ferrule_core::exchange::{Rest, drain};
use ferrule_core::http1::Body;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::clock::now_s;
use crate::exchange::{Arrival, Exchange};

#[pyclass(frozen, weakref, module = "ferrule._core")]
pub struct Relay {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    transport: Option<Py<PyAny>>,
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

    fn arrive(&self, py: Python<'_>, arrival: &Arrival<'_>) -> PyResult<()> {
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
                state.is_closed = true;
                let transport = state.transport.take();
                drop(state);
                if let Some(transport) = transport {
                    transport.call_method0(py, intern!(py, "close"))?;
                }
            }
        }
        Ok(())
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
    fn new() -> Self {
        Self { state: Mutex::new(State::default()) }
    }

    /// Sends a request, in pieces, and tells its reply to `exchange`; `waiter` (a future) gets its result when that is over.
    fn start(&self, py: Python<'_>, exchange: Py<Exchange>, waiter: Py<PyAny>, pieces: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut state = self.lock();
        let Some(transport) = state.transport.as_ref().filter(|_| !state.is_closed).map(|transport| transport.clone_ref(py)) else {
            drop(state);
            exchange.get().begin(py, py.None(), waiter)?;
            exchange.get().take(py, &Arrival::Lost)?;
            return Ok(());
        };
        state.exchange = Some(exchange.clone_ref(py));
        drop(state);
        exchange.get().begin(py, transport.clone_ref(py), waiter)?;
        transport.call_method1(py, intern!(py, "writelines"), (pieces,))?;
        Ok(())
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let mut state = self.lock();
        state.is_closed = true;
        let transport = state.transport.take();
        drop(state);
        transport.map_or(Ok(()), |transport| transport.call_method0(py, intern!(py, "close")).map(drop))
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
