"""Checks that responses to clients stay true. Pure: its input is requests and responses.

A *fact* is a record at an offset that a client saw acknowledged or read. Facts never change, with
one exception. If acknowledgements do not wait for a sync, then damage to unsynced data (power loss
or a failed sync) may remove facts beyond the durable end of the log, but only as a suffix. The time
between two damages is an era. The same rules apply to committed offsets. Topics survive every
fault, because metadata is always synced.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from riverrun.simulation.failures import SafetyViolation

PartitionKey = tuple[str, int]
FOREVER = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A record as it was sent; ``writer`` identifies one producer instance."""

    writer: str
    is_idempotent: bool
    number: int
    began: float
    era: int


@dataclass(slots=True, kw_only=True)
class Fact:
    """A record that was seen at an offset.

    It was in the log in era ``first`` at the latest, and still there in era ``last``. Both are
    bounds, because a request may have started in an earlier era. Firm facts must not change.
    """

    value: bytes
    first: int
    last: int
    known: float
    acked: float | None
    is_firm: bool


@dataclass(slots=True, kw_only=True)
class Commit:
    """``ended`` is set on acknowledgement; before that the commit may take effect at any time."""

    offset: int
    began: float
    era: int
    ended: float = FOREVER


class ClientChecker:
    """The observations of all clients in one run. Times are virtual."""

    def __init__(self, *, is_synced_before_ack: bool) -> None:
        self.is_synced_before_ack = is_synced_before_ack
        self.era = 0
        self.acknowledged = 0
        self.reads = 0
        self.ends: dict[PartitionKey, int] = {}
        """Log end offsets, filled in by ``check_log``."""
        self._sent: dict[PartitionKey, dict[bytes, Sent]] = {}
        self._facts: dict[PartitionKey, dict[int, list[Fact]]] = {}
        self._commits: dict[PartitionKey, list[Commit]] = {}
        self._topics: dict[str, bool] = {}

    def damaged(self, durable_ends: Mapping[PartitionKey, int]) -> None:
        """Record that unsynced data is damaged now; offsets below these ends are durable."""
        self.era += 1
        if self.is_synced_before_ack:
            return
        for partition, by_offset in self._facts.items():
            kept = durable_ends.get(partition, 0)
            for offset, facts in by_offset.items():
                for fact in facts:
                    fact.is_firm = fact.is_firm and offset < kept

    # Records

    def sending(self, partition: PartitionKey, value: bytes, sent: Sent) -> None:
        """Record that a producer is about to send a unique value."""
        known = self._sent.setdefault(partition, {})
        assert value not in known, f"{value!r} was sent before"
        known[value] = sent

    def acked(self, partition: PartitionKey, offset: int, value: bytes, now: float) -> None:
        self.acknowledged += 1
        era = self._sent[partition][value].era
        fact = self._know(partition, offset, value, era, now, "acknowledged")
        fact.acked = now if fact.acked is None else fact.acked

    def read(
        self, partition: PartitionKey, offset: int, value: bytes, era: int, now: float
    ) -> None:
        """Record a read that started in ``era``."""
        self.reads += 1
        if value not in self._sent.get(partition, {}):
            raise SafetyViolation(
                f"{_name(partition)} has {value[:60]!r} at {offset}, which was never sent there"
            )
        self._know(partition, offset, value, era, now, "read")

    def _know(
        self, partition: PartitionKey, offset: int, value: bytes, era: int, now: float, how: str
    ) -> Fact:
        facts = self._facts.setdefault(partition, {}).setdefault(offset, [])
        is_firm = self.is_synced_before_ack or era == self.era
        found: Fact | None = None
        for fact in facts:
            if fact.value == value:
                found = fact
            elif fact.is_firm and is_firm:
                raise SafetyViolation(
                    f"{_name(partition)} offset {offset} was {how} as {value[:60]!r} at {now:.4f}, "
                    f"but known as {fact.value[:60]!r} since {fact.known:.4f}"
                )
        if found is None:
            found = Fact(
                value=value, first=self.era, last=era, known=now, acked=None, is_firm=is_firm
            )
            facts.append(found)
        found.first, found.last = min(found.first, self.era), max(found.last, era)
        found.is_firm = found.is_firm or is_firm
        return found

    # The final log

    def check_log(
        self, partition: PartitionKey, log: Sequence[tuple[int, bytes]], now: float
    ) -> None:
        """Check the whole log of a partition, read after the faults."""
        for place, (offset, value) in enumerate(log):
            if offset != place:
                raise SafetyViolation(f"{_name(partition)} has a gap before offset {offset}")
            self.read(partition, offset, value, self.era, now)
        self.ends[partition] = len(log)
        content = dict(log)
        self._check_facts(partition, content)
        self._check_writers(partition, log)
        self._check_order_of_acks(partition, content)

    def _check_facts(self, partition: PartitionKey, log: Mapping[int, bytes]) -> None:
        lost, lost_offset = -1, -1  # the newest era in which a lost record was still present
        for offset, facts in sorted(self._facts.get(partition, {}).items()):
            for fact in facts:
                if log.get(offset) == fact.value:
                    if fact.first <= lost:
                        raise SafetyViolation(
                            f"{_name(partition)} kept offset {offset} and lost {lost_offset}, "
                            f"though both were known before the same damage: a gap"
                        )
                elif fact.is_firm:
                    found = log.get(offset)
                    raise SafetyViolation(
                        f"{_name(partition)} offset {offset}, known as {fact.value[:60]!r} since "
                        f"{fact.known:.4f}, is {'gone' if found is None else found[:60]!r}"
                    )
                elif fact.last > lost:
                    lost, lost_offset = fact.last, offset

    def _check_writers(self, partition: PartitionKey, log: Sequence[tuple[int, bytes]]) -> None:
        """Records of an idempotent producer appear once and in order."""
        last: dict[str, int] = {}
        for offset, value in log:
            sent = self._sent[partition][value]
            if sent.is_idempotent:
                if sent.number <= last.get(sent.writer, -1):
                    raise SafetyViolation(
                        f"{_name(partition)} has record {sent.number} of {sent.writer} at "
                        f"{offset}, after {last[sent.writer]}: duplicated or out of order"
                    )
                last[sent.writer] = sent.number

    def _check_order_of_acks(self, partition: PartitionKey, log: Mapping[int, bytes]) -> None:
        """A record sent after an acknowledgement has a higher offset than the acknowledged one."""
        facts, sent = self._facts.get(partition, {}), self._sent.get(partition, {})
        acked_behind = FOREVER
        for offset in sorted(facts, reverse=True):
            for fact in facts[offset]:
                if fact.acked is not None and log.get(offset) == fact.value:
                    if sent[fact.value].began > acked_behind:
                        raise SafetyViolation(
                            f"{_name(partition)} offset {offset} was sent after a record at a "
                            f"higher offset was acknowledged"
                        )
                    acked_behind = min(acked_behind, fact.acked)

    # Committed offsets

    def committing(self, partition: PartitionKey, offset: int, now: float) -> Commit:
        """Record that a commit starts."""
        commit = Commit(offset=offset, began=now, era=self.era)
        self._commits.setdefault(partition, []).append(commit)
        return commit

    def check_committed(
        self, partition: PartitionKey, offset: int | None, *, began: float, era: int
    ) -> None:
        """Check a committed offset that a client fetched; None means "no offset"."""
        if era != self.era and not self.is_synced_before_ack:
            return
        commits = self._commits.get(partition, [])
        # Commits that must be visible: those of this era, or of any era if acks imply a sync.
        binding = [
            commit.began
            for commit in commits
            if commit.ended < began and (self.is_synced_before_ack or commit.era == era)
        ]
        settled = max(binding, default=-1.0)
        if offset is None:
            if binding:
                raise SafetyViolation(f"the committed offset of {_name(partition)} is lost")
            return
        if not any(c.offset == offset and c.ended >= settled for c in commits):
            latest = max(commits, key=lambda commit: (commit.ended < began, commit.began))
            raise SafetyViolation(
                f"the committed offset of {_name(partition)} is {offset}, though {latest.offset} "
                f"was committed at {latest.ended:.4f}"
            )

    # Topics

    def has_topic(self, topic: str) -> bool:
        return self._topics.get(topic, False)

    def topic_created(self, topic: str) -> None:
        self._topics[topic] = True

    def topic_deleted(self, topic: str) -> None:
        self._topics[topic] = False

    def topic_in_doubt(self, topic: str) -> None:
        """Record that a change of the topic starts; its result is unknown until the response."""
        self._topics.pop(topic, None)

    def check_topics(self, topics: Collection[str]) -> None:
        for topic, exists in self._topics.items():
            if exists and topic not in topics:
                raise SafetyViolation(f"topic {topic} was created and is missing")
            if not exists and topic in topics:
                raise SafetyViolation(f"topic {topic} was deleted and still exists")


def _name(partition: PartitionKey) -> str:
    return f"{partition[0]}-{partition[1]}"
