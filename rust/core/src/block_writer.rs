//! Content blocks, one after the other: start, deltas of its own kind, stop; indices 0, 1, 2, ...
//!
//! The events that come out are well nested in any order of calls. What is written, and when, is
//! decided in `sequencer`.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::sink::{Event, Sink};
use crate::text::{decode, escape_into};

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Open {
    #[default]
    Nothing,
    Text,
    Thinking,
    Tool,
}

#[derive(Debug, Default)]
pub struct BlockWriter {
    open: Open,
    /// Of the open block, or else of the next one.
    index: u32,
    signature_prefix: String,
    hides_thinking: bool,
    /// All reasoning so far, escaped; the open thinking block's own part begins at
    /// `block_reasoning_at`.
    reasoning: String,
    block_reasoning_at: usize,
}

impl BlockWriter {
    pub fn new(signature_prefix: &str, hides_thinking: bool) -> Self {
        let mut prefix = String::new();
        escape_into(signature_prefix, &mut prefix);
        Self { signature_prefix: prefix, hides_thinking, ..Self::default() }
    }

    pub fn open(&self) -> Open {
        self.open
    }

    /// All reasoning so far, escaped.
    pub fn reasoning(&self) -> &str {
        &self.reasoning
    }

    /// Keeps reasoning that gets no block.
    pub fn record_reasoning(&mut self, reasoning: &str) {
        self.reasoning.push_str(reasoning);
    }

    pub fn text(&mut self, text: &str, sink: &mut impl Sink) {
        if self.open != Open::Text {
            self.close(sink);
            self.open = Open::Text;
            sink.event(Event::TextStart { index: self.index });
        }
        sink.event(Event::TextDelta { index: self.index, text });
    }

    pub fn thinking(&mut self, text: &str, sink: &mut impl Sink) {
        if self.open != Open::Thinking {
            self.close(sink);
            self.open = Open::Thinking;
            self.block_reasoning_at = self.reasoning.len();
            sink.event(Event::ThinkingStart { index: self.index });
        }
        self.reasoning.push_str(text);
        if !self.hides_thinking {
            sink.event(Event::ThinkingDelta { index: self.index, text });
        }
    }

    pub fn tool(&mut self, id: &str, name: &str, sink: &mut impl Sink) {
        self.close(sink);
        self.open = Open::Tool;
        sink.event(Event::ToolStart { index: self.index, id, name });
    }

    /// A fragment of the open call's arguments.
    pub fn input(&mut self, json: &str, sink: &mut impl Sink) {
        if self.open == Open::Tool && !json.is_empty() {
            sink.event(Event::InputDelta { index: self.index, json });
        }
    }

    pub fn close(&mut self, sink: &mut impl Sink) {
        match self.open {
            Open::Nothing => return,
            Open::Thinking => sink
                .event(Event::SignatureDelta { index: self.index, signature: &self.signature() }),
            Open::Text | Open::Tool => {}
        }
        sink.event(Event::BlockStop { index: self.index });
        self.index += 1;
        self.open = Open::Nothing;
    }

    /// The reasoning itself, encoded: a client that sends the block back restores it, so the
    /// gateway stores nothing.
    fn signature(&self) -> String {
        let mut signature = self.signature_prefix.clone();
        URL_SAFE_NO_PAD.encode_string(
            decode(&self.reasoning[self.block_reasoning_at..]).as_bytes(),
            &mut signature,
        );
        signature
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::SseSink;

    fn lines(act: impl FnOnce(&mut BlockWriter, &mut SseSink<'_>)) -> Vec<String> {
        let mut out = Vec::new();
        act(&mut BlockWriter::new("ferrule1.", false), &mut SseSink(&mut out));
        let text = String::from_utf8(out).unwrap();
        text.lines().filter_map(|line| line.strip_prefix("data: ")).map(str::to_owned).collect()
    }

    #[test]
    fn e13_the_signature_is_the_last_delta_and_holds_the_reasoning_of_its_block() {
        let lines = lines(|blocks, sink| {
            blocks.thinking("plan\\n", sink);
            blocks.thinking("北", sink);
            blocks.text("t", sink);
            blocks.thinking("more", sink);
            blocks.close(sink);
        });
        let signature = |text: &str| format!("ferrule1.{}", URL_SAFE_NO_PAD.encode(text));
        assert!(lines[3].contains(&signature("plan\n北")), "{}", lines[3]);
        assert!(lines[4].contains("content_block_stop"), "{}", lines[4]);
        assert!(lines[10].contains(&signature("more")), "{}", lines[10]);
    }

    #[test]
    fn input_without_an_open_call_is_not_written() {
        assert!(lines(|blocks, sink| blocks.input("{}", sink)).is_empty());
    }

    #[test]
    fn closing_without_an_open_block_writes_nothing() {
        assert!(lines(|blocks, sink| blocks.close(sink)).is_empty());
    }
}
