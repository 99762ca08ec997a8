//! Golden cases, one directory each: `upstream.sse` in, `client.sse` and `message.json` out
//! (`fault.json` where there is a fault), however the input is cut. `options.json` holds what
//! differs from the defaults. `UPDATE_TRANSCRIPTS=1` writes what comes out: read the diff.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may")]

mod message_text;

use std::fs;
use std::path::{Path, PathBuf};

use ferrule_core::message::{Options, Outcome, StopReason};
use ferrule_core::options::Reasoning;
use ferrule_core::translator::{Translator, fold};
use serde_json::{Value, json};

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/transcripts")
}

fn cases() -> Vec<PathBuf> {
    let mut cases: Vec<PathBuf> =
        fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().path()).collect();
    cases.retain(|case| case.join("upstream.sse").exists());
    cases.sort();
    cases
}

fn options(case: &Path) -> Options {
    let mut options = Options {
        signature_prefix: "ferrule1.".into(),
        ..Options::new("msg_0123456789abcdef0123456789abcdef", "m")
    };
    let Ok(text) = fs::read(case.join("options.json")) else { return options };
    let given: Value = serde_json::from_slice(&text).unwrap();
    for (name, value) in given.as_object().unwrap() {
        let text = || value.as_str().unwrap().to_owned();
        let is_true = || value.as_bool().unwrap();
        match name.as_str() {
            "model" => options.model = text(),
            "reasoning" => options.reasoning = Reasoning::parse(&text()).unwrap(),
            "display_omitted" => options.display_omitted = is_true(),
            "signature_prefix" => options.signature_prefix = text().into(),
            "stop_reasons" => {
                let names: Vec<String> = serde_json::from_value(value.clone()).unwrap();
                options.stop_reasons =
                    Some(names.iter().map(|name| StopReason::parse(name).unwrap()).collect());
            }
            "report_stop_sequence" => options.report_stop_sequence = is_true(),
            "close_block_on_error" => options.close_block_on_error = is_true(),
            "tool_names" => options.tool_names = serde_json::from_value(value.clone()).unwrap(),
            "single_tool_call" => options.single_tool_call = is_true(),
            "split_think" => options.split_think = is_true(),
            "max_tokens" => options.max_tokens = value.as_u64(),
            "context_window" => options.context_window = value.as_u64(),
            "discard_output" => options.discard_output = is_true(),
            other => panic!("no such option: {other}"),
        }
    }
    options
}

fn translate(options: &Options, reads: &[&[u8]]) -> (Vec<u8>, Outcome) {
    let mut translator = Translator::new(options.clone());
    let mut out = Vec::new();
    for read in reads {
        translator.feed(read, &mut out);
    }
    translator.finish(&mut out);
    (out, translator.stream().outcome())
}

/// Compares with the file, or writes it; nothing to hold means no file.
fn compare(path: &Path, output: &[u8]) {
    if std::env::var_os("UPDATE_TRANSCRIPTS").is_some() {
        if output.is_empty() {
            let _absent = fs::remove_file(path);
        } else {
            fs::write(path, output).unwrap();
        }
    }
    let golden = fs::read(path).unwrap_or_default();
    assert_eq!(
        String::from_utf8_lossy(output),
        String::from_utf8_lossy(&golden),
        "{}",
        path.display()
    );
}

fn describe_fault(outcome: &Outcome) -> Vec<u8> {
    let Some(fault) = &outcome.fault else { return Vec::new() };
    let fault = json!({"kind": fault.kind.as_str(), "message": fault.message, "status": fault.kind.status()});
    format!("{fault}\n").into_bytes()
}

#[test]
fn each_case_gives_its_golden_stream() {
    let cases = cases();
    assert!(cases.len() >= 90, "the cases are there");
    for case in cases {
        let upstream = fs::read(case.join("upstream.sse")).unwrap();
        let (output, outcome) = translate(&options(&case), &[&upstream]);
        compare(&case.join("client.sse"), &output);
        compare(&case.join("fault.json"), &describe_fault(&outcome));
        let message = message_text::check(&output);
        assert_eq!(message.is_some(), outcome.fault.is_none(), "{}", case.display());
    }
}

#[test]
fn each_case_gives_the_same_bytes_however_it_is_cut() {
    for case in cases() {
        let upstream = fs::read(case.join("upstream.sse")).unwrap();
        let options = options(&case);
        let whole = translate(&options, &[&upstream]);
        let bytes: Vec<&[u8]> = upstream.chunks(1).collect();
        assert_eq!(translate(&options, &bytes), whole, "{} byte by byte", case.display());
        for at in borders(&upstream) {
            let (before, after) = upstream.split_at(at);
            assert_eq!(
                translate(&options, &[before, after]),
                whole,
                "{} cut at {at}",
                case.display()
            );
        }
    }
}

/// One byte before, at and after the end of each line, and inside every character of more than one
/// byte.
fn borders(stream: &[u8]) -> Vec<usize> {
    let line_ends = (0..stream.len()).filter(|&at| matches!(stream[at], b'\n' | b'\r'));
    let inside = (0..stream.len()).filter(|&at| stream[at] & 0xc0 == 0x80);
    let cuts = line_ends.flat_map(|at| [at, at + 1, at + 2]).chain(inside);
    cuts.filter(|&at| at <= stream.len()).collect()
}

#[test]
fn each_case_folds_into_its_golden_message() {
    for case in cases() {
        let upstream = fs::read(case.join("upstream.sse")).unwrap();
        let options = options(&case);
        let (body, outcome) = fold(options.clone(), &upstream);
        let golden = if body.is_empty() { Vec::new() } else { [&body[..], b"\n"].concat() };
        compare(&case.join("message.json"), &golden);
        let (output, streamed) = translate(&options, &[&upstream]);
        assert_eq!(outcome, streamed, "{}", case.display());
        assert_same(message_text::check(&output), &body, &case);
    }
}

/// The client's fold of the stream and ours are one message; where arguments were cut, ours keeps
/// an object.
fn assert_same(streamed: Option<Value>, body: &[u8], case: &Path) {
    let Some(mut streamed) = streamed else {
        return assert!(body.is_empty(), "{}", case.display());
    };
    let body: Value = serde_json::from_slice(body).unwrap();
    for (block, ours) in streamed["content"]
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .zip(body["content"].as_array().unwrap())
    {
        if block["type"] == "tool_use" && block["input"].is_string() {
            assert!(ours["input"].is_object());
            block["input"] = ours["input"].clone();
        }
    }
    assert_eq!(streamed, body, "{}", case.display());
}
