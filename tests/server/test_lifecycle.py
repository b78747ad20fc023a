"""The broker's registration and heartbeats, with a scripted controller."""

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
from riverrun.server.controller_link import lifecycle as lifecycle_module
from riverrun.server.controller_link.lifecycle import (
    BrokerIdentity,
    Lifecycle,
    Phase,
    RegistrationRefused,
)
from riverrun.server.settings import Address
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.broker_heartbeat_request import BrokerHeartbeatRequest
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
    """Takes its registration responses from a list, its heartbeat responses from a function."""

    def __init__(self) -> None:
        self.registrations: list[ErrorCode] = []
        self.beat: Callable[[Any], BrokerHeartbeatResponse] = lambda request: alive()
        self.requests: list[Any] = []

    async def request(self, key: ApiKey, message: Any, *, timeout_s: float) -> Any:
        await asyncio.sleep(0)
        self.requests.append(message)
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
        try:
            async with asyncio.timeout(10):
                await scenario(lifecycle, controller, metadata)
        finally:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    asyncio.run(run())
    return controller


def test_registration_contains_the_identity_and_the_previous_epoch() -> None:
    async def scenario(lifecycle: Lifecycle, controller: FakeController, _: Any) -> None:
        await lifecycle.register()
        assert (lifecycle.epoch, lifecycle.phase) == (EPOCH, Phase.FENCED)

    (request,) = with_lifecycle(scenario).requests
    assert (request.broker_id, request.cluster_id, request.incarnation_id) == (
        3,
        "cluster",
        INCARNATION,
    )
    assert (request.previous_broker_epoch, request.rack) == (11, "r1")
    assert [(at.name, at.host, at.port) for at in request.listeners] == [("PLAINTEXT", "h", 9092)]


def test_registration_is_retried_while_an_older_incarnation_seems_alive() -> None:
    async def scenario(lifecycle: Lifecycle, controller: FakeController, _: Any) -> None:
        controller.registrations = [
            ErrorCode.REQUEST_TIMED_OUT,
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        ]
        await lifecycle.register()

    assert len(with_lifecycle(scenario).requests) == 3


def test_registration_waits_for_disk_space_of_the_controller_without_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(lifecycle: Lifecycle, controller: FakeController, _: Any) -> None:
        monkeypatch.setattr(lifecycle_module, "REGISTRATION_SECONDS_MAX", 0.0)
        controller.registrations = [ErrorCode.KAFKA_STORAGE_ERROR] * 20
        with capture_logs() as lines:
            await lifecycle.register()
        retries = [line for line in lines if line["event"] == "broker not registered yet"]
        assert ["free some space" in line["reason"] for line in retries] == [True]

    assert len(with_lifecycle(scenario).requests) == 21


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (ErrorCode.INCONSISTENT_CLUSTER_ID, "another cluster"),
        (ErrorCode.UNSUPPORTED_VERSION, "newer riverrun"),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "CLUSTER_AUTHORIZATION_FAILED"),
    ],
)
def test_permanent_rejection_names_the_cause(code: ErrorCode, text: str) -> None:
    async def scenario(lifecycle: Lifecycle, controller: FakeController, _: Any) -> None:
        controller.registrations = [code]
        with pytest.raises(RegistrationRefused, match=text):
            await lifecycle.register()

    with_lifecycle(scenario)


def test_broker_serves_when_the_controller_and_its_own_image_show_it_unfenced() -> None:
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
        assert beats >= 4, "served before the image showed it unfenced"
        task.cancel()

    controller = with_lifecycle(scenario)
    assert controller.requests[1].broker_epoch == EPOCH
    assert controller.requests[1].current_metadata_offset == 50


class ManualClock:
    """A clock that the test advances."""

    at = 5.0

    def monotonic(self) -> float:
        return self.at


