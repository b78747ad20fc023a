"""Metadata: brokers, topics and who leads their partitions; may create the topics asked for.

Versions 0 to 13. In version 0 an empty list means all topics, later null does; from 4 on the client
says whether topics may be created; ids are answered from 10 and asked by from 12 (KIP-516).
A topic that is created on the way is in the answer at once, where Kafka first says that it is
unknown and lets the client ask again.

Topics are encoded one by one and cached as bytes (``server/dispatch/response_cache.py``).
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
from riverrun.server import authorized
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.dispatch.response_cache import TopicAnswers, live_brokers
from riverrun.server.dispatch.splice import Splice
from riverrun.server.services import BrokerServices
from riverrun.wire.apis import ApiKey
from riverrun.wire.codec import encode_response
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
FIRST_ASKED_BY_ID: Final = 12
ELECTION_SECONDS_MAX: Final = 0.3
"""How long an answer waits for a new leader; an election takes a tenth of it."""
SLICE_PARTITIONS: Final = 250
"""Partitions written in one turn of the event loop; each costs 5 to 20 us."""


def handle(
    services: BrokerServices, context: RequestContext, request: MetadataRequest
) -> MetadataResponse | bytes | Awaitable[bytes]:
    version = context.api_version
    asked = request.topics
    if asked is None or (not asked and version < FIRST_WITH_NULL_FOR_ALL):
        return _all_topics(services, context, request)
    has_ids = any(topic.topic_id is not None for topic in asked)
    is_named = all(topic.name is not None for topic in asked)
    if version < FIRST_ASKED_BY_ID and (has_ids or not is_named):
        return failed(request, ErrorCode.INVALID_REQUEST, None)
    if not is_named and not has_ids:
        return failed(request, ErrorCode.UNKNOWN_SERVER_ERROR, None)  # Kafka fails over it
    if has_ids:
        return _by_id(services, context, request, asked)
    names = list(dict.fromkeys(TopicName(topic.name or "") for topic in asked))
    missing = _to_create(services, request, names)
    if missing:
        return _create_then_answer(services, context, request, names, missing)
    if _is_in_doubt(services, services.metadata.current, names):
        return _answer_after_election(services, context, request, names)
    return _by_name(services, context, request, names)


def failed(request: MetadataRequest, code: ErrorCode, message: str | None) -> MetadataResponse:
    return MetadataResponse(
        brokers=(),
        topics=tuple(_unknown(code, one.name or "", one.topic_id) for one in request.topics or ()),
        error_code=code,
    )


# -- What is asked for ---------------------------------------------------------------------------


def _all_topics(
    services: BrokerServices, context: RequestContext, request: MetadataRequest
) -> bytes | Awaitable[bytes]:
    image = services.metadata.current
    kept = services.answers.topics(context.api_version, context.listener, image)
    if kept.whole is not None and kept.whole[0] is image and not _asks_operations(request):
        listed = services.answers.listed_brokers(
            image, context.listener, services.clock.monotonic()
        )
        if tuple(listed) == kept.whole[1]:
            return kept.whole[2]
    return _answer(services, context, request, image, list(image.topics_by_name.values()))


def _by_name(
    services: BrokerServices,
    context: RequestContext,
    request: MetadataRequest,
    names: Sequence[TopicName],
) -> bytes | Awaitable[bytes]:
    """Those that exist come first, as in Kafka."""
    image = services.metadata.current
    found = [image.topics_by_name[name] for name in names if name in image.topics_by_name]
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
    return _answer(services, context, request, image, found, after=unknown)


def _by_id(
    services: BrokerServices,
    context: RequestContext,
    request: MetadataRequest,
    asked: Iterable[MetadataRequestTopic],
) -> bytes | Awaitable[bytes]:
    """As soon as one topic is asked for by id, those without one are passed over, as in Kafka."""
    image = services.metadata.current
    ids = dict.fromkeys(TopicId(one.topic_id) for one in asked if one.topic_id is not None)
    found = [image.topics_by_id[one] for one in ids if one in image.topics_by_id]
    operations = _topic_operations(request)
    unknown = [
        _unknown(ErrorCode.UNKNOWN_TOPIC_ID, None, one, operations)
        for one in ids
        if one not in image.topics_by_id
    ]
    return _answer(services, context, request, image, found, before=unknown)


def _to_create(
    services: BrokerServices, request: MetadataRequest, names: Iterable[TopicName]
) -> list[TopicName]:
    if not (request.allow_auto_topic_creation and services.settings.topics.auto_create):
        return []
    known = services.metadata.current.topics_by_name
    return [name for name in names if name not in known and is_topic_name(name)]


async def _create_then_answer(
    services: BrokerServices,
    context: RequestContext,
    request: MetadataRequest,
    names: Sequence[TopicName],
    missing: Iterable[TopicName],
) -> bytes:
    image = services.metadata.current
    wanted = [creatable(services.configs, image, name) for name in missing]
    try:
        # Whatever the controller says about one of them: what does not exist then is unknown.
        await services.forwarder.create_topics(
            CreateTopicsRequest(topics=tuple(one for one in wanted if one is not None))
        )
    except KafkaError as error:
        if error.code is not ErrorCode.THROTTLING_QUOTA_EXCEEDED:
            raise
    answer = _by_name(services, context, request, names)
    return answer if isinstance(answer, bytes) else await answer


def _is_in_doubt(services: BrokerServices, image: Image, names: Iterable[TopicName]) -> bool:
    """Whether a leader that we would name may just have died."""
    lost = services.answers.lost_leaders(services.clock.monotonic())
    return bool(lost) and any(
        partition.leader in lost
        for name in names
        if name in image.topics_by_name
        for partition in image.topics_by_name[name].partitions
    )


async def _answer_after_election(
    services: BrokerServices,
    context: RequestContext,
    request: MetadataRequest,
    names: Sequence[TopicName],
) -> bytes:
    """Wait a moment for the new leader. A client asks as soon as its leader has died, within a few
    ms; librdkafka, told of the old one, would believe it and look again after a second.
    """
    await services.image_waits.until(
        lambda image: not _is_in_doubt(services, image, names), ELECTION_SECONDS_MAX
    )
    answer = _by_name(services, context, request, names)
    return answer if isinstance(answer, bytes) else await answer


# -- The answer ----------------------------------------------------------------------------------


def _answer(
    services: BrokerServices,
    context: RequestContext,
    request: MetadataRequest,
    image: Image,
    topics: Sequence[TopicImage],
    *,
    before: Sequence[MetadataResponseTopic] = (),
    after: Sequence[MetadataResponseTopic] = (),
) -> bytes | Awaitable[bytes]:
    """At once where the work is small, else in slices that let others have the loop."""
    kept = services.answers.topics(context.api_version, context.listener, image)
    job = _Job(context, request, image, kept, topics)
    if job.partitions_to_write() + len(before) + len(after) > SLICE_PARTITIONS:
        return _answer_in_slices(services, job, before, after)
    job.write(len(topics))
    return job.finish(services, [job.element(t) for t in before], [job.element(t) for t in after])


async def _answer_in_slices(
    services: BrokerServices,
    job: _Job,
    before: Sequence[MetadataResponseTopic],
    after: Sequence[MetadataResponseTopic],
) -> bytes:
    yielder = Yielder(services.clock)
    while not job.is_done:
        job.write(1)
        await yielder.step()
    written: list[bytes] = []
    for topic in (*before, *after):
        await yielder.step()
        written.append(job.element(topic))
    return job.finish(services, written[: len(before)], written[len(before) :])


class _Job:
    """One answer on its way: topics of one image, some written already."""

    def __init__(
        self,
        context: RequestContext,
        request: MetadataRequest,
        image: Image,
        kept: TopicAnswers,
        topics: Sequence[TopicImage],
    ) -> None:
        self._version = context.api_version
        self._listener = context.listener
        self._request = request
        self._image = image
        self._kept = kept
        self._topics = topics
        self._splice = Splice.of_metadata(self._version)
        self._live = live_brokers(image, context.listener)
        # An answer with the operations that the client may do is rare, and another one.
        self._may_keep = not request.include_topic_authorized_operations
        self._is_plain = not _asks_operations(request)
        self._written: list[bytes] = []

    @property
    def is_done(self) -> bool:
        return len(self._written) == len(self._topics)

    def partitions_to_write(self) -> int:
        return sum(self._cost(topic) for topic in self._topics)

    def _cost(self, topic: TopicImage) -> int:
        is_kept = self._may_keep and self._kept.get(topic) is not None
        return 0 if is_kept else 1 + len(topic.partitions)

    def write(self, count: int) -> None:
        start = len(self._written)
        for topic in self._topics[start : start + count]:
            written = self._kept.get(topic) if self._may_keep else None
            if written is None:
                written = self._splice.element(self._topic_message(topic))
                if self._may_keep:
                    self._kept.keep(topic, written, self._image)
            self._written.append(written)

    def _topic_message(self, topic: TopicImage) -> MetadataResponse:
        described = MetadataResponseTopic(
            error_code=ErrorCode.NONE,
            name=topic.name,
            topic_id=topic.id,
            is_internal=topic.name in INTERNAL_TOPICS,
            partitions=tuple(
                _partition(self._version, self._image, self._live, self._listener, index, one)
                for index, one in enumerate(topic.partitions)
            ),
            topic_authorized_operations=_topic_operations(self._request),
        )
        return MetadataResponse(brokers=(), topics=(described,))

    def element(self, topic: MetadataResponseTopic) -> bytes:
        return self._splice.element(MetadataResponse(brokers=(), topics=(topic,)))

    def finish(
        self, services: BrokerServices, before: Sequence[bytes], after: Sequence[bytes]
    ) -> bytes:
        """The whole answer, with topics that are unknown before or after those that are not."""
        listed = services.answers.listed_brokers(
            self._image, self._listener, services.clock.monotonic()
        )
        frame = encode_response(ApiKey.METADATA, self._version, self._frame(services, listed))
        answer = self._splice.join(frame, [*before, *self._written, *after])
        is_whole = not self._request.topics and not before and not after
        if is_whole and len(self._topics) == len(self._image.topics_by_name) and self._is_plain:
            self._kept.whole = (self._image, tuple(listed), answer)
        return answer

    def _frame(
        self, services: BrokerServices, listed: Mapping[NodeId, BrokerImage]
    ) -> MetadataResponse:
        """The answer without its topics."""
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
            # Any broker passes requests on to the controller, so the nearest one will do.
            controller_id=own if own in self._live else next(iter(self._live), NodeId(-1)),
            cluster_id=services.logs.cluster_id,
            cluster_authorized_operations=authorized.CLUSTER
            if self._request.include_cluster_authorized_operations
            else authorized.UNASKED,
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
        # The oldest clients know no offline replicas and would fail to find their brokers.
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
    code: ErrorCode, name: str | None, topic_id: UUID | None, operations: int = authorized.UNASKED
) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=code,
        name=name,
        topic_id=topic_id,
        partitions=(),
        topic_authorized_operations=operations,
    )


def _topic_operations(request: MetadataRequest) -> int:
    asked = request.include_topic_authorized_operations
    return authorized.TOPIC if asked else authorized.UNASKED


def _asks_operations(request: MetadataRequest) -> bool:
    return (
        request.include_topic_authorized_operations or request.include_cluster_authorized_operations
    )
