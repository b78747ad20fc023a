"""A leader with followers and a controller that tests drive by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from msgspec.structs import replace

from riverrun.metadata.image import (
    DIRECTORY_UNASSIGNED,
    BrokerImage,
    Image,
    LeaderRecoveryState,
    PartitionImage,
)
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import LeaderEpoch, NodeId, Offset
from riverrun.replication.follower_progress import Contact
from riverrun.replication.isr import IsrLimits
from riverrun.replication.leader_state import IsrProposal, IsrVerdict
from riverrun.replication.partition import Partition
from riverrun.replication.peers import Peers
from riverrun.replication.reading import PartitionRead, ReplicaFetch, read_for_replica
from riverrun.storage.settings import LogSettings
from tests.storage.machines import NOW_MS, TOPIC_ID, Machine, batch

if TYPE_CHECKING:
    from riverrun.replication.peers import Verify

ME, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
BROKER_EPOCHS = {ME: 11, TWO: 12, THREE: 13}


def broker(node: NodeId, epoch: int | None = None, rack: str | None = None) -> BrokerImage:
    return BrokerImage(
        id=node,
        epoch=BROKER_EPOCHS[node] if epoch is None else epoch,
        incarnation=UUID(int=node),
        endpoints={},
        is_fenced=False,
        rack=rack,
    )


class Leader:
    """Node 1 leads a partition of replicas 1, 2 and 3."""

    def __init__(
        self,
        isr: tuple[NodeId, ...] = (ME, TWO, THREE),
        *,
        epoch: int = 0,
        verify: Verify | None = None,
        **settings: object,
    ) -> None:
        self.now = 100.0
        self.image = Image(brokers={node: broker(node) for node in (ME, TWO, THREE)})
        self.proposed: list[Partition] = []
        self.peers = Peers(
            now=lambda: self.now,
            image=lambda: self.image,
            limits=IsrLimits(lag_messages=100),
            propose=self.proposed.append,
            verify=verify,
        )
        self.flushes = 0
        self.machine = Machine()
        log = self.machine.load(LogSettings(**settings))[1]  # type: ignore[arg-type]
        self.partition = Partition(log, TOPIC_ID, ME, self._flush, self.peers)
        self.state = PartitionImage(
            replicas=(ME, TWO, THREE),
            isr=isr,
            leader=ME,
            leader_epoch=LeaderEpoch(epoch),
            partition_epoch=0,
            directories=(DIRECTORY_UNASSIGNED,) * 3,
        )
        self.partition.apply(self.state)

    def _flush(self, _: Partition) -> None:
        self.flushes += 1

    @property
    def high_watermark(self) -> Offset:
        return self.partition.log.high_watermark

    def append(self, *values: bytes, acks: int = -1) -> Offset:
        appended = self.partition.append(batch(*values), acks=acks, now_ms=NOW_MS)
        return Offset(appended.last_offset + 1)

    def fetch(
        self,
        node: NodeId,
        offset: int,
        *,
        last_epoch: int = -1,
        start_offset: int = 0,
    ) -> PartitionRead:
        """Fetch as the follower's registered incarnation."""
        fetch = ReplicaFetch(
            offset=offset,
            leader_epoch=self.partition.leader_epoch,
            last_fetched_epoch=last_epoch,
            start_offset=start_offset,
        )
        return read_for_replica(
            self.partition,
            node,
            fetch,
            contact=Contact(BROKER_EPOCHS[node], self.now),
            max_bytes=1 << 20,
            at_least_one=True,
            is_first=True,
        )

    def apply(
        self,
        *,
        isr: tuple[NodeId, ...] | None = None,
        leader: NodeId | None = None,
        recovery: LeaderRecoveryState | None = None,
        partition_epoch: int | None = None,
    ) -> None:
        """Apply a new image. A ``leader`` starts a new leader epoch."""
        state = self.state
        epoch = state.leader_epoch if leader is None else LeaderEpoch(state.leader_epoch + 1)
        self.state = replace(
            state,
            isr=state.isr if isr is None else isr,
            leader=state.leader if leader is None else leader,
            leader_epoch=epoch,
            leader_recovery_state=state.leader_recovery_state if recovery is None else recovery,
            partition_epoch=state.partition_epoch + 1
            if partition_epoch is None
            else partition_epoch,
        )
        self.partition.apply(self.state)

    def proposal(self) -> IsrProposal:
        found = self.partition.proposal
        assert found is not None, "no proposal is pending"
        return found

    def accept(self, proposal: IsrProposal) -> None:
        """The controller commits the proposal. Its response arrives before the image."""
        if self.respond(proposal) is not None:
            self.apply(isr=proposal.isr)

    def respond(self, proposal: IsrProposal) -> float | None:
        """The response to a proposal that the controller has committed."""
        verdict = IsrVerdict(
            error=ErrorCode.NONE,
            isr=proposal.isr,
            leader_epoch=proposal.leader_epoch,
            partition_epoch=proposal.partition_epoch + 1,
        )
        return self.partition.apply_verdict(proposal, verdict)

    def reject(self, proposal: IsrProposal, code: ErrorCode) -> float | None:
        return self.partition.apply_verdict(proposal, IsrVerdict(error=code))
