//! The Messages state machine: chunks of a chat completion in, events of one message out.
//!
//! # The rules of the stream
//!
//! Whatever the backend sends, the client gets one of three sequences:
//!
//! 1. `message_start`, content blocks, `message_delta` with a stop reason, `message_stop`.
//! 2. The same up to some point, then an `error` event in place of the end.
//! 3. Nothing, when the failure came before the first event. The failure is only recorded, so that
//!    another backend can be tried or an HTTP status sent.
//!
//! Blocks come one after the other, with indices 0, 1, 2, … Each is a start, deltas of its own
//! kind, a stop. A thinking block ends with its signature. Nothing follows the end.
//!
//! # How a chat completion becomes that
//!
//! A stream begins with the first *event* (`Chunk::is_event`). Until then chunks are dropped, and
//! usage is kept.
//!
//! Inside a chunk the order is reasoning, content, tool calls, finish reason. Across chunks:
//!
//! - Reasoning and text are written as they come. A change of kind closes the open block.
//! - A tool call stays active until its JSON is complete. Whatever comes meanwhile, other calls
//!   included, is queued and written after it (see `sequencer`), so that interleaved calls come out
//!   one after the other and no byte is lost.
//! - White space that begins a text block is held back until something else follows. Before a tool
//!   call or the end it is dropped, because engines send it there; before more text it is written.
//! - Surrogate pairs split over two deltas are joined; lone halves become U+FFFD, because strict
//!   JSON readers refuse them.
//!
//! A finish reason ends nothing by itself, because usage may come after it. The message ends at
//! `[DONE]`, or at the end of a body that had a finish reason. `abort` and `error` are failures.
//!
//! # A thinking budget enforced by the gateway
//!
//! When more reasoning comes than `budget_tokens` allows, the thinking block is closed and the rest
//! of this response is ignored (`is_budget_spent`). After `begin_continuation` the stream reads a
//! second response, whose prompt held the reasoning so far, as more of the same message: reasoning
//! is dropped, usage is added up.

use std::sync::Arc;

use crate::chunk::{Chunk, ToolDelta};
use crate::failure::stream_failure;
use crate::options::Reasoning;
use crate::sequencer::{SequenceFault, Sequencer};
use crate::split::ThinkSplit;
use crate::stop_reason::Finish;
use crate::stop_tracker::{StopTracker, clean_stop};
use crate::text::{SurrogateJoiner, decode, escape};
use crate::usage_tracker::UsageTracker;

pub use crate::error::{ErrorKind, Fault};
pub use crate::options::Options;
pub use crate::outcome::Outcome;
pub use crate::sink::{Event, PING, Sink, SseSink};
pub use crate::stop_reason::StopReason;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MessageStage {
    Waiting,
    Streaming,
    Over,
}

#[derive(Debug)]
pub struct MessageStream {
    options: Arc<Options>,
    stage: MessageStage,
    has_started: bool,
    sequencer: Sequencer,
    usage: UsageTracker,
    stop: StopTracker,
    split: Option<ThinkSplit>,
    content_joiner: SurrogateJoiner,
    reasoning_joiner: SurrogateJoiner,
    reasoning_deltas: u64,
    /// A continuation is in progress: further reasoning is dropped.
    is_thinking_over: bool,
    /// More reasoning came than the budget allows: the rest of this response is ignored.
    is_budget_spent: bool,
    stop_reason: Option<StopReason>,
    fault: Option<Fault>,
}

impl MessageStream {
    pub fn new(options: impl Into<Arc<Options>>) -> Self {
        let options = options.into();
        Self {
            stage: MessageStage::Waiting,
            has_started: false,
            sequencer: Sequencer::new(Arc::clone(&options)),
            usage: UsageTracker::default(),
            stop: StopTracker::default(),
            split: options.split_think.then(ThinkSplit::default),
            content_joiner: SurrogateJoiner::default(),
            reasoning_joiner: SurrogateJoiner::default(),
            reasoning_deltas: 0,
            is_thinking_over: false,
            is_budget_spent: false,
            stop_reason: None,
            fault: None,
            options,
        }
    }

