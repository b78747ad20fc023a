"""riverrun cluster and riverrun quorum, against a real node."""

import asyncio
import json
import signal
from dataclasses import replace
from typing import Any
from uuid import UUID

from riverrun.admin.cluster.admin import held_replicas
from riverrun.admin.cluster.report import (
    BrokerRow,
    ClusterReport,
    Trouble,
    status_table,
    trouble_tables,
)
from riverrun.admin.quorum.report import QuorumReplicaRow, QuorumReport, quorum_table, read_quorum
from riverrun.admin.tables import Bad, Good
from riverrun.client.connection import Connection
from riverrun.model.errors import ErrorCode
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.create_topics_request import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from riverrun.wire.messages.describe_quorum_response import (
    DescribeQuorumResponse,
    PartitionData,
    ReplicaState,
    TopicData,
)
from riverrun.wire.messages.metadata_response import (
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tests.cli.commands import Cli
from tests.cluster.messages import registration_request
from tests.processes import Server, free_ports


def asked(cli: Cli, *words: str) -> dict[str, Any]:
    found = json.loads(cli.run(*words, "--json"))
    assert isinstance(found, dict)
    return found


def test_a_healthy_cluster_is_reported_in_a_few_lines(cli: Cli, node: Server) -> None:
    rows = dict(row[:2] for row in cli.rows("cluster", "status", "--check"))
    assert rows["health"] == "healthy"
    assert rows["brokers"] == "1 of 1 up"
    assert rows["controllers"] == "1 voter, leader 1"
    report = asked(cli, "cluster", "status")
    assert report["healthy"] is True
    assert report["problems"] == []
    assert rows["cluster"] == report["cluster_id"]
    assert f"cluster.id={report['cluster_id']}" in (node.data / "meta.properties").read_text()


def test_nodes_are_rows_with_leaders_and_replicas(cli: Cli, node: Server, name: str) -> None:
    cli.run("topics", "create", name, "-p", "3")
    (row,) = cli.rows("cluster", "nodes")
    assert row[:5] == ["1", node.bootstrap, "-", "up", "leader"]
    assert int(row[5]) == int(row[6]) == int(row[7]) >= 3


def test_describe_shows_everything_by_kind(cli: Cli) -> None:
    rows = cli.rows("cluster", "describe")
    assert next(row for row in rows if row[0] == "feature")[1:] == ["metadata.version", "30"]
    (quorum,) = [row for row in rows if row[0] == "quorum"]
    assert quorum[1:3] == ["1", "leader"]
    assert sorted({row[0] for row in rows}) == ["cluster", "feature", "node", "quorum"]


def test_quorum_shows_directory_ids_as_in_meta_properties(cli: Cli, node: Server) -> None:
    quorum = asked(cli, "quorum", "status")
    (voter,) = quorum["replicas"]
    assert (quorum["leader"], voter["role"], voter["lag"]) == (1, "leader", 0)
    properties = (node.data / "meta.properties").read_text()
    assert f"directory.id={voter['directory_id']}" in properties
    (row,) = cli.rows("quorum", "status", "--wide")
    assert row[:2] == ["1", "leader"]
    assert row[-1] == voter["directory_id"]
    (short,) = cli.rows("quorum", "status")
    assert short[:3] == row[:3]
    assert voter["directory_id"] not in short


def test_printed_properties_work_with_apaches_tool(cli: Cli, node: Server) -> None:
    lines = cli.run("quorum", "add", "1", "--print-properties").splitlines()
    found = dict(line.split("=", 1) for line in lines)
    assert found["log.dirs"] == str(node.data)
    assert found["listeners"].startswith("CONTROLLER://127.0.0.1:")
    assert found["controller.listener.names"] == "CONTROLLER"
    assert "controller" in found["process.roles"]


def test_an_unknown_node_is_named(cli: Cli) -> None:
    missing = cli.result("quorum", "add", "77")
    assert (missing.exit_code, "broker 77 does not exist" in missing.stderr) == (4, True)
    absent = cli.result("quorum", "remove", "77", "--yes")
    assert (absent.exit_code, "node 77 is not a voter" in absent.stderr) == (4, True)
    nowhere = cli.result("quorum", "add", f"127.0.0.1:{free_ports(1)}")
    assert nowhere.exit_code == 3
    assert cli.result("quorum", "add", "node-1").exit_code == 4


def register(node: Server, ghost: int, cluster_id: str) -> None:
    """A broker that registers and then stays silent."""

    async def work() -> None:
        port = int(node.bootstrap.rpartition(":")[2]) + 1
        connection = await Connection.connect("127.0.0.1", port, client_id="test")
        try:
            request = registration_request(ghost, cluster_id=cluster_id)
            answer = await connection.request(ApiKey.BROKER_REGISTRATION, request)
            assert answer.error_code is ErrorCode.NONE
        finally:
            connection.close()

    asyncio.run(work())


def test_a_stopped_broker_can_be_unregistered(cli: Cli, node: Server) -> None:
    register(node, 9, asked(cli, "cluster", "status")["cluster_id"])
    assert asked(cli, "cluster", "status")["problems"] == ["1 broker fenced: 9"]
    assert cli.run("cluster", "unregister", "9", "--yes") == "Node 9 is unregistered.\n"
    assert asked(cli, "cluster", "status")["healthy"] is True
    assert cli.result("cluster", "unregister", "9", "--yes").exit_code == 4


def create_with_replicas(node: Server, topic: str, *replicas: int) -> None:
    async def work() -> None:
        port = int(node.bootstrap.rpartition(":")[2])
        connection = await Connection.connect("127.0.0.1", port, client_id="test")
        try:
            request = CreateTopicsRequest(
                topics=(
                    CreatableTopic(
                        name=topic,
                        num_partitions=-1,
                        replication_factor=-1,
                        assignments=(
                            CreatableReplicaAssignment(partition_index=0, broker_ids=replicas),
                        ),
                        configs=(),
                    ),
                ),
                timeout_ms=10_000,
            )
            answer = await connection.request(ApiKey.CREATE_TOPICS, request)
            assert answer.topics[0].error_code is ErrorCode.NONE, answer
        finally:
            connection.close()

    asyncio.run(work())


def test_a_broker_with_replicas_is_unregistered_only_by_force(
    cli: Cli, node: Server, name: str
) -> None:
    register(node, 9, asked(cli, "cluster", "status")["cluster_id"])
    create_with_replicas(node, name, 1, 9)
    try:
        refused = cli.result("cluster", "unregister", "9", "--yes")
        assert (refused.exit_code, refused.stdout) == (1, "")
        held = f"node 9 holds 1 replica: 1 partition of {name} would stay under-replicated"
        assert held in refused.stderr
        assert "--force" in refused.stderr
        described = {"id": 9, "replicas": 1, "lost": {}, "under_replicated": {name: 1}}
        words = ("cluster", "unregister", "9", "--yes", "--json")
        assert json.loads(cli.run(*words, code=1)) == {**described, "unregistered": False}
        assert json.loads(cli.run(*words, "--force")) == {**described, "unregistered": True}
    finally:
        cli.run("topics", "delete", name, "--yes")
    assert asked(cli, "cluster", "status")["healthy"] is True


def test_partitions_without_another_replica_in_sync_are_lost() -> None:
    def topic(name: str, *isrs: tuple[int, ...]) -> MetadataResponseTopic:
        rows = tuple(
            MetadataResponsePartition(
                error_code=ErrorCode.NONE, partition_index=index, leader_id=-1,
                replica_nodes=(1, 4), isr_nodes=isr, offline_replicas=(),
            )
            for index, isr in enumerate(isrs)
        )  # fmt: skip
        return MetadataResponseTopic(error_code=ErrorCode.NONE, name=name, partitions=rows)

    held = held_replicas(4, [topic("a", (1,), ()), topic("b", (4,))])
    assert (held.lost, held.under_replicated) == ({"a": 1, "b": 1}, {"a": 1})
    assert str(held) == (
        "node 4 holds 3 replicas: 2 partitions of a, b would be lost, because no other replica is "
        "in sync; 1 partition of a would stay under-replicated"
    )


def test_a_running_broker_is_not_unregistered(cli: Cli) -> None:
    refused = cli.result("cluster", "unregister", "1", "--yes")
    assert (refused.exit_code, "node 1 is up: stop it first" in refused.stderr) == (1, True)


def test_exit_code_is_3_without_a_cluster(cli: Cli) -> None:
    for words in (["cluster", "status"], ["quorum", "status"]):
        assert cli.result(*words, "--bootstrap", f"127.0.0.1:{free_ports(1)}").exit_code == 3


def test_http_addresses_are_recognized(cli: Cli, node: Server) -> None:
    refused = cli.result("cluster", "status", "-b", f"http://{node.bootstrap}")
    assert refused.exit_code == 2
    assert "must be HOST:PORT, without http://" in refused.stderr
    host, _, port = node.bootstrap.rpartition(":")
    wrong_port = cli.result("cluster", "status", "-b", f"{host}:{int(port) + 2}")
    assert wrong_port.exit_code == 3
    assert "speaks HTTP, not Kafka's protocol" in wrong_port.stderr


def test_health_is_coloured_on_a_terminal() -> None:
    quorum = QuorumReport(leader=1, epoch=1, high_watermark=1, replicas=())
    healthy = ClusterReport(
        cluster_id="c", quorum=quorum, brokers=(), topics=0, partitions=0, offline=(),
        under_replicated=(),
    )  # fmt: skip
    trouble = Trouble(topic="t", partition=0, leader=None, replicas=(1,), isr=())
    for report, kind in ((healthy, Good), (replace(healthy, offline=(trouble,)), Bad)):
        rows = {row[0]: row[1] for row in status_table(report).rows}
        assert isinstance(rows["health"], kind)
        assert isinstance(rows["offline"], Bad) == (kind is Bad)


def test_watch_repeats_until_ctrl_c(cli: Cli) -> None:
    with cli.started("cluster", "status", "--watch", "--json") as running:
        first, second = json.loads(running.line()), json.loads(running.line())
        assert first["cluster_id"] == second["cluster_id"]
        assert running.stop(signal.SIGINT) == 0


def state(node: int, end: int, fetched_ms: int) -> ReplicaState:
    return ReplicaState(
        replica_id=node, replica_directory_id=UUID(int=node), log_end_offset=end,
        last_fetch_timestamp=fetched_ms, last_caught_up_timestamp=fetched_ms,
    )  # fmt: skip


def test_a_voter_that_does_not_fetch_is_silent_with_unknown_lag() -> None:
    """By the leader's clock: 4 never fetched, 3 not recently, and 1 is the old directory of a
    voter that lost its disk."""
    partition = PartitionData(
        partition_index=0, error_code=ErrorCode.NONE, error_message="", leader_id=1,
        leader_epoch=7, high_watermark=90,
        current_voters=(
            state(1, 100, 50_000), state(2, 98, 49_400), state(3, 60, 40_000), state(4, -1, -1),
        ),
        observers=(state(5, 99, 49_900), state(1, 20, 10_000)),
    )  # fmt: skip
    quorum = read_quorum(
        DescribeQuorumResponse(
            error_code=ErrorCode.NONE, error_message="",
            topics=(TopicData(topic_name="__cluster_metadata", partitions=(partition,)),),
        )
    )  # fmt: skip
    assert [(one.id, one.role, one.end_offset, one.lag) for one in quorum.replicas] == [
        (1, "leader", 100, 0),
        (2, "follower", 98, 2),
        (3, "silent", 60, None),
        (4, "silent", None, None),
        (1, "observer", 20, None),
        (5, "observer", 99, 1),
    ]
    assert [voter.id for voter in quorum.voters] == [1, 2, 3, 4]
    assert quorum.in_words() == "leader 1, epoch 7, committed up to 90; nodes 3, 4 do not fetch"
    rows = quorum_table(quorum, 50_000).rows
    assert rows[3][1:7] == ("silent", None, "unknown", "unknown", None, None)


def test_problems_are_listed_worst_first() -> None:
    replica = QuorumReplicaRow(
        id=1, directory_id=UUID(int=1), role="follower", endpoint=None, end_offset=5, lag=0,
        last_fetch_ms=None, last_caught_up_ms=None,
    )  # fmt: skip
    gone = Trouble(topic="a", partition=0, leader=None, replicas=(1, 2), isr=(1,))
    behind = Trouble(topic="a", partition=1, leader=2, replicas=(1, 2), isr=(2,))
    report = ClusterReport(
        cluster_id="one",
        quorum=QuorumReport(leader=None, epoch=3, high_watermark=5, replicas=(replica,)),
        brokers=(
            BrokerRow(id=1, address="a:1", rack=None, is_fenced=True, role="follower"),
            BrokerRow(id=2, address="b:1", rack="r", is_fenced=False, role=None),
            BrokerRow(id=3, address="c:1", rack="r", is_fenced=False, role=None, is_silent=True),
        ),
        topics=1,
        partitions=2,
        offline=(gone,),
        under_replicated=(behind,) * 30,
    )
    assert report.problems() == [
        "the quorum has no leader: metadata cannot change",
        "1 broker unreachable: 3",
        "1 partition without a leader",
        "1 broker fenced: 1",
        "30 partitions with replicas out of sync",
    ]
    assert ("brokers", "1 of 3 up") in status_table(report).rows
    silent = replace(
        report, quorum=QuorumReport(leader=None, epoch=-1, high_watermark=-1, replicas=())
    )
    assert ("controllers", "voters unknown, leader none") in status_table(silent).rows
    assert ("metadata", "unknown") in status_table(silent).rows
    offline, lagging = trouble_tables(report)
    assert offline.rows == [("a", 0, "none", "1,2", "1")]
    assert (len(lagging.rows), lagging.title) == (
        20,
        "With replicas out of sync (the first 20 of 30)",
    )
