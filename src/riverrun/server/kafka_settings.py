"""Settings of Apache Kafka that riverrun does not have, and what happens to each of them.

A file of Apache Kafka should start a node. Names with another name here are renamed, names without
a meaning here are ignored and reported, and names that promise something that riverrun does not do
are refused. Other names are unknown, and an error like any misspelt name. A name may be a pattern:
``*`` stands for any rest. ``docs/migration.md`` has these tables, written by
``tools/generate_docs.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final

from msgspec import Struct

from riverrun.model.settings import SettingError

RENAMED: Final[Mapping[str, str]] = {
    "broker.id": "node.id",
    "log.dir": "log.dirs",
    "controller.quorum.bootstrap.servers": "seed.nodes",
    "controller.quorum.voters": "seed.nodes",
}
"""Renamed in properties files; elsewhere an error that says the name to use."""


class IgnoredSettings(Struct, frozen=True, kw_only=True):
    """Settings that a node accepts without effect, and why it does not need them."""

    names: tuple[str, ...]
    reason: str


class RefusedSettings(Struct, frozen=True, kw_only=True):
    """Settings that promise what a node does not do."""

    names: tuple[str, ...]
    reason: str
    harmless: tuple[str, ...] = ()
    """Values that promise nothing. With them, as with no value, the setting is ignored."""


_VALIDATORS: Final = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler",
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerValidatorCallbackHandler",
)
_TOKEN_LOGINS: Final = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
)

IGNORED: Final[tuple[IgnoredSettings, ...]] = (
    IgnoredSettings(
        names=(
            "num.network.threads",
            "num.io.threads",
            "background.threads",
            "queued.max.requests",
            "group.coordinator.threads",
            "group.coordinator.background.threads",
            "log.cleaner.threads",
            "num.replica.alter.log.dirs.threads",
        ),
        reason="A broker is one process with one event loop; its queues have limits of their own.",
    ),
    IgnoredSettings(
        names=(
            "*.purgatory.purge.interval.requests",
            "offsets.load.buffer.size",
            "*.cached.buffer.max.bytes",
            "*.append.linger.ms",
            "log.cleaner.io.buffer.size",
            "replica.socket.receive.buffer.bytes",
        ),
        reason="Memory and batching of the JVM broker.",
    ),
    IgnoredSettings(
        names=(
            "request.timeout.ms",
            "controller.socket.timeout.ms",
            "socket.connection.setup.timeout*.ms",
            "initial.broker.registration.timeout.ms",
            "replica.high.watermark.checkpoint.interval.ms",
            "log.dir.failure.timeout.ms",
            "metadata.max.idle.interval.ms",
            "metadata.max.retention.*",
            "replication.quota.window.*",
            "max.request.partition.size.limit",
            "early.start.listeners",
        ),
        reason="Timing and limits inside a node: fixed here, or settings of other names.",
    ),
    IgnoredSettings(
        names=("alter.log.dirs.replication.quota.*", "replica.alter.log.dirs.*"),
        reason="A node has one directory, so no replica moves between directories of a node.",
    ),
    IgnoredSettings(
        names=(
            "metric.reporters",
            "metrics.num.samples",
            "metrics.recording.level",
            "metrics.sample.window.ms",
            "kafka.metrics.*",
            "auto.include.jmx.reporter",
        ),
        reason="Metrics are served at http.listener, in the format of Prometheus.",
    ),
    IgnoredSettings(
        names=("telemetry.max.bytes",), reason="Metrics of clients (KIP-714) are not collected."
    ),
    IgnoredSettings(
        names=(
            "group.share.*",
            "share.coordinator.*",
            "share.fetch.*",
            "group.streams.*",
            "group.coordinator.rebalance.protocols",
        ),
        reason="Classic and consumer groups are always served, share and streams groups never.",
    ),
    IgnoredSettings(
        names=(
            "remote.log.*",
            "remote.fetch.*",
            "remote.list.*",
            "rlmm.config.*",
            "rsm.config.*",
            "follower.fetch.last.tiered.offset.enable",
        ),
        reason="They have an effect only with tiered storage.",
    ),
    IgnoredSettings(
        names=("offsets.topic.compression.codec",),
        reason="The batches of internal topics are not compressed.",
    ),
    IgnoredSettings(
        names=("inter.broker.protocol.version", "log.message.format.version"),
        reason="Kafka 4 has no such settings; the cluster stores its feature levels.",
    ),
    IgnoredSettings(
        names=(
            "ssl.keymanager.algorithm",
            "ssl.trustmanager.algorithm",
            "ssl.secure.random.implementation",
        ),
        reason="TLS is OpenSSL's.",
    ),
    IgnoredSettings(
        names=("sasl.login.refresh.*", "sasl.login.retry.*", "sasl.login.*.timeout.ms"),
        reason="How a node renews its own token is fixed.",
    ),
)

_KERBEROS: Final = RefusedSettings(
    names=("sasl.kerberos.*",),
    reason="Kerberos (GSSAPI) is not supported: use SCRAM, OAUTHBEARER, PLAIN or certificates",
)

REFUSED: Final[tuple[RefusedSettings, ...]] = (
    RefusedSettings(
        names=("zookeeper.*",),
        reason="there is no ZooKeeper: nodes keep their metadata themselves. Name the other nodes"
        " in seed.nodes, and remove the zookeeper settings",
    ),
    RefusedSettings(
        names=("remote.log.storage.system.enable",),
        harmless=("false",),
        reason="there is no tiered storage: all data is on the disks of the nodes",
    ),
    _KERBEROS,
    RefusedSettings(
        names=("controller.listener.names",),
        harmless=("CONTROLLER",),
        reason="the listener for controllers is called CONTROLLER; in a properties file, one"
        " listener with another name is renamed",
    ),
    RefusedSettings(
        names=("metadata.log.dir",),
        reason="the metadata log is in the directory that log.dirs names, and nowhere else",
    ),
    RefusedSettings(
        names=("principal.builder.class",),
        harmless=("org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",),
        reason="a node runs no Java classes: ssl.principal.mapping.rules turns the names in"
        " certificates into user names",
    ),
    RefusedSettings(
        names=("sasl.server.callback.handler.class",),
        harmless=_VALIDATORS,
        reason="a node runs no Java classes: its own checks of logins are always used",
    ),
    RefusedSettings(
        names=("sasl.login.callback.handler.class",),
        harmless=_TOKEN_LOGINS,
        reason="a node runs no Java classes: its own logins are always used",
    ),
    RefusedSettings(
        names=("sasl.oauthbearer.jwt.retriever.class",),
        harmless=(
            "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever",
            "org.apache.kafka.common.security.oauthbearer.ClientCredentialsJwtRetriever",
            "org.apache.kafka.common.security.oauthbearer.FileJwtRetriever",
        ),
        reason="a node runs no Java classes: it gets tokens with client credentials or from a file",
    ),
    RefusedSettings(
        names=("sasl.oauthbearer.jwt.validator.class",),
        harmless=(
            "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator",
            "org.apache.kafka.common.security.oauthbearer.BrokerJwtValidator",
            "org.apache.kafka.common.security.oauthbearer.ClientJwtValidator",
        ),
        reason="a node runs no Java classes: its own checks of tokens are always used",
    ),
    RefusedSettings(
        names=("sasl.oauthbearer.assertion.*",),
        reason="a node signs no assertions to get a token: use client credentials",
    ),
    RefusedSettings(
        names=(
            "sasl.login.class",
            "sasl.client.callback.handler.class",
            "ssl.engine.factory.class",
            "ssl.provider",
            "security.providers",
            "client.quota.callback.class",
            "create.topic.policy.class.name",
            "alter.config.policy.class.name",
        ),
        reason="a node runs no Java classes",
    ),
    RefusedSettings(
        names=("config.providers", "config.providers.*"),
        reason="values are not looked up elsewhere: write them into the file, or set them by"
        " environment variables such as RIVERRUN_SSL_KEY_PASSWORD",
    ),
)

_MECHANISM_SETTINGS: Final = (
    "sasl.enabled.mechanisms",
    "sasl.mechanism.inter.broker.protocol",
    "sasl.mechanism.controller.protocol",
)
_OF_LISTENER: Final = re.compile(
    r"listener\.name\.[a-z0-9_\-]+\.(?:(?:plain|scram-sha-256|scram-sha-512|oauthbearer|gssapi)\.)?"
)


def ignored_names(texts: Mapping[str, str], known: Iterable[str]) -> tuple[str, ...]:
    """The names in settings that a node ignores. ``known`` are the names that it has itself.

    Raises ``SettingError`` for a setting that it refuses. The error shows no value, because it may
    be a secret.
    """
    own = frozenset(known)
    found = []
    for name, text in texts.items():
        bare = _OF_LISTENER.sub("", name, count=1)
        if bare in _MECHANISM_SETTINGS and "GSSAPI" in text.upper():
            raise SettingError(name, text, _KERBEROS.reason)
        if bare in own:
            continue
        refused = _refusal(bare)
        if refused is not None and text.strip() not in ("", *refused.harmless):
            raise SettingError(name, "(hidden)", refused.reason)
        if refused is not None or is_ignored(bare):
            found.append(name)
    return tuple(found)


def is_ignored(name: str) -> bool:
    """Whether a setting of Kafka has no meaning here, whatever its value."""
    return any(_matches(name, group.names) for group in IGNORED)


def _refusal(name: str) -> RefusedSettings | None:
    return next((group for group in REFUSED if _matches(name, group.names)), None)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
