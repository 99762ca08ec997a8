//! The events of a Messages stream, and their serialisation as SSE.
//!
//! Text in events is escaped JSON string text, copied as it is. A sink decides nothing: `message`
//! is responsible for order and nesting.

use crate::error::{self, ErrorKind};
use crate::outcome::MessageUsage;
use crate::stop_reason::StopReason;

/// Keep-alive event; the caller decides when it is due.
pub const PING: &[u8] = b"event: ping\ndata: {\"type\":\"ping\"}\n\n";

/// Strings are escaped JSON text where not stated otherwise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Event<'a> {
    MessageStart {
        id: &'a str,
        model: &'a str,
    },
    TextStart {
        index: u32,
    },
    ThinkingStart {
        index: u32,
    },
    ToolStart {
        index: u32,
        id: &'a str,
        name: &'a str,
    },
    TextDelta {
        index: u32,
        text: &'a str,
    },
    ThinkingDelta {
        index: u32,
        text: &'a str,
    },
    SignatureDelta {
        index: u32,
        signature: &'a str,
    },
    InputDelta {
        index: u32,
        json: &'a str,
    },
    BlockStop {
        index: u32,
    },
    MessageDelta {
        stop_reason: StopReason,
        stop_sequence: Option<&'a str>,
        usage: MessageUsage,
    },
    MessageStop,
    /// `message` is plain text.
    Error {
        kind: ErrorKind,
        message: &'a str,
    },
}

pub trait Sink {
    fn event(&mut self, event: Event<'_>);
}

/// Appends each event as SSE bytes: `event: X`, `data: {...}` with `type` first, an empty line.
#[derive(Debug)]
pub struct SseSink<'a>(pub &'a mut Vec<u8>);

