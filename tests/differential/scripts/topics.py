"""Topics: create, look up, add partitions, describe and delete, valid and invalid."""

from typing import Any

from tests.differential.script import Script
from tests.differential.scripts.requests import (
    create_topic,
    delete_topics,
    metadata_fields,
    new_topic,
    without_defaults,
)

STRANGER = "11111111-2222-3333-4444-555555555555"


def create(script: Script) -> None:
    name = script.topic("good")
    create_topic(script, "three partitions", name, partitions=3)
    script.wait_for_topic(name, 3)
    create_topic(script, "exists", name)
    create_topic(script, "exists, validate only", name, validate_only=True)
    create_topic(script, "defaults", script.topic("defaults"), partitions=-1, replication_factor=-1)
    create_topic(script, "validate only", script.topic("never"), validate_only=True)
    for label, bad in [
        ("empty name", ""),
        ("dot", "."),
        ("two dots", ".."),
        ("slash", "a/b"),
        ("umlaut", "jörg"),
        ("249 characters", script.topic("x" * 300)[:249]),
        ("250 characters", script.topic("x" * 300)[:250]),
    ]:
        create_topic(script, label, bad)
    create_topic(script, "a dot in the name", script.topic("a.b"))
    script.wait_for_topic(script.topic("a.b"))
    create_topic(script, "collides with the dot", script.topic("a_b"))
    for count in (0, -2):
        create_topic(script, f"{count} partitions", script.topic("count"), partitions=count)
    for factor in (0, 2, -2):
        create_topic(script, f"factor {factor}", script.topic("rf"), replication_factor=factor)
    create_topic(
        script,
        "several at once are judged apart",
        script.topic("alone"),
        configs={"cleanup.policy": "compact", "retention.ms": "1000"},
    )
    fields = {
        "topics": [
            new_topic(script.topic("one")),
            new_topic("bad name"),
            new_topic(script.topic("two"), partitions=2),
            new_topic(name),
        ],
        "timeout": 10000,
    }
    script.request("some good, some bad", "create_topics", fields, only=_sorted_topics)
    twice = [new_topic(script.topic("twice")), new_topic(script.topic("twice"), partitions=2)]
    fields = {"topics": [*twice, new_topic(script.topic("once"))], "timeout": 10000}
    script.request("a name twice", "create_topics", fields, only=_sorted_topics)
    script.request("no topics", "create_topics", {"topics": [], "timeout": 10000})


def create_with_assignments(script: Script) -> None:
    cases: list[tuple[str, dict[int, list[int]]]] = [
        ("assigned", {0: [1], 1: [1]}),
        ("not consecutive", {0: [1], 2: [1]}),
        ("not from zero", {1: [1]}),
        ("unknown broker", {0: [99]}),
        ("a broker twice", {0: [1, 1]}),
        ("no brokers", {0: []}),
        ("different factors", {0: [1], 1: [1, 2]}),
        ("negative broker", {0: [-1]}),
    ]
    for label, assignments in cases:
        name = script.topic(label.replace(" ", "-"))
        create_topic(
            script, label, name, partitions=-1, replication_factor=-1, assignments=assignments
        )
    create_topic(
        script,
        "a count beside assignments",
        script.topic("both"),
        partitions=2,
        replication_factor=-1,
        assignments={0: [1]},
    )
    create_topic(
        script,
        "a factor beside assignments",
        script.topic("factor"),
        partitions=-1,
        replication_factor=1,
        assignments={0: [1]},
    )


