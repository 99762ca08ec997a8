"""The chat route: what passes, what is dropped, what is put in, and that nothing below the top
level is touched."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.messages.requests import policy
from tests.messages.requests import raw as messages_body

from ferrule import messages
from ferrule.chat import passthrough as chat
from ferrule.errors import Failure, InvalidRequest
from ferrule.messages import Policy

HI = {"role": "user", "content": "hi"}
# fmt: off
STEERING = [
    "priority", "cache_salt", "session_id", "request_id", "rid", "kv_transfer_params", "bootstrap_host",
    "routed_dp_rank", "id_slot", "cache_prompt", "lora_path", "chat_template", "use_beam_search", "best_of",
    "logits_processors", "n_predict", "vllm_xargs", "custom_params", "mm_processor_kwargs", "foo"
]
HARMLESS = [
    "temperature", "top_p", "n", "stop", "max_tokens", "max_completion_tokens", "seed", "logprobs", "top_logprobs",
    "logit_bias", "presence_penalty", "frequency_penalty", "tools", "tool_choice", "parallel_tool_calls",
    "response_format", "reasoning_effort", "user", "top_k", "min_p", "repetition_penalty", "chat_template_kwargs",
    "structured_outputs", "continue_final_message", "add_generation_prompt", "thinking_token_budget",
    "include_reasoning"
]
# fmt: on


def raw(**changes: Any) -> bytes:
    whole = {"model": "m", "messages": [HI], **changes}
    return json.dumps(
        {name: value for name, value in whole.items() if value is not ...}, ensure_ascii=False
    ).encode()


def sent(under: Policy | None = None, **changes: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(
        chat.translate(chat.decode(raw(**changes)), under or policy()).body
    )
    return body


def key(headers: dict[str, str] | None = None, tenant: str = "t", **changes: Any) -> bytes | None:
    return chat.session_key(headers or {}, chat.decode(raw(**changes)), tenant)


def test_the_smallest_request() -> None:
    assert sent() == {"model": "org/model", "messages": [HI]}


def test_b23_only_the_top_level_model_is_replaced() -> None:
    body = chat.translate(
        chat.decode(
            raw(
                messages=[{"role": "user", "content": '"model": "m"', "model": "m"}],
                metadata={"model": "m"},
            )
        ),
        policy(),
    ).body
    assert json.loads(body) == {
        "model": "org/model",
        "messages": [{"role": "user", "content": '"model": "m"', "model": "m"}],
        "metadata": {"model": "m"},
    }


def test_members_keep_their_bytes() -> None:
    spelled = b'{"z":1.50,"a":12345678901234567890,"u":"\\u00e9"}'
    body = (
        b'{"response_format":'
        + spelled
        + b',"model":"m","messages":[ {"role":"user","content":"x"} ]}'
    )
    out = chat.translate(chat.decode(body), policy()).body
    assert (
        out
        == b'{"response_format":'
        + spelled
        + b',"model":"org/model","messages":[ {"role":"user","content":"x"} ]}'
    )


@pytest.mark.parametrize("name", STEERING)
def test_what_steers_the_engine_is_dropped_and_reported(name: str) -> None:
    rebuilt = chat.translate(chat.decode(raw(**{name: 1})), policy())
    assert (json.loads(rebuilt.body), rebuilt.dropped) == (sent(), (name,))


@pytest.mark.parametrize("name", HARMLESS)
def test_what_concerns_the_request_alone_passes(name: str) -> None:
    value = {
        "max_tokens": 5,
        "max_completion_tokens": 5,
        "reasoning_effort": "low",
        "user": "u",
        "tools": [{}],
    }.get(name, 1)
    assert sent(**{name: value})[name] == value


@pytest.mark.parametrize(
    ("options", "out", "hidden"),
    [
        (..., {"include_usage": True}, True),
        (None, {"include_usage": True}, True),
        ({}, {"include_usage": True}, True),
        ({"include_usage": False}, {"include_usage": True}, True),
        ({"include_usage": True}, {"include_usage": True}, False),
        (
            {"include_usage": True, "continuous_usage_stats": True},
            {"include_usage": True, "continuous_usage_stats": True},
            False,
        ),
    ],
)
def test_a_stream_always_brings_its_usage(options: Any, out: Any, hidden: bool) -> None:
    rebuilt = chat.translate(chat.decode(raw(stream=True, stream_options=options)), policy())
    assert (rebuilt.stream, rebuilt.hide_usage) == (True, hidden)
    assert json.loads(rebuilt.body)["stream_options"] == out


@pytest.mark.parametrize("stream", [False, None, ...])
def test_stream_options_without_a_stream_are_left_out(stream: Any) -> None:
    rebuilt = chat.translate(
        chat.decode(raw(stream=stream, stream_options={"include_usage": True})), policy()
    )
    assert (rebuilt.stream, rebuilt.hide_usage) == (False, False)
    assert "stream_options" not in json.loads(rebuilt.body)


def test_an_empty_list_of_tools_is_left_out() -> None:
    assert {"tools", "tool_choice"} & set(sent(tools=[], tool_choice="auto")) == set()


def test_effort_is_checked_against_the_tiers_of_the_model() -> None:
    with pytest.raises(InvalidRequest) as caught:
        sent(policy(effort=("low", "medium")), reasoning_effort="high")
    assert (
        caught.value.message
        == "reasoning_effort: effort 'high' is not supported by m; it takes: low, medium"
    )
    assert sent(policy(effort=("low",)), reasoning_effort="low")["reasoning_effort"] == "low"
    assert sent(policy(effort=None), reasoning_effort="ultra")["reasoning_effort"] == "ultra"
    assert sent(policy(effort=("low",)), reasoning_effort=None)["reasoning_effort"] is None


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{", "The request body must be a JSON object"),
        (b"", "The request body must be a JSON object"),
        (b"[]", "The request body must be a JSON object"),
        (b"null", "The request body must be a JSON object"),
        (
            b'{"model":"m","messages":[{"content":"\xff"}]}',
            "The request body must be a JSON object",
        ),
        (b'{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}", "The request body is nested too deeply"),
        (raw(model=...), "model: must be a non-empty string"),
        (raw(model=""), "model: must be a non-empty string"),
        (raw(model=5), "model: must be a string"),
        (raw(messages=...), "messages: must be an array of at least one message"),
        (raw(messages=[]), "messages: must be an array of at least one message"),
        (raw(messages="hi"), "messages: must be an array of at least one message"),
        (raw(stream="yes"), "stream: must be a boolean"),
        (raw(max_tokens="5"), "max_tokens: must be an integer"),
        (raw(stream_options=5), "stream_options: must be an object"),
        (raw(reasoning_effort=5), "reasoning_effort: must be a string"),
    ],
)
def test_h09_what_is_no_request(body: bytes, says: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat.translate(chat.decode(body), policy())
    assert caught.value.message.startswith(says)


def test_what_is_read_of_a_request() -> None:
    request = chat.decode(raw(stream=True, user="u", max_tokens=5, max_completion_tokens=7))
    assert (request.model, request.stream, request.user, request.max_tokens) == ("m", True, "u", 7)
    assert chat.decode(raw(max_tokens=5)).max_tokens == 5


# Whole replies


def test_a_reply_gets_the_name_that_the_client_knows() -> None:
    usage = {
        "prompt_tokens": 1000,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 900},
    }
    reply = chat.rename_model(
        json.dumps(
            {"id": "c", "model": "org/model", "choices": [{"model": "org/model"}], "usage": usage}
        ).encode(),
        'a"b',
    )
    assert json.loads(reply.body) == {
        "id": "c",
        "model": 'a"b',
        "choices": [{"model": "org/model"}],
        "usage": usage,
    }
    assert reply.usage == (100, 900, 5)


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        (..., (0, 0, 0)),
        (None, (0, 0, 0)),
        ({}, (0, 0, 0)),
        ({"prompt_tokens": 5, "completion_tokens": None, "prompt_tokens_details": None}, (5, 0, 0)),
        (
            {
                "prompt_tokens": 5,
                "completion_tokens": 1,
                "prompt_tokens_details": {"cached_tokens": 9},
            },
            (0, 9, 1),
        ),
    ],
)
def test_usage_that_is_not_whole(usage: Any, counted: tuple[int, int, int]) -> None:
    reply = {"id": "c"} if usage is ... else {"id": "c", "usage": usage}
    assert chat.rename_model(json.dumps(reply).encode(), "m").usage == counted


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b'"x"', b'{"usage":5}', b'{"a":' + b"[" * 10_000]
)
def test_a_reply_that_is_none(body: bytes) -> None:
    with pytest.raises(Failure) as caught:
        chat.rename_model(body, "m")
    assert (caught.value.status, caught.value.kind) == (502, "api_error")


# Sessions

ID = "0f6f1f1c-1a2b-4c3d-8e9f-a0b1c2d3e4f5"


def test_one_session_has_one_key_on_both_surfaces() -> None:
    on_messages = messages.session_key(
        {},
        messages.decode(messages_body(metadata={"user_id": f"user_x_account__session_{ID}"})),
        "t",
    )
    assert on_messages is not None
    assert {
        key({"x-claude-code-session-id": ID}),
        key(user=ID),
        key(user=json.dumps({"session_id": ID})),
    } == {on_messages}


def opened(*said: dict[str, Any], **changes: Any) -> bytes | None:
    return messages.session_key(
        {}, messages.decode(messages_body(messages=list(said), **changes)), "t"
    )


def test_k11_one_opening_has_one_key_on_both_surfaces() -> None:
    system = {"role": "system", "content": "S"}
    in_parts = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    assert {key(messages=[system, HI]), key(messages=[system, in_parts])} == {
        opened(HI, system="S")
    }
    assert key(messages=[HI]) == opened(HI)
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
    assert key(messages=[image]) is None


def test_k11_the_opening_stays_the_key_of_a_growing_conversation() -> None:
    opening = [{"role": "system", "content": "S"}, HI]
    grown = [*opening, {"role": "assistant", "content": "a"}, {"role": "user", "content": "u2"}]
    assert key(messages=opening) == key(messages=grown)
    assert key(messages=opening) not in (
        None,
        key(messages=[HI]),
        key(messages=opening, tenant="other"),
    )


def test_nothing_to_hold_on_to_is_no_key() -> None:
    assert key(messages=[{"role": "assistant", "content": "a"}]) is None
    assert key(messages=[{"role": "user"}, {"role": "user", "content": "x"}]) is None
    assert key(messages=[5]) is None
