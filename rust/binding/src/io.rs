//! The way out to a peer: bytes go straight to its socket as long as it takes them, and to its
//! transport when it does not.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rustix::net::{SendFlags, send};

use crate::poller::borrowed;

pub struct SocketWriter {
    transport: Py<PyAny>,
    /// Open until the connection's `connection_lost`, where the stream drops its client.
    descriptor: Option<i32>,
    /// The transport holds nothing back, so writing past it keeps the order.
    is_transport_empty: bool,
}

impl SocketWriter {
    pub fn new(transport: Py<PyAny>, descriptor: Option<i32>) -> Self {
        Self { transport, descriptor, is_transport_empty: false }
    }

    /// Sends what the socket takes. The rest, if any, is for the transport, outside all locks: it
    /// may call back.
    pub fn send(&mut self, py: Python<'_>, bytes: &[u8]) -> PyResult<Option<Py<PyBytes>>> {
        let Some(descriptor) = self.descriptor else {
            return Ok(Some(PyBytes::new(py, bytes).unbind()));
        };
        if !self.is_transport_empty {
            let held = self.transport.call_method0(py, intern!(py, "get_write_buffer_size"))?;
            self.is_transport_empty = held.extract::<usize>(py)? == 0;
        }
        let sent = if self.is_transport_empty {
            send(borrowed(descriptor), bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
                .unwrap_or(0)
        } else {
            0
        };
        if sent == bytes.len() {
            return Ok(None);
        }
        // Full, or gone: the transport waits for the one and finds out about the other.
        self.is_transport_empty = false;
        Ok(Some(PyBytes::new(py, &bytes[sent..]).unbind()))
    }

    pub fn transport(&self, py: Python<'_>) -> Py<PyAny> {
        self.transport.clone_ref(py)
    }
}
