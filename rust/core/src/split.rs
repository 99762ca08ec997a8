//! Reasoning that a backend without a reasoning parser leaves in the content: everything up to
//! `</think>`.
//!
//! The opening tag is usually in the prompt, so it may or may not be there. Only the beginning of
//! the content is searched.

use std::borrow::Cow;

use crate::text::{decode, escape_into, skip_blank};

const OPENING: &str = "<think>";
const CLOSING: &str = "</think>";

/// A fragment of content, split; both parts escaped.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SplitContent {
    pub reasoning: String,
    pub text: String,
    /// The closing tag was seen: all further content is text.
    pub is_over: bool,
}

#[derive(Debug, Default)]
pub struct ThinkSplit {
    /// Held back: possibly the beginning of a tag.
    held: String,
    is_past_opening: bool,
}

impl ThinkSplit {
    pub fn feed(&mut self, fragment: &str) -> SplitContent {
        self.held.push_str(&plain(fragment));
        let mut parts = SplitContent::default();
        if !self.is_past_opening && !self.skip_opening() {
            return parts;
        }
        match self.held.find(CLOSING) {
            Some(at) => {
                parts.reasoning.push_str(&self.held[..at]);
                parts.text.push_str(&self.held[at + CLOSING.len()..]);
                parts.is_over = true;
                self.held.clear();
            }
            None => {
                let safe = self.held.len() - tag_beginning(&self.held);
                parts.reasoning.extend(self.held.drain(..safe));
            }
        }
        parts
    }

    /// End of content: what was held back is reasoning.
    pub fn end(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// False while the content may still begin with the opening tag.
    fn skip_opening(&mut self) -> bool {
        let begin = skip_blank(&self.held);
        let rest = &self.held[begin..];
        if rest.len() < OPENING.len() && OPENING.starts_with(rest) && begin < 1024 {
            return false;
        }
        if rest.starts_with(OPENING) {
            self.held.drain(..begin + OPENING.len());
        }
        self.is_past_opening = true;
        true
    }
}

/// The same text with the fewest escapes, so that tags can be found in it (`\u003c`, `<\/think>`).
fn plain(fragment: &str) -> Cow<'_, str> {
    if !fragment.contains('\\') {
        return Cow::Borrowed(fragment);
    }
    let mut text = String::with_capacity(fragment.len());
    escape_into(&decode(fragment), &mut text);
    Cow::Owned(text)
}

/// Length of the longest end of `text` that begins the closing tag.
fn tag_beginning(text: &str) -> usize {
    (1..CLOSING.len()).rev().find(|&length| text.ends_with(&CLOSING[..length])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(fragments: &[&str]) -> (String, String) {
        let mut splitter = Some(ThinkSplit::default());
        let (mut reasoning, mut text) = (String::new(), String::new());
        for fragment in fragments {
            let Some(split) = &mut splitter else {
                text.push_str(fragment);
                continue;
            };
            let parts = split.feed(fragment);
            reasoning.push_str(&parts.reasoning);
            text.push_str(&parts.text);
            if parts.is_over {
                splitter = None;
            }
        }
        if let Some(split) = &mut splitter {
            reasoning.push_str(&split.end());
        }
        (reasoning, text)
    }

    #[test]
    fn the_closing_tag_ends_the_reasoning_wherever_it_is_cut() {
        for (content, reasoning, text) in [
            ("plan.\\n</think>\\n\\nHi", "plan.\\n", "\\n\\nHi"),
            ("<think>plan</think>Hi", "plan", "Hi"),
            (" \\n<think>\\nplan</think>", "\\nplan", ""),
            ("a < b </thin </think>x</think>", "a < b </thin ", "x</think>"),
            ("never closed </thi", "never closed </thi", ""),
            ("<thi", "<thi", ""),
        ] {
            let whole = split(&[content]);
            assert_eq!(whole, (reasoning.to_owned(), text.to_owned()), "{content}");
            for at in (0..=content.len()).filter(|&at| !content[..at].ends_with('\\')) {
                assert_eq!(
                    split(&[&content[..at], &content[at..]]),
                    whole,
                    "{content} cut at {at}"
                );
            }
        }
    }

    #[test]
    fn tags_may_be_escaped() {
        assert_eq!(
            split(&["\\u003cthink\\u003er\\n<\\/think>t"]),
            ("r\\n".to_owned(), "t".to_owned())
        );
    }
}
