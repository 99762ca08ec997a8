//! The complete parser: any order, whitespace, nulls, objects where text is usual. It decides what
//! is a fault.

use super::error::Failure;
use super::json::{Parsed, elements, members, some, unquote};
use super::types::{Arguments, Choice, Chunk, ChunkFault, Delta, ToolDelta};
use crate::outcome::Usage;

pub(super) fn parse(text: &str) -> Parsed<Chunk<'_>> {
    let (mut choices, mut usage) = (None, None);
    let mut failure = Failure::default();
    members("chunk", text, &mut |key, value| match key {
        "choices" => choices = some(value),
        "usage" => usage = some(value),
        _ => failure.member(key, value),
    })?;
    let error = failure.read(text, choices.is_some())?;
    let choice = choices.map(first_choice).transpose()?.flatten().unwrap_or_default();
    Ok(choice.into_chunk(usage.map(Usage::read).transpose()?.flatten(), error))
}

fn first_choice(raw: &str) -> Parsed<Option<Choice<'_>>> {
    let mut first = None;
    for element in elements("choices", raw)? {
        let (is_first, choice) = choice_of(element)?;
        if is_first && first.is_none() {
            first = Some(choice);
        }
    }
    Ok(first)
}

/// The choice, and whether it is the one with index 0.
fn choice_of(raw: &str) -> Parsed<(bool, Choice<'_>)> {
    let mut is_first = true;
    let (mut delta, mut finish, mut stop_reason, mut matched_stop) = (None, None, None, None);
    members("choices[]", raw, &mut |key, value| match key {
        "index" => is_first = matches!(value, "0" | "null"),
        "delta" => delta = some(value),
        "finish_reason" => finish = some(value),
        "stop_reason" => stop_reason = unquote(value),
        "matched_stop" => matched_stop = unquote(value),
        _ => {}
    })?;
    let delta = delta.map(delta_of).transpose()?.unwrap_or_default();
    let finish = text("finish_reason", finish)?;
    let not_empty = |stop: &&str| !stop.is_empty();
    Ok((
        is_first,
        Choice {
            delta,
            finish,
            stop_reason: stop_reason.filter(not_empty),
            matched_stop: matched_stop.filter(not_empty),
        },
    ))
}

fn delta_of(raw: &str) -> Parsed<Delta<'_>> {
    let (mut reasoning, mut reasoning_content, mut content, mut tool_calls) =
        (None, None, None, None);
    members("delta", raw, &mut |key, value| match key {
        "reasoning" => reasoning = some(value),
        "reasoning_content" => reasoning_content = some(value),
        "content" => content = some(value),
        "tool_calls" => tool_calls = some(value),
        _ => {}
    })?;
    Ok(Delta {
        reasoning: text("reasoning", reasoning)?,
        reasoning_content: text("reasoning_content", reasoning_content)?,
        content: text("content", content)?,
        tool_calls: match tool_calls {
            Some(raw) => elements("tool_calls", raw)?
                .into_iter()
                .map(tool_delta_of)
                .collect::<Parsed<_>>()?,
            None => Vec::new(),
        },
    })
}

fn tool_delta_of(raw: &str) -> Parsed<ToolDelta<'_>> {
    let (mut index, mut id, mut function) = (None, None, None);
    members("tool_calls[]", raw, &mut |key, value| match key {
        "index" => index = some(value),
        "id" => id = some(value),
        "function" => function = some(value),
        _ => {}
    })?;
    let (mut name, mut arguments) = (None, None);
    if let Some(function) = function {
        members("function", function, &mut |key, value| match key {
            "name" => name = some(value),
            "arguments" => arguments = some(value),
            _ => {}
        })?;
    }
    let not_an_index = |_| ChunkFault::Shape { member: "index", expected: "a small number" };
    Ok(ToolDelta {
        index: index.map(|raw| raw.parse().map_err(not_an_index)).transpose()?,
        id: text("id", id)?,
        name: text("name", name)?,
        arguments: match arguments {
            Some(object) if object.starts_with('{') => Arguments::Object(object),
            other => match text("arguments", other)? {
                "" => Arguments::None,
                fragment => Arguments::Text(fragment),
            },
        },
    })
}

impl Usage {
    /// The object `usage`, raw.
    pub(crate) fn read(raw: &str) -> Parsed<Option<Self>> {
        let mut usage = Self::default();
        let (mut prompt_details, mut completion_details) = (None, None);
        members("usage", raw, &mut |key, value| match key {
            "prompt_tokens" => usage.prompt_tokens = count(value).unwrap_or(0),
            "completion_tokens" => usage.completion_tokens = count(value).unwrap_or(0),
            "reasoning_tokens" => usage.reasoning_tokens = count(value),
            "prompt_tokens_details" => prompt_details = some(value),
            "completion_tokens_details" => completion_details = some(value),
            _ => {}
        })?;
        if let Some(details) = prompt_details {
            members("prompt_tokens_details", details, &mut |key, value| {
                if key == "cached_tokens" {
                    usage.cached_tokens = count(value).unwrap_or(0);
                }
            })?;
        }
        if let Some(details) = completion_details {
            let mut reasoning_tokens = None;
            members("completion_tokens_details", details, &mut |key, value| {
                if key == "reasoning_tokens" {
                    reasoning_tokens = count(value);
                }
            })?;
            usage.reasoning_tokens = reasoning_tokens.or(usage.reasoning_tokens);
        }
        Ok(usage.none_if_empty())
    }

    /// None when all counts are zero, as in an empty object.
    pub(super) fn none_if_empty(self) -> Option<Self> {
        (self != Self::default()).then_some(self)
    }
}

/// A number of tokens; None for anything but a whole, positive number. Floats come from gateways in
/// front of an engine.
fn count(raw: &str) -> Option<u64> {
    raw.parse()
        .ok()
        .or_else(|| raw.parse::<f64>().ok().filter(|n| *n >= 0.0 && *n < 1e15).map(|n| n as u64))
}

fn text<'a>(member: &'static str, raw: Option<&'a str>) -> Parsed<&'a str> {
    raw.map_or(Ok(""), |raw| unquote(raw).ok_or(ChunkFault::Shape { member, expected: "a string" }))
}
