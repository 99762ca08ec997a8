//! Serialises interleaved blocks; drops white space before tool calls and at the end.
//!
//! - A call stays active until its JSON is complete. Whatever else comes meanwhile is queued (at
//!   most [`WAITING_LIMIT_BYTES`]) and written after it, in order, so that interleaved calls come
//!   out one after the other and no byte is lost.
//! - White space that would begin a text block is held back: dropped if a call or the end follows,
//!   written if text does.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use thiserror::Error;

use crate::block_writer::{BlockWriter, Open};
use crate::calls::Calls;
use crate::chunk::{Arguments, ToolDelta};
use crate::options::Options;
use crate::sink::Sink;
use crate::stop_tracker::ToolCallState;
use crate::text::{escape, is_blank};

/// Limit per message, for what is queued behind incomplete calls and for all of its reasoning.
pub const WAITING_LIMIT_BYTES: usize = 16 << 20;
/// White space past this is written as text.
const BLANK_LIMIT_BYTES: usize = 64 << 10;

#[derive(Debug, Error, PartialEq, Eq)]
pub enum SequenceFault {
    #[error("the backend sent too many tool calls")]
    Calls,
    #[error("the backend interleaves more output than can be held back")]
    Waiting,
    #[error("the backend sent too much reasoning")]
    Reasoning,
}

/// Written once the active call is complete; text is escaped.
#[derive(Debug)]
enum Queued {
    Thinking(String),
    Text(String),
    ToolCall(usize),
}

#[derive(Debug)]
pub struct Sequencer {
    options: Arc<Options>,
    writer: BlockWriter,
    calls: Calls,
    active_call: Option<usize>,
    tool_calls: ToolCallState,
    queued: VecDeque<Queued>,
    /// Bytes ever queued: an upper bound of what is queued now.
    waited_bytes: usize,
    /// White space held back.
    blank: String,
}

impl Sequencer {
    pub fn new(options: Arc<Options>) -> Self {
        Self {
            writer: BlockWriter::new(&options.signature_prefix, options.display_omitted),
            options,
            calls: Calls::default(),
            active_call: None,
            tool_calls: ToolCallState::None,
            queued: VecDeque::new(),
            waited_bytes: 0,
            blank: String::new(),
        }
    }

    pub fn tool_call_state(&self) -> ToolCallState {
        self.tool_calls
    }

    /// All reasoning that was written or recorded, escaped.
    pub fn reasoning(&self) -> &str {
        self.writer.reasoning()
    }

    /// Keeps reasoning that gets no block.
    pub fn record_reasoning(&mut self, reasoning: &str) -> Result<(), SequenceFault> {
        self.check_reasoning(reasoning)?;
        self.writer.record_reasoning(reasoning);
        Ok(())
    }

    /// Closes whatever block is open, as it is.
    pub fn truncate(&mut self, sink: &mut impl Sink) {
        self.writer.close(sink);
    }

    pub fn close_thinking(&mut self, sink: &mut impl Sink) {
        if self.writer.open() == Open::Thinking {
            self.writer.close(sink);
        }
    }

    // One method per kind of delta

    pub fn thinking(&mut self, text: &str, sink: &mut impl Sink) -> Result<(), SequenceFault> {
        self.check_reasoning(text)?;
        if !self.has_to_wait() {
            self.write_thinking(text, sink);
            return Ok(());
        }
        match self.queued.back_mut() {
            Some(Queued::Thinking(last)) => last.push_str(text),
            _ => self.queued.push_back(Queued::Thinking(text.to_owned())),
        }
        self.wait(text)
    }

    pub fn text(&mut self, text: &str, sink: &mut impl Sink) -> Result<(), SequenceFault> {
        if !self.has_to_wait() {
            self.write_text(text, sink);
            return Ok(());
        }
        match self.queued.back_mut() {
            Some(Queued::Text(last)) => last.push_str(text),
            _ => self.queued.push_back(Queued::Text(text.to_owned())),
        }
        self.wait(text)
    }

    pub fn call(
        &mut self,
        delta: &ToolDelta<'_>,
        sink: &mut impl Sink,
    ) -> Result<(), SequenceFault> {
        let at = self.calls.place(delta).ok_or(SequenceFault::Calls)?;
        let call = self.calls.get(at);
        if call.is_closed || at > 0 && self.options.single_tool_call {
            return Ok(());
        }
        let fragment = match delta.arguments {
            Arguments::None => Cow::Borrowed(""),
            Arguments::Text(text) => call.join(text),
            Arguments::Object(json) => Cow::Owned(escape(json)),
        };
        let input = call.arguments.feed(&fragment);
        if self.try_activate(at, sink) {
            self.write_input(at, input, sink);
            while self.is_active_call_settled() && self.write_next(sink) {}
        } else {
            self.calls.get(at).waiting.push_str(input);
        }
        if self.calls.get(at).is_started { Ok(()) } else { self.wait(input) }
    }

