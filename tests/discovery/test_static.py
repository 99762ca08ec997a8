"""A list that is reported once."""

import math

from ferrule.discovery.static import StaticList
from ferrule.routing.backend import BackendSpec


async def test_the_list_is_reported_once_and_never_stale() -> None:
    received: list[list[BackendSpec]] = []
    watcher = StaticList([BackendSpec("http://b:1", 2.0), BackendSpec("http://a:1")])
    await watcher.watch(received.append)
    assert received == [[BackendSpec("http://b:1", 2.0), BackendSpec("http://a:1")]]
    assert (watcher.age_s(), watcher.stale_after_s) == (0.0, math.inf)
