//! The client's side of a streamed response: head, chunked coding, last chunk.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::io::SocketWriter;

/// Room for a chunk's size in front of the payload: 8 hex digits and CRLF.
pub const CHUNK_HEAD_BYTES: usize = 10;
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// What the client's socket did not take, and the transport that is to write it.
pub type Unsent = (Py<PyAny>, Py<PyBytes>);

pub struct ClientWriter {
    /// None once the client's connection is lost.
    writer: Option<SocketWriter>,
    is_chunked: bool,
    /// Of the response; empty once it was sent.
    head: Vec<u8>,
    /// The client has the head: a status can no longer be sent.
    pub is_committed: bool,
    /// The last byte was written.
    pub is_finished: bool,
    /// When anything was last written, in seconds of the monotonic clock.
    pub written_at: f64,
}

impl ClientWriter {
    pub fn new(writer: SocketWriter, is_chunked: bool, now: f64) -> Self {
        Self {
            writer: Some(writer),
            is_chunked,
            head: Vec::new(),
            is_committed: false,
            is_finished: false,
            written_at: now,
        }
    }

    /// The head that goes before the first byte; ignored once that was sent.
    pub fn set_head(&mut self, head: &[u8]) {
        if !self.is_committed {
            self.head = head.to_vec();
        }
    }

    /// The client's socket is about to be closed: nothing more is written to it. Returns the writer,
    /// to be dropped outside the lock.
    pub fn lose(&mut self) -> Option<SocketWriter> {
        self.writer.take()
    }

    /// Sends `out`, whose first `CHUNK_HEAD_BYTES` are room for the chunk's head.
    pub fn write(
        &mut self,
        py: Python<'_>,
        out: &mut Vec<u8>,
        is_last: bool,
        now: f64,
    ) -> PyResult<Option<Unsent>> {
        let length = out.len() - CHUNK_HEAD_BYTES;
        let Some(writer) = &mut self.writer else { return Ok(None) };
        if self.is_finished || (length == 0 && !is_last) {
            return Ok(None);
        }
        self.is_finished = is_last;
        self.written_at = now;
        let mut from = CHUNK_HEAD_BYTES;
        if self.is_chunked {
            if length > 0 {
                from = write_chunk_head(out, length);
                out.extend_from_slice(b"\r\n");
            }
            if is_last {
                out.extend_from_slice(LAST_CHUNK);
            }
        }
        let unsent = if self.is_committed {
            writer.send(py, &out[from..])?
        } else {
            self.is_committed = true;
            let mut first = std::mem::take(&mut self.head);
            first.extend_from_slice(&out[from..]);
            writer.send(py, &first)?
        };
        Ok(unsent.map(|bytes| (writer.transport(py), bytes)))
    }
}

/// Writes the chunk's size in front of the payload; returns where it begins.
fn write_chunk_head(out: &mut [u8], length: usize) -> usize {
    out[CHUNK_HEAD_BYTES - 2] = b'\r';
    out[CHUNK_HEAD_BYTES - 1] = b'\n';
    let (mut at, mut left) = (CHUNK_HEAD_BYTES - 2, length);
    while left > 0 && at > 0 {
        at -= 1;
        out[at] = b"0123456789abcdef"[left & 15];
        left >>= 4;
    }
    at
}