    // Input

    pub fn chunk(&mut self, chunk: &Chunk<'_>, sink: &mut impl Sink) {
        if self.stage == MessageStage::Over || self.is_budget_spent {
            return;
        }
        if let Some(error) = &chunk.error {
            let failure = stream_failure(error);
            return self.fail(failure.kind, &failure.message, sink);
        }
        if let Some(usage) = chunk.usage {
            self.usage.set_usage(usage);
        }
        if self.stage == MessageStage::Waiting {
            if !chunk.is_event() {
                return;
            }
            // An engine that gives up at once has produced nothing: another one may answer.
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
        if !chunk.finish.is_empty() && self.stage != MessageStage::Over {
            let matched = chunk.matched_stop.map(clean_stop);
            if self.stop.finish(chunk.finish, matched.as_deref()) == Finish::Failed {
                self.fail_finish(sink);
            }
        }
    }

    /// `[DONE]`.
    pub fn done(&mut self, sink: &mut impl Sink) {
        if self.stage == MessageStage::Over || self.is_budget_spent {
            return;
        }
        if !self.stop.has_finished() {
            let message = match self.stage {
                MessageStage::Waiting => "the backend sent an empty reply",
                MessageStage::Streaming | MessageStage::Over => {
                    "the backend ended the stream without finishing"
                }
            };
            return self.fail(ErrorKind::Api, message, sink);
        }
        self.end(sink);
    }

    pub fn end_of_body(&mut self, sink: &mut impl Sink) {
        self.done(sink);
    }

    /// Ends the message with an error; before the first event nothing is written, and the fault
    /// only recorded.
    pub fn fail(&mut self, kind: ErrorKind, message: &str, sink: &mut impl Sink) {
        if self.stage == MessageStage::Over {
            return;
        }
        if self.stage == MessageStage::Streaming {
            if self.options.close_block_on_error {
                self.sequencer.truncate(sink);
            }
            sink.event(Event::Error { kind, message });
        }
        self.stage = MessageStage::Over;
        self.fault = Some(Fault { kind, message: message.to_owned() });
    }

    // Results

    /// The first content, reasoning, tool call, finish reason or token count was seen: from here on
    /// no other backend is tried.
    pub fn has_started(&self) -> bool {
        self.has_started
    }

    pub fn is_over(&self) -> bool {
        self.stage == MessageStage::Over
    }

    pub fn outcome(&self) -> Outcome {
        Outcome {
            usage: self.usage.usage(),
            has_usage: self.usage.has_usage(),
            stop_reason: self.stop_reason,
            fault: self.fault.clone(),
        }
    }

    /// Deltas so far: tokens, nearly.
    pub fn deltas(&self) -> u64 {
        self.usage.deltas()
    }

    // The thinking budget

    /// More reasoning came than `budget_tokens` allows (a delta counts as a token): the thinking
    /// block is closed, and nothing more is written until the continuation begins.
    pub fn is_budget_spent(&self) -> bool {
        self.is_budget_spent
    }

    /// All reasoning so far, decoded.
    pub fn reasoning_text(&self) -> String {
        decode(self.sequencer.reasoning()).into_owned()
    }

    fn spend_budget(&mut self, sink: &mut impl Sink) {
        self.end_reasoning(sink);
        self.sequencer.close_thinking(sink);
        self.is_budget_spent = true;
    }

    /// What follows is a second response that continues the first: one message, with usage added
    /// up.
    pub fn begin_continuation(&mut self) {
        self.usage.begin_leg();
        self.stop = StopTracker::default();
        self.is_thinking_over = true;
        self.is_budget_spent = false;
        self.split = None;
    }

    // Deltas, one method per kind

    fn reasoning_delta(&mut self, fragment: &str, sink: &mut impl Sink) {
        self.usage.count_delta();
        // An engine that separates reasoning itself needs no splitting of its content.
        self.end_split(sink);
        let fragment = self.reasoning_joiner.push(fragment);
        self.reasoning(&fragment, sink);
    }

    fn content_delta(&mut self, fragment: &str, sink: &mut impl Sink) {
        self.usage.count_delta();
        self.end_reasoning(sink);
        let fragment = self.content_joiner.push(fragment);
        let Some(split) = &mut self.split else {
            return self.text(&fragment, sink);
        };
        let parts = split.feed(&fragment);
        if parts.is_over {
            self.split = None;
        }
        self.reasoning(&parts.reasoning, sink);
        if !self.is_budget_spent {
            self.text(&parts.text, sink);
        }
    }

    fn tool_delta(&mut self, delta: &ToolDelta<'_>, sink: &mut impl Sink) {
        if self.stage == MessageStage::Over {
            return;
        }
        self.usage.count_delta();
        self.end_split(sink);
        self.end_reasoning(sink);
        self.end_content(sink);
        if !self.options.discard_output && self.stage != MessageStage::Over {
            let result = self.sequencer.call(delta, sink);
            self.check(result, sink);
        }
    }

    // Content after joining and splitting

    fn reasoning(&mut self, text: &str, sink: &mut impl Sink) {
        if text.is_empty() || self.is_thinking_over || self.stage == MessageStage::Over {
            return;
        }
        if self.options.budget_tokens.is_some_and(|budget| self.reasoning_deltas >= budget) {
            return self.spend_budget(sink);
        }
        self.reasoning_deltas += 1;
        let result = match self.options.reasoning {
            Reasoning::Thinking if !self.options.discard_output => {
                self.sequencer.thinking(text, sink)
            }
            Reasoning::Thinking | Reasoning::Text | Reasoning::Drop => {
                self.sequencer.record_reasoning(text)
            }
        };
        self.check(result, sink);
        if self.options.reasoning == Reasoning::Text {
            self.text(text, sink);
        }
    }

    fn text(&mut self, text: &str, sink: &mut impl Sink) {
        if text.is_empty() || self.options.discard_output || self.stage == MessageStage::Over {
            return;
        }
        let result = self.sequencer.text(text, sink);
        self.check(result, sink);
    }

    fn check(&mut self, result: Result<(), SequenceFault>, sink: &mut impl Sink) {
        if let Err(fault) = result {
            self.fail(ErrorKind::Api, &fault.to_string(), sink);
        }
    }

    // Ends

    fn start(&mut self, sink: &mut impl Sink) {
        self.stage = MessageStage::Streaming;
        self.has_started = true;
        sink.event(Event::MessageStart {
            id: &escape(&self.options.message_id),
            model: &escape(&self.options.model),
        });
    }

    /// A tool call or separate reasoning came, so the content held no reasoning to split off.
    fn end_split(&mut self, sink: &mut impl Sink) {
        if let Some(mut split) = self.split.take() {
            let held = split.end();
            self.reasoning(&held, sink);
        }
    }

    fn end_reasoning(&mut self, sink: &mut impl Sink) {
        if let Some(rest) = self.reasoning_joiner.end() {
            self.reasoning(rest, sink);
        }
    }

    fn end_content(&mut self, sink: &mut impl Sink) {
        if let Some(rest) = self.content_joiner.end() {
            self.text(rest, sink);
        }
    }

    fn end(&mut self, sink: &mut impl Sink) {
        self.end_split(sink);
        self.end_reasoning(sink);
        self.end_content(sink);
        if self.stage == MessageStage::Over {
            return;
        }
        self.sequencer.end(sink);
        let ending =
            self.stop.ending(self.sequencer.tool_call_state(), self.usage.total(), &self.options);
        let (stop_reason, stop_sequence) = (ending.stop_reason, ending.stop_sequence.as_deref());
        sink.event(Event::MessageDelta { stop_reason, stop_sequence, usage: self.usage.usage() });
        sink.event(Event::MessageStop);
        self.stop_reason = Some(stop_reason);
        self.stage = MessageStage::Over;
    }

    fn fail_finish(&mut self, sink: &mut impl Sink) {
        self.fail(ErrorKind::Api, "the backend aborted the reply", sink);
    }
}

#[cfg(test)]
mod tests;
