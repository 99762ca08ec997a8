//! What is known of a response at its end: usage, stop reason, fault. Stop reasons are in
//! `stop_reason`, errors in `error`.

use crate::error::Fault;
use crate::stop_reason::StopReason;

/// Token counts as the backend reports them, before they are split into Messages counts.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    /// Part of `prompt_tokens` that was read from a prefix cache.
    pub cached_tokens: u64,
    pub reasoning_tokens: Option<u64>,
}

/// The same counts as a Messages client reads them: `input + cache_read` is the prompt. None of
/// them can be negative.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct MessageUsage {
    pub input_tokens: u64,
    pub cache_read_tokens: u64,
    pub output_tokens: u64,
    /// None: the backend did not report it.
    pub thinking_tokens: Option<u64>,
}

impl From<Usage> for MessageUsage {
    fn from(usage: Usage) -> Self {
        let cache_read_tokens = usage.cached_tokens.min(usage.prompt_tokens);
        Self {
            input_tokens: usage.prompt_tokens - cache_read_tokens,
            cache_read_tokens,
            output_tokens: usage.completion_tokens,
            thinking_tokens: usage.reasoning_tokens,
        }
    }
}

/// What is known of a response at its end.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub usage: MessageUsage,
    /// False: the backend sent none, and `output_tokens` is the number of deltas that came.
    pub has_usage: bool,
    pub stop_reason: Option<StopReason>,
    pub fault: Option<Fault>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_tokens_are_part_of_the_prompt_and_never_make_it_negative() {
        for (prompt, cached, input, cache_read) in
            [(1000, 900, 100, 900), (5, 9, 0, 5), (7, 0, 7, 0), (0, 0, 0, 0)]
        {
            let usage = Usage { prompt_tokens: prompt, cached_tokens: cached, ..Usage::default() };
            let message_usage = MessageUsage::from(usage);
            assert_eq!(
                (message_usage.input_tokens, message_usage.cache_read_tokens),
                (input, cache_read),
                "{prompt} with {cached} cached"
            );
        }
    }
}
