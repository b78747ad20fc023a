"""`tokens` against a real node, rights on users and tokens, and the how-to in docs/security.md."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.differential.secured import login_address, serve_secured
from tests.pages import DOCS
from tests.processes import until
from tests.secure_node import SecureNode

DAY_MS = 86_400_000
BLOCK = re.compile(r"```sh\n(.*?)```", re.DOTALL)
PASSWORDS = {"alice": "s3cret", "scheduler": "t1ming", "eve": "n0body"}

pytestmark = pytest.mark.slow


class TokenCluster(SecureNode):
    """A node with delegation tokens and some users, each with a file to log in with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(folder / "data", "delegation.token.secret.key=a-key-of-all-nodes")
        for user, password in PASSWORDS.items():
            added = self.run("users", "add", user, "--password-file", "-", given=password)
            assert added.returncode == 0, added.stderr
            text = Path(self.security["properties"]).read_text()
            text = text.replace("=ca.pem", f"={self.security['ca']}")
            text = text.replace('"admin"', f'"{user}"')
            text = text.replace(self.security["password"], password)
            self.file_of(user).write_text(text)

    def file_of(self, user: str) -> Path:
        return self.folder / f"{user}.properties"

    def done(self, user: str, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = self.run(*words, environment={"RIVERRUN_COMMAND_CONFIG": str(self.file_of(user))})
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return done

    def created(self, user: str, *words: str) -> dict[str, Any]:
        made: dict[str, Any] = json.loads(
            self.done(user, "tokens", "create", "--json", *words).stdout
        )
        return made

    def ids(self, user: str, *words: str) -> list[str]:
        rows = json.loads(self.done(user, "tokens", "list", "--json", *words).stdout)
        return [row["id"] for row in rows]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenCluster]:
    node = TokenCluster(tmp_path_factory.mktemp("tokens"))
    yield node
    assert node.stop() == 0


def test_printed_lines_log_a_program_in_until_the_token_is_removed(cluster: TokenCluster) -> None:
    printed = cluster.done("alice", "tokens", "create").stdout
    lines = Path(cluster.security["properties"]).read_text().splitlines()
    kept = [line for line in lines if not line.startswith("sasl")]
    text = "\n".join(kept).replace("=ca.pem", f"={cluster.security['ca']}")
    cluster.file_of("program").write_text(f"{text}\n{printed}")
    right = ("--operation", "Create", "--topic", "of-alice")
    assert cluster.run("acls", "add", "--user", "alice", *right).returncode == 0
    cluster.done("program", "topics", "create", "of-alice")
    refused = cluster.done("program", "tokens", "list", code=1)
    assert "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED" in refused.stderr
    assert "log in as a user" in refused.stderr
    (token,) = re.findall(r"# Token (\S+) of User:alice\.", printed)
    assert cluster.done("alice", "tokens", "expire", token, "--yes").stdout.startswith(
        f"token {token} removed"
    )
    late = cluster.done("program", "topics", "list", code=1)
    assert "the login failed" in late.stderr
    gone = cluster.done("alice", "tokens", "expire", token, "--yes", code=4)
    assert f"there is no token {token}" in gone.stderr


def test_secrets_are_shown_at_creation_only(cluster: TokenCluster) -> None:
    made = cluster.created("alice")
    assert len(made["secret"]) == 88
    renew = ["renew", made["id"]]
    for words in (["list"], ["list", "--json"], renew, [*renew, "--json"]):
        assert made["secret"] not in cluster.done("alice", "tokens", *words).stdout


def test_renewers_extend_a_token_up_to_its_end(cluster: TokenCluster) -> None:
    made = cluster.created("alice", "--renewer", "scheduler", "--max-lifetime", "2d")
    assert made["owner"] == made["requester"] == "User:alice"
    assert made["renewers"] == ["User:scheduler"]
    assert made["ends_ms"] - made["created_ms"] == 2 * DAY_MS
    assert made["expires_ms"] - made["created_ms"] == DAY_MS
    token = made["id"]
    assert token in cluster.ids("scheduler")
    assert token not in cluster.ids("scheduler", "--owner", "scheduler")
    assert token not in cluster.ids("eve")
    short = cluster.done("scheduler", "tokens", "renew", token, "--for", "1h", "--json")
    assert json.loads(short.stdout)["expires_ms"] < made["expires_ms"]
    assert f"token {token} expires at 20" in cluster.done("alice", "tokens", "renew", token).stdout
    soon = cluster.done("scheduler", "tokens", "expire", token, "--in", "1h", "--yes")
    assert f"token {token} expires at 20" in soon.stdout
    row = next(
        line.split("\t")
        for line in cluster.done("alice", "tokens", "list", "--no-headers").stdout.splitlines()
        if line.startswith(token)
    )
    assert row[1:4] == ["User:alice", "User:alice", "User:scheduler"]


