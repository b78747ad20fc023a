"""Calls about topics, settings and tokens that controllers serve too.

Kafka's tools send them to the listener of controllers with `--bootstrap-controller`. The rights are
those of the listener of clients, except for the levels of loggers: Kafka's controllers need
ClusterAction for them. They are left out, because nodes refuse to change them.
"""

from tests.differential.script import Script
from tests.differential.scripts.matrix import cluster, groups, tokens, topics
from tests.differential.scripts.matrix.table import GuardedCall, Stock, try_all

CONTROLLER = "@controller"
_TOPICS = ("create_topics", "delete_topics", "create_partitions")
_SETTINGS = ("describe_configs", "alter_configs", "incremental_alter_configs")
_TOKENS = ("create_delegation_token", "renew_delegation_token", "expire_delegation_token")


def calls(script: Script) -> list[GuardedCall]:
    tables = (topics.calls(script), groups.calls(script), cluster.CALLS, tokens.CALLS)
    served = (*_TOPICS, *_SETTINGS, *_TOKENS)
    return [
        call
        for table in tables
        for call in table
        if call.api in served and call is not cluster.LEVEL_CHANGE
    ]


def administration(script: Script) -> None:
    stock = Stock(script)
    stock.make_topics(*topics.PREPARED)
    with tokens.one_token(stock):
        try_all(stock, calls(script), listener=CONTROLLER)
