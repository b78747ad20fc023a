"""Consumer groups: members that join, sync, time out, return and leave."""

from typing import Any

from tests.differential.script import Script
from tests.differential.scripts.members import Member
from tests.differential.scripts.requests import commit, offset_fetch

CONSUMER = "consumer"
# ConsumerProtocolSubscription v0 of the topic "t-subscribed", without user data.
SUBSCRIPTION = b"\x00\x00\x00\x00\x00\x01\x00\x0ct-subscribed\xff\xff\xff\xff"


def one_member(script: Script) -> None:
    script.wait_for_coordinator()
    group = script.topic("g")
    member = Member(script, group, "a")
    _describe(script, "before it exists", group)
    member.join("joins")
    _describe(script, "waits for its leader", group)
    member.sync("shares", {member.member_id: b"everything"})
    member.sync("asks again", {})
    member.heartbeat("lives")
    _describe(script, "stable", group)
    member.heartbeat("other generation", generation_id=9)
    member.heartbeat("older generation", generation_id=0)
    member.heartbeat("unknown member", member_id="nobody")
    member.heartbeat("unknown group", group_id=script.topic("nobody"))
    member.heartbeat("empty group", group_id="")
    _wrong_syncs(script, member)
    member.join("joins again, the same")
    member.sync("shares again", {member.member_id: b"all of it"})
    member.leave("leaves")
    member.leave("leaves twice")
    member.heartbeat("after it left")
    _describe(script, "empty", group)
    script.request("deleted", "delete_groups", {"groups_names": [group]})
    _describe(script, "gone", group)


def joins_refused(script: Script) -> None:
    script.wait_for_coordinator()

    def refuse(label: str, **other: Any) -> None:
        member = Member(script, script.topic("refused"), "a")
        script.request(label, "join_group", member.join_fields(**other))

    refuse("empty group", group_id="")
    refuse("unknown member", member_id="nobody")
    refuse("session too short", session_timeout=1)
    refuse("session too long", session_timeout=99999999)
    refuse("no protocol type", protocol_type="")
    refuse("no protocols", protocols=[])
    first = Member(script, script.topic("taken"), "b")
    first.join("somebody is there")
    first.sync("and shares", {first.member_id: b"x"})
    refuse("other protocol type", group_id=script.topic("taken"), protocol_type="connect")
    other = [{"name": "sticky", "metadata": b""}]
    refuse("no protocol in common", group_id=script.topic("taken"), protocols=other)
    first.heartbeat("nothing has changed")
    first.leave("leaves")


def two_members(script: Script) -> None:
    script.wait_for_coordinator()
    group = script.topic("g")
    first, second = Member(script, group, "a"), Member(script, group, "b")
    first.join("the first joins")
    first.sync("the first shares", {first.member_id: b"1"})
    joining = second.begin_join("the second joins")
    script.request("seen in the list", "list_groups", {"states_filter": []}, only=_own(script))
    _until_rebalance(first)
    first.heartbeat("told to join again")
    _describe(script, "preparing", group)
    rejoining = first.begin_join("the first joins again")
    responses = sorted([rejoining(), joining()], key=lambda response: len(response["members"]))
    leader = first if responses[1]["leader"] == first.member_id else second
    other = second if leader is first else first
    waiting = other.begin_sync("the follower waits")
    shares = {first.member_id: b"one half", second.member_id: b"other half"}
    leader.sync("the leader shares", shares)
    waiting()
    _describe(script, "two members", group, only=_sorted_members)
    first.heartbeat("the first lives")
    second.heartbeat("the second lives")
    other.leave("the follower leaves")
    _until_rebalance(leader)
    leader.heartbeat("told of the change")
    leader.join("alone again")
    leader.heartbeat("before it shares")
    leader.sync("shares with itself", {leader.member_id: b"all"})
    script.request("not empty", "delete_groups", {"groups_names": [group, script.topic("nobody")]})
    leader.leave("the last leaves")


