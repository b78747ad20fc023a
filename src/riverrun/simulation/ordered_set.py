"""A set that iterates in order of insertion.

Builtin sets iterate in the order of hashes. Those of strings differ between processes, and the hash
of None is its address before Python 3.12. aiokafka chooses nodes and orders partitions by iterating
sets of such values, so ``isolation`` gives it this class instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableSet
from typing import TypeVar

Item = TypeVar("Item")


class OrderedSet(MutableSet[Item]):
    """Has the operators of ``set``, and the named methods that aiokafka uses."""

    def __init__(self, items: Iterable[Item] = ()) -> None:
        self._items = dict.fromkeys(items)

    def __contains__(self, item: object) -> bool:
        return item in self._items

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"OrderedSet({list(self._items)})"

    def add(self, value: Item) -> None:
        self._items[value] = None

    def discard(self, value: Item) -> None:
        self._items.pop(value, None)

    def update(self, items: Iterable[Item]) -> None:
        self._items.update(dict.fromkeys(items))

    def copy(self) -> OrderedSet[Item]:
        return OrderedSet(self)

    def difference(self, items: Iterable[Item]) -> OrderedSet[Item]:
        excluded = dict.fromkeys(items)
        return OrderedSet(item for item in self if item not in excluded)

    def intersection(self, items: Iterable[Item]) -> OrderedSet[Item]:
        included = dict.fromkeys(items)
        return OrderedSet(item for item in self if item in included)
