"""Runs a scenario: load, faults, recovery, reading back, verdict."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from riverrun.chaos.checks.anomalies import Anomaly, Findings
from riverrun.chaos.checks.availability import longest_silence, silences
from riverrun.chaos.checks.metadata_checks import check_metadata
from riverrun.chaos.checks.record_checks import check_records
from riverrun.chaos.checks.replica_checks import compare_replicas
from riverrun.chaos.clients.workload import ChaosWorkload, Load, create_topic
from riverrun.chaos.cluster import ChaosCluster, ClusterFailed, until
from riverrun.chaos.cluster_pool import ClusterPool, RunningCluster, wait_until_up
from riverrun.chaos.faults.disks import NoSmallDisk
from riverrun.chaos.groups.load import GroupLoad
from riverrun.chaos.history import Action, History, Operation, OperationKind, write_history
from riverrun.chaos.moves.leftovers import expect_nothing_left
from riverrun.chaos.moves.mover import MovingAdministrator
from riverrun.chaos.scenarios.arena import Arena, PromiseBroken
from riverrun.chaos.scenarios.scenario import Scenario
from riverrun.chaos.transactions.java_chain import java_command
from riverrun.chaos.transactions.load import PARTITIONS, TransactionLoad
from riverrun.cli.benchmark.peers import PeerUnavailable
from riverrun.model.names import METADATA_TOPIC, OFFSETS_TOPIC, TRANSACTIONS_TOPIC

WARM_UP_SECONDS = 1.0
SETTLE_SECONDS_MAX = 30.0
CATCH_UP_SECONDS_MAX = 30.0
REPLICAS_EQUAL_SECONDS_MAX = 10.0
TRANSACTIONS_START_SECONDS_MAX = 60.0
GROUP_PARTITIONS = 6
VIOLATIONS_SHOWN_MAX = 5


class ScenarioVerdict(Enum):
    HOLDS = "holds"
    BROKEN = "broken"
    """A promise to clients was broken."""
    STUCK = "stuck"
    """The cluster did not recover, or took too long."""
    CRASHED = "crashed"
    """A node exited by itself."""
    SKIPPED = "skipped"


EXIT_CODES = {
    ScenarioVerdict.HOLDS: 0,
    ScenarioVerdict.SKIPPED: 0,
    ScenarioVerdict.BROKEN: 10,
    ScenarioVerdict.STUCK: 11,
    ScenarioVerdict.CRASHED: 12,
}
"""The same codes as ``simulate``; the worst verdict of all runs counts."""

SEVERITY = (
    ScenarioVerdict.SKIPPED,
    ScenarioVerdict.HOLDS,
    ScenarioVerdict.CRASHED,
    ScenarioVerdict.STUCK,
    ScenarioVerdict.BROKEN,
)


@dataclass(slots=True, kw_only=True)
class ScenarioResult:
    """The result of one run of a scenario."""

    scenario: Scenario
    seed: int
    verdict: ScenarioVerdict = ScenarioVerdict.HOLDS
    problems: list[str] = field(default_factory=list)
    missing_clients: list[str] = field(default_factory=list)
    """Clients that took no part, with the reason."""
    findings: Findings = field(default_factory=Findings)
    operations: list[Operation] = field(default_factory=list)
    seconds: float = 0.0
    folder: Path | None = None
    """Logs, data and history of a failed run."""

    def add_problem(self, verdict: ScenarioVerdict, problem: str) -> None:
        if SEVERITY.index(verdict) > SEVERITY.index(self.verdict):
            self.verdict = verdict
        self.problems.append(problem)

    def figures(self) -> dict[str, float]:
        begun: dict[str, float] = {}
        latencies: list[float] = []
        counts = dict.fromkeys(("acknowledged", "failed", "read", "changes"), 0)
        for operation in self.operations:
            if operation.action is Action.SEND:
                if operation.kind is OperationKind.INVOKE:
                    begun[operation.value] = operation.time
                elif operation.kind is OperationKind.OK:
                    counts["acknowledged"] += 1
                    latencies.append(operation.time - begun[operation.value])
                else:
                    counts["failed"] += 1
            elif operation.action is Action.READ:
                counts["read"] += len(operation.records)
            elif operation.action in (Action.CREATE, Action.SET, Action.DELETE):
                counts["changes"] += operation.kind is OperationKind.OK
        latencies.sort()
        return {
            **counts,
            "p50_ms": statistics.median(latencies) * 1000 if latencies else 0.0,
            "p99_ms": latencies[int(len(latencies) * 0.99)] * 1000 if latencies else 0.0,
            "longest_silence_s": longest_silence(self.operations),
            "unavailable_s": sum(window.seconds for window in silences(self.operations)),
        }


class ScenarioRunner:
    """Runs scenarios one after another on clusters of a pool."""

    def __init__(
        self, pool: ClusterPool, *, log: Callable[[str], None], rate: float = 400.0
    ) -> None:
        self._pool, self._log, self._rate = pool, log, rate
        self._runs = 0

    def run(self, scenario: Scenario, seed: int) -> ScenarioResult:
        result = ScenarioResult(scenario=scenario, seed=seed)
        began = time.monotonic()
        reason = self._missing(scenario)
        if reason is not None:
            result.add_problem(ScenarioVerdict.HOLDS, reason)
            result.verdict = ScenarioVerdict.SKIPPED
            return result
        try:
            place = self._pool.cluster_for(scenario)
        except NoSmallDisk as error:
            result.problems.append(str(error))
            result.verdict = ScenarioVerdict.SKIPPED
            return result
        except ClusterFailed as error:
            result.add_problem(ScenarioVerdict.STUCK, f"the cluster did not start: {error}")
            return result
        self._runs += 1
        topic = f"{scenario.name}-{self._runs}"
        java = self._find_java(result) if scenario.has_transactions else None
        arena = self._arena(scenario, seed, place, topic, java)
        self._run_faults(scenario, arena, result)
        result.operations = arena.history.operations()
        self._check(scenario, place, arena.workload, result)
        violations = (
            [] if arena.transactions is None else list(map(str, arena.transactions.check()))
        )
        violations += [] if arena.groups is None else arena.groups.check()
        if violations:
            shown = "; ".join(violations[:VIOLATIONS_SHOWN_MAX])
            result.add_problem(ScenarioVerdict.BROKEN, f"{len(violations)} anomalies: {shown}")
        result.seconds = time.monotonic() - began
        if result.verdict is not ScenarioVerdict.HOLDS:
            result.folder = self._pool.keep()
            assert result.folder is not None
            write_history(result.folder / f"{topic}.jsonl", result.operations)
        elif scenario.discards_cluster:
            self._pool.discard()
        return result

    def _find_java(self, result: ScenarioResult) -> list[str] | None:
        try:
            return java_command()
        except PeerUnavailable as error:
            result.missing_clients.append(f"the Java client: {error}")
            self._log(f"  MISSING PEER: {result.missing_clients[-1]}")
            return None

    def _arena(
        self,
        scenario: Scenario,
        seed: int,
        place: RunningCluster,
        topic: str,
        java: list[str] | None,
    ) -> Arena:
        """The cluster with all clients of a scenario, which are not started yet."""
        history = History()
        needs_machine = scenario.has_transactions or scenario.has_groups
        load = Load(
            replicas=min(3, self._pool.count_for(scenario)),
            # Transactional clients and processes of a group need a share of the machine too.
            rate=self._rate / 4 if needs_machine else self._rate,
            has_administrator=scenario.has_administrator,
        )
        if scenario.has_groups:
            load = replace(load, partitions=GROUP_PARTITIONS)
        workload = ChaosWorkload(history, place.cluster.bootstrap, topic, load)
        transactions: TransactionLoad | None = None
        if scenario.has_transactions:
            transactions = TransactionLoad(history, place.cluster.bootstrap, topic, java=java)
        groups: GroupLoad | None = None
        if scenario.has_groups:
            groups = GroupLoad(history, place.cluster.bootstrap, topic, load.partitions)
        mover: MovingAdministrator | None = None
        if scenario.has_moves:
            nodes, rng = list(place.cluster.nodes), random.Random(f"mover {seed}")
            where = (history, place.cluster.bootstrap)
            moved = [topic, OFFSETS_TOPIC]
            if transactions is not None:
                moved += [TRANSACTIONS_TOPIC, transactions.inputs, transactions.outputs]
            mover = MovingAdministrator(*where, moved, nodes, rng=rng)
        return Arena(
            place.cluster,
            place.probe,
            history,
            workload,
            rng=random.Random(seed),
            log=lambda text: self._log(f"  {history.now():6.2f} s  {text}"),
            transactions=transactions,
            groups=groups,
            mover=mover,
        )

    def _missing(self, scenario: Scenario) -> str | None:
        needs_ours = scenario.needs_agent or scenario.small_disk_bytes or scenario.has_moves
        if self._pool.peer != "riverrun" and needs_ours:
            return f"{self._pool.peer} does not support this fault"
        return None

    def _run_faults(self, scenario: Scenario, arena: Arena, result: ScenarioResult) -> None:
        cluster, probe, history = arena.cluster, arena.probe, arena.history
        workload, transactions = arena.workload, arena.transactions
        try:
            workload.start()
            probe.watch(history, workload.topic)
            arena.progress_everywhere(seconds=30)
            if transactions is not None:
                self._start_transactions(cluster, load=workload.load, transactions=transactions)
            if arena.mover is not None:
                arena.mover.start()
            arena.wait(WARM_UP_SECONDS)
            scenario.happen(arena)
            arena.note("all faults end")
            for number, node in cluster.nodes.items():
                history.add("arena", Action.FAULT, node=number, value="", text=str(node.state))
            cluster.recover()
            wait_until_up(cluster, probe, SETTLE_SECONDS_MAX)
            if arena.mover is not None:
                arena.mover.finish()
                expect_nothing_left(cluster, probe)
                self._log(f"  {arena.mover.requests} moves, {arena.mover.plans} plans")
            arena.all_in_sync(seconds=SETTLE_SECONDS_MAX)
            arena.progress_everywhere()
            if transactions is not None:
                transactions.progress()
                transactions.finish()
                self._log(f"  {transactions.feed.history.commits} transactions committed")
            ends = self._finish(workload)
            if arena.groups is not None:
                arena.groups.finish(ends)
                self._log(f"  {arena.groups.handovers} partitions were taken over")
        except PromiseBroken as error:
            result.add_problem(ScenarioVerdict.BROKEN, str(error))
            workload.abandon()
        except ClusterFailed as error:
            result.add_problem(ScenarioVerdict.STUCK, str(error))
            workload.abandon()
        finally:
            if transactions is not None:
                transactions.abandon()
            if arena.groups is not None:
                arena.groups.abandon()
            if arena.mover is not None:
                arena.mover.abandon()
            probe.unwatch()
        for text in cluster.died():
            result.add_problem(ScenarioVerdict.CRASHED, text)

    def _start_transactions(
        self, cluster: ChaosCluster, *, load: Load, transactions: TransactionLoad
    ) -> None:
        small = Load(partitions=PARTITIONS, replicas=load.replicas)
        for name in (transactions.inputs, transactions.outputs):
            create_topic(cluster.bootstrap, name, small)
        transactions.start()
        transactions.progress(seconds=TRANSACTIONS_START_SECONDS_MAX)

    def _finish(self, workload: ChaosWorkload) -> dict[int, int]:
        """Returns the log ends."""
        workload.stop_writing()
        ends = workload.read_back()
        until(
            lambda: workload.has_read(ends),
            seconds=CATCH_UP_SECONDS_MAX,
            what=f"both groups reach the log ends {ends}",
        )
        until(workload.look_at_metadata, seconds=10, what="the topics are listed")
        workload.stop_reading()
        return ends

    def _check(
        self,
        scenario: Scenario,
        place: RunningCluster,
        workload: ChaosWorkload,
        result: ScenarioResult,
    ) -> None:
        operations = result.operations
        result.findings.merge(check_records(operations))
        result.findings.merge(check_metadata(operations))
        if not result.problems:
            result.findings.merge(_compare_files(place.cluster, workload))
        if result.findings:
            result.add_problem(ScenarioVerdict.BROKEN, "the history has anomalies")
        failed = workload.failed()
        if failed and not scenario.may_fail_sends:
            result.add_problem(ScenarioVerdict.STUCK, f"{len(failed)} sends failed: {failed[0]}")
        limit, found = scenario.silence_seconds_max, longest_silence(operations)
        if limit is not None and found > limit:
            result.add_problem(
                ScenarioVerdict.STUCK,
                f"{found:.2f} s without an acknowledgement (limit {limit:g} s)",
            )


def _compare_files(cluster: ChaosCluster, workload: ChaosWorkload) -> Findings:
    """Compare the files of all replicas until they are equal; the metadata log keeps growing."""
    end = time.monotonic() + REPLICAS_EQUAL_SECONDS_MAX
    while True:
        findings = Findings()
        for partition in range(workload.load.partitions):
            name = f"{workload.topic}-{partition}"
            folders = {n: node.place.data / name for n, node in cluster.nodes.items()}
            findings.merge(compare_replicas(name, folders, Anomaly.REPLICAS_DIFFER))
        folders = {n: node.place.data / "__cluster_metadata-0" for n, node in cluster.nodes.items()}
        findings.merge(compare_replicas(METADATA_TOPIC, folders, Anomaly.METADATA_DIVERGED))
        if not findings or time.monotonic() > end:
            return findings
        time.sleep(0.2)


def exit_code(results: list[ScenarioResult]) -> int:
    worst = max(
        (result.verdict for result in results), key=SEVERITY.index, default=ScenarioVerdict.HOLDS
    )
    return EXIT_CODES[worst]
