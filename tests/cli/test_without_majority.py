"""What commands say while one node of three is left, which is when people look."""

import json
from collections.abc import Iterator

import pytest

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


def test_a_topic_is_described_as_far_as_anybody_knows(cli: Cli) -> None:
    (topic,) = json.loads(cli.run("topics", "describe", TOPIC, "--json"))
    rows = topic["partitions"]
    assert [row["partition"] for row in rows] == [0, 1, 2]
    assert {tuple(sorted(row["replicas"])) for row in rows} == {(1, 2, 3)}
    answers = {row["partition"]: row["leader"] == LEFT for row in rows}
    assert {row["partition"]: row["leader_answers"] for row in rows} == answers
    assert False in answers.values()
    known = {index: 1 if is_known else None for index, is_known in answers.items()}
    assert {row["partition"]: row["end_offset"] for row in rows} == known


def test_a_reader_with_a_limit_ends_and_names_the_node_that_is_missing(cli: Cli) -> None:
    done = cli.done("consume", TOPIC, "--from-beginning", "--until-end", "--timeout", "1")
    assert done.returncode == 3
    words = done.stderr.decode()
    assert any(f"node {node} at 127.0.0.1:" in words for node in (2, 3)), words
    assert "does not answer: connection refused" in words
    assert "riverrun cluster status" in words


def test_a_port_for_controllers_is_called_one(cluster: Cluster) -> None:
    cli = Cli(cluster.nodes[LEFT].controller)
    assert "port for controllers" in cli.result("topics", "list").stderr
