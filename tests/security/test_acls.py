"""The authorizer against a naive model of Kafka's rules, and its single rules by name."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.security.acls import (
    IMPLIES,
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    Authorizer,
    PatternType,
    ResourceType,
    operation_bits,
)
from riverrun.security.principal import Principal

ALICE = Principal("User", "alice")
HOST = "10.0.0.1"
NAMES = ("a", "ab", "abc", "b", "*")
OPERATIONS = (
    AclOperation.ALL,
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.DESCRIBE,
    AclOperation.ALTER_CONFIGS,
    AclOperation.DESCRIBE_CONFIGS,
)


def acl(
    name: str = "t",
    operation: AclOperation = AclOperation.READ,
    permission: AclPermission = AclPermission.ALLOW,
    *,
    principal: str = "User:alice",
    host: str = "*",
    pattern: PatternType = PatternType.LITERAL,
    kind: ResourceType = ResourceType.TOPIC,
) -> Acl:
    return Acl(
        id=UUID(int=1),
        resource_type=kind,
        pattern_type=pattern,
        name=name,
        principal=principal,
        host=host,
        operation=operation,
        permission=permission,
    )


ACLS = st.builds(
    acl,
    name=st.sampled_from(NAMES),
    operation=st.sampled_from(OPERATIONS),
    permission=st.sampled_from((AclPermission.ALLOW, AclPermission.DENY)),
    principal=st.sampled_from(("User:alice", "User:bob", "User:*")),
    host=st.sampled_from((HOST, "10.0.0.2", "*")),
    pattern=st.sampled_from((PatternType.LITERAL, PatternType.PREFIXED)),
    kind=st.sampled_from((ResourceType.TOPIC, ResourceType.GROUP)),
)


def naive(acls: list[Acl], operation: AclOperation, name: str, *, is_open: bool) -> bool:
    """Kafka's documented order, rule by rule, without any index."""
    matching = [
        one
        for one in acls
        if one.resource_type is ResourceType.TOPIC
        and (
            name.startswith(one.name)
            if one.pattern_type is PatternType.PREFIXED
            else one.name in (name, "*")
        )
    ]
    if not matching:
        return is_open
    mine = [
        one
        for one in matching
        if one.principal in ("User:alice", "User:*") and one.host in (HOST, "*")
    ]
    denials = [one for one in mine if one.permission is AclPermission.DENY]
    if any(one.operation in (operation, AclOperation.ALL) for one in denials):
        return False
    wanted = (operation, AclOperation.ALL, *IMPLIES.get(operation, ()))
    return any(one.permission is AclPermission.ALLOW and one.operation in wanted for one in mine)


@given(
    acls=st.lists(ACLS, max_size=12),
    operation=st.sampled_from(OPERATIONS[1:]),
    name=st.sampled_from(("a", "ab", "abc", "abcd", "b", "z")),
    is_open=st.booleans(),
)
def test_authorizer_agrees_with_a_naive_model(
    acls: list[Acl], operation: AclOperation, name: str, is_open: bool
) -> None:
    authorizer = Authorizer(acls, is_open=is_open)
    expected = naive(acls, operation, name, is_open=is_open)
    for _ in range(2):  # the second decision comes from the cache
        assert authorizer.allows(ALICE, HOST, operation, ResourceType.TOPIC, name) is expected


@given(acls=st.lists(ACLS, max_size=8), operation=st.sampled_from(OPERATIONS[1:]))
def test_a_right_on_any_topic_agrees_with_trying_names(
    acls: list[Acl], operation: AclOperation
) -> None:
    """Names that no rule mentions literally stand for all other names."""
    authorizer = Authorizer(acls)
    names = [*NAMES[:-1], *(f"{name}~" for name in (*NAMES[:-1], ""))]
    tried = any(
        authorizer.allows(ALICE, HOST, operation, ResourceType.TOPIC, name) for name in names
    )
    if authorizer.allows_any(ALICE, HOST, operation, ResourceType.TOPIC):
        assert tried or any(one.name == "*" for one in acls)
    else:
        assert not any(
            authorizer.allows(ALICE, HOST, operation, ResourceType.TOPIC, name)
            for name in names
            if not any(
                one.pattern_type is PatternType.PREFIXED and name.startswith(one.name)
                for one in acls
                if one.permission is AclPermission.DENY
            )
            and not any(one.name == name for one in acls)
        )


def test_super_user_may_do_everything() -> None:
    authorizer = Authorizer(
        [acl(operation=AclOperation.ALL, permission=AclPermission.DENY)],
        super_users=["User:alice"],
    )
    assert authorizer.allows(ALICE, HOST, AclOperation.DELETE, ResourceType.TOPIC, "t")


def test_decision_names_the_deciding_rule() -> None:
    allow, deny = acl(), acl(permission=AclPermission.DENY, host=HOST)
    decide = Authorizer([allow, deny]).decide
    refused = decide(ALICE, HOST, AclOperation.READ, ResourceType.TOPIC, "t")
    assert (refused.is_allowed, refused.reason) == (False, str(deny))
    allowed = decide(ALICE, "10.0.0.9", AclOperation.READ, ResourceType.TOPIC, "t")
    assert (allowed.is_allowed, allowed.reason) == (True, str(allow))


@pytest.mark.parametrize(
    ("pattern", "name", "is_match"),
    [
        (PatternType.ANY, "ab", False),
        (PatternType.ANY, "a", True),
        (PatternType.MATCH, "ab", True),
        (PatternType.MATCH, "b", False),
        (PatternType.MATCH, None, True),
        (PatternType.LITERAL, "a", False),
        (PatternType.PREFIXED, "a", True),
        (PatternType.PREFIXED, None, True),
    ],
)
def test_filter_matches_patterns_as_in_kafka(
    pattern: PatternType, name: str | None, is_match: bool
) -> None:
    wanted = AclFilter(
        resource_type=ResourceType.ANY,
        name=name,
        pattern_type=pattern,
        principal=None,
        host=None,
        operation=AclOperation.ANY,
        permission=AclPermission.ANY,
    )
    assert wanted.matches(acl("a", pattern=PatternType.PREFIXED)) is is_match


def test_bits_of_operations_are_those_of_kafka() -> None:
    """Kafka documents 3400 for all operations on a group."""
    assert (
        operation_bits(
            (
                AclOperation.READ,
                AclOperation.DESCRIBE,
                AclOperation.DELETE,
                AclOperation.DESCRIBE_CONFIGS,
                AclOperation.ALTER_CONFIGS,
            )
        )
        == 3400
    )
