//! Context overflows: extracts the numbers from the engines' many wordings and writes one of the
//! two wordings that clients react to.

use crate::chunk::BackendError;

/// Parts of the engines' messages for a prompt that does not fit, in lower case.
const SIGNS: [&str; 9] = [
    "maximum context length",
    "longer than the model's context length",
    "model's context length",
    "exceeds the available context size",
    "longer than the maximum model length",
    "exceed_context_size",
    "context_length_exceeded",
    "exceeds the context window",
    "prompt is too long",
];

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Numbers {
    window: Option<u64>,
    prompt: Option<u64>,
    completion: Option<u64>,
}

/// The Anthropic wording of a context overflow; None when the error is something else.
pub fn overflow_message(error: &BackendError) -> Option<String> {
    let text = error.message.to_ascii_lowercase();
    let is_overflow =
        SIGNS.iter().any(|sign| text.contains(sign)) || error.kind.contains("exceed_context_size");
    if !is_overflow {
        return None;
    }
    let numbers =
        Numbers { window: error.context_window, prompt: error.prompt_tokens, completion: None }
            .or(read_numbers(&text));
    Some(match (numbers.window, numbers.prompt, numbers.completion) {
        (Some(window), Some(prompt), _) if prompt > window => too_long(prompt, window),
        (Some(window), Some(prompt), Some(completion)) => format!(
            "input length and `max_tokens` exceed context limit: {prompt} + {completion} > \
            {window}, decrease input length or `max_tokens` and try again"
        ),
        (Some(window), Some(prompt), None) => {
            too_long(prompt.max(window.saturating_add(1)), window)
        }
        // Only the window is known: report one token too many.
        (Some(window), None, _) => too_long(window.saturating_add(1), window),
        (None, _, _) => "prompt is too long".to_owned(),
    })
}

fn too_long(prompt: u64, window: u64) -> String {
    format!("prompt is too long: {prompt} tokens > {window} maximum")
}

impl Numbers {
    fn or(self, other: Self) -> Self {
        Self {
            window: self.window.or(other.window),
            prompt: self.prompt.or(other.prompt),
            completion: self.completion.or(other.completion),
        }
    }
}

fn read_numbers(text: &str) -> Numbers {
    Numbers {
        window: first(
            text,
            &[
                "maximum context length",
                "maximum model length",
                "context length (",
                "context size (",
            ],
            after,
        ),
        prompt: first(
            text,
            &[" in the messages", " input tokens", " tokens from the input", " in your prompt"],
            before,
        )
        .or_else(|| {
            first(
                text,
                &[
                    "the input (",
                    "request (",
                    "(length ",
                    "your request has ",
                    "prompt is too long: ",
                ],
                after,
            )
        }),
        completion: first(
            text,
            &[" in the completion", " output tokens", " tokens for the completion"],
            before,
        )
        .or_else(|| first(text, &["is too large: "], after)),
    }
}

fn first(text: &str, phrases: &[&str], read: fn(&str, &str) -> Option<u64>) -> Option<u64> {
    phrases.iter().find_map(|phrase| read(text, phrase))
}

/// The number that follows the phrase within a few characters ("of", "is").
fn after(text: &str, phrase: &str) -> Option<u64> {
    let rest = &text[text.find(phrase)? + phrase.len()..];
    let start = rest.find(|c: char| c.is_ascii_digit())?;
    if start > 8 {
        return None;
    }
    let digits = &rest[start..];
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// The number that stands right before the phrase.
fn before(text: &str, phrase: &str) -> Option<u64> {
    let rest = &text[..text.find(phrase)?];
    let start = rest
        .rfind(|c: char| !c.is_ascii_digit())
        .map_or(0, |at| at + rest[at..].chars().next().map_or(1, char::len_utf8));
    rest[start..].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message_for(message: &str) -> Option<String> {
        overflow_message(&BackendError { message: message.to_owned(), ..BackendError::default() })
    }

    #[test]
    fn h01_overflows_in_every_wording() {
        let sum = |prompt: u64, output: u64, window: u64| {
            format!(
                "input length and `max_tokens` exceed context limit: {prompt} + {output} > \
                {window}, decrease input length or `max_tokens` and try again"
            )
        };
        let long = |prompt: u64, window: u64| {
            format!("prompt is too long: {prompt} tokens > {window} maximum")
        };
        for (message, expected) in [
            (
                "This model's maximum context length is 262144 tokens. However, you requested \
                262462 tokens (230462 in the messages, 32000 in the completion). Please reduce \
                the length of the messages or completion.",
                sum(230_462, 32_000, 262_144),
            ),
            (
                "This model's maximum context length is 2048 tokens. However, you requested 3064 \
                tokens (3000 in the messages, 64 in the completion).",
                long(3000, 2048),
            ),
            (
                "The input (345516 tokens) is longer than the model's context length (262144 \
                tokens).",
                long(345_516, 262_144),
            ),
            (
                "This model's maximum context length is 2048 tokens. However, your prompt \
                contains at least 2049 input tokens, which exceeds this limit even without any \
                output tokens. Please reduce the length of the input prompt. \
                (parameter=input_tokens, value=2049)",
                long(2049, 2048),
            ),
            (
                "This model's maximum context length is 2048 tokens. However, you requested 100 \
                output tokens and your prompt contains at least 1949 input tokens, for a total of \
                at least 2049 tokens.",
                sum(1949, 100, 2048),
            ),
            (
                "This model's maximum context length is 2048 tokens. However, you requested 100 \
                output tokens and your prompt contains 900000 characters (more than 2048 tokens \
                allow).",
                long(2049, 2048),
            ),
            (
                "Requested token count exceeds the model's maximum context length of 2048 tokens. \
                You requested a total of 2148 tokens: 2000 tokens from the input messages and 148 \
                tokens for the completion. Please reduce the number of tokens.",
                sum(2000, 148, 2048),
            ),
            (
                "request (5000 tokens) exceeds the available context size (4096 tokens), try \
                increasing it",
                long(5000, 4096),
            ),
            (
                "'max_tokens' or 'max_completion_tokens' is too large: 4000. This model's maximum \
                context length is 4096 tokens and your request has 200 input tokens (4000 > 4096 \
                - 200).",
                sum(200, 4000, 4096),
            ),
            (
                "The decoder prompt (length 345516) is longer than the maximum model length of \
                262144. Make sure ...",
                long(345_516, 262_144),
            ),
            ("context_length_exceeded", "prompt is too long".to_owned()),
        ] {
            assert_eq!(message_for(message).as_deref(), Some(expected.as_str()), "{message}");
        }
    }

    #[test]
    fn h01_llamacpp_names_its_numbers() {
        let error = BackendError {
            kind: "exceed_context_size_error".to_owned(),
            message: "the request exceeds the available context size. try increasing the context \
                size or enable context shift"
                .to_owned(),
            prompt_tokens: Some(5000),
            context_window: Some(4096),
            ..BackendError::default()
        };
        assert_eq!(
            overflow_message(&error).as_deref(),
            Some("prompt is too long: 5000 tokens > 4096 maximum")
        );
    }

    #[test]
    fn other_refusals_are_no_overflow() {
        for message in [
            "max_tokens=5000 cannot be greater than max_model_len=2048. Please request fewer \
            output tokens.",
            "temperature must be non-negative, got -1.0.",
            "",
        ] {
            assert_eq!(message_for(message), None, "{message}");
        }
    }
}
