"""SCRAM against the vectors of RFC 7677, and both of our ends against each other."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.security.decoys import DEFAULT_FORM, decoy_credential
from riverrun.security.scram import (
    ITERATIONS_MIN,
    ScramClient,
    ScramCredential,
    ScramError,
    ScramMechanism,
    ScramServer,
    credential_of,
    parse_client_first,
    salted_password,
)

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SERVER_FIRST = (
    "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def stored(mechanism: ScramMechanism, password: str) -> ScramCredential:
    salted = salted_password(mechanism, password, SALT, ITERATIONS_MIN)
    return credential_of(mechanism, salted, SALT, ITERATIONS_MIN)


def server_of(first: bytes, credential: ScramCredential) -> ScramServer:
    parsed = parse_client_first(first)
    return ScramServer(ScramMechanism.SHA_256, parsed, credential, SERVER_NONCE)


def test_server_answers_as_in_rfc_7677() -> None:
    server = server_of(CLIENT_FIRST, stored(ScramMechanism.SHA_256, "pencil"))
    assert server.server_first == SERVER_FIRST
    assert server.finish(CLIENT_FINAL) == SERVER_FINAL


def test_client_proves_its_password_as_in_rfc_7677() -> None:
    client = ScramClient(ScramMechanism.SHA_256, "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    assert client.first == CLIENT_FIRST
    assert client.final(SERVER_FIRST.encode()) == CLIENT_FINAL
    client.check(SERVER_FINAL)


@given(
    mechanism=st.sampled_from(ScramMechanism),
    user=st.text(min_size=1, max_size=20).filter(lambda text: "\0" not in text),
    password=st.text(min_size=1, max_size=20),
    is_token=st.booleans(),
)
def test_both_ends_agree_on_any_user_and_password(
    mechanism: ScramMechanism, user: str, password: str, is_token: bool
) -> None:
    client = ScramClient(mechanism, user, password, "client", is_token=is_token)
    first = parse_client_first(client.first)
    assert (first.user, first.is_token) == (user, is_token)
    server = ScramServer(mechanism, first, stored(mechanism, password), "server")
    client.check(server.finish(client.final(server.server_first.encode())))


def test_a_wrong_password_and_an_unknown_user_fail_at_the_same_step() -> None:
    for credential in (
        stored(ScramMechanism.SHA_256, "other"),
        decoy_credential(ScramMechanism.SHA_256, b"secret", "user", DEFAULT_FORM),
    ):
        client = ScramClient(ScramMechanism.SHA_256, "user", "pencil", "abc")
        server = server_of(client.first, credential)
        with pytest.raises(ScramError, match="wrong password"):
            server.finish(client.final(server.server_first.encode()))


def test_client_refuses_a_server_that_does_not_know_the_credential() -> None:
    client = ScramClient(ScramMechanism.SHA_256, "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    client.final(SERVER_FIRST.encode())
    with pytest.raises(ScramError, match="does not know"):
        client.check(b"v=" + base64.b64encode(b"x" * 32))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"p=tls-unique,,n=user,r=abc",
        b"n,,n=user",
        b"n,,n=user,r=",
        b"n,a=other,n=user,r=abc",
        b"n,,n=us=er,r=abc",
        b"\xff\xfe",
        b"n,,n=" + b"x" * 10_000 + b",r=a",
    ],
)
def test_malformed_first_messages_are_refused(message: bytes) -> None:
    with pytest.raises(ScramError):
        parse_client_first(message)


@given(st.binary(max_size=200))
def test_any_final_message_is_refused_or_proved(message: bytes) -> None:
    server = server_of(CLIENT_FIRST, stored(ScramMechanism.SHA_256, "pencil"))
    with pytest.raises(ScramError):
        server.finish(message)


@pytest.mark.parametrize("iterations", ["1", "2000000", "-1", "x", ""])
def test_client_refuses_unreasonable_iterations(iterations: str) -> None:
    client = ScramClient(ScramMechanism.SHA_256, "user", "pencil", "abc")
    with pytest.raises(ScramError, match="iterations"):
        client.final(f"r=abcd,s=W22ZaJ0SNY7soEsUEjb6gQ==,i={iterations}".encode())
