"""The settings of a node by source: default, file, cluster, broker, topic.

The declared settings are passed in, so that this package does not depend on the packages that
declare them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Final, TypeVar

from riverrun.cluster.configs.read_only_names import READ_ONLY_NAMES
from riverrun.cluster.configs.values import BadValue, check_texts, render
from riverrun.metadata.image import ConfigType, Image
from riverrun.model import setting_names
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId
from riverrun.model.setting_names import SYNONYMS
from riverrun.model.settings import Setting, SettingError, SettingKind, Settings
from riverrun.security.protocols import LISTENER_PREFIX
from riverrun.storage.settings import TOPIC_ONLY, LogSettings

S = TypeVar("S", bound=Settings)

CLUSTER: Final = ""
"""The name of the BROKER resource that applies to all brokers."""

MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
FLUSH_CHECK: Final = "log.flush.scheduler.interval.ms"


class ConfigSource(IntEnum):
    """The source of a value, with the numbers of DescribeConfigs."""

    TOPIC = 1
    BROKER = 2
    CLUSTER = 3
    STATIC = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


_EMPTY_DEFAULTS: Final = ("max.connections.per.ip.overrides", "authorizer.class.name")
"""Kafka shows their default as an empty text, that of others not at all."""
# Kafka accepts some settings in coarser units. The default belongs to the coarse name
# (KAFKA-2143), and clients can see that.
_COARSE_DEFAULTS: Final[Mapping[str, int | None]] = {
    "log.retention.minutes": None,
    "log.retention.hours": 168,
    "log.roll.hours": 168,
    "log.roll.jitter.hours": 0,
}
_WITHOUT_DEFAULT: Final = (*SYNONYMS, "log.flush.interval.ms", "advertised.listeners")
_OWN: Final = ("node.id", "log.dirs")
"""The identity of a node. Their defaults are not listed if the setting is given."""


class Configs:
    """The settings of one node. ``given`` holds the texts from its file and flags."""

    def __init__(
        self,
        declared: Iterable[Setting],
        *,
        given: Mapping[str, str],
        node_id: NodeId,
        log: LogSettings,
    ) -> None:
        self.node_id = node_id
        self.given = given
        self._log = log
        # The log settings with dynamic changes, cached because thousands of topics read them.
        self._cached_for: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})
        self._cached_log = log
        self.topic: dict[str, Setting] = {}
        self.node: dict[str, Setting] = {}
        for setting in declared:
            if setting.topic is not None:
                self.topic[setting.topic] = setting
            if setting.name not in TOPIC_ONLY:
                self.node[setting.name] = setting
        for fine, coarse_names in SYNONYMS.items():
            for coarse in coarse_names:
                if coarse not in self.node and fine in self.node:
                    self.node[coarse] = _coarse_setting(self.node[fine], coarse)

    def declaration(self, name: str) -> Setting | None:
        """The declaration of a node-level setting, also if the name has the prefix of a listener or
        of a SASL mechanism of a listener; None if there is none."""
        if not name.startswith(LISTENER_PREFIX):
            return self.node.get(name)
        _, _, base = name.removeprefix(LISTENER_PREFIX).partition(".")
        _, _, of_mechanism = base.partition(".")
        return self.node.get(base) or self.node.get(of_mechanism)

    # Effective values

    def log_settings(self, image: Image, topic: str) -> LogSettings:
        """The log settings of a topic on this node; the same object for most topics."""
        dynamic = self._dynamic(image)
        if dynamic != self._cached_for:
            self._cached_for = dynamic
            self._cached_log = node_log_settings(image, self.node_id, self._log)
        return _changed(self._cached_log, image.config(ConfigType.TOPIC, topic), by_topic_name=True)

    def effective(self, image: Image, static: S) -> S:
        """A node's settings with the dynamic changes applied."""
        for texts in self._dynamic(image):
            static = _changed(static, self._live(texts))
        return static

    def static_text(self, name: str) -> str | None:
        """The value of a node-level setting without dynamic changes; None if it has none."""
        given = self.given.get(name)
        return self.default_text(name) if given is None else given

    def static_int(self, name: str) -> int:
        """The value of a node-level integer, which must be declared."""
        text = self.static_text(name)
        assert text is not None, f"{name} is not declared"
        return int(text)

    def default_text(self, name: str) -> str | None:
        if name in _WITHOUT_DEFAULT or name not in self.node:
            return None
        if name in _COARSE_DEFAULTS:
            coarse = _COARSE_DEFAULTS[name]
            return None if coarse is None else str(coarse)
        setting = self.node[name]
        is_empty = setting.default == "" and name not in _EMPTY_DEFAULTS
        if is_empty or (name in _OWN and name in self.given):
            return None
        return render(setting, setting.default)

    def broker_texts(self, image: Image) -> Mapping[str, str]:
        return image.config(ConfigType.BROKER, str(self.node_id))

    def _dynamic(self, image: Image) -> tuple[Mapping[str, str], Mapping[str, str]]:
        return image.config(ConfigType.BROKER, CLUSTER), self.broker_texts(image)

    def _live(self, texts: Mapping[str, str]) -> dict[str, str]:
        return {n: t for n, t in texts.items() if n in self.node and self.node[n].live}

    # Validation

    def check_topic(self, texts: Mapping[str, str]) -> None:
        """Validate all settings of one topic together; raises INVALID_CONFIG."""
        for name in texts:
            if name not in self.topic:
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
        try:
            values = check_texts(self.topic, texts)
        except BadValue as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
        if values.get("remote.storage.enable"):
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                "Tiered Storage functionality is disabled in the broker. "
                "Topic cannot be configured with remote log storage.",
            )
        least, most = values.get("min.compaction.lag.ms"), values.get("max.compaction.lag.ms")
        if isinstance(least, int) and isinstance(most, int) and least > most:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"conflict topic config setting min.compaction.lag.ms ({least}) > "
                f"max.compaction.lag.ms ({most})",
            )

    def _is_read_only(self, name: str) -> bool:
        declared = self.node.get(name)
        return name in READ_ONLY_NAMES if declared is None else not declared.live

    def check_broker(self, texts: Mapping[str, str]) -> None:
        """Validate all settings of one broker or of the cluster; raises INVALID_REQUEST.

        Undeclared names are accepted, as by Kafka: they may belong to a newer version.
        """
        known = {name: text for name, text in texts.items() if name in self.node}
        read_only = sorted(name for name in texts if self._is_read_only(name))
        if read_only:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Cannot update these configs dynamically: [{', '.join(read_only)}]",
            )
        try:
            check_texts(self.node, known)
        except BadValue as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None


