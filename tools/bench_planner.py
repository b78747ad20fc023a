"""Time and memory of the planner: `python -m tools.bench_planner`, a table in Markdown.

Each row runs in a process of its own, so that its memory is its own. Topics are placed by Apache
Kafka's documented algorithm, with sizes that differ by a factor of up to 20 between topics.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import time

from msgspec.structs import replace

from riverrun.model.ids import NodeId
from riverrun.placement.brokers import Availability, PlacementBroker
from riverrun.placement.planner.layout import ClusterLayout, LayoutBuilder
from riverrun.placement.planner.plan import Purpose, make_plan
from tools.kafka_placer import kafka_place

REPLICAS = 3
RACKS = 3
SIZES = ((10_000, 21, 100), (100_000, 99, 1_000), (1_000_000, 999, 1_000))
"""Partitions, brokers, partitions of a topic."""
CASES = ("even", "joins", "leaves", "gone", "uneven")
BUDGETS = {10_000: 0.3, 100_000: 3.0, 1_000_000: 60.0}
MIB = 1024


def brokers_of(count: int, case: str) -> list[PlacementBroker]:
    known = [PlacementBroker(id=NodeId(n), rack=f"rack{n % RACKS}") for n in range(count)]
    away = {"leaves": Availability.DRAINING, "gone": Availability.GONE}.get(case)
    if away is not None:
        known[0] = replace(known[0], availability=away)
    return known


def layout_of(partitions: int, brokers: int, topic_size: int, case: str) -> ClusterLayout:
    rng = random.Random(7)
    builder = LayoutBuilder(brokers_of(brokers, case))
    # With "joins", a twentieth of the brokers is new and empty.
    holding = brokers - max(brokers // 20, RACKS) if case == "joins" else brokers
    holding -= holding % RACKS
    racks = [f"rack{n % RACKS}" for n in range(holding)]
    for topic in range(partitions // topic_size):
        scale = rng.uniform(1, 20) * 1e8
        if case == "uneven":
            placed = [tuple(rng.sample(range(brokers), REPLICAS)) for _ in range(topic_size)]
        else:
            placed = kafka_place(racks, topic_size, REPLICAS, rng)
        for number, nodes in enumerate(placed):
            builder.add(
                f"topic-{topic}",
                number,
                [NodeId(node) for node in nodes],
                size_bytes=scale * rng.uniform(0.5, 1.5),
                bytes_in=scale / 1e5,
                bytes_out=scale / 5e4,
                min_in_sync=2,
            )
    return builder.build()


def run_one(partitions: int, brokers: int, topic_size: int, case: str) -> dict[str, object]:
    layout = layout_of(partitions, brokers, topic_size, case)
    began = time.process_time()
    purpose = Purpose.REPAIR if case in ("leaves", "gone") else Purpose.BALANCE
    plan = make_plan(layout, purpose)
    took = time.process_time() - began
    return {
        "seconds": took,
        "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MIB,
        "moved": plan.replicas_moved,
        "leaders": plan.leaders_changed,
        "bytes": plan.bytes_to_copy,
        "before": {name: f.max_over_mean for name, f in plan.before.resources().items()},
        "after": {name: f.max_over_mean for name, f in plan.after.resources().items()},
        "spread": (plan.after.topic_replica_spread, plan.after.topic_leader_spread),
    }


def figures(values: dict[str, float]) -> str:
    return " ".join(f"{value:.2f}" for value in values.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", help="run one row and print JSON (internal)")
    parser.add_argument("--largest", type=int, default=1_000_000, help="partitions at most")
    parser.add_argument("--cases", default=",".join(CASES))
    options = parser.parse_args()
    if options.one:
        size, case = options.one.split(":")
        print(json.dumps(run_one(*next(one for one in SIZES if one[0] == int(size)), case)))
        return
    print("| partitions | brokers | case | seconds | budget | MiB | replicas moved | leaders changed "
          "| max/mean before | after | topic spread |")  # fmt: skip
    print("|" + "---|" * 11)
    for partitions, brokers, _ in SIZES:
        for case in options.cases.split(",") if partitions <= options.largest else ():
            command = [sys.executable, "-m", "tools.bench_planner", "--one", f"{partitions}:{case}"]
            row = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            print(
                f"| {partitions:,} | {brokers:,} | {case} | {row['seconds']:.2f} | {BUDGETS[partitions]} "
                f"| {row['mib']:.0f} | {row['moved']:,} | {row['leaders']:,} "
                f"| {figures(row['before'])} | {figures(row['after'])} "
                f"| {row['spread'][0]}, {row['spread'][1]} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
