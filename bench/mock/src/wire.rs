//! Bytes on the wire: what a vLLM backend sends and as much HTTP as a benchmark needs to read.
//! Knows nothing of sockets, runs or time.

use memchr::memmem;

/// Every token carries its number as `~00000017~`, so that it is recognised whatever a proxy wraps around it.
const MARK_LEN: usize = 10;

pub const ANSWER_HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";

const ROLE: &str = "data: {\"id\":\"chatcmpl-0a1b2c3d4e5f6071\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}],\"prompt_token_ids\":null}\n\n";
const FINISH: &str = "data: {\"id\":\"chatcmpl-0a1b2c3d4e5f6071\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\"},\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":null}]}\n\n";
const MODELS: &str =
    "{\"object\":\"list\",\"data\":[{\"id\":\"m\",\"object\":\"model\",\"created\":1,\"owned_by\":\"vllm\",\"max_model_len\":131072}]}";

fn frame(payload: &str) -> Vec<u8> {
    format!("{:x}\r\n{payload}\r\n", payload.len()).into_bytes()
}

/// Head and first chunk of a streamed reply: a role and no content, as vLLM sends it before the first token.
pub fn opening() -> Vec<u8> {
    [ANSWER_HEAD, &frame(ROLE)].concat()
}

pub fn token(number: usize) -> Vec<u8> {
    frame(&format!(
        "data: {{\"id\":\"chatcmpl-0a1b2c3d4e5f6071\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,\"model\":\"m\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\" ~{number:08}~\"}},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}}]}}\n\n"
    ))
}

/// Finish reason, usage, `[DONE]` and the end of the body.
pub fn closing(tokens: usize) -> Vec<u8> {
    let usage = format!(
        "data: {{\"id\":\"chatcmpl-0a1b2c3d4e5f6071\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,\"model\":\"m\",\"choices\":[],\"usage\":{{\"prompt_tokens\":12,\"total_tokens\":{},\"completion_tokens\":{tokens}}}}}\n\n",
        tokens + 12
    );
    [frame(FINISH), frame(&usage), frame("data: [DONE]\n\n"), b"0\r\n\r\n".to_vec()].concat()
}

/// The answer to a request that is no completion: models, health, version.
pub fn plain_answer(target: &[u8]) -> Vec<u8> {
    let body = match target {
        t if memmem::find(t, b"/models").is_some() => MODELS,
        t if memmem::find(t, b"/version").is_some() => "{\"version\":\"0.33.0\"}",
        _ => "{}",
    };
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

pub struct Request {
    pub target: Vec<u8>,
    /// The number in `stream=<N>`, which the client put into its message.
    pub stream: Option<usize>,
}

/// Takes one whole request off the front of `inbox`, if one is there.
pub fn take_request(inbox: &mut Vec<u8>) -> Option<Request> {
    let head_len = memmem::find(inbox, b"\r\n\r\n")? + 4;
    let head = inbox[..head_len].to_ascii_lowercase();
    let chunked = memmem::find(&head, b"transfer-encoding: chunked").is_some();
    let body_len = if chunked {
        memmem::find(&inbox[head_len..], b"0\r\n\r\n")? + 5
    } else {
        memmem::find(&head, b"content-length:")
            .and_then(|at| number(&head[at + 15..]))
            .unwrap_or(0)
    };
    if inbox.len() < head_len + body_len {
        return None;
    }
    let body = &inbox[head_len..head_len + body_len];
    let stream = memmem::rfind(body, b"stream=<").and_then(|at| number(&body[at + 8..]));
    let target = head.split(|b| *b == b' ').nth(1).unwrap_or_default().to_vec();
    inbox.drain(..head_len + body_len);
    Some(Request { target, stream })
}

/// The status of an answer whose head is complete, and where its body begins.
pub fn status(inbox: &[u8]) -> Option<(u16, usize)> {
    let end = memmem::find(inbox, b"\r\n\r\n")? + 4;
    let code = inbox.get(9..12).and_then(number).unwrap_or(0);
    Some((u16::try_from(code).unwrap_or(0), end))
}

/// Calls `on_token` with each token number in `inbox` and drops what was looked at; a mark cut in two stays.
/// Returns whether the body has ended.
pub fn take_tokens(inbox: &mut Vec<u8>, mut on_token: impl FnMut(usize)) -> bool {
    let mut at = 0;
    while let Some(found) = memchr::memchr(b'~', &inbox[at..]) {
        let start = at + found;
        let Some(mark) = inbox.get(start..start + MARK_LEN) else { break };
        match (mark[MARK_LEN - 1], mark[1..MARK_LEN - 1].iter().all(u8::is_ascii_digit)) {
            (b'~', true) => {
                on_token(number(&mark[1..]).unwrap_or(0));
                at = start + MARK_LEN;
            }
            _ => at = start + 1,
        }
    }
    let ended = inbox.ends_with(b"0\r\n\r\n");
    let keep_from = at.max(inbox.len().saturating_sub(MARK_LEN - 1));
    inbox.drain(..keep_from);
    ended
}

fn number(bytes: impl AsRef<[u8]>) -> Option<usize> {
    let digits = bytes.as_ref().iter().skip_while(|b| **b == b' ').take_while(|b| b.is_ascii_digit());
    let mut value = None;
    for digit in digits {
        value = Some(value.unwrap_or(0) * 10 + usize::from(digit - b'0'));
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_taken_only_when_whole() {
        let whole = b"POST /v1/messages HTTP/1.1\r\nContent-Length: 11\r\n\r\nstream=<17>GET".to_vec();
        for cut in 0..whole.len() - 3 {
            assert!(take_request(&mut whole[..cut].to_vec()).is_none());
        }
        let mut inbox = whole;
        assert_eq!(take_request(&mut inbox).and_then(|r| r.stream), Some(17));
        assert_eq!(inbox, b"GET");
    }

    #[test]
    fn tokens_are_found_however_the_bytes_are_cut() {
        let body = [token(3), token(4), closing(2)].concat();
        for cut in 0..body.len() {
            let (mut inbox, mut seen) = (body[..cut].to_vec(), vec![]);
            let early = take_tokens(&mut inbox, |n| seen.push(n));
            inbox.extend_from_slice(&body[cut..]);
            assert!(take_tokens(&mut inbox, |n| seen.push(n)) && !early);
            assert_eq!(seen, [3, 4]);
        }
    }
}
