"""Access control follows the rules in the metadata, and nothing else."""

from __future__ import annotations

from uuid import UUID

from riverrun.metadata.image import Image
from riverrun.metadata.records import Record
from riverrun.metadata.schema.access_control_entry_record import AccessControlEntryRecord
from riverrun.metadata.schema.client_quota_record import ClientQuotaRecord, EntityData
from riverrun.metadata.schema.remove_access_control_entry_record import (
    RemoveAccessControlEntryRecord,
)
from riverrun.metadata.schema.user_scram_credential_record import UserScramCredentialRecord
from riverrun.security.acls import AclOperation, AclPermission, PatternType, ResourceType
from riverrun.server.security.access import AccessControl
from riverrun.server.security.settings import AuthorizationSettings
from tests.cluster.fakes import replayed


def rule(number: int) -> AccessControlEntryRecord:
    return AccessControlEntryRecord(
        id=UUID(int=number),
        resource_type=ResourceType.TOPIC,
        resource_name=f"topic-{number}",
        pattern_type=PatternType.LITERAL,
        principal="User:ann",
        host="*",
        operation=AclOperation.READ,
        permission_type=AclPermission.ALLOW,
    )


USER = UserScramCredentialRecord(
    name="ann", mechanism=1, salt=b"s", stored_key=b"k", server_key=b"k", iterations=4096
)
QUOTA = ClientQuotaRecord(
    entity=(EntityData(entity_type="user", entity_name="ann"),),
    key="producer_byte_rate",
    value=1.0,
    remove=False,
)


def test_only_changed_rules_drop_the_remembered_decisions() -> None:
    """A large index takes some milliseconds to build, on the event loop of every node."""
    image = replayed(Image(), [rule(1)])
    access = AccessControl(AuthorizationSettings(authorizer="riverrun"), lambda: image)
    before = access.authorizer

    def after(record: Record) -> object:
        nonlocal image
        image = replayed(image, [record])
        return access.authorizer

    assert after(USER) is before
    assert after(QUOTA) is before
    assert after(rule(2)) is not before


def test_the_last_rule_can_be_removed() -> None:
    image = replayed(Image(), [rule(1)])
    access = AccessControl(AuthorizationSettings(authorizer="riverrun"), lambda: image)
    before = access.authorizer
    image = replayed(image, [RemoveAccessControlEntryRecord(id=UUID(int=1))])
    assert access.authorizer is not before
    assert image.entries == {}
