"""Plays one scenario: load, trouble, recovery, reading back, verdict."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from riverrun.chaos.arena import Arena, PromiseBroken
from riverrun.chaos.checks.anomalies import Anomaly, Findings
from riverrun.chaos.checks.checker import check
from riverrun.chaos.checks.history import Action, History, Kind, Operation, write_history
from riverrun.chaos.checks.metadata_checker import check_metadata
from riverrun.chaos.checks.replicas import compare_replicas
from riverrun.chaos.checks.windows import longest_silence, silences
from riverrun.chaos.clients.workload import Load, Workload
from riverrun.chaos.cluster import Cluster, ClusterFailed, until
from riverrun.chaos.faults.disks import NoSmallDisk
from riverrun.chaos.scenarios.scenario import Scenario
from riverrun.chaos.stage import Set, Stage, wait_until_up

WARM_UP_SECONDS = 1.0
SETTLE_SECONDS_MAX = 30.0
CATCH_UP_SECONDS_MAX = 30.0
REPLICAS_EQUAL_SECONDS_MAX = 10.0


class Verdict(Enum):
    HOLDS = "holds"
    BROKEN = "broken"
    """A promise to clients."""
    STUCK = "stuck"
    """The cluster did not come back, or took longer than it may."""
    CRASHED = "crashed"
    """A node ended by itself."""
    SKIPPED = "skipped"


EXIT_CODES = {
    Verdict.HOLDS: 0,
    Verdict.SKIPPED: 0,
    Verdict.BROKEN: 10,
    Verdict.STUCK: 11,
    Verdict.CRASHED: 12,
}
"""The worst verdict decides; the same codes as those of ``simulate``."""

SEVERITY = (Verdict.SKIPPED, Verdict.HOLDS, Verdict.CRASHED, Verdict.STUCK, Verdict.BROKEN)


@dataclass(slots=True, kw_only=True)
class Result:
    """What came of one scenario."""

    scenario: Scenario
    seed: int
    verdict: Verdict = Verdict.HOLDS
    problems: list[str] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)
    operations: list[Operation] = field(default_factory=list)
    seconds: float = 0.0
    folder: Path | None = None
    """Logs, data and history, kept when something is wrong."""

    def blame(self, verdict: Verdict, problem: str) -> None:
        if SEVERITY.index(verdict) > SEVERITY.index(self.verdict):
            self.verdict = verdict
        self.problems.append(problem)

    def figures(self) -> dict[str, float]:
        begun: dict[str, float] = {}
        latencies: list[float] = []
        counts = dict.fromkeys(("acknowledged", "failed", "read", "changes"), 0)
        for operation in self.operations:
            if operation.action is Action.SEND:
                if operation.kind is Kind.INVOKE:
                    begun[operation.value] = operation.time
                elif operation.kind is Kind.OK:
                    counts["acknowledged"] += 1
                    latencies.append(operation.time - begun[operation.value])
                else:
                    counts["failed"] += 1
            elif operation.action is Action.READ:
                counts["read"] += len(operation.records)
            elif operation.action in (Action.CREATE, Action.SET, Action.DELETE):
                counts["changes"] += operation.kind is Kind.OK
        latencies.sort()
        return {
            **counts,
            "p50_ms": statistics.median(latencies) * 1000 if latencies else 0.0,
            "p99_ms": latencies[int(len(latencies) * 0.99)] * 1000 if latencies else 0.0,
            "longest_silence_s": longest_silence(self.operations),
            "unavailable_s": sum(window.seconds for window in silences(self.operations)),
        }


class Player:
    """Plays scenarios on a stage, one after the other."""

    def __init__(self, stage: Stage, *, tell: Callable[[str], None], rate: float = 400.0) -> None:
        self._stage, self._tell, self._rate = stage, tell, rate
        self._played = 0

    def play(self, scenario: Scenario, seed: int) -> Result:
        result = Result(scenario=scenario, seed=seed)
        began = time.monotonic()
        reason = self._missing(scenario)
        if reason is not None:
            result.blame(Verdict.HOLDS, reason)
            result.verdict = Verdict.SKIPPED
            return result
        try:
            place = self._stage.cluster_for(scenario)
        except NoSmallDisk as error:
            result.problems.append(str(error))
            result.verdict = Verdict.SKIPPED
            return result
        except ClusterFailed as error:
            result.blame(Verdict.STUCK, f"the cluster did not start: {error}")
            return result
        self._played += 1
        history = History()
        topic = f"{scenario.name}-{self._played}"
        load = Load(
            replicas=min(3, self._stage.count), rate=self._rate,
            has_administrator=scenario.has_administrator,
        )  # fmt: skip
        workload = Workload(history, place.cluster.bootstrap, topic, load)
        self._perform(scenario, seed, place, workload, result)
        result.operations = history.operations()
        self._judge(scenario, place, workload, result)
        result.seconds = time.monotonic() - began
        if result.verdict is not Verdict.HOLDS:
            result.folder = self._stage.keep()
            assert result.folder is not None
            write_history(result.folder / f"{topic}.jsonl", result.operations)
        elif scenario.discards_cluster:
            self._stage.strike()
        return result

    def _missing(self, scenario: Scenario) -> str | None:
        if self._stage.count < scenario.nodes_min:
            return f"needs {scenario.nodes_min} nodes"
        if self._stage.peer != "riverrun" and (scenario.needs_agent or scenario.small_disk_bytes):
            return f"{self._stage.peer} cannot be tormented like this"
        return None

    def _perform(
        self, scenario: Scenario, seed: int, place: Set, workload: Workload, result: Result
    ) -> None:
        cluster, probe, history = place.cluster, place.probe, workload.history
        arena = Arena(
            cluster, probe, history, workload, chance=random.Random(seed),
            tell=lambda text: self._tell(f"  {history.now():6.2f} s  {text}"),
        )  # fmt: skip
        try:
            workload.start()
            probe.watch(history, workload.topic)
            arena.progress_everywhere(seconds=30)
            arena.wait(WARM_UP_SECONDS)
            scenario.happen(arena)
            arena.note("all faults end")
            for number, node in cluster.nodes.items():
                history.add("arena", Action.FAULT, node=number, value="", text=str(node.state))
            cluster.recover()
            wait_until_up(cluster, probe, SETTLE_SECONDS_MAX)
            arena.all_in_sync(seconds=SETTLE_SECONDS_MAX)
            arena.progress_everywhere()
            self._finish(workload)
        except PromiseBroken as error:
            result.blame(Verdict.BROKEN, str(error))
            workload.abandon()
        except ClusterFailed as error:
            result.blame(Verdict.STUCK, str(error))
            workload.abandon()
        finally:
            probe.unwatch()
        for text in cluster.died():
            result.blame(Verdict.CRASHED, text)

    def _finish(self, workload: Workload) -> None:
        workload.stop_writing()
        ends = workload.read_back()
        until(
            lambda: workload.has_read(ends),
            seconds=CATCH_UP_SECONDS_MAX,
            what=f"both groups read to the ends {ends}",
        )
        until(workload.look_at_metadata, seconds=10, what="the topics are listed")
        workload.stop_reading()

    def _judge(self, scenario: Scenario, place: Set, workload: Workload, result: Result) -> None:
        operations = result.operations
        result.findings.merge(check(operations))
        result.findings.merge(check_metadata(operations))
        if not result.problems:
            result.findings.merge(_compare_files(place.cluster, workload))
        if result.findings:
            result.blame(Verdict.BROKEN, "promises were broken")
        failed = workload.failed()
        if failed and not scenario.may_fail_sends:
            result.blame(Verdict.STUCK, f"{len(failed)} sends failed, as {failed[0]}")
        limit, found = scenario.silence_seconds_max, longest_silence(operations)
        if limit is not None and found > limit:
            result.blame(Verdict.STUCK, f"{found:.2f} s without an acknowledgement, not {limit:g}")


def _compare_files(cluster: Cluster, workload: Workload) -> Findings:
    """Replicas become equal soon after writing has ended; the metadata log goes on meanwhile."""
    end = time.monotonic() + REPLICAS_EQUAL_SECONDS_MAX
    while True:
        findings = Findings()
        for partition in range(workload.load.partitions):
            name = f"{workload.topic}-{partition}"
            folders = {n: node.place.data / name for n, node in cluster.nodes.items()}
            findings.merge(compare_replicas(name, folders, Anomaly.REPLICAS_DIFFER))
        folders = {n: node.place.data / "__cluster_metadata-0" for n, node in cluster.nodes.items()}
        findings.merge(compare_replicas("__cluster_metadata", folders, Anomaly.METADATA_DIVERGED))
        if not findings or time.monotonic() > end:
            return findings
        time.sleep(0.2)


def exit_code(results: list[Result]) -> int:
    worst = max((result.verdict for result in results), key=SEVERITY.index, default=Verdict.HOLDS)
    return EXIT_CODES[worst]
