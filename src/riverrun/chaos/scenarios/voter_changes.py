"""Changes of the quorum's voters that do not wait, so that nodes can be killed meanwhile."""

from __future__ import annotations

import base64
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from riverrun.client.connection import UnsupportedApi
from riverrun.model.errors import ErrorCode
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages import add_raft_voter_request as adding
from riverrun.wire.messages import remove_raft_voter_request as removing

if TYPE_CHECKING:
    from riverrun.chaos.scenarios.arena import Arena

RESPONSE_SECONDS_MAX = 5.0


def directory_of(data: Path) -> UUID:
    """The directory id of a node, which identifies a voter."""
    for line in (data / "meta.properties").read_text().splitlines():
        name, _, value = line.partition("=")
        if name == "directory.id":
            return UUID(bytes=base64.urlsafe_b64decode(value + "=="))
    raise ValueError(f"{data}/meta.properties has no directory.id")


class PendingVoterChange:
    """A requested change, whose outcome may stay unknown."""

    def __init__(self, future: Future[ErrorCode]) -> None:
        self._future = future

    def outcome(self) -> str:
        try:
            code = self._future.result(RESPONSE_SECONDS_MAX)
        except (OSError, TimeoutError, UnsupportedApi) as error:
            return f"has no known outcome: {error}"
        return "was confirmed" if code is ErrorCode.NONE else f"was refused: {code.name}"


def remove_voter(arena: Arena, number: int) -> PendingVoterChange:
    message = removing.RemoveRaftVoterRequest(
        cluster_id=None,
        voter_id=number,
        voter_directory_id=directory_of(arena.cluster.nodes[number].place.data),
    )
    return PendingVoterChange(
        arena.probe.request_controller(arena.controller(), ApiKey.REMOVE_RAFT_VOTER, message)
    )


def add_voter(arena: Arena, number: int) -> PendingVoterChange:
    host, _, port = arena.cluster.nodes[number].place.proxied_controller.rpartition(":")
    message = adding.AddRaftVoterRequest(
        cluster_id=None,
        timeout_ms=int(RESPONSE_SECONDS_MAX * 1000),
        voter_id=number,
        voter_directory_id=directory_of(arena.cluster.nodes[number].place.data),
        listeners=(adding.Listener(name="CONTROLLER", host=host, port=int(port)),),
    )
    return PendingVoterChange(
        arena.probe.request_controller(arena.controller(), ApiKey.ADD_RAFT_VOTER, message)
    )


def make_voter_again(arena: Arena, number: int) -> None:
    """Add a voter that was removed, until it is one."""

    def is_voter() -> bool:
        if number in arena.quorum().voters:
            return True
        add_voter(arena, number).outcome()
        return False

    arena.expect(is_voter, seconds=20, what=f"node {number} is a voter again")
