//! A whole `chat.completion` → a whole message. It runs through the state machine of streams, so
//! that both ways give the same message.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::chunk::{Arguments, BackendError, Chunk, ToolDelta};
use crate::fold::Fold;
use crate::message::{ErrorKind, MessageStream, Options, Outcome};
use crate::outcome::Usage;
use crate::text::escape;

pub use crate::failure::{BackendFailure, backend_error};

#[derive(Deserialize)]
struct Completion<'a> {
    #[serde(borrow, default)]
    choices: Option<Vec<CompletionChoice<'a>>>,
    #[serde(borrow, default)]
    usage: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct CompletionChoice<'a> {
    #[serde(borrow)]
    message: Option<CompletionMessage<'a>>,
    #[serde(borrow, default)]
    finish_reason: Option<&'a RawValue>,
    #[serde(borrow, default)]
    stop_reason: Option<&'a RawValue>,
    #[serde(borrow, default)]
    matched_stop: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct CompletionMessage<'a> {
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
    #[serde(borrow, default)]
    reasoning: Option<&'a RawValue>,
    #[serde(borrow, default)]
    reasoning_content: Option<&'a RawValue>,
    #[serde(borrow, default)]
    tool_calls: Option<Vec<CompletionToolCall<'a>>>,
    #[serde(borrow, default)]
    function_call: Option<CompletionFunction<'a>>,
}

#[derive(Deserialize)]
struct CompletionToolCall<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    function: Option<CompletionFunction<'a>>,
}

#[derive(Deserialize)]
struct CompletionFunction<'a> {
    #[serde(borrow, default)]
    name: Option<&'a RawValue>,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
}

/// The message and its outcome; the message is empty after a fault.
pub fn translate(options: impl Into<Arc<Options>>, body: &[u8]) -> (Vec<u8>, Outcome) {
    let mut stream = MessageStream::new(options);
    let mut fold = Fold::default();
    match serde_json::from_slice::<Completion<'_>>(body) {
        Ok(completion)
            if completion.choices.as_ref().is_some_and(|choices| !choices.is_empty()) =>
        {
            feed_completion(&completion, &mut stream, &mut fold);
        }
        _ => feed_failure(body, &mut stream, &mut fold),
    }
    (fold.into_body(), stream.outcome())
}

fn feed_completion(completion: &Completion<'_>, stream: &mut MessageStream, fold: &mut Fold) {
    let Some(choice) = completion.choices.as_ref().and_then(|choices| choices.first()) else {
        return;
    };
    let message = choice.message.as_ref();
    let content = message.and_then(|message| message.content).map(content_text).unwrap_or_default();
    let reasoning =
        message.map(|message| [message.reasoning, message.reasoning_content]).unwrap_or_default();
    let chunk = Chunk {
        reasoning: reasoning.into_iter().map(string).find(|text| !text.is_empty()).unwrap_or(""),
        content: &content,
        tool_calls: message.map(calls).unwrap_or_default(),
        finish: string(choice.finish_reason),
        matched_stop: [choice.stop_reason, choice.matched_stop]
            .into_iter()
            .map(string)
            .find(|text| !text.is_empty()),
        usage: completion.usage.and_then(|raw| Usage::read(raw.get()).ok()).flatten(),
        error: None,
    };
    stream.chunk(&chunk, fold);
    stream.done(fold);
}

/// An error with status 200, or a body that is not a chat completion.
fn feed_failure(body: &[u8], stream: &mut MessageStream, fold: &mut Fold) {
    match BackendError::read(body) {
        Ok(error) if !error.message.is_empty() => stream.chunk(&error_chunk(error), fold),
        _ => stream.fail(ErrorKind::Api, "the backend's reply is not a chat completion", fold),
    }
}

fn error_chunk(error: BackendError) -> Chunk<'static> {
    Chunk { error: Some(error), ..Chunk::default() }
}

fn calls<'a>(message: &CompletionMessage<'a>) -> Vec<ToolDelta<'a>> {
    let calls = message.tool_calls.iter().flatten().map(|call| (call.id, call.function.as_ref()));
    let legacy = message.function_call.iter().map(|function| (None, Some(function)));
    let deltas = calls.chain(legacy).zip(0..).map(|((id, function), index)| ToolDelta {
        index: Some(index),
        id: string(id),
        name: string(function.and_then(|function| function.name)),
        arguments: function
            .and_then(|function| function.arguments)
            .map_or(Arguments::None, arguments),
    });
    deltas.collect()
}

fn arguments(raw: &RawValue) -> Arguments<'_> {
    match raw.get() {
        text if text.starts_with('"') => Arguments::Text(string(Some(raw))),
        object if object.starts_with('{') => Arguments::Object(object),
        _ => Arguments::None,
    }
}

/// The text of a JSON string, still escaped; empty for anything else.
fn string(raw: Option<&RawValue>) -> &str {
    raw.and_then(|raw| raw.get().strip_prefix('"')?.strip_suffix('"')).unwrap_or("")
}

