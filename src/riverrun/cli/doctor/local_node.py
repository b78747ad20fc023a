"""A node of this machine: its settings, its directory, and its process if it runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from riverrun.cli.doctor.certificates import certificate_findings, read_certificate
from riverrun.cli.doctor.disks import DISK, disk_findings, read_disk
from riverrun.cli.doctor.findings import Finding, bad, note, or_good
from riverrun.cli.doctor.ports import network_findings, read_network
from riverrun.cli.doctor.settings_check import SETTINGS, listener_findings, setting_findings

if TYPE_CHECKING:
    from riverrun.server.settings import NodeSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNode:
    settings: NodeSettings
    texts: Mapping[str, str]
    process: int | None
    """None if it does not run, or belongs to another user."""

    @property
    def client_address(self) -> str | None:
        """Where commands of this machine reach it, if it is a broker."""
        if not self.settings.formation.is_broker:
            return None
        advertised = self.settings.advertised()[0]
        return f"{advertised.host}:{advertised.port}"


def read_nodes(config: Path) -> list[LocalNode]:
    """The node of a file, or the brokers of a host with ``processes``. Raises ``SettingError``."""
    from riverrun.server.host.cores import usable_cores
    from riverrun.server.host.directories import placed_members
    from riverrun.server.host.members import base_directories, members_of
    from riverrun.server.host.settings import PROCESSES, HostSettings
    from riverrun.server.settings import IdentitySettings, NodeSettings, settings_texts

    texts = settings_texts(config, {}, os.environ)
    if not texts.get(PROCESSES):
        return [_node(NodeSettings.from_texts(texts), texts)]
    count = HostSettings.from_texts(texts).count(usable_cores())
    placed = placed_members(base_directories(texts), IdentitySettings.from_texts(texts).node_id)
    return [_node(one.settings, one.texts) for one in members_of(texts, count, placed)]


def _node(settings: NodeSettings, texts: Mapping[str, str]) -> LocalNode:
    from riverrun.model.names import LOCK
    from riverrun.ports.files import lock_owner

    try:
        process = lock_owner(os.path.join(settings.data_directory, LOCK))
    except PermissionError:
        process = None
    return LocalNode(settings=settings, texts=texts, process=process)


def local_findings(node: LocalNode) -> Iterator[Finding]:
    try:
        yield from disk_findings(read_disk(node.settings.data_directory))
    except OSError as error:
        text = f"{node.settings.data_directory} cannot be read: {error.strerror}"
        yield bad(DISK, text, "mount the disk, or correct log.dirs")
    yield from _network(node)
    yield from or_good(_settings(node), SETTINGS, "no risky settings in the file")
    yield from _certificates(node)


def _network(node: LocalNode) -> Iterator[Finding]:
    settings = node.settings
    addresses = [(one.host, one.port) for one in settings.listening()]
    http_host, _, http_port = settings.identity.http_listener.rpartition(":")
    if http_port.isdigit():
        addresses.append((http_host, int(http_port)))
    advertised = [one.host for one in settings.advertised()] if _is_broker(node) else []
    facts = read_network(
        [(host, port) for host, port in addresses if port],
        process=node.process,
        advertised=advertised,
        seeds=_other_seeds(node),
    )
    return network_findings(facts)


def _other_seeds(node: LocalNode) -> list[tuple[str, int]]:
    """``seed.nodes`` may include the node itself."""
    settings = node.settings
    own = [*settings.advertised(), settings.controller_advertised()]
    addresses = [(one.host, one.port) for one in own if one is not None]
    return [seed for seed in settings.formation.seeds() if seed not in addresses]


def _is_broker(node: LocalNode) -> bool:
    return bool(node.settings.formation.is_broker)


def _settings(node: LocalNode) -> Iterator[Finding]:
    from riverrun.server.security.settings import listener_protocols
    from riverrun.server.settings import GROUPS

    settings = node.settings
    values = {
        declared.name: declared.render(getattr(getattr(settings, field), declared.field))
        for field, group in GROUPS.items()
        for declared in group.declared()
    }
    if settings.ignored:
        text = f"settings of Apache Kafka that have no effect: {', '.join(settings.ignored)}"
        yield note(SETTINGS, text, "remove them; `riverrun docs migration` says why")
    nodes = len(_other_seeds(node)) + 1
    yield from setting_findings(values, max(nodes, settings.formation.expect))
    protocols = listener_protocols(node.texts, [one.name for one in settings.listening()])
    yield from listener_findings(
        {
            one.name: (one.host, protocols[one.name].name)
            for one in (settings.client_addresses() if _is_broker(node) else ())
        },
        has_authorizer=bool(settings.authorization.authorizer),
        super_users=settings.authorization.super_users,
    )


def _certificates(node: LocalNode) -> Iterator[Finding]:
    from riverrun.model.settings import SettingError
    from riverrun.security.tls import tls_settings
    from riverrun.server.security.settings import listener_protocols, of_listener

    listening = node.settings.listening()
    protocols = listener_protocols(node.texts, [one.name for one in listening])
    advertised = {one.name: one.host for one in node.settings.advertised()}
    controller = node.settings.controller_advertised()
    if controller is not None:
        advertised[controller.name] = controller.host
    for name in [one.name for one in listening if protocols[one.name].has_tls]:
        try:
            settings = tls_settings(of_listener(node.texts, name))
        except SettingError as error:
            yield bad("certificates", f"listener {name}: {error.reason}", f"correct {error.name}")
            continue
        yield from certificate_findings(read_certificate(name, settings, advertised.get(name)))
