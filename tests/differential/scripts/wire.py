"""The protocol: versions, order of responses, headers and invalid frames."""

import struct
from typing import Any

from tests.differential.batches import batch
from tests.differential.script import Script, versions
from tests.differential.scripts.members import Member
from tests.differential.scripts.requests import (
    commit_fields,
    fetch_fields,
    metadata_fields,
    new_topic,
    offset_fetch_fields,
    produce_fields,
    sorted_offsets,
    without_defaults,
)
from tests.plain_client import API_KEYS, request_body, request_frame

METRICS = 16  # client metrics
SOFTWARE = {"client_software_name": "plain", "client_software_version": "1.0"}
SERVED = (
    *("produce", "fetch", "list_offsets", "metadata", "offset_commit", "offset_fetch"),
    *("find_coordinator", "join_group", "heartbeat", "leave_group", "sync_group"),
    *("describe_groups", "list_groups", "api_versions", "create_topics", "delete_topics"),
    *("delete_records", "init_producer_id", "offset_for_leader_epoch", "describe_configs"),
    *("alter_configs", "describe_log_dirs", "create_partitions", "delete_groups"),
    *("incremental_alter_configs", "offset_delete", "describe_quorum", "describe_cluster"),
    *("list_config_resources", "describe_topic_partitions"),
)


def api_versions(script: Script) -> None:
    request = script.request
    request("all", "api_versions", SOFTWARE, only=_served)
    if script.at_least("api_versions", 3):
        for name, version in [("", "1"), ("with space", "1"), ("x", ""), ("-x", "1"), ("x", "!")]:
            fields = {"client_software_name": name, "client_software_version": version}
            request(f"software {name!r} {version!r}", "api_versions", fields, only=_served)
    body = request_body("api_versions", 3, SOFTWARE)
    frame = _frame(API_KEYS["api_versions"], 99, body, tags=b"\0")
    (response,) = script.send_raw("unknown version", frame, [("api_versions", 0)])
    assert response["error_code"] == "UNSUPPORTED_VERSION", response
    script.exchanges[-1].response = _served(response)
    request("the connection still serves", "api_versions", SOFTWARE, only=_served, on="raw")


def every_version(script: Script) -> None:
    """One valid request of each API in each version."""
    if script.era != "newest":
        return
    script.wait_for_coordinator()
    for api in SERVED:
        for version in versions(api):
            fields, only = simple_request(script, api, version)
            script.request("a good request", api, fields, version=version, only=only)


def cluster(script: Script) -> None:
    request = script.request
    request("cluster", "describe_cluster", {"include_cluster_authorized_operations": False})
    request("operations", "describe_cluster", {"include_cluster_authorized_operations": True})
    if script.at_least("describe_cluster", 1):
        for kind in (2, 0, 9):
            fields = {"include_cluster_authorized_operations": False, "endpoint_type": kind}
            request(f"endpoint type {kind}", "describe_cluster", fields)
    if script.at_least("describe_cluster", 2):
        request("fenced too", "describe_cluster", {"include_fenced_brokers": True})
    name = script.topic("dirs")
    topic_id = script.make_topic(name, partitions=2)
    two: list[tuple[int, bytes | None]] = [(0, batch([b"x" * 100])), (1, batch([b"y"]))]
    script.quietly("produce", produce_fields([((name, topic_id), two)]))

    def dirs(label: str, topics: Any) -> None:
        request(label, "describe_log_dirs", {"topics": topics}, only=_own_dirs(script))

    dirs("all directories", None)
    dirs("two partitions", [{"topic": name, "partitions": [0, 1]}])
    dirs("one partition", [{"topic": name, "partitions": [1]}])
    dirs("unknown partition", [{"topic": name, "partitions": [5]}])
    dirs("unknown topic", [{"topic": script.topic("nobody"), "partitions": [0]}])
    dirs("no topics", [])
    dirs("no partitions", [{"topic": name, "partitions": []}])


def quorum(script: Script) -> None:
    """DescribeQuorum on a broker, and the resources that have settings."""
    request = script.request
    request("the metadata", "describe_quorum", _quorum("__cluster_metadata", 0), only=_voters)
    request("another partition", "describe_quorum", _quorum("__cluster_metadata", 1), only=_voters)
    request("another topic", "describe_quorum", _quorum("other", 0), only=_voters)
    request("nothing", "describe_quorum", {"topics": []}, only=_voters)
    if script.at_least("list_config_resources", 1):
        name = script.topic("t")
        script.make_topic(name)
        for label, kinds in [
            ("groups", [32]),
            ("metrics", [METRICS]),
            ("loggers", [8]),
            ("brokers", [4]),
            ("topics", [2]),
            ("unknown kind", [77]),
            ("all kinds", []),
        ]:
            fields = {"resource_types": kinds}
            request(label, "list_config_resources", fields, only=_own_resources(script))


