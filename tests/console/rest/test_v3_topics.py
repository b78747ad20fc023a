"""REST v3: clusters, brokers, topics, settings and partitions; real clients see the results."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource

from tests.clusters import Cluster
from tests.console.rest.caller import Caller, V3Caller
from tests.processes import until

pytestmark = pytest.mark.slow


def admin_of(cluster: Cluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap})


def create(v3: V3Caller, name: str, **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = v3.call("POST", "topics", {"topic_name": name, **more}, status=201)
    return made


@pytest.mark.parametrize("root", ["/v3", "/kafka/v3"])
def test_links_lead_to_all_resources_of_a_cluster(
    cluster: Cluster, rest: Caller, root: str
) -> None:
    v3 = V3Caller(rest, root)
    found = v3.get("")
    assert found["kind"] == "KafkaCluster"
    assert found["metadata"]["self"] == f"{rest.base}{root}/clusters/{v3.cluster_id}"
    assert found["metadata"]["resource_name"] == f"crn:///kafka={v3.cluster_id}"
    links = {key: value["related"] for key, value in found.items() if "related" in value}
    assert set(links) == {
        "acls", "broker_configs", "brokers", "consumer_groups", "controller",
        "partition_reassignments", "topics",
    }  # fmt: skip
    for key, link in links.items():
        status = 400 if key == "acls" else 200  # access control is off in this cluster
        assert rest.send("GET", link.removeprefix(rest.base)).status_code == status, link
    controller = rest.get(links["controller"].removeprefix(rest.base))
    assert controller["broker_id"] == cluster.controller()
    (listed,) = rest.get(f"{root}/clusters")["data"]
    assert listed == found


def test_brokers_have_their_addresses_and_settings(cluster: Cluster, v3: V3Caller) -> None:
    listed = v3.get("brokers")
    assert (listed["kind"], listed["metadata"]["next"]) == ("KafkaBrokerList", None)
    assert [(row["broker_id"], row["port"]) for row in listed["data"]] == [
        (node, member.address[1]) for node, member in cluster.nodes.items()
    ]
    found = v3.get("brokers/2/configs/node.id")
    assert (found["kind"], found["value"], found["source"]) == (
        "KafkaBrokerConfig",
        "2",
        "STATIC_BROKER_CONFIG",
    )
    assert found["is_read_only"]
    everywhere = v3.get("brokers/-/configs")["data"]
    assert {row["broker_id"] for row in everywhere if row["name"] == "node.id"} == {1, 2, 3}
    assert v3.error("GET", "brokers/9", status=404) == 404
    assert v3.error("GET", "brokers/x/configs", status=404) == 404
    assert v3.error("GET", "brokers/1/configs/nosuch", status=404) == 404
    assert v3.error("PUT", "brokers/1/configs/node.id", {"value": "7"}, status=400) == 40002


def test_settings_of_brokers_are_changed_for_one_and_for_all(v3: V3Caller) -> None:
    name = "message.max.bytes"
    assert v3.error("GET", f"broker-configs/{name}", status=404) == 404
    v3.call("PUT", f"broker-configs/{name}", {"value": "2000000"}, status=204)

    def of_all() -> bool:
        response = v3.send("GET", f"broker-configs/{name}")
        return response.status_code == 200 and response.json()["value"] == "2000000"

    until(of_all, seconds=30, what="the setting of all brokers is known")
    change = {"data": [{"name": name, "value": "3000000"}]}
    v3.call("POST", "brokers/1/configs:alter", {**change, "validate_only": True}, status=204)
    assert v3.get(f"brokers/1/configs/{name}")["value"] == "2000000"
    v3.call("POST", "brokers/1/configs:alter", change, status=204)
    until(
        lambda: v3.get(f"brokers/1/configs/{name}")["source"] == "DYNAMIC_BROKER_CONFIG",
        seconds=30,
        what="broker 1 has its own value",
    )
    assert v3.get(f"brokers/2/configs/{name}")["value"] == "2000000"
    v3.call("DELETE", f"brokers/1/configs/{name}", status=204)
    end = {"data": [{"name": name, "operation": "DELETE"}]}
    v3.call("POST", "broker-configs:alter", end, status=204)
    until(
        lambda: v3.get(f"brokers/1/configs/{name}")["is_default"],
        seconds=30,
        what="the default holds",
    )


def test_a_topic_that_v3_creates_is_seen_by_a_real_client(
    cluster: Cluster, v3: V3Caller, name: str
) -> None:
    settings = [{"name": "cleanup.policy", "value": "compact"}]
    tried = {"topic_name": name, "partitions_count": 3, "validate_only": True}
    v3.call("POST", "topics", tried, status=200)
    assert v3.error("GET", f"topics/{name}", status=404) == 40403
    made = create(v3, name, partitions_count=3, replication_factor=2, configs=settings)
    assert (made["kind"], made["partitions_count"], made["replication_factor"]) == (
        "KafkaTopic",
        3,
        2,
    )
    assert not made["is_internal"]
    admin = admin_of(cluster)
    until(lambda: name in admin.list_topics(timeout=10).topics, seconds=30, what="it is listed")
    seen = admin.list_topics(name, timeout=10).topics[name].partitions
    assert {index: len(row.replicas) for index, row in seen.items()} == {0: 2, 1: 2, 2: 2}
    resource = ConfigResource(ConfigResource.Type.TOPIC, name)
    described = admin.describe_configs([resource])[resource].result(30)
    assert described["cleanup.policy"].value == "compact"

    grown = v3.call("PATCH", f"topics/{name}", {"partitions_count": 5})
    assert grown["partitions_count"] == 5
    until(lambda: v3.get(f"topics/{name}")["partitions_count"] == 5, seconds=30, what="five")
    assert v3.error("PATCH", f"topics/{name}", {"partitions_count": 2}, status=400) == 40002
    assert name in [row["topic_name"] for row in v3.get("topics")["data"]]
    v3.call("DELETE", f"topics/{name}", status=204)
    assert v3.error("DELETE", f"topics/{name}", status=404) == 40403
    until(lambda: name not in admin.list_topics(timeout=10).topics, seconds=30, what="it is gone")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, 400),
        ({"topic_name": "a/b"}, 40002),
        ({"topic_name": "ok", "replication_factor": 9}, 40002),
        ({"topic_name": "ok", "partitions_count": "many"}, 400),
        ({"topic_name": "ok", "configs": [{"name": "nosuch", "value": "1"}]}, 40002),
        (
            {
                "topic_name": "ok",
                "partitions_count": 1,
                "replicas_assignments": [{"partition_id": 0, "broker_ids": [1]}],
            },
            400,
        ),
    ],
)
def test_bad_topics_are_refused(v3: V3Caller, body: dict[str, Any], code: int) -> None:
    assert v3.error("POST", "topics", body, status=400) == code


def test_an_existing_topic_is_error_40002(v3: V3Caller, name: str) -> None:
    create(v3, name)
    assert v3.error("POST", "topics", {"topic_name": name}, status=400) == 40002


def test_settings_of_a_topic_are_set_reset_and_altered_together(v3: V3Caller, name: str) -> None:
    create(v3, name)
    path = f"topics/{name}/configs"
    v3.call("PUT", f"{path}/retention.ms", {"value": "60000"}, status=204)
    found = v3.get(f"{path}/retention.ms")
    assert (found["kind"], found["value"], found["is_default"]) == (
        "KafkaTopicConfig",
        "60000",
        False,
    )
    assert found["source"] == found["synonyms"][0]["source"] == "DYNAMIC_TOPIC_CONFIG"
    v3.call("DELETE", f"{path}/retention.ms", status=204)
    assert v3.get(f"{path}/retention.ms")["is_default"]
    batch = [
        {"name": "retention.ms", "value": "70000"},
        {"name": "cleanup.policy", "value": "compact", "operation": "SET"},
    ]
    v3.call("POST", f"{path}:alter", {"data": batch}, status=204)
    values = {row["name"]: row["value"] for row in v3.get(path)["data"]}
    assert (values["retention.ms"], values["cleanup.policy"]) == ("70000", "compact")
    everywhere = v3.get("topics/-/configs")["data"]
    mine = [row["value"] for row in everywhere if row["topic_name"] == name]
    assert "70000" in mine
    assert v3.error("PUT", f"{path}/retention.ms", {"value": "x"}, status=400) == 40002
    assert v3.error("PUT", f"{path}/nosuch", {"value": "x"}, status=400) == 40002
    assert v3.error("GET", f"{path}/nosuch", status=404) == 404
    assert v3.error("GET", "topics/nosuch/configs", status=404) == 40403
    assert (
        v3.error("PUT", "topics/nosuch/configs/retention.ms", {"value": "1"}, status=404) == 40403
    )
    twice = {"data": [batch[0], batch[0]]}
    assert v3.error("POST", f"{path}:alter", twice, status=400) == 400
    assert v3.error("POST", f"{path}:alter", {"data": []}, status=400) == 400


def test_partitions_have_replicas_on_brokers(v3: V3Caller, name: str) -> None:
    rows = [{"partition_id": 0, "broker_ids": [2, 3]}, {"partition_id": 1, "broker_ids": [3, 1]}]
    create(v3, name, replicas_assignments=rows)
    path = f"topics/{name}/partitions"
    listed = v3.get(path)["data"]
    assert [row["partition_id"] for row in listed] == [0, 1]
    assert listed[0]["leader"]["related"].endswith(f"/{path}/0/replicas/2")
    assert v3.get(f"{path}/1") == listed[1]
    until(
        lambda: all(row["is_in_sync"] for row in v3.get(f"{path}/0/replicas")["data"]),
        seconds=30,
        what="the replicas are in sync",
    )
    replicas = v3.get(f"{path}/0/replicas")["data"]
    assert [(row["broker_id"], row["is_leader"]) for row in replicas] == [(2, True), (3, False)]
    assert v3.get(f"{path}/0/replicas/3") == replicas[1]
    held = [
        row["partition_id"]
        for row in v3.get("brokers/3/partition-replicas")["data"]
        if row["topic_name"] == name
    ]
    assert held == [0, 1]
    assert v3.error("GET", f"{path}/7", status=404) == 40403
    assert v3.error("GET", f"{path}/0/replicas/1", status=404) == 404
    assert v3.error("GET", f"{path}/0/reassignment", status=404) == 404
    assert v3.get(f"{path}/-/reassignment")["data"] == []
    assert v3.error("GET", "topics/nosuch/partitions", status=404) == 40403
    assert v3.error("GET", "topics/nosuch/partitions/-/reassignment", status=404) == 40403


def test_unknown_clusters_and_paths_have_the_form_of_v3(rest: Caller, v3: V3Caller) -> None:
    for path in ("/v3/clusters/nosuch", "/v3/clusters/nosuch/topics", "/kafka/v3/nosuch"):
        response = rest.send("GET", path)
        assert (response.status_code, response.json()["error_code"]) == (404, 404), path
    response = v3.send("PUT", "topics")
    assert (response.status_code, response.json()["error_code"]) == (405, 405)


def test_v3_is_in_the_openapi_document(rest: Caller) -> None:
    document = rest.get("/api/v1/openapi.json")
    tagged = [
        (path, operation["operationId"])
        for path, operations in document["paths"].items()
        for operation in operations.values()
        if operation["tags"] == ["v3"]
    ]
    paths = [path for path, _ in tagged]
    for root in ("/v3", "/kafka/v3"):
        assert f"{root}/clusters/{{cluster_id}}/topics/{{topic_name}}/records" in paths
        assert f"{root}/clusters/{{cluster_id}}/consumer-groups/{{consumer_group_id}}/lags" in paths
    assert len({name for _, name in tagged}) == len(tagged)
    failure = document["paths"]["/v3/clusters"]["get"]["responses"]["default"]
    assert failure["content"]["application/json"]["schema"]["$ref"].endswith("/V3Error")
