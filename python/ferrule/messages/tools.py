"""Which tools the model is offered, and as what: deferred ones, typed ones, those no backend can
run; and `tool_choice`.

Always-present tools come first and loaded deferred ones after them in the order in which they were
loaded, so that loading one changes the end of the tool list and not its middle.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ferrule.errors import InvalidRequest
from ferrule.messages.chat_schema import Function, FunctionName, FunctionTool, NamedTool
from ferrule.messages.diagnostics import Diagnostics
from ferrule.messages.json_text import NOTHING, first_char
from ferrule.messages.policy import Policy
from ferrule.messages.schema import Block, MessagesRequest, Tool, ToolChoice, blocks_in
from ferrule.messages.tool_names import ToolNames
from ferrule.messages.typed_tools import CLIENT_TOOLS, TOOL_SEARCH_FAMILIES, family

_NO_PARAMETERS = msgspec.Raw(b'{"type":"object","properties":{}}')


class ToolSet(msgspec.Struct):
    """What goes upstream about tools; every member None when there is nothing to offer."""

    tools: list[FunctionTool] | None = None
    choice: str | NamedTool | None = None
    parallel: bool | None = None
    single_call: bool = False


def build_tool_set(
    request: MessagesRequest, policy: Policy, names: ToolNames, diagnostics: Diagnostics
) -> ToolSet:
    """Raises InvalidRequest for a tool without a name, and where the client insists on a tool that
    cannot be had."""
    choice = request.tool_choice
    if not request.tools and choice is None and not _has_changes(request):
        return ToolSet()
    for index, tool in enumerate(request.tools or ()):
        if not tool.name and tool.is_custom:
            raise InvalidRequest(f"tools.{index}.name", "must be a non-empty string")
    offered, unavailable = _partition(request, policy, diagnostics)
    functions = [_function(tool, names) for tool in offered]
    if choice is not None and not policy.dialect.accepts("tool_choice"):
        if choice.type != "auto" or choice.disable_parallel_tool_use:
            diagnostics.drop("tool_choice")
        choice = None
    if (
        choice is not None
        and choice.type == "tool"
        and _is_unavailable(choice, offered, unavailable, policy)
    ):
        diagnostics.drop("tool_choice")
        choice = None
    if not functions:
        return ToolSet()
    result = ToolSet(functions)
    if choice is not None:
        _choose(result, choice, policy, names)
    return result


def visible_tools(request: MessagesRequest) -> list[Tool]:
    """The client's tools without the deferred ones that nothing has loaded yet and those only code
    may call."""
    always: list[Tool] = []
    deferred: dict[str, Tool] = {}
    for tool in request.tools or ():
        if tool.allowed_callers and "direct" not in tool.allowed_callers:
            continue
        if tool.defer_loading and tool.name:
            deferred[tool.name] = tool
        else:
            always.append(tool)
    if not deferred and not _has_changes(request):
        return always
    return _after_changes(request, always, deferred)


def _has_changes(request: MessagesRequest) -> bool:
    for message in request.messages:
        if (
            message.role == "system"
            and isinstance(message.content, list)
            and any(map(_is_change, message.content))
        ):
            return True
    return False


def _is_change(block: Block) -> bool:
    return block.type in ("tool_addition", "tool_removal")


def _after_changes(
    request: MessagesRequest, always: list[Tool], deferred: dict[str, Tool]
) -> list[Tool]:
    shown: dict[str, Tool] = {tool.name or "": tool for tool in always}
    hidden = dict(deferred)
    if request.tool_choice is not None and request.tool_choice.name in hidden:
        shown[request.tool_choice.name or ""] = hidden[request.tool_choice.name or ""]
    for is_addition, name, definition in _changes(request):
        if not is_addition:
            removed = shown.pop(name, None)
            if removed is not None:
                hidden[name] = removed
        elif definition is not None:
            shown.setdefault(name, definition)
        elif name in hidden:
            shown.setdefault(name, hidden[name])
    return list(shown.values())


def _changes(request: MessagesRequest) -> Iterator[tuple[bool, str, Tool | None]]:
    """(added or removed, name, definition if one came along), in the order of the conversation."""
    for message in request.messages:
        if not isinstance(message.content, list):
            continue
        for block in message.content:
            if block.type in ("tool_result", "tool_search_tool_result"):
                yield from ((True, name, None) for name in _find_references(block))
            elif _is_change(block) and block.tool is not None:
                definition = _read_definition(block) if block.type == "tool_addition" else None
                name = (
                    (definition.name if definition else None)
                    or block.tool.name
                    or block.tool.tool_name
                )
                if name:
                    yield block.type == "tool_addition", name, definition


def _find_references(block: Block) -> Iterator[str]:
    """Names in a result: `tool_reference` blocks, alone or inside a search result's
    `tool_references`."""
    if first_char(block.content) not in ("[", "{"):
        return
    blocks = blocks_in(block.content, "content")
    for inner in blocks if isinstance(blocks, list) else ():
        if inner.tool_name:
            yield inner.tool_name
        found = blocks_in(inner.tool_references, "tool_references")
        yield from (
            reference.tool_name
            for reference in found
            if isinstance(reference, Block) and reference.tool_name
        )


def _read_definition(block: Block) -> Tool | None:
    if block.tool is None or block.tool.type != "tool_definition":
        return None
    try:
        tool = msgspec.json.decode(block.tool.definition, type=Tool)
    except msgspec.MsgspecError:
        return None
    return tool if tool.name else None


def _partition(
    request: MessagesRequest, policy: Policy, diagnostics: Diagnostics
) -> tuple[list[Tool], list[Tool]]:
    """(tools to offer, tools no backend can run)"""
    offered: list[Tool] = []
    unavailable: list[Tool] = []
    for tool in visible_tools(request):
        if tool.is_custom or (tool.type in CLIENT_TOOLS and policy.dialect.client_tools == "offer"):
            offered.append(tool)
        else:
            unavailable.append(tool)
    for tool in unavailable:
        diagnostics.drop(tool.type or "")
        if policy.dialect.server_tools != "drop":
            diagnostics.warn(tool.type or "", "no backend can run this tool; it is left out")
    blocking = [tool for tool in unavailable if family(tool.type or "") not in TOOL_SEARCH_FAMILIES]
    if (
        policy.dialect.server_tools == "report"
        and blocking
        and len(unavailable) == len(request.tools or ())
    ):
        raise InvalidRequest(
            "tools", f"{blocking[0].type} cannot be run here; offer at least one tool of your own"
        )
    return offered, unavailable


def _function(tool: Tool, names: ToolNames) -> FunctionTool:
    name = names.upstream(_name(tool))
    typed = CLIENT_TOOLS.get(tool.type) if tool.type else None
    if typed is not None:
        return FunctionTool(Function(name, typed.description, typed.parameters))
    schema = _member(tool, tool.input_schema, "{", "input_schema must be an object")
    description = _member(tool, tool.description, '"', "description must be a string")
    return FunctionTool(
        Function(
            name, description, _NO_PARAMETERS if schema is NOTHING else schema, tool.strict or None
        )
    )


def _member(tool: Tool, raw: msgspec.Raw, starts_with: str, expected: str) -> msgspec.Raw:
    """An opaque member as it came, checked by its first character; NOTHING for null."""
    first = first_char(raw)
    if first == starts_with:
        return raw
    if first in ("", "n"):
        return NOTHING
    raise InvalidRequest("tools", f"the tool {tool.name!r}: {expected}")


def _is_unavailable(
    choice: ToolChoice, offered: list[Tool], unavailable: list[Tool], policy: Policy
) -> bool:
    """Whether the tool that the client insists on is one that was left out; raises InvalidRequest
    where the setting says so."""
    if any(_name(tool) == choice.name for tool in offered):
        return False
    server_tool = next((tool for tool in unavailable if _name(tool) == choice.name), None)
    if server_tool is None:
        raise InvalidRequest(
            "tool_choice.name", f"must be one of the tools offered, not {choice.name!r}"
        )
    if policy.dialect.server_tools == "report":
        raise InvalidRequest(
            "tool_choice.name", f"{choice.name!r} is {server_tool.type}, which cannot be run here"
        )
    return True


def _name(tool: Tool) -> str:
    """A typed tool may come without the name that its type fixes."""
    if tool.name or not tool.type:
        return tool.name or ""
    typed = CLIENT_TOOLS.get(tool.type)
    return typed.name if typed else family(tool.type)


def _choose(result: ToolSet, choice: ToolChoice, policy: Policy, names: ToolNames) -> None:
    tools = result.tools or []
    if choice.type == "any":
        result.choice = "required"
    elif choice.type == "none":
        result.choice = "none"
    elif choice.type == "tool":
        wanted = names.upstream(choice.name or "")
        if policy.engine.forced_named_tool:
            result.choice = NamedTool(FunctionName(wanted))
        else:
            # such an engine takes an object for "auto"; with one tool on offer "required" means
            # that one
            result.tools, result.choice = (
                [tool for tool in tools if tool.function.name == wanted],
                "required",
            )
    elif choice.type == "auto":
        result.choice = "auto"
    else:
        raise InvalidRequest("tool_choice.type", "must be 'auto', 'any', 'tool' or 'none'")
    if choice.disable_parallel_tool_use:
        result.parallel, result.single_call = False, True
