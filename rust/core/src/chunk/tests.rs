mod agreement;

use super::*;
use crate::outcome::Usage;

/// Both readers, wherever the quick one answers.
fn read_both(text: &str) -> Result<Chunk<'_>, ChunkFault> {
    let parsed = parse::parse(text);
    if let Some(scanned) = scan::scan(text) {
        assert_eq!(Some(&scanned), parsed.as_ref().ok(), "{text}");
    }
    parsed
}

/// A chunk with this `choices` member and what vLLM puts around it.
fn chunk(choices: &str) -> String {
    format!(
        r#"{{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1795994503,"model":"m","choices":{choices},"kv_transfer_params":null}}"#
    )
}

fn delta(members: &str) -> String {
    chunk(&format!(
        r#"[{{"index":0,"delta":{{{members}}},"logprobs":null,"finish_reason":null,"token_ids":null}}]"#
    ))
}

fn fault_of(text: &str) -> String {
    read_both(text).expect_err(text).to_string()
}

fn error_of(text: &str) -> BackendError {
    read_both(text).expect(text).error.expect(text)
}

#[test]
fn every_delta_that_engines_emit_per_token_is_scanned() {
    for (members, reasoning, content) in [
        (r#""role":"assistant","content":"""#, "", ""),
        (r#""role":"assistant","content":null"#, "", ""),
        (r#""role":"assistant""#, "", ""),
        (r#""reasoning_content":null,"role":"assistant","content":"""#, "", ""),
        (r#""reasoning":" it""#, " it", ""),
        (r#""reasoning_content":" it""#, " it", ""),
        (
            r#""content":"\n\nBonjour 👋","reasoning":"Emoji time.\n""#,
            "Emoji time.\\n",
            "\\n\\nBonjour 👋",
        ),
        (r#""role":null,"content":"x","reasoning_content":null"#, "", "x"),
        (r#""reasoning_content":null"#, "", ""),
        ("", "", ""),
    ] {
        let text = delta(members);
        let scanned = scan::scan(&text).expect(members);
        assert_eq!(scanned, Chunk { reasoning, content, ..Chunk::default() }, "{members}");
        assert_eq!(parse::parse(&text).unwrap(), scanned, "{members}");
    }
}

#[test]
fn e01_reasoning_under_two_names_is_read_once() {
    assert_eq!(
        read_both(&delta(r#""reasoning":"a","reasoning_content":"a""#)).unwrap().reasoning,
        "a"
    );
    assert_eq!(
        read_both(&delta(r#""reasoning":null,"reasoning_content":"a""#)).unwrap().reasoning,
        "a"
    );
    assert_eq!(
        read_both(&delta(r#""reasoning":"a","reasoning_content":"""#)).unwrap().reasoning,
        "a"
    );
}

#[test]
fn tool_calls_as_each_engine_starts_and_continues_them() {
    for (members, expected) in [
        (
            r#""tool_calls":[{"id":"chatcmpl-tool-1","type":"function","index":0,"function":{"name":"f"}}],"content":null"#,
            ToolDelta {
                index: Some(0),
                id: "chatcmpl-tool-1",
                name: "f",
                arguments: Arguments::None,
            },
        ),
        (
            r#""tool_calls":[{"index":1,"function":{"arguments":"{\"a\": \""}}]"#,
            ToolDelta {
                index: Some(1),
                id: "",
                name: "",
                arguments: Arguments::Text(r#"{\"a\": \""#),
            },
        ),
        (
            r#""role":null,"tool_calls":[{"id":"call_1","index":0,"type":"function","function":{"name":"f","arguments":""}}]"#,
            ToolDelta { index: Some(0), id: "call_1", name: "f", arguments: Arguments::None },
        ),
    ] {
        let text = delta(members);
        assert_eq!(scan::scan(&text).expect(members).tool_calls, [expected]);
        read_both(&text).unwrap();
    }
}

#[test]
fn c03_null_members_of_a_later_fragment_are_absent() {
    let text = delta(
        r#""tool_calls":[{"index":0,"id":null,"type":null,"function":{"name":null,"arguments":"x"}}]"#,
    );
    let expected = ToolDelta { index: Some(0), id: "", name: "", arguments: Arguments::Text("x") };
    assert_eq!(scan::scan(&text).unwrap().tool_calls, [expected]);
    read_both(&text).unwrap();
}

#[test]
fn c09_arguments_as_an_object_stay_raw() {
    let text = delta(
        r#""tool_calls":[{"function":{"name":"F","arguments":{"a": 1}}},{"index":null,"function":null},{}]"#,
    );
    let calls = read_both(&text).unwrap().tool_calls;
    assert_eq!(
        calls[0],
        ToolDelta { index: None, id: "", name: "F", arguments: Arguments::Object(r#"{"a": 1}"#) }
    );
    assert_eq!(calls[1..], [ToolDelta::default(), ToolDelta::default()]);
}

#[test]
fn e09_stop_strings_but_not_token_ids() {
    for (members, expected) in [
        (r#""stop_reason":"END""#, Some("END")),
        (r#""matched_stop":"END""#, Some("END")),
        (r#""stop_reason":null,"matched_stop":"END""#, Some("END")),
        (r#""stop_reason":151645"#, None),
        (r#""matched_stop":[1,2]"#, None),
        (r#""stop_reason":null"#, None),
        (r#""stop_reason":"""#, None),
    ] {
        let text =
            chunk(&format!(r#"[{{"index":0,"delta":{{}},"finish_reason":"stop",{members}}}]"#));
        let chunk = read_both(&text).unwrap();
        assert_eq!((chunk.finish, chunk.matched_stop), ("stop", expected), "{members}");
    }
}

#[test]
fn usage_as_each_engine_reports_it() {
    for (usage, expected) in [
        (r#"{"prompt_tokens":24,"total_tokens":77,"completion_tokens":53}"#, (24, 53, 0, None)),
        (
            r#"{"prompt_tokens":24,"completion_tokens":53,"prompt_tokens_details":{"cached_tokens":16,"created_cache_tokens":0},"completion_tokens_details":{"reasoning_tokens":7}}"#,
            (24, 53, 16, Some(7)),
        ),
        (
            r#"{"prompt_tokens":24,"completion_tokens":53,"prompt_tokens_details":null,"reasoning_tokens":3}"#,
            (24, 53, 0, Some(3)),
        ),
        (
            r#"{"prompt_tokens":24,"completion_tokens":53,"prompt_tokens_details":{"cached_tokens":null},"completion_tokens_details":null}"#,
            (24, 53, 0, None),
        ),
        (
            r#"{"prompt_tokens":24.0,"completion_tokens":-1,"prompt_tokens_details":{"cached_tokens":1e400}}"#,
            (24, 0, 0, None),
        ),
    ] {
        let text = format!(r#"{{"choices":[],"usage":{usage},"system_fingerprint":"x"}}"#);
        let usage = read_both(&text).unwrap().usage.expect("usage");
        assert_eq!(
            (
                usage.prompt_tokens,
                usage.completion_tokens,
                usage.cached_tokens,
                usage.reasoning_tokens
            ),
            expected,
            "{text}"
        );
    }
    for nothing in [
        "null",
        "{}",
        r#"{"prompt_tokens":"24"}"#,
        r#"{"prompt_tokens":0,"completion_tokens":null}"#,
    ] {
        assert_eq!(
            read_both(&format!(r#"{{"choices":[],"usage":{nothing}}}"#)).unwrap(),
            Chunk::default(),
            "{nothing}"
        );
    }
}

#[test]
fn f07_null_cached_tokens_are_none() {
    let text = r#"{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":null}}}"#;
    assert_eq!(
        scan::scan(text).unwrap().usage,
        Some(Usage { prompt_tokens: 5, completion_tokens: 1, ..Usage::default() })
    );
    read_both(text).unwrap();
}

#[test]
fn errors_in_every_shape() {
    let nested = error_of(
        r#"{"error":{"message":"bad \"x\"\n\ud83d","type":"InternalServerError","param":null,"code":500}}"#,
    );
    assert_eq!(
        nested,
        BackendError {
            status: Some(500),
            kind: "InternalServerError".into(),
            message: "bad \"x\"\n\u{fffd}\u{fffd}\u{fffd}".into(),
            ..Default::default()
        }
    );
    let flat = error_of(
        r#"{"object":"error","message":"full","type":"ServiceUnavailable","param":null,"code":"503"}"#,
    );
    assert_eq!(
        (flat.status, flat.kind.as_str(), flat.message.as_str()),
        (Some(503), "ServiceUnavailable", "full")
    );
    assert_eq!(
        error_of(r#"{"message":"full","code":20}"#),
        BackendError { message: "full".into(), ..Default::default() }
    );
    assert_eq!(error_of(r#"{"error": "Unauthorized"}"#).message, "Unauthorized");
    assert_eq!(error_of(r#"{"detail":"Not Found"}"#).message, "Not Found");
    assert_eq!(
        error_of(r#"{"detail":[{"loc":["body"],"msg":"too \"long\""},{"msg":"b"},"c"]}"#).message,
        r#"too "long"; b; c"#
    );
    assert_eq!(error_of(r#" {"error":{"detail":"d","message":null}}"#).message, "d");
    assert_eq!(error_of(r#"{"error":{}}"#), BackendError::default());
    assert_eq!(error_of(r#"{"error":["x"]}"#).message, r#"["x"]"#);
    let overflow = error_of(
        r#"{"error":{"code":400,"message":"m","type":"exceed_context_size_error","n_prompt_tokens":345516,"n_ctx":262144}}"#,
    );
    assert_eq!((overflow.prompt_tokens, overflow.context_window), (Some(345_516), Some(262_144)));
}

#[test]
fn no_error_where_there_is_none() {
    for text in [
        r#"{"choices":[],"error":null}"#,
        r#"{"choices":[],"error":""}"#,
        r#"{"choices":[],"message":"m","detail":"d"}"#,
        r#"{"message":{}}"#,
    ] {
        assert_eq!(read_both(text).unwrap(), Chunk::default(), "{text}");
    }
}

#[test]
fn an_error_beside_content_keeps_both() {
    let chunk =
        read_both(r#"{"choices":[{"delta":{"content":"x"}}],"error":{"message":"m"}}"#).unwrap();
    assert_eq!((chunk.content, chunk.error.unwrap().message.as_str()), ("x", "m"));
}

#[test]
fn only_the_choice_with_index_0_counts() {
    let second = r#"{"index":1,"delta":{"content":"b"}}"#;
    let first = r#"{"index":0,"delta":{"content":"a"}}"#;
    assert_eq!(read_both(&chunk(&format!("[{second},{first}]"))).unwrap().content, "a");
    assert_eq!(read_both(&chunk(&format!("[{second}]"))).unwrap(), Chunk::default());
    assert_eq!(read_both(&chunk(r#"[{"delta":{"content":"a"}}]"#)).unwrap().content, "a");
    assert_eq!(read_both(&chunk("null")).unwrap(), Chunk::default());
}

#[test]
fn the_later_of_two_equal_names_counts() {
    assert_eq!(read_both(&delta(r#""content":"a","content":"b""#)).unwrap().content, "b");
    assert_eq!(read_both(&delta(r#""content":"a","content":null"#)).unwrap().content, "");
    assert_eq!(read_both(&delta(r#""content":"a","cont\u0065nt":"b""#)).unwrap().content, "b");
    let twice = r#"{"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}],"choices":[{"delta":{}}]}"#;
    assert_eq!(read_both(twice).unwrap(), Chunk::default());
}

#[test]
fn b01_bytes_that_are_not_utf8_are_refused() {
    let text = delta(r#""content":"北🌍é""#);
    assert_eq!(read(text.as_bytes()).unwrap().content, "北🌍é");
    let at = text.find('北').unwrap();
    assert!(matches!(
        read(&[&text.as_bytes()[..at + 1], &text.as_bytes()[at + 3..]].concat()),
        Err(ChunkFault::NotUtf8)
    ));
}

#[test]
fn b03_lone_surrogates_pass_as_they_are() {
    for escaped in [r"\ud83d", r"\ude00", r"\ud83d\ude00", r"\ud83dx"] {
        let text = delta(&format!(r#""content":"{escaped}""#));
        assert_eq!(scan::scan(&text).unwrap().content, escaped);
        assert_eq!(parse::parse(&text).unwrap().content, escaped);
    }
}

#[test]
fn b11_data_lines_joined_with_a_line_feed_are_one_chunk() {
    let text = "{\"id\":\"c1\",\n\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}]}";
    assert_eq!(read_both(text).unwrap().content, "x");
}

#[test]
fn a25_done_only_as_a_whole() {
    assert!(is_done(b"[DONE]"));
    assert!(is_done(b" [DONE] "));
    assert!(!is_done(br#"{"content":"data: [DONE]"}"#));
    assert!(!is_done(b"[DONE]x"));
    assert_eq!(
        read_both(&delta(r#""content":"print('data: [DONE]')""#)).unwrap().content,
        "print('data: [DONE]')"
    );
}

#[test]
fn control_bytes_in_strings_are_refused() {
    for control in (0u8..0x20).map(char::from) {
        for text in [
            delta(&format!(r#""content":"a{control}b""#)),
            delta(&format!(r#""role":"a{control}b""#)),
            delta(&format!(r#""a{control}b":1"#)),
            delta(&format!(r#""tool_calls":[{{"function":{{"arguments":{{"a":"{control}"}}}}}}]"#)),
        ] {
            assert!(read(text.as_bytes()).is_err(), "{text:?}");
            assert!(scan::scan(&text).is_none(), "{text:?}");
        }
    }
}

#[test]
fn what_is_no_chunk_is_a_fault() {
    for text in [
        "",
        " ",
        "{",
        "null",
        "[]",
        "\"x\"",
        "5",
        "{}x",
        "{} {}",
        "[DONE]",
        "{\"a\":NaN}",
        "{\"a\":Infinity}",
        "{\"a\":01}",
        "{\"a\":.5}",
        "{\"a\":-}",
        "{\"a\":1,}",
        "{,}",
        "{\"a\"}",
        "{\"a\":'x'}",
        "{\"a\":\"\\x\"}",
        "{\"a\":\"\\u12g4\"}",
        "{\"a\":tru}",
        "{'a':1}",
        "{\"\\ud83d\":1}",
        ": PROCESSING",
        "\u{feff}{}",
    ] {
        fault_of(text);
    }
}

#[test]
fn members_of_the_wrong_type_are_named() {
    for (text, expected) in [
        (chunk("{}"), "`choices` of the chunk is not an array"),
        (chunk("[1]"), "`choices[]` of the chunk is not an object"),
        (chunk(r#"[{"delta":"x"}]"#), "`delta` of the chunk is not an object"),
        (delta(r#""content":5"#), "`content` of the chunk is not a string"),
        (
            delta(r#""content":[{"type":"text","text":"x"}]"#),
            "`content` of the chunk is not a string",
        ),
        (delta(r#""tool_calls":{}"#), "`tool_calls` of the chunk is not an array"),
        (delta(r#""tool_calls":[{"index":-1}]"#), "`index` of the chunk is not a small number"),
        (
            delta(r#""tool_calls":[{"index":4294967296}]"#),
            "`index` of the chunk is not a small number",
        ),
        (
            delta(r#""tool_calls":[{"function":{"arguments":[]}}]"#),
            "`arguments` of the chunk is not a string",
        ),
        (
            chunk(r#"[{"delta":{},"finish_reason":1}]"#),
            "`finish_reason` of the chunk is not a string",
        ),
        (r#"{"usage":5}"#.to_owned(), "`usage` of the chunk is not an object"),
    ] {
        assert_eq!(fault_of(&text), expected);
    }
}

#[test]
fn deep_nesting_is_no_danger() {
    let deep = format!(r#"{{"x":{}{},"choices":[]}}"#, "[".repeat(500_000), "]".repeat(500_000));
    assert_eq!(read_both(&deep).unwrap(), Chunk::default());
}
