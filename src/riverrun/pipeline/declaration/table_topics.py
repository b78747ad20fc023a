"""The pipeline that mirrors topics with the setting ``riverrun.table`` to tables."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from riverrun.pipeline.declaration.model import (
    INFER,
    STOP,
    Pipeline,
    Sink,
    Source,
    TableSink,
    TopicSource,
)
from riverrun.pipeline.declaration.parser import COMPACT_EVERY_DEFAULT

NAME = "tables"
TRIGGER = "5 seconds"
DIGEST_CHARACTERS = 12
_WITH_DIGEST = re.compile(rf"_[0-9a-f]{{{DIGEST_CHARACTERS}}}$")


def tables_pipeline(
    formats: Mapping[str, str], folder: Path, bootstrap: str, values: str
) -> Pipeline:
    """One query per topic, so that a failure of one does not stop the others."""
    sources: dict[str, Source] = {}
    sinks: dict[str, Sink] = {}
    for topic, format_ in sorted(formats.items()):
        name = name_of(topic)
        sources[name] = TopicSource(
            name=name,
            topics=(topic,),
            values=values,
            schema=INFER if values == "json" else "",
            required=(),
            tombstones="dead-letter",
            dead_letters=f"{topic}.dead-letters",
            start="earliest",
            on_data_loss=STOP,
            rows_per_batch=None,
            watermark=None,
        )
        sinks[name] = TableSink(
            name=name,
            input=name,
            format=format_,
            path=str(folder if format_ == "iceberg" else folder / topic),
            table=name,
            catalog=None,
            is_merged=False,
            keys=(),
            order=None,
            delete=None,
            compact_every=COMPACT_EVERY_DEFAULT,
            trigger=TRIGGER,
            output="append",
        )
    state = folder / ".riverrun"
    return Pipeline(
        name=NAME,
        file=None,
        bootstrap=bootstrap,
        state=state,
        checkpoints=str(state / "checkpoints"),
        sources=sources,
        sinks=sinks,
    )


def name_of(topic: str) -> str:
    """A SQL name for a topic.

    Tables store their progress under it, so it must not depend on other topics. A digest
    distinguishes topics whose names become equal, and those that look as if they had a digest.
    """
    plain = re.sub(r"[^A-Za-z0-9_]", "_", topic)
    if plain == topic and plain[0].isalpha() and not _WITH_DIGEST.search(plain):
        return plain
    digest = hashlib.sha256(topic.encode()).hexdigest()[:DIGEST_CHARACTERS]
    return f"{plain if plain[0].isalpha() else f't_{plain}'}_{digest}"
