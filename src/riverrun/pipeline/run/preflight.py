"""What a person should know before Spark is started: nobody answers, or a topic is not there.

Later both are waited for. At the first start they are most often a slip in an address or a name,
and with ``--once`` nobody is there to wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from riverrun.cli.support.session import NotFound, alike, run
from riverrun.client.pool import ConnectionPool
from riverrun.pipeline.declaration.model import Pipeline, TopicSink, TopicSource
from riverrun.pipeline.run.cluster_watch import needs_cluster
from riverrun.pipeline.run.status import read_status

LOOKS_MAX = 4
LOOK_EVERY_SECONDS = 0.25
"""A node may hear a moment later than others that a topic was made."""


def look(pipeline: Pipeline, *, is_once: bool) -> None:
    """Ends the program in words when it is of no use to begin."""
    is_first = read_status(pipeline.state) is None
    is_needed = any(needs_cluster(pipeline, sink) for sink in pipeline.sinks.values())
    if not (is_once or is_first) or not is_needed:
        return

    async def check(pool: ConnectionPool) -> None:
        missing: list[str] = []
        for _ in range(LOOKS_MAX):
            known = [topic.name or "" for topic in (await pool.metadata(None)).topics]
            missing = missing_topics(pipeline, known)
            if not is_once or not missing:
                return
            await asyncio.sleep(LOOK_EVERY_SECONDS)
        raise NotFound("\n".join(missing))

    run(pipeline.bootstrap, check)


def missing_topics(pipeline: Pipeline, known: Sequence[str]) -> list[str]:
    """A sentence with a remedy for each topic that is to be read and not there. Topics that the
    pipeline writes, it makes itself.
    """
    made = [sink.topic for sink in pipeline.sinks.values() if isinstance(sink, TopicSink)]
    made += [one.dead_letters for one in pipeline.sources.values() if isinstance(one, TopicSource)]
    place = "the file" if pipeline.file is None else str(pipeline.file)
    return [
        f"sources.{source.name}: there is no topic {name}{alike(name, list(known))}\n"
        f"  Create it with `riverrun topics create {name}`, or correct it in {place}."
        for source in pipeline.sources.values()
        if isinstance(source, TopicSource)
        for name in source.topics
        if name not in known and name not in made
    ]
