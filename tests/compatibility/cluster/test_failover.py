"""Third-party clients while nodes are killed and restarted: no loss and no error."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.cli.commands import Cli
from tests.clusters import Cluster
from tests.compatibility.apache import ApacheTools
from tests.compatibility.cluster.writers import (
    PARTITIONS,
    AiokafkaReader,
    AiokafkaWriter,
    ConfluentWriter,
    JavaWriter,
    Writer,
)
from tests.compatibility.confluent import consumer, offset_of, read, send, value_of
from tests.compatibility.conftest import MakeTopic

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]


@contextlib.contextmanager
def _writing(
    cluster: Cluster, tools: ApacheTools, topic: str, folder: Path
) -> Iterator[list[Writer]]:
    """Run all producers at once; at the end read all acknowledged values back."""
    writers: list[Writer] = [
        JavaWriter(cluster.bootstrap, topic, tools=tools, folder=folder),
        ConfluentWriter(cluster.bootstrap, topic),
        AiokafkaWriter(cluster.bootstrap, topic),
    ]
    with contextlib.ExitStack() as stack:
        for writer in writers:
            writer.start()
            stack.callback(writer.stop)
        for writer in writers:
            writer.wait_for_more(20)
        yield writers
        for writer in writers:
            writer.wait_for_more()
    for writer in writers:
        assert not writer.errors, f"{writer.name}: {writer.errors[:3]}"
    _check(cluster, topic, writers)


def _check(cluster: Cluster, topic: str, writers: list[Writer]) -> None:
    """Each acknowledged value is at its offset, once, and in its producer's order."""
    acked = [row for writer in writers for row in writer.acked]
    with consumer(cluster.bootstrap, f"{topic}-check") as reader:
        for partition in range(PARTITIONS):
            found = _read_all(reader, topic, partition)
            values = [value for _, value in sorted(found.items())]
            assert len(values) == len(set(values)), f"duplicates in {partition}"
            own = [row for row in acked if row.partition == partition]
            lost = [row for row in own if found.get(row.offset) != row.value]
            assert not lost, f"{len(lost)} of {len(own)} lost: {lost[:3]}"
            for writer in writers:
                mine = [v for v in values if v.startswith(writer.name.encode())]
                numbers = [int(v.rpartition(b"-")[2]) for v in mine]
                assert numbers == sorted(numbers), f"{writer.name} reordered in {partition}"


def _read_all(reader: Consumer, topic: str, partition: int) -> dict[int, bytes]:
    place = TopicPartition(topic, partition, 0)
    _, end = reader.get_watermark_offsets(place, timeout=30)
    reader.assign([place])
    return {offset_of(message): value_of(message) for message in read(reader, end)}


