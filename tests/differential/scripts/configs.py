"""Settings of topics and brokers: describe, set, replace, append, and rejected changes."""

from typing import Any

from tests.differential.script import Script

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def describe_topic(script: Script) -> None:
    name = script.topic("described")
    script.make_topic(name, configs={"retention.ms": "60000", "cleanup.policy": "compact"})
    _describe(script, "every setting", TOPIC, name)
    _describe(script, "every setting with synonyms", TOPIC, name, synonyms=True)
    _describe(script, "two settings", TOPIC, name, keys=["retention.ms", "segment.bytes"])
    _describe(script, "no keys", TOPIC, name, keys=[])
    _describe(script, "an unknown key", TOPIC, name, keys=["no.such.setting"])
    _describe(script, "documented", TOPIC, name, keys=["retention.ms"], documentation=True)
    _describe(script, "unknown topic", TOPIC, script.topic("nobody"), keys=["retention.ms"])
    _describe(script, "bad topic name", TOPIC, "bad name", keys=["retention.ms"])
    _describe(script, "empty topic name", TOPIC, "", keys=["retention.ms"])


def describe_broker(script: Script) -> None:
    if script.era == "newest":
        _describe(script, "the broker with synonyms", BROKER, "1", synonyms=True, only_known=True)
    _describe(script, "cluster-wide default", BROKER, "")
    _describe(script, "another broker", BROKER, "99", keys=["log.retention.ms"])
    _describe(script, "no broker id", BROKER, "abc", keys=["log.retention.ms"])
    _describe(script, "one key", BROKER, "1", keys=["num.partitions"], synonyms=True)
    for kind in (0, 1, 3, 77):
        _describe(script, f"resource type {kind}", kind, "x")


def alter_topic(script: Script) -> None:
    name = script.topic("altered")
    script.make_topic(name, configs={"retention.ms": "60000"})
    _alter(script, "set two", TOPIC, name, {"segment.ms": "70000", "segment.bytes": "2000000"})
    _describe_changed(script, "what was not named is gone", name, "segment.ms", "70000")
    _alter(script, "validate only", TOPIC, name, {"segment.ms": "1"}, validate_only=True)
    _alter(script, "unknown setting", TOPIC, name, {"no.such.setting": "1"})
    _alter(script, "bad value", TOPIC, name, {"segment.ms": "x"})
    _alter(script, "null value", TOPIC, name, {"segment.ms": None})
    _alter(script, "unknown topic", TOPIC, script.topic("nobody"), {"segment.ms": "1"})
    _alter(script, "unknown topic, bad value", TOPIC, script.topic("nobody"), {"segment.ms": "x"})
    _alter(script, "unknown topic and setting", TOPIC, script.topic("nobody"), {"no.such": "1"})
    _alter(script, "bad topic name and value", TOPIC, "bad name", {"segment.ms": "x"})
    _alter(script, "bad topic name", TOPIC, "bad name", {"segment.ms": "1"})
    _alter(script, "unknown resource type", 77, name, {"segment.ms": "1"})
    _alter(script, "back to defaults", TOPIC, name, {})
    _describe_changed(script, "all defaults", name, "segment.ms", "604800000")


def change_topic(script: Script) -> None:
    name = script.topic("changed")
    script.make_topic(name, configs={"retention.ms": "60000", "cleanup.policy": "compact"})
    change = _changer(script, name)
    change("set", ("retention.ms", SET, "70000"), ("segment.ms", SET, "80000"))
    _describe_changed(script, "both set", name, "segment.ms", "80000")
    change("delete", ("segment.ms", DELETE, None))
    _describe_changed(script, "one deleted", name, "segment.ms", "604800000")
    change("delete what is not set", ("segment.bytes", DELETE, None))
    change("delete with a value", ("retention.ms", DELETE, "1"))
    change("append to a list", ("cleanup.policy", APPEND, "delete"))
    _describe_changed(script, "appended", name, "cleanup.policy", "compact,delete")
    change("append what is there", ("cleanup.policy", APPEND, "delete"))
    change("subtract from a list", ("cleanup.policy", SUBTRACT, "compact"))
    _describe_changed(script, "subtracted", name, "cleanup.policy", "delete")
    change("subtract what is not there", ("cleanup.policy", SUBTRACT, "compact"))
    change("append a bad choice", ("cleanup.policy", APPEND, "shred"))
    change("append to a number", ("retention.ms", APPEND, "1"))
    change("subtract from a number", ("retention.ms", SUBTRACT, "1"))
    change("unknown operation", ("retention.ms", 9, "1"))
    change("unknown setting", ("no.such.setting", SET, "1"))
    change("delete an unknown setting", ("no.such.setting", DELETE, None))
    change("bad value", ("retention.ms", SET, "soon"))
    change("null value", ("retention.ms", SET, None))
    change("append null", ("cleanup.policy", APPEND, None))
    change("a setting twice", ("retention.ms", SET, "1000"), ("retention.ms", SET, "2000"))
    change("set and delete at once", ("retention.ms", SET, "1"), ("retention.ms", DELETE, None))
    change("nothing to do")
    change("good and bad together", ("segment.ms", SET, "90000"), ("retention.ms", SET, "x"))
    change("validate only", ("retention.ms", SET, "5"), validate_only=True)
    change("validate only, bad", ("retention.ms", SET, "x"), validate_only=True)
    change("min isr", ("min.insync.replicas", SET, "2"))


