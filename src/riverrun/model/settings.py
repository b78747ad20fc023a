"""Settings, declared once beside the code that reads them.

A ``Settings`` subclass is a frozen dataclass with fields made by ``setting``. Parsing, bounds,
help, documentation and DescribeConfigs derive from the declarations. The server collects the values
from files, flags and metadata.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import cache
from typing import Any, ClassVar, Self, cast

from msgspec import Struct

KiB = 1024
MiB = 1024 * KiB
GiB = 1024 * MiB
SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

Value = bool | int | float | str | tuple[str, ...]


class SettingKind(IntEnum):
    """Kafka's types of settings, with their numbers in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class SettingError(ValueError):
    """An invalid value, with a message for the user who wrote it."""

    def __init__(self, name: str, text: str, reason: str) -> None:
        super().__init__(f"Invalid value {text} for configuration {name}: {reason}")
        self.name = name
        self.reason = reason


class Setting(Struct, frozen=True, kw_only=True):
    """The declaration of one setting."""

    field: str
    name: str
    topic: str | None
    kind: SettingKind
    default: Value
    at_least: int | float | None
    at_most: int | float | None
    choices: tuple[str, ...] | None
    live: bool
    doc: str
    check: Callable[[str], object] | None = None
    """Raises ``SettingError`` for a text that has the right type and cannot be used."""

    def parse(self, text: str) -> Value:
        """Parse a text; raises ``SettingError``."""
        text = text.strip()
        match self.kind:
            case SettingKind.BOOLEAN:
                if text.lower() not in ("true", "false"):
                    raise SettingError(self.name, text, "Expected value to be either true or false")
                if self.check is not None:
                    self.check(text)
                return text.lower() == "true"
            case SettingKind.INT | SettingKind.SHORT | SettingKind.LONG | SettingKind.DOUBLE:
                return self._parse_number(text)
            case SettingKind.LIST:
                items = tuple(part.strip() for part in text.split(",") if part.strip())
                for item in items:
                    self._check_choice(item)
                return items
            case _:
                self._check_choice(text)
                if self.check is not None:
                    self.check(text)
                return text

    def _parse_number(self, text: str) -> int | float:
        try:
            number = float(text) if self.kind is SettingKind.DOUBLE else int(text)
        except ValueError:
            raise SettingError(self.name, text, f"Not a number of type {self.kind.name}") from None
        if self.at_least is not None and number < self.at_least:
            raise SettingError(self.name, text, f"Value must be at least {self.at_least}")
        if self.at_most is not None and number > self.at_most:
            raise SettingError(self.name, text, f"Value must be no more than {self.at_most}")
        return number

    def _check_choice(self, text: str) -> None:
        if self.choices is not None and text not in self.choices:
            raise SettingError(self.name, text, f"String must be one of: {', '.join(self.choices)}")

    def render(self, value: Value) -> str:
        """Format a value as Kafka does."""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value)


COUNT_DIGITS_MAX = 18
_LIMITS = {
    SettingKind.INT: (-(2**31), INT_MAX),
    SettingKind.SHORT: (-(2**15), 2**15 - 1),
    SettingKind.LONG: (-(2**63), LONG_MAX),
}
_KINDS: dict[type, SettingKind] = {
    bool: SettingKind.BOOLEAN,
    int: SettingKind.INT,
    float: SettingKind.DOUBLE,
    str: SettingKind.STRING,
    tuple: SettingKind.LIST,
}


def is_count(text: str) -> bool:
    """Whether a text of a client is a number of ASCII digits. ``int`` fails for other characters
    that ``str.isdigit`` accepts, and for thousands of digits."""
    return text.isascii() and text.isdigit() and len(text) <= COUNT_DIGITS_MAX


def setting(
    default: Value,
    *,
    name: str,
    doc: str,
    topic: str | None = None,
    kind: SettingKind | None = None,
    at_least: int | float | None = None,
    at_most: int | float | None = None,
    choices: tuple[str, ...] | None = None,
    live: bool = False,
    check: Callable[[str], object] | None = None,
) -> Any:
    """Declare a setting of a node. ``topic`` is the name of the topic setting that overrides it.

    ``live``: a change takes effect without a restart. ``check`` raises ``SettingError``.
    """
    if kind is None:
        kind = _KINDS[type(default)]
        is_wide = at_most is None or at_most > INT_MAX
        if kind is SettingKind.INT and is_wide and name.endswith((".ms", ".bytes")):
            kind = SettingKind.LONG
    low, high = _LIMITS.get(kind, (None, None))
    declared = {
        "name": name,
        "topic": topic,
        "kind": kind,
        "at_least": low if at_least is None else at_least,
        "at_most": high if at_most is None else at_most,
        "choices": choices,
        "live": live,
        "doc": doc,
        "check": check,
    }
    return dataclasses.field(default=default, metadata={"setting": declared})


class Settings:
    """Base class of groups of settings. Subclasses are frozen dataclasses."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @classmethod
    @cache
    def declared(cls) -> tuple[Setting, ...]:
        return tuple(
            Setting(field=f.name, default=cast(Value, f.default), **f.metadata["setting"])
            for f in dataclasses.fields(cls)
            if "setting" in f.metadata
        )

    @classmethod
    def from_texts(cls, texts: Mapping[str, str]) -> Self:
        """Parse texts by node-level names. Ignores names of other groups."""
        return cls().changed(texts)

    def changed(self, texts: Mapping[str, str], *, by_topic_name: bool = False) -> Self:
        """A copy with new values, by node-level or topic-level names."""
        values: dict[str, Any] = {}
        for declared in self.declared():
            name = declared.topic if by_topic_name else declared.name
            if name is not None and name in texts:
                values[declared.field] = declared.parse(texts[name])
        return dataclasses.replace(self, **values) if values else self
