"""Why moves were rolled back: stored like a plan, so that every node can show the last ones.

A node that rolls a move back stores the reason first and cancels second, so that the end of the
move finds it. It deletes the reason again if the cancel is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from riverrun.cluster.balancing.plans import plan_record
from riverrun.metadata.image import ConfigType, Image
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.placement.planner.plan import PlannedMove
from riverrun.placement.planner.stored_plan import (
    ROLLBACKS,
    PlanTextInvalid,
    StoredRollback,
    decode_rollback,
    decode_rollbacks,
    encode,
)

if TYPE_CHECKING:
    from riverrun.metadata.records import Record

ROLLBACKS_KEPT: Final = 50


def rollback_records(image: Image, changes: Mapping[str, str | None]) -> list[Record]:
    """Store the reasons of rollbacks by partition (``events-0``), or delete them with None. Older
    ones make room."""
    known = dict(image.config(ConfigType.PLAN, ROLLBACKS))
    added: dict[str, StoredRollback] = {}
    for name, text in changes.items():
        if text is not None:
            try:
                added[name] = decode_rollback(name, text)
            except PlanTextInvalid as error:
                raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None
    kept = {
        name: one for name, one in decode_rollbacks(known).items() if name not in changes
    } | added
    newest = sorted(kept, key=lambda name: (kept[name].at_ms, name))[-ROLLBACKS_KEPT:]
    return [
        *[plan_record(ROLLBACKS, name, None) for name in known if name not in newest],
        *[plan_record(ROLLBACKS, name, encode(added[name])) for name in newest if name in added],
    ]


def rollback_of(image: Image, move: PlannedMove, since_ms: int) -> StoredRollback | None:
    """Why a move that started later was rolled back; None if it is not known to be."""
    name = f"{move.topic}-{move.partition}"
    text = image.config(ConfigType.PLAN, ROLLBACKS).get(name)
    found = None if text is None else decode_rollbacks({name: text}).get(name)
    is_of_move = found is not None and found.at_ms >= since_ms and found.replica in move.after
    return found if is_of_move else None
