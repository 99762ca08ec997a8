//! A sink that folds the events of a stream into one message: the body for `stream: false`.
//!
//! Memory is a small multiple of the bytes that the backend sent, which the caller limits.

use crate::arguments::input_object;
use crate::sink::{Event, Sink, put_stop, put_usage};

#[derive(Debug, Default)]
pub struct Fold {
    head: String,
    content: String,
    block: Block,
    body: Option<Vec<u8>>,
}

#[derive(Debug, Default)]
enum Block {
    #[default]
    None,
    Text(String),
    Thinking {
        text: String,
        signature: String,
    },
    Tool {
        id: String,
        name: String,
        json: String,
    },
}

impl Fold {
    /// The whole message; empty unless it came to its end.
    pub fn into_body(self) -> Vec<u8> {
        self.body.unwrap_or_default()
    }

    fn close_block(&mut self) {
        if !self.content.is_empty() {
            self.content.push(',');
        }
        match std::mem::take(&mut self.block) {
            Block::None => {}
            Block::Text(text) => self.put(&[r#"{"type":"text","text":""#, &text, r#""}"#]),
            Block::Thinking { text, signature } => {
                self.put(&[
                    r#"{"type":"thinking","thinking":""#,
                    &text,
                    r#"","signature":""#,
                    &signature,
                    r#""}"#,
                ]);
            }
            Block::Tool { id, name, json } => {
                self.put(&[
                    r#"{"type":"tool_use","id":""#,
                    &id,
                    r#"","name":""#,
                    &name,
                    r#"","input":"#,
                    &input_object(&json),
                    "}",
                ]);
            }
        }
    }

    fn put(&mut self, parts: &[&str]) {
        self.content.extend(parts.iter().copied());
    }
}

impl Sink for Fold {
    fn event(&mut self, event: Event<'_>) {
        match (event, &mut self.block) {
            (Event::MessageStart { id, model }, _) => {
                self.head = [
                    r#"{"id":""#,
                    id,
                    r#"","type":"message","role":"assistant","model":""#,
                    model,
                    r#"","content":["#,
                ]
                .concat();
            }
            (Event::TextStart { .. }, block) => *block = Block::Text(String::new()),
            (Event::ThinkingStart { .. }, block) => {
                *block = Block::Thinking { text: String::new(), signature: String::new() }
            }
            (Event::ToolStart { id, name, .. }, block) => {
                *block =
                    Block::Tool { id: id.to_owned(), name: name.to_owned(), json: String::new() };
            }
            (Event::TextDelta { text, .. }, Block::Text(so_far)) => so_far.push_str(text),
            (Event::ThinkingDelta { text, .. }, Block::Thinking { text: so_far, .. }) => {
                so_far.push_str(text)
            }
            (
                Event::SignatureDelta { signature, .. },
                Block::Thinking { signature: so_far, .. },
            ) => signature.clone_into(so_far),
            (Event::InputDelta { json, .. }, Block::Tool { json: so_far, .. }) => {
                so_far.push_str(json)
            }
            (Event::BlockStop { .. }, _) => self.close_block(),
            (Event::MessageDelta { stop_reason, stop_sequence, usage }, _) => {
                let mut body = std::mem::take(&mut self.head).into_bytes();
                body.extend_from_slice(self.content.as_bytes());
                body.extend_from_slice(b"],");
                put_stop(&mut body, stop_reason, stop_sequence);
                body.extend_from_slice(b",\"usage\":");
                put_usage(&mut body, usage);
                body.push(b'}');
                self.body = Some(body);
            }
            (Event::Error { .. }, _) => self.body = None,
            // The stream sends no delta that does not fit its block.
            (
                Event::MessageStop
                | Event::TextDelta { .. }
                | Event::ThinkingDelta { .. }
                | Event::SignatureDelta { .. }
                | Event::InputDelta { .. },
                _,
            ) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::outcome::MessageUsage;
    use crate::stop_reason::StopReason;

    const START: Event<'_> = Event::MessageStart { id: "msg_1", model: "m" };
    const END: Event<'_> = Event::MessageDelta {
        stop_reason: StopReason::EndTurn,
        stop_sequence: None,
        usage: MessageUsage {
            input_tokens: 1,
            cache_read_tokens: 2,
            output_tokens: 3,
            thinking_tokens: None,
        },
    };

    fn fold(events: &[Event<'_>]) -> Vec<u8> {
        let mut fold = Fold::default();
        events.iter().for_each(|event| fold.event(*event));
        fold.into_body()
    }

    #[test]
    fn blocks_in_their_order() {
        let body = fold(&[
            START,
            Event::ThinkingStart { index: 0 },
            Event::ThinkingDelta { index: 0, text: "pl" },
            Event::ThinkingDelta { index: 0, text: "an" },
            Event::SignatureDelta { index: 0, signature: "s" },
            Event::BlockStop { index: 0 },
            Event::TextStart { index: 1 },
            Event::TextDelta { index: 1, text: "a\\n" },
            Event::BlockStop { index: 1 },
            Event::ToolStart { index: 2, id: "toolu_1", name: "F" },
            Event::InputDelta { index: 2, json: "{\\\"a\\\":" },
            Event::InputDelta { index: 2, json: "1}" },
            Event::BlockStop { index: 2 },
            END,
            Event::MessageStop,
        ]);
        let message: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            message,
            serde_json::json!({
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "model": "m",
                "content": [
                    {"type": "thinking", "thinking": "plan", "signature": "s"},
                    {"type": "text", "text": "a\n"},
                    {"type": "tool_use", "id": "toolu_1", "name": "F", "input": {"a": 1}},
                ],
                "stop_reason": "end_turn",
                "stop_sequence": null,
                "usage": {
                    "input_tokens": 1,
                    "cache_creation_input_tokens": 0,
                    "cache_read_input_tokens": 2,
                    "output_tokens": 3,
                },
            })
        );
    }

    #[test]
    fn no_body_without_an_end() {
        let error = Event::Error { kind: ErrorKind::Api, message: "broken" };
        assert!(fold(&[]).is_empty());
        assert!(fold(&[START, Event::TextStart { index: 0 }]).is_empty());
        assert!(fold(&[START, error]).is_empty());
    }
}
