"""What the dashboard shows, row by row: titles, units and expressions. How Grafana wants it written
is generate.py's affair.

`$namespace`, `$model` and `$pool` are the dashboard's variables; a filter built from them stands in
every expression.
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


def _rate(name: str, by: str, filters: str) -> str:
    return f"sum by ({by}) (rate({name}{{{filters}}}{WINDOW}))"


def _total(name: str, filters: str) -> str:
    return f"sum(rate({name}{{{filters}}}{WINDOW}))"


def _share(name: str, part: str, whole: str) -> str:
    """Of all that `whole` matches, the share that `part` (one more matcher) matches too."""
    return f"{_total(name, f'{whole}, {part}')} / {_total(name, whole)}"


def _quantile(share: float, name: str, filters: str, by: str = "") -> str:
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({share}, {_rate(f'{name}_bucket', labels, filters)})"


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
            [Query(_rate("ferrule_requests_total", "code", MODEL), "{{code}}")],
            "Answers a second by HTTP status. 529: no free backend. A stream that breaks later "
            "is under 'Streams ended'.",
            stacked=True,
        ),
        Panel(
            "Share of failed requests",
            "percentunit",
            [
                Query(_share("ferrule_requests_total", 'code=~"5.."', MODEL), "5xx"),
                Query(_share("ferrule_requests_total", 'code=~"4.."', MODEL), "4xx"),
            ],
            "5xx is ours or the backends' fault, 4xx the client's (429: its limits).",
        ),
        Panel(
            "Requests by route",
            "reqps",
            [Query(_rate("ferrule_requests_total", "route", MODEL), "{{route}}")],
            "Which surface clients use.",
            stacked=True,
        ),
        Panel(
            "Streams active",
            "short",
            [Query(f"sum by (pod) (ferrule_streams_active{{{NS}}})", "{{pod}}")],
            "Streams being told right now.",
            stacked=True,
        ),
        Panel(
            "Streams ended",
            "ops",
            [Query(_rate("ferrule_stream_end_total", "reason", NS), "{{reason}}")],
            "How streams end. client_gone is a client's choice; backend_error, timeout and drain "
            "cut an answer short.",
            stacked=True,
        ),
        Panel(
            "Tokens",
            "short",
            [Query(_rate("ferrule_tokens_total", "type", MODEL), "{{type}} per second")],
            "Tokens a second. input leaves out what came from a cache (cache_read).",
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
            "From a request's head to its first content. Buckets are vLLM's, so the engine's own "
            "panel can be laid over this one.",
        ),
        Panel(
            "Time to first token, spread",
            "s",
            [Query(_rate("ferrule_time_to_first_token_seconds_bucket", "le", MODEL), "{{le}}")],
            "Two clouds are two worlds: turns that find their cache and turns that do not.",
            kind="heatmap",
        ),
        Panel(
            "Time per output token",
            "s",
            _quantiles("ferrule_time_per_output_token_seconds", MODEL),
            "Between two tokens of a stream, as told to the client. Buckets are vLLM's.",
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
            "Which model makes clients wait.",
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
            "Head of the request to the end of its answer.",
        ),
        Panel(
            "Counting tokens",
            "s",
            [Query(_quantile(0.95, "ferrule_count_tokens_seconds", NS), "p95")],
            "Time to count a body's tokens, by the engine or by the gateway's own tokenizer.",
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
            [Query(_rate("ferrule_routing_decisions_total", "branch", POOL), "{{branch}}")],
            "home: the session's backend. spill: home was full. failover: home was down or "
            "failed. keyless: no session.",
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
            "Turns that run where their cache is not.",
        ),
        Panel(
            "KV cache hit share",
            "percentunit",
            [
                Query(
                    f"{_rate('ferrule_tokens_total', 'model', _CACHED)} / "
                    f"{_rate('ferrule_tokens_total', 'model', _PROMPT)}",
                    "{{model}}",
                )
            ],
            "Share of prompt tokens that the engines had in their cache: what stickiness is for.",
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
            "Requests each backend works on, over all replicas.",
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
            "The busiest backend against the mean. 1 is even.",
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
            [Query(_rate("ferrule_backend_requests_total", "backend", POOL), "{{backend}}")],
            "Attempts a second, retries included.",
        ),
        Panel(
            "Failed attempts",
            "reqps",
            [
                Query(
                    _rate("ferrule_backend_requests_total", "backend, code", _FAILED),
                    "{{backend}} {{code}}",
                )
            ],
            "What each backend answered other than success, or what went wrong before an answer.",
            stacked=True,
        ),
        Panel(
            "Retries by reason",
            "ops",
            [Query(_rate("ferrule_backend_retries_total", "reason", NS), "{{reason}}")],
            "Sent again before a client saw anything.",
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
            "How long those that waited did.",
        ),
        Panel(
            "Discovery age",
            "s",
            [Query(f"max by (pool) (ferrule_discovery_age_seconds{{{POOL}}})", "{{pool}}")],
            "Since the list of backends was last confirmed, at the replica where that is longest "
            "ago.",
        ),
    ),
)

KEYS = Row(
    "Keys and limits",
    (
        Panel(
            "Refused by gate",
            "ops",
            [Query(_rate("ferrule_limited_total", "gate", NS), "{{gate}}")],
            "Which limit refuses: a key's requests, tokens or concurrency, or the queue.",
            stacked=True,
        ),
        Panel(
            "Refused requests",
            "reqps",
            [
                Query(
                    _rate("ferrule_requests_total", "code", f'{NS}, code=~"401|403|429|529"'),
                    "{{code}}",
                )
            ],
            "401 unknown key, 403 model not allowed, 429 a key's limit, 529 no free backend.",
        ),
        Panel(
            "Tokens by model",
            "short",
            [Query(_rate("ferrule_tokens_total", "model", MODEL), "{{model}} per second")],
            "Input, output and cached together.",
            stacked=True,
        ),
        Panel(
            "Parameters dropped",
            "ops",
            [Query(_rate("ferrule_dropped_params_total", "param", NS), "{{param}}")],
            "What clients sent and the dialect drops; each of these answers carries "
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
            "How late timers run at the slowest worker of each pod; streams stutter by as much.",
        ),
        Panel(
            "Replicas read",
            "short",
            [Query(f'sum(up{{job="ferrule", {NS}}})', "replicas")],
            "Replicas that Prometheus reads.",
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
