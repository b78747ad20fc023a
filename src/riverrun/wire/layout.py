"""How the fields of a message are encoded in each version.

The generated modules declare a layout for each of their classes; ``wire/compiler.py`` turns it
into readers and writers. Fields are listed in wire order.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol

from msgspec import Struct
from msgspec.structs import fields

OWN_TAGS_FROM: Final = 10_000
"""Tags of the fields that riverrun adds to Kafka's messages. Kafka numbers its tags from 0, and
every reader skips the tags that it does not know (KIP-482)."""


class Field(NamedTuple):
    """The encoding of one field in the versions from ``first`` to ``last``.

    ``kind`` is a Kafka type (``int32``, ``string``, ``uuid``, ...), the name of a class of the same
    module, or either of them after ``[]`` for an array.
    """

    name: str
    kind: str
    first: int
    last: int
    is_nullable: bool = False
    tag: int | None = None


Layouts = Mapping[str, tuple[Field, ...]]


class MessageModule(Protocol):
    """The contents of a module under ``wire/messages``."""

    MESSAGE: type[Any]
    VERSIONS: tuple[int, int]
    FLEXIBLE_FROM: int
    LAYOUTS: Layouts


def defaults(cls: type[Struct]) -> dict[str, Any]:
    """The default values of the optional fields of a message."""
    return {field.name: field.default for field in fields(cls) if not field.required}
