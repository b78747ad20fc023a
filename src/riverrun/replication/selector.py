"""Which replica a consumer should read from: one of its own rack, if there is one (KIP-392)."""

from __future__ import annotations

from riverrun.model.ids import NodeId
from riverrun.replication.partition import Partition
from riverrun.replication.peers import Peers


def nearest_replica(
    partition: Partition, peers: Peers, *, node: NodeId, rack: str, offset: int
) -> NodeId | None:
    """The follower to go to; None to stay with the leader, which alone is asked.

    It must be in sync and hold what is wanted; of several, the one that has most.
    """
    if not partition.is_leader or peers.rack_of(node) == rack:
        return None
    near = [
        follower
        for follower in partition.followers.values()
        if follower.node in partition.isr
        and follower.start_offset <= offset <= follower.end_offset
        and peers.rack_of(follower.node) == rack
        and peers.is_alive(follower.node)
    ]
    if not near:
        return None
    return max(near, key=lambda follower: (follower.end_offset, -follower.node)).node
