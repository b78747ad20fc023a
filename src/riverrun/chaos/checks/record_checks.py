"""Checks the history of producers, readers and groups, like Jepsen's workload for Kafka.

Values are ``producer/partition/number``, and each is sent once. The log that is read at the end
shows which acknowledged records are lost, duplicated or reordered. Every earlier read and
acknowledgement is compared with it, because the record at an offset never changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from riverrun.chaos.checks.anomalies import Anomaly, Findings
from riverrun.chaos.history import Action, Operation, OperationKind

Place = tuple[int, int]
"""Partition and offset."""


@dataclass(slots=True)
class _Sent:
    """Sent values by result."""

    values: dict[str, int] = field(default_factory=dict)
    """The partition that each value was sent to."""
    refused: dict[str, str] = field(default_factory=dict)
    acknowledged: list[tuple[str, int, int]] = field(default_factory=list)
    """(value, partition, offset or -1)"""


@dataclass(slots=True)
class _Log:
    """The final log."""

    at: dict[Place, str] = field(default_factory=dict)
    whole: dict[int, None] = field(default_factory=dict)
    """Partitions that were read to the end; the content of others is unknown."""


def check_records(operations: Sequence[Operation]) -> Findings:
    """Find all anomalies of records, reads and committed offsets."""
    findings = Findings()
    sent = _sent(operations)
    log = _read_back(operations, findings)
    _check_log(sent, log, findings)
    _check_acknowledged(sent, log, findings)
    _check_reads(operations, sent, log, findings)
    _check_commits(operations, findings)
    return findings


def _sent(operations: Iterable[Operation]) -> _Sent:
    sent = _Sent()
    for operation in operations:
        if operation.action is not Action.SEND:
            continue
        if operation.kind is OperationKind.INVOKE:
            sent.values[operation.value] = operation.partition
        elif operation.kind is OperationKind.OK:
            row = (operation.value, operation.partition, operation.offset)
            sent.acknowledged.append(row)
        elif operation.kind is OperationKind.FAIL:
            sent.refused[operation.value] = operation.text
    return sent


def _read_back(operations: Iterable[Operation], findings: Findings) -> _Log:
    """The final log; all final reads must agree."""
    log = _Log()
    readers: dict[Place, str] = {}
    for operation in operations:
        if operation.action is Action.READ_BACK:
            log.whole[operation.partition] = None
            for offset, value in operation.records:
                place = (operation.partition, offset)
                known = log.at.setdefault(place, value)
                reader = readers.setdefault(place, operation.process)
                if known != value:
                    findings.add(
                        Anomaly.INCONSISTENT,
                        f"{_at(place)} is {known} for {reader} and {value} for {operation.process}",
                    )
    return log


def _check_log(sent: _Sent, log: _Log, findings: Findings) -> None:
    seen: dict[str, Place] = {}
    last: dict[tuple[str, int], int] = {}
    for place in sorted(log.at):
        value = log.at[place]
        if not _is_ours(value, place[0], sent, findings):
            continue
        if value in seen:
            findings.add(Anomaly.DUPLICATED, f"{value} at {_at(seen[value])} and at {_at(place)}")
            continue
        seen[value] = place
        producer, number = _origin(value)
        before = last.get((producer, place[0]), -1)
        if number < before:
            findings.add(Anomaly.REORDERED, f"{value} at {_at(place)} comes after number {before}")
        last[(producer, place[0])] = max(number, before)


def _is_ours(value: str, partition: int, sent: _Sent, findings: Findings) -> bool:
    if value not in sent.values:
        findings.add(Anomaly.INVENTED, f"{value!r} in partition {partition}")
        return False
    if sent.values[value] != partition:
        findings.add(
            Anomaly.INVENTED,
            f"{value} in partition {partition}, sent to partition {sent.values[value]}",
        )
        return False
    if value in sent.refused:
        findings.add(Anomaly.INVENTED, f"{value} was refused: {sent.refused[value]}")
        return False
    return True


def _check_acknowledged(sent: _Sent, log: _Log, findings: Findings) -> None:
    present = dict.fromkeys(log.at.values())
    for value, partition, offset in sent.acknowledged:
        if partition not in log.whole:
            continue
        if value not in present:
            findings.add(Anomaly.LOST, f"{value}, acknowledged at {_at((partition, offset))}")
        elif offset >= 0 and log.at.get((partition, offset)) != value:
            holds = log.at.get((partition, offset), "nothing")
            findings.add(Anomaly.CHANGED, f"{value} at {_at((partition, offset))} is {holds}")


# Readers


def _check_reads(
    operations: Iterable[Operation], sent: _Sent, log: _Log, findings: Findings
) -> None:
    positions: dict[tuple[str, int], int] = {}
    seen: dict[Place, tuple[str, str]] = {}
    for operation in operations:
        reader = (operation.process, operation.partition)
        if operation.action is Action.ASSIGN:
            positions.pop(reader, None)
        elif operation.action is Action.READ:
            for offset, value in operation.records:
                place = (operation.partition, offset)
                _check_position(positions.get(reader), offset, operation, log, findings)
                positions[reader] = offset
                _check_value(place, value, operation.process, seen, sent, log, findings)
                if 0 <= operation.high_watermark <= offset:
                    findings.add(
                        Anomaly.ABOVE_HIGH_WATERMARK,
                        f"{operation.process} read {_at(place)} in a response with high watermark "
                        f"{operation.high_watermark}",
                    )


def _check_position(
    before: int | None,
    offset: int,
    operation: Operation,
    log: _Log,
    findings: Findings,
) -> None:
    if before is None:
        return
    where = f"{operation.process} in partition {operation.partition}: {before}, then {offset}"
    if offset <= before:
        findings.add(Anomaly.NON_MONOTONIC, where)
        return
    passed = [n for n in range(before + 1, offset) if (operation.partition, n) in log.at]
    if passed:
        findings.add(Anomaly.SKIPPED, f"{where}, {len(passed)} records between them")


def _check_value(
    place: Place,
    value: str,
    reader: str,
    seen: dict[Place, tuple[str, str]],
    sent: _Sent,
    log: _Log,
    findings: Findings,
) -> None:
    if place in log.at:
        if log.at[place] != value:
            text = f"{reader} read {value} at {_at(place)}, the final record is {log.at[place]}"
            findings.add(Anomaly.INCONSISTENT, text)
        return
    other, known = seen.setdefault(place, (reader, value))
    if known != value:
        text = f"{_at(place)} is {known} for {other} and {value} for {reader}"
        findings.add(Anomaly.INCONSISTENT, text)
    if place[0] in log.whole and _is_ours(value, place[0], sent, findings):
        # The reader could act on the record, so all later readers must see it.
        text = f"{reader} read {value} at {_at(place)}, which is empty in the final log"
        findings.add(Anomaly.INCONSISTENT, text)


# Groups


def _check_commits(operations: Iterable[Operation], findings: Findings) -> None:
    """A request after a confirmed commit returns that offset or a later one.

    A commit with an unknown result may take effect late, so its offset is accepted.
    """
    confirmed: dict[tuple[str, int], int] = {}
    unknown: dict[tuple[str, int], dict[int, None]] = {}
    pending: dict[tuple[str, str, int], int] = {}
    for operation in operations:
        key = (operation.group, operation.partition)
        request = (operation.process, operation.group, operation.partition)
        if operation.action is Action.COMMIT:
            if operation.kind is OperationKind.OK:
                confirmed[key] = max(confirmed.get(key, -1), operation.offset)
            elif operation.kind is OperationKind.INFO:
                unknown.setdefault(key, {})[operation.offset] = None
        elif operation.action is Action.COMMITTED:
            if operation.kind is OperationKind.INVOKE:
                pending[request] = confirmed.get(key, -1)
            elif operation.kind is OperationKind.OK:
                least = pending.pop(request, -1)
                where = f"group {operation.group}, partition {operation.partition}"
                if operation.offset < 0 <= least:
                    findings.add(Anomaly.COMMIT_VANISHED, f"{where}: {least}, then none")
                elif operation.offset < least and operation.offset not in unknown.get(key, {}):
                    findings.add(
                        Anomaly.COMMIT_WENT_BACK, f"{where}: {least}, then {operation.offset}"
                    )


def _origin(value: str) -> tuple[str, int]:
    producer, _, number = value.split("/")
    return producer, int(number)


def _at(place: Place) -> str:
    return f"{place[0]}@{place[1]}"
