//! The event loop: backend and clients in one thread, so that both ends of every token are seen by one clock.
//! Says when bytes are sent; the numbers are kept by `run`.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token};

use crate::conn::{Conn, Role};
use crate::run::{Mode, Order, Report, Run};
use crate::wire;

const LISTENER: Token = Token(0);
pub const COMMANDS: Token = Token(1);
const FIRST_CONN: usize = 2;
/// Streams stand this long before the first token, so that opening them is not counted.
const SETTLE: Duration = Duration::from_millis(300);
/// A run that has not ended by itself this long after its time is broken off and says so.
const GRACE: Duration = Duration::from_secs(60);
const PACED_GRACE: Duration = Duration::from_secs(5);

/// What a timer is for. Ordered only so that it can stand in the heap.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Start,
    Stop,
    Request(usize),
    Emit(usize),
}

pub struct Driver {
    poll: Poll,
    listener: TcpListener,
    conns: HashMap<usize, Conn>,
    next_conn: usize,
    timers: BinaryHeap<Reverse<(Instant, Due)>>,
    run: Option<Run>,
    runs: usize,
    give_up_at: Instant,
    stop_at: Option<Instant>,
}

impl Driver {
    pub fn new(poll: Poll, port: u16) -> io::Result<Self> {
        let mut listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        Ok(Self {
            poll,
            listener,
            conns: HashMap::new(),
            next_conn: FIRST_CONN,
            timers: BinaryHeap::new(),
            run: None,
            runs: 0,
            give_up_at: Instant::now(),
            stop_at: None,
        })
    }

    /// Serves for ever; each order from `orders` becomes one report.
    pub fn serve(&mut self, orders: &Receiver<Order>, mut tell: impl FnMut(&Report)) -> io::Result<()> {
        let mut events = Events::with_capacity(2048);
        let mut buffer = vec![0; 1 << 16];
        loop {
            match self.poll.poll(&mut events, Some(self.patience())) {
                Err(e) if e.kind() != io::ErrorKind::Interrupted => return Err(e),
                _ => {}
            }
            for event in &events {
                match event.token() {
                    LISTENER => self.accept()?,
                    COMMANDS => {}
                    Token(id) => self.on_socket(id, &mut buffer),
                }
            }
            self.on_time();
            if let Some(report) = self.take_report() {
                tell(&report);
            }
            if self.run.is_none()
                && let Ok(order) = orders.try_recv()
            {
                self.begin(order);
            }
        }
    }

    fn patience(&self) -> Duration {
        let most = Duration::from_millis(100);
        self.timers
            .peek()
            .map_or(most, |Reverse((at, _))| at.saturating_duration_since(Instant::now()).min(most))
    }

    fn at(&mut self, when: Instant, due: Due) {
        self.timers.push(Reverse((when, due)));
    }

    // --- orders ---------------------------------------------------------------------------------

    fn begin(&mut self, order: Order) {
        let now = Instant::now();
        let (mode, streams) = (order.mode, order.streams);
        let span = Duration::from_millis(order.interval_ms) * u32::try_from(order.tokens).unwrap_or(1);
        let warm = Duration::from_secs_f64(order.warm_seconds);
        let length = Duration::from_secs_f64(order.seconds);
        self.timers.clear();
        self.stop_at = None;
        self.give_up_at = now + warm + length + if mode == Mode::Paced { span + PACED_GRACE } else { GRACE };
        self.runs += 1;
        self.run = Some(Run::new(self.runs, order));
        if mode != Mode::Lockstep {
            self.stop_at = Some(now + warm + length);
            self.at(now + warm, Due::Start);
            self.at(now + warm + length, Due::Stop);
        }
        for stream in 0..streams {
            match mode {
                // Spread over the length of one reply, or all would begin and end together.
                Mode::Paced => self.at(now + span.mul_f64(stream as f64 / streams as f64), Due::Request(stream)),
                Mode::Lockstep | Mode::Requests => self.request(stream),
            }
            // On the direct row these are our own connections: left waiting, a thousand of them would fill the backlog.
            drop(self.accept());
        }
    }

