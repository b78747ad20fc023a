"""Metrics of three nodes: traffic by topic, and the lag of groups on their coordinators."""

import re
import signal
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from riverrun.server.metrics.group_lag import REFRESH_SECONDS
from tests.clusters import Cluster
from tests.compatibility.confluent import consumer, read, send
from tests.processes import until

SECONDS_MAX = 60
LINE = re.compile(r"(\w+)(?:{(.*)})? (\S+)")
LABEL = re.compile(r'(\w+)="([^"]*)"')


def scrape(cluster: Cluster, node: int, **wanted: str) -> dict[str, float]:
    """The metrics of a node that have these labels."""
    url = f"http://{cluster.nodes[node].http}/metrics"
    with urllib.request.urlopen(url, timeout=30) as page:
        lines = page.read().decode().splitlines()
    found = {}
    for line in lines:
        matched = LINE.fullmatch(line)
        if matched is not None:
            labels = dict(LABEL.findall(matched[2] or ""))
            if wanted.items() <= labels.items():
                found[matched[1]] = float(matched[3])
    return found


def create(cluster: Cluster, name: str, leader: int) -> None:
    """A topic whose only replica is on one node."""
    place = {"partition_index": 0, "broker_ids": [leader]}
    topic = {"name": name, "num_partitions": -1, "replication_factor": -1, "assignments": [place]}
    made = cluster.request("create_topics", 7, {"topics": [topic], "timeout": 30000})
    assert made["topics"][0]["error_code"] == "NONE"


def commit(cluster: Cluster, group: str, topic: str, offset: int) -> int:
    """Commit as a client that assigns its partitions itself. Returns the coordinator."""
    coordinator = cluster.coordinator(group)
    one = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1}
    fields: dict[str, Any] = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": topic, "partitions": [{**one, "committed_metadata": ""}]}],
    }
    with cluster.nodes[coordinator].client() as client:
        (result,) = client.request("offset_commit", 8, fields)["topics"]
    assert result["partitions"][0]["error_code"] == "NONE"
    return coordinator


@pytest.mark.parametrize("leads", [True, False], ids=["coordinator leads", "another node leads"])
def test_coordinator_reports_the_lag_of_a_group(
    cluster: Cluster, make_name: Callable[[], str], leads: bool
) -> None:
    topic, group = make_name(), make_name()
    coordinator = cluster.coordinator(group)
    leader = coordinator if leads else coordinator % 3 + 1
    create(cluster, topic, leader)
    send(cluster.bootstrap, topic, [b"%d" % number for number in range(10)], acks="all")
    assert commit(cluster, group, topic, 4) == coordinator

    def lag() -> tuple[float, float] | None:
        found = scrape(cluster, coordinator, group=group, topic=topic, partition="0")
        records = found.get("riverrun_group_lag_records")
        return None if records is None else (records, found["riverrun_group_lag_seconds"])

    def lag_of(records: int) -> float:
        """Wait until the lag is that many records. Returns it in seconds."""
        until(
            lambda: (lag() or (None,))[0] == records,
            seconds=SECONDS_MAX,
            what=f"a lag of {records}",
        )
        return (lag() or (0.0, 0.0))[1]

    first = lag_of(6)
    until(lambda: (lag() or (0.0, 0.0))[1] > first, seconds=SECONDS_MAX, what="an older record")
    send(cluster.bootstrap, topic, [b"eleven"], acks="all")
    before = lag_of(7)
    commit(cluster, group, topic, 10)
    assert lag_of(1) <= before + SECONDS_MAX
    commit(cluster, group, topic, 11)
    assert lag_of(0) == 0.0
    others = [node for node in cluster.nodes if node != coordinator]
    for node in others:
        assert scrape(cluster, node, group=group) == {}


def test_lag_has_no_sample_while_the_leader_does_not_answer(
    cluster: Cluster, make_name: Callable[[], str]
) -> None:
    topic, group = make_name(), make_name()
    coordinator = cluster.coordinator(group)
    leader = cluster.nodes[coordinator % 3 + 1]
    create(cluster, topic, leader.id)
    send(cluster.bootstrap, topic, [b"1", b"2"], acks="all")
    commit(cluster, group, topic, 1)

    def has_lag() -> bool:
        found = scrape(cluster, coordinator, group=group, topic=topic)
        return found.get("riverrun_group_lag_records") == 1

    until(has_lag, seconds=SECONDS_MAX, what="a lag of one record")
    leader.kill(signal.SIGSTOP)
    try:
        until(lambda: not has_lag(), seconds=SECONDS_MAX, what="no sample of the lag")
    finally:
        leader.kill(signal.SIGCONT)
    until(has_lag, seconds=SECONDS_MAX + REFRESH_SECONDS, what="a lag of one record")
    cluster.wait_healthy()


def test_traffic_is_counted_by_topic_until_it_is_deleted(
    cluster: Cluster, make_name: Callable[[], str]
) -> None:
    topic = make_name()

    def traffic(node: int) -> dict[str, float]:
        found = scrape(cluster, node, topic=topic)
        return {name: value for name, value in found.items() if "_topic_" in name}

    create(cluster, topic, leader=2)
    send(cluster.bootstrap, topic, [b"x" * 1000] * 50, acks="all")
    sent = traffic(2)
    assert sent["riverrun_topic_records_in_total"] == 50
    assert sent["riverrun_topic_bytes_in_total"] > 50_000
    assert 1 <= sent["riverrun_topic_produce_requests_total"] <= 50
    assert sent["riverrun_topic_bytes_out_total"] == 0
    with consumer(cluster.bootstrap, topic) as reader:
        reader.subscribe([topic])
        assert len(read(reader, 50)) == 50
    received = traffic(2)
    assert received["riverrun_topic_bytes_out_total"] >= sent["riverrun_topic_bytes_in_total"]
    assert received["riverrun_topic_fetch_requests_total"] >= 1
    assert traffic(1) == traffic(3) == {}
    fields = {"topics": [{"name": topic}], "timeout": 30000}
    cluster.request("delete_topics", 6, fields)
    until(lambda: not traffic(2), seconds=SECONDS_MAX, what="no series")


def test_every_node_describes_its_process(cluster: Cluster) -> None:
    for node in cluster.nodes:
        found = scrape(cluster, node)
        assert found["process_resident_memory_bytes"] > 10 << 20
        assert found["process_open_fds"] > 5
        assert found["process_cpu_seconds_total"] > 0
