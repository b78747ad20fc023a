"""Plans over the Kafka protocol: IncrementalAlterConfigs submits, DescribeConfigs reads."""

from __future__ import annotations

from riverrun.cluster.balancing.execution import CANCELLED, advance
from riverrun.cluster.balancing.plans import plan_of, running_ids
from riverrun.cluster.balancing.rollbacks import ROLLBACKS_KEPT
from riverrun.cluster.brokers.modes import BROKER_MODE, BrokerMode
from riverrun.cluster.configs.alter_configs import alter_configs, incremental_alter_configs
from riverrun.cluster.configs.describe_configs import (
    DescribeOptions,
    broker_rows,
    cluster_rows,
    plan_rows,
)
from riverrun.cluster.partitions.leadership import fence
from riverrun.metadata.image import ConfigType, Image
from riverrun.metadata.records import ConfigRecord
from riverrun.metadata.snapshot import records_of
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import NodeId
from riverrun.placement.planner.schedule import MoveLimits
from riverrun.placement.planner.stored_plan import (
    HEADER,
    ROLLBACKS,
    PlanHeader,
    PlanProgress,
    StoredRollback,
    encode,
    submitted_texts,
)
from riverrun.wire.messages import alter_configs_request as replacing
from riverrun.wire.messages.incremental_alter_configs_request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.cluster.fakes import make_configs, replayed
from tests.cluster.states import P, cluster
from tests.cluster.test_plan_execution import move

CONFIGS = make_configs()
SET, DELETE, APPEND = 0, 1, 2
IMAGE = cluster(*[P(1, (1, 2, 3))] * 4, brokers=(1, 2, 3, 4))
TEXTS = submitted_texts(PlanHeader(reason="test"), [move(0, (4, 2, 3))])


def resource(
    plan_id: str, texts: dict[str, str | None], operation: int = SET
) -> AlterConfigsResource:
    return AlterConfigsResource(
        resource_type=ConfigType.PLAN,
        resource_name=plan_id,
        configs=tuple(
            AlterableConfig(name=name, config_operation=operation, value=text)
            for name, text in texts.items()
        ),
    )


def altered(
    image: Image, *resources: AlterConfigsResource, validate_only: bool = False
) -> tuple[list[ErrorCode], Image]:
    request = IncrementalAlterConfigsRequest(resources=resources, validate_only=validate_only)
    decision = incremental_alter_configs(CONFIGS, image, request)
    codes = [row.error_code for row in decision.response.responses]
    return codes, replayed(image, decision.records) if decision.records else image


def read(image: Image, plan_id: str, *names: str) -> dict[str, str | None]:
    rows = plan_rows(image, plan_id, DescribeOptions(names=names or None))
    assert rows is not None
    return {row.name: row.value for row in rows}


def test_plan_is_submitted_read_and_cancelled() -> None:
    codes, image = altered(IMAGE, resource("p", {**TEXTS}))
    assert codes == [ErrorCode.NONE]
    assert running_ids(image) == ["p"]
    assert read(image, "plans") == {"p": TEXTS[HEADER]}
    assert read(image, "p").items() >= TEXTS.items()
    assert list(read(image, "p", "progress")) == ["progress"]
    assert plan_rows(image, "q", DescribeOptions()) is None
    codes, image = altered(image, resource("p", {HEADER: None}, DELETE))
    assert codes == [ErrorCode.NONE]
    assert running_ids(image) == []


def test_moves_that_wait_are_cancelled_and_the_plan_goes_on() -> None:
    texts = submitted_texts(
        PlanHeader(reason="test"), [move(number, (4, 2, 3)) for number in range(4)]
    )
    _, image = altered(IMAGE, resource("p", {**texts}))
    plan = plan_of(image, "p")
    assert plan is not None
    limits = MoveLimits(per_destination=1)
    image = replayed(image, advance(CONFIGS, image, plan, limits=limits).records)
    names = ("waiting.0", "waiting.1", "waiting.3", "waiting.99")
    codes, image = altered(image, resource("p", dict.fromkeys(names), DELETE))
    assert codes == [ErrorCode.NONE]
    plan = plan_of(image, "p")
    assert plan is not None
    assert plan.dropped == dict.fromkeys((1, 3), CANCELLED), "0 is under way"
    assert plan.progress == PlanProgress(moving=(0,), waiting=1, dropped=2)


