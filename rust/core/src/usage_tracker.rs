//! Usage and stop reason of a message, over one or two legs.

use std::borrow::Cow;

use crate::options::Options;
use crate::outcome::{Finish, MessageUsage, StopReason, Usage};

#[derive(Debug, Default)]
pub struct UsageTracker {
    usage: Option<Usage>,
    /// Pieces of this leg: tokens, nearly, when the backend does not count them.
    deltas: u64,
    /// The leg that was stopped at the thinking budget.
    earlier: Option<Leg>,
    finish: Option<Finish>,
    /// `stop` itself, not merely something we do not know.
    is_stop: bool,
    matched_stop: Option<String>,
}

#[derive(Debug, Clone, Copy)]
struct Leg {
    usage: Option<Usage>,
    deltas: u64,
}

/// How a message ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    pub stop_reason: StopReason,
    /// Escaped.
    pub stop_sequence: Option<String>,
}

/// What became of the calls of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolCallState {
    None,
    Complete,
    /// The last call's arguments are not complete.
    Truncated,
}

impl UsageTracker {
    pub fn count_delta(&mut self) {
        self.deltas += 1;
    }

    pub fn deltas(&self) -> u64 {
        self.deltas
    }

    /// Usage is cumulative: the last word counts, nothing is summed.
    pub fn set_usage(&mut self, usage: Usage) {
        self.usage = Some(usage);
    }

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

    pub fn has_usage(&self) -> bool {
        self.usage.is_some()
    }

    /// The reply goes on in a second leg, whose prompt holds what the first one reasoning.
    pub fn begin_leg(&mut self) {
        let leg = Leg { usage: self.usage.take(), deltas: self.deltas };
        *self = Self { earlier: Some(leg), ..Self::default() };
    }

    /// Both legs together, as the backend would have counted one.
    fn total(&self) -> Option<Usage> {
        let usage = self.usage?;
        let Some(leg) = self.earlier else { return Some(usage) };
        // A leg that was stopped has no usage of its own: its deltas were its tokens, and they are
        // in the second leg's prompt.
        let first = leg.usage.unwrap_or(Usage {
            prompt_tokens: usage.prompt_tokens.saturating_sub(leg.deltas),
            completion_tokens: leg.deltas,
            cached_tokens: 0,
            reasoning_tokens: Some(leg.deltas),
        });
        Some(Usage {
            prompt_tokens: first.prompt_tokens,
            completion_tokens: first.completion_tokens.saturating_add(usage.completion_tokens),
            cached_tokens: first.cached_tokens,
            reasoning_tokens: match (first.reasoning_tokens, usage.reasoning_tokens) {
                (Some(before), Some(after)) => Some(before.saturating_add(after)),
                (_, None) => leg.usage.and_then(|usage| usage.reasoning_tokens),
                (None, after) => after,
            },
        })
    }

    pub fn usage(&self) -> MessageUsage {
        match self.total() {
            Some(total) => total.into(),
            None => self.uncounted(),
        }
    }

    fn uncounted(&self) -> MessageUsage {
        let before = self.earlier.map_or(MessageUsage::default(), |leg| match leg.usage {
            Some(usage) => usage.into(),
            None => MessageUsage { output_tokens: leg.deltas, ..MessageUsage::default() },
        });
        MessageUsage { output_tokens: before.output_tokens.saturating_add(self.deltas), ..before }
    }

    pub fn ending(&self, tool_calls: ToolCallState, options: &Options) -> Ending {
        if options.discard_output {
            return Ending { stop_reason: StopReason::MaxTokens, stop_sequence: None };
        }
        let matched = self.matched_stop.as_deref().filter(|_| self.is_stop);
        let stop_reason =
            options.known(match (self.finish.unwrap_or(Finish::Natural), tool_calls) {
                (Finish::Length, _) if self.is_window_full(options) => {
                    StopReason::ModelContextWindowExceeded
                }
                (Finish::Length, _) => StopReason::MaxTokens,
                // vLLM up to 0.32 says `tool_calls` for a call that the limit cut in a whole reply.
                (Finish::Calls, _) if self.is_limit_reached(options) => StopReason::MaxTokens,
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
                // A client that gets `tool_use` and finds no call asks again.
                (Finish::Natural | Finish::Calls | Finish::Failed, ToolCallState::None) => {
                    StopReason::EndTurn
                }
            });
        let is_reported = stop_reason == StopReason::StopSequence && options.report_stop_sequence;
        Ending { stop_reason, stop_sequence: matched.filter(|_| is_reported).map(str::to_owned) }
    }

    fn is_limit_reached(&self, options: &Options) -> bool {
        self.total()
            .zip(options.max_tokens)
            .is_some_and(|(usage, limit)| usage.completion_tokens >= limit)
    }

