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

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"}}]}\n\n";
    const STOP: &[u8] =
        b"data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    const DONE: &[u8] = b"data: [DONE]\n\n";

    fn translate(body: &[u8]) -> (String, Outcome) {
        let mut translator = Translator::new(Options::new("msg_1", "m"));
        let mut out = Vec::new();
        translator.feed(body, &mut out);
        translator.finish(&mut out);
        (String::from_utf8(out).unwrap(), translator.stream().outcome())
    }

    #[test]
    fn what_follows_the_end_is_ignored() {
        let (whole, outcome) = translate(&[TEXT, STOP, DONE].concat());
        assert!(whole.ends_with("data: {\"type\":\"message_stop\"}\n\n"));
        assert_eq!(outcome.fault, None);
        assert_eq!(translate(&[TEXT, STOP, DONE, TEXT, b"data: nonsense\n\n"].concat()).0, whole);
    }

    #[test]
    fn unreadable_events_end_the_message() {
        let long = [b"data: ".as_slice(), &b"x".repeat(crate::sse::EVENT_LIMIT_BYTES)].concat();
        for (body, message) in [
            (&[TEXT, b"data: nonsense\n\n"].concat(), "the backend sent a malformed event"),
            (&[TEXT, &long].concat(), "the backend sent an event that is too long"),
            (&TEXT.to_vec(), "the backend ended the stream without finishing"),
        ] {
            let (out, outcome) = translate(body);
            assert_eq!(outcome.fault.unwrap().message, message);
            assert!(out.contains("event: error\n") && !out.contains("message_stop"), "{message}");
        }
    }

    #[test]
    fn a_continuation_begins_at_an_event() {
        let options = Options { budget_tokens: Some(1), ..Options::new("msg_1", "m") };
        let mut translator = Translator::new(options);
        let mut out = Vec::new();
        for _ in 0..2 {
            let reasoning =
                b"data: {\"choices\":[{\"index\":0,\"delta\":{\"reasoning\":\"r\"}}]}\n\n";
            translator.feed(reasoning, &mut out);
        }
        assert!(translator.stream().is_budget_spent());
        translator.feed(b"data: {\"choi", &mut out);
        translator.begin_continuation();
        translator.feed(&[TEXT, STOP, DONE].concat(), &mut out);
        let out = String::from_utf8(out).unwrap();
        assert!(translator.stream().is_over() && out.contains("\"text\":\"Hi\""), "{out}");
    }

    #[test]
    fn folding_gives_the_message_or_nothing() {
        let (body, _) = fold(Options::new("msg_1", "m"), &[TEXT, STOP, DONE].concat());
        let message: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(message["content"][0]["text"], "Hi");
        assert!(fold(Options::new("msg_1", "m"), TEXT).0.is_empty());
    }
}
