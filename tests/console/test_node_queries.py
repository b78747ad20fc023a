"""Which node answers a question that any node can answer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from riverrun.client.pool import ConnectionPool
from riverrun.console.node_queries import _first_answer
from riverrun.wire.private.describe_node_request import DescribeNodeRequest

MESSAGE = DescribeNodeRequest(subject="diff")


class FakePool:
    """Nodes that refuse connections, close them, are silent, or answer."""

    def __init__(self, **nodes: str) -> None:
        self._behaviours = nodes
        self.cluster = SimpleNamespace(
            nodes={int(name[1:]): (name, 9092) for name in nodes}, controller_id=2
        )
        self.asked: list[str] = []

    async def connect(self, address: tuple[str, int]) -> Any:
        name = address[0]
        self.asked.append(name)
        if self._behaviours[name] == "refuses":
            raise ConnectionRefusedError(name)

        async def request(*_: object, **__: object) -> str:
            match self._behaviours[name]:
                case "closes":
                    raise ConnectionResetError(name)
                case "silent":
                    raise TimeoutError(name)
            return name

        return SimpleNamespace(request=request, close=lambda: None)

    def answer(self) -> object:
        return asyncio.run(_first_answer(cast(ConnectionPool, self), MESSAGE))


def test_the_active_controller_is_asked_first() -> None:
    pool = FakePool(n1="answers", n2="answers")
    assert (pool.answer(), pool.asked) == ("n2", ["n2"])


def test_another_node_answers_if_the_first_ones_died() -> None:
    pool = FakePool(n1="closes", n2="refuses", n3="answers")
    assert (pool.answer(), pool.asked) == ("n3", ["n2", "n1", "n3"])


def test_without_any_answer_the_last_failure_is_raised() -> None:
    with pytest.raises(ConnectionResetError):
        FakePool(n1="closes", n2="refuses").answer()


def test_a_silent_node_uses_up_the_time() -> None:
    pool = FakePool(n1="answers", n2="silent")
    with pytest.raises(TimeoutError):
        pool.answer()
    assert pool.asked == ["n2"]
