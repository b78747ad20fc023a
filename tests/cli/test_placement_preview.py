"""riverrun topics create --dry-run: the preview agrees with the placement that follows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewTopic

from tests.cli.commands import Cli
from tests.clusters import Cluster, serve_three
from tests.processes import until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with serve_three(tmp_path_factory.mktemp("preview")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def cluster_cli(three: Cluster) -> Cli:
    return Cli(three.bootstrap)


def previewed(cli: Cli, *words: str) -> list[dict[str, Any]]:
    found = json.loads(cli.run("topics", "create", *words, "--dry-run", "--json"))
    assert isinstance(found, list)
    return found


def counts(rows: list[dict[str, Any]], when: str) -> dict[int, tuple[int, int]]:
    return {row["id"]: (row[f"replicas_{when}"], row[f"leaders_{when}"]) for row in rows}


def test_preview_has_the_counts_of_the_placement_that_follows(cluster_cli: Cli) -> None:
    words = ("first", "--partitions", "7", "--replication-factor", "2")
    (preview,) = previewed(cluster_cli, *words)
    assert "first" not in cluster_cli.run("topics", "list")
    assert preview["policy"] == "resource-aware"
    assert all(len(row["replicas"]) == len(row["reasons"]) == 2 for row in preview["partitions"])
    after = counts(preview["brokers"], "after")
    assert max(leads for _, leads in after.values()) <= 3
    cluster_cli.run("topics", "create", *words)
    (second,) = previewed(cluster_cli, "second", "--partitions", "1")
    now = counts(second["brokers"], "before")
    # Ties are drawn, so the broker with the most leaders may be another one.
    for column in (0, 1):
        assert sorted(row[column] for row in now.values()) == sorted(
            row[column] for row in after.values()
        )


def test_cordoned_broker_gets_nothing_in_preview_and_placement(
    cluster_cli: Cli, three: Cluster
) -> None:
    admin = AdminClient({"bootstrap.servers": three.bootstrap})
    cluster_cli.run("cluster", "config", "set", "--node", "2", "cordoned.log.dirs=*")
    words = ("beside", "--partitions", "4", "--replication-factor", "2")

    def state() -> object:
        return previewed(cluster_cli, "seen", *words[1:])[0]["brokers"][1]["state"]

    def has_room_for_three() -> bool:
        """Whether the controller uses broker 2, which reports its cordon with a heartbeat."""
        wide = NewTopic("wide", num_partitions=1, replication_factor=3)
        try:
            admin.create_topics([wide], validate_only=True)["wide"].result(30)
        except KafkaException:
            return False
        return True

    until(lambda: state() == "cordoned", seconds=30, what="broker 2 reports that it is cordoned")
    until(lambda: not has_room_for_three(), seconds=30, what="the controller knows the cordon")
    (preview,) = previewed(cluster_cli, *words)
    assert {node for row in preview["partitions"] for node in row["replicas"]} == {1, 3}
    assert preview["brokers"][1]["note"] == "cordoned: gets no new replicas"
    cluster_cli.run("topics", "create", *words)
    (topic,) = json.loads(cluster_cli.run("topics", "describe", "beside", "--json"))
    assert {node for row in topic["partitions"] for node in row["replicas"]} == {1, 3}
    cluster_cli.run("cluster", "config", "unset", "--node", "2", "cordoned.log.dirs")
    until(lambda: state() == "active", seconds=30, what="broker 2 is not cordoned any more")
    until(has_room_for_three, seconds=30, what="the controller knows the end of the cordon")


def test_draining_broker_gets_nothing_in_preview_and_placement(
    cluster_cli: Cli, three: Cluster
) -> None:
    admin = AdminClient({"bootstrap.servers": three.bootstrap})
    draining = ConfigEntry(
        "broker.mode", "decommissioning", incremental_operation=AlterConfigOpType.SET
    )
    broker = ConfigResource(ConfigResource.Type.BROKER, "3", incremental_configs=[draining])
    admin.incremental_alter_configs([broker])[broker].result(30)
    words = ("third", "--partitions", "4", "--replication-factor", "2")

    def is_seen() -> bool:
        """Whether broker 3 reports the setting, which it learns after the controller."""
        return bool(previewed(cluster_cli, *words)[0]["brokers"][2]["state"] == "draining")

    until(is_seen, seconds=30, what="broker 3 knows that it is draining")
    (preview,) = previewed(cluster_cli, *words)
    assert {node for row in preview["partitions"] for node in row["replicas"]} == {1, 2}
    assert preview["brokers"][2]["note"] == "draining: gets no new replicas"
    cluster_cli.run("topics", "create", *words)
    (topic,) = json.loads(cluster_cli.run("topics", "describe", "third", "--json"))
    assert {node for row in topic["partitions"] for node in row["replicas"]} == {1, 2}
    refused = cluster_cli.result("topics", "create", "x", "--replication-factor", "3", "--dry-run")
    assert refused.exit_code == 1
    assert "INVALID_REPLICATION_FACTOR" in refused.stderr


def test_plain_rows_name_the_reason(cli: Cli, name: str) -> None:
    rows = cli.rows("topics", "create", name, "--partitions", "2", "--dry-run")
    assert [row[:5] for row in rows if row[0] == "replica"] == [
        ["replica", name, str(index), "1", "leader"] for index in (0, 1)
    ]
    assert rows[0][5].startswith("fewest leaders among its replicas, 0 replicas of the topic")
    assert rows[-1][:4] == ["broker", "1", "-", "active"]


def test_preview_refuses_what_the_cluster_would_refuse(cli: Cli, name: str) -> None:
    cli.run("topics", "create", name)
    again = cli.result("topics", "create", name, "--dry-run")
    assert again.exit_code == 1
    assert "TOPIC_ALREADY_EXISTS" in again.stderr
