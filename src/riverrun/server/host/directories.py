"""Finds the directories of earlier runs of a unit and checks that they fit the next one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from riverrun.model.names import LOCK, META_PROPERTIES, METADATA_TOPIC
from riverrun.model.settings import SettingError
from riverrun.ports.files import lock_owner
from riverrun.server.host.members import IDS_APART, HostMember, name_of
from riverrun.server.host.settings import PROCESSES
from riverrun.storage.kept_logs import KEPT_UNTIL


class HostDirectoryError(SettingError):
    """The directories of a unit do not fit its settings."""

    def __init__(self, message: str) -> None:
        ValueError.__init__(self, message)
        self.name = "log.dirs"
        self.reason = message


def placed_members(bases: Sequence[str], node_id: int) -> dict[int, str]:
    """The brokers of this unit that have data, with their base directories."""
    placed: dict[int, str] = {}
    for base in bases:
        for name in sorted(_names(base)):
            number = name.removeprefix("node-")
            if number == name or not number.isdecimal() or int(number) % IDS_APART != node_id:
                continue
            if not os.path.exists(os.path.join(base, name, META_PROPERTIES)):
                continue
            if (other := placed.get(int(number))) is not None:
                raise HostDirectoryError(
                    f"both {other} and {base} hold data of node {number}; "
                    "move the one that is not in use elsewhere"
                )
            placed[int(number)] = base
    return placed


def check_bases(bases: Sequence[str], node_id: int) -> None:
    """Refuse the directory of a single node, and a directory in use."""
    for base in bases:
        owner = lock_owner(os.path.join(base, LOCK))
        if owner is not None:
            raise HostDirectoryError(
                f"{base} is in use by process {owner}; stop it with: riverrun stop --data {base}"
            )
        if os.path.exists(os.path.join(base, META_PROPERTIES)):
            inside = os.path.join(base, name_of(node_id))
            raise HostDirectoryError(
                f"{base} holds the data of a node that was started without {PROCESSES}. Move it "
                f"into {inside}, which is the directory of the first process: "
                f"mv {base} {base}.moved && mkdir {base} && mv {base}.moved {inside}"
            )


def check_shrinking(members: Sequence[HostMember], placed: Mapping[int, str]) -> None:
    """Refuse to leave out a broker that holds partitions."""
    kept = [member.id for member in members]
    dropped = sorted(node_id for node_id in placed if node_id not in kept)
    holding = {
        node_id: found
        for node_id in dropped
        if (found := held_partitions(os.path.join(placed[node_id], name_of(node_id))))
    }
    if not holding:
        return
    first = members[0].id
    needed = (max(holding) - first) // IDS_APART + 1
    shown = ", ".join(f"{node_id} ({count} partitions)" for node_id, count in holding.items())
    commands = "; ".join(f"riverrun cluster decommission {node_id}" for node_id in holding)
    raise HostDirectoryError(
        f"{PROCESSES}={len(members)} leaves out brokers that hold replicas: {shown}. Start with "
        f"{PROCESSES}={needed}, move the replicas away ({commands}), then start with fewer"
    )


def held_partitions(directory: str) -> int:
    """The number of partitions in the data directory of a node that does not run.

    Logs that are only kept for a move back do not count.
    """
    count = 0
    for name in _names(directory):
        topic, _, index = name.rpartition("-")
        is_partition = bool(topic) and index.isdecimal() and topic != METADATA_TOPIC
        path = os.path.join(directory, name)
        is_kept = os.path.exists(os.path.join(path, KEPT_UNTIL))
        count += is_partition and os.path.isdir(path) and not is_kept
    return count


def is_base_of_unit(directory: str) -> bool:
    """Whether brokers of a unit keep their data in this directory. It is no node's directory."""
    return not os.path.exists(os.path.join(directory, META_PROPERTIES)) and any(
        os.path.exists(os.path.join(directory, name, META_PROPERTIES)) for name in _names(directory)
    )


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
