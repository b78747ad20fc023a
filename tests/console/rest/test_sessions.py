"""Logins to the console of a secure cluster: the broker decides, and so do its ACLs."""

from __future__ import annotations

import contextlib
import ssl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from riverrun.console.open_streams import STREAMS_PER_USER_MAX
from tests.console.rest.caller import Caller
from tests.console.rest.conftest import secure_caller
from tests.secure_node import SecureNode

pytestmark = pytest.mark.slow

SECONDS_MAX = 60
GUESSES = 20


@pytest.fixture
def browser(secure: SecureNode) -> httpx.Client:
    http = secure.told["nodes"][0]["http"]
    return httpx.Client(base_url=f"http://{http}", timeout=SECONDS_MAX)


def log_in(browser: httpx.Client, user: str, password: str, **more: str) -> httpx.Response:
    body = {"user": user, "password": password, **more}
    return browser.post("/api/v1/session", json=body)


def test_without_a_login_only_the_session_and_the_pages_are_served(
    browser: httpx.Client,
) -> None:
    session = browser.get("/api/v1/session").json()
    assert session["login_required"] and session["user"] is None
    assert session["mechanisms"] == ["SCRAM-SHA-512", "SCRAM-SHA-256"]
    assert session["problem"] is None
    assert browser.get("/ui/").status_code == 200
    refused = browser.get("/api/v1/clusters/main/topics")
    assert refused.status_code == 401
    assert refused.json()["error"]["code"] == "login_required"
    assert browser.get("/api/v1/clusters").status_code == 401


def test_a_login_sets_a_cookie_that_pages_cannot_read(
    secure: SecureNode, browser: httpx.Client
) -> None:
    response = log_in(browser, secure.security["user"], secure.security["password"])
    assert response.status_code == 200
    assert response.json()["user"] == secure.security["user"]
    cookie = response.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and "secure" not in cookie
    assert len(cookie.partition("=")[2].partition(";")[0]) >= 43, "256 bits"
    assert browser.get("/api/v1/clusters/main/overview").status_code == 200
    assert browser.get("/api/v1/session").json()["user"] == secure.security["user"]

    assert browser.delete("/api/v1/session").json()["user"] is None
    assert browser.get("/api/v1/clusters/main/overview").status_code == 401


def test_an_old_cookie_is_worth_nothing_after_the_logout(
    secure: SecureNode, browser: httpx.Client
) -> None:
    log_in(browser, secure.security["user"], secure.security["password"])
    kept = dict(browser.cookies)
    browser.delete("/api/v1/session")
    browser.cookies.update(kept)
    assert browser.get("/api/v1/clusters/main/overview").status_code == 401


def test_a_proxy_with_https_gets_a_secure_cookie(secure: SecureNode, browser: httpx.Client) -> None:
    browser.headers["X-Forwarded-Proto"] = "https"
    response = log_in(browser, secure.security["user"], secure.security["password"])
    assert "; secure" in response.headers["set-cookie"].lower()


def test_a_node_with_a_certificate_serves_https_on_the_same_port(secure: SecureNode) -> None:
    http = secure.told["nodes"][0]["http"]
    trusted = ssl.create_default_context(cafile=secure.security["ca"])
    with httpx.Client(base_url=f"https://{http}", verify=trusted, timeout=SECONDS_MAX) as browser:
        assert browser.get("/ui/").status_code == 200
        response = log_in(browser, secure.security["user"], secure.security["password"])
        cookie = response.headers["set-cookie"]
        assert "; secure" in cookie.lower()
        assert cookie.startswith("__Host-"), "no other host of the domain can set it"
        assert browser.get("/api/v1/clusters/main/nodes").status_code == 200
        ended = browser.delete("/api/v1/session").headers["set-cookie"].lower()
        assert "; secure" in ended, "the browser would not delete it otherwise"
        assert browser.get("/api/v1/clusters/main/nodes").status_code == 401
    assert httpx.get(f"http://{http}/health/ready").status_code == 200


@pytest.mark.parametrize(
    ("user", "password"), [("admin", "wrong"), ("nobody", "x"), ("", ""), ("admin", "")]
)
def test_wrong_credentials_are_refused(browser: httpx.Client, user: str, password: str) -> None:
    response = log_in(browser, user, password)
    assert response.status_code == 401
    assert "set-cookie" not in response.headers


def test_wrong_logins_of_others_keep_nobody_out(secure: SecureNode, browser: httpx.Client) -> None:
    """Each of them waits for a second before its response."""
    auth = secure.security["user"], secure.security["password"]
    with ThreadPoolExecutor(GUESSES) as pool:
        guesses = [pool.submit(log_in, browser, f"nobody-{n}", "x") for n in range(GUESSES)]
        found = log_in(browser, *auth)
        assert {guess.result().status_code for guess in guesses} == {401}
    assert found.status_code == 200, found.text


