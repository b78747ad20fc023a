"""Settings in responses: the value, source and synonyms of each (KIP-226)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from riverrun.cluster.balancing.plans import plan_ids
from riverrun.cluster.brokers.modes import mode_texts
from riverrun.cluster.configs.group_configs import GROUP_SETTINGS, METRICS_SETTINGS
from riverrun.cluster.configs.node_configs import CLUSTER, Configs, ConfigSource, family
from riverrun.cluster.configs.values import BadValue, parse, render
from riverrun.metadata.image import ConfigType, Image
from riverrun.model.settings import Setting, SettingKind
from riverrun.placement.planner.stored_plan import ALL_PLANS, DECOYS, HEADER, MODES
from riverrun.storage.settings import TOPIC_ONLY
from riverrun.wire.messages.create_topics_response import CreatableTopicConfigs
from riverrun.wire.messages.describe_configs_response import (
    DescribeConfigsResourceResult,
    DescribeConfigsSynonym,
)

Rows = tuple[DescribeConfigsResourceResult, ...]
Synonyms = tuple[DescribeConfigsSynonym, ...]


class DescribeOptions(Struct, frozen=True, kw_only=True):
    """The settings that a client requested (None: all), and the details of each."""

    names: tuple[str, ...] | None = None
    with_synonyms: bool = False
    with_documentation: bool = False
    known: dict[str, Synonyms] | None = None
    """A cache of the synonyms of node-level settings, shared by the topics of one request."""

    def select(self, names: Iterable[str]) -> list[str]:
        # As in Kafka, an empty list means all.
        wanted = self.names
        return sorted(name for name in names if not wanted or name in wanted)


def topic_rows(configs: Configs, image: Image, topic: str, options: DescribeOptions) -> Rows:
    own = image.config(ConfigType.TOPIC, topic)
    effective = configs.log_settings(image, topic)
    rows = []
    for name in options.select(configs.topic):
        setting = configs.topic[name]
        value = render(setting, getattr(effective, setting.field))
        synonyms: Synonyms = ()
        if setting.name not in TOPIC_ONLY:
            synonyms = _shared_synonyms(configs, image, setting.name, options)
        if name in own:
            synonyms = (_synonym(name, value, ConfigSource.TOPIC), *synonyms)
        rows.append(_row(setting, name, value, synonyms, options, read_only=False))
    return tuple(rows)


def broker_rows(configs: Configs, image: Image, options: DescribeOptions) -> Rows:
    rows = []
    dynamic = {**image.config(ConfigType.BROKER, CLUSTER), **configs.broker_texts(image)}
    for name in options.select({**configs.node, **dict.fromkeys(dynamic)}):
        setting = configs.declaration(name) or _undeclared(name)
        synonyms = _node_synonyms(configs, image, name)
        value = synonyms[0].value if synonyms else None
        rows.append(_row(setting, name, value, synonyms, options, read_only=not setting.live))
    return tuple(rows)


def cluster_rows(configs: Configs, image: Image, options: DescribeOptions) -> Rows:
    """Only the settings that were set for all brokers."""
    texts = image.config(ConfigType.BROKER, CLUSTER)
    rows = []
    for name in options.select(texts):
        setting = configs.declaration(name) or _undeclared(name)
        value = _normal(setting, name, texts[name])
        synonyms = (_synonym(name, value, ConfigSource.CLUSTER),)
        rows.append(_row(setting, name, value, synonyms, options, read_only=not setting.live))
    return tuple(rows)


def group_rows(configs: Configs, image: Image, group: str, options: DescribeOptions) -> Rows:
    own = image.config(ConfigType.GROUP, group)
    rows = []
    for name in options.select(GROUP_SETTINGS):
        declared = GROUP_SETTINGS[name]
        setting = declared.setting
        default = render(setting, setting.default)
        synonyms: Synonyms = (_synonym(declared.node or name, default, ConfigSource.DEFAULT),)
        if declared.node in configs.node:
            synonyms = _node_synonyms(configs, image, declared.node)
        value: str | None = synonyms[0].value
        if name in own:
            value = _normal(setting, name, own[name])
            synonyms = (_synonym(name, value, ConfigSource.GROUP), *synonyms)
        rows.append(_row(setting, name, value, synonyms, options, read_only=False))
    return tuple(rows)


def metrics_rows(image: Image, subscription: str, options: DescribeOptions) -> Rows:
    own = image.config(ConfigType.CLIENT_METRICS, subscription)
    rows = []
    for name in options.select(METRICS_SETTINGS):
        setting = METRICS_SETTINGS[name]
        value: str | None = render(setting, setting.default)
        synonyms: Synonyms = ()
        if name in own:
            value = _normal(setting, name, own[name])
            synonyms = (_synonym(name, value, ConfigSource.CLIENT_METRICS),)
        rows.append(_row(setting, name, value, synonyms, options, read_only=False))
    return tuple(rows)


def plan_rows(image: Image, plan: str, options: DescribeOptions) -> Rows | None:
    """The texts of a plan, the headers of all, or the modes of brokers; None if there is no such
    plan."""
    if plan == ALL_PLANS:
        texts = {name: image.configs[ConfigType.PLAN, name][HEADER] for name in plan_ids(image)}
    elif plan == MODES:
        texts = mode_texts(image)
    elif plan != DECOYS and (ConfigType.PLAN, plan) in image.configs:
        texts = dict(image.config(ConfigType.PLAN, plan))
    else:
        return None
    return tuple(
        DescribeConfigsResourceResult(
            name=name,
            value=texts[name],
            read_only=False,
            config_source=ConfigSource.CLUSTER,
            is_sensitive=False,
            synonyms=(),
            documentation="",
        )
        for name in options.select(texts)
    )


def logger_rows(level: str, options: DescribeOptions) -> Rows:
    """The level of the only logger of a node."""
    return tuple(
        DescribeConfigsResourceResult(
            name=name,
            value=level,
            read_only=False,
            config_source=ConfigSource.BROKER_LOGGER,
            is_sensitive=False,
            synonyms=(),
            documentation="",
        )
        for name in options.select(("root",))
    )


CreatedRows = tuple[CreatableTopicConfigs, ...]


def created_rows(configs: Configs, image: Image) -> CreatedRows:
    """The settings of a new topic without settings of its own, for CreateTopics.

    Unlike in DescribeConfigs, a coarser synonym counts as a source.
    """
    effective = configs.log_settings(image, "")
    return tuple(
        CreatableTopicConfigs(
            name=name,
            value=render(setting, getattr(effective, setting.field)),
            read_only=False,
            config_source=_created_source(configs, image, setting.name),
            is_sensitive=setting.kind is SettingKind.PASSWORD,
        )
        for name, setting in sorted(configs.topic.items())
    )


def with_own(rows: CreatedRows, texts: Mapping[str, str]) -> CreatedRows:
    """The rows with a topic's own settings, as the client sent them."""
    if not texts:
        return rows
    return tuple(
        replace(row, value=texts[row.name], config_source=ConfigSource.TOPIC)
        if row.name in texts
        else row
        for row in rows
    )