def node_log_settings(image: Image, node_id: NodeId, static: LogSettings) -> LogSettings:
    """The log settings of topics without settings of their own."""
    settings = _changed(static, image.config(ConfigType.BROKER, CLUSTER))
    return _changed(settings, image.config(ConfigType.BROKER, str(node_id)))


def family(name: str) -> tuple[str, ...]:
    """A node-level name and its synonyms, the finest unit first; the first one set wins."""
    return (name, FLUSH_CHECK) if name == "log.flush.interval.ms" else setting_names.family(name)


def _changed(settings: S, texts: Mapping[str, str], *, by_topic_name: bool = False) -> S:
    """Apply texts to settings, and skip values that are invalid in this version."""
    if not texts:
        return settings
    try:
        return settings.changed(texts, by_topic_name=by_topic_name)
    except SettingError:
        for name, text in texts.items():
            try:
                settings = settings.changed({name: text}, by_topic_name=by_topic_name)
            except SettingError:
                continue
        return settings


def _coarse_setting(fine: Setting, name: str) -> Setting:
    return Setting(
        field=fine.field,
        name=name,
        topic=None,
        kind=SettingKind.INT,
        default=_COARSE_DEFAULTS[name] or 0,
        at_least=None,
        at_most=None,
        choices=None,
        live=False,
        doc=f"{fine.name} in another unit. If both are given, {fine.name} wins.",
    )
