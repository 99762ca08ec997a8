//! The side effects of a response, run after its lock is released: on the backend's connection, the
//! client's transport, the waiting coroutine. Each of them may call back into the response, so none
//! runs under its lock.

use pyo3::intern;
use pyo3::prelude::*;

use crate::client_writer::Unsent;
use crate::poller::Poller;

/// The backend's side of a response: its transport, and the poller that reads its socket.
pub struct UpstreamHandle {
    transport: Option<Py<PyAny>>,
    poller: Option<(Py<Poller>, i32)>,
}

impl UpstreamHandle {
    pub fn new(transport: Py<PyAny>, poller: Option<Py<Poller>>, descriptor: Option<i32>) -> Self {
        Self { transport: Some(transport), poller: poller.zip(descriptor) }
    }

    pub fn none() -> Self {
        Self { transport: None, poller: None }
    }

    pub fn clone_ref(&self, py: Python<'_>) -> Self {
        Self {
            transport: self.transport.as_ref().map(|transport| transport.clone_ref(py)),
            poller: self
                .poller
                .as_ref()
                .map(|(poller, descriptor)| (poller.clone_ref(py), *descriptor)),
        }
    }

    pub fn set_paused(&self, py: Python<'_>, is_paused: bool) -> PyResult<()> {
        if let Some((poller, descriptor)) = &self.poller {
            return poller.get().set_paused(*descriptor, is_paused);
        }
        let method =
            if is_paused { intern!(py, "pause_reading") } else { intern!(py, "resume_reading") };
        self.transport
            .as_ref()
            .map_or(Ok(()), |transport| transport.call_method0(py, method).map(drop))
    }

    /// Cuts the connection; the connection learns of it by `connection_lost`.
    pub fn abort(&self, py: Python<'_>) -> PyResult<()> {
        if let Some((poller, descriptor)) = &self.poller {
            poller.get().forget(*descriptor);
        }
        self.transport
            .as_ref()
            .map_or(Ok(()), |transport| transport.call_method0(py, intern!(py, "abort")).map(drop))
    }
}

/// The effects of one step, collected under the lock.
#[derive(Default)]
pub struct Effects {
    /// What the client's socket did not take, for its transport.
    pub unsent: Option<Unsent>,
    pub waiter: Option<Py<PyAny>>,
    pub abort: Option<UpstreamHandle>,
    pub first_event: Option<Py<PyAny>>,
    /// No longer needed. Dropping it may run a finalizer.
    pub released: Option<UpstreamHandle>,
}

impl Effects {
    /// Runs all of them, whichever fails: a client that is gone must not leave a coroutine
    /// waiting. Returns the first failure.
    pub fn run(self, py: Python<'_>) -> PyResult<()> {
        let Self { unsent, waiter, abort, first_event, released: _released } = self;
        let written = unsent.map_or(Ok(()), |(transport, bytes)| {
            transport.call_method1(py, intern!(py, "write"), (bytes,)).map(drop)
        });
        let called = first_event.map_or(Ok(()), |callback| callback.call0(py).map(drop));
        let cut = abort.map_or(Ok(()), |upstream| upstream.abort(py));
        written.and(called).and(cut).and(waiter.map_or(Ok(()), |waiter| wake(py, &waiter)))
    }
}

/// Gives a future its result, unless it has one.
fn wake(py: Python<'_>, waiter: &Py<PyAny>) -> PyResult<()> {
    if waiter.call_method0(py, intern!(py, "done"))?.is_truthy(py)? {
        return Ok(());
    }
    waiter.call_method1(py, intern!(py, "set_result"), (py.None(),)).map(drop)
}
