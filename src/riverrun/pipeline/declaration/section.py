"""Reads typed fields of one table of a declaration, and collects the problems."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence

from riverrun.pipeline.declaration.document import Document
from riverrun.pipeline.errors import Problem

NUMBER_MAX = 2**63 - 1


class Reporter:
    """Collects problems, so that the user sees all of them at once."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self.problems: list[Problem] = []

    def report(self, path: tuple[str, ...], text: str, remedy: str) -> None:
        line = self._document.line_of(path)
        self.problems.append(Problem(field=".".join(path), line=line, text=text, remedy=remedy))


class Section:
    """A table of fields. A value of the wrong type is reported and treated as absent."""

    def __init__(self, reporter: Reporter, path: tuple[str, ...], values: object) -> None:
        self._reporter = reporter
        self._path = path
        self._read: dict[str, None] = {}
        self._values: Mapping[str, object] = {}
        self._is_table = isinstance(values, dict)
        if isinstance(values, dict):
            self._values = values
        else:
            reporter.report(path, "must be a table", f"write [{'.'.join(path)}]")

    def report(self, field: str, text: str, remedy: str) -> None:
        self._reporter.report((*self._path, *(field.split(".") if field else ())), text, remedy)

    @property
    def is_empty(self) -> bool:
        """Whether this is a table without fields."""
        return self._is_table and not self._values

    def has(self, field: str) -> bool:
        self._read[field] = None
        return field in self._values

    def names(self, field: str) -> list[str]:
        value = self._take(field)
        if value is not None and not isinstance(value, dict):
            self.report(field, "must be a table", f"write [{field}.NAME]")
        return [str(name) for name in value] if isinstance(value, dict) else []

    def section(self, *fields: str) -> Section:
        value: object = self._values
        for field in fields:
            value = value.get(field, {}) if isinstance(value, dict) else {}
        self._read[fields[0]] = None
        return Section(self._reporter, (*self._path, *fields), value)

    def text(self, field: str, default: str | None = None, *, is_secret: bool = False) -> str:
        """``is_secret`` keeps the value out of messages."""
        value = self._take(field)
        if isinstance(value, str) and value.strip():
            return value
        if value is not None:
            shown = "it" if is_secret else repr(value)
            self.report(field, f"{shown} is not a string", f'write {field} = "..."')
        elif default is None:
            self.report(field, "is missing", f'add {field} = "..."')
        return default or ""

    def optional(self, field: str) -> str | None:
        return self.text(field) if self.has(field) else None

    def texts(self, field: str) -> tuple[str, ...]:
        value = self._take(field)
        if value is None:
            return ()
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        self.report(field, f"{value!r} is not a list of strings", f'write {field} = ["a", "b"]')
        return ()

    def choice(self, field: str, choices: Sequence[str], default: str) -> str:
        value = self.text(field, default)
        if value not in choices:
            text = f"{value!r} is unknown{_suggestion(value, choices)}"
            self.report(field, text, f"choose one of {', '.join(choices)}")
            return default
        return value

    def number(self, field: str, *, at_least: int, default: int | None = None) -> int | None:
        value = self._take(field)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
            self.report(
                field,
                f"{value!r} is not a valid number",
                f"write an integer of at least {at_least}",
            )
            return default
        if value > NUMBER_MAX:
            self.report(field, f"{value} is too large", f"write an integer of at most {NUMBER_MAX}")
            return default
        return value

    def flag(self, field: str) -> bool:
        value = self._take(field)
        if value is not None and not isinstance(value, bool):
            self.report(field, f"{value!r} is not a boolean", f"write {field} = true")
        return value is True

    def pairs(self, field: str) -> dict[str, str]:
        value = self._take(field)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.report(field, "must be a table", f'write {field} = {{ "name" = "value" }}')
            return {}
        return dict(_flat(value))

    def check_known(self, field: str, name: str, known: Sequence[str]) -> None:
        if name not in known:
            text = f"no source or transform is named {name}{_suggestion(name, known)}"
            self.report(field, text, f"use one of {', '.join(known) or 'none'}")

    def check(self, field: str, check: Callable[[], object], remedy: str) -> None:
        """Report the ValueError that a check raises."""
        try:
            check()
        except ValueError as error:
            self.report(field, str(error), remedy)

    def ignore(self, field: str, *, allowed: Sequence[str], remedy: str) -> None:
        value = self._take(field)
        if value is not None and value not in allowed:
            self.report(field, f"{value!r} conflicts with other fields", remedy)

    def finish(self) -> None:
        """Report fields that were never read."""
        for field in self._values:
            if field not in self._read:
                near = _suggestion(field, list(self._read))
                remedy = f"use one of {', '.join(sorted(self._read))}"
                self.report(field, f"is not a field{near}", remedy)

    def _take(self, field: str) -> object:
        self._read[field] = None
        return self._values.get(field)


def _flat(values: Mapping[str, object], prefix: str = "") -> list[tuple[str, str]]:
    """A dotted name may be nested tables or one quoted key."""
    found: list[tuple[str, str]] = []
    for name, value in values.items():
        if isinstance(value, dict):
            found += _flat(value, f"{prefix}{name}.")
        else:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            found.append((f"{prefix}{name}", text))
    return found


def _suggestion(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""