def test_one_user_has_few_logins_at_once(browser: httpx.Client) -> None:
    with ThreadPoolExecutor(GUESSES) as pool:
        guesses = [pool.submit(log_in, browser, "guessed", str(n)) for n in range(GUESSES)]
        statuses = [guess.result().status_code for guess in guesses]
    assert set(statuses) == {401, 429}


def test_a_mechanism_that_the_cluster_does_not_offer_is_refused(browser: httpx.Client) -> None:
    response = log_in(browser, "admin", "x", mechanism="PLAIN")
    assert response.status_code == 400
    assert "SCRAM-SHA-512" in response.json()["error"]["remedy"]


def test_scripts_use_http_basic(secure: SecureNode, admin: Caller) -> None:
    assert admin.get("/api/v1/session")["user"] == secure.security["user"]
    assert admin.get("overview")["nodes"] == 1
    wrong = secure_caller(secure, secure.security["user"], "wrong")
    assert wrong.problem("GET", "overview")[:2] == (401, "login_required")
    for header in ("Digest x", "Basic ?", "Basic /w=="):
        other = httpx.get(
            f"{admin.base}/api/v1/session", headers={"Authorization": header}, timeout=SECONDS_MAX
        )
        assert other.status_code == 400, header


def test_acls_decide_what_a_user_sees_and_may_do(secure: SecureNode, admin: Caller) -> None:
    user, password = "reader", "reader-secret"
    admin.call("POST", "users", {"name": user, "password": password})
    for topic in ("visible", "hidden"):
        admin.call("POST", "topics", {"name": topic, "partitions": 1})
    rule = {
        "principal": f"User:{user}",
        "operation": "DESCRIBE",
        "permission": "ALLOW",
        "resource_type": "TOPIC",
        "resource": "visible",
    }
    admin.call("POST", "acls", {"rules": [rule]})
    reader = secure_caller(secure, user, password)
    assert [row["name"] for row in reader.get("topics")["items"]] == ["visible"]
    assert reader.problem("GET", "topics/hidden")[0] in (403, 404)
    assert reader.problem("DELETE", "topics/visible")[:2] == (403, "forbidden")
    assert reader.problem("POST", "topics", {"name": "mine"})[:2] == (403, "forbidden")
    assert reader.problem("PATCH", "nodes/1/configs", {"set": {"a": "b"}})[0] == 403
    overview = reader.get("overview")
    assert overview["topics"] == 1


def test_certificates_that_end_later_are_no_concern(admin: Caller) -> None:
    concerns = admin.get("overview")["health"]["concerns"]
    assert not [one for one in concerns if "certificate" in one["text"]]


def test_passwords_are_not_logged(secure: SecureNode, browser: httpx.Client) -> None:
    log_in(browser, secure.security["user"], secure.security["password"])
    assert secure.security["password"] not in secure.logged
    folder = Path(secure.told["data"])
    logs = [path.read_text(errors="replace") for path in folder.glob("*.log")]
    assert all(secure.security["password"] not in text for text in logs)


def test_one_user_does_not_take_all_live_views(
    secure: SecureNode, admin: Caller, name: str
) -> None:
    """Two logins of a user have the limit of one."""
    admin.call("POST", "topics", {"name": name, "partitions": 1, "replication_factor": 1})
    path = f"/api/v1/clusters/main/topics/{name}/tail"
    body = {"name": name, "password": "a long password"}
    admin.call("POST", "users", body)
    rule = {"principal": f"User:{name}", "operation": "READ", "resource_type": "TOPIC"}
    admin.call("POST", "acls", {"rules": [{**rule, "resource": name}]})
    http = secure.told["nodes"][0]["http"]
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(httpx.Client(base_url=f"http://{http}", timeout=SECONDS_MAX))
            for _ in range(2)
        ]
        for client in clients:
            assert log_in(client, name, "a long password").status_code == 200
        for place in range(STREAMS_PER_USER_MAX):
            opened = stack.enter_context(clients[place % 2].stream("GET", path))
            assert opened.status_code == 200
        refused = stack.enter_context(clients[0].stream("GET", path))
        assert refused.status_code == 429
        auth = (secure.security["user"], secure.security["password"])
        others = httpx.stream("GET", f"http://{http}{path}", auth=auth, timeout=SECONDS_MAX)
        assert stack.enter_context(others).status_code == 200
