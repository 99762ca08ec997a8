//! A backend's connection, from the status line to its end: the client's bytes do not depend on how
//! reads are cut, there is one end, and a Messages stream keeps its invariant.
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
    let reads: Vec<&[u8]> = wire.chunks(usize::from(*size).max(1)).collect();
    let whole = feed_all(mode(), &[wire]);
    assert_eq!(whole, feed_all(mode(), &reads));
    if form % 3 == 0 && whole.end == End::Complete {
        assert!(message_text::check(&whole.output).is_some());
    }
});

#[derive(Debug, PartialEq)]
struct Transcript {
    output: Vec<u8>,
    end: End,
    collected: Vec<u8>,
    fault: Option<String>,
}

fn feed_all(mut mode: ResponseMode, reads: &[&[u8]]) -> Transcript {
    let (mut reader, mut output) = (ResponseReader::default(), Vec::new());
    let mut end = None;
    for read in reads {
        let progress = reader.feed(&mut mode, read, &mut output);
        assert!(end.is_none() || progress.end.is_none(), "one end");
        end = end.or(progress.end);
    }
    let progress = reader.eof(&mut mode, &mut output);
    assert!(end.is_some() != progress.end.is_some(), "one end");
    let end = end.or(progress.end).expect("an end");
    Transcript {
        output,
        end,
        collected: reader.collected().to_vec(),
        fault: reader.fault().map(str::to_owned),
    }
}
