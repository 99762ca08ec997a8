"""The panels of the dashboard, row by row: titles, units and expressions. generate.py turns them
into Grafana's format.

`$namespace`, `$model` and `$pool` are variables of the dashboard; every expression filters by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

Kind = Literal["timeseries", "stat", "heatmap", "state-timeline", "table"]


class Query(NamedTuple):
    """One line of a panel. `legend` is Grafana's template over the labels."""

    expr: str
    legend: str


class Panel(NamedTuple):
    title: str
    unit: str
    queries: Sequence[Query]
    about: str
    kind: Kind = "timeseries"
    stacked: bool = False


class Row(NamedTuple):
    title: str
    panels: Sequence[Panel]


NS = 'namespace=~"$namespace"'
MODEL = f'{NS}, model=~"$model"'
POOL = f'{NS}, pool=~"$pool"'
WINDOW = "[$__rate_interval]"


def _rate_by(name: str, by: str, filters: str) -> str:
    return f"sum by ({by}) (rate({name}{{{filters}}}{WINDOW}))"


def _total_rate(name: str, filters: str) -> str:
    return f"sum(rate({name}{{{filters}}}{WINDOW}))"


def _share(name: str, part: str, whole: str) -> str:
    """The share of what `whole` matches that `part`, an additional matcher, matches too."""
    return f"{_total_rate(name, f'{whole}, {part}')} / {_total_rate(name, whole)}"


def _quantile(share: float, name: str, filters: str, by: str = "") -> str:
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({share}, {_rate_by(f'{name}_bucket', labels, filters)})"


def _quantiles(name: str, filters: str) -> list[Query]:
    return [
        Query(_quantile(share, name, filters), legend)
        for share, legend in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
    ]


TRAFFIC = Row(
    "Traffic and errors",
    (
        Panel(
            "Requests by status",
            "reqps",
            [Query(_rate_by("ferrule_requests_total", "code", MODEL), "{{code}}")],
            "Responses per second by HTTP status. 529: no free backend. A stream that breaks "
            "later is under 'Streams ended'.",
            stacked=True,
        ),
        Panel(
            "Share of failed requests",
            "percentunit",
            [
                Query(_share("ferrule_requests_total", 'code=~"5.."', MODEL), "5xx"),
                Query(_share("ferrule_requests_total", 'code=~"4.."', MODEL), "4xx"),
            ],
            "5xx is the proxy's or the backends' fault, 4xx the client's (429: its limits).",
        ),
        Panel(
            "Requests by route",
            "reqps",
            [Query(_rate_by("ferrule_requests_total", "route", MODEL), "{{route}}")],
            "Which API clients use.",
            stacked=True,
        ),
        Panel(
            "Streams active",
            "short",
            [Query(f"sum by (pod) (ferrule_streams_active{{{NS}}})", "{{pod}}")],
            "Streams in progress.",
            stacked=True,
        ),
        Panel(
            "Streams ended",
            "ops",
            [Query(_rate_by("ferrule_stream_end_total", "reason", NS), "{{reason}}")],
            "How streams end. client_gone: the client disconnected. backend_error, timeout and "
            "drain cut an answer short.",
            stacked=True,
        ),
        Panel(
            "Tokens",
            "short",
            [Query(_rate_by("ferrule_tokens_total", "type", MODEL), "{{type}} per second")],
            "Tokens per second. input excludes tokens read from a cache (cache_read).",
        ),
    ),
)

LATENCY = Row(
    "Latency",
    (
        Panel(
            "Time to first token",
            "s",
            _quantiles("ferrule_time_to_first_token_seconds", MODEL),
            "From a request's head to its first content. Buckets are vLLM's, so this panel can be "
            "overlaid with the engine's own.",
        ),
        Panel(
            "Time to first token, spread",
            "s",
            [Query(_rate_by("ferrule_time_to_first_token_seconds_bucket", "le", MODEL), "{{le}}")],
            "Two clusters usually are turns that hit the prefix cache and turns that do not.",
            kind="heatmap",
        ),
        Panel(
            "Time per output token",
            "s",
            _quantiles("ferrule_time_per_output_token_seconds", MODEL),
            "Between two tokens of a stream, as sent to the client. Buckets are vLLM's.",
        ),
        Panel(
            "Time to first token by model (p95)",
            "s",
            [
                Query(
                    _quantile(0.95, "ferrule_time_to_first_token_seconds", MODEL, "model"),
                    "{{model}}",
                )
            ],
            "Compares the waits of the models.",
        ),
        Panel(
            "Overhead of the proxy (p99)",
            "s",
            [Query(_quantile(0.99, "ferrule_proxy_overhead_seconds", NS, "phase"), "{{phase}}")],
            "Time the proxy itself takes, by phase.",
        ),
        Panel(
            "Request duration",
            "s",
            _quantiles("ferrule_request_duration_seconds", NS),
            "From a request's head to the end of its response.",
        ),
        Panel(
            "Counting tokens",
            "s",
            [Query(_quantile(0.95, "ferrule_count_tokens_seconds", NS), "p95")],
            "Time to count a body's tokens, by the engine or by the proxy's own tokenizer.",
        ),
    ),
)

_KEYED = f'{POOL}, branch!="keyless"'
_CACHED = f'{MODEL}, type="cache_read"'
_PROMPT = f'{MODEL}, type=~"input|cache_read"'

