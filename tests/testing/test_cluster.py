"""A single node: topics, records, groups, settings, errors and the end of all processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from riverrun.model.errors import KafkaError
from riverrun.testing import Cluster, ClusterError, NewRecord
from riverrun.testing.processes import FOLDER_PREFIX, STALE_SECONDS, remove_stale_folders
from tests.processes import until


def test_topic_names_are_unique(kafka: Cluster) -> None:
    assert kafka.topic() != kafka.topic()


def test_a_given_topic_name_is_kept(kafka: Cluster) -> None:
    assert kafka.topic(name="orders") == "orders"
    with pytest.raises(KafkaError, match="orders"):
        kafka.topic(name="orders")


def test_a_deleted_topic_can_be_created_again(kafka: Cluster) -> None:
    topic = kafka.topic()
    kafka.delete_topic(topic)
    kafka.topic(name=topic)
    assert kafka.records(topic) == []


def test_records_have_what_was_produced(kafka: Cluster) -> None:
    topic = kafka.topic()
    record = NewRecord(b"three", key=b"k", timestamp=7, headers=(("h", b"1"),))
    kafka.produce(topic, ["one", b"two", None, record])
    found = kafka.records(topic)
    assert [each.value for each in found] == [b"one", b"two", None, b"three"]
    assert [each.offset for each in found] == [0, 1, 2, 3]
    assert found[0].text == "one"
    assert found[0].timestamp > 1_600_000_000_000
    assert (found[3].key, found[3].timestamp, found[3].headers) == (b"k", 7, (("h", b"1"),))


def test_records_come_from_all_partitions_in_order(kafka: Cluster) -> None:
    topic = kafka.topic(partitions=3)
    for partition in (2, 0, 1):
        kafka.produce(topic, [f"{partition}-{n}" for n in range(100)], partition=partition)
    found = kafka.records(topic)
    assert [each.text for each in found] == [f"{p}-{n}" for p in range(3) for n in range(100)]
    assert {each.partition for each in found} == {0, 1, 2}


def test_topic_settings_reach_the_cluster(kafka: Cluster) -> None:
    topic = kafka.topic(config={"max.message.bytes": 100})
    with pytest.raises(KafkaError, match="exceeds the largest that is allowed, 100"):
        kafka.produce(topic, ["x" * 200])


def test_a_group_of_a_client_is_listed_with_its_lag(kafka: Cluster) -> None:
    topic = kafka.topic()
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(5):
        producer.produce(topic, str(number))
    producer.flush()
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    first = consumer.poll(30)
    assert first is not None and first.value() == b"0"
    consumer.commit(message=first, asynchronous=False)
    group = kafka.groups()[topic]
    assert (group.state, len(group.members), group.lag) == ("Stable", 1, 4)
    assert list(group.offsets.values()) == [1]
    consumer.close()


def test_a_killed_node_keeps_its_records() -> None:
    with Cluster() as kafka:
        topic = kafka.topic()
        kafka.produce(topic, ["before"])
        bootstrap = kafka.bootstrap
        kafka.kill(1)
        with pytest.raises(ClusterError, match="node 1 is not running"):
            kafka.kill(1)
        kafka.start(1)
        with pytest.raises(ClusterError, match="node 1 is running"):
            kafka.start(1)
        kafka.produce(topic, ["after"])
        assert [each.text for each in kafka.records(topic)] == ["before", "after"]
        assert kafka.bootstrap == bootstrap
        kafka.stop(1)
        assert "node is down" in kafka.logs()


def test_an_unknown_node_is_an_error(kafka: Cluster) -> None:
    with pytest.raises(ClusterError, match="there is no node 7; nodes: 1"):
        kafka.kill(7)


def test_a_single_node_cannot_be_cut_off(kafka: Cluster) -> None:
    with pytest.raises(ClusterError, match="a single node has no other nodes"):
        kafka.cut_off(1)


def test_a_cluster_outside_its_block_is_an_error() -> None:
    with pytest.raises(ClusterError, match="not running"):
        Cluster().topic()


def test_a_bad_setting_is_reported_with_the_log() -> None:
    with (
        pytest.raises(ClusterError, match=r"num\.partitons"),
        Cluster(settings={"num.partitons": 1}),
    ):
        pass


def test_a_failing_block_carries_the_log() -> None:
    with pytest.raises(ValueError, match="boom") as caught, Cluster():
        raise ValueError("boom")
    assert "node is up" in caught.value.__notes__[0]


def test_settings_override_the_test_defaults() -> None:
    with Cluster(settings={"auto.create.topics.enable": False}) as kafka:
        config = Path(kafka._own().node(1).config).read_text()
        assert '"auto.create.topics.enable" = "false"' in config
        assert '"group.initial.rebalance.delay.ms" = "0"' in config


def test_a_running_cluster_can_be_used_but_not_harmed(kafka: Cluster) -> None:
    with Cluster.connect(kafka.bootstrap) as other:
        topic = other.topic()
        other.produce(topic, ["x"])
        with pytest.raises(ClusterError, match="not started by this test"):
            other.kill(1)
    assert len(kafka.records(topic)) == 1


def test_nothing_is_left_after_the_block() -> None:
    with Cluster() as kafka:
        folder = kafka._own().folder
        kafka.pause(1)
    assert not folder.exists()
    assert processes_of(folder) == []
    kafka.close()


KILLED = """
import sys, time
from riverrun.testing import Cluster
with Cluster() as kafka:
    kafka.kill(1)
    kafka.start(1)
    with Cluster() as other:
        print(kafka._own().folder, other._own().folder, flush=True)
        time.sleep(100)
"""


def test_nodes_end_when_the_test_process_is_killed() -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process, process.stdout:
        folders = [Path(word) for word in process.stdout.readline().split()]
        assert len(folders) == 2
        assert all(processes_of(folder) for folder in folders)
        process.kill()
    until(lambda: not any(map(processes_of, folders)), seconds=30, what="nodes end")
    for folder in folders:
        remove_stale_folders(folder.parent)
        assert folder.exists(), "a young folder may belong to a cluster that starts"
        long_ago = time.time() - 2 * STALE_SECONDS
        os.utime(folder, (long_ago, long_ago))
        remove_stale_folders(folder.parent)
        assert not folder.exists()


def test_a_folder_in_use_is_not_stale(kafka: Cluster) -> None:
    folder = kafka._own().folder
    assert folder.name.startswith(FOLDER_PREFIX)
    long_ago = time.time() - 2 * STALE_SECONDS
    os.utime(folder, (long_ago, long_ago))
    remove_stale_folders(folder.parent)
    assert folder.exists()


def test_an_interrupted_start_leaves_nothing() -> None:
    script = "from riverrun.testing import Cluster\nprint(flush=True)\nCluster(nodes=3).open()"
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    children = until(lambda: children_of(process.pid), seconds=30, what="up starts")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    until(lambda: not any(map(is_running, children)), seconds=30, what="up ends")


def processes_of(folder: Path) -> list[int]:
    """Processes whose command line names the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if os.fsencode(folder) in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:  # it ended meanwhile
            continue
    return found


def is_running(pid: int) -> bool:
    """A zombie, whose command line is empty, does not run."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def children_of(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
