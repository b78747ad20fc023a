"""Finds partitions and single messages of a topic. Raises ``ApiProblem`` or ``NotFound``."""

from __future__ import annotations

from riverrun.admin.requests import find_topic
from riverrun.client.pool import ConnectionPool
from riverrun.console.messages.positions import ALL, PARTITIONS_MAX, ranges_from
from riverrun.console.messages.reading import TopicScan
from riverrun.console.messages.streams import NEWER, FoundRecord
from riverrun.console.problems import problem


async def all_partitions(pool: ConnectionPool, topic: str) -> list[int]:
    found = await find_topic(pool, topic)
    return sorted(row.partition_index for row in found.partitions)


async def chosen_partitions(pool: ConnectionPool, topic: str, text: str) -> list[int]:
    """One partition by its number, or all of them."""
    indexes = await all_partitions(pool, topic)
    if text == ALL:
        if len(indexes) > PARTITIONS_MAX:
            raise problem(
                "invalid",
                f"Topic {topic} has {len(indexes):,} partitions; at most {PARTITIONS_MAX:,} are "
                "shown together.",
                "Choose a partition.",
            )
        return indexes
    partition = number_of(text, "partition")
    if partition not in indexes:
        raise problem(
            "not_found",
            f"Topic {topic} has no partition {partition}.",
            f"It has partitions 0 to {len(indexes) - 1}.",
        )
    return [partition]


async def read_message(
    pool: ConnectionPool, topic: str, partition: int, offset: int
) -> FoundRecord:
    """One record, also of an open or aborted transaction."""
    await chosen_partitions(pool, topic, str(partition))
    ranges = await ranges_from(
        pool,
        topic,
        [partition],
        begin="offset",
        offset=offset,
        time_ms=None,
        direction=NEWER,
        is_committed_only=False,
    )
    one = ranges[partition]
    if one.start <= offset < one.end:
        scan = TopicScan(
            pool,
            topic,
            ranges,
            direction=NEWER,
            is_committed_only=False,
            page_size=1,
        )
        page = await scan.page(1)
        if page.found and page.found[0].record.offset == offset:
            return page.found[0]
    raise problem(
        "not_found",
        f"Partition {partition} of {topic} has no message at offset {offset}.",
        f"It has offsets from {one.start} to {max(one.end - 1, one.start)}. Deleted, compacted and "
        "control records cannot be shown.",
    )


def number_of(text: str, name: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise problem("invalid", f"{text[:50]} is not the number of a {name}.")
    return int(text)