    /// A length stop that came from the window and not from the client's own limit.
    fn is_window_full(&self, options: &Options) -> bool {
        let (Some(usage), Some(window)) = (self.total(), options.context_window) else {
            return false;
        };
        let is_within_limit =
            options.max_tokens.is_none_or(|limit| usage.completion_tokens < limit);
        is_within_limit && usage.prompt_tokens.saturating_add(usage.completion_tokens) >= window
    }
}

/// The stop string without halves of surrogate pairs.
pub fn clean_stop(matched: &str) -> Cow<'_, str> {
    let mut joiner = crate::text::SurrogateJoiner::default();
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
            let mut usage_tracker = UsageTracker::default();
            usage_tracker.finish(finish, matched);
            let ending = usage_tracker.ending(called, &Options::new("msg_1", "m"));
            assert_eq!(ending.stop_reason, reason, "{finish} {matched:?} {called:?}");
            assert_eq!(
                ending.stop_sequence.is_some(),
                reason == StopSequence,
                "{finish} {matched:?} {called:?}"
            );
        }
    }

    #[test]
    fn e09_the_dialect_decides_what_is_said_of_a_stop_string() {
        let mut usage_tracker = UsageTracker::default();
        usage_tracker.finish("stop", Some("END"));
        let mut options = Options::new("msg_1", "m");
        options.report_stop_sequence = false;
        assert_eq!(
            usage_tracker.ending(ToolCallState::None, &options),
            Ending { stop_reason: StopReason::StopSequence, stop_sequence: None }
        );
        options.report_stop_sequence = true;
        options.stop_reasons = Some([StopReason::EndTurn].into());
        assert_eq!(
            usage_tracker.ending(ToolCallState::None, &options),
            Ending { stop_reason: StopReason::EndTurn, stop_sequence: None }
        );
    }

    #[test]
    fn a_full_window_is_told_from_a_full_budget() {
        for (window, limit, prompt, output, reason) in [
            (Some(100), Some(64), 90, 10, StopReason::ModelContextWindowExceeded),
            (Some(100), None, 90, 10, StopReason::ModelContextWindowExceeded),
            (Some(100), Some(10), 90, 10, StopReason::MaxTokens),
            (Some(100), Some(64), 30, 64, StopReason::MaxTokens),
            (None, Some(64), 90, 10, StopReason::MaxTokens),
        ] {
            let mut usage_tracker = UsageTracker::default();
            usage_tracker.finish("length", None);
            usage_tracker.set_usage(usage(prompt, output));
            let options =
                Options { context_window: window, max_tokens: limit, ..Options::new("msg_1", "m") };
            assert_eq!(
                usage_tracker.ending(ToolCallState::None, &options).stop_reason,
                reason,
                "{window:?} {limit:?} {prompt} {output}"
            );
        }
    }

    #[test]
    fn a_call_that_used_up_the_limit_was_cut_by_it() {
        for (output, reason) in [(59, StopReason::ToolUse), (60, StopReason::MaxTokens)] {
            let mut usage_tracker = UsageTracker::default();
            usage_tracker.finish("tool_calls", None);
            usage_tracker.set_usage(usage(92, output));
            let options = Options { max_tokens: Some(60), ..Options::new("msg_1", "m") };
            assert_eq!(
                usage_tracker.ending(ToolCallState::Complete, &options).stop_reason,
                reason,
                "{output} of 60"
            );
        }
    }

    #[test]
    fn f09_the_last_usage_counts() {
        let mut usage_tracker = UsageTracker::default();
        usage_tracker.set_usage(usage(7, 1));
        usage_tracker.set_usage(usage(7, 2));
        assert_eq!(usage_tracker.usage().output_tokens, 2);
    }

    #[test]
    fn without_usage_pieces_are_counted() {
        let mut usage_tracker = UsageTracker::default();
        usage_tracker.count_delta();
        usage_tracker.count_delta();
        assert_eq!(
            usage_tracker.usage(),
            MessageUsage { output_tokens: 2, ..MessageUsage::default() }
        );
        assert!(!usage_tracker.has_usage());
    }

    #[test]
    fn two_legs_are_counted_as_one_reply() {
        for (first, second, input, output) in [
            (None, Some(usage(103, 10)), 100, 13),
            (Some(usage(50, 4)), Some(usage(99, 10)), 50, 14),
            (Some(usage(50, 4)), None, 50, 5),
            (None, None, 0, 4),
        ] {
            let mut usage_tracker = UsageTracker::default();
            (0..3).for_each(|_| usage_tracker.count_delta());
            first.into_iter().for_each(|usage| usage_tracker.set_usage(usage));
            usage_tracker.begin_leg();
            usage_tracker.count_delta();
            second.into_iter().for_each(|usage| usage_tracker.set_usage(usage));
            assert_eq!(
                (usage_tracker.usage().input_tokens, usage_tracker.usage().output_tokens),
                (input, output),
                "{first:?} {second:?}"
            );
        }
    }
}
