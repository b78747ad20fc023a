"""Apache Kafka's admin client and command line tools against three nodes and their files."""

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from tests.cli.commands import Cli
from tests.clusters import PORTS_PER_NODE, Cluster, Member
from tests.compatibility.apache import ApacheTools
from tests.compatibility.confluent import consumer, read, send
from tests.compatibility.conftest import MakeTopic
from tests.processes import executable, until

pytestmark = [pytest.mark.peer, pytest.mark.timeout(240)]
SECONDS_MAX = 60
SHELL_ATTEMPTS_MAX = 8
CONFIGS = "kafka.admin.ConfigCommand"


def test_java_admin_client(
    tools: ApacheTools, cluster: Cluster, make_name: Callable[[], str]
) -> None:
    ran = tools.run("ClusterAdmin.java", cluster.bootstrap, make_name())
    assert ran.code == 0, ran.text
    lines = [line for line in ran.text.splitlines() if ": " in line]
    assert [line for line in lines if line.startswith("partition")] == [
        f"partition: {number} [1, 2, 3] [1, 2, 3]" for number in range(5)
    ]
    said = dict(line.split(": ", 1) for line in lines)
    assert said.pop("controller") in ("1", "2", "3")
    said.pop("partition")
    assert said == {
        "brokers": "[1, 2, 3]",
        "fenced": "0",
        "voters": "[1, 2, 3]",
        "endpoints": "[1, 2, 3]",
        "leads": "true",
        "features": "[eligible.leader.replicas.version, group.version, kraft.version, "
        "metadata.version, transaction.version]",
        "directories": "3",
        "again": "TopicExistsException",
        "end": "0",
        "low": "0",
        "beyond": "OffsetOutOfRangeException",
        "broker 2": "DYNAMIC_BROKER_CONFIG",
        "broker 3": "DYNAMIC_DEFAULT_BROKER_CONFIG",
        "topic": "DYNAMIC_TOPIC_CONFIG",
        "cluster": "300",
        "wrong": "InvalidConfigurationException",
        "PREFERRED": "ElectionNotNeededException",
        "UNCLEAN": "ElectionNotNeededException",
        "unknown": "UnknownTopicOrPartitionException",
        "deleted": "yes",
    }


def test_kafka_metadata_quorum_describes(tools: ApacheTools, cluster: Cluster) -> None:
    """It works with the address of every broker and of every controller."""
    leader = cluster.controller()
    for node in cluster.nodes.values():
        for at in (_server(node), _controller(node)):
            status = tools.run("MetadataQuorumCommand", *at, "describe", "--status").check().text
            rows = {
                line.split(":")[0]: line.split(":", 1)[1].strip() for line in status.split("\n")
            }
            assert rows["LeaderId"] == str(leader)
            voters = {row["id"]: row for row in json.loads(rows["CurrentVoters"])}
            for each in cluster.nodes.values():
                assert voters[each.id]["endpoints"] == [f"CONTROLLER://{each.controller}"]
                assert voters[each.id]["directoryId"] == _directory_id(each.data)
            assert json.loads(rows["CurrentObservers"]) == []
    replication = ("MetadataQuorumCommand", *_controller(cluster.nodes[2]), "describe")
    table = tools.run(*replication, "--replication").check().text.splitlines()
    roles = {int(line.split()[0]): line.split()[-1] for line in table[1:]}
    others = {node: "Follower" for node in cluster.nodes if node != leader}
    assert roles == {leader: "Leader", **others}


