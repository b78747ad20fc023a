"""Plans of the controller on real nodes: they outlive the command and the controller."""

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from riverrun.testing import Cluster
from tests.cli.commands import Cli
from tests.processes import until

SETTINGS = {
    "balance.check.interval.ms": "300",
    "balance.cool.down.ms": "500",
}
SECONDS_MAX = 120.0


@pytest.fixture(scope="module")
def four() -> Iterator[Cluster]:
    with Cluster(nodes=4, settings=SETTINGS) as cluster:
        yield cluster


@pytest.fixture
def cluster_cli(four: Cluster) -> Cli:
    return Cli(four.bootstrap)


def place(four: Cluster, topic: str, assignment: list[list[int]]) -> None:
    admin = AdminClient({"bootstrap.servers": four.bootstrap})
    new = NewTopic(topic, num_partitions=len(assignment), replica_assignment=assignment)
    admin.create_topics([new])[topic].result(30)


def status(cli: Cli) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cli.run("cluster", "status", "--json"))
    return found


def moves(cli: Cli) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cli.run("cluster", "moves", "--json"))
    return found


def replicas(cli: Cli, topic: str) -> list[list[int]]:
    (found,) = json.loads(cli.run("topics", "describe", topic, "--json"))
    return [row["replicas"] for row in found["partitions"]]


def throttles(cli: Cli, topic: str) -> list[str]:
    rows = json.loads(cli.run("cluster", "config", "get", "--json"))
    (found,) = json.loads(cli.run("topics", "describe", topic, "--json"))
    names = [row["name"] for row in rows] + [str(row) for row in found["settings"]]
    return [name for name in names if "throttled" in name]


def test_plan_goes_on_after_ctrl_c_and_after_a_change_of_controller(
    four: Cluster, cluster_cli: Cli
) -> None:
    place(four, "outlives", [[1, 2, 3]] * 3)
    four.produce("outlives", ["x" * 10_000] * 300)
    words = ("topics", "move", "outlives", "--to", "4,2,3", "--yes", "--throttle", "150kB")
    with cluster_cli.started(*words) as moving:
        moving.notice("under way")
        moving.process.send_signal(signal.SIGINT)
        moving.notice("The controller goes on with the plan move-")
        assert moving.process.wait(SECONDS_MAX) == 130
    assert throttles(cluster_cli, "outlives") != []
    (plan,) = moves(cluster_cli)["plans"]
    assert plan["reason"] == "topics move outlives --to 4,2,3"
    assert plan["throttle"] == 150_000
    assert plan["done"] + plan["moving"] + plan["waiting"] == 3
    assert status(cluster_cli)["plans"][0]["id"] == plan["id"]
    controller = status(cluster_cli)["quorum"]["leader"]
    four.kill(controller)
    four.start(controller)

    def is_moved() -> bool:
        return replicas(cluster_cli, "outlives") == [[4, 2, 3]] * 3

    until(is_moved, seconds=SECONDS_MAX, what="the plan ends")
    until(
        lambda: throttles(cluster_cli, "outlives") == [],
        seconds=SECONDS_MAX,
        what="the throttle is removed",
    )
    assert (moves(cluster_cli)["moves"], moves(cluster_cli)["plans"]) == ([], [])
    (ended,) = [row for row in moves(cluster_cli)["ended"] if row["id"] == plan["id"]]
    assert (ended["end"], ended["done"], ended["failures"]) == ("done", 3, {})
    assert len(four.records("outlives")) == 300
    cluster_cli.run("topics", "delete", "outlives", "--yes")


def test_cancel_of_a_plan_counts_its_moves_under_way(four: Cluster, cluster_cli: Cli) -> None:
    place(four, "counted", [[1, 2, 3]])
    four.produce("counted", ["x" * 10_000] * 300)
    words = ("topics", "move", "counted", "--to", "4,2,3", "--yes", "--throttle", "10kB")
    with cluster_cli.started(*words) as moving:
        moving.notice("under way")
        until(
            lambda: len(moves(cluster_cli)["moves"]) == 1, seconds=SECONDS_MAX, what="it has begun"
        )
        (plan,) = moves(cluster_cli)["plans"]
        cancel = ("cluster", "moves", "cancel", "--plan", plan["id"])
        expected = json.loads(cluster_cli.run(*cancel, "--dry-run", "--json"))
        assert (expected["plans"], expected["cancelled"]) == ([plan["id"]], ["counted-0"])
        assert cluster_cli.run(*cancel, "--yes") == "1 plan and 1 move cancelled.\n"
        assert moving.process.wait(SECONDS_MAX) == 1
    until(
        lambda: sorted(replicas(cluster_cli, "counted")[0]) == [1, 2, 3],
        seconds=SECONDS_MAX,
        what="the old replicas are back",
    )
    cluster_cli.run("topics", "delete", "counted", "--yes")