def pipelined(script: Script) -> None:
    """Responses come in the order of requests, even if an early one waits."""
    name = script.topic("t")
    topic = (name, script.make_topic(name))
    version = script.version("fetch")
    row = {"partition": 0, "fetch_offset": 0}
    waits = fetch_fields([(topic, [row])], max_wait=200)
    frames = request_frame("fetch", version, waits, correlation_id=11)
    meta = script.version("metadata")
    for number in (12, 13):
        frames += request_frame("metadata", meta, metadata_fields([name]), correlation_id=number)
    put = produce_fields([(topic, [(0, batch([b"later"]))])])
    frames += request_frame("produce", script.version("produce"), put, correlation_id=14)
    order = [("fetch", version), ("metadata", meta), ("metadata", meta)]
    script.send_raw("in order", frames, [*order, ("produce", script.version("produce"))])
    version = script.version("api_versions")
    frame = request_frame("api_versions", version, SOFTWARE, correlation_id=-5)
    script.send_raw("negative correlation id", frame, [("api_versions", version)])
    script.exchanges[-1].response = _served(script.exchanges[-1].response)


def headers(script: Script) -> None:
    """Unusual but valid headers: no client id, unknown tags."""
    if script.era != "newest":
        return
    name = script.topic("t")
    script.make_topic(name)
    fields = metadata_fields([name])
    body = request_body("metadata", 8, fields)
    script.send_raw("null client id", _frame(3, 8, body, client=None), [("metadata", 8)])
    script.send_raw("empty client id", _frame(3, 8, body, client=b""), [("metadata", 8)])
    body = request_body("metadata", 12, fields)
    tags = b"\x02\x05\x03abc\x09\x01x"
    script.send_raw(
        "unknown tags in the header", _frame(3, 12, body, tags=tags), [("metadata", 12)]
    )
    script.send_raw(
        "unknown tags in the body", _frame(3, 12, body[:-1] + tags, tags=b"\0"), [("metadata", 12)]
    )


def bad_frames(script: Script) -> None:
    """Kafka closes the connection on all of these."""
    if script.era != "newest":
        return
    name = script.topic("t")
    script.make_topic(name)
    body = request_body("metadata", 8, metadata_fields([name]))
    closed = script.expect_closed
    closed("length of zero", struct.pack(">i", 0))
    closed("negative length", struct.pack(">i", -1))
    closed("length above the limit", struct.pack(">i", (1 << 31) - 1))
    closed("a header too short", struct.pack(">ih", 2, 3))
    closed("unknown api", _frame(999, 0, b""))
    closed("negative api", _frame(-1, 0, b""))
    closed("body cut short", _frame(3, 8, body[:-4]))
    closed("no body", _frame(3, 8, b""))
    closed("huge array length", _frame(3, 8, struct.pack(">i", 1 << 30) + b"\0\0\0"))
    closed("huge compact array", _frame(3, 12, b"\xff\xff\xff\xff\x07\0\0", tags=b"\0"))
    closed("string longer than the frame", _frame(3, 8, struct.pack(">ih", 1, 999) + b"ab"))
    for api in SERVED:
        if api != "api_versions":
            key, served = API_KEYS[api], versions(api)
            closed(f"{api} one version too new", _frame(key, served[-1] + 1, b"", tags=b"\0"))
            if served[0] and api != "produce":
                closed(f"{api} one version too old", _frame(key, served[0] - 1, b""))
    closed("produce 0", _frame(0, 0, struct.pack(">hii", 1, 1000, 0)))
    script.request("others are served", "metadata", metadata_fields([name]), only=_names)


def _frame(
    key: int, version: int, body: bytes, *, client: bytes | None = b"x", tags: bytes = b""
) -> bytes:
    header = struct.pack(">hhi", key, version, 7)
    header += struct.pack(">h", -1) if client is None else struct.pack(">h", len(client)) + client
    frame = header + tags + body
    return struct.pack(">i", len(frame)) + frame


