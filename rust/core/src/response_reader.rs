//! Reads one response from a backend connection: head, framing, events, bytes for the client. No
//! I/O.
//!
//! Bad input is never an error of `feed`: it ends the response as `End::Broken`. A response over
//! several connections (a retry, a continuation) keeps its `ResponseMode` and gets a new
//! `ResponseReader` for each.

use crate::chat_passthrough::ChatPassthrough;
use crate::error::{Fault, write_chat_event};
use crate::fold::Fold;
use crate::http1::{self, Body, Framing, ResponseHead};
use crate::message::MessageStream;
use crate::outcome::Outcome;
use crate::sink::{Event, Sink, SseSink};
use crate::translator::Translator;

/// Bodies are collected up to this size; no message needs more.
const MAX_BODY_BYTES: usize = 64 << 20;

/// The form in which a response is written for the client, with its progress.
pub enum ResponseMode {
    /// Messages events for a client that streams.
    Events(Box<Translator>),
    /// A streamed response as one whole message.
    Aggregated(Box<Translator>, Box<Fold>),
    /// Chat chunks passed on.
    Chat(Box<ChatPassthrough>),
    /// The body as it is.
    Buffered,
}

impl ResponseMode {
    /// The first event has come: see `Chunk::is_event`.
    #[must_use]
    pub fn has_started(&self) -> bool {
        match self {
            Self::Events(translator) | Self::Aggregated(translator, _) => {
                translator.stream().has_started()
            }
            Self::Chat(passthrough) => passthrough.has_started(),
            Self::Buffered => false,
        }
    }

    #[must_use]
    pub fn is_over(&self) -> bool {
        match self {
            Self::Events(translator) | Self::Aggregated(translator, _) => {
                translator.stream().is_over()
            }
            Self::Chat(passthrough) => passthrough.is_over(),
            Self::Buffered => false,
        }
    }

    #[must_use]
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Events(translator) | Self::Aggregated(translator, _) => {
                translator.stream().outcome()
            }
            Self::Chat(passthrough) => passthrough.outcome(),
            Self::Buffered => Outcome::default(),
        }
    }

    /// Ends with an error. Before the first event nothing is written, only recorded: the client
    /// gets a status.
    pub fn fail(&mut self, fault: Fault, out: &mut Vec<u8>) {
        match self {
            Self::Events(translator) => {
                translator.stream_mut().fail(fault.kind, &fault.message, &mut SseSink(out))
            }
            Self::Aggregated(translator, fold) => {
                translator.stream_mut().fail(fault.kind, &fault.message, fold.as_mut())
            }
            Self::Chat(passthrough) => passthrough.fail(fault, out),
            Self::Buffered => {}
        }
    }

    /// Writes the error event of the client's protocol, for a stream that holds only pings so far.
    pub fn write_error(&self, fault: &Fault, out: &mut Vec<u8>) {
        match self {
            Self::Events(_) => {
                SseSink(out).event(Event::Error { kind: fault.kind, message: &fault.message })
            }
            Self::Chat(_) => write_chat_event(fault, out),
            Self::Aggregated(..) | Self::Buffered => {}
        }
    }

    /// Deltas so far: tokens, nearly.
    #[must_use]
    pub fn deltas(&self) -> u64 {
        match self {
            Self::Events(translator) | Self::Aggregated(translator, _) => {
                translator.stream().deltas()
            }
            Self::Chat(passthrough) => passthrough.deltas(),
            Self::Buffered => 0,
        }
    }

    /// The aggregated message; empty unless there is one.
    #[must_use]
    pub fn into_message(self) -> Vec<u8> {
        match self {
            Self::Aggregated(_, fold) => fold.into_body(),
            Self::Events(_) | Self::Chat(_) | Self::Buffered => Vec::new(),
        }
    }

    // The thinking budget

    /// The reasoning passed its budget: stop the backend and ask for a continuation.
    #[must_use]
    pub fn is_budget_spent(&self) -> bool {
        self.stream().is_some_and(MessageStream::is_budget_spent)
    }

    #[must_use]
    pub fn reasoning_text(&self) -> String {
        self.stream().map_or_else(String::new, MessageStream::reasoning_text)
    }

    /// What follows is a second response that continues the first.
    pub fn begin_continuation(&mut self) {
        if let Self::Events(translator) | Self::Aggregated(translator, _) = self {
            translator.begin_continuation();
        }
    }

    fn stream(&self) -> Option<&MessageStream> {
        match self {
            Self::Events(translator) | Self::Aggregated(translator, _) => Some(translator.stream()),
            Self::Chat(_) | Self::Buffered => None,
        }
    }

    fn feed(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        match self {
            Self::Events(translator) => translator.feed(payload, out),
            Self::Aggregated(translator, fold) => translator.feed_into(payload, fold.as_mut()),
            Self::Chat(passthrough) => passthrough.feed(payload, out),
            Self::Buffered => {}
        }
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        match self {
            Self::Events(translator) => translator.finish(out),
            Self::Aggregated(translator, fold) => translator.finish_into(fold.as_mut()),
            Self::Chat(passthrough) => passthrough.finish(out),
            Self::Buffered => {}
        }
    }
}

