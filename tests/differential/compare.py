"""Compares the responses of two servers to the same script, field by field."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

MISSING = "<missing>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    script: str
    era: str
    ask: str
    path: str
    theirs: Any
    ours: Any

    def __str__(self) -> str:
        theirs, ours = _short(self.theirs), _short(self.ours)
        return f"[{self.era}] {self.ask} | {self.path or 'answer'}: Kafka {theirs}, ours {ours}"


def mismatches(
    script: str, era: str, theirs: list[dict[str, Any]], ours: list[dict[str, Any]]
) -> Iterator[Mismatch]:
    ended = {"ask": MISSING, "answer": MISSING}
    for their, our in zip_longest(theirs, ours, fillvalue=ended):
        if their["ask"] != our["ask"]:
            ask = f"{their['ask']} / {our['ask']}"
            yield Mismatch(
                script=script, era=era, ask=ask, path="", theirs=their["ask"], ours=our["answer"]
            )
            return
        for path, left, right in _differing("", *_comparable(their["answer"], our["answer"])):
            yield Mismatch(
                script=script, era=era, ask=our["ask"], path=path, theirs=left, ours=right
            )


def _differing(path: str, theirs: Any, ours: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in theirs | ours:
            inner = f"{path}.{key}" if path else key
            yield from _differing(inner, theirs.get(key, MISSING), ours.get(key, MISSING))
    elif isinstance(theirs, list) and isinstance(ours, list):
        for name, left, right in _matched(theirs, ours):
            yield from _differing(f"{path}[{name}]", left, right)
    elif theirs != ours:
        yield path, theirs, ours


def _matched(theirs: list[Any], ours: list[Any]) -> Iterator[tuple[str, Any, Any]]:
    """Match rows by name if they have one, else by position."""
    named = [_by_name(theirs), _by_name(ours)]
    if named[0] is None or named[1] is None:
        for place, (left, right) in enumerate(zip_longest(theirs, ours, fillvalue=MISSING)):
            yield str(place), left, right
        return
    for name in named[0] | named[1]:
        yield name, named[0].get(name, MISSING), named[1].get(name, MISSING)


def _by_name(rows: list[Any]) -> dict[str, Any] | None:
    names = [row["name"] for row in rows if isinstance(row, dict) and row.get("name")]
    return dict(zip(names, rows, strict=True)) if len({*names}) == len(rows) else None


def _comparable(theirs: Any, ours: Any) -> tuple[Any, Any]:
    """Keep only broker settings that both servers have."""
    if not isinstance(theirs, dict) or not isinstance(ours, dict) or "only_known" not in theirs:
        return theirs, ours
    names = [
        {row["name"] for result in response["results"] for row in result["configs"]}
        for response in (theirs, ours)
    ]
    return _narrowed(theirs, names[0] & names[1]), _narrowed(ours, names[0] & names[1])


def _narrowed(response: dict[str, Any], names: set[str]) -> dict[str, Any]:
    results = [
        {**result, "configs": [row for row in result["configs"] if row["name"] in names]}
        for result in response["results"]
    ]
    return {**response, "results": results}


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 160 else text[:157] + "..."
