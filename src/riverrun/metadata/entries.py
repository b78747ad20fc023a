"""ACLs, SCRAM credentials, quotas and delegation tokens, stored as their records by kind and key.

The parts that use them read the records; see ``cluster/security``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from riverrun.metadata.image import EntryKey
from riverrun.wire.stored import UnknownRecord

if TYPE_CHECKING:
    from riverrun.metadata.records import Record
    from riverrun.metadata.schema.access_control_entry_record import AccessControlEntryRecord
    from riverrun.metadata.schema.client_quota_record import ClientQuotaRecord
    from riverrun.metadata.schema.delegation_token_record import DelegationTokenRecord
    from riverrun.metadata.schema.user_scram_credential_record import UserScramCredentialRecord

DELEGATION_TOKEN: Final = 10
USER_SCRAM_CREDENTIAL: Final = 11
CLIENT_QUOTA: Final = 14
ACCESS_CONTROL_ENTRY: Final = 18

KINDS: Final = (DELEGATION_TOKEN, USER_SCRAM_CREDENTIAL, CLIENT_QUOTA, ACCESS_CONTROL_ENTRY)
REMOVES: Final = {19: ACCESS_CONTROL_ENTRY, 22: USER_SCRAM_CREDENTIAL, 26: DELEGATION_TOKEN}
"""The record that removes each kind of entry; both identify it by the same fields."""


def replay_entry(record: Record) -> tuple[int, EntryKey, bool]:
    """The kind and key of the entry in a record, and whether the entry exists afterwards."""
    number = record.API_KEY
    kind = REMOVES.get(number, number)
    if kind == ACCESS_CONTROL_ENTRY:
        return kind, (cast("AccessControlEntryRecord", record).id,), kind == number
    if kind == USER_SCRAM_CREDENTIAL:
        credential = cast("UserScramCredentialRecord", record)
        return kind, (credential.name, credential.mechanism), kind == number
    if kind == DELEGATION_TOKEN:
        return kind, (cast("DelegationTokenRecord", record).token_id,), kind == number
    if kind == CLIENT_QUOTA:
        quota = cast("ClientQuotaRecord", record)
        return kind, quota_key(quota), not quota.remove
    raise UnknownRecord(f"unexpected record {type(record).__name__}")


def quota_key(quota: ClientQuotaRecord) -> EntryKey:
    """The key of a quota. An entity is a set of names by type, so their order does not matter."""
    parts = sorted(quota.entity, key=lambda part: part.entity_type)
    names = [text for part in parts for text in (part.entity_type, part.entity_name)]
    return (*names, quota.key)
