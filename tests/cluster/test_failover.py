"""ActiveController and brokers: sessions, probes, activation, failover."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress

import pytest

from riverrun.cluster.active_controller import ActiveController
from riverrun.cluster.decision import Decision
from riverrun.cluster.settings import ControllerSettings
from riverrun.metadata.image import Image
from riverrun.metadata.records import PartitionChangeRecord
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import LeaderEpoch, NodeId
from riverrun.ports.metrics import Metrics
from riverrun.wire.messages.unregister_broker_request import UnregisterBrokerRequest
from tests.cluster.fakes import FakeClock, MemoryLog, make_configs
from tests.cluster.messages import heartbeat_request, registration_request
from tests.cluster.states import NONE, TOPIC, P, cluster, setting, state, topic
from tests.storage.machines import FixedClock
from tests.storage.virtual_loop import VirtualLoop, run

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
WHOLE = P(2, (1, 2, 3))


class LoopClock(FakeClock):
    """The virtual time of the event loop."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class Scene:
    """Node 1 is the active controller of three brokers; ``alive`` ones send heartbeats."""

    def __init__(self, image: Image | None = None, **settings: int | bool) -> None:
        self.log = MemoryLog(image or cluster(WHOLE))
        self.log.is_active, self.log.leader = False, None
        self.probed: list[NodeId] = []
        self.dead: dict[NodeId, None] = {}
        self.alive: dict[NodeId, None] = dict.fromkeys((ONE, TWO, THREE))
        self.metrics = Metrics()
        self.controller = ActiveController(
            self.log,
            make_configs(),
            clock=LoopClock(),
            settings=ControllerSettings(**settings),  # type: ignore[arg-type]
            probe=self.probe,
            metrics=self.metrics,
        )

    async def probe(self, node: NodeId) -> bool:
        self.probed.append(node)
        await asyncio.sleep(0.001)
        return node not in self.dead

    async def beat(self) -> None:
        while True:
            for node in list(self.alive):
                if self.log.is_active:
                    with suppress(KafkaError):
                        await self.controller.heartbeat(heartbeat_request(self.log.newest, node))
            await asyncio.sleep(0.25)

    def play(self, story: Callable[[], Coroutine[object, object, None]]) -> None:
        async def scene(loop: VirtualLoop) -> None:
            tasks = [
                asyncio.ensure_future(self.controller.run()),
                asyncio.ensure_future(self.beat()),
            ]
            try:
                await asyncio.sleep(0.3)
                self.lead()
                await story()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

        run(FixedClock(), scene)

    def lead(self) -> None:
        self.log.is_active, self.log.leader = True, ONE
        self.controller.on_leadership(True, LeaderEpoch(2))

    def is_fenced(self, node: NodeId) -> bool:
        return self.log.newest.brokers[node].is_fenced

    @property
    def partition(self) -> P:
        return state(topic(self.log.newest).partitions[0])

    def count(self, name: str) -> int:
        (counter,) = self.metrics.families[name].counters.values()
        return counter.value


async def time_until(condition: Callable[[], bool], limit: float = 30.0) -> float:
    began = asyncio.get_running_loop().time()
    while not condition():
        assert asyncio.get_running_loop().time() - began < limit, "it did not happen"
        await asyncio.sleep(0.01)
    return asyncio.get_running_loop().time() - began


def test_silent_broker_is_fenced_when_its_session_expires() -> None:
    scene = Scene()

    async def story() -> None:
        del scene.alive[TWO]
        assert 1.7 < await time_until(lambda: scene.is_fenced(TWO)) < 2.2
        assert scene.partition == P(1, (1, 3))
        assert scene.count("riverrun_controller_sessions_expired_total") == 1
        assert scene.count("riverrun_controller_elections_total") == 1

    scene.play(story)


def test_a_failover_is_one_batch() -> None:
    scene = Scene(auto_rebalance=False)

    async def story() -> None:
        del scene.alive[TWO]
        await time_until(lambda: scene.is_fenced(TWO))
        (batch,) = scene.log.appended
        assert len(batch) == 2

    scene.play(story)


def test_fenced_broker_is_unfenced_by_heartbeats() -> None:
    scene = Scene()

    async def story() -> None:
        del scene.alive[TWO]
        await time_until(lambda: scene.is_fenced(TWO))
        scene.alive[TWO] = None
        assert await time_until(lambda: not scene.is_fenced(TWO)) < 0.3

    scene.play(story)


def test_killed_broker_is_fenced_as_soon_as_a_probe_proves_its_death() -> None:
    scene = Scene()

    async def story() -> None:
        del scene.alive[TWO]
        scene.controller.connection_lost(TWO)
        await asyncio.sleep(0.12)
        assert not scene.is_fenced(TWO), "its door is the last to close"
        scene.dead[TWO] = None
        assert await time_until(lambda: scene.is_fenced(TWO)) < 0.1
        assert scene.partition == P(1, (1, 3))
        assert scene.count("riverrun_controller_sessions_condemned_total") == 1

    scene.play(story)


