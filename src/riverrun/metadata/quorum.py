"""Who votes: the voters, the ``quorum-state`` file and the control records of the metadata log.

A node alone is a quorum of one voter and keeps the same files as three, so that its directory can
grow into three later (KIP-595, KIP-853).
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from riverrun.metadata.schema.k_raft_version_record import KRaftVersionRecord
from riverrun.metadata.schema.leader_change_message import LeaderChangeMessage
from riverrun.metadata.schema.leader_change_message import Voter as LeaderChangeVoter
from riverrun.metadata.schema.voters_record import Endpoint as VoterEndpoint
from riverrun.metadata.schema.voters_record import KRaftVersionFeature, VotersRecord
from riverrun.metadata.schema.voters_record import Voter as VoterEntry
from riverrun.model.ids import LeaderEpoch, NodeId
from riverrun.ports.files import Files, read_whole, write_atomically
from riverrun.records.record import ControlType, NewRecord
from riverrun.wire.stored import read_body, write_body

KRAFT_VERSION: Final = 1
QUORUM_STATE: Final = "quorum-state"
QUORUM_STATE_VERSION: Final = 1
NOBODY: Final = NodeId(-1)
NO_DIRECTORY: Final = UUID(int=0)


class MetadataError(Exception):
    """A metadata directory that cannot be used, with the remedy in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Voter:
    """A voter by node and directory; a node that lost its directory is another voter."""

    id: NodeId
    directory_id: UUID | None
    endpoints: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    kraft_versions: tuple[int, int] = (0, KRAFT_VERSION)


def leader_change(leader: NodeId, voters: Iterable[Voter], now_ms: int) -> NewRecord:
    """What a leader writes first in its epoch; alone, it was granted by all there are."""
    everybody = tuple(LeaderChangeVoter(voter_id=voter.id) for voter in voters)
    message = LeaderChangeMessage(
        version=0, leader_id=leader, voters=everybody, granting_voters=everybody
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


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumState:
    """What a voter must remember of elections: the epoch it is in, and whom it chose there."""

    epoch: LeaderEpoch
    leader: NodeId = NOBODY
    voted: NodeId = NOBODY
    voted_directory: UUID = NO_DIRECTORY

    def text(self) -> str:
        """As Kafka 4 writes it."""
        values = {
            "leaderId": self.leader,
            "leaderEpoch": self.epoch,
            "votedId": self.voted,
            "votedDirectoryId": _base64(self.voted_directory),
            "data_version": QUORUM_STATE_VERSION,
        }
        return json.dumps(values, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> QuorumState:
        """Also of version 0, which named the cluster and its voters and no directory."""
        values = json.loads(text)
        directory = values.get("votedDirectoryId")
        return cls(
            epoch=LeaderEpoch(int(values["leaderEpoch"])),
            leader=NodeId(int(values["leaderId"])),
            voted=NodeId(int(values["votedId"])),
            voted_directory=NO_DIRECTORY if directory is None else _uuid(directory),
        )


def read_quorum_state(files: Files, folder: str) -> QuorumState | None:
    path = os.path.join(folder, QUORUM_STATE)
    if not files.exists(path):
        return None
    try:
        return QuorumState.parse(read_whole(files, path).decode())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        # Without it the node could vote twice in one epoch, or lead an epoch that another led.
        raise MetadataError(
            f"{path} cannot be read ({error}): restore it from a copy of this directory; a node "
            "that stands alone may delete it, for its log names the epoch too"
        ) from error


def write_quorum_state(files: Files, folder: str, state: QuorumState) -> None:
    """Durable when it returns. Blocks on the disk."""
    write_atomically(files, os.path.join(folder, QUORUM_STATE), state.text().encode())


def _base64(uuid: UUID) -> str:
    return base64.urlsafe_b64encode(uuid.bytes).decode().rstrip("=")


def _uuid(text: str) -> UUID:
    return UUID(bytes=base64.urlsafe_b64decode(text + "=="))
