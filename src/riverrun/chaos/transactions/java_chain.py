"""A read-process-write chain of Apache Kafka's Java clients, in a process of its own.

It decides about nothing: it reads, writes, commits and aborts when it is told to, so the history is
written here, before a request is sent and after its response has arrived.
"""

from __future__ import annotations

import random
import select
import shutil
import subprocess
import time
from pathlib import Path

from riverrun.chaos.clients.addresses import environment_of
from riverrun.chaos.clients.consumers import SESSION_MS
from riverrun.chaos.transactions.chains import Batch, ChainContext
from riverrun.chaos.transactions.feeders import ABORT_PROBABILITY, CALL_SECONDS_MAX, TRANSACTION_MS
from riverrun.cli.benchmark.peers import PeerUnavailable, kafka_jars

SOURCE = Path(__file__).with_name("JavaChain.java")
FLAGS = ("-Xmx128M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
ANSWER_POLL_SECONDS = 0.5


class ChainEnded(Exception):
    """The process has ended, or does not respond although the run is over."""


def java_command() -> list[str]:
    """How to start a chain, or PeerUnavailable."""
    java = shutil.which("java")
    if java is None or shutil.which("javac") is None:
        raise PeerUnavailable("no JDK is installed")
    return [java, *FLAGS, "-cp", f"{kafka_jars()}/*", str(SOURCE)]


class JavaChain:
    """Speaks transaction version 2, as producers of Apache Kafka 4 do."""

    def __init__(self, context: ChainContext, command: list[str]) -> None:
        self.name = context.group
        self._context = context
        self._command = command

    def run(self) -> None:
        rng = random.Random(self.name)
        while not self._context.stop.is_set():
            with self._start() as process:
                dialogue = _Dialogue(process, self._context)
                try:
                    while not self._context.stop.is_set():
                        batch = _rows(dialogue.ask("read"))
                        if batch:
                            self._transact(dialogue, batch, rng)
                except ChainEnded:
                    process.kill()

    def _start(self) -> subprocess.Popen[str]:
        feed = self._context.feed
        topics = [feed.topic, self._context.outputs]
        times_ms = [SESSION_MS, TRANSACTION_MS, int(CALL_SECONDS_MAX * 1000)]
        return subprocess.Popen(
            [*self._command, feed.bootstrap, self.name, *topics, *map(str, times_ms)],
            env=environment_of(feed.bootstrap),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # Kafka logs every lost connection there
            text=True,
        )

    def _transact(self, dialogue: _Dialogue, batch: Batch, rng: random.Random) -> None:
        feed = self._context.feed
        record = self._context.take(self.name, batch)
        fields = [
            text for write in record.writes for text in (str(write.partition[1]), write.value)
        ]
        if dialogue.ask("write", *fields)[0] != "written":
            return
        if rng.random() < ABORT_PROBABILITY:
            if dialogue.ask("abort")[0] == "aborted":
                record.is_aborted(feed.now())
            return
        record.requests_commit(feed.now())
        if dialogue.ask("commit")[0] == "committed":
            feed.committed(self.name, record)


class _Dialogue:
    """One response for each request."""

    def __init__(self, process: subprocess.Popen[str], context: ChainContext) -> None:
        self._process = process
        self._context = context

    def ask(self, *fields: str) -> list[str]:
        """The fields of the response. After the end of the run it is not awaited for long."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write("\t".join(fields) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise ChainEnded(str(error)) from error
        end: float | None = None
        while not select.select([self._process.stdout], [], [], ANSWER_POLL_SECONDS)[0]:
            if self._context.stop.is_set():
                end = end or time.monotonic() + CALL_SECONDS_MAX
                if time.monotonic() > end:
                    raise ChainEnded(f"no response to {fields[0]}")
        line = self._process.stdout.readline()
        if not line:
            raise ChainEnded(f"the process ended during {fields[0]}")
        return line.rstrip("\n").split("\t")


def _rows(response: list[str]) -> Batch:
    batch: Batch = {}
    for at in range(1, len(response), 3):
        partition, offset, value = response[at : at + 3]
        batch.setdefault(int(partition), []).append((int(offset), value))
    return batch