/// Content is a string, or a list of parts.
fn content_text(raw: &RawValue) -> Cow<'_, str> {
    if !raw.get().starts_with('[') {
        return Cow::Borrowed(string(Some(raw)));
    }
    let parts: Vec<Value> = serde_json::from_str(raw.get()).unwrap_or_default();
    Cow::Owned(parts.iter().filter_map(|part| part.get("text")?.as_str()).map(escape).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::MessageUsage;
    use crate::stop_reason::StopReason;

    fn options() -> Options {
        Options::new("msg_1", "m")
    }

    fn translate_body(body: &str) -> (Value, Outcome) {
        let (message, outcome) = translate(options(), body.as_bytes());
        (serde_json::from_slice(&message).unwrap_or(Value::Null), outcome)
    }

    fn completion(message: &str, finish: &str) -> String {
        format!(
            r#"{{"object":"chat.completion","choices":[{{"index":0,"message":{message},"finish_reason":"{finish}"}}]}}"#
        )
    }

    #[test]
    fn a_whole_reply() {
        let body = r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"\n\nHi \ud83d\ude00","reasoning":"plan"},"finish_reason":"stop","stop_reason":"END"}],
            "usage":{"prompt_tokens":1000,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":900},"completion_tokens_details":{"reasoning_tokens":2}}}"#;
        let (message, outcome) = translate_body(body);
        assert_eq!(message["content"][0]["thinking"], "plan");
        assert_eq!(message["content"][0]["signature"], "cGxhbg");
        assert_eq!(message["content"][1]["text"], "\n\nHi 😀");
        assert_eq!(message["stop_sequence"], "END");
        assert_eq!(outcome.stop_reason, Some(StopReason::StopSequence));
        let usage = MessageUsage {
            input_tokens: 100,
            cache_read_tokens: 900,
            output_tokens: 5,
            thinking_tokens: Some(2),
        };
        assert_eq!((outcome.usage, outcome.has_usage), (usage, true));
    }

    #[test]
    fn c07_broken_arguments_are_no_failure() {
        for (finish, reason) in [("tool_calls", "tool_use"), ("length", "max_tokens")] {
            let message = r#"{"content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"F","arguments":"{\"command\": \"ls"}}]}"#;
            let (message, outcome) = translate_body(&completion(message, finish));
            assert_eq!(message["content"][0]["input"], serde_json::json!({}));
            assert_eq!(message["stop_reason"], reason);
            assert_eq!(outcome.fault, None);
        }
    }

    #[test]
    fn arguments_and_content_in_other_shapes() {
        for (message, content) in [
            (
                r#"{"tool_calls":[{"id":null,"function":{"name":"F","arguments":{"a": 1}}}]}"#,
                "[F {\"a\":1}]",
            ),
            (
                r#"{"tool_calls":[{"function":{"name":"F"}},{"function":{"name":"F","arguments":""}}]}"#,
                "[F {}][F {}]",
            ),
            (r#"{"function_call":{"name":"F","arguments":"{\"a\":1}"}}"#, "[F {\"a\":1}]"),
            (r#"{"content":[{"type":"text","text":"a\n"},{"type":"text","text":"b"}]}"#, "a\nb"),
            (r#"{"content":"","tool_calls":[]}"#, ""),
            (
                r#"{"content":"\n\n","tool_calls":[{"function":{"name":"F","arguments":"{}"}}]}"#,
                "[F {}]",
            ),
            (r#"{"content":null,"reasoning_content":"r"}"#, "(r)"),
        ] {
            let (message_json, outcome) = translate_body(&completion(message, "stop"));
            let blocks =
                message_json["content"].as_array().unwrap().iter().map(|block| match block["type"]
                    .as_str()
                    .unwrap()
                {
                    "text" => block["text"].as_str().unwrap().to_owned(),
                    "thinking" => format!("({})", block["thinking"].as_str().unwrap()),
                    _ => format!("[{} {}]", block["name"].as_str().unwrap(), block["input"]),
                });
            assert_eq!(blocks.collect::<String>(), content, "{message}");
            assert_eq!(outcome.fault, None);
        }
    }

    #[test]
    fn h17_what_is_no_completion_is_a_failure() {
        for (body, kind) in [
            ("", ErrorKind::Api),
            ("null", ErrorKind::Api),
            ("{}", ErrorKind::Api),
            (r#"{"choices":[]}"#, ErrorKind::Api),
            ("data: [DONE]", ErrorKind::Api),
            (r#"{"type":"message","content":[]}"#, ErrorKind::Api),
            (r#"{"choices":[{"message":{"content":"x"},"finish_reason":null}]}"#, ErrorKind::Api),
            (
                r#"{"choices":[{"message":{"content":"x"},"finish_reason":"abort"}]}"#,
                ErrorKind::Api,
            ),
            (
                r#"{"error":{"message":"The request queue is full.","code":503}}"#,
                ErrorKind::Overloaded,
            ),
            (r#"{"object":"error","message":"bad","code":400}"#, ErrorKind::InvalidRequest),
        ] {
            let (message, outcome) = translate(options(), body.as_bytes());
            assert!(message.is_empty(), "{body}");
            assert_eq!(outcome.fault.map(|fault| fault.kind), Some(kind), "{body}");
        }
    }

    #[test]
    fn usage_of_odd_types_is_no_usage() {
        for usage in ["null", "{}", "[]", "\"x\""] {
            let body = format!(
                r#"{{"choices":[{{"message":{{"content":"x"}},"finish_reason":"stop"}}],"usage":{usage}}}"#
            );
            let (_, outcome) = translate_body(&body);
            assert!(!outcome.has_usage && outcome.fault.is_none(), "{usage}");
        }
    }
}
