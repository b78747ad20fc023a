"""`quotas` against a real node, and the how-to about tenants in docs/security.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from riverrun.admin.access.quota_admin import ListedQuota, NodeUse, attribute
from riverrun.cli.support.sizes import parse_bytes
from riverrun.wire.private.describe_quota_use_response import MeasuredUse
from tests.pages import MARK, examples
from tests.secure_node import SecureNode


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNode]:
    node = SecureNode(tmp_path_factory.mktemp("quotas") / "data")
    yield node
    assert node.stop() == 0


@pytest.fixture
def empty(secure: SecureNode) -> Iterator[SecureNode]:
    yield secure
    for row in listed(secure):
        words = [
            word
            for kind, name in row["entity"].items()
            for word in ([f"--default-{kind}"] if name is None else [f"--{kind}", name])
        ]
        assert secure.run("quotas", "remove", row["quota"], *words, "--yes").returncode == 0


def listed(node: SecureNode, *words: str) -> list[dict[str, Any]]:
    done = node.run("quotas", "list", "--json", *words)
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


@pytest.mark.slow
def test_the_how_to_for_tenants_shows_real_output(empty: SecureNode, tmp_path: Path) -> None:
    tmp_path.joinpath("alice.password").write_text("s3cret\n")
    shown = examples("security.md")
    assert len(shown) >= 6
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", f"\necho '{MARK}'\n".join(one for one, _ in shown)],
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "RIVERRUN_BOOTSTRAP": empty.bootstrap,
            "RIVERRUN_COMMAND_CONFIG": empty.security["properties"],
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    for (command, output), printed in zip(shown, done.stdout.split(f"{MARK}\n"), strict=True):
        assert printed == output, (command, done.stderr)
    assert done.returncode == 0, done.stderr
    assert empty.run("topics", "create", "bob.orders").returncode == 0
    login = {"RIVERRUN_SASL_USERNAME": "alice", "RIVERRUN_SASL_PASSWORD": "s3cret"}
    created = empty.run("topics", "create", "alice.orders", environment=login)
    assert created.returncode == 0, created.stderr
    seen = empty.run("topics", "list", "--json", environment=login)
    assert [row["name"] for row in json.loads(seen.stdout)] == ["alice.orders"]
    refused = empty.run("topics", "create", "bob.more", environment=login)
    assert "AUTHORIZATION_FAILED" in refused.stderr
    assert empty.produce("alice", "s3cret", "alice.orders") == ""
    (quota,) = [
        row for row in listed(empty, "--user", "alice") if row["quota"] == "producer_byte_rate"
    ]
    (use,) = quota["uses"]
    assert (use["node"], use["user"]) == (1, "alice")
    assert use["rate"] > 0
    mutations = [
        use
        for row in listed(empty, "--user", "alice")
        if row["quota"] == "controller_mutation_rate"
        for use in row["uses"]
    ]
    assert [use["user"] for use in mutations] == ["alice"]


@pytest.mark.slow
def test_quotas_are_set_listed_and_removed(empty: SecureNode) -> None:
    def run(*words: str) -> str:
        done = empty.run("quotas", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    printed = run("set", "--user", "ann", "--client-id", "app", "consumer_byte_rate=64MiB")
    assert printed == "user ann, client-id app: consumer_byte_rate = 67108864\n"
    run("set", "--user", "ann", "request_percentage=12.5", "producer_byte_rate=1.5kB")
    run("set", "--default-ip", "connection_creation_rate=50")
    assert [(row["entity"], row["quota"], row["limit"]) for row in listed(empty)] == [
        ({"ip": None}, "connection_creation_rate", 50.0),
        ({"user": "ann"}, "producer_byte_rate", 1500.0),
        ({"user": "ann"}, "request_percentage", 12.5),
        ({"client-id": "app", "user": "ann"}, "consumer_byte_rate", 67108864.0),
    ]
    assert len(listed(empty, "--user", "ann")) == 3
    assert len(listed(empty, "--client-id", "app")) == 1
    assert run("remove", "--user", "ann", "request_percentage", "--yes") == (
        "user ann: request_percentage removed\n"
    )
    run("remove", "--user", "ann", "--yes")
    assert [row["quota"] for row in listed(empty, "--user", "ann")] == ["consumer_byte_rate"]
    missing = empty.run("quotas", "remove", "--user", "ann", "--yes")
    assert (missing.returncode, "riverrun quotas list" in missing.stderr) == (4, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["set", "producer_byte_rate=1MB"], "name whose quota it is"),
        (["set", "--user", "a", "producer_byte_rate=fast"], "10MB"),
        (["set", "--user", "a", "producer_byte_rate=0"], "10MB"),
        (["set", "--user", "a", "request_percentage=-1"], "greater than 0"),
        (["set", "--user", "a", "connection_creation_rate=1"], "controller_mutation_rate"),
        (["set", "--ip", "::1", "producer_byte_rate=1"], "connection_creation_rate"),
        (["set", "--user", "a", "--ip", "::1", "x=1"], "cannot be combined"),
        (["set", "--user", "a", "--default-user", "x=1"], "not both"),
        (["remove"], "name whose quota it is"),
    ],
)
def test_wrong_commands_say_what_is_expected(
    secure: SecureNode, words: list[str], reason: str
) -> None:
    done = secure.run("quotas", *words)
    assert done.returncode == 2
    assert reason in done.stderr


def quota(user: str | None = "", client_id: str | None = "") -> ListedQuota:
    names = {"user": user, "client-id": client_id}
    entity = {kind: name for kind, name in names.items() if name != ""}
    return ListedQuota(entity=entity, key="producer_byte_rate", limit=100.0)


def use(user: str, client_id: str, rate: float, node: int = 1) -> NodeUse:
    key = "producer_byte_rate"
    return NodeUse(node=node, use=MeasuredUse(key=key, user=user, client_id=client_id, rate=rate))


def test_each_use_counts_for_the_most_specific_quota() -> None:
    own, default, both, client = quota("ann"), quota(None), quota("ann", None), quota("", "app")
    uses = [
        use("ann", "", 1.0),
        use("bob", "", 2.0),
        use("eve", "", 3.0, node=2),
        use("ann", "app", 4.0),
        use("", "app", 5.0),
        use("", "gone", 6.0),
    ]
    attribute([own, default, both, client], uses)
    rates = [[one.use.rate for one in quota.uses] for quota in (own, default, both, client)]
    assert rates == [[1.0], [3.0, 2.0], [4.0], [5.0]]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("1.5kB", 1500),
        ("10MB", 10**7),
        ("2 MiB/s", 2 << 20),
        ("1G", 10**9),
        ("fast", None),
    ],
)
def test_sizes(text: str, size: int | None) -> None:
    assert parse_bytes(text) == size