/// How the response ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The response was written to its end.
    Complete,
    /// A body was collected: of a buffered response, or of an error.
    Collected,
    /// It carried an error, ended early or was not a valid response; see `fault`.
    Broken,
    /// The connection closed before the first byte of the response.
    NoResponse,
}

/// The result of one read: deltas (nearly tokens), and the end if it was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    pub deltas: u64,
    pub end: Option<End>,
}

enum ReadStage {
    Head(Vec<u8>),
    Events(Body),
    Collect(Body),
    Over,
}

pub struct ResponseReader {
    stage: ReadStage,
    // Of the head only what is read later is kept: a stream lasts for minutes.
    status: u16,
    keep_alive: bool,
    retry_after: Option<Box<str>>,
    collected: Vec<u8>,
    fault: Option<String>,
    fate: ConnectionFate,
}

/// What to do with the connection after the response.
pub enum ConnectionFate {
    /// Close it.
    Close,
    /// Send the next request over it.
    Reuse,
    /// The events are complete, the end of the framing is not: read that, then reuse.
    Drain(Body),
}

impl Default for ResponseReader {
    fn default() -> Self {
        Self {
            stage: ReadStage::Head(Vec::new()),
            status: 0,
            keep_alive: false,
            retry_after: None,
            collected: Vec::new(),
            fault: None,
            fate: ConnectionFate::Close,
        }
    }
}

impl ResponseReader {
    /// Reads bytes of the connection and appends the client's bytes to `out`.
    pub fn feed(&mut self, mode: &mut ResponseMode, input: &[u8], out: &mut Vec<u8>) -> Progress {
        let before = mode.deltas();
        let end = self.advance(mode, input, out).unwrap_or_else(|fault| Some(self.fail(fault)));
        Progress { deltas: mode.deltas() - before, end }
    }

    /// The backend has closed the connection.
    pub fn eof(&mut self, mode: &mut ResponseMode, out: &mut Vec<u8>) -> Progress {
        let before = mode.deltas();
        let end = match std::mem::replace(&mut self.stage, ReadStage::Over) {
            ReadStage::Over => None,
            ReadStage::Head(buffer) if buffer.is_empty() => Some(End::NoResponse),
            ReadStage::Head(_) => Some(
                self.fail("the backend closed the connection inside the response head".to_owned()),
            ),
            ReadStage::Events(mut body) => Some(match body.eof() {
                Ok(()) => Self::finish_events(mode, out),
                Err(fault) => self.fail(fault.to_string()),
            }),
            ReadStage::Collect(mut body) => Some(match body.eof() {
                Ok(()) => End::Collected,
                Err(fault) => self.fail(fault.to_string()),
            }),
        };
        Progress { deltas: mode.deltas() - before, end }
    }

    /// The connection was reset.
    pub fn lost(&mut self) -> Progress {
        let end = match &self.stage {
            ReadStage::Over => None,
            ReadStage::Head(buffer) if buffer.is_empty() => Some(End::NoResponse),
            ReadStage::Head(_) | ReadStage::Events(_) | ReadStage::Collect(_) => {
                Some(self.fail("the backend's connection was lost".to_owned()))
            }
        };
        Progress { deltas: 0, end }
    }

    /// HTTP status; 0 before the head is complete.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The header of that name.
    #[must_use]
    pub fn retry_after(&self) -> Option<&str> {
        self.retry_after.as_deref()
    }

    /// The body, when `end` is `Collected`.
    #[must_use]
    pub fn collected(&self) -> &[u8] {
        &self.collected
    }

    /// What was wrong with the connection's bytes, where `end` is `Broken` and the mode has no
    /// fault.
    #[must_use]
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// What to do with the connection; call it once, after the end.
    pub fn take_fate(&mut self) -> ConnectionFate {
        std::mem::replace(&mut self.fate, ConnectionFate::Close)
    }

