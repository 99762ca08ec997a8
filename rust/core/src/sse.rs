//! `text/event-stream` bytes, cut anywhere → the data of each event.
//!
//! Lines end with LF, CRLF or CR; several data lines of one event are joined with LF. Comments,
//! names, ids and retry hints are skipped: engines put nothing in them, and they do not count as
//! progress. The data is not interpreted here.

use std::ops::ControlFlow;

use memchr::memchr2;
use thiserror::Error;

/// Limit of one event, and of one line: far more than engines send, and affordable per stream.
pub const EVENT_LIMIT_BYTES: usize = 1 << 20;

/// Buffers that grew past this for one long event are freed after it.
const KEPT_BUFFER_BYTES: usize = 16 << 10;

const BOM: &[u8] = b"\xef\xbb\xbf";

#[derive(Debug, Error, PartialEq, Eq)]
pub enum SseFault {
    #[error("an event of the stream is longer than {limit_bytes} bytes")]
    TooLong { limit_bytes: usize },
}

/// Buffers incomplete events between reads. An event that is complete within one read is not
/// copied.
#[derive(Debug)]
pub struct Decoder {
    limit_bytes: usize,
    /// The incomplete line.
    line: Vec<u8>,
    /// Data lines of the incomplete event, joined.
    data: Vec<u8>,
    has_data: bool,
    /// The last byte was a CR: an LF that follows belongs to it.
    after_cr: bool,
    is_first_line: bool,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new(EVENT_LIMIT_BYTES)
    }
}

impl Decoder {
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            line: Vec::new(),
            data: Vec::new(),
            has_data: false,
            after_cr: false,
            is_first_line: true,
        }
    }

    /// Calls `on_event` with the data of every event that `bytes` completes. After a `Break` the
    /// rest of `bytes` is dropped; after a fault nothing more can be read.
    pub fn feed(
        &mut self,
        bytes: &[u8],
        on_event: &mut impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(), SseFault> {
        let mut rest = bytes;
        // The only data line so far of an event that began in this read.
        let mut borrowed: Option<&[u8]> = None;
        loop {
            if self.after_cr && !rest.is_empty() {
                self.after_cr = false;
                rest = rest.strip_prefix(b"\n").unwrap_or(rest);
            }
            let Some(end) = memchr2(b'\n', b'\r', rest) else { break };
            let line = &rest[..end];
            self.after_cr = rest[end] == b'\r';
            rest = &rest[end + 1..];
            let is_blank = if self.line.is_empty() {
                self.take_line(line, &mut borrowed)?
            } else {
                self.take_held_line(line)?
            };
            if is_blank && self.emit(borrowed.take(), on_event).is_break() {
                return Ok(());
            }
        }
        if let Some(value) = borrowed {
            self.append(value)?;
        }
        self.line.extend_from_slice(rest);
        self.check(self.line.len())
    }

    /// The body has ended: an event that lacks only its blank line is passed on.
    pub fn finish(
        &mut self,
        on_event: &mut impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(), SseFault> {
        if !self.line.is_empty() {
            self.take_held_line(b"")?;
        }
        let _last = self.emit(None, on_event);
        Ok(())
    }

    /// Takes a line that is complete within this read. True: it is blank, and so ends the event.
    fn take_line<'a>(
        &mut self,
        line: &'a [u8],
        borrowed: &mut Option<&'a [u8]>,
    ) -> Result<bool, SseFault> {
        self.check(line.len())?;
        let line = self.without_bom(line);
        if let Some(value) = data_of(line) {
            if self.has_data || borrowed.is_some() {
                if let Some(first) = borrowed.take() {
                    self.append(first)?;
                }
                self.append(value)?;
            } else {
                *borrowed = Some(value);
            }
        }
        Ok(line.is_empty())
    }

    /// Takes the end of a line that began in an earlier read. True: it is blank, which only a lone
    /// byte order mark can be.
    fn take_held_line(&mut self, end: &[u8]) -> Result<bool, SseFault> {
        self.line.extend_from_slice(end);
        self.check(self.line.len())?;
        let mut held = std::mem::take(&mut self.line);
        let line = self.without_bom(&held);
        let is_blank = line.is_empty();
        if let Some(value) = data_of(line) {
            self.append(value)?;
        }
        if held.capacity() <= KEPT_BUFFER_BYTES {
            held.clear();
            self.line = held;
        }
        Ok(is_blank)
    }

    fn emit(
        &mut self,
        borrowed: Option<&[u8]>,
        on_event: &mut impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if let Some(data) = borrowed {
            return if data.is_empty() { ControlFlow::Continue(()) } else { on_event(data) };
        }
        self.has_data = false;
        let mut data = std::mem::take(&mut self.data);
        let flow = if data.is_empty() { ControlFlow::Continue(()) } else { on_event(&data) };
        if data.capacity() <= KEPT_BUFFER_BYTES {
            data.clear();
            self.data = data;
        }
        flow
    }

    fn append(&mut self, value: &[u8]) -> Result<(), SseFault> {
        self.check(self.data.len() + usize::from(self.has_data) + value.len())?;
        if self.has_data {
            self.data.push(b'\n');
        }
        self.has_data = true;
        self.data.extend_from_slice(value);
        Ok(())
    }

    fn without_bom<'a>(&mut self, line: &'a [u8]) -> &'a [u8] {
        if !self.is_first_line {
            return line;
        }
        self.is_first_line = false;
        line.strip_prefix(BOM).unwrap_or(line)
    }

    fn check(&self, length: usize) -> Result<(), SseFault> {
        if length > self.limit_bytes {
            Err(SseFault::TooLong { limit_bytes: self.limit_bytes })
        } else {
            Ok(())
        }
    }
}

