"""The queue of a full pool: order, bounds, and that no slot is lost when a waiter leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ferrule.admission.queue import Queue
from ferrule.errors import Failure
from ferrule.http.response import failure_headers


class Pool:
    """A pool with `free` slots; counts the attempts to take one."""

    def __init__(self, free: int = 0) -> None:
        self.free = free
        self.attempts = 0

    def take(self) -> str | None:
        self.attempts += 1
        if self.free == 0:
            return None
        self.free -= 1
        return "slot"


async def settle() -> None:
    """Lets every task run until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)


def join(queue: Queue, take: Callable[[], str | None]) -> asyncio.Task[str]:
    return asyncio.ensure_future(queue.wait_turn(take))


async def test_a_free_slot_is_taken_at_once() -> None:
    queue = Queue(size=0, timeout_s=30)
    assert await queue.wait_turn(Pool(1).take) == "slot"
    assert queue.depth == 0


async def test_first_come_first_served() -> None:
    queue, pool = Queue(size=8, timeout_s=30), Pool()
    order: list[int] = []

    async def client(number: int) -> None:
        await queue.wait_turn(pool.take)
        order.append(number)

    tasks = [asyncio.ensure_future(client(number)) for number in range(5)]
    await settle()
    assert queue.depth == 5
    for served in range(1, 6):
        pool.free += 1
        queue.wake()
        await settle()
        assert len(order) == served
    assert order == [0, 1, 2, 3, 4]
    await asyncio.gather(*tasks)


async def test_a_newcomer_does_not_overtake() -> None:
    queue, pool = Queue(size=8, timeout_s=30), Pool()
    early = join(queue, pool.take)
    await settle()
    pool.free = 1
    queue.wake()
    late = join(queue, pool.take)
    await settle()
    assert early.done()
    assert not late.done()
    assert queue.depth == 1
    late.cancel()


async def test_one_wake_serves_as_many_as_there_are_slots() -> None:
    queue, pool = Queue(size=8, timeout_s=30), Pool()
    tasks = [join(queue, pool.take) for _ in range(5)]
    await settle()
    pool.free = 3
    queue.wake()
    await settle()
    assert [task.done() for task in tasks] == [True, True, True, False, False]
    for task in tasks[3:]:
        task.cancel()


async def test_a_full_queue_refuses_at_once() -> None:
    queue, pool = Queue(size=1, timeout_s=30), Pool()
    waiting = join(queue, pool.take)
    await settle()
    with pytest.raises(Failure) as raised:
        await queue.wait_turn(pool.take)
    failure = raised.value
    assert (failure.status, failure.kind, dict(failure_headers(failure))) == (
        529,
        "overloaded_error",
        {"retry-after": "5"},
    )
    assert queue.depth == 1
    waiting.cancel()


async def test_j15_waits_in_the_bounded_queue_then_529_at_the_deadline() -> None:
    queue, pool = Queue(size=2, timeout_s=0.01), Pool()
    with pytest.raises(Failure) as raised:
        await queue.wait_turn(pool.take)
    assert raised.value.status == 529
    assert dict(failure_headers(raised.value)) == {"retry-after": "1"}
    assert queue.depth == 0


async def test_a_cancelled_waiter_leaves_at_once() -> None:
    queue, pool = Queue(size=2, timeout_s=30), Pool()
    first, second = join(queue, pool.take), join(queue, pool.take)
    await settle()
    first.cancel()
    await settle()
    assert queue.depth == 1
    pool.free = 1
    queue.wake()
    await settle()
    assert second.done()


async def test_the_wake_of_a_cancelled_waiter_goes_to_the_next() -> None:
    queue, pool = Queue(size=2, timeout_s=30), Pool()
    first, second = join(queue, pool.take), join(queue, pool.take)
    await settle()
    pool.free = 1
    queue.wake()
    first.cancel()
    await settle()
    assert first.cancelled()
    assert second.result() == "slot"
    assert pool.free == 0


async def test_a_caller_whose_try_fails_leaves_the_line() -> None:
    queue = Queue(size=2, timeout_s=30)

    def broken() -> str | None:
        if queue.depth == 0:
            return None
        raise RuntimeError("broken")

    task = join(queue, broken)
    await settle()
    queue.wake()
    with pytest.raises(RuntimeError):
        await task
    assert queue.depth == 0


async def test_waiting_does_not_poll() -> None:
    queue, pool = Queue(size=4, timeout_s=30), Pool()
    waiting = join(queue, pool.take)
    await settle()
    await settle()
    assert pool.attempts == 1
    queue.wake()
    await settle()
    assert pool.attempts == 2
    assert not waiting.done()
    waiting.cancel()


async def test_a_slot_that_the_first_declines_goes_to_the_next() -> None:
    queue, pool = Queue(size=8, timeout_s=30), Pool()
    declining = asyncio.ensure_future(queue.wait_turn(lambda: None, skips_tried=True))
    await settle()
    others = [join(queue, pool.take) for _ in range(2)]
    await settle()
    pool.free = 1
    queue.wake()
    await settle()
    assert [task.done() for task in (declining, *others)] == [False, True, False]
    assert pool.free == 0
    for task in (declining, *others):
        task.cancel()
    await settle()
    assert queue.depth == 0
