//! The Messages state machine: chunks of a chat completion in, events of a message out.
//!
//! It keeps the invariant whatever comes in: one `message_start`; blocks one after the other; one `message_delta`; one `message_stop`, or
//! an `error` event in place of the end; nothing after it. A failure before the first event is only recorded, so that another backend
//! may be tried.
//!
//! Rules of order:
//! - Inside a chunk: reasoning, content, tool calls, finish reason.
//! - A call has the floor until its JSON is complete. Whatever else comes meanwhile waits (at most [`WAITING_LIMIT_BYTES`]) and is told
//!   after it, in order, so that interleaved calls come out one after the other and no byte is lost.
//! - White space that could be nothing but the gap before a call waits too, and is dropped if a call or the end follows.
//! - The end is told at `[DONE]` or the end of the body, because usage comes after the finish reason.

use std::borrow::Cow;
use std::collections::VecDeque;

use crate::blocks::{Blocks, Open};
use crate::calls::Calls;
use crate::chunk::{Arguments, Chunk, ToolDelta};
use crate::failure::stream_failure;
use crate::ledger::{Called, Ledger, clean_stop};
use crate::options::Reasoning;
use crate::outcome::Finish;
use crate::split::ThinkSplit;
use crate::text::{Seam, decode, escape, is_blank};

pub use crate::options::Options;
pub use crate::outcome::{ErrorKind, Fault, Outcome, StopReason};
pub use crate::sink::{Event, PING, Sink, SseSink};

/// What one message may make us hold back behind incomplete calls, and the reasoning that goes into signatures; past it the reply is a fault.
pub const WAITING_LIMIT_BYTES: usize = 16 << 20;
/// White space past this is told as text.
const BLANK_LIMIT_BYTES: usize = 64 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waiting,
    Telling,
    Over,
}

/// Told once the call that has the floor is complete; text is escaped.
#[derive(Debug)]
enum Later {
    Reasoning(String),
    Text(String),
    Call(usize),
}

#[derive(Debug)]
pub struct Machine {
    options: Options,
    stage: Stage,
    has_started: bool,
    blocks: Blocks,
    ledger: Ledger,
    calls: Calls,
    floor: Option<usize>,
    called: Called,
    later: VecDeque<Later>,
    waiting_bytes: usize,
    /// White space held back.
    blank: String,
    split: Option<ThinkSplit>,
    content_seam: Seam,
    reasoning_seam: Seam,
    reasoning_deltas: u64,
    /// The thinking was closed from outside; what reasoning still comes is dropped.
    is_thinking_over: bool,
    stop_reason: Option<StopReason>,
    fault: Option<Fault>,
}

impl Machine {
    pub fn new(options: Options) -> Self {
        Self {
            stage: Stage::Waiting,
            has_started: false,
            blocks: Blocks::new(&options.signature_prefix, options.display_omitted),
            ledger: Ledger::default(),
            calls: Calls::default(),
            floor: None,
            called: Called::Nothing,
            later: VecDeque::new(),
            waiting_bytes: 0,
            blank: String::new(),
            split: options.split_think.then(ThinkSplit::default),
            content_seam: Seam::default(),
            reasoning_seam: Seam::default(),
            reasoning_deltas: 0,
            is_thinking_over: false,
            stop_reason: None,
            fault: None,
            options,
        }
    }

    // What comes in

    pub fn chunk(&mut self, chunk: &Chunk<'_>, sink: &mut impl Sink) {
        if self.stage == Stage::Over {
            return;
        }
        if let Some(error) = &chunk.error {
            let failure = stream_failure(error);
            return self.fail(failure.kind, &failure.message, sink);
        }
        if let Some(usage) = chunk.usage {
            self.ledger.use_up(usage);
        }
        if self.stage == Stage::Waiting {
            if !is_event(chunk) {
                return;
            }
            // An engine that gives up at once has told us nothing: another one may answer.
            if Finish::read(chunk.finish) == Finish::Failed {
                return self.fail_finish(sink);
            }
            self.start(sink);
        }
        if !chunk.reasoning.is_empty() {
            self.reasoning_delta(chunk.reasoning, sink);
        }
        if !chunk.content.is_empty() {
            self.content_delta(chunk.content, sink);
        }
        for call in &chunk.tool_calls {
            self.tool_delta(call, sink);
        }
        if !chunk.finish.is_empty() && self.stage != Stage::Over {
            let matched = chunk.matched_stop.map(clean_stop);
            if self.ledger.finish(chunk.finish, matched.as_deref()) == Finish::Failed {
                self.fail_finish(sink);
            }
        }
    }

