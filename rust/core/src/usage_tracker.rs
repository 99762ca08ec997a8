//! Usage of a message, over one or two legs. A leg is one response of a backend; a continuation
//! after the thinking budget is the second.

use crate::outcome::{MessageUsage, Usage};

#[derive(Debug, Default)]
pub struct UsageTracker {
    usage: Option<Usage>,
    /// Deltas of this leg: nearly its tokens, for a backend that reports no usage.
    deltas: u64,
    /// The leg that was stopped at the thinking budget.
    earlier: Option<Leg>,
}

#[derive(Debug, Clone, Copy)]
struct Leg {
    usage: Option<Usage>,
    deltas: u64,
}

impl UsageTracker {
    pub fn count_delta(&mut self) {
        self.deltas += 1;
    }

    pub fn deltas(&self) -> u64 {
        self.deltas
    }

    /// Usage is cumulative: the last one counts, nothing is summed.
    pub fn set_usage(&mut self, usage: Usage) {
        self.usage = Some(usage);
    }

    pub fn has_usage(&self) -> bool {
        self.usage.is_some()
    }

    /// Begins the second leg, whose prompt holds the first one's reasoning.
    pub fn begin_leg(&mut self) {
        let leg = Leg { usage: self.usage.take(), deltas: self.deltas };
        *self = Self { earlier: Some(leg), ..Self::default() };
    }

    /// Both legs together, as the backend would have counted one.
    pub fn total(&self) -> Option<Usage> {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(prompt_tokens: u64, completion_tokens: u64) -> Usage {
        Usage { prompt_tokens, completion_tokens, ..Usage::default() }
    }

    #[test]
    fn f09_the_last_usage_counts() {
        let mut usage_tracker = UsageTracker::default();
        usage_tracker.set_usage(usage(7, 1));
        usage_tracker.set_usage(usage(7, 2));
        assert_eq!(usage_tracker.usage().output_tokens, 2);
    }

    #[test]
    fn without_usage_deltas_are_counted() {
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
