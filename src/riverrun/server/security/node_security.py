"""All protection of a node, built from its settings.

That is the guards of its listeners, and how it connects to other nodes.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import structlog

from riverrun.client.security import ClientSecurity, SaslLogin, sasl_login
from riverrun.cluster.security.scram_decoys import ScramDecoys
from riverrun.cluster.security.token_settings import DelegationTokenSettings
from riverrun.metadata.image import BrokerImage, Endpoint, Image
from riverrun.model.settings import SettingError
from riverrun.ports.aio import OwnedTasks
from riverrun.ports.clock import Clock
from riverrun.ports.metrics import Metrics
from riverrun.ports.randomness import Randomness
from riverrun.security.jaas import JaasError, parse_jaas
from riverrun.security.mechanisms import SaslMechanism
from riverrun.security.principal import MappingRuleError, parse_mapping_rules
from riverrun.security.protocols import CONTROLLER, LISTENER_PREFIX, SecurityProtocol
from riverrun.security.tls import TlsSettings, tls_settings
from riverrun.server.security.bearer_keys import (
    BearerKeys,
    KeySource,
    key_source,
    token_rules,
)
from riverrun.server.security.certificates import CertificateHolder, Certificates
from riverrun.server.security.first_user import first_password
from riverrun.server.security.guard import ListenerGuard, LoginAudit, LoginLog
from riverrun.server.security.logins import Bearer, ListenerLogins
from riverrun.server.security.settings import (
    SaslSettings,
    TlsFileSettings,
    inter_broker_listener,
    listener_protocols,
    of_listener,
    prefixed_setting,
)
from riverrun.server.security.token_logins import TokenLogins

if TYPE_CHECKING:
    from riverrun.server.settings import NodeSettings

log = structlog.get_logger("riverrun.security")


class NodeSecurity:
    """Built before the node listens. ``image`` returns the newest metadata; empty at first."""

    def __init__(
        self,
        texts: Mapping[str, str],
        listeners: Sequence[str],
        *,
        image: Callable[[], Image],
        clock: Clock,
        randomness: Randomness,
        metrics: Metrics,
        audit: LoginAudit | None = None,
    ) -> None:
        """Raises ``SettingError``."""
        self._texts = texts
        self._clock = clock
        self._randomness = randomness
        self._image = image
        self._login_log = LoginLog(metrics, audit)
        secret = randomness.uuid().bytes + randomness.uuid().bytes
        self._decoys = ScramDecoys(image, secret)
        self._token_logins = TokenLogins(
            DelegationTokenSettings.from_texts(texts), image, clock, secret
        )
        self.protocols = listener_protocols(texts, listeners)
        self.inter_broker_listener = inter_broker_listener(texts, self.protocols)
        self._holder_listeners: dict[CertificateHolder, str] = {}
        self._metrics = metrics
        self._bearer_keys: dict[KeySource, BearerKeys] = {}
        self.guards = {
            name: self._guard(name, protocol)
            for name, protocol in self.protocols.items()
            if protocol is not SecurityProtocol.PLAINTEXT
        }
        self.to_brokers = self._connector(
            self.inter_broker_listener, "sasl.mechanism.inter.broker.protocol"
        )
        self.to_controllers = self._connector(CONTROLLER, "sasl.mechanism.controller.protocol")
        self.certificates = (
            Certificates(list(self._holder_listeners), clock=clock, metrics=metrics)
            if self._holder_listeners
            else None
        )

    def configure(self, texts: Mapping[str, str]) -> None:
        """Use changed certificates of listeners (kafka-configs). Invalid ones are logged, and the
        old ones stay."""
        known = [name.lower() for name in (*self.protocols, CONTROLLER)]
        for name in texts:
            prefixed = prefixed_setting(name)
            if prefixed is not None and prefixed.listener not in known:
                log.warning("setting of a listener that this node does not have", name=name)
        merged = {**self._texts, **texts}
        for holder, listener in self._holder_listeners.items():
            wanted = self._tls_of(merged, listener)
            if wanted == holder.settings:
                continue
            try:
                holder.use(wanted)
                log.info("certificate replaced", of=holder.name)
            except SettingError as error:
                text = "new certificate refused, the old one stays"
                log.error(text, of=holder.name, error=error.reason)

    def check(self, texts: Mapping[str, str], *, changed: Collection[str]) -> None:
        """Check that the listeners of ``changed`` settings can use ``texts``, the settings of this
        node at run time. Raises ``SettingError``."""
        found = [prefixed_setting(name) for name in changed]
        listeners = [one.listener for one in found if one is not None]
        merged = {**self._texts, **texts}
        for holder, listener in self._holder_listeners.items():
            if listener.lower() in listeners:
                holder.check(self._tls_of(merged, listener))

    def endpoint_of(self, broker: BrokerImage) -> Endpoint | None:
        """The address at which a broker serves other brokers."""
        known = broker.endpoints.get(self.inter_broker_listener)
        return known or next(iter(broker.endpoints.values()), None)

    @property
    def bearer_keys(self) -> tuple[BearerKeys, ...]:
        """The keys that sign tokens, from each place where they are published."""
        return tuple(self._bearer_keys.values())

    def _bearer(self, sasl: SaslSettings) -> Bearer:
        """Accepts tokens by the rules of one listener."""
        source = key_source(sasl)
        keys = self._bearer_keys.get(source)
        if keys is None:
            keys = self._bearer_keys[source] = BearerKeys(
                source, clock=self._clock, randomness=self._randomness, metrics=self._metrics
            )
        return partial(keys.accept, token_rules(sasl))

    def _guard(self, name: str, protocol: SecurityProtocol) -> ListenerGuard:
        texts = of_listener(self._texts, name)
        certificate = None
        if protocol.has_tls:
            certificate = CertificateHolder(
                name,
                self._tls_of(self._texts, name),
                is_server=True,
                is_between_nodes=name in (self.inter_broker_listener, CONTROLLER),
            )
            self._holder_listeners[certificate] = name
        try:
            rules = parse_mapping_rules(TlsFileSettings.from_texts(texts).mapping_rules)
        except MappingRuleError as error:
            raise SettingError("ssl.principal.mapping.rules", "", str(error)) from None
        sasl = SaslSettings.from_texts(texts)
        by_mechanism = {
            mechanism: SaslSettings.from_texts(of_listener(self._texts, name, mechanism))
            for mechanism in map(SaslMechanism, sasl.mechanisms)
            if protocol.has_sasl
        }
        bearer = by_mechanism.get(SaslMechanism.OAUTHBEARER)
        return ListenerGuard(
            name,
            protocol,
            certificate=certificate,
            mapping_rules=rules,
            sasl=sasl,
            session_ms_max={kind: one.session_ms_max for kind, one in by_mechanism.items()},
            logins=ListenerLogins(
                self._image,
                passwords=self._plain_users(name),
                bearer=None if bearer is None else self._bearer(bearer),
                decoys=self._decoys,
                tokens=self._token_logins,
            ),
            nonce=lambda: self._randomness.uuid().hex,
            clock=self._clock,
            login_log=self._login_log,
        )

    def _tls_of(self, texts: Mapping[str, str], listener: str) -> TlsSettings:
        """On SASL_SSL, ssl.client.auth counts only with the listener's prefix, as in Kafka."""
        found = of_listener(texts, listener)
        protocol = self.protocols.get(listener, SecurityProtocol.SSL)
        prefixed = f"{LISTENER_PREFIX}{listener.lower()}.ssl.client.auth"
        if protocol.has_sasl and prefixed not in texts:
            found.pop("ssl.client.auth", None)
        return tls_settings(found)

    def _plain_users(self, name: str) -> dict[str, str]:
        texts = of_listener(self._texts, name, SaslMechanism.PLAIN.value)
        jaas = texts.get("sasl.jaas.config", "")
        if not jaas:
            return {}
        try:
            return parse_jaas(jaas).users()
        except JaasError as error:
            raise SettingError("sasl.jaas.config", "(hidden)", str(error)) from None

    def _connector(
        self, listener: str, mechanism_setting: str
    ) -> Callable[[], ClientSecurity | None]:
        """How this node connects to a listener of other nodes, which has the same name there."""
        protocol = self.protocols.get(listener)
        if protocol is None and listener == CONTROLLER:
            # A broker without a controller of its own reaches the controllers' listeners.
            protocol = listener_protocols(self._texts, [CONTROLLER])[CONTROLLER]
        if protocol is None or protocol is SecurityProtocol.PLAINTEXT:
            return lambda: None
        login = self._own_login(listener, mechanism_setting) if protocol.has_sasl else None
        if not protocol.has_tls:
            plain = ClientSecurity(login=login, randomness=self._randomness)
            return lambda: plain
        holder = CertificateHolder(
            f"connections to {listener}",
            self._tls_of(self._texts, listener),
            is_server=False,
            is_between_nodes=True,
        )
        self._holder_listeners[holder] = listener
        known: dict[ssl.SSLContext, ClientSecurity] = {}

        def current() -> ClientSecurity:
            """A new context makes a new value; the old one is dropped."""
            context = holder.context
            if context not in known:
                known.clear()
                known[context] = ClientSecurity(
                    tls=context, login=login, randomness=self._randomness
                )
            return known[context]

        return current

    def _own_login(self, listener: str, mechanism_setting: str) -> SaslLogin:
        sasl = SaslSettings.from_texts(self._texts)
        is_controller = listener == CONTROLLER
        mechanism = sasl.controller_mechanism if is_controller else sasl.inter_broker_mechanism
        texts = of_listener(self._texts, listener, mechanism)
        return sasl_login({**texts, mechanism_setting: mechanism}, mechanism_setting)


def build_security(
    settings: NodeSettings,
    image: Callable[[], Image],
    clock: Clock,
    randomness: Randomness,
    metrics: Metrics,
    tasks: OwnedTasks,
    audit: LoginAudit | None,
) -> NodeSecurity:
    """Build the protection of a node and start its tasks. Raises ``SettingError``."""
    if settings.authorization.bootstrap_user:
        first_password(settings.authorization)
    security = NodeSecurity(
        settings.given,
        [address.name for address in settings.listening()],
        image=image,
        clock=clock,
        randomness=randomness,
        metrics=metrics,
        audit=audit,
    )
    if security.certificates is not None:
        tasks.start(security.certificates.run(), name="certificates")
    for keys in security.bearer_keys:
        tasks.start(keys.run(), name="keys of tokens")
    return security
