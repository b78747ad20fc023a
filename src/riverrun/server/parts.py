"""What request handlers may use. Built by ``broker.py``; a handler takes from it and owns
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from riverrun.server.answers import Answers
from riverrun.server.sparing import Sparing

if TYPE_CHECKING:
    from riverrun.cluster.configs import Configs
    from riverrun.cluster.runner import ControllerRunner
    from riverrun.coordinator.runner import GroupCoordinators
    from riverrun.metadata.runner import MetadataLog
    from riverrun.ports.clock import Clock
    from riverrun.ports.metrics import Metrics
    from riverrun.ports.randomness import Randomness
    from riverrun.replication.replicas import Replicas
    from riverrun.server.fetch_sessions import FetchSessions
    from riverrun.server.outgoing import Outgoing
    from riverrun.server.settings import NodeSettings
    from riverrun.storage.directory import LogDirectory
    from riverrun.storage.runner import LogRunner


@dataclass(slots=True, kw_only=True)
class Parts:
    settings: NodeSettings
    clock: Clock
    randomness: Randomness
    metrics: Metrics
    metadata: MetadataLog
    configs: Configs
    controller: ControllerRunner
    replicas: Replicas
    groups: GroupCoordinators
    logs: LogDirectory
    log_runner: LogRunner
    fetch_sessions: FetchSessions
    outgoing: Outgoing
    answers: Answers = field(default_factory=Answers)
    append_warnings: Sparing = field(default_factory=Sparing)
