//! Chat chunks for a client that speaks chat completions: the same events, under the client's name
//! for the model.
//!
//! Events before the first one with content are held back, so that a backend that fails early can
//! still be replaced.

use std::ops::ControlFlow;

use memchr::memmem;

use crate::chunk::{self, Chunk};
use crate::error::{ErrorKind, Fault, write_chat_event};
use crate::failure::stream_failure;
use crate::outcome::{MessageUsage, Outcome};
use crate::sse::{Decoder, EVENT_LIMIT_BYTES};
use crate::stop_reason::Finish;

/// What is held back before the first event: a role chunk or two.
const MAX_HELD_BYTES: usize = 256 << 10;

pub struct ChatPassthrough {
    decoder: Decoder,
    state: PassthroughState,
}

/// What the client asked for.
#[derive(Debug, Clone, Default)]
pub struct ChatOptions {
    /// The model's name as the client knows it, as JSON text with its quotes.
    pub model_json: String,
    /// The client did not ask for usage; the gateway did.
    pub hide_usage: bool,
}

struct PassthroughState {
    options: ChatOptions,
    held: Vec<u8>,
    outcome: Outcome,
    deltas: u64,
    has_started: bool,
    has_finish: bool,
    is_over: bool,
}

impl ChatPassthrough {
    #[must_use]
    pub fn new(options: ChatOptions) -> Self {
        let state = PassthroughState {
            options,
            held: Vec::new(),
            outcome: Outcome::default(),
            deltas: 0,
            has_started: false,
            has_finish: false,
            is_over: false,
        };
        Self { decoder: Decoder::new(EVENT_LIMIT_BYTES), state }
    }

    pub fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let state = &mut self.state;
        if let Err(fault) = self.decoder.feed(bytes, &mut |data| state.event(data, out)) {
            state.fail(broken(fault.to_string()), out);
        }
    }

    /// The body has ended.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        let state = &mut self.state;
        if let Err(fault) = self.decoder.finish(&mut |data| state.event(data, out)) {
            state.fail(broken(fault.to_string()), out);
        }
        if state.is_over {
            return;
        }
        if state.has_finish {
            state.end(out);
        } else {
            state.fail(broken("the backend ended the stream without finishing"), out);
        }
    }

    pub fn fail(&mut self, fault: Fault, out: &mut Vec<u8>) {
        self.state.fail(fault, out);
    }

    #[must_use]
    pub fn has_started(&self) -> bool {
        self.state.has_started
    }

    #[must_use]
    pub fn is_over(&self) -> bool {
        self.state.is_over
    }

    /// Events with content so far: tokens, nearly.
    #[must_use]
    pub fn deltas(&self) -> u64 {
        self.state.deltas
    }

    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let mut outcome = self.state.outcome.clone();
        if !outcome.has_usage {
            outcome.usage.output_tokens = self.state.deltas;
        }
        outcome
    }
}

impl PassthroughState {
    fn event(&mut self, data: &[u8], out: &mut Vec<u8>) -> ControlFlow<()> {
        if self.is_over {
            return ControlFlow::Break(());
        }
        if chunk::is_done(data) {
            if self.has_finish {
                self.end(out);
            } else {
                self.fail(broken("the backend ended the stream without finishing"), out);
            }
            return ControlFlow::Break(());
        }
        match chunk::read(data) {
            Ok(Chunk { error: Some(error), .. }) => {
                let failure = stream_failure(&error);
                self.fail(Fault { kind: failure.kind, message: failure.message }, out);
            }
            Ok(chunk) if Finish::read(chunk.finish) == Finish::Failed => {
                self.fail(broken("the backend aborted the answer"), out);
            }
            Ok(chunk) => self.pass(&chunk, data, out),
            Err(fault) => self.fail(broken(fault.to_string()), out),
        }
        if self.is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn pass(&mut self, chunk: &Chunk<'_>, data: &[u8], out: &mut Vec<u8>) {
        let has_content = !chunk.content.is_empty()
            || !chunk.reasoning.is_empty()
            || !chunk.tool_calls.is_empty();
        self.deltas += u64::from(has_content);
        self.has_finish |= !chunk.finish.is_empty();
        if let Some(usage) = chunk.usage {
            self.outcome.usage = MessageUsage::from(usage);
            self.outcome.has_usage = true;
        }
        let only_usage = chunk.usage.is_some() && !has_content && chunk.finish.is_empty();
        if self.has_started || chunk.is_event() {
            out.append(&mut self.held);
            self.has_started = true;
            if !(only_usage && self.options.hide_usage) {
                write_event(&self.options.model_json, data, out);
            }
        } else {
            write_event(&self.options.model_json, data, &mut self.held);
            if self.held.len() > MAX_HELD_BYTES {
                self.fail(broken("the backend sends chunks without content"), out);
            }
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.held);
        out.extend_from_slice(b"data: [DONE]\n\n");
        self.has_started = true;
        self.is_over = true;
    }

    fn fail(&mut self, fault: Fault, out: &mut Vec<u8>) {
        if self.is_over {
            return;
        }
        self.is_over = true;
        self.held = Vec::new();
        if self.has_started {
            write_chat_event(&fault, out);
        }
        self.outcome.fault = Some(fault);
    }
}

fn broken(message: impl Into<String>) -> Fault {
    Fault { kind: ErrorKind::Api, message: message.into() }
}

/// Writes one event, the value of its first `"model"` replaced. Quotes inside strings are escaped,
/// so the match is a key.
fn write_event(model_json: &str, data: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"data: ");
    let from = out.len();
    match model_value(data) {
        Some((from, to)) if !model_json.is_empty() => {
            out.extend_from_slice(&data[..from]);
            out.extend_from_slice(model_json.as_bytes());
            out.extend_from_slice(&data[to..]);
        }
        _ => out.extend_from_slice(data),
    }
    // An event of several data lines is one here: between the tokens of its JSON a line feed is as
    // good as a blank.
    for byte in &mut out[from..] {
        if *byte == b'\n' {
            *byte = b' ';
        }
    }
    out.extend_from_slice(b"\n\n");
}