    /// `[DONE]`.
    pub fn done(&mut self, sink: &mut impl Sink) {
        if self.stage == Stage::Over {
            return;
        }
        if !self.ledger.has_finished() {
            let message = match self.stage {
                Stage::Waiting => "the backend sent an empty reply",
                Stage::Telling | Stage::Over => "the backend ended the stream without finishing",
            };
            return self.fail(ErrorKind::Api, message, sink);
        }
        self.end(sink);
    }

    pub fn end_of_body(&mut self, sink: &mut impl Sink) {
        self.done(sink);
    }

    /// Ends the message with an error; before the first event nothing is told, and the fault is only kept.
    pub fn fail(&mut self, kind: ErrorKind, message: &str, sink: &mut impl Sink) {
        if self.stage == Stage::Over {
            return;
        }
        if self.stage == Stage::Telling {
            if self.options.close_block_on_error {
                self.blocks.close(sink);
            }
            sink.event(Event::Error { kind, message });
        }
        self.stage = Stage::Over;
        self.fault = Some(Fault { kind, message: message.to_owned() });
    }

    // What is known

    /// The first content, reasoning, tool call, finish reason or token count was seen: from here on no other backend can answer.
    pub fn has_started(&self) -> bool {
        self.has_started
    }

    pub fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    pub fn outcome(&self) -> Outcome {
        Outcome { usage: self.ledger.usage(), has_usage: self.ledger.has_usage(), stop_reason: self.stop_reason, fault: self.fault.clone() }
    }

    /// Deltas so far: tokens, nearly.
    pub fn pieces(&self) -> u64 {
        self.ledger.pieces()
    }

    // A thinking budget held at the edge

    /// Pieces of reasoning so far: tokens, nearly.
    pub fn reasoning_deltas(&self) -> u64 {
        self.reasoning_deltas
    }

    /// All reasoning so far, decoded.
    pub fn reasoning_text(&self) -> String {
        decode(self.blocks.thought()).into_owned()
    }

    /// The budget is used up: closes the thinking block; further reasoning is dropped.
    pub fn close_thinking(&mut self, sink: &mut impl Sink) {
        if self.stage == Stage::Over {
            return;
        }
        self.end_reasoning(sink);
        if self.blocks.open() == Open::Thinking {
            self.blocks.close(sink);
        }
        self.is_thinking_over = true;
        self.split = None;
    }

    /// What comes now is a second reply, which goes on where the first was stopped: one message, counted together.
    pub fn begin_continuation(&mut self) {
        self.ledger.next_leg();
        self.is_thinking_over = true;
        self.split = None;
    }

    // Deltas, one method per kind

    fn reasoning_delta(&mut self, piece: &str, sink: &mut impl Sink) {
        self.ledger.add_piece();
        // An engine that tells reasoning apart needs no splitting of its content.
        self.end_split(sink);
        let piece = self.reasoning_seam.push(piece);
        self.reasoning(&piece, sink);
    }

    fn content_delta(&mut self, piece: &str, sink: &mut impl Sink) {
        self.ledger.add_piece();
        self.end_reasoning(sink);
        let piece = self.content_seam.push(piece);
        let Some(split) = &mut self.split else {
            return self.text(&piece, sink);
        };
        let parts = split.feed(&piece);
        if parts.is_over {
            self.split = None;
        }
        self.reasoning(&parts.reasoning, sink);
        self.text(&parts.text, sink);
    }

    fn tool_delta(&mut self, delta: &ToolDelta<'_>, sink: &mut impl Sink) {
        if self.stage == Stage::Over {
            return;
        }
        self.ledger.add_piece();
        self.end_split(sink);
        self.end_reasoning(sink);
        self.end_content(sink);
        if self.options.discard_output {
            return;
        }
        let Some(at) = self.calls.place(delta) else {
            return self.fail(ErrorKind::Api, "the backend sent too many tool calls", sink);
        };
        let call = self.calls.get(at);
        if call.is_closed || at > 0 && self.options.single_tool_call {
            return;
        }
        let piece = match delta.arguments {
            Arguments::None => Cow::Borrowed(""),
            Arguments::Text(text) => call.join(text),
            Arguments::Object(json) => Cow::Owned(escape(json)),
        };
        let told = call.arguments.feed(&piece);
        if self.takes_floor(at, sink) {
            self.input(at, told, sink);
            self.tell_later(sink);
        } else {
            self.calls.get(at).waiting.push_str(told);
            self.wait(told.len(), sink);
        }
    }

