//! Streams and whole replies of a real engine (vLLM 0.33.0): every stream keeps the invariant, and
//! both ways give one message.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may")]

mod message_text;

use std::fs;
use std::path::{Path, PathBuf};

use ferrule_core::message::Options;
use ferrule_core::reply;
use ferrule_core::translator::{Translator, fold};
use serde_json::Value;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/recordings/vllm-0.33.0")
}

fn options() -> Options {
    Options::new("msg_0123456789abcdef0123456789abcdef", "tiny-qwen")
}

fn recordings(directory: &Path, is_wanted: fn(&str) -> bool) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(is_wanted));
    found.sort();
    found
}

fn streams() -> Vec<PathBuf> {
    let mut streams = recordings(&directory(), |name| name.starts_with("stream_"));
    streams.extend(recordings(&directory().join("families"), |name| {
        name.ends_with("_stream.body.txt")
    }));
    streams
}

fn translate(reads: &[&[u8]]) -> Vec<u8> {
    let mut translator = Translator::new(options());
    let mut out = Vec::new();
    for read in reads {
        translator.feed(read, &mut out);
    }
    translator.finish(&mut out);
    out
}

#[test]
fn every_recorded_stream_keeps_the_invariant() {
    let streams = streams();
    assert!(streams.len() > 40, "the recordings are there: {}", streams.len());
    for path in streams {
        let body = fs::read(&path).unwrap();
        let output = translate(&[&body]);
        let bytes: Vec<&[u8]> = body.chunks(1).collect();
        assert!(translate(&bytes) == output, "{} byte by byte", path.display());
        let message = message_text::check(&output);
        let name = path.file_name().unwrap().to_str().unwrap();
        let is_broken = String::from_utf8_lossy(&body).contains("\ndata: {\"error\":");
        assert_eq!(message.is_none(), is_broken, "{name}");
        let (ours, outcome) = fold(options(), &body);
        assert_eq!(ours.is_empty(), message.is_none(), "{name}");
        assert_eq!(outcome.fault.is_some(), message.is_none(), "{name}");
        let Some(message) = message else { continue };
        let ours: Value = serde_json::from_slice(&ours).unwrap();
        assert_eq!(ours["usage"], message["usage"], "{name}");
        assert_eq!(ours["stop_reason"], message["stop_reason"], "{name}");
    }
}

/// Differences that are the engine's own: ids and cached tokens of two different runs, white space
/// that is trimmed when calls are there, text after a call, and the first call's markup, which
/// whole replies lose.
#[test]
fn a03_whole_and_streamed_replies_are_one_message() {
    let mut whole_replies = recordings(&directory(), |name| name.starts_with("nostream_"));
    whole_replies.extend(recordings(&directory().join("families"), |name| {
        name.ends_with("_nostream.body.txt")
    }));
    assert!(whole_replies.len() >= 19, "{}", whole_replies.len());
    for whole in whole_replies {
        let name = whole.file_name().unwrap().to_str().unwrap();
        let stream = whole.with_file_name(name.replace("nostream", "stream"));
        let (streamed, _) = fold(options(), &fs::read(&stream).unwrap());
        let (body, outcome) = reply::translate(options(), &fs::read(&whole).unwrap());
        assert_eq!(outcome.fault, None, "{name}");
        let streamed: Value = serde_json::from_slice(&streamed).unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(streamed["stop_reason"], body["stop_reason"], "{name}");
        assert_eq!(streamed["stop_sequence"], body["stop_sequence"], "{name}");
        assert_eq!(streamed["usage"]["output_tokens"], body["usage"]["output_tokens"], "{name}");
        let loses_text =
            name.starts_with("nostream_tool_then_text") || name.starts_with("minicpm5");
        assert_eq!(comparable(&streamed, loses_text), comparable(&body, loses_text), "{name}");
    }
}

fn comparable(message: &Value, loses_text: bool) -> Vec<Value> {
    let mut blocks = message["content"].as_array().unwrap().clone();
    let has_call = blocks.iter().any(|block| block["type"] == "tool_use");
    blocks.retain(|block| !(loses_text && block["type"] == "text"));
    for block in &mut blocks {
        if block["type"] == "tool_use" {
            block["id"] = Value::Null;
        }
        if has_call && block["type"] == "text" {
            block["text"] = block["text"].as_str().unwrap().trim().into();
        }
    }
    blocks
}
