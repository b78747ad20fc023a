"""Parsing and validation of one setting, with Kafka's rules and error messages.

``model.settings`` parses valid texts. These texts come from clients: numbers are parsed as by Java,
types are checked before bounds, and some settings have rules of their own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Final

from riverrun.model.settings import Setting, SettingError, SettingKind, Value

_WHOLE = re.compile(r"[+-]?[0-9]{1,4000}", re.ASCII)  # int() refuses more than 4300
_THROTTLED = re.compile(r"[0-9]+:[0-9]+", re.ASCII)
_SPLIT = re.compile(r"\s*,\s*")
_BOUNDS: Final = {
    SettingKind.SHORT: (-(2**15), 2**15 - 1),
    SettingKind.INT: (-(2**31), 2**31 - 1),
    SettingKind.LONG: (-(2**63), 2**63 - 1),
}


class BadValue(Exception):
    """An invalid value. The message is sent to the client; the caller chooses the error code."""


def parse(setting: Setting, name: str, text: str) -> Value:
    """The value of a text, bounds unchecked; raises ``BadValue``."""
    trimmed = text.strip()
    match setting.kind:
        case SettingKind.BOOLEAN:
            if trimmed.lower() not in ("true", "false"):
                raise _bad(text, name, "Expected value to be either true or false")
            return trimmed.lower() == "true"
        case SettingKind.SHORT | SettingKind.INT | SettingKind.LONG:
            low, high = _BOUNDS[setting.kind]
            if _WHOLE.fullmatch(trimmed) is None or not low <= int(trimmed) <= high:
                raise _bad(text, name, f"Not a number of type {setting.kind.name}")
            return int(trimmed)
        case SettingKind.DOUBLE:
            try:
                if "_" in trimmed:
                    raise ValueError(trimmed)
                return float(trimmed)
            except ValueError:
                raise _bad(text, name, "Not a number of type DOUBLE") from None
        case SettingKind.LIST:
            return tuple(_SPLIT.split(trimmed)) if trimmed else ()
        case _:
            return text


def render(setting: Setting, value: Value) -> str:
    """The text of a value as Java writes it, which differs for very large and small floats."""
    if not isinstance(value, float) or value == 0 or 1e-3 <= abs(value) < 1e7:
        return setting.render(value)
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    digits, _, exponent = f"{Decimal(repr(value)).normalize():E}".partition("E")
    return f"{digits if '.' in digits else digits + '.0'}E{int(exponent)}"


def check(setting: Setting, name: str, value: Value) -> None:
    """Check bounds, choices and rules of a parsed value; raises ``BadValue``."""
    rule = _RULES.get(name)
    if rule is not None:
        rule(name, value)
        return
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if setting.at_least is not None and value < setting.at_least:
            raise _bad(value, name, f"Value must be at least {setting.at_least}")
        if setting.at_most is not None and value > setting.at_most:
            raise _bad(value, name, f"Value must be no more than {setting.at_most}")
    if setting.check is not None and isinstance(value, str):
        try:
            setting.check(value)
        except SettingError as error:
            raise BadValue(str(error)) from None
    if setting.choices is not None:
        for item in value if isinstance(value, tuple) else (value,):
            if item not in setting.choices:
                raise _bad(item, name, f"String must be one of: {', '.join(setting.choices)}")


def check_texts(known: Mapping[str, Setting], texts: Mapping[str, str]) -> dict[str, Value]:
    """Parse all values and then check their bounds, in Kafka's order."""
    values = {name: parse(known[name], name, text) for name, text in texts.items()}
    for name, value in values.items():
        check(known[name], name, value)
    return values


def _bad(value: object, name: str, reason: str) -> BadValue:
    return BadValue(f"Invalid value {value} for configuration {name}: {reason}")


def _gzip_level(name: str, value: Value) -> None:
    if value != -1 and not (isinstance(value, int) and 1 <= value <= 9):
        raise _bad(value, name, "Value must be between 1 and 9 or equal to -1")


def _throttled(name: str, value: Value) -> None:
    items = value if isinstance(value, tuple) else ()
    if items != ("*",) and not all(_THROTTLED.fullmatch(item) for item in items):
        raise _bad(
            f"[{', '.join(items)}]",
            name,
            f"{name} must be the literal '*' or a list of replicas in the following format: "
            "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
        )


_RULES: Final[Mapping[str, Callable[[str, Value], None]]] = {
    "compression.gzip.level": _gzip_level,
    "leader.replication.throttled.replicas": _throttled,
    "follower.replication.throttled.replicas": _throttled,
}