impl Sink for SseSink<'_> {
    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::MessageStart { id, model } => self.message_start(id, model),
            Event::TextStart { index } => {
                self.block_start(index, &[r#"{"type":"text","text":""}"#])
            }
            Event::ThinkingStart { index } => {
                self.block_start(index, &[r#"{"type":"thinking","thinking":"","signature":""}"#])
            }
            Event::ToolStart { index, id, name } => {
                self.block_start(
                    index,
                    &[
                        r#"{"type":"tool_use","id":""#,
                        id,
                        r#"","name":""#,
                        name,
                        r#"","input":{}}"#,
                    ],
                );
            }
            Event::TextDelta { index, text } => {
                self.delta(index, r#"{"type":"text_delta","text":""#, text)
            }
            Event::ThinkingDelta { index, text } => {
                self.delta(index, r#"{"type":"thinking_delta","thinking":""#, text)
            }
            Event::SignatureDelta { index, signature } => {
                self.delta(index, r#"{"type":"signature_delta","signature":""#, signature)
            }
            Event::InputDelta { index, json } => {
                self.delta(index, r#"{"type":"input_json_delta","partial_json":""#, json)
            }
            Event::BlockStop { index } => {
                self.put(
                    "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":",
                );
                self.number(u64::from(index));
                self.put("}\n\n");
            }
            Event::MessageDelta { stop_reason, stop_sequence, usage } => {
                self.message_delta(stop_reason, stop_sequence, usage)
            }
            Event::MessageStop => {
                self.put("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n")
            }
            Event::Error { kind, message } => error::write_messages_event(kind, message, self.0),
        }
    }
}

impl SseSink<'_> {
    fn put(&mut self, text: &str) {
        self.0.extend_from_slice(text.as_bytes());
    }

    fn number(&mut self, number: u64) {
        put_number(self.0, number);
    }

    fn message_start(&mut self, id: &str, model: &str) {
        self.put("event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"");
        self.put(id);
        self.put("\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"");
        self.put(model);
        self.put("\",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":");
        put_usage(self.0, MessageUsage::default());
        self.put("}}\n\n");
    }

    fn block_start(&mut self, index: u32, block: &[&str]) {
        self.put("event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":");
        self.number(u64::from(index));
        self.put(",\"content_block\":");
        for part in block {
            self.put(part);
        }
        self.put("}\n\n");
    }

    /// Hot path: one reservation and six copies per token.
    fn delta(&mut self, index: u32, head: &str, text: &str) {
        const START: &str =
            "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":";
        self.0.reserve(START.len() + head.len() + text.len() + 32);
        self.put(START);
        self.number(u64::from(index));
        self.put(",\"delta\":");
        self.put(head);
        self.put(text);
        self.put("\"}}\n\n");
    }

    fn message_delta(
        &mut self,
        stop_reason: StopReason,
        stop_sequence: Option<&str>,
        usage: MessageUsage,
    ) {
        self.put("event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{");
        put_stop(self.0, stop_reason, stop_sequence);
        self.put("},\"usage\":");
        put_usage(self.0, usage);
        self.put("}\n\n");
    }
}

/// Appends the members `stop_reason` and `stop_sequence`.
pub(crate) fn put_stop(out: &mut Vec<u8>, stop_reason: StopReason, stop_sequence: Option<&str>) {
    out.extend_from_slice(b"\"stop_reason\":\"");
    out.extend_from_slice(stop_reason.as_str().as_bytes());
    out.extend_from_slice(b"\",\"stop_sequence\":");
    match stop_sequence {
        Some(sequence) => {
            out.push(b'"');
            out.extend_from_slice(sequence.as_bytes());
            out.push(b'"');
        }
        None => out.extend_from_slice(b"null"),
    }
}

/// Appends the `usage` object. Every count is an integer, none is ever null.
pub(crate) fn put_usage(out: &mut Vec<u8>, usage: MessageUsage) {
    out.extend_from_slice(b"{\"input_tokens\":");
    put_number(out, usage.input_tokens);
    out.extend_from_slice(b",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":");
    put_number(out, usage.cache_read_tokens);
    out.extend_from_slice(b",\"output_tokens\":");
    put_number(out, usage.output_tokens);
    if let Some(thinking) = usage.thinking_tokens {
        out.extend_from_slice(b",\"output_tokens_details\":{\"thinking_tokens\":");
        put_number(out, thinking);
        out.push(b'}');
    }
    out.push(b'}');
}

fn put_number(out: &mut Vec<u8>, number: u64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut rest = number;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_all(events: &[Event<'_>]) -> String {
        let mut out = Vec::new();
        for event in events {
            SseSink(&mut out).event(*event);
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn assertion_02_every_event_has_its_name_and_ends_with_an_empty_line() {
        let usage = MessageUsage {
            input_tokens: 1,
            cache_read_tokens: 20,
            output_tokens: 300,
            thinking_tokens: Some(4),
        };
        let events = [
            Event::MessageStart { id: "msg_1", model: "m\\\"" },
            Event::TextStart { index: 0 },
            Event::ThinkingStart { index: 12 },
            Event::ToolStart { index: 4_294_967_295, id: "toolu_1", name: "F" },
            Event::TextDelta { index: 0, text: "a\\n" },
            Event::ThinkingDelta { index: 0, text: "b" },
            Event::SignatureDelta { index: 0, signature: "s.c" },
            Event::InputDelta { index: 0, json: "{\\\"a\\\":1}" },
            Event::BlockStop { index: 7 },
            Event::MessageDelta {
                stop_reason: StopReason::StopSequence,
                stop_sequence: Some("\\n\\n"),
                usage,
            },
            Event::MessageDelta {
                stop_reason: StopReason::EndTurn,
                stop_sequence: None,
                usage: MessageUsage::default(),
            },
            Event::MessageStop,
            Event::Error { kind: ErrorKind::Api, message: "bad \"quote\"\nline2" },
        ];
        for event in events {
            let text = write_all(&[event]);
            let (name, rest) = text.strip_prefix("event: ").unwrap().split_once('\n').unwrap();
            let data = rest.strip_prefix("data: ").unwrap().strip_suffix("\n\n").unwrap();
            assert!(!data.contains('\n'), "{text}");
            let json: serde_json::Value = serde_json::from_str(data).unwrap();
            assert_eq!(json["type"], name);
            assert!(data.starts_with("{\"type\":"), "{data}");
        }
    }

    #[test]
    fn b19_an_error_is_one_line_of_json() {
        assert_eq!(
            write_all(&[Event::Error { kind: ErrorKind::Api, message: "bad \"quote\"\nline2" }]),
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"bad \\\"quote\\\"\\nline2\"}}\n\n"
        );
    }

    #[test]
    fn usage_is_written_in_full() {
        let usage = MessageUsage {
            input_tokens: 100,
            cache_read_tokens: 900,
            output_tokens: u64::MAX,
            thinking_tokens: None,
        };
        let mut out = Vec::new();
        put_usage(&mut out, usage);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "{\"input_tokens\":100,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":900,\"output_tokens\":18446744073709551615}"
        );
    }

    #[test]
    fn a_ping_is_a_whole_event() {
        assert_eq!(PING, b"event: ping\ndata: {\"type\":\"ping\"}\n\n");
    }
}
