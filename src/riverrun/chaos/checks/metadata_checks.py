"""Checks confirmed metadata changes and the quorum leaders that nodes report.

A confirmed change is permanent. A change with an unknown result may be visible or not. All nodes
report the same leader for an epoch. No node's epoch goes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from riverrun.chaos.checks.anomalies import Anomaly, Findings
from riverrun.chaos.history import Action, Operation, OperationKind


def check_metadata(operations: Sequence[Operation]) -> Findings:
    findings = Findings()
    _check_topics(operations, findings)
    _check_numbers(operations, findings)
    _check_leaders(operations, findings)
    return findings


def _check_topics(operations: Iterable[Operation], findings: Findings) -> None:
    """Each name is created once and deleted at most once."""
    created: dict[str, float] = {}
    deleted: dict[str, float] = {}
    tried: dict[str, None] = {}
    found: dict[str, None] | None = None
    for operation in operations:
        name = operation.value
        if operation.action is Action.CREATE and operation.kind is OperationKind.OK:
            created[name] = operation.time
        elif operation.action is Action.DELETE:
            tried[name] = None
            if operation.kind is OperationKind.OK:
                deleted[name] = operation.time
        elif operation.action is Action.FOUND:
            found = found or {}
            found[name] = None
    if found is None:
        return
    for name, when in created.items():
        if name not in found and name not in tried:
            findings.add(Anomaly.METADATA_LOST, f"topic {name}, created at {when:.2f} s")
    for name, when in deleted.items():
        if name in found:
            findings.add(Anomaly.METADATA_REVIVED, f"topic {name}, deleted at {when:.2f} s")


def _check_numbers(operations: Iterable[Operation], findings: Findings) -> None:
    """An administrator counts up in a setting of each topic; the last confirmed number remains.

    A change with an unknown result may take effect late, even after a later one, so it is accepted.
    """
    confirmed: dict[str, int] = {}
    asked: dict[str, int] = {}
    unknown: dict[tuple[str, int], None] = {}
    for operation in operations:
        name = operation.value
        if operation.action is Action.SET:
            if operation.kind is OperationKind.INVOKE:
                asked[name] = max(asked.get(name, -1), operation.offset)
            elif operation.kind is OperationKind.OK:
                confirmed[name] = max(confirmed.get(name, -1), operation.offset)
            else:
                unknown[(name, operation.offset)] = None
        elif operation.action is Action.FOUND and name in confirmed:
            if (name, operation.offset) in unknown:
                continue
            if operation.offset < confirmed[name]:
                text = f"setting of {name}: {confirmed[name]} confirmed, {operation.offset} found"
                findings.add(Anomaly.METADATA_LOST, text)
            elif operation.offset > asked[name]:
                text = f"setting of {name}: {operation.offset} found, {asked[name]} was the last"
                findings.add(Anomaly.INVENTED, text)


def _check_leaders(operations: Iterable[Operation], findings: Findings) -> None:
    leaders: dict[int, tuple[int, int]] = {}
    epochs: dict[tuple[int, str], int] = {}
    for operation in operations:
        if operation.action is not Action.LEADER or operation.epoch < 0:
            continue
        if operation.offset >= 0:
            leader, witness = leaders.setdefault(
                operation.epoch, (operation.offset, operation.node)
            )
            if leader != operation.offset:
                findings.add(
                    Anomaly.TWO_LEADERS,
                    f"epoch {operation.epoch}: node {leader} according to node {witness}, "
                    f"node {operation.offset} according to node {operation.node}",
                )
        key = (operation.node, operation.text)
        if operation.epoch < epochs.get(key, -1):
            findings.add(
                Anomaly.EPOCH_WENT_BACK,
                f"node {operation.node}: {epochs[key]}, then {operation.epoch}",
            )
        epochs[key] = max(epochs.get(key, -1), operation.epoch)
