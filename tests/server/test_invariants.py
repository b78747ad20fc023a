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