    // What is told, now or later

    fn reasoning(&mut self, text: &str, sink: &mut impl Sink) {
        if text.is_empty() || self.is_thinking_over || self.stage == Stage::Over {
            return;
        }
        self.reasoning_deltas += 1;
        if self.blocks.thought().len() + text.len() > WAITING_LIMIT_BYTES {
            return self.fail(ErrorKind::Api, "the backend sent too much reasoning", sink);
        }
        match self.options.reasoning {
            _ if self.options.discard_output => self.blocks.remember(text),
            Reasoning::Drop => self.blocks.remember(text),
            Reasoning::Text => {
                self.blocks.remember(text);
                self.text(text, sink);
            }
            Reasoning::Thinking if self.has_to_wait() => {
                match self.later.back_mut() {
                    Some(Later::Reasoning(last)) => last.push_str(text),
                    _ => self.later.push_back(Later::Reasoning(text.to_owned())),
                }
                self.wait(text.len(), sink);
            }
            Reasoning::Thinking => self.thinking(text, sink),
        }
    }

    fn thinking(&mut self, text: &str, sink: &mut impl Sink) {
        self.end_call(sink);
        self.blocks.thinking(text, sink);
    }

    fn text(&mut self, text: &str, sink: &mut impl Sink) {
        if text.is_empty() || self.options.discard_output || self.stage == Stage::Over {
            return;
        }
        if self.blocks.open() == Open::Text {
            return self.blocks.text(text, sink);
        }
        if self.has_to_wait() {
            match self.later.back_mut() {
                Some(Later::Text(last)) => last.push_str(text),
                _ => self.later.push_back(Later::Text(text.to_owned())),
            }
            return self.wait(text.len(), sink);
        }
        self.new_text(text, sink);
    }

    fn new_text(&mut self, text: &str, sink: &mut impl Sink) {
        if is_blank(text) && self.blank.len() + text.len() <= BLANK_LIMIT_BYTES {
            return self.blank.push_str(text);
        }
        self.end_call(sink);
        if self.blank.is_empty() {
            return self.blocks.text(text, sink);
        }
        let mut whole = std::mem::take(&mut self.blank);
        whole.push_str(text);
        self.blocks.text(&whole, sink);
    }

    /// Tells a piece of the call that has the floor, once it has a name; with the first piece what waited before it.
    fn input(&mut self, at: usize, piece: &str, sink: &mut impl Sink) {
        let call = self.calls.get(at);
        if !call.is_started {
            call.waiting.push_str(piece);
            // A name may still grow until the arguments begin.
            if call.has_name() && call.arguments.has_begun() {
                self.open_call(at, sink);
            } else {
                self.wait(piece.len(), sink);
            }
            return;
        }
        self.blocks.input(piece, sink);
    }

    fn open_call(&mut self, at: usize, sink: &mut impl Sink) {
        let (id, name) = self.calls.introduce(at, &self.options);
        self.blocks.tool(&id, &name, sink);
        let waiting = std::mem::take(&mut self.calls.get(at).waiting);
        self.blocks.input(&waiting, sink);
    }

    // Who has the floor

    /// True while a call is incomplete: everything but its own pieces has to wait.
    fn has_to_wait(&self) -> bool {
        !self.later.is_empty() || self.floor.is_some_and(|at| !self.calls.is_complete(at))
    }

    /// Gives call `at` the floor if it is free; else the call gets in line.
    fn takes_floor(&mut self, at: usize, sink: &mut impl Sink) -> bool {
        if self.floor == Some(at) {
            return true;
        }
        // `{}` may be a placeholder, so only a settled call makes way for another one.
        let is_free = self.later.is_empty() && self.floor.is_none_or(|floor| self.calls.get(floor).arguments.is_settled());
        if is_free {
            self.give_floor(at, sink);
        } else if !self.later.iter().any(|later| matches!(later, Later::Call(waiting) if *waiting == at)) {
            self.later.push_back(Later::Call(at));
        }
        is_free
    }

