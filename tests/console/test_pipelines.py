"""The status of pipelines, which any producer of the topic may write."""

from __future__ import annotations

import json

import pytest

from riverrun.admin.pipelines import read_pipeline
from riverrun.admin.state_records import StateRecord


@pytest.mark.parametrize(
    ("link", "shown"),
    [
        ("http://driver:4040", "http://driver:4040"),
        ("https://driver/proxy", "https://driver/proxy"),
        ("javascript:alert(1)", None),
        (" javascript:alert(1)", None),
        ("data:text/html,x", None),
        ("//other.example", None),
    ],
)
def test_only_web_addresses_become_links(link: str, shown: str | None) -> None:
    status = {"name": "p", "state": "running", "host": "h", "updated_ms": 1, "spark_ui": link}
    record = StateRecord(key="p", value=json.dumps(status).encode(), timestamp_ms=1, offset=0)
    found = read_pipeline(record, now_ms=1)
    assert found is not None and found.spark_ui == shown