def test_broker_is_sure_for_one_session_after_it_sent_a_heartbeat() -> None:
    async def scenario(_: Lifecycle, controller: FakeController, metadata: Any) -> None:
        clock: Any = ManualClock()
        channel: Any = controller
        lifecycle = Lifecycle(
            IDENTITY, metadata, channel, clock=clock, heartbeat_ms=1, session_ms=1000
        )

        responses = [alive(is_fenced=True), alive(ErrorCode.STALE_BROKER_EPOCH), alive()]

        def beat(_: Any) -> BrokerHeartbeatResponse:
            clock.at += 0.4  # network delay
            return responses.pop(0)

        controller.beat = beat
        for is_sure in (False, False, True):
            await lifecycle._send_heartbeat()
            assert lifecycle.is_sure is is_sure
        clock.at += 0.59
        assert lifecycle.is_sure
        clock.at += 0.02
        assert not lifecycle.is_sure, "another broker may lead"

    with_lifecycle(scenario)


def test_controller_is_sure_only_during_its_quorum_lease() -> None:
    async def scenario(_: Lifecycle, controller: FakeController, metadata: Any) -> None:
        clock: Any = ManualClock()
        channel: Any = controller
        lifecycle = Lifecycle(
            IDENTITY, metadata, channel, clock=clock, heartbeat_ms=100, session_ms=1000
        )
        metadata.lease = clock.at + 0.3
        await lifecycle._send_heartbeat()
        assert lifecycle.is_sure
        clock.at += 0.31
        await lifecycle._send_heartbeat()
        assert not lifecycle.is_sure, "an isolated controller serves its own heartbeat"

        def resign(_: Any) -> BrokerHeartbeatResponse:
            metadata.lease = None
            return alive()

        controller.beat = resign
        await lifecycle._send_heartbeat()
        assert not lifecycle.is_sure
        await lifecycle._send_heartbeat()
        assert lifecycle.is_sure, "another controller responded"

    with_lifecycle(scenario)


@pytest.mark.parametrize(("heartbeat_ms", "session_ms"), [(250, 2000), (250, 500), (2000, 9000)])
def test_healthy_controller_is_always_sure(heartbeat_ms: int, session_ms: int) -> None:
    """This holds even with a long heartbeat interval, because voters fetch from it meanwhile."""

    async def scenario(_: Lifecycle, controller: FakeController, metadata: Any) -> None:
        clock: Any = ManualClock()
        channel: Any = controller
        lifecycle = Lifecycle(
            IDENTITY,
            metadata,
            channel,
            clock=clock,
            heartbeat_ms=heartbeat_ms,
            session_ms=session_ms,
            overtime_ms=500,
        )
        for _beat in range(10):
            metadata.lease = clock.at + 1
            await lifecycle._send_heartbeat()
            for _fetch in range(8):
                clock.at += heartbeat_ms * 1.01 / 8 / 1000
                metadata.lease = clock.at + 1
                assert lifecycle.is_sure

    with_lifecycle(scenario)


def test_broker_is_sure_for_less_time_because_of_an_isolated_controller() -> None:
    async def scenario(_: Lifecycle, controller: FakeController, metadata: Any) -> None:
        clock: Any = ManualClock()
        channel: Any = controller
        lifecycle = Lifecycle(
            IDENTITY,
            metadata,
            channel,
            clock=clock,
            heartbeat_ms=100,
            session_ms=1000,
            overtime_ms=300,
        )
        await lifecycle._send_heartbeat()
        clock.at += 0.69
        assert lifecycle.is_sure
        clock.at += 0.02
        assert not lifecycle.is_sure

    with_lifecycle(scenario)


def test_broker_is_not_sure_right_after_a_pause() -> None:
    """The controller that responds may be this node, already replaced."""

    async def scenario(_: Lifecycle, controller: FakeController, metadata: Any) -> None:
        clock: Any = ManualClock()
        channel: Any = controller
        lifecycle = Lifecycle(
            IDENTITY, metadata, channel, clock=clock, heartbeat_ms=100, session_ms=1000
        )
        await lifecycle._send_heartbeat()
        assert lifecycle.is_sure
        clock.at += 5
        await lifecycle._send_heartbeat()
        assert not lifecycle.is_sure
        for _beat in range(11):
            clock.at += 0.1
            await lifecycle._send_heartbeat()
        assert lifecycle.is_sure

    with_lifecycle(scenario)


