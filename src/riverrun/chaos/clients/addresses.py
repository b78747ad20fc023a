"""How the clients of applications reach a cluster: its address carries the login.

``bootstrap`` is a plain text, or a ``ClusterAddress`` of a secure cluster.
"""

from __future__ import annotations

import os
from typing import Any

from riverrun.cli.support.client_config import ClusterAddress, login_of, security_of
from riverrun.client.library_settings import aiokafka_settings, librdkafka_settings
from riverrun.client.pool import ConnectionPool, parse_bootstrap

LOGIN_VARIABLE = "CHAOS_LOGIN"
"""Client settings of a process that a run starts, as lines NAME=VALUE."""


def environment_of(bootstrap: str) -> dict[str, str]:
    """The environment of a process that logs in with ``address_here``."""
    lines = (f"{name}={value}" for name, value in login_of(bootstrap).items())
    return {**os.environ, LOGIN_VARIABLE: "\n".join(lines)}


def address_here(bootstrap: str) -> ClusterAddress:
    """The address with the login of this process's environment."""
    rows = (line.partition("=") for line in os.environ[LOGIN_VARIABLE].splitlines())
    return ClusterAddress.of(bootstrap, properties={name: value for name, _, value in rows})


def confluent_address(bootstrap: str) -> dict[str, Any]:
    return {"bootstrap.servers": str(bootstrap), **librdkafka_settings(login_of(bootstrap))}


def aiokafka_address(bootstrap: str) -> dict[str, Any]:
    return {"bootstrap_servers": str(bootstrap), **aiokafka_settings(login_of(bootstrap))}


def own_pool(bootstrap: str, **settings: Any) -> ConnectionPool:
    """Our own client."""
    return ConnectionPool(parse_bootstrap(bootstrap), security=security_of(bootstrap), **settings)
