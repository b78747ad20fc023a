"""Valid topic names, with Kafka's error messages."""

from __future__ import annotations

import re
from typing import Final

from riverrun.model.errors import ErrorCode, KafkaError

NAME_LENGTH_MAX: Final = 249

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)


def check_topic_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION for an invalid name."""
    reason: str | None = None
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = f"'{name}' is not allowed"
    elif utf16_length(name) > NAME_LENGTH_MAX:
        reason = f"the length of '{name}' is longer than the max allowed length {NAME_LENGTH_MAX}"
    elif _LEGAL.fullmatch(name) is None:
        reason = (
            f"'{name}' contains one or more characters other than ASCII alphanumerics, "
            "'.', '_' and '-'"
        )
    if reason is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")


def is_topic_name(name: str) -> bool:
    try:
        check_topic_name(name)
    except KafkaError:
        return False
    return True


def utf16_length(text: str) -> int:
    """The length in UTF-16 code units, as Kafka counts it."""
    return len(text) + sum(character > "\uffff" for character in text)


def collision_key(name: str) -> str | None:
    """Names with the same key collide, because metrics replace dots by underscores. None: no
    collision is possible."""
    return name.replace(".", "_") if "." in name or "_" in name else None
