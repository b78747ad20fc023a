"""Settings of placement. The capacities of each broker are set at run time, on the broker."""

from __future__ import annotations

from dataclasses import dataclass

from riverrun.model.settings import Settings, setting
from riverrun.placement.brokers import PlacementPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementSettings(Settings):
    """Placement of new replicas.

    ``resource-aware`` is the default because it equals ``rack-aware`` while no load is known, and
    because it avoids brokers that run out of disk once it is.
    """

    policy: str = setting(
        PlacementPolicy.RESOURCE_AWARE.value,
        name="placement.policy",
        choices=tuple(one.value for one in PlacementPolicy),
        live=True,
        doc="How brokers are chosen for new partitions. range: consecutive ids, without regard to "
        "racks and load. rack-aware: spread over racks, then even counts of replicas and leaders. "
        "resource-aware: also disk use, once the controller has measured it.",
    )
    weight: float = setting(
        1.0,
        name="broker.capacity.weight",
        at_least=0.01,
        at_most=100.0,
        live=True,
        doc="Share of replicas and leaders relative to other brokers: 2 takes twice as many as 1. "
        "The controller reads the values of brokers that are set at run time.",
    )
    disk_bytes: int = setting(
        0,
        name="broker.capacity.disk.bytes",
        at_least=0,
        live=True,
        doc="Disk space that replicas may use. 0: the measured size of the disk. "
        "The controller reads the values of brokers that are set at run time.",
    )