def change_others(script: Script) -> None:
    def change(label: str, kind: int, name: str, *rows: tuple[str, int, str | None]) -> None:
        fields = _change_fields(kind, name, rows, validate_only=False)
        script.request(label, "incremental_alter_configs", fields)

    change("unknown topic", TOPIC, script.topic("nobody"), ("retention.ms", SET, "1000"))
    change("unknown topic, bad value", TOPIC, script.topic("nobody"), ("retention.ms", SET, "x"))
    change("unknown topic and setting", TOPIC, script.topic("nobody"), ("no.such", SET, "1"))
    change("bad topic name and value", TOPIC, "bad name", ("retention.ms", SET, "x"))
    change("empty topic name", TOPIC, "", ("retention.ms", SET, "1000"))
    change("bad topic name", TOPIC, "bad name", ("retention.ms", SET, "1000"))
    change("a broker's live setting", BROKER, "1", ("log.cleaner.backoff.ms", SET, "14000"))
    key = "log.cleaner.backoff.ms"
    _describe_settled(script, "set on the broker", BROKER, "1", key, "14000", synonyms=True)
    change("for all brokers", BROKER, "", ("log.cleaner.backoff.ms", SET, "13000"))
    _describe_settled(script, "set for all", BROKER, "", key, "13000", synonyms=True)
    change("broker's own deleted", BROKER, "1", ("log.cleaner.backoff.ms", DELETE, None))
    _describe_settled(script, "the default holds", BROKER, "1", key, "13000", synonyms=True)
    change("default deleted", BROKER, "", ("log.cleaner.backoff.ms", DELETE, None))
    _describe_settled(script, "back to the built-in", BROKER, "1", key, "15000", synonyms=True)
    change("read-only setting", BROKER, "1", ("num.partitions.no", SET, "3"))
    change("fixed at the start", BROKER, "1", ("node.id", SET, "3"))
    change("fixed for all", BROKER, "", ("process.roles", SET, "broker"))
    change("bad value", BROKER, "1", ("log.cleaner.backoff.ms", SET, "x"))
    change("another broker", BROKER, "99", ("log.cleaner.backoff.ms", SET, "1000"))
    change("no broker id", BROKER, "abc", ("log.cleaner.backoff.ms", SET, "1000"))
    change("unknown resource type", 77, "x", ("a", SET, "1"))
    change("resource type zero", 0, "x", ("a", SET, "1"))


def _describe(
    script: Script,
    label: str,
    kind: int,
    name: str,
    *,
    keys: list[str] | None = None,
    synonyms: bool = False,
    documentation: bool = False,
    only_known: bool = False,
) -> None:
    fields = _describe_fields(kind, name, keys, synonyms, documentation)
    marked = {"only_known": True} if only_known else {}
    script.request(
        label, "describe_configs", fields, only=lambda response: {**_sorted(response), **marked}
    )


def _describe_changed(script: Script, label: str, name: str, key: str, value: str) -> None:
    """The settings of the topic itself, once the change is visible."""
    _describe_settled(script, label, TOPIC, name, key, value)


def _describe_settled(
    script: Script,
    label: str,
    kind: int,
    name: str,
    key: str,
    value: str,
    synonyms: bool = False,
) -> None:
    keys = None if kind == TOPIC else [key]
    fields = _describe_fields(kind, name, keys, synonyms, False)

    def arrived(response: Any) -> bool:
        rows = response["results"][0]["configs"]
        return any(row["name"] == key and row["value"] == value for row in rows)

    def own(response: Any) -> Any:
        for result in response["results"]:
            rows = result["configs"]
            result["configs"] = [row for row in rows if row["config_source"] in (1, 2, 3) or keys]
        return _sorted(response)

    script.request(label, "describe_configs", fields, only=own, settled=arrived)


def _describe_fields(
    kind: int, name: str, keys: list[str] | None, synonyms: bool, documentation: bool
) -> dict[str, Any]:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    return {
        "resources": [resource],
        "include_synonyms": synonyms,
        "include_documentation": documentation,
    }


def _sorted(response: Any) -> Any:
    """Sort settings, which Kafka lists in the order of a hash table."""
    for result in response["results"]:
        result["configs"].sort(key=lambda row: row["name"])
    return response


def _alter(
    script: Script,
    label: str,
    kind: int,
    name: str,
    configs: dict[str, str | None],
    validate_only: bool = False,
) -> None:
    rows = [{"name": key, "value": value} for key, value in configs.items()]
    resource = {"resource_type": kind, "resource_name": name, "configs": rows}
    fields = {"resources": [resource], "validate_only": validate_only}
    script.request(label, "alter_configs", fields)


def _changer(script: Script, name: str) -> Any:
    def change(label: str, *rows: tuple[str, int, str | None], validate_only: bool = False) -> None:
        fields = _change_fields(TOPIC, name, rows, validate_only)
        script.request(label, "incremental_alter_configs", fields)

    return change


def _change_fields(
    kind: int, name: str, rows: tuple[tuple[str, int, str | None], ...], validate_only: bool
) -> dict[str, Any]:
    configs = [
        {"name": key, "config_operation": operation, "value": value}
        for key, operation, value in rows
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    return {"resources": [resource], "validate_only": validate_only}
