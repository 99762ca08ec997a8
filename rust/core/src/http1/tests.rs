use super::*;
use proptest::prelude::*;

const OK: &[u8] = b"HTTP/1.1 200 OK\r\n";

fn head_of(fields: &str) -> Result<ResponseHead, HttpFault> {
    let text = [OK, fields.as_bytes(), b"\r\n"].concat();
    parse_head(&text).map(|parsed| {
        let (head, used) = parsed.expect("a whole head");
        assert_eq!(used, text.len());
        head
    })
}

fn body_in(framing: Framing, reads: &[&[u8]]) -> Result<(Vec<u8>, usize, bool), HttpFault> {
    let mut body = Body::new(framing);
    let (mut payload, mut left) = (Vec::new(), 0);
    for fragment in reads {
        let mut input = *fragment;
        while let Some(fragment) = body.feed(&mut input)? {
            payload.extend_from_slice(fragment);
        }
        left += input.len();
    }
    Ok((payload, left, body.is_complete()))
}

/// Buffered, byte by byte and cut in two at every place: always the same.
fn assert_body(
    framing: Framing,
    stream: &[u8],
    expected: Result<(Vec<u8>, usize, bool), HttpFault>,
) {
    let bytes: Vec<&[u8]> = stream.chunks(1).collect();
    assert_eq!(body_in(framing, &[stream]), expected, "whole");
    assert_eq!(body_in(framing, &bytes), expected, "byte by byte");
    for at in 0..stream.len() {
        assert_eq!(body_in(framing, &[&stream[..at], &stream[at..]]), expected, "cut at {at}");
    }
}

#[test]
fn a_head_like_uvicorn_sends_it() {
    let text = b"HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 01:00:00 GMT\r\nServer: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n";
    let (head, used) = parse_head(text).unwrap().unwrap();
    assert_eq!(
        (head.status, head.framing, head.keep_alive, text.len() - used),
        (200, Framing::Chunked, true, 3)
    );
    assert_eq!(head.values("server").collect::<Vec<_>>(), [b"uvicorn"]);
    for at in 0..used {
        assert_eq!(parse_head(&text[..at]), Ok(None), "cut at {at}");
    }
}

#[test]
fn framing_by_fields() {
    for (fields, expected) in [
        ("content-length: 5\r\n", Framing::Length(5)),
        ("Content-Length: 5\r\ncontent-length: 5\r\n", Framing::Length(5)),
        ("content-length: 5, 5\r\n", Framing::Length(5)),
        ("content-length: 18446744073709551615\r\n", Framing::Length(u64::MAX)),
        ("transfer-encoding: Chunked \r\n", Framing::Chunked),
        ("x: y\r\n", Framing::UntilClose),
        ("", Framing::UntilClose),
    ] {
        assert_eq!(head_of(fields).map(|h| h.framing), Ok(expected), "{fields:?}");
    }
}

#[test]
fn ambiguous_framing_is_refused() {
    for (fields, expected) in [
        ("content-length: 5\r\ncontent-length: 6\r\n", HttpFault::ContentLength),
        ("content-length: 5, 6\r\n", HttpFault::ContentLength),
        ("content-length: +5\r\n", HttpFault::ContentLength),
        ("content-length: -5\r\n", HttpFault::ContentLength),
        ("content-length: 0x5\r\n", HttpFault::ContentLength),
        ("content-length: 5 5\r\n", HttpFault::ContentLength),
        ("content-length:\r\n", HttpFault::ContentLength),
        ("content-length: 5,\r\n", HttpFault::ContentLength),
        ("content-length: 18446744073709551616\r\n", HttpFault::ContentLength),
        ("content-length: 5\r\ntransfer-encoding: chunked\r\n", HttpFault::LengthAndChunks),
        ("transfer-encoding: gzip, chunked\r\n", HttpFault::TransferEncoding),
        ("transfer-encoding: chunked, chunked\r\n", HttpFault::TransferEncoding),
        (
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
            HttpFault::TransferEncoding,
        ),
        ("transfer-encoding: identity\r\n", HttpFault::TransferEncoding),
        ("transfer-encoding: xchunked\r\n", HttpFault::TransferEncoding),
        ("transfer-encoding:\r\n", HttpFault::TransferEncoding),
        ("x: y\n", HttpFault::BareLineFeed),
        ("x: a\r\n b\r\n", HttpFault::Head(httparse::Error::HeaderName)),
        ("x : y\r\n", HttpFault::Head(httparse::Error::HeaderName)),
        ("x: a\rb\r\n", HttpFault::Head(httparse::Error::HeaderValue)),
        ("x: a\0b\r\n", HttpFault::Head(httparse::Error::HeaderValue)),
    ] {
        assert_eq!(head_of(fields), Err(expected), "{fields:?}");
    }
    assert_eq!(parse_head(b"HTTP/1.1 200 OK\n\r\n"), Err(HttpFault::BareLineFeed));
    assert_eq!(parse_head(b"\nHTTP/1.1 200 OK\r\n\r\n"), Err(HttpFault::BareLineFeed));
    assert_eq!(
        parse_head(b"HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"),
        Err(HttpFault::TransferEncoding)
    );
    assert!(matches!(parse_head(b"<html>Bad Gateway</html>"), Err(HttpFault::Head(_))));
    assert!(matches!(parse_head(b"HTTP/2 200\r\n\r\n"), Err(HttpFault::Head(_))));
}

