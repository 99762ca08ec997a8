//! A backend's failure as a client gets it: status, error type and a clean text.
//!
//! One table maps statuses to error types. The engine's message is kept where it helps the client,
//! without addresses, paths and stack traces. Context overflows get the exact wordings that clients
//! react to.

use crate::chunk::BackendError;
use crate::error::ErrorKind;
use crate::overflow::overflow_message;

/// An engine's message is cut at this length.
const MESSAGE_LIMIT_CHARS: usize = 1000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendFailure {
    pub status: u16,
    pub kind: ErrorKind,
    pub message: String,
    /// The engine is shutting down although it still answers: try another one.
    pub is_draining: bool,
}

/// An HTTP error of a backend, in any of the shapes engines use: `error` as object or string, flat,
/// `detail`, plain text, HTML, nothing.
pub fn backend_error(status: u16, body: &[u8]) -> BackendFailure {
    let plain = |_| BackendError { message: plain_text(body), ..BackendError::default() };
    classify(status, &BackendError::read(body).unwrap_or_else(plain))
}

/// An error event in a stream; one that names no status counts as 500.
pub fn stream_failure(error: &BackendError) -> BackendFailure {
    classify(error.status.filter(|status| *status >= 400).unwrap_or(500), error)
}

fn plain_text(body: &[u8]) -> String {
    let text =
        String::from_utf8_lossy(&body[..body.len().min(8 * MESSAGE_LIMIT_CHARS)]).trim().to_owned();
    // Error pages of proxies in between hold no more than the status.
    if text.starts_with('<') || text.contains('\u{fffd}') { String::new() } else { text }
}

fn classify(status: u16, error: &BackendError) -> BackendFailure {
    let text = error.message.to_ascii_lowercase();
    if text.contains("cannot schedule new futures after shutdown") {
        return BackendFailure {
            is_draining: true,
            ..failure(ErrorKind::Overloaded, "the backend is shutting down")
        };
    }
    if !matches!(status, 401 | 403 | 429)
        && let Some(message) = overflow_message(error)
    {
        return failure(ErrorKind::InvalidRequest, &message);
    }
    let kind = kind_of(status, &text);
    let words = clean(&error.message);
    match (kind, status) {
        (ErrorKind::Api, 401 | 403) => {
            failure(kind, "the backend refused the gateway's credentials")
        }
        (_, _) if words.is_empty() => failure(kind, default_message(kind)),
        (_, _) => failure(kind, &words),
    }
}

fn failure(kind: ErrorKind, message: &str) -> BackendFailure {
    BackendFailure { status: kind.status(), kind, message: message.to_owned(), is_draining: false }
}

/// The one table from a backend's status to the client's error type.
fn kind_of(status: u16, text: &str) -> ErrorKind {
    match status {
        400 | 422 => ErrorKind::InvalidRequest,
        404 if text.contains("model") => ErrorKind::NotFound,
        408 | 504 => ErrorKind::Timeout,
        413 => ErrorKind::RequestTooLarge,
        429 => ErrorKind::RateLimit,
        503 | 529 => ErrorKind::Overloaded,
        // llama.cpp reports input that its model does not support as a 500.
        500 if text.contains("input is not supported") => ErrorKind::InvalidRequest,
        // 401 and 403 concern the gateway's credentials; other 4xx the request as the gateway wrote
        // it.
        _ => ErrorKind::Api,
    }
}

fn default_message(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::InvalidRequest => "the backend refused the request",
        ErrorKind::NotFound => "the backend does not serve this model",
        ErrorKind::RequestTooLarge => "the request is too large for the backend",
        ErrorKind::RateLimit => "the backend limits its requests",
        ErrorKind::Api => "the backend failed",
        ErrorKind::Timeout => "the backend did not answer in time",
        ErrorKind::Overloaded => "the backend is overloaded",
    }
}

/// An engine's message without stack traces, addresses and file paths, in bounded length.
pub fn clean(message: &str) -> String {
    let message = message.split("Traceback (most recent call last)").next().unwrap_or_default();
    let mut kept = String::new();
    for line in message.lines() {
        let trimmed = line.trim_start();
        if trimmed.starts_with("File \"") || trimmed.starts_with("For further information visit") {
            continue;
        }
        if !kept.is_empty() {
            kept.push('\n');
        }
        kept.push_str(&clean_line(line));
    }
    let kept = kept.trim();
    match kept.char_indices().nth(MESSAGE_LIMIT_CHARS) {
        Some((end, _)) => format!("{}…", &kept[..end]),
        None => kept.to_owned(),
    }
}

