"""The form in which the generated messages say how each version lies on the wire.

A row is (field, kind, may be null, tag or None, first version, last version). Kinds are Kafka's
(``int32``, ``string``, ``uuid``, ...), the name of a class of the same module, or either of them
after ``[]`` for an array. Rows stand in the order of the wire.
"""

from collections.abc import Mapping
from typing import Any, Protocol

Row = tuple[str, str, bool, int | None, int, int]
Layouts = Mapping[str, tuple[Row, ...]]


class MessageModule(Protocol):
    """What each module under ``wire/messages`` has."""

    MESSAGE: type[Any]
    VERSIONS: tuple[int, int]
    FLEXIBLE_FROM: int
    LAYOUTS: Layouts
