"""Compares the files of replicas batch by batch; the copies of a log must be equal.

It reads files of running nodes, so it ignores incomplete batches and compares only offsets that all
replicas have.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from riverrun.chaos.checks.anomalies import Anomaly, Findings
from riverrun.records.batch import CorruptBatch, batches, crc_matches

Batch = tuple[int, int, int]
"""Next offset, leader epoch and CRC of a batch."""


def read_batches(folder: Path) -> dict[int, Batch]:
    """Batches by base offset, up to the first incomplete one."""
    found: dict[int, Batch] = {}
    for path in sorted(folder.glob("*.log")):
        data = path.read_bytes()
        try:
            for at, header in batches(data):
                if not crc_matches(data, at, header.size):
                    break
                found[header.base_offset] = (header.next_offset, header.leader_epoch, header.crc)
        except CorruptBatch:
            continue
    return found


def compare_replicas(name: str, folders: Mapping[int, Path], anomaly: Anomaly) -> Findings:
    """Compare the replicas of one partition; nodes without it are ignored."""
    findings = Findings()
    logs = {node: read_batches(path) for node, path in folders.items() if path.exists()}
    nodes = [node for node, log in logs.items() if log]
    if len(nodes) < 2:
        return findings
    end = min(max(row[0] for row in logs[node].values()) for node in nodes)
    start = max(min(logs[node]) for node in nodes)
    first = nodes[0]
    for other in nodes[1:]:
        bases = sorted({**logs[first], **logs[other]})
        for base in bases:
            if start <= base < end and logs[first].get(base) != logs[other].get(base):
                findings.add(
                    anomaly,
                    f"{name} at {base}: node {first} has {logs[first].get(base)}, "
                    f"node {other} has {logs[other].get(base)}",
                )
                break
    return findings