def test_validation_alone_stores_nothing() -> None:
    codes, image = altered(IMAGE, resource("p", {**TEXTS}), validate_only=True)
    assert codes == [ErrorCode.NONE]
    assert image is IMAGE


def test_requests_that_are_not_about_one_whole_plan_are_refused() -> None:
    wrong = [
        [resource("p", {**TEXTS}, APPEND)],
        [resource("p", {"progress": None}, DELETE)],
        [resource("p", {**TEXTS}), resource("q", {**TEXTS})],
        [resource("missing", {HEADER: None}, DELETE)],
        [resource("missing", {"waiting.1": None}, DELETE)],
        [resource("suggestion", {**TEXTS})],
        [resource("modes", {**TEXTS})],
    ]
    for resources in wrong:
        codes, image = altered(IMAGE, *resources)
        assert ErrorCode.NONE not in codes
        assert image is IMAGE


def test_alter_configs_knows_no_plans() -> None:
    request = replacing.AlterConfigsRequest(
        resources=(
            replacing.AlterConfigsResource(
                resource_type=ConfigType.PLAN, resource_name="p", configs=()
            ),
        ),
        validate_only=False,
    )
    (row,) = alter_configs(CONFIGS, IMAGE, request).response.responses
    assert row.error_code is ErrorCode.INVALID_REQUEST


def test_modes_of_all_brokers_are_read_from_any_node() -> None:
    """A broker that is down cannot be asked for its own settings."""
    assert read(IMAGE, "modes") == {}
    modes = {2: BrokerMode.MAINTENANCE, 9: BrokerMode.MAINTENANCE}
    image = replayed(IMAGE, [mode_record(node, mode) for node, mode in modes.items()])
    image = replayed(image, fence(CONFIGS, image, [NodeId(2)]))
    assert read(image, "modes") == {"2": "maintenance"}, "broker 9 is not registered"
    assert list(read(image, "plans")) == []


def mode_record(node: int, mode: BrokerMode) -> ConfigRecord:
    return ConfigRecord(
        resource_type=ConfigType.BROKER, resource_name=str(node), name=BROKER_MODE, value=mode.value
    )


def test_plans_are_not_listed_among_settings_and_survive_a_snapshot() -> None:
    _, image = altered(IMAGE, resource("p", {**TEXTS}))
    options = DescribeOptions()
    assert cluster_rows(CONFIGS, image, options) == cluster_rows(CONFIGS, IMAGE, options)
    assert broker_rows(CONFIGS, image, options) == broker_rows(CONFIGS, IMAGE, options)
    loaded = replayed(Image(), records_of(image))
    assert plan_of(loaded, "p") == plan_of(image, "p")


# Why moves were rolled back


def rollback(at_ms: int) -> str:
    return encode(StoredRollback(reason="disk", text="the disk is full", replica=4, at_ms=at_ms))


def test_reasons_of_rollbacks_are_kept_until_newer_ones_need_the_room() -> None:
    first = {f"first-{number}": rollback(number) for number in range(ROLLBACKS_KEPT)}
    codes, image = altered(IMAGE, resource(ROLLBACKS, dict(first)))
    assert codes == [ErrorCode.NONE]
    assert read(image, ROLLBACKS) == first
    codes, image = altered(image, resource(ROLLBACKS, {"later-0": rollback(1000)}))
    assert len(read(image, ROLLBACKS)) == ROLLBACKS_KEPT
    assert "first-0" not in read(image, ROLLBACKS)
    assert read(image, ROLLBACKS)["later-0"] == rollback(1000)


def test_reason_of_a_rollback_that_was_refused_is_deleted() -> None:
    _, image = altered(IMAGE, resource(ROLLBACKS, {"t-0": rollback(1), "t-1": rollback(2)}))
    _, image = altered(image, resource(ROLLBACKS, {"t-0": None}, DELETE))
    assert read(image, ROLLBACKS) == {"t-1": rollback(2)}


def test_invalid_reason_of_a_rollback_is_refused() -> None:
    assert altered(IMAGE, resource(ROLLBACKS, {"t-0": "because"})) == (
        [ErrorCode.INVALID_REQUEST],
        IMAGE,
    )
    assert altered(IMAGE, resource(ROLLBACKS, dict(TEXTS)))[0] == [ErrorCode.INVALID_REQUEST]
