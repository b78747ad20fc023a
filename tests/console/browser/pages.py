"""Every page of the console with its address and heading."""

from __future__ import annotations

from tests.console.browser.sample_data import (
    GROUP,
    PIPELINE,
    REPORT,
    REPORT_TITLE,
    TRANSACTIONAL_ID,
)

PAGES: dict[str, tuple[str, str]] = {
    "overview": ("overview", "Overview"),
    "topics": ("topics?internal=1", "Topics"),
    "topic": ("topics/orders", "orders"),
    "topic-settings": ("topics/orders?tab=settings", "orders"),
    "messages": ("topics/orders/messages", "Messages of orders"),
    "message": ("topics/orders/messages/0/5", "0:5"),
    "groups": ("groups", "Groups"),
    "group": (f"groups/{GROUP}", GROUP),
    "nodes": ("nodes", "Nodes"),
    "node": ("nodes/1", "Node 1"),
    "quorum": ("quorum", "Quorum"),
    "timeline": ("timeline", "Timeline"),
    "moves": ("moves", "Moves"),
    "transactions": ("transactions", "Transactions"),
    "transaction": (f"transactions/{TRANSACTIONAL_ID}", TRANSACTIONAL_ID),
    "pipelines": ("pipelines", "Pipelines"),
    "pipeline": (f"pipelines/{PIPELINE}", PIPELINE),
    "reports": ("reports", "Reports"),
    "report": (f"reports/{REPORT}", REPORT_TITLE),
    "users": ("users", "Users"),
    "acls": ("acls", "ACLs"),
    "quotas": ("quotas", "Quotas"),
}
