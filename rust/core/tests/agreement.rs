//! Properties over random replies: one message both ways, the invariant whatever comes, nothing
//! lost, no panic.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may")]

mod message_text;

use ferrule_core::message::{ErrorKind, MessageStream, Options};
use ferrule_core::options::Reasoning;
use ferrule_core::reply;
use ferrule_core::sink::SseSink;
use ferrule_core::translator::{Translator, fold};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

fn options() -> Options {
    Options::new("msg_0123456789abcdef0123456789abcdef", "m")
}

fn frame(delta: &Value, finish: Option<&str>) -> String {
    let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
    format!(
        "data: {}\n\n",
        json!({"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]})
    )
}

fn translate(options: &Options, reads: &[&[u8]]) -> Vec<u8> {
    let mut translator = Translator::new(options.clone());
    let mut out = Vec::new();
    for read in reads {
        translator.feed(read, &mut out);
    }
    translator.finish(&mut out);
    out
}

/// Fragments of text with the hard cases: white space, escapes, characters of many bytes, tags.
fn fragments() -> impl Strategy<Value = Vec<String>> {
    let fragment = prop_oneof![
        "[ \\n\\t]{1,3}",
        "[a-z ]{1,6}",
        Just("\"\\\n".to_owned()),
        Just("北🌍é\u{2028}".to_owned()),
        Just("</think>".to_owned()),
        Just("{\"a\"}".to_owned()),
    ];
    vec(fragment, 0..6)
}

#[derive(Debug, Clone)]
struct ToolCall {
    name: String,
    input: Value,
    fragment_bytes: usize,
}

fn calls() -> impl Strategy<Value = Vec<ToolCall>> {
    let text = "[a-z{}\\[\\]\"\\\\ 北]{0,6}";
    let value = prop_oneof![
        text.prop_map(Value::String),
        any::<i32>().prop_map(Value::from),
        Just(json!({"x": [1, {"y": null}]})),
        Just(json!({})),
        Just(json!([])),
    ];
    let input = proptest::collection::btree_map("[a-c]{1,2}", value, 0..3)
        .prop_map(|members| json!(members));
    let call = ("[a-z_]{1,8}", input, 1usize..9)
        .prop_map(|(name, input, fragment_bytes)| ToolCall { name, input, fragment_bytes });
    vec(call, 0..4)
}

impl ToolCall {
    fn id(at: usize) -> String {
        format!("chatcmpl-tool-{at:016x}")
    }

    fn argument_fragments(&self) -> Vec<String> {
        let text: Vec<char> = self.input.to_string().chars().collect();
        text.chunks(self.fragment_bytes).map(|fragment| fragment.iter().collect()).collect()
    }

    fn start(&self, at: usize) -> Value {
        json!({"tool_calls": [{"index": at, "id": Self::id(at), "type": "function", "function": {"name": self.name}}]})
    }
}

fn argument_delta(at: usize, fragment: &str) -> Value {
    json!({"tool_calls": [{"index": at, "function": {"arguments": fragment}}]})
}

#[derive(Debug, Clone)]
struct Completion {
    reasoning: Vec<String>,
    content: Vec<String>,
    calls: Vec<ToolCall>,
    finish: &'static str,
}

fn replies() -> impl Strategy<Value = Completion> {
    let finish = prop::sample::select(vec!["stop", "tool_calls", "length"]);
    (fragments(), fragments(), calls(), finish).prop_map(|(reasoning, content, calls, finish)| {
        Completion { reasoning, content, calls, finish }
    })
}

impl Completion {
    fn stream(&self) -> String {
        let mut deltas = vec![json!({"role": "assistant", "content": ""})];
        deltas.extend(self.reasoning.iter().map(|fragment| json!({"reasoning": fragment})));
        deltas.extend(self.content.iter().map(|fragment| json!({"content": fragment})));
        for (at, call) in self.calls.iter().enumerate() {
            deltas.push(call.start(at));
            deltas.extend(
                call.argument_fragments().iter().map(|fragment| argument_delta(at, fragment)),
            );
        }
        let mut stream: String = deltas.iter().map(|delta| frame(delta, None)).collect();
        stream.push_str(&frame(&json!({}), Some(self.finish)));
        stream.push_str(&format!(
            "data: {}\n\ndata: [DONE]\n\n",
            json!({"choices": [], "usage": Self::usage()})
        ));
        stream
    }

    fn usage() -> Value {
        json!({"prompt_tokens": 20, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 16}})
    }

    fn whole(&self) -> String {
        let calls = self.calls.iter().enumerate().map(|(at, call)| {
            json!({"id": ToolCall::id(at), "type": "function", "function": {"name": call.name, "arguments": call.input.to_string()}})
        });
        let message = json!({
            "role": "assistant",
            "content": self.content.concat(),
            "reasoning": self.reasoning.concat(),
            "tool_calls": calls.collect::<Vec<_>>(),
        });
        json!({"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": self.finish}], "usage": Self::usage()}).to_string()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a03_fold_of_the_stream_is_the_whole_reply(reply in replies(), mode in 0..3, split_think: bool, cuts in vec(any::<prop::sample::Index>(), 0..4)) {
        let reasoning = [Reasoning::Thinking, Reasoning::Text, Reasoning::Drop][mode as usize];
        let options = Options { reasoning, split_think, ..options() };
        let stream = reply.stream();
        let (aggregated, outcome) = fold(options.clone(), stream.as_bytes());
        let (whole, whole_outcome) = reply::translate(options.clone(), reply.whole().as_bytes());
        let text = |body: &[u8]| serde_json::from_slice::<Value>(body).unwrap();
        prop_assert_eq!(text(&aggregated), text(&whole));
        prop_assert_eq!(outcome, whole_outcome);

        let output = translate(&options, &[stream.as_bytes()]);
        prop_assert_eq!(message_text::check(&output).unwrap(), text(&aggregated));
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        at.extend([0, stream.len()]);
        at.sort_unstable();
        let cut: Vec<&[u8]> = at.windows(2).map(|pair| &stream.as_bytes()[pair[0]..pair[1]]).collect();
        prop_assert_eq!(translate(&options, &cut), output);
    }

    #[test]
    fn assertion_37_nothing_is_lost_however_deltas_interleave(reply in replies(), order in vec(any::<prop::sample::Index>(), 120)) {
        // Each source keeps its own order; which one speaks next is random.
        let mut sources: Vec<Vec<Value>> = vec![
            reply.reasoning.iter().map(|fragment| json!({"reasoning": fragment})).collect(),
            reply.content.iter().map(|fragment| json!({"content": fragment})).collect(),
        ];
        for (at, call) in reply.calls.iter().enumerate() {
            let mut deltas = vec![call.start(at)];
            deltas.extend(call.argument_fragments().iter().map(|fragment| argument_delta(at, fragment)));
            sources.push(deltas);
        }
        let mut stream = String::new();
        let mut order = order.iter().cycle();
        while sources.iter().any(|source| !source.is_empty()) {
            let speaking: Vec<usize> = (0..sources.len()).filter(|&at| !sources[at].is_empty()).collect();
            let at = speaking[order.next().unwrap().index(speaking.len())];
            stream.push_str(&frame(&sources[at].remove(0), None));
        }
        stream.push_str(&frame(&json!({}), Some("stop")));
        let message = message_text::check(&translate(&options(), &[stream.as_bytes()])).unwrap();
        let blocks = message["content"].as_array().unwrap();
        let text_of = |kind: &str, member: &str| -> String {
            blocks.iter().filter(|block| block["type"] == kind).map(|block| block[member].as_str().unwrap()).collect()
        };
        prop_assert_eq!(text_of("thinking", "thinking"), reply.reasoning.concat());
        // White space around calls may go; no letter may.
        let letters = |text: &str| text.split_whitespace().collect::<String>();
        prop_assert_eq!(letters(&text_of("text", "text")), letters(&reply.content.concat()));
        for (at, call) in reply.calls.iter().enumerate() {
            let output = blocks.iter().find(|block| block["id"] == ToolCall::id(at)).expect("each call has a block");
            prop_assert_eq!(&output["input"], &call.input);
            prop_assert_eq!(&output["name"], &call.name);
        }
        let output = blocks.iter().filter(|block| block["type"] == "tool_use").count();
        prop_assert_eq!(output, reply.calls.len());
    }

    #[test]
    fn odd_deltas_keep_the_invariant(deltas in vec(odd_delta(), 0..12), finish in prop::sample::select(vec!["stop", "length", "tool_calls", "abort", ""]), switches in any::<u8>()) {
        let options = Options {
            display_omitted: switches & 1 != 0,
            split_think: switches & 2 != 0,
            single_tool_call: switches & 4 != 0,
            discard_output: switches & 8 != 0,
            close_block_on_error: true,
            ..options()
        };
        let mut stream: String = deltas.iter().map(|delta| frame(delta, None)).collect();
        stream.push_str(&frame(&json!({}), Some(finish).filter(|finish| !finish.is_empty())));
        let stream = stream.replace("HIGH", "\\ud83d").replace("LOW", "\\ude00");
        let output = translate(&options, &[stream.as_bytes()]);
        let message = message_text::check(&output);
        let (body, outcome) = fold(options, stream.as_bytes());
        prop_assert_eq!(message.is_some(), outcome.fault.is_none());
        if let Some(message) = message {
            let body: Value = serde_json::from_slice(&body).unwrap();
            prop_assert_eq!(&body["stop_reason"], &message["stop_reason"]);
            for block in body["content"].as_array().unwrap() {
                prop_assert!(block["type"] != "tool_use" || block["input"].is_object());
                prop_assert!(block["text"] != "");
            }
            if finish != "length" {
                for (ours, theirs) in body["content"].as_array().unwrap().iter().zip(message["content"].as_array().unwrap()) {
                    prop_assert!(ours["type"] == theirs["type"]);
                }
            }
        }
    }

    #[test]
    fn garbage_ends_in_an_error_and_never_in_a_panic(bytes in vec(any::<u8>(), 0..300), text in "(data: )?[\\PC\\n\\[\\]{}\":,]{0,80}\n\n") {
        for body in [&bytes[..], text.as_bytes(), &[b"data: ", &bytes[..], b"\n\n"].concat()] {
            let output = translate(&options(), &[frame(&json!({"content": "x"}), None).as_bytes(), body]);
            prop_assert!(message_text::check(&output).is_none());
            let (aggregated, outcome) = fold(options(), body);
            prop_assert!(aggregated.is_empty() && outcome.fault.is_some());
            let (whole, outcome) = reply::translate(options(), body);
            prop_assert!(whole.is_empty() && outcome.fault.is_some());
            let failure = reply::backend_error(500, body);
            prop_assert!(!failure.message.is_empty() && failure.status >= 400);
        }
    }
}