#[test]
fn interim_responses_are_skipped() {
    let text = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    let (head, used) = parse_head(text).unwrap().unwrap();
    assert_eq!((head.status, used), (200, text.len()));
    assert_eq!(parse_head(&text[..60]), Ok(None));
    assert_eq!(
        parse_head(b"HTTP/1.1 101 Switching Protocols\r\n\r\n"),
        Err(HttpFault::SwitchingProtocols)
    );
    assert_eq!(parse_head(b"HTTP/1.1 999 What\r\n\r\n"), Err(HttpFault::Status(999)));
}

#[test]
fn statuses_without_a_body() {
    for (text, keeps) in [
        ("HTTP/1.1 204 No Content\r\n\r\n", true),
        ("HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n", true),
        ("HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n", true),
        ("HTTP/1.1 204 No Content\r\ncontent-length: 9\r\n\r\n", false),
        ("HTTP/1.1 204 No Content\r\ntransfer-encoding: chunked\r\n\r\n", false),
    ] {
        let (head, _) = parse_head(text.as_bytes()).unwrap().unwrap();
        assert_eq!((head.framing, head.keep_alive), (Framing::None, keeps), "{text:?}");
        assert!(Body::new(head.framing).is_complete());
    }
}

#[test]
fn which_connections_may_be_used_again() {
    for (text, expected) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n", true),
        ("HTTP/1.1 200 OK\r\ncontent-length: 1\r\nConnection: Close\r\n\r\n", false),
        ("HTTP/1.1 200 OK\r\ncontent-length: 1\r\nconnection: x, close\r\n\r\n", false),
        ("HTTP/1.1 200 OK\r\n\r\n", false),
        ("HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\n", false),
        ("HTTP/1.0 200 OK\r\ncontent-length: 1\r\nconnection: keep-alive\r\n\r\n", true),
    ] {
        assert_eq!(
            parse_head(text.as_bytes()).unwrap().unwrap().0.keep_alive,
            expected,
            "{text:?}"
        );
    }
}

#[test]
fn the_head_is_bounded() {
    let endless = [OK, b"x: ".as_slice(), &b"y".repeat(HEAD_LIMIT_BYTES)].concat();
    assert_eq!(parse_head(&endless), Err(HttpFault::HeadTooLong));
    assert_eq!(
        parse_head(&[endless.as_slice(), b"\r\n\r\n"].concat()),
        Err(HttpFault::HeadTooLong)
    );
    assert_eq!(
        parse_head(&b"HTTP/1.1 100 Continue\r\n\r\n".repeat(3000)),
        Err(HttpFault::HeadTooLong)
    );
    assert_eq!(
        head_of(&"x: y\r\n".repeat(FIELDS_LIMIT + 1)),
        Err(HttpFault::Head(httparse::Error::TooManyHeaders))
    );
}

#[test]
fn chunked_bodies_cut_anywhere() {
    let stream = b"4;name=\"v\"\r\ndata\r\n00A \r\n0123456789\r\n0\r\nx: y\r\nz: \r\n\r\nHTTP";
    assert_body(Framing::Chunked, stream, Ok((b"data0123456789".to_vec(), 4, true)));
}

