"""Security settings of a node, with Kafka's names and meanings.

Each of them may be given for one listener: ``listener.name.{listener}.{setting}``, and some for one
SASL mechanism of a listener: ``listener.name.{listener}.{mechanism}.{setting}``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, NamedTuple

from riverrun.model.settings import HOUR_MS, KiB, SettingError, SettingKind, Settings, setting
from riverrun.security.mechanisms import MECHANISMS
from riverrun.security.protocols import (
    CONTROLLER,
    LISTENER_LIMITS,
    LISTENER_PREFIX,
    SecurityProtocol,
    parse_protocol_map,
    protocol_of,
)
from riverrun.server.security.login_settings import LoginTokenSettings

KAFKA_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
AUTHORIZERS: Final = ("", KAFKA_AUTHORIZER, "riverrun")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings(Settings):
    """Which protection each listener has, and which listener other nodes use."""

    protocol_map: str = setting(
        "",
        name="listener.security.protocol.map",
        doc="Protocols of listeners, as NAME:PROTOCOL. PLAINTEXT, SSL, SASL_PLAINTEXT and SASL_SSL"
        " mean themselves; CONTROLLER is PLAINTEXT by default.",
    )
    inter_broker_listener: str = setting(
        "",
        name="inter.broker.listener.name",
        doc="The listener that other brokers connect to. Empty: the first one with the protocol"
        " security.inter.broker.protocol.",
    )
    inter_broker_protocol: str = setting(
        "",
        name="security.inter.broker.protocol",
        choices=("", "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        doc="The protocol between brokers, if inter.broker.listener.name is not set. Empty: that of"
        " the first listener.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFileSettings(Settings):
    """TLS: keys and certificates in PEM form."""

    keystore_type: str = setting(
        "PEM",
        name="ssl.keystore.type",
        choices=("PEM",),
        live=True,
        doc="The form of the key store. Only PEM: `openssl pkcs12 -nodes` converts others.",
    )
    keystore_location: str = setting(
        "",
        name="ssl.keystore.location",
        live=True,
        doc="A PEM file with the private key (PKCS#8) and the certificate chain of this node. A"
        " changed file is used for new connections within some seconds.",
    )
    keystore_password: str = setting(
        "",
        name="ssl.keystore.password",
        kind=SettingKind.PASSWORD,
        live=True,
        doc="Has no effect: PEM files have no password of their own.",
    )
    keystore_key: str = setting(
        "",
        name="ssl.keystore.key",
        kind=SettingKind.PASSWORD,
        live=True,
        doc="The private key as text, instead of a file.",
    )
    keystore_chain: str = setting(
        "",
        name="ssl.keystore.certificate.chain",
        kind=SettingKind.PASSWORD,
        live=True,
        doc="The certificate chain as text, instead of a file.",
    )
    key_password: str = setting(
        "",
        name="ssl.key.password",
        kind=SettingKind.PASSWORD,
        live=True,
        doc="The password of an encrypted private key.",
    )
    truststore_type: str = setting(
        "PEM",
        name="ssl.truststore.type",
        choices=("PEM",),
        live=True,
        doc="The form of the trust store. Only PEM.",
    )
    truststore_location: str = setting(
        "",
        name="ssl.truststore.location",
        live=True,
        doc="A PEM file with the authorities whose certificates are trusted.",
    )
    truststore_password: str = setting(
        "",
        name="ssl.truststore.password",
        kind=SettingKind.PASSWORD,
        live=True,
        doc="Has no effect: PEM files have no password of their own.",
    )
    truststore_certificates: str = setting(
        "",
        name="ssl.truststore.certificates",
        kind=SettingKind.PASSWORD,
        live=True,
        doc="The trusted authorities as text, instead of a file.",
    )
    client_auth: str = setting(
        "none",
        name="ssl.client.auth",
        choices=("none", "requested", "required"),
        doc="Whether clients of listeners with TLS must have a certificate. For SASL_SSL it counts"
        " only with the prefix of the listener.",
    )
    enabled_protocols: tuple[str, ...] = setting(
        ("TLSv1.2", "TLSv1.3"),
        name="ssl.enabled.protocols",
        choices=("TLSv1.2", "TLSv1.3"),
        doc="The versions of TLS that are accepted.",
    )
    protocol: str = setting(
        "TLSv1.3",
        name="ssl.protocol",
        choices=("TLSv1.2", "TLSv1.3", "TLS"),
        doc="Has no effect: ssl.enabled.protocols decides.",
    )
    cipher_suites: tuple[str, ...] = setting(
        (),
        name="ssl.cipher.suites",
        doc="Cipher suites, by the names that Kafka uses or by those of OpenSSL. A version of TLS"
        " without a suite in the list is not offered. Of TLS 1.3 a list must name all suites that"
        " OpenSSL offers, or none. Empty: OpenSSL's choice.",
    )
    identification: str = setting(
        "https",
        name="ssl.endpoint.identification.algorithm",
        doc="Whether connections between nodes check the host name in certificates: https, or empty"
        " for no check.",
    )
    may_change_name: bool = setting(
        False,
        name="ssl.allow.dn.changes",
        doc="Whether a certificate may be replaced by one with another distinguished name.",
    )
    may_drop_hosts: bool = setting(
        False,
        name="ssl.allow.san.changes",
        doc="Whether a certificate may be replaced by one that lacks some of its subject"
        " alternative names.",
    )
    mapping_rules: str = setting(
        "DEFAULT",
        name="ssl.principal.mapping.rules",
        doc="Rules that turn the name in a client's certificate into its user name.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslSettings(Settings):
    """SASL: logins of clients and of other nodes."""

    mechanisms: tuple[str, ...] = setting(
        ("SCRAM-SHA-256", "SCRAM-SHA-512"),
        name="sasl.enabled.mechanisms",
        choices=tuple(MECHANISMS),
        doc="Mechanisms that listeners with SASL offer. Kafka's default is GSSAPI, which is not"
        " supported.",
    )
    inter_broker_mechanism: str = setting(
        "SCRAM-SHA-512",
        name="sasl.mechanism.inter.broker.protocol",
        choices=tuple(MECHANISMS),
        doc="The mechanism by which this node logs in to other brokers.",
    )
    controller_mechanism: str = setting(
        "PLAIN",
        name="sasl.mechanism.controller.protocol",
        choices=tuple(MECHANISMS),
        doc="The mechanism by which this node logs in to controllers. Not SCRAM: its users are in"
        " the metadata, which a new node does not have.",
    )
    jaas_config: str = setting(
        "",
        name="sasl.jaas.config",
        kind=SettingKind.PASSWORD,
        doc="Users of PLAIN (options user_NAME), and this node's own login (options username and"
        " password).",
    )
    receive_size_max: int = setting(
        512 * KiB,
        name="sasl.server.max.receive.size",
        at_least=1,
        doc="The largest request before a client is authenticated.",
    )
    failure_delay_ms: int = setting(
        100,
        name="connection.failed.authentication.delay.ms",
        kind=SettingKind.INT,
        at_least=0,
        doc="How long the connection of a failed login is kept open, to slow down attempts.",
    )
    session_ms_max: int = setting(
        0,
        name="connections.max.reauth.ms",
        kind=SettingKind.LONG,
        at_least=0,
        doc="A login is valid for this time; then the client must repeat it. 0: no limit.",
    )
    jwks_url: str = setting(
        "",
        name="sasl.oauthbearer.jwks.endpoint.url",
        doc="Where the keys that sign tokens are published: a https: or file: URL. Required for"
        " OAUTHBEARER. Like Kafka, a node takes http: too, and warns: an attacker who can"
        " change the response could log in as anybody.",
    )
    jwks_refresh_ms: int = setting(
        HOUR_MS,
        name="sasl.oauthbearer.jwks.endpoint.refresh.ms",
        kind=SettingKind.LONG,
        at_least=1000,
        doc="How often the keys are read again.",
    )
    jwks_backoff_ms: int = setting(
        100,
        name="sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        kind=SettingKind.LONG,
        at_least=1,
        doc="The pause after a failed attempt to read the keys; it doubles.",
    )
    jwks_backoff_max_ms: int = setting(
        10_000,
        name="sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        kind=SettingKind.LONG,
        at_least=1,
        doc="The longest such pause.",
    )
    token_audience: tuple[str, ...] = setting(
        (),
        name="sasl.oauthbearer.expected.audience",
        doc="A token must name one of these audiences. Empty: not checked.",
    )
    token_issuer: str = setting(
        "",
        name="sasl.oauthbearer.expected.issuer",
        doc="A token must come from this issuer. Empty: not checked.",
    )
    token_scope_claim: str = setting(
        "scope", name="sasl.oauthbearer.scope.claim.name", doc="The claim that holds the scope."
    )
    token_subject_claim: str = setting(
        "sub", name="sasl.oauthbearer.sub.claim.name", doc="The claim that holds the user name."
    )
    token_skew_seconds: int = setting(
        30,
        name="sasl.oauthbearer.clock.skew.seconds",
        at_least=0,
        doc="How far the clocks of the issuer and of this node may differ.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationSettings(Settings):
    """Who may do what."""

    authorizer: str = setting(
        "",
        name="authorizer.class.name",
        choices=AUTHORIZERS,
        doc="Turns access control on: `riverrun`, or the name of Kafka's StandardAuthorizer.",
    )
    super_users: str = setting(
        "",
        name="super.users",
        doc="Users that may do everything, separated by semicolons: User:admin;User:node1.",
    )
    is_open: bool = setting(
        False,
        name="allow.everyone.if.no.acl.found",
        doc="Whether a resource without any ACL is open to everybody.",
    )
    bootstrap_user: str = setting(
        "",
        name="bootstrap.admin.user",
        doc="The first SCRAM user, created when the cluster is formed. Its password is in"
        " bootstrap.admin.password or its file. Give it rights by super.users.",
    )
    bootstrap_password: str = setting(
        "",
        name="bootstrap.admin.password",
        kind=SettingKind.PASSWORD,
        doc="The password of the first user; better given by RIVERRUN_BOOTSTRAP_ADMIN_PASSWORD.",
    )
    bootstrap_password_file: str = setting(
        "",
        name="bootstrap.admin.password.file",
        doc="A file that holds the password of the first user.",
    )


SECURITY_GROUPS: Final[Mapping[str, type[Settings]]] = {
    "listener": ListenerSettings,
    "tls": TlsFileSettings,
    "sasl": SaslSettings,
    "login_token": LoginTokenSettings,
    "authorization": AuthorizationSettings,
}
_OF_NODE: Final = ("sasl.mechanism.inter.broker.protocol", "sasl.mechanism.controller.protocol")
PER_LISTENER: Final = frozenset(
    declared.name
    for group in (TlsFileSettings, SaslSettings, LoginTokenSettings)
    for declared in group.declared()
    if declared.name not in _OF_NODE
) | frozenset(LISTENER_LIMITS)
"""Settings that may have the prefix of a listener."""
PER_MECHANISM: Final = frozenset({"sasl.jaas.config", "connections.max.reauth.ms"})
"""Settings that may have the prefix of a mechanism of a listener."""
_OAUTH: Final = "sasl.oauthbearer."
"""Such settings may have the prefix of the mechanism OAUTHBEARER."""
_PREFIXED: Final = re.compile(r"listener\.name\.([a-z0-9_\-]+)\.(.+)")


class PrefixedSetting(NamedTuple):
    """``listener.name.{listener}.[{mechanism}.]{setting}``, in lower case."""

    listener: str
    mechanism: str | None
    setting: str


def prefixed_setting(name: str) -> PrefixedSetting | None:
    """None if the name is not of that form, or the setting cannot be given for one listener."""
    match = _PREFIXED.fullmatch(name)
    if match is None:
        return None
    listener, rest = match[1], match[2]
    if rest in PER_LISTENER:
        return PrefixedSetting(listener, None, rest)
    mechanism, _, rest = rest.partition(".")
    is_known = rest in PER_MECHANISM or (
        mechanism == "oauthbearer" and rest in PER_LISTENER and rest.startswith(_OAUTH)
    )
    if not is_known or mechanism.upper() not in MECHANISMS:
        return None
    return PrefixedSetting(listener, mechanism, rest)


def check_prefixes(texts: Mapping[str, str], listeners: Sequence[str], *, is_broker: bool) -> None:
    """Refuse settings of listeners that do not exist. Raises ``SettingError``.

    All nodes may have the same file: listeners in the protocol map and the controllers' listener
    may be those of other nodes, and for a controller so may be the names of protocols.
    """
    known = {
        **dict.fromkeys((*listeners, CONTROLLER)),
        **parse_protocol_map(ListenerSettings.from_texts(texts).protocol_map),
        **({} if is_broker else SecurityProtocol.__members__),
    }
    names = [name.lower() for name in known]
    for name in texts:
        prefixed = prefixed_setting(name)
        if prefixed is None or prefixed.listener in names:
            continue
        near = get_close_matches(prefixed.listener, names, n=1)
        hint = f"did you mean {LISTENER_PREFIX}{near[0]}?" if near else f"there are {names}"
        raise SettingError(
            name, "(hidden)", f"there is no listener {prefixed.listener.upper()}; {hint}"
        )


def of_listener(
    texts: Mapping[str, str], listener: str, mechanism: str | None = None
) -> dict[str, str]:
    """The settings as they hold for a listener, by their names without prefix."""
    prefix = f"{LISTENER_PREFIX}{listener.lower()}."
    found = {name: text for name, text in texts.items() if not name.startswith(LISTENER_PREFIX)}
    found |= {
        name.removeprefix(prefix): text for name, text in texts.items() if name.startswith(prefix)
    }
    if mechanism is not None:
        inner = f"{mechanism.lower()}."
        found |= {
            name.removeprefix(inner): text for name, text in found.items() if name.startswith(inner)
        }
    return found


def listener_protocols(
    texts: Mapping[str, str], listeners: Sequence[str]
) -> dict[str, SecurityProtocol]:
    """The protocol of each listener. Raises ``SettingError``."""
    known = parse_protocol_map(ListenerSettings.from_texts(texts).protocol_map)
    return {name: protocol_of(name, known) for name in listeners}


def inter_broker_listener(
    texts: Mapping[str, str], protocols: Mapping[str, SecurityProtocol]
) -> str:
    """The name of the listener that other brokers use. Raises ``SettingError``."""
    settings = ListenerSettings.from_texts(texts)
    client_names = [name for name in protocols if name != CONTROLLER]
    wanted, protocol = settings.inter_broker_listener.upper(), settings.inter_broker_protocol
    if wanted and protocol:
        raise SettingError(
            "inter.broker.listener.name",
            wanted,
            "only one of it and security.inter.broker.protocol may be set",
        )
    if wanted:
        if wanted not in client_names:
            raise SettingError("inter.broker.listener.name", wanted, "there is no such listener")
        return wanted
    for name in client_names:
        if not protocol or protocols[name].name == protocol:
            return name
    if not client_names:
        return ""  # a controller alone
    raise SettingError("security.inter.broker.protocol", protocol, "no listener has this protocol")
