"""What a check found, how serious it is, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from riverrun.admin.tables import Bad, Good, Table, counted


class Severity(StrEnum):
    """From harmless to serious. ``CARE`` and ``BAD`` make the command exit with 1."""

    GOOD = "good"
    NOTE = "note"
    """It may be wanted, or could not be checked from here."""
    CARE = "care"
    """It will cause trouble when something else fails."""
    BAD = "bad"
    """It causes trouble now."""

    @property
    def needs_care(self) -> bool:
        return self in (Severity.CARE, Severity.BAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    severity: Severity
    check: str
    """The subject: limits, disk, ports and so on."""
    text: str
    remedy: str = ""
    """Empty if there is nothing to do."""

    def described(self) -> dict[str, object]:
        return {
            "severity": self.severity.value,
            "check": self.check,
            "text": self.text,
            "remedy": self.remedy or None,
        }


def good(check: str, text: str) -> Finding:
    return Finding(severity=Severity.GOOD, check=check, text=text)


def note(check: str, text: str, remedy: str = "") -> Finding:
    return Finding(severity=Severity.NOTE, check=check, text=text, remedy=remedy)


def care(check: str, text: str, remedy: str) -> Finding:
    return Finding(severity=Severity.CARE, check=check, text=text, remedy=remedy)


def bad(check: str, text: str, remedy: str) -> Finding:
    return Finding(severity=Severity.BAD, check=check, text=text, remedy=remedy)


def or_good(found: Iterable[Finding], check: str, text: str) -> list[Finding]:
    """The findings of a check; a good one with this text if it found nothing."""
    return list(found) or [good(check, text)]


def findings_table(findings: Sequence[Finding]) -> Table:
    """The serious ones first."""
    order = list(reversed(Severity))
    rows = sorted(findings, key=lambda one: order.index(one.severity))
    return Table(
        columns=("state", "check", "finding", "remedy"),
        rows=[(_state(one), one.check, one.text, one.remedy or None) for one in rows],
        optional=("remedy",),
    )


def _state(finding: Finding) -> str:
    if finding.severity.needs_care:
        return Bad(finding.severity.value)
    return Good(finding.severity.value) if finding.severity is Severity.GOOD else "note"


def verdict(findings: Sequence[Finding]) -> str:
    """One sentence for people."""
    serious = [one for one in findings if one.severity.needs_care]
    if not serious:
        return f"{counted(len(findings), 'finding')}, and none needs care."
    return f"{counted(len(serious), 'finding')} of {len(findings)} need care."