def create_with_configs(script: Script) -> None:
    cases: list[tuple[str, dict[str, str | None]]] = [
        ("good configs", {"retention.ms": "60000", "cleanup.policy": "compact,delete"}),
        ("unknown config", {"no.such.setting": "1"}),
        ("not a number", {"retention.ms": "soon"}),
        ("below the least", {"segment.bytes": "1"}),
        ("above the most", {"min.cleanable.dirty.ratio": "2"}),
        ("not a choice", {"cleanup.policy": "shred"}),
        ("empty list", {"cleanup.policy": ""}),
        ("null value", {"retention.ms": None}),
        ("not a boolean", {"preallocate": "maybe"}),
        ("unknown codec", {"compression.type": "rar"}),
        ("codec of the producer", {"compression.type": "producer"}),
        ("min isr above replicas", {"min.insync.replicas": "2"}),
        ("min isr of zero", {"min.insync.replicas": "0"}),
        ("spaces around a number", {"retention.ms": " 5000 "}),
        ("upper case choice", {"cleanup.policy": "COMPACT"}),
        ("timestamp type", {"message.timestamp.type": "LogAppendTime"}),
        ("retention minus two", {"retention.ms": "-2"}),
        ("local above all retention", {"local.retention.ms": "900", "retention.ms": "800"}),
        ("broker's name of a setting", {"log.retention.ms": "1000"}),
        ("throttled replicas", {"leader.replication.throttled.replicas": "0:1"}),
        ("throttled nonsense", {"leader.replication.throttled.replicas": "x"}),
        ("a setting twice the size", {"max.message.bytes": "-1"}),
    ]
    for at, (label, configs) in enumerate(cases):
        create_topic(script, label, script.topic(f"c{at}"), configs=configs)


def look_up(script: Script) -> None:
    name = script.topic("known")
    topic_id = script.make_topic(name, partitions=2)
    script.make_topic(script.topic("other"))
    request = script.request
    request("one topic", "metadata", metadata_fields([name]))
    request("with operations", "metadata", metadata_fields([name], operations=True))
    request("all topics", "metadata", metadata_fields(_every(script)), only=_own_topics(script))
    request("no topics", "metadata", metadata_fields([]), only=_own_topics(script))
    request(
        "unknown topic", "metadata", metadata_fields([script.topic("nobody")]), only=_first_error
    )
    request(
        "known and unknown", "metadata", metadata_fields([name, "bad name!"]), only=_sorted_topics
    )
    request("a topic twice", "metadata", metadata_fields([name, name]))
    for bad in ("", ".", "a/b", "x" * 250):
        fields = metadata_fields([bad], auto_create=True)
        request(f"bad name {bad[:3]!r}", "metadata", fields)
    if script.at_least("metadata", 12):
        request("by id", "metadata", metadata_fields([], ids=[topic_id]))
        request("unknown id", "metadata", metadata_fields([], ids=[STRANGER]))
        request("id and name apart", "metadata", metadata_fields([name], ids=[topic_id]))
        both = {"topics": [{"name": name, "topic_id": topic_id}]}
        request("id and name together", "metadata", both)
        wrong = {"topics": [{"name": name, "topic_id": STRANGER}]}
        request("name with a stranger's id", "metadata", wrong)
        request("null name, no id", "metadata", {"topics": [{"name": None, "topic_id": None}]})
    if script.version("metadata") == 9:
        request("version 10 by id", "metadata", metadata_fields([], ids=[topic_id]), version=10)
        request("version 11 null name", "metadata", {"topics": [{"name": None}]}, version=11)


def auto_create(script: Script) -> None:
    name = script.topic("made")
    fields = metadata_fields([name], auto_create=True)
    script.request("first asked", "metadata", fields, only=_first_error)
    script.wait_for_topic(name, 2)
    script.request("then known", "metadata", metadata_fields([name]))
    if script.at_least("metadata", 4):
        fields = metadata_fields([script.topic("refused")], auto_create=False)
        script.request("switched off in the request", "metadata", fields)
    collide = script.topic("a.b")
    script.make_topic(collide)
    fields = metadata_fields([script.topic("a_b")], auto_create=True)
    script.request("collides", "metadata", fields, only=_first_error)


def delete(script: Script) -> None:
    first, second = script.topic("first"), script.topic("second")
    first_id, second_id = script.make_topic(first), script.make_topic(second)
    delete_topics(script, "unknown", [script.topic("nobody")])
    delete_topics(script, "known", [first])
    script.wait_without_topic(first)
    delete_topics(script, "again", [first])
    again_id = script.make_topic(first)
    script.request("made again", "metadata", metadata_fields([first]))
    assert again_id != first_id, "a topic that is made again has a new id"
    delete_topics(script, "known and unknown", [first, script.topic("nobody")])
    delete_topics(script, "none", [])
    delete_topics(script, "a name twice", [second, second])
    if script.at_least("delete_topics", 6):
        delete_topics(script, "unknown id", [], [STRANGER])
        both = {"topics": [{"name": second, "topic_id": second_id}], "timeout": 10000}
        script.request("id and name", "delete_topics", both)
        neither = {"topics": [{"name": None, "topic_id": None}], "timeout": 10000}
        script.request("neither id nor name", "delete_topics", neither)
        delete_topics(script, "by id", [], [second_id])
        script.wait_without_topic(second)
        delete_topics(script, "by id again", [], [second_id])
    name = script.topic("bad/name")
    delete_topics(script, "bad name", [name])


