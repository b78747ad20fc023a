"""Produces and consumes for minutes while the node is killed every few seconds.

    python -m tools.soak --minutes 10 [--kill-every 5] [--peer kafka] [--json]

The last fifth of the time has no kills, to measure the growth of memory. Exits with 0 if no
acknowledged record is lost, duplicated or reordered, the group read everything, and memory did not
grow. Also reports the longest pause of writes around a kill and the time of a start.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.chaos.workload import Verdict, Workload
from tests.processes import Server, serve

PARTITIONS = 6
GROWTH_MAX = 1.3
QUIET_PART = 0.2
SETTINGS = {"log.segment.bytes": str(32 << 20), "log.retention.bytes": "-1"}


@dataclass(slots=True)
class Figures:
    kills: int = 0
    start_seconds: list[float] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=list)
    """Resident memory without kills, one sample per second."""

    def memory_growth(self) -> float:
        """The last third of the samples compared with the first third."""
        third = max(len(self.memory_mb) // 3, 1)
        first, last = self.memory_mb[:third], self.memory_mb[-third:]
        return statistics.median(last) / statistics.median(first)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--kill-every", type=float, default=5.0, help="seconds, on average")
    parser.add_argument("--record-bytes", type=int, default=500)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--peer", default="riverrun", choices=["riverrun", "kafka"])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="riverrun-soak-"))
    seed = options.seed if options.seed is not None else random.randrange(1 << 30)
    with serve(folder, SETTINGS, peer=options.peer) as server:
        server.wait_for_coordinator()
        _make_topic(server)
        workload = Workload(server.bootstrap, "soak", PARTITIONS, record_bytes=options.record_bytes)
        figures = Figures()
        with workload:
            _torment(server, workload, figures, options, random.Random(seed))
            _watch_memory(server, figures, options.minutes * 60 * QUIET_PART)
        verdict = workload.verdict()
    report = _report(verdict, figures, seed)
    print(json.dumps(report) if options.json else _text(report))
    return 0 if report["holds"] else 1


def _torment(
    server: Server,
    workload: Workload,
    figures: Figures,
    options: argparse.Namespace,
    chance: random.Random,
) -> None:
    end = time.monotonic() + options.minutes * 60 * (1 - QUIET_PART)
    while time.monotonic() < end:
        time.sleep(chance.uniform(0.3, 2 * options.kill_every - 0.3))
        server.kill()
        began = time.monotonic()
        server.restart()
        figures.start_seconds.append(time.monotonic() - began)
        figures.kills += 1
        workload.wait_for_progress(1, seconds=120)
        if not options.json and figures.kills % 10 == 0:
            print(f"{figures.kills} kills, {workload.count} acknowledged", flush=True)


def _watch_memory(server: Server, figures: Figures, seconds: float) -> None:
    process = psutil.Process(server.pid)
    for _ in range(max(round(seconds), 3)):
        time.sleep(1)
        figures.memory_mb.append(process.memory_info().rss / 1e6)


def _report(verdict: Verdict, figures: Figures, seed: int) -> dict[str, Any]:
    growth = figures.memory_growth()
    return {
        "holds": verdict.is_clean and growth < GROWTH_MAX,
        "seed": seed,
        "kills": figures.kills,
        **asdict(verdict),
        "start_seconds_median": round(statistics.median(figures.start_seconds or [0]), 3),
        "start_seconds_max": round(max(figures.start_seconds, default=0), 3),
        "memory_mb_first": round(figures.memory_mb[0], 1),
        "memory_mb_last": round(figures.memory_mb[-1], 1),
        "memory_growth": round(growth, 3),
    }


def _text(report: dict[str, Any]) -> str:
    rows = "\n".join(f"  {name.replace('_', ' '):28} {value}" for name, value in report.items())
    return f"{rows}\n{'holds' if report['holds'] else 'DOES NOT HOLD'}"


def _make_topic(server: Server) -> None:
    topic = {"name": "soak", "num_partitions": PARTITIONS, "replication_factor": 1}
    with server.client() as client:
        made = client.request("create_topics", 7, {"topics": [topic], "timeout": 10000})
    assert made["topics"][0]["error_code"] == "NONE", made


if __name__ == "__main__":
    raise SystemExit(main())
