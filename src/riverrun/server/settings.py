"""The settings of a node: identity, addresses, and the settings of every component.

Sources in order of precedence: flags and ``--set``, the environment (``RIVERRUN_LOG_DIRS`` for
``log.dirs``), the file, and the declared defaults. An unknown name is an error: a misspelt setting
must not be ignored silently.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from riverrun.cluster.balancing.settings import BalanceSettings
from riverrun.cluster.brokers.modes import BROKER_MODE
from riverrun.cluster.security.token_settings import DelegationTokenSettings
from riverrun.cluster.settings import ControllerSettings
from riverrun.coordinator.settings import GroupSettings
from riverrun.coordinator.transactions.settings import TransactionSettings
from riverrun.metadata.settings import MetadataSettings
from riverrun.model.ids import NodeId
from riverrun.model.properties import parse_properties
from riverrun.model.setting_names import SYNONYMS, flattened, not_toml, overridden
from riverrun.model.settings import Setting, SettingError, SettingKind, Settings, setting
from riverrun.placement.settings import PlacementSettings
from riverrun.raft.settings import QuorumSettings
from riverrun.replication.follower.settings import FollowerSettings
from riverrun.replication.settings import ReplicationSettings
from riverrun.server.formation.settings import FormationSettings
from riverrun.server.host.settings import PROCESSES, HostSettings
from riverrun.server.kafka_file import PROPERTIES, texts_of_kafka
from riverrun.server.kafka_settings import RENAMED, ignored_names
from riverrun.server.metrics.settings import MetricsSettings
from riverrun.server.network.connection_limits import check_listener_limits
from riverrun.server.network.settings import NetworkSettings
from riverrun.server.security.audit.settings import AuditSettings
from riverrun.server.security.login_settings import LoginTokenSettings
from riverrun.server.security.quota_settings import QuotaSettings
from riverrun.server.security.settings import (
    SECURITY_GROUPS,
    AuthorizationSettings,
    ListenerSettings,
    SaslSettings,
    TlsFileSettings,
    check_prefixes,
    inter_broker_listener,
    listener_protocols,
    prefixed_setting,
)
from riverrun.server.tracing import TracingSettings
from riverrun.server.transactions.settings import VerificationSettings
from riverrun.storage.settings import (
    CORDONED,
    CleanerSettings,
    DirectorySettings,
    LogSettings,
    ScrubSettings,
)

ENVIRONMENT_PREFIX = "RIVERRUN_"
VARIABLES_OF_OTHERS = (
    "BOOTSTRAP",
    "CONFIG",
    "CONTEXT",
    "SPARK_MASTER",
    "COMMAND_CONFIG",
    "REGISTRY",
    "REGISTRY_USER_INFO",
    "PEERS",
    "TEST_PORTS",
    "FUZZ_EXAMPLES",
    "SIMULATION_SECONDS",
)
"""Variables that the command line, the console, the pipelines and the tests read."""


class UnreadableFile(SettingError):
    """A configuration file that cannot be read."""

    def __init__(self, path: Path, reason: str) -> None:
        ValueError.__init__(self, f"cannot read {path}: {reason}")
        self.name = "config"
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentitySettings(Settings):
    """The node's id, addresses and data directory."""

    node_id: int = setting(
        1, name="node.id", at_least=0, doc="Id of this node, unique in its cluster."
    )
    log_dirs: tuple[str, ...] = setting(
        ("data/node-1",),
        name="log.dirs",
        doc="Data directory of this node. A node has one directory.",
    )
    listeners: tuple[str, ...] = setting(
        ("PLAINTEXT://127.0.0.1:9092", "CONTROLLER://127.0.0.1:9093"),
        name="listeners",
        doc="Addresses to listen on, as NAME://HOST:PORT. CONTROLLER is for other nodes.",
    )
    advertised_listeners: tuple[str, ...] = setting(
        (),
        name="advertised.listeners",
        doc="Addresses that clients connect to, and other nodes in the case of CONTROLLER. Empty: "
        "the addresses in listeners.",
    )
    http_listener: str = setting(
        "127.0.0.1:9094",
        name="http.listener",
        doc="HOST:PORT for health checks, metrics and the console over HTTP. Empty: none.",
    )
    has_console: bool = setting(
        True,
        name="console.enable",
        doc="Whether http.listener serves the web console and its REST API too. They run in a"
        " process of their own, which the first request starts. Kafka has no such setting.",
    )
    console_hosts: tuple[str, ...] = setting(
        (),
        name="console.allowed.hosts",
        doc="Further host names by which browsers may reach the console, for example that of a"
        " proxy; .example.com stands for all names below it, and * for every name. Addresses,"
        " localhost, the machine's name and the names in listeners, advertised.listeners and"
        " http.listener are always allowed. Other names are refused, because a web page could give"
        " its own name the address of this node. Health checks and metrics accept every name."
        " Kafka has no such setting.",
    )
    rack: str = setting(
        "", name="broker.rack", doc="Rack or zone of this node. Replicas are spread over racks."
    )
    log_format: str = setting(
        "console",
        name="log.format",
        choices=("console", "json"),
        doc="Format of the node's own log.",
    )
    log_level: str = setting(
        "info",
        name="log.level",
        choices=("debug", "info", "warning", "error"),
        doc="Lowest level that the node's own log shows.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDefaults(Settings):
    """Defaults for new topics."""

    partitions: int = setting(
        1,
        name="num.partitions",
        at_least=1,
        doc="Default number of partitions of a new topic.",
    )
    replication_factor: int = setting(
        1,
        name="default.replication.factor",
        kind=SettingKind.INT,
        at_least=1,
        at_most=32767,
        doc="Default replication factor of a new topic.",
    )
    auto_create: bool = setting(
        True,
        name="auto.create.topics.enable",
        doc="Whether a metadata request for an unknown topic creates it.",
    )
    delete_enable: bool = setting(
        True, name="delete.topic.enable", doc="Whether topics may be deleted."
    )


class Address(Struct, frozen=True, kw_only=True):
    """The name and address of a listener."""

    name: str
    host: str
    port: int

    @classmethod
    def parse(cls, text: str, setting_name: str) -> Self:
        name, found, place = text.strip().partition("://")
        host, colon, port = place.rpartition(":")
        if not found or not colon or not port.isdigit() or not 0 <= int(port) <= 65535:
            raise SettingError(
                setting_name, text, "an address looks like PLAINTEXT://127.0.0.1:9092"
            )
        return cls(name=name.upper(), host=host.strip("[]") or "0.0.0.0", port=int(port))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """All settings of a node, by component."""

    identity: IdentitySettings
    topics: TopicDefaults
    network: NetworkSettings
    log: LogSettings
    directory: DirectorySettings
    cleaner: CleanerSettings
    scrub: ScrubSettings
    metadata: MetadataSettings
    controller: ControllerSettings
    placement: PlacementSettings
    balance: BalanceSettings
    replication: ReplicationSettings
    group: GroupSettings
    transaction: TransactionSettings
    verification: VerificationSettings
    formation: FormationSettings
    quorum: QuorumSettings
    follower: FollowerSettings
    metrics: MetricsSettings
    tracing: TracingSettings
    host: HostSettings
    listener: ListenerSettings
    tls: TlsFileSettings
    sasl: SaslSettings
    login_token: LoginTokenSettings
    authorization: AuthorizationSettings
    quota: QuotaSettings
    delegation_token: DelegationTokenSettings
    audit: AuditSettings
    given: Mapping[str, str]
    ignored: tuple[str, ...] = ()
    """Names of Apache Kafka that were given and have no meaning here."""

    @classmethod
    def from_texts(cls, texts: Mapping[str, str]) -> Self:
        """Validate every name and value. Raises ``SettingError``."""
        known = _names()
        ignored = ignored_names(texts, known)
        texts = {name: text for name, text in texts.items() if name not in ignored}
        for name, text in texts.items():
            if name not in known and prefixed_setting(name) is None:
                raise _unknown(name, text, known)
        groups = {field: group.from_texts(texts) for field, group in GROUPS.items()}
        made = cls(given=texts, ignored=ignored, **groups)  # type: ignore[arg-type]
        check_listener_limits(texts)
        if len(made.identity.log_dirs) != 1:
            raise SettingError(
                "log.dirs",
                ",".join(made.identity.log_dirs),
                "a node has one data directory; several are for start --processes",
            )
        if unknown := made.directory.unknown_cordons(made.data_directory):
            raise SettingError(
                CORDONED,
                ",".join(made.directory.cordoned),
                f"{unknown[0]} is not the data directory {made.data_directory}, nor *",
            )
        if BROKER_MODE in texts:
            raise SettingError(
                BROKER_MODE,
                texts[BROKER_MODE],
                "the mode belongs to a running cluster; use `riverrun cluster maintenance`",
            )
        if not made.formation.roles:
            raise SettingError("process.roles", "", "a node is broker, controller, or both")
        if made.formation.is_broker:
            made.client_addresses()
        made.advertised()
        names = [address.name for address in made.listening()]
        check_prefixes(texts, names, is_broker=made.formation.is_broker)
        protocols = listener_protocols(texts, names)
        inter_broker_listener(texts, protocols)
        if made.formation.seeds() and made.formation.is_controller:
            made._check_controller()
        return made

    def _check_controller(self) -> None:
        """A controller with seeds needs an address that other nodes can connect to."""
        address = self.controller_advertised()
        if address is None:
            raise SettingError(
                "listeners",
                ",".join(self.identity.listeners),
                "a controller that has seed.nodes needs a listener CONTROLLER://HOST:PORT",
            )
        if address.host in ("0.0.0.0", "::"):
            raise SettingError(
                "listeners",
                f"{address.name}://{address.host}:{address.port}",
                "other nodes cannot connect to a wildcard address; set advertised.listeners",
            )

    @property
    def data_directory(self) -> str:
        return os.path.abspath(self.identity.log_dirs[0])

    @property
    def node_id(self) -> NodeId:
        return NodeId(self.identity.node_id)

    def listening(self) -> tuple[Address, ...]:
        """The addresses of all listeners."""
        return tuple(Address.parse(text, "listeners") for text in self.identity.listeners)

    def client_addresses(self) -> tuple[Address, ...]:
        found = tuple(address for address in self.listening() if address.name != "CONTROLLER")
        if not found and self.formation.is_broker:
            raise SettingError(
                "listeners", ",".join(self.identity.listeners), "there is no listener for clients"
            )
        return found

    def controller_address(self) -> Address | None:
        return next((a for a in self.listening() if a.name == "CONTROLLER"), None)

    def controller_advertised(self) -> Address | None:
        """The address of our controller for other nodes. Voters are registered with it.

        If the controller listens on a wildcard address, the default host is that of the advertised
        client listener.
        """
        advertised = [a for a in self._advertised_texts() if a.name == "CONTROLLER"]
        listening = self.controller_address()
        if advertised or listening is None or listening.host not in ("0.0.0.0", "::"):
            return advertised[0] if advertised else listening
        to_clients = [a for a in self._advertised_texts() if a.name != "CONTROLLER"]
        if to_clients:
            return replace(listening, host=to_clients[0].host)
        return listening

    def _advertised_texts(self) -> tuple[Address, ...]:
        texts = self.identity.advertised_listeners
        return tuple(Address.parse(text, "advertised.listeners") for text in texts)

    def advertised(self) -> tuple[Address, ...]:
        """The client addresses that clients receive. The default is ``listeners``."""
        advertised = tuple(a for a in self._advertised_texts() if a.name != "CONTROLLER")
        if advertised:
            return advertised
        for address in self.client_addresses():
            if address.host in ("0.0.0.0", "::"):
                raise SettingError(
                    "listeners",
                    f"{address.name}://{address.host}:{address.port}",
                    "clients cannot connect to a wildcard address; set advertised.listeners",
                )
        return self.client_addresses()


GROUPS: Mapping[str, type[Settings]] = {
    "identity": IdentitySettings,
    "topics": TopicDefaults,
    "network": NetworkSettings,
    "log": LogSettings,
    "directory": DirectorySettings,
    "cleaner": CleanerSettings,
    "scrub": ScrubSettings,
    "metadata": MetadataSettings,
    "controller": ControllerSettings,
    "placement": PlacementSettings,
    "balance": BalanceSettings,
    "replication": ReplicationSettings,
    "group": GroupSettings,
    "transaction": TransactionSettings,
    "verification": VerificationSettings,
    "formation": FormationSettings,
    "quorum": QuorumSettings,
    "follower": FollowerSettings,
    "metrics": MetricsSettings,
    "tracing": TracingSettings,
    "host": HostSettings,
    **SECURITY_GROUPS,
    "quota": QuotaSettings,
    "delegation_token": DelegationTokenSettings,
    "audit": AuditSettings,
}


def declared_settings() -> tuple[Setting, ...]:
    return tuple(declared for group in GROUPS.values() for declared in group.declared())


def _unknown(name: str, text: str, known: Sequence[str]) -> SettingError:
    is_prefixed = prefixed_setting(name.lower()) is not None
    near = [name.lower()] if is_prefixed else get_close_matches(name, known, n=1)
    hint = "`riverrun docs settings` lists them"
    if name in RENAMED:
        hint = f"here its name is {RENAMED[name]}"
    elif near:
        hint = f"did you mean {near[0]}?"
    is_secret = any(word in name for word in ("passw", "secret", "jaas", "key"))
    return SettingError(name, "(hidden)" if is_secret else text, f"unknown setting; {hint}")


def check_flags(flags: Mapping[str, str]) -> None:
    """Validate the name and the value of each setting by itself, before any node is prepared.
    Raises ``SettingError``."""
    known = _names()
    ignored = ignored_names(flags, known)
    declared = {setting.name: setting for setting in declared_settings()}
    for name, text in flags.items():
        if name in ignored:
            continue
        if name not in known and prefixed_setting(name) is None:
            raise _unknown(name, text, known)
        if name in declared:
            declared[name].parse(text)


def read_file(path: Path) -> dict[str, str]:
    """The settings of a TOML file, or of Apache Kafka's file if its name ends in ``.properties``.

    Dotted names in TOML need no quotes (``node.id = 1``).
    """
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == PROPERTIES:
            return texts_of_kafka(parse_properties(text))
        tree = tomllib.loads(text)
    except FileNotFoundError:
        raise UnreadableFile(path, "no such file") from None
    except OSError as error:
        raise UnreadableFile(path, (error.strerror or str(error)).lower()) from None
    except tomllib.TOMLDecodeError as error:
        raise UnreadableFile(path, not_toml(error)) from None
    except UnicodeDecodeError:
        raise UnreadableFile(path, "not UTF-8 text") from None
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in flattened(tree).items()
    }


