"""The values of exactly-once delivery, and the records in which its log stores them. Pure.

An application (a streaming query, a sink of a pipeline, or one batch write) makes deliveries, one
after the other. Each has a version, usually the id of a micro-batch. The log has one record per
application, with its last delivery:

    state    | meaning                             | what a new driver does
    DECIDED  | its transactions must be committed  | commits them
    FINISHED | they are committed                  | nothing
    (none)   | nothing was decided                 | nothing
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

import msgspec

ID_PREFIX: Final = "riverrun/"
DRIVER: Final = "driver"
FORMAT: Final = 1


class DeliveryState(Enum):
    DECIDED = "decided"
    FINISHED = "finished"


class DeliveryFenced(Exception):
    """Another driver of the same application has taken over."""


class DeliveryLost(Exception):
    """Records of a decided delivery no longer exist. The text names them and the remedy."""


@dataclass(frozen=True, slots=True, order=True)
class WrittenRange:
    """The records that a transaction wrote to one partition: ``records`` of those in the range."""

    topic: str
    partition: int
    first_offset: int
    end_offset: int
    records: int


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that a task has left open for the driver."""

    transactional_id: str
    producer_id: int
    epoch: int
    ranges: tuple[WrittenRange, ...]

    @property
    def records(self) -> int:
        return sum(one.records for one in self.ranges)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One delivery of an application."""

    version: int
    state: DeliveryState
    transactions: tuple[OpenTransaction, ...] = ()
    progress: Mapping[str, Any] | None = None
    """Whatever the application stores with the decision, such as offsets of its sources."""

    def finished(self) -> Delivery:
        """The delivery without its transactions, which are no longer needed."""
        return replace(self, state=DeliveryState.FINISHED, transactions=())


def encode_delivery(delivery: Delivery) -> bytes:
    fields = {
        "format": FORMAT,
        "version": delivery.version,
        "state": delivery.state.value,
        "transactions": [
            [one.transactional_id, one.producer_id, one.epoch, [_range(r) for r in one.ranges]]
            for one in delivery.transactions
        ],
        "progress": delivery.progress,
    }
    return msgspec.json.encode(fields)


def decode_delivery(data: bytes) -> Delivery:
    """Raises ValueError for a record of a newer format."""
    fields = msgspec.json.decode(data)
    if fields["format"] != FORMAT:
        raise ValueError(
            f"a delivery has format {fields['format']}, but this version of riverrun reads only "
            f"format {FORMAT}; use the newer version"
        )
    return Delivery(
        version=fields["version"],
        state=DeliveryState(fields["state"]),
        transactions=tuple(
            OpenTransaction(name, producer_id, epoch, tuple(WrittenRange(*row) for row in ranges))
            for name, producer_id, epoch, ranges in fields["transactions"]
        ),
        progress=fields["progress"],
    )


def _range(one: WrittenRange) -> list[object]:
    return [one.topic, one.partition, one.first_offset, one.end_offset, one.records]


def task_id(application: str, job: str, partition: int, attempt: int) -> str:
    """The transactional id of a task.

    It is the same in each batch, so that brokers store few ids, and so that a task fences the task
    of an older batch that is still running. Attempts of one task have different ids: a speculative
    copy must not abort the attempt whose result Spark has accepted.
    """
    return f"{ID_PREFIX}{application}/{job}-{partition}-{attempt}"


def driver_id(application: str) -> str:
    return f"{ID_PREFIX}{application}/{DRIVER}"


def is_task_of(transactional_id: str, application: str) -> bool:
    """Whether a transactional id belongs to a task of this application."""
    owner, _, task = transactional_id.rpartition("/")
    return owner == f"{ID_PREFIX}{application}" and task != DRIVER


def next_version(last: Delivery | None, wanted: int | None) -> int | None:
    """The version to decide; None if the wanted version was decided before.

    Without a wanted version, each delivery is a new one.
    """
    if wanted is None:
        return 0 if last is None else last.version + 1
    return None if last is not None and last.version >= wanted else wanted


def transactions_of(
    found: Iterable[OpenTransaction | None],
) -> tuple[OpenTransaction, ...]:
    """The transactions of the tasks that wrote records."""
    return tuple(one for one in found if one is not None)


def strays(open_ids: Sequence[str], application: str, kept: Iterable[OpenTransaction]) -> list[str]:
    """Open transactions of failed tasks and of attempts that Spark did not choose."""
    known = {one.transactional_id for one in kept}
    return [name for name in open_ids if is_task_of(name, application) and name not in known]
