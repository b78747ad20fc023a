"""Python and the packages that riverrun needs: their versions."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Final

from riverrun.cli.doctor.findings import Finding, bad, care, note, or_good

SOFTWARE: Final = "software"
PACKAGE: Final = "riverrun"
PYTHON_MIN: Final = (3, 11)
_REQUIREMENT: Final = re.compile(r"([A-Za-z0-9_.-]+)(?:\[[^]]*\])?\s*\(?([^;)]*)\)?\s*(;.*)?")
_BOUND: Final = re.compile(r"(>=|<=|==|!=|<|>)\s*([0-9][0-9a-zA-Z.]*)")
_RELEASE: Final = re.compile(r"\d+(?:\.\d+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareFacts:
    riverrun: str
    python: tuple[int, int, int]
    has_assertions: bool
    requirements: tuple[str, ...]
    """Of the installed package; empty if it runs from its sources."""
    installed: Mapping[str, str]
    """Versions of the packages that are required, by name."""


def software_findings(facts: SoftwareFacts) -> list[Finding]:
    shown = ".".join(map(str, facts.python))
    text = f"riverrun {facts.riverrun} with Python {shown}; all required packages fit"
    return or_good(_problems(facts, shown), SOFTWARE, text)


def _problems(facts: SoftwareFacts, shown: str) -> Iterator[Finding]:
    if facts.python < PYTHON_MIN:
        wanted = ".".join(map(str, PYTHON_MIN))
        remedy = f"use Python {wanted} or newer"
        yield bad(SOFTWARE, f"Python {shown} is too old", remedy)
    if not facts.has_assertions:
        text = "Python runs with -O: a node refuses to start, because assertions guard the data"
        yield bad(SOFTWARE, text, "unset PYTHONOPTIMIZE")
    if not facts.requirements:
        text = "the package riverrun is not installed, so its requirements are unknown"
        yield note(SOFTWARE, text, "pip install riverrun")
    remedy = f"pip install --upgrade {PACKAGE}"
    for name, bounds in needed(facts.requirements):
        found = facts.installed.get(name)
        if found is None:
            yield bad(SOFTWARE, f"{name} is missing", remedy)
        elif not satisfies(found, bounds):
            text = f"{name} {found} does not fit: riverrun needs {name} {bounds}"
            yield care(SOFTWARE, text, remedy)


def needed(requirements: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Names and bounds, without those of extras."""
    for text in requirements:
        match = _REQUIREMENT.fullmatch(text.strip())
        if match is not None and "extra" not in (match[3] or ""):
            yield match[1], match[2].strip()


def satisfies(found: str, bounds: str) -> bool:
    """Whether a version is within bounds such as ``>=0.16,<0.29``, by release numbers."""
    have = _release(found)
    for operator, text in _BOUND.findall(bounds):
        want = _release(text)
        size = max(len(have), len(want))
        left, right = (one + (0,) * (size - len(one)) for one in (have, want))
        is_met = {
            ">=": left >= right,
            "<=": left <= right,
            "==": left == right,
            "!=": left != right,
            "<": left < right,
            ">": left > right,
        }[operator]
        if not is_met:
            return False
    return True


def _release(text: str) -> tuple[int, ...]:
    match = _RELEASE.match(text)
    return tuple(map(int, match[0].split("."))) if match is not None else ()


def read_software() -> SoftwareFacts:
    try:
        requirements = tuple(requires(PACKAGE) or ())
        own = version(PACKAGE)
    except PackageNotFoundError:
        from riverrun import __version__

        requirements, own = (), __version__
    installed = {}
    for name, _ in needed(requirements):
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    return SoftwareFacts(
        riverrun=own,
        python=sys.version_info[:3],
        has_assertions=not sys.flags.optimize,
        requirements=requirements,
        installed=installed,
    )
