"""Committed offsets: commits and fetches with and without members, valid and invalid."""

from tests.differential.script import Script
from tests.differential.scripts.members import Member
from tests.differential.scripts.producing import STRANGER
from tests.differential.scripts.requests import (
    NO_ID,
    commit,
    offset_fetch,
    offset_fetch_fields,
    sorted_offsets,
)

Topic = tuple[str, str]


def simple(script: Script) -> None:
    script.wait_for_coordinator()
    first, second = _topic(script, "first", 2), _topic(script, "second", 1)
    group = script.topic("g")
    offset_fetch(script, "unknown group", group, [(first, [0, 1])])
    offset_fetch(script, "all of an unknown group", group, None)
    rows = [(first, 0, 5, "some words"), (second, 0, 7, None), (first, 1, 0, "")]
    commit(script, "three offsets", group, rows)
    offset_fetch(script, "two partitions", group, [(first, [0, 1])])
    offset_fetch(script, "all", group, None)
    offset_fetch(script, "never committed", group, [(second, [0, 3])])
    offset_fetch(script, "unknown topic", group, [((script.topic("nobody"), STRANGER), [0])])
    offset_fetch(script, "no partitions", group, [(first, [])])
    offset_fetch(script, "no topics", group, [])
    offset_fetch(script, "stable ones", group, [(first, [0])], require_stable=True)
    commit(script, "further", group, [(first, 0, 9, "more")])
    commit(script, "back", group, [(first, 0, 2, "back")])
    offset_fetch(script, "the last one counts", group, [(first, [0])])
    commit(script, "unknown topic", group, [((script.topic("nobody"), STRANGER), 0, 1, None)])
    commit(script, "no topic id", group, [((first[0], NO_ID), 0, 1, None)])
    commit(script, "unknown partition", group, [(first, 7, 1, None)])
    commit(script, "negative partition", group, [(first, -1, 1, None)])
    commit(script, "negative offset", group, [(second, 0, -5, None)])
    commit(script, "4096 characters", group, [(second, 0, 1, "x" * 4096)])
    commit(script, "4097 characters", group, [(second, 0, 2, "x" * 4097)])
    commit(script, "good and bad", group, [(first, 0, 11, None), (second, 5, 1, None)])
    commit(script, "nothing", group, [])
    commit(script, "empty group", "", [(first, 0, 1, None)])
    commit(script, "with a generation", group, [(first, 0, 1, None)], generation=3)
    commit(script, "with a member", group, [(first, 0, 1, None)], generation=0, member="m")
    commit(script, "member, no generation", group, [(first, 0, 1, None)], member="m")
    offset_fetch(script, "empty group", "", [(first, [0])])
    offset_fetch(script, "at the end", group, None)


def by_members(script: Script) -> None:
    script.wait_for_coordinator()
    topic = _topic(script, "t", 1)
    group = script.topic("g")
    member = Member(script, group, "a")
    member.join("joins")
    row = [(topic, 0, 3, "by a member")]
    me = {"generation": member.generation, "member": member.member_id}
    commit(script, "before the group is stable", group, row, **me)
    member.sync("shares", {member.member_id: b"1"})
    commit(script, "as a member", group, row, **me)
    commit(script, "other generation", group, row, generation=9, member=member.member_id)
    commit(script, "unknown member", group, row, generation=member.generation, member="nobody")
    commit(script, "without member", group, row)
    commit(script, "no member id", group, row, generation=member.generation)
    commit(script, "unknown instance", group, row, **me, instance="nobody")
    offset_fetch(script, "what it committed", group, [(topic, [0])])
    member.leave("leaves")
    commit(script, "after it left", group, row, **me)
    commit(script, "without member now", group, [(topic, 0, 8, None)])
    offset_fetch(script, "the newest", group, [(topic, [0])])
    script.request("deleted", "delete_groups", {"groups_names": [group]})
    offset_fetch(script, "gone with the group", group, [(topic, [0])])


def many_groups(script: Script) -> None:
    if not script.at_least("offset_fetch", 8):
        return
    script.wait_for_coordinator()
    topic = _topic(script, "t", 2)
    for number in (1, 2):
        commit(script, f"group {number}", script.topic(f"g{number}"), [(topic, 0, number, None)])
    groups = [
        (script.topic("g1"), [(topic, [0, 1])]),
        (script.topic("g2"), None),
        (script.topic("nobody"), [(topic, [0])]),
        ("", [(topic, [0])]),
    ]
    fields = offset_fetch_fields(groups)
    script.request("four groups", "offset_fetch", fields, only=sorted_offsets)
    twice = offset_fetch_fields([groups[0], groups[0]])
    script.request("a group twice", "offset_fetch", twice, only=sorted_offsets)
    fields = offset_fetch_fields(groups[:1], member="nobody", epoch=0)
    script.request("as an unknown member", "offset_fetch", fields, only=sorted_offsets)
    script.request("no groups", "offset_fetch", {"groups": []})


def of_deleted_topics(script: Script) -> None:
    script.wait_for_coordinator()
    kept, gone = _topic(script, "kept", 1), _topic(script, "gone", 1)
    group = script.topic("g")
    commit(script, "both", group, [(kept, 0, 1, None), (gone, 0, 2, None)])
    named = {"topics": [{"name": gone[0], "topic_id": None}], "timeout": 10000}
    script.quietly("delete_topics", named, version=6)
    script.wait_without_topic(gone[0])
    offset_fetch_settled(script, "one is left", group, kept, gone)


def offset_fetch_settled(script: Script, label: str, group: str, kept: Topic, gone: Topic) -> None:
    """Wait until the coordinator has processed the deletion."""

    def settled(response: object) -> bool:
        return '"committed_offset": 2' not in str(response).replace("'", '"')

    fields = offset_fetch_fields([(group, [(kept, [0]), (gone, [0])])])
    script.request(label, "offset_fetch", fields, settled=settled)


def _topic(script: Script, name: str, partitions: int) -> Topic:
    full = script.topic(name)
    return full, script.make_topic(full, partitions=partitions)