def _created_source(configs: Configs, image: Image, name: str) -> ConfigSource:
    names = family(name)
    for source, texts in _layers(configs, image):
        if any(texts(one) is not None for one in names) and source is not ConfigSource.DEFAULT:
            return source
    return ConfigSource.DEFAULT


def _undeclared(name: str) -> Setting:
    """A setting that the metadata holds but this version does not use. It may be a secret of
    another version, so its value is never shown, as in Kafka."""
    return Setting(
        field="",
        name=name,
        topic=None,
        kind=SettingKind.PASSWORD,
        default="",
        at_least=None,
        at_most=None,
        choices=None,
        live=True,
        doc="Not a setting of this version.",
    )


def _layers(
    configs: Configs, image: Image
) -> tuple[tuple[ConfigSource, Callable[[str], str | None]], ...]:
    """The sources of a node-level setting, in order of precedence."""
    return (
        (ConfigSource.BROKER, configs.broker_texts(image).get),
        (ConfigSource.CLUSTER, image.config(ConfigType.BROKER, CLUSTER).get),
        (ConfigSource.STATIC, configs.given.get),
        (ConfigSource.DEFAULT, configs.default_text),
    )


def _node_synonyms(configs: Configs, image: Image, name: str) -> Synonyms:
    """All values of a node-level setting, the effective one first.

    Like Kafka, this omits synonyms before the first value of the requested name. So a setting that
    is given only by its coarser synonym is listed with its default as source.
    """
    found: list[DescribeConfigsSynonym] = []
    for source, text_of in _layers(configs, image):
        for one in family(name):
            text = text_of(one)
            if text is not None and (found or one == name):
                setting = configs.declaration(one) or _undeclared(one)
                found.append(_synonym(one, _normal(setting, one, text), source))
    return tuple(found)


def _shared_synonyms(
    configs: Configs, image: Image, name: str, options: DescribeOptions
) -> Synonyms:
    known = options.known
    if known is None:
        return _node_synonyms(configs, image, name)
    if name not in known:
        known[name] = _node_synonyms(configs, image, name)
    return known[name]


def _synonym(name: str, value: str | None, source: ConfigSource) -> DescribeConfigsSynonym:
    return DescribeConfigsSynonym(name=name, value=value, source=source)


def _normal(setting: Setting, name: str, text: str) -> str | None:
    """The text as Kafka writes the value; None for secrets."""
    if setting.kind is SettingKind.PASSWORD:
        return None
    try:
        return render(setting, parse(setting, name, text))
    except BadValue:
        return text


def _row(
    setting: Setting,
    name: str,
    value: str | None,
    synonyms: Synonyms,
    options: DescribeOptions,
    *,
    read_only: bool,
) -> DescribeConfigsResourceResult:
    is_sensitive = setting.kind is SettingKind.PASSWORD
    return DescribeConfigsResourceResult(
        name=name,
        value=None if is_sensitive else value,
        read_only=read_only,
        config_source=synonyms[0].source if synonyms else ConfigSource.DEFAULT,
        is_sensitive=is_sensitive,
        synonyms=synonyms if options.with_synonyms else (),
        config_type=setting.kind,
        documentation=setting.doc if options.with_documentation else None,
    )