@pytest.mark.parametrize("roles", ["controller", "broker,controller"])
def test_kafka_metadata_quorum_adds_and_removes_a_controller(
    tools: ApacheTools, cluster: Cluster, tmp_path: Path, roles: str
) -> None:
    cli = Cli(cluster.bootstrap)
    at = ("MetadataQuorumCommand", *_server(cluster.nodes[1]))
    with _fourth(cluster, tmp_path / "four", roles) as (controller, data):
        name = "4" if "broker" in roles else controller
        wanted = cli.process("quorum", "add", name, "--print-properties", "--data", str(data))
        (tmp_path / "add.properties").write_text(wanted)
        add = ("--command-config", tmp_path / "add.properties", "add-controller")
        four = _directory_id(data)
        until(
            lambda: four in _roles(tools, cluster),
            seconds=SECONDS_MAX,
            what="node 4 is an observer",
        )
        assert _roles(tools, cluster)[four] == "Observer"
        added = tools.run(*at, *add).check().text
        assert f"Added controller 4 with directory id {four}" in added
        assert _roles(tools, cluster)[four] in ("Follower", "Leader")
        again = tools.run(*at, *add)
        assert again.code == 1 and "DuplicateVoterException" in again.text
        identity = ("--controller-id", "4", "--controller-directory-id", four)
        removed = tools.run(*at, "remove-controller", *identity).check().text
        assert f"Removed  KRaft controller 4 with directory id {four}" in removed
        until(
            lambda: _roles(tools, cluster)[four] == "Observer",
            seconds=SECONDS_MAX,
            what="node 4 is an observer again",
        )
        again = tools.run(*at, "remove-controller", *identity)
        assert again.code == 1 and "VoterNotFoundException" in again.text
    if "broker" in roles:
        _unregister(tools, cluster)


def _unregister(tools: ApacheTools, cluster: Cluster) -> None:
    at = _server(cluster.nodes[3])
    listed = ("ClusterTool", "list-endpoints", *at, "--include-fenced-brokers")
    until(
        lambda: "fenced" in _states(tools.run(*listed).text).get("4", ""),
        seconds=SECONDS_MAX,
        what="the stopped broker is fenced",
    )
    gone = tools.run("ClusterTool", "unregister", "--id", 4, *at).check().text
    assert "Broker 4 is no longer registered." in gone
    until(
        lambda: "4" not in _states(tools.run(*listed).text),
        seconds=SECONDS_MAX,
        what="broker 4 is unregistered",
    )


def test_kafka_cluster(tools: ApacheTools, cluster: Cluster) -> None:
    found = []
    for node in cluster.nodes.values():
        for at in (_server(node), _controller(node)):
            found.append(tools.run("ClusterTool", "cluster-id", *at).check().text)
    assert len(set(found)) == 1 and found[0].startswith("Cluster ID: ")
    listed = tools.run("ClusterTool", "list-endpoints", *_server(cluster.nodes[2])).check().text
    controllers = tools.run("ClusterTool", "list-endpoints", *_controller(cluster.nodes[3]))
    for node in cluster.nodes.values():
        host, port = node.address
        assert [str(node.id), host, str(port), "null", "unfenced", "broker"] in _split(listed)
        wanted = [str(node.id), host, str(port + 1), "null", "controller"]
        assert wanted in _split(controllers.check().text)
    unknown = tools.run("ClusterTool", "unregister", "--id", 99, *_server(cluster.nodes[1]))
    assert unknown.code == 1 and "BrokerIdNotRegisteredException" in unknown.text


def test_kafka_features(tools: ApacheTools, cluster: Cluster) -> None:
    for at in (_server(cluster.nodes[1]), _controller(cluster.nodes[2])):
        described = _split(tools.run("FeatureCommand", *at, "describe").check().text)
        levels = {row[1]: row[row.index("FinalizedVersionLevel:") + 1] for row in described}
        assert levels["metadata.version"] == "4.3-IV0"
        assert levels["kraft.version"] == "1"
        tools.run("FeatureCommand", *at, "upgrade", "--feature", "metadata.version=30").check()
        for command, feature in (
            ("upgrade", "metadata.version=99"),
            ("downgrade", "metadata.version=7"),
            ("upgrade", "no.such.feature=1"),
            ("downgrade", "kraft.version=0"),
        ):
            refused = tools.run("FeatureCommand", *at, command, "--feature", feature)
            assert refused.code == 1, refused.text
            assert "1 out of 1 operation(s) failed." in refused.text


def test_kafka_broker_api_versions(tools: ApacheTools, cluster: Cluster) -> None:
    text = tools.run("BrokerApiVersionsCommand", *_server(cluster.nodes[3])).check().text
    for node in cluster.nodes.values():
        assert f"{node.bootstrap} (id: {node.id} rack: null isFenced: false) -> (" in text
    assert text.count("Fetch(1): 4 to 18 [usable: 18]") == 3
    assert text.count("AddRaftVoter(80): 0 to 1 [usable: 1]") == 3