def falls_silent(script: Script) -> None:
    script.wait_for_coordinator()
    group = script.topic("g")
    quiet = Member(script, group, "a", session_ms=300, rebalance_ms=300)
    loud = Member(script, group, "b")
    quiet.join("will fall silent")
    quiet.sync("shares", {quiet.member_id: b"1"})
    loud.join("takes its place when the session ends")
    loud.sync("shares", {loud.member_id: b"2"})
    quiet.heartbeat("comes back too late")
    _describe(script, "one member", group)
    slow = Member(script, group, "c", rebalance_ms=300)
    joining = slow.begin_join("another joins")
    _until_rebalance(loud)
    rejoin = loud.begin_join("in time for it")
    responses = [rejoin(), joining()]
    assert {response["generation_id"] for response in responses} == {loud.generation}, responses
    loud.leave("one leaves")
    slow.leave("the other leaves")


def left_behind(script: Script) -> None:
    """A member that does not rejoin within the rebalance timeout is removed."""
    if not script.at_least("join_group", 1):
        return
    script.wait_for_coordinator()
    group = script.topic("g")
    late = Member(script, group, "a", rebalance_ms=400)
    late.join("joins")
    late.sync("shares", {late.member_id: b"1"})
    eager = Member(script, group, "b", rebalance_ms=400)
    eager.join("joins, and the first does not come")
    late.heartbeat("too late")
    commit(
        script,
        "commits too late",
        group,
        [],
        generation=late.generation,
        member=late.member_id,
    )
    eager.leave("leaves")


def static_members(script: Script) -> None:
    if not script.at_least("join_group", 5):
        return
    script.wait_for_coordinator()
    group = script.topic("g")
    first = Member(script, group, "a", instance="one")
    first.join("joins by its instance id")
    first.sync("shares", {first.member_id: b"1"})
    first.heartbeat("lives")
    _describe(script, "static", group)
    again = Member(script, group, "b", instance="one")
    again.join("the instance returns")
    again.sync("and gets what it had")
    first.heartbeat("the old one is fenced")
    first.sync("the old one is fenced from its share")
    commit(
        script,
        "the old one is fenced from commits",
        group,
        [],
        generation=again.generation,
        member=first.member_id,
        instance="one",
    )
    again.heartbeat("the new one lives")
    wrong = Member(script, group, "c", instance="one", member_id="nobody")
    wrong.join("with a member id of its own making")
    unknown = Member(script, group, "c", instance="two", member_id="nobody")
    unknown.join("unknown instance with a member id")
    script.request(
        "removed by instance",
        "leave_group",
        {
            "group_id": group,
            "member_id": "",
            "members": [
                {"member_id": "", "group_instance_id": "nobody"},
                {"member_id": "", "group_instance_id": "one"},
            ],
        },
        version=script.version("leave_group"),
    )
    again.heartbeat("after it was removed")
    _describe(script, "nobody left", group)


def leaves(script: Script) -> None:
    script.wait_for_coordinator()
    group = script.topic("g")
    member = Member(script, group, "a")
    member.join("joins")

    def leave(label: str, who: list[dict[str, Any]], group_id: str = group) -> None:
        fields = {"group_id": group_id, "members": who, "member_id": who[0]["member_id"]}
        script.request(label, "leave_group", fields)

    leave("unknown member", [{"member_id": "nobody"}])
    leave("unknown group", [{"member_id": "nobody"}], script.topic("nobody"))
    leave("empty group", [{"member_id": "nobody"}], "")
    both = [{"member_id": "nobody"}, {"member_id": member.member_id}]
    leave("one of two is known", list(reversed(both)))
    leave("empty member id", [{"member_id": ""}])


def lists(script: Script) -> None:
    script.wait_for_coordinator()
    member = Member(script, script.topic("stable"), "a")
    member.join("joins")
    member.sync("shares", {member.member_id: b"1"})
    waiting = Member(script, script.topic("waiting"), "b", protocol_type="connect")
    waiting.join("joins only")
    topic = script.topic("t")
    topic_id = script.make_topic(topic)
    commit(script, "offsets alone", script.topic("simple"), [((topic, topic_id), 0, 1, None)])

    def ask(label: str, states: list[str], types: list[str]) -> None:
        fields = {"states_filter": states, "types_filter": types}
        script.request(label, "list_groups", fields, only=_own(script))

    ask("all", [], [])
    ask("stable ones", ["Stable"], [])
    ask("in lower case", ["stable", "empty"], [])
    ask("unknown state", ["Asleep"], [])
    ask("classic ones", [], ["classic"])
    ask("of the new protocol", [], ["consumer"])
    ask("unknown type", [], ["modern"])
    everyone = [script.topic(name) for name in ("stable", "waiting", "simple", "nobody")]
    fields = {"groups": [*everyone, ""], "include_authorized_operations": True}
    script.request("described at once", "describe_groups", fields)
    script.request("none described", "describe_groups", {"groups": []})
    member.leave("leaves")
    waiting.leave("leaves too")
    script.request("deleted at once", "delete_groups", {"groups_names": [*everyone, ""]})
    script.request("none deleted", "delete_groups", {"groups_names": []})
    ask("all gone", [], [])