    /// End of input: writes all that is queued and closes the last block.
    pub fn end(&mut self, sink: &mut impl Sink) {
        while self.write_next(sink) {}
        self.end_call(sink);
        self.writer.close(sink);
    }

    // The active call

    /// True while a call is incomplete: everything but its own arguments has to wait.
    fn has_to_wait(&self) -> bool {
        !self.queued.is_empty() || self.active_call.is_some_and(|at| !self.calls.is_complete(at))
    }

    /// `{}` may be a placeholder, so only a settled call makes way for another one.
    fn is_active_call_settled(&mut self) -> bool {
        self.active_call.is_none_or(|at| self.calls.get(at).arguments.is_settled())
    }

    /// Makes call `at` the active one if there is none; else queues it.
    fn try_activate(&mut self, at: usize, sink: &mut impl Sink) -> bool {
        if self.active_call == Some(at) {
            return true;
        }
        let is_free = self.queued.is_empty() && self.is_active_call_settled();
        if is_free {
            self.activate(at, sink);
        } else if !self
            .queued
            .iter()
            .any(|queued| matches!(queued, Queued::ToolCall(waiting) if *waiting == at))
        {
            self.queued.push_back(Queued::ToolCall(at));
        }
        is_free
    }

    fn activate(&mut self, at: usize, sink: &mut impl Sink) {
        self.end_call(sink);
        self.writer.close(sink);
        self.blank.clear();
        self.active_call = Some(at);
    }

    fn wait(&mut self, text: &str) -> Result<(), SequenceFault> {
        self.waited_bytes += text.len();
        if self.waited_bytes > WAITING_LIMIT_BYTES { Err(SequenceFault::Waiting) } else { Ok(()) }
    }

    fn check_reasoning(&self, more: &str) -> Result<(), SequenceFault> {
        let reasoning_bytes = self.writer.reasoning().len() + more.len();
        if reasoning_bytes > WAITING_LIMIT_BYTES { Err(SequenceFault::Reasoning) } else { Ok(()) }
    }

    // Writing

    fn write_next(&mut self, sink: &mut impl Sink) -> bool {
        match self.queued.pop_front() {
            None => return false,
            Some(Queued::Thinking(text)) => self.write_thinking(&text, sink),
            Some(Queued::Text(text)) => self.write_text(&text, sink),
            Some(Queued::ToolCall(at)) => {
                self.activate(at, sink);
                self.write_input(at, "", sink);
            }
        }
        true
    }

    fn write_thinking(&mut self, text: &str, sink: &mut impl Sink) {
        self.end_call(sink);
        self.writer.thinking(text, sink);
    }

    fn write_text(&mut self, text: &str, sink: &mut impl Sink) {
        if self.writer.open() == Open::Text {
            return self.writer.text(text, sink);
        }
        if is_blank(text) && self.blank.len() + text.len() <= BLANK_LIMIT_BYTES {
            return self.blank.push_str(text);
        }
        self.end_call(sink);
        if self.blank.is_empty() {
            return self.writer.text(text, sink);
        }
        let mut whole = std::mem::take(&mut self.blank);
        whole.push_str(text);
        self.writer.text(&whole, sink);
    }

    /// Writes a fragment of the active call, once it has a name; the first one follows what was
    /// held back before it.
    fn write_input(&mut self, at: usize, fragment: &str, sink: &mut impl Sink) {
        let call = self.calls.get(at);
        if call.is_started {
            return self.writer.input(fragment, sink);
        }
        call.waiting.push_str(fragment);
        // A name may still grow until the arguments begin.
        if call.has_name() && call.arguments.has_begun() {
            self.open_call(at, sink);
        }
    }

    fn open_call(&mut self, at: usize, sink: &mut impl Sink) {
        let (id, name) = self.calls.introduce(at, &self.options);
        self.writer.tool(&id, &name, sink);
        let waiting = std::mem::take(&mut self.calls.get(at).waiting);
        self.writer.input(&waiting, sink);
    }