def test_kafka_topics_and_leader_election(
    tools: ApacheTools, cluster: Cluster, make_name: Callable[[], str]
) -> None:
    name = make_name()
    at = ("TopicCommand", *_server(cluster.nodes[3]))
    create = ("--create", "--topic", name, "--partitions", 6, "--replication-factor", 3)
    assert f"Created topic {name}" in tools.run(*at, *create).check().text
    describe = (*at, "--describe", "--topic", name)
    until(
        lambda: tools.run(*describe).text.count("Leader: ") == 6,
        seconds=SECONDS_MAX,
        what="six leaders",
    )
    rows = [line for line in tools.run(*describe).check().text.split("\n") if "Leader:" in line]
    leaders = [row.split("Leader: ")[1].split()[0] for row in rows]
    assert sorted(leaders) == ["1", "1", "2", "2", "3", "3"]
    for row in rows:
        assert len(row.split("Isr: ")[1].split()[0].split(",")) == 3
    for kind in ("--under-replicated-partitions", "--unavailable-partitions"):
        assert name not in tools.run(*at, "--describe", kind).check().text
    elect = ("LeaderElectionCommand", *_server(cluster.nodes[1]), "--election-type")
    tools.run(*elect, "preferred", "--all-topic-partitions").check()
    already = tools.run(*elect, "unclean", "--topic", name, "--partition", 0).check().text
    assert f"Valid replica already elected for partitions {name}-0" in already
    unknown = tools.run(*elect, "preferred", "--topic", f"{name}-not", "--partition", 0)
    assert unknown.code == 1 and "UnknownTopicOrPartitionException" in unknown.text
    tools.run(*at, "--delete", "--topic", name).check()
    until(
        lambda: name not in tools.run(*at, "--list").text.split(),
        seconds=30,
        what="deleted",
    )


def test_kafka_configs_through_brokers_and_controllers(
    tools: ApacheTools, cluster: Cluster
) -> None:
    setting = "log.cleaner.backoff.ms"
    everywhere = ("--entity-type", "brokers", "--entity-default")
    for at in (_server(cluster.nodes[1]), _controller(cluster.nodes[3])):
        tools.run(CONFIGS, *at, "--alter", *everywhere, "--add-config", f"{setting}=250").check()
        for node in cluster.nodes.values():
            one = ("--entity-type", "brokers", "--entity-name", node.id)
            describe = (CONFIGS, *at, "--describe", *one, "--all")
            until(
                partial(_shows, tools, f"{setting}=250", *describe),
                seconds=SECONDS_MAX,
                what=f"node {node.id} has the cluster default",
            )
        assert f"{setting}=250" in tools.run(CONFIGS, *at, "--describe", *everywhere).check().text
        tools.run(CONFIGS, *at, "--alter", *everywhere, "--delete-config", setting).check()


def test_kafka_configs_cordon_a_broker(
    tools: ApacheTools, cluster: Cluster, make_name: Callable[[], str]
) -> None:
    """KIP-1066: a cordoned broker keeps its replicas and gets no new ones."""
    at = _server(cluster.nodes[1])
    three, two = make_name(), make_name()
    broker = ("--entity-type", "brokers", "--entity-name", 2)
    alter = (CONFIGS, *_server(cluster.nodes[2]), "--alter", *broker)
    topics = ("TopicCommand", *at, "--create", "--partitions", 3)

    cli = Cli(cluster.bootstrap)

    def cordoned() -> list[int]:
        """kafka-log-dirs does not show the field of DescribeLogDirs."""
        rows = json.loads(cli.run("cluster", "logdirs", "--json"))
        return [row["node"] for row in rows if row["state"] == "cordoned"]

    def is_refused() -> bool:
        created = tools.run(*topics, "--topic", make_name(), "--replication-factor", 3)
        return created.code == 1 and "log directories cordoned" in created.text

    tools.run(*alter, "--add-config", "cordoned.log.dirs=*").check()
    try:
        until(lambda: cordoned() == [2], seconds=SECONDS_MAX, what="broker 2 is cordoned")
        # The controller learns of it with the next heartbeat.
        until(is_refused, seconds=SECONDS_MAX, what="topics on three brokers are refused")
        tools.run(*topics, "--topic", two, "--replication-factor", 2).check()
        for row in json.loads(cli.run("topics", "describe", two, "--json"))[0]["partitions"]:
            assert sorted(row["replicas"]) == [1, 3]
    finally:
        tools.run(*alter, "--delete-config", "cordoned.log.dirs").check()
    until(
        lambda: tools.run(*topics, "--topic", three, "--replication-factor", 3).code == 0,
        seconds=SECONDS_MAX,
        what="a topic on all three brokers",
    )


