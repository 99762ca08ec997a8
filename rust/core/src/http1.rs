//! HTTP/1 responses: the head, and where its body ends.
//!
//! Refuses whatever two parsers could read differently: several lengths, a length beside chunks, a
//! coding other than chunked, bare line feeds, folded lines. Such a backend is broken, or something
//! between it and the gateway tampers. Responses to HEAD are not supported: the gateway never sends
//! HEAD.

use thiserror::Error;

/// Status line and fields together; interim (1xx) responses count too.
const HEAD_LIMIT_BYTES: usize = 64 << 10;
const FIELDS_LIMIT: usize = 128;
/// Limit of one chunk's extensions, and of all trailer fields together. Both are ignored.
const IGNORED_LIMIT_BYTES: u32 = 16 << 10;

#[derive(Debug, Error, PartialEq, Eq)]
pub enum HttpFault {
    #[error("the response head is not HTTP/1: {0}")]
    Head(httparse::Error),
    #[error("the response head is longer than {HEAD_LIMIT_BYTES} bytes")]
    HeadTooLong,
    #[error("a line of the response head ends with a bare line feed")]
    BareLineFeed,
    #[error("the backend switches protocols, which nobody asked for")]
    SwitchingProtocols,
    #[error("status {0} does not exist")]
    Status(u16),
    #[error("Content-Length is not one number")]
    ContentLength,
    #[error("Transfer-Encoding is not chunked alone")]
    TransferEncoding,
    #[error("the response has both Content-Length and Transfer-Encoding")]
    LengthAndChunks,
    #[error("a chunk of the body is framed wrongly")]
    Chunk,
    #[error("chunk extensions or trailers are longer than {IGNORED_LIMIT_BYTES} bytes")]
    IgnoredTooLong,
    #[error("the connection ended before the body did")]
    Truncated,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseHead {
    pub status: u16,
    /// Names in lower case, values as they came.
    pub headers: Vec<(String, Vec<u8>)>,
    pub framing: Framing,
    /// May the connection carry another request once the body is complete?
    pub keep_alive: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    Length(u64),
    Chunked,
    UntilClose,
    None,
}

impl ResponseHead {
    /// The values of all fields with this (lower-case) name.
    pub fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.headers.iter().filter(move |(n, _)| n == name).map(|(_, value)| value.as_slice())
    }
}

/// The final response head at the start of `bytes` and how many bytes it took, interim responses
/// skipped; None when more is needed.
pub fn parse_head(bytes: &[u8]) -> Result<Option<(ResponseHead, usize)>, HttpFault> {
    let mut used = 0;
    loop {
        let Some((head, length)) = parse_one_head(&bytes[used..])? else {
            return if bytes.len() >= HEAD_LIMIT_BYTES {
                Err(HttpFault::HeadTooLong)
            } else {
                Ok(None)
            };
        };
        used += length;
        match head.status {
            _ if used > HEAD_LIMIT_BYTES => return Err(HttpFault::HeadTooLong),
            101 => return Err(HttpFault::SwitchingProtocols),
            100..=199 => {}
            200..=599 => return Ok(Some((head, used))),
            other => return Err(HttpFault::Status(other)),
        }
    }
}

fn parse_one_head(bytes: &[u8]) -> Result<Option<(ResponseHead, usize)>, HttpFault> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_LIMIT];
    let mut response = httparse::Response::new(&mut fields);
    let parsed = response.parse(bytes).map_err(HttpFault::Head)?;
    let httparse::Status::Complete(length) = parsed else { return Ok(None) };
    let head = &bytes[..length];
    if memchr::memchr_iter(b'\n', head).any(|at| at == 0 || head[at - 1] != b'\r') {
        return Err(HttpFault::BareLineFeed);
    }
    let headers = response
        .headers
        .iter()
        .map(|field| (field.name.to_ascii_lowercase(), field.value.to_vec()))
        .collect();
    let mut head = ResponseHead {
        status: response.code.unwrap_or_default(),
        headers,
        framing: Framing::UntilClose,
        keep_alive: false,
    };
    let is_http_1_1 = response.version == Some(1);
    head.framing = framing(&head, is_http_1_1)?;
    head.keep_alive = keep_alive(&head, is_http_1_1);
    Ok(Some((head, length)))
}

