use super::*;
use crate::chat_passthrough::ChatOptions;
use crate::error::ErrorKind;
use crate::options::Options;

const SSE_HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n";
const TEXT: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"},\"finish_reason\":\"stop\"}]}\n\n";
const DONE: &str = "data: [DONE]\n\n";

fn events() -> ResponseMode {
    ResponseMode::Events(Box::new(Translator::new(Options::new("msg_1", "m"))))
}

fn aggregated() -> ResponseMode {
    ResponseMode::Aggregated(Box::new(Translator::new(Options::new("msg_1", "m"))), Box::default())
}

fn chat() -> ResponseMode {
    ResponseMode::Chat(Box::new(ChatPassthrough::new(ChatOptions::default())))
}

/// A response whose events are one HTTP chunk.
fn chunked(events: &str) -> String {
    format!("{SSE_HEAD}transfer-encoding: chunked\r\n\r\n{:x}\r\n{events}\r\n", events.len())
}

struct Response {
    reader: ResponseReader,
    mode: ResponseMode,
    out: Vec<u8>,
    end: Option<End>,
}

/// Feeds `wire` in reads of `size` bytes; there may be one end.
fn feed(mut mode: ResponseMode, wire: &str, size: usize) -> Response {
    let (mut reader, mut out, mut end) = (ResponseReader::default(), Vec::new(), None);
    for read in wire.as_bytes().chunks(size) {
        let progress = reader.feed(&mut mode, read, &mut out);
        assert!(end.is_none() || progress.end.is_none(), "{wire}");
        end = end.or(progress.end);
    }
    Response { reader, mode, out, end }
}

fn fate_name(mut reader: ResponseReader) -> &'static str {
    match reader.take_fate() {
        ConnectionFate::Close => "close",
        ConnectionFate::Reuse => "reuse",
        ConnectionFate::Drain(_) => "drain",
    }
}

#[test]
fn ends_and_fates() {
    let done = [TEXT, DONE].concat();
    let error = "data: {\"error\":{\"message\":\"busy\",\"code\":503}}\n\n";
    let body = "{\"a\":1}";
    let json =
        |status: &str| format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    for (what, mode, wire, end, fate) in [
        ("last chunk", events(), chunked(&done) + "0\r\n\r\n", Some(End::Complete), "reuse"),
        ("its framing is missing", events(), chunked(&done), Some(End::Complete), "drain"),
        ("no keep-alive", events(), format!("{SSE_HEAD}\r\n{done}"), Some(End::Complete), "close"),
        (
            "a chunk after the end",
            events(),
            chunked(&done) + "1\r\nx\r\n0\r\n\r\n",
            Some(End::Complete),
            "close",
        ),
        (
            "no [DONE], but a finish reason",
            events(),
            chunked(TEXT) + "0\r\n\r\n",
            Some(End::Complete),
            "reuse",
        ),
        ("an error event", events(), chunked(error), Some(End::Broken), "drain"),
        ("aggregated", aggregated(), chunked(&done) + "0\r\n\r\n", Some(End::Complete), "reuse"),
        ("chat", chat(), chunked(&done) + "0\r\n\r\n", Some(End::Complete), "reuse"),
        ("buffered", ResponseMode::Buffered, json("200 OK"), Some(End::Collected), "reuse"),
        ("an error status", events(), json("503 Busy"), Some(End::Collected), "reuse"),
        ("not a stream", events(), json("200 OK"), Some(End::Broken), "close"),
        ("not HTTP", events(), "<html>".to_owned(), Some(End::Broken), "close"),
        ("incomplete", events(), chunked(TEXT), None, "close"),
    ] {
        let response = feed(mode, &wire, usize::MAX);
        assert_eq!(response.end, end, "{what}");
        assert_eq!(fate_name(response.reader), fate, "{what}");
    }
}

