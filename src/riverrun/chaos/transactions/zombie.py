"""A producer in a process of its own, which is paused and replaced while its transaction is open.

``python -m riverrun.chaos.transactions.zombie BOOTSTRAP ID TOPIC VALUE...`` writes the values in a
transaction, prints ``written``, waits for a line, tries to commit, and prints the outcome.
"""

from __future__ import annotations

import signal
import subprocess
import sys

import confluent_kafka

from riverrun.chaos.clients.addresses import address_here, environment_of
from riverrun.chaos.transactions.feeders import CALL_SECONDS_MAX, confluent_producer

WRITTEN, COMMITTED = "written", "committed"


class ZombieProcess:
    """The other side: starts, pauses and resumes the process."""

    def __init__(
        self, bootstrap: str, transactional_id: str, topic: str, values: list[str]
    ) -> None:
        command = [sys.executable, "-m", __name__, bootstrap, transactional_id, topic, *values]
        self._process = subprocess.Popen(
            command,
            env=environment_of(bootstrap),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # librdkafka reports the fence there
            text=True,
        )

    def wait_written(self) -> bool:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip() == WRITTEN

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def commit(self) -> str:
        """Let it try to commit; return the outcome."""
        printed, _ = self._process.communicate("\n", timeout=3 * CALL_SECONDS_MAX)
        return printed.strip()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def main(bootstrap: str, transactional_id: str, topic: str, values: list[str]) -> None:
    producer = confluent_producer(bootstrap, transactional_id)
    producer.init_transactions(CALL_SECONDS_MAX)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value.encode(), partition=0)
    producer.flush(CALL_SECONDS_MAX)
    _tell(WRITTEN)
    sys.stdin.readline()
    try:
        producer.commit_transaction(CALL_SECONDS_MAX)
    except confluent_kafka.KafkaException as error:
        _tell(f"refused: {error}")
    else:
        _tell(COMMITTED)


def _tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(address_here(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
