"""Settings of placement. The capacities of each broker are set at run time, on the broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from riverrun.model.settings import SettingKind, Settings, setting
from riverrun.placement.brokers import BrokerLoad, PlacementPolicy

BYTES_PER_SECOND: Final = 100_000_000.0
"""What a broker can take and send if nothing is declared. Traffic matters for placement from a
quarter of it (SIGNIFICANT_USE)."""


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
        "resource-aware: also disk use and traffic, once the controller has measured them.",
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
    bytes_in: int = setting(
        0,
        name="broker.capacity.bytes.in",
        kind=SettingKind.LONG,
        at_least=0,
        live=True,
        doc="Bytes per second that the broker can take from producers and leaders. 0: 100 MB/s, "
        "multiplied by broker.capacity.weight. "
        "The controller reads the values of brokers that are set at run time.",
    )
    bytes_out: int = setting(
        0,
        name="broker.capacity.bytes.out",
        kind=SettingKind.LONG,
        at_least=0,
        live=True,
        doc="Bytes per second that the broker can send to consumers. 0: 100 MB/s, multiplied by "
        "broker.capacity.weight. "
        "The controller reads the values of brokers that are set at run time.",
    )

    def with_capacities(self, load: BrokerLoad) -> BrokerLoad:
        """A measured load with the declared capacities. The size of a disk can be measured, the
        traffic that a broker can take cannot, so it has a default."""
        assumed = BYTES_PER_SECOND * self.weight
        return replace(
            load,
            disk_capacity=self.disk_bytes or load.disk_capacity,
            bytes_in_capacity=self.bytes_in or assumed,
            bytes_out_capacity=self.bytes_out or assumed,
        )
