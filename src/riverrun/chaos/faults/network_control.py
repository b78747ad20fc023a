"""Starts the proxy process and sends it commands: processes of nodes, faults, healing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict
from types import TracebackType
from typing import Self

from riverrun.chaos.faults.link_faults import ANY, Mode
from riverrun.chaos.faults.proxy import ProxyRoute

CLIENT = "client"
CONTROLLER = "controller"
STOP_SECONDS_MAX = 10.0


class NetworkControl:
    """One proxy process with the routes of a cluster."""

    def __init__(self, routes: Iterable[ProxyRoute]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "riverrun.chaos.faults.proxy"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._say([asdict(route) for route in routes])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The proxy process."""
        return self._process.pid

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _say(self, order: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        response = self._process.stdout.readline()
        if response != "done\n":
            raise RuntimeError(f"the proxy exited on {order}")

    def process(self, node: int, pid: int) -> None:
        self._say({"do": "process", "node": node, "pid": pid})

    def block(
        self,
        source: int | str,
        target: int | str,
        *,
        mode: Mode = Mode.HOLD,
        channel: str = ANY,
    ) -> None:
        """Block traffic from the source to the target."""
        self._fault(source, target, channel, mode=mode)

    def separate(self, one: int | str, other: int | str, *, mode: Mode = Mode.HOLD) -> None:
        """Block traffic in both directions."""
        self.block(one, other, mode=mode)
        self.block(other, one, mode=mode)

    def slow(
        self,
        source: int | str,
        target: int | str,
        *,
        delay_ms: float = 0.0,
        bytes_per_second: int = 0,
        channel: str = ANY,
    ) -> None:
        self._fault(source, target, channel, delay_ms=delay_ms, bytes_per_second=bytes_per_second)

    def _fault(self, source: int | str, target: int | str, channel: str, **fault: object) -> None:
        way = {"source": str(source), "target": str(target), "channel": channel}
        self._say({"do": "fault", **way, **fault})

    def half_open(self, node: int | str = ANY) -> None:
        """Close the node's end of its connections without closing the other end."""
        self._say({"do": "half-open", "node": str(node)})

    def heal(self) -> None:
        self._say({"do": "heal"})