#[test]
fn bodies_by_length_and_until_close() {
    assert_body(Framing::Length(3), b"abcdef", Ok((b"abc".to_vec(), 3, true)));
    assert_body(Framing::Length(9), b"abc", Ok((b"abc".to_vec(), 0, false)));
    assert_body(Framing::UntilClose, b"abc", Ok((b"abc".to_vec(), 0, false)));
    assert_body(Framing::None, b"abc", Ok((Vec::new(), 3, true)));
}

#[test]
fn bad_chunks_are_refused() {
    for stream in [
        "\r\n",
        ";\r\n",
        "g\r\n",
        "-1\r\n",
        "0x1\r\n",
        " 1\r\n",
        "1\n",
        "1\ra",
        "1;a\nb",
        "1;\x01\r\n",
        "1\r\nab",
        "1\r\na\n",
        "1\r\na\rb",
        "0\r\na\n",
        "0\r\n\n",
        "0\r\n\rx",
        "0\r\na\rb",
        "0\r\n\x7f",
    ] {
        assert_body(Framing::Chunked, stream.as_bytes(), Err(HttpFault::Chunk));
    }
    assert_body(Framing::Chunked, b"00000000000000001\r\n", Err(HttpFault::Chunk));
    assert_body(Framing::Chunked, b"ffffffffffffffff\r\nab", Ok((b"ab".to_vec(), 0, false)));
}

#[test]
fn what_nobody_reads_is_bounded() {
    let filler = "x".repeat(IGNORED_LIMIT_BYTES as usize + 1);
    for stream in [
        format!("1;{filler}\r\n"),
        format!("0\r\n{filler}\r\n"),
        format!("0\r\n{}", "x:\r\n".repeat(filler.len())),
    ] {
        assert_eq!(body_in(Framing::Chunked, &[stream.as_bytes()]), Err(HttpFault::IgnoredTooLong));
    }
}

#[test]
fn b15_an_end_before_the_promised_length_is_a_fault() {
    for (framing, bytes, expected) in [
        (Framing::Length(9), "abc", Err(HttpFault::Truncated)),
        (Framing::Length(3), "abc", Ok(())),
        (Framing::Chunked, "3\r\nabc\r\n", Err(HttpFault::Truncated)),
        (Framing::Chunked, "3\r\nabc\r\n0\r\n", Err(HttpFault::Truncated)),
        (Framing::Chunked, "3\r\nabc\r\n0\r\n\r\n", Ok(())),
        (Framing::UntilClose, "abc", Ok(())),
        (Framing::None, "", Ok(())),
    ] {
        let mut body = Body::new(framing);
        let mut input = bytes.as_bytes();
        while body.feed(&mut input).unwrap().is_some() {}
        assert_eq!(body.eof(), expected, "{framing:?} {bytes:?}");
        assert_eq!(body.is_complete(), expected.is_ok());
    }
}

proptest! {
    #[test]
    fn no_bytes_make_the_head_parser_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), with_status in any::<bool>()) {
        if with_status {
            bytes.splice(0..0, OK.iter().copied());
        }
        let _ = parse_head(&bytes);
    }

    #[test]
    fn chunks_survive_any_cut(chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..40), 0..8), size in 1usize..20) {
        let mut stream = Vec::new();
        for chunk in &chunks {
            stream.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            stream.extend_from_slice(chunk);
            stream.extend_from_slice(b"\r\n");
        }
        stream.extend_from_slice(b"0\r\n\r\n");
        let reads: Vec<&[u8]> = stream.chunks(size).collect();
        prop_assert_eq!(body_in(Framing::Chunked, &reads), Ok((chunks.concat(), 0, true)));
    }

    #[test]
    fn any_bytes_cut_anywhere_are_one_body(bytes in proptest::collection::vec(prop_oneof![Just(b'0'), Just(b'2'), Just(b'\r'), Just(b'\n'), Just(b';'), any::<u8>()], 0..60), size in 1usize..9) {
        let reads: Vec<&[u8]> = bytes.chunks(size).collect();
        prop_assert_eq!(body_in(Framing::Chunked, &[&bytes]), body_in(Framing::Chunked, &reads));
    }
}
