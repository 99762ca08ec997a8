"""Selects a backend from the session's preference order and the backends' load.

A session stays where its prefix cache is until that backend is past `max(slots, 1.25 × mean)`
requests in flight; then it takes the next in its order that is not. The floor of
`slots` matters: the mean alone moves a quarter of all turns. Of health it reads only
`is_usable`; time plays no part.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Literal

import msgspec

from ferrule.routing.backend import Backend

STRETCH = 1.25

Branch = Literal["home", "spill", "failover", "keyless"]

# branch → x-ferrule-affinity
AFFINITY: dict[Branch, str] = {
    "home": "home",
    "spill": "spill",
    "failover": "failover",
    "keyless": "none",
}


class LoadBounds(msgspec.Struct, frozen=True):
    """`slots`: requests a backend runs at once, up to which no session moves; `max_inflight`: the
    hard limit."""

    slots: int
    max_inflight: int


class Choice(msgspec.Struct, frozen=True):
    """`home`: the first in the session's order. `failover`: that one can't be used (unhealthy, or
    tried before by this request). `spill`: it could, but is or was past the bound. `keyless`: there
    is no session to follow."""

    backend: Backend
    branch: Branch
    is_retry: bool


def by_session(
    order: Sequence[Backend], place: Backend, tried: Set[str], limits: LoadBounds
) -> Choice | None:
    """`order`: all members, best first; `place`: where the session is. None: no usable, untried
    backend has room."""
    home = order[0]
    if (
        place.is_usable
        and place.inflight <= limits.slots
        and place.inflight < limits.max_inflight
        and not tried
    ):
        chosen: Backend | None = place
    else:
        chosen = _below_bound(order, place, tried, limits)
    if chosen is None:
        return None
    if chosen is home:
        return Choice(home, "home", bool(tried))
    can_be_home = home.is_usable and home.name not in tried
    return Choice(chosen, "spill" if can_be_home else "failover", bool(tried))


def keyless(order: Sequence[Backend], tried: Set[str], limits: LoadBounds) -> Choice | None:
    """The least loaded for its weight; the first in `order` among equals."""
    least = _least_loaded(_with_room(order, tried, limits))
    return None if least is None else Choice(least, "keyless", bool(tried))


def _below_bound(
    order: Sequence[Backend], place: Backend, tried: Set[str], limits: LoadBounds
) -> Backend | None:
    usable = [b for b in order if b.is_usable]
    candidates = _with_room([place, *(b for b in usable if b is not place)], tried, limits)
    if not candidates:
        return None
    # The mean, in proportion to weights: with equal ones, 1.25 × total / number.
    stretched = STRETCH * sum(b.inflight for b in usable) / sum(b.weight for b in usable)
    for backend in candidates:
        if backend.inflight <= max(limits.slots, stretched * backend.weight):
            return backend
    return _least_loaded(candidates)


def _with_room(order: Sequence[Backend], tried: Set[str], limits: LoadBounds) -> list[Backend]:
    return [
        b for b in order if b.is_usable and b.inflight < limits.max_inflight and b.name not in tried
    ]


def _least_loaded(candidates: Sequence[Backend]) -> Backend | None:
    return min(candidates, key=lambda b: b.inflight / b.weight, default=None)
