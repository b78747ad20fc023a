"""AlterConfigs and IncrementalAlterConfigs, with the responses of Kafka 4.3.1."""

from collections.abc import Mapping

import pytest

from riverrun.cluster.configs.alter_configs import (
    ConfigOperation,
    alter_configs,
    incremental_alter_configs,
)
from riverrun.metadata.image import ConfigType, Image
from riverrun.metadata.records import ConfigRecord
from riverrun.model.errors import ErrorCode
from riverrun.wire.messages import alter_configs_request as replacing
from riverrun.wire.messages import incremental_alter_configs_request as incremental
from tests.cluster.fakes import make_configs, replayed
from tests.cluster.test_create_partitions import image_of

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = ConfigOperation
Change = tuple[str, int, str | None]
Result = tuple[ErrorCode, str | None]
DONE: Result = (ErrorCode.NONE, None)


def change(
    image: Image, kind: int, name: str, *changes: Change, validate_only: bool = False
) -> tuple[Result, Image]:
    resource = incremental.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=tuple(
            incremental.AlterableConfig(name=key, config_operation=operation, value=value)
            for key, operation, value in changes
        ),
    )
    request = incremental.IncrementalAlterConfigsRequest(
        resources=(resource,), validate_only=validate_only
    )
    decision = incremental_alter_configs(make_configs(), image, request)
    (response,) = decision.response.responses
    after = replayed(image, decision.records) if decision.records else image
    return (response.error_code, response.error_message), after


def replace(
    image: Image, kind: int, name: str, texts: Mapping[str, str | None]
) -> tuple[Result, Image]:
    resource = replacing.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=tuple(replacing.AlterableConfig(name=k, value=v) for k, v in texts.items()),
    )
    request = replacing.AlterConfigsRequest(resources=(resource,), validate_only=False)
    decision = alter_configs(make_configs(), image, request)
    (response,) = decision.response.responses
    after = replayed(image, decision.records) if decision.records else image
    return (response.error_code, response.error_message), after


def texts(image: Image, name: str = "t", kind: int = TOPIC) -> dict[str, str]:
    return dict(image.config(ConfigType(kind), name))


@pytest.fixture
def image() -> Image:
    return image_of("t")


def test_set_and_delete(image: Image) -> None:
    response, image = change(
        image, TOPIC, "t", ("retention.ms", SET, "5"), ("segment.ms", SET, "7")
    )
    assert response == DONE
    assert texts(image) == {"retention.ms": "5", "segment.ms": "7"}
    response, image = change(image, TOPIC, "t", ("retention.ms", DELETE, None))
    assert response == DONE
    assert texts(image) == {"segment.ms": "7"}


def test_append_and_subtract_start_from_the_default(image: Image) -> None:
    steps = []
    for operation, value in ((APPEND, "compact"), (APPEND, "compact,delete"), (SUBTRACT, "delete")):
        response, image = change(image, TOPIC, "t", ("cleanup.policy", operation, value))
        assert response == DONE
        steps.append(texts(image)["cleanup.policy"])
    assert steps == ["delete,compact", "delete,compact", "compact"]


