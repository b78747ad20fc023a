"""Rows of DescribeConfigs: values, sources, synonyms (KIP-226)."""

import pytest

from riverrun.cluster.configs import describe_configs as config_rows
from riverrun.cluster.configs.describe_configs import DescribeOptions
from riverrun.metadata.image import ConfigType
from riverrun.model.settings import SettingKind
from riverrun.wire.messages.describe_configs_response import DescribeConfigsResourceResult
from tests.cluster.fakes import cluster_of, make_configs
from tests.cluster.test_node_configs import image_with

BROKER, TOPIC = ConfigType.BROKER, ConfigType.TOPIC
ALL = DescribeOptions(with_synonyms=True)

Row = DescribeConfigsResourceResult


def by_name(rows: tuple[Row, ...]) -> dict[str, Row]:
    return {row.name: row for row in rows}


def synonyms(row: Row) -> list[tuple[str, str | None, int]]:
    return [(one.name, one.value, one.source) for one in row.synonyms]


def test_every_topic_setting_is_listed_with_its_default() -> None:
    configs = make_configs()
    rows = by_name(config_rows.topic_rows(configs, cluster_of(1), "t", ALL))
    assert list(rows) == sorted(configs.topic)
    row = rows["segment.bytes"]
    assert (row.value, row.config_source, row.config_type) == ("1073741824", 5, SettingKind.INT)
    assert synonyms(row) == [("log.segment.bytes", "1073741824", 5)]
    assert not row.read_only
    assert row.documentation is None


def test_value_of_the_topic_is_the_first_synonym() -> None:
    image = image_with(
        (TOPIC, "t", "segment.bytes", " 2000000"),
        (BROKER, "1", "log.segment.bytes", "3000000"),
        (BROKER, "", "log.segment.bytes", "4000000"),
    )
    configs = make_configs({"log.segment.bytes": "5000000"})
    row = by_name(config_rows.topic_rows(configs, image, "t", ALL))["segment.bytes"]
    assert (row.value, row.config_source) == ("2000000", 1)
    assert synonyms(row) == [
        ("segment.bytes", "2000000", 1),
        ("log.segment.bytes", "3000000", 2),
        ("log.segment.bytes", "4000000", 3),
        ("log.segment.bytes", "5000000", 4),
        ("log.segment.bytes", "1073741824", 5),
    ]


def test_setting_given_only_in_coarser_units_is_listed_as_default() -> None:
    configs = make_configs({"log.retention.hours": "24"})
    row = by_name(config_rows.topic_rows(configs, cluster_of(1), "t", ALL))["retention.ms"]
    assert (row.value, row.config_source, row.synonyms) == ("86400000", 5, ())


def test_coarser_synonyms_follow_the_fine_name_once_it_is_set() -> None:
    image = image_with((BROKER, "", "log.retention.ms", "60000"))
    row = by_name(config_rows.topic_rows(make_configs(), image, "t", ALL))["retention.ms"]
    assert (row.value, row.config_source) == ("60000", 3)
    assert synonyms(row) == [("log.retention.ms", "60000", 3), ("log.retention.hours", "168", 5)]


def test_topic_only_settings_have_no_synonyms() -> None:
    rows = by_name(config_rows.topic_rows(make_configs(), cluster_of(1), "t", ALL))
    assert rows["remote.storage.enable"].synonyms == ()
    assert "remote.storage.enable" not in by_name(
        config_rows.broker_rows(make_configs(), cluster_of(1), ALL)
    )


def test_every_broker_setting_is_listed() -> None:
    configs = make_configs({"num.partitions": "3"})
    rows = by_name(config_rows.broker_rows(configs, cluster_of(1), ALL))
    assert list(rows) == sorted(configs.node)
    assert synonyms(rows["num.partitions"]) == [
        ("num.partitions", "3", 4),
        ("num.partitions", "1", 5),
    ]
    assert rows["num.partitions"].read_only
    assert not rows["max.connections"].read_only
    fine = rows["log.retention.ms"]
    assert (fine.value, fine.config_source, fine.synonyms) == (None, 5, ())
    assert rows["log.retention.hours"].value == "168"


def test_passwords_are_hidden() -> None:
    image = image_with((BROKER, "1", "secret.word", "swordfish"))
    row = by_name(config_rows.broker_rows(make_configs(), image, ALL))["secret.word"]
    assert (row.value, row.is_sensitive, row.config_type) == (None, True, SettingKind.PASSWORD)
    assert {one.value for one in row.synonyms} == {None}


@pytest.mark.parametrize(
    "name",
    [
        "listener.name.sasl_ssl.secret.word",
        "listener.name.sasl_ssl.plain.secret.word",
        "of.another.version",
        "listener.name.sasl_ssl.of.another.version",
    ],
)
def test_passwords_of_listeners_and_unknown_settings_are_hidden(name: str) -> None:
    """An unknown setting may be a secret of another version."""
    configs = make_configs({name: "sardine"})
    image = image_with((BROKER, "1", name, "swordfish"), (BROKER, "", name, "herring"))
    for rows in (config_rows.broker_rows, config_rows.cluster_rows):
        row = by_name(rows(configs, image, ALL))[name]
        assert (row.value, row.is_sensitive) == (None, True)
        assert {one.value for one in row.synonyms} == {None}


def test_other_settings_of_listeners_are_shown() -> None:
    name = "listener.name.sasl_ssl.max.connections"
    image = image_with((BROKER, "1", name, " 5"))
    row = by_name(config_rows.broker_rows(make_configs(), image, ALL))[name]
    assert (row.value, row.is_sensitive, row.config_type) == ("5", False, SettingKind.INT)


def test_cluster_rows_list_only_cluster_level_settings() -> None:
    image = image_with((BROKER, "", "max.connections", "5"), (BROKER, "1", "max.connections", "6"))
    rows = config_rows.cluster_rows(make_configs(), image, ALL)
    assert [(row.name, row.value, synonyms(row)) for row in rows] == [
        ("max.connections", "5", [("max.connections", "5", 3)])
    ]


def test_options_select_rows_and_details() -> None:
    options = DescribeOptions(names=("retention.ms", "foo"), with_documentation=True)
    rows = config_rows.topic_rows(make_configs(), cluster_of(1), "t", options)
    assert [row.name for row in rows] == ["retention.ms"]
    assert rows[0].synonyms == ()
    assert rows[0].documentation
    everything = config_rows.topic_rows(
        make_configs(), cluster_of(1), "t", DescribeOptions(names=())
    )
    assert len(everything) == len(make_configs().topic)


def test_groups_and_subscriptions_have_their_own_settings() -> None:
    image = image_with(
        (ConfigType.GROUP, "g", "consumer.session.timeout.ms", "50000"),
        (ConfigType.CLIENT_METRICS, "m", "interval.ms", "5000"),
    )
    group = by_name(config_rows.group_rows(make_configs(), image, "g", ALL))
    assert len(group) == 17
    assert synonyms(group["consumer.session.timeout.ms"]) == [
        ("consumer.session.timeout.ms", "50000", 8),
        ("group.consumer.session.timeout.ms", "45000", 5),
    ]
    metrics = by_name(config_rows.metrics_rows(image, "m", ALL))
    assert synonyms(metrics["interval.ms"]) == [("interval.ms", "5000", 7)]
    assert (metrics["match"].value, metrics["match"].synonyms) == ("", ())
