//! The quick reader accepts nothing that serde refuses, and both give the same answer.

use super::*;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

/// A JSON string, sometimes with escapes, halves of pairs and characters of several bytes.
fn string() -> BoxedStrategy<String> {
    let escapes: &[&str] =
        &[r"\n", r#"\""#, r"\\", r"\/", r"\ud83d", r"\ude00", r"\u00e9", r"\u0000"];
    let part = prop_oneof![
        4 => "[a-z <>{}:,\\[\\]]{1,3}",
        1 => Just("é北🌍".to_owned()),
        1 => prop::sample::select(escapes).prop_map(str::to_owned),
    ];
    proptest::collection::vec(part, 0..4)
        .prop_map(|parts| format!("\"{}\"", parts.concat()))
        .boxed()
}

fn number() -> impl Strategy<Value = String> {
    let odd: &[&str] = &["-1", "1.5", "1e3", "00", "18446744073709551616"];
    prop_oneof![30 => (0u64..100).prop_map(|n| n.to_string()), 1 => prop::sample::select(odd).prop_map(str::to_owned)]
}

/// What a member of this type holds: nearly always the right thing.
fn mostly(usual: impl Strategy<Value = String> + 'static) -> impl Strategy<Value = String> {
    prop_oneof![60 => usual, 12 => Just("null".to_owned()), 1 => json(1)]
}

/// A JSON value as text, with a blank here and there.
fn json(depth: u32) -> BoxedStrategy<String> {
    let constant = prop::sample::select(&["null", "true", "false"][..]).prop_map(str::to_owned);
    let scalar = prop_oneof![4 => string(), 2 => constant, 2 => number()];
    if depth == 0 {
        return scalar.boxed();
    }
    let name = prop_oneof![
        Just("choices"),
        Just("delta"),
        Just("index"),
        Just("finish_reason"),
        Just("stop_reason"),
        Just("matched_stop"),
        Just("content"),
        Just("reasoning"),
        Just("reasoning_content"),
        Just("tool_calls"),
        Just("function"),
        Just("name"),
        Just("arguments"),
        Just("id"),
        Just("usage"),
        Just("prompt_tokens"),
        Just("completion_tokens"),
        Just("prompt_tokens_details"),
        Just("cached_tokens"),
        Just("completion_tokens_details"),
        Just("reasoning_tokens"),
        Just("object"),
        Just("error"),
        Just("x"),
        Just("d\\u0065lta"),
    ];
    let blank = prop_oneof![20 => Just(""), 1 => Just(" "), 1 => Just("\n")];
    let member = (name, blank.clone(), json(depth - 1), blank)
        .prop_map(|(name, before, value, after)| format!("\"{name}\":{before}{value}{after}"));
    prop_oneof![
        2 => scalar,
        4 => proptest::collection::vec(member, 0..5).prop_map(|members| format!("{{{}}}", members.join(","))),
        2 => proptest::collection::vec(json(depth - 1), 0..3).prop_map(|elements| format!("[{}]", elements.join(","))),
    ]
    .boxed()
}

/// Nearly a chunk: the right members, mostly with values of the right type.
fn nearly_a_chunk() -> impl Strategy<Value = String> {
    let call = (mostly(number()), mostly(string()), mostly(string()), mostly(string())).prop_map(|(index, id, name, arguments)| {
        format!(r#"{{"index":{index},"id":{id},"function":{{"name":{name},"arguments":{arguments}}}}}"#)
    });
    let calls = mostly(
        proptest::collection::vec(call, 0..3).prop_map(|calls| format!("[{}]", calls.join(","))),
    );
    let index = prop_oneof![28 => Just("0"), 1 => Just("1"), 1 => Just("00")];
    let details = mostly(number()).prop_map(|cached| format!(r#"{{"cached_tokens":{cached}}}"#));
    let usage = mostly((mostly(number()), mostly(number()), mostly(details)).prop_map(|(prompt, completion, details)| {
        format!(r#"{{"prompt_tokens":{prompt},"completion_tokens":{completion},"prompt_tokens_details":{details},"completion_tokens_details":{{"reasoning_tokens":{completion}}}}}"#)
    }));
    let delta =
        (mostly(string()), mostly(string()), calls).prop_map(|(content, reasoning, calls)| {
            format!(r#"{{"content":{content},"reasoning":{reasoning},"tool_calls":{calls}}}"#)
        });
    (index, mostly(delta), mostly(string()), mostly(string()), usage, mostly(number())).prop_map(|(index, delta, finish, stop, usage, x)| {
        format!(
            r#"{{"id":"c","x":{x},"choices":[{{"index":{index},"delta":{delta},"finish_reason":{finish},"stop_reason":{stop}}}],"usage":{usage}}}"#
        )
    })
}

#[test]
fn the_quick_reader_is_put_to_the_test() {
    let mut runner = TestRunner::deterministic();
    let texts = (0..500).map(|_| nearly_a_chunk().new_tree(&mut runner).unwrap().current());
    let (scanned, not): (Vec<_>, Vec<_>) = texts.partition(|text| scan::scan(text).is_some());
    assert!(scanned.len() > 100 && not.len() > 100, "{} of 500 scanned", scanned.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn both_readers_agree_on_anything(text in json(4)) {
        let _ = read_both(&text);
    }

    #[test]
    fn both_readers_agree_on_nearly_a_chunk(text in nearly_a_chunk()) {
        let _ = read_both(&text);
    }

    #[test]
    fn both_readers_agree_on_damaged_chunks(text in nearly_a_chunk(), at in any::<prop::sample::Index>(), with in prop_oneof![Just(""), Just("\""), Just("\\"), Just(","), Just("{"), Just("}"), Just(" "), Just("\u{1}"), Just("0")]) {
        let mut damaged: Vec<char> = text.chars().collect();
        let at = at.index(damaged.len());
        damaged.splice(at..=at, with.chars());
        let _ = read_both(&damaged.into_iter().collect::<String>());
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        let _ = read(&bytes);
    }
}
