"""A plan as it is stored in the metadata log: a few named texts, each of a limited size.

| name | content |
|---|---|
| ``plan`` | the header: why, who asked, when, the throttle |
| ``moves.0000`` | moves in the order of the plan, at most MOVES_PER_TEXT in each text |
| ``progress`` | the moves that were started and have not ended, and counts |
| ``dropped.0000`` | moves that were given up, by number, with the reason |
| ``throttled.TOPIC`` | entries that the plan added to the topic's lists of throttled replicas |
| ``rate.NODE`` | the broker's own throttled rates, to be restored |
| ``result`` | how the plan ended; all but the header is removed then |

The submitter writes the header and the moves. Everything else is written by the controller, in the
batches that start and end the moves.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from riverrun.model.ids import NodeId
from riverrun.placement.planner.plan import Goal, PlannedMove, Purpose

HEADER: Final = "plan"
SUGGESTION: Final = "suggestion"
"""The resource of the suggestion. It is not a plan: it has no header."""
SUMMARY: Final = "summary"
ROLLBACKS: Final = "rollbacks"
"""The resource with the reasons of the last rollbacks. It is not a plan: it has no header."""
AWAY: Final = "away"
"""The resource with the times since when brokers are away. It is not a plan: it has no header."""
DECOYS: Final = "decoys"
"""The resource with the secret of SCRAM credentials for unknown users; see
``cluster/security/scram_decoys.py``. It is not a plan, and no client can read it."""
ALL_PLANS: Final = "plans"
"""The resource that lists the headers of all plans by their ids."""
MODES: Final = "modes"
"""The resource that lists the modes of brokers that are not active, also of those that are down. It
is not stored: it is read from the settings of the brokers."""
PROGRESS: Final = "progress"
RESULT: Final = "result"
MOVES: Final = "moves."
WAITING: Final = "waiting."
"""With its number, the name of a move that waits: ``waiting.17``. It is not stored."""
DROPPED: Final = "dropped."
THROTTLED: Final = "throttled."
RATE: Final = "rate."

MOVES_MAX: Final = 10_000
"""Moves of one plan. A larger plan is submitted in parts: its first moves are the most urgent."""
MOVES_PER_TEXT: Final = 75
"""With the longest topic names and ten replicas a text stays below 32 KiB, Kafka's limit for the
value of a setting."""
DROPPED_PER_TEXT: Final = 100
REASON_CHARS_MAX: Final = 200
FAILURES_MAX: Final = 50
"""Failed moves that the result of a plan names; the others are only counted."""

_ID: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,63}", re.ASCII)
_RESERVED: Final = (SUGGESTION, ROLLBACKS, AWAY, DECOYS, ALL_PLANS, MODES)
T = TypeVar("T")


class PlanTextInvalid(ValueError):
    """A text that is not part of a plan. The message is for the submitter."""


class PlanHeader(Struct, frozen=True, kw_only=True):
    reason: str
    """What the plan is for, for people: "balance", "decommission 4"."""
    requester: str = ""
    """The command or the trigger that asked for it."""
    submitted_ms: int = 0
    throttle: int | None = None
    """Bytes per second that each broker sends and receives for the moves."""
    purpose: str = ""
    """Of plans that the controller makes by itself: the purpose, and the causes as triggers."""
    causes: tuple[str, ...] = ()

    @property
    def is_repair(self) -> bool:
        """Whether the controller repairs the cluster."""
        return self.purpose == Purpose.REPAIR


class PlanProgress(Struct, frozen=True, kw_only=True):
    moving: tuple[int, ...] = ()
    """Numbers of the moves that were started and have not ended."""
    done: int = 0
    waiting: int = 0
    dropped: int = 0


class PlanEnd(StrEnum):
    DONE = "done"
    CANCELLED = "cancelled"


class PlanResult(Struct, frozen=True, kw_only=True):
    """``failures`` has the first FAILURES_MAX dropped moves, as ``events-0``, with the reasons."""

    end: PlanEnd
    ended_ms: int
    done: int
    dropped: int
    rolled_back: int = 0
    """The dropped moves that were under way, and did harm or could not end."""
    failures: dict[str, str] = field(default_factory=dict)


class ThrottledEntries(Struct, frozen=True, array_like=True):
    """Entries (``partition:broker``) of a topic's two lists that the plan has added."""

    leaders: tuple[str, ...] = ()
    followers: tuple[str, ...] = ()


