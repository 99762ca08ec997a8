//! The Messages state machine: chunks of a chat completion in, events of a message out.
//!
//! It keeps the invariant whatever comes in: one `message_start`; blocks one after the other; one `message_delta`; one `message_stop`, or
//! an `error` event in place of the end; nothing after it. A failure before the first event is only recorded, so that another backend
//! may be tried.
//!
//! Inside a chunk the order is reasoning, content, tool calls, finish reason; over chunks it is the `teller`'s. The end is told at `[DONE]`
//! or the end of the body, because usage comes after the finish reason.

use std::sync::Arc;

use crate::chunk::{Chunk, ToolDelta};
use crate::failure::stream_failure;
use crate::ledger::{Ledger, clean_stop};
use crate::options::Reasoning;
use crate::outcome::Finish;
use crate::split::ThinkSplit;
use crate::teller::{TellFault, Teller};
use crate::text::{Seam, decode, escape};

pub use crate::options::Options;
pub use crate::outcome::{ErrorKind, Fault, Outcome, StopReason};
pub use crate::sink::{Event, PING, Sink, SseSink};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waiting,
    Telling,
    Over,
}

#[derive(Debug)]
pub struct Machine {
    options: Arc<Options>,
    stage: Stage,
    has_started: bool,
    teller: Teller,
    ledger: Ledger,
    split: Option<ThinkSplit>,
    content_seam: Seam,
    reasoning_seam: Seam,
    reasoning_deltas: u64,
    /// The thinking was closed from outside; what reasoning still comes is dropped.
    is_thinking_over: bool,
    /// More reasoning came than the budget allows: this leg says no more.
    is_budget_spent: bool,
    stop_reason: Option<StopReason>,
    fault: Option<Fault>,
}

impl Machine {
    pub fn new(options: Options) -> Self {
        let options = Arc::new(options);
        Self {
            stage: Stage::Waiting,
            has_started: false,
            teller: Teller::new(Arc::clone(&options)),
            ledger: Ledger::default(),
            split: options.split_think.then(ThinkSplit::default),
            content_seam: Seam::default(),
            reasoning_seam: Seam::default(),
            reasoning_deltas: 0,
            is_thinking_over: false,
            is_budget_spent: false,
            stop_reason: None,
            fault: None,
            options,
        }
    }

    // What comes in

    pub fn chunk(&mut self, chunk: &Chunk<'_>, sink: &mut impl Sink) {
        if self.stage == Stage::Over || self.is_budget_spent {
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
        if self.is_budget_spent {
            return;
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
        if self.stage == Stage::Over || self.is_budget_spent {
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
                self.teller.break_off(sink);
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

    /// More reasoning came than `budget_tokens` allows (a delta counts as a token): the thinking is closed, and nothing more is told
    /// until the continuation begins.
    pub fn is_budget_spent(&self) -> bool {
        self.is_budget_spent
    }

    /// All reasoning so far, decoded.
    pub fn reasoning_text(&self) -> String {
        decode(self.teller.thought()).into_owned()
    }

    fn spend_budget(&mut self, sink: &mut impl Sink) {
        self.end_reasoning(sink);
        self.teller.close_thinking(sink);
        self.is_budget_spent = true;
    }

    /// What comes now is a second reply, which goes on where the first was stopped: one message, counted together.
    pub fn begin_continuation(&mut self) {
        self.ledger.next_leg();
        self.is_thinking_over = true;
        self.is_budget_spent = false;
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
        if !self.is_budget_spent {
            self.text(&parts.text, sink);
        }
    }

    fn tool_delta(&mut self, delta: &ToolDelta<'_>, sink: &mut impl Sink) {
        if self.stage == Stage::Over {
            return;
        }
        self.ledger.add_piece();
        self.end_split(sink);
        self.end_reasoning(sink);
        self.end_content(sink);
        if !self.options.discard_output && self.stage != Stage::Over {
            let told = self.teller.call(delta, sink);
            self.check(told, sink);
        }
    }

    // What they really are

    fn reasoning(&mut self, text: &str, sink: &mut impl Sink) {
        if text.is_empty() || self.is_thinking_over || self.stage == Stage::Over {
            return;
        }
        if self.options.budget_tokens.is_some_and(|budget| self.reasoning_deltas >= budget) {
            return self.spend_budget(sink);
        }
        self.reasoning_deltas += 1;
        let told = match self.options.reasoning {
            Reasoning::Thinking if !self.options.discard_output => self.teller.thinking(text, sink),
            Reasoning::Thinking | Reasoning::Text | Reasoning::Drop => self.teller.remember(text),
        };
        self.check(told, sink);
        if self.options.reasoning == Reasoning::Text {
            self.text(text, sink);
        }
    }

    fn text(&mut self, text: &str, sink: &mut impl Sink) {
        if text.is_empty() || self.options.discard_output || self.stage == Stage::Over {
            return;
        }
        let told = self.teller.text(text, sink);
        self.check(told, sink);
    }

    fn check(&mut self, told: Result<(), TellFault>, sink: &mut impl Sink) {
        if let Err(fault) = told {
            self.fail(ErrorKind::Api, &fault.to_string(), sink);
        }
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

    fn end(&mut self, sink: &mut impl Sink) {
        self.end_split(sink);
        self.end_reasoning(sink);
        self.end_content(sink);
        if self.stage == Stage::Over {
            return;
        }
        self.teller.end(sink);
        let ending = self.ledger.ending(self.teller.called(), &self.options);
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

#[cfg(test)]
mod tests;
