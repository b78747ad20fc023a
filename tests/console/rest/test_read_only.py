"""A console that is read only refuses changes, and still answers questions."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from riverrun.console.app import Console, ConsoleSettings
from riverrun.console.clusters import ClusterSettings

ROOT = "/api/v1/clusters/main"
V3 = "/v3/clusters/any"


def respond(method: str, path: str, body: Any, **headers: str) -> httpx.Response:
    """The response of a console whose cluster cannot be reached."""

    async def ask() -> httpx.Response:
        cluster = ClusterSettings(name="main", bootstrap="127.0.0.1:1")
        console = Console(ConsoleSettings(clusters=(cluster,), is_read_only=True))
        transport = httpx.ASGITransport(app=console.app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1:9094"
        ) as client:
            response = await client.request(method, path, json=body, headers=headers)
        await console.sessions.close()
        return response

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", f"{ROOT}/balance", {}),
        ("POST", f"{ROOT}/users", {"name": "a", "password": "b"}),
        ("DELETE", f"{ROOT}/users/a", None),
        ("PUT", f"{ROOT}/quotas", {"user": "a", "limits": {"producer_byte_rate": 1}}),
        ("POST", f"{ROOT}/transactions/a/abort", {}),
    ],
)
def test_changes_are_forbidden(method: str, path: str, body: Any) -> None:
    response = respond(method, path, body)
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "forbidden"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", f"{V3}/topics", {"topic_name": "a"}),
        ("DELETE", f"{V3}/topics/a", None),
        ("POST", f"{V3}/topics/a/records", {}),
    ],
)
def test_changes_by_v3_are_forbidden_in_its_form(method: str, path: str, body: Any) -> None:
    response = respond(method, path, body)
    assert (response.status_code, response.json()["error_code"]) == (403, 40301)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (f"{ROOT}/balance", {"dry_run": True}),
        (f"{ROOT}/acls/check", {"user": "a", "operation": "READ", "resource_type": "CLUSTER"}),
    ],
)
def test_questions_reach_the_cluster(path: str, body: Any) -> None:
    assert respond("POST", path, body).status_code == 503


def test_pages_of_other_sites_cannot_use_v3() -> None:
    foreign = {"sec-fetch-site": "cross-site"}
    response = respond("POST", f"{V3}/topics", {"topic_name": "a"}, **foreign)
    assert response.status_code == 403
    assert "another site" in response.json()["message"]
