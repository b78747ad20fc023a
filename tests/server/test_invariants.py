"""Errors that a request handler did not expect: which of them stop the node."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from riverrun.model.invariants import InvariantViolation
from riverrun.ports.clock import SystemClock
from riverrun.ports.files import OsFiles
from riverrun.ports.randomness import SystemRandomness
from riverrun.server.node import Node
from riverrun.server.settings import NodeSettings


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(
        NodeSettings.from_texts({"log.dirs": str(tmp_path)}),
        files=OsFiles(),
        clock=SystemClock(),
        randomness=SystemRandomness(),
    )


def test_handler_bug_costs_only_the_connection(node: Node) -> None:
    node._handler_failed(AssertionError("a handler's own assertion"))
    node._handler_failed(KeyError("x"))
    assert node.health()["failure"] is None


def test_violated_invariant_stops_the_node(node: Node) -> None:
    error = InvariantViolation("epoch went back")
    node._handler_failed(error)
    assert node.health()["failure"] == "InvariantViolation: epoch went back"
    assert asyncio.run(node.run()) is error


def test_violated_invariant_in_a_timer_stops_the_node(node: Node) -> None:
    error = InvariantViolation("epoch went back")

    def fails() -> None:
        raise error

    async def run() -> BaseException | None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(node.callback_failed)
        loop.call_soon(fails)
        return await node.run()

    assert asyncio.run(run()) is error


def test_other_errors_in_a_timer_do_not_stop_the_node(node: Node) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(node.callback_failed)
        loop.call_soon(int, "no number")
        await asyncio.sleep(0)

    asyncio.run(run())
    assert node.health()["failure"] is None
