"""How commands log in to a cluster: a properties file with Kafka's client settings, or variables.

The first of these decides: ``--command-config FILE``, ``RIVERRUN_COMMAND_CONFIG``, the entry
``command-config`` of the context. Variables such as ``RIVERRUN_SASL_PASSWORD`` override the file,
so that a password need not be in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from riverrun.cli.support.options import USAGE, fail, warn
from riverrun.model.properties import parse_properties

if TYPE_CHECKING:
    from riverrun.client.security import ClientSecurity

COMMAND_CONFIG_FLAG: Final = "--command-config"
COMMAND_CONFIG_VARIABLE: Final = "RIVERRUN_COMMAND_CONFIG"
UNKNOWN_SHOWN_MAX: Final = 3
VARIABLES: Final = {
    "RIVERRUN_SECURITY_PROTOCOL": "security.protocol",
    "RIVERRUN_SASL_MECHANISM": "sasl.mechanism",
    "RIVERRUN_SASL_USERNAME": "sasl.username",
    "RIVERRUN_SASL_PASSWORD": "sasl.password",
    "RIVERRUN_SSL_CA_LOCATION": "ssl.ca.location",
}


class ClusterAddress(str):
    """The bootstrap address of a command, with the settings to log in, and the context that
    supplied it."""

    properties: Mapping[str, str]
    context: str | None

    @classmethod
    def of(
        cls, address: str, *, properties: Mapping[str, str], context: str | None = None
    ) -> ClusterAddress:
        made = cls(address)
        made.properties = properties
        made.context = context
        return made


def command_properties(
    environment: Mapping[str, str], flag: str | None, context: Mapping[str, Any]
) -> dict[str, str]:
    """The client settings of a command. Exits if the file cannot be read."""
    path = config_file(environment, flag, context)
    found = {} if path is None else read_properties(path)
    given = {
        name: environment[variable]
        for variable, name in VARIABLES.items()
        if environment.get(variable)
    }
    if "sasl.username" in given or "sasl.password" in given:
        found |= _login_of(found.pop("sasl.jaas.config", ""))
    return found | given


def config_file(
    environment: Mapping[str, str], flag: str | None, context: Mapping[str, Any]
) -> Path | None:
    """The properties file of a command."""
    path = flag or environment.get(COMMAND_CONFIG_VARIABLE) or context.get("command-config")
    return Path(str(path)).expanduser() if path else None


def check_names(path: Path) -> None:
    """Warn of misspelt settings in a properties file. Exits if it has only unknown names, because
    then it is another file."""
    from riverrun.admin.requests import alike
    from riverrun.cli.support.client_names import KNOWN, unknown_names

    found = read_properties(path)
    unknown = unknown_names(found)
    if unknown and len(unknown) == len(found):
        # Its content is not printed: it may be a file with a password.
        fail(
            f"{COMMAND_CONFIG_FLAG}: {path} has no setting of a Kafka client\n"
            "  It is a properties file with lines such as security.protocol=SASL_SSL; `riverrun "
            "up --secure` writes one as client.properties.",
            USAGE,
        )
    if unknown:
        shown = [f"{name}{alike(name, sorted(KNOWN))}" for name in unknown[:UNKNOWN_SHOWN_MAX]]
        more = len(unknown) - len(shown)
        text = "; ".join([*shown, *([f"and {more} more"] if more else [])])
        warn(f"{path} has settings that no Kafka client knows: {text}")


def _login_of(jaas: str) -> dict[str, str]:
    """The user and password in a JAAS configuration, under the names that variables override."""
    from riverrun.security.jaas import JaasError, parse_jaas

    try:
        entry = parse_jaas(jaas)
    except JaasError:
        return {}
    login = {"sasl.username": entry.username, "sasl.password": entry.password}
    return {name: text for name, text in login.items() if text is not None}


def read_properties(path: Path) -> dict[str, str]:
    """The client settings in a file. Exits if it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        fail(f"{COMMAND_CONFIG_FLAG}: cannot read {path}: not UTF-8 text", USAGE)
    except OSError as error:
        fail(f"{COMMAND_CONFIG_FLAG}: cannot read {path}: {error.strerror}", USAGE)
    base = path.parent
    found = parse_properties(text)
    for name, value in found.items():
        # A file beside the properties is found from any directory.
        if name.endswith(".location") and value and not os.path.isabs(value):
            found[name] = str(base / value)
    return found


def with_addresses(bootstrap: str, found: Iterable[str]) -> ClusterAddress:
    """The address of a command with further nodes of the same cluster."""
    return ClusterAddress.of(
        ",".join(dict.fromkeys([*bootstrap.split(","), *found])),
        properties=login_of(bootstrap),
        context=getattr(bootstrap, "context", None),
    )


def login_of(bootstrap: str) -> Mapping[str, str]:
    """The client settings that belong to the address of a command."""
    found: Mapping[str, str] = getattr(bootstrap, "properties", {})
    return found


def user_of(bootstrap: str) -> str | None:
    """The user that logs in with a password; None if the settings do not name one."""
    properties = login_of(bootstrap)
    login = {**properties, **_login_of(properties.get("sasl.jaas.config", ""))}
    return login.get("sasl.username") or None


def security_of(bootstrap: str) -> ClientSecurity | None:
    """The protection of the connections of a command. Exits if its settings are invalid."""
    properties = login_of(bootstrap)
    if not properties:
        return None
    from riverrun.client.security import client_security
    from riverrun.model.settings import SettingError

    try:
        return client_security(properties)
    except SettingError as error:
        fail(f"{COMMAND_CONFIG_FLAG}: {error}", USAGE)