def test_a_right_on_a_user_is_needed_for_its_tokens(cluster: TokenCluster) -> None:
    refused = cluster.done("eve", "tokens", "create", "--owner", "alice", code=1)
    assert "DELEGATION_TOKEN_AUTHORIZATION_FAILED" in refused.stderr
    rights = ("--operation", "CreateTokens", "--operation", "DescribeTokens")
    on = ("--user-principal", "alice")
    added = cluster.done("alice", "acls", "check", "--user", "eve", *rights[:2], *on, code=1)
    assert "CLUSTER_AUTHORIZATION_FAILED" in added.stderr  # alice may not see rules
    assert cluster.run("acls", "add", "--user", "eve", *rights, *on).stdout == (
        "added: ALLOW User:eve from * CREATE_TOKENS on USER User:alice\n"
        "added: ALLOW User:eve from * DESCRIBE_TOKENS on USER User:alice\n"
    )
    checked = cluster.run("acls", "check", "--user", "eve", *rights[:2], *on)
    assert checked.stdout.startswith("allowed: ")
    listed = json.loads(cluster.run("acls", "list", *on, "--json").stdout)
    assert [(row["resource"], row["operation"]) for row in listed] == [
        ("User", "CreateTokens"),
        ("User", "DescribeTokens"),
    ]
    made = cluster.created("eve", "--owner", "alice")
    assert (made["owner"], made["requester"]) == ("User:alice", "User:eve")
    other = cluster.created("alice")["id"]
    assert {other, made["id"]} <= set(cluster.ids("eve"))
    mismatch = cluster.done("eve", "tokens", "renew", other, code=1)
    assert "log in as its owner or as one of its renewers" in mismatch.stderr
    removed = cluster.run("acls", "remove", "--user", "eve", *on, "--yes")
    assert removed.stdout.endswith("2 removed\n")
    assert other not in cluster.ids("eve")


def test_a_right_on_a_token_lets_others_see_it(cluster: TokenCluster) -> None:
    token = cluster.created("alice")["id"]
    on = ("--delegation-token", token)
    right = ("--user", "eve", "--operation", "Describe", *on)
    assert cluster.run("acls", "check", *right).returncode == 1
    assert cluster.run("acls", "add", *right).returncode == 0
    assert cluster.run("acls", "check", *right).returncode == 0
    assert token in cluster.ids("eve")
    assert cluster.run("acls", "remove", *on, "--yes").returncode == 0
    assert token not in cluster.ids("eve")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["tokens", "create", "--max-lifetime", "soon"], "expected a duration such as"),
        (["tokens", "create", "--max-lifetime", "0s"], "expected a time between"),
        (["tokens", "create", "--max-lifetime", "9999999w"], "expected a time between"),
        (["tokens", "create", "--owner", ""], "--owner: expected a user"),
        (["tokens", "create", "--renewer", "User:"], "--renewer: expected a user"),
        (["tokens", "list", "--owner", ""], "--owner: expected a user"),
        (["tokens", "expire", "some"], "Use --yes"),
        (["acls", "add", "--user", "a", "--operation", "Read"], "--user-principal"),
    ],
)
def test_incomplete_commands_say_what_is_missing(
    cluster: TokenCluster, words: list[str], reason: str
) -> None:
    assert reason in cluster.done("alice", *words, code=2).stderr


def test_a_cluster_without_tokens_names_the_setting(tmp_path: Path) -> None:
    node = SecureNode(tmp_path / "data")
    try:
        done = node.run("tokens", "create")
        assert done.returncode == 1
        assert "delegation.token.secret.key" in done.stderr
    finally:
        assert node.stop() == 0


def test_the_how_to_works(cluster: TokenCluster) -> None:
    """The commands of the page, in order, each with the token that the second step made."""
    section = (DOCS / "security.md").read_text().partition("### Delegation tokens\n")[2]
    steps = BLOCK.findall(section.partition("\n## ")[0])
    assert len(steps) >= 3
    script = "\n".join(steps).replace(
        "TOKEN", "$(sed -n 's/^# Token \\(\\S*\\) .*/\\1/p' job.properties)"
    )
    done = subprocess.run(
        ["bash", "-xeo", "pipefail", "-c", script],
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "RIVERRUN_BOOTSTRAP": cluster.bootstrap,
            "RIVERRUN_COMMAND_CONFIG": cluster.security["properties"],
        },
        cwd=cluster.folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "User:scheduler" in done.stdout
    assert cluster.file_of("job").stat().st_mode & 0o077 == 0


@pytest.mark.peer
def test_tokens_of_apache_kafka(tmp_path: Path) -> None:
    with serve_secured(tmp_path / "kafka", {}, "kafka") as kafka:
        host, port = login_address(kafka.address)
        login = {
            "RIVERRUN_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
            "RIVERRUN_SASL_MECHANISM": "PLAIN",
            "RIVERRUN_SASL_USERNAME": "ann",
            "RIVERRUN_SASL_PASSWORD": "ann",
        }

        def tokens(*words: str) -> Any:
            done = subprocess.run(
                [sys.executable, "-m", "riverrun", "tokens", *words, "--json"],
                env={**os.environ, "RIVERRUN_BOOTSTRAP": f"{host}:{port}", **login},
                capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout)

        made = tokens("create", "--renewer", "bob", "--max-lifetime", "2d")
        assert made["owner"] == made["requester"] == "User:ann"
        listed = until(lambda: tokens("list"), seconds=30, what="Kafka lists the token")
        del made["secret"]
        assert listed == [made]
        renewed = tokens("renew", made["id"], "--for", "1h")
        assert renewed["expires_ms"] < made["expires_ms"]
        tokens("expire", made["id"], "--yes")
        until(lambda: tokens("list") == [], seconds=30, what="the token is gone")