/// Deltas that break every habit: ids and names null, missing, changing; arguments of every kind;
/// halves of characters.
fn odd_delta() -> impl Strategy<Value = Value> {
    let text = prop::sample::select(vec![
        "", " ", "\n", "a", "</think>", "<thi", "nk>", "HIGH", "LOW", "HIGHLOW",
    ]);
    let id = prop_oneof![
        Just(Value::Null),
        prop::sample::select(vec!["", "a", "b", "chatcmpl-tool-0000000000000001"])
            .prop_map(Value::from)
    ];
    let name = prop_oneof![
        Just(Value::Null),
        prop::sample::select(vec!["", "F", "G", "<|channel|>", "\u{1}\""]).prop_map(Value::from)
    ];
    let arguments = prop_oneof![
        Just(Value::Null),
        Just(json!({"a": "}\n"})),
        prop::sample::select(vec![
            "",
            "{}",
            "{",
            "}",
            "\"",
            "\\",
            "\"a\":1",
            "{\"a\":1}",
            "null",
            "]",
            "HIGH",
            "\\HIGH"
        ])
        .prop_map(Value::from),
    ];
    let index = prop_oneof![Just(Value::Null), (0u32..3).prop_map(Value::from)];
    let call = (index, id, name, arguments)
        .prop_map(|(index, id, name, arguments)| json!({"tool_calls": [{"index": index, "id": id, "function": {"name": name, "arguments": arguments}}]}));
    prop_oneof![
        text.clone().prop_map(|text| json!({"content": text})),
        text.prop_map(|text| json!({"reasoning": text})),
        call.clone(),
        call,
    ]
}

#[test]
fn nothing_is_written_after_the_end() {
    let mut stream = MessageStream::new(options());
    let mut out = Vec::new();
    stream.fail(ErrorKind::Timeout, "too late", &mut SseSink(&mut out));
    stream.done(&mut SseSink(&mut out));
    assert!(out.is_empty() && stream.is_over() && !stream.has_started());
}