class OldRates(Struct, frozen=True, array_like=True):
    """The throttled rates of a broker from before the plan; None if there was none."""

    leader: str | None = None
    follower: str | None = None


class Suggestion(Struct, frozen=True, kw_only=True):
    """That a plan would help, and why. Only a summary is stored: the plan is made again when
    somebody asks for it, because the cluster may have changed."""

    reasons: tuple[str, ...]
    moves: int = 0
    bytes_to_copy: int = 0
    command: str = ""
    """The command that makes and runs such a plan."""
    held_back: str | None = None
    """Why brokers that are away are not replaced."""

    @property
    def text(self) -> str:
        parts = []
        if self.moves:
            parts.append(f"{'; '.join(self.reasons)}; {self.moves} moves would help")
            if self.command:
                parts.append(f"run `{self.command}`")
        if self.held_back is not None:
            parts.append(self.held_back)
        return "; ".join(parts)


class StoredRollback(Struct, frozen=True, kw_only=True):
    """Why the move of a partition was rolled back."""

    reason: str
    """The reason as metrics name it."""
    text: str
    """The reason in words."""
    replica: int
    """The new replica that was given up."""
    at_ms: int


class StoredMove(Struct, frozen=True, array_like=True):
    topic: str
    partition: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    goal: Goal
    size_bytes: int
    bytes_in: int = 0


class StoredPlan(Struct, frozen=True, kw_only=True):
    """A plan that runs, or the result of one that ended."""

    id: str
    header: PlanHeader
    moves: tuple[PlannedMove, ...] = ()
    progress: PlanProgress = PlanProgress()
    dropped: Mapping[int, str] = field(default_factory=dict)
    throttled: Mapping[str, ThrottledEntries] = field(default_factory=dict)
    rates: Mapping[NodeId, OldRates] = field(default_factory=dict)
    result: PlanResult | None = None

    @property
    def is_running(self) -> bool:
        return self.result is None


def check_plan_id(text: str) -> None:
    if _ID.fullmatch(text) is None or text in _RESERVED:
        raise PlanTextInvalid(
            f"{text!r} is not the id of a plan: up to 64 small letters, digits and '-'"
        )


def encode(value: object) -> str:
    return msgspec.json.encode(value).decode()


def submitted_texts(header: PlanHeader, moves: Sequence[PlannedMove]) -> dict[str, str]:
    """The texts of a new plan."""
    texts = {HEADER: encode(header)}
    for start in range(0, len(moves), MOVES_PER_TEXT):
        part = [_stored(move) for move in moves[start : start + MOVES_PER_TEXT]]
        texts[f"{MOVES}{start // MOVES_PER_TEXT:04}"] = encode(part)
    return texts


