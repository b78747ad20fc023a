"""Where riverrun answers otherwise than Apache Kafka on purpose, each with its reason.

The list stays short: whatever is not in it must be equal, and what is in it must still differ.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from tests.differential.compare import Mismatch

ANY = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Patterns as in file names; `theirs` and `ours` are the answers where they matter."""

    reason: str
    script: str
    ask: str = "*"
    path: str = "*"
    theirs: Any = ANY
    ours: Any = ANY

    def covers(self, mismatch: Mismatch) -> bool:
        return (
            fnmatchcase(mismatch.script, self.script)
            and fnmatchcase(mismatch.ask, self.ask)
            and fnmatchcase(mismatch.path, self.path)
            and self.theirs in (ANY, mismatch.theirs)
            and self.ours in (ANY, mismatch.ours)
        )


DIFFERENCES: tuple[Difference, ...] = ()