/// RFC 9112, 6.3. Contradictions are refused even where the status allows no body.
fn framing(head: &ResponseHead, is_http_1_1: bool) -> Result<Framing, HttpFault> {
    let length = content_length(head)?;
    let mut codings = head.values("transfer-encoding");
    let coding = codings.next();
    if let Some(coding) = coding {
        if !coding.trim_ascii().eq_ignore_ascii_case(b"chunked")
            || codings.next().is_some()
            || !is_http_1_1
        {
            return Err(HttpFault::TransferEncoding);
        }
        if length.is_some() {
            return Err(HttpFault::LengthAndChunks);
        }
    }
    Ok(match (head.status, coding, length) {
        (100..=199 | 204 | 304, _, _) => Framing::None,
        (_, Some(_), _) => Framing::Chunked,
        (_, None, Some(length)) => Framing::Length(length),
        (_, None, None) => Framing::UntilClose,
    })
}

/// Several equal lengths, in one field or in many, are one length (RFC 9110, 8.6).
fn content_length(head: &ResponseHead) -> Result<Option<u64>, HttpFault> {
    let mut length = None;
    for value in head.values("content-length").flat_map(|values| values.split(|&b| b == b',')) {
        let digits = value.trim_ascii();
        if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
            return Err(HttpFault::ContentLength);
        }
        let number = std::str::from_utf8(digits)
            .ok()
            .and_then(|digits| digits.parse::<u64>().ok())
            .ok_or(HttpFault::ContentLength)?;
        if length.is_some_and(|earlier| earlier != number) {
            return Err(HttpFault::ContentLength);
        }
        length = Some(number);
    }
    Ok(length)
}

fn keep_alive(head: &ResponseHead, is_http_1_1: bool) -> bool {
    let has_token = |token: &[u8]| {
        head.values("connection")
            .flat_map(|value| value.split(|&b| b == b','))
            .any(|t| t.trim_ascii().eq_ignore_ascii_case(token))
    };
    let ends_by_itself = match head.framing {
        Framing::UntilClose => false,
        // A body that is not allowed may be sent all the same; the next response would begin with
        // it.
        Framing::None => {
            head.status == 304
                || head
                    .values("transfer-encoding")
                    .chain(head.values("content-length"))
                    .all(|v| v == b"0")
        }
        Framing::Length(_) | Framing::Chunked => true,
    };
    ends_by_itself && !has_token(b"close") && (is_http_1_1 || has_token(b"keep-alive"))
}

/// Removes the framing of a body, read by read.
#[derive(Debug)]
pub struct Body {
    state: BodyState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BodyState {
    /// Bytes that remain of a body with Content-Length.
    Length(u64),
    UntilClose,
    Size {
        size: u64,
        digits: u8,
    },
    /// Blanks and extensions after a chunk's size, up to CR.
    Extension {
        size: u64,
        skipped: u32,
    },
    SizeLf {
        size: u64,
    },
    Data(u64),
    DataCr,
    DataLf,
    /// At the start of a trailer line, or of the blank line that ends the body.
    TrailerStart {
        skipped: u32,
    },
    Trailer {
        skipped: u32,
    },
    TrailerLf {
        skipped: u32,
    },
    LastLf,
    Complete,
}

impl Body {
    pub fn new(framing: Framing) -> Self {
        let state = match framing {
            Framing::Length(0) | Framing::None => BodyState::Complete,
            Framing::Length(length) => BodyState::Length(length),
            Framing::Chunked => BodyState::Size { size: 0, digits: 0 },
            Framing::UntilClose => BodyState::UntilClose,
        };
        Self { state }
    }

