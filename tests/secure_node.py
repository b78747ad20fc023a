"""Nodes that are started by `riverrun up --secure`, with a user and access control."""

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
    """Nodes, started by `up --secure`, and commands against them."""

    def __init__(self, data: Path, *settings: str, log: Path | None = None, nodes: int = 1) -> None:
        """``settings`` are of the form NAME=VALUE. The nodes log to ``log``, by default a file
        beside the data."""
        words = ["up", "--secure", "--nodes", str(nodes), "--port", "0", "--json"]
        words += ["--data", str(data), *(word for text in settings for word in ("--set", text))]
        self._log = log or data.parent / "log.txt"
        with self._log.open("wb") as written:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "riverrun", *words],
                stdout=subprocess.PIPE,
                stderr=written,
                text=True,
            )
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], READY_SECONDS_MAX)
        assert ready, "the node does not start"
        self.told: dict[str, Any] = json.loads(self._process.stdout.readline())
        self.bootstrap: str = self.told["bootstrap"]
        self.security: dict[str, str] = self.told["security"]

    @property
    def logged(self) -> str:
        return self._log.read_text()

    def client(self, user: str, password: str, **more: Any) -> dict[str, Any]:
        """The settings of a client of confluent-kafka."""
        return {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": password,
            "ssl.ca.location": self.security["ca"],
            **more,
        }

    @property
    def admin(self) -> dict[str, Any]:
        return self.client(self.security["user"], self.security["password"])

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
        producer = Producer(self.client(user, password, **{"message.timeout.ms": 20_000}))
        producer.produce(
            topic, b"x", on_delivery=lambda error, _: errors.append(error.name() if error else "")
        )
        producer.flush(30)
        return errors[0]