def test_broker_unknown_to_the_controller_registers_again() -> None:
    async def scenario(lifecycle: Lifecycle, controller: FakeController, _: Any) -> None:
        responses = [alive(ErrorCode.BROKER_ID_NOT_REGISTERED), alive()]
        controller.beat = lambda request: responses.pop(0) if len(responses) > 1 else responses[0]
        await lifecycle.register()
        task = asyncio.ensure_future(lifecycle.run())
        await lifecycle.until_serving()
        task.cancel()

    requests = with_lifecycle(scenario).requests
    assert [hasattr(request, "incarnation_id") for request in requests[:4]] == [
        True,
        False,
        True,
        False,
    ]


def test_leave_waits_until_the_controller_has_moved_leadership() -> None:
    async def scenario(lifecycle: Lifecycle, controller: FakeController, _: Any) -> None:
        shutdowns = 0

        def beat(request: Any) -> BrokerHeartbeatResponse:
            nonlocal shutdowns
            shutdowns += request.want_shut_down
            return alive(leave=shutdowns >= 3)

        controller.beat = beat
        await lifecycle.register()
        task = asyncio.ensure_future(lifecycle.run())
        await lifecycle.until_serving()
        assert await lifecycle.leave(5.0)
        assert (shutdowns, lifecycle.phase) == (3, Phase.GONE)
        await task

    with_lifecycle(scenario)


def test_leave_without_a_controller_times_out() -> None:
    async def scenario(lifecycle: Lifecycle, controller: FakeController, _: Any) -> None:
        def beat(request: Any) -> BrokerHeartbeatResponse:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no controller")

        controller.beat = beat
        await lifecycle.register()
        task = asyncio.ensure_future(lifecycle.run())
        assert not await lifecycle.leave(0.05)
        task.cancel()

    with_lifecycle(scenario)


def test_missing_controller_is_logged_once_and_when_it_is_back() -> None:
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
    events = [line["event"] for line in logs if "controller responds" in line["event"]]
    assert events == ["no controller responds", "a controller responds again"]


def test_failed_disk_is_reported_with_the_shutdown_request() -> None:
    """A node has one directory. Without it the broker is fenced, and others lead at once."""

    async def scenario(lifecycle: Lifecycle, controller: FakeController, _: Any) -> None:
        await lifecycle.register()
        controller.beat = lambda request: alive(
            is_fenced=True, leave=bool(request.offline_log_dirs)
        )
        beating = asyncio.ensure_future(lifecycle.run())
        assert await lifecycle.fail(5)
        await beating

    last = with_lifecycle(scenario).requests[-1]
    assert last.offline_log_dirs == IDENTITY.directories
    assert last.want_shut_down


def test_heartbeats_report_cordoned_directories_as_they_change() -> None:
    directory = IDENTITY.directories[0]
    cordoned: list[tuple[UUID, ...]] = [(), (directory,), ()]

    async def run() -> list[tuple[UUID | None, ...] | None]:
        controller = FakeController()
        log: Any = SimpleNamespace(current=image(is_fenced=False), lease=None)
        channel: Any = controller
        is_done = asyncio.Event()

        def current() -> tuple[UUID, ...]:
            if len(cordoned) == 1:
                is_done.set()
            return cordoned.pop(0) if len(cordoned) > 1 else cordoned[0]

        lifecycle = Lifecycle(
            IDENTITY, log, channel, clock=SystemClock(), heartbeat_ms=1, session_ms=100,
            cordoned=current,
        )  # fmt: skip
        await lifecycle.register()
        beating = asyncio.create_task(lifecycle.run())
        async with asyncio.timeout(10):
            await is_done.wait()
        beating.cancel()
        beats = [one for one in controller.requests if isinstance(one, BrokerHeartbeatRequest)]
        return [one.cordoned_log_dirs for one in beats[:2]]

    assert asyncio.run(run()) == [(), (directory,)]
