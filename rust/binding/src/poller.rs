//! The reading of all backend connections of one loop: an epoll of its own, which the loop watches
//! as one descriptor.
//!
//! The loop's own way from a readable socket to `data_received` costs a tenth of a token's whole
//! CPU; one callback here serves everything that is readable. A transport whose socket is read here
//! has its own reading paused; it still opens, writes and closes.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use crate::connection::UpstreamConnection;
use crate::state::ReadEvent;

/// What one read takes at most; a backend that sends without a pause gets its next turn after all
/// others had theirs.
const READ_BYTES: usize = 64 << 10;
const EVENTS_PER_RUN: usize = 256;
const READABLE: EventFlags = EventFlags::IN;
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

#[pyclass(frozen, module = "ferrule._core")]
pub struct Poller {
    epoll: OwnedFd,
    state: Mutex<State>,
}

struct State {
    /// By descriptor.
    connections: Vec<Option<Py<UpstreamConnection>>>,
    buffer: Vec<u8>,
}

/// A descriptor that a transport owns.
///
/// A transport closes its socket only after `connection_lost`, where the connection forgets it; so
/// while a connection knows it, it is open.
#[expect(unsafe_code, reason = "the socket belongs to a Python transport")]
pub fn borrowed<'a>(descriptor: RawFd) -> BorrowedFd<'a> {
    // SAFETY: open for as long as its connection or stream holds the number; see above.
    unsafe { BorrowedFd::borrow_raw(descriptor) }
}

impl Poller {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads `descriptor` for `connection` from now on.
    pub fn watch(&self, descriptor: RawFd, connection: Py<UpstreamConnection>) -> PyResult<()> {
        let Ok(index) = usize::try_from(descriptor) else {
            return Err(PyOSError::new_err("the transport has no socket"));
        };
        let mut state = self.lock();
        if state.connections.len() <= index {
            state.connections.resize_with(index + 1, || None);
        }
        state.connections[index] = Some(connection);
        epoll::add(&self.epoll, borrowed(descriptor), EventData::new_u64(index as u64), READABLE)
            .map_err(os_error)
    }

    /// Holds the reading, or goes on with it.
    pub fn set_paused(&self, descriptor: RawFd, is_paused: bool) -> PyResult<()> {
        let flags = if is_paused { EventFlags::empty() } else { READABLE };
        epoll::modify(
            &self.epoll,
            borrowed(descriptor),
            EventData::new_u64(descriptor as u64),
            flags,
        )
        .map_err(os_error)
    }

    pub fn forget(&self, descriptor: RawFd) {
        let connection = usize::try_from(descriptor)
            .ok()
            .and_then(|index| self.lock().connections.get_mut(index).and_then(Option::take));
        if connection.is_some() {
            // The descriptor may be closed already; then the kernel has forgotten it by itself.
            let _ = epoll::delete(&self.epoll, borrowed(descriptor));
        }
    }
}

#[pymethods]
impl Poller {
    #[new]
    fn new() -> PyResult<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(os_error)?;
        let state = State { connections: Vec::new(), buffer: vec![0; READ_BYTES] };
        Ok(Self { epoll, state: Mutex::new(state) })
    }

    /// The descriptor to watch: readable when any backend is.
    fn fileno(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Reads whatever is readable and lets each connection write it.
    fn run(&self, py: Python<'_>) -> PyResult<()> {
        let mut buffer = std::mem::take(&mut self.lock().buffer);
        buffer.resize(READ_BYTES, 0);
        let mut room = [const { MaybeUninit::<Event>::uninit() }; EVENTS_PER_RUN];
        let mut result = Ok(());
        if let Ok((events, _)) = epoll::wait(&self.epoll, &mut room, Some(&AT_ONCE)) {
            for event in events {
                let one = self.serve(py, event.data.u64(), &mut buffer);
                result = result.and(one);
            }
        }
        self.lock().buffer = buffer;
        result
    }
}

impl Poller {
    fn serve(&self, py: Python<'_>, token: u64, buffer: &mut [u8]) -> PyResult<()> {
        let index = token as usize;
        let Some(connection) = self
            .lock()
            .connections
            .get(index)
            .and_then(Option::as_ref)
            .map(|connection| connection.clone_ref(py))
        else {
            return Ok(());
        };
        let connection = connection.get();
        match recv(borrowed(index as RawFd), &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((0, _)) => connection.handle_close(py, &ReadEvent::Eof),
            Ok((length, _)) => connection.handle_read(py, &ReadEvent::Bytes(&buffer[..length])),
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(_) => connection.handle_close(py, &ReadEvent::Lost),
        }
    }
}

fn os_error(errno: Errno) -> PyErr {
    PyOSError::new_err((errno.raw_os_error(), errno.to_string()))
}