def test_kafka_log_dirs_and_delete_records(
    tools: ApacheTools, cluster: Cluster, make_topic: MakeTopic, tmp_path: Path
) -> None:
    name = make_topic()
    send(cluster.bootstrap, name, [b"x" * 1000] * 10, acks="all")
    at = _server(cluster.nodes[2])
    wanted = {"partitions": [{"topic": name, "partition": 0, "offset": 6}], "version": 1}
    (tmp_path / "offsets.json").write_text(json.dumps(wanted))
    deleted = tools.run(
        "DeleteRecordsCommand", *at, "--offset-json-file", tmp_path / "offsets.json"
    )
    assert f"partition: {name}-0\tlow_watermark: 6" in deleted.check().text

    def sizes() -> dict[int, int]:
        ran = tools.run("LogDirsCommand", *at, "--describe", "--topic-list", name).check()
        brokers = json.loads(ran.text.splitlines()[-1])["brokers"]
        assert all(folder["error"] is None for row in brokers for folder in row["logDirs"])
        return {
            row["broker"]: sum(p["size"] for folder in row["logDirs"] for p in folder["partitions"])
            for row in brokers
        }

    until(
        lambda: sorted(sizes()) == [1, 2, 3] and min(sizes().values()) > 10_000,
        seconds=SECONDS_MAX,
        what="all replicas have the records",
    )


def test_java_producer_and_consumer_groups(
    tools: ApacheTools, cluster: Cluster, make_topic: MakeTopic
) -> None:
    name = make_topic(partitions=6)
    props = (f"bootstrap.servers={cluster.others(1)}", "acks=all", "compression.type=lz4")
    size = ("--num-records", 6000, "--record-size", 500, "--throughput", -1)
    ran = tools.run("ProducerPerformance", "--topic", name, *size, "--producer-props", *props)
    assert "6000 records sent" in ran.check().text
    at = ("--bootstrap-server", cluster.others(2))
    measured = tools.run(
        *("ConsumerPerformance", *at, "--topic", name, "--messages", 6000),
        *("--group", f"{name}-group"),
    )
    assert "MB.sec" in measured.check().text
    groups = ("consumer.group.ConsumerGroupCommand", *at, "--group", f"{name}-group")
    described = tools.run(*groups, "--describe").check().text
    rows = [row for row in _split(described) if row and row[0] == f"{name}-group"]
    assert sum(int(row[3]) for row in rows) == 6000
    assert {row[5] for row in rows} == {"0"}
    with consumer(cluster.bootstrap, f"{name}-again") as reader:
        reader.subscribe([name])
        assert len(read(reader, 6000)) == 6000


