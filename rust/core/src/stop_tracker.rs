//! Maps an engine's finish reason to the stop reason of a message. Tool calls, limits and the
//! dialect decide too.

use std::borrow::Cow;

use crate::options::Options;
use crate::outcome::Usage;
use crate::stop_reason::{Finish, StopReason};
use crate::text::SurrogateJoiner;

/// How a message ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    pub stop_reason: StopReason,
    /// Escaped.
    pub stop_sequence: Option<String>,
}

/// Whether a message has tool calls, and whether the last is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolCallState {
    None,
    Complete,
    /// The last call's arguments are not complete.
    Truncated,
}

/// The finish reason of the current leg.
#[derive(Debug, Default)]
pub struct StopTracker {
    finish: Option<Finish>,
    /// `stop` itself, not merely something unknown.
    is_stop: bool,
    matched_stop: Option<String>,
}

impl StopTracker {
    pub fn finish(&mut self, finish_reason: &str, matched_stop: Option<&str>) -> Finish {
        let finish = Finish::read(finish_reason);
        self.finish = Some(finish);
        self.is_stop = finish_reason == "stop";
        self.matched_stop = matched_stop.map(str::to_owned);
        finish
    }

    pub fn has_finished(&self) -> bool {
        self.finish.is_some()
    }

    /// How the message ends. `usage`: of all legs.
    pub fn ending(
        &self,
        tool_calls: ToolCallState,
        usage: Option<Usage>,
        options: &Options,
    ) -> Ending {
        if options.discard_output {
            return Ending { stop_reason: StopReason::MaxTokens, stop_sequence: None };
        }
        let matched = self.matched_stop.as_deref().filter(|_| self.is_stop);
        let stop_reason =
            options.map_stop_reason(match (self.finish.unwrap_or(Finish::Natural), tool_calls) {
                (Finish::Length, _) if is_window_full(usage, options) => {
                    StopReason::ModelContextWindowExceeded
                }
                (Finish::Length, _) => StopReason::MaxTokens,
                // vLLM up to 0.32 reports `tool_calls` for a call that the limit cut, when it does
                // not stream.
                (Finish::Calls, _) if is_limit_reached(usage, options) => StopReason::MaxTokens,
                (Finish::Filtered, _) => StopReason::Refusal,
                (Finish::Natural, ToolCallState::None | ToolCallState::Truncated)
                    if matched.is_some() =>
                {
                    StopReason::StopSequence
                }
                (
                    Finish::Natural | Finish::Calls | Finish::Failed,
                    ToolCallState::Complete | ToolCallState::Truncated,
                ) => StopReason::ToolUse,
                // A client that gets `tool_use` without a call sends the request again.
                (Finish::Natural | Finish::Calls | Finish::Failed, ToolCallState::None) => {
                    StopReason::EndTurn
                }
            });
        let is_reported = stop_reason == StopReason::StopSequence && options.report_stop_sequence;
        Ending { stop_reason, stop_sequence: matched.filter(|_| is_reported).map(str::to_owned) }
    }
}

fn is_limit_reached(usage: Option<Usage>, options: &Options) -> bool {
    usage.zip(options.max_tokens).is_some_and(|(usage, limit)| usage.completion_tokens >= limit)
}

/// A length stop that came from the window and not from the client's own limit.
fn is_window_full(usage: Option<Usage>, options: &Options) -> bool {
    let (Some(usage), Some(window)) = (usage, options.context_window) else {
        return false;
    };
    let is_within_limit = options.max_tokens.is_none_or(|limit| usage.completion_tokens < limit);
    is_within_limit && usage.prompt_tokens.saturating_add(usage.completion_tokens) >= window
}

