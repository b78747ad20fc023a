"""Lists of the REST API: search, order and pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar

from msgspec import Meta, Struct

from riverrun.console.problems import problem

Item = TypeVar("Item")
LIMIT_DEFAULT = 50
LIMIT_MAX = 1000


class ListQuery(Struct, kw_only=True):
    """The query of every list. Lists with filters of their own extend it."""

    q: str = ""
    """Part of the name, in any case."""
    sort: str | None = None
    order: Literal["asc", "desc"] = "asc"
    page: Annotated[int, Meta(ge=1)] = 1
    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX)] = LIMIT_DEFAULT


class ItemPage(Struct, Generic[Item], kw_only=True):
    """One page of a list. ``total`` counts the items of all pages."""

    items: Sequence[Item]
    total: int
    page: int
    limit: int


Key = Callable[[Any], Any]
"""A value to sort by, or None for an item without one. Such items come last in both orders."""


def matching(items: Iterable[Item], query: ListQuery, text_of: Callable[[Item], str]) -> list[Item]:
    """The items whose text contains ``q``."""
    wanted = query.q.casefold()
    return [item for item in items if wanted in text_of(item).casefold()]


def ordered(
    items: Iterable[Item], query: ListQuery, keys: Mapping[str, Key], default: str
) -> list[Item]:
    """The items in the order of the query; equal ones by the default key."""
    name = query.sort or default
    if name not in keys:
        raise problem("invalid", f"Cannot sort by {name}.", f"Sort by {', '.join(keys)}.")
    key = keys[name]
    rows = sorted(items, key=keys[default])
    known = [item for item in rows if key(item) is not None]
    unknown = [item for item in rows if key(item) is None]
    known.sort(key=key, reverse=query.order == "desc")
    return known + unknown


def page_of(items: Sequence[Item], query: ListQuery) -> ItemPage[Item]:
    """One page of ordered items."""
    start = (query.page - 1) * query.limit
    return ItemPage(
        items=items[start : start + query.limit],
        total=len(items),
        page=query.page,
        limit=query.limit,
    )