/// The value of a `data` line, None for every other line.
fn data_of(line: &[u8]) -> Option<&[u8]> {
    let rest = line.strip_prefix(b"data")?;
    let Some(value) = rest.strip_prefix(b":") else {
        return rest.is_empty().then_some(rest);
    };
    Some(value.strip_prefix(b" ").unwrap_or(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GO: ControlFlow<()> = ControlFlow::Continue(());

    fn decode_events(reads: &[&[u8]]) -> Result<Vec<String>, SseFault> {
        let mut decoder = Decoder::new(64);
        let mut events = Vec::new();
        let mut keep = |data: &[u8]| {
            events.push(String::from_utf8_lossy(data).into_owned());
            GO
        };
        for read in reads {
            decoder.feed(read, &mut keep)?;
        }
        decoder.finish(&mut keep)?;
        Ok(events)
    }

    /// Whole, byte by byte and cut in two at every place: always the same.
    fn assert_events(stream: &[u8], expected: &[&str]) {
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(
            decode_events(&[stream]).unwrap(),
            expected,
            "whole: {:?}",
            String::from_utf8_lossy(stream)
        );
        assert_eq!(
            decode_events(&bytes).unwrap(),
            expected,
            "byte by byte: {:?}",
            String::from_utf8_lossy(stream)
        );
        for at in 0..stream.len() {
            assert_eq!(
                decode_events(&[&stream[..at], b"", &stream[at..]]).unwrap(),
                expected,
                "cut at {at}"
            );
        }
    }

    #[test]
    fn plain_events() {
        assert_events(b"data: a\n\ndata: b\n\ndata: [DONE]\n\n", &["a", "b", "[DONE]"]);
    }

    #[test]
    fn a25_done_inside_content_is_content() {
        assert_events(
            b"data: {\"content\":\"print('data: [DONE]')\"}\n\ndata: {\"content\":\" after\"}\n\n",
            &["{\"content\":\"print('data: [DONE]')\"}", "{\"content\":\" after\"}"],
        );
    }

    #[test]
    fn b01_characters_cut_by_reads_arrive_whole() {
        assert_events("data: 北🌍é\n\n".as_bytes(), &["北🌍é"]);
    }

    #[test]
    fn b05_cut_between_the_two_line_ends_of_a_frame() {
        assert_eq!(
            decode_events(&[b"data: a\n", b"\ndata: {\"usage\"", b":1}\n", b"\n"]).unwrap(),
            ["a", "{\"usage\":1}"]
        );
    }

    #[test]
    fn b07_every_kind_of_line_end() {
        assert_events(b"data: a\r\n\r\ndata: b\r\n\r\n", &["a", "b"]);
        assert_events(b"data: a\r\rdata: b\r\r", &["a", "b"]);
        assert_events(b"data: a\r\n\ndata: b\n\r\ndata: c\r\n\rdata: d\n\n", &["a", "b", "c", "d"]);
    }

    #[test]
    fn a_carriage_return_ends_an_event_without_waiting_for_more() {
        let mut events = 0;
        let mut decoder = Decoder::default();
        let mut count = |_: &[u8]| {
            events += 1;
            GO
        };
        decoder.feed(b"data: a\r\n\r", &mut count).unwrap();
        assert_eq!(events, 1);
    }

    #[test]
    fn b09_comments_and_other_fields_are_skipped() {
        assert_events(
            b": PROCESSING\n\nevent: x\nid: 1\ndata: a\nretry: 5\n:\n\n: keep-alive\n\n",
            &["a"],
        );
        assert_events(b"dataset: 1\nDATA: 2\n data: 3\n\n", &[]);
    }

    #[test]
    fn b11_data_lines_are_joined() {
        assert_events(
            b"data: {\"id\":\"c1\",\ndata: \"choices\":[]}\n\n",
            &["{\"id\":\"c1\",\n\"choices\":[]}"],
        );
        assert_events(b"data:\ndata\ndata: x\n\n", &["\n\nx"]);
    }

    #[test]
    fn only_one_blank_after_the_colon_belongs_to_the_field() {
        assert_events(b"data:a\n\ndata:  b\n\n", &["a", " b"]);
    }

    #[test]
    fn empty_events_say_nothing() {
        assert_events(b"\n\ndata:\n\ndata: \n\n\n", &[]);
    }

    #[test]
    fn a_byte_order_mark_counts_only_at_the_start() {
        assert_events(b"\xef\xbb\xbfdata: a\n\n", &["a"]);
        assert_events(b"\xef\xbb\xbf\ndata: a\n\n", &["a"]);
        assert_events(b"data: a\n\n\xef\xbb\xbfdata: b\n\n", &["a"]);
    }

    #[test]
    fn the_last_event_needs_no_blank_line() {
        assert_events(b"data: a\n\ndata: [DONE]", &["a", "[DONE]"]);
        assert_events(b"data: a\n\ndata: b\n", &["a", "b"]);
    }

    #[test]
    fn a_break_drops_the_rest_of_the_read() {
        let mut seen = Vec::new();
        let mut stop = |data: &[u8]| {
            seen.push(data.to_vec());
            ControlFlow::Break(())
        };
        Decoder::default().feed(b"data: a\n\ndata: b\n\n", &mut stop).unwrap();
        assert_eq!(seen, [b"a"]);
    }

    #[test]
    fn limits_hold_however_the_stream_is_cut() {
        let long_line = [b"data: ".as_slice(), &[b'x'; 59], b"\n\n"].concat();
        let long_comment = [b":".as_slice(), &[b'x'; 64], b"\n"].concat();
        let many_lines = b"data: 0123456789\n".repeat(6);
        for stream in [long_line, long_comment, many_lines] {
            let bytes: Vec<&[u8]> = stream.chunks(1).collect();
            assert_eq!(decode_events(&[&stream]), Err(SseFault::TooLong { limit_bytes: 64 }));
            assert_eq!(decode_events(&bytes), Err(SseFault::TooLong { limit_bytes: 64 }));
        }
        assert_events(
            &[b"data: ".as_slice(), &[b'x'; 58], b"\n\n"].concat(),
            &["x".repeat(58).as_str()],
        );
    }

    proptest! {
        #[test]
        fn any_bytes_cut_anywhere_give_the_same(
            stream in proptest::collection::vec(prop_oneof![Just(b"data".to_vec()), Just(b":".to_vec()), Just(b" ".to_vec()), Just(b"\n".to_vec()), Just(b"\r".to_vec()), Just(vec![0xef, 0xbb, 0xbf]), any::<u8>().prop_map(|b| vec![b])], 0..40),
            size in 1usize..9,
        ) {
            let stream = stream.concat();
            let reads: Vec<&[u8]> = stream.chunks(size).collect();
            prop_assert_eq!(decode_events(&[&stream]), decode_events(&reads));
        }
    }
}
