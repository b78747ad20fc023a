"""Logins, and the clusters of this console."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct
from starlette.responses import Response

import riverrun
from riverrun.console.clusters import ClusterEntry
from riverrun.console.openapi import describe
from riverrun.console.problems import HANDLED, ErrorDetails, as_problem, body_of
from riverrun.console.routing import JSON, ApiEndpoint, ClusterRequest
from riverrun.console.sessions import UserAccess, cookie_name, is_https

TAG: Final = "session"
PASSWORD_LENGTH_MAX: Final = 64 * 1024
LOGIN_BYTES_MAX: Final = 256 * 1024
"""Everybody may send this request, so that many of them must not fill the memory."""


class SessionState(Struct, kw_only=True):
    """The console, and who uses it."""

    version: str
    clusters: list[str]
    cluster: str | None
    """The cluster that the login is for: the requested one, or the first one with users."""
    login_required: bool
    """Whether this cluster has users. If so and ``user`` is null, log in."""
    mechanisms: list[str]
    """The SASL mechanisms that this cluster offers. The password of OAUTHBEARER is a token."""
    user: str | None
    read_only: bool
    problem: ErrorDetails | None = None
    """Why nobody can log in: the cluster does not respond, or it accepts certificates only."""


class SessionQuery(Struct, kw_only=True):
    cluster: str | None = None
    """Each cluster has its own users. Without a name, the first cluster with users."""


class LoginBody(Struct, kw_only=True):
    """The credentials of a user of a cluster. Logins to other clusters stay."""

    user: str
    password: str
    cluster: str | None = None
    """Without a name, the first cluster with users."""
    mechanism: str | None = None
    """Without one, those of the cluster that take a password are tried."""


class ListedCluster(Struct, kw_only=True):
    """A cluster of this console."""

    name: str
    bootstrap: str
    cluster_id: str | None
    reachable: bool
    login_required: bool
    """Whether this session has no login to the cluster."""


async def get_session(request: ClusterRequest) -> SessionState:
    return await _state(request, request.access_if_any, request.query.cluster)


async def log_in(request: ClusterRequest) -> Response:
    body: LoginBody = request.body
    sessions = request.sessions
    if not sessions.needs_login:
        return _response(await _state(request, request.access_if_any, body.cluster))
    sessions.check_protected(request.raw)
    session_id, access = await sessions.log_in(
        body.user,
        body.password[:PASSWORD_LENGTH_MAX],
        body.mechanism,
        cluster=body.cluster,
        session_id=request.raw.cookies.get(cookie_name(request.raw), ""),
    )
    response = _response(await _state(request, access, body.cluster))
    response.set_cookie(
        cookie_name(request.raw),
        session_id,
        httponly=True,
        samesite="strict",
        secure=is_https(request.raw),
    )
    return response


async def log_out(request: ClusterRequest) -> Response:
    await request.sessions.log_out(request.raw.cookies.get(cookie_name(request.raw), ""))
    remaining = None if request.sessions.needs_login else request.access_if_any
    response = _response(await _state(request, remaining, request.query.cluster))
    response.delete_cookie(
        cookie_name(request.raw), httponly=True, samesite="strict", secure=is_https(request.raw)
    )
    return response


def _response(state: SessionState) -> Response:
    return Response(msgspec.json.encode(state), media_type=JSON)


async def _state(
    request: ClusterRequest, access: UserAccess | None, cluster: str | None
) -> SessionState:
    sessions = request.sessions
    names = [entry.name for entry in sessions.entries]
    # An address may have the name of a cluster that was removed. Its pages say so.
    wanted = cluster if cluster in names else None
    entry = next(entry for entry in sessions.entries if wanted in (None, entry.name))
    if access is None or wanted is None:
        entry = sessions.login_entry(wanted) or entry
    mechanisms, failure = await _offered(entry)
    return SessionState(
        version=riverrun.__version__,
        clusters=names,
        cluster=entry.name,
        login_required=entry.needs_login,
        mechanisms=mechanisms,
        user=access.user_in(entry.name) if access is not None else None,
        read_only=request.raw.app.state.is_read_only,
        problem=failure,
    )


async def _offered(entry: ClusterEntry) -> tuple[list[str], ErrorDetails | None]:
    """The mechanisms of the cluster, and why nobody can log in."""
    try:
        entry.check_usable()
        if entry.needs_login:
            return [mechanism.value for mechanism in await entry.mechanisms()], None
    except HANDLED as error:
        return [], body_of(as_problem(error)).error
    return [], None


async def list_clusters(request: ClusterRequest) -> list[ListedCluster]:
    found = []
    for entry in request.sessions.entries:
        cluster_id = None
        is_open = request.access.is_open(entry.name)
        try:
            if is_open:
                cluster_id = (await request.at(entry.name).metadata()).cluster_id
            else:
                await entry.mechanisms()
            is_reachable = True
        except HANDLED:
            is_reachable = False
        found.append(
            ListedCluster(
                name=entry.name,
                bootstrap=entry.bootstrap,
                cluster_id=cluster_id,
                reachable=is_reachable,
                login_required=not is_open,
            )
        )
    return found


async def get_openapi(request: ClusterRequest) -> Response:
    table = request.raw.app.state.table
    return Response(msgspec.json.encode(describe(table.endpoints)), media_type=JSON)


ENDPOINTS: Final = (
    ApiEndpoint(
        "GET",
        "/session",
        get_session,
        "Who uses a cluster of this console, and how to log in",
        query=SessionQuery,
        response=SessionState,
        tag=TAG,
        needs_cluster=False,
        needs_login=False,
    ),
    ApiEndpoint(
        "POST",
        "/session",
        log_in,
        "Log in as a user of a cluster",
        body=LoginBody,
        body_bytes_max=LOGIN_BYTES_MAX,
        response=SessionState,
        tag=TAG,
        needs_cluster=False,
        needs_login=False,
        is_write=False,
    ),
    ApiEndpoint(
        "DELETE",
        "/session",
        log_out,
        "Log out of all clusters",
        query=SessionQuery,
        response=SessionState,
        tag=TAG,
        needs_cluster=False,
        needs_login=False,
        is_write=False,
    ),
    ApiEndpoint(
        "GET",
        "/clusters",
        list_clusters,
        "The clusters of this console",
        response=list[ListedCluster],
        tag=TAG,
        needs_cluster=False,
    ),
    ApiEndpoint(
        "GET",
        "/openapi.json",
        get_openapi,
        "This API in the form of OpenAPI 3.1",
        response=dict[str, Any],
        tag=TAG,
        needs_cluster=False,
        needs_login=False,
    ),
)