fn clean_line(line: &str) -> String {
    let line = line.replace(char::is_control, " ");
    let words = line.split(' ').map(|word| {
        let core = word.trim_matches(|c: char| "'\"`()[]{}<>,;".contains(c)).trim_end_matches('.');
        if !core.is_empty() && is_private(core) {
            word.replace(core, "…")
        } else {
            word.to_owned()
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// URLs, addresses with or without a port, absolute file paths.
fn is_private(word: &str) -> bool {
    if word.contains("://")
        || word.starts_with('/') && word[1..].contains('/')
        || word.contains(":\\")
    {
        return true;
    }
    let bare = word.rsplit_once('=').map_or(word, |(_, value)| value);
    let (host, port) = bare.split_once(':').map_or((bare, None), |(host, rest)| (host, Some(rest)));
    let is_port = |port: &str| {
        let digits: &str = port.trim_end_matches('/');
        (2..=5).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit())
    };
    is_ipv4(host) || port.is_some_and(is_port) && (host.contains('.') || host == "localhost")
}

fn is_ipv4(host: &str) -> bool {
    host.parse::<std::net::Ipv4Addr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn h07_statuses() {
        use ErrorKind::{
            Api, InvalidRequest, NotFound, Overloaded, RateLimit, RequestTooLarge, Timeout,
        };
        for (status, body, ours, kind) in [
            (400, r#"{"error":{"message":"bad"}}"#, 400, InvalidRequest),
            (422, r#"{"detail":[{"msg":"bad"}]}"#, 400, InvalidRequest),
            (401, r#"{"error":"Unauthorized"}"#, 502, Api),
            (403, "", 502, Api),
            (404, r#"{"error":{"message":"The model `x` does not exist."}}"#, 404, NotFound),
            (404, r#"{"detail":"Not Found"}"#, 502, Api),
            (405, "", 502, Api),
            (408, "", 504, Timeout),
            (413, "", 413, RequestTooLarge),
            (429, "", 429, RateLimit),
            (500, "", 502, Api),
            (501, "", 502, Api),
            (502, "<html>Bad Gateway</html>", 502, Api),
            (503, "", 529, Overloaded),
            (504, "", 504, Timeout),
            (529, "", 529, Overloaded),
            (
                500,
                r#"{"error":{"message":"image input is not supported - hint: use another model"}}"#,
                400,
                InvalidRequest,
            ),
        ] {
            let failure = backend_error(status, body.as_bytes());
            assert_eq!((failure.status, failure.kind), (ours, kind), "{status} {body}");
            assert!(!failure.message.is_empty() && !failure.is_draining);
        }
    }

    #[test]
    fn shapes_of_errors() {
        for (body, message) in [
            (
                r#"{"error":{"message":"nested","type":"BadRequestError","param":null,"code":400}}"#,
                "nested",
            ),
            (
                r#"{"object":"error","message":"flat","type":"BadRequestError","param":null,"code":400}"#,
                "flat",
            ),
            (r#"{"error":"a string"}"#, "a string"),
            (r#"{"detail":"a detail"}"#, "a detail"),
            (r#"{"detail":[{"loc":["body"],"msg":"one"},{"msg":"two"}]}"#, "one; two"),
            (r#"{"type":"error","error":{"type":"api_error","message":"ours"}}"#, "ours"),
            (r#""bare""#, "bare"),
            ("plain text", "plain text"),
            ("", "the backend refused the request"),
            ("null", "the backend refused the request"),
            ("[]", "the backend refused the request"),
            ("{}", "the backend refused the request"),
            ("<html><body>Bad Request</body></html>", "the backend refused the request"),
        ] {
            assert_eq!(backend_error(400, body.as_bytes()).message, message, "{body}");
        }
    }

    #[test]
    fn h05_bytes_that_are_no_text() {
        let failure = backend_error(500, b"\xff\xfe\x00broken");
        assert_eq!((failure.status, failure.message.as_str()), (502, "the backend failed"));
    }

    #[test]
    fn a_draining_engine_differs_from_a_broken_one() {
        let failure = backend_error(
            500,
            br#"{"error":{"message":"cannot schedule new futures after shutdown","code":500}}"#,
        );
        assert!(failure.is_draining);
        assert_eq!(failure.status, 529);
    }

    #[test]
    fn error_events_have_the_status_that_they_name() {
        let error = BackendError {
            status: Some(503),
            message: "The request queue is full.".to_owned(),
            ..BackendError::default()
        };
        assert_eq!(stream_failure(&error).kind, ErrorKind::Overloaded);
        let unnamed =
            BackendError { message: "Internal server error".to_owned(), ..BackendError::default() };
        assert_eq!(stream_failure(&unnamed).status, 502);
    }

    #[test]
    fn words_of_engines_are_cleaned() {
        for (text, kept) in [
            ("Grammar error: Invalid type: nonsense", "Grammar error: Invalid type: nonsense"),
            ("connect to http://10.0.0.7:8000/v1 failed", "connect to … failed"),
            ("no route to 10.0.0.7:8000.", "no route to …."),
            ("backend-0.pool.svc:8000 is gone", "… is gone"),
            ("at localhost:8000, or so", "at …, or so"),
            ("cannot open '/usr/lib/python3/site-packages/x.py'", "cannot open '…'"),
            ("C:\\models\\m.gguf is missing", "… is missing"),
            ("a\u{1}b\tc\u{7f}\r\nd\u{85}", "a b c \nd"),
            ("failed\nTraceback (most recent call last):\n  File \"/a/b.py\", line 1", "failed"),
            (
                "one\n    For further information visit https://errors.pydantic.dev/2.14/v/missing\ntwo",
                "one\ntwo",
            ),
            (
                "'cache_salt' must not contain '@', '/', or NUL. (parameter=cache_salt)",
                "'cache_salt' must not contain '@', '/', or NUL. (parameter=cache_salt)",
            ),
            (
                "The model `Qwen/Qwen3-8B` does not exist. 1.5 of 2:30",
                "The model `Qwen/Qwen3-8B` does not exist. 1.5 of 2:30",
            ),
        ] {
            assert_eq!(clean(text), kept, "{text}");
        }
        assert_eq!(clean(&"x".repeat(5000)).chars().count(), MESSAGE_LIMIT_CHARS + 1);
    }
}
