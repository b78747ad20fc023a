"""Where a dead letter came from, and the record that it was.

Pipelines of riverrun, Kafka Connect and Spring name the origin in headers. These headers are left
out of the record that is written again, so that it is equal to the original.
"""

from __future__ import annotations

import re
from typing import Final

from riverrun.records.record import NewRecord, Record

ORIGIN_HEADERS: Final = (
    "riverrun.topic",
    "__connect.errors.topic",
    "kafka_dlt-original-topic",
    "kafka_original-topic",
)
"""The first of them that a record has is used."""
TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
OWN_PREFIXES: Final = ("riverrun.", "__connect.errors.", "kafka_dlt-")


def origin_of(record: Record) -> str | None:
    """The topic that a dead letter names; None for a text that cannot be a name."""
    headers = dict(record.headers)
    for name in ORIGIN_HEADERS:
        value = headers.get(name)
        if value:
            topic = value.decode("utf-8", "replace")
            return topic if TOPIC_NAME.fullmatch(topic) else None
    return None


def original_of(record: Record, now_ms: int) -> NewRecord:
    """The record as it was before, with a new time."""
    return NewRecord(
        value=record.value,
        key=record.key,
        timestamp=now_ms,
        headers=tuple(
            (name, value) for name, value in record.headers if not name.startswith(OWN_PREFIXES)
        ),
    )
