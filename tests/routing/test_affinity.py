"""The simulation of `bench/affinity.py`, shortened: what routing by session is worth has bars, and
they are reached."""

import xml.etree.ElementTree as ET

import pytest
from bench.affinity import Results, find_missed_bars, simulate
from bench.affinity_chart import draw_chart
from bench.affinity_model import World


@pytest.fixture(scope="module")
def results() -> Results:
    return simulate(World(minutes=20.0))


def test_the_bars_are_reached(results: Results) -> None:
    assert find_missed_bars(results) == []


def test_a_hot_user_is_spread_by_session(results: Results) -> None:
    even = next(score for score in results.even if score.policy == "ferrule")
    by_user, _, by_session = results.hot
    assert by_session.ttft_p95_s <= 2 * even.ttft_p95_s
    assert by_user.ttft_p95_s > 10 * even.ttft_p95_s


def test_a_session_that_fans_out_spills(results: Results) -> None:
    rendezvous, textbook, ours = results.fans
    assert ours.ttft_p95_s < rendezvous.ttft_p95_s / 3
    assert ours.moved_turns < textbook.moved_turns / 3


def test_the_same_seed_gives_the_same_scores() -> None:
    world = World(sessions=40, minutes=1.0)
    assert simulate(world) == simulate(world)


def test_the_chart_has_a_row_for_each_policy(results: Results) -> None:
    texts = [
        element.text
        for element in ET.fromstring(draw_chart(results.even)).iter()
        if element.tag.endswith("text")
    ]
    assert {score.policy for score in results.even} <= set(texts)
