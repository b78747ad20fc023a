"""A member of a group in a process of its own, with the classic or the consumer protocol.

``python -m riverrun.chaos.groups.member BOOTSTRAP GROUP TOPIC PROTOCOL`` reads and commits until
its standard input ends. It prints what it takes, gives up, loses, reads and commits, one line each:
time, action, partition, first offset, next offset. Times are of the machine's monotonic clock.

The member fetches the committed offsets itself when it takes partitions: librdkafka does not repeat
an OffsetFetch that met a former coordinator (its issue 5586).
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from enum import StrEnum

import confluent_kafka
from confluent_kafka import OFFSET_BEGINNING, TopicPartition

from riverrun.chaos.checks.group_checks import MemberAction, MemberEvent
from riverrun.chaos.clients.addresses import address_here, confluent_address, environment_of
from riverrun.chaos.clients.consumers import BATCH_MAX, POLL_SECONDS, QUICK, SESSION_MS

COMMIT_SECONDS = 0.3
COMMITTED_TRIES_MAX = 8
"""A new coordinator answers within a second. After some ten seconds librdkafka asks instead, so
that the callback ends before the scenario stops waiting for progress."""
COMMITTED_SECONDS_MAX = 1.0
END_SECONDS_MAX = 20.0


class GroupProtocol(StrEnum):
    CLASSIC = "classic"
    CONSUMER = "consumer"


class MemberProcess:
    """The other side: starts the process, collects its reports, stops or kills it."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topic: str,
        protocol: GroupProtocol,
        *,
        name: str,
        report: Callable[[MemberEvent], None],
    ) -> None:
        self.name, self.protocol = name, protocol
        self._report = report
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, bootstrap, group, topic, protocol.value],
            env=environment_of(bootstrap),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, name=name, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            moment, action, partition, start, end = line.split()
            self._report(
                MemberEvent(
                    time=float(moment),
                    member=self.name,
                    action=MemberAction(action),
                    partition=int(partition),
                    start=int(start),
                    end=int(end),
                )
            )

    def stop(self) -> None:
        """Let it leave the group."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            return
        self._end()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._end()

    def _end(self) -> None:
        self._reader.join()
        self._report(MemberEvent(time=time.monotonic(), member=self.name, action=MemberAction.END))


class _Member:
    """The side in the process."""

    def __init__(self, bootstrap: str, group: str, topic: str, protocol: GroupProtocol) -> None:
        self._topic = topic
        self._is_incremental = protocol is GroupProtocol.CONSUMER
        self._positions: dict[int, int] = {}
        self._is_closing = False
        settings: dict[str, str | int | float | bool] = {
            **confluent_address(bootstrap),
            **QUICK,
            "group.id": group,
            "group.protocol": protocol.value,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
        if not self._is_incremental:
            settings |= {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 500}
        self._consumer = confluent_kafka.Consumer(settings)

    def run(self, stop: threading.Event) -> None:
        self._consumer.subscribe(
            [self._topic], on_assign=self._taken, on_revoke=self._revoked, on_lost=self._lost
        )
        commit_at = time.monotonic() + COMMIT_SECONDS
        try:
            while not stop.is_set():
                self._take(self._consumer.consume(BATCH_MAX, POLL_SECONDS))
                if time.monotonic() >= commit_at:
                    self._commit(list(self._positions))
                    commit_at = time.monotonic() + COMMIT_SECONDS
        finally:
            self._is_closing = True
            self._consumer.close()

    def _taken(self, _consumer: object, partitions: list[TopicPartition]) -> None:
        for place in partitions:
            _tell(MemberAction.TAKE, place.partition)
        places = self._at_committed(partitions)
        if self._is_incremental:
            self._consumer.incremental_assign(places)
        else:
            self._consumer.assign(places)

    def _at_committed(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """The partitions with the group's offsets. Without an answer librdkafka asks itself.

        A consumer that is closed gives up partitions that it has just got. It sends no heartbeats
        meanwhile, so it must not wait for offsets.
        """
        for _ in range(COMMITTED_TRIES_MAX if partitions else 0):
            if self._is_closing:
                break
            try:
                found = self._consumer.committed(partitions, timeout=COMMITTED_SECONDS_MAX)
            except confluent_kafka.KafkaException:
                time.sleep(POLL_SECONDS)
                continue
            if all(row.error is None for row in found):
                return [
                    TopicPartition(
                        self._topic,
                        row.partition,
                        row.offset if row.offset >= 0 else OFFSET_BEGINNING,
                    )
                    for row in found
                ]
            time.sleep(POLL_SECONDS)
        return partitions

    def _revoked(self, _consumer: object, partitions: list[TopicPartition]) -> None:
        self._commit([place.partition for place in partitions])
        self._release(partitions, MemberAction.GIVE_UP)

    def _lost(self, _consumer: object, partitions: list[TopicPartition]) -> None:
        self._release(partitions, MemberAction.LOSE)

    def _release(self, partitions: list[TopicPartition], action: MemberAction) -> None:
        for place in partitions:
            self._positions.pop(place.partition, None)
            _tell(action, place.partition)
        if self._is_incremental:
            self._consumer.incremental_unassign(partitions)
        else:
            self._consumer.unassign()

    def _take(self, messages: list[confluent_kafka.Message]) -> None:
        spans: dict[int, tuple[int, int]] = {}
        for message in messages:
            partition, offset = message.partition(), message.offset()
            if message.error() is not None or partition is None or offset is None:
                continue
            first, after = spans.get(partition, (offset, offset))
            if offset != after:
                _tell(MemberAction.READ, partition, first, after)
                first = offset
            spans[partition] = (first, offset + 1)
        for partition, (first, after) in spans.items():
            _tell(MemberAction.READ, partition, first, after)
            self._positions[partition] = after

    def _commit(self, partitions: list[int]) -> None:
        """A commit that fails is repeated with the next one."""
        places = [
            TopicPartition(self._topic, partition, self._positions[partition])
            for partition in partitions
            if partition in self._positions
        ]
        if not places:
            return
        try:
            done = self._consumer.commit(offsets=places, asynchronous=False)
        except confluent_kafka.KafkaException:
            return
        for row in done or ():
            if row.error is None:
                _tell(MemberAction.COMMIT, row.partition, row.offset, row.offset)


def _tell(action: MemberAction, partition: int, start: int = -1, end: int = -1) -> None:
    sys.stdout.write(f"{time.monotonic():.6f} {action.value} {partition} {start} {end}\n")
    sys.stdout.flush()


def main(bootstrap: str, group: str, topic: str, protocol: GroupProtocol) -> None:
    stop = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait, daemon=True).start()
    _Member(bootstrap, group, topic, protocol).run(stop)


if __name__ == "__main__":
    main(address_here(sys.argv[1]), sys.argv[2], sys.argv[3], GroupProtocol(sys.argv[4]))