def test_broken_connection_alone_fences_no_broker() -> None:
    scene = Scene()

    async def story() -> None:
        scene.controller.connection_lost(TWO)
        await asyncio.sleep(5)
        assert not scene.is_fenced(TWO)
        assert 1 <= len(scene.probed) < 10, "a heartbeat ends the suspicion"

    scene.play(story)


def test_heartbeat_during_a_probe_keeps_the_session() -> None:
    scene = Scene()

    async def story() -> None:
        scene.dead[TWO] = None
        scene.controller.connection_lost(TWO)
        await asyncio.sleep(0)
        await scene.controller.heartbeat(heartbeat_request(scene.log.newest, TWO))
        await asyncio.sleep(0.2)
        assert not scene.is_fenced(TWO)

    scene.play(story)


def test_stopped_process_keeps_its_session_until_it_expires() -> None:
    """It still accepts connections, so a probe cannot distinguish it from a slow broker."""
    scene = Scene()

    async def story() -> None:
        del scene.alive[TWO]
        scene.controller.connection_lost(TWO)
        assert await time_until(lambda: scene.is_fenced(TWO)) > 1.7
        count = len(scene.probed)
        await asyncio.sleep(1)
        assert len(scene.probed) == count

    scene.play(story)


def test_lost_connections_of_unknown_and_fenced_brokers_are_ignored() -> None:
    scene = Scene(cluster(P(1, (1, 2)), fenced=(3,)))

    async def story() -> None:
        scene.alive = {}
        for node in (ONE, THREE, NodeId(9)):
            scene.controller.connection_lost(node)
        await asyncio.sleep(0.2)
        assert scene.probed == []

    scene.play(story)


def test_previous_controller_is_probed_at_once() -> None:
    scene = Scene()
    scene.log.leader = TWO
    scene.dead[TWO] = None
    del scene.alive[TWO]

    async def story() -> None:
        assert await time_until(lambda: scene.is_fenced(TWO)) < 0.1

    scene.play(story)


def test_session_of_the_previous_controller_starts_at_its_last_contact() -> None:
    scene = Scene()
    scene.log.leader = TWO
    del scene.alive[TWO]

    async def story() -> None:
        assert await time_until(lambda: scene.is_fenced(TWO)) < 1.0

    async def earlier() -> None:
        scene.log.heard[TWO] = asyncio.get_running_loop().time() - 1.2
        scene.lead()
        await story()

    scene.play(earlier)


def test_inactive_controller_refuses_requests_and_does_nothing() -> None:
    scene = Scene()

    async def story() -> None:
        scene.log.is_active, scene.log.leader = False, THREE
        scene.controller.on_leadership(False, LeaderEpoch(3))
        scene.alive = {}
        image = scene.log.newest
        nothing: Decision[None] = Decision(response=None)
        for ask in (
            scene.controller.heartbeat(heartbeat_request(image, 2)),
            scene.controller.register(registration_request(4)),
            scene.controller.unregister(UnregisterBrokerRequest(broker_id=2)),
            scene.controller.submit(lambda _: nothing),
        ):
            with pytest.raises(KafkaError) as refused:
                await ask
            assert refused.value.code is ErrorCode.NOT_CONTROLLER
        await asyncio.sleep(5)
        assert scene.log.appended == []

    scene.play(story)


def test_uncommitted_decisions_fail_when_leadership_is_lost() -> None:
    scene = Scene()

    async def story() -> None:
        scene.log.gate = asyncio.Event()
        pending = asyncio.ensure_future(scene.controller.register(registration_request(4)))
        nothing: Decision[None] = Decision(response=None)
        quiet = asyncio.ensure_future(scene.controller.submit(lambda _: nothing))
        await asyncio.sleep(0.01)
        assert not pending.done()
        assert not quiet.done(), "it speaks of what is not committed"
        scene.log.is_active = False
        scene.log.gate.set()
        for one in (pending, quiet):
            with pytest.raises(KafkaError) as refused:
                await one
            assert refused.value.code is ErrorCode.NOT_CONTROLLER

    scene.play(story)


def test_decisions_see_uncommitted_effects_of_earlier_decisions() -> None:
    scene = Scene()

    async def story() -> None:
        scene.log.gate = asyncio.Event()
        first = asyncio.ensure_future(scene.controller.register(registration_request(4)))
        second = asyncio.ensure_future(scene.controller.register(registration_request(4)))
        await asyncio.sleep(0.01)
        scene.log.gate.set()
        assert (await first).broker_epoch == (await second).broker_epoch

    scene.play(story)


def test_registered_broker_is_unfenced_by_its_heartbeat_and_may_stop() -> None:
    scene = Scene()

    async def story() -> None:
        response = await scene.controller.register(registration_request(4))
        early = heartbeat_request(
            scene.log.newest, 4, offset=response.broker_epoch - 1, epoch=response.broker_epoch
        )
        assert (await scene.controller.heartbeat(early)).is_fenced
        await scene.controller.heartbeat(heartbeat_request(scene.log.newest, 4))
        assert not scene.is_fenced(NodeId(4))
        leaving = heartbeat_request(scene.log.newest, 4, want_shut_down=True)
        assert (await scene.controller.heartbeat(leaving)).should_shut_down
        assert scene.is_fenced(NodeId(4))

    scene.play(story)


