"""Balance, moves, maintenance and removal of nodes, on four real nodes."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from riverrun.testing import Cluster
from tests.cli.commands import Cli
from tests.processes import until

NODES = (1, 2, 3, 4)


@pytest.fixture(scope="module")
def four() -> Iterator[Cluster]:
    with Cluster(nodes=4) as cluster:
        yield cluster


@pytest.fixture
def cluster_cli(four: Cluster) -> Cli:
    return Cli(four.bootstrap)


def place(four: Cluster, topic: str, assignment: list[list[int]]) -> None:
    """Create a topic on these nodes."""
    admin = AdminClient({"bootstrap.servers": four.bootstrap})
    new = NewTopic(topic, num_partitions=len(assignment), replica_assignment=assignment)
    admin.create_topics([new])[topic].result(30)


def partitions(cli: Cli, topic: str) -> list[dict[str, Any]]:
    (found,) = json.loads(cli.run("topics", "describe", topic, "--json"))
    rows: list[dict[str, Any]] = found["partitions"]
    return rows


def replicas(cli: Cli, topic: str) -> list[list[int]]:
    return [row["replicas"] for row in partitions(cli, topic)]


def nodes(cli: Cli) -> dict[int, dict[str, Any]]:
    return {row["id"]: row for row in json.loads(cli.run("cluster", "nodes", "--json"))}


def soon(condition: Callable[[], bool], what: str) -> None:
    """Each command may ask another node, which learns of a change slightly later."""
    until(condition, seconds=30, what=what)


def settings_of_throttles(cli: Cli, topic: str) -> list[str]:
    """The throttles that are set on nodes and on a topic."""
    rows = json.loads(cli.run("cluster", "config", "get", "--json"))
    (found,) = json.loads(cli.run("topics", "describe", topic, "--json"))
    names = [row["name"] for row in rows] + [str(row) for row in found["settings"]]
    return [name for name in names if "throttled" in name]


def test_balance_gives_an_empty_node_its_share_and_a_second_plan_is_empty(
    four: Cluster, cluster_cli: Cli
) -> None:
    place(four, "uneven", [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 2, 3]] * 2)
    four.produce("uneven", ["x" * 1000] * 2000)
    plan = json.loads(cluster_cli.run("cluster", "balance", "--dry-run", "--json"))
    assert plan["bytes"] > 0
    assert {"topic", "partition", "before", "after"} <= plan["moves"][0].keys()
    assert plan["before"]["replicas"]["spread"] > plan["after"]["replicas"]["spread"]
    assert all(4 not in row for row in replicas(cluster_cli, "uneven"))
    balanced = cluster_cli.result("cluster", "balance", "--yes", "--throttle", "50MB")
    assert balanced.exit_code == 0
    assert balanced.stderr.endswith(f"{len(plan['moves'])} moves done.\n")

    def is_even(column: str) -> bool:
        counts = [row[column] for row in nodes(cluster_cli).values()]
        return bool(max(counts) - min(counts) <= 1)

    soon(lambda: is_even("replicas"), "replicas are even")
    soon(lambda: is_even("leaders"), "leaders are even")
    soon(lambda: settings_of_throttles(cluster_cli, "uneven") == [], "the throttle is removed")
    assert "balanced" in cluster_cli.run("cluster", "balance", "--dry-run")
    assert sorted(record.text for record in four.records("uneven")) == ["x" * 1000] * 2000


def test_plan_divides_replicas_by_the_declared_weights(four: Cluster, cluster_cli: Cli) -> None:
    place(four, "weighed", [[1], [2], [3], [4]] * 2)
    weight = "broker.capacity.weight"
    cluster_cli.run("cluster", "config", "set", "--node", "4", f"{weight}=9")

    def planned_for_node_4() -> int:
        plan = json.loads(cluster_cli.run("topics", "rebalance", "weighed", "--dry-run", "--json"))
        return sum(4 in move["after"] for move in plan["moves"])

    soon(lambda: planned_for_node_4() == 4, "node 4 would take six of eight replicas")
    cluster_cli.run("cluster", "config", "unset", "--node", "4", weight)
    soon(lambda: planned_for_node_4() == 0, "node 4 has no weight any more")
    cluster_cli.run("topics", "delete", "weighed", "--yes")


def test_plans_show_measured_traffic_and_moves_that_will_not_finish(
    four: Cluster, cluster_cli: Cli
) -> None:
    place(four, "written", [[1], [1]])

    def planned(throttle: str) -> dict[str, Any]:
        words = ("topics", "move", "written", "--to", "2", "--throttle", throttle, "--dry-run")
        found = json.loads(cluster_cli.run(*words, "--json"))
        assert isinstance(found, dict)
        return found

    def measured() -> dict[str, Any] | None:
        """Each node counts in steps of ten seconds."""
        for partition in range(2):
            four.produce("written", ["x" * 10_000] * 10, partition=partition)
        plan = planned("1kB")
        is_written = all(move["bytes_in_per_second"] > 5_000 for move in plan["moves"])
        return plan if plan["traffic"]["measured"] and is_written else None

    plan = until(measured, seconds=120, what="the plan has the measured rates")
    assert plan["traffic"]["silent_nodes"] == []
    assert plan["traffic"]["bytes_in_per_second"] > 10_000
    assert plan["seconds"] is None
    assert plan["outlook"].startswith("will not finish at this rate: written-0 is written faster")
    fast = planned("1GB")
    assert fast["seconds"] is not None
    assert fast["outlook"].startswith("about 0 s")
    words = ("topics", "move", "written", "--to", "2", "--throttle", "1kB", "--dry-run")
    shown = cluster_cli.result(*words).stderr
    assert "With this throttle it will not finish at this rate" in shown
    assert "Measured traffic of the last minutes: " in shown
    assert json.loads(cluster_cli.run("cluster", "balance", "--dry-run", "--json"))["traffic"][
        "measured"
    ]
    (preview,) = json.loads(cluster_cli.run("topics", "create", "next", "--dry-run", "--json"))
    assert preview["brokers"][0]["bytes_in"] > 1_000
    assert all(row["bytes_out"] is not None for row in preview["brokers"])
    cluster_cli.run("topics", "delete", "written", "--yes")


def test_node_in_maintenance_leads_nothing_until_it_ends(four: Cluster, cluster_cli: Cli) -> None:
    place(four, "kept", [[2, 1, 3], [2, 3, 4]])
    before = replicas(cluster_cli, "kept")
    soon(lambda: nodes(cluster_cli)[2]["leaders"] >= 2, "node 2 leads")
    dry = ("cluster", "maintenance", "on", "2", "--dry-run")
    shown = json.loads(cluster_cli.run(*dry, "--json"))
    assert (shown["mode"], shown["executed"]) == ("active", False)
    assert shown["leaders"] > 0
    assert "would hand over" in cluster_cli.run(*dry)
    assert nodes(cluster_cli)[2]["mode"] == "active"
    assert "leads nothing" in cluster_cli.run("cluster", "maintenance", "on", "2")
    soon(lambda: nodes(cluster_cli)[2]["leaders"] == 0, "node 2 leads nothing")
    soon(lambda: nodes(cluster_cli)[2]["mode"] == "maintenance", "node 2 knows its mode")
    assert "up, maintenance" in cluster_cli.run("cluster", "nodes")
    assert "maintenance off" in cluster_cli.result("cluster", "recommission", "2").stderr
    refused = cluster_cli.result("cluster", "maintenance", "on", "3")
    assert refused.exit_code == 1
    assert "node 2 is in maintenance already" in refused.stderr
    remedy = "End that first with `riverrun cluster maintenance off 2`, or use --force"
    assert remedy in refused.stderr
    four.stop(2)
    refused = cluster_cli.result("cluster", "maintenance", "on", "3")
    assert refused.exit_code == 1
    assert "node 2 is in maintenance already" in refused.stderr
    assert nodes(cluster_cli)[2]["mode"] == "maintenance"
    four.start(2)
    four.wait_in_sync()
    assert nodes(cluster_cli)[2]["leaders"] == 0
    assert replicas(cluster_cli, "kept") == before
    again = cluster_cli.run("cluster", "maintenance", "off", "2", "--dry-run")
    assert "would be active and lead" in again
    assert nodes(cluster_cli)[2]["mode"] == "maintenance"
    assert "is active" in cluster_cli.run("cluster", "maintenance", "off", "2")

    def leads_again() -> bool:
        return [row["leader"] for row in partitions(cluster_cli, "kept")] == [2, 2]

    soon(leads_again, "all nodes know that node 2 leads")


def test_maintenance_that_makes_data_unavailable_needs_force(
    four: Cluster, cluster_cli: Cli
) -> None:
    place(four, "single", [[3]])
    refused = cluster_cli.result("cluster", "maintenance", "on", "3")
    assert refused.exit_code == 1
    assert "single-0" in refused.stderr
    assert "--force" in refused.stderr
    forced = cluster_cli.run("cluster", "maintenance", "on", "3", "--force")
    assert "single-0" in forced
    cluster_cli.run("cluster", "maintenance", "off", "3")
    cluster_cli.run("topics", "delete", "single", "--yes")


def factors(cli: Cli) -> list[int]:
    return [len(row) for row in replicas(cli, "resized")]


def test_replication_factor_and_replicas_of_a_topic_can_change(
    four: Cluster, cluster_cli: Cli
) -> None:
    place(four, "resized", [[1], [2]])
    four.produce("resized", ["a", "b", "c"])
    alter = ("topics", "alter", "resized", "--replicas", "3")
    shown = json.loads(cluster_cli.run(*alter, "--dry-run", "--json"))
    assert not shown["executed"]
    assert [len(move["after"]) for move in shown["plan"]["moves"]] == [3, 3]
    assert "nothing was changed" in cluster_cli.run(
        *alter, "--config", "retention.ms=1", "--dry-run"
    )
    assert factors(cluster_cli) == [1, 1]
    cluster_cli.run(*alter)
    soon(lambda: factors(cluster_cli) == [3, 3], "three replicas")
    cluster_cli.run("topics", "move", "resized:1", "--to", "4,3", "--yes")
    soon(lambda: replicas(cluster_cli, "resized")[1] == [4, 3], "the partition moved")
    soon(lambda: partitions(cluster_cli, "resized")[1]["leader"] == 4, "the first replica leads")
    cluster_cli.run("topics", "alter", "resized", "--replicas", "1")
    soon(lambda: factors(cluster_cli) == [1, 1], "one replica")
    assert sorted(record.text for record in four.records("resized")) == ["a", "b", "c"]
    too_many = cluster_cli.result("topics", "alter", "resized", "--replicas", "9")
    assert too_many.exit_code == 1
    assert "4 are up" in too_many.stderr
    cluster_cli.run("topics", "delete", "resized", "--yes")


def test_move_shows_its_progress_and_can_be_cancelled(four: Cluster, cluster_cli: Cli) -> None:
    place(four, "slow", [[1, 2, 3]])
    four.produce("slow", ["x" * 10_000] * 300)
    words = ("topics", "move", "slow", "--to", "4,2,3", "--yes", "--throttle", "100kB")
    with cluster_cli.started(*words) as moving:
        moving.notice("under way")

        def progress() -> dict[str, Any] | None:
            moves = json.loads(cluster_cli.run("cluster", "moves", "--json"))["moves"]
            return next((move for move in moves if move["bytes_done"] > 0), None)

        until(lambda: progress() is not None, seconds=60, what="bytes are copied")
        seen = progress()
        assert seen is not None
        assert (seen["topic"], seen["adding"], seen["removing"]) == ("slow", [4], [1])
        assert 0 < seen["bytes_done"] < seen["bytes_total"]
        assert json.loads(cluster_cli.run("cluster", "status", "--json"))["healthy"]
        shown = cluster_cli.run("cluster", "moves", "cancel", "slow", "--dry-run", "--json")
        assert json.loads(shown)["cancelled"] == ["slow-0"]
        assert progress() is not None
        cancelled = cluster_cli.run("cluster", "moves", "cancel", "slow", "--yes")
        assert "1 move cancelled" in cancelled
        assert moving.process.wait(60) == 1
    soon(lambda: sorted(replicas(cluster_cli, "slow")[0]) == [1, 2, 3], "the old replicas are back")
    soon(lambda: settings_of_throttles(cluster_cli, "slow") == [], "the throttle is removed")
    found = json.loads(cluster_cli.run("cluster", "moves", "--json"))
    assert (found["moves"], found["plans"], found["rollbacks"]) == ([], [], [])
    cluster_cli.run("topics", "delete", "slow", "--yes")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("balance", "--throttle", "fast"), 2, "50MB"),
        (("maintenance", "on", "9"), 4, "broker 9 does not exist"),
        (("decommission", "9", "--yes"), 4, "broker 9 does not exist"),
        (("moves", "cancel"), 2, "--all"),
        (("moves", "cancel", "nosuch"), 4, "no such move"),
    ],
)
def test_bad_input_is_named(
    cluster_cli: Cli, words: tuple[str, ...], code: int, message: str
) -> None:
    result = cluster_cli.result("cluster", *words)
    assert result.exit_code == code, result.output
    assert message in result.stderr


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_cancel_of_an_unknown_plan_is_an_error(cli: Cli, more: tuple[str, ...]) -> None:
    result = cli.result("cluster", "moves", "cancel", "--plan", "nosuch", "--yes", *more)
    assert result.exit_code == 4, result.output
    assert "there is no plan nosuch" in result.stderr


def test_decommissioned_node_is_empty_and_unregistered_when_it_stops(
    four: Cluster, cluster_cli: Cli
) -> None:
    place(four, "leaving", [[4, 1, 2], [1, 4, 2]])
    four.produce("leaving", ["a", "b"])
    begun = cluster_cli.run(
        "cluster", "decommission", "4", "--yes", "--no-watch", "--throttle", "100kB", "--json"
    )
    assert not json.loads(begun)["decommissioned"]
    kept = json.loads(cluster_cli.run("cluster", "recommission", "4", "--dry-run", "--json"))
    assert not kept["executed"]
    emptied = cluster_cli.run("cluster", "decommission", "4", "--yes", "--watch")
    assert "holds nothing" in emptied
    soon(lambda: nodes(cluster_cli)[4]["replicas"] == 0, "node 4 is empty")
    soon(lambda: nodes(cluster_cli)[4]["mode"] == "decommissioning", "node 4 knows its mode")
    assert "recommission" in cluster_cli.result("cluster", "maintenance", "off", "4").stderr
    refused = cluster_cli.result("topics", "move", "leaving:0", "--to", "4,1", "--yes")
    assert "node 4 is being decommissioned" in refused.stderr
    created = cluster_cli.run("topics", "create", "later", "--partitions", "8")
    assert "Created" in created
    assert all(4 not in row for row in replicas(cluster_cli, "later"))
    four.stop(4)
    soon(lambda: 4 not in nodes(cluster_cli), "node 4 is unregistered")
    assert sorted(record.text for record in four.records("leaving")) == ["a", "b"]
