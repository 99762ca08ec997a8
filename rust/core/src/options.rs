//! How one response is written: the dialect's settings for responses, and what the request fixed.

use std::sync::Arc;

use crate::stop_reason::StopReason;

/// How the model's reasoning is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Reasoning {
    /// `thinking` blocks.
    #[default]
    Thinking,
    /// Joined with the answer in one text block, reasoning first.
    Text,
    Drop,
}

impl Reasoning {
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "thinking" => Some(Self::Thinking),
            "text" => Some(Self::Text),
            "drop" => Some(Self::Drop),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Default)]
pub struct Options {
    pub message_id: String,
    pub model: String,
    pub reasoning: Reasoning,
    /// `display: "omitted"`: thinking blocks without their text; the signature is still complete.
    pub display_omitted: bool,
    pub signature_prefix: Arc<str>,
    /// Those the dialect knows; None: all.
    pub stop_reasons: Option<Arc<[StopReason]>>,
    pub report_stop_sequence: bool,
    pub close_block_on_error: bool,
    /// (name upstream, name the client knows) where they differ.
    pub tool_names: Vec<(String, String)>,
    /// Only the first call is written.
    pub single_tool_call: bool,
    /// `</think>` in content ends the reasoning.
    pub split_think: bool,
    pub max_tokens: Option<u64>,
    pub context_window: Option<u64>,
    /// `max_tokens: 0`: no content is written and the stop reason is `max_tokens`.
    pub discard_output: bool,
    /// A thinking budget enforced by the gateway; None: unlimited, or enforced by the engine.
    pub budget_tokens: Option<u64>,
}

impl Options {
    /// Everything that the Messages API has, for a message of this id and model.
    pub fn new(message_id: impl Into<String>, model: impl Into<String>) -> Self {
        Self {
            message_id: message_id.into(),
            model: model.into(),
            report_stop_sequence: true,
            close_block_on_error: true,
            ..Self::default()
        }
    }

    /// The reason itself where the dialect knows it, else the nearest that it knows.
    pub fn map_stop_reason(&self, reason: StopReason) -> StopReason {
        let Some(known) = &self.stop_reasons else { return reason };
        if known.contains(&reason) {
            return reason;
        }
        // A full window is a length stop: where the dialect has no name for it, `end_turn` would be
        // wrong.
        if reason == StopReason::ModelContextWindowExceeded
            && known.contains(&StopReason::MaxTokens)
        {
            return StopReason::MaxTokens;
        }
        StopReason::EndTurn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_outside_the_dialect_become_the_nearest_inside() {
        let mut options = Options::new("msg_1", "m");
        assert_eq!(options.map_stop_reason(StopReason::StopSequence), StopReason::StopSequence);
        options.stop_reasons = Some([StopReason::EndTurn, StopReason::MaxTokens].into());
        assert_eq!(options.map_stop_reason(StopReason::StopSequence), StopReason::EndTurn);
        assert_eq!(
            options.map_stop_reason(StopReason::ModelContextWindowExceeded),
            StopReason::MaxTokens
        );
        options.stop_reasons = Some([StopReason::EndTurn].into());
        assert_eq!(
            options.map_stop_reason(StopReason::ModelContextWindowExceeded),
            StopReason::EndTurn
        );
    }

    #[test]
    fn names_of_the_reasoning_setting() {
        assert_eq!(Reasoning::parse("text"), Some(Reasoning::Text));
        assert_eq!(Reasoning::parse("thinking"), Some(Reasoning::Thinking));
        assert_eq!(Reasoning::parse("drop"), Some(Reasoning::Drop));
        assert_eq!(Reasoning::parse("hide"), None);
    }
}