ROUTING = Row(
    "Routing",
    (
        Panel(
            "Decisions by branch",
            "ops",
            [Query(_rate_by("ferrule_routing_decisions_total", "branch", POOL), "{{branch}}")],
            "home: the session's backend. spill: home was full. failover: home was down or "
            "failed. keyless: the request had no session.",
            stacked=True,
        ),
        Panel(
            "Share away from home",
            "percentunit",
            [
                Query(
                    _share("ferrule_routing_decisions_total", f'branch="{branch}"', _KEYED), branch
                )
                for branch in ("spill", "failover")
            ],
            "Turns that run on a backend without their cache.",
        ),
        Panel(
            "KV cache hit share",
            "percentunit",
            [
                Query(
                    f"{_rate_by('ferrule_tokens_total', 'model', _CACHED)} / "
                    f"{_rate_by('ferrule_tokens_total', 'model', _PROMPT)}",
                    "{{model}}",
                )
            ],
            "Share of prompt tokens that the engines read from their caches; session routing is "
            "there to raise it.",
        ),
        Panel(
            "In flight per backend",
            "short",
            [
                Query(
                    f"sum by (pool, backend) (ferrule_backend_inflight{{{POOL}}})",
                    "{{pool}} {{backend}}",
                )
            ],
            "Requests in flight at each backend, over all replicas.",
        ),
        Panel(
            "Imbalance",
            "short",
            [
                Query(
                    f"max by (pool) (sum by (pool, backend) "
                    f"(ferrule_backend_inflight{{{POOL}}})) / "
                    f"avg by (pool) (sum by (pool, backend) (ferrule_backend_inflight{{{POOL}}}))",
                    "{{pool}}",
                )
            ],
            "Requests in flight at the busiest backend over the mean. 1 is even.",
        ),
    ),
)

_FAILED = f'{POOL}, code!~"2.."'

BACKENDS = Row(
    "Backends",
    (
        Panel(
            "Health",
            "short",
            [
                Query(
                    f"min by (pool, backend) (ferrule_backend_healthy{{{POOL}}})",
                    "{{pool}} {{backend}}",
                )
            ],
            "1: every replica sends it requests. 0: at least one does not (down, ejected or "
            "draining).",
            kind="state-timeline",
        ),
        Panel(
            "Attempts by backend",
            "reqps",
            [Query(_rate_by("ferrule_backend_requests_total", "backend", POOL), "{{backend}}")],
            "Attempts per second, retries included.",
        ),
        Panel(
            "Failed attempts",
            "reqps",
            [
                Query(
                    _rate_by("ferrule_backend_requests_total", "backend, code", _FAILED),
                    "{{backend}} {{code}}",
                )
            ],
            "Each backend's error statuses, and failures before a response.",
            stacked=True,
        ),
        Panel(
            "Retries by reason",
            "ops",
            [Query(_rate_by("ferrule_backend_retries_total", "reason", NS), "{{reason}}")],
            "Requests sent again before anything reached the client.",
        ),
        Panel(
            "Queue",
            "short",
            [Query(f"sum by (pool) (ferrule_queue_depth{{{POOL}}})", "{{pool}}")],
            "Requests waiting because every backend is at max_inflight.",
        ),
        Panel(
            "Queue wait",
            "s",
            _quantiles("ferrule_queue_wait_seconds", NS),
            "Of the requests that had to wait.",
        ),
        Panel(
            "Discovery age",
            "s",
            [Query(f"max by (pool) (ferrule_discovery_age_seconds{{{POOL}}})", "{{pool}}")],
            "Time since the list of backends was last confirmed, at the replica where it is the "
            "longest.",
        ),
    ),
)

KEYS = Row(
    "Keys and limits",
    (
        Panel(
            "Refused by gate",
            "ops",
            [Query(_rate_by("ferrule_limited_total", "gate", NS), "{{gate}}")],
            "What refuses: a key's requests, tokens or concurrency; the queue; key: status 401. "
            "store: the limits store was unavailable, whether or not that refused the request.",
            stacked=True,
        ),
        Panel(
            "Refused requests",
            "reqps",
            [
                Query(
                    _rate_by("ferrule_requests_total", "code", f'{NS}, code=~"401|403|429|529"'),
                    "{{code}}",
                )
            ],
            "401 unknown key, 403 model not allowed, 429 a key's limit, 529 no free backend.",
        ),
        Panel(
            "Tokens by model",
            "short",
            [Query(_rate_by("ferrule_tokens_total", "model", MODEL), "{{model}} per second")],
            "Input, output and cached tokens together.",
            stacked=True,
        ),
        Panel(
            "Parameters dropped",
            "ops",
            [Query(_rate_by("ferrule_dropped_params_total", "param", NS), "{{param}}")],
            "Parameters that clients sent and the dialect drops. The responses carry "
            "x-ferrule-dropped.",
        ),
    ),
)

PROCESS = Row(
    "Process",
    (
        Panel(
            "Event loop lag",
            "s",
            [Query(f"max by (pod) (ferrule_event_loop_lag_seconds{{{NS}}})", "{{pod}}")],
            "How late timers run at the slowest worker of each pod; streams stall for as long.",
        ),
        Panel(
            "Replicas read",
            "short",
            [Query(f'sum(up{{job="ferrule", {NS}}})', "replicas")],
            "Replicas that Prometheus scrapes.",
            kind="stat",
        ),
        Panel(
            "Versions",
            "short",
            [Query(f"count by (version) (ferrule_build_info{{{NS}}})", "{{version}}")],
            "Replicas by version; two during a rollout.",
            kind="stat",
        ),
    ),
)

ROWS = (TRAFFIC, LATENCY, ROUTING, BACKENDS, KEYS, PROCESS)
