//! One non-blocking socket with its unread and unsent bytes. Knows no HTTP.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};

#[derive(Clone, Copy, PartialEq)]
pub enum Role {
    /// Accepted: a proxy's (or, on the direct row, the client's own) connection to the backend.
    Backend,
    /// Opened by us: the client of this stream.
    Client(usize),
}

pub struct Conn {
    socket: TcpStream,
    pub role: Role,
    pub inbox: Vec<u8>,
    outbox: Vec<u8>,
    /// A client has read the head of the answer it is reading now.
    pub head_seen: bool,
}

impl Conn {
    pub fn accepted(mut socket: TcpStream, registry: &Registry, token: Token) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        registry.register(&mut socket, token, Interest::READABLE | Interest::WRITABLE)?;
        Ok(Self {
            socket,
            role: Role::Backend,
            inbox: Vec::new(),
            outbox: Vec::new(),
            head_seen: false,
        })
    }

    pub fn open(address: SocketAddr, stream: usize, registry: &Registry, token: Token) -> io::Result<Self> {
        // Connecting blocks: it is not what is measured, and a refused connection shows at once.
        let socket = std::net::TcpStream::connect(address)?;
        socket.set_nonblocking(true)?;
        let mut conn = Self::accepted(TcpStream::from_std(socket), registry, token)?;
        conn.role = Role::Client(stream);
        Ok(conn)
    }

    /// Sends now what the socket takes; the rest goes when it is writable again.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        if !self.outbox.is_empty() {
            self.outbox.extend_from_slice(bytes);
            return Ok(());
        }
        let sent = write_some(&mut self.socket, bytes)?;
        self.outbox.extend_from_slice(&bytes[sent..]);
        Ok(())
    }

    pub fn flush(&mut self) -> io::Result<()> {
        if !self.outbox.is_empty() {
            let sent = write_some(&mut self.socket, &self.outbox)?;
            self.outbox.drain(..sent);
        }
        Ok(())
    }

    /// Reads all that is there. True: the peer has closed.
    pub fn fill(&mut self, buffer: &mut [u8]) -> bool {
        loop {
            match self.socket.read(buffer) {
                Ok(0) => return true,
                Ok(n) => self.inbox.extend_from_slice(&buffer[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return false,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return true,
            }
        }
    }
}

fn write_some(socket: &mut TcpStream, bytes: &[u8]) -> io::Result<usize> {
    let mut sent = 0;
    while sent < bytes.len() {
        match socket.write(&bytes[sent..]) {
            Ok(n) => sent += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => break,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(sent)
}