def test_apache_tools_read_the_metadata_of_every_node(
    tools: ApacheTools, cluster: Cluster, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """kafka-dump-log and kafka-metadata-shell read the log and the snapshots of each node, also
    plans, whose type of resource Kafka does not know."""
    moved = make_topic()
    for target in ("3,2,1", "1,2,3"):
        Cli(cluster.bootstrap).run("topics", "move", moved, "--to", target, "--yes")
    name = make_topic(partitions=20)
    for node in cluster.nodes.values():
        folder = node.data / "__cluster_metadata-0"
        until(partial(_snapshots, folder), seconds=SECONDS_MAX, what="snapshots of metadata")
        kept = _keep(folder, tmp_path / str(node.id))
        files = [*sorted(kept.glob("*.log")), *_snapshots(kept)]
        dump = ("DumpLogSegments", "--cluster-metadata-decoder", "--files")
        texts = [tools.run(*dump, path).check().text for path in files]
        assert any(f'"name":"{name}"' in text for text in texts), f"node {node.id} lacks {name}"
        assert any('"resourceType":0' in text for text in texts), f"node {node.id} lacks plans"
        for broker in cluster.nodes:
            assert f'"brokerId":{broker},' in texts[-1], f"{files[-1]} lacks broker {broker}"
        _list_in_shell(tools, files[-1], {"1", "2", "3", "metadataVersion"})


def _shows(tools: ApacheTools, text: str, *arguments: object) -> bool:
    main, *rest = arguments
    return text in tools.run(str(main), *rest).text


def _list_in_shell(tools: ApacheTools, snapshot: Path, wanted: set[str]) -> None:
    """List the brokers and features of a snapshot with kafka-metadata-shell.

    The shell does not wait correctly for its own loader. On a slow machine it lists an image that
    is not complete yet, or it does not end although all is loaded. Try it several times.
    """
    shown = []
    for _ in range(SHELL_ATTEMPTS_MAX):
        with suppress(subprocess.TimeoutExpired):
            main = "org.apache.kafka.shell.MetadataShell"
            words = ("-s", snapshot, "ls", "/image/cluster/brokers", "/image/features")
            text = tools.run_alone(main, *words, seconds=30).text
            if wanted <= {*text.split()}:
                return
            shown.append(text)
    raise AssertionError(f"kafka-metadata-shell never lists {wanted} of {snapshot}: {shown}")


def _snapshots(folder: Path) -> list[Path]:
    """All snapshots except the bootstrap snapshot, on which Apache's shell never ends."""
    found = sorted(folder.glob("*.checkpoint"))
    return [path for path in found if not path.name.startswith("0" * 20)]


def _keep(folder: Path, kept: Path) -> Path:
    """Link the files, because the node may delete them at any time.

    Link the log first: records deleted from it are in a snapshot that already exists.
    """
    kept.mkdir()
    for kind in ("*.log", "*.checkpoint"):
        for path in sorted(folder.glob(kind)):
            with suppress(FileNotFoundError):
                (kept / path.name).hardlink_to(path)
    return kept


@contextmanager
def _fourth(cluster: Cluster, folder: Path, roles: str) -> Iterator[tuple[str, Path]]:
    """Start a fourth node; yield the address of its controller and its directory."""
    port = cluster.first_port + 3 * PORTS_PER_NODE
    folder.mkdir()
    clients = f"PLAINTEXT://127.0.0.1:{port}," if "broker" in roles else ""
    listeners = f"{clients}CONTROLLER://127.0.0.1:{port + 1}"
    words = ["--node-id", "4", "--roles", roles, "--seed-nodes", cluster.bootstrap]
    words += ["--data", str(folder / "data"), "--set", f"listeners={listeners}"]
    words += ["--set", f"http.listener=127.0.0.1:{port + 2}"]
    with open(folder / "log", "w") as log:
        process = subprocess.Popen([executable(), "start", *words], stdout=log, stderr=log)
    try:
        until(
            (folder / "data" / "meta.properties").exists,
            seconds=SECONDS_MAX,
            what="the fourth node has joined",
        )
        yield f"127.0.0.1:{port + 1}", folder / "data"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        finally:
            process.kill()
            process.wait(20)


def _roles(tools: ApacheTools, cluster: Cluster) -> dict[str, str]:
    """Roles by directory id; a stopped observer is listed for some minutes."""
    at = ("MetadataQuorumCommand", *_server(cluster.nodes[1]), "describe", "--replication")
    rows = _split(tools.run(*at).check().text)
    return {row[1]: row[-1] for row in rows[1:]}


def _states(text: str) -> dict[str, str]:
    """The state of each broker in the output of kafka-cluster list-endpoints."""
    return {row[0]: row[4] for row in _split(text)[1:] if len(row) > 4}


def _parted(text: str) -> list[tuple[str, str, str]]:
    return [line.partition(":") for line in text.splitlines()]


def _split(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def _server(node: Member) -> tuple[str, str]:
    return ("--bootstrap-server", node.bootstrap)


def _controller(node: Member) -> tuple[str, str]:
    return ("--bootstrap-controller", node.controller)


def _directory_id(data: Path) -> str:
    lines = (data / "meta.properties").read_text().splitlines()
    return next(line.split("=", 1)[1] for line in lines if line.startswith("directory.id"))
