"""Replica lag as shown by `topics describe` and `cluster status`."""

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from riverrun.admin.cluster.replica_lag import Copies, FollowerLag, in_short
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from tests.cli.commands import Cli
from tests.cli.test_cluster import create_with_replicas
from tests.clusters import Cluster, serve_three
from tests.processes import until

TOPIC = "events"
LED = "led"
FORKED = "forked"
LATE = 3
WRITES = 5
AT = TopicPartition(TopicName(TOPIC), PartitionIndex(0))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """An out-of-sync follower gets one batch and then nothing for the duration of the test."""
    settings = {"follower.replication.throttled.rate": "1", "replica.fetch.max.bytes": "1024"}
    with serve_three(tmp_path_factory.mktemp("lag"), settings) as cluster:
        throttled = f"follower.replication.throttled.replicas=0:{LATE}"
        words = ["--replication-factor", "3", "--config", throttled]
        Cli(cluster.bootstrap).run("topics", "create", TOPIC, *words)
        cluster.wait_healthy()
        yield cluster


@pytest.fixture
def cli(cluster: Cluster) -> Cli:
    return Cli(cluster.others(LATE))


def partition(cli: Cli) -> dict[str, Any]:
    (topic,) = json.loads(cli.run("topics", "describe", TOPIC, "--json"))
    (found,) = topic["partitions"]
    assert isinstance(found, dict)
    return found


def lags(cli: Cli) -> dict[int, int | None]:
    return {row["node"]: row["lag"] for row in partition(cli)["followers"]}


def shown(cli: Cli) -> dict[str, str]:
    """The last column of the partition's row: node and lag."""
    (row,) = [row for row in cli.rows("topics", "describe", TOPIC) if row[0] == "partition"]
    return dict(pair.split(":") for pair in row[-1].split())


def status(cli: Cli) -> dict[str, Any]:
    found = json.loads(cli.run("cluster", "status", "--json"))
    assert isinstance(found, dict)
    return found


def roles(cli: Cli) -> dict[int, tuple[str, int | None]]:
    quorum = json.loads(cli.run("quorum", "status", "--json"))
    return {row["id"]: (row["role"], row["lag"]) for row in quorum["replicas"]}


def test_a_followers_lag_goes_from_zero_to_unknown_to_late(cluster: Cluster, cli: Cli) -> None:
    first = partition(cli)
    followers = [node for node in first["replicas"] if node != first["leader"]]
    until(lambda: lags(cli) == dict.fromkeys(followers, 0), seconds=30, what="all have everything")
    rows = dict(row[:2] for row in cli.rows("cluster", "status", "--check"))
    assert (rows["offline"], rows["under-replicated"], rows["largest lag"]) == ("0", "0", "0")
    assert rows["under min.insync.replicas"] == "0"
    assert [row["lag"] for row in status(cli)["brokers"]] == [0, 0, 0]

    cluster.nodes[LATE].kill()
    until(lambda: LATE not in partition(cli)["isr"], seconds=30, what="the others continue")
    for number in range(WRITES):
        cli.write(TOPIC, f"{number} {'x' * 2000}\n", "--partition", "0")
    described = partition(cli)
    assert (described["end_offset"], described["leader_answers"]) == (WRITES, True)
    other = next(node for node in (1, 2) if node != described["leader"])
    until(lambda: lags(cli) == {other: 0, LATE: None}, seconds=30, what=f"node {other} has all")
    assert shown(cli) == {str(other): "0", str(LATE): "?"}
    cli.run("topics", "alter", TOPIC, "--config", "min.insync.replicas=3")
    report = status(cli)
    assert [len(report[f"{kind}_partitions"]) for kind in ("offline", "under_min_isr")] == [0, 1]
    brokers = {row["id"]: row for row in report["brokers"]}
    assert brokers[LATE]["lag"] is None
    assert brokers[described["leader"]]["under_replicated"] == 1
    assert "1 partition with fewer replicas in sync than min.insync.replicas" in report["problems"]
    nodes = {row[0]: row for row in cli.rows("cluster", "nodes")}
    assert (nodes[str(LATE)][-1], nodes[str(other)][-1]) == ("?", "0")

    until(lambda: roles(cli)[LATE] == ("silent", None), seconds=30, what="its vote is missed")
    cluster.nodes[LATE].restart()
    late = until(lambda: lags(cli)[LATE], seconds=30, what="it answers, and is behind")
    assert WRITES - 2 <= late <= WRITES
    row = next(row for row in partition(cli)["followers"] if row["node"] == LATE)
    assert row["lag_bytes"] > 2000 * (late - 1)
    (broker,) = [row for row in status(cli)["brokers"] if row["id"] == LATE]
    assert (broker["lag"] >= WRITES - 2, broker["lag_partition"]) == (True, f"{TOPIC}-0")
    rows = dict(row[:2] for row in cli.rows("cluster", "status"))
    assert rows["largest lag"].endswith(f", of {TOPIC}-0 on node {LATE}")
    assert (rows["under min.insync.replicas"], rows["under-replicated"]) == ("1", "1")
    until(lambda: roles(cli)[LATE] == ("follower", 0), seconds=30, what="it follows the quorum")


