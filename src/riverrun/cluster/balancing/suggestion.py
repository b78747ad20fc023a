"""The controller's suggestion in the metadata: stored like a plan, so every node can show it."""

from __future__ import annotations

from riverrun.cluster.balancing.plans import plan_record
from riverrun.metadata.image import ConfigType, Image
from riverrun.metadata.records import ConfigRecord
from riverrun.placement.planner.stored_plan import (
    SUGGESTION,
    SUMMARY,
    Suggestion,
    decode_suggestion,
    encode,
)


def suggestion_of(image: Image) -> Suggestion | None:
    return decode_suggestion(image.config(ConfigType.PLAN, SUGGESTION))


def suggestion_records(image: Image, suggestion: Suggestion | None) -> list[ConfigRecord]:
    """Store a suggestion, or withdraw it with None; nothing if it is known."""
    text = None if suggestion is None else encode(suggestion)
    if image.config(ConfigType.PLAN, SUGGESTION).get(SUMMARY) == text:
        return []
    return [plan_record(SUGGESTION, SUMMARY, text)]
