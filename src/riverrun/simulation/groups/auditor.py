"""Describes the group all the time. What a description shows must be durable.

* An epoch that a member got in a response, or that was described, never goes back.
* The target assignment of an epoch does not change.
* A partition is assigned to one member.
"""

from __future__ import annotations

import asyncio

from riverrun.client.pool import ConnectionPool
from riverrun.coordinator.hashing import partition_of
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import TopicName
from riverrun.model.names import OFFSETS_TOPIC
from riverrun.simulation.cluster import SimulatedCluster
from riverrun.simulation.failures import SafetyViolation
from riverrun.simulation.groups.run import CREW, GroupRun
from riverrun.simulation.groups.workers import FAILURES
from riverrun.simulation.world import Environment
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.consumer_group_describe_request import ConsumerGroupDescribeRequest
from riverrun.wire.messages.consumer_group_describe_response import (
    Assignment,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)

PAUSE_SECONDS = 0.15
STABLE = "Stable"
Slots = tuple[tuple[str, int], ...]


class GroupAuditor:
    def __init__(self, run: GroupRun, cluster: SimulatedCluster) -> None:
        self._run = run
        self._cluster = cluster
        self._epoch = 0
        self._targets: tuple[int, dict[str, Slots]] = (0, {})
        self.descriptions = 0

    async def run(self, environment: Environment) -> None:
        run = self._run
        await run.wait_for_topics()
        while True:
            async with run.pool(environment) as pool:
                try:
                    while True:
                        await self._look(pool)
                        await asyncio.sleep(PAUSE_SECONDS)
                except FAILURES as error:
                    run.world.record(f"{environment.name} gives up: {error!r:.80}")
            await asyncio.sleep(PAUSE_SECONDS)

    async def _look(self, pool: ConnectionPool) -> None:
        """A replaced coordinator that does not know it yet answers from its old state, so its
        answers do not count."""
        before, epoch = self._coordinator(), max(self._epoch, self._run.answered_epoch)
        node = await pool.coordinator(CREW)
        message = ConsumerGroupDescribeRequest(
            group_ids=(CREW,), include_authorized_operations=False
        )
        response: ConsumerGroupDescribeResponse = await pool.group_request(
            CREW,
            ApiKey.CONSUMER_GROUP_DESCRIBE,
            message,
            lambda response: response.groups[0].error_code,
        )
        is_current = before == self._coordinator() and before is not None and before[0] == node
        if not is_current or node != await pool.coordinator(CREW):
            return
        if self._run.ledger.is_lossless():
            self._check(response.groups[0], epoch)
        if response.groups[0].group_state == STABLE:
            self._run.stable_since = self._run.now

    def _coordinator(self) -> tuple[int, int] | None:
        """The node and leader epoch in the newest metadata."""
        topic = self._cluster.metadata.latest.topics_by_name.get(TopicName(OFFSETS_TOPIC))
        if topic is None:
            return None
        one = topic.partitions[partition_of(CREW, len(topic.partitions))]
        return (int(one.leader), int(one.leader_epoch))

    def _check(self, group: DescribedGroup, epoch: int) -> None:
        if group.error_code is ErrorCode.GROUP_ID_NOT_FOUND and not epoch:
            return
        self.descriptions += 1
        if group.group_epoch < epoch:
            raise SafetyViolation(
                f"group {CREW} is described with epoch {group.group_epoch} "
                f"({group.error_code.name}), but epoch {epoch} was known before"
            )
        self._epoch = group.group_epoch
        owners: dict[tuple[str, int], str] = {}
        targets: dict[str, Slots] = {}
        for member in group.members:
            targets[member.member_id] = _slots(member.target_assignment)
            for slot in _slots(member.assignment):
                other = owners.setdefault(slot, member.member_id)
                if other != member.member_id:
                    raise SafetyViolation(f"{slot} is assigned to {other} and {member.member_id}")
        self._check_targets(group.assignment_epoch, targets)

    def _check_targets(self, epoch: int, targets: dict[str, Slots]) -> None:
        known_epoch, known = self._targets
        if epoch < known_epoch:
            raise SafetyViolation(f"the target of {CREW} went back from {known_epoch} to {epoch}")
        if epoch == known_epoch:
            living = {str(topic_id) for topic_id, _ in self._run.topic_ids().values()}
            for member_id, slots in targets.items():
                # Deleted topics are not described.
                expected = [one for one in known.get(member_id, slots) if one[0] in living]
                if [one for one in slots if one[0] in living] != expected:
                    raise SafetyViolation(
                        f"the target of {member_id} in epoch {epoch} was {known[member_id]} and "
                        f"is {slots}"
                    )
            targets = {**known, **targets}
        self._targets = (epoch, targets)


def _slots(assignment: Assignment) -> Slots:
    return tuple(
        sorted(
            (str(topic.topic_id), index)
            for topic in assignment.topic_partitions
            for index in topic.partitions
        )
    )
