"""The SCRAM credentials that unknown users get, the same on every node.

A salt that changed with the node or with its start would tell that a user does not exist. So the
credentials derive from a secret of the cluster. It is stored like a plan, because no client can
list, read or change such a resource, and is written together with the first user.

Clusters whose users are older have no secret until the next user is added or changed. Until then it
derives from the keys of all users, which no client knows either. At that change the salts of
unknown users change once.

If users have credentials of several forms (iterations, length of the salt), those with a rare form
can still be told from unknown users.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import islice
from typing import Final, cast

from riverrun.cluster.balancing.plans import plan_record
from riverrun.metadata.entries import USER_SCRAM_CREDENTIAL
from riverrun.metadata.image import ConfigType, Entries, Image
from riverrun.metadata.records import ConfigRecord
from riverrun.metadata.schema.user_scram_credential_record import UserScramCredentialRecord
from riverrun.placement.planner.stored_plan import DECOYS
from riverrun.ports.randomness import Randomness
from riverrun.security.decoys import CredentialForm, common_form, decoy_credential, form_of
from riverrun.security.scram import ScramCredential, ScramMechanism

_SECRET: Final = "secret"
FORMS_READ_MAX: Final = 2000
"""Credentials that are read to find the most common form."""


def secret_records(image: Image, randomness: Randomness) -> list[ConfigRecord]:
    """The secret of a cluster that has none yet."""
    if image.config(ConfigType.PLAN, DECOYS):
        return []
    secret = randomness.uuid().bytes + randomness.uuid().bytes
    return [plan_record(DECOYS, _SECRET, secret.hex())]


class ScramDecoys:
    """The credentials of unknown users, by the newest image."""

    def __init__(self, image: Callable[[], Image], node_secret: bytes) -> None:
        """``node_secret`` is used while the cluster has no users."""
        self._image = image
        self._node_secret = node_secret
        self._users: Entries | None = None
        self._forms: dict[ScramMechanism, CredentialForm] = {}
        self._secret_of_users = b""

    def credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
        image = self._image()
        users = image.entries_of(USER_SCRAM_CREDENTIAL)
        if users is not self._users:
            self._users = users
            self._forms = _forms(users)
            self._secret_of_users = _secret_of(users)
        text = image.config(ConfigType.PLAN, DECOYS).get(_SECRET, "")
        secret = text.encode() or self._secret_of_users or self._node_secret
        return decoy_credential(mechanism, secret, user, self._forms[mechanism])


def _forms(users: Entries) -> dict[ScramMechanism, CredentialForm]:
    read = [
        cast(UserScramCredentialRecord, record) for record in islice(users.values(), FORMS_READ_MAX)
    ]
    return {
        mechanism: common_form(
            form_of(one.salt, one.iterations) for one in read if one.mechanism == mechanism.value
        )
        for mechanism in ScramMechanism
    }


def _secret_of(users: Entries) -> bytes:
    """Empty if there are no users."""
    if not users:
        return b""
    digest = hashlib.sha512()
    for record in users.values():
        digest.update(cast(UserScramCredentialRecord, record).stored_key)
    return digest.digest()
