"""The same plan gives the same run in every process.

It does not depend on the hashes of strings, on addresses of objects, or on the worlds that ran
before in the same process.
"""

import os
import subprocess
import sys
from collections.abc import Set

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.simulation.ordered_set import OrderedSet

KINDS = {
    "one-node": "nodes=1",
    "cluster": "nodes=3",
    "moves": "nodes=4, has_moves=True",
    "transactions": "nodes=3, has_transactions=True",
    "groups": "nodes=3, has_groups=True",
    "transactions-and-moves": "nodes=4, has_transactions=True, has_moves=True",
    "planted-bug": "nodes=3, bug=ClusterBug.VOTES_TWICE",
    "planted-bug-of-moves": "nodes=4, has_moves=True, bug=ClusterBug.PLAN_FORGETS_ITS_THROTTLE",
    "planted-bug-of-transactions": (
        "nodes=3, has_transactions=True, bug=TransactionBug.MARKERS_ARE_NOT_REPEATED"
    ),
}
PROGRAM = """
import dataclasses
from riverrun.simulation.planted.cluster_bugs import ClusterBug
from riverrun.simulation.planted.transaction_bugs import TransactionBug
from riverrun.simulation.report import draw_any, run_any

for seed in {seeds}:
    plan = dataclasses.replace(draw_any(seed, {options}), faulty_seconds=3.0)
    outcome = run_any(plan)
print(outcome.fingerprint, outcome.simulated_seconds, outcome.failure)
print(*outcome.story, sep="\\n")
"""


def begin(options: str, *seeds: int, hash_seed: str) -> subprocess.Popen[str]:
    """Run the seeds in a process of their own, which prints the last outcome."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(seeds=seeds, options=options)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )


@pytest.mark.parametrize("kind", list(KINDS))
def test_same_seed_gives_the_same_run_in_another_process(kind: str) -> None:
    with (
        begin(KINDS[kind], 2, hash_seed="1") as one,
        begin(KINDS[kind], 1, 2, hash_seed="2") as other,
    ):
        first, second = (process.communicate()[0] for process in (one, other))
    assert "settings " in first
    assert first == second


@given(st.lists(st.integers(0, 9)), st.lists(st.integers(0, 9)))
def test_ordered_set_agrees_with_a_builtin_set(left: list[int], right: list[int]) -> None:
    ours: Set[int] = OrderedSet(left)
    builtin: Set[int] = set(left)
    assert list(ours) == list(dict.fromkeys(left))
    assert ours == builtin
    assert ours - set(right) == builtin - set(right) == builtin - OrderedSet(right)
    assert ours & set(right) == builtin & set(right) == builtin & OrderedSet(right)
    assert ours | set(right) == builtin | set(right) == builtin | OrderedSet(right)
    changed = OrderedSet(left).copy()
    changed.update(right)
    assert sorted(changed) == sorted({*left, *right})
    assert sorted(changed.difference(left)) == sorted(set(right) - set(left))
    assert list(changed.intersection(left)) == list(ours)