    fn take_report(&mut self) -> Option<Report> {
        let run = self.run.as_mut()?;
        let gave_up = Instant::now() > self.give_up_at;
        if !gave_up && !run.all(|stream| stream.is_over) {
            return None;
        }
        if gave_up {
            let open = run.streams.iter().filter(|stream| !stream.is_over).count();
            run.error(format!("{open} streams unfinished"));
        }
        run.stop_measuring(Instant::now());
        self.conns.retain(|_, conn| conn.role == Role::Backend);
        self.timers.clear();
        self.run.take().map(Run::into_report)
    }

    // --- time -----------------------------------------------------------------------------------

    fn on_time(&mut self) {
        let now = Instant::now();
        while let Some(Reverse((at, due))) = self.timers.peek().copied() {
            if at > now {
                return;
            }
            self.timers.pop();
            match due {
                Due::Start => self.start(now),
                Due::Stop => {
                    if let Some(run) = &mut self.run {
                        run.stop_measuring(now);
                    }
                }
                Due::Request(stream) => self.request(stream),
                Due::Emit(stream) => self.emit_on_time(stream, at),
            }
        }
    }

    fn start(&mut self, now: Instant) {
        let Some(run) = &mut self.run else { return };
        run.start_measuring(now);
        if run.order.mode == Mode::Lockstep {
            for stream in 0..run.order.streams {
                self.emit(stream);
            }
        }
    }

    fn emit_on_time(&mut self, stream: usize, at: Instant) {
        let Some(run) = &self.run else { return };
        let (tokens, interval, mode) = (run.order.tokens, Duration::from_millis(run.order.interval_ms), run.order.mode);
        let emitted = run.streams[stream].emitted_at.len();
        match mode {
            Mode::Paced if emitted < tokens => {
                self.emit(stream);
                self.at(at + interval, Due::Emit(stream));
            }
            Mode::Requests if emitted < tokens => {
                (emitted..tokens).for_each(|_| self.emit(stream));
                self.close_reply(stream);
            }
            _ => self.close_reply(stream),
        }
    }

    // --- the client -----------------------------------------------------------------------------

