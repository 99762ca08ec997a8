//! Read events, and writes to a peer: bytes go straight to its socket while that accepts them, else
//! to its transport.

use std::os::fd::{BorrowedFd, RawFd};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rustix::net::{SendFlags, send};

/// One read of a backend's connection.
pub enum ReadEvent<'a> {
    Bytes(&'a [u8]),
    Eof,
    /// Reset, or lost in another way.
    Lost,
}

/// A descriptor that a transport owns.
///
/// A transport closes its socket only after `connection_lost`, where the connection forgets it; so
/// while a connection or a writer knows the number, it is open.
#[expect(unsafe_code, reason = "the socket belongs to a Python transport")]
pub fn borrow_fd<'a>(descriptor: RawFd) -> BorrowedFd<'a> {
    // SAFETY: open for as long as its connection or writer holds the number; see above.
    unsafe { BorrowedFd::borrow_raw(descriptor) }
}

pub struct SocketWriter {
    transport: Py<PyAny>,
    /// Open until the peer's `connection_lost`, where the writer is dropped.
    descriptor: Option<RawFd>,
    /// The transport has nothing buffered, so bypassing it keeps the order.
    is_transport_empty: bool,
}

impl SocketWriter {
    pub fn new(transport: Py<PyAny>, descriptor: Option<RawFd>) -> Self {
        Self { transport, descriptor, is_transport_empty: false }
    }

    /// Sends what the socket accepts. The rest, if any, is for the transport, after all locks are
    /// released: its `write` may call back into us. `get_write_buffer_size` is safe under a lock:
    /// it only adds up lengths, and no second thread can wait for the lock meanwhile, because all
    /// streams of a loop belong to its thread.
    pub fn send(&mut self, py: Python<'_>, bytes: &[u8]) -> PyResult<Option<Py<PyBytes>>> {
        let Some(descriptor) = self.descriptor else {
            return Ok(Some(PyBytes::new(py, bytes).unbind()));
        };
        if !self.is_transport_empty {
            let waiting = self.transport.call_method0(py, intern!(py, "get_write_buffer_size"))?;
            self.is_transport_empty = waiting.extract::<usize>(py)? == 0;
        }
        let sent = if self.is_transport_empty {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            send(borrow_fd(descriptor), bytes, flags).unwrap_or(0)
        } else {
            0
        };
        if sent == bytes.len() {
            return Ok(None);
        }
        // The socket is full or lost; the transport handles both.
        self.is_transport_empty = false;
        Ok(Some(PyBytes::new(py, &bytes[sent..]).unbind()))
    }

    pub fn transport(&self, py: Python<'_>) -> Py<PyAny> {
        self.transport.clone_ref(py)
    }
}
