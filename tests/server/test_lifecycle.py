"""A broker's life as the controller sees it, with a controller that answers as the test says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from riverrun.metadata.image import BrokerImage, Image
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId, Offset
from riverrun.ports.clock import SystemClock
from riverrun.server.controller_link.lifecycle import (
    BrokerIdentity,
    Lifecycle,
    Phase,
    RegistrationRefused,
)
from riverrun.server.settings import Address
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.broker_heartbeat_response import BrokerHeartbeatResponse
from riverrun.wire.messages.broker_registration_response import BrokerRegistrationResponse

INCARNATION = UUID(int=7)
IDENTITY = BrokerIdentity(
    node_id=NodeId(3),
    cluster_id="cluster",
    incarnation=INCARNATION,
    listeners=(Address(name="PLAINTEXT", host="h", port=9092),),
    rack="r1",
    directories=(UUID(int=9),),
    features={"metadata.version": (30, 30)},
    previous_epoch=11,
)
EPOCH = 40


class FakeController:
    """Answers registrations from a list, heartbeats by a function."""

    def __init__(self) -> None:
        self.registrations: list[ErrorCode] = []
        self.beat: Callable[[Any], BrokerHeartbeatResponse] = lambda request: alive()
        self.asked: list[Any] = []

    async def ask(self, key: ApiKey, message: Any, *, timeout_s: float) -> Any:
        await asyncio.sleep(0)
        self.asked.append(message)
        if key is ApiKey.BROKER_HEARTBEAT:
            return self.beat(message)
        code = self.registrations.pop(0) if self.registrations else ErrorCode.NONE
        if code is ErrorCode.REQUEST_TIMED_OUT:
            raise KafkaError(code)
        epoch = -1 if code else EPOCH
        return BrokerRegistrationResponse(throttle_time_ms=0, error_code=code, broker_epoch=epoch)


def alive(
    code: ErrorCode = ErrorCode.NONE, *, is_fenced: bool = False, leave: bool = False
) -> BrokerHeartbeatResponse:
    return BrokerHeartbeatResponse(
        throttle_time_ms=0, error_code=code, is_fenced=is_fenced, should_shut_down=leave
    )


def image(*, is_fenced: bool) -> Image:
    own = BrokerImage(
        id=NodeId(3), epoch=EPOCH, incarnation=INCARNATION, endpoints={}, is_fenced=is_fenced
    )
    return Image(offset=Offset(50), brokers={NodeId(3): own})


def with_lifecycle(
    scenario: Callable[[Lifecycle, FakeController, Any], Awaitable[None]],
) -> FakeController:
    controller = FakeController()
    metadata = SimpleNamespace(current=image(is_fenced=False), lease=None)

    async def run() -> None:
        log: Any = metadata
        channel: Any = controller
        lifecycle = Lifecycle(
            IDENTITY, log, channel, clock=SystemClock(), heartbeat_ms=1, session_ms=100
        )
        beating = None
        try:
            async with asyncio.timeout(10):
                beating = asyncio.ensure_future(scenario(lifecycle, controller, metadata))
                await beating
        finally:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    asyncio.run(run())
    return controller


def test_a_registration_says_who_we_are_and_which_life_we_continue() -> None:
    async def scenario(lifecycle: Lifecycle, controller: FakeController, _: Any) -> None:
        await lifecycle.register()
        assert (lifecycle.epoch, lifecycle.phase) == (EPOCH, Phase.FENCED)

    (request,) = with_lifecycle(scenario).asked
    assert (request.broker_id, request.cluster_id, request.incarnation_id) == (
        3,
        "cluster",
        INCARNATION,
    )
    assert (request.previous_broker_epoch, request.rack) == (11, "r1")
    assert [(at.name, at.host, at.port) for at in request.listeners] == [("PLAINTEXT", "h", 9092)]


def test_an_older_life_that_seems_alive_is_waited_for() -> None:
    async def scenario(lifecycle: Lifecycle, controller: FakeController, _: Any) -> None:
        controller.registrations = [
            ErrorCode.REQUEST_TIMED_OUT,
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        ]
        await lifecycle.register()

    assert len(with_lifecycle(scenario).asked) == 3


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (ErrorCode.INCONSISTENT_CLUSTER_ID, "another cluster"),
        (ErrorCode.UNSUPPORTED_VERSION, "newer riverrun"),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "CLUSTER_AUTHORIZATION_FAILED"),
    ],
)
def test_a_refusal_for_good_is_said_in_words(code: ErrorCode, words: str) -> None:
    async def scenario(lifecycle: Lifecycle, controller: FakeController, _: Any) -> None:
        controller.registrations = [code]
        with pytest.raises(RegistrationRefused, match=words):
            await lifecycle.register()

    with_lifecycle(scenario)


def test_serving_begins_when_the_controller_and_our_own_image_say_so() -> None:
    async def scenario(lifecycle: Lifecycle, controller: FakeController, metadata: Any) -> None:
        metadata.current = image(is_fenced=True)
        beats = 0

        def beat(request: Any) -> BrokerHeartbeatResponse:
            nonlocal beats
            beats += 1
            if beats == 4:
                metadata.current = image(is_fenced=False)
            return alive(is_fenced=beats < 2)

        controller.beat = beat
        await lifecycle.register()
        task = asyncio.ensure_future(lifecycle.run())
        await lifecycle.until_serving()
        assert beats >= 4, "served before the image knew"
        task.cancel()

    controller = with_lifecycle(scenario)
    assert controller.asked[1].broker_epoch == EPOCH
    assert controller.asked[1].current_metadata_offset == 50


class Hands:
    """A clock that goes on when it is told."""

    at = 5.0

    def monotonic(self) -> float:
        return self.at


def test_a_broker_is_sure_for_the_session_that_began_when_its_heartbeat_left() -> None:
    async def scenario(_: Lifecycle, controller: FakeController, metadata: Any) -> None:
        clock: Any = Hands()
        channel: Any = controller
        lifecycle = Lifecycle(
            IDENTITY, metadata, channel, clock=clock, heartbeat_ms=1, session_ms=1000
        )

        answers = [alive(is_fenced=True), alive(ErrorCode.STALE_BROKER_EPOCH), alive()]

        def beat(_: Any) -> BrokerHeartbeatResponse:
            clock.at += 0.4  # on the way
            return answers.pop(0)

        controller.beat = beat
        for is_sure in (False, False, True):
            await lifecycle._beat()
            assert lifecycle.is_sure is is_sure
        clock.at += 0.59
        assert lifecycle.is_sure
        clock.at += 0.02
        assert not lifecycle.is_sure, "others may lead by now"

    with_lifecycle(scenario)


def test_a_controller_is_sure_for_as_long_as_nobody_can_be_elected_instead() -> None:
    async def scenario(_: Lifecycle, controller: FakeController, metadata: Any) -> None:
        clock: Any = Hands()
        channel: Any = controller
        lifecycle = Lifecycle(
            IDENTITY, metadata, channel, clock=clock, heartbeat_ms=100, session_ms=1000
        )
        metadata.lease = clock.at + 0.3
        await lifecycle._beat()
        assert lifecycle.is_sure
        clock.at += 0.31
        await lifecycle._beat()
        assert not lifecycle.is_sure, "it hears nobody, and answers itself"

        def resign(_: Any) -> BrokerHeartbeatResponse:
            metadata.lease = None
            return alive()

        controller.beat = resign
        await lifecycle._beat()
        assert not lifecycle.is_sure
        await lifecycle._beat()
        assert lifecycle.is_sure, "another one has answered"

    with_lifecycle(scenario)


@pytest.mark.parametrize(("heartbeat_ms", "session_ms"), [(250, 2000), (250, 500), (2000, 9000)])
def test_a_sound_controller_is_sure_all_the_time(heartbeat_ms: int, session_ms: int) -> None:
    """However seldom it beats: voters fetch from it meanwhile."""

    async def scenario(_: Lifecycle, controller: FakeController, metadata: Any) -> None:
        clock: Any = Hands()
        channel: Any = controller
        lifecycle = Lifecycle(
            IDENTITY, metadata, channel, clock=clock,
            heartbeat_ms=heartbeat_ms, session_ms=session_ms, overtime_ms=500,
        )  # fmt: skip
        for _beat in range(10):
            metadata.lease = clock.at + 1
            await lifecycle._beat()
            for _fetch in range(8):
                clock.at += heartbeat_ms * 1.01 / 8 / 1000
                metadata.lease = clock.at + 1
                assert lifecycle.is_sure

    with_lifecycle(scenario)


def test_a_controller_that_is_cut_off_goes_on_for_a_while_and_proves_nothing_by_it() -> None:
    async def scenario(_: Lifecycle, controller: FakeController, metadata: Any) -> None:
        clock: Any = Hands()
        channel: Any = controller
        lifecycle = Lifecycle(
            IDENTITY, metadata, channel, clock=clock,
            heartbeat_ms=100, session_ms=1000, overtime_ms=300,
        )  # fmt: skip
        await lifecycle._beat()
        clock.at += 0.69
        assert lifecycle.is_sure
        clock.at += 0.02
        assert not lifecycle.is_sure

    with_lifecycle(scenario)


def test_a_broker_that_was_paused_is_not_sure_by_its_next_heartbeat_alone() -> None:
    """The controller that answers it may be itself, and deposed."""

    async def scenario(_: Lifecycle, controller: FakeController, metadata: Any) -> None:
        clock: Any = Hands()
        channel: Any = controller
        lifecycle = Lifecycle(
            IDENTITY, metadata, channel, clock=clock, heartbeat_ms=100, session_ms=1000
        )
        await lifecycle._beat()
        assert lifecycle.is_sure
        clock.at += 5
        await lifecycle._beat()
        assert not lifecycle.is_sure
        for _beat in range(11):
            clock.at += 0.1
            await lifecycle._beat()
        assert lifecycle.is_sure

    with_lifecycle(scenario)


def test_a_broker_that_the_controller_forgot_registers_anew() -> None:
    async def scenario(lifecycle: Lifecycle, controller: FakeController, _: Any) -> None:
        answers = [alive(ErrorCode.BROKER_ID_NOT_REGISTERED), alive()]
        controller.beat = lambda request: answers.pop(0) if len(answers) > 1 else answers[0]
        await lifecycle.register()
        task = asyncio.ensure_future(lifecycle.run())
        await lifecycle.until_serving()
        task.cancel()

    asked = with_lifecycle(scenario).asked
    assert [hasattr(one, "incarnation_id") for one in asked[:4]] == [True, False, True, False]


def test_leaving_waits_until_the_controller_has_moved_what_we_lead() -> None:
    async def scenario(lifecycle: Lifecycle, controller: FakeController, _: Any) -> None:
        wishes = 0

        def beat(request: Any) -> BrokerHeartbeatResponse:
            nonlocal wishes
            wishes += request.want_shut_down
            return alive(leave=wishes >= 3)

        controller.beat = beat
        await lifecycle.register()
        task = asyncio.ensure_future(lifecycle.run())
        await lifecycle.until_serving()
        assert await lifecycle.leave(5.0)
        assert (wishes, lifecycle.phase) == (3, Phase.GONE)
        await task

    with_lifecycle(scenario)


def test_leaving_without_a_controller_ends_after_its_limit() -> None:
    async def scenario(lifecycle: Lifecycle, controller: FakeController, _: Any) -> None:
        def beat(request: Any) -> BrokerHeartbeatResponse:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "nobody")

        controller.beat = beat
        await lifecycle.register()
        task = asyncio.ensure_future(lifecycle.run())
        assert not await lifecycle.leave(0.05)
        task.cancel()

    with_lifecycle(scenario)


def test_a_silence_of_controllers_is_told_once_and_when_it_ends() -> None:
    async def scenario(lifecycle: Lifecycle, controller: FakeController, _: Any) -> None:
        count = 0

        def beat(request: Any) -> BrokerHeartbeatResponse:
            nonlocal count
            count += 1
            if count <= 5:
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
            return alive()

        controller.beat = beat
        await lifecycle.register()
        beating = asyncio.ensure_future(lifecycle.run())
        await lifecycle.until_serving()
        beating.cancel()

    with capture_logs() as logs:
        with_lifecycle(scenario)
    told = [line["event"] for line in logs if "controller answers" in line["event"]]
    assert told == ["no controller answers", "a controller answers again"]


def test_a_failed_disk_is_told_with_the_wish_to_go() -> None:
    """One directory for each node: without it the broker is fenced, and others lead at once."""

    async def scenario(lifecycle: Lifecycle, controller: FakeController, _: Any) -> None:
        await lifecycle.register()
        controller.beat = lambda request: alive(
            is_fenced=True, leave=bool(request.offline_log_dirs)
        )
        beating = asyncio.ensure_future(lifecycle.run())
        assert await lifecycle.fail(5)
        await beating

    last = with_lifecycle(scenario).asked[-1]
    assert last.offline_log_dirs == IDENTITY.directories
    assert last.want_shut_down
