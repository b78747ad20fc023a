"""kafka-reassign-partitions against three nodes: start, watch, verify and cancel a move."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.clusters import Cluster
from tests.compatibility.apache import ApacheTools, Ran
from tests.compatibility.confluent import read_partition, send
from tests.processes import until

pytestmark = [pytest.mark.peer, pytest.mark.timeout(240)]
SECONDS_MAX = 60
SLOW, FAST = 50_000, 100_000_000
VALUES = [b"%06d" % number + bytes(10_000) for number in range(300)]

Plan = Mapping[int, Sequence[int]]


class Reassignment:
    """The tool, for one topic on nodes 1 and 2 with three megabytes of records."""

    def __init__(self, tools: ApacheTools, cluster: Cluster, name: str, folder: Path) -> None:
        self.cluster = cluster
        self.name = name
        self._tools = tools
        self._file = folder / "plan.json"
        rows = [{"partition_index": index, "broker_ids": [1, 2]} for index in (0, 1)]
        topic = {"name": name, "num_partitions": -1, "replication_factor": -1, "configs": []}
        made = cluster.request(
            "create_topics", 7, {"topics": [{**topic, "assignments": rows}], "timeout": 30000}
        )
        assert made["topics"][0]["error_code"] == "NONE", made
        assert len(send(cluster.bootstrap, name, VALUES, acks="all")) == len(VALUES)

    def run(self, action: str, plan: Plan | None = None, *more: object) -> str:
        ran = self.attempt(action, plan, *more)
        assert ran.code == 0, ran.text
        return ran.text

    def attempt(self, action: str, plan: Plan | None = None, *more: object) -> Ran:
        given: tuple[object, ...] = ()
        if plan is not None:
            rows = [
                {"topic": self.name, "partition": index, "replicas": list(replicas)}
                for index, replicas in plan.items()
            ]
            self._file.write_text(json.dumps({"version": 1, "partitions": rows}))
            given = ("--reassignment-json-file", self._file)
        at = ("--bootstrap-server", self.cluster.bootstrap)
        return self._tools.run("reassign.ReassignPartitionsCommand", *at, action, *given, *more)

    def rows(self) -> dict[int, dict[str, Any]]:
        wanted = {"topics": [{"name": self.name}], "allow_auto_topic_creation": False}
        [topic] = self.cluster.request("metadata", 12, wanted)["topics"]
        return {row["partition_index"]: row for row in topic["partitions"]}

    def wait_until_listed(self, index: int, replicas: Sequence[int]) -> None:
        """The node that is asked may learn of a change later than the tool's node."""
        until(
            lambda: self.rows()[index]["replica_nodes"] == list(replicas),
            seconds=SECONDS_MAX,
            what=f"{self.name}-{index} lists {replicas}",
        )

    def wait_until_on(self, plan: Plan) -> None:
        def is_there() -> bool:
            rows = self.rows()
            return all(
                rows[index]["replica_nodes"] == list(replicas)
                and sorted(rows[index]["isr_nodes"]) == sorted(replicas)
                for index, replicas in plan.items()
            )

        until(is_there, seconds=SECONDS_MAX, what=f"{self.name} is on {plan}")

    def wait_until_deleted_on(self, node: int, index: int) -> None:
        data = self.cluster.nodes[node].data
        until(
            lambda: not (data / f"{self.name}-{index}").exists(),
            seconds=SECONDS_MAX,
            what=f"node {node} has deleted {self.name}-{index}",
        )

    def settings(self) -> str:
        """The dynamic settings of all brokers and of the topic."""
        at = ("--bootstrap-server", self.cluster.bootstrap, "--describe", "--entity-type")
        texts = [
            self._tools.run("kafka.admin.ConfigCommand", *at, kind, "--entity-name", name)
            for kind, name in [*(("brokers", node) for node in (1, 2, 3)), ("topics", self.name)]
        ]
        return "\n".join(one.check().text for one in texts)


@pytest.fixture
def moved(
    tools: ApacheTools, cluster: Cluster, make_name: Callable[[], str], tmp_path: Path
) -> Reassignment:
    return Reassignment(tools, cluster, make_name(), tmp_path)


def test_kafka_reassign_partitions_moves_a_throttled_topic(moved: Reassignment) -> None:
    target = {0: [3, 2], 1: [2, 3]}
    started = moved.run("--execute", target, "--throttle", SLOW)
    assert "Successfully started partition reassignments" in started
    assert "adding: 3. removing: 1." in moved.run("--list")
    assert "is still in progress" in moved.run("--verify", target)
    moved.wait_until_listed(0, [3, 2, 1])
    assert moved.settings().count("replication.throttled.rate") >= 6
    refused = moved.attempt("--execute", target)
    assert "Cannot execute because there is an existing partition assignment" in refused.text
    moved.run("--execute", target, "--throttle", FAST, "--additional")
    moved.wait_until_on(target)
    verified = moved.run("--verify", target)
    assert verified.count("is completed") == 2
    assert "replication.throttled" not in moved.settings()
    assert "No partition reassignments found" in moved.run("--list")
    moved.wait_until_deleted_on(1, 0)
    got = read_partition(moved.cluster.bootstrap, moved.name, len(VALUES))
    assert [message.value() for message in got] == VALUES


def test_kafka_reassign_partitions_cancels(moved: Reassignment) -> None:
    target = {0: [3, 1]}
    moved.run("--execute", target, "--throttle", SLOW)
    moved.wait_until_listed(0, [3, 1, 2])
    cancelled = moved.run("--cancel", target)
    assert f"Successfully cancelled partition reassignment for: {moved.name}-0" in cancelled
    moved.wait_until_on({0: [1, 2]})
    assert "replication.throttled" not in moved.settings()
    moved.wait_until_deleted_on(3, 0)


def test_kafka_reassign_partitions_changes_the_replication_factor(moved: Reassignment) -> None:
    for target in ({0: [1, 2, 3]}, {0: [3]}, {0: [3, 1]}):
        moved.run("--execute", target)
        moved.wait_until_on(target)
        assert "is completed" in moved.run("--verify", target)
    refused = moved.attempt("--execute", {0: [3]}, "--disallow-replication-factor-change")
    assert "The replication factor is changed from 2 to 1" in refused.text