/// The stop string without halves of surrogate pairs.
pub fn clean_stop(matched: &str) -> Cow<'_, str> {
    let mut joiner = SurrogateJoiner::default();
    let clean = joiner.push(matched);
    match joiner.end() {
        Some(rest) => Cow::Owned(clean.into_owned() + rest),
        None => clean,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(prompt_tokens: u64, completion_tokens: u64) -> Usage {
        Usage { prompt_tokens, completion_tokens, ..Usage::default() }
    }

    #[test]
    fn assertion_22_stop_reasons() {
        use StopReason::{EndTurn, MaxTokens, Refusal, StopSequence, ToolUse};
        for (finish, matched, called, reason) in [
            ("stop", None, ToolCallState::None, EndTurn),
            ("stop", Some("END"), ToolCallState::None, StopSequence),
            ("stop", Some("END"), ToolCallState::Truncated, StopSequence),
            ("stop", Some("END"), ToolCallState::Complete, ToolUse),
            ("stop", None, ToolCallState::Complete, ToolUse),
            ("tool_calls", None, ToolCallState::Complete, ToolUse),
            ("function_call", None, ToolCallState::Complete, ToolUse),
            ("tool_calls", None, ToolCallState::None, EndTurn),
            ("length", None, ToolCallState::Complete, MaxTokens),
            ("length", Some("END"), ToolCallState::None, MaxTokens),
            ("content_filter", None, ToolCallState::Complete, Refusal),
            ("repetition", Some("END"), ToolCallState::None, EndTurn),
        ] {
            let mut stop = StopTracker::default();
            stop.finish(finish, matched);
            let ending = stop.ending(called, None, &Options::new("msg_1", "m"));
            assert_eq!(ending.stop_reason, reason, "{finish} {matched:?} {called:?}");
            assert_eq!(
                ending.stop_sequence.is_some(),
                reason == StopSequence,
                "{finish} {matched:?} {called:?}"
            );
        }
    }

    #[test]
    fn e09_the_dialect_decides_how_a_stop_string_is_reported() {
        let mut stop = StopTracker::default();
        stop.finish("stop", Some("END"));
        let mut options = Options::new("msg_1", "m");
        options.report_stop_sequence = false;
        assert_eq!(
            stop.ending(ToolCallState::None, None, &options),
            Ending { stop_reason: StopReason::StopSequence, stop_sequence: None }
        );
        options.report_stop_sequence = true;
        options.stop_reasons = Some([StopReason::EndTurn].into());
        assert_eq!(
            stop.ending(ToolCallState::None, None, &options),
            Ending { stop_reason: StopReason::EndTurn, stop_sequence: None }
        );
    }

    #[test]
    fn a_full_window_differs_from_a_reached_limit() {
        for (window, limit, prompt, output, reason) in [
            (Some(100), Some(64), 90, 10, StopReason::ModelContextWindowExceeded),
            (Some(100), None, 90, 10, StopReason::ModelContextWindowExceeded),
            (Some(100), Some(10), 90, 10, StopReason::MaxTokens),
            (Some(100), Some(64), 30, 64, StopReason::MaxTokens),
            (None, Some(64), 90, 10, StopReason::MaxTokens),
        ] {
            let mut stop = StopTracker::default();
            stop.finish("length", None);
            let usage = usage(prompt, output);
            let options =
                Options { context_window: window, max_tokens: limit, ..Options::new("msg_1", "m") };
            assert_eq!(
                stop.ending(ToolCallState::None, Some(usage), &options).stop_reason,
                reason,
                "{window:?} {limit:?} {prompt} {output}"
            );
        }
    }

    #[test]
    fn a_call_that_used_up_the_limit_was_cut_by_it() {
        for (output, reason) in [(59, StopReason::ToolUse), (60, StopReason::MaxTokens)] {
            let mut stop = StopTracker::default();
            stop.finish("tool_calls", None);
            let usage = usage(92, output);
            let options = Options { max_tokens: Some(60), ..Options::new("msg_1", "m") };
            assert_eq!(
                stop.ending(ToolCallState::Complete, Some(usage), &options).stop_reason,
                reason,
                "{output} of 60"
            );
        }
    }
}
