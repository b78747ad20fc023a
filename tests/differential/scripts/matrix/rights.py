"""Rights of users on a secured server, and the users that lack or have them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from riverrun.security.acls import (
    CLUSTER_NAME,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
)
from tests.differential.script import SETTLE_SECONDS_MAX, Script
from tests.processes import until

NO_RIGHT = "no right"
NOBODY = "eve"
"""A user that never gets a right."""
TRIED = ("ann", "bob", "cat", "dan", "fay", "gus", "hal")
"""Users whose rights change from call to call."""
EVERY_USER = "User:*"
GROUP_PRINCIPAL = f"Group:{TRIED[0]}"
PRINCIPALS = (*(f"User:{user}" for user in TRIED), EVERY_USER, GROUP_PRINCIPAL)
"""All principals of the rules that a script makes."""
ANY = 1
ACLS_VERSION = 3


class Right(NamedTuple):
    """An operation on a resource, which is named as in the script."""

    operation: AclOperation
    kind: ResourceType
    resource: str = CLUSTER_NAME

    def __str__(self) -> str:
        words = (self.operation.name, self.kind.name)
        return " ".join(words).replace("_", " ").lower()


class Rule(NamedTuple):
    """An ACL of a user."""

    right: Right
    permission: AclPermission = AclPermission.ALLOW
    pattern: PatternType = PatternType.LITERAL
    host: str = "*"
    principal: str | None = None
    """Another principal than the user."""

    def fields(self, user: str) -> dict[str, Any]:
        return {
            "resource_type": self.right.kind,
            "resource_name": self.right.resource,
            "resource_pattern_type": self.pattern,
            "principal": self.principal or f"User:{user}",
            "host": self.host,
            "operation": self.right.operation,
            "permission_type": self.permission,
        }


def on_cluster(operation: AclOperation) -> Right:
    return Right(operation, ResourceType.CLUSTER)


def on_topic(operation: AclOperation, name: str = "orders") -> Right:
    return Right(operation, ResourceType.TOPIC, name)


def on_group(operation: AclOperation, name: str = "group") -> Right:
    return Right(operation, ResourceType.GROUP, name)


def on_id(operation: AclOperation, name: str = "id") -> Right:
    return Right(operation, ResourceType.TRANSACTIONAL_ID, name)


def attempts(rights: Sequence[Right]) -> Iterator[tuple[str, list[Rule]]]:
    """Rules of users with increasing rights: none, all but one, all with one of them denied, and
    all. A call may change something only in the last attempt."""
    yield NO_RIGHT, []
    if len(rights) > 1:
        for left_out in rights:
            yield f"without {left_out}", [Rule(one) for one in rights if one is not left_out]
    for denied in rights:
        rules = [Rule(one) for one in rights]
        yield f"{denied} denied", [*rules, Rule(denied, AclPermission.DENY)]
    if rights:
        yield " and ".join(str(one) for one in rights), [Rule(one) for one in rights]


@dataclass(slots=True)
class Rulebook:
    """The rules of the tried users on a server."""

    script: Script

    def replace(self, rules: Mapping[str, Sequence[Rule]]) -> None:
        """Give each user these rules, and take all others from the tried users."""
        filters = [_of(principal) for principal in PRINCIPALS]
        self.script.quietly("delete_acls", {"filters": filters}, version=ACLS_VERSION)
        rows = [rule.fields(user) for user, rows in rules.items() for rule in rows]
        if rows:
            made = self.script.quietly("create_acls", {"creations": rows}, version=ACLS_VERSION)
            assert all(row["error_code"] == "NONE" for row in made["results"]), made
        wanted = sorted({_identity(row, row) for row in rows})
        until(
            lambda: self._present() == wanted,
            seconds=SETTLE_SECONDS_MAX,
            what=f"rules {wanted}",
        )

    def _present(self) -> list[tuple[Any, ...]]:
        """The rules that the broker knows. The controller knows them before."""
        response = self.script.quietly("describe_acls", _of(None), version=ACLS_VERSION)
        resources = [
            {**row, "resource_pattern_type": row["pattern_type"]} for row in response["resources"]
        ]
        return sorted(
            _identity(resource, acl)
            for resource in resources
            for acl in resource["acls"]
            if acl["principal"] in PRINCIPALS
        )


def _identity(resource: Mapping[str, Any], rule: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        int(resource["resource_type"]),
        resource["resource_name"],
        int(resource["resource_pattern_type"]),
        rule["principal"],
        rule["host"],
        int(rule["operation"]),
        int(rule["permission_type"]),
    )


def _of(principal: str | None) -> dict[str, Any]:
    """The filter of a principal's rules, or of all."""
    return {
        "resource_type_filter": ANY,
        "resource_name_filter": None,
        "pattern_type_filter": ANY,
        "principal_filter": principal,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
    }
