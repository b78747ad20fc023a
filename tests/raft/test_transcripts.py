"""Transcripts of a quorum: commands and the resulting actions of its members.

Each file in ``transcripts`` is run and compared; ``pytest --rewrite`` rewrites it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from riverrun.model.ids import NodeId
from riverrun.raft import effects as do
from riverrun.raft import events
from riverrun.raft.messages import AddVoterRequest, RemoveVoterRequest
from tests.raft.logs import voter, voters
from tests.raft.transcript_writer import sentence
from tests.raft.world import Node, World

FOLDER = Path(__file__).parent / "transcripts"
STORIES = sorted(FOLDER.glob("*.txt"))


class Stage:
    """Runs commands in a world without randomness and records what happens."""

    def __init__(self) -> None:
        self.world = World(voters())
        self.lines: list[str] = []
        self._silent = False

    def play(self, command: str) -> str:
        self.lines = []
        self._begun = self.world.now
        name, *words = command.split()
        getattr(self, f"do_{name}")(*words)
        return "\n".join(self.lines) or "(nothing)"

    def hear(self, now: float, node: NodeId, effect: do.Effect) -> None:
        said = sentence(effect)
        if said is not None and not self._silent:
            self.lines.append(f"{(now - self._begun) * 1000:5.0f} ms  {node} {said}")

    def node(self, name: str) -> Node:
        return self.world.nodes[NodeId(int(name))]

    def leader(self) -> Node:
        leader = self.world.leader
        assert leader is not None, "there is no leader"
        return leader

    def do_voters(self, *names: str) -> None:
        self._begun = 0.0
        self.world = World(voters(*map(int, names)), listener=self.hear)

    def do_quietly(self, *words: str) -> None:
        """A command of which only the result matters."""
        self._silent = True
        self.play(" ".join(words))
        self._silent = False
        self.do_status()

    def do_wait(self, milliseconds: str) -> None:
        self.world.run(int(milliseconds) / 1000)

    def do_propose(self, *values: str) -> None:
        for value in values:
            self.world.propose(self.leader(), value)

    def do_kill(self, name: str) -> None:
        self.world.crash(self.node(name))

    def do_start(self, name: str, *how: str) -> None:
        self.world.start(self.node(name), joins="joining" in how)

    def do_pause(self, name: str) -> None:
        self.world.pause(self.node(name))

    def do_resume(self, name: str) -> None:
        self.world.resume(self.node(name))

    def do_isolate(self, name: str) -> None:
        self.world.isolate(int(name))

    def do_heal(self) -> None:
        self.world.heal()

    def do_resign(self) -> None:
        self.world.step(self.leader(), events.Resign())

    def do_shutdown(self, name: str) -> None:
        self.world.step(self.node(name), events.Shutdown())

    def do_snapshot(self, *names: str) -> None:
        for name in names:
            made = self.world.snapshot(self.node(name))
            self.lines.append(
                f"{name} has snapshot {made.offset}-{made.epoch} and no log before it"
            )

    def do_observer(self, name: str, *how: str) -> None:
        node = voter(int(name))
        self.world.add(node, first=voters(), joins="joining" in how)

    def do_wipe(self, name: str, *how: str) -> None:
        self.world.crash(self.node(name))
        del self.world.nodes[NodeId(int(name))]
        self.world.invariants.forget(NodeId(int(name)))
        self.world.add(voter(int(name), 77), first=voters(), joins="joining" in how)

    def do_move(self, name: str, port: str) -> None:
        node = self.node(name)
        self.world.crash(node)
        node.me = voter(int(name), port=int(port))
        self.world.start(node)

    def do_add(self, name: str) -> None:
        request = AddVoterRequest(voter=self.node(name).me, timeout_ms=1000)
        self.world.ask(self.leader(), request)

    def do_remove(self, name: str) -> None:
        self.world.ask(self.leader(), RemoveVoterRequest(voter=self.node(name).me.key))

    def do_status(self) -> None:
        for node in self.world.nodes.values():
            log = f"log ends at {node.log.end_offset} in epoch {node.log.last_epoch}"
            if node.raft is None:
                self.lines.append(f"{node.id} is down; {log}")
                continue
            raft = node.raft
            role = f"is {raft.role} in epoch {raft.epoch}"
            if not raft.is_voter:
                role += ", without a vote"
            self.lines.append(f"{node.id} {role}; {log}; committed {raft.high_watermark}")


def played(text: str) -> str:
    """The same transcript with the current behaviour."""
    stage = Stage()
    out: list[str] = []
    lines = iter(text.splitlines())
    for line in lines:
        if not line.startswith("> "):
            out.append(line)
            continue
        out.append(line)
        for old in lines:
            if not old.strip():
                break
        out += [*stage.play(line[2:]).splitlines(), ""]
    return "\n".join(out).rstrip() + "\n"


@pytest.mark.parametrize("path", STORIES, ids=lambda path: str(path.stem))
def test_a_transcript_is_reproduced(path: Path, request: pytest.FixtureRequest) -> None:
    text = path.read_text()
    now = played(text)
    if request.config.getoption("--rewrite"):
        path.write_text(now)
    assert now == path.read_text(), "if the new transcript is right, pytest --rewrite keeps it"


def test_transcripts_exist() -> None:
    assert [path.stem for path in STORIES] == [
        "a_leader_cut_off",
        "a_leader_hands_over",
        "a_leader_is_killed",
        "a_log_that_diverged",
        "a_snapshot_for_a_late_one",
        "a_wiped_voter",
        "the_first_election",
        "voters_come_and_go",
    ]
