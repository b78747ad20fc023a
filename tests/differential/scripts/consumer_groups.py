"""Groups of the consumer protocol (KIP-848): heartbeats, descriptions, offsets and migration."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tests.differential.script import Script
from tests.differential.scripts.members import Member
from tests.differential.scripts.requests import commit, offset_fetch

GROUP_RESOURCE = 32
PARTITIONS = 4
Topic = tuple[str, str]
UNKNOWN_ID = "ffffffff-ffff-4fff-bfff-ffffffffffff"


@dataclass(slots=True)
class Beating:
    """A member that reports what it was assigned."""

    script: Script
    group: str
    member_id: str
    topics: list[str] | None
    instance: str | None = None
    regex: str | None = None
    assignor: str | None = None
    epoch: int = 0
    owned: dict[str, list[int]] = field(default_factory=dict)

    def fields(self, **other: Any) -> dict[str, Any]:
        is_joining = other.get("member_epoch", self.epoch) == 0
        return {
            "group_id": self.group,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "instance_id": self.instance,
            "rack_id": None,
            "rebalance_timeout": 30000 if is_joining else -1,
            "subscribed_topic_names": self.topics if is_joining else None,
            "subscribed_topic_regex": self.regex if is_joining else None,
            "server_assignor": self.assignor,
            "topic_partitions": [] if is_joining else self.listed(),
            **other,
        }

    def listed(self) -> list[dict[str, Any]]:
        return [{"topic_id": one, "partitions": rows} for one, rows in self.owned.items()]

    def beat(
        self, label: str, *, settled: Callable[[Any], bool] | None = None, **other: Any
    ) -> Any:
        """Send a heartbeat, and take over what the response assigns."""
        response = self.script.request(
            label, "consumer_group_heartbeat", self.fields(**other), only=_sorted, settled=settled
        )
        if isinstance(response, dict) and response["error_code"] == "NONE":
            self.epoch = response["member_epoch"]
            self.member_id = response["member_id"] or self.member_id
            if response["assignment"] is not None:
                rows = response["assignment"]["topic_partitions"]
                self.owned = {row["topic_id"]: sorted(row["partitions"]) for row in rows}
        return response

    def join(self, label: str) -> Any:
        """Join, and stay until there is an assignment."""
        self.epoch, self.owned = 0, {}
        self.beat(label)
        for _ in range(20):
            if self.owned:
                break
            self.beat_quietly()
        return self.beat(f"{label}: full", **self.full())

    def full(self) -> dict[str, Any]:
        return {
            "rebalance_timeout": 30000,
            "subscribed_topic_names": self.topics,
            "subscribed_topic_regex": self.regex,
        }

    def beat_quietly(self) -> None:
        # On the connection of the other heartbeats: a member has one.
        response = self.script.quietly_on("main", "consumer_group_heartbeat", self.fields())
        assert response["error_code"] == "NONE", response
        self.epoch = response["member_epoch"]
        if response["assignment"] is not None:
            rows = response["assignment"]["topic_partitions"]
            self.owned = {row["topic_id"]: sorted(row["partitions"]) for row in rows}

    def leave(self, label: str, epoch: int = -1, **other: Any) -> Any:
        fields = self.fields(member_epoch=epoch, topic_partitions=None, **other)
        return self.script.request(label, "consumer_group_heartbeat", fields)


def heartbeats_refused(script: Script) -> None:
    topic = _topic(script)
    group = _group(script, "refused")

    def refuse(label: str, **other: Any) -> None:
        member = Beating(script, group, "somebody", [topic[0]])
        script.request(label, "consumer_group_heartbeat", member.fields(**other), only=_sorted)

    refuse("empty group", group_id="")
    refuse("blank group", group_id=" ")
    refuse("empty instance", instance_id="")
    refuse("empty rack", rack_id="")
    if script.at_least("consumer_group_heartbeat", 1):
        refuse("empty member", member_id="")
        refuse("bad expression", subscribed_topic_regex="[", subscribed_topic_names=None)
        refuse("look-ahead", subscribed_topic_regex="a(?=b)", subscribed_topic_names=None)
        refuse("back reference", subscribed_topic_regex=r"(a)\1", subscribed_topic_names=None)
    refuse("stays without an id", member_id="", member_epoch=1)
    refuse("leaves without an id", member_id="", member_epoch=-1)
    refuse("epoch -3", member_epoch=-3)
    refuse("epoch -2 without instance", member_epoch=-2)
    refuse("joins without timeout", rebalance_timeout=-1)
    refuse("joins with timeout 0", rebalance_timeout=0, member_id="zero")
    refuse("joins without a list", topic_partitions=None)
    owned = [{"topic_id": topic[1], "partitions": [0]}]
    refuse("joins with partitions", topic_partitions=owned)
    refuse("joins without topics", subscribed_topic_names=None)
    refuse("unknown assignor", server_assignor="mine")
    refuse("empty assignor", server_assignor="")
    nobody = script.topic("nobody")
    refuse("stays in an unknown group", group_id=nobody, member_epoch=1)
    refuse("leaves an unknown group", group_id=nobody, member_epoch=-1)
    refuse("static leave of an unknown group", group_id=nobody, member_epoch=-2, instance_id="i")
    refuse("unknown member stays", member_id="nobody", member_epoch=1)
    refuse("unknown member leaves", member_id="nobody", member_epoch=-1)
    refuse("unknown instance stays", member_id="nobody", member_epoch=1, instance_id="nobody")
    refuse("unknown instance leaves", member_id="nobody", member_epoch=-2, instance_id="nobody")


def one_member(script: Script) -> None:
    topic = _topic(script)
    group = _group(script, "one")
    _describe(script, "before it exists", group)
    member = Beating(script, group, "first", [topic[0]])
    member.join("joins")
    _describe(script, "stable", group)
    _list(script, "in the list", [], [])
    _list(script, "of its type", ["stable"], ["consumer"])
    _list(script, "of the other type", [], ["classic"])
    member.beat("lives")
    member.beat("without a list", topic_partitions=None)
    member.beat("full", **member.full())
    member.beat("empty names", subscribed_topic_names=[])
    member.beat("gave up everything", topic_partitions=[])
    _describe(script, "without topics", group)
    member.beat("names again", subscribed_topic_names=[topic[0], script.topic("not-there")])
    _until_stable(script, [member])
    _describe(script, "stable again", group)
    member.beat("range", server_assignor="range")
    _describe(script, "with another assignor", group)
    member.leave("leaves")
    member.leave("leaves twice")
    member.beat("after it left")
    _describe(script, "empty", group)
    _list(script, "empty in the list", ["Empty"], ["consumer"])
    fields = {"groups": [group], "include_authorized_operations": False}
    script.request("by the other API", "describe_groups", fields)
    script.request("deleted", "delete_groups", {"groups_names": [group]})
    _describe(script, "gone", group)


def two_members(script: Script) -> None:
    topic = _topic(script)
    group = _group(script, "two")
    first = Beating(script, group, "first", [topic[0]])
    second = Beating(script, group, "second", [topic[0]])
    first.join("the first joins")
    second.beat("the second joins")
    _describe(script, "the first has to give up", group, only=_counted)
    first.beat("is told")
    _describe(script, "the first is asked", group, only=_counted)
    second.beat("waits")
    first.beat("gave up")
    second.beat("gets its part")
    first.beat("goes on")
    second.beat("goes on too")
    _describe(script, "both", group, only=_counted)
    script.request("not empty", "delete_groups", {"groups_names": [group, script.topic("nobody")]})
    second.leave("the second leaves")
    _describe(script, "one is left", group, only=_counted)
    first.beat("gets everything")
    _until_stable(script, [first])
    _describe(script, "alone", group, only=_counted)
    first.leave("the first leaves")


def fenced(script: Script) -> None:
    topic = _topic(script)
    group = _group(script, "fenced")
    member = Beating(script, group, "first", [topic[0]])
    member.join("joins")
    before = member.epoch
    member.beat("a larger epoch", member_epoch=before + 1)
    member.beat("a smaller epoch", member_epoch=before - 1, topic_partitions=None)
    member.beat("subscribes to nothing", subscribed_topic_names=[])
    member.beat("gives up", topic_partitions=[])
    now = member.epoch
    assert now > before, f"{now} is not above {before}"
    member.beat("the epoch before, its response was lost", member_epoch=before, topic_partitions=[])
    owned = [{"topic_id": topic[1], "partitions": [0]}]
    member.beat("the epoch before, with a partition", member_epoch=before, topic_partitions=owned)
    member.beat("the epoch before, without a list", member_epoch=before, topic_partitions=None)
    member.leave("leaves with an instance id", instance_id="nobody")
    member.beat("owns what it never got", topic_partitions=owned)
    unknown = [{"topic_id": UNKNOWN_ID, "partitions": [0]}]
    member.beat("owns an unknown topic", topic_partitions=unknown)
    member.leave("leaves")


def joins_twice(script: Script) -> None:
    """A client that lost its state joins again with its id."""
    topic = _topic(script)
    group = _group(script, "twice")
    member = Beating(script, group, "first", [topic[0]])
    member.join("joins")
    member.beat("joins again", member_epoch=0)
    member.leave("leaves")


def static_members(script: Script) -> None:
    topic = _topic(script)
    group = _group(script, "static")
    first = Beating(script, group, "first", [topic[0]], instance="one")
    first.join("joins")
    _describe(script, "static", group)
    second = Beating(script, group, "second", [topic[0]], instance="one")
    second.beat("the instance is taken")
    second.beat("stays as another member", member_epoch=1)
    second.leave("leaves as another member", -2)
    first.beat("an unknown instance", instance_id="nobody")
    first.leave("is away", -2)
    _describe(script, "away", group)
    first.beat("beats while it is away")
    second.join("takes its place")
    _describe(script, "replaced", group)
    first.beat("the old one is fenced")
    first.leave("the old one cannot leave", -1)
    rows = [(topic, 0, 1, None)]
    me = {"generation": second.epoch, "member": "first", "instance": "one"}
    commit(script, "the old one cannot commit", group, rows, **me)
    second.leave("leaves for good", -1)
    _describe(script, "empty", group)


def offsets(script: Script) -> None:
    topic = _topic(script)
    group = _group(script, "offsets")
    rows = [(topic, 0, 5, "words")]
    places = [(topic, [0, 1])]
    commit(script, "unknown group with a member", group, rows, generation=1, member="first")
    offset_fetch(script, "unknown group, member", group, places, member="first", epoch=1)
    member = Beating(script, group, "first", [topic[0]])
    member.join("joins")
    epoch = member.epoch
    commit(script, "by the member", group, rows, generation=epoch, member="first")
    commit(script, "a larger epoch", group, rows, generation=epoch + 1, member="first")
    commit(script, "a smaller epoch", group, rows, generation=epoch - 1, member="first")
    commit(script, "epoch 0", group, rows, generation=0, member="first")
    commit(script, "an unknown member", group, rows, generation=epoch, member="nobody")
    commit(script, "without a member", group, rows)
    commit(script, "epoch -1 of the member", group, rows, member="first")
    me = {"generation": epoch, "member": "first", "instance": "nobody"}
    commit(script, "with an instance", group, rows, **me)
    stranger = (script.topic("nobody"), UNKNOWN_ID)
    mixed = [*rows, (stranger, 0, 1, None)]
    commit(script, "an unknown topic", group, mixed, generation=epoch, member="first")
    offset_fetch(script, "by the member", group, places, member="first", epoch=epoch)
    offset_fetch(script, "a larger epoch", group, places, member="first", epoch=epoch + 1)
    offset_fetch(script, "a smaller epoch", group, places, member="first", epoch=epoch - 1)
    offset_fetch(script, "an unknown member", group, places, member="nobody", epoch=epoch)
    offset_fetch(script, "a member without epoch", group, places, member="first")
    offset_fetch(script, "an epoch without member", group, places, epoch=epoch)
    offset_fetch(script, "from outside", group, places)
    offset_fetch(script, "all", group, None, member="first", epoch=epoch)

    def forget(label: str, name: str, partition: int) -> None:
        wanted = [{"name": name, "partitions": [{"partition_index": partition}]}]
        script.request(label, "offset_delete", {"group_id": group, "topics": wanted})

    forget("delete a subscribed one", topic[0], 0)
    forget("delete one of an unknown topic", script.topic("nobody"), 0)
    member.beat("subscribes to nothing", subscribed_topic_names=[])
    member.beat("gives up", topic_partitions=[])
    forget("delete a free one", topic[0], 0)
    offset_fetch(script, "it is gone", group, places)
    commit(script, "an old epoch", group, rows, generation=epoch, member="first")
    commit(script, "not assigned", group, rows, generation=member.epoch, member="first")
    member.leave("leaves")
    commit(script, "after it left", group, rows, generation=member.epoch, member="first")
    commit(script, "from outside, empty", group, rows)
    offset_fetch(script, "after it left", group, places, member="first", epoch=epoch)
    forget("delete of an empty group", topic[0], 0)
    script.request("deleted", "delete_groups", {"groups_names": [group]})


def expressions(script: Script) -> None:
    if not script.at_least("consumer_group_heartbeat", 1):
        return
    topic = _topic(script)
    group = _group(script, "expressions")
    member = Beating(script, group, "first", None, regex=f"{script.topic('')}.*")
    member.join("joins by an expression")
    _describe(script, "by an expression", group)
    member.beat("a bad one", subscribed_topic_regex="*")
    member.beat("none", subscribed_topic_regex="", subscribed_topic_names=[topic[0]])
    _until_stable(script, [member])
    _describe(script, "by name", group)
    member.leave("leaves")


def other_types(script: Script) -> None:
    """Requests of one protocol to a group of the other."""
    topic = _topic(script)
    group, classic_group = _group(script, "new"), script.topic("classic")
    member = Beating(script, group, "first", [topic[0]])
    member.join("joins")
    fields = {"groups": [group, classic_group], "include_authorized_operations": False}
    script.request("described as classic", "describe_groups", fields)
    classic = Member(script, classic_group, "a", protocol_type="connect")
    classic.join("a group of another type")
    classic.sync("shares", {classic.member_id: b"1"})
    _describe(script, "described as new", classic_group)
    other = Beating(script, classic_group, "second", [topic[0]])
    other.beat("joins a group of connectors")
    other.beat("stays in a classic group", member_epoch=1)
    other.leave("leaves a classic group")
    foreign = Member(script, group, "b", protocol_type="connect")
    script.request("connector joins the new one", "join_group", foreign.join_fields())
    fields = {"group_id": group, "generation_id": member.epoch, "member_id": "first"}
    script.request("classic heartbeat of a new member", "heartbeat", fields)
    sync = {**fields, "protocol_type": "consumer", "protocol_name": "range", "assignments": []}
    script.request("sync of a new member", "sync_group", sync)
    who = {"member_id": "first", "group_instance_id": None}
    fields = {"group_id": group, "member_id": "first", "members": [who]}
    script.request("classic leave of a new member", "leave_group", fields)
    member.beat("is it still there")
    classic.leave("leaves")
    other.join("joins the empty classic group")
    _describe(script, "converted", classic_group)
    other.leave("leaves again")
    classic = Member(script, classic_group, "c")
    classic.join("joins the empty new group")
    classic.sync("shares", {classic.member_id: b""})
    fields = {"groups": [classic_group], "include_authorized_operations": False}
    script.request("converted back", "describe_groups", fields)
    classic.leave("leaves")


def described_together(script: Script) -> None:
    topic = _topic(script)
    groups = [_group(script, name) for name in ("a", "b")]
    members = [Beating(script, group, f"m-{group}", [topic[0]]) for group in groups]
    for member in members:
        member.join("joins")
    wanted = [*groups, script.topic("nobody"), ""]
    for authorized in (False, True):
        fields = {"group_ids": wanted, "include_authorized_operations": authorized}
        script.request("described together", "consumer_group_describe", fields)
    fields = {"group_ids": [], "include_authorized_operations": False}
    script.request("none described", "consumer_group_describe", fields)
    _list(script, "listed together", [], ["CONSUMER"])
    _list(script, "unknown type", [], ["modern"])
    _list(script, "unknown state", ["Asleep"], ["consumer"])
    for member in members:
        member.leave("leaves")
    script.request("deleted together", "delete_groups", {"groups_names": wanted})


def _topic(script: Script) -> Topic:
    script.wait_for_coordinator()
    name = script.topic("t")
    return (name, script.make_topic(name, partitions=PARTITIONS))


def _group(script: Script, name: str) -> str:
    """The id of a group whose target assignment follows every change at once."""
    group = script.topic(name)
    config = {"name": "consumer.assignment.interval.ms", "config_operation": 0, "value": "0"}
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configs": [config]}
    made = script.quietly(
        "incremental_alter_configs", {"resources": [resource], "validate_only": False}, version=1
    )
    assert made["responses"][0]["error_code"] == "NONE", made
    return group


def _until_stable(script: Script, members: list[Beating]) -> None:
    """Let members send heartbeats until the group is stable."""
    for _ in range(20):
        for member in members:
            member.beat_quietly()
        fields = {"group_ids": [members[0].group], "include_authorized_operations": False}
        [found] = script.quietly("consumer_group_describe", fields)["groups"]
        if found["group_state"] == "Stable":
            return


def _describe(
    script: Script, label: str, group: str, only: Callable[[Any], Any] | None = None
) -> None:
    fields = {"group_ids": [group], "include_authorized_operations": False}
    script.request(label, "consumer_group_describe", fields, only=only or _sorted_description)


def _list(script: Script, label: str, states: list[str], types: list[str]) -> None:
    def own(response: Any) -> Any:
        mine = [row for row in response["groups"] if row["group_id"].startswith(script.topic(""))]
        return {**response, "groups": sorted(mine, key=lambda row: row["group_id"])}

    fields = {"states_filter": states, "types_filter": types}
    script.request(label, "list_groups", fields, only=own)


def _sorted(response: Any) -> Any:
    """Sort the partitions of an assignment; their order has no meaning."""
    if response["assignment"] is not None:
        for row in response["assignment"]["topic_partitions"]:
            row["partitions"].sort()
    return response


def _sorted_description(response: Any) -> Any:
    for group in response["groups"]:
        for member in group["members"]:
            member["subscribed_topic_names"].sort()
            for name in ("assignment", "target_assignment"):
                for row in member[name]["topic_partitions"]:
                    row["partitions"].sort()
    return response


def _counted(response: Any) -> Any:
    """Only the number of partitions: which one moves is up to the assignor."""
    for group in response["groups"]:
        group["members"].sort(key=lambda row: row["member_id"])
        for member in group["members"]:
            for name in ("assignment", "target_assignment"):
                for row in member[name]["topic_partitions"]:
                    row["partitions"] = len(row["partitions"])
    return response


SCRIPTS: Mapping[str, Callable[[Script], None]] = MappingProxyType(
    {
        "consumers-refused": heartbeats_refused,
        "consumers-one": one_member,
        "consumers-two": two_members,
        "consumers-fenced": fenced,
        "consumers-join-twice": joins_twice,
        "consumers-static": static_members,
        "consumers-offsets": offsets,
        "consumers-expressions": expressions,
        "consumers-other-types": other_types,
        "consumers-described": described_together,
    }
)
