//! The order in which a message is told: who has the floor, what waits, and which white space is nothing but a gap.
//!
//! - A call has the floor until its JSON is complete. Whatever else comes meanwhile waits (at most [`WAITING_LIMIT_BYTES`]) and is told
//!   after it, in order, so that interleaved calls come out one after the other and no byte is lost.
//! - White space that could be nothing but the gap before a call waits too, and is dropped if a call or the end follows.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use thiserror::Error;

use crate::blocks::{Blocks, Open};
use crate::calls::Calls;
use crate::chunk::{Arguments, ToolDelta};
use crate::ledger::Called;
use crate::options::Options;
use crate::sink::Sink;
use crate::text::{escape, is_blank};

/// What one message may make us hold back behind incomplete calls, and the reasoning it may have.
pub const WAITING_LIMIT_BYTES: usize = 16 << 20;
/// White space past this is told as text.
const BLANK_LIMIT_BYTES: usize = 64 << 10;

#[derive(Debug, Error, PartialEq, Eq)]
pub enum TellFault {
    #[error("the backend sent too many tool calls")]
    Calls,
    #[error("the backend interleaves more output than can be held back")]
    Waiting,
    #[error("the backend sent too much reasoning")]
    Reasoning,
}

/// Told once the call that has the floor is complete; text is escaped.
#[derive(Debug)]
enum Later {
    Thinking(String),
    Text(String),
    Call(usize),
}

#[derive(Debug)]
pub struct Teller {
    options: Arc<Options>,
    blocks: Blocks,
    calls: Calls,
    floor: Option<usize>,
    called: Called,
    later: VecDeque<Later>,
    /// All that ever waited: a bound on what waits now.
    waited_bytes: usize,
    /// White space held back.
    blank: String,
}

impl Teller {
    pub fn new(options: Arc<Options>) -> Self {
        Self {
            blocks: Blocks::new(&options.signature_prefix, options.display_omitted),
            options,
            calls: Calls::default(),
            floor: None,
            called: Called::Nothing,
            later: VecDeque::new(),
            waited_bytes: 0,
            blank: String::new(),
        }
    }

    pub fn called(&self) -> Called {
        self.called
    }

    /// All reasoning that was told or remembered, escaped.
    pub fn thought(&self) -> &str {
        self.blocks.thought()
    }

    /// Keeps reasoning that gets no block.
    pub fn remember(&mut self, reasoning: &str) -> Result<(), TellFault> {
        self.check_thought(reasoning)?;
        self.blocks.remember(reasoning);
        Ok(())
    }

    /// Closes whatever block is open, as it is.
    pub fn break_off(&mut self, sink: &mut impl Sink) {
        self.blocks.close(sink);
    }

    pub fn close_thinking(&mut self, sink: &mut impl Sink) {
        if self.blocks.open() == Open::Thinking {
            self.blocks.close(sink);
        }
    }

    // One method per kind of delta

    pub fn thinking(&mut self, text: &str, sink: &mut impl Sink) -> Result<(), TellFault> {
        self.check_thought(text)?;
        if !self.has_to_wait() {
            self.tell_thinking(text, sink);
            return Ok(());
        }
        match self.later.back_mut() {
            Some(Later::Thinking(last)) => last.push_str(text),
            _ => self.later.push_back(Later::Thinking(text.to_owned())),
        }
        self.wait(text)
    }

    pub fn text(&mut self, text: &str, sink: &mut impl Sink) -> Result<(), TellFault> {
        if !self.has_to_wait() {
            self.tell_text(text, sink);
            return Ok(());
        }
        match self.later.back_mut() {
            Some(Later::Text(last)) => last.push_str(text),
            _ => self.later.push_back(Later::Text(text.to_owned())),
        }
        self.wait(text)
    }

