//! Reads all backend connections of one loop with a separate epoll, which the loop watches as one
//! descriptor.
//!
//! The loop's own path from a readable socket to `data_received` costs a tenth of the CPU per
//! token; here one callback serves everything that is readable. The transport of such a socket has
//! its reading paused; it still opens, writes and closes.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use crate::io::{ReadEvent, borrow_fd};

/// Limit of one read; a backend that sends without a pause gets its next turn after all others.
const READ_BYTES: usize = 64 << 10;
const EVENTS_PER_RUN: usize = 256;
const READABLE: EventFlags = EventFlags::IN;
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

#[pyclass(frozen, module = "ferrule._core")]
pub struct Poller {
    epoll: OwnedFd,
    state: Mutex<PollerState>,
}

struct PollerState {
    /// By descriptor.
    readers: Vec<Option<Arc<dyn Readable>>>,
    buffer: Vec<u8>,
}

/// Handles what the poller reads. A closed reader must call `Poller::forget`.
pub trait Readable: Send + Sync {
    fn handle_read(&self, py: Python<'_>, event: &ReadEvent<'_>) -> PyResult<()>;

    /// The same for the last event of a socket, which is then closed.
    fn handle_close(&self, py: Python<'_>, event: &ReadEvent<'_>) -> PyResult<()>;
}

impl Poller {
    fn lock(&self) -> MutexGuard<'_, PollerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads `descriptor` for `reader` from now on.
    pub fn watch(&self, descriptor: RawFd, reader: Arc<dyn Readable>) -> PyResult<()> {
        let Ok(index) = usize::try_from(descriptor) else {
            return Err(PyOSError::new_err("the transport has no socket"));
        };
        let mut state = self.lock();
        if state.readers.len() <= index {
            state.readers.resize_with(index + 1, || None);
        }
        state.readers[index] = Some(reader);
        epoll::add(&self.epoll, borrow_fd(descriptor), EventData::new_u64(index as u64), READABLE)
            .map_err(os_error)
    }

    /// Pauses or resumes reading.
    pub fn set_paused(&self, descriptor: RawFd, is_paused: bool) -> PyResult<()> {
        let flags = if is_paused { EventFlags::empty() } else { READABLE };
        epoll::modify(
            &self.epoll,
            borrow_fd(descriptor),
            EventData::new_u64(descriptor as u64),
            flags,
        )
        .map_err(os_error)
    }

    pub fn forget(&self, descriptor: RawFd) {
        let reader = usize::try_from(descriptor)
            .ok()
            .and_then(|index| self.lock().readers.get_mut(index).and_then(Option::take));
        if reader.is_some() {
            // The descriptor may be closed already; then the kernel has forgotten it by itself.
            let _ = epoll::delete(&self.epoll, borrow_fd(descriptor));
        }
    }

    fn read(&self, py: Python<'_>, index: usize, buffer: &mut [u8]) -> PyResult<()> {
        let Some(reader) = self.lock().readers.get(index).and_then(Clone::clone) else {
            return Ok(());
        };
        match recv(borrow_fd(index as RawFd), &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((0, _)) => reader.handle_close(py, &ReadEvent::Eof),
            Ok((length, _)) => reader.handle_read(py, &ReadEvent::Bytes(&buffer[..length])),
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(_) => reader.handle_close(py, &ReadEvent::Lost),
        }
    }
}

#[pymethods]
impl Poller {
    #[new]
    fn new() -> PyResult<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(os_error)?;
        let state = PollerState { readers: Vec::new(), buffer: vec![0; READ_BYTES] };
        Ok(Self { epoll, state: Mutex::new(state) })
    }

    /// The descriptor to watch: readable when any backend is.
    fn fileno(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Reads whatever is readable, once each.
    fn run(&self, py: Python<'_>) -> PyResult<()> {
        let mut buffer = std::mem::take(&mut self.lock().buffer);
        buffer.resize(READ_BYTES, 0);
        let mut room = [const { MaybeUninit::<Event>::uninit() }; EVENTS_PER_RUN];
        let mut result = Ok(());
        if let Ok((events, _)) = epoll::wait(&self.epoll, &mut room, Some(&AT_ONCE)) {
            for event in events {
                let read = self.read(py, event.data.u64() as usize, &mut buffer);
                result = result.and(read);
            }
        }
        self.lock().buffer = buffer;
        result
    }
}

fn os_error(errno: Errno) -> PyErr {
    PyOSError::new_err((errno.raw_os_error(), errno.to_string()))
}
