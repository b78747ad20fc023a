"""Reassignment on one node: what is refused, what changes nothing, and what is listed."""

from collections.abc import Sequence
from typing import Any

from tests.differential.script import Script

Target = Sequence[int] | None


def reassign(script: Script) -> None:
    name = script.topic("moved")
    script.make_topic(name, partitions=3)
    cases: list[tuple[str, Target]] = [
        ("where it is", [1]),
        ("no brokers", []),
        ("a broker twice", [1, 1]),
        ("unknown broker", [99]),
        ("unknown broker and a known one", [1, 99]),
        ("negative broker", [-1]),
        ("nothing to cancel", None),
    ]
    for label, target in cases:
        _alter(script, label, [(name, [(0, target)])])
    nobody = script.topic("nobody")
    _alter(script, "unknown topic", [(nobody, [(0, [1]), (1, None)])])
    _alter(script, "unknown partition", [(name, [(7, [1]), (-1, [1]), (8, None)])])
    _alter(script, "no topics", [])
    _alter(script, "no partitions", [(name, [])])
    several: list[tuple[str, Sequence[tuple[int, Target]]]]
    several = [(name, [(0, [1]), (1, [99]), (2, None), (9, [1])]), (nobody, [(0, [1])])]
    _alter(script, "several are judged apart", several)
    if script.at_least("alter_partition_reassignments", 1):
        for label, target in (("same factor", [1]), ("another factor", [1, 99])):
            _alter(script, f"{label}, fixed", [(name, [(0, target)])], is_factor_fixed=True)
    _list(script, "all", None)
    _list(script, "some", [(name, [0, 1, 7])])
    _list(script, "unknown topic", [(nobody, [0])])
    _list(script, "no topics", [])
    _list(script, "no partitions", [(name, [])])


def _alter(
    script: Script,
    label: str,
    topics: Sequence[tuple[str, Sequence[tuple[int, Target]]]],
    *,
    is_factor_fixed: bool = False,
) -> None:
    fields: dict[str, Any] = {
        "timeout": 10000,
        "topics": [
            {
                "name": name,
                "partitions": [
                    {"partition_index": index, "replicas": target} for index, target in partitions
                ],
            }
            for name, partitions in topics
        ],
    }
    if script.at_least("alter_partition_reassignments", 1):
        fields["allow_replication_factor_change"] = not is_factor_fixed
    script.request(label, "alter_partition_reassignments", fields)


def _list(script: Script, label: str, topics: Sequence[tuple[str, Sequence[int]]] | None) -> None:
    rows = None
    if topics is not None:
        rows = [{"name": name, "partition_indexes": list(indexes)} for name, indexes in topics]
    script.request(label, "list_partition_reassignments", {"timeout": 10000, "topics": rows})