    /// Ends the active call: writes what remains of it. A call that never got a name is dropped,
    /// because a block needs one.
    fn end_call(&mut self, sink: &mut impl Sink) {
        let Some(at) = self.active_call.take() else { return };
        let call = self.calls.get(at);
        call.is_closed = true;
        if !call.has_name() {
            return;
        }
        if !call.is_started {
            self.open_call(at, sink);
        }
        let (rest, is_whole) = self.calls.get(at).end();
        self.tool_calls = if is_whole { ToolCallState::Complete } else { ToolCallState::Truncated };
        self.writer.input(&rest, sink);
        self.writer.close(sink);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Logs blocks and their text, in the order of the events.
    #[derive(Default)]
    struct BlockLog(String);

    impl Sink for BlockLog {
        fn event(&mut self, event: crate::sink::Event<'_>) {
            use crate::sink::Event;
            match event {
                Event::TextStart { .. } => self.0.push_str("[text "),
                Event::ThinkingStart { .. } => self.0.push_str("[thinking "),
                Event::ToolStart { name, .. } => self.0.extend(["[", name, " "]),
                Event::TextDelta { text, .. } | Event::ThinkingDelta { text, .. } => {
                    self.0.push_str(text)
                }
                Event::InputDelta { json, .. } => self.0.push_str(json),
                Event::BlockStop { .. } => self.0.push(']'),
                Event::SignatureDelta { .. } => {}
                Event::MessageStart { .. }
                | Event::MessageDelta { .. }
                | Event::MessageStop
                | Event::Error { .. } => self.0.push_str("not a block"),
            }
        }
    }

    enum Delta {
        Text(&'static str),
        Thinking(&'static str),
        /// Index, name, arguments.
        Tool(u32, &'static str, &'static str),
    }
    use Delta::{Text, Thinking, Tool};

    fn sequence(deltas: &[Delta], options: Options) -> (String, ToolCallState) {
        let mut sequencer = Sequencer::new(Arc::new(options));
        let mut blocks = BlockLog::default();
        for delta in deltas {
            match *delta {
                Text(text) => sequencer.text(text, &mut blocks),
                Thinking(text) => sequencer.thinking(text, &mut blocks),
                Tool(index, name, arguments) => {
                    let arguments = Arguments::Text(arguments);
                    let delta = ToolDelta { index: Some(index), name, arguments, id: "" };
                    sequencer.call(&delta, &mut blocks)
                }
            }
            .unwrap();
        }
        sequencer.end(&mut blocks);
        (blocks.0, sequencer.tool_call_state())
    }

    fn blocks(deltas: &[Delta]) -> String {
        sequence(deltas, Options::new("msg_1", "m")).0
    }

    #[test]
    fn interleaved_calls_come_one_after_the_other() {
        let deltas = [
            Tool(0, "F", "{1"),
            Tool(1, "G", "{2"),
            Text("t"),
            Tool(0, "", "}"),
            Thinking("r"),
            Tool(1, "", "}"),
        ];
        assert_eq!(blocks(&deltas), "[F {1}][G {2}][text t][thinking r]");
    }

    #[test]
    fn a_placeholder_makes_no_way_for_another_call() {
        let deltas = [Tool(0, "F", "{}"), Tool(1, "G", "{}"), Tool(0, "", "{3}")];
        assert_eq!(blocks(&deltas), "[F {3}][G {}]");
    }

    #[test]
    fn white_space_before_a_call_and_at_the_end_is_dropped() {
        for (deltas, expected) in [
            (&[Text(" "), Tool(0, "F", "{1}"), Text(" ")][..], "[F {1}]"),
            (&[Thinking("r"), Text(" "), Text("t")], "[thinking r][text  t]"),
            (&[Text(" "), Thinking("r"), Text("t")], "[thinking r][text  t]"),
            (&[Text("t"), Text(" ")], "[text t ]"),
            (&[Text(" ")], ""),
        ] {
            assert_eq!(blocks(deltas), expected);
        }
    }

    #[test]
    fn a_later_call_is_dropped_where_only_one_is_wanted() {
        let options = Options { single_tool_call: true, ..Options::new("msg_1", "m") };
        let deltas = [Tool(0, "F", "{1}"), Tool(1, "G", "{2}"), Text("t")];
        assert_eq!(sequence(&deltas, options).0, "[F {1}][text t]");
    }

    #[test]
    fn the_state_of_the_last_call() {
        for (deltas, state) in [
            (&[Text("t")][..], ToolCallState::None),
            (&[Tool(0, "F", "{1}")], ToolCallState::Complete),
            (&[Tool(0, "F", "{1}"), Tool(1, "G", "{2")], ToolCallState::Truncated),
        ] {
            assert_eq!(sequence(deltas, Options::new("msg_1", "m")).1, state);
        }
    }
}
