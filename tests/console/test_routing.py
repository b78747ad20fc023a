"""The table of endpoints: paths, parameters, and requests that are refused."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from msgspec import Struct

from riverrun.console.app import Console, ConsoleSettings
from riverrun.console.clusters import ClusterSettings
from riverrun.console.listing import ListQuery, matching, ordered, page_of
from riverrun.console.problems import ApiProblem, as_problem
from riverrun.console.routing import ApiEndpoint, ClusterRequest, EndpointTable
from riverrun.model.errors import ErrorCode, KafkaError

NOBODY = "127.0.0.1:1"
"""No cluster listens here."""


async def nothing(_: ClusterRequest) -> None:
    return None


def table(*paths: str) -> EndpointTable:
    return EndpointTable(
        ApiEndpoint(method, path, nothing, "A test")
        for method, _, path in (text.partition(" ") for text in paths)
    )


def test_names_in_a_path_are_decoded_after_matching() -> None:
    found, params = table("GET groups/{group}", "GET groups/{group}/offsets").find(
        "GET", "/api/v1/clusters/main/groups/a%2Fb%20c/offsets"
    )
    assert found.path == "groups/{group}/offsets"
    assert params == {"cluster": "main", "group": "a/b c"}


def test_a_fixed_word_wins_over_a_parameter() -> None:
    endpoints = table("GET topics/{topic}", "GET topics/all")
    assert endpoints.find("GET", "/api/v1/clusters/main/topics/all")[0].path == "topics/all"
    assert endpoints.find("HEAD", "/api/v1/clusters/main/topics/x")[1]["topic"] == "x"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/v1/nowhere", 404),
        ("GET", "/api/v1/clusters/main/topics/", 404),
        ("GET", "/api/v1/clusters//topics/a", 404),
        ("DELETE", "/api/v1/clusters/main/topics/a", 405),
    ],
)
def test_other_paths_and_methods_are_refused(method: str, path: str, status: int) -> None:
    with pytest.raises(ApiProblem) as refused:
        table("GET topics/{topic}").find(method, path)
    assert refused.value.status == status


def test_an_endpoint_is_declared_once() -> None:
    with pytest.raises(AssertionError, match="declared twice"):
        table("GET topics/{topic}", "GET topics/{name}")


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no"), 403, "forbidden"),
        (KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no"), 404, "not_found"),
        (KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, "no"), 409, "conflict"),
        (KafkaError(ErrorCode.INVALID_CONFIG, "no"), 400, "invalid"),
        (KafkaError(ErrorCode.UNSUPPORTED_VERSION, "no"), 501, "not_supported"),
        (KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "no"), 500, "error"),
        (TimeoutError(), 504, "timeout"),
        (ConnectionResetError("gone"), 503, "cluster_unreachable"),
    ],
)
def test_failures_of_the_cluster_become_problems(
    failure: Exception, status: int, code: str
) -> None:
    found = as_problem(failure)
    assert (found.status, found.code) == (status, code)
    assert found.message.endswith(".")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("payments-0: CORRUPT_MESSAGE", "payments-0: CORRUPT_MESSAGE."),
        ("payments: NOT_FOUND", "payments: NOT_FOUND."),
        ("min.insync.replicas is 2", "min.insync.replicas is 2."),
        ("your user lacks a right", "Your user lacks a right."),
        ("topic payments: exists", "Topic payments: exists."),
    ],
)
def test_names_at_the_start_of_a_message_keep_their_letters(text: str, shown: str) -> None:
    assert as_problem(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, text)).message == shown


class Row(Struct):
    name: str
    size: int | None


ROWS = [Row("b", 2), Row("a", None), Row("c", 1), Row("A2", 2)]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        (ListQuery(), ["A2", "a", "b", "c"]),
        (ListQuery(q="A"), ["A2", "a"]),
        (ListQuery(sort="size"), ["c", "A2", "b", "a"]),
        (ListQuery(sort="size", order="desc"), ["A2", "b", "c", "a"]),
    ],
)
def test_lists_are_searched_and_sorted_with_unknown_values_last(
    query: ListQuery, names: list[str]
) -> None:
    keys = {"name": lambda row: row.name, "size": lambda row: row.size}
    found = ordered(matching(ROWS, query, lambda row: row.name), query, keys, "name")
    assert [row.name for row in found] == names


def test_pages_count_all_items() -> None:
    page = page_of(list(range(7)), ListQuery(page=2, limit=3))
    assert (page.items, page.total) == ([3, 4, 5], 7)
    assert page_of(list(range(7)), ListQuery(page=9, limit=3)).items == []


# The application without a cluster


def ask(
    method: str,
    path: str,
    *,
    is_read_only: bool = False,
    is_local: bool = False,
    hosts: tuple[str, ...] = (),
    tls: dict[str, str] | None = None,
    protocol: str = "PLAINTEXT",
    **more: Any,
) -> httpx.Response:
    async def send() -> httpx.Response:
        properties = {"security.protocol": protocol}
        cluster = ClusterSettings(name="main", bootstrap=NOBODY, properties=properties)
        settings = ConsoleSettings(
            clusters=(cluster,),
            is_read_only=is_read_only,
            is_local=is_local,
            hosts=hosts,
            tls=tls or {},
        )
        transport = httpx.ASGITransport(app=Console(settings).app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.request(method, path, **more)

    return asyncio.run(send())


def test_a_cluster_without_users_needs_no_login() -> None:
    session = ask("GET", "/api/v1/session").json()
    assert session["clusters"] == ["main"]
    assert not session["login_required"] and session["user"] is None


def test_an_unreachable_cluster_is_a_503_with_a_remedy() -> None:
    response = ask("GET", "/api/v1/clusters/main/overview")
    assert response.status_code == 503
    error = response.json()["error"]
    assert error["code"] == "cluster_unreachable" and "connection refused" in error["message"]
    assert error["remedy"]
    assert ask("GET", "/api/v1/clusters").json() == [
        {
            "name": "main",
            "bootstrap": NOBODY,
            "cluster_id": None,
            "reachable": False,
            "login_required": False,
        }
    ]


def test_an_unknown_cluster_is_a_404() -> None:
    response = ask("GET", "/api/v1/clusters/other/overview")
    assert response.status_code == 404
    assert response.json()["error"]["remedy"] == "It has: main."


@pytest.mark.parametrize(
    ("headers", "is_refused"),
    [
        ({}, False),
        ({"Sec-Fetch-Site": "same-origin"}, False),
        ({"Sec-Fetch-Site": "none"}, False),
        ({"Sec-Fetch-Site": "cross-site"}, True),
        ({"Sec-Fetch-Site": "same-site"}, True),
        ({"Origin": "http://127.0.0.1"}, False),
        ({"Origin": "http://evil.example"}, True),
        ({"Origin": "null"}, True),
        ({"Sec-Fetch-Site": "cross-site", "X-Riverrun-Console": "1"}, False),
    ],
)
def test_writes_of_other_sites_are_refused(headers: dict[str, str], is_refused: bool) -> None:
    response = ask("DELETE", "/api/v1/session", headers=headers)
    assert response.status_code == (403 if is_refused else 200)


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b'{"user": "a", "password": "' + b"x" * 300_000 + b'"}', 413),
        (b'{"other": ' + b"[" * 30_000 + b"]" * 30_000 + b"}", 400),
    ],
)
def test_a_login_with_a_large_or_deep_body_is_refused(content: bytes, status: int) -> None:
    assert ask("POST", "/api/v1/session", content=content).status_code == status


@pytest.mark.parametrize("name", ["a%00b.js", "a" * 5000 + ".js", "%2e%2e/app.py"])
def test_files_with_impossible_names_do_not_exist(name: str) -> None:
    assert ask("GET", f"/static/1/{name}").status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "topics", {"name": "a", "partitions": 2**31}),
        ("POST", "topics/a/partitions", {"count": 2**31}),
        ("POST", "groups/a/reset", {"to": "time", "value": 2**63}),
        ("GET", f"topics/a/messages?from=time&time_ms={2**63}", None),
    ],
)
def test_numbers_that_kafka_cannot_express_are_refused(method: str, path: str, body: Any) -> None:
    response = ask(method, f"/api/v1/clusters/main/{path}", json=body)
    assert response.status_code == 400, response.text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),
        ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}, 200),
    ],
)
def test_pages_of_other_sites_may_link_to_reads_alone(headers: dict[str, str], status: int) -> None:
    """They could not see the response, but could open live views until there are too many."""
    response = ask("GET", "/api/v1/session", headers=headers)
    assert response.status_code == status
    assert "access-control-allow-origin" not in response.headers
    assert response.headers["cross-origin-resource-policy"] == "same-origin"


def test_other_sites_get_no_permission_to_send_the_header_of_the_console() -> None:
    asked = {
        "Origin": "http://evil.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "x-riverrun-console",
    }
    response = ask("OPTIONS", "/api/v1/session", headers=asked)
    assert response.status_code in (403, 404, 405)
    assert not [name for name in response.headers if name.startswith("access-control-")]


def test_a_read_only_console_refuses_writes_but_not_dry_runs() -> None:
    path = "/api/v1/clusters/main/topics"
    refused = ask("POST", path, json={"name": "a"}, is_read_only=True)
    assert refused.status_code == 403 and "read only" in refused.json()["error"]["message"]
    dry = ask("POST", path, json={"name": "a", "dry_run": True}, is_read_only=True)
    assert dry.status_code == 503, "it reaches the cluster, which does not exist"


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("topics", b"{", "truncated"),
        ("topics", b"[]", "Expected `object`"),
        ("topics", b'{"name": "a", "partitions": 0}', "partitions"),
        ("topics", b"{}", "name"),
        ("groups/g/reset", b'{"to": "yesterday"}', "yesterday"),
    ],
)
def test_invalid_bodies_are_explained(path: str, body: bytes, text: str) -> None:
    response = ask("POST", f"/api/v1/clusters/main/{path}", content=body)
    assert response.status_code == 400
    assert text in response.json()["error"]["message"]


def test_a_large_body_is_refused() -> None:
    response = ask("POST", "/api/v1/clusters/main/topics", content=b" " * (17 * 1024 * 1024))
    assert response.status_code == 413


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "page=0", "page=x", "order=up"])
def test_invalid_queries_are_refused(query: str) -> None:
    assert ask("GET", f"/api/v1/clusters/main/topics?{query}").status_code == 400


def test_an_unchanged_response_is_not_sent_again() -> None:
    tag = ask("GET", "/api/v1/session").headers["etag"]
    again = ask("GET", "/api/v1/session", headers={"If-None-Match": f'"other", {tag}'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert ask("GET", "/api/v1/session", headers={"If-None-Match": '"x"'}).status_code == 200


def test_large_responses_are_compressed() -> None:
    response = ask("GET", "/api/v1/openapi.json", headers={"Accept-Encoding": "gzip"})
    assert response.headers["content-encoding"] == "gzip"
    assert response.json()["openapi"] == "3.1.0"


HOSTS = ("Node1.example.com", ".lan", "2001:db8::7")


@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        ("127.0.0.1:9094", True),
        ("10.0.0.1:9094", True),
        ("[::1]:9094", True),
        ("[2001:db8::1]", True),
        ("localhost", True),
        ("LOCALHOST.:9094", True),
        ("console.localhost:80", True),
        ("node1.example.com:9094", True),
        ("node1.example.com.", True),
        ("kafka.lan", True),
        ("lan", False),
        ("evillan", False),
        ("node2.example.com", False),
        ("127.0.0.1.evil.example", False),
        ("node1.example.com.evil.example", False),
        ("evil.example:9094", False),
        ("evil.example:80:127.0.0.1", False),
        ("[evil.example]:80", False),
        ("2130706433", False),
        ("", False),
    ],
)
@pytest.mark.parametrize("is_local", [True, False])
def test_names_that_the_console_does_not_know_are_refused(
    host: str, is_own: bool, is_local: bool
) -> None:
    """A page of another site can give its own name our address (DNS rebinding)."""
    for path in ("/ui/", "/api/v1/session", "/static/x/app.js", "/v3/clusters", "/api/v1/nothing"):
        response = ask("GET", path, is_local=is_local, hosts=HOSTS, headers={"Host": host})
        assert (response.status_code == 403) is not is_own, path
    if not is_own:
        error = ask("GET", "/ui/", hosts=HOSTS, headers={"Host": host}).json()["error"]
        assert "console.allowed.hosts" in error["remedy"]
        assert not host or host not in str(error)


def test_a_star_allows_all_names() -> None:
    assert ask("GET", "/ui/", hosts=("*",), headers={"Host": "any.example"}).status_code == 200


@pytest.mark.parametrize(
    ("tls", "is_local", "headers", "status"),
    [
        ({"ssl.keystore.location": "x"}, False, {}, 403),
        ({"ssl.keystore.location": "x"}, False, {"X-Forwarded-Proto": "https"}, 503),
        ({"ssl.keystore.location": "x"}, True, {}, 503),
        ({}, False, {}, 503),
    ],
)
def test_passwords_need_https_where_there_is_a_certificate(
    tls: dict[str, str], is_local: bool, headers: dict[str, str], status: int
) -> None:
    """503: the login is tried, and there is no cluster."""
    body = {"user": "a", "password": "b"}
    more: dict[str, Any] = {"tls": tls, "is_local": is_local, "protocol": "SASL_PLAINTEXT"}
    found = ask("POST", "/api/v1/session", json=body, headers=headers, **more)
    assert found.status_code == status
    basic = ask("GET", "/api/v1/clusters", auth=("a", "b"), headers=headers, **more)
    assert basic.status_code == status


# Pages and files


def test_all_addresses_of_pages_serve_the_same_page() -> None:
    page = ask("GET", "/ui/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["cache-control"] == "no-cache"
    policy = page.headers["content-security-policy"]
    assert "default-src 'self'" in policy and "frame-ancestors 'none'" in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    assert ask("GET", "/ui/main/topics/a%2Fb").text == page.text
    assert ask("GET", "/").headers["location"] == "/ui/"
    assert "/VERSION/" not in page.text


def test_the_description_of_the_api_has_a_page() -> None:
    page = ask("GET", "/api/v1/docs")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    assert "/VERSION/" not in page.text


def test_files_are_cached_under_their_version() -> None:
    address = ask("GET", "/ui/").text.partition('src="')[2].partition('"')[0]
    script = ask("GET", address)
    assert script.status_code == 200
    assert script.headers["content-type"].startswith("text/javascript")
    assert "immutable" in script.headers["cache-control"]
    name = address.partition("/static/")[2].partition("/")[2]
    other = ask("GET", f"/static/other-version/{name}")
    assert (other.content, other.headers["cache-control"]) == (script.content, "no-cache")
    tag = {"If-None-Match": other.headers["etag"]}
    again = ask("GET", f"/static/other-version/{name}", headers=tag)
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("name", ["app.js", "style.css", "vendor/uplot.js", "theme-first.js"])
def test_files_are_sent_compressed(name: str) -> None:
    packed = ask("GET", f"/static/x/{name}", headers={"Accept-Encoding": "gzip, br"})
    plain = ask("GET", f"/static/x/{name}", headers={"Accept-Encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert all("Accept-Encoding" in one.headers["vary"] for one in (packed, plain))
    assert packed.content == plain.content  # decoded by the client
    assert int(packed.headers["content-length"]) < len(plain.content) or name == "theme-first.js"


def test_workers_may_run_the_filters_of_users_without_the_network() -> None:
    policy = ask("GET", "/static/x/workers/filter.js").headers["content-security-policy"]
    assert policy == "default-src 'none'; script-src 'self' 'unsafe-eval'"


@pytest.mark.parametrize(
    "path",
    [
        "../app.py",
        "..%2Fapp.py",
        "%2e%2e/app.py",
        "lib/../../app.py",
        "lib/..%2f..%2f__init__.py",
        "%2Fetc%2Fpasswd",
        "//etc/passwd",
        "lib",
        "",
        "nothing.js",
    ],
)
def test_files_outside_the_folder_are_not_served(path: str) -> None:
    response = ask("GET", f"http://127.0.0.1/static/x/{path}")
    assert response.status_code == 404, response.text
