"""Settings as clients see them: every one with its value, its source and its synonyms (KIP-226)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from riverrun.cluster.configs.group_configs import GROUP_SETTINGS, METRICS_SETTINGS
from riverrun.cluster.configs.node_configs import CLUSTER, Configs, Source, family
from riverrun.cluster.configs.values import BadValue, parse, render
from riverrun.metadata.image import ConfigType, Image
from riverrun.model.settings import Kind, Setting
from riverrun.storage.settings import TOPIC_ONLY
from riverrun.wire.messages.create_topics_response import CreatableTopicConfigs
from riverrun.wire.messages.describe_configs_response import (
    DescribeConfigsResourceResult,
    DescribeConfigsSynonym,
)

Rows = tuple[DescribeConfigsResourceResult, ...]
Synonyms = tuple[DescribeConfigsSynonym, ...]


class Wish(Struct, frozen=True, kw_only=True):
    """Which settings a client asked for (None: all), and how much about each."""

    names: tuple[str, ...] | None = None
    with_synonyms: bool = False
    with_documentation: bool = False
    known: dict[str, Synonyms] | None = None
    """Synonyms of node-level settings found so far, for the topics of one request share them."""

    def of(self, names: Iterable[str]) -> list[str]:
        # Kafka takes an empty list for all of them.
        wanted = self.names
        return sorted(name for name in names if not wanted or name in wanted)


def topic_rows(configs: Configs, image: Image, topic: str, wish: Wish) -> Rows:
    own = image.config(ConfigType.TOPIC, topic)
    effective = configs.log_settings(image, topic)
    rows = []
    for name in wish.of(configs.topic):
        setting = configs.topic[name]
        value = render(setting, getattr(effective, setting.field))
        synonyms: Synonyms = ()
        if setting.name not in TOPIC_ONLY:
            synonyms = _shared_synonyms(configs, image, setting.name, wish)
        if name in own:
            synonyms = (_synonym(name, value, Source.TOPIC), *synonyms)
        rows.append(_row(setting, name, value, synonyms, wish, read_only=False))
    return tuple(rows)


def broker_rows(configs: Configs, image: Image, wish: Wish) -> Rows:
    rows = []
    dynamic = {**image.config(ConfigType.BROKER, CLUSTER), **configs.broker_texts(image)}
    for name in wish.of({**configs.node, **dict.fromkeys(dynamic)}):
        setting = configs.node.get(name) or _undeclared(name)
        synonyms = _node_synonyms(configs, image, name)
        value = synonyms[0].value if synonyms else None
        rows.append(_row(setting, name, value, synonyms, wish, read_only=not setting.live))
    return tuple(rows)


def cluster_rows(configs: Configs, image: Image, wish: Wish) -> Rows:
    """What was set for all brokers, and nothing else."""
    texts = image.config(ConfigType.BROKER, CLUSTER)
    rows = []
    for name in wish.of(texts):
        setting = configs.node.get(name) or _undeclared(name)
        value = _normal(setting, name, texts[name])
        synonyms = (_synonym(name, value, Source.CLUSTER),)
        rows.append(_row(setting, name, value, synonyms, wish, read_only=not setting.live))
    return tuple(rows)


def group_rows(image: Image, group: str, wish: Wish) -> Rows:
    own = image.config(ConfigType.GROUP, group)
    rows = []
    for name in wish.of(GROUP_SETTINGS):
        declared = GROUP_SETTINGS[name]
        setting = declared.setting
        default = render(setting, setting.default)
        synonyms: Synonyms = (_synonym(declared.node or name, default, Source.DEFAULT),)
        value: str | None = default
        if name in own:
            value = _normal(setting, name, own[name])
            synonyms = (_synonym(name, value, Source.GROUP), *synonyms)
        rows.append(_row(setting, name, value, synonyms, wish, read_only=False))
    return tuple(rows)


def metrics_rows(image: Image, subscription: str, wish: Wish) -> Rows:
    own = image.config(ConfigType.CLIENT_METRICS, subscription)
    rows = []
    for name in wish.of(METRICS_SETTINGS):
        setting = METRICS_SETTINGS[name]
        value: str | None = render(setting, setting.default)
        synonyms: Synonyms = ()
        if name in own:
            value = _normal(setting, name, own[name])
            synonyms = (_synonym(name, value, Source.CLIENT_METRICS),)
        rows.append(_row(setting, name, value, synonyms, wish, read_only=False))
    return tuple(rows)


def logger_rows(level: str, wish: Wish) -> Rows:
    """The node has one logger."""
    return tuple(
        DescribeConfigsResourceResult(
            name=name,
            value=level,
            read_only=False,
            config_source=Source.BROKER_LOGGER,
            is_sensitive=False,
            synonyms=(),
            documentation="",
        )
        for name in wish.of(("root",))
    )


CreatedRows = tuple[CreatableTopicConfigs, ...]


def created_rows(configs: Configs, image: Image) -> CreatedRows:
    """The settings of a topic that is about to exist and says nothing itself, for CreateTopics.

    Unlike in DescribeConfigs a coarser synonym counts as a source.
    """
    effective = configs.log_settings(image, "")
    return tuple(
        CreatableTopicConfigs(
            name=name,
            value=render(setting, getattr(effective, setting.field)),
            read_only=False,
            config_source=_created_source(configs, image, setting.name),
            is_sensitive=setting.kind is Kind.PASSWORD,
        )
        for name, setting in sorted(configs.topic.items())
    )


def with_own(rows: CreatedRows, texts: Mapping[str, str]) -> CreatedRows:
    """The same with a topic's own settings, which are given back as they came."""
    if not texts:
        return rows
    return tuple(
        replace(row, value=texts[row.name], config_source=Source.TOPIC)
        if row.name in texts
        else row
        for row in rows
    )


