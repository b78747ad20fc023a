"""Transcripts of the transaction coordinator: requests, and the records, markers and answers.

Each file in ``transcripts`` is run and compared; ``pytest --rewrite`` rewrites it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from riverrun.model.errors import ErrorCode
from tests.coordinator.transactions.driver import TransactionDriver

FOLDER = Path(__file__).parent / "transcripts"
STORIES = sorted(FOLDER.glob("*.txt"))


class Stage:
    """Runs commands and records what the coordinator does."""

    def __init__(self) -> None:
        self.driver = TransactionDriver()
        self.lines: list[str] = []

    def play(self, command: str) -> str:
        self.lines = []
        self.driver.listener = self.lines.append
        name, *words = command.split()
        getattr(self, f"do_{name}")(*words)
        return "\n".join(self.lines) or "(nothing)"

    def do_version(self, level: str) -> None:
        self.driver.server_version = int(level)

    def do_epoch(self, level: str) -> None:
        """Set the epoch of the stored producer, as if it had been initialised that often."""
        known = self.driver.log[-1].value
        assert known is not None
        while self.driver.state().producer_epoch < int(level):
            self.driver.listener = lambda _event: None
            self.driver.init()

    def do_init(self, *words: str) -> None:
        options = dict(word.split("=") for word in words)
        producer = options.get("as", "-1/-1").split("/")
        self.driver.init(
            options.get("id", "app"),
            timeout_ms=int(options.get("timeout", "60000")),
            producer=(int(producer[0]), int(producer[1])),
        )

    def do_add(self, producer: str, *words: str) -> None:
        options = dict(word.split("=") for word in words if "=" in word)
        number, epoch = producer.split("/")
        self.driver.add(
            (int(number), int(epoch)),
            *(word for word in words if "=" not in word),
            version=int(options.get("version", "0")),
            connection=int(options.get("connection", "1")) if "version" not in options else None,
        )

    def do_verify(self, producer: str, *names: str) -> None:
        number, epoch = producer.split("/")
        found = self.driver.verify((int(number), int(epoch)), *names)
        codes = [found] if isinstance(found, ErrorCode) else found
        self.lines.append(f"answers {' '.join(code.name for code in codes)}")

    def _end(self, producer: str, words: tuple[str, ...], *, is_commit: bool) -> None:
        options = dict(word.split("=") for word in words)
        number, epoch = producer.split("/")
        self.driver.end(
            (int(number), int(epoch)),
            is_commit=is_commit,
            version=int(options.get("version", "0")),
            connection=int(options.get("connection", "1")),
        )

    def do_commit(self, producer: str, *words: str) -> None:
        self._end(producer, words, is_commit=True)

    def do_abort(self, producer: str, *words: str) -> None:
        self._end(producer, words, is_commit=False)

    def do_markers(self) -> None:
        """All leaders write the markers."""
        self.driver.write_markers()

    def do_wait(self, ms: str) -> None:
        self.driver.wait(int(ms))

    def do_hold(self) -> None:
        """The log does not commit until it is told to."""
        self.driver.hold()

    def do_log(self, outcome: str) -> None:
        if outcome == "commits":
            self.driver.commit_log()
        else:
            self.driver.refuse_log(ErrorCode[outcome])

    def do_failover(self) -> None:
        self.driver.fail_over()

    def do_expire(self) -> None:
        turn = self.driver.turn()
        self.driver.shard.expire_ids(turn, self.driver.shard.known_ids())
        self.driver.finish(turn)

    def do_status(self) -> None:
        for name, known in self.driver.shard.transactions.items():
            producer = f"{known.producer_id}/{known.producer_epoch}"
            self.lines.append(f"{name} is {known.status.title} {producer}")


def played(text: str) -> str:
    """The same transcript with the current behaviour."""
    stage = Stage()
    out: list[str] = []
    lines = iter(text.splitlines())
    for line in lines:
        out.append(line)
        if not line.startswith("> "):
            continue
        for old in lines:
            if not old.strip():
                break
        out += [*stage.play(line[2:]).splitlines(), ""]
    return "\n".join(out).rstrip() + "\n"


@pytest.mark.parametrize("path", STORIES, ids=lambda path: str(path.stem))
def test_a_transcript_of_a_coordinator_is_reproduced(
    path: Path, request: pytest.FixtureRequest
) -> None:
    text = path.read_text()
    now = played(text)
    if request.config.getoption("--rewrite"):
        path.write_text(now)
    assert now == path.read_text(), "if the new transcript is right, pytest --rewrite keeps it"


def test_transcripts_of_the_coordinator_exist() -> None:
    assert [path.stem for path in STORIES] == [
        "a_commit_in_version_1",
        "a_commit_in_version_2",
        "a_failover_at_every_step",
        "a_late_request_of_an_older_connection",
        "a_log_that_refuses",
        "a_new_instance_fences_the_old_one",
        "a_timeout",
        "a_timeout_in_the_last_epoch",
        "epochs_are_exhausted_in_version_1",
        "epochs_are_exhausted_in_version_2",
        "ids_expire",
        "retries_of_a_producer",
    ]
