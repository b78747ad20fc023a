"""Shell completion of names from the cluster; empty if it does not respond at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import typer

from riverrun.cli.support.contexts import completed_address

if TYPE_CHECKING:
    from riverrun.client.pool import ConnectionPool

ANSWER_S_MAX = 1.0


def topic_names(context: typer.Context, incomplete: str) -> list[str]:
    async def ask(pool: ConnectionPool) -> list[str]:
        topics = (await pool.metadata(None)).topics
        return [topic.name for topic in topics if topic.name and not topic.is_internal]

    return _complete(context, incomplete, ask)


def group_names(context: typer.Context, incomplete: str) -> list[str]:
    async def ask(pool: ConnectionPool) -> list[str]:
        from riverrun.admin.groups.admin import list_all

        return [row.group for row in await list_all(pool)]

    return _complete(context, incomplete, ask)


def transactional_ids(context: typer.Context, incomplete: str) -> list[str]:
    async def ask(pool: ConnectionPool) -> list[str]:
        from riverrun.admin.transactions.admin import list_transactions

        return [row.transactional_id for row in await list_transactions(pool)]

    return _complete(context, incomplete, ask)


def setting_names(context: typer.Context, incomplete: str) -> list[str]:
    async def ask(pool: ConnectionPool) -> list[str]:
        from riverrun.admin.cluster.configs import ask_settings

        report = await ask_settings(pool, None, (), with_defaults=True)
        return [row.name for row in report.rows]

    return sorted(set(_complete(context, incomplete, ask)))


def _complete(
    context: typer.Context, incomplete: str, ask: Callable[[ConnectionPool], Awaitable[list[str]]]
) -> list[str]:
    import asyncio

    from riverrun.admin.requests import NotFound
    from riverrun.cli.support.session import open_pool
    from riverrun.client.connection import UnsupportedApi
    from riverrun.model.errors import KafkaError

    async def names() -> list[str]:
        address = completed_address(context)
        async with asyncio.timeout(ANSWER_S_MAX), open_pool(address) as pool:
            await pool.any_connection()
            return await ask(pool)

    try:
        found = asyncio.run(names())
    except (OSError, ValueError, KafkaError, UnsupportedApi, NotFound, typer.Exit):
        return []
    return sorted(name for name in found if name.startswith(incomplete))
