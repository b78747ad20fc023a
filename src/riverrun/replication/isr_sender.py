"""Sends ISR proposals of leaders to the controller, and checks ISRs periodically.

One AlterPartition is in flight at a time; it carries all proposals that were queued meanwhile
(KIP-497, KIP-903). A proposal without a response is sent again, unless an image has settled it.
Every half second each led partition with followers is checked, except those in which nothing has
changed since all replicas held the whole log: a node may lead ten thousand idle partitions. After a
stall of this node, deadlines of followers are extended by it, and the check waits for the next
round.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol
from uuid import UUID

import structlog

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import LeaderEpoch, NodeId
from riverrun.ports.aio import Backoff, StallCredit, Yielder
from riverrun.ports.clock import Clock
from riverrun.replication.leader_state import RETRY_SECONDS, IsrProposal, IsrVerdict
from riverrun.replication.partition import Partition
from riverrun.replication.replicas import Replicas
from riverrun.wire.messages.alter_partition_request import (
    AlterPartitionRequest,
    BrokerState,
    PartitionData,
    TopicData,
)
from riverrun.wire.messages.alter_partition_response import AlterPartitionResponse

log = structlog.get_logger("riverrun.replication")

VERSION = 3
RECOVERED = 0
CHECK_SECONDS = 0.5
STALL_SECONDS = 0.25
"""A timer that is later than this counts as a stall of this node."""
CHECKS_MAX = 200
"""Checks in a row without yielding to the event loop."""
PARTITIONS_MAX = 500
"""Partitions in one request: the controller decides about all of them in one iteration."""
NAMED_MAX = 20
"""Partitions that are logged one by one. Larger responses are logged as counts."""
BACKOFF = Backoff(first_seconds=RETRY_SECONDS, max_seconds=2.0)
NO_VERDICT = IsrVerdict(error=ErrorCode.UNKNOWN_SERVER_ERROR)


class SendProposals(Protocol):
    def __call__(self, request: AlterPartitionRequest) -> Awaitable[AlterPartitionResponse]:
        """Send to the active controller. Raises OSError, TimeoutError or KafkaError."""
        ...


class ProposalQueue:
    """The partitions of one node that propose an ISR change. ``IsrSender`` sends the proposals."""

    def __init__(self) -> None:
        self.waiting: dict[Partition, None] = {}
        self.in_flight: dict[Partition, IsrProposal] = {}
        self.retries: dict[Partition, tuple[IsrProposal, float]] = {}
        """Proposals to be sent again, and when."""
        self.wake = asyncio.Event()

    def propose(self, partition: Partition) -> None:
        """Send the proposal of a partition, unless it is already in flight or due for a retry."""
        proposal = partition.proposal
        retry = self.retries.get(partition)
        if retry is not None and retry[0] is not proposal:
            del self.retries[partition]  # An image has settled it.
            retry = None
        if retry is None and self.in_flight.get(partition) is not proposal:
            self.waiting[partition] = None
            self.wake.set()


class IsrSender:
    """The ISR proposals of one node. ``run`` until cancelled."""

    def __init__(
        self,
        queue: ProposalQueue,
        replicas: Replicas,
        node_id: NodeId,
        *,
        send: SendProposals,
        broker_epoch: Callable[[], int],
        clock: Clock,
    ) -> None:
        self._replicas = replicas
        self._node_id = node_id
        self._send = send
        self._broker_epoch = broker_epoch
        self._clock = clock
        self._queue = queue
        self._failures = 0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send_all())
            group.create_task(self._check_all())

    async def _send_all(self) -> None:
        while True:
            self._queue_due()
            proposals = self._take_queued()
            if proposals:
                await self._send_proposals(proposals)
                continue
            self._queue.wake.clear()
            try:
                async with asyncio.timeout(self._until_due()):
                    await self._queue.wake.wait()
            except TimeoutError:
                pass

    def _take_queued(self) -> dict[Partition, IsrProposal]:
        taken: dict[Partition, IsrProposal] = {}
        for partition in list(self._queue.waiting):
            if len(taken) == PARTITIONS_MAX:
                break
            del self._queue.waiting[partition]
            proposal = partition.proposal
            if proposal is not None:
                taken[partition] = proposal
        return taken

    def _queue_due(self) -> None:
        now = self._clock.monotonic()
        for partition in [one for one, (_, due) in self._queue.retries.items() if due <= now]:
            del self._queue.retries[partition]
            self._queue.waiting[partition] = None

    def _until_due(self) -> float | None:
        if not self._queue.retries:
            return None
        due = min(due for _, due in self._queue.retries.values())
        return max(due - self._clock.monotonic(), 0.001)

    async def _send_proposals(self, proposals: dict[Partition, IsrProposal]) -> None:
        request = request_of(proposals, self._node_id, self._broker_epoch())
        self._queue.in_flight = proposals
        try:
            response = await self._send(request)
        except (OSError, KafkaError) as error:
            self._retry(proposals, str(error))
            return
        finally:
            self._queue.in_flight = {}
        if response.error_code is not ErrorCode.NONE:
            # The controller rejected the whole request, because this incarnation is not registered
            # there. It changed nothing, but an earlier controller may have.
            self._retry(proposals, response.error_code.name)
            return
        self._failures = 0
        verdicts = verdicts_of(response)
        is_named = len(proposals) <= NAMED_MAX
        counts: Counter[ErrorCode] = Counter()
        for partition, proposal in proposals.items():
            verdict = verdicts.get((partition.topic_id, partition.name.partition), NO_VERDICT)
            retry_seconds = partition.apply_verdict(proposal, verdict)
            if retry_seconds is not None:
                self._queue.retries[partition] = (proposal, self._clock.monotonic() + retry_seconds)
            counts[verdict.error] += 1
            if is_named:
                _log_verdict(partition, proposal, verdict)
        if not is_named:
            for code, count in counts.items():
                log.info(_event(code), partitions=count, **_error(code))

    def _retry(self, proposals: dict[Partition, IsrProposal], error: str) -> None:
        self._failures += 1
        if self._failures == 1:
            log.warning("ISR proposals not sent", partitions=len(proposals), error=error)
        # A node has one sender, so it needs no jitter.
        due = self._clock.monotonic() + BACKOFF.exact(self._failures)
        for partition, proposal in proposals.items():
            if partition.proposal is proposal:
                self._queue.retries[partition] = (proposal, due)

    async def _check_all(self) -> None:
        limits = self._replicas.peers.limits
        pause = min(CHECK_SECONDS, limits.lag_seconds / 2)
        stalls = StallCredit(tolerance_seconds=STALL_SECONDS)
        was_late = False
        while True:
            stalls.expect(self._clock.monotonic() + pause)
            await asyncio.sleep(pause)
            stall = stalls.take(self._clock.monotonic())
            is_late = stall > 0
            yielder = Yielder(self._clock, steps_max=CHECKS_MAX)
            if is_late:
                led = [one for one in self._replicas if one.is_leader and len(one.replicas) > 1]
            else:
                led = [
                    one
                    for one in self._replicas
                    if one.is_leader and not one.is_quiet and len(one.replicas) > 1
                ]
            self._replicas.peers.checked_at = self._clock.monotonic()
            for partition in led:
                await yielder.step()
                if is_late:
                    partition.credit_stall(stall)
                # A node that is always late must still check every second time.
                if not is_late or was_late:
                    partition.check_isr()
            was_late = is_late and not was_late


def _log_verdict(partition: Partition, proposal: IsrProposal, verdict: IsrVerdict) -> None:
    isr = proposal.isr if verdict.error else verdict.isr
    name = str(partition.name)
    log.info(_event(verdict.error), partition=name, isr=list(isr), **_error(verdict.error))


def _event(error: ErrorCode) -> str:
    if error is ErrorCode.NEW_LEADER_ELECTED:
        # The change was made. It also ended a reassignment that takes the partition from us.
        return "another replica leads"
    return "ISR change rejected" if error else "ISR changed"


def _error(error: ErrorCode) -> dict[str, str]:
    return {"error": error.name} if error else {}


def request_of(
    proposals: Mapping[Partition, IsrProposal], node: NodeId, broker_epoch: int
) -> AlterPartitionRequest:
    topics: dict[UUID, list[PartitionData]] = {}
    for partition, proposal in proposals.items():
        topics.setdefault(partition.topic_id, []).append(
            PartitionData(
                partition_index=partition.name.partition,
                leader_epoch=proposal.leader_epoch,
                new_isr=proposal.isr,
                new_isr_with_epochs=tuple(
                    BrokerState(broker_id=member, broker_epoch=proposal.broker_epochs[member])
                    for member in proposal.isr
                ),
                leader_recovery_state=RECOVERED,
                partition_epoch=proposal.partition_epoch,
            )
        )
    return AlterPartitionRequest(
        broker_id=node,
        broker_epoch=broker_epoch,
        topics=tuple(
            TopicData(topic_id=topic_id, partitions=tuple(rows))
            for topic_id, rows in topics.items()
        ),
    )


def verdicts_of(response: AlterPartitionResponse) -> dict[tuple[UUID, int], IsrVerdict]:
    return {
        (topic.topic_id, row.partition_index): IsrVerdict(
            error=row.error_code,
            isr=tuple(NodeId(node) for node in row.isr),
            leader_epoch=LeaderEpoch(row.leader_epoch),
            partition_epoch=row.partition_epoch,
        )
        for topic in response.topics
        if topic.topic_id is not None
        for row in topic.partitions
    }
