"""Reads a ``server.properties`` of Apache Kafka as settings of a node.

Most names and meanings are the same. The differences:

| Apache Kafka | here |
|---|---|
| ``broker.id``, ``log.dir`` | ``node.id``, ``log.dirs`` |
| ``controller.quorum.bootstrap.servers``, ``controller.quorum.voters`` | ``seed.nodes``, and \
``bootstrap.expect=1`` if they name this node alone |
| the listener in ``controller.listener.names`` | the listener CONTROLLER |
| ``metadata.log.dir``, if it is the data directory | nothing |
| no port for metrics | ``http.listener``: on the loopback, the first free port from two above \
the first listener on, so that the sample files start on one machine |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from riverrun.model.settings import SettingError
from riverrun.security.protocols import (
    CONTROLLER,
    LISTENER_PREFIX,
    PROTOCOL_MAP,
    SecurityProtocol,
    parse_protocol_map,
)

PROPERTIES: Final = ".properties"
"""The end of the name of such a file."""
HTTP_ABOVE: Final = 2
CONTROLLER_NAMES: Final = "controller.listener.names"
_BOOTSTRAP: Final = "controller.quorum.bootstrap.servers"
_VOTERS: Final = "controller.quorum.voters"
_ADDRESSES: Final = ("listeners", "advertised.listeners")
_ANY_HOST: Final = ("", "0.0.0.0", "::")
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


def texts_of_kafka(found: Mapping[str, str]) -> dict[str, str]:
    """The settings in a file of Apache Kafka, by our names. Raises ``SettingError``."""
    texts = dict(found)
    _rename_identity(texts)
    _rename_seeds(texts)
    _rename_controller_listener(texts)
    if "http.listener" not in texts:
        _add_http_listener(texts)
    return texts


def _rename_identity(texts: dict[str, str]) -> None:
    broker = texts.pop("broker.id", None)
    if broker is not None and texts.setdefault("node.id", broker) != broker:
        raise SettingError("broker.id", broker, f"node.id is {texts['node.id']}; remove broker.id")
    directory = texts.pop("log.dir", None)
    if directory is not None:
        texts.setdefault("log.dirs", directory)
    if texts.get("metadata.log.dir") == texts.get("log.dirs"):
        texts.pop("metadata.log.dir", None)


def _rename_seeds(texts: dict[str, str]) -> None:
    servers, voters = _listed(texts, _BOOTSTRAP), _listed(texts, _VOTERS)
    texts.pop(_BOOTSTRAP, None)
    texts.pop(_VOTERS, None)
    addresses = [_voter(one)[1] for one in voters]
    seeds = servers or addresses
    if not seeds or "seed.nodes" in texts:
        return
    texts["seed.nodes"] = ",".join(seeds)
    if len(seeds) > 1:
        return
    is_only_voter = len(voters) == 1 and _voter(voters[0])[0] == texts.get("node.id", "").strip()
    if is_only_voter or _is_own(seeds[0], texts):
        # The only controller names itself. Others that name it wait for its cluster and join it.
        # Any other name may be a DNS name of several nodes, which each would form a cluster.
        texts.setdefault("bootstrap.expect", "1")


def _is_own(seed: str, texts: Mapping[str, str]) -> bool:
    """Whether the address is one of the node's listeners, by the text of the file alone."""
    host, port = _host_and_port(seed)
    for setting in _ADDRESSES:
        for listener in _listed(texts, setting):
            own_host, own_port = _host_and_port(listener.partition("://")[2])
            is_host = own_host == host or (own_host in _ANY_HOST and host in _LOOPBACK)
            if is_host and own_port == port:
                return True
    return False


def _host_and_port(address: str) -> tuple[str, str]:
    host, _, port = address.strip().rpartition(":")
    return host.strip("[]").lower(), port


def _voter(text: str) -> tuple[str, str]:
    """The id and the address."""
    number, found, address = text.strip().partition("@")
    if not found or not number.isdigit():
        raise SettingError(_VOTERS, text, "a voter looks like 1@node1:9093")
    return number, address


def _rename_controller_listener(texts: dict[str, str]) -> None:
    names = [name.upper() for name in _listed(texts, CONTROLLER_NAMES)]
    texts.pop(CONTROLLER_NAMES, None)
    held = [one.partition("://")[0].upper() for one in _listed(texts, "listeners")]
    own = [name for name in names if name in held] or names[:1]
    if len(own) > 1:
        raise SettingError(CONTROLLER_NAMES, ",".join(own), "a node has one listener for them")
    if own in ([], [CONTROLLER]):
        return
    [name] = own
    if CONTROLLER in held:
        raise SettingError(CONTROLLER_NAMES, name, "the listener CONTROLLER would be for clients")
    for setting in _ADDRESSES:
        if setting in texts:
            renamed = (_renamed_address(one, name) for one in _listed(texts, setting))
            texts[setting] = ",".join(renamed)
    _rename_protocol(texts, name)
    prefix = f"{LISTENER_PREFIX}{name.lower()}."
    for setting in [one for one in texts if one.startswith(prefix)]:
        rest = setting.removeprefix(prefix)
        texts[f"{LISTENER_PREFIX}{CONTROLLER.lower()}.{rest}"] = texts.pop(setting)


def _listed(texts: Mapping[str, str], setting: str) -> list[str]:
    return [part.strip() for part in texts.get(setting, "").split(",") if part.strip()]


def _renamed_address(address: str, name: str) -> str:
    given, found, place = address.partition("://")
    return f"{CONTROLLER}://{place}" if found and given.upper() == name else address


def _rename_protocol(texts: dict[str, str], name: str) -> None:
    known = parse_protocol_map(texts.get(PROTOCOL_MAP, ""))
    protocol = known.pop(name, SecurityProtocol.__members__.get(name))
    if protocol is not None:
        known[CONTROLLER] = protocol
        pairs = (f"{listener}:{one.name}" for listener, one in known.items())
        texts[PROTOCOL_MAP] = ",".join(pairs)


def _add_http_listener(texts: dict[str, str]) -> None:
    texts_of_ports = (one.rpartition(":")[2] for one in _listed(texts, "listeners"))
    ports = [int(port) for port in texts_of_ports if port.isdigit() and port != "0"]
    if not ports:
        return
    port = ports[0] + HTTP_ABOVE
    while port in ports:
        port += 1
    texts["http.listener"] = f"127.0.0.1:{port}"
