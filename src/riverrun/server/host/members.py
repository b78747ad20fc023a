"""The settings of each broker of a host, derived from the settings of the unit.

Process *k* of a unit, counted from 0, differs from the first one in this:

| | process *k* | example: node 1 at port 9092, ``log.dirs=/data``, *k* = 2 |
|---|---|---|
| ``node.id`` | + 1000 *k* | 2001 |
| ports | + 10 *k* | 9112 |
| directory | ``node-ID`` in the one of ``log.dirs`` with the fewest brokers | /data/node-2001 |
| ``process.roles`` | ``broker``: only the first process can vote | |
| ``seed.nodes`` | the first process, if it votes, and the seeds of the unit | |

The thousands of a node id are the process and the rest is the host. Hosts are therefore numbered
as single nodes are, and a unit can grow without a collision with another host. ``broker.rack``
defaults to the host's advertised name, so that the replicas of a partition are on different hosts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from riverrun.model.setting_names import overridden
from riverrun.model.settings import SettingError
from riverrun.server.formation.settings import BROKER, FormationSettings
from riverrun.server.host.settings import PROCESSES
from riverrun.server.settings import Address, IdentitySettings, NodeSettings

IDS_APART: Final = 1000
PORTS_APART: Final = 10
PORT_MAX: Final = 65_535
DIRECTORY_DEFAULT: Final = "data"
WILDCARDS: Final = ("0.0.0.0", "::")


class HostMember(Struct, frozen=True, kw_only=True):
    """One broker of a host."""

    id: int
    directory: str
    texts: Mapping[str, str]

    @property
    def settings(self) -> NodeSettings:
        return NodeSettings.from_texts(self.texts)


def name_of(node_id: int) -> str:
    """The name of a broker's directory."""
    return f"node-{node_id}"


def base_directories(texts: Mapping[str, str]) -> list[str]:
    """The directories that hold those of the brokers, usually one per disk."""
    given = IdentitySettings.from_texts(texts).log_dirs if "log.dirs" in texts else ()
    bases = [os.path.abspath(one) for one in given or (DIRECTORY_DEFAULT,)]
    for base in bases:
        if bases.count(base) > 1:
            raise SettingError("log.dirs", ",".join(given), f"it names {base} twice; name it once")
    return bases


def members_of(
    texts: Mapping[str, str], count: int, placed: Mapping[int, str]
) -> tuple[HostMember, ...]:
    """The brokers of the unit. ``placed`` names the base directory of those that have data.

    Raises ``SettingError`` if one of them cannot be derived, or if two would collide.
    """
    identity = IdentitySettings.from_texts(texts)
    _check_base(identity, FormationSettings.from_texts(texts), count)
    bases = base_directories(texts)
    ids = [identity.node_id + IDS_APART * place for place in range(count)]
    chosen = _chosen_bases(ids, bases, placed)
    common = {name: text for name, text in texts.items() if name != PROCESSES}
    members: list[HostMember] = []
    for place, node_id in enumerate(ids):
        directory = os.path.join(chosen[node_id], name_of(node_id))
        own = {"node.id": str(node_id), "log.dirs": directory}
        shifted = _shifted(identity, place)
        if place:
            shifted |= _of_a_follower(shifted, members[0].settings)
        made = overridden(overridden(common, shifted), own)
        if not identity.rack:
            made["broker.rack"] = _host_of(made)
        NodeSettings.from_texts(made)
        members.append(HostMember(id=node_id, directory=directory, texts=made))
    _check_ports(members)
    return tuple(members)


def _chosen_bases(ids: list[int], bases: list[str], placed: Mapping[int, str]) -> dict[int, str]:
    """Brokers with data stay where they are. The others spread over the directories evenly."""
    chosen = {node_id: placed[node_id] for node_id in ids if node_id in placed}
    for node_id in ids:
        if node_id not in chosen:
            held = list(chosen.values())
            chosen[node_id] = min(bases, key=held.count)
    return chosen


