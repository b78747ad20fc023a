"""A node that is started by `riverrun up --secure`, with a user and access control."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

READY_SECONDS_MAX = 60


class SecureNode:
    """One node, started by `up --secure`, and commands against it."""

    def __init__(self, data: Path, *settings: str, log: Path | None = None) -> None:
        """``settings`` are of the form NAME=VALUE. The node logs to ``log``."""
        words = ["up", "--secure", "--nodes", "1", "--port", "0", "--json"]
        words += ["--data", str(data), *(word for text in settings for word in ("--set", text))]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "riverrun", *words],
            stdout=subprocess.PIPE,
            stderr=None if log is None else log.open("w"),
            text=True,
        )
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], READY_SECONDS_MAX)
        assert ready, "the node does not start"
        self.told: dict[str, Any] = json.loads(self._process.stdout.readline())
        self.bootstrap: str = self.told["bootstrap"]
        self.security: dict[str, str] = self.told["security"]

    def stop(self) -> int:
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(30)

    def run(
        self, *words: str, given: str = "", environment: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "riverrun", *words],
            input=given,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={
                **os.environ,
                "RIVERRUN_BOOTSTRAP": self.bootstrap,
                "RIVERRUN_COMMAND_CONFIG": self.security["properties"],
                **(environment or {}),
            },
        )

    def produce(self, user: str, password: str, topic: str) -> str:
        """The name of the error of one produced record; empty if it was acknowledged."""
        errors: list[str] = []
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": user,
                "sasl.password": password,
                "ssl.ca.location": self.security["ca"],
                "message.timeout.ms": 20_000,
            }
        )
        producer.produce(
            topic, b"x", on_delivery=lambda error, _: errors.append(error.name() if error else "")
        )
        producer.flush(30)
        return errors[0]
