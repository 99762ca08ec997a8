//! A backend's stream with any options: the client's stream keeps its invariant, does not depend on
//! the cuts, and folds into the message that the whole reply gives.
#![no_main]

#[path = "../../core/tests/message_text/mod.rs"]
mod message_text;

use ferrule_core::message::{Options, StopReason};
use ferrule_core::options::Reasoning;
use ferrule_core::translator::{Translator, fold};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let [switches, size, stream @ ..] = input else { return };
    let options = options(*switches);
    let output = translate(&options, &[stream]);
    let reads: Vec<&[u8]> = stream.chunks(usize::from(*size).max(1)).collect();
    assert_eq!(
        String::from_utf8_lossy(&output),
        String::from_utf8_lossy(&translate(&options, &reads))
    );
    let (body, outcome) = fold(options.clone(), stream);
    let Some(mut streamed) = message_text::check(&output) else {
        return assert!(body.is_empty() && outcome.fault.is_some());
    };
    let body: serde_json::Value = serde_json::from_slice(&body).expect("the message is JSON");
    let blocks = streamed["content"].as_array_mut().expect("blocks");
    for (block, ours) in blocks.iter_mut().zip(body["content"].as_array().expect("blocks")) {
        if block["input"].is_string() {
            assert!(ours["input"].is_object());
            block["input"] = ours["input"].clone();
        }
    }
    assert_eq!(streamed, body);
});

fn options(switches: u8) -> Options {
    let is_set = |bit: u8| switches >> bit & 1 == 1;
    Options {
        reasoning: [Reasoning::Thinking, Reasoning::Text, Reasoning::Drop, Reasoning::Thinking]
            [usize::from(switches & 3)],
        display_omitted: is_set(2),
        single_tool_call: is_set(3),
        split_think: is_set(4),
        discard_output: is_set(5),
        close_block_on_error: !is_set(6),
        stop_reasons: is_set(7)
            .then(|| [StopReason::EndTurn, StopReason::MaxTokens, StopReason::ToolUse].into()),
        max_tokens: is_set(7).then_some(5),
        context_window: is_set(6).then_some(20),
        tool_names: vec![("f".to_owned(), "mcp__server__f".to_owned())],
        ..Options::new("msg_1", "m")
    }
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
