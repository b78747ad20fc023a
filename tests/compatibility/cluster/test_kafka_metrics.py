"""`/metrics/kafka` of three nodes: the names of Kafka's dashboards, with values that are true."""

import urllib.request
from collections.abc import Callable, Iterator

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from riverrun.server.metrics.kafka_names import KAFKA_METRICS
from tests.clusters import Cluster
from tests.compatibility.cluster.test_metrics import commit, create
from tests.compatibility.confluent import consumer, read, send
from tests.processes import until

SECONDS_MAX = 60


def page(cluster: Cluster, node: int, query: str = "") -> str:
    url = f"http://{cluster.nodes[node].http}/metrics/kafka{query}"
    with urllib.request.urlopen(url, timeout=30) as response:
        text: str = response.read().decode()
    return text


def types(cluster: Cluster, node: int, query: str = "") -> set[str]:
    """The metrics of the page, also those without a series at the moment."""
    words = [line.split() for line in page(cluster, node, query).splitlines()]
    return {
        row[2] for row in words if row[:2] == ["#", "TYPE"] and not row[2].startswith("process_")
    }


def scrape(cluster: Cluster, node: int, query: str = "") -> Iterator[Sample]:
    for family in text_string_to_metric_families(page(cluster, node, query)):
        assert family.documentation, family.name
        yield from family.samples


def total(cluster: Cluster, name: str, query: str = "", **labels: str) -> float:
    """The sum over all nodes and all series with these labels."""
    return sum(
        sample.value
        for node in cluster.nodes
        for sample in scrape(cluster, node, query)
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def test_every_name_is_served_and_single_partitions_on_request(cluster: Cluster) -> None:
    by_partition = {one.name for one in KAFKA_METRICS if one.is_by_partition}
    names = {one.name for one in KAFKA_METRICS}
    for node in cluster.nodes:
        assert types(cluster, node) == names - by_partition
        assert types(cluster, node, "?partitions=1") == names


def test_lag_of_a_group_is_reported_by_its_coordinator(
    cluster: Cluster, make_name: Callable[[], str]
) -> None:
    topic, group = make_name(), make_name()
    create(cluster, topic, leader=1)
    send(cluster.bootstrap, topic, [b"x", b"y"], acks="all")
    commit(cluster, group, topic, 1)
    for name in ("kafka_consumergroup_lag", "kafka_consumergroup_lag_sum"):
        until(
            lambda name=name: total(cluster, name, consumergroup=group, topic=topic) == 1,  # type: ignore[misc]
            seconds=SECONDS_MAX,
            what=f"{name} of one record",
        )
    for name in ("kafka_consumergroup_current_offset", "kafka_consumergroup_current_offset_sum"):
        assert total(cluster, name, consumergroup=group) == 1
    name = "kafka_consumergroup_members"
    assert total(cluster, name, consumergroup=group) == 0
    with consumer(cluster.bootstrap, group) as reader:
        reader.subscribe([topic])
        read(reader, 1)
        assert total(cluster, name, consumergroup=group) == 1


def test_traffic_has_a_series_for_each_topic_and_one_for_all(
    cluster: Cluster, make_name: Callable[[], str]
) -> None:
    topic = make_name()
    create(cluster, topic, leader=2)
    send(cluster.bootstrap, topic, [b"x" * 1000] * 50, acks="all")
    with consumer(cluster.bootstrap, topic) as reader:
        reader.subscribe([topic])
        assert len(read(reader, 50)) == 50
    prefix = "kafka_server_brokertopicmetrics_"
    assert total(cluster, f"{prefix}messagesin_total", topic=topic) == 50
    assert total(cluster, f"{prefix}bytesin_total", topic=topic) > 50_000
    assert total(cluster, f"{prefix}bytesout_total", topic=topic) > 50_000
    assert total(cluster, f"{prefix}totalfetchrequests_total", topic=topic) >= 1
    assert total(cluster, f"{prefix}failedfetchrequests_total", topic=topic) == 0
    samples = [
        sample for sample in scrape(cluster, 2) if sample.name == f"{prefix}messagesin_total"
    ]
    (of_all,) = [sample.value for sample in samples if not sample.labels]
    assert of_all == sum(sample.value for sample in samples if sample.labels)


def test_a_failed_fetch_is_counted(cluster: Cluster, make_name: Callable[[], str]) -> None:
    topic = make_name()
    create(cluster, topic, leader=3)
    beyond = {"partition": 0, "fetch_offset": 99, "partition_max_bytes": 1, "log_start_offset": -1}
    fields = {
        "replica_id": -1,
        "max_wait_ms": 0,
        "min_bytes": 0,
        "max_bytes": 100,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [beyond]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    with cluster.nodes[3].client() as client:

        def is_out_of_range() -> bool:
            (row,) = client.request("fetch", 11, fields)["responses"][0]["partitions"]
            return bool(row["error_code"] == "OFFSET_OUT_OF_RANGE")

        until(is_out_of_range, seconds=SECONDS_MAX, what="the node leads the new topic")
    name = "kafka_server_brokertopicmetrics_failedfetchrequests_total"
    assert total(cluster, name, topic=topic) == 1


def test_cluster_wide_values_are_counted_once(
    cluster: Cluster, make_name: Callable[[], str]
) -> None:
    topic = make_name()
    create(cluster, topic, leader=3)
    send(cluster.bootstrap, topic, [b"1", b"2"], acks="all")
    assert total(cluster, "kafka_controller_kafkacontroller_activecontrollercount") == 1
    assert total(cluster, "kafka_brokers") == 3
    assert total(cluster, "kafka_topic_partitions", topic=topic) == 1
    per_partition = {"topic": topic, "partition": "0"}
    name = "kafka_topic_partition_current_offset"
    assert total(cluster, name, "?partitions=1", **per_partition) == 2
    assert total(cluster, "kafka_topic_partition_leader", "?partitions=1", **per_partition) == 3
    name = "kafka_topic_partition_under_replicated_partition"
    assert total(cluster, name, "?partitions=1", **per_partition) == 0


def test_one_member_of_the_quorum_leads(cluster: Cluster) -> None:
    name = "kafka_server_raftmetrics_current_state"
    assert total(cluster, name, current_state="leader") == 1
    assert total(cluster, name, current_state="follower") == 2
    leader = cluster.controller()
    for node in cluster.nodes:
        values = {sample.name: sample.value for sample in scrape(cluster, node)}
        assert values["kafka_server_raftmetrics_current_leader"] == leader
        assert values["kafka_log_logmanager_offlinelogdirectorycount"] == 0
        idle = values["kafka_network_socketserver_networkprocessoravgidle_percent"]
        assert 0 <= idle <= 1
