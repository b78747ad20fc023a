"""Settings of plans: how many moves run at once, and when the controller plans by itself."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from riverrun.model.settings import INT_MAX, SECOND_MS, SettingKind, Settings, setting
from riverrun.placement.planner.schedule import MoveLimits


class BalanceMode(StrEnum):
    OFF = "off"
    SUGGEST = "suggest"
    AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceSettings(Settings):
    """Moves of partitions by plans, and the triggers of plans."""

    mode: str = setting(
        BalanceMode.SUGGEST.value,
        name="balance.mode",
        choices=tuple(one.value for one in BalanceMode),
        live=True,
        doc="What the controller does when a broker joins, is away or is decommissioned, when a "
        "rack rule is broken, or when load is uneven. off: nothing. suggest: shows in the status "
        "that a plan would help. auto: makes a plan and runs it.",
    )
    healing_timeout_ms: int = setting(
        30 * 60 * SECOND_MS,
        name="self.healing.timeout",
        kind=SettingKind.LONG,
        at_least=1000,
        live=True,
        doc="In milliseconds. The replicas of a broker that is away for longer are replaced, "
        "unless more than a third of all brokers are away. Moves of plans to it are dropped after "
        "this time, or after 30 minutes if that is less.",
    )
    threshold: float = setting(
        1.15,
        name="balance.threshold",
        at_least=1.01,
        at_most=10.0,
        live=True,
        doc="Load is uneven if the most loaded broker has more than this multiple of the mean. "
        "Balancing goes on until 1.05.",
    )
    cool_down_ms: int = setting(
        300 * SECOND_MS,
        name="balance.cool.down.ms",
        kind=SettingKind.LONG,
        at_least=0,
        live=True,
        doc="Time after a plan before the controller balances again. Repairs do not wait.",
    )
    check_interval_ms: int = setting(
        30 * SECOND_MS,
        name="balance.check.interval.ms",
        at_least=100,
        at_most=INT_MAX,
        doc="How often the controller checks whether a plan would help.",
    )
    throttle: int = setting(
        0,
        name="balance.throttle",
        kind=SettingKind.LONG,
        at_least=0,
        live=True,
        doc="Bytes per second that each broker sends and receives for plans that the controller "
        "starts by itself. 0: no limit.",
    )
    per_source: int = setting(
        5,
        name="balance.moves.per.source",
        at_least=1,
        at_most=INT_MAX,
        live=True,
        doc="Moves of plans that copy from one broker at the same time.",
    )
    per_destination: int = setting(
        5,
        name="balance.moves.per.destination",
        at_least=1,
        at_most=INT_MAX,
        live=True,
        doc="Moves of plans that copy to one broker at the same time.",
    )
    in_cluster: int = setting(
        50,
        name="balance.moves.max",
        at_least=1,
        at_most=1000,
        live=True,
        doc="Moves of plans that copy data at the same time.",
    )

    @property
    def limits(self) -> MoveLimits:
        return MoveLimits(
            per_source=self.per_source,
            per_destination=self.per_destination,
            in_cluster=self.in_cluster,
        )
