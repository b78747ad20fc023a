"""`up --secure`, `users` and `acls` against a real node, with real clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands import Cli
from tests.processes import serve, until
from tests.secure_node import SecureNode

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNode]:
    node = SecureNode(tmp_path_factory.mktemp("secure") / "data")
    yield node
    assert node.stop() == 0


def test_up_prints_how_to_log_in_and_protects_its_files(secure: SecureNode) -> None:
    assert secure.security["protocol"] == "SASL_SSL"
    assert secure.security["mechanism"] == "SCRAM-SHA-512"
    for name in ("properties", "ca"):
        assert Path(secure.security[name]).exists()
    for path in Path(secure.security["properties"]).parent.glob("*"):
        if path.name != "ca.pem":
            assert path.stat().st_mode & 0o077 == 0, f"others may read {path.name}"


def test_a_user_gets_in_with_its_password_and_does_only_what_rules_allow(
    secure: SecureNode,
) -> None:
    added = secure.run("users", "add", "alice", "--password-file", "-", given="s3cret\n")
    assert added.returncode == 0, added.stderr
    assert secure.run("topics", "create", "orders").returncode == 0
    assert secure.produce("alice", "s3cret", "orders") == "TOPIC_AUTHORIZATION_FAILED"
    words = ["--user", "alice", "--role", "producer", "--topic", "orders"]
    assert secure.run("acls", "add", *words).returncode == 0
    assert secure.produce("alice", "s3cret", "orders") == ""
    right = ("--user", "alice", "--topic", "orders", "--operation")
    allowed = secure.run("acls", "check", *right, "Write")
    assert allowed.stdout == "allowed: ALLOW User:alice from * WRITE on TOPIC orders\n"
    denied = secure.run("acls", "check", *right, "Read")
    assert (denied.returncode, denied.stdout[:7]) == (1, "denied:")
    listed = secure.run("acls", "list", "--topic", "orders", "--json")
    assert [row["operation"] for row in json.loads(listed.stdout)] == [
        "Write",
        "Create",
        "Describe",
    ]
    assert secure.run("acls", "remove", "--user", "alice", "--yes").returncode == 0
    assert secure.run("acls", "remove", "--user", "alice", "--yes").returncode == 4
    assert secure.produce("alice", "s3cret", "orders") == "TOPIC_AUTHORIZATION_FAILED"


def test_a_user_that_lost_write_reads_which_right_it_lacks(secure: SecureNode) -> None:
    assert secure.run("users", "add", "gina", "--password-file", "-", given="pw").returncode == 0
    assert secure.run("topics", "create", "payments").returncode == 0
    login = {"RIVERRUN_SASL_USERNAME": "gina", "RIVERRUN_SASL_PASSWORD": "pw"}
    remedy = "riverrun acls add --user gina --role producer --topic payments"

    def refused() -> str:
        done = secure.run("produce", "payments", given="x\n", environment=login)
        assert done.returncode == 1
        assert done.stderr.count("Remedy:") == 1
        assert f"`{remedy}`" in done.stderr
        return done.stderr

    assert "topic payments: TOPIC_AUTHORIZATION_FAILED" in refused()
    describe = ("acls", "add", "--user", "gina", "--operation", "Describe", "--topic", "payments")
    assert secure.run(*describe).returncode == 0
    assert "lacks the right Write on topic payments" in refused()
    elsewhere = ("acls", "add", "--user", "gina", "--operation", "Write", "--topic", "gina")
    assert secure.run(*elsewhere).returncode == 0
    assert "TOPIC_AUTHORIZATION_FAILED" in refused()
    assert secure.run(*remedy.split()[1:]).returncode == 0
    written = secure.run("produce", "payments", given="x\n", environment=login)
    assert written.returncode == 0, written.stderr


def test_check_names_the_resource_and_an_unknown_user(secure: SecureNode) -> None:
    assert secure.run("users", "add", "hugo", "--password-file", "-", given="pw").returncode == 0
    rule = ("--operation", "Read", "--topic", "named")
    assert secure.run("acls", "add", "--user", "hugo", *rule).returncode == 0
    right = ("--operation", "Write", "--topic", "named")
    for user in ("hugo", "nosuch"):
        done = secure.run("acls", "check", "--user", user, *right)
        assert done.returncode == 1
        assert done.stdout == f"denied: no rule allows WRITE on topic named to User:{user}\n"
        assert ("there is no SCRAM user nosuch" in done.stderr) == (user == "nosuch")


def test_a_changed_password_replaces_the_old_one(secure: SecureNode) -> None:
    assert secure.run("users", "add", "bob", "--password-file", "-", given="one").returncode == 0
    again = secure.run("users", "add", "bob", "--password-file", "-", given="two")
    assert again.returncode == 1
    assert "riverrun users password bob" in again.stderr
    changed = secure.run("users", "password", "bob", "--password-file", "-", given="two")
    assert changed.returncode == 0, changed.stderr
    login = {"RIVERRUN_SASL_USERNAME": "bob", "RIVERRUN_SASL_PASSWORD": "one"}
    refused = secure.run("topics", "list", environment=login)
    assert "the login failed" in refused.stderr
    assert "one" not in refused.stderr.split()
    accepted = secure.run("topics", "list", environment=login | {"RIVERRUN_SASL_PASSWORD": "two"})
    assert accepted.returncode == 0, accepted.stderr
    assert secure.run("users", "remove", "bob", "--yes").returncode == 0
    assert secure.run("users", "remove", "bob", "--yes").returncode == 4


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_password_for_one_mechanism_ends_the_old_one_for_all(
    secure: SecureNode, mechanism: str
) -> None:
    user = f"carol-{mechanism.lower()}"
    (other,) = {"SCRAM-SHA-256", "SCRAM-SHA-512"} - {mechanism}
    assert secure.run("users", "add", user, "--password-file", "-", given="one").returncode == 0
    words = ("users", "password", user, "--password-file", "-", "--mechanism")
    changed = secure.run(*words, mechanism, given="two")
    assert changed.stdout == (
        f"password of {user} changed; it is valid for {mechanism}\n"
        f"{other} removed: the old password was valid for it\n"
    )

    def log_in(secret: str, by: str) -> int:
        login = {
            "RIVERRUN_SASL_USERNAME": user,
            "RIVERRUN_SASL_PASSWORD": secret,
            "RIVERRUN_SASL_MECHANISM": by,
        }
        return secure.run("topics", "list", environment=login).returncode

    assert log_in("two", mechanism) == 0
    assert log_in("one", mechanism) == 1
    assert log_in("one", other) == 1
    both = secure.run(*words, mechanism, "--mechanism", other, given="three")
    expected = f"password of {user} changed; it is valid for SCRAM-SHA-256 and SCRAM-SHA-512\n"
    assert both.stdout == expected
    again = secure.run(*words[:-1], given="four")
    assert again.stdout == expected
    for each in (mechanism, other):
        assert log_in("four", each) == 0
        assert log_in("three", each) == 1


def test_rules_of_a_user_include_those_for_everybody(secure: SecureNode) -> None:
    rule = ("--operation", "Delete", "--topic", "kept")
    assert secure.run("acls", "add", "--user", "*", *rule, "--deny").returncode == 0
    assert secure.run("acls", "add", "--user", "dora", *rule).returncode == 0
    assert secure.run("acls", "add", "--user", "emil", *rule).returncode == 0

    def principals(*words: str) -> list[str]:
        rows = json.loads(secure.run("acls", "list", "--json", *words).stdout)
        return [row["principal"] for row in rows]

    for words in ((), ("--topic", "kept")):
        assert principals("--user", "dora", *words) == ["User:dora", "User:*"]
        assert principals("--user", "*", *words) == ["User:*"]
    removed = secure.run("acls", "remove", "--user", "dora", "--yes")
    assert removed.stdout.endswith("1 removed\n"), "only rules that name the user are removed"
    assert principals("--topic", "kept") == ["User:*", "User:emil"]
    assert secure.run("acls", "remove", "--topic", "kept", "--yes").returncode == 0


@pytest.mark.peer
def test_users_of_apache_kafka(tmp_path: Path) -> None:
    """Kafka takes one change of a user in a request."""
    with serve(tmp_path / "kafka", peer="kafka") as kafka:
        cli = Cli(kafka.bootstrap)

        def mechanisms() -> list[str]:
            rows = json.loads(cli.process("users", "list", "--json"))
            return [one["name"] for row in rows for one in row["mechanisms"]]

        words = ("--password-file", "-")
        cli.process("users", "add", "alice", *words, text="one")
        until(lambda: len(mechanisms()) == 2, seconds=30, what="Kafka lists the user")
        cli.process("users", "password", "alice", *words, text="two")
        chosen = ("--mechanism", "SCRAM-SHA-512")
        cli.process("users", "password", "alice", *chosen, *words, text="three")
        until(lambda: mechanisms() == ["SCRAM-SHA-512"], seconds=30, what="one mechanism is left")
        cli.process(
            "users",
            "password",
            "alice",
            *chosen,
            "--mechanism",
            "SCRAM-SHA-256",
            *words,
            text="four",
        )
        until(lambda: len(mechanisms()) == 2, seconds=30, what="both mechanisms are back")
        cli.process("users", "remove", "alice", "--yes")
        until(lambda: mechanisms() == [], seconds=30, what="the user is gone")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["acls", "add", "--user", "a", "--topic", "t"], "name a right"),
        (["acls", "add", "--user", "a", "--operation", "Read"], "name a resource"),
        (["acls", "add", "--user", "a", "--topic", "t", "--operation", "Fly"], "choose one of"),
        (["acls", "add", "--user", "a", "--topic", "t", "--role", "consumer"], "--group"),
        (["acls", "remove"], "name a user or a resource"),
        (["users", "add", "x"], "no password"),
        (["users", "add", ""], "the name of the user is empty"),
        (["users", "add", " "], "the name of the user is empty"),
        (["users", "add", "x", "--mechanism", "PLAIN"], "SCRAM-SHA-256"),
    ],
)
def test_incomplete_commands_say_what_is_missing(
    secure: SecureNode, words: list[str], reason: str
) -> None:
    done = secure.run(*words)
    assert done.returncode == 2
    assert reason in done.stderr
