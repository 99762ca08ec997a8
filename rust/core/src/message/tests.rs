use super::*;
use crate::chunk::{Arguments, BackendError};
use crate::outcome::{MessageUsage, Usage};
use crate::sequencer::WAITING_LIMIT_BYTES;

fn options() -> Options {
    Options::new("msg_1", "m")
}

/// The stream and its events; `types` names the events and deltas.
struct Run {
    stream: MessageStream,
    out: Vec<u8>,
}

impl Run {
    fn new(options: Options) -> Self {
        Self { stream: MessageStream::new(options), out: Vec::new() }
    }

    fn chunk(&mut self, chunk: Chunk<'_>) -> &mut Self {
        self.stream.chunk(&chunk, &mut SseSink(&mut self.out));
        self
    }

    fn reasoning(&mut self, reasoning: &str) -> &mut Self {
        self.chunk(Chunk { reasoning, ..Chunk::default() })
    }

    fn content(&mut self, content: &str) -> &mut Self {
        self.chunk(Chunk { content, ..Chunk::default() })
    }

    fn call(&mut self, index: u32, name: &str, arguments: &str) -> &mut Self {
        let arguments =
            if arguments.is_empty() { Arguments::None } else { Arguments::Text(arguments) };
        self.chunk(Chunk {
            tool_calls: vec![ToolDelta { index: Some(index), id: "", name, arguments }],
            ..Chunk::default()
        })
    }

    fn finish(&mut self, finish: &str) -> &mut Self {
        self.chunk(Chunk { finish, ..Chunk::default() })
    }

    fn usage(&mut self, prompt_tokens: u64, completion_tokens: u64) -> &mut Self {
        self.chunk(Chunk {
            usage: Some(Usage { prompt_tokens, completion_tokens, ..Usage::default() }),
            ..Chunk::default()
        })
    }

    fn done(&mut self) -> &mut Self {
        self.stream.done(&mut SseSink(&mut self.out));
        self
    }

    fn types(&mut self) -> Vec<String> {
        let text = String::from_utf8(std::mem::take(&mut self.out)).unwrap();
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let events = data.map(|data| serde_json::from_str::<serde_json::Value>(data).unwrap());
        events
            .map(|event| {
                event["delta"]["type"].as_str().or(event["type"].as_str()).unwrap().to_owned()
            })
            .collect()
    }
}

#[test]
fn the_order_inside_one_chunk_is_reasoning_content_calls_finish() {
    let mut run = Run::new(options());
    let call = ToolDelta {
        index: Some(0),
        id: "",
        name: "F",
        arguments: Arguments::Text("{\\\"a\\\":1}"),
    };
    run.chunk(Chunk {
        reasoning: "r",
        content: "t",
        tool_calls: vec![call],
        finish: "tool_calls",
        ..Chunk::default()
    })
    .done();
    let deltas: Vec<String> =
        run.types().into_iter().filter(|name| name.ends_with("_delta")).collect();
    assert_eq!(
        deltas,
        ["thinking_delta", "signature_delta", "text_delta", "input_json_delta", "message_delta"]
    );
}

#[test]
fn j03_a_role_alone_is_no_event() {
    let mut run = Run::new(options());
    run.chunk(Chunk::default());
    run.usage(7, 0);
    assert!(!run.stream.has_started() && run.out.is_empty());
    run.content("x");
    assert!(run.stream.has_started());
}

#[test]
fn the_first_of_each_starts_the_message() {
    let call = || vec![ToolDelta { index: Some(0), name: "F", ..ToolDelta::default() }];
    for chunk in [
        Chunk { content: "x", ..Chunk::default() },
        Chunk { content: "\\n", ..Chunk::default() },
        Chunk { reasoning: "x", ..Chunk::default() },
        Chunk { tool_calls: call(), ..Chunk::default() },
        Chunk { finish: "stop", ..Chunk::default() },
        Chunk {
            usage: Some(Usage { completion_tokens: 1, ..Usage::default() }),
            ..Chunk::default()
        },
    ] {
        let mut run = Run::new(options());
        run.chunk(chunk);
        assert_eq!(run.types()[0], "message_start");
    }
}

#[test]
fn a_failure_before_the_first_event_writes_nothing() {
    let error =
        BackendError { status: Some(503), message: "busy".to_owned(), ..BackendError::default() };
    let mut run = Run::new(options());
    run.chunk(Chunk { error: Some(error), ..Chunk::default() }).content("late").done();
    assert!(run.out.is_empty() && run.stream.is_over() && !run.stream.has_started());
    assert_eq!(
        run.stream.outcome().fault,
        Some(Fault { kind: ErrorKind::Overloaded, message: "busy".to_owned() })
    );
}

