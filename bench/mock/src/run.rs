//! One measurement: what was ordered, how each stream stands, what came of it.
//! Decides nothing about when bytes are sent; that is the driver's.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::process;

#[derive(Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The next token of a stream is sent when the client has the last one: the proxy is always busy.
    Lockstep,
    /// A token every `interval_ms` on each stream, and a new request when a stream has ended: how it is used.
    Paced,
    /// Short requests one after another on each connection.
    Requests,
}

#[derive(Deserialize)]
pub struct Order {
    pub mode: Mode,
    pub port: u16,
    pub path: String,
    /// The request body; `@ID@` stands for the number of the stream.
    pub body: String,
    #[serde(default)]
    pub key: String,
    pub streams: usize,
    pub tokens: usize,
    #[serde(default)]
    pub interval_ms: u64,
    #[serde(default)]
    pub seconds: f64,
    #[serde(default)]
    pub warm_seconds: f64,
    /// The processes whose CPU time and memory are counted.
    #[serde(default)]
    pub pids: Vec<u32>,
}

#[derive(Default)]
pub struct Stream {
    pub client: Option<usize>,
    pub backend: Option<usize>,
    pub requested_at: Option<Instant>,
    pub arrived_at: Option<Instant>,
    pub emitted_at: Vec<Instant>,
    pub received: usize,
    pub is_over: bool,
}

#[derive(Serialize, Default)]
pub struct Report {
    pub seconds: f64,
    pub requests: usize,
    pub tokens: usize,
    pub errors: BTreeMap<String, usize>,
    pub cpu_us: f64,
    /// CPU of each process that took part, in microseconds.
    pub cpu_us_by_pid: BTreeMap<u32, f64>,
    pub token_latency_us: Spread,
    /// Request on its way to the backend plus first token on its way back: what a proxy adds, without the engine's own time.
    pub first_token_us: Spread,
    pub rss_standing_kb: u64,
    pub rss_streaming_kb: u64,
}

#[derive(Serialize, Default)]
pub struct Spread {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub max: f64,
}

impl Spread {
    fn of(samples: &mut [Duration]) -> Self {
        if samples.is_empty() {
            return Self::default();
        }
        samples.sort_unstable();
        let at = |share: f64| samples[((samples.len() - 1) as f64 * share).round() as usize].as_nanos() as f64 / 1000.0;
        Self {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            max: at(1.0),
        }
    }
}

/// A request names its run as well: one that a proxy held back from an earlier run must not pass for one of this run.
const IDS_PER_RUN: usize = 1_000_000;

pub struct Run {
    number: usize,
    pub order: Order,
    pub streams: Vec<Stream>,
    pub measuring_since: Option<Instant>,
    measured_for: Duration,
    cpu_before: BTreeMap<u32, u64>,
    token_latency: Vec<Duration>,
    first_token: Vec<Duration>,
    report: Report,
}

impl Run {
    pub fn new(number: usize, order: Order) -> Self {
        let streams = (0..order.streams).map(|_| Stream::default()).collect();
        Self {
            number,
            order,
            streams,
            measuring_since: None,
            measured_for: Duration::ZERO,
            cpu_before: BTreeMap::new(),
            token_latency: Vec::new(),
            first_token: Vec::new(),
            report: Report::default(),
        }
    }

    pub fn request(&self, stream: usize) -> Vec<u8> {
        let body = self.order.body.replace("@ID@", &(self.number * IDS_PER_RUN + stream).to_string());
        let Order { path, key, .. } = &self.order;
        format!(
            "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\nanthropic-version: 2023-06-01\r\nauthorization: Bearer {key}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .into_bytes()
    }

    /// The stream that a request is for, if it belongs to this run.
    pub fn stream_of(&self, id: usize) -> Option<usize> {
        let stream = id.checked_sub(self.number * IDS_PER_RUN)?;
        (stream < self.streams.len()).then_some(stream)
    }

    pub fn start_measuring(&mut self, now: Instant) {
        self.report.rss_standing_kb = process::resident_kb(&self.order.pids);
        self.cpu_before = self.order.pids.iter().map(|pid| (*pid, process::cpu_ns(*pid))).collect();
        self.measuring_since = Some(now);
    }

    pub fn stop_measuring(&mut self, now: Instant) {
        let Some(since) = self.measuring_since.take() else { return };
        self.measured_for = now - since;
        for (pid, before) in &self.cpu_before {
            let spent_us = process::cpu_ns(*pid).saturating_sub(*before) as f64 / 1000.0;
            self.report.cpu_us_by_pid.insert(*pid, spent_us);
        }
        self.report.rss_streaming_kb = process::resident_kb(&self.order.pids);
    }

    /// The client has token `number` of its stream.
    pub fn received(&mut self, stream: usize, number: usize, now: Instant) {
        let Some(since) = self.measuring_since else {
            self.streams[stream].received += 1;
            return;
        };
        let state = &mut self.streams[stream];
        state.received += 1;
        self.report.tokens += 1;
        let Some(emitted) = state.emitted_at.get(number) else { return };
        self.token_latency.push(now - *emitted);
        if let (0, Some(requested), Some(arrived)) = (number, state.requested_at, state.arrived_at)
            && requested >= since
        {
            self.first_token.push((arrived - requested) + (now - *emitted));
        }
    }

    pub fn ended(&mut self) {
        if self.measuring_since.is_some() {
            self.report.requests += 1;
        }
    }

    pub fn error(&mut self, kind: String) {
        *self.report.errors.entry(kind).or_default() += 1;
    }

    pub fn all(&self, is_true: impl Fn(&Stream) -> bool) -> bool {
        self.streams.iter().all(is_true)
    }

    pub fn into_report(mut self) -> Report {
        self.report.seconds = self.measured_for.as_secs_f64();
        self.report.cpu_us = self.report.cpu_us_by_pid.values().sum();
        self.report.token_latency_us = Spread::of(&mut self.token_latency);
        self.report.first_token_us = Spread::of(&mut self.first_token);
        self.report
    }
}