#[test]
fn the_output_does_not_depend_on_the_reads() {
    let wire = chunked(&[TEXT, DONE].concat()) + "0\r\n\r\n";
    for mode in [events, chat] {
        let whole = feed(mode(), &wire, usize::MAX);
        let bytewise = feed(mode(), &wire, 1);
        assert_eq!(whole.out, bytewise.out);
        assert_eq!(whole.end, bytewise.end);
        assert_eq!(whole.mode.deltas(), 1);
    }
}

#[test]
fn each_mode_gives_its_form() {
    let wire = chunked(&[TEXT, DONE].concat()) + "0\r\n\r\n";
    let response = feed(events(), &wire, 7);
    assert!(response.out.starts_with(b"event: message_start\n"));
    let response = feed(aggregated(), &wire, 7);
    assert!(response.out.is_empty());
    assert!(response.mode.into_message().starts_with(b"{\"id\":\"msg_1\""));
    assert_eq!(feed(chat(), &wire, 7).out, [TEXT, DONE].concat().as_bytes());
    let response = feed(ResponseMode::Buffered, &wire, 7);
    assert_eq!(response.reader.collected(), [TEXT, DONE].concat().as_bytes());
    assert!(response.out.is_empty());
}

#[test]
fn the_head_of_an_error_is_kept_as_far_as_needed() {
    let wire = "HTTP/1.1 429 Slow down\r\nRetry-After: 7\r\ncontent-length: 2\r\n\r\n{}";
    let response = feed(events(), wire, 1);
    assert_eq!((response.reader.status(), response.reader.retry_after()), (429, Some("7")));
    assert_eq!(ResponseReader::default().status(), 0);
}

#[test]
fn the_end_of_a_connection() {
    let length = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
    for (what, wire, at_eof, when_lost) in [
        ("before the response", "", End::NoResponse, End::NoResponse),
        ("inside the head", "HTTP/1.1 200", End::Broken, End::Broken),
        ("until close, finished", &[length, TEXT].concat(), End::Complete, End::Broken),
        ("until close, not finished", length, End::Broken, End::Broken),
        ("inside a chunk", &chunked(TEXT), End::Broken, End::Broken),
    ] {
        let mut response = feed(events(), wire, usize::MAX);
        let progress = response.reader.eof(&mut response.mode, &mut response.out);
        assert_eq!(progress.end, Some(at_eof), "{what}");
        assert_eq!(response.reader.eof(&mut response.mode, &mut response.out).end, None, "{what}");
        let mut response = feed(events(), wire, usize::MAX);
        assert_eq!(response.reader.lost().end, Some(when_lost), "{what}");
    }
}

#[test]
fn a_compressed_response_is_refused() {
    let wire = format!("{SSE_HEAD}content-encoding: gzip\r\n\r\n");
    let response = feed(events(), &wire, usize::MAX);
    assert_eq!(response.end, Some(End::Broken));
    assert!(response.reader.fault().is_some_and(|fault| fault.contains("compressed")));
}

#[test]
fn an_error_after_pings_alone_is_an_event_of_the_route() {
    let fault = Fault { kind: ErrorKind::Timeout, message: "late".to_owned() };
    let mut out = Vec::new();
    events().write_error(&fault, &mut out);
    assert!(out.starts_with(b"event: error\n"));
    out.clear();
    chat().write_error(&fault, &mut out);
    assert!(out.starts_with(b"data: {\"error\":"));
    out.clear();
    aggregated().write_error(&fault, &mut out);
    assert!(out.is_empty());
}

#[test]
fn bytes_after_the_events_are_drained() {
    let body = || {
        let mut body = Body::new(Framing::Chunked);
        let mut input = b"1\r\nx\r\n".as_slice();
        while body.feed(&mut input).unwrap().is_some() {}
        body
    };
    assert!(matches!(drain(body(), b"0\r\n\r\n"), ConnectionFate::Reuse));
    assert!(matches!(drain(body(), b"0\r\n"), ConnectionFate::Drain(_)));
    assert!(matches!(drain(body(), b"0\r\n\r\nHTTP"), ConnectionFate::Close));
    assert!(matches!(drain(body(), b"1\r\ny\r\n"), ConnectionFate::Close));
}