def settings_texts(
    config: Path | None, flags: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, str]:
    """Settings from the file, the environment and flags. Later sources override earlier ones."""
    texts = read_file(config) if config is not None else {}
    texts = overridden(overridden(texts, from_environment(environment)), flags)
    if "log.dirs" not in texts and "node.id" in texts and not texts.get(PROCESSES):
        texts["log.dirs"] = f"data/node-{texts['node.id']}"
    return texts


def from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """``RIVERRUN_MIN_INSYNC_REPLICAS=2`` means ``min.insync.replicas=2``.

    Unknown variables are left out.
    """
    known = {variable_of(name): name for name in _names()}
    found: dict[str, str] = {}
    for variable, text in sorted(environment.items()):
        name = known.get(variable)
        if name is not None:
            found[name] = text
    return found


def is_setting(name: str) -> bool:
    """Whether a node knows a setting of this name."""
    return name in _names() or prefixed_setting(name) is not None


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Variables with our prefix that are not settings, each with a similar name if there is one.

    They are not errors, unlike in a file: other programs may use the prefix too.
    """
    known = [variable_of(name).removeprefix(ENVIRONMENT_PREFIX) for name in _names()]
    found: list[str] = []
    for variable in sorted(environment):
        name = variable.removeprefix(ENVIRONMENT_PREFIX)
        if name != variable and name not in known and name not in VARIABLES_OF_OTHERS:
            near = get_close_matches(name, known, n=1)
            hint = f" (did you mean {ENVIRONMENT_PREFIX}{near[0]}?)" if near else ""
            found.append(variable + hint)
    return found


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return ENVIRONMENT_PREFIX + name.upper().replace(".", "_")


def _names() -> list[str]:
    """All names of settings, including synonyms."""
    names = {declared.name for declared in declared_settings()}
    return sorted(names.union(*SYNONYMS.values()))
