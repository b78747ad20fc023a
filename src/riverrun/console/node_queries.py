"""Questions to riverrun nodes by DescribeNode. Clusters of other brokers answer 501."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from riverrun.admin.node_facts import is_riverrun
from riverrun.admin.requests import ask_each
from riverrun.client.pool import ConnectionPool
from riverrun.console.cluster_facts import SharedFacts
from riverrun.console.problems import problem
from riverrun.console.routing import ClusterRequest
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.wire.apis import ApiKey
from riverrun.wire.private.describe_node_request import DescribeNodeRequest
from riverrun.wire.private.describe_node_response import DescribeNodeResponse

KNOWN_SECONDS: Final = 600.0
"""A cluster does not change its software often. Others log an error for each question."""
ANSWER_SECONDS_MAX: Final = 10.0

Kind = TypeVar("Kind")


async def ask_all(
    request: ClusterRequest, subject: str, query: Mapping[str, Any], kind: type[Kind]
) -> dict[int, Kind]:
    """The answers of all nodes that respond. Raises the error of a node if all refuse."""
    await check_riverrun(request)
    return await ask_nodes(request.pool, request.pool.cluster.nodes, subject, query, kind)


async def ask_one(
    request: ClusterRequest,
    node: int | None,
    subject: str,
    query: Mapping[str, Any],
    kind: type[Kind],
) -> Kind:
    """The answer of one node; None: of any node, preferably the active controller."""
    await check_riverrun(request)
    pool = request.pool
    if node is not None and node not in pool.cluster.nodes:
        raise problem("not_found", f"There is no node {node}, or it is down.")
    for each in [node] if node is not None else _controller_first(pool):
        found = await ask_nodes(pool, [each], subject, query, kind)
        if found:
            return found[each]
    raise problem("cluster_unreachable", "The node does not respond.", "Try again.")


async def ask_beside(
    request: ClusterRequest, subject: str, query: Mapping[str, Any], kind: type[Kind]
) -> Kind:
    """The answer of any node, over a connection of its own: it may take seconds, and requests of a
    connection wait for each other."""
    await check_riverrun(request)
    message = DescribeNodeRequest(subject=subject, query=msgspec.json.encode(query).decode())
    answer = await _first_answer(request.pool, message)
    if answer.error_code is not ErrorCode.NONE:
        raise KafkaError(answer.error_code, answer.error_message)
    return msgspec.json.decode(answer.content, type=kind)


async def _first_answer(pool: ConnectionPool, message: DescribeNodeRequest) -> DescribeNodeResponse:
    """Of the active controller, or of another node if that one has just died."""
    failure: OSError | None = None
    for each in _controller_first(pool):
        try:
            connection = await pool.connect(pool.cluster.nodes[each])
        except OSError as error:
            failure = error
            continue
        try:
            answer: DescribeNodeResponse = await connection.request(
                ApiKey.DESCRIBE_NODE, message, version=0
            )
        except TimeoutError:
            raise  # the page does not wait for a second one
        except OSError as error:
            failure = error
        else:
            return answer
        finally:
            connection.close()
    raise failure or problem("cluster_unreachable", "No node responds.", "Try again.")


def _controller_first(pool: ConnectionPool) -> list[int]:
    first = pool.cluster.controller_id
    return sorted(pool.cluster.nodes, key=lambda node: (node != first, node))


async def ask_nodes(
    pool: ConnectionPool,
    nodes: Iterable[int],
    subject: str,
    query: Mapping[str, Any],
    kind: type[Kind],
) -> dict[int, Kind]:
    message = DescribeNodeRequest(subject=subject, query=msgspec.json.encode(query).decode())
    answers, _ = await ask_each(
        pool,
        dict.fromkeys(nodes, message),
        ApiKey.DESCRIBE_NODE,
        version=0,
        limit_s=ANSWER_SECONDS_MAX,
    )
    refused: list[DescribeNodeResponse] = []
    found: dict[int, Kind] = {}
    for node, answer in answers.items():
        if answer.error_code is ErrorCode.NONE:
            found[node] = msgspec.json.decode(answer.content, type=kind)
        else:
            refused.append(answer)
    if refused and not found:
        raise KafkaError(refused[0].error_code, refused[0].error_message)
    return found


async def check_riverrun(request: ClusterRequest) -> None:
    """Raises ``ApiProblem`` if the nodes do not know the request. Knows their addresses after."""
    if not request.pool.cluster.nodes:
        await request.metadata()

    async def make() -> bool:
        settings = await SharedFacts(request.connected).settings()
        if any(is_riverrun(rows) for rows in settings.values()):
            return True
        return await _answers(request.pool)  # the user may not see settings

    if not await request.results.get("is riverrun", KNOWN_SECONDS, make):
        raise problem(
            "not_supported",
            "Only riverrun nodes have this page's facts.",
            "Other brokers do not keep them.",
        )


async def _answers(pool: ConnectionPool) -> bool:
    """Whether a node answers the request. Others close the connection, so it is one of its own."""
    address = next(iter(pool.cluster.nodes.values()))
    connection = await pool.connect(address)
    try:
        await connection.request(
            ApiKey.DESCRIBE_NODE, DescribeNodeRequest(subject="node"), version=0
        )
    except TimeoutError:
        raise
    except OSError:
        return False
    finally:
        connection.close()
    return True
