//! The end of a response: stop reason and usage, with their names on both wires. Which stop reason a
//! message has depends on its calls and limits too: see `usage_tracker`. Errors are in `error`.

use crate::error::Fault;

/// Token counts as the backend reports them, before they are split the Anthropic way.
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
    /// Only when the backend said so.
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StopReason {
    EndTurn,
    MaxTokens,
    StopSequence,
    ToolUse,
    Refusal,
    ModelContextWindowExceeded,
}

impl StopReason {
    pub const ALL: [Self; 6] = [
        Self::EndTurn,
        Self::MaxTokens,
        Self::StopSequence,
        Self::ToolUse,
        Self::Refusal,
        Self::ModelContextWindowExceeded,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::EndTurn => "end_turn",
            Self::MaxTokens => "max_tokens",
            Self::StopSequence => "stop_sequence",
            Self::ToolUse => "tool_use",
            Self::Refusal => "refusal",
            Self::ModelContextWindowExceeded => "model_context_window_exceeded",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == name)
    }
}

/// What the backend's `finish_reason` means; the one table of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// `stop`, and whatever we do not know.
    Natural,
    /// `tool_calls`, `function_call`.
    Calls,
    Length,
    Filtered,
    /// `abort`, `error`: the engine gave up; never a normal end.
    Failed,
}

impl Finish {
    pub fn read(finish_reason: &str) -> Self {
        match finish_reason {
            "length" => Self::Length,
            "tool_calls" | "function_call" => Self::Calls,
            "content_filter" => Self::Filtered,
            "abort" | "error" => Self::Failed,
            _ => Self::Natural,
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

    #[test]
    fn every_stop_reason_reads_back() {
        for reason in StopReason::ALL {
            assert_eq!(StopReason::parse(reason.as_str()), Some(reason));
        }
        assert_eq!(StopReason::parse("stop"), None);
    }

    #[test]
    fn finish_reasons() {
        for (name, means) in [
            ("stop", Finish::Natural),
            ("repetition", Finish::Natural),
            ("length", Finish::Length),
            ("tool_calls", Finish::Calls),
            ("function_call", Finish::Calls),
            ("content_filter", Finish::Filtered),
            ("abort", Finish::Failed),
            ("error", Finish::Failed),
        ] {
            assert_eq!(Finish::read(name), means, "{name}");
        }
    }
}
