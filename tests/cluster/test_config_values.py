"""Parsing and validation of single values. The messages are those of Kafka 4.3.1."""

import pytest

from riverrun.cluster.configs.values import BadValue, check_texts, render
from riverrun.model.settings import Value
from tests.cluster.fakes import make_configs

THROTTLED = "leader.replication.throttled.replicas"


def read(name: str, text: str) -> Value:
    return check_texts(make_configs().topic, {name: text})[name]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("retention.ms", " 100 ", 100),
        ("retention.ms", "+5", 5),
        ("retention.bytes", "-2", -2),
        ("preallocate", " TRUE ", True),
        ("cleanup.policy", "", ()),
        ("cleanup.policy", "compact , delete", ("compact", "delete")),
        ("cleanup.policy", "compact,compact", ("compact", "compact")),
        ("min.cleanable.dirty.ratio", "0.25", 0.25),
        ("compression.gzip.level", "-1", -1),
        (THROTTLED, "*", ("*",)),
        (THROTTLED, "0:1,1:2", ("0:1", "1:2")),
    ],
)
def test_valid_values_are_parsed(name: str, text: str, value: Value) -> None:
    assert read(name, text) == value


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("retention.ms", "abc", "abc|Not a number of type LONG"),
        ("retention.ms", "", "|Not a number of type LONG"),
        ("retention.ms", "1_000", "1_000|Not a number of type LONG"),
        ("retention.ms", "١", "١|Not a number of type LONG"),
        ("retention.ms", "9223372036854775808", "9223372036854775808|Not a number of type LONG"),
        ("retention.ms", "9" * 5000, "9" * 5000 + "|Not a number of type LONG"),
        ("retention.ms", "-5", "-5|Value must be at least -1"),
        ("segment.bytes", "99999999999", "99999999999|Not a number of type INT"),
        ("segment.bytes", "1", "1|Value must be at least 1048576"),
        ("min.cleanable.dirty.ratio", "2", "2.0|Value must be no more than 1"),
        ("min.cleanable.dirty.ratio", "x", "x|Not a number of type DOUBLE"),
        ("preallocate", "maybe", "maybe|Expected value to be either true or false"),
        ("cleanup.policy", "compact,foo", "foo|String must be one of: compact, delete"),
        (
            "compression.type",
            "foo",
            "foo|String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer",
        ),
        ("compression.gzip.level", "0", "0|Value must be between 1 and 9 or equal to -1"),
        ("compression.zstd.level", "99", "99|Value must be no more than 22"),
        (
            THROTTLED,
            "x",
            f"[x]|{THROTTLED} must be the literal '*' or a list of replicas in the following "
            "format: [partitionId]:[brokerId],[partitionId]:[brokerId],...",
        ),
    ],
)
def test_invalid_values_are_refused_with_kafkas_message(name: str, text: str, reason: str) -> None:
    shown, _, sentence = reason.partition("|")
    with pytest.raises(BadValue) as refused:
        read(name, text)
    assert str(refused.value) == f"Invalid value {shown} for configuration {name}: {sentence}"


def test_types_are_checked_before_bounds() -> None:
    with pytest.raises(BadValue, match=r"segment\.bytes"):
        check_texts(make_configs().topic, {"compression.type": "c", "segment.bytes": "b"})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5"),
        (1.0, "1.0"),
        (0.0, "0.0"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (12345678.9, "1.23456789E7"),
        (0.00025, "2.5E-4"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
    ],
)
def test_floats_are_written_as_by_java(value: float, text: str) -> None:
    assert render(make_configs().topic["min.cleanable.dirty.ratio"], value) == text
