"""The text that `ferrule check` prints: a table of backends, what the proxy does for each model,
and the dialect in force. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from ferrule.catalog import ServedModel
from ferrule.check.survey import BackendReport, Capabilities, Survey
from ferrule.config import Config, ModelConfig
from ferrule.dialects import DIALECTS, Dialect
from ferrule.engines import Profile

COLUMNS = (
    "backend",
    "address",
    "state",
    "engine",
    "model",
    "context window",
    "tokenizer",
    "usage",
    "reasoning",
    "thinking budget",
)
NOT_TRIED = "? (--probe)"


def render(config: Config, survey: Survey) -> str:
    rows = [COLUMNS, *(row for report in survey.report for row in _rows(report, survey))]
    served = survey.catalog.all()
    blocks = [_describe_models(one, config, survey) for one in served]
    return "\n".join(
        [
            *_align(rows),
            "",
            *(line for block in blocks for line in (*block, "")),
            *_list_overrides(served, config),
        ]
    )


# Backends


def _rows(report: BackendReport, survey: Survey) -> Iterator[tuple[str, ...]]:
    state = "down" if report.trouble else "up"
    if report.description is None:
        yield (report.name, report.url, state, *["-"] * (len(COLUMNS) - 3))
        return
    profile = report.description.discovered.profile
    first = (report.name, report.url, state, _engine(report, profile))
    models = [served for served in survey.catalog.all() if served.id in report.abilities]
    for served in models:
        ability = report.abilities[served.id]
        yield (*first, served.id, str(ability.window or "?"), *_abilities(served, ability))
    if not models:
        yield (*first, *["-"] * (len(COLUMNS) - len(first)))


class _Version(msgspec.Struct):
    version: str = ""
    build_info: str = ""


def _engine(report: BackendReport, profile: Profile) -> str:
    assert report.description is not None
    try:
        said = msgspec.json.decode(
            report.description.version or report.description.props or b"{}", type=_Version
        )
    except msgspec.MsgspecError:
        said = _Version()
    return f"{profile.name.removesuffix('_old')} {said.version or said.build_info}".strip()


def _abilities(served: ServedModel, ability: Capabilities) -> tuple[str, str, str, str]:
    counts = (
        served.tokenizer if ability.counted_tokens is None else f"its own, else {served.tokenizer}"
    )
    if ability.has_usage is None:
        usage = NOT_TRIED
    else:
        usage = (
            "none"
            if not ability.has_usage
            else "with cached tokens"
            if ability.has_cached_tokens
            else "without cached tokens"
        )
    fields = ability.reasoning_fields
    reasoning = NOT_TRIED if fields is None else " and ".join(fields) or "none"
    return counts, usage, reasoning, _budget(served.policy.engine, ability)


def _budget(engine: Profile, ability: Capabilities) -> str:
    if engine.budget_field is None:
        return "none"
    if ability.budget_refusal is None:
        return f"{engine.budget_field} {NOT_TRIED}"
    return f"{engine.budget_field} refused" if ability.budget_refusal else engine.budget_field


# What the proxy does


def _describe_models(served: ServedModel, config: Config, survey: Survey) -> Iterator[str]:
    policy = served.policy
    model = next(
        (model for model in config.models if model.id == served.id), ModelConfig(id=served.id)
    )
    aliases = f" (also {', '.join(model.aliases)})" if model.aliases else ""
    window = policy.context_window
    yield f"{served.id}{aliases}"
    members = len(survey.of(served.pool))
    rows = [
        (
            "goes to",
            f"pool {served.pool} ({members} backend{'' if members == 1 else 's'}) as "
            f"{policy.upstream}",
        ),
        (
            "context window",
            f"{window} tokens{'' if model.context_window else ', as the backends say'}"
            if window
            else "not known, so not held",
        ),
        ("count_tokens", _counting(served, survey)),
        ("earlier reasoning", f"sent as {policy.engine.reasoning_history_field}"),
        ("thinking budget", _keeper(served)),
        (
            "effort",
            f"{', '.join(policy.effort)}; others: {policy.dialect.effort}"
            if policy.effort
            else "not verified, forwarded unchecked",
        ),
        ("images", "passed on" if policy.images else f"not taken (media: {policy.dialect.media})"),
    ]
    for line in _align(rows):
        yield f"  {line}"


def _counting(served: ServedModel, survey: Survey) -> str:
    if served.policy.dialect.count_tokens == "absent":
        return "not offered in this dialect"
    abilities = [
        report.abilities[served.id]
        for report in survey.of(served.pool)
        if served.id in report.abilities
    ]
    if served.policy.dialect.count_tokens == "engine" and any(
        ability.counted_tokens is not None for ability in abilities
    ):
        return f"the engine's own count, else {served.tokenizer}"
    return f"estimated with {served.tokenizer}"


def _keeper(served: ServedModel) -> str:
    engine = served.policy.engine
    match served.policy.budget_keeper:
        case "engine":
            return f"held by the engine ({engine.budget_field})"
        case "edge":
            return "held here: past it the reasoning is cut and the answer continued"
        case "refuse":
            return "refused with status 400"


# Dialect settings


def _list_overrides(served: Sequence[ServedModel], config: Config) -> Iterator[str]:
    """Models that are alike stand together; what differs from the dialect is marked."""
    groups: dict[Dialect, list[str]] = {}
    for one in served:
        groups.setdefault(one.policy.dialect, []).append(one.id)
    plain = DIALECTS[config.dialect]
    for dialect, names in (groups or {plain: ["every model"]}).items():
        yield (
            f"dialect in force for {', '.join(names)} (dialect {config.dialect}; *: changed by "
            f"the model)"
        )
        fields = [field.name for field in msgspec.structs.fields(Dialect) if field.name != "name"]
        rows = [
            (
                "*" if getattr(dialect, name) != getattr(plain, name) else " ",
                name,
                _format(getattr(dialect, name)),
            )
            for name in fields
        ]
        for line in _align(rows):
            yield f" {line}"


def _format(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case frozenset():
            return ", ".join(sorted(value))
    return str(value)


def _align(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
