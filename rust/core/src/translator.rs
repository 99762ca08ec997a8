//! Translates a streamed chat completion into Messages events, without I/O: SSE events → chunks →
//! message.
//!
//! Bad input is never an error here: it ends the message with an `error` event, and nothing is
//! written after it.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::chunk;
use crate::fold::Fold;
use crate::message::{ErrorKind, MessageStream, Options, Outcome};
use crate::sink::{Sink, SseSink};
use crate::sse::Decoder;

#[derive(Debug)]
pub struct Translator {
    decoder: Decoder,
    stream: MessageStream,
}

impl Translator {
    pub fn new(options: impl Into<Arc<Options>>) -> Self {
        Self { decoder: Decoder::default(), stream: MessageStream::new(options) }
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
        if self.stream.is_over() {
            return;
        }
        let stream = &mut self.stream;
        let read = self.decoder.feed(bytes, &mut |data| handle_event(stream, data, sink));
        if read.is_err() {
            self.stream.fail(ErrorKind::Api, "the backend sent an event that is too long", sink);
        }
    }

    pub fn finish_into(&mut self, sink: &mut impl Sink) {
        let stream = &mut self.stream;
        let read = self.decoder.finish(&mut |data| handle_event(stream, data, sink));
        if read.is_err() {
            self.stream.fail(ErrorKind::Api, "the backend sent an event that is too long", sink);
        }
        self.stream.end_of_body(sink);
    }

    /// A second body follows, which continues the first.
    pub fn begin_continuation(&mut self) {
        self.decoder = Decoder::default();
        self.stream.begin_continuation();
    }

    pub fn stream(&self) -> &MessageStream {
        &self.stream
    }

    pub fn stream_mut(&mut self) -> &mut MessageStream {
        &mut self.stream
    }
}

fn handle_event(stream: &mut MessageStream, data: &[u8], sink: &mut impl Sink) -> ControlFlow<()> {
    if stream.is_budget_spent() {
        return ControlFlow::Break(());
    }
    if chunk::is_done(data) {
        stream.done(sink);
    } else {
        match chunk::read(data) {
            Ok(chunk) => stream.chunk(&chunk, sink),
            Err(_) => stream.fail(ErrorKind::Api, "the backend sent a malformed event", sink),
        }
    }
    if stream.is_over() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// A streamed chat completion, whole → the message that `stream: false` gives; empty after a fault.
pub fn fold(options: impl Into<Arc<Options>>, body: &[u8]) -> (Vec<u8>, Outcome) {
    let mut translator = Translator::new(options);
    let mut fold = Fold::default();
    translator.feed_into(body, &mut fold);
    translator.finish_into(&mut fold);
    (fold.into_body(), translator.stream.outcome())
}