def test_the_last_item_can_be_subtracted(image: Image) -> None:
    _, image = change(image, TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete"))
    assert texts(image) == {"cleanup.policy": ""}


def test_unchanged_topic_setting_writes_no_record(image: Image) -> None:
    _, image = change(image, TOPIC, "t", ("retention.ms", SET, "5"))
    _, after = change(image, TOPIC, "t", ("retention.ms", SET, "5"), ("no.such", DELETE, None))
    assert after is image


def test_unchanged_broker_setting_is_written_again(image: Image) -> None:
    _, image = change(image, BROKER, "1", ("log.retention.ms", SET, "5"))
    _, after = change(image, BROKER, "1", ("log.retention.ms", SET, "5"))
    assert after.offset == image.offset + 1


def test_validate_only_writes_nothing(image: Image) -> None:
    response, after = change(image, TOPIC, "t", ("retention.ms", SET, "5"), validate_only=True)
    assert response == DONE
    assert after is image


@pytest.mark.parametrize(
    ("kind", "name", "changes", "code", "sentence"),
    [
        (
            TOPIC, "t", [("foo", SET, "1")],
            ErrorCode.INVALID_CONFIG, "Unknown topic config name: foo",
        ),
        (
            TOPIC, "t", [("retention.ms", SET, None), ("foo", SET, None)],
            ErrorCode.INVALID_REQUEST, "Null value not supported for : retention.ms, foo",
        ),
        (
            TOPIC, "t", [("retention.ms", APPEND, "1")],
            ErrorCode.INVALID_CONFIG,
            "Can't APPEND to key retention.ms because its type is not LIST.",
        ),
        (
            TOPIC, "t", [("foo", SUBTRACT, "1")],
            ErrorCode.INVALID_CONFIG, "Can't SUBTRACT to key foo because its type is not LIST.",
        ),
        (TOPIC, "t", [("retention.ms", 9, "1")], ErrorCode.UNKNOWN_SERVER_ERROR, None),
        (
            TOPIC, "t", [("retention.ms", SET, "1"), ("retention.ms", DELETE, None)],
            ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys",
        ),
        (
            TOPIC, "nope", [("foo", DELETE, None)],
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The topic 'nope' does not exist.",
        ),
        (
            TOPIC, "nope", [("retention.ms", SET, "x")],
            ErrorCode.INVALID_CONFIG,
            "Invalid value x for configuration retention.ms: Not a number of type LONG",
        ),
        (
            TOPIC, "", [("retention.ms", SET, "1")],
            ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.",
        ),
        (
            TOPIC, "t", [("retention.ms", SET, "5"), ("segment.bytes", SET, "x")],
            ErrorCode.INVALID_CONFIG,
            "Invalid value x for configuration segment.bytes: Not a number of type INT",
        ),
        (
            BROKER, "1", [("node.id", SET, "5")],
            ErrorCode.INVALID_REQUEST, "Cannot update these configs dynamically: [node.id]",
        ),
        (
            BROKER, "1", [("node.id", APPEND, "5")],
            ErrorCode.INVALID_CONFIG, "Config value append is not allowed for config key: node.id",
        ),
        (
            BROKER, "1", [("foo", APPEND, "5")],
            ErrorCode.INVALID_CONFIG, "Unknown config name: foo",
        ),
        (
            BROKER, "7", [("log.retention.ms", SET, "5")],
            ErrorCode.INVALID_REQUEST, "Unexpected broker id, expected 1, but received 7",
        ),
        (
            BROKER, "abc", [("log.retention.ms", SET, "5")],
            ErrorCode.INVALID_REQUEST, "Node id must be an integer, but it is: abc",
        ),
        (
            BROKER, "1", [("min.insync.replicas", SET, "1")],
            ErrorCode.INVALID_CONFIG,
            "Broker-level min.insync.replicas cannot be altered while ELR is enabled.",
        ),
        (
            GROUP, "g", [("consumer.session.timeout.ms", SET, "1")],
            ErrorCode.INVALID_CONFIG,
            "consumer.session.timeout.ms must be greater than or equal to "
            "group.consumer.min.session.timeout.ms",
        ),
        (
            GROUP, "g", [("foo", SET, "1")],
            ErrorCode.INVALID_CONFIG, "Unknown group config name: foo",
        ),
        (
            GROUP, "", [("foo", SET, "1")],
            ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.",
        ),
        (
            METRICS, "m", [("interval.ms", SET, "1")],
            ErrorCode.INVALID_REQUEST,
            "Invalid value 1 for interval.ms, interval must be between 100 and 3600000 (1 hour)",
        ),
        (
            METRICS, "", [("interval.ms", SET, "1")],
            ErrorCode.INVALID_REQUEST, "Subscription name can't be empty",
        ),
        (
            LOGGER, "1", [("root", SET, "XX")],
            ErrorCode.INVALID_CONFIG,
            "Cannot set the log level of root to XX as it is not a supported log level. Valid log "
            "levels are DEBUG, ERROR, FATAL, INFO, TRACE, WARN",
        ),
        (
            LOGGER, "1", [("root", DELETE, None)],
            ErrorCode.INVALID_REQUEST, "Removing the log level of the root logger is not allowed",
        ),
        (
            LOGGER, "7", [("root", SET, "WARN")],
            ErrorCode.INVALID_REQUEST, "Unexpected node id. Expected 1, but received 7",
        ),
        (77, "x", [("a", SET, "1")], ErrorCode.INVALID_REQUEST, "Unknown resource type 77"),
    ],
)  # fmt: skip
def test_refusals_match_kafka(
    image: Image, kind: int, name: str, changes: list[Change], code: ErrorCode, sentence: str | None
) -> None:
    response, after = change(image, kind, name, *changes)
    assert response == (code, sentence)
    assert after is image


def test_settings_of_the_consumer_protocol_are_stored_within_the_bounds(image: Image) -> None:
    (code, _), after = change(image, GROUP, "x", ("consumer.session.timeout.ms", SET, "50000"))
    assert code is ErrorCode.NONE
    assert after.config(ConfigType.GROUP, "x") == {"consumer.session.timeout.ms": "50000"}
    (code, _), _ = change(image, GROUP, "x", ("consumer.session.timeout.ms", SET, "70000"))
    assert code is ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(
    ("kind", "setting", "value", "feature"),
    [
        (GROUP, "streams.session.timeout.ms", "50000", "KIP-1071"),
        (GROUP, "share.auto.offset.reset", "earliest", "KIP-932"),
        (METRICS, "interval.ms", "5000", "KIP-714"),
        (METRICS, "match", "client_id=a", "KIP-714"),
    ],
)
def test_settings_without_effect_are_refused_but_can_be_deleted(
    image: Image, kind: int, setting: str, value: str, feature: str
) -> None:
    for (code, message), after in (
        change(image, kind, "x", (setting, SET, value)),
        replace(image, kind, "x", {setting: value}),
    ):
        assert code is ErrorCode.INVALID_CONFIG
        assert message is not None
        assert message.startswith(f"{setting} would have no effect")
        assert feature in message
        assert after is image
    stored = ConfigRecord(
        resource_type=ConfigType(kind), resource_name="x", name=setting, value=value
    )
    image = replayed(image, [stored])
    response, image = change(image, kind, "x", (setting, DELETE, None))
    assert response == DONE
    assert texts(image, "x", kind) == {}


def test_certificates_of_a_listener_may_change_at_run_time(image: Image) -> None:
    name = "listener.name.external.ssl.keystore.location"
    response, after = change(image, BROKER, "1", (name, SET, "/key"))
    assert response == DONE
    assert texts(after, "1", BROKER) == {name: "/key"}


@pytest.mark.parametrize(
    ("broker", "name"),
    [
        ("", "listener.name.external.ssl.keystore.location"),
        ("1", "listener.name.external.ssl.client.auth"),
        ("1", "listener.name.external.plain.sasl.jaas.config"),
        ("1", "ssl.keystore.location"),
    ],
)
def test_other_security_settings_cannot_change_at_run_time(
    image: Image, broker: str, name: str
) -> None:
    (code, message), after = change(image, BROKER, broker, (name, SET, "/key"))
    assert (code, after) == (ErrorCode.INVALID_CONFIG, image)
    assert message is not None
    assert "dynamically" in message


def test_stored_security_setting_can_be_deleted_and_allows_other_changes(image: Image) -> None:
    stored = ConfigRecord(
        resource_type=ConfigType.BROKER, resource_name="", name="ssl.key.password", value="x"
    )
    image = replayed(image, [stored])
    response, image = change(image, BROKER, "", ("log.retention.ms", SET, "5"))
    assert response == DONE
    response, image = change(image, BROKER, "", ("ssl.key.password", DELETE, None))
    assert response == DONE
    assert texts(image, "", BROKER) == {"log.retention.ms": "5"}


def test_cluster_level_min_insync_replicas_cannot_be_removed_with_elr(image: Image) -> None:
    response, image = change(image, BROKER, "", ("min.insync.replicas", SET, "2"))
    assert response == DONE
    sentence = "Cluster-level min.insync.replicas cannot be removed while ELR is enabled."
    response, _ = change(image, BROKER, "", ("min.insync.replicas", DELETE, None))
    assert response == (ErrorCode.INVALID_CONFIG, sentence)
    response, _ = replace(image, BROKER, "", {})
    assert response == (ErrorCode.INVALID_CONFIG, sentence)


def test_alter_configs_removes_settings_not_given(image: Image) -> None:
    _, image = change(image, TOPIC, "t", ("retention.ms", SET, "5"), ("segment.ms", SET, "7"))
    response, image = replace(image, TOPIC, "t", {"segment.ms": "8", "segment.bytes": "2000000"})
    assert response == DONE
    assert texts(image) == {"segment.ms": "8", "segment.bytes": "2000000"}
    _, image = replace(image, TOPIC, "t", {})
    assert texts(image) == {}


@pytest.mark.parametrize(
    ("kind", "name", "given", "code", "sentence"),
    [
        (
            TOPIC, "t", {"segment.bytes": None},
            ErrorCode.INVALID_REQUEST, "Null value not supported for : segment.bytes",
        ),
        (
            TOPIC, "nope", {"segment.bytes": "2000000"},
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The topic 'nope' does not exist.",
        ),
        (
            TOPIC, "nope", {"no.such": "1"},
            ErrorCode.INVALID_CONFIG, "Unknown topic config name: no.such",
        ),
        (
            BROKER, "1", {"node.id": "5"},
            ErrorCode.INVALID_REQUEST, "Cannot update these configs dynamically: [node.id]",
        ),
        (LOGGER, "1", {"root": "WARN"}, ErrorCode.INVALID_REQUEST, "Unknown resource type 8"),
        (99, "1", {}, ErrorCode.INVALID_REQUEST, "Unknown resource type 99"),
    ],
)  # fmt: skip
def test_alter_configs_refusals_match_kafka(
    image: Image,
    kind: int,
    name: str,
    given: dict[str, str | None],
    code: ErrorCode,
    sentence: str,
) -> None:
    response, after = replace(image, kind, name, given)
    assert response == (code, sentence)
    assert after is image


def test_repeated_resource_is_refused_and_others_change(image: Image) -> None:
    def resource(name: str, value: str) -> incremental.AlterConfigsResource:
        one = incremental.AlterableConfig(name="retention.ms", config_operation=SET, value=value)
        return incremental.AlterConfigsResource(
            resource_type=TOPIC, resource_name=name, configs=(one,)
        )

    image = image_of("t", "u")
    request = incremental.IncrementalAlterConfigsRequest(
        resources=(resource("t", "1"), resource("u", "2"), resource("t", "3")),
        validate_only=False,
    )
    decision = incremental_alter_configs(make_configs(), image, request)
    assert [one.error_code for one in decision.response.responses] == [
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
    ]
    assert decision.response.responses[0].error_message == (
        "Each resource must appear at most once."
    )
    after = replayed(image, decision.records)
    assert (texts(after, "t"), texts(after, "u")) == ({}, {"retention.ms": "2"})
