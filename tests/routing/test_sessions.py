"""The session table: bounded, and counted per backend."""

from tests.routing.settings import HEALTH

from ferrule.routing.backend import Backend
from ferrule.routing.health import Health
from ferrule.routing.sessions import AWAY_IDLE_S, FORGET_IDLE_S, Session, SessionTable


def backend(name: str) -> Backend:
    return Backend(name, f"http://{name}", 1.0, Health(name, HEALTH))


def test_a_session_that_went_away_comes_home_when_idle() -> None:
    home, other = backend("a"), backend("b")
    session = Session([home, other], 0, used_at=0.0)
    session.move_to(other)
    assert session.place(AWAY_IDLE_S - 0.1) is other
    session.inflight = 1
    assert session.place(AWAY_IDLE_S * 10) is other
    session.inflight = 0
    assert session.place(AWAY_IDLE_S) is home


def test_sessions_are_counted_where_they_are() -> None:
    home, other = backend("a"), backend("b")
    session = Session([home, other], 0, used_at=0.0)
    for place, counts in ((home, (1, 0)), (home, (1, 0)), (other, (0, 1)), (home, (1, 0))):
        session.move_to(place)
        assert (home.sessions, other.sessions) == counts
    session.leave()
    session.leave()
    assert (home.sessions, other.sessions) == (0, 0)


def test_the_table_is_bounded_and_drops_the_longest_unused() -> None:
    home = backend("a")
    table = SessionTable(limit=3)
    for number in range(3):
        session = Session([home], 0, used_at=0.0)
        table.add(b"%d" % number, session, 0.0)
        session.move_to(home)
    table.use(b"0", 1.0)
    table.add(b"3", Session([home], 0, used_at=1.0), 1.0)
    assert len(table) == 3
    assert table.get(b"0") is not None
    assert table.get(b"1") is None
    assert home.sessions == 2


def test_idle_sessions_are_forgotten_unless_they_have_requests_in_flight() -> None:
    home = backend("a")
    table = SessionTable()
    for key, inflight in ((b"busy", 1), (b"idle", 0), (b"young", 0)):
        used_at = 500.0 if key == b"young" else 0.0
        session = Session([home], 0, used_at=used_at, inflight=inflight)
        table.add(key, session, used_at)
    table.forget_idle(FORGET_IDLE_S)
    assert (table.get(b"idle"), len(table)) == (None, 2)
    table.forget_idle(FORGET_IDLE_S + 500.0)
    assert table.get(b"busy") is not None
    assert table.get(b"young") is None