#[test]
fn a_failure_after_it_is_an_error_event_and_the_end() {
    for (close_block_on_error, types) in [
        (true, &["text_delta", "content_block_stop", "error"][..]),
        (false, &["text_delta", "error"][..]),
    ] {
        let mut run = Run::new(Options { close_block_on_error, ..options() });
        run.content("x");
        run.stream.fail(ErrorKind::Timeout, "too late", &mut SseSink(&mut run.out));
        run.content("late").finish("stop").done();
        assert_eq!(run.types()[2..], *types);
        assert!(run.stream.has_started());
        assert_eq!(run.stream.outcome().stop_reason, None);
    }
}

#[test]
fn e03_a_thinking_budget_is_held_by_going_on_in_a_second_reply() {
    let mut run = Run::new(Options { budget_tokens: Some(3), ..options() });
    run.reasoning("one ").reasoning("two\\n").reasoning("three");
    assert!(!run.stream.is_budget_spent());
    run.reasoning("four").content("from the same read").finish("stop").done();
    assert!(run.stream.is_budget_spent());
    assert_eq!(run.stream.reasoning_text(), "one two\nthree");
    run.stream.begin_continuation();
    run.chunk(Chunk::default())
        .reasoning("more")
        .content("answer")
        .finish("stop")
        .usage(103, 10)
        .done();
    assert_eq!(
        run.types(),
        [
            "message_start",
            "content_block_start",
            "thinking_delta",
            "thinking_delta",
            "thinking_delta",
            "signature_delta",
            "content_block_stop",
            "content_block_start",
            "text_delta",
            "content_block_stop",
            "message_delta",
            "message_stop"
        ]
    );
    // The dropped fragment was generated all the same.
    let usage = MessageUsage { input_tokens: 99, output_tokens: 14, ..MessageUsage::default() };
    assert_eq!(run.stream.outcome().usage, usage);
}

#[test]
fn a_second_reply_that_dies_is_a_failure() {
    let mut run = Run::new(options());
    run.reasoning("r").finish("length");
    run.stream.begin_continuation();
    run.content("x").done();
    assert!(run.stream.outcome().fault.is_some());
}

#[test]
fn what_waits_is_bounded() {
    let fragment = "x".repeat(WAITING_LIMIT_BYTES / 4);
    let mut run = Run::new(options());
    run.call(0, "F", "{");
    for _ in 0..4 {
        run.content(&fragment);
    }
    assert!(!run.stream.is_over());
    run.content("x");
    assert!(run.stream.is_over());
    assert_eq!(run.types().last().map(String::as_str), Some("error"));

    let mut run = Run::new(Options { reasoning: Reasoning::Drop, ..options() });
    for _ in 0..5 {
        run.reasoning(&fragment);
    }
    assert!(run.stream.is_over());
}

#[test]
fn white_space_past_the_limit_is_written() {
    let mut run = Run::new(options());
    run.content(&" ".repeat(60_000));
    assert_eq!(run.types(), ["message_start"]);
    run.content(&" ".repeat(60_000));
    assert_eq!(run.types(), ["content_block_start", "text_delta"]);
}

#[test]
fn calls_are_bounded() {
    let mut run = Run::new(options());
    for index in 0..2000 {
        run.call(index, "F", "{\\\"a\\\":1}");
    }
    assert!(run.stream.is_over());
    assert_eq!(run.types().last().map(String::as_str), Some("error"));
}

#[test]
fn a_call_without_a_name_is_dropped() {
    let mut run = Run::new(options());
    run.content("x").call(0, "", "{\\\"a\\\":1}").finish("tool_calls").done();
    assert!(!run.types().contains(&"input_json_delta".to_owned()));
    assert_eq!(run.stream.outcome().stop_reason, Some(StopReason::EndTurn));
}

#[test]
fn a_name_after_the_arguments_is_in_time() {
    let mut run = Run::new(options());
    run.call(0, "", "{\\\"a\\\"").call(0, "F", "").call(0, "", ":1}").finish("tool_calls").done();
    assert_eq!(run.types()[1..4], ["content_block_start", "input_json_delta", "input_json_delta"]);
}

#[test]
fn the_first_fragment_of_arguments_is_written_at_once() {
    let mut run = Run::new(options());
    run.call(0, "F", "").call(0, "", "{");
    assert_eq!(run.types(), ["message_start", "content_block_start", "input_json_delta"]);
}
