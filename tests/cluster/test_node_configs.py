"""Settings of a node: sources, validation, effective values."""

import pytest

from riverrun.cluster.configs.node_configs import Configs
from riverrun.metadata.image import ConfigType, Image
from riverrun.metadata.records import ConfigRecord
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.storage.settings import LogSettings
from tests.cluster.fakes import NodeLevel, cluster_of, make_configs, replayed


def image_with(*texts: tuple[ConfigType, str, str, str]) -> Image:
    return replayed(
        cluster_of(1),
        [
            ConfigRecord(resource_type=kind, resource_name=resource, name=name, value=text)
            for kind, resource, name, text in texts
        ],
    )


BROKER, TOPIC = ConfigType.BROKER, ConfigType.TOPIC


def test_topic_overrides_broker_cluster_and_file() -> None:
    texts = [
        (BROKER, "", "log.retention.ms", "3000"),
        (BROKER, "1", "log.retention.ms", "2000"),
        (TOPIC, "t", "retention.ms", "1000"),
    ]
    configs = make_configs({"log.retention.ms": "4000"})
    seen = [
        configs.log_settings(image_with(*texts[:count]), "t").retention_ms for count in range(4)
    ]
    assert seen == [4000, 3000, 2000, 1000]


def test_topics_without_settings_share_one_settings_object() -> None:
    configs = make_configs()
    image = image_with((BROKER, "1", "log.retention.ms", "2000"))
    first = configs.log_settings(image, "t")
    assert configs.log_settings(image, "u") is first
    image = replayed(
        image,
        [ConfigRecord(resource_type=4, resource_name="1", name="log.retention.ms", value=None)],
    )
    assert (first.retention_ms, configs.log_settings(image, "t")) == (2000, LogSettings())


def test_settings_of_other_brokers_do_not_apply() -> None:
    image = image_with((BROKER, "2", "log.retention.ms", "2000"))
    assert make_configs().log_settings(image, "t") == LogSettings()


def test_value_that_is_invalid_in_this_version_is_skipped() -> None:
    image = image_with((TOPIC, "t", "retention.ms", "soon"), (TOPIC, "t", "segment.ms", "7"))
    settings = make_configs().log_settings(image, "t")
    assert (settings.retention_ms, settings.segment_ms) == (LogSettings().retention_ms, 7)


def test_only_live_settings_change_at_run_time() -> None:
    image = image_with(
        (BROKER, "", "max.connections", "5"),
        (BROKER, "1", "max.connections", "6"),
        (BROKER, "1", "num.partitions", "9"),
    )
    assert make_configs().effective(image, NodeLevel()) == NodeLevel(connections=6)


def test_static_value_comes_from_the_file_or_the_default() -> None:
    configs = make_configs({"num.partitions": "3"})
    assert configs.static_int("num.partitions") == 3
    assert configs.static_text("delete.topic.enable") == "true"
    assert configs.static_text("log.retention.ms") is None
    assert configs.static_text("log.retention.hours") == "168"
    assert configs.static_text("no.such.setting") is None
    assert configs.static_text("node.id") == "1"
    assert make_configs({"node.id": "1"}).default_text("node.id") is None


def refused(configs: Configs, **texts: str) -> tuple[ErrorCode, str | None]:
    named = {name.replace("_", "."): text for name, text in texts.items()}
    with pytest.raises(KafkaError) as error:
        configs.check_broker(named)
    return error.value.code, error.value.message


def test_read_only_broker_settings_are_refused_together() -> None:
    code, message = refused(
        make_configs(), num_partitions="1", node_id="3", log_retention_ms="x", process_roles="b"
    )
    assert code is ErrorCode.INVALID_REQUEST
    assert message == (
        "Cannot update these configs dynamically: [node.id, num.partitions, process.roles]"
    )


def test_invalid_broker_settings_are_invalid_requests() -> None:
    assert refused(make_configs(), log_retention_ms="x") == (
        ErrorCode.INVALID_REQUEST,
        "Invalid value x for configuration log.retention.ms: Not a number of type LONG",
    )


def test_unknown_broker_settings_are_accepted() -> None:
    make_configs().check_broker({"foo.bar": "1"})


def test_topic_settings_must_be_consistent() -> None:
    with pytest.raises(KafkaError) as error:
        make_configs().check_topic(
            {"min.compaction.lag.ms": "2000", "max.compaction.lag.ms": "1000"}
        )
    assert error.value.message == (
        "conflict topic config setting min.compaction.lag.ms (2000) > max.compaction.lag.ms (1000)"
    )


def test_tiered_storage_is_refused() -> None:
    with pytest.raises(KafkaError, match="Tiered Storage functionality is disabled"):
        make_configs().check_topic({"remote.storage.enable": "true"})


def test_unknown_names_are_refused_before_invalid_values() -> None:
    with pytest.raises(KafkaError, match="Unknown topic config name: foo"):
        make_configs().check_topic({"retention.ms": "abc", "foo": "1"})
