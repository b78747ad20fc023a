"""Starts a unit: derives its brokers, checks that nothing collides, writes their files, runs it.

Everything is checked before the first broker starts. Addresses and directories of a broker are
stored in the metadata of the cluster, so they are hard to change afterwards.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from riverrun.cli.host.unit import HostUnit, environment_of_brokers
from riverrun.cli.supervision.node_output import JsonOutput, NodeOutput, TerminalOutput
from riverrun.cli.supervision.processes import NodeStart
from riverrun.cli.support.options import FAILED, USAGE, fail
from riverrun.model.names import LOCK
from riverrun.model.settings import SettingError
from riverrun.ports.files import OsFiles
from riverrun.server.host.cores import usable_cores
from riverrun.server.host.directories import (
    HostDirectoryError,
    check_bases,
    check_shrinking,
    placed_members,
)
from riverrun.server.host.members import (
    HostMember,
    base_directories,
    listening_of,
    members_of,
    name_of,
)
from riverrun.server.host.settings import PROCESSES, HostSettings
from riverrun.server.network.free_ports import check_free
from riverrun.server.settings import IdentitySettings, from_environment, variable_of
from riverrun.server.socket_activation import passed_descriptors

FILES: Final = "processes"
"""The folder of the brokers' settings in the first base directory."""


def run_unit(texts: Mapping[str, str]) -> int:
    """Run the brokers of this host until they are stopped; returns the exit code."""
    try:
        if passed_descriptors(os.environ, os.getpid()):
            raise SettingError(
                PROCESSES,
                texts[PROCESSES],
                "a service manager passed a listening socket (LISTEN_FDS), but each broker opens "
                "its own ports; remove the socket unit, or start one process",
            )
        members, bases = _prepare(texts)
        with _locked(bases):
            check_shrinking(members, placed_members(bases, members[0].id))
            _check_free(members)
            starts = _write_files(members, Path(bases[0]) / FILES)
            return _unit(members, starts).run()
    except SettingError as error:
        fail(str(error), USAGE)
    except OSError as error:
        what = f"cannot use {error.filename}: " if error.filename else ""
        fail(f"{what}{error.strerror or error}", FAILED)


def _prepare(texts: Mapping[str, str]) -> tuple[tuple[HostMember, ...], list[str]]:
    count = HostSettings.from_texts(texts).count(usable_cores())
    node_id = IdentitySettings.from_texts(texts).node_id
    bases = base_directories(texts)
    check_bases(bases, node_id)
    return members_of(texts, count, placed_members(bases, node_id)), bases


@contextlib.contextmanager
def _locked(bases: Sequence[str]) -> Iterator[None]:
    """Hold the locks of the directories, by which ``riverrun stop`` finds this process."""
    with contextlib.ExitStack() as held:
        for base in bases:
            os.makedirs(base, exist_ok=True)
            try:
                lock = OsFiles().lock(os.path.join(base, LOCK))
            except BlockingIOError:
                raise HostDirectoryError(f"{base} is in use by another process") from None
            held.callback(lock.release)
        yield


def _check_free(members: Sequence[HostMember]) -> None:
    """Exit if a port is in use."""
    for member in members:
        try:
            check_free(listening_of(member))
        except OSError as error:
            remedy = "choose other ports with --advertised-addr or `listeners`"
            if error.errno == errno.EADDRINUSE:
                remedy = f"stop the process that uses the port, or {remedy}"
            fail(
                f"nothing was started: node {member.id} {error.strerror}; {remedy}; each further "
                "process adds 10 to every port",
                FAILED,
            )


def _write_files(members: Sequence[HostMember], folder: Path) -> list[NodeStart]:
    """Write the settings of each broker, as ``riverrun start --config`` reads them."""
    folder.mkdir(exist_ok=True)
    environment = environment_of_brokers(
        [variable_of(name) for name in from_environment(os.environ)]
    )
    starts = []
    for member in members:
        path = folder / f"{name_of(member.id)}.toml"
        lines = [f"{json.dumps(name)} = {json.dumps(text)}" for name, text in member.texts.items()]
        path.write_text(
            "# Written at each start by `riverrun start --processes`\n" + "\n".join(lines) + "\n"
        )
        starts.append(NodeStart(id=member.id, config=path, environment=environment))
    return starts


def _unit(members: Sequence[HostMember], starts: Sequence[NodeStart]) -> HostUnit:
    first = members[0].settings
    addresses = [member.settings.advertised()[0] for member in members]
    bootstrap = ",".join(f"{one.host}:{one.port}" for one in addresses)
    numbers = [member.id for member in members]
    count = f"{len(members)} brokers are" if len(members) > 1 else "1 broker is"
    return HostUnit(
        starts,
        _output(first.identity.log_format, numbers),
        announcement=f"{count} up, rack {first.identity.rack}, bootstrap servers {bootstrap}",
        voter=members[0].id if first.formation.is_controller else None,
    )


def _output(log_format: str, numbers: Sequence[int]) -> NodeOutput:
    if log_format == "json":
        return JsonOutput()
    return TerminalOutput(numbers, has_pipes=True, is_prefixed=sys.stderr.isatty())