/// Where the string after the first `"model":` stands, quotes included.
fn model_value(data: &[u8]) -> Option<(usize, usize)> {
    let blanks = |from: usize| {
        data.get(from..)
            .map_or(0, |rest| rest.iter().take_while(|b| b.is_ascii_whitespace()).count())
    };
    let mut at = memmem::find(data, b"\"model\"")? + b"\"model\"".len();
    at += blanks(at);
    if data.get(at) != Some(&b':') {
        return None;
    }
    at += 1;
    at += blanks(at);
    if data.get(at) != Some(&b'"') {
        return None;
    }
    let mut end = at + 1;
    while *data.get(end)? != b'"' {
        end += if data[end] == b'\\' { 2 } else { 1 };
    }
    Some((at, end + 1))
}

#[cfg(test)]
mod tests {
    use super::{ChatOptions, ChatPassthrough};

    fn relay_frames(frames: &str, hide_usage: bool) -> (String, ChatPassthrough) {
        let mut passthrough =
            ChatPassthrough::new(ChatOptions { model_json: "\"mine\"".into(), hide_usage });
        let mut out = Vec::new();
        for byte in frames.as_bytes() {
            passthrough.feed(&[*byte], &mut out);
        }
        passthrough.finish(&mut out);
        (String::from_utf8(out).unwrap(), passthrough)
    }

    const ROLE: &str = "data: {\"id\":\"c\",\"model\":\"theirs\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
    const TEXT: &str = "data: {\"id\":\"c\",\"model\":\"theirs\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"say \\\"model\\\":\\\"x\\\"\"}}]}\n\n";
    const STOP: &str = "data: {\"id\":\"c\",\"model\":\"theirs\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    const USAGE: &str = "data: {\"id\":\"c\",\"model\":\"theirs\",\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2}}\n\n";
    const DONE: &str = "data: [DONE]\n\n";

    #[test]
    fn only_the_key_named_model_changes() {
        let (out, passthrough) = relay_frames(&[ROLE, TEXT, STOP, USAGE, DONE].concat(), false);
        assert_eq!(out, [ROLE, TEXT, STOP, USAGE, DONE].concat().replace("theirs", "mine"));
        assert_eq!(
            (passthrough.outcome().usage.input_tokens, passthrough.outcome().usage.output_tokens),
            (7, 2)
        );
    }

    #[test]
    fn an_event_of_several_lines_becomes_one() {
        let lines = "data: {\"model\":\"theirs\",\ndata: \"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}]}\n\n";
        let (out, _) = relay_frames(&[lines, STOP, DONE].concat(), false);
        let line = "data: {\"model\":\"mine\", \"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}]}\n\n";
        assert_eq!(out, [line, &STOP.replace("theirs", "mine"), DONE].concat());
    }

    #[test]
    fn usage_nobody_asked_for_is_counted_and_hidden() {
        let (out, passthrough) = relay_frames(&[ROLE, TEXT, STOP, USAGE, DONE].concat(), true);
        assert_eq!(out, [ROLE, TEXT, STOP, DONE].concat().replace("theirs", "mine"));
        assert_eq!(passthrough.outcome().usage.output_tokens, 2);
    }

    #[test]
    fn a_backend_that_fails_after_the_role_writes_nothing() {
        let (out, passthrough) = relay_frames(
            &[ROLE, "data: {\"error\":{\"message\":\"boom\",\"code\":500}}\n\n"].concat(),
            false,
        );
        assert_eq!(out, "");
        assert!(passthrough.outcome().fault.is_some() && !passthrough.has_started());
    }

    #[test]
    fn a_stream_that_breaks_off_ends_with_an_error() {
        let (out, passthrough) = relay_frames(&[ROLE, TEXT].concat(), false);
        assert!(out.ends_with("\n\n") && out.contains("\"error\""), "{out}");
        assert!(passthrough.outcome().fault.is_some());
    }

    #[test]
    fn a_usage_of_no_tokens_is_held_back_until_the_first_event() {
        let usage = "data: {\"id\":\"c\",\"model\":\"theirs\",\"choices\":[],\"usage\":\
            {\"prompt_tokens\":7,\"completion_tokens\":0}}\n\n";
        let mut passthrough =
            ChatPassthrough::new(ChatOptions { model_json: "\"mine\"".into(), hide_usage: false });
        let mut out = Vec::new();
        passthrough.feed(usage.as_bytes(), &mut out);
        assert!(out.is_empty() && !passthrough.has_started());
        passthrough.feed(TEXT.as_bytes(), &mut out);
        assert!(out.starts_with(b"data: {\"id\":\"c\",\"model\":\"mine\",\"choices\":[],"));
    }
}
