"""Broker sessions: when they expire, and when not."""

from __future__ import annotations

from uuid import UUID

from riverrun.cluster.brokers.sessions import Sessions
from riverrun.cluster.settings import ControllerSettings
from riverrun.metadata.image import Image
from riverrun.model.ids import NodeId
from tests.cluster.states import P, cluster

TICK = 0.1
ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
IMAGE = cluster(P(1, (1, 2, 3)))


def begun(heard: dict[NodeId, float] | None = None) -> Sessions:
    sessions = Sessions(ControllerSettings())
    sessions.begin(IMAGE, 100.0, heard or {})
    return sessions


def beat(sessions: Sessions, node: NodeId, now: float, offset: int = 0) -> None:
    sessions.touched(node, IMAGE.brokers[node].epoch, offset, now)


def expired(
    sessions: Sessions, start: float, end: float, image: Image = IMAGE, alive: tuple[int, ...] = ()
) -> dict[NodeId, float]:
    """When each broker was first reported as expired, checked every tenth of a second."""
    found: dict[NodeId, float] = {}
    now = start
    while now < end:
        now = round(now + TICK, 3)
        for node in alive:
            beat(sessions, NodeId(node), now)
        for one in sessions.expired(image, now):
            found.setdefault(one, now)
    return found


def test_silent_broker_expires_after_its_session() -> None:
    sessions = begun()
    assert expired(sessions, 100.0, 101.9) == {}
    assert expired(sessions, 101.9, 103.0, alive=(2, 3)) == {ONE: 102.0}


def test_new_controller_gives_all_brokers_a_full_session() -> None:
    assert expired(begun(), 100.0, 103.0) == {ONE: 102.0, TWO: 102.0, THREE: 102.0}


def test_session_of_the_old_controller_starts_at_its_last_contact() -> None:
    found = expired(begun({ONE: 99.0}), 100.0, 103.0, alive=(2, 3))
    assert found == {ONE: 101.0}


def test_old_controller_has_time_to_find_the_new_one() -> None:
    found = expired(begun({ONE: 10.0}), 100.0, 103.0, alive=(2, 3))
    assert found == {ONE: 100.8}


def test_own_stall_expires_no_session() -> None:
    sessions = begun()
    for node in (ONE, TWO, THREE):
        beat(sessions, node, 100.0)
    assert sessions.expired(IMAGE, 105.0) == []  # stalled for 5 s: nothing expires in this call
    beat(sessions, ONE, 105.01)
    assert sessions.expired(IMAGE, 105.1) == []
    assert expired(sessions, 105.1, 107.5, alive=(1,)) == {TWO: 106.9, THREE: 106.9}


def test_fenced_broker_does_not_expire() -> None:
    image = cluster(P(1, (1, 2)), fenced=(3,))
    assert expired(begun(), 100.0, 103.0, image=image, alive=(1, 2)) == {}


def test_broker_becomes_suspect_once_until_its_next_heartbeat() -> None:
    sessions = begun()
    assert sessions.suspect(ONE)
    assert not sessions.suspect(ONE)
    beat(sessions, ONE, 100.1)
    assert not sessions[ONE].is_suspect
    assert sessions.suspect(ONE)
    assert not sessions.suspect(NodeId(9))
    sessions.ended(ONE)
    assert not sessions.suspect(ONE)


def test_session_belongs_to_one_registration() -> None:
    sessions = begun()
    epoch = IMAGE.brokers[ONE].epoch
    assert sessions.is_valid(ONE, epoch, 101.0)
    assert not sessions.is_valid(ONE, epoch, 102.0)
    assert not sessions.is_valid(ONE, epoch - 1, 101.0)
    sessions.ended(ONE)
    assert not sessions.is_valid(ONE, epoch, 101.0)
    beat(sessions, ONE, 101.5)
    assert sessions.is_valid(ONE, epoch, 102.0)
    sessions.closed(ONE)
    assert not sessions.is_valid(ONE, epoch, 102.0)


def test_number_of_replaced_incarnations_is_limited() -> None:
    sessions = begun()
    for number in range(1, 1500):
        sessions.opened(ONE, 1000 + number, 101.0, instead_of=UUID(int=number))
    assert sessions.was_replaced(UUID(int=1499))
    assert not sessions.was_replaced(UUID(int=1))
    assert not sessions.was_replaced(UUID(int=5000))
    assert not sessions.was_replaced(None)


def test_leaving_broker_may_stop_when_all_brokers_have_read_the_change() -> None:
    sessions = begun()
    assert not sessions.may_leave(IMAGE, ONE)
    sessions[ONE].leaves_at = 50
    image = cluster(P(2, (2,)), fenced=(1,))
    beat(sessions, TWO, 100.1, offset=50)
    beat(sessions, THREE, 100.1, offset=49)
    assert not sessions.may_leave(image, ONE)
    beat(sessions, THREE, 100.2, offset=50)
    assert sessions.may_leave(image, ONE)


def test_last_active_broker_may_stop_at_once() -> None:
    sessions = begun()
    sessions[ONE].leaves_at = 50
    image = cluster(P(1, (1,)), fenced=(1, 2, 3))
    assert sessions.may_leave(image, ONE)


def test_cleared_sessions_hold_no_broker() -> None:
    sessions = begun()
    sessions.clear()
    assert sessions.get(ONE) is None
    assert sessions.expired(IMAGE, 500.0) == []
