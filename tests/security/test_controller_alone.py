"""The first user and the audit events of a node that is a controller alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from riverrun.security.scram import ScramClient, ScramMechanism
from tests.plain_client import ConnectionClosed, PlainClient
from tests.processes import Server, executable, free_ports, until

pytestmark = pytest.mark.slow

USER, PASSWORD = "admin", "from-the-environment"
SECONDS_MAX = 30
RULE = {
    "resource_type": 2,
    "resource_name": "orders",
    "resource_pattern_type": 3,
    "principal": "User:alice",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}


class Controller(Server):
    peer = "riverrun"

    def start(self) -> None:
        self.address = ("127.0.0.1", free_ports(1))
        host, port = self.address
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        settings = {
            "process.roles": "controller",
            "listeners": f"CONTROLLER://{host}:{port}",
            "listener.security.protocol.map": "CONTROLLER:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "sasl.mechanism.controller.protocol": "PLAIN",
            "sasl.jaas.config": f'{module} required username="node" password="node-secret" '
            'user_node="node-secret" user_eve="eve-secret";',
            "authorizer.class.name": "riverrun",
            "super.users": f"User:node;User:{USER}",
            "bootstrap.admin.user": USER,
        }
        words = [word for pair in settings.items() for word in ("--set", "=".join(pair))]
        data = str(self.folder / "data")
        self.pid = self.spawn([executable(), "start", "--node-id", "1", "--data", data, *words]).pid

    @property
    def logged(self) -> str:
        return (self.folder / "server.log").read_text()


@pytest.fixture
def controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Controller]:
    monkeypatch.setenv("RIVERRUN_BOOTSTRAP_ADMIN_PASSWORD", PASSWORD)
    one = Controller(tmp_path / "node", {})
    try:
        one.start()
        yield one
    finally:
        one.stop_all()


def authenticate(client: PlainClient, message: bytes) -> bytes:
    response = client.request("sasl_authenticate", 2, {"auth_bytes": message})
    assert response["error_code"] == "NONE", response
    answer: bytes = response["auth_bytes"]
    return answer


def log_in(client: PlainClient) -> None:
    scram = ScramClient(ScramMechanism.SHA_512, USER, PASSWORD, uuid4().hex)
    assert client.request("sasl_handshake", 1, {"mechanism": "SCRAM-SHA-512"})
    authenticate(client, scram.final(authenticate(client, scram.first)))


def create_rule(client: PlainClient) -> str:
    response = client.request("create_acls", 3, {"creations": [RULE]})
    return str(response["results"][0]["error_code"])


def test_first_user_is_created_and_events_are_in_the_log(controller: Controller) -> None:
    def created() -> bool:
        try:
            with controller.client() as client:
                log_in(client)
                return create_rule(client) == "NONE"
        except (OSError, ConnectionClosed, AssertionError):
            return False  # not formed yet

    until(created, seconds=SECONDS_MAX, what=f"the first user has rights: {controller.logs()}")
    with controller.client() as client:
        client.request("sasl_handshake", 1, {"mechanism": "PLAIN"})
        authenticate(client, b"\0eve\0eve-secret")
        assert create_rule(client) == "CLUSTER_AUTHORIZATION_FAILED"

    def missing() -> list[str]:
        wanted = {
            f"user=User:{USER}": ("change", "api=CreateAcls"),
            "user=User:eve": ("denied", "api=CreateAcls", "operation=ALTER"),
        }
        lines = controller.logged.splitlines()
        return [
            user
            for user, words in wanted.items()
            if not any(user in line and all(word in line for word in words) for line in lines)
        ]

    until(lambda: not missing(), seconds=SECONDS_MAX, what="the events in the log")
    assert PASSWORD not in controller.logged
    assert "eve-secret" not in controller.logged
