"""The voters, the ``quorum-state`` file and the control records of the metadata log.

A single node is a quorum of one voter with the same files as three, so its directory can grow into
a cluster later (KIP-595, KIP-853).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from riverrun.metadata.schema.k_raft_version_record import KRaftVersionRecord
from riverrun.metadata.schema.leader_change_message import LeaderChangeMessage
from riverrun.metadata.schema.leader_change_message import Voter as LeaderChangeVoter
from riverrun.metadata.schema.voters_record import Endpoint as VoterEndpoint
from riverrun.metadata.schema.voters_record import KRaftVersionFeature, VotersRecord
from riverrun.metadata.schema.voters_record import Voter as VoterEntry
from riverrun.model.ids import NodeId
from riverrun.ports.files import Files, read_whole, write_atomically
from riverrun.raft.types import KRAFT_VERSION, NO_DIRECTORY, NO_NODE, QuorumState, Voter
from riverrun.records.record import ControlType, NewRecord
from riverrun.wire.stored import read_body, write_body

__all__ = ["KRAFT_VERSION", "NO_DIRECTORY", "NO_NODE", "QuorumState", "Voter"]

QUORUM_STATE: Final = "quorum-state"


class MetadataError(Exception):
    """A metadata directory that cannot be used, with the remedy."""


def leader_change(
    leader: NodeId, voters: Iterable[NodeId], granting: Iterable[NodeId], now_ms: int
) -> NewRecord:
    """The first record of a leader in its epoch."""
    message = LeaderChangeMessage(
        version=0,
        leader_id=leader,
        voters=tuple(LeaderChangeVoter(voter_id=voter) for voter in voters),
        granting_voters=tuple(LeaderChangeVoter(voter_id=voter) for voter in granting),
    )
    return control(ControlType.LEADER_CHANGE, write_body(message, 0), now_ms)


def kraft_version(now_ms: int) -> NewRecord:
    record = KRaftVersionRecord(version=0, k_raft_version=KRAFT_VERSION)
    return control(ControlType.KRAFT_VERSION, write_body(record, 0), now_ms)


def voters_record(voters: Iterable[Voter], now_ms: int) -> NewRecord:
    entries = tuple(
        VoterEntry(
            voter_id=voter.id,
            voter_directory_id=voter.directory_id,
            endpoints=tuple(
                VoterEndpoint(name=name, host=host, port=port)
                for name, (host, port) in voter.endpoints.items()
            ),
            k_raft_version_feature=KRaftVersionFeature(
                min_supported_version=voter.kraft_versions[0],
                max_supported_version=voter.kraft_versions[1],
            ),
        )
        for voter in voters
    )
    record = VotersRecord(version=0, voters=entries)
    return control(ControlType.KRAFT_VOTERS, write_body(record, 0), now_ms)


def read_voters(value: bytes) -> tuple[Voter, ...]:
    record, _ = read_body(VotersRecord, 0, value)
    return tuple(
        Voter(
            id=NodeId(entry.voter_id),
            directory_id=entry.voter_directory_id,
            endpoints={at.name: (at.host, at.port) for at in entry.endpoints},
            kraft_versions=(
                entry.k_raft_version_feature.min_supported_version,
                entry.k_raft_version_feature.max_supported_version,
            ),
        )
        for entry in record.voters
    )


def control(kind: ControlType, value: bytes, now_ms: int) -> NewRecord:
    return NewRecord(value, key=kind.key(), timestamp=now_ms)


def read_quorum_state(files: Files, folder: str) -> QuorumState | None:
    path = os.path.join(folder, QUORUM_STATE)
    if not files.exists(path):
        return None
    try:
        return QuorumState.parse(read_whole(files, path).decode())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        # Without this file the node could vote twice in one epoch, or lead an epoch of another
        # leader.
        raise MetadataError(
            f"{path} cannot be read ({error}): restore it from a copy of this directory; a "
            "single-node cluster may delete it, because its log names the epoch too"
        ) from error


def write_quorum_state(files: Files, folder: str, state: QuorumState) -> None:
    """Durable when it returns. Blocks on the disk."""
    write_atomically(files, os.path.join(folder, QUORUM_STATE), state.text().encode())
