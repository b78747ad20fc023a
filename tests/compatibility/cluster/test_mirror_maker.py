"""MirrorMaker 2 copies a cluster of Apache Kafka to three nodes, as docs/migration.md says."""

import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.cimpl import NewTopic

from tests.clusters import Cluster
from tests.compatibility.cluster.applications import Application
from tests.compatibility.confluent import consumer, read
from tests.pages import DOCS
from tests.processes import ApacheKafka, until

pytestmark = [pytest.mark.peer, pytest.mark.timeout(400)]
MAIN = "org.apache.kafka.connect.mirror.MirrorMaker"
PARTITIONS = 3
RECORDS = 300
LATER = 60
READ = 120
"""Records that the group has read before its move."""
CONFIGS = {"retention.ms": "7200000", "max.message.bytes": "2000000", "cleanup.policy": "compact"}
SECONDS_MAX = 120
TIMESTAMP = 1_760_000_000_000
# The intervals of the page are meant for real clusters.
FAST = re.compile(r"^(.*\.interval\.seconds) = \d+$", re.MULTILINE)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    server = ApacheKafka(tmp_path_factory.mktemp("source"), {})
    try:
        server.start()
        server.wait_for_coordinator()
        yield server
    finally:
        server.stop_all()


def _properties(source: str, target: str, topic: str) -> str:
    """The configuration in the page, with the addresses and the topic of the test."""
    page = DOCS.joinpath("migration.md").read_text()
    block = re.search(r"```properties\n(.*?)```", page, re.DOTALL)
    assert block is not None
    text = FAST.sub(r"\1 = 1", textwrap.dedent(block[1]))
    for name, value in (
        ("source.bootstrap.servers", source),
        ("target.bootstrap.servers", target),
        ("source->target.topics", f"{topic}.*"),
    ):
        text, count = re.subn(rf"^{re.escape(name)} = .*$", f"{name} = {value}", text, flags=re.M)
        assert count == 1, name
    return text


def _write(bootstrap: str, topic: str, numbers: range) -> None:
    sender = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    failed: list[object] = []
    for number in numbers:
        sender.produce(
            topic,
            key=f"key-{number}".encode(),
            value=None if number % 50 == 49 else f"value-{number}".encode(),
            headers=[("number", str(number).encode()), ("empty", None)],
            partition=number % PARTITIONS,
            timestamp=TIMESTAMP + number,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert sender.flush(SECONDS_MAX) == 0
    assert not failed, failed


Row = tuple[int, bytes | None, bytes | None, object, object]


def _row(message: Message) -> Row:
    key, value = message.key(), message.value()
    assert not isinstance(key, str) and not isinstance(value, str)
    return (message.partition() or 0, key, value, message.headers(), message.timestamp())


def _all(bootstrap: str, topic: str, count: int) -> list[Row]:
    """All records of a topic, by partition and offset."""
    with consumer(bootstrap, f"{topic}-check", enable_auto_commit=False) as reader:
        reader.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        found = read(reader, count, seconds=SECONDS_MAX)
    return [_row(each) for each in sorted(found, key=lambda m: (m.partition(), m.offset()))]


def _committed(bootstrap: str, group: str, topic: str) -> list[int]:
    with consumer(bootstrap, group) as member:
        asked = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        return [each.offset for each in member.committed(asked, timeout=10)]


def _read_in_group(bootstrap: str, group: str, topic: str, count: int) -> list[Row]:
    """Read as a member of a group, and commit."""
    with consumer(bootstrap, group, enable_auto_commit=False) as member:
        member.subscribe([topic])
        found = read(member, count, seconds=SECONDS_MAX)
        member.commit(asynchronous=False)
    return [_row(each) for each in found]


def _configs(bootstrap: str, topic: str) -> dict[str, str]:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = admin.describe_configs([resource])
    return {name: entry.value for name, entry in found[resource].result(30).items()}


def test_mirror_maker_copies_records_settings_and_offsets(
    source: ApacheKafka, cluster: Cluster, make_name: Callable[[], str], tmp_path: Path
) -> None:
    topic, group = make_name(), make_name()
    admin = AdminClient({"bootstrap.servers": source.bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=CONFIGS)])[topic].result(30)
    _write(source.bootstrap, topic, range(RECORDS))
    before = _read_in_group(source.bootstrap, group, topic, READ)
    committed = _committed(source.bootstrap, group, topic)
    path = tmp_path / "mm2.properties"
    path.write_text(_properties(source.bootstrap, cluster.bootstrap, topic))
    mirror = Application(tmp_path / "mirror.log", MAIN, path)
    with mirror:

        def wait(condition: Callable[[], object], what: str) -> None:
            def holds() -> object:
                mirror.check()
                return condition()

            try:
                until(holds, seconds=SECONDS_MAX, what=what)
            except TimeoutError as error:
                raise AssertionError(f"{error}: {mirror.log()}") from error

        known = AdminClient({"bootstrap.servers": cluster.bootstrap})
        wait(lambda: topic in known.list_topics(timeout=10).topics, f"{topic} exists")
        copied = _all(cluster.bootstrap, topic, RECORDS)
        assert copied == _all(source.bootstrap, topic, RECORDS)

        partitions = known.list_topics(topic, timeout=10).topics[topic].partitions
        assert [len(each.replicas) for each in partitions.values()] == [3] * PARTITIONS
        wait(lambda: CONFIGS.items() <= _configs(cluster.bootstrap, topic).items(), "settings")

        _write(source.bootstrap, topic, range(RECORDS, RECORDS + LATER))
        total = RECORDS + LATER
        assert len(_all(cluster.bootstrap, topic, total)) == total

        # A partition without a committed offset has -1001 on both sides.
        wait(
            lambda: (
                [at >= 0 for at in _committed(cluster.bootstrap, group, topic)]
                == [at >= 0 for at in committed]
            ),
            "the group's offsets arrive",
        )
        moved = _committed(cluster.bootstrap, group, topic)
        assert all(new <= old for new, old in zip(moved, committed, strict=True))
        left = total - sum(max(at, 0) for at in moved)
        after = _read_in_group(cluster.bootstrap, group, topic, left)

        # A group that has read everything continues without a repetition.
        current = make_name()
        _read_in_group(source.bootstrap, current, topic, total)
        ends = [total // PARTITIONS] * PARTITIONS
        assert _committed(source.bootstrap, current, topic) == ends
        wait(lambda: _committed(cluster.bootstrap, current, topic) == ends, "the ends arrive")
    everything = _all(source.bootstrap, topic, total)
    assert {row[1] for row in before} | {row[1] for row in after} == {row[1] for row in everything}
    cluster.wait_healthy()
