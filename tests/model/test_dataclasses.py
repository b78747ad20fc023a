"""Our dataclasses are the library's in all that anybody can see, but for when they are compiled."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

import pytest

from riverrun.model import dataclasses as ours
from riverrun.model.dataclasses import dataclass, field, replace

T = TypeVar("T")
OURS: Any = ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    KIND: ClassVar[int] = 7

    offset: int
    topic: str = "t"
    data: bytes = field(default=b"", repr=False)
    times: dict[str, int] = field(default_factory=dict, compare=False)

    @property
    def end(self) -> int:
        return self.offset + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Wider(Frozen):
    topic: str = "wider"
    extra: int = 0


@dataclass(slots=True)
class Changing(Generic[T]):
    first: T
    second: int = 2
    seen: list[int] = field(default_factory=list)
    sum: int = field(init=False)
    zero: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.sum = self.second + len(self.seen)


@dataclass(frozen=True, slots=True, order=True)
class Ordered:
    epoch: int
    offset: int


def both(decorate: Callable[[Any], Callable[[type], Any]]) -> tuple[Any, Any]:
    """One class made by us and by the library."""

    def source() -> type:
        class Source:
            """Words."""

            a: int
            b: str = "b"
            c: list[int] = field(default_factory=list)
            d: int = field(default=4, repr=False, compare=False)
            e: int = field(default=5, init=False)

        return Source

    return decorate(OURS.dataclass)(source()), decorate(dataclasses.dataclass)(source())


SHAPES: list[Callable[[Any], Callable[[type], Any]]] = [
    lambda d: d(slots=True),
    lambda d: d(slots=True, kw_only=True),
    lambda d: d(slots=True, frozen=True),
    lambda d: d(slots=True, frozen=True, kw_only=True),
    lambda d: d(slots=True, frozen=True, kw_only=True, eq=False),
    lambda d: d(slots=True, frozen=True, order=True),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_class_is_the_one_that_the_library_makes(shape: Any) -> None:
    mine, theirs = both(shape)
    assert repr(mine(a=1)) == repr(theirs(a=1))
    assert mine.__slots__ == theirs.__slots__
    assert mine.__match_args__ == theirs.__match_args__
    assert mine.__doc__ == theirs.__doc__
    assert mine.__qualname__ == theirs.__qualname__
    assert (mine.__hash__ is None) == (theirs.__hash__ is None)
    for values in ({"a": 1}, {"a": 2, "b": "x"}, {"a": 1, "d": 9}, {"a": 1, "c": [3]}):
        for others in ({"a": 1}, {"a": 0}):
            expected = theirs(**values) == theirs(**others)
            assert (mine(**values) == mine(**others)) is expected
    assert not hasattr(mine(a=1), "__dict__")
    assert [
        (f.name, f.type, f.default, f.init, f.repr, f.compare, f.kw_only)
        for f in dataclasses.fields(mine)
    ] == [
        (f.name, f.type, f.default, f.init, f.repr, f.compare, f.kw_only)
        for f in dataclasses.fields(theirs)
    ]
    for wrong in ({}, {"a": 1, "z": 2}, {"a": 1, "e": 1}):
        with pytest.raises(TypeError) as by_us:
            mine(**wrong)
        with pytest.raises(TypeError) as by_them:
            theirs(**wrong)
        assert str(by_us.value) == str(by_them.value)


def test_defaults_are_made_for_each_instance() -> None:
    first, second = Changing("x"), Changing("x")
    first.seen.append(1)
    assert second.seen == []
    assert first != second
    assert (first.sum, first.zero) == (2, 0)


def test_a_frozen_instance_cannot_be_changed() -> None:
    value = Frozen(offset=1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'offset'"):
        value.offset = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'offset'"):
        del value.offset
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.unknown = 2  # type: ignore[attr-defined]


def test_equal_values_have_one_hash_from_the_first_time_on() -> None:
    known = {Frozen(offset=1): "here"}
    assert known[Frozen(offset=1, times={"not": 1})] == "here"
    assert Frozen(offset=2) not in known
    with pytest.raises(TypeError, match="unhashable"):
        hash(Changing("x"))


def test_a_class_inherits_fields_and_their_order() -> None:
    assert repr(Wider(offset=1)) == "Wider(offset=1, topic='wider', times={}, extra=0)"
    assert Wider(offset=1) != Frozen(offset=1, topic="wider")
    assert Wider(offset=1).end == 2
    assert Wider.KIND == 7
    assert isinstance(Wider(offset=1), Frozen)
    names = [f.name for f in dataclasses.fields(Wider)]
    assert (
        names == list(ours.declared_fields(Wider)) == ["offset", "topic", "data", "times", "extra"]
    )


def test_values_have_an_order_where_that_is_asked_for() -> None:
    low, high = Ordered(1, 9), Ordered(2, 0)
    assert low < high and low <= high and high > low and high >= low
    assert sorted([high, low]) == [low, high]
    with pytest.raises(TypeError):
        _ = low < (2, 0)  # type: ignore[operator]


@pytest.mark.parametrize("change", [replace, dataclasses.replace])
def test_a_copy_differs_where_it_is_told_to(change: Any) -> None:
    assert change(Frozen(offset=1), topic="u") == Frozen(offset=1, topic="u")
    assert change(Changing("x", 3), second=4).sum == 4


def test_the_dataclasses_of_the_library_are_welcome_too() -> None:
    @dataclasses.dataclass(frozen=True)
    class Theirs:
        a: int
        b: int = 2

    assert replace(Theirs(1), a=3) == Theirs(3)
    assert list(ours.declared_fields(Theirs)) == ["a", "b"]


def test_a_field_that_is_no_parameter_is_not_replaced() -> None:
    with pytest.raises(AssertionError, match="is not given to the constructor"):
        replace(Changing("x"), zero=1)


@pytest.mark.parametrize("value", [Frozen(offset=1, data=b"x"), Changing("x", 3), Ordered(1, 2)])
def test_values_travel_to_another_process(value: object) -> None:
    assert pickle.loads(pickle.dumps(value)) == value
    assert copy.copy(value) == value
    assert copy.deepcopy(value) == value


def test_a_structure_that_holds_itself_can_be_shown() -> None:
    looped: Changing[Any] = Changing("x")
    looped.first = looped
    assert repr(looped) == "Changing(first=..., second=2, seen=[], sum=2, zero=0)"


def test_what_is_written_out_is_kept() -> None:
    @dataclass(frozen=True, slots=True)
    class Own:
        name: str

        def __repr__(self) -> str:
            return f"<{self.name}>"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own) and self.name.lower() == other.name.lower()

        def __hash__(self) -> int:
            return hash(self.name.lower())

    assert repr(Own("A")) == "<A>"
    assert {Own("A"): 1}[Own("a")] == 1


def test_mistakes_are_told_when_the_class_is_defined() -> None:
    with pytest.raises(AssertionError, match="all would share"):

        @dataclass(slots=True)
        class Sharing:
            items: list[int] = []  # noqa: RUF012

    with pytest.raises(AssertionError, match="has slots"):

        @dataclass(frozen=True)
        class Open:
            item: int
