"""The line before a full pool: order, bounds, and that no place is lost when somebody leaves it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ferrule.admission.queue import Queue
from ferrule.errors import Failure
from ferrule.http.response import failure_headers


class Places:
    """A pool with some free places; counts how often it was asked."""

    def __init__(self, free: int = 0) -> None:
        self.free = free
        self.asked = 0

    def take(self) -> str | None:
        self.asked += 1
        if self.free == 0:
            return None
        self.free -= 1
        return "place"


async def settled() -> None:
    """Lets every task that can run come to rest."""
    for _ in range(20):
        await asyncio.sleep(0)


def join(queue: Queue, take: Callable[[], str | None]) -> asyncio.Task[str]:
    return asyncio.ensure_future(queue.wait_turn(take))


async def test_a_free_place_is_taken_at_once() -> None:
    queue = Queue(size=0, timeout_s=30)
    assert await queue.wait_turn(Places(1).take) == "place"
    assert queue.depth == 0


async def test_first_come_first_served() -> None:
    queue, places = Queue(size=8, timeout_s=30), Places()
    order: list[int] = []

    async def client(number: int) -> None:
        await queue.wait_turn(places.take)
        order.append(number)

    tasks = [asyncio.ensure_future(client(number)) for number in range(5)]
    await settled()
    assert queue.depth == 5
    for served in range(1, 6):
        places.free += 1
        queue.wake()
        await settled()
        assert len(order) == served
    assert order == [0, 1, 2, 3, 4]
    await asyncio.gather(*tasks)


async def test_a_newcomer_does_not_overtake() -> None:
    queue, places = Queue(size=8, timeout_s=30), Places()
    early = join(queue, places.take)
    await settled()
    places.free = 1
    queue.wake()
    late = join(queue, places.take)
    await settled()
    assert early.done()
    assert not late.done()
    assert queue.depth == 1
    late.cancel()


async def test_one_wake_serves_as_many_as_there_are_places() -> None:
    queue, places = Queue(size=8, timeout_s=30), Places()
    tasks = [join(queue, places.take) for _ in range(5)]
    await settled()
    places.free = 3
    queue.wake()
    await settled()
    assert [task.done() for task in tasks] == [True, True, True, False, False]
    for task in tasks[3:]:
        task.cancel()


async def test_a_full_queue_refuses_at_once() -> None:
    queue, places = Queue(size=1, timeout_s=30), Places()
    waiting = join(queue, places.take)
    await settled()
    with pytest.raises(Failure) as raised:
        await queue.wait_turn(places.take)
    failure = raised.value
    assert (failure.status, failure.kind, dict(failure_headers(failure))) == (
        529,
        "overloaded_error",
        {"retry-after": "5"},
    )
    assert queue.depth == 1
    waiting.cancel()


async def test_j15_waits_in_the_bounded_queue_then_529_at_the_deadline() -> None:
    queue, places = Queue(size=2, timeout_s=0.01), Places()
    with pytest.raises(Failure) as raised:
        await queue.wait_turn(places.take)
    assert raised.value.status == 529
    assert dict(failure_headers(raised.value)) == {"retry-after": "1"}
    assert queue.depth == 0


async def test_a_cancelled_waiter_leaves_at_once() -> None:
    queue, places = Queue(size=2, timeout_s=30), Places()
    first, second = join(queue, places.take), join(queue, places.take)
    await settled()
    first.cancel()
    await settled()
    assert queue.depth == 1
    places.free = 1
    queue.wake()
    await settled()
    assert second.done()


async def test_a_wake_for_one_who_is_cancelled_goes_to_the_next() -> None:
    queue, places = Queue(size=2, timeout_s=30), Places()
    first, second = join(queue, places.take), join(queue, places.take)
    await settled()
    places.free = 1
    queue.wake()
    first.cancel()
    await settled()
    assert first.cancelled()
    assert second.result() == "place"
    assert places.free == 0


async def test_a_caller_whose_try_fails_leaves_the_line() -> None:
    queue = Queue(size=2, timeout_s=30)

    def broken() -> str | None:
        if queue.depth == 0:
            return None
        raise RuntimeError("broken")

    task = join(queue, broken)
    await settled()
    queue.wake()
    with pytest.raises(RuntimeError):
        await task
    assert queue.depth == 0


async def test_waiting_asks_nothing() -> None:
    queue, places = Queue(size=4, timeout_s=30), Places()
    waiting = join(queue, places.take)
    await settled()
    await settled()
    assert places.asked == 1
    queue.wake()
    await settled()
    assert places.asked == 2
    assert not waiting.done()
    waiting.cancel()


async def test_a_place_that_the_first_cannot_use_goes_to_the_next() -> None:
    queue, places = Queue(size=8, timeout_s=30), Places()
    choosy = asyncio.ensure_future(queue.wait_turn(lambda: None, skips_tried=True))
    await settled()
    others = [join(queue, places.take) for _ in range(2)]
    await settled()
    places.free = 1
    queue.wake()
    await settled()
    assert [task.done() for task in (choosy, *others)] == [False, True, False]
    assert places.free == 0
    for task in (choosy, *others):
        task.cancel()
    await settled()
    assert queue.depth == 0
