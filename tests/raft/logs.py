"""A log in memory with a simulated disk: unflushed records may be lost in a crash."""

from __future__ import annotations

import marshal
import random
from typing import Any
from uuid import UUID

from riverrun.model.ids import LeaderEpoch, NodeId, Offset
from riverrun.raft.effects import ControlRecord, LeaderChange
from riverrun.raft.log_view import end_of_epoch
from riverrun.raft.types import EpochEnd, SnapshotId, Voter, VoterHistory, VotersAt, VoterSet

Payload = tuple[Any, ...]
Entry = tuple[int, Payload]
"""Epoch and payload. A payload is ("data", value), ("leader", id) or ("voters", ...)."""


def voter(node: int, directory: int | None = None, port: int = 9093) -> Voter:
    directory_id = UUID(int=node * 1000 if directory is None else directory)
    return Voter(
        id=NodeId(node), directory_id=directory_id, endpoints={"CONTROLLER": (f"n{node}", port)}
    )


def voters(*nodes: int) -> VoterSet:
    return VoterSet(tuple(voter(node) for node in nodes))


def packed(chosen: VoterSet) -> Payload:
    def one(v: Voter) -> tuple[int, int, int]:
        assert v.directory_id is not None
        return (v.id, v.directory_id.int, v.endpoints["CONTROLLER"][1])

    return ("voters", tuple(one(v) for v in chosen))


def unpacked(payload: Payload) -> VoterSet:
    return VoterSet(tuple(voter(node, directory, port) for node, directory, port in payload[1]))


class OpenHistory(VoterHistory):
    """Keep everything that a truncation may restore."""

    @property
    def all(self) -> list[VotersAt]:
        return self._entries


class MemoryLog:
    """Implements ``LogView``. ``acks_early`` plants a bug: it reports unflushed records as
    flushed."""

    def __init__(self, first: VoterSet, *, acks_early: bool = False) -> None:
        self.entries: list[Entry] = []
        self.start = EpochEnd(LeaderEpoch(0), Offset(0))
        self.history = OpenHistory(VotersAt(first))
        self.snapshots: dict[SnapshotId, bytes] = {}
        self.acks_early = acks_early
        self.durable = 0
        """The offset up to which ``entries`` equal the disk."""
        self._lost_tail: list[Entry] = []
        """Truncated entries that a crash before the next flush may restore."""

    @property
    def start_offset(self) -> Offset:
        return self.start.end

    @property
    def end_offset(self) -> Offset:
        return Offset(self.start.end + len(self.entries))

    @property
    def flushed_offset(self) -> Offset:
        return self.end_offset if self.acks_early else Offset(self.durable)

    @property
    def last_epoch(self) -> LeaderEpoch:
        return LeaderEpoch(self.entries[-1][0]) if self.entries else self.start.epoch

    def epoch_end(self, epoch: LeaderEpoch) -> EpochEnd | None:
        begins: list[tuple[LeaderEpoch, Offset]] = []
        for place, (at, _) in enumerate(self.entries):
            if not begins or begins[-1][0] != at:
                begins.append((LeaderEpoch(at), Offset(self.start.end + place)))
        return end_of_epoch(epoch, entries=begins, start=self.start, end_offset=self.end_offset)

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        return max(self.snapshots, default=None)

    def snapshot_size(self, snapshot: SnapshotId) -> int | None:
        data = self.snapshots.get(snapshot)
        return None if data is None else len(data)

    @property
    def voters(self) -> VotersAt:
        return self.history.latest

    def voters_at(self, end: Offset) -> VoterSet:
        return self.history.at(end).voters

    def entry(self, offset: int) -> Entry:
        return self.entries[offset - self.start.end]

    def append(self, entry: Entry) -> None:
        if entry[1][0] == "voters":
            self.history.add(self.end_offset, unpacked(entry[1]))
        self.entries.append(entry)

    def append_control(self, epoch: int, records: tuple[ControlRecord, ...]) -> None:
        for record in records:
            if isinstance(record, LeaderChange):
                self.append((epoch, ("leader", record.leader)))
            else:
                self.append((epoch, packed(record.voters)))

    def read(self, offset: int, count: int) -> bytes:
        place = offset - self.start.end
        return marshal.dumps((offset, self.entries[place : place + count]))

    def append_fetched(self, data: bytes) -> None:
        offset, entries = marshal.loads(data)
        assert offset == self.end_offset, f"data from {offset} cannot follow {self.end_offset}"
        for entry in entries:
            self.append(entry)

    def truncate(self, offset: int) -> None:
        place = offset - self.start.end
        assert 0 <= place <= len(self.entries), f"{offset} is not in the log"
        if self.durable > offset:
            self._lost_tail = self.entries[place : self.durable - self.start.end]
            self.durable = offset
        del self.entries[place:]
        self.history.truncate(Offset(offset))

    def flush(self) -> None:
        self.durable = int(self.end_offset)
        self._lost_tail = []

    def snapshot(self, end: int, state: list[Entry]) -> SnapshotId:
        """A snapshot of all committed records before ``end``, so that it can be compared."""
        epoch = self.entry(end - 1)[0]
        named = SnapshotId(Offset(end), LeaderEpoch(epoch))
        at = self.history.at(Offset(end))
        self.snapshots = {named: marshal.dumps((packed(at.voters), int(at.offset), state))}
        return named

    def drop_before(self, snapshot: SnapshotId) -> None:
        assert snapshot in self.snapshots
        del self.entries[: snapshot.offset - self.start.end]
        self.start = EpochEnd(snapshot.epoch, snapshot.offset)
        self.durable = max(self.durable, int(snapshot.offset))
        self.history.forget_before(snapshot.offset)

    def install(self, snapshot: SnapshotId, data: bytes) -> list[Entry]:
        named, _, state = marshal.loads(data)
        self.snapshots = {snapshot: data}
        self.entries = []
        self._lost_tail = []
        self.start = EpochEnd(snapshot.epoch, snapshot.offset)
        self.durable = int(snapshot.offset)
        self.history.reset(VotersAt(unpacked(named), Offset(snapshot.offset - 1)))
        return list(state)

    def crash(self, chance: random.Random) -> None:
        """Flushed records survive; of the rest, a prefix or previously truncated records may."""
        kept = int(self.durable)
        if self._lost_tail and chance.random() < 0.5:
            del self.entries[kept - self.start.end :]
            self.history.truncate(Offset(kept))
            for entry in self._lost_tail:
                self.append(entry)
        elif self.end_offset > kept:
            kept = chance.randint(kept, int(self.end_offset))
            del self.entries[kept - self.start.end :]
            self.history.truncate(Offset(kept))
        self.flush()
