//! A backend's connection, from the status line to whatever it ends with: what a client gets does not depend on the reads, the end is
//! told once, and a Messages stream keeps its invariant.
#![no_main]

#[path = "../../core/tests/told/mod.rs"]
mod told;

use ferrule_core::chat::{Passage, PassageOptions};
use ferrule_core::exchange::{End, Exchange, Telling};
use ferrule_core::message::Options;
use ferrule_core::translator::Translator;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let [form, size, wire @ ..] = input else { return };
    let telling = || match form % 3 {
        0 => Telling::Events(Box::new(Translator::new(Options::new("msg_1", "m")))),
        1 => Telling::Chat(Box::new(Passage::new(PassageOptions { model_json: "\"m\"".to_owned(), hide_usage: form & 4 == 4 }))),
        _ => Telling::Whole,
    };
    let pieces: Vec<&[u8]> = wire.chunks(usize::from(*size).max(1)).collect();
    let whole = exchange(telling(), &[wire]);
    assert_eq!(whole, exchange(telling(), &pieces));
    if form % 3 == 0 && whole.end == End::Complete {
        assert!(told::check(&whole.told).is_some());
    }
});

#[derive(Debug, PartialEq)]
struct Exchanged {
    told: Vec<u8>,
    end: End,
    collected: Vec<u8>,
    fault: Option<String>,
}

fn exchange(mut telling: Telling, pieces: &[&[u8]]) -> Exchanged {
    let (mut exchange, mut told) = (Exchange::default(), Vec::new());
    let mut end = None;
    for piece in pieces {
        let step = exchange.feed(&mut telling, piece, &mut told);
        assert!(end.is_none() || step.end.is_none(), "one end");
        end = end.or(step.end);
    }
    let step = exchange.eof(&mut telling, &mut told);
    assert!(end.is_some() != step.end.is_some(), "one end");
    let end = end.or(step.end).expect("an end");
    Exchanged { told, end, collected: exchange.collected().to_vec(), fault: exchange.fault().map(str::to_owned) }
}