    fn give_floor(&mut self, at: usize, sink: &mut impl Sink) {
        self.end_call(sink);
        self.blocks.close(sink);
        self.blank.clear();
        self.floor = Some(at);
    }

    fn wait(&mut self, bytes: usize, sink: &mut impl Sink) {
        self.waiting_bytes += bytes;
        if self.waiting_bytes > WAITING_LIMIT_BYTES {
            self.fail(ErrorKind::Api, "the backend interleaves more output than can be held back", sink);
        }
    }

    /// Tells what waited, as far as complete calls make way.
    fn tell_later(&mut self, sink: &mut impl Sink) {
        while self.floor.is_none_or(|at| self.calls.get(at).arguments.is_settled()) && self.tell_next(sink) {}
    }

    fn tell_next(&mut self, sink: &mut impl Sink) -> bool {
        if self.stage == Stage::Over {
            return false;
        }
        match self.later.pop_front() {
            None => return false,
            Some(Later::Reasoning(text)) => self.thinking(&text, sink),
            Some(Later::Text(text)) if self.blocks.open() == Open::Text => self.blocks.text(&text, sink),
            Some(Later::Text(text)) => self.new_text(&text, sink),
            Some(Later::Call(at)) => {
                self.give_floor(at, sink);
                self.input(at, "", sink);
            }
        }
        true
    }

    // Ends

    fn start(&mut self, sink: &mut impl Sink) {
        self.stage = Stage::Telling;
        self.has_started = true;
        sink.event(Event::MessageStart { id: &escape(&self.options.message_id), model: &escape(&self.options.model) });
    }

    /// A tool call or reasoning of its own came, so the content was no reasoning in disguise.
    fn end_split(&mut self, sink: &mut impl Sink) {
        if let Some(mut split) = self.split.take() {
            let held = split.end();
            self.reasoning(&held, sink);
        }
    }

    fn end_reasoning(&mut self, sink: &mut impl Sink) {
        if let Some(rest) = self.reasoning_seam.end() {
            self.reasoning(rest, sink);
        }
    }

    fn end_content(&mut self, sink: &mut impl Sink) {
        if let Some(rest) = self.content_seam.end() {
            self.text(rest, sink);
        }
    }

    /// The call that has the floor is over: tells what remains of it. A call that never got a name cannot be told at all.
    fn end_call(&mut self, sink: &mut impl Sink) {
        let Some(at) = self.floor.take() else { return };
        let call = self.calls.get(at);
        call.is_closed = true;
        if !call.has_name() {
            return;
        }
        if !call.is_started {
            self.open_call(at, sink);
        }
        let call = self.calls.get(at);
        if let Some(rest) = call.end_of_pieces() {
            let told = call.arguments.feed(rest);
            self.blocks.input(told, sink);
        }
        let call = self.calls.get(at);
        let rest = call.arguments.end();
        self.called = if call.arguments.is_settled() { Called::Whole } else { Called::Cut };
        self.blocks.input(&rest, sink);
        self.blocks.close(sink);
    }

    fn end(&mut self, sink: &mut impl Sink) {
        self.end_split(sink);
        self.end_reasoning(sink);
        self.end_content(sink);
        while self.tell_next(sink) {}
        if self.stage == Stage::Over {
            return;
        }
        self.end_call(sink);
        self.blocks.close(sink);
        let ending = self.ledger.ending(self.called, &self.options);
        let (stop_reason, stop_sequence) = (ending.stop_reason, ending.stop_sequence.as_deref());
        sink.event(Event::MessageDelta { stop_reason, stop_sequence, usage: self.ledger.usage() });
        sink.event(Event::MessageStop);
        self.stop_reason = Some(stop_reason);
        self.stage = Stage::Over;
    }

    fn fail_finish(&mut self, sink: &mut impl Sink) {
        self.fail(ErrorKind::Api, "the backend aborted the reply", sink);
    }
}

/// The first event decides that no other backend is tried. A role alone is none; nor is a count of no tokens.
fn is_event(chunk: &Chunk<'_>) -> bool {
    !chunk.reasoning.is_empty()
        || !chunk.content.is_empty()
        || !chunk.tool_calls.is_empty()
        || !chunk.finish.is_empty()
        || chunk.usage.is_some_and(|usage| usage.completion_tokens > 0)
}
