//! Which call a tool delta belongs to, whatever its index, id and name say or fail to say.

use std::borrow::Cow;

use crate::arguments::ArgumentScan;
use crate::chunk::{Arguments, ToolDelta};
use crate::options::Options;
use crate::text::{SurrogateJoiner, decode, escape, skip_blank};
use crate::tool_id::{is_safe_id, tool_id};
use crate::tool_names::client_name;

/// More calls in one message are a backend gone wild.
pub const CALL_LIMIT: usize = 1024;

/// One call of the message in progress.
#[derive(Debug, Default)]
pub struct ToolCall {
    /// The backend's index, where it gave one.
    pub index: Option<u32>,
    /// The backend's id, escaped; empty when it gave none.
    pub id: String,
    /// The name so far, escaped.
    pub name: String,
    pub arguments: ArgumentScan,
    /// What to write once the call is active and has a name; escaped.
    pub waiting: String,
    /// The block was opened.
    pub is_started: bool,
    /// The block was closed; what still comes has nowhere to go.
    pub is_closed: bool,
    joiner: SurrogateJoiner,
}

impl ToolCall {
    pub fn new(index: Option<u32>) -> Self {
        Self { index, ..Self::default() }
    }

    /// A name comes whole, in deltas, again and again, or growing.
    pub fn add_name(&mut self, fragment: &str) {
        if fragment == self.name {
            return;
        }
        if fragment.starts_with(self.name.as_str()) {
            self.name.clear();
        }
        self.name.push_str(fragment);
    }

    /// The fragment with halves of surrogate pairs joined over the borders of deltas.
    pub fn join<'a>(&mut self, fragment: &'a str) -> Cow<'a, str> {
        self.joiner.push(fragment)
    }

    /// No more deltas: what remains to be written, and whether the arguments are complete.
    pub fn end(&mut self) -> (String, bool) {
        let half = self.joiner.end().map_or("", |half| self.arguments.feed(half));
        let rest = [half, &self.arguments.end()].concat();
        (rest, self.arguments.is_settled())
    }

    pub fn has_name(&self) -> bool {
        !self.name.is_empty() && !self.name.starts_with("<|")
    }
}

/// All calls of one message, in the order in which they came.
#[derive(Debug, Default)]
pub struct Calls {
    calls: Vec<ToolCall>,
    shown_ids: Vec<String>,
}

impl Calls {
    /// The call that the delta adds to, with its id and name taken up; None: one call too many.
    pub fn place(&mut self, delta: &ToolDelta<'_>) -> Option<usize> {
        let known = match delta.index {
            Some(index) => self.calls.iter().rposition(|call| call.index == Some(index)),
            None => self
                .calls
                .iter()
                .rposition(|call| !delta.id.is_empty() && call.id == delta.id)
                .or(self.calls.len().checked_sub(1)),
        };
        let at = match known {
            Some(at) if !begins_another(&self.calls[at], delta) => at,
            _ if self.calls.len() >= CALL_LIMIT => return None,
            _ => {
                self.calls.push(ToolCall::new(delta.index));
                self.calls.len() - 1
            }
        };
        let call = &mut self.calls[at];
        if !call.is_started {
            if call.id.is_empty() {
                call.id.push_str(delta.id);
            }
            if !delta.name.is_empty() {
                call.add_name(delta.name);
            }
        }
        Some(at)
    }

    pub fn get(&mut self, at: usize) -> &mut ToolCall {
        &mut self.calls[at]
    }

    pub fn is_complete(&self, at: usize) -> bool {
        self.calls[at].arguments.is_complete()
    }

    /// The id and the name (escaped) that the client gets for the call.
    pub fn introduce(&mut self, at: usize, options: &Options) -> (String, String) {
        let call = &mut self.calls[at];
        call.is_started = true;
        let original = decode(&call.id);
        let id = if is_safe_id(&original) && !self.shown_ids.contains(&call.id) {
            original.into_owned()
        } else {
            tool_id(&options.message_id, at as u16, &original)
        };
        self.shown_ids.push(call.id.clone());
        (id, escape(&client_name(&call.name, &options.tool_names)))
    }
}

/// Whether the delta starts a call of its own although its index (or its lack of one) points at
/// `call`.
fn begins_another(call: &ToolCall, delta: &ToolDelta<'_>) -> bool {
    // Null and absent mean unchanged, so without a name there is no new call; and engines that send
    // a new id with each fragment exist.
    if delta.name.is_empty() || call.name.is_empty() || delta.id == call.id && !delta.id.is_empty()
    {
        return false;
    }
    let is_other_name = delta.name != call.name;
    let is_other_id = !delta.id.is_empty() && !call.id.is_empty();
    if is_other_id {
        return is_other_name || call.arguments.is_complete();
    }
    if call.arguments.has_begun() {
        return is_other_name || call.arguments.is_settled() && brings_object(delta);
    }
    // A name in fragments.
    false
}

