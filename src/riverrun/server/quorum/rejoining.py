"""A voter that lost its data, on its way back among the voters (KIP-1186).

It first removes the vote of its lost directory and then adds the one that it has. Between the two
it is no voter, and nothing in the metadata says that it should be one: a crash just then would
leave the quorum one voter short for good. So the intention is made durable before the removal is
asked for, and forgotten when the node votes again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from riverrun.model.ids import NodeId
from riverrun.ports.files import Files, write_atomically
from riverrun.raft.messages import RemoveVoterRequest, Request
from riverrun.raft.types import Voter

NAME: Final = "rejoins-voters"


class Rejoining:
    """The intention of one node. All calls but ``is_begun_by`` block on the disk."""

    def __init__(self, files: Files, folder: str, node_id: NodeId) -> None:
        self._files = files
        self._path = os.path.join(folder, NAME)
        self._node_id = node_id
        self.is_intended = files.exists(self._path)

    def is_begun_by(self, request: Request) -> bool:
        """Whether this request ends the vote of this very node."""
        return isinstance(request, RemoveVoterRequest) and request.voter.id == self._node_id

    def intend(self) -> None:
        """Durable when it returns. A damaged log is dropped with all that lies beside it, so what
        was there when we were opened need not be there now.
        """
        if not self._files.exists(self._path):
            write_atomically(self._files, self._path, b"0\n")
        self.is_intended = True

    def is_finished(self, me: Voter, voters: Sequence[Voter]) -> bool:
        """Whether this node votes with its present directory again."""
        return any(v.id == me.id and v.directory_id == me.directory_id for v in voters)

    def forget(self) -> None:
        if self._files.exists(self._path):
            self._files.unlink(self._path)
        self.is_intended = False
