"""Checks before Spark starts: cluster and schema registries are reachable, and the topics exist.

A running pipeline waits for all of them. At the first start a failure is most likely a typing error
in an address or a name, and ``--once`` does not wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from riverrun.admin.requests import NotFound, alike
from riverrun.cli.support.options import NOT_FOUND, UNREACHABLE, fail
from riverrun.cli.support.session import run
from riverrun.client.pool import ConnectionPool
from riverrun.pipeline.declaration.model import Pipeline, TopicSink, TopicSource
from riverrun.pipeline.run.cluster_watch import needs_cluster
from riverrun.pipeline.run.status import read_status
from riverrun.registry.client import RegistryClient
from riverrun.registry.errors import RegistryUnavailable, UnknownSubject, UnusableSchema

ATTEMPTS_MAX = 4
ATTEMPT_EVERY_SECONDS = 0.25
"""A node may replay the creation of a topic later than others."""


def check_before_start(pipeline: Pipeline, *, is_once: bool) -> None:
    """Exit with an error if the pipeline cannot start."""
    is_first = read_status(pipeline.state) is None
    is_needed = any(needs_cluster(pipeline, sink) for sink in pipeline.sinks.values())
    if not (is_once or is_first) or not is_needed:
        return

    async def check(pool: ConnectionPool) -> None:
        missing: list[str] = []
        for _ in range(ATTEMPTS_MAX):
            known = [topic.name or "" for topic in (await pool.metadata(None)).topics]
            missing = missing_topics(pipeline, known)
            if not is_once or not missing:
                return
            await asyncio.sleep(ATTEMPT_EVERY_SECONDS)
        raise NotFound("\n".join(missing))

    run(pipeline.bootstrap, check)
    check_registries(pipeline, is_once=is_once)


def check_registries(pipeline: Pipeline, *, is_once: bool) -> None:
    """Exit with an error if a registry or the subject of a reader's schema is missing."""
    for source in pipeline.sources.values():
        ids = source.schema_ids if isinstance(source, TopicSource) else None
        if ids is None or ids.registry is None:
            continue
        client = RegistryClient(ids.registry)
        try:
            client.check()
            if is_once and isinstance(source, TopicSource) and source.follows_registry:
                client.latest(ids.subject)
        except RegistryUnavailable as error:
            fail(f"sources.{source.name}.registry: {error}", UNREACHABLE)
        except UnknownSubject as error:
            remedy = "Correct subject, or declare the reader's schema with schema_file."
            fail(f"sources.{source.name}.subject: {error}\n  {remedy}", NOT_FOUND)
        except UnusableSchema:
            pass  # the query reports it with its remedy


def missing_topics(pipeline: Pipeline, known: Sequence[str]) -> list[str]:
    """An error with a remedy for each source topic that does not exist.

    Topics that the pipeline writes are left out, because it creates them.
    """
    created = [sink.topic for sink in pipeline.sinks.values() if isinstance(sink, TopicSink)]
    created += [
        one.dead_letters for one in pipeline.sources.values() if isinstance(one, TopicSource)
    ]
    place = "the file" if pipeline.file is None else str(pipeline.file)
    return [
        f"sources.{source.name}: topic {name} does not exist{alike(name, list(known))}\n"
        f"  Create it with `riverrun topics create {name}`, or correct it in {place}."
        for source in pipeline.sources.values()
        if isinstance(source, TopicSource)
        for name in source.topics
        if name not in known and name not in created
    ]
