"""Brokers with very many replicas leave their in-sync sets in steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

from riverrun.cluster.partitions.departure import STEP_RECORDS
from riverrun.metadata.image import Image
from riverrun.metadata.records import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    Record,
)
from riverrun.metadata.registrations import FENCED
from riverrun.wire.messages.broker_heartbeat_response import BrokerHeartbeatResponse
from tests.cluster.messages import heartbeat_request, registration_request
from tests.cluster.states import TOPIC, P, cluster, topic
from tests.cluster.test_failover import ONE, THREE, TWO, Scene, time_until

COUNT = 10 * STEP_RECORDS


def large() -> Scene:
    """Node 2 leads every second partition and follows in the others."""
    image = cluster(*[P(1 + number % 2, (1, 2, 3)) for number in range(COUNT)])
    return Scene(image, auto_rebalance=False)


def in_sync(scene: Scene) -> int:
    """The number of partitions with node 2 in sync."""
    return sum(TWO in partition.isr for partition in topic(scene.log.newest).partitions)


async def first_step(scene: Scene) -> None:
    """Wait for the first step. More follow, one in each iteration of the event loop."""
    append, stepped = scene.log.append, asyncio.Event()

    def noticed(records: Sequence[Record]) -> Awaitable[Image]:
        stepped.set()
        return append(records)

    scene.log.append = noticed  # type: ignore[method-assign]
    await stepped.wait()


def test_fencing_takes_leaderships_first_and_fences_last() -> None:
    scene = large()

    async def story() -> None:
        del scene.alive[TWO]
        await time_until(lambda: scene.is_fenced(TWO))
        assert max(map(len, scene.log.appended)) <= STEP_RECORDS
        records = [record for batch in scene.log.appended for record in batch]
        changes = [one for one in records if isinstance(one, PartitionChangeRecord)]
        assert len(changes) == COUNT
        assert all(one.leader >= 0 for one in changes[: COUNT // 2])
        assert all(one.leader < 0 for one in changes[COUNT // 2 :])
        last = records[-1]
        assert isinstance(last, BrokerRegistrationChangeRecord)
        assert last.fenced == FENCED
        assert in_sync(scene) == 0

    scene.play(story)


def test_other_decisions_happen_between_the_steps() -> None:
    scene = large()

    async def story() -> None:
        del scene.alive[TWO]
        await first_step(scene)
        assert not scene.is_fenced(TWO)
        response = await scene.controller.register(registration_request(4))
        assert response.broker_epoch > 0
        assert not scene.is_fenced(TWO), "the registration did not wait for the end"
        await time_until(lambda: scene.is_fenced(TWO))

    scene.play(story)


def test_replica_that_joins_meanwhile_leaves_before_its_broker_is_fenced() -> None:
    """The leader does not know yet that the broker is about to be fenced."""
    scene = large()

    async def story() -> None:
        del scene.alive[TWO]
        await first_step(scene)
        first = scene.log.appended[0][0]
        assert isinstance(first, PartitionChangeRecord)
        joins = PartitionChangeRecord(
            partition_id=first.partition_id, topic_id=TOPIC, isr=(ONE, TWO, THREE)
        )
        await scene.log.append([joins])
        await time_until(lambda: scene.is_fenced(TWO))
        assert in_sync(scene) == 0

    scene.play(story)


def test_departing_broker_is_known_until_it_is_fenced() -> None:
    scene = large()

    async def story() -> None:
        del scene.alive[TWO]
        await first_step(scene)
        assert list(scene.controller.departing) == [TWO]
        await time_until(lambda: scene.is_fenced(TWO))
        assert not scene.controller.departing

    scene.play(story)


def test_incarnation_that_registers_meanwhile_is_not_fenced() -> None:
    scene = large()

    async def story() -> None:
        del scene.alive[TWO]
        await first_step(scene)
        await scene.controller.register(registration_request(2, 2))
        scene.alive[TWO] = None
        await time_until(lambda: not scene.is_fenced(TWO))
        fencings = [
            record
            for batch in scene.log.appended
            for record in batch
            if isinstance(record, BrokerRegistrationChangeRecord) and record.fenced == FENCED
        ]
        assert not fencings
        assert in_sync(scene) == 0, "leaders add it when it has caught up"

    scene.play(story)


def test_stopping_broker_leaves_in_steps_and_stops_when_all_have_read_the_last() -> None:
    scene = large()

    async def leave() -> BrokerHeartbeatResponse:
        request = heartbeat_request(scene.log.newest, 2, want_shut_down=True)
        return await scene.controller.heartbeat(request)

    async def story() -> None:
        del scene.alive[TWO]
        assert not (await leave()).should_shut_down
        await time_until(lambda: in_sync(scene) == 0)
        last = scene.log.newest.offset
        assert not (await leave()).should_shut_down, "no broker has read the last step yet"
        await asyncio.sleep(0.3)
        assert (await leave()).should_shut_down
        assert scene.log.newest.offset == last + 1, "only the fencing was left"
        assert max(map(len, scene.log.appended)) <= STEP_RECORDS + 1

    scene.play(story)


def test_departure_ends_when_this_node_no_longer_leads_the_quorum() -> None:
    scene = large()

    async def story() -> None:
        del scene.alive[TWO]
        await first_step(scene)
        scene.log.is_active = False
        scene.controller.on_leadership(False, scene.log.newest.epoch)
        count = len(scene.log.appended)
        await asyncio.sleep(1.0)
        assert len(scene.log.appended) == count
        scene.lead()
        await time_until(lambda: scene.is_fenced(TWO))
        assert in_sync(scene) == 0

    scene.play(story)
