"""The form in which the generated messages say how each version lies on the wire.

A row is (field, kind, may be null, tag or None, first version, last version). Kinds are Kafka's
(``int32``, ``string``, ``uuid``, ...), the name of a class of the same module, or either of them
after ``[]`` for an array. Rows stand in the order of the wire.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, Self

Row = tuple[str, str, bool, int | None, int, int]
Layouts = Mapping[str, tuple[Row, ...]]


class Message:
    """What all generated messages share: equality and words by value, and copies with changes.

    They are written out as plain classes and not as dataclasses, since a node needs two hundred of
    them at its start and a dataclass takes half a millisecond to make. ``Final`` keeps their fields
    from being changed.
    """

    __slots__: ClassVar[tuple[str, ...]] = ()

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in self.__slots__))

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({values})"

    def replaced(self, **changes: Any) -> Self:
        """A copy in which some fields differ."""
        return type(self)(**{name: getattr(self, name) for name in self.__slots__} | changes)

    @classmethod
    def defaults(cls) -> Mapping[str, Any]:
        """The fields that need not be given."""
        return getattr(cls.__init__, "__kwdefaults__", None) or {}

    @classmethod
    def types(cls) -> Mapping[str, Any]:
        """The type of each field, in order."""
        known = cls.__init__.__annotations__
        return {name: known[name] for name in cls.__slots__}


class MessageModule(Protocol):
    """What each module under ``wire/messages`` has."""

    MESSAGE: type[Any]
    VERSIONS: tuple[int, int]
    FLEXIBLE_FROM: int
    LAYOUTS: Layouts
