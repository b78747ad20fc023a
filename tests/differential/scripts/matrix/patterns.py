"""Rules of all kinds: implied operations, patterns, hosts, principals, and denials beside rights.

For each set of rules, one user asks for everything that it may do. The answers contain the
authorized operations. Versions do not matter here, so only one is used.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from riverrun.security.acls import AclOperation as Op
from riverrun.security.acls import AclPermission, PatternType
from tests.differential.script import ERAS, Script
from tests.differential.scripts.matrix.rights import (
    EVERY_USER,
    GROUP_PRINCIPAL,
    TRIED,
    Right,
    Rule,
    Rulebook,
    on_cluster,
    on_group,
    on_id,
    on_topic,
)
from tests.differential.scripts.matrix.table import Stock
from tests.differential.scripts.requests import commit_fields, fetch_fields, metadata_fields

ERA = ERAS[-1]
NAMES = ("name", "topic", "topic_id", "group_id", "key")
DECISIONS = ("error_code", "authorized_operations")
USER = TRIED[0]
HERE, ELSEWHERE = "127.0.0.1", "10.1.2.3"
CLUSTER_BITS_UNTIL = 10
"""The last version of Metadata with the operations on the cluster."""
TOPIC_OPERATIONS = (
    *(Op.READ, Op.WRITE, Op.CREATE, Op.DELETE, Op.ALTER, Op.DESCRIBE),
    *(Op.DESCRIBE_CONFIGS, Op.ALTER_CONFIGS, Op.ALL),
)
GROUP_OPERATIONS = (Op.READ, Op.DELETE, Op.DESCRIBE, Op.DESCRIBE_CONFIGS, Op.ALTER_CONFIGS, Op.ALL)
ID_OPERATIONS = (Op.DESCRIBE, Op.WRITE, Op.ALL)
CLUSTER_OPERATIONS = (
    *(Op.CREATE, Op.CLUSTER_ACTION, Op.DESCRIBE, Op.ALTER, Op.DESCRIBE_CONFIGS),
    *(Op.ALTER_CONFIGS, Op.IDEMPOTENT_WRITE, Op.ALL),
)


def _allow(right: Right, **more: Any) -> Rule:
    return Rule(right, **more)


def _deny(right: Right, **more: Any) -> Rule:
    return Rule(right, AclPermission.DENY, **more)


def _prefix(right: Right, name: str) -> dict[str, Any]:
    return {"right": right._replace(resource=name), "pattern": PatternType.PREFIXED}


def single_rules() -> Mapping[str, Sequence[Rule]]:
    """Every operation alone, and every operation denied to a user that may do all."""
    rights = [
        *(on_topic(operation) for operation in TOPIC_OPERATIONS),
        *(on_group(operation) for operation in GROUP_OPERATIONS),
        *(on_id(operation) for operation in ID_OPERATIONS),
        *(on_cluster(operation) for operation in CLUSTER_OPERATIONS),
    ]
    alone = {str(right): [_allow(right)] for right in rights}
    denied = {
        f"all but {right}": [_allow(right._replace(operation=Op.ALL)), _deny(right)]
        for right in rights
    }
    return {**alone, **denied}


def combined_rules() -> Mapping[str, Sequence[Rule]]:
    read, write, describe = on_topic(Op.READ), on_topic(Op.WRITE), on_topic(Op.DESCRIBE)
    every = read._replace(resource="*")
    return {
        "read, describe denied": [_allow(read), _deny(describe)],
        "describe, read denied": [_allow(describe), _deny(read)],
        "alter configs, describe configs denied": [
            _allow(on_topic(Op.ALTER_CONFIGS)),
            _deny(on_topic(Op.DESCRIBE_CONFIGS)),
        ],
        "read, all denied": [_allow(read), _deny(on_topic(Op.ALL))],
        "prefix": [_allow(**_prefix(read, "or"))],
        "prefix, whole name": [_allow(**_prefix(read, "orders"))],
        "another prefix": [_allow(**_prefix(read, "orders-"))],
        "prefix, name denied": [_allow(**_prefix(read, "or")), _deny(read)],
        "name, prefix denied": [_allow(read), _deny(**_prefix(read, "or"))],
        "long prefix, short prefix denied": [
            _allow(**_prefix(read, "order")),
            _deny(**_prefix(read, "o")),
        ],
        "short prefix, long prefix denied": [
            _allow(**_prefix(read, "o")),
            _deny(**_prefix(read, "order")),
        ],
        "wildcard": [_allow(every)],
        "wildcard, name denied": [_allow(every), _deny(read)],
        "wildcard, prefix denied": [_allow(every), _deny(**_prefix(read, "or"))],
        "name, wildcard denied": [_allow(read), _deny(every)],
        "prefix, wildcard denied": [_allow(**_prefix(read, "or")), _deny(every)],
        "every user": [_allow(read, principal=EVERY_USER)],
        "every user, oneself denied": [_allow(read, principal=EVERY_USER), _deny(read)],
        "oneself, every user denied": [_allow(read), _deny(read, principal=EVERY_USER)],
        "oneself, another user denied": [_allow(read), _deny(read, principal="User:bob")],
        "another user": [_allow(read, principal="User:bob")],
        "another kind of principal": [_allow(read, principal=GROUP_PRINCIPAL)],
        "from here": [_allow(read, host=HERE)],
        "from elsewhere": [_allow(read, host=ELSEWHERE)],
        "from anywhere, denied here": [_allow(read), _deny(read, host=HERE)],
        "from anywhere, denied elsewhere": [_allow(read), _deny(read, host=ELSEWHERE)],
        "from here, denied anywhere": [_allow(read, host=HERE), _deny(read)],
        "create in the cluster, topic denied": [
            _allow(on_cluster(Op.CREATE)),
            _deny(on_topic(Op.CREATE)),
        ],
        "create topic, in the cluster denied": [
            _allow(on_topic(Op.CREATE)),
            _deny(on_cluster(Op.CREATE)),
        ],
        "write a topic, idempotent write denied": [
            _allow(write),
            _deny(on_cluster(Op.IDEMPOTENT_WRITE)),
        ],
        "idempotent write, all topics denied": [
            _allow(on_cluster(Op.IDEMPOTENT_WRITE)),
            _deny(write._replace(resource="*")),
        ],
        "write a topic, all topics denied": [
            _allow(write),
            _deny(write._replace(resource="*")),
        ],
        "write a topic, its prefix denied": [_allow(write), _deny(**_prefix(write, "or"))],
        "write a topic, another prefix denied": [_allow(write), _deny(**_prefix(write, "x"))],
        "write a prefix, a topic denied": [_allow(**_prefix(write, "or")), _deny(write)],
        "write a prefix, the same prefix denied": [
            _allow(**_prefix(write, "or")),
            _deny(**_prefix(write, "or")),
        ],
        "write a prefix, a longer one denied": [
            _allow(**_prefix(write, "o")),
            _deny(**_prefix(write, "or")),
        ],
        "write all topics, one denied": [_allow(write._replace(resource="*")), _deny(write)],
        "write all topics, a prefix denied": [
            _allow(write._replace(resource="*")),
            _deny(**_prefix(write, "or")),
        ],
        "write a topic, every user denied all": [
            _allow(write),
            _deny(write._replace(resource="*"), principal=EVERY_USER),
        ],
        "write a topic from elsewhere": [_allow(write, host=ELSEWHERE)],
        "write a topic, denied elsewhere": [
            _allow(write),
            _deny(write._replace(resource="*"), host=ELSEWHERE),
        ],
        "group prefix": [_allow(**_prefix(on_group(Op.READ), "gr"))],
        "group prefix, name denied": [
            _allow(**_prefix(on_group(Op.ALL), "gr")),
            _deny(on_group(Op.READ)),
        ],
        "all groups, prefix denied": [
            _allow(on_group(Op.ALL)._replace(resource="*")),
            _deny(**_prefix(on_group(Op.ALL), "gr")),
        ],
        "id prefix": [_allow(**_prefix(on_id(Op.WRITE), "i"))],
        "all ids, name denied": [
            _allow(on_id(Op.ALL)._replace(resource="*")),
            _deny(on_id(Op.DESCRIBE)),
        ],
    }


def _ask(stock: Stock, label: str) -> None:
    """Everything that the rules are about."""
    script, topic = stock.script, stock.topic()
    group, id_ = stock.name("group"), stock.name("id")
    names = [stock.name("orders"), stock.name("other")]
    fetched = {"partition": 0, "fetch_offset": 0}
    created = {"name": stock.name("orders"), "num_partitions": 1, "replication_factor": 1}
    settings = {"resource_type": 2, "resource_name": topic[0]}
    requests: dict[str, dict[str, Any]] = {
        "metadata": metadata_fields([*names], operations=True),
        "fetch": fetch_fields([(topic, [fetched]), (stock.topic("other"), [fetched])]),
        "describe_configs": {"resources": [{**settings, "configuration_keys": ["cleanup.policy"]}]},
        "create_topics": {"topics": [created], "timeout": 10000, "validate_only": True},
        "describe_groups": {"groups": [group], "include_authorized_operations": True},
        "find_coordinator": {"key_type": 1, "coordinator_keys": [id_]},
        "describe_cluster": {"include_cluster_authorized_operations": True, "endpoint_type": 1},
        "init_producer_id": {"transactional_id": None, "transaction_timeout": 60000},
    }
    versions = {"metadata": CLUSTER_BITS_UNTIL}
    for api, fields in requests.items():
        script.request(label, api, fields, version=versions.get(api), on=USER, only=_verdict)


def _verdict(response: Any) -> Any:
    """Only names, error codes and operations; the tables of calls compare whole responses."""
    if isinstance(response, list):
        return [_verdict(row) for row in response if isinstance(row, dict)]
    if not isinstance(response, dict):
        return response
    kept = {
        name: value if name in NAMES or name.endswith(DECISIONS) else _verdict(value)
        for name, value in response.items()
        if name in NAMES or name.endswith(DECISIONS) or _is_table(name, value)
    }
    return {name: value for name, value in kept.items() if value not in ([], None)}


def _is_table(name: str, value: Any) -> bool:
    return isinstance(value, list) and name != "brokers"


def _try(script: Script, table: Mapping[str, Sequence[Rule]]) -> None:
    if script.era != ERA:
        return
    stock = Stock(script)
    stock.make_topics("orders", "other")
    script.wait_for_coordinator()
    offsets = commit_fields(stock.name("group"), [(stock.topic(), 0, 3, None)])
    script.quietly("offset_commit", offsets)
    book = Rulebook(script)
    for label, rules in table.items():
        resolved = [rule._replace(right=stock.resolved(rule.right)) for rule in rules]
        book.replace({USER: resolved})
        _ask(stock, label)
    book.replace({})


def operations(script: Script) -> None:
    _try(script, single_rules())


def patterns(script: Script) -> None:
    _try(script, combined_rules())
