"""Logins by delegation tokens: SCRAM with ``tokenauth``, until the token expires."""

from __future__ import annotations

import pytest

from riverrun.cluster.security.scram_decoys import ScramDecoys
from riverrun.cluster.security.token_settings import DelegationTokenSettings
from riverrun.metadata.image import Image
from riverrun.metadata.schema.delegation_token_record import DelegationTokenRecord
from riverrun.metadata.schema.remove_delegation_token_record import RemoveDelegationTokenRecord
from riverrun.security.delegation_tokens import token_hmac, token_password
from riverrun.security.mechanisms import SaslMechanism
from riverrun.security.principal import NODE, Principal
from riverrun.security.scram import ScramClient, ScramMechanism
from riverrun.server.security import token_logins
from riverrun.server.security.logins import ListenerLogins
from riverrun.server.security.sasl_session import LoginFailed, LoginStep, SaslSession
from riverrun.server.security.token_logins import TokenLogins
from tests.cluster.fakes import replayed
from tests.server.fakes import FakeClock

KEY = "the key of all nodes"
TOKEN = "dG9rZW4taWQtb2YtdGVzdA"
EXPIRY_MS = 2_000_000


def record(token_id: str = TOKEN, owner: str = "User:ann") -> DelegationTokenRecord:
    return DelegationTokenRecord(
        owner=owner,
        requester="User:admin",
        renewers=(),
        issue_timestamp=1,
        max_timestamp=5_000_000,
        expiration_timestamp=EXPIRY_MS,
        token_id=token_id,
    )


class TokenListener:
    def __init__(self, *records: DelegationTokenRecord, secret_key: str = KEY) -> None:
        self.image = replayed(Image(), records)
        self.clock = FakeClock()
        self.tokens = TokenLogins(
            DelegationTokenSettings(secret_key=secret_key), lambda: self.image, self.clock, b"salt"
        )

    def log_in(
        self,
        mechanism: ScramMechanism = ScramMechanism.SHA_256,
        token_id: str = TOKEN,
        *,
        password: str | None = None,
        is_token: bool = True,
    ) -> LoginStep:
        """The last step of a login. Raises ``LoginFailed``."""
        logins = ListenerLogins(
            lambda: self.image,
            passwords={},
            decoys=ScramDecoys(lambda: self.image, b"x"),
            tokens=self.tokens,
        )
        session = SaslSession(logins, list(SaslMechanism), nonce=lambda: "server")
        assert session.handshake(mechanism.title)
        used = password or token_password(token_hmac(KEY, token_id))
        client = ScramClient(mechanism, token_id, used, "client", is_token=is_token)
        step = session.authenticate(client.final(session.authenticate(client.first).reply))
        client.check(step.reply)
        return step


@pytest.mark.parametrize("mechanism", list(ScramMechanism))
def test_a_token_logs_in_its_owner_until_it_expires(mechanism: ScramMechanism) -> None:
    listener = TokenListener(record())
    for _ in range(2):
        step = listener.log_in(mechanism)
        assert step.principal == Principal("User", "ann", is_token=True)
        assert step.expires_at == EXPIRY_MS / 1000


def test_a_token_of_a_node_logs_nobody_in() -> None:
    listener = TokenListener(record(owner=str(NODE)))
    with pytest.raises(LoginFailed):
        listener.log_in()


def test_the_secret_is_what_kafka_derives() -> None:
    """Computed with `openssl dgst -sha512 -hmac`."""
    assert token_hmac("key", "token").hex().startswith("317c17a2c2c76ba82ee894f42c85ccd6")


def test_wrong_secrets_and_users_without_tokenauth_are_refused() -> None:
    listener = TokenListener(record())
    with pytest.raises(LoginFailed):
        listener.log_in(password="wrong")
    with pytest.raises(LoginFailed):
        listener.log_in(is_token=False)


def test_an_unknown_an_expired_and_a_removed_token_look_like_a_wrong_secret() -> None:
    listener = TokenListener(record())
    with pytest.raises(LoginFailed) as wrong:
        listener.log_in(password="wrong")
    with pytest.raises(LoginFailed) as unknown:
        listener.log_in(token_id="another")
    listener.clock.now = EXPIRY_MS / 1000 + 1
    with pytest.raises(LoginFailed) as expired:
        listener.log_in()
    listener.clock.now = 0.0
    listener.image = replayed(listener.image, [RemoveDelegationTokenRecord(token_id=TOKEN)])
    with pytest.raises(LoginFailed) as removed:
        listener.log_in()
    messages = [one.value.message for one in (wrong, unknown, expired, removed)]
    assert len(set(messages)) == 1


def test_without_a_key_or_with_another_one_tokens_are_refused() -> None:
    for secret_key in ("", "another key"):
        with pytest.raises(LoginFailed):
            TokenListener(record(), secret_key=secret_key).log_in()


def test_remembered_credentials_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_logins, "CREDENTIALS_MAX", 2)
    names = [f"token-{number}" for number in range(5)]
    listener = TokenListener(*(record(name) for name in names))
    for name in names:
        assert listener.log_in(token_id=name).principal is not None
    assert len(listener.tokens._credentials) <= 2
