"""What is counted: everything that becomes the prompt, and never base64."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.messages.requests import (
    PDF,
    PNG,
    TOOL_F,
    assistant,
    call,
    policy,
    raw,
    result,
    system,
    text,
    upstream,
    user,
)

from ferrule.messages import decode, text_of, tokenize_body


def texts(**changes: Any) -> list[str]:
    return text_of(decode(raw(max_tokens=..., **changes)))


def tokenized(engine: str = "vllm", dialect: str = "anthropic", **changes: Any) -> dict[str, Any]:
    sent: dict[str, Any] = json.loads(
        tokenize_body(decode(raw(max_tokens=..., **changes)), policy(dialect, engine))
    )
    return sent


def test_g01_no_max_tokens_is_needed() -> None:
    assert texts() == ["hi"]
    assert tokenized()["messages"] == [{"role": "user", "content": "hi"}]


def test_system_tools_and_every_kind_of_text() -> None:
    thinking = {"type": "thinking", "thinking": "t", "signature": ""}
    messages = [
        user(text("a")),
        assistant(thinking, text("b"), call("c1", x=1)),
        user(result("c1", [text("r")]), result("c2", "s")),
        system("R"),
    ]
    found = texts(system=[text("S"), text("T")], messages=messages, tools=[TOOL_F])
    schema = json.dumps(TOOL_F["input_schema"], separators=(",", ":"))
    assert found == ["S\n\nT", "a", "t", "b", "F", '{"x":1}', "r", "s", "R", "F", "does F", schema]


def test_g05_an_image_counts_for_a_fixed_length_and_its_base64_never() -> None:
    pdf_in_result = result("c1", [PNG, PDF])
    found = texts(messages=[user(text("see"), PNG, PDF, pdf_in_result)])
    assert found[0] == "see"
    assert [words.split()[0] for words in found[1:]] == ["image", "image"]
    assert all("iVBOR" not in words and "JVBER" not in words for words in found)


def test_plain_documents_and_search_results_are_text() -> None:
    document = {"type": "document", "title": "T", "source": {"type": "text", "data": "D"}}
    parts = {"type": "document", "source": {"type": "content", "content": [text("P")]}}
    hit = {"type": "search_result", "title": "H", "source": "u", "content": [text("found")]}
    assert texts(messages=[user(document, parts, hit, result("c1", [document]))]) == [
        "T",
        "D",
        "P",
        "found",
        "T",
        "D",
    ]


def test_hidden_tools_are_not_counted() -> None:
    assert texts(tools=[{**TOOL_F, "defer_loading": True}]) == ["hi"]


def test_k01_the_attribution_line_is_not_counted() -> None:
    line = text("x-anthropic-billing-header: cc_version=2.1.0; cch=0a1b2;")
    assert texts(system=[line, text("S")]) == ["S", "hi"]
    assert tokenized(system=[line, text("S")]) == tokenized(system="S")


@pytest.mark.parametrize("engine", ["vllm", "vllm_old", "sglang"])
def test_the_engine_counts_the_prompt_that_a_request_would_have(engine: str) -> None:
    asked: dict[str, Any] = {
        "system": "S",
        "messages": [user(text("a")), assistant(call("c1")), user(result("c1", "r"))],
        "tools": [TOOL_F],
    }
    sent, counted = upstream(policy(engine=engine), **asked), tokenized(engine, **asked)
    assert counted == {
        "model": sent["model"],
        "messages": sent["messages"],
        "tools": sent["tools"],
        "add_generation_prompt": True,
    }


def test_the_effort_goes_into_the_arguments_of_the_template() -> None:
    effort = {"output_config": {"effort": "high"}}
    assert tokenized(**effort)["chat_template_kwargs"] == {
        "enable_thinking": True,
        "reasoning_effort": "high",
    }
    assert tokenized(output_config={"effort": "none"})["chat_template_kwargs"] == {
        "enable_thinking": False,
        "reasoning_effort": "none",
    }
    both = tokenized(**effort, thinking={"type": "enabled"})["chat_template_kwargs"]
    assert both == {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}
    assert tokenized(thinking={"type": "disabled"}, **effort)["chat_template_kwargs"] == {
        "enable_thinking": False,
        "thinking": False,
    }


def test_llama_cpp_counts_a_chat_body() -> None:
    counted = tokenized(
        "llamacpp", tools=[TOOL_F], output_config={"effort": "high"}, thinking={"type": "enabled"}
    )
    assert set(counted) == {
        "model",
        "messages",
        "tools",
        "reasoning_effort",
        "chat_template_kwargs",
    }


def test_a_prefill_is_counted_as_it_will_be_gone_on_from() -> None:
    counted = tokenized(messages=[user("a"), assistant("b")])
    assert (counted["add_generation_prompt"], counted["continue_final_message"]) == (False, True)


def test_sampling_and_budgets_do_not_matter_to_a_count() -> None:
    asked = {"temperature": 9, "thinking": {"type": "enabled", "budget_tokens": 5}}
    assert tokenized(dialect="tokenify", **asked)["messages"] == [{"role": "user", "content": "hi"}]