    fn advance(
        &mut self,
        mode: &mut ResponseMode,
        mut input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<End>, String> {
        if let ReadStage::Head(buffer) = &mut self.stage {
            buffer.extend_from_slice(input);
            let Some((head, length)) =
                http1::parse_head(buffer).map_err(|fault| fault.to_string())?
            else {
                return Ok(None);
            };
            let rest = buffer.split_off(length);
            self.begin_body(&head, mode)?;
            return self.body(mode, &mut rest.as_slice(), out);
        }
        self.body(mode, &mut input, out)
    }

    fn begin_body(&mut self, head: &ResponseHead, mode: &ResponseMode) -> Result<(), String> {
        let body = Body::new(head.framing);
        let is_stream = head.values("content-type").any(|value| {
            value.trim_ascii_start().to_ascii_lowercase().starts_with(b"text/event-stream")
        });
        let wants_stream = !matches!(mode, ResponseMode::Buffered);
        if head
            .values("content-encoding")
            .any(|coding| !coding.trim_ascii().eq_ignore_ascii_case(b"identity"))
        {
            return Err(
                "the backend compressed its answer although identity was asked for".to_owned()
            );
        }
        if head.status == 200 && wants_stream && !is_stream {
            return Err(
                "the backend answered a request for a stream with something else".to_owned()
            );
        }
        self.stage = if head.status == 200 && wants_stream {
            ReadStage::Events(body)
        } else {
            ReadStage::Collect(body)
        };
        self.status = head.status;
        self.keep_alive = head.keep_alive;
        self.retry_after = head
            .values("retry-after")
            .next()
            .map(|value| String::from_utf8_lossy(value).into_owned().into_boxed_str());
        Ok(())
    }

    fn body(
        &mut self,
        mode: &mut ResponseMode,
        input: &mut &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<End>, String> {
        match &mut self.stage {
            ReadStage::Head(_) | ReadStage::Over => Ok(None),
            ReadStage::Events(body) => {
                while let Some(payload) = body.feed(input).map_err(|fault| fault.to_string())? {
                    mode.feed(payload, out);
                    if mode.is_over() {
                        break;
                    }
                }
                if mode.is_over() {
                    let body = std::mem::replace(body, Body::new(Framing::None));
                    self.stage = ReadStage::Over;
                    self.fate =
                        if self.keep_alive { drain(body, input) } else { ConnectionFate::Close };
                    return Ok(Some(if mode.outcome().fault.is_some() {
                        End::Broken
                    } else {
                        End::Complete
                    }));
                }
                if body.is_complete() {
                    self.stage = ReadStage::Over;
                    self.fate = self.fate_after(input);
                    return Ok(Some(Self::finish_events(mode, out)));
                }
                Ok(None)
            }
            ReadStage::Collect(body) => {
                while let Some(payload) = body.feed(input).map_err(|fault| fault.to_string())? {
                    if self.collected.len() + payload.len() > MAX_BODY_BYTES {
                        return Err("the backend's answer is too long".to_owned());
                    }
                    self.collected.extend_from_slice(payload);
                }
                if !body.is_complete() {
                    return Ok(None);
                }
                self.stage = ReadStage::Over;
                self.fate = self.fate_after(input);
                Ok(Some(End::Collected))
            }
        }
    }

    /// After the end of the framing. Bytes beyond it belong to no request: close.
    fn fate_after(&self, input: &[u8]) -> ConnectionFate {
        if self.keep_alive && input.is_empty() {
            ConnectionFate::Reuse
        } else {
            ConnectionFate::Close
        }
    }

    fn finish_events(mode: &mut ResponseMode, out: &mut Vec<u8>) -> End {
        mode.finish(out);
        if mode.outcome().fault.is_some() { End::Broken } else { End::Complete }
    }

    fn fail(&mut self, fault: String) -> End {
        self.stage = ReadStage::Over;
        self.fate = ConnectionFate::Close;
        self.fault = Some(fault);
        End::Broken
    }
}

/// Reads the framing that follows the last event. Anything else there means that the backend kept
/// sending after its own end: close.
pub fn drain(mut body: Body, mut input: &[u8]) -> ConnectionFate {
    match body.feed(&mut input) {
        Ok(None) if body.is_complete() && input.is_empty() => ConnectionFate::Reuse,
        Ok(None) if !body.is_complete() => ConnectionFate::Drain(body),
        _ => ConnectionFate::Close,
    }
}

#[cfg(test)]
mod tests;
