"""Waiters for an offset to be published, and for this node to catch up."""

from __future__ import annotations

import asyncio

from riverrun.model.ids import Offset


class Waiting:
    def __init__(self) -> None:
        self._until: list[tuple[Offset, asyncio.Future[None]]] = []
        self._behind: list[asyncio.Future[None]] = []
        self.is_behind = True

    def until(self, offset: Offset) -> asyncio.Future[None]:
        """The image that contains this offset is published."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._until.append((offset, waiter))
        return waiter

    def until_caught_up(self) -> asyncio.Future[None]:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.is_behind:
            self._behind.append(waiter)
        else:
            waiter.set_result(None)
        return waiter

    def reached(self, offset: Offset) -> None:
        due = [waiter for at, waiter in self._until if at <= offset]
        self._until = [(at, waiter) for at, waiter in self._until if at > offset]
        _end(due, None)

    def caught_up(self) -> None:
        self.is_behind = False
        due, self._behind = self._behind, []
        _end(due, None)

    def fail(self, error: BaseException, committed: Offset) -> None:
        """The result of the uncommitted offsets is unknown: fail their waiters."""
        due = [waiter for at, waiter in self._until if at >= committed]
        self._until = [(at, waiter) for at, waiter in self._until if at < committed]
        _end(due, error)

    def fail_all(self, error: BaseException) -> None:
        self.fail(error, Offset(0))
        due, self._behind = self._behind, []
        _end(due, error)


def _end(waiters: list[asyncio.Future[None]], error: BaseException | None) -> None:
    for waiter in waiters:
        if waiter.done():
            continue  # the caller is gone
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)
