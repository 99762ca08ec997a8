//! A streamed chat completion into Messages events, without I/O: events → chunks → machine.
//!
//! A bad peer never raises here: what cannot be read ends the message honestly, and from then on nothing more is told.

use std::ops::ControlFlow;

use crate::chunk;
use crate::fold::Fold;
use crate::message::{ErrorKind, Machine, Options, Outcome};
use crate::sink::{Sink, SseSink};
use crate::sse::Decoder;

#[derive(Debug)]
pub struct Translator {
    decoder: Decoder,
    machine: Machine,
}

impl Translator {
    pub fn new(options: Options) -> Self {
        Self { decoder: Decoder::default(), machine: Machine::new(options) }
    }

    /// Bytes of the backend's body, cut anywhere; appends the bytes for the client.
    pub fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        self.feed_into(bytes, &mut SseSink(out));
    }

    /// The body has ended.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        self.finish_into(&mut SseSink(out));
    }

    pub fn feed_into(&mut self, bytes: &[u8], sink: &mut impl Sink) {
        if self.machine.is_over() {
            return;
        }
        let machine = &mut self.machine;
        let read = self.decoder.feed(bytes, &mut |data| tell(machine, data, sink));
        if read.is_err() {
            self.machine.fail(ErrorKind::Api, "the backend sent an event that is too long", sink);
        }
    }

    pub fn finish_into(&mut self, sink: &mut impl Sink) {
        let machine = &mut self.machine;
        let read = self.decoder.finish(&mut |data| tell(machine, data, sink));
        if read.is_err() {
            self.machine.fail(ErrorKind::Api, "the backend sent an event that is too long", sink);
        }
        self.machine.end_of_body(sink);
    }

    /// A second body goes on where the first was stopped.
    pub fn begin_continuation(&mut self) {
        self.decoder = Decoder::default();
        self.machine.begin_continuation();
    }

    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    pub fn machine_mut(&mut self) -> &mut Machine {
        &mut self.machine
    }
}

fn tell(machine: &mut Machine, data: &[u8], sink: &mut impl Sink) -> ControlFlow<()> {
    if machine.is_budget_spent() {
        return ControlFlow::Break(());
    }
    if chunk::is_done(data) {
        machine.done(sink);
    } else {
        match chunk::read(data) {
            Ok(chunk) => machine.chunk(&chunk, sink),
            Err(_) => machine.fail(ErrorKind::Api, "the backend sent a malformed event", sink),
        }
    }
    if machine.is_over() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// A streamed chat completion, whole → the message that `stream: false` gives; empty after a fault.
pub fn fold(options: Options, body: &[u8]) -> (Vec<u8>, Outcome) {
    let mut translator = Translator::new(options);
    let mut fold = Fold::default();
    translator.feed_into(body, &mut fold);
    translator.finish_into(&mut fold);
    (fold.into_body(), translator.machine.outcome())
}
