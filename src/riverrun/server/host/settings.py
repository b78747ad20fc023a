"""The setting that makes ``riverrun start`` run several brokers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from riverrun.model.settings import SettingError, Settings, setting

PROCESSES: Final = "processes"
AUTO: Final = "auto"
PROCESSES_MAX: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings(Settings):
    """The brokers of one host."""

    processes: str = setting(
        "",
        name=PROCESSES,
        doc="Number of brokers that `riverrun start` runs on this host as one unit, or `auto`: one "
        "per usable core. Empty: one broker, without a supervisor.",
    )

    def count(self, cores: int) -> int:
        """The number of brokers; raises ``SettingError``."""
        if self.processes == AUTO:
            return min(cores, PROCESSES_MAX)
        if not self.processes.isdecimal() or not 1 <= int(self.processes) <= PROCESSES_MAX:
            raise SettingError(
                PROCESSES, self.processes, f"a number from 1 to {PROCESSES_MAX}, or {AUTO}"
            )
        return int(self.processes)