def test_producers_survive_the_kill_of_a_leader(
    cluster: Cluster, tools: ApacheTools, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """Kill a leader that is not the active controller, then the controller itself."""
    topic = make_topic(partitions=PARTITIONS)
    with _writing(cluster, tools, topic, tmp_path) as writers:
        controller = cluster.controller()
        leaders = [cluster.leader(topic, partition) for partition in range(PARTITIONS)]
        plain = next(leader for leader in leaders if leader != controller)
        for victim in (plain, controller):
            cluster.nodes[victim].kill()
            for writer in writers:
                writer.wait_for_more()
            cluster.nodes[victim].restart()
            cluster.wait_healthy()


def test_producers_survive_a_rolling_restart(
    cluster: Cluster, tools: ApacheTools, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic(partitions=PARTITIONS)
    with _writing(cluster, tools, topic, tmp_path) as writers:
        for node in cluster.nodes:
            cluster.bounce(node)
            for writer in writers:
                writer.wait_for_more(5)


def test_group_survives_the_kill_of_its_coordinator(
    cluster: Cluster, make_topic: MakeTopic, make_name: Callable[[], str]
) -> None:
    topic = make_topic(partitions=3)
    for partition in range(3):
        values = [b"%d" % number for number in range(100)]
        send(cluster.bootstrap, topic, values, partition=partition, acks="all")
    group = make_name()
    coordinator = cluster.coordinator(group)
    with consumer(cluster.bootstrap, group, enable_auto_commit=False) as reader:
        reader.subscribe([topic])
        seen = read(reader, 120)
        reader.commit(asynchronous=False)
        cluster.nodes[coordinator].kill()
        seen += read(reader, 120, seconds=90)
        reader.commit(asynchronous=False)
        assert cluster.coordinator(group) != coordinator
        committed = reader.committed([TopicPartition(topic, number) for number in range(3)])
        assert sum(max(row.offset, 0) for row in committed) == 240
        cluster.nodes[coordinator].restart()
    cluster.wait_healthy()
    with consumer(cluster.bootstrap, group, enable_auto_commit=False) as reader:
        reader.subscribe([topic])
        seen += read(reader, 60)
    places = [(message.partition(), message.offset()) for message in seen]
    assert len(places) == len(set(places)) == 300


def test_aiokafka_and_cli_groups_survive_the_kill_of_their_coordinator(
    cluster: Cluster, make_topic: MakeTopic, make_name: Callable[[], str]
) -> None:
    topic = make_topic(partitions=PARTITIONS)
    groups = [make_name()]
    coordinator = cluster.coordinator(groups[0])
    while len(groups) < 2:
        name = make_name()
        groups += [name] if cluster.coordinator(name) == coordinator else []
    _send_round(cluster, topic, "before")
    reader = AiokafkaReader(cluster.bootstrap, topic, groups[0])
    words = ("consume", topic, "--group", groups[1], "--from-beginning", "--quiet")
    with Cli(cluster.bootstrap).started(*words) as printing, reader:
        wanted = _round("before")
        assert sorted(reader.read(len(wanted))) == sorted(wanted)
        assert sorted(printing.line() for _ in wanted) == sorted(wanted)
        cluster.nodes[coordinator].kill()
        _send_round(cluster, topic, "after")
        wanted = _round("after")
        assert sorted(reader.read(len(wanted))) == sorted(wanted)
        assert sorted(printing.line() for _ in wanted) == sorted(wanted)
        assert printing.stop() == 0
    cluster.nodes[coordinator].restart()
    cluster.wait_healthy()
    for group in groups:
        with consumer(cluster.bootstrap, group) as member:
            places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
            committed = member.committed(places, timeout=30)
            assert sum(row.offset for row in committed) == 2 * len(wanted), group


def _round(word: str) -> list[str]:
    return [f"{word}-{number}" for number in range(60)]


def _send_round(cluster: Cluster, topic: str, word: str) -> None:
    for partition in range(PARTITIONS):
        values = [value.encode() for value in _round(word)[partition::PARTITIONS]]
        send(cluster.bootstrap, topic, values, partition=partition, enable_idempotence=True)


def test_cli_works_with_a_node_down(cluster: Cluster, make_topic: MakeTopic) -> None:
    """produce, consume, topics and cluster work if the first address is a stopped node."""
    topic = make_topic(partitions=3)
    dead = cluster.leader(topic)
    bootstrap = f"{cluster.nodes[dead].bootstrap},{cluster.others(dead)}"
    cli = Cli(bootstrap)
    cli.process("produce", topic, text="".join(f"before-{number}\n" for number in range(30)))
    cluster.nodes[dead].kill(signal.SIGKILL)
    cli.process("produce", topic, text="".join(f"after-{number}\n" for number in range(30)))
    found = cli.process("consume", topic, "--from-beginning", "-n", "60").splitlines()
    wanted = [f"{word}-{number}" for word in ("before", "after") for number in range(30)]
    assert sorted(found) == sorted(wanted)
    assert cli.process("cluster", "status", "--json")
    cluster.nodes[dead].restart()
    cluster.wait_healthy()


def test_resumed_leader_does_not_return_offset_out_of_range(
    cluster: Cluster, make_topic: MakeTopic
) -> None:
    """A resumed leader lacks the records of its successor.

    OFFSET_OUT_OF_RANGE would make clients that send no epoch (aiokafka) reset their position.
    """
    topic = make_topic()
    send(cluster.bootstrap, topic, [b"before"] * 3, acks="all")
    paused = cluster.leader(topic)
    node = cluster.nodes[paused]
    with node.client() as client:
        node.kill(signal.SIGSTOP)
        try:
            delivered = send(cluster.others(paused), topic, [b"after"] * 20, acks="all")
            end = max(offset_of(message) for message in delivered) + 1
            partition = {"partition": 0, "fetch_offset": end, "partition_max_bytes": 1000}
            wanted = {"topic": topic, "partitions": [partition]}
            client.send("fetch", 4, {"replica_id": -1, "max_bytes": 1000, "topics": [wanted]})
        finally:
            node.kill(signal.SIGCONT)
        _, response = client.receive("fetch", 4)
    (row,) = response["responses"][0]["partitions"]
    assert row["error_code"] == "NOT_LEADER_OR_FOLLOWER"
    cluster.wait_healthy()
