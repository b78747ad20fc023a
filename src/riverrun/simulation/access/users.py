"""The users of a simulated cluster, and the settings of its nodes.

TLS would make the bytes of a run random, so listeners are SASL_PLAINTEXT. Nodes and most users are
in the nodes' settings. The guest logs in by SCRAM, with a credential in the metadata.
"""

from __future__ import annotations

from typing import Final

from riverrun.ports.randomness import Randomness
from riverrun.security.mechanisms import SaslMechanism
from riverrun.security.scram import ITERATIONS_MIN, ScramMechanism, salted_password
from riverrun.wire.messages.alter_user_scram_credentials_request import ScramCredentialUpsertion

LISTENER: Final = "SASL_PLAINTEXT"
NODE_USER, ADMIN_USER = "node", "admin"
MEMBER = "member"
"""Has its rights from the beginning to the end."""
GUEST = "guest"
"""Gets a right and loses it, again and again."""
STRANGER = "stranger"
"""Never has a right."""
_PLAIN_USERS: Final = (NODE_USER, ADMIN_USER, MEMBER, STRANGER)
_SCRAM: Final = ScramMechanism.SHA_256


def _password(user: str) -> str:
    return f"{user}-secret"


def secure_settings() -> dict[str, str]:
    """The settings of every node of a secure cluster, besides its listeners."""
    users = " ".join(f'user_{user}="{_password(user)}"' for user in _PLAIN_USERS)
    own = f'username="{NODE_USER}" password="{_password(NODE_USER)}"'
    return {
        "listener.security.protocol.map": f"CONTROLLER:{LISTENER}",
        "inter.broker.listener.name": LISTENER,
        "sasl.enabled.mechanisms": f"{SaslMechanism.PLAIN.value},{_SCRAM.title}",
        "sasl.mechanism.inter.broker.protocol": SaslMechanism.PLAIN.value,
        "sasl.mechanism.controller.protocol": SaslMechanism.PLAIN.value,
        "sasl.jaas.config": f"PlainLoginModule required {own} {users};",
        "authorizer.class.name": "riverrun",
        "super.users": f"User:{NODE_USER};User:{ADMIN_USER}",
    }


def login_as(user: str) -> dict[str, str]:
    """Client settings, by Kafka's names."""
    mechanism = SaslMechanism.PLAIN.value if user in _PLAIN_USERS else _SCRAM.title
    return {
        "security.protocol": LISTENER,
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": _password(user),
    }


def scram_credential(user: str, randomness: Randomness) -> ScramCredentialUpsertion:
    salt = randomness.uuid().bytes
    return ScramCredentialUpsertion(
        name=user,
        mechanism=_SCRAM.value,
        iterations=ITERATIONS_MIN,
        salt=salt,
        salted_password=salted_password(_SCRAM, _password(user), salt, ITERATIONS_MIN),
    )
