"""What authorization costs: the time of a decision, and throughput with and without an authorizer.

Decisions are those of ``Authorizer.allows``, which Produce and Fetch ask for each partition. The
same rules are loaded into the clusters.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from riverrun.admin.access.rule_admin import add_rules
from riverrun.admin.access.rules import new_rule
from riverrun.cli.benchmark import clusters, load
from riverrun.cli.benchmark.load import BenchmarkError, Servers, Shape
from riverrun.cli.benchmark.ratio_table import RatioTable, Row, progress
from riverrun.cli.support.session import open_pool
from riverrun.model.errors import KafkaError
from riverrun.security.acls import (
    Acl,
    AclOperation,
    AclPermission,
    Authorizer,
    PatternType,
    ResourceType,
)
from riverrun.security.principal import ANONYMOUS

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""riverrun understands this name too."""
TOPIC = "orders"
PREFIXES = 100
"""Rules with a prefix as pattern; their lengths differ."""
RULES_OF_TOPIC = 10
"""Rules of other users for the topic that is used."""
RULES_PER_REQUEST = 1000
DECISIONS = 50_000
"""Below the number that the cache holds."""
SHAPE = Shape(record_bytes=1000, batch_bytes=16_384, megabytes=150)
WARM_UP = Shape(record_bytes=1000, batch_bytes=65_536, megabytes=100)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionTimes:
    cached_us: float
    uncached_us: float
    first_ms: float
    """The first decision after the rules changed, which builds the index."""


def rules(count: int) -> list[Acl]:
    """Rules for many users and topics. Two of them let clients write and read the topic."""
    made = [
        new_rule((ResourceType.TOPIC, TOPIC, operation), ANONYMOUS.name)
        for operation in (AclOperation.WRITE, AclOperation.READ)
    ]
    right = (ResourceType.TOPIC, TOPIC, AclOperation.READ)
    made += [new_rule(right, f"reader-{number}") for number in range(RULES_OF_TOPIC)]
    made += [
        new_rule(
            (ResourceType.TOPIC, f"team-{'x' * (number % 20)}{number}-", AclOperation.ALL),
            f"team-{number}",
            pattern=PatternType.PREFIXED,
        )
        for number in range(PREFIXES)
    ]
    for number in range(len(made), count):
        is_denial = number % 10 == 0
        made.append(
            new_rule(
                (ResourceType.TOPIC, f"topic-{number // 4}", AclOperation.WRITE),
                f"user-{number}",
                permission=AclPermission.DENY if is_denial else AclPermission.ALLOW,
            )
        )
    return made


def time_decisions(acls: Sequence[Acl], decisions: int = DECISIONS) -> DecisionTimes:
    """CPU time of decisions about clients that write to one topic."""
    # The cache knows a client by its address.
    hosts = [f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}" for n in range(decisions)]
    built: list[Authorizer] = []

    def decide(clients: Sequence[str]) -> None:
        allows = built[-1].allows
        for host in clients:
            if not allows(ANONYMOUS, host, AclOperation.WRITE, ResourceType.TOPIC, TOPIC):
                raise AssertionError(f"{TOPIC} is denied")

    def build() -> None:
        built.append(Authorizer(acls, is_open=True))
        decide(hosts[:1])

    first = _seconds(build)
    uncached = _seconds(lambda: decide(hosts))
    cached = _seconds(lambda: decide(hosts))
    return DecisionTimes(
        cached_us=cached / decisions * 1e6,
        uncached_us=uncached / decisions * 1e6,
        first_ms=first * 1000,
    )


def _seconds(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def add_decision_rows(table: RatioTable, count: int) -> None:
    found = time_decisions(rules(count))
    for words, value, unit in (
        ("cached", found.cached_us, "µs"),
        ("not cached", found.uncached_us, "µs"),
        ("first after a change of ACLs", found.first_ms, "ms"),
    ):
        table.add("riverrun", Row("authorization", f"{count:,} ACLs, {words}", unit), value)


def measure_authorizer(
    name: str, table: RatioTable, *, count: int, shape: Shape = SHAPE, warm_up: Shape = WARM_UP
) -> None:
    """Throughput of one node without an authorizer, then of one with many rules.

    Resources without rules are open to everybody, which lets clients without a login create them.
    The topic has rules, so its decisions are made by them.
    """
    for is_on in (False, True):
        settings = (
            (f"authorizer.class.name={AUTHORIZER}", "allow.everyone.if.no.acl.found=true")
            if is_on
            else ()
        )
        label = f"authorizer with {count:,} ACLs" if is_on else "no authorizer"
        with clusters.STARTERS[name](1, settings) as nodes:
            load.create_topic(nodes.bootstrap, TOPIC, 1)
            load.create_topic(nodes.bootstrap, "warm", 1)
            if is_on:
                _load_rules(nodes.bootstrap, rules(count))
            servers = Servers(nodes.pids)
            load.produce(nodes.bootstrap, "warm", warm_up, servers)
            load.consume(nodes.bootstrap, "warm", warm_up, servers)
            made = load.produce(nodes.bootstrap, TOPIC, shape, servers)
            read = load.consume(nodes.bootstrap, TOPIC, shape, servers)
        words = f"{shape.name()}, {label}"
        for activity, found in (("produce", made), ("consume", read)):
            table.add(name, Row(activity, words, "MB/s"), found.megabytes_per_second)
            table.add(name, Row(activity, words, "CPU ms/MB"), found.cpu_ms_per_megabyte)
        progress(
            f"  {name}: {words}: produce {made.megabytes_per_second:.1f} MB/s, "
            f"{made.cpu_ms_per_megabyte:.1f} CPU ms/MB"
        )


def _load_rules(bootstrap: str, acls: Sequence[Acl]) -> None:
    async def add() -> None:
        async with open_pool(bootstrap) as pool:
            for start in range(0, len(acls), RULES_PER_REQUEST):
                await add_rules(pool, acls[start : start + RULES_PER_REQUEST])

    try:
        asyncio.run(add())
    except (KafkaError, OSError) as error:
        raise BenchmarkError(f"the ACLs cannot be created: {error}") from error