    pub fn call(&mut self, delta: &ToolDelta<'_>, sink: &mut impl Sink) -> Result<(), TellFault> {
        let at = self.calls.place(delta).ok_or(TellFault::Calls)?;
        let call = self.calls.get(at);
        if call.is_closed || at > 0 && self.options.single_tool_call {
            return Ok(());
        }
        let piece = match delta.arguments {
            Arguments::None => Cow::Borrowed(""),
            Arguments::Text(text) => call.join(text),
            Arguments::Object(json) => Cow::Owned(escape(json)),
        };
        let told = call.arguments.feed(&piece);
        if self.takes_floor(at, sink) {
            self.tell_input(at, told, sink);
            while self.is_floor_settled() && self.tell_next(sink) {}
        } else {
            self.calls.get(at).waiting.push_str(told);
        }
        if self.calls.get(at).is_started { Ok(()) } else { self.wait(told) }
    }

    /// Nothing more comes: tells all that waits and closes the last block.
    pub fn end(&mut self, sink: &mut impl Sink) {
        while self.tell_next(sink) {}
        self.end_call(sink);
        self.blocks.close(sink);
    }

    // Who has the floor

    /// True while a call is incomplete: everything but its own pieces has to wait.
    fn has_to_wait(&self) -> bool {
        !self.later.is_empty() || self.floor.is_some_and(|at| !self.calls.is_complete(at))
    }

    /// `{}` may be a placeholder, so only a settled call makes way for another one.
    fn is_floor_settled(&mut self) -> bool {
        self.floor.is_none_or(|at| self.calls.get(at).arguments.is_settled())
    }

    /// Gives call `at` the floor if it is free; else the call gets in line.
    fn takes_floor(&mut self, at: usize, sink: &mut impl Sink) -> bool {
        if self.floor == Some(at) {
            return true;
        }
        let is_free = self.later.is_empty() && self.is_floor_settled();
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

    fn wait(&mut self, text: &str) -> Result<(), TellFault> {
        self.waited_bytes += text.len();
        if self.waited_bytes > WAITING_LIMIT_BYTES { Err(TellFault::Waiting) } else { Ok(()) }
    }

    fn check_thought(&self, more: &str) -> Result<(), TellFault> {
        let thought_bytes = self.blocks.thought().len() + more.len();
        if thought_bytes > WAITING_LIMIT_BYTES { Err(TellFault::Reasoning) } else { Ok(()) }
    }

    // What is told now

    fn tell_next(&mut self, sink: &mut impl Sink) -> bool {
        match self.later.pop_front() {
            None => return false,
            Some(Later::Thinking(text)) => self.tell_thinking(&text, sink),
            Some(Later::Text(text)) => self.tell_text(&text, sink),
            Some(Later::Call(at)) => {
                self.give_floor(at, sink);
                self.tell_input(at, "", sink);
            }
        }
        true
    }

    fn tell_thinking(&mut self, text: &str, sink: &mut impl Sink) {
        self.end_call(sink);
        self.blocks.thinking(text, sink);
    }

    fn tell_text(&mut self, text: &str, sink: &mut impl Sink) {
        if self.blocks.open() == Open::Text {
            return self.blocks.text(text, sink);
        }
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
    fn tell_input(&mut self, at: usize, piece: &str, sink: &mut impl Sink) {
        let call = self.calls.get(at);
        if call.is_started {
            return self.blocks.input(piece, sink);
        }
        call.waiting.push_str(piece);
        // A name may still grow until the arguments begin.
        if call.has_name() && call.arguments.has_begun() {
            self.open_call(at, sink);
        }
    }

    fn open_call(&mut self, at: usize, sink: &mut impl Sink) {
        let (id, name) = self.calls.introduce(at, &self.options);
        self.blocks.tool(&id, &name, sink);
        let waiting = std::mem::take(&mut self.calls.get(at).waiting);
        self.blocks.input(&waiting, sink);
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
        let (rest, is_whole) = self.calls.get(at).end();
        self.called = if is_whole { Called::Whole } else { Called::Cut };
        self.blocks.input(&rest, sink);
        self.blocks.close(sink);
    }
}