def simple_request(script: Script, api: str, version: int) -> tuple[dict[str, Any], Any]:
    name = script.topic("all")
    if script.look_up(name)["error_code"] != "NONE":
        script.make_topic(name)
    topic = (name, script.wait_for_topic(name))
    group = script.topic("g")
    member = Member(script, group, "a", member_id="nobody")
    by_name: dict[str, Any] = {"name": name, "partitions": [{"partition_index": 0, "offset": 0}]}
    resource = {"resource_type": 2, "resource_name": name}
    match api:
        case "produce":
            return produce_fields([(topic, [(0, batch([b"v%d" % version]))])]), None
        case "fetch":
            rows: list[dict[str, Any]] = [{"partition": 0, "fetch_offset": 9}]
            return fetch_fields([(topic, rows)], max_bytes=200), None
        case "list_offsets":
            rows = [{"partition_index": 0, "timestamp": -1}]
            return {"replica_id": -1, "topics": [{"name": name, "partitions": rows}]}, None
        case "metadata":
            return metadata_fields([name]), None
        case "offset_commit":
            return commit_fields(group, [(topic, 0, version, "words")]), None
        case "offset_fetch":
            return offset_fetch_fields([(group, [(topic, [0])])]), sorted_offsets
        case "find_coordinator":
            return {"key": group, "coordinator_keys": [group], "key_type": 0}, None
        case "join_group":
            return member.join_fields(), None
        case "heartbeat":
            return {"group_id": group, "generation_id": 1, "member_id": "nobody"}, None
        case "leave_group":
            who = [{"member_id": "nobody", "group_instance_id": None}]
            return {"group_id": group, "member_id": "nobody", "members": who}, None
        case "sync_group":
            return member.sync_fields(), None
        case "describe_groups":
            return {"groups": [group]}, None
        case "list_groups":
            return {}, lambda response: {"error_code": response["error_code"]}
        case "api_versions":
            return SOFTWARE, _served
        case "create_topics":
            new = new_topic(script.topic(f"made-{version}"))
            return {"topics": [new], "timeout": 10000}, without_defaults
        case "delete_topics":
            made = script.topic(f"made-{version + 1}")
            rows = [{"name": made, "topic_id": None}]
            return {"topic_names": [made], "topics": rows, "timeout": 10000}, None
        case "delete_records":
            return {"topics": [by_name], "timeout": 10000}, None
        case "init_producer_id":
            return {"transactional_id": None, "transaction_timeout": 60000}, None
        case "offset_for_leader_epoch":
            rows = [{"partition": 0, "leader_epoch": 0}]
            return {"topics": [{"topic": name, "partitions": rows}]}, None
        case "describe_configs":
            return {"resources": [{**resource, "configuration_keys": ["retention.ms"]}]}, None
        case "alter_configs":
            rows = [{"name": "segment.ms", "value": "70000"}]
            return {"resources": [{**resource, "configs": rows}]}, None
        case "incremental_alter_configs":
            rows = [{"name": "segment.ms", "config_operation": 0, "value": "80000"}]
            return {"resources": [{**resource, "configs": rows}]}, None
        case "describe_log_dirs":
            return {"topics": [{"topic": name, "partitions": [0]}]}, _own_dirs(script)
        case "create_partitions":
            rows = [{"name": name, "count": 3, "assignments": None}]
            return {"topics": rows, "timeout": 10000, "validate_only": True}, None
        case "delete_groups":
            return {"groups_names": [script.topic("nobody")]}, None
        case "offset_delete":
            return {"group_id": group, "topics": [by_name]}, None
        case "describe_quorum":
            return _quorum("__cluster_metadata", 0), _voters
        case "list_config_resources":
            return {"resource_types": [METRICS]}, None
        case "describe_cluster":
            return {}, None
        case "describe_topic_partitions":
            return {"topics": [{"name": name}]}, None
    raise KeyError(api)


def _served(response: Any) -> Any:
    """Keep only the APIs that the scripts cover."""
    keys = {API_KEYS[api] for api in SERVED}
    rows = [row for row in response["api_keys"] if row["api_key"] in keys]
    kept = {name: value for name, value in response.items() if "features" not in name}
    return {**kept, "api_keys": sorted(rows, key=lambda row: row["api_key"])}


def _quorum(topic: str, partition: int) -> dict[str, Any]:
    return {"topics": [{"topic_name": topic, "partitions": [{"partition_index": partition}]}]}


def _voters(response: Any) -> Any:
    """Keep voters and leader; offsets and timestamps depend on timing."""
    for topic in response["topics"]:
        for row in topic["partitions"]:
            row["current_voters"] = [voter["replica_id"] for voter in row["current_voters"]]
            for name in ("high_watermark", "leader_epoch"):
                del row[name]
    return response


def _own_resources(script: Script) -> Any:
    """Keep the brokers and the topics of this script."""

    def own(response: Any) -> Any:
        rows = response["config_resources"]
        mine = [row for row in rows if row["resource_name"].startswith(script.topic(""))]
        brokers = [row for row in rows if row["resource_type"] in (4, 8)]
        return {**response, "config_resources": [*brokers, *mine]}

    return own


def _names(response: Any) -> Any:
    return [topic["name"] for topic in response["topics"]]


def _own_dirs(script: Script) -> Any:
    def own(response: Any) -> Any:
        for result in response["results"]:
            topics = [row for row in result["topics"] if row["name"].startswith(script.topic(""))]
            for topic in topics:
                topic["partitions"].sort(key=lambda row: row["partition_index"])
            result["topics"] = topics
        return response

    return own