def _created_source(configs: Configs, image: Image, name: str) -> Source:
    names = family(name)
    for source, texts in _layers(configs, image):
        if any(texts(one) is not None for one in names) and source is not Source.DEFAULT:
            return source
    return Source.DEFAULT


def _undeclared(name: str) -> Setting:
    """A setting that the metadata holds and nobody here reads: shown, for it was accepted."""
    return Setting(
        field="",
        name=name,
        topic=None,
        kind=Kind.STRING,
        default="",
        at_least=None,
        at_most=None,
        choices=None,
        live=True,
        doc="Not a setting of this version.",
    )


def _layers(
    configs: Configs, image: Image
) -> tuple[tuple[Source, Callable[[str], str | None]], ...]:
    """Where a node-level setting may be set, the strongest first."""
    return (
        (Source.BROKER, configs.broker_texts(image).get),
        (Source.CLUSTER, image.config(ConfigType.BROKER, CLUSTER).get),
        (Source.STATIC, configs.given.get),
        (Source.DEFAULT, configs.default_text),
    )


def _node_synonyms(configs: Configs, image: Image, name: str) -> Synonyms:
    """All values of a node-level setting, the one that holds first.

    Kafka lists nothing before the asked name itself, so a setting that is given only by its coarser
    synonym seems to have no source but its default.
    """
    found: list[DescribeConfigsSynonym] = []
    for source, text_of in _layers(configs, image):
        for one in family(name):
            text = text_of(one)
            if text is not None and (found or one == name):
                setting = configs.node.get(one)
                found.append(_synonym(one, _normal(setting, one, text), source))
    return tuple(found)


def _shared_synonyms(configs: Configs, image: Image, name: str, wish: Wish) -> Synonyms:
    known = wish.known
    if known is None:
        return _node_synonyms(configs, image, name)
    if name not in known:
        known[name] = _node_synonyms(configs, image, name)
    return known[name]


def _synonym(name: str, value: str | None, source: Source) -> DescribeConfigsSynonym:
    return DescribeConfigsSynonym(name=name, value=value, source=source)


def _normal(setting: Setting | None, name: str, text: str) -> str | None:
    """The text as Kafka writes that value; secrets are never shown."""
    if setting is None:
        return text
    if setting.kind is Kind.PASSWORD:
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
    wish: Wish,
    *,
    read_only: bool,
) -> DescribeConfigsResourceResult:
    is_sensitive = setting.kind is Kind.PASSWORD
    return DescribeConfigsResourceResult(
        name=name,
        value=None if is_sensitive else value,
        read_only=read_only,
        config_source=synonyms[0].source if synonyms else Source.DEFAULT,
        is_sensitive=is_sensitive,
        synonyms=synonyms if wish.with_synonyms else (),
        config_type=setting.kind,
        documentation=setting.doc if wish.with_documentation else None,
    )
