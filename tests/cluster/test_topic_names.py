"""Valid topic names."""

import pytest

from riverrun.cluster.topics.names import check_topic_name, collision_key, is_topic_name
from riverrun.model.errors import ErrorCode, KafkaError


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("", "Topic name is invalid: the empty string is not allowed"),
        (".", "Topic name is invalid: '.' is not allowed"),
        ("..", "Topic name is invalid: '..' is not allowed"),
        (
            "a b",
            "Topic name is invalid: 'a b' contains one or more characters other than ASCII "
            "alphanumerics, '.', '_' and '-'",
        ),
        (
            "x" * 250,
            f"Topic name is invalid: the length of '{'x' * 250}' is longer than the max allowed "
            "length 249",
        ),
    ],
)
def test_invalid_names_are_refused_with_kafkas_message(name: str, sentence: str) -> None:
    with pytest.raises(KafkaError) as refused:
        check_topic_name(name)
    assert refused.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert refused.value.message == sentence


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "...", "x" * 249, "__consumer_offsets"])
def test_valid_names_pass(name: str) -> None:
    assert is_topic_name(name)


@pytest.mark.parametrize("name", ["ü", "a\n", "a/b", "١", "a\0"])
def test_only_ascii_is_allowed(name: str) -> None:
    assert not is_topic_name(name)


def test_names_that_differ_in_dots_and_underscores_collide() -> None:
    assert collision_key("a.b_c") == collision_key("a_b.c") == "a_b_c"
    assert collision_key("abc") is None
