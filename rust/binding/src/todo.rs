//! What an exchange does to the world outside its lock: the backend it is read from, the client's transport, whoever waits.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::pump::Pump;

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

    pub fn clone_ref(&self, py: Python<'_>) -> Self {
        Self {
            transport: self.transport.as_ref().map(|transport| transport.clone_ref(py)),
            pump: self.pump.as_ref().map(|(pump, descriptor)| (pump.clone_ref(py), *descriptor)),
        }
    }

    pub fn set_paused(&self, py: Python<'_>, is_paused: bool) -> PyResult<()> {
        if let Some((pump, descriptor)) = &self.pump {
            return pump.get().set_paused(*descriptor, is_paused);
        }
        let method = if is_paused { intern!(py, "pause_reading") } else { intern!(py, "resume_reading") };
        self.transport.as_ref().map_or(Ok(()), |transport| transport.call_method0(py, method).map(drop))
    }

    /// Cuts the connection; the relay hears of it by `connection_lost`.
    pub fn abort(&self, py: Python<'_>) -> PyResult<()> {
        if let Some((pump, descriptor)) = &self.pump {
            pump.get().forget(*descriptor);
        }
        self.transport.as_ref().map_or(Ok(()), |transport| transport.call_method0(py, intern!(py, "abort")).map(drop))
    }
}

/// What is to be done outside the lock.
#[derive(Default)]
pub struct Todo {
    /// What the client's socket did not take, for its transport.
    pub rest: Option<(Py<PyAny>, Py<PyBytes>)>,
    pub waiter: Option<Py<PyAny>>,
    pub abort: Option<Source>,
    pub first_event: Option<Py<PyAny>>,
}

impl Todo {
    /// All of it, whatever part fails: a client that is gone must not leave anybody waiting. Returns the first failure.
    pub fn carry_out(self, py: Python<'_>) -> PyResult<()> {
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
