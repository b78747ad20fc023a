"""Events of what the metadata log stores like plans of moves, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from riverrun.metadata.records import ConfigRecord
from riverrun.placement.planner import stored_plan

_NOT_PLANS: Final = {
    stored_plan.SUGGESTION: ("move", "The controller's suggestion to balance was updated."),
    stored_plan.ROLLBACKS: ("move", "The reasons of the last undone moves changed."),
    stored_plan.DECOYS: ("user", "The secret for logins of unknown users was created."),
}


def _absences(records: Sequence[ConfigRecord]) -> tuple[str, str, str]:
    """Kind, subject and text of the event: brokers are newly away, or back."""
    parts = [f"node {one.name} is {'back' if one.value is None else 'away'}" for one in records]
    subject = f"node {records[0].name}" if len(records) == 1 else "nodes"
    return "broker", subject, f"The controller noted that {' and '.join(parts)}."


def plan_in_words(name: str, records: Sequence[ConfigRecord]) -> tuple[str, str, str]:
    """Kind, subject and text of the event. A plan begins with its header and ends with a result;
    the records between them are its progress."""
    if name == stored_plan.AWAY:
        return _absences(records)
    if name in _NOT_PLANS:
        kind, text = _NOT_PLANS[name]
        return kind, name, text
    values = {one.name: one.value for one in records}
    header, result = values.get(stored_plan.HEADER, ""), values.get(stored_plan.RESULT)
    if result:
        text = f"The plan {name} {_end_of_plan(result)}."
    elif header is None:
        text = f"The plan {name} was removed from the list of plans that ended."
    elif header:
        text = f"The plan {name} was created{_reason_of_plan(header)}."
    elif stored_plan.PROGRESS in values:
        text = f"The plan {name} made progress."
    else:
        text = f"The plan {name} was updated."
    return "move", name, text


def _reason_of_plan(text: str) -> str:
    try:
        return f": {msgspec.json.decode(text, type=stored_plan.PlanHeader).reason}"
    except msgspec.MsgspecError:
        return ""  # a newer version has written it


def _end_of_plan(text: str) -> str:
    try:
        result = msgspec.json.decode(text, type=stored_plan.PlanResult)
    except msgspec.MsgspecError:
        return "ended"  # a newer version has written it
    if result.end is stored_plan.PlanEnd.CANCELLED:
        return "was cancelled"
    dropped = f", {result.dropped:,} dropped" if result.dropped else ""
    noun = "move" if result.done == 1 else "moves"
    return f"ended: {result.done:,} {noun} done{dropped}"
