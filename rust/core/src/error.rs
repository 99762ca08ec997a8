//! Errors as clients get them: the error types of the Messages API, the status each has before a
//! stream has begun, and the event that ends a stream, on both routes.

use crate::text::escape;

/// The error types of the Messages API that a response can end in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    InvalidRequest,
    NotFound,
    RequestTooLarge,
    RateLimit,
    Api,
    Timeout,
    Overloaded,
}

impl ErrorKind {
    pub const ALL: [Self; 7] = [
        Self::InvalidRequest,
        Self::NotFound,
        Self::RequestTooLarge,
        Self::RateLimit,
        Self::Api,
        Self::Timeout,
        Self::Overloaded,
    ];

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request_error",
            Self::NotFound => "not_found_error",
            Self::RequestTooLarge => "request_too_large",
            Self::RateLimit => "rate_limit_error",
            Self::Api => "api_error",
            Self::Timeout => "timeout_error",
            Self::Overloaded => "overloaded_error",
        }
    }

    /// The HTTP status of this failure of a backend when nothing was sent yet.
    pub fn status(self) -> u16 {
        match self {
            Self::InvalidRequest => 400,
            Self::NotFound => 404,
            Self::RequestTooLarge => 413,
            Self::RateLimit => 429,
            Self::Api => 502,
            Self::Timeout => 504,
            Self::Overloaded => 529,
        }
    }
}

/// A failure in the client's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub kind: ErrorKind,
    pub message: String,
}

/// The `error` event of the Messages API.
pub fn write_messages_event(kind: ErrorKind, message: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"");
    out.extend_from_slice(kind.as_str().as_bytes());
    out.extend_from_slice(b"\",\"message\":\"");
    out.extend_from_slice(escape(message).as_bytes());
    out.extend_from_slice(b"\"}}\n\n");
}

/// An error as a client of chat completions reads it in a stream.
pub fn write_chat_event(fault: &Fault, out: &mut Vec<u8>) {
    let error = serde_json::json!({"error": {
        "message": fault.message,
        "type": fault.kind.as_str(),
        "code": fault.kind.status(),
    }});
    out.extend_from_slice(format!("data: {error}\n\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_reads_back() {
        for kind in ErrorKind::ALL {
            assert_eq!(ErrorKind::parse(kind.as_str()), Some(kind));
            assert!((400..=529).contains(&kind.status()));
        }
        assert_eq!(ErrorKind::parse("error"), None);
    }

    #[test]
    fn events_of_both_routes() {
        let message = "bad \"quote\"\nline2";
        let mut out = Vec::new();
        write_messages_event(ErrorKind::Overloaded, message, &mut out);
        let text = String::from_utf8(std::mem::take(&mut out)).unwrap();
        assert!(text.starts_with("event: error\ndata: {\"type\":\"error\","), "{text}");
        assert!(text.contains("bad \\\"quote\\\"\\nline2"), "{text}");
        write_chat_event(&Fault { kind: ErrorKind::Api, message: message.to_owned() }, &mut out);
        let event = out.strip_prefix(b"data: ").unwrap();
        let json: serde_json::Value = serde_json::from_slice(event).unwrap();
        assert_eq!(json["error"]["message"], message);
        assert_eq!(json["error"]["code"], 502);
    }
}