fn brings_object(delta: &ToolDelta<'_>) -> bool {
    match delta.arguments {
        Arguments::None => false,
        Arguments::Object(_) => true,
        Arguments::Text(text) => text[skip_blank(text)..].starts_with('{'),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delta<'a>(
        index: Option<u32>,
        id: &'a str,
        name: &'a str,
        arguments: &'a str,
    ) -> ToolDelta<'a> {
        let arguments =
            if arguments.is_empty() { Arguments::None } else { Arguments::Text(arguments) };
        ToolDelta { index, id, name, arguments }
    }

    /// Where each delta lands.
    fn places(deltas: &[ToolDelta<'_>]) -> Vec<usize> {
        let mut calls = Calls::default();
        let place = |delta: &ToolDelta<'_>| {
            let at = calls.place(delta).unwrap();
            if let Arguments::Text(text) = delta.arguments {
                calls.get(at).arguments.feed(text);
            }
            at
        };
        deltas.iter().map(place).collect()
    }

    #[test]
    fn which_call_a_delta_belongs_to() {
        let zero = Some(0);
        for (what, deltas, lands) in [
            (
                "null means unchanged",
                vec![delta(zero, "c1", "F", ""), delta(zero, "", "", "{}")],
                vec![0, 0],
            ),
            (
                "a13: new id, new name",
                vec![delta(zero, "a", "F", "{}"), delta(zero, "b", "G", "{}")],
                vec![0, 1],
            ),
            (
                "new id, same name, complete",
                vec![delta(zero, "a", "F", "{}"), delta(zero, "b", "F", "{}")],
                vec![0, 1],
            ),
            (
                "new id with every fragment",
                vec![
                    delta(zero, "a", "F", "{"),
                    delta(zero, "b", "F", "}"),
                    delta(zero, "c", "", ""),
                ],
                vec![0, 0, 0],
            ),
            (
                "no ids, new name",
                vec![delta(zero, "", "F", "{}"), delta(zero, "", "G", "{}")],
                vec![0, 1],
            ),
            (
                "no ids, same name again",
                vec![delta(zero, "", "F", "{\\\"a\\\":1}"), delta(zero, "", "F", "{}")],
                vec![0, 1],
            ),
            (
                "no ids, placeholder, name repeated",
                vec![delta(zero, "", "F", "{}"), delta(zero, "", "F", "{\\\"a\\\":1}")],
                vec![0, 0],
            ),
            (
                "c01: all repeated",
                vec![
                    delta(zero, "c", "F", ""),
                    delta(zero, "c", "F", "{"),
                    delta(zero, "c", "F", "}"),
                ],
                vec![0, 0, 0],
            ),
            (
                "a name in deltas",
                vec![
                    delta(zero, "", "get_", ""),
                    delta(zero, "", "weather", ""),
                    delta(zero, "", "", "{}"),
                ],
                vec![0, 0, 0],
            ),
            (
                "no index",
                vec![
                    delta(None, "", "F", "{}"),
                    delta(None, "", "G", "{}"),
                    delta(None, "", "", ""),
                ],
                vec![0, 1, 1],
            ),
            (
                "no index, by id",
                vec![
                    delta(None, "a", "F", ""),
                    delta(None, "b", "G", ""),
                    delta(None, "a", "", "{}"),
                ],
                vec![0, 1, 0],
            ),
            (
                "by index",
                vec![
                    delta(Some(7), "a", "F", ""),
                    delta(Some(2), "b", "G", ""),
                    delta(Some(7), "", "", "{}"),
                ],
                vec![0, 1, 0],
            ),
        ] {
            assert_eq!(places(&deltas), lands, "{what}");
        }
    }

    #[test]
    fn names_come_in_every_way() {
        for (deltas, name) in [
            (&["read_file", "read_file", "read_file"][..], "read_file"),
            (&["read_", "file"], "read_file"),
            (&["read", "read_file"], "read_file"),
            (&["", "F"], "F"),
        ] {
            let mut call = ToolCall::default();
            for fragment in deltas {
                call.add_name(fragment);
            }
            assert_eq!(call.name, name, "{deltas:?}");
        }
    }

    #[test]
    fn calls_are_limited() {
        let mut calls = Calls::default();
        for index in 0..CALL_LIMIT as u32 {
            assert!(calls.place(&delta(Some(index), "", "F", "")).is_some());
        }
        assert!(calls.place(&delta(Some(u32::MAX), "", "F", "")).is_none());
        assert!(calls.place(&delta(Some(3), "", "", "{}")).is_some());
    }

    #[test]
    fn introduction() {
        let mut options = Options::new("msg_1", "m");
        options.tool_names = vec![("short".to_owned(), "mcp__srv.tool/\"long\"".to_owned())];
        let mut calls = Calls::default();
        let safe = "chatcmpl-tool-9aca3e53f4fcd58d";
        for (index, id, name) in
            [(0, safe, "F"), (1, safe, "F<|channel|>commentary"), (2, "call_0", "short")]
        {
            calls.place(&delta(Some(index), id, name, "")).unwrap();
        }
        assert_eq!(calls.introduce(0, &options), (safe.to_owned(), "F".to_owned()));
        assert_eq!(calls.introduce(1, &options), (tool_id("msg_1", 1, safe), "F".to_owned()));
        assert_eq!(
            calls.introduce(2, &options),
            (tool_id("msg_1", 2, "call_0"), "mcp__srv.tool/\\\"long\\\"".to_owned())
        );
    }
}
