"""The members of a quorum, and the election state that a member persists.

Values only; the election rules are elsewhere. ``metadata`` encodes them as control records.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from typing import Final
from uuid import UUID

from msgspec import Struct, field

from riverrun.model.ids import NO_OFFSET, LeaderEpoch, NodeId, Offset

KRAFT_VERSION: Final = 1
QUORUM_STATE_VERSION: Final = 1
NO_NODE: Final = NodeId(-1)
NO_DIRECTORY: Final = UUID(int=0)

Endpoint = tuple[str, int]
Endpoints = Mapping[str, Endpoint]
"""By listener name."""

_SNAPSHOT_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
SNAPSHOT_SUFFIX: Final = ".checkpoint"


class ReplicaKey(Struct, frozen=True, order=True):
    """A replica, identified by node and directory. A node that lost its directory is another
    replica.

    Fields are positional because one is built on every fetch. ``directory_id`` is None if the
    sender did not give it.
    """

    id: NodeId
    directory_id: UUID | None = None

    def __str__(self) -> str:
        return str(self.id)


class Voter(Struct, frozen=True, kw_only=True):
    """A voter: node, directory and endpoints."""

    id: NodeId
    directory_id: UUID | None
    endpoints: Endpoints = field(default_factory=dict)
    kraft_versions: tuple[int, int] = (0, KRAFT_VERSION)

    @property
    def key(self) -> ReplicaKey:
        return ReplicaKey(self.id, self.directory_id)

    def is_same(self, key: ReplicaKey) -> bool:
        """Voters from before KIP-853 have no directory id and are identified by node id alone."""
        if self.id != key.id:
            return False
        return self.directory_id is None or self.directory_id == key.directory_id


class VoterSet(Struct, frozen=True):
    """All voters. At most one is added or removed at a time, so any majority of the old set and any
    majority of the new set share a member (Raft thesis 4.1, KIP-853)."""

    voters: tuple[Voter, ...] = ()

    def __post_init__(self) -> None:
        ids = [voter.id for voter in self.voters]
        assert len(ids) == len(dict.fromkeys(ids)), f"one node votes twice: {ids}"

    def __iter__(self) -> Iterator[Voter]:
        return iter(self.voters)

    def __len__(self) -> int:
        return len(self.voters)

    def __contains__(self, key: ReplicaKey) -> bool:
        return any(voter.is_same(key) for voter in self.voters)

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1

    @property
    def ids(self) -> tuple[NodeId, ...]:
        return tuple(voter.id for voter in self.voters)

    def get(self, node: NodeId) -> Voter | None:
        return next((voter for voter in self.voters if voter.id == node), None)

    def is_sole(self, key: ReplicaKey) -> bool:
        return len(self.voters) == 1 and key in self

    def adding(self, voter: Voter) -> VoterSet:
        assert self.get(voter.id) is None, f"{voter.id} votes already"
        return VoterSet((*self.voters, voter))

    def removing(self, key: ReplicaKey) -> VoterSet:
        assert key in self, f"{key} does not vote"
        return VoterSet(tuple(voter for voter in self.voters if not voter.is_same(key)))

    def updating(self, changed: Voter) -> VoterSet:
        """The same set with new endpoints or a new directory id for one voter."""
        assert changed.key in self, f"{changed.id} does not vote"
        return VoterSet(tuple(changed if v.id == changed.id else v for v in self.voters))


class VotersAt(Struct, frozen=True):
    """The voters as of a control record in the log, or of the snapshot before it."""

    voters: VoterSet = VoterSet()
    offset: Offset = NO_OFFSET
    """Offset of the control record; for a snapshot, the last offset it contains."""


class VoterHistory:
    """Voter sets by offset. A set counts as soon as it is appended, and no longer after truncation
    (Raft thesis 4.1). Used by implementations of ``LogView``."""

    def __init__(self, first: VotersAt | None = None) -> None:
        self._entries: list[VotersAt] = [first or VotersAt()]

    @property
    def latest(self) -> VotersAt:
        return self._entries[-1]

    def at(self, end: Offset) -> VotersAt:
        """The voters as of everything before an offset, as a snapshot that ends there records
        them."""
        known = [entry for entry in self._entries if entry.offset < end]
        return known[-1] if known else self._entries[0]

    def add(self, offset: Offset, voters: VoterSet) -> None:
        assert offset > self.latest.offset, f"voters at {offset} follow {self.latest.offset}"
        self._entries.append(VotersAt(voters, offset))

    def truncate(self, end: Offset) -> None:
        while len(self._entries) > 1 and self._entries[-1].offset >= end:
            self._entries.pop()

    def forget_before(self, offset: Offset) -> None:
        """Drop sets below a committed offset, which no truncation can restore."""
        while len(self._entries) > 1 and self._entries[1].offset < offset:
            del self._entries[0]

    def reset(self, first: VotersAt) -> None:
        """A snapshot replaced the whole log."""
        self._entries = [first]


class SnapshotId(Struct, frozen=True, order=True):
    """``offset`` is the first offset after the snapshot, ``epoch`` the epoch of the last record in
    it."""

    offset: Offset
    epoch: LeaderEpoch

    @property
    def name(self) -> str:
        return f"{self.offset:020d}-{self.epoch:010d}{SNAPSHOT_SUFFIX}"

    @classmethod
    def parse(cls, name: str) -> SnapshotId | None:
        match = _SNAPSHOT_NAME.fullmatch(name)
        if match is None:
            return None
        return cls(Offset(int(match[1])), LeaderEpoch(int(match[2])))


class EpochEnd(Struct, frozen=True):
    """An epoch and its exclusive end offset in a log."""

    epoch: LeaderEpoch
    end: Offset


class QuorumState(Struct, frozen=True, kw_only=True):
    """The election state that a voter persists: its epoch, the leader, and its vote."""

    epoch: LeaderEpoch
    leader: NodeId = NO_NODE
    voted: NodeId = NO_NODE
    voted_directory: UUID = NO_DIRECTORY

    @property
    def voted_key(self) -> ReplicaKey | None:
        if self.voted == NO_NODE:
            return None
        directory = None if self.voted_directory == NO_DIRECTORY else self.voted_directory
        return ReplicaKey(self.voted, directory)

    def text(self) -> str:
        """Kafka 4's text format."""
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
        """Also reads version 0, which has the cluster and its voters but no directory."""
        values = json.loads(text)
        directory = values.get("votedDirectoryId")
        return cls(
            epoch=LeaderEpoch(int(values["leaderEpoch"])),
            leader=NodeId(int(values["leaderId"])),
            voted=NodeId(int(values["votedId"])),
            voted_directory=NO_DIRECTORY if directory is None else _uuid(directory),
        )


def _base64(uuid: UUID) -> str:
    return base64.urlsafe_b64encode(uuid.bytes).decode().rstrip("=")


def _uuid(text: str) -> UUID:
    return UUID(bytes=base64.urlsafe_b64decode(text + "=="))
