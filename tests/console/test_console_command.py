"""``riverrun console``: the console for named clusters, as a process of the user."""

from __future__ import annotations

import contextlib
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.console.rest.caller import Caller
from tests.processes import Riverrun, executable, free_ports, serve
from tests.secure_node import SecureNode

pytestmark = pytest.mark.slow
SECONDS_MAX = 60


@contextlib.contextmanager
def console(*words: str) -> Iterator[Caller]:
    process = subprocess.Popen(
        [executable(), "console", "--port", "0", *words], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], SECONDS_MAX)
    line = process.stdout.readline() if ready else ""
    assert line.startswith("Console: http://127.0.0.1:"), line
    caller = Caller(line.removeprefix("Console: http://").rstrip("/\n"))
    try:
        yield caller
    finally:
        caller.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS_MAX) == 0
        process.stdout.close()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Riverrun]:
    with serve(tmp_path_factory.mktemp("console") / "node", peer="riverrun") as server:
        yield server


def test_several_clusters_are_served_by_name(node: Riverrun) -> None:
    dead = f"127.0.0.1:{free_ports(1)}"
    with console("--cluster", f"one={node.bootstrap}", "--cluster", f"two={dead}") as rest:
        assert rest.get("/api/v1/session")["clusters"] == ["one", "two"]
        one, two = rest.get("/api/v1/clusters")
        assert one["reachable"] and one["cluster_id"]
        assert not two["reachable"] and two["bootstrap"] == dead
        assert rest.get("/api/v1/clusters/one/nodes")["items"][0]["node"] == 1
        assert rest.problem("GET", "/api/v1/clusters/two/nodes")[:2] == (
            503,
            "cluster_unreachable",
        )
        assert rest.send("GET", "/").headers["location"] == "/ui/"


def test_commands_name_the_address_of_the_cluster(node: Riverrun) -> None:
    with console("--bootstrap", node.bootstrap) as rest:
        body = {"name": "it's", "dry_run": True}
        assert rest.problem("POST", "topics", body)[0] == 400
        plan = rest.call("POST", "topics", {"name": "a", "dry_run": True})
        assert plan["command"] == f"riverrun topics create a --bootstrap {node.bootstrap}"


def test_a_read_only_console_changes_nothing(node: Riverrun) -> None:
    with console("--bootstrap", node.bootstrap, "--read-only") as rest:
        assert rest.get("/api/v1/session")["read_only"]
        assert rest.problem("POST", "topics", {"name": "a"})[:2] == (403, "forbidden")
        assert rest.call("POST", "topics", {"name": "a", "dry_run": True})["placement"]
        assert rest.get("topics")["items"] == []


def test_names_of_the_console_can_be_added(node: Riverrun) -> None:
    with console("--bootstrap", node.bootstrap, "--allowed-host", "kafka.example.com") as rest:
        for name, status in (("kafka.example.com", 200), ("other.example.com", 403)):
            found = rest.send("GET", "/api/v1/session", headers={"Host": name})
            assert found.status_code == status, name


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--cluster", "a=nowhere"], "'nowhere' is not an address"),
        (["--cluster", "a=b:1", "--cluster", "a=c:1"], "a different name for each cluster"),
        (["--cluster", "staging-of-nobody"], "there is no context staging-of-nobody"),
        (["--port", "99999"], "99999"),
    ],
)
def test_invalid_words_are_refused(words: list[str], text: str) -> None:
    done = subprocess.run(
        [executable(), "console", *words],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode in (2, 4)
    assert text in done.stderr


def test_a_port_in_use_is_reported(node: Riverrun) -> None:
    port = node.http.rpartition(":")[2]
    done = subprocess.run(
        [executable(), "console", "--bootstrap", node.bootstrap, "--port", port],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "Address already in use; choose another --port" in done.stderr


def each_cluster_needs_its_own_login(rest: Caller, secure: SecureNode) -> None:
    login = {"user": secure.security["user"], "password": secure.security["password"]}
    with httpx.Client(base_url=rest.base, timeout=SECONDS_MAX) as browser:

        def status(cluster: str) -> int:
            return browser.get(f"/api/v1/clusters/{cluster}/overview").status_code

        session = browser.post("/api/v1/session", json={**login, "cluster": "b"}).json()
        assert (session["cluster"], session["user"]) == ("b", login["user"])
        other = browser.get("/api/v1/session", params={"cluster": "a"}).json()
        assert (other["cluster"], other["login_required"], other["user"]) == ("a", True, None)
        assert (status("a"), status("b")) == (401, 200)
        rows = browser.get("/api/v1/clusters").json()
        assert [row["login_required"] for row in rows] == [True, False]
        browser.post("/api/v1/session", json={**login, "cluster": "a"}).raise_for_status()
        assert (status("a"), status("b")) == (200, 200)
        browser.delete("/api/v1/session")
        assert (status("a"), status("b")) == (401, 401)


def test_the_file_of_settings_decides_whether_users_log_in(tmp_path: Path) -> None:
    secure = SecureNode(tmp_path / "data")
    try:
        whole = Path(secure.security["properties"])
        alone = tmp_path / "tls.properties"
        alone.write_text(
            f"security.protocol=SASL_SSL\nssl.truststore.location={secure.security['ca']}\n"
        )
        at = ("--bootstrap", secure.bootstrap)
        with console(*at, "--command-config", str(whole)) as rest:
            session = rest.get("/api/v1/session")
            assert not session["login_required"]
            assert session["user"] == secure.security["user"]
            assert rest.get("overview")["nodes"] == 1
        with console(*at, "--command-config", str(alone)) as rest:
            assert rest.get("/api/v1/session")["login_required"]
            assert rest.problem("GET", "overview")[0] == 401
        with console(
            *("--cluster", f"a={secure.bootstrap}", "--cluster", f"b={secure.bootstrap}"),
            *("--command-config", str(alone)),
        ) as rest:
            each_cluster_needs_its_own_login(rest, secure)
        with console(*at, "--command-config", str(alone)) as rest:
            auth = (secure.security["user"], secure.security["password"])
            url = f"{rest.base}/api/v1/clusters/main/overview"
            assert httpx.get(url, auth=auth, timeout=SECONDS_MAX).status_code == 200
        with console(*at) as rest:
            assert rest.problem("GET", "overview")[:2] == (503, "cluster_unreachable")
    finally:
        secure.stop()
