//! Stop reasons and finish reasons by name. `stop_tracker` maps the one to the other.

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
    /// `stop`, and unknown ones.
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

#[cfg(test)]
mod tests {
    use super::*;

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
