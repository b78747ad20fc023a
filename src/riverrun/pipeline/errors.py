"""Errors of pipelines, grouped by remedy: edit the declaration, retry, or ask the user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One mistake in a declaration."""

    field: str
    """Dotted path of the field, such as ``sinks.orders.format``."""
    line: int | None
    text: str
    remedy: str

    def describe(self, file: str) -> str:
        place = file if self.line is None else f"{file}:{self.line}"
        name = f"{self.field}: " if self.field else ""
        return f"{place}: {name}{self.text}\n  Remedy: {self.remedy}."


class DeclarationError(ValueError):
    """The declaration is invalid; the text lists every problem."""

    def __init__(self, file: str, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(problem.describe(file) for problem in problems))
        self.problems = list(problems)


class CommitConflict(Exception):
    """Another writer committed to the table first. Retry the batch against the new state."""


class CannotContinue(Exception):
    """Continuing would lose or duplicate rows. The text tells the user what to do."""
