"""DescribeConfigs, versions 1 to 4: every setting with its value, source and synonyms.

The rows come from ``cluster/configs/describe_configs.py``. A resource costs milliseconds, so one
that is named several times is described once, and the response is encoded piece by piece to yield
to the event loop in between.
"""

from __future__ import annotations

from typing import Final

from riverrun.cluster.configs import describe_configs as config_rows
from riverrun.cluster.configs.describe_configs import DescribeOptions, Rows, Synonyms
from riverrun.cluster.configs.node_configs import CLUSTER
from riverrun.cluster.topics.names import check_topic_name
from riverrun.metadata.image import ConfigType, Image
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import TopicName
from riverrun.ports.aio import Yielder
from riverrun.security.acls import AclOperation
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.security.access import require_config_right
from riverrun.server.services import NodeServices
from riverrun.wire.apis import ApiKey
from riverrun.wire.codec import encode_element, join_response
from riverrun.wire.messages.describe_configs_request import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from riverrun.wire.messages.describe_configs_response import (
    DescribeConfigsResponse,
    DescribeConfigsResult,
)

MALFORMED: Final = (
    "This most likely occurs because of a request being malformed by the client library or the "
    "message was sent to an incompatible broker. See the broker logs for more details."
)


async def handle(
    services: NodeServices, context: RequestContext, request: DescribeConfigsRequest
) -> bytes:
    yielder = Yielder(services.clock)
    version = context.api_version
    known: dict[str, Synonyms] = {}
    encoded = []
    for one in {(one.resource_type, one.resource_name): one for one in request.resources}.values():
        await yielder.step()
        result = _result(services, context, request, one, known)
        encoded.append(encode_element(ApiKey.DESCRIBE_CONFIGS, version, result))
    empty = DescribeConfigsResponse(throttle_time_ms=0, results=())
    return join_response(ApiKey.DESCRIBE_CONFIGS, version, empty, "results", encoded)


def failed(
    request: DescribeConfigsRequest, code: ErrorCode, message: str | None
) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(
        throttle_time_ms=0,
        results=tuple(_described(one, (), code, message) for one in request.resources),
    )


def _result(
    services: NodeServices,
    context: RequestContext,
    request: DescribeConfigsRequest,
    resource: DescribeConfigsResource,
    known: dict[str, Synonyms],
) -> DescribeConfigsResult:
    options = DescribeOptions(
        names=resource.configuration_keys,
        with_synonyms=request.include_synonyms,
        with_documentation=request.include_documentation,
        known=known,
    )
    image = services.metadata.current
    try:
        require_config_right(services.access, context, AclOperation.DESCRIBE_CONFIGS, resource)
        return _described(resource, _rows(services, image, resource, options))
    except KafkaError as error:
        return _described(resource, (), error.code, error.message)


def _described(
    resource: DescribeConfigsResource,
    rows: Rows,
    code: ErrorCode = ErrorCode.NONE,
    message: str | None = None,
) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        error_code=code,
        error_message=message or "",
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=rows,
    )


def _rows(
    services: NodeServices,
    image: Image,
    resource: DescribeConfigsResource,
    options: DescribeOptions,
) -> Rows:
    name = resource.resource_name
    match resource.resource_type:
        case ConfigType.TOPIC:
            check_topic_name(name)
            if TopicName(name) not in image.topics_by_name:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return config_rows.topic_rows(services.configs, image, name, options)
        case ConfigType.BROKER:
            if name == CLUSTER:
                return config_rows.cluster_rows(services.configs, image, options)
            _check_node(services, name, "Unexpected broker id, expected {} or empty string, but")
            return config_rows.broker_rows(services.configs, image, options)
        case ConfigType.BROKER_LOGGER:
            if not name:
                raise _invalid("Broker id must not be empty")
            _check_node(services, name, "Unexpected broker id, expected {} but")
            return config_rows.logger_rows(_log_level(services), options)
        case ConfigType.CLIENT_METRICS:
            if not name:
                raise _invalid("Client metrics subscription name must not be empty")
            return config_rows.metrics_rows(image, name, options)
        case ConfigType.GROUP:
            if not name:
                raise _invalid("Group name must not be empty")
            return config_rows.group_rows(services.configs, image, name, options)
        case ConfigType.PLAN:
            rows = config_rows.plan_rows(image, name, options)
            if rows is None:
                raise _invalid(MALFORMED)  # Kafka knows no resource of this type
            return rows
        case _:
            raise _invalid(MALFORMED)


def _check_node(services: NodeServices, name: str, sentence: str) -> None:
    try:
        node = int(name)
    except ValueError:
        raise _invalid(f"Broker id must be an integer, but it is: {name}") from None
    own = services.configs.node_id
    if node != own:
        raise _invalid(f"{sentence.format(own)} received {name}")


def _log_level(services: NodeServices) -> str:
    level = services.settings.identity.log_level.upper()
    return "WARN" if level == "WARNING" else level


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