    pub fn is_complete(&self) -> bool {
        self.state == BodyState::Complete
    }

    /// The next fragment of payload, borrowed from `input`, which is advanced past it. None:
    /// `input` is used up, or the body is complete; what is left in `input` then does not belong to
    /// this response.
    pub fn feed<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<&'a [u8]>, HttpFault> {
        while let Some((&byte, rest)) = input.split_first() {
            match self.state {
                BodyState::Complete => return Ok(None),
                BodyState::UntilClose => return Ok(Some(std::mem::take(input))),
                BodyState::Length(left) => {
                    let fragment = take(input, left);
                    let left = left - fragment.len() as u64;
                    self.state =
                        if left == 0 { BodyState::Complete } else { BodyState::Length(left) };
                    return Ok(Some(fragment));
                }
                BodyState::Data(left) => {
                    let fragment = take(input, left);
                    let left = left - fragment.len() as u64;
                    self.state = if left == 0 { BodyState::DataCr } else { BodyState::Data(left) };
                    return Ok(Some(fragment));
                }
                framing => {
                    *input = rest;
                    self.state = step(framing, byte)?;
                }
            }
        }
        Ok(None)
    }

    /// The connection has ended.
    pub fn eof(&mut self) -> Result<(), HttpFault> {
        if !matches!(self.state, BodyState::Complete | BodyState::UntilClose) {
            return Err(HttpFault::Truncated);
        }
        self.state = BodyState::Complete;
        Ok(())
    }
}

fn take<'a>(input: &mut &'a [u8], at_most: u64) -> &'a [u8] {
    let (fragment, rest) =
        input.split_at(usize::try_from(at_most).unwrap_or(usize::MAX).min(input.len()));
    *input = rest;
    fragment
}

/// One byte of chunk framing (RFC 9112, 7.1).
fn step(state: BodyState, byte: u8) -> Result<BodyState, HttpFault> {
    Ok(match (state, byte) {
        (BodyState::Size { size, digits }, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F')
            if digits < 16 =>
        {
            BodyState::Size { size: size << 4 | u64::from(hex_value(byte)), digits: digits + 1 }
        }
        (BodyState::Size { size, digits: 1.. } | BodyState::Extension { size, .. }, b'\r') => {
            BodyState::SizeLf { size }
        }
        (BodyState::Size { size, digits: 1.. }, b';' | b' ' | b'\t') => {
            BodyState::Extension { size, skipped: 1 }
        }
        (BodyState::Extension { size, skipped }, b'\t' | b' '..=b'~' | 0x80..) => {
            BodyState::Extension { size, skipped: count_ignored(skipped)? }
        }
        (BodyState::SizeLf { size: 0 }, b'\n') => BodyState::TrailerStart { skipped: 0 },
        (BodyState::SizeLf { size }, b'\n') => BodyState::Data(size),
        (BodyState::DataCr, b'\r') => BodyState::DataLf,
        (BodyState::DataLf, b'\n') => BodyState::Size { size: 0, digits: 0 },
        (BodyState::TrailerStart { .. }, b'\r') => BodyState::LastLf,
        (BodyState::Trailer { skipped }, b'\r') => BodyState::TrailerLf { skipped },
        (
            BodyState::TrailerStart { skipped } | BodyState::Trailer { skipped },
            b'\t' | b' '..=b'~' | 0x80..,
        ) => BodyState::Trailer { skipped: count_ignored(skipped)? },
        (BodyState::TrailerLf { skipped }, b'\n') => BodyState::TrailerStart { skipped },
        (BodyState::LastLf, b'\n') => BodyState::Complete,
        _ => return Err(HttpFault::Chunk),
    })
}

fn hex_value(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

fn count_ignored(skipped: u32) -> Result<u32, HttpFault> {
    if skipped >= IGNORED_LIMIT_BYTES { Err(HttpFault::IgnoredTooLong) } else { Ok(skipped + 1) }
}

#[cfg(test)]
mod tests;