def test_a_paused_node_has_unknown_lag(cluster: Cluster, cli: Cli) -> None:
    leader = partition(cli)["leader"]
    follower = next(node for node in (1, 2) if node != leader)
    asked = Cli(cluster.nodes[leader].bootstrap)
    cluster.nodes[follower].kill(signal.SIGSTOP)
    try:
        with asked.started("topics", "describe", TOPIC, "--watch", "--json") as running:
            (topic,) = json.loads(running.line())
            (row,) = topic["partitions"]
            while row["leader"] != leader or not row["leader_answers"]:
                (topic,) = json.loads(running.line())
                (row,) = topic["partitions"]
            (paused,) = [one for one in row["followers"] if one["node"] == follower]
            assert (paused["lag"], paused["end_offset"]) == (None, None)
    finally:
        cluster.nodes[follower].kill(signal.SIGCONT)


def is_in_sync(cli: Cli, topic: str) -> bool:
    (found,) = json.loads(cli.run("topics", "describe", topic, "--json"))
    return all(len(row["isr"]) == len(row["replicas"]) for row in found["partitions"])


def test_a_restarted_node_leads_again_after_an_election(cluster: Cluster, cli: Cli) -> None:
    cli.run("topics", "create", LED, "--partitions", "3", "--replication-factor", "3")
    until(lambda: is_in_sync(cli, LED), seconds=30, what="all replicas are in sync")
    index = next(at for at in range(3) if cluster.leader(LED, at) == LATE)
    cluster.nodes[LATE].kill(signal.SIGTERM)
    cluster.nodes[LATE].wait_gone()
    words = ["cluster", "elect-leaders", "--topic", f"{LED}:{index}"]
    (refused,) = json.loads(cli.run(*words, "--json", code=1))
    assert refused["error"] == "The preferred leader was not available."
    cluster.nodes[LATE].restart()
    until(lambda: is_in_sync(cli, LED), seconds=60, what="the node has caught up")
    before = cluster.leader(LED, index)
    assert before != LATE
    assert cli.rows(*words) == [[LED, str(index), str(before), str(LATE), str(LATE), "elected"]]
    assert cluster.leader(LED, index) == LATE
    assert cli.run(*words) == "Nothing to elect in 1 partition: the preferred replicas lead.\n"


def test_an_unclean_election_needs_consent_and_loses_records(cluster: Cluster, cli: Cli) -> None:
    """The leader's only follower is late when the leader stops."""
    create_with_replicas(cluster.nodes[1], FORKED, 1, LATE)
    throttled = f"follower.replication.throttled.replicas=0:{LATE}"
    configs = ["--config", "min.insync.replicas=1", "--config", throttled]
    cli.run("topics", "alter", FORKED, *configs)
    until(lambda: is_in_sync(cli, FORKED), seconds=30, what="both replicas are in sync")
    cluster.nodes[LATE].kill()
    until(lambda: not is_in_sync(cli, FORKED), seconds=30, what="the follower is gone")
    for number in range(WRITES):
        cli.write(FORKED, f"{number} {'x' * 2000}\n")
    cluster.nodes[LATE].restart()
    until(lambda: roles(cli)[LATE] == ("follower", 0), seconds=30, what="it follows the quorum")
    cluster.nodes[1].kill(signal.SIGTERM)
    cluster.nodes[1].wait_gone()
    asked = Cli(cluster.others(1))
    words = ["cluster", "elect-leaders", "--topic", FORKED, "--unclean"]
    until(lambda: asked.result(*words).exit_code == 2, seconds=30, what="there is no leader")
    refused = asked.result(*words)
    assert f"Elect leaders that are not in sync for {FORKED}-0?" in refused.stderr
    assert "Use --yes" in refused.stderr
    rows = asked.rows(*words, "--yes")
    assert rows == [[FORKED, "0", "none", str(LATE), "1", "elected"]]
    (topic,) = json.loads(asked.run("topics", "describe", FORKED, "--json"))
    assert topic["partitions"][0]["end_offset"] < WRITES
    cluster.nodes[1].restart()


def copies(**ends: int) -> Copies:
    """Node 1 leads [100, 1100) in 50,000 bytes; others are given as ``node_2=...``."""
    found = {(int(name.removeprefix("node_")), AT): end for name, end in ends.items()}
    return Copies(
        starts={(1, AT): 100}, ends={(1, AT): 1100, **found}, sizes={(1, AT): 50_000},
        silent=frozenset(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("end", "lag", "lag_bytes"),
    [
        (1100, 0, 0),
        (1000, 100, 5_000),
        (20, 1000, 50_000),  # records deleted by the leader need not be fetched
        (1200, 0, 0),  # asked slightly later than the leader, or about to be truncated
    ],
)
def test_lag_is_the_difference_between_leader_and_follower(
    end: int, lag: int, lag_bytes: int
) -> None:
    (follower,) = copies(node_2=end).followers(AT, 1, (1, 2))
    assert (follower.node, follower.lag, follower.lag_bytes) == (2, lag, lag_bytes)


def test_lag_is_unknown_unless_both_respond() -> None:
    assert [one.lag for one in copies(node_2=1).followers(AT, 1, (1, 2, 3))] == [1000, None]
    assert [one.lag for one in copies(node_2=1).followers(AT, 3, (1, 2, 3))] == [None, None]


def follower(node: int, lag: int | None) -> FollowerLag:
    return FollowerLag(node=node, end_offset=None, size_bytes=None, lag=lag, lag_bytes=None)


def test_of_many_followers_the_largest_lag_is_shown() -> None:
    few = [follower(2, 0), follower(3, None)]
    many = [*few, follower(4, 7), follower(5, 1500), follower(6, 3)]
    assert in_short([]) is None
    assert in_short(few) == "2:0 3:?"
    assert in_short(many) == "5:1500 at most, 1 unknown"
    assert in_short(many, shown_max=None) == "2:0 3:? 4:7 5:1500 6:3"
    assert in_short([follower(node, None) for node in range(2, 8)]) == "6 unknown"
