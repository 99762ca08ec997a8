"""The text that `ferrule check` prints: a table of backends, what the proxy does for each model, and the knobs in force. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from ferrule.catalog import Served
from ferrule.check.survey import Ability, Asked, Inquiry
from ferrule.config import Config, Model
from ferrule.dialects import DIALECTS, Knobs
from ferrule.engines import Profile

COLUMNS = ("backend", "address", "state", "engine", "model", "context window", "tokenizer", "usage", "reasoning", "thinking budget")
NOT_TRIED = "? (--probe)"


def report(config: Config, inquiry: Inquiry) -> str:
    rows = [COLUMNS, *(row for asked in inquiry.asked for row in _rows(asked, inquiry))]
    served = inquiry.catalog.all()
    told = [_told(one, config, inquiry) for one in served]
    return "\n".join([*_aligned(rows), "", *(line for block in told for line in (*block, "")), *_knobs(served, config)])


# Backends


def _rows(asked: Asked, inquiry: Inquiry) -> Iterator[tuple[str, ...]]:
    state = "down" if asked.trouble else "up"
    if asked.description is None:
        yield (asked.name, asked.url, state, *["-"] * (len(COLUMNS) - 3))
        return
    profile = asked.description.offer.profile
    first = (asked.name, asked.url, state, _engine(asked, profile))
    models = [served for served in inquiry.catalog.all() if served.id in asked.abilities]
    for served in models:
        ability = asked.abilities[served.id]
        yield (*first, served.id, str(ability.window or "?"), *_abilities(served, ability))
    if not models:
        yield (*first, *["-"] * (len(COLUMNS) - len(first)))


class _Version(msgspec.Struct):
    version: str = ""
    build_info: str = ""


def _engine(asked: Asked, profile: Profile) -> str:
    assert asked.description is not None
    try:
        said = msgspec.json.decode(asked.description.version or asked.description.props or b"{}", type=_Version)
    except msgspec.MsgspecError:
        said = _Version()
    return f"{profile.name.removesuffix('_old')} {said.version or said.build_info}".strip()


def _abilities(served: Served, ability: Ability) -> tuple[str, str, str, str]:
    counts = served.tokenizer if ability.counted_tokens is None else f"its own, else {served.tokenizer}"
    if ability.has_usage is None:
        usage = NOT_TRIED
    else:
        usage = "none" if not ability.has_usage else "with cached tokens" if ability.has_cached_tokens else "without cached tokens"
    fields = ability.reasoning_fields
    reasoning = NOT_TRIED if fields is None else " and ".join(fields) or "none"
    return counts, usage, reasoning, _budget(served.policy.engine, ability)


def _budget(engine: Profile, ability: Ability) -> str:
    if engine.budget_field is None:
        return "none"
    if ability.budget_refusal is None:
        return f"{engine.budget_field} {NOT_TRIED}"
    return f"{engine.budget_field} refused" if ability.budget_refusal else engine.budget_field


# What the proxy does


def _told(served: Served, config: Config, inquiry: Inquiry) -> Iterator[str]:
    policy = served.policy
    model = next((model for model in config.models if model.id == served.id), Model(id=served.id))
    aliases = f" (also {', '.join(model.aliases)})" if model.aliases else ""
    window = policy.context_window
    yield f"{served.id}{aliases}"
    members = len(inquiry.of(served.pool))
    rows = [
        ("goes to", f"pool {served.pool} ({members} backend{'' if members == 1 else 's'}) as {policy.upstream}"),
        (
            "context window",
            f"{window} tokens{'' if model.context_window else ', as the backends say'}" if window else "not known, so not held",
        ),
        ("count_tokens", _counting(served, inquiry)),
        ("earlier reasoning", f"sent as {policy.engine.reasoning_history_field}"),
        ("thinking budget", _keeper(served)),
        ("effort", f"{', '.join(policy.effort)}; others: {policy.knobs.effort}" if policy.effort else "not verified, forwarded unchecked"),
        ("images", "passed on" if policy.images else f"not taken (media: {policy.knobs.media})"),
    ]
    for line in _aligned(rows):
        yield f"  {line}"


def _counting(served: Served, inquiry: Inquiry) -> str:
    if served.policy.knobs.count_tokens == "absent":
        return "not offered in this dialect"
    abilities = [asked.abilities[served.id] for asked in inquiry.of(served.pool) if served.id in asked.abilities]
    if served.policy.knobs.count_tokens == "engine" and any(ability.counted_tokens is not None for ability in abilities):
        return f"the engine's own count, else {served.tokenizer}"
    return f"estimated with {served.tokenizer}"


def _keeper(served: Served) -> str:
    engine = served.policy.engine
    match served.policy.budget_keeper:
        case "engine":
            return f"held by the engine ({engine.budget_field})"
        case "edge":
            return "held here: past it the reasoning is cut and the answer continued"
        case "refuse":
            return "refused with status 400"


# Knobs


def _knobs(served: Sequence[Served], config: Config) -> Iterator[str]:
    """Models that are alike stand together; what differs from the dialect is marked."""
    groups: dict[Knobs, list[str]] = {}
    for one in served:
        groups.setdefault(one.policy.knobs, []).append(one.id)
    plain = DIALECTS[config.dialect]
    for knobs, names in (groups or {plain: ["every model"]}).items():
        yield f"knobs in force for {', '.join(names)} (dialect {config.dialect}; *: changed by the model)"
        fields = [field.name for field in msgspec.structs.fields(Knobs) if field.name != "name"]
        rows = [("*" if getattr(knobs, name) != getattr(plain, name) else " ", name, _shown(getattr(knobs, name))) for name in fields]
        for line in _aligned(rows):
            yield f" {line}"


def _shown(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case frozenset():
            return ", ".join(sorted(value))
    return str(value)


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
