//! A backend's connection, from the status line to whatever it ends with: what a client gets does
//! not depend on the reads, the end is output once, and a Messages stream keeps its invariant.
#![no_main]

#[path = "../../core/tests/message_text/mod.rs"]
mod message_text;

use ferrule_core::chat_passthrough::{ChatOptions, ChatPassthrough};
use ferrule_core::message::Options;
use ferrule_core::response_reader::{End, ResponseMode, ResponseReader};
use ferrule_core::translator::Translator;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let [form, size, wire @ ..] = input else { return };
    let mode = || match form % 3 {
        0 => ResponseMode::Events(Box::new(Translator::new(Options::new("msg_1", "m")))),
        1 => ResponseMode::Chat(Box::new(ChatPassthrough::new(ChatOptions {
            model_json: "\"m\"".to_owned(),
            hide_usage: form & 4 == 4,
        }))),
        _ => ResponseMode::Buffered,
    };
    let deltas: Vec<&[u8]> = wire.chunks(usize::from(*size).max(1)).collect();
    let whole = response_reader(mode(), &[wire]);
    assert_eq!(whole, response_reader(mode(), &deltas));
    if form % 3 == 0 && whole.end == End::Complete {
        assert!(message_text::check(&whole.output).is_some());
    }
});

#[derive(Debug, PartialEq)]
struct Exchanged {
    output: Vec<u8>,
    end: End,
    collected: Vec<u8>,
    fault: Option<String>,
}

fn response_reader(mut mode: ResponseMode, deltas: &[&[u8]]) -> Exchanged {
    let (mut response_reader, mut output) = (ResponseReader::default(), Vec::new());
    let mut end = None;
    for fragment in deltas {
        let step = response_reader.feed(&mut mode, fragment, &mut output);
        assert!(end.is_none() || step.end.is_none(), "one end");
        end = end.or(step.end);
    }
    let step = response_reader.eof(&mut mode, &mut output);
    assert!(end.is_some() != step.end.is_some(), "one end");
    let end = end.or(step.end).expect("an end");
    Exchanged {
        output,
        end,
        collected: response_reader.collected().to_vec(),
        fault: response_reader.fault().map(str::to_owned),
    }
}