def offset_deletion(script: Script) -> None:
    script.wait_for_coordinator()
    first, second = "t-subscribed", script.topic("free")
    ids = {second: script.make_topic(second, partitions=2)}
    if script.look_up(first)["error_code"] != "NONE":
        script.make_topic(first)
    ids[first] = script.wait_for_topic(first)
    group = script.topic("g")

    def forget(label: str, topic: str, partition: int, group_id: str = group) -> None:
        rows = [{"name": topic, "partitions": [{"partition_index": partition}]}]
        script.request(label, "offset_delete", {"group_id": group_id, "topics": rows})

    forget("unknown group", first, 0)
    forget("empty group", first, 0, "")
    rows = [((name, ids[name]), 0, 5, None) for name in (first, second)]
    commit(script, "two offsets", group, rows)
    forget("of a group without members", second, 0)
    commit(script, "again", group, rows)
    member = Member(script, group, "a", protocols={"range": SUBSCRIPTION})
    member.join("joins")
    member.sync("shares", {member.member_id: b"1"})
    forget("subscribed", first, 0)
    forget("not subscribed", second, 0)
    forget("not committed", second, 1)
    forget("unknown partition", second, 9)
    forget("unknown topic", script.topic("nobody"), 0)
    everything = [((name, ids[name]), [0, 1]) for name in (first, second)]
    offset_fetch(script, "what is left", group, everything)
    member.leave("leaves")


def coordinators(script: Script) -> None:
    script.wait_for_coordinator()

    def find(label: str, keys: list[str], kind: int = 0) -> None:
        fields = {"key": keys[0] if keys else "", "key_type": kind, "coordinator_keys": keys}
        script.request(label, "find_coordinator", fields)

    find("of a group", [script.topic("g")])
    find("of an empty group id", [""])
    find("of an unknown kind", [script.topic("g")], kind=9)
    if script.at_least("find_coordinator", 4):
        find("of two groups", [script.topic("g"), script.topic("h")])
        find("of nobody", [])


def _wrong_syncs(script: Script, member: Member) -> None:
    fields = member.sync_fields({member.member_id: b"x"})
    cases: list[tuple[str, dict[str, Any]]] = [
        ("other generation", {"generation_id": 99}),
        ("unknown member", {"member_id": "nobody"}),
        ("unknown group", {"group_id": script.topic("nobody")}),
        ("other protocol type", {"protocol_type": "connect"}),
        ("other protocol", {"protocol_name": "roundrobin"}),
    ]
    for label, other in cases:
        script.request(f"sync: {label}", "sync_group", {**fields, **other}, on=member.name)


def _until_rebalance(member: Member) -> None:
    """Wait until heartbeats report the rebalance that another join started."""
    member.script.request(
        "waits for the rebalance",
        "heartbeat",
        {
            "group_id": member.group,
            "generation_id": member.generation,
            "member_id": member.member_id,
            "group_instance_id": member.instance,
        },
        on=member.name,
        settled=lambda response: response["error_code"] == "REBALANCE_IN_PROGRESS",
    )


def _describe(script: Script, label: str, group: str, only: Any = None) -> None:
    fields = {"groups": [group], "include_authorized_operations": False}
    script.request(label, "describe_groups", fields, only=only)


def _sorted_members(response: Any) -> Any:
    for group in response["groups"]:
        group["members"].sort(key=lambda row: (row["member_assignment"], row["member_id"]))
    return response


def _own(script: Script) -> Any:
    def own(response: Any) -> Any:
        mine = [row for row in response["groups"] if row["group_id"].startswith(script.topic(""))]
        return {**response, "groups": sorted(mine, key=lambda row: row["group_id"])}

    return own
