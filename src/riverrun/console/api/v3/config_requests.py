"""Settings in REST v3: their form, and the requests that read and change them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct
from starlette.responses import Response

from riverrun.admin.topics.admin import DELETE, SET
from riverrun.console.api.v3.frame import (
    V3Metadata,
    V3Request,
    invalid,
    not_found,
    nothing,
    of_code,
)
from riverrun.model.errors import ErrorCode
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.describe_configs_request import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from riverrun.wire.messages.describe_configs_response import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from riverrun.wire.messages.incremental_alter_configs_request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from riverrun.wire.messages.incremental_alter_configs_response import (
    IncrementalAlterConfigsResponse,
)

DEFAULT_SOURCE: Final = 5
SOURCES: Final = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    DEFAULT_SOURCE: "DEFAULT_CONFIG",
    6: "DYNAMIC_BROKER_LOGGER_CONFIG",
}


class V3Synonym(Struct, frozen=True, kw_only=True):
    """A place where a setting is set."""

    name: str
    value: str | None
    source: str


class V3Config(Struct, frozen=True, kw_only=True):
    """The common fields of a setting."""

    kind: str
    metadata: V3Metadata
    cluster_id: str
    name: str
    value: str | None
    is_default: bool
    is_read_only: bool
    is_sensitive: bool
    source: str
    synonyms: list[V3Synonym]


class V3ConfigValue(Struct, kw_only=True):
    """The new value of a setting."""

    value: str | None = None


class V3ConfigChange(Struct, kw_only=True):
    """A setting that is set, or returned to its default."""

    name: str
    value: str | None = None
    operation: Literal["SET", "DELETE"] | None = None


class V3ConfigBatch(Struct, kw_only=True):
    """Changes that are applied together."""

    data: Annotated[list[V3ConfigChange], Meta(min_length=1)]
    validate_only: bool = False


def question(kind: int, names: Sequence[str]) -> DescribeConfigsRequest:
    return DescribeConfigsRequest(
        resources=tuple(
            DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
            for name in names
        ),
        include_synonyms=True,
    )


def configs_by_resource(
    answer: DescribeConfigsResponse,
) -> dict[str, tuple[DescribeConfigsResourceResult, ...]]:
    for result in answer.results:
        if result.error_code is not ErrorCode.NONE:
            raise of_code(result.error_code, result.error_message or result.error_code.name)
    return {
        result.resource_name: tuple(sorted(result.configs, key=lambda row: row.name))
        for result in answer.results
    }


def named_config(
    request: V3Request, rows: Sequence[DescribeConfigsResourceResult]
) -> DescribeConfigsResourceResult:
    wanted = request.params["name"]
    for row in rows:
        if row.name == wanted:
            return row
    raise not_found(f"Config {wanted} cannot be found.")


def common_fields(request: V3Request, row: DescribeConfigsResourceResult) -> dict[str, Any]:
    return {
        "cluster_id": request.cluster_id,
        "name": row.name,
        "value": row.value,
        "is_default": row.config_source == DEFAULT_SOURCE,
        "is_read_only": row.read_only,
        "is_sensitive": row.is_sensitive,
        "source": _source(row.config_source),
        "synonyms": [
            V3Synonym(name=one.name, value=one.value, source=_source(one.source))
            for one in row.synonyms
        ],
    }


def _source(number: int) -> str:
    return SOURCES.get(number, "UNKNOWN")


def put_change(request: V3Request) -> V3ConfigChange:
    body: V3ConfigValue = request.body
    return V3ConfigChange(name=request.params["name"], value=body.value, operation="SET")


def reset_change(request: V3Request) -> V3ConfigChange:
    return V3ConfigChange(name=request.params["name"], operation="DELETE")


async def alter_configs(
    request: V3Request,
    kind: int,
    name: str,
    changes: Sequence[V3ConfigChange],
    *,
    validate_only: bool = False,
    node: int | None = None,
) -> Response:
    """Change settings. Those of a broker are validated by that broker."""
    if len({change.name for change in changes}) < len(changes):
        raise invalid("A config is named twice.")
    resource = AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=tuple(
            AlterableConfig(
                name=change.name,
                config_operation=DELETE if change.operation == "DELETE" else SET,
                value=None if change.operation == "DELETE" else change.value,
            )
            for change in changes
        ),
    )
    message = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=validate_only)
    key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    answer: IncrementalAlterConfigsResponse = (
        await request.pool.request(key, message)
        if node is None
        else await request.pool.request_node(node, key, message)
    )
    for row in answer.responses:
        if row.error_code is not ErrorCode.NONE:
            raise of_code(row.error_code, row.error_message or row.error_code.name)
    return nothing()
