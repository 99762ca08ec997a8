"""Renders the text that `ferrule check` prints: a table of backends, what the proxy does for each
model, and the dialect's settings in force. Pure."""

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
    rows = [
        COLUMNS,
        *(
            row
            for backend_report in survey.backend_reports
            for row in _build_rows(backend_report, survey)
        ),
    ]
    models = survey.catalog.all()
    blocks = [_describe_model(served, config, survey) for served in models]
    return "\n".join(
        [
            *_align(rows),
            "",
            *(line for block in blocks for line in (*block, "")),
            *_list_overrides(models, config),
        ]
    )


# Backends


def _build_rows(backend_report: BackendReport, survey: Survey) -> Iterator[tuple[str, ...]]:
    state = "down" if backend_report.failure else "up"
    if backend_report.info is None:
        yield (backend_report.name, backend_report.url, state, *["-"] * (len(COLUMNS) - 3))
        return
    profile = backend_report.info.discovered.profile
    first = (
        backend_report.name,
        backend_report.url,
        state,
        _describe_engine(backend_report, profile),
    )
    models = [
        served
        for served in survey.catalog.all()
        if served.id in backend_report.capabilities_by_model
    ]
    for served in models:
        capabilities = backend_report.capabilities_by_model[served.id]
        yield (
            *first,
            served.id,
            str(capabilities.window or "?"),
            *_describe_capabilities(served, capabilities),
        )
    if not models:
        yield (*first, *["-"] * (len(COLUMNS) - len(first)))


class _Version(msgspec.Struct):
    version: str = ""
    build_info: str = ""


def _describe_engine(backend_report: BackendReport, profile: Profile) -> str:
    assert backend_report.info is not None
    try:
        version = msgspec.json.decode(
            backend_report.info.version or backend_report.info.props or b"{}", type=_Version
        )
    except msgspec.MsgspecError:
        version = _Version()
    return f"{profile.name.removesuffix('_old')} {version.version or version.build_info}".strip()


def _describe_capabilities(
    served: ServedModel, capabilities: Capabilities
) -> tuple[str, str, str, str]:
    counts = (
        served.tokenizer
        if capabilities.counted_tokens is None
        else f"its own, else {served.tokenizer}"
    )
    if capabilities.has_usage is None:
        usage = NOT_TRIED
    else:
        usage = (
            "none"
            if not capabilities.has_usage
            else "with cached tokens"
            if capabilities.has_cached_tokens
            else "without cached tokens"
        )
    fields = capabilities.reasoning_fields
    reasoning = NOT_TRIED if fields is None else " and ".join(fields) or "none"
    return counts, usage, reasoning, _describe_budget(served.policy.engine, capabilities)


def _describe_budget(engine: Profile, capabilities: Capabilities) -> str:
    if engine.budget_field is None:
        return "none"
    if capabilities.budget_refusal is None:
        return f"{engine.budget_field} {NOT_TRIED}"
    return f"{engine.budget_field} refused" if capabilities.budget_refusal else engine.budget_field


# What the proxy does


def _describe_model(served: ServedModel, config: Config, survey: Survey) -> Iterator[str]:
    policy = served.policy
    model = next(
        (model for model in config.models if model.id == served.id), ModelConfig(id=served.id)
    )
    aliases = f" (also {', '.join(model.aliases)})" if model.aliases else ""
    window = policy.context_window
    yield f"{served.id}{aliases}"
    backends = len(survey.in_pool(served.pool))
    rows = [
        (
            "goes to",
            f"pool {served.pool} ({backends} backend{'' if backends == 1 else 's'}) as "
            f"{policy.upstream}",
        ),
        (
            "context window",
            f"{window} tokens{'' if model.context_window else ', as the backends report'}"
            if window
            else "unknown, so not enforced",
        ),
        ("count_tokens", _describe_counting(served, survey)),
        ("earlier reasoning", f"sent as {policy.engine.reasoning_history_field}"),
        ("thinking budget", _describe_enforcement(served)),
        (
            "effort",
            f"{', '.join(policy.effort)}; others: {policy.dialect.effort}"
            if policy.effort
            else "not verified, forwarded unchecked",
        ),
        (
            "images",
            "passed on" if policy.images else f"not accepted (media: {policy.dialect.media})",
        ),
    ]
    for line in _align(rows):
        yield f"  {line}"


def _describe_counting(served: ServedModel, survey: Survey) -> str:
    if served.policy.dialect.count_tokens == "absent":
        return "not offered in this dialect"
    capabilities_by_model = [
        backend_report.capabilities_by_model[served.id]
        for backend_report in survey.in_pool(served.pool)
        if served.id in backend_report.capabilities_by_model
    ]
    if served.policy.dialect.count_tokens == "engine" and any(
        capabilities.counted_tokens is not None for capabilities in capabilities_by_model
    ):
        return f"the engine's own count, else {served.tokenizer}"
    return f"estimated with {served.tokenizer}"


def _describe_enforcement(served: ServedModel) -> str:
    engine = served.policy.engine
    match served.policy.budget_keeper:
        case "engine":
            return f"enforced by the engine ({engine.budget_field})"
        case "edge":
            return "enforced by the proxy: it cuts the reasoning and has the answer continued"
        case "refuse":
            return "refused with status 400"


# Dialect settings


def _list_overrides(served: Sequence[ServedModel], config: Config) -> Iterator[str]:
    """The dialect's settings, once for all models that share them; overrides are marked."""
    groups: dict[Dialect, list[str]] = {}
    for model in served:
        groups.setdefault(model.policy.dialect, []).append(model.id)
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