def grow(script: Script) -> None:
    name = script.topic("small")
    script.make_topic(name, partitions=2)

    def request(label: str, *rows: dict[str, Any], validate_only: bool = False) -> None:
        fields = {"topics": list(rows), "timeout": 10000, "validate_only": validate_only}
        script.request(label, "create_partitions", fields, only=_sorted_results)

    request("validate only", {"name": name, "count": 5, "assignments": None}, validate_only=True)
    request("to three", {"name": name, "count": 3, "assignments": None})
    script.wait_for_topic(name, 3)
    script.request("three partitions", "metadata", metadata_fields([name]))
    for count in (3, 2, 0, -1):
        request(f"to {count}", {"name": name, "count": count, "assignments": None})
    request("unknown topic", {"name": script.topic("nobody"), "count": 3, "assignments": None})
    request("assigned", {"name": name, "count": 4, "assignments": [{"broker_ids": [1]}]})
    script.wait_for_topic(name, 4)
    two = [{"broker_ids": [1]}, {"broker_ids": [1]}]
    request("too many assignments", {"name": name, "count": 5, "assignments": two})
    request("unknown broker", {"name": name, "count": 5, "assignments": [{"broker_ids": [99]}]})
    request("other factor", {"name": name, "count": 5, "assignments": [{"broker_ids": [1, 2]}]})
    request("empty assignment", {"name": name, "count": 5, "assignments": [{"broker_ids": []}]})
    request("no assignments", {"name": name, "count": 5, "assignments": []})
    row = {"name": name, "count": 9, "assignments": None}
    request("a topic twice", row, row)
    script.make_topic(script.topic("second"))
    request(
        "good and bad",
        {"name": script.topic("second"), "count": 2, "assignments": None},
        {"name": script.topic("nobody"), "count": 2, "assignments": None},
    )


def describe_partitions(script: Script) -> None:
    first, second = script.topic("a"), script.topic("b")
    script.make_topic(first, partitions=3)
    script.make_topic(second, partitions=2)

    def request(label: str, names: list[str], limit: int = 2000, cursor: Any = None) -> None:
        fields = {
            "topics": [{"name": name} for name in names],
            "response_partition_limit": limit,
            "cursor": cursor,
        }
        script.request(label, "describe_topic_partitions", fields)

    request("two topics", [second, first])
    request("unknown", [script.topic("nobody")])
    request("bad name", ["bad name"])
    request("limited", [first, second], limit=2)
    request("limit at a border", [first, second], limit=3)
    request("goes on", [first, second], cursor={"topic_name": first, "partition_index": 2})
    request(
        "goes on in the second",
        [first, second],
        cursor={"topic_name": second, "partition_index": 1},
    )
    request("negative cursor", [first], cursor={"topic_name": first, "partition_index": -1})
    request("limit of zero", [first], limit=0)
    request("a topic twice", [first, first])


def _every(script: Script) -> list[str | None] | None:
    """Null means all topics; in the first version an empty list does."""
    return [] if script.version("metadata") == 0 else None


def _first_error(response: Any) -> Any:
    """Wait for a topic; while it is created it is unknown or has no leader."""
    wait = ("UNKNOWN_TOPIC_OR_PARTITION", "LEADER_NOT_AVAILABLE", "NONE")
    codes = [topic["error_code"] for topic in response["topics"]]
    return ["unknown or not ready" if code in wait else code for code in codes]


def _own_topics(script: Script) -> Any:
    def own(response: Any) -> Any:
        mine = [topic for topic in response["topics"] if topic["name"].startswith(script.topic(""))]
        return {**response, "topics": sorted(mine, key=lambda topic: topic["name"])}

    return own


def _sorted_topics(response: Any) -> Any:
    topics = sorted(response["topics"], key=lambda topic: topic["name"])
    return without_defaults({**response, "topics": topics})


def _sorted_results(response: Any) -> Any:
    return {**response, "results": sorted(response["results"], key=lambda row: row["name"])}