def test_heartbeat_without_records_does_not_wait_for_commits() -> None:
    scene = Scene()

    async def story() -> None:
        scene.log.gate = asyncio.Event()
        slow = asyncio.ensure_future(scene.controller.register(registration_request(4)))
        await asyncio.sleep(0.01)
        async with asyncio.timeout(0.5):
            await scene.controller.heartbeat(heartbeat_request(scene.log.current, 2))
        assert not slow.done(), "what it must not wait for is over already"
        scene.log.gate.set()
        await slow

    scene.play(story)


def test_stopping_broker_waits_until_all_brokers_have_read_the_change() -> None:
    scene = Scene()

    async def leave() -> bool:
        request = heartbeat_request(scene.log.newest, 2, want_shut_down=True)
        return (await scene.controller.heartbeat(request)).should_shut_down

    async def story() -> None:
        del scene.alive[TWO]
        await asyncio.sleep(0.3)
        assert not await leave()
        assert scene.partition == P(1, (1, 3))
        assert not await leave(), "no broker has read the new leader yet"
        await asyncio.sleep(0.3)
        assert await leave()
        assert scene.is_fenced(TWO)

    scene.play(story)


def test_new_incarnation_registers_without_waiting_for_the_old_session() -> None:
    scene = Scene()

    async def story() -> None:
        response = await scene.controller.register(registration_request(2, 2), cluster_id=None)
        assert response.error_code is ErrorCode.NONE
        assert scene.partition == P(1, (1, 3))
        with pytest.raises(KafkaError) as refused:
            await scene.controller.register(registration_request(2, 1))
        assert refused.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION

    scene.play(story)


def test_leadership_returns_to_preferred_replicas_that_are_in_sync() -> None:
    scene = Scene(imbalance_check_s=10)

    async def story() -> None:
        assert scene.partition == WHOLE
        assert await time_until(lambda: scene.partition == P(1, (1, 2, 3))) < 1

    scene.play(story)


def test_leadership_that_moved_for_another_reason_returns_later() -> None:
    scene = Scene(imbalance_check_s=10)

    async def story() -> None:
        await time_until(lambda: scene.partition == P(1, (1, 2, 3)))
        moved = PartitionChangeRecord(partition_id=0, topic_id=TOPIC, leader=TWO)
        await scene.log.append([moved])
        assert 8 < await time_until(lambda: scene.partition == P(1, (1, 2, 3))) < 11

    scene.play(story)


def test_leadership_does_not_return_if_rebalancing_is_disabled() -> None:
    scene = Scene(imbalance_check_s=10, auto_rebalance=False)

    async def story() -> None:
        await asyncio.sleep(30)
        assert scene.partition == WHOLE

    scene.play(story)


def test_elections_for_partitions_without_a_leader_are_retried() -> None:
    """Unclean elections may be enabled while there is no leader."""
    stuck = P(NONE, (), elr=(3,), last=(3,))
    scene = Scene(cluster(stuck, fenced=(3,)))
    scene.alive = dict.fromkeys((ONE, TWO))

    async def story() -> None:
        await asyncio.sleep(10)
        assert scene.partition == stuck
        await scene.log.append([setting("unclean.leader.election.enable", "true", topic="t")])
        assert await time_until(lambda: scene.partition != stuck) < 6
        assert scene.partition == P(1, (1,), recovering=True)
        assert scene.count("riverrun_controller_unclean_elections_total") == 1

    scene.play(story)


def test_failover_is_retried_after_a_full_disk() -> None:
    scene = Scene()

    async def story() -> None:
        del scene.alive[TWO]
        scene.log.error = OSError(28, "No space left on device")
        await asyncio.sleep(3)
        assert not scene.is_fenced(TWO)
        scene.log.error = None
        assert await time_until(lambda: scene.is_fenced(TWO)) < 0.2

    scene.play(story)


def test_stall_of_the_controller_expires_no_session() -> None:
    scene = Scene()

    async def story() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        for _ in range(5):
            await asyncio.sleep(0.07)
            loop._pass_time(4.0)  # an event-loop iteration that takes this long
        await asyncio.sleep(3)
        assert not any(scene.is_fenced(node) for node in (ONE, TWO, THREE))

    scene.play(story)


def test_unregistered_broker_may_register_again() -> None:
    scene = Scene()

    async def story() -> None:
        del scene.alive[TWO]
        await scene.controller.unregister(UnregisterBrokerRequest(broker_id=2))
        assert TWO not in scene.log.newest.brokers
        assert scene.partition == P(1, (1, 3))
        again = await scene.controller.register(registration_request(2))
        assert again.broker_epoch > 0

    scene.play(story)
