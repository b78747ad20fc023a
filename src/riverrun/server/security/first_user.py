"""The first user of a new cluster (``bootstrap.admin.user``).

Users are part of the metadata, and only a user with rights can add users. So the first one is
written by the controller that founds the cluster.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from riverrun.cluster.security.scram_decoys import secret_records
from riverrun.cluster.security.scram_users import user_record
from riverrun.metadata.image import Image
from riverrun.model.settings import SettingError
from riverrun.ports.randomness import Randomness
from riverrun.security.scram import (
    ITERATIONS_DEFAULT,
    SALT_BYTES,
    ScramMechanism,
    salted_password,
)
from riverrun.server.security.settings import AuthorizationSettings

if TYPE_CHECKING:
    from riverrun.metadata.records import Record


def first_password(settings: AuthorizationSettings) -> str:
    """Raises ``SettingError`` if there is none."""
    name = "bootstrap.admin.password.file"
    if not settings.bootstrap_password_file:
        if not settings.bootstrap_password:
            raise SettingError("bootstrap.admin.password", "", "the first user needs a password")
        return settings.bootstrap_password
    try:
        text = Path(settings.bootstrap_password_file).read_text().strip()
    except OSError as error:
        raise SettingError(
            name, settings.bootstrap_password_file, f"cannot read it: {error.strerror}"
        ) from None
    if not text:
        raise SettingError(name, settings.bootstrap_password_file, "the file is empty")
    return text


def first_user_records(
    settings: AuthorizationSettings, randomness: Randomness
) -> tuple[Record, ...]:
    """The user with SCRAM-SHA-512, and the secret for unknown users; empty if no first user is
    wanted."""
    if not settings.bootstrap_user:
        return ()
    mechanism = ScramMechanism.SHA_512
    salt = (randomness.uuid().bytes + randomness.uuid().bytes)[:SALT_BYTES]
    salted = salted_password(mechanism, first_password(settings), salt, ITERATIONS_DEFAULT)
    record = user_record(
        settings.bootstrap_user, mechanism, salted=salted, salt=salt, iterations=ITERATIONS_DEFAULT
    )
    return record, *secret_records(Image(), randomness)