def test_reason_of_a_rollback_is_shown(four: Cluster, cluster_cli: Cli) -> None:
    place(four, "refused", [[1, 2, 3]])
    place(four, "written", [[4, 2, 3]])
    four.produce("refused", ["x" * 10_000] * 30)
    four.fill_disk(4)
    try:
        four.produce("written", ["x"])
        moving = cluster_cli.result("topics", "move", "refused", "--to", "4,2,3", "--yes")
    finally:
        four.free_disk(4)
    because = "the disk of node 4 is full"
    assert moving.exit_code == 1
    assert f"refused-0: rolled back: {because}" in moving.stderr
    found = moves(cluster_cli)
    (rollback,) = found["rollbacks"]
    assert (rollback["topic"], rollback["partition"], rollback["replica"]) == ("refused", 0, 4)
    assert (rollback["reason"], because in rollback["text"]) == ("disk", True)
    assert any("rolled back" in str(row["failures"].get("refused-0")) for row in found["ended"])
    assert because in cluster_cli.run("cluster", "moves")
    assert sorted(replicas(cluster_cli, "refused")[0]) == [1, 2, 3]
    again = ("topics", "move", "refused", "--to", "4,2,3", "--yes")
    until(
        lambda: cluster_cli.result(*again).exit_code == 0,
        seconds=SECONDS_MAX,
        what="node 4 has noticed its free space, and gets the replica",
    )
    for topic in ("refused", "written"):
        cluster_cli.run("topics", "delete", topic, "--yes")


def test_cancelled_plan_returns_its_moves(four: Cluster, cluster_cli: Cli) -> None:
    place(four, "undone", [[1, 2, 3]] * 2)
    four.produce("undone", ["x" * 10_000] * 300)
    words = ("topics", "move", "undone", "--to", "4,2,3", "--yes", "--throttle", "10kB")
    with cluster_cli.started(*words) as moving:
        moving.notice("under way")
        refused = cluster_cli.result("topics", "move", "undone", "--to", "1,2,4", "--yes")
        assert refused.exit_code == 1
        cancelled = cluster_cli.run("cluster", "moves", "cancel", "--all", "--yes")
        assert "1 plan and" in cancelled
        assert moving.process.wait(SECONDS_MAX) == 1
    until(
        lambda: [sorted(row) for row in replicas(cluster_cli, "undone")] == [[1, 2, 3]] * 2,
        seconds=SECONDS_MAX,
        what="the old replicas are back",
    )
    until(
        lambda: throttles(cluster_cli, "undone") == [],
        seconds=SECONDS_MAX,
        what="the throttle is removed",
    )
    cluster_cli.run("topics", "delete", "undone", "--yes")


def test_cancelled_topic_leaves_the_plan_with_its_moves_that_wait(
    four: Cluster, cluster_cli: Cli
) -> None:
    place(four, "some", [[1, 2, 3]] * 3)
    four.produce("some", ["x" * 10_000] * 1200)
    cluster_cli.run("cluster", "config", "set", "balance.moves.per.destination=1")
    words = ("topics", "move", "some", "--to", "4,2,3", "--yes", "--throttle", "10kB")
    with cluster_cli.started(*words) as moving:
        moving.notice("1 under way")
        cancelled = cluster_cli.run("cluster", "moves", "cancel", "some", "--yes")
        assert "3 moves cancelled" in cancelled
        assert moving.process.wait(SECONDS_MAX) == 1
    until(
        lambda: [sorted(row) for row in replicas(cluster_cli, "some")] == [[1, 2, 3]] * 3,
        seconds=SECONDS_MAX,
        what="the old replicas are back",
    )
    until(lambda: not moves(cluster_cli)["plans"], seconds=SECONDS_MAX, what="the plan has ended")
    cluster_cli.run("cluster", "config", "unset", "balance.moves.per.destination")
    cluster_cli.run("topics", "delete", "some", "--yes")


def test_empty_broker_is_suggested_and_then_filled_automatically(
    four: Cluster, cluster_cli: Cli
) -> None:
    place(four, "uneven", [[1, 2, 3], [2, 3, 1], [3, 1, 2]] * 4)
    four.produce("uneven", ["x" * 1000] * 500)
    until(
        lambda: "broker 4" in (status(cluster_cli)["suggestion"] or ""),
        seconds=SECONDS_MAX,
        what="the controller suggests a plan",
    )
    assert "suggestion" in cluster_cli.run("cluster", "status")
    assert all(4 not in row for row in replicas(cluster_cli, "uneven"))
    cluster_cli.run("cluster", "config", "set", "balance.mode=auto")

    def is_even() -> bool:
        held = [node for row in replicas(cluster_cli, "uneven") for node in row]
        counts = [held.count(node) for node in (1, 2, 3, 4)]
        return max(counts) - min(counts) <= 1

    until(is_even, seconds=SECONDS_MAX, what="node 4 takes its share")
    until(
        lambda: status(cluster_cli)["suggestion"] is None and not status(cluster_cli)["plans"],
        seconds=SECONDS_MAX,
        what="nothing is left to do",
    )
    assert len(four.records("uneven")) == 500


def test_node_that_stays_away_is_replaced(four: Cluster, cluster_cli: Cli) -> None:
    cluster_cli.run("cluster", "config", "set", "balance.mode=auto")
    until(lambda: not status(cluster_cli)["plans"], seconds=SECONDS_MAX, what="no plan runs")
    cluster_cli.run("cluster", "config", "set", "self.healing.timeout=3000")
    four.kill(3)
    until(
        lambda: all(3 not in row for row in replicas(cluster_cli, "uneven")),
        seconds=SECONDS_MAX,
        what="the replicas of node 3 are replaced",
    )
    four.start(3)
    assert len(four.records("uneven")) == 500
