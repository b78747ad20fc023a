"""Commands while only one node of three is up."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from riverrun.cli.records.producing import ProducePlan, write_lines
from riverrun.client.pool import ConnectionPool
from riverrun.client.retry import RetryPolicy
from tests.cli.commands import Cli
from tests.clusters import Cluster, serve_three

TOPIC = "greetings"
LEFT = 1


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with serve_three(tmp_path_factory.mktemp("lonely")) as cluster:
        cli = Cli(cluster.bootstrap)
        cli.run("topics", "create", TOPIC, "--partitions", "3", "--replication-factor", "3")
        for partition in range(3):
            cli.write(TOPIC, "hello\n", "--partition", str(partition))
        cluster.wait_healthy()
        for node in (2, 3):
            cluster.nodes[node].kill()
        yield cluster


@pytest.fixture
def cli(cluster: Cluster) -> Cli:
    return Cli(cluster.bootstrap)


def test_a_topic_is_described_as_far_as_known(cli: Cli) -> None:
    (topic,) = json.loads(cli.run("topics", "describe", TOPIC, "--json"))
    rows = topic["partitions"]
    assert [row["partition"] for row in rows] == [0, 1, 2]
    assert {tuple(sorted(row["replicas"])) for row in rows} == {(1, 2, 3)}
    answers = {row["partition"]: row["leader"] == LEFT for row in rows}
    assert {row["partition"]: row["leader_answers"] for row in rows} == answers
    assert False in answers.values()
    known = {index: 1 if is_known else None for index, is_known in answers.items()}
    assert {row["partition"]: row["end_offset"] for row in rows} == known


def test_a_consumer_with_a_limit_ends_and_names_the_missing_node(cli: Cli) -> None:
    done = cli.done("consume", TOPIC, "--from-beginning", "--until-end", "--timeout", "1")
    assert done.returncode == 3
    words = done.stderr.decode()
    assert any(f"node {node} at 127.0.0.1:" in words for node in (2, 3)), words
    assert "does not answer: connection refused" in words
    assert "riverrun cluster status" in words


def leaders(cli: Cli) -> dict[int, int]:
    (topic,) = json.loads(cli.run("topics", "describe", TOPIC, "--json"))
    return {row["partition"]: row["leader"] for row in topic["partitions"]}


def test_a_producer_reports_what_it_waits_for(cli: Cli) -> None:
    with cli.started("produce", TOPIC) as running:
        running.say("one\n")
        told = running.notice("waiting for ")
        assert "the leader of the quorum" in told or f"topic {TOPIC} to accept" in told


def test_a_producer_names_the_cause_once_and_fails_with_it(
    cluster: Cluster, cli: Cli, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    partition, gone = next((at, node) for at, node in leaders(cli).items() if node != LEFT)
    file = tmp_path / "lines"
    file.write_text("one\n")

    async def write() -> None:
        plan = ProducePlan(topic=TOPIC, partition=partition, acks=1)
        address, retry = cluster.nodes[LEFT].address, RetryPolicy(tries_max=6)
        with file.open() as lines:
            async with ConnectionPool([address], retry=retry) as pool:
                await write_lines(pool, plan, lines.fileno())

    with pytest.raises(ConnectionError, match=f"node {gone} at .* does not answer"):
        asyncio.run(write())
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith(
        f"riverrun: waiting for topic {TOPIC} to accept the records: node {gone}"
    )


def test_a_controller_port_is_recognised(cluster: Cluster) -> None:
    cli = Cli(cluster.nodes[LEFT].controller)
    assert "controller port does not serve" in cli.result("topics", "list").stderr
