"""Settings by where they come from: defaults, the node's file, the cluster, a broker, a topic.

All declared settings are handed in, so that this package knows none of the others. What a client
sees of them is in ``config_rows.py``, how a client changes them in ``config_changes.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Final, TypeVar

from riverrun.cluster.configs.read_only_names import FIXED_NAMES
from riverrun.cluster.configs.values import BadValue, check_texts, render
from riverrun.metadata.image import ConfigType, Image
from riverrun.model import synonyms
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId
from riverrun.model.settings import Kind, Setting, SettingError, Settings
from riverrun.model.synonyms import SYNONYMS
from riverrun.storage.settings import TOPIC_ONLY, LogSettings

S = TypeVar("S", bound=Settings)

CLUSTER: Final = ""
"""The name of the BROKER resource that holds for all brokers."""

MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
ELR_FEATURE: Final = "eligible.leader.replicas.version"
FLUSH_CHECK: Final = "log.flush.scheduler.interval.ms"


class Source(IntEnum):
    """Where a value comes from, with the numbers of DescribeConfigs."""

    TOPIC = 1
    BROKER = 2
    CLUSTER = 3
    STATIC = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


# Kafka lets a setting be given in coarser units. The fine name has no default of its own: the
# coarse one holds it (KAFKA-2143), and clients see that.
_COARSE_DEFAULTS: Final[Mapping[str, int | None]] = {
    "log.retention.minutes": None,
    "log.retention.hours": 168,
    "log.roll.hours": 168,
    "log.roll.jitter.hours": 0,
}
_WITHOUT_DEFAULT: Final = (*SYNONYMS, "log.flush.interval.ms", "advertised.listeners")
_OWN: Final = ("node.id", "log.dirs")
"""What makes a node this one; a default of it is of no interest once it is given."""


class Configs:
    """The settings of one node. ``given`` is what its file and flags say, as text."""

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
        # What the cluster and the broker make of it, kept since thousands of topics ask for it.
        self._seen: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})
        self._node_log = log
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

    # -- What holds now -----------------------------------------------------------------------

    def log_settings(self, image: Image, topic: str) -> LogSettings:
        """What holds for the logs of a topic on this node; the same object for most topics."""
        dynamic = self._dynamic(image)
        if dynamic != self._seen:
            self._seen = dynamic
            self._node_log = node_log_settings(image, self.node_id, self._log)
        return _changed(self._node_log, image.config(ConfigType.TOPIC, topic), by_topic_name=True)

    def effective(self, image: Image, static: S) -> S:
        """A node's settings with those replaced that were changed while it runs."""
        for texts in self._dynamic(image):
            static = _changed(static, self._live(texts))
        return static

    def static_text(self, name: str) -> str | None:
        """What a node-level setting is without any change at run time; None: it has no value."""
        given = self.given.get(name)
        return self.default_text(name) if given is None else given

    def static_int(self, name: str) -> int:
        """A node-level whole number; 0 for a setting that no part declares."""
        return int(self.static_text(name) or 0)

    def default_text(self, name: str) -> str | None:
        if name in _WITHOUT_DEFAULT or name not in self.node:
            return None
        if name in _COARSE_DEFAULTS:
            coarse = _COARSE_DEFAULTS[name]
            return None if coarse is None else str(coarse)
        setting = self.node[name]
        if setting.default == "" or (name in _OWN and name in self.given):
            return None
        return render(setting, setting.default)

    def broker_texts(self, image: Image) -> Mapping[str, str]:
        return image.config(ConfigType.BROKER, str(self.node_id))

    def _dynamic(self, image: Image) -> tuple[Mapping[str, str], Mapping[str, str]]:
        return image.config(ConfigType.BROKER, CLUSTER), self.broker_texts(image)

    def _live(self, texts: Mapping[str, str]) -> dict[str, str]:
        return {n: t for n, t in texts.items() if n in self.node and self.node[n].live}

    # -- What may be set ----------------------------------------------------------------------

    def check_topic(self, texts: Mapping[str, str]) -> None:
        """All settings of one topic, together; raises INVALID_CONFIG."""
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

    def _is_fixed(self, name: str) -> bool:
        declared = self.node.get(name)
        return name in FIXED_NAMES if declared is None else not declared.live

    def check_broker(self, texts: Mapping[str, str]) -> None:
        """All settings of one broker or of the cluster; raises INVALID_REQUEST, as Kafka does.

        Names that nobody declares are let through: they may belong to a newer version.
        """
        known = {name: text for name, text in texts.items() if name in self.node}
        fixed = sorted(name for name in texts if self._is_fixed(name))
        if fixed:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Cannot update these configs dynamically: [{', '.join(fixed)}]",
            )
        try:
            check_texts(self.node, known)
        except BadValue as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None


def node_log_settings(image: Image, node_id: NodeId, static: LogSettings) -> LogSettings:
    """What holds for topics that say nothing themselves."""
    settings = _changed(static, image.config(ConfigType.BROKER, CLUSTER))
    return _changed(settings, image.config(ConfigType.BROKER, str(node_id)))


def is_elr_enabled(image: Image) -> bool:
    return image.features.get(ELR_FEATURE, 0) > 0


def family(name: str) -> tuple[str, ...]:
    """A node-level name with its synonyms, the finest first; the first one that is set wins."""
    return (name, FLUSH_CHECK) if name == "log.flush.interval.ms" else synonyms.family(name)


def _changed(settings: S, texts: Mapping[str, str], *, by_topic_name: bool = False) -> S:
    """A log written by another version may hold a value that ours does not take: it is left out."""
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
        kind=Kind.INT,
        default=_COARSE_DEFAULTS[name] or 0,
        at_least=None,
        at_most=None,
        choices=None,
        live=False,
        doc=f"The same as {fine.name} in another unit; {fine.name} wins where both are given.",
    )