    fn request(&mut self, stream: usize) {
        let Some(run) = &mut self.run else { return };
        let bytes = run.request(stream);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, run.order.port));
        let known = run.streams[stream].client.filter(|id| self.conns.contains_key(id));
        let id = known.unwrap_or(self.next_conn);
        if known.is_none() {
            self.next_conn += 1;
            match Conn::open(address, stream, self.poll.registry(), Token(id)) {
                Ok(conn) => drop(self.conns.insert(id, conn)),
                Err(e) => {
                    run.error(format!("connect: {}", e.kind()));
                    run.streams[stream].is_over = true;
                    return;
                }
            }
        }
        let state = &mut run.streams[stream];
        state.client = Some(id);
        state.backend = None;
        state.emitted_at.clear();
        state.received = 0;
        state.requested_at = Some(Instant::now());
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.head_seen = false;
            conn.inbox.clear();
            if conn.send(&bytes).is_err() {
                self.client_ended(stream, Some("write".into()));
            }
        }
    }

    fn on_client(&mut self, id: usize, stream: usize, closed: bool) {
        let now = Instant::now();
        let (Some(run), Some(conn)) = (&mut self.run, self.conns.get_mut(&id)) else {
            return;
        };
        if run.streams[stream].client != Some(id) {
            return;
        }
        if !conn.head_seen {
            match wire::status(&conn.inbox) {
                Some((200, end)) => {
                    conn.head_seen = true;
                    conn.inbox.drain(..end);
                }
                Some((code, end)) => {
                    let text: String = String::from_utf8_lossy(&conn.inbox[end..]).chars().take(200).collect();
                    return self.client_ended(stream, Some(format!("status {code}: {text}")));
                }
                None if closed => return self.client_ended(stream, Some("closed before an answer".into())),
                None => return,
            }
        }
        let mut got = Vec::new();
        let ended = wire::take_tokens(&mut conn.inbox, |number| got.push(number));
        for number in &got {
            run.received(stream, *number, now);
        }
        let (mode, tokens, received) = (run.order.mode, run.order.tokens, run.streams[stream].received);
        if ended || closed {
            let short = (received < tokens).then(|| format!("{received} of {tokens} tokens"));
            return self.client_ended(stream, short);
        }
        if mode == Mode::Lockstep && !got.is_empty() {
            self.next_in_lockstep(stream, received, now);
        }
    }

    fn next_in_lockstep(&mut self, stream: usize, received: usize, now: Instant) {
        let Some(run) = &mut self.run else { return };
        let tokens = run.order.tokens;
        if received < tokens {
            return self.emit(stream);
        }
        if run.all(|stream| stream.received >= tokens) {
            run.stop_measuring(now);
            (0..run.order.streams).for_each(|stream| self.close_reply(stream));
        }
    }

    fn client_ended(&mut self, stream: usize, fault: Option<String>) {
        let now = Instant::now();
        let Some(run) = &mut self.run else { return };
        let faulty = fault.is_some();
        match fault {
            Some(kind) => run.error(kind),
            None => run.ended(),
        }
        if faulty && let Some(id) = run.streams[stream].client.take() {
            self.conns.remove(&id);
        }
        match self.stop_at {
            // A fault is not repeated at full speed: a proxy that refuses would look like one that is fast.
            Some(stop) if now < stop => self.at(if faulty { now + Duration::from_millis(50) } else { now }, Due::Request(stream)),
            _ => run.streams[stream].is_over = true,
        }
    }

    // --- the backend ----------------------------------------------------------------------------

    fn accept(&mut self) -> io::Result<()> {
        loop {
            match self.listener.accept() {
                Ok((socket, _)) => {
                    let id = self.next_conn;
                    self.next_conn += 1;
                    self.conns.insert(id, Conn::accepted(socket, self.poll.registry(), Token(id))?);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e),
            }
        }
    }

    fn on_backend(&mut self, id: usize) {
        while let Some(conn) = self.conns.get_mut(&id) {
            let Some(request) = wire::take_request(&mut conn.inbox) else {
                return;
            };
            match request.stream.and_then(|id| self.run.as_ref()?.stream_of(id)) {
                Some(stream) => self.reply(id, stream),
                None => drop(conn.send(&wire::plain_answer(&request.target))),
            }
        }
    }

    fn reply(&mut self, id: usize, stream: usize) {
        let now = Instant::now();
        let (Some(run), Some(conn)) = (&mut self.run, self.conns.get_mut(&id)) else {
            return;
        };
        drop(conn.send(&wire::opening()));
        run.streams[stream].backend = Some(id);
        run.streams[stream].arrived_at = Some(now);
        match run.order.mode {
            Mode::Lockstep if run.all(|stream| stream.backend.is_some()) => self.at(now + SETTLE, Due::Start),
            Mode::Lockstep => {}
            Mode::Paced => {
                let first = Duration::from_millis(run.order.interval_ms);
                self.at(now + first, Due::Emit(stream));
            }
            // On the next turn of the loop: an engine never answers in the same write as its head.
            Mode::Requests => self.at(now, Due::Emit(stream)),
        }
    }

    fn emit(&mut self, stream: usize) {
        let Some(run) = &mut self.run else { return };
        let state = &mut run.streams[stream];
        let Some(conn) = state.backend.and_then(|id| self.conns.get_mut(&id)) else {
            return;
        };
        let bytes = wire::token(state.emitted_at.len());
        state.emitted_at.push(Instant::now());
        drop(conn.send(&bytes));
    }

    fn close_reply(&mut self, stream: usize) {
        let Some(run) = &mut self.run else { return };
        let state = &mut run.streams[stream];
        if let Some(conn) = state.backend.take().and_then(|id| self.conns.get_mut(&id)) {
            drop(conn.send(&wire::closing(run.order.tokens)));
        }
    }

    // --- sockets --------------------------------------------------------------------------------

    fn on_socket(&mut self, id: usize, buffer: &mut [u8]) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let broken = conn.flush().is_err();
        let closed = conn.fill(buffer) || broken;
        match conn.role {
            Role::Backend => self.on_backend(id),
            Role::Client(_) if conn.inbox.is_empty() && !closed => {}
            Role::Client(stream) => self.on_client(id, stream, closed),
        }
        if closed {
            self.conns.remove(&id);
        }
    }
}
