"""Runs scripts against a server and stores the responses in readable form."""

import json
from pathlib import Path
from typing import Any

from tests.differential.normal import Normaliser
from tests.differential.script import Script
from tests.differential.scripts import SCRIPTS, SECURED
from tests.peers import KAFKA_VERSION
from tests.plain_client import ConnectionClosed
from tests.processes import until

RECORDED = Path(__file__).with_name("recorded")
COMMAND = "python -m tests.differential.record"
LINE_COLUMNS_MAX = 110
# Settings of both servers.
SETTINGS = {
    "num.partitions": "2",
    "group.min.session.timeout.ms": "100",
    "log.retention.ms": "-1",  # the scripts' records are years old
}


def prepare(address: tuple[str, int]) -> None:
    """Wait until a new server is ready; before that some responses are not deterministic."""
    script = Script(address, "prepare", "newest")
    script.wait_for_coordinator()
    fields = {"transactional_id": None, "transaction_timeout": 60000}
    until(
        lambda: script.quietly("init_producer_id", fields)["error_code"] == "NONE",
        seconds=30,
        what="the first producer id",
    )
    script.close()


def run(address: tuple[str, int], name: str, era: str) -> list[dict[str, Any]]:
    """The normalized responses of a script in one era.

    If a response makes the script fail, the last entry has the error.
    """
    script = Script(address, name, era)
    stopped = None
    try:
        {**SCRIPTS, **SECURED}[name](script)
    except (AssertionError, KeyError, TypeError, IndexError, ConnectionClosed, OSError) as error:
        stopped = f"{type(error).__name__}: {error}"
    finally:
        script.close()
    normaliser = Normaliser.knowing(script.ids)
    rows = [
        {"ask": exchange.ask, "answer": normaliser.normal(exchange.response)}
        for exchange in script.exchanges
    ]
    if stopped is not None:
        rows.append({"ask": "the script could not go on", "answer": stopped[:300]})
    return rows


def save(name: str, eras: dict[str, list[dict[str, Any]]]) -> None:
    head = {"peer": f"Apache Kafka {KAFKA_VERSION}", "recorded by": COMMAND}
    RECORDED.joinpath(f"{name}.json").write_text(_pretty({**head, "eras": eras}) + "\n")


def load(name: str) -> dict[str, list[dict[str, Any]]]:
    recorded: dict[str, Any] = json.loads(RECORDED.joinpath(f"{name}.json").read_text())
    eras: dict[str, list[dict[str, Any]]] = recorded["eras"]
    return eras


def _pretty(value: Any, indent: int = 0) -> str:
    """JSON in which every value that fits is on one line."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) + indent <= LINE_COLUMNS_MAX or not isinstance(value, dict | list) or not value:
        return line
    inner, end = "\n" + " " * (indent + 1), "\n" + " " * indent
    if isinstance(value, list):
        return "[" + inner + ("," + inner).join(_pretty(v, indent + 1) for v in value) + end + "]"
    rows = [f"{json.dumps(key)}: {_pretty(item, indent + 1)}" for key, item in value.items()]
    return "{" + inner + ("," + inner).join(rows) + end + "}"
