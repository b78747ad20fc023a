"""The promise file, and promises written for all voters at once."""

import asyncio
from pathlib import Path
from uuid import UUID

import pytest

from riverrun.metadata.snapshot import Snapshot
from riverrun.model.ids import NodeId
from riverrun.ports.clock import SystemClock
from riverrun.ports.files import OsFiles
from riverrun.ports.randomness import SystemRandomness
from riverrun.raft.types import Voter
from riverrun.server.formation.decision import ClusterProposal, FormationError, Formed
from riverrun.server.formation.formation import Formation
from riverrun.server.formation.promise import (
    PROMISE,
    Promise,
    promise_for_all,
    read_promise,
    write_promise,
)
from riverrun.server.settings import NodeSettings
from riverrun.storage.directory import LogDirectory

FILES = OsFiles()


def test_promise_file_round_trip(tmp_path: Path) -> None:
    voter = Voter(id=NodeId(1), directory_id=UUID(int=5), endpoints={"CONTROLLER": ("a", 9093)})
    kept = Promise(proposal=ClusterProposal(cluster_id="one", proposed_ms=5, voters=(voter,)))
    assert read_promise(FILES, str(tmp_path)) is None
    write_promise(FILES, str(tmp_path), kept)
    assert read_promise(FILES, str(tmp_path)) == kept
    (tmp_path / PROMISE).write_text("{")
    with pytest.raises(FormationError, match="corrupt"):
        read_promise(FILES, str(tmp_path))


def form(path: Path, number: int) -> Formed:
    texts = {"node.id": str(number), "log.dirs": str(path), "seed.nodes": "nowhere.invalid:1"}
    settings = NodeSettings.from_texts(texts)
    clock, randomness = SystemClock(), SystemRandomness()
    directory = LogDirectory.open(
        FILES, str(path), node_id=settings.node_id, clock=clock, randomness=randomness
    )

    async def run() -> Formed:
        formation = Formation(settings, directory, files=FILES, clock=clock, randomness=randomness)
        return await formation.form()

    try:
        return asyncio.run(run())
    finally:
        directory.close()


def test_nodes_with_agreed_promises_found_one_cluster_without_requests(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in (1, 2, 3)]
    promise_for_all(
        [(number, "127.0.0.1", 9083 + 10 * number) for number in (1, 2, 3)],
        paths,
        cluster_id="MkU3OEVBNTcwNTJENDM2Qg",
        clock=SystemClock(),
        randomness=SystemRandomness(),
    )
    formed = [form(path, number) for number, path in enumerate(paths, 1)]
    assert {f.cluster_id for f in formed} == {"MkU3OEVBNTcwNTJENDM2Qg"}
    assert formed[0] == formed[1] == formed[2]
    name = "__cluster_metadata-0/00000000000000000000-0000000000.checkpoint"
    contents = {(path / name).read_bytes() for path in paths}
    assert len(contents) == 1
    assert Snapshot(contents.pop()).voters == formed[0].voters
    assert not any((path / PROMISE).exists() for path in paths)
