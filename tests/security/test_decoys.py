"""A login as an unknown user looks like one with a wrong password, on every node."""

from __future__ import annotations

import pytest

from riverrun.cluster.configs.describe_configs import DescribeOptions, plan_rows
from riverrun.cluster.security.scram_decoys import ScramDecoys
from riverrun.cluster.security.scram_users import alter_user_scram_credentials, user_record
from riverrun.metadata.image import Image
from riverrun.metadata.schema.user_scram_credential_record import UserScramCredentialRecord
from riverrun.placement.planner.stored_plan import DECOYS, PlanTextInvalid, check_plan_id
from riverrun.ports.randomness import SystemRandomness
from riverrun.security.scram import (
    ITERATIONS_DEFAULT,
    SALT_BYTES,
    ScramCredential,
    ScramMechanism,
    salted_password,
)
from riverrun.server.security.first_user import first_user_records
from riverrun.server.security.settings import AuthorizationSettings
from riverrun.wire.messages.alter_user_scram_credentials_request import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from tests.cluster.fakes import replayed

SHA_256, SHA_512 = ScramMechanism
KAFKA_SALTS = (b"3v5v9bk3ap1p2tkmx0pahzxrv", b"1d0j2n5a7n9xk3ap1p2tkmx0pa")


def user(name: str, salt: bytes, iterations: int) -> UserScramCredentialRecord:
    """Of SCRAM-SHA-256, with keys that differ for each user."""
    return UserScramCredentialRecord(
        name=name,
        mechanism=SHA_256.value,
        salt=salt,
        stored_key=name.encode(),
        server_key=name.encode(),
        iterations=iterations,
    )


def added(image: Image, name: str) -> Image:
    """The image after a user was added with riverrun's commands."""
    salt = b"\xf0" * SALT_BYTES
    request = AlterUserScramCredentialsRequest(
        deletions=(),
        upsertions=(
            ScramCredentialUpsertion(
                name=name,
                mechanism=SHA_256.value,
                iterations=ITERATIONS_DEFAULT,
                salt=salt,
                salted_password=salted_password(SHA_256, "pw", salt, ITERATIONS_DEFAULT),
            ),
        ),
    )
    return replayed(image, alter_user_scram_credentials(image, request, SystemRandomness()).records)


def decoy(
    image: Image, name: str = "ghost", *, node: int = 1, mechanism: ScramMechanism = SHA_256
) -> ScramCredential:
    return ScramDecoys(lambda: image, bytes([node])).credential(mechanism, name)


def test_every_node_gives_an_unknown_user_the_same_credential() -> None:
    image = added(Image(), "ann")
    assert decoy(image, node=1) == decoy(image, node=2)
    assert decoy(image).salt != decoy(image, "other").salt
    assert decoy(image).salt != decoy(image, mechanism=SHA_512).salt


def test_the_credential_stays_when_users_change() -> None:
    image = added(Image(), "ann")
    assert decoy(added(image, "bob")) == decoy(image)
    assert decoy(added(image, "ann")) == decoy(image)


def test_clusters_have_different_secrets() -> None:
    assert decoy(added(Image(), "ann")).salt != decoy(added(Image(), "ann")).salt


def test_the_secret_is_written_with_the_first_user_of_a_new_cluster() -> None:
    settings = AuthorizationSettings(bootstrap_user="admin", bootstrap_password="pw")
    image = replayed(Image(), first_user_records(settings, SystemRandomness()))
    assert decoy(image, node=1) == decoy(image, node=2)
    assert decoy(added(image, "ann")).salt == decoy(image).salt


def test_users_without_a_stored_secret_give_all_nodes_the_same_one() -> None:
    image = replayed(Image(), [user("ann", b"\xf0" * SALT_BYTES, ITERATIONS_DEFAULT)])
    assert decoy(image, node=1) == decoy(image, node=2)


def test_unknown_users_look_like_those_of_riverrun_by_default() -> None:
    found = decoy(Image())
    assert (len(found.salt), found.iterations) == (SALT_BYTES, ITERATIONS_DEFAULT)
    assert decoy(added(Image(), "ann")).iterations == ITERATIONS_DEFAULT


def test_unknown_users_look_like_most_users() -> None:
    """Kafka's tools make salts of 25 or 26 letters and digits, and 4096 iterations."""
    image = replayed(
        Image(),
        [
            user("ann", b"\xf0" * SALT_BYTES, ITERATIONS_DEFAULT),
            *[user(f"user{place}", salt, 4096) for place, salt in enumerate(KAFKA_SALTS)],
        ],
    )
    found = [decoy(image, f"ghost{place}") for place in range(100)]
    assert {one.iterations for one in found} == {4096}
    assert {25, 26} <= {len(one.salt) for one in found} <= {24, 25, 26}
    assert all(one.salt.isalnum() and one.salt.islower() for one in found)
    assert decoy(image, mechanism=SHA_512).iterations == ITERATIONS_DEFAULT, "of its mechanism"


def test_no_client_reads_or_changes_the_secret() -> None:
    image = added(Image(), "ann")
    assert plan_rows(image, DECOYS, DescribeOptions()) is None
    with pytest.raises(PlanTextInvalid):
        check_plan_id(DECOYS)


def test_kafka_salts_are_base_36() -> None:
    record = user_record("ann", SHA_256, salted=b"x" * 32, salt=KAFKA_SALTS[0], iterations=4096)
    assert int(decoy(replayed(Image(), [record])).salt, 36) < 1 << 130
