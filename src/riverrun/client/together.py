"""Several requests at a time, with one plain error when any of them fails."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

Result = TypeVar("Result")


async def together(work: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """All results in order. The first failure cancels the rest and is raised by itself, for those
    who try again or explain look for a ``KafkaError`` or an ``OSError``, not for a group of them.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in work]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
