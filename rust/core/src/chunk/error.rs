//! An error in place of a chunk (or of a reply), in any of the shapes engines use. `failure` maps
//! it to the client's error.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer, Visitor};
use serde_json::value::RawValue;

use super::json::{Parsed, elements, members, some, unquote};
use super::types::{BackendError, ChunkFault};

impl BackendError {
    /// Reads a whole body; empty where it holds no error. Fails on a body that is not JSON.
    pub fn read(body: &[u8]) -> Parsed<Self> {
        let text = std::str::from_utf8(body).map_err(|_| ChunkFault::NotUtf8)?;
        let raw = serde_json::from_str::<&RawValue>(text)?.get();
        if !raw.starts_with('{') {
            return Ok(if raw.starts_with('"') { message_only(raw) } else { Self::default() });
        }
        let mut failure = Failure::default();
        members("error", raw, &mut |key, value| failure.member(key, value))?;
        Ok(failure.read(raw, false)?.unwrap_or_default())
    }
}

fn message_only(raw: &str) -> BackendError {
    BackendError { message: decode_text(raw).into_owned(), ..BackendError::default() }
}

/// Top-level members that announce an error, where they are present and not null.
#[derive(Default)]
pub(super) struct Failure<'a> {
    error: Option<&'a str>,
    detail: Option<&'a str>,
    message: Option<&'a str>,
    is_flat: bool,
}

impl<'a> Failure<'a> {
    pub(super) fn member(&mut self, key: &str, value: &'a str) {
        match key {
            "error" => self.error = some(value),
            "detail" => self.detail = some(value),
            "message" => self.message = some(value),
            "object" => self.is_flat = value == "\"error\"",
            _ => {}
        }
    }

    /// `text` is the whole object, which is the error itself in the flat shape. Beside choices only
    /// a plain `error` counts.
    pub(super) fn read(&self, text: &str, has_choices: bool) -> Parsed<Option<BackendError>> {
        let error = match self.error {
            Some("false" | "\"\"") => return Ok(None),
            Some(error) => error,
            None if self.is_flat => text,
            None if has_choices => return Ok(None),
            None if self.message.is_some_and(|message| message.starts_with('"'))
                || self.detail.is_some() =>
            {
                text
            }
            None => return Ok(None),
        };
        if !error.trim_ascii_start().starts_with('{') {
            return Ok(Some(message_only(error)));
        }
        let mut read = BackendError::default();
        let mut detail = None;
        members("error", error, &mut |key, value| match key {
            "message" if value != "null" => read.message = decode_text(value).into_owned(),
            "detail" => detail = some(value),
            "type" if value != "null" => read.kind = decode_text(value).into_owned(),
            "code" => {
                read.status = value
                    .trim_matches('"')
                    .parse()
                    .ok()
                    .filter(|status| (400..=599).contains(status))
            }
            "n_prompt_tokens" => read.prompt_tokens = value.parse().ok(),
            "n_ctx" => read.context_window = value.parse().ok(),
            _ => {}
        })?;
        if let Some(detail) = detail.filter(|_| read.message.is_empty()) {
            read.message = detail_text(detail)?;
        }
        Ok(Some(read))
    }
}

/// FastAPI's `detail` is a text, or a list with a `msg` per location.
fn detail_text(raw: &str) -> Parsed<String> {
    if !raw.starts_with('[') {
        return Ok(decode_text(raw).into_owned());
    }
    let mut messages = Vec::new();
    for item in elements("detail", raw)? {
        if item.starts_with('{') {
            members("detail[]", item, &mut |key, value| {
                if key == "msg" {
                    messages.push(decode_text(value));
                }
            })?;
        } else {
            messages.push(decode_text(item));
        }
    }
    Ok(messages.join("; "))
}

/// The text of a JSON string; of any other value, the JSON itself. Lone surrogates become U+FFFD.
fn decode_text(raw: &str) -> Cow<'_, str> {
    let Some(escaped) = unquote(raw) else { return raw.into() };
    if !escaped.contains('\\') {
        return escaped.into();
    }
    match serde_json::Deserializer::from_str(raw).deserialize_bytes(Bytes) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned().into(),
        Err(_) => escaped.into(),
    }
}

/// serde_json accepts lone surrogates for bytes, but not for text.
struct Bytes;

impl<'de> Visitor<'de> for Bytes {
    type Value = Vec<u8>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
        Ok(bytes.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_bodies() {
        for (body, message) in [
            (r#"{"error":{"message":"m"}}"#, "m"),
            (r#"{"detail":[{"msg":"a"},"b"]}"#, "a; b"),
            (r#""bare""#, "bare"),
            (r#"{"choices":[]}"#, ""),
            ("[1]", ""),
        ] {
            assert_eq!(BackendError::read(body.as_bytes()).unwrap().message, message, "{body}");
        }
        assert!(BackendError::read(b"<html>").is_err());
        assert!(BackendError::read(b"\"\xff\"").is_err());
    }

    #[test]
    fn a_status_is_one_of_an_error() {
        for (code, status) in
            [("503", Some(503)), ("\"503\"", Some(503)), ("20", None), ("\"x\"", None)]
        {
            let body = format!(r#"{{"error":{{"message":"m","code":{code}}}}}"#);
            assert_eq!(BackendError::read(body.as_bytes()).unwrap().status, status, "{code}");
        }
    }

    #[test]
    fn text_is_decoded() {
        assert_eq!(decode_text(r#""a\n\"b\"""#), "a\n\"b\"");
        assert_eq!(decode_text("5"), "5");
    }
}
