"""A voter that lost its data rejoins the voters (KIP-1186).

It first removes the voter with its lost directory and then adds itself with the new one. In between
it is not a voter, and the metadata does not state that it should be: a crash at that time would
leave the quorum one voter short. So the node stores the intention durably before it requests the
removal, and deletes it when it votes again.
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
    """The stored intention of one node. ``intend`` and ``forget`` block on the disk."""

    def __init__(self, files: Files, folder: str, node_id: NodeId) -> None:
        self._files = files
        self._path = os.path.join(folder, NAME)
        self._node_id = node_id
        self.is_intended = files.exists(self._path)

    def is_begun_by(self, request: Request) -> bool:
        """Whether this request removes this node from the voters."""
        return isinstance(request, RemoveVoterRequest) and request.voter.id == self._node_id

    def intend(self) -> None:
        """Store the intention durably. A damaged metadata log is deleted with its whole directory,
        so the file may be gone although it existed at the start.
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