def dropped_texts(dropped: Mapping[int, str], changed: Iterable[int]) -> dict[str, str]:
    """The texts that hold the dropped moves with these numbers."""
    found: dict[str, str] = {}
    for part in sorted({number // DROPPED_PER_TEXT for number in changed}):
        rows = {
            str(number): reason[:REASON_CHARS_MAX]
            for number, reason in dropped.items()
            if number // DROPPED_PER_TEXT == part
        }
        found[f"{DROPPED}{part:04}"] = encode(rows)
    return found


def decode_plan(
    plan_id: str, texts: Mapping[str, str], *, moves: tuple[PlannedMove, ...] | None = None
) -> StoredPlan:
    """The plan of its texts; raises ``PlanTextInvalid``. Known ``moves`` are not decoded again."""
    if HEADER not in texts:
        raise PlanTextInvalid(f"plan {plan_id} has no header")
    dropped: dict[int, str] = {}
    for name, text in texts.items():
        if name.startswith(DROPPED):
            rows = _decode(name, text, dict[int, str])
            dropped.update(rows)
    return StoredPlan(
        id=plan_id,
        header=decode_header(texts),
        moves=decode_moves(texts) if moves is None else moves,
        progress=decode_progress(texts),
        dropped=dropped,
        throttled={
            name.removeprefix(THROTTLED): _decode(name, text, ThrottledEntries)
            for name, text in texts.items()
            if name.startswith(THROTTLED)
        },
        rates={
            _rate_node(name): _decode(name, text, OldRates)
            for name, text in texts.items()
            if name.startswith(RATE)
        },
        result=_decode(RESULT, texts[RESULT], PlanResult) if RESULT in texts else None,
    )


def decode_header(texts: Mapping[str, str]) -> PlanHeader:
    """Raises ``PlanTextInvalid``."""
    return _decode(HEADER, texts[HEADER], PlanHeader)


def decode_progress(texts: Mapping[str, str]) -> PlanProgress:
    """Raises ``PlanTextInvalid``."""
    text = texts.get(PROGRESS)
    return PlanProgress() if text is None else _decode(PROGRESS, text, PlanProgress)


def decode_suggestion(texts: Mapping[str, str]) -> Suggestion | None:
    """None if there is none, or one of another version, which the next check replaces."""
    if SUMMARY not in texts:
        return None
    try:
        return _decode(SUMMARY, texts[SUMMARY], Suggestion)
    except PlanTextInvalid:
        return None


def decode_rollback(partition: str, text: str) -> StoredRollback:
    """Raises ``PlanTextInvalid``."""
    found = _decode(partition, text, StoredRollback)
    return replace(found, text=found.text[:REASON_CHARS_MAX])


def decode_rollbacks(texts: Mapping[str, str]) -> dict[str, StoredRollback]:
    """The last rollbacks by partition, without those of other versions."""
    found: dict[str, StoredRollback] = {}
    for partition, text in texts.items():
        with contextlib.suppress(PlanTextInvalid):
            found[partition] = decode_rollback(partition, text)
    return found


def decode_moves(texts: Mapping[str, str]) -> tuple[PlannedMove, ...]:
    moves: list[PlannedMove] = []
    for name in sorted(name for name in texts if name.startswith(MOVES)):
        moves += [_planned(one) for one in _decode(name, texts[name], list[StoredMove])]
    return tuple(moves)


def _stored(move: PlannedMove) -> StoredMove:
    return StoredMove(
        topic=move.topic,
        partition=move.partition,
        before=tuple(int(node) for node in move.before),
        after=tuple(int(node) for node in move.after),
        goal=move.goal,
        size_bytes=int(move.size_bytes),
        bytes_in=int(move.bytes_in),
    )


def _planned(move: StoredMove) -> PlannedMove:
    return PlannedMove(
        topic=move.topic,
        partition=move.partition,
        before=tuple(NodeId(node) for node in move.before),
        after=tuple(NodeId(node) for node in move.after),
        leader=None,
        goal=move.goal,
        size_bytes=float(move.size_bytes),
        bytes_in=float(move.bytes_in),
    )


def _rate_node(name: str) -> NodeId:
    text = name.removeprefix(RATE)
    if not text.isdecimal():
        raise PlanTextInvalid(f"{name} is not the rate of a broker")
    return NodeId(int(text))


def _decode(name: str, text: str, kind: type[T]) -> T:
    try:
        value: Any = msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, ValueError) as error:
        raise PlanTextInvalid(f"{name}: {error}") from None
    decoded: T = value
    return decoded