def _check_base(identity: IdentitySettings, formation: FormationSettings, count: int) -> None:
    if not formation.is_broker:
        raise SettingError(
            "process.roles",
            ",".join(formation.roles),
            "a unit of several processes runs brokers; start a controller without processes",
        )
    if identity.node_id >= IDS_APART:
        raise SettingError(
            "node.id",
            str(identity.node_id),
            f"the id of a unit is below {IDS_APART}, because its further processes add "
            f"{IDS_APART} each; number the hosts 1, 2, 3",
        )
    for text in (*identity.listeners, *identity.advertised_listeners, identity.http_listener):
        port = text.rpartition(":")[2]
        if port == "0":
            raise SettingError(
                "listeners", text, "the ports of a unit are derived from the first: name one"
            )
        if port.isdecimal() and int(port) + PORTS_APART * (count - 1) > PORT_MAX:
            raise SettingError(
                "listeners",
                text,
                f"{count} processes need ports up to {int(port) + PORTS_APART * (count - 1)}; "
                "choose a lower port",
            )


def _shifted(identity: IdentitySettings, place: int) -> dict[str, str]:
    """The addresses of a process."""
    made = {
        "listeners": ",".join(_above(text, place) for text in identity.listeners),
        "http.listener": _above(identity.http_listener, place),
    }
    if identity.advertised_listeners:
        advertised = (_above(text, place) for text in identity.advertised_listeners)
        made["advertised.listeners"] = ",".join(advertised)
    return made


def _above(address: str, place: int) -> str:
    """The address with its port moved; unchanged if it has none, which the node then reports."""
    host, colon, port = address.rpartition(":")
    if not port.isdecimal():
        return address
    return f"{host}{colon}{int(port) + PORTS_APART * place}"


def _of_a_follower(addresses: Mapping[str, str], first: NodeSettings) -> dict[str, str]:
    """The settings of a process that does not vote: it joins the cluster of the first one."""
    seeds = list(first.formation.seed_nodes)
    if first.formation.is_controller:
        near = first.advertised()[0]
        host = f"[{near.host}]" if ":" in near.host else near.host
        seeds.insert(0, f"{host}:{near.port}")
    made = {"process.roles": BROKER, "seed.nodes": ",".join(dict.fromkeys(seeds))}
    for name in ("listeners", "advertised.listeners"):
        texts = [text for text in addresses.get(name, "").split(",") if text]
        if texts:
            made[name] = ",".join(text for text in texts if not _is_for_controllers(text, name))
    return made


def _is_for_controllers(text: str, name: str) -> bool:
    return Address.parse(text, name).name == "CONTROLLER"


def _host_of(texts: Mapping[str, str]) -> str:
    return NodeSettings.from_texts(texts).advertised()[0].host


def listening_of(member: HostMember) -> list[tuple[str, int]]:
    """The hosts and ports that a broker listens on."""
    settings = member.settings
    found = [(one.host, one.port) for one in settings.listening()]
    host, _, port = settings.identity.http_listener.rpartition(":")
    return found + ([(host, int(port))] if port.isdecimal() else [])


def _check_ports(members: list[HostMember]) -> None:
    """No two processes share a port of the same address."""
    taken: dict[int, list[tuple[str, HostMember]]] = {}
    for member in members:
        for host, port in listening_of(member):
            for other_host, other in taken.setdefault(port, []):
                is_same = host == other_host or host in WILDCARDS or other_host in WILDCARDS
                if is_same and other is not member:
                    raise SettingError(
                        "listeners",
                        member.texts["listeners"],
                        f"nodes {other.id} and {member.id} would both use port {port}: each "
                        f"further process adds {PORTS_APART} to every port, so choose ports that "
                        f"do not differ by a multiple of {PORTS_APART}",
                    )
            taken[port].append((host, member))
