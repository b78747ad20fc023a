"""AlterUserScramCredentials and DescribeUserScramCredentials (KIP-554).

The client sends a salted password. Only two keys that derive from it are stored, so the metadata
log does not let anybody log in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, cast

from riverrun.cluster.decision import Decision, check_size
from riverrun.cluster.security.scram_decoys import secret_records
from riverrun.metadata.entries import USER_SCRAM_CREDENTIAL
from riverrun.metadata.image import Image
from riverrun.metadata.schema.remove_user_scram_credential_record import (
    RemoveUserScramCredentialRecord,
)
from riverrun.metadata.schema.user_scram_credential_record import UserScramCredentialRecord
from riverrun.model.errors import ErrorCode
from riverrun.ports.randomness import Randomness
from riverrun.security.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    ScramMechanism,
    credential_of,
)
from riverrun.wire.messages.alter_user_scram_credentials_request import (
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from riverrun.wire.messages.alter_user_scram_credentials_response import (
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from riverrun.wire.messages.describe_user_scram_credentials_response import (
    CredentialInfo,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

if TYPE_CHECKING:
    from riverrun.metadata.records import Record
    from riverrun.wire.messages.alter_user_scram_credentials_request import (
        AlterUserScramCredentialsRequest,
    )
    from riverrun.wire.messages.describe_user_scram_credentials_request import (
        DescribeUserScramCredentialsRequest,
    )

MECHANISMS: Final = {mechanism.value: mechanism for mechanism in ScramMechanism}
SALT_BYTES_MAX: Final = 1024
Refusal = tuple[ErrorCode, str]
Change = ScramCredentialDeletion | ScramCredentialUpsertion


def alter_user_scram_credentials(
    image: Image, request: AlterUserScramCredentialsRequest, randomness: Randomness
) -> Decision[AlterUserScramCredentialsResponse]:
    """Change users one by one. If one change of a user is refused, none of its changes is made."""
    check_size(len(request.deletions) + len(request.upsertions))
    changes: dict[str, list[Change]] = {}
    for deletion in request.deletions:
        changes.setdefault(deletion.name, []).append(deletion)
    for upsertion in request.upsertions:
        changes.setdefault(upsertion.name, []).append(upsertion)
    records: list[Record] = []
    results: list[AlterUserScramCredentialsResult] = []
    for name, of_user in changes.items():
        refusal = _refusal(image, name, of_user)
        if refusal is None:
            records += [_record(change) for change in of_user]
        code, message = refusal or (ErrorCode.NONE, None)
        results.append(
            AlterUserScramCredentialsResult(user=name, error_code=code, error_message=message)
        )
    if records:
        records += secret_records(image, randomness)
    return Decision(
        records=tuple(records),
        response=AlterUserScramCredentialsResponse(throttle_time_ms=0, results=tuple(results)),
    )


def _refusal(image: Image, name: str, changes: list[Change]) -> Refusal | None:
    if not name:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"
    mechanisms = [change.mechanism for change in changes]
    if len(mechanisms) != len(dict.fromkeys(mechanisms)):
        return (
            ErrorCode.DUPLICATE_RESOURCE,
            "A user credential cannot be altered twice in the same request",
        )
    for change in changes:
        if change.mechanism not in MECHANISMS:
            return ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"
        refusal = _refusal_of(image, name, change)
        if refusal is not None:
            return refusal
    return None


def _refusal_of(image: Image, name: str, change: Change) -> Refusal | None:
    if isinstance(change, ScramCredentialDeletion):
        if (name, change.mechanism) in image.entries_of(USER_SCRAM_CREDENTIAL):
            return None
        return (
            ErrorCode.RESOURCE_NOT_FOUND,
            "Attempt to delete a user credential that does not exist",
        )
    if change.iterations < ITERATIONS_MIN:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations"
    if change.iterations > ITERATIONS_MAX:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations"
    expected = MECHANISMS[change.mechanism].key_bytes
    is_sound = 0 < len(change.salt) <= SALT_BYTES_MAX
    if not is_sound or len(change.salted_password) != expected:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "The salt or the salted password is not sound"
    return None


def _record(change: Change) -> Record:
    if isinstance(change, ScramCredentialDeletion):
        return RemoveUserScramCredentialRecord(name=change.name, mechanism=change.mechanism)
    return user_record(
        change.name,
        MECHANISMS[change.mechanism],
        salted=change.salted_password,
        salt=change.salt,
        iterations=change.iterations,
    )


def user_record(
    name: str, mechanism: ScramMechanism, *, salted: bytes, salt: bytes, iterations: int
) -> UserScramCredentialRecord:
    credential = credential_of(mechanism, salted, salt, iterations)
    return UserScramCredentialRecord(
        name=name,
        mechanism=mechanism.value,
        salt=credential.salt,
        stored_key=credential.stored_key,
        server_key=credential.server_key,
        iterations=credential.iterations,
    )


def describe_user_scram_credentials(
    image: Image, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    """The mechanisms and iterations of users; never their keys."""
    known: dict[str, list[CredentialInfo]] = {}
    for name, info in _credentials(image):
        known.setdefault(name, []).append(info)
    if request.users:
        names = [user.name for user in request.users]
        results = tuple(
            _described(name, known.get(name, []), is_repeated=names.count(name) > 1)
            for name in dict.fromkeys(names)
        )
    else:
        results = tuple(_described(name, infos) for name, infos in known.items())
    return DescribeUserScramCredentialsResponse(
        throttle_time_ms=0, error_code=ErrorCode.NONE, error_message="", results=results
    )


def _credentials(image: Image) -> Iterator[tuple[str, CredentialInfo]]:
    for record in image.entries_of(USER_SCRAM_CREDENTIAL).values():
        found = cast(UserScramCredentialRecord, record)
        info = CredentialInfo(mechanism=found.mechanism, iterations=found.iterations)
        yield found.name, info


def _described(
    name: str, infos: list[CredentialInfo], *, is_repeated: bool = False
) -> DescribeUserScramCredentialsResult:
    code, message = ErrorCode.NONE, ""
    if is_repeated:
        code = ErrorCode.DUPLICATE_RESOURCE
        message = (
            f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        )
    elif not infos:
        code = ErrorCode.RESOURCE_NOT_FOUND
        message = f"Attempt to describe a user credential that does not exist: {name}"
    return DescribeUserScramCredentialsResult(
        user=name,
        error_code=code,
        error_message=message,
        credential_infos=() if code else tuple(infos),
    )
