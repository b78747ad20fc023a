"""Kafka Streams with exactly_once_v2 while nodes and the application itself are killed."""

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.clusters import Cluster
from tests.compatibility.apache import SOURCE
from tests.compatibility.cluster.applications import Application
from tests.compatibility.confluent import consumer, producer, value_of
from tests.compatibility.conftest import MakeTopic
from tests.processes import until

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]
PARTITIONS = 3
LINES = 200
WORDS_PER_LINE = 5
VOCABULARY = [f"word-{number}" for number in range(20)]
PROGRESS_SECONDS_MAX = 90


class WordCounts:
    """The input that was written, and the committed output that was read so far."""

    def __init__(self, cluster: Cluster, text: str, output: Consumer) -> None:
        self._sender = producer(cluster.bootstrap, enable_idempotence=True)
        self._random = random.Random(19)
        self._text = text
        self._output = output
        self.written: Counter[str] = Counter()
        self.counts: dict[str, list[int]] = defaultdict(list)

    def write(self) -> None:
        """Write a round of lines."""
        for _ in range(LINES):
            words = self._random.choices(VOCABULARY, k=WORDS_PER_LINE)
            partition = self._random.randrange(PARTITIONS)
            self._sender.produce(self._text, " ".join(words), partition=partition)
            self.written.update(words)
        assert self._sender.flush(PROGRESS_SECONDS_MAX) == 0

    def read(self, applications: list[Application], *, leaving: int = 0) -> None:
        """Read until all written words but ``leaving`` are counted."""
        target = self.written.total() - leaving

        def is_done() -> bool:
            for application in applications:
                application.check()
            for message in self._output.consume(1000, 0.1):
                assert message.error() is None, message.error()
                key = message.key()
                assert key is not None, "a count has a word"
                self.counts[str(key, "utf-8")].append(int(value_of(message)))
            return sum(map(len, self.counts.values())) >= target

        until(is_done, seconds=PROGRESS_SECONDS_MAX, what=f"{target} words are counted")

    def check(self) -> None:
        """Each word was counted from one, without a gap or a repetition."""
        expected = {word: [*range(1, total + 1)] for word, total in self.written.items()}
        assert self.counts == expected


def test_streams_count_words_exactly_once_through_kills(
    cluster: Cluster, make_topic: MakeTopic, make_name: Callable[[], str], tmp_path: Path
) -> None:
    text, counts = make_topic(partitions=PARTITIONS), make_topic(partitions=PARTITIONS)
    name = make_name()
    source = SOURCE.with_name("WordCount.java")

    def instance(number: int) -> Application:
        words = (cluster.bootstrap, name, text, counts, tmp_path / f"state-{number}")
        return Application(tmp_path / f"{number}.log", source, *words)

    with ExitStack() as stack:
        settings = {"isolation_level": "read_committed", "enable_auto_commit": False}
        output = stack.enter_context(consumer(cluster.bootstrap, f"{name}-check", **settings))
        output.assign([TopicPartition(counts, number, 0) for number in range(PARTITIONS)])
        applications = [stack.enter_context(instance(number)) for number in range(2)]
        story = WordCounts(cluster, text, output)
        story.write()
        story.read(applications)
        for victim, node in cluster.nodes.items():
            story.write()
            if victim == 2:
                applications[0].kill()
                applications[0].start()
            node.kill()
            story.write()
            story.read(applications, leaving=WORDS_PER_LINE * LINES // 2)
            node.restart()
            story.read(applications)
            cluster.wait_healthy()
        story.check()
        _wait_for_purge(cluster, f"{name}-words-repartition")
        for application in applications:
            application.stop()
    _check_changelog(cluster, f"{name}-counts-changelog")


def _wait_for_purge(cluster: Cluster, topic: str) -> None:
    """The application deletes the records of its repartition topic that it has consumed."""
    with consumer(cluster.bootstrap, f"{topic}-check") as reader:

        def is_purged() -> bool:
            for partition in range(PARTITIONS):
                low, high = reader.get_watermark_offsets(TopicPartition(topic, partition), 30)
                if low == 0 and high > 0:
                    return False
            return True

        until(is_purged, seconds=PROGRESS_SECONDS_MAX, what=f"{topic} is purged")


def _check_changelog(cluster: Cluster, topic: str) -> None:
    resource = {"resource_type": 2, "resource_name": topic, "configuration_keys": None}
    response = cluster.request("describe_configs", 4, {"resources": [resource]})
    (result,) = response["results"]
    values = {row["name"]: row["value"] for row in result["configs"]}
    assert values["cleanup.policy"] == "compact"
