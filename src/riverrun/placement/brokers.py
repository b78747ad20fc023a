"""Brokers as placement and planning see them: plain values, from an image or from the protocol."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct

from riverrun.model.ids import NodeId

DISK_CEILING: Final = 0.85
"""Above this share of its disk a broker gets new replicas only if a rack rule requires it."""
SIGNIFICANT_USE: Final = 0.25
"""Below this mean utilisation a resource is plentiful and hardly affects placement."""

DISK: Final = "disk"
RESOURCES: Final = (DISK, "bytes in", "bytes out")


class Availability(StrEnum):
    """What a broker may be used for."""

    ACTIVE = "active"
    FENCED = "fenced"
    """Registered but not serving: may hold replicas if there are too few others, never leads."""
    CORDONED = "cordoned"
    """Keeps its replicas and gets no new ones (KIP-1066)."""
    DRAINING = "draining"
    """Being decommissioned: its replicas move away."""
    GONE = "gone"
    """Away for longer than the healing timeout: its replicas are replaced."""


class PlacementPolicy(StrEnum):
    """The values of ``placement.policy``."""

    RANGE = "range"
    RACK_AWARE = "rack-aware"
    RESOURCE_AWARE = "resource-aware"


class BrokerLoad(Struct, frozen=True, kw_only=True):
    """Measured use and declared or measured capacity. None means unknown and is left out.

    ``replicas`` is the count at the time of the measurement: replicas placed since then are assumed
    to be of average size, so that one measurement does not attract every new topic.
    """

    disk_bytes: int | None = None
    disk_capacity: int | None = None
    bytes_in: float | None = None
    bytes_in_capacity: float | None = None
    bytes_out: float | None = None
    bytes_out_capacity: float | None = None
    replicas: int | None = None

    def resources(self) -> tuple[tuple[float | None, float | None], ...]:
        """Use and capacity, in the order of RESOURCES."""
        return (
            (self.disk_bytes, self.disk_capacity),
            (self.bytes_in, self.bytes_in_capacity),
            (self.bytes_out, self.bytes_out_capacity),
        )


class PlacementBroker(Struct, frozen=True, kw_only=True):
    """A broker with its share of the cluster: ``weight`` 2 takes twice as many replicas as 1."""

    id: NodeId
    rack: str | None = None
    availability: Availability = Availability.ACTIVE
    replicas: int = 0
    leaders: int = 0
    weight: float = 1.0
    load: BrokerLoad | None = None

    @property
    def may_hold(self) -> bool:
        """Whether new replicas may go there."""
        return self.availability in (Availability.ACTIVE, Availability.FENCED)


class Scores:
    """The cost of one more replica on each broker: its worst load relative to the mean.

    The number of replicas always counts. With ``with_resources``, disk, bytes in and bytes out
    count too, each only if use and capacity are known for every broker. A resource that is used
    less than SIGNIFICANT_USE on average weighs little.
    """

    def __init__(
        self, brokers: Sequence[PlacementBroker], added: int, *, with_resources: bool
    ) -> None:
        self._counts = [float(one.replicas) for one in brokers]
        self._weights = [one.weight for one in brokers]
        self._mean = max((sum(self._counts) + added) / max(sum(self._weights), 1e-9), 1e-9)
        self._uses: list[list[float]] = []
        self._names: list[str] = []
        self._steps: list[list[float]] = []
        self.is_full = [False] * len(brokers)
        if with_resources:
            self._measure(brokers)

    def _measure(self, brokers: Sequence[PlacementBroker]) -> None:
        loads = [one.load or BrokerLoad() for one in brokers]
        rows = zip(*(load.resources() for load in loads), strict=True)
        for name, pairs in zip(RESOURCES, rows, strict=False):
            known = [(use, size) for use, size in pairs if use is not None and size]
            if not brokers or len(known) < len(brokers):
                continue
            total = sum(one.replicas for one in brokers)
            each = sum(use for use, _ in known) / total if total else 0.0
            since = [
                one.replicas - load.replicas if load.replicas is not None else 0
                for one, load in zip(brokers, loads, strict=True)
            ]
            uses = [
                (use + each * max(new, 0)) / size
                for (use, size), new in zip(known, since, strict=True)
            ]
            if name == DISK:
                self.is_full = [use > DISK_CEILING for use in uses]
            scale = max(sum(uses) / len(uses), SIGNIFICANT_USE)
            self._names.append(name)
            self._uses.append([use / scale for use in uses])
            self._steps.append([each / size / scale for _, size in known])

    def __getitem__(self, index: int) -> float:
        score = self._counts[index] / self._weights[index] / self._mean
        for uses in self._uses:
            score = max(score, uses[index])
        return score

    def scarcest(self, index: int) -> tuple[str, float] | None:
        """The resource that determines the cost, with its load relative to the mean; None if that
        is the number of replicas."""
        found = max(
            ((uses[index], name) for name, uses in zip(self._names, self._uses, strict=True)),
            default=None,
        )
        if found is None or found[0] < self[index]:
            return None
        return found[1], found[0]

    def add(self, index: int) -> None:
        """Count one more replica."""
        self._counts[index] += 1
        for uses, steps in zip(self._uses, self._steps, strict=True):
            uses[index] += steps[index]
