"""The health of a cluster in one sentence, with concerns and what to do about each."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final
from urllib.parse import quote

from msgspec import Struct

from riverrun.admin.tables import bytes_in_words, counted

NAMES_MAX: Final = 5
DISK_CARE_SHARE: Final = 0.10
DISK_BAD_SHARE: Final = 0.05
CERTIFICATE_CARE_SECONDS: Final = 30 * 86_400.0
DAY_SECONDS: Final = 86_400.0


class Level(StrEnum):
    """``care`` works, but not as it should. ``bad`` fails for clients."""

    GOOD = "good"
    CARE = "care"
    BAD = "bad"


class HealthConcern(Struct, frozen=True, kw_only=True):
    """Something to act on."""

    level: Level
    text: str
    remedy: str
    link: str | None = None
    """The page that shows more."""


class ClusterHealth(Struct, frozen=True, kw_only=True):
    """The worst concern gives the level."""

    level: Level
    sentence: str
    concerns: list[HealthConcern]


class DiskFact(Struct, frozen=True):
    node: int
    free: int
    total: int


class HealthFacts(Struct, frozen=True, kw_only=True):
    """What the health is computed from."""

    cluster: str
    """The name in links."""
    nodes: Sequence[int]
    dead: Sequence[int]
    partitions: int
    offline: dict[str, int]
    """Partitions without a leader, by topic."""
    under_min_isr: dict[str, int]
    under_replicated: dict[str, int]
    has_controller: bool | None = None
    """None if it is not known."""
    voters: int = 0
    is_limited: bool = False
    """Whether the user may see only a part of the cluster."""
    disks: Sequence[DiskFact] = ()
    certificates: dict[str, float] = {}
    """Seconds until the certificate of an address ends."""
    stalled_moves: Sequence[str] = ()


def assess(facts: HealthFacts) -> ClusterHealth:
    concerns = [
        *_controller(facts),
        *_offline(facts),
        *_under_min_isr(facts),
        *_dead(facts),
        *_under_replicated(facts),
        *_disks(facts),
        *_certificates(facts),
        *_moves(facts),
    ]
    concerns.sort(key=lambda concern: concern.level is not Level.BAD)
    level = concerns[0].level if concerns else Level.GOOD
    return ClusterHealth(level=level, sentence=sentence(facts, level), concerns=concerns)


def sentence(facts: HealthFacts, level: Level) -> str:
    """The most important fact first."""
    if level is Level.GOOD:
        return f"{_alive(facts)} and {_replicated(facts)}."
    parts = []
    if facts.has_controller is False:
        parts.append("no controller is active")
    if facts.offline:
        offline = sum(facts.offline.values())
        parts.append(
            f"{counted(offline, 'partition')} {_has(offline)} no leader and cannot be used"
        )
    if facts.under_min_isr:
        parts.append(f"{counted(sum(facts.under_min_isr.values()), 'partition')} cannot be written")
    if facts.dead:
        count = len(facts.dead)
        parts.append(f"{count} of {counted(len(facts.nodes), 'node')} {_does(count)} not respond")
    if facts.under_replicated and not facts.under_min_isr:
        behind = sum(facts.under_replicated.values())
        parts.append(f"{counted(behind, 'partition')} {_is(behind)} not fully replicated")
    if not parts:
        return f"{_alive(facts)} and {_replicated(facts)}, but something needs care."
    text = " and ".join(parts) if len(parts) < 3 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    return f"{text[0].upper()}{text[1:]}."


def _alive(facts: HealthFacts) -> str:
    count = len(facts.nodes)
    return "The node is alive" if count == 1 else f"All {count} nodes are alive"


def _replicated(facts: HealthFacts) -> str:
    if not facts.partitions:
        return (
            "there are no topics that you may see"
            if facts.is_limited
            else "there are no topics yet"
        )
    every = "every partition that you may see" if facts.is_limited else "every partition"
    if len(facts.nodes) == 1:
        return f"{every} has a leader"
    return f"{every} is fully replicated"


def _controller(facts: HealthFacts) -> list[HealthConcern]:
    if facts.has_controller is not False:
        return []
    majority = facts.voters // 2 + 1 if facts.voters else 0
    of_them = f"at least {majority} of {facts.voters}" if majority else "a majority"
    return [
        HealthConcern(
            level=Level.BAD,
            text="No controller is active. Topics, settings and leaders cannot change.",
            remedy=f"Start the nodes that vote: {of_them} must run.",
            link=_page(facts, "quorum"),
        )
    ]


def _offline(facts: HealthFacts) -> list[HealthConcern]:
    if not facts.offline:
        return []
    count = sum(facts.offline.values())
    where = f"node {named(facts.dead)}" if facts.dead else "the nodes that hold their replicas"
    return [
        HealthConcern(
            level=Level.BAD,
            text=f"{counted(count, 'partition')} of {named(list(facts.offline))} {_has(count)} no "
            "leader and cannot be read or written.",
            remedy=f"Start {where}. If a disk is lost for good, `riverrun cluster elect-leaders "
            "--unclean` accepts the loss of records.",
            link=_page(facts, "topics", "?sort=under_replicated&order=desc"),
        )
    ]


def _under_min_isr(facts: HealthFacts) -> list[HealthConcern]:
    if not facts.under_min_isr:
        return []
    count = sum(facts.under_min_isr.values())
    return [
        HealthConcern(
            level=Level.BAD,
            text=f"{counted(count, 'partition')} of {named(list(facts.under_min_isr))} "
            f"{_has(count)} fewer replicas in sync than min.insync.replicas, so writes with "
            "acks=all fail.",
            remedy="Start the nodes that do not respond. Lowering min.insync.replicas of the topic "
            "allows writes at once, with less safety.",
            link=_page(facts, "topics", "?sort=under_replicated&order=desc"),
        )
    ]


def _dead(facts: HealthFacts) -> list[HealthConcern]:
    return [
        HealthConcern(
            level=Level.BAD if facts.offline or facts.under_min_isr else Level.CARE,
            text=f"Node {node} does not respond.",
            remedy="Start it again; its log has the reason of its end. If it is gone for good, "
            f"`riverrun cluster decommission {node}` moves its replicas to other nodes.",
            link=_page(facts, f"nodes/{node}"),
        )
        for node in facts.dead[:NAMES_MAX]
    ]


def _under_replicated(facts: HealthFacts) -> list[HealthConcern]:
    if not facts.under_replicated:
        return []
    count = sum(facts.under_replicated.values())
    remedy = "Replicas catch up by themselves. If they do not, look at the log of their node."
    if facts.dead:
        remedy = "Replicas catch up by themselves when their node runs again."
    return [
        HealthConcern(
            level=Level.CARE,
            text=f"{counted(count, 'partition')} of {named(list(facts.under_replicated))} "
            f"{_has(count)} replicas that are not in sync.",
            remedy=remedy,
            link=_page(facts, "topics", "?sort=under_replicated&order=desc"),
        )
    ]


def _disks(facts: HealthFacts) -> list[HealthConcern]:
    found = []
    for disk in facts.disks:
        share = disk.free / disk.total if disk.total > 0 else 1.0
        if share < DISK_CARE_SHARE:
            found.append(
                HealthConcern(
                    level=Level.BAD if share < DISK_BAD_SHARE else Level.CARE,
                    text=f"The disk of node {disk.node} is nearly full: {bytes_in_words(disk.free)}"
                    f" of {bytes_in_words(disk.total)} are free.",
                    remedy="Add space or nodes, shorten the retention of large topics, or move "
                    "partitions with `riverrun cluster balance`.",
                    link=_page(facts, f"nodes/{disk.node}"),
                )
            )
    return found


def _certificates(facts: HealthFacts) -> list[HealthConcern]:
    found = []
    for address, seconds in facts.certificates.items():
        if seconds < CERTIFICATE_CARE_SECONDS:
            days = int(seconds // DAY_SECONDS)
            when = f"ends in {counted(days, 'day')}" if seconds > 0 else "has ended"
            found.append(
                HealthConcern(
                    level=Level.CARE if days >= 1 else Level.BAD,
                    text=f"The certificate of {address} {when}.",
                    remedy="Replace its file. Nodes read new certificates by themselves; "
                    "`riverrun certs` makes them.",
                )
            )
    return found


def _moves(facts: HealthFacts) -> list[HealthConcern]:
    if not facts.stalled_moves:
        return []
    count = len(facts.stalled_moves)
    return [
        HealthConcern(
            level=Level.CARE,
            text=f"{counted(count, 'move')} of partitions {_does(count)} not progress: "
            f"{named(facts.stalled_moves)}.",
            remedy="Check the nodes that receive the replicas and the throttle, or cancel the "
            "moves.",
            link=_page(facts, "moves"),
        )
    ]


def named(names: Sequence[object]) -> str:
    """The first few of some names."""
    shown = ", ".join(str(name) for name in names[:NAMES_MAX])
    more = len(names) - NAMES_MAX
    return f"{shown} and {more} more" if more > 0 else shown


def _page(facts: HealthFacts, path: str, query: str = "") -> str:
    return f"/ui/{quote(facts.cluster, safe='')}/{path}{query}"


def _has(count: int) -> str:
    return "has" if count == 1 else "have"


def _is(count: int) -> str:
    return "is" if count == 1 else "are"


def _does(count: int) -> str:
    return "does" if count == 1 else "do"
