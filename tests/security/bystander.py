"""A good client that works while others attack."""

from __future__ import annotations

import threading

from confluent_kafka import KafkaError, Producer

from tests.processes import until
from tests.secure_node import SecureNode

SECONDS_MAX = 30


class Bystander:
    """Writes all the time."""

    def __init__(self, secure: SecureNode) -> None:
        self.errors: list[KafkaError] = []
        self._delivered = 0
        self._producer = Producer({**secure.admin, "acks": "all", "error_cb": self.errors.append})
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Bystander:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        assert self._producer.flush(SECONDS_MAX) == 0

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._producer.produce("work", b"good", on_delivery=self._done)
            self._producer.poll(0.005)

    def _done(self, error: KafkaError | None, _: object) -> None:
        if error is None:
            self._delivered += 1
        else:
            self.errors.append(error)

    def progress(self) -> None:
        before = self._delivered
        until(lambda: self._delivered > before + 20, seconds=SECONDS_MAX, what="progress")
