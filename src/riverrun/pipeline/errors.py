"""What can go wrong with a pipeline, by what helps: another text, another try, or a person."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong in a declaration."""

    field: str
    """Where, as ``sinks.orders.format``."""
    line: int | None
    text: str
    remedy: str

    def in_words(self, file: str) -> str:
        place = file if self.line is None else f"{file}:{self.line}"
        name = f"{self.field}: " if self.field else ""
        return f"{place}: {name}{self.text}\n  Remedy: {self.remedy}."


class DeclarationError(ValueError):
    """A declaration that cannot be run, with all that is wrong in it."""

    def __init__(self, file: str, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(problem.in_words(file) for problem in problems))
        self.problems = list(problems)


class CommitConflict(Exception):
    """Somebody else committed to the table first; the batch has to be looked at again."""


class CannotContinue(Exception):
    """Going on would lose or double rows, and only a person can say what is right."""
