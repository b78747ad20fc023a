"""Calls about delegation tokens of another user."""

import contextlib
from collections.abc import Iterator
from typing import Any

from riverrun.security.acls import AclOperation as Op
from riverrun.security.acls import ResourceType
from tests.differential.script import SETTLE_SECONDS_MAX, Script
from tests.differential.scripts.matrix.rights import Right
from tests.differential.scripts.matrix.table import Fields, GuardedCall, Stock, try_all
from tests.differential.scripts.security import created_token
from tests.processes import until

OWNER = "ivy"
"""A user that no call is sent as."""
OWNER_SINCE = 3


def _of_owner(stock: Stock) -> Fields:
    return {"owners": [{"principal_type": "User", "principal_name": OWNER}]}


def _create(stock: Stock) -> Fields:
    owner = {"owner_principal_type": "User", "owner_principal_name": OWNER}
    return {**owner, "renewers": [], "max_lifetime": -1}


def _calls() -> list[GuardedCall]:
    seen = (Right(Op.DESCRIBE_TOKENS, ResourceType.USER, f"User:{OWNER}"),)
    one = (Right(Op.DESCRIBE, ResourceType.DELEGATION_TOKEN),)
    made = (Right(Op.CREATE_TOKENS, ResourceType.USER, f"User:{OWNER}"),)
    return [
        *(
            GuardedCall(api="describe_delegation_token", rights=rights, fields=_of_owner)
            for rights in (seen, one)
        ),
        GuardedCall(
            api="create_delegation_token",
            rights=made,
            fields=_create,
            only=created_token,
            since=OWNER_SINCE,
        ),
        # Only owners and renewers, whatever their rights.
        GuardedCall(
            api="renew_delegation_token",
            rights=made,
            fields=lambda stock: {"hmac": stock.hmac, "renew_period": -1},
        ),
        GuardedCall(
            api="expire_delegation_token",
            rights=made,
            fields=lambda stock: {"hmac": stock.hmac, "expiry_time_period": -1},
        ),
    ]


CALLS = _calls()


def tokens(script: Script) -> None:
    stock = Stock(script)
    with one_token(stock):
        try_all(stock, CALLS)


@contextlib.contextmanager
def one_token(stock: Stock) -> Iterator[None]:
    """Create a token of the owner; remove all its tokens at the end."""
    script = stock.script
    fields = {"renewers": [], "max_lifetime": -1}
    made = script.quietly_on(OWNER, "create_delegation_token", fields)
    stock.token_id, stock.hmac = made["token_id"], made["hmac"]
    script.note_id("token-id", stock.token_id)
    until(lambda: _owned(script), seconds=SETTLE_SECONDS_MAX, what="the token")
    yield
    for token in _owned(script):
        _expire(script, {"hmac": token["hmac"], "expiry_time_period": -1})
    until(lambda: not _owned(script), seconds=SETTLE_SECONDS_MAX, what="no token")


def _owned(script: Script) -> list[Any]:
    found: list[Any] = script.quietly_on(OWNER, "describe_delegation_token", {"owners": None})[
        "tokens"
    ]
    return found


def _expire(script: Script, fields: Fields) -> None:
    """Kafka's controller knows a token shortly after it was created."""

    def is_expired() -> bool:
        response = script.quietly_on(OWNER, "expire_delegation_token", fields)
        return bool(response["error_code"] == "NONE")

    until(is_expired, seconds=SETTLE_SECONDS_MAX, what="the end of the token")
