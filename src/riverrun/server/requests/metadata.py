"""Metadata: the brokers, the topics, and the leaders of their partitions.

Behaviour:

* Creates unknown topics if the client and the node allow it. A new topic is in the response at
  once; Kafka reports it as unknown first, and the client retries.
* A fenced broker stays listed for a few seconds. One that starts is listed before it is unfenced.
* A response waits up to 0.3 s for a new leader if the current one may be dead
  (``dispatch/broker_visibility.py``).
* Topics are encoded one by one and cached as bytes (``dispatch/response_cache.py``).

Versions 0 to 13:

* v0: an empty list means all topics; from v1 on, null does
* v4: the client says whether topics may be created
* v8 to v10: authorized operations of the cluster (KIP-430)
* v10: topic ids in the response; v12: topic ids in the request (KIP-516)
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Final
from uuid import UUID

from riverrun.cluster.topics.auto_creation import creatable
from riverrun.cluster.topics.names import is_topic_name
from riverrun.metadata.image import BrokerImage, Image, PartitionImage, TopicImage
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId, TopicId, TopicName
from riverrun.model.names import INTERNAL_TOPICS
from riverrun.ports.aio import Yielder
from riverrun.security.acls import AclOperation, ResourceType
from riverrun.server.dispatch.broker_visibility import live_brokers
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.dispatch.response_cache import EncodedTopics
from riverrun.server.services import BrokerServices
from riverrun.wire.apis import ApiKey
from riverrun.wire.codec import encode_element, join_response
from riverrun.wire.messages.create_topics_request import CreateTopicsRequest
from riverrun.wire.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from riverrun.wire.messages.metadata_response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

FIRST_WITH_NULL_FOR_ALL: Final = 1
FIRST_WITH_LISTENER_ERROR: Final = 6
FIRST_WITH_REQUESTED_IDS: Final = 12
ELECTION_SECONDS_MAX: Final = 0.3
"""How long a response waits for a new leader. An election takes a tenth of it."""
SLICE_PARTITIONS: Final = 250
"""Partitions encoded in one iteration of the event loop; each takes 5 to 20 us."""

OPERATIONS_OMITTED: Final = -(2**31)
"""Authorized operations (KIP-430) that the client did not request."""
TOPIC_OPERATIONS: Final = 3576
"""Without an authorizer clients may do all: read, write, create, delete, alter, describe, and
describe and alter settings."""
CLUSTER_OPERATIONS: Final = 8096
"""Create, alter, describe, cluster action, settings, idempotent write, tokens."""


def handle(
    services: BrokerServices, context: RequestContext, request: MetadataRequest
) -> MetadataResponse | bytes | Awaitable[bytes]:
    version = context.api_version
    wanted = request.topics
    if wanted is None or (not wanted and version < FIRST_WITH_NULL_FOR_ALL):
        return _all_topics(services, context, request)
    has_ids = any(topic.topic_id is not None for topic in wanted)
    is_named = all(topic.name is not None for topic in wanted)
    if version < FIRST_WITH_REQUESTED_IDS and (has_ids or not is_named):
        return failed(request, ErrorCode.INVALID_REQUEST, None)
    if not is_named and not has_ids:
        return failed(request, ErrorCode.UNKNOWN_SERVER_ERROR, None)  # as in Kafka
    if has_ids:
        return _by_id(services, context, request, wanted)
    names = list(dict.fromkeys(TopicName(topic.name or "") for topic in wanted))
    missing, refused = _to_create(services, context, request, names)
    if refused:
        names = [name for name in names if name not in refused]
    if missing:
        return _create_then_respond(services, context, request, names, missing, refused)
    if _is_in_doubt(services, services.metadata.current, names):
        return _respond_after_election(services, context, request, names, refused)
    return _by_name(services, context, request, names, refused)


def failed(request: MetadataRequest, code: ErrorCode, message: str | None) -> MetadataResponse:
    return MetadataResponse(
        brokers=(),
        topics=tuple(_unknown(code, one.name or "", one.topic_id) for one in request.topics or ()),
        error_code=code,
    )


# The topics that a request names


def _all_topics(
    services: BrokerServices, context: RequestContext, request: MetadataRequest
) -> bytes | Awaitable[bytes]:
    image = services.metadata.current
    cache = services.response_cache.topics(context.api_version, context.listener, image)
    may_use_whole = not services.access.is_enabled and not _wants_operations(request)
    if cache.whole is not None and cache.whole[0] is image and may_use_whole:
        listed = services.broker_visibility.listed_brokers(
            image, context.listener, services.clock.monotonic()
        )
        if tuple(listed) == cache.whole[1]:
            return cache.whole[2]
    every = image.topics_by_name.values()
    topics = [topic for topic in every if _may_see(services, context, topic)]
    return _respond(services, context, request, image, topics)


def _may_see(services: BrokerServices, context: RequestContext, topic: TopicImage) -> bool:
    return services.access.allows(context, AclOperation.DESCRIBE, ResourceType.TOPIC, topic.name)


def _by_name(
    services: BrokerServices,
    context: RequestContext,
    request: MetadataRequest,
    names: Sequence[TopicName],
    refused: Sequence[TopicName],
) -> bytes | Awaitable[bytes]:
    """Existing topics come first, as in Kafka. ``refused`` may be seen, but not created."""
    image = services.metadata.current
    hidden = [
        name
        for name in names
        if not services.access.permits(context, AclOperation.DESCRIBE, ResourceType.TOPIC, name)
    ]
    # Whether a hidden topic exists is not revealed.
    denied = [
        _unknown(ErrorCode.TOPIC_AUTHORIZATION_FAILED, name, None) for name in (*hidden, *refused)
    ]
    names = [name for name in names if name not in hidden] if hidden else names
    found = [image.topics_by_name[name] for name in names if name in image.topics_by_name]
    operations = OPERATIONS_OMITTED
    if not services.access.is_enabled:
        operations = _topic_operations(request)
    unknown = [
        _unknown(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if is_topic_name(name)
            else ErrorCode.INVALID_TOPIC_EXCEPTION,
            name,
            None,
            operations,
        )
        for name in names
        if name not in image.topics_by_name
    ]
    return _respond(services, context, request, image, found, after=[*unknown, *denied])


def _by_id(
    services: BrokerServices,
    context: RequestContext,
    request: MetadataRequest,
    wanted: Iterable[MetadataRequestTopic],
) -> bytes | Awaitable[bytes]:
    """If any topic is requested by id, topics without an id are ignored, as in Kafka."""
    image = services.metadata.current
    ids = dict.fromkeys(TopicId(one.topic_id) for one in wanted if one.topic_id is not None)
    known = [image.topics_by_id[one] for one in ids if one in image.topics_by_id]
    found = [topic for topic in known if _may_see(services, context, topic)]
    refused = [
        _unknown(ErrorCode.TOPIC_AUTHORIZATION_FAILED, None, topic.id)
        for topic in known
        if topic not in found
    ]
    operations = _topic_operations(request)
    unknown = [
        _unknown(ErrorCode.UNKNOWN_TOPIC_ID, None, one, operations)
        for one in ids
        if one not in image.topics_by_id
    ]
    return _respond(services, context, request, image, found, before=[*unknown, *refused])


def _to_create(
    services: BrokerServices,
    context: RequestContext,
    request: MetadataRequest,
    names: Iterable[TopicName],
) -> tuple[list[TopicName], list[TopicName]]:
    """The missing topics to create, and those for which the principal lacks the right.

    Topics that the principal may not describe are neither: they are hidden.
    """
    if not (request.allow_auto_topic_creation and services.settings.topics.auto_create):
        return [], []
    known, access = services.metadata.current.topics_by_name, services.access
    missing = [
        name
        for name in names
        if name not in known
        and is_topic_name(name)
        and access.allows(context, AclOperation.DESCRIBE, ResourceType.TOPIC, name)
    ]
    if not missing or access.allows_cluster(context, AclOperation.CREATE):
        return missing, []
    refused = [
        name
        for name in missing
        if not access.permits(context, AclOperation.CREATE, ResourceType.TOPIC, name)
    ]
    return [name for name in missing if name not in refused], refused


async def _create_then_respond(
    services: BrokerServices,
    context: RequestContext,
    request: MetadataRequest,
    names: Sequence[TopicName],
    missing: Iterable[TopicName],
    refused: Sequence[TopicName],
) -> bytes:
    image = services.metadata.current
    wanted = [creatable(services.configs, image, name) for name in missing]
    creation = CreateTopicsRequest(topics=tuple(one for one in wanted if one is not None))
    try:
        # Errors of single topics do not matter here: topics that do not exist are unknown.
        created = await services.forwarder.create_topics(creation)
        if services.audit is not None:
            services.audit.changed(ApiKey.CREATE_TOPICS, context, creation, created)
    except KafkaError as error:
        if error.code is not ErrorCode.THROTTLING_QUOTA_EXCEEDED:
            raise
    response = _by_name(services, context, request, names, refused)
    return response if isinstance(response, bytes) else await response


def _is_in_doubt(services: BrokerServices, image: Image, names: Iterable[TopicName]) -> bool:
    """Whether the response would name a leader that may be dead."""
    lost = services.broker_visibility.lost_leaders(services.clock.monotonic())
    return bool(lost) and any(
        partition.leader in lost
        for name in names
        if name in image.topics_by_name
        for partition in image.topics_by_name[name].partitions
    )


async def _respond_after_election(
    services: BrokerServices,
    context: RequestContext,
    request: MetadataRequest,
    names: Sequence[TopicName],
    refused: Sequence[TopicName],
) -> bytes:
    """Wait shortly for the new leader.

    A client sends this request within a few ms after its leader has died. If librdkafka gets the
    old leader again, it retries only after a second.
    """
    await services.image_waits.until(
        lambda image: not _is_in_doubt(services, image, names), ELECTION_SECONDS_MAX
    )
    response = _by_name(services, context, request, names, refused)
    return response if isinstance(response, bytes) else await response


# The response


def _respond(
    services: BrokerServices,
    context: RequestContext,
    request: MetadataRequest,
    image: Image,
    topics: Sequence[TopicImage],
    *,
    before: Sequence[MetadataResponseTopic] = (),
    after: Sequence[MetadataResponseTopic] = (),
) -> bytes | Awaitable[bytes]:
    """Encode small responses at once, and large ones in slices that yield to the event loop."""
    cache = services.response_cache.topics(context.api_version, context.listener, image)
    job = _Encoding(services, context, request, image, cache, topics)
    if job.partitions_left() + len(before) + len(after) > SLICE_PARTITIONS:
        return _respond_in_slices(services, job, before, after)
    job.encode(len(topics))
    return job.finish(services, [job.element(t) for t in before], [job.element(t) for t in after])


async def _respond_in_slices(
    services: BrokerServices,
    job: _Encoding,
    before: Sequence[MetadataResponseTopic],
    after: Sequence[MetadataResponseTopic],
) -> bytes:
    yielder = Yielder(services.clock)
    while not job.is_done:
        job.encode(1)
        await yielder.step()
    encoded: list[bytes] = []
    for topic in (*before, *after):
        await yielder.step()
        encoded.append(job.element(topic))
    return job.finish(services, encoded[: len(before)], encoded[len(before) :])


class _Encoding:
    """One response in progress: topics of one image, some of them encoded."""

    def __init__(
        self,
        services: BrokerServices,
        context: RequestContext,
        request: MetadataRequest,
        image: Image,
        cache: EncodedTopics,
        topics: Sequence[TopicImage],
    ) -> None:
        self._access = services.access
        self._context = context
        self._version = context.api_version
        self._listener = context.listener
        self._request = request
        self._image = image
        self._cache = cache
        self._topics = topics
        self._live = live_brokers(image, context.listener)
        # Responses with authorized operations are rare and not cached.
        self._may_cache = not request.include_topic_authorized_operations
        self._may_cache_whole = not _wants_operations(request) and not self._access.is_enabled
        self._encoded: list[bytes] = []

    @property
    def is_done(self) -> bool:
        return len(self._encoded) == len(self._topics)

    def partitions_left(self) -> int:
        return sum(self._cost(topic) for topic in self._topics)

    def _cost(self, topic: TopicImage) -> int:
        is_cached = self._may_cache and self._cache.get(topic) is not None
        return 0 if is_cached else 1 + len(topic.partitions)

    def encode(self, count: int) -> None:
        start = len(self._encoded)
        for topic in self._topics[start : start + count]:
            encoded = self._cache.get(topic) if self._may_cache else None
            if encoded is None:
                encoded = self.element(self._described(topic))
                if self._may_cache:
                    self._cache.put(topic, encoded, self._image)
            self._encoded.append(encoded)

    def _described(self, topic: TopicImage) -> MetadataResponseTopic:
        return MetadataResponseTopic(
            error_code=ErrorCode.NONE,
            name=topic.name,
            topic_id=topic.id,
            is_internal=topic.name in INTERNAL_TOPICS,
            partitions=tuple(
                _partition(self._version, self._image, self._live, self._listener, index, one)
                for index, one in enumerate(topic.partitions)
            ),
            topic_authorized_operations=self._operations(topic.name),
        )

    def _operations(self, name: str) -> int:
        if not self._request.include_topic_authorized_operations:
            return OPERATIONS_OMITTED
        return self._access.operations(self._context, ResourceType.TOPIC, name)

    def element(self, topic: MetadataResponseTopic) -> bytes:
        return encode_element(ApiKey.METADATA, self._version, topic)

    def finish(
        self, services: BrokerServices, before: Sequence[bytes], after: Sequence[bytes]
    ) -> bytes:
        """The complete response, with unknown topics before or after the known ones."""
        listed = services.broker_visibility.listed_brokers(
            self._image, self._listener, services.clock.monotonic()
        )
        response = join_response(
            ApiKey.METADATA,
            self._version,
            self._without_topics(services, listed),
            "topics",
            [*before, *self._encoded, *after],
        )
        is_whole = not self._request.topics and not before and not after
        is_complete = len(self._topics) == len(self._image.topics_by_name)
        if is_whole and is_complete and self._may_cache_whole:
            self._cache.whole = (self._image, tuple(listed), response)
        return response

    def _without_topics(
        self, services: BrokerServices, listed: Mapping[NodeId, BrokerImage]
    ) -> MetadataResponse:
        own = services.settings.node_id
        return MetadataResponse(
            brokers=tuple(
                MetadataResponseBroker(
                    node_id=broker.id,
                    host=broker.endpoints[self._listener].host,
                    port=broker.endpoints[self._listener].port,
                    rack=broker.rack,
                )
                for broker in listed.values()
            ),
            topics=(),
            # Any broker forwards requests to the controller, so the nearest one will do.
            controller_id=own if own in self._live else next(iter(self._live), NodeId(-1)),
            cluster_id=services.logs.cluster_id,
            cluster_authorized_operations=self._access.cluster_operations(self._context)
            if self._request.include_cluster_authorized_operations
            else OPERATIONS_OMITTED,
        )


def _partition(
    version: int,
    image: Image,
    live: Mapping[NodeId, BrokerImage],
    listener: str,
    index: int,
    partition: PartitionImage,
) -> MetadataResponsePartition:
    replicas, isr = partition.replicas, partition.isr
    offline = tuple(one for one in replicas if one not in live)
    leader, code = partition.leader, ErrorCode.NONE
    if version == 0 and offline:
        # This version has no offline replicas, and its clients need the address of each replica.
        replicas = tuple(one for one in replicas if one in live)
        isr = tuple(one for one in isr if one in live)
        code = ErrorCode.REPLICA_NOT_AVAILABLE
    if leader not in live:
        broker = image.brokers.get(leader)
        is_elsewhere = broker is not None and not broker.is_fenced
        code = (
            ErrorCode.LISTENER_NOT_FOUND
            if is_elsewhere and version >= FIRST_WITH_LISTENER_ERROR
            else ErrorCode.LEADER_NOT_AVAILABLE
        )
        leader = NodeId(-1)
    return MetadataResponsePartition(
        error_code=code,
        partition_index=index,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=replicas,
        isr_nodes=isr,
        offline_replicas=offline,
    )


def _unknown(
    code: ErrorCode, name: str | None, topic_id: UUID | None, operations: int = OPERATIONS_OMITTED
) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=code,
        name=name,
        topic_id=topic_id,
        partitions=(),
        topic_authorized_operations=operations,
    )


def _topic_operations(request: MetadataRequest) -> int:
    is_wanted = request.include_topic_authorized_operations
    return TOPIC_OPERATIONS if is_wanted else OPERATIONS_OMITTED


def _wants_operations(request: MetadataRequest) -> bool:
    return (
        request.include_topic_authorized_operations or request.include_cluster_authorized_operations
    )
