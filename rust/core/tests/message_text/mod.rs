//! What a client makes of a stream: the events, the invariant, and the message that they fold into.
#![allow(dead_code, reason = "each test binary uses its own part")]

use serde_json::{Value, json};

/// The events of a stream; panics where a client would lose one.
pub fn events(stream: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(stream).expect("the stream is UTF-8");
    let mut events = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (event, more) = rest.split_once("\n\n").expect("each event ends with an empty line");
        let (name, data) = event
            .strip_prefix("event: ")
            .and_then(|event| event.split_once("\ndata: "))
            .expect("a name and one line of data");
        let value: Value = serde_json::from_str(data).expect("the data is JSON");
        assert_eq!(value["type"], name);
        events.push(value);
        rest = more;
    }
    events
}

/// Checks the invariant of every stream and gives the message it folds into; None if it ended in an
/// error, or nothing at all.
pub fn check(stream: &[u8]) -> Option<Value> {
    let events = events(stream);
    let (first, rest) = events.split_first()?;
    assert_eq!(first["type"], "message_start");
    let mut message = first["message"].clone();
    assert_eq!(message["content"], json!([]));
    assert_eq!(message["stop_reason"], Value::Null);
    check_usage(&message["usage"]);
    let mut open: Option<Open> = None;
    let mut is_ended = false;
    for (at, event) in rest.iter().enumerate() {
        let is_last = at + 1 == rest.len();
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert!(open.is_none() && !is_ended, "one block at a time: {event}");
                assert_eq!(event["index"], blocks(&mut message).len());
                open = Some(Open::new(&event["content_block"]));
            }
            "content_block_delta" => {
                assert_eq!(event["index"], blocks(&mut message).len());
                open.as_mut().expect("a delta has its block").add(&event["delta"]);
            }
            "content_block_stop" => {
                assert_eq!(event["index"], blocks(&mut message).len());
                let block = open.take().expect("a stop has its block");
                blocks(&mut message).push(block.block);
                if let Some(json) = block.json {
                    let at = blocks(&mut message).len() - 1;
                    // Cut arguments are the client's to judge; whole ones are one object.
                    blocks(&mut message)[at]["input"] =
                        serde_json::from_str(&json).unwrap_or(Value::String(json));
                }
            }
            "message_delta" => {
                assert!(open.is_none() && !is_ended);
                assert!(event["delta"]["stop_reason"].is_string());
                check_usage(&event["usage"]);
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                message["stop_sequence"] = event["delta"]["stop_sequence"].clone();
                message["usage"] = event["usage"].clone();
                is_ended = true;
            }
            "message_stop" => {
                assert!(is_ended && is_last);
                return Some(message);
            }
            "error" => {
                assert!(is_last && !is_ended, "nothing follows an error");
                assert!(
                    event["error"]["type"].is_string()
                        && event["error"]["message"].as_str().is_some_and(|text| !text.is_empty())
                );
                return None;
            }
            other => panic!("no such event: {other}"),
        }
    }
    panic!("the stream has no end");
}

fn blocks(message: &mut Value) -> &mut Vec<Value> {
    message["content"].as_array_mut().unwrap()
}

fn check_usage(usage: &Value) {
    for (name, count) in usage.as_object().expect("usage is an object") {
        assert!(
            count.is_u64() || name == "output_tokens_details" && count["thinking_tokens"].is_u64(),
            "{name} is {count}"
        );
    }
    assert!(usage["input_tokens"].is_u64() && usage["output_tokens"].is_u64());
}

/// Joins deltas of input like a client: input as text that is no JSON stays a string.
struct Open {
    block: Value,
    json: Option<String>,
    is_signed: bool,
}

impl Open {
    fn new(block: &Value) -> Self {
        let empty = match block["type"].as_str().unwrap() {
            "text" => json!({"type": "text", "text": ""}),
            "thinking" => json!({"type": "thinking", "thinking": "", "signature": ""}),
            "tool_use" => {
                json!({"type": "tool_use", "id": block["id"], "name": block["name"], "input": {}})
            }
            other => panic!("no such block: {other}"),
        };
        assert_eq!(*block, empty, "a block starts empty");
        assert!(block["type"] != "tool_use" || block["id"] != "" && block["name"] != "");
        let json = (block["type"] == "tool_use").then(String::new);
        Self { block: block.clone(), json, is_signed: false }
    }

    fn add(&mut self, delta: &Value) {
        assert!(!self.is_signed, "the signature is the last delta");
        match (self.block["type"].as_str().unwrap(), delta["type"].as_str().unwrap()) {
            ("text", "text_delta") => append(&mut self.block["text"], &delta["text"]),
            ("thinking", "thinking_delta") => {
                append(&mut self.block["thinking"], &delta["thinking"])
            }
            ("thinking", "signature_delta") => {
                self.block["signature"] = delta["signature"].clone();
                self.is_signed = true;
            }
            ("tool_use", "input_json_delta") => {
                self.json.as_mut().unwrap().push_str(delta["partial_json"].as_str().unwrap())
            }
            (block, delta) => panic!("{delta} in a {block} block"),
        }
    }
}

fn append(text: &mut Value, more: &Value) {
    let more = more.as_str().unwrap();
    assert!(!more.is_empty(), "no empty deltas");
    *text = Value::String(format!("{}{more}", text.as_str().unwrap()));
}
