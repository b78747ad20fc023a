"""Pipelines and reports that programs publish to a node, read and commanded by REST."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer
from msgspec.structs import replace

from riverrun.admin.pipelines import SILENT_MS_MAX, read_pipeline
from riverrun.admin.reports import PublishedReport, publish_report, report_name
from riverrun.admin.state_records import StateRecord, StateWriter, read_states
from riverrun.chaos.publishing import publish as publish_results
from riverrun.chaos.publishing import summary_of
from riverrun.chaos.runner import ScenarioResult, ScenarioVerdict
from riverrun.chaos.scenarios.catalog import ALL as SCENARIOS
from riverrun.cli.support.client_config import ClusterAddress, command_properties
from riverrun.cli.support.options import UNREACHABLE
from riverrun.client.pool import ConnectionPool
from riverrun.model.names import PIPELINES_TOPIC, REPORTS_TOPIC
from riverrun.pipeline.audit.replicas import AuditResult, CopyDifference
from riverrun.pipeline.declaration.parser import read_pipeline as read_file
from riverrun.pipeline.run.publishing import PipelineCommands, StatusPublisher
from riverrun.pipeline.run.status import PipelineStatus, QueryStatus, status_of_this_process
from tests.cli.commands import Cli
from tests.console.rest.caller import Caller, run_command
from tests.processes import Riverrun, until
from tests.secure_node import SecureNode

pytestmark = pytest.mark.slow

FILE = """
[sources.clicks]
topic = "clicks"
dead_letters = "clicks.dead"
[transforms.good]
sql = "SELECT * FROM clicks"
[sinks.table]
input = "good"
format = "delta"
path = "tables/clicks"
"""


def put(node: Riverrun, topic: str, key: str, value: bytes | None, at_ms: int) -> None:
    async def run() -> None:
        async with ConnectionPool([node.address]) as pool:
            await StateWriter(pool, topic).put(key, value, at_ms)

    asyncio.run(run())


def now_ms() -> int:
    return int(time.time() * 1000)


def status(name: str, state: str, **more: Any) -> PipelineStatus:
    query = QueryStatus(sink="table", state=state, rows=5, lag=7, dead_letters=2, restarts=1)
    made = status_of_this_process(name, "local", [query], ui="http://spark")
    for key, value in more.items():
        setattr(made, key, value)
    return made


class Commands:
    """Remembers what the console asked for."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    @property
    def all(self) -> PipelineCommands:
        return PipelineCommands(
            stop=lambda: self.seen.append("stop"), start=lambda: self.seen.append("start")
        )


@contextmanager
def publishing(
    node: Riverrun, folder: Path, name: str, commands: Commands
) -> Iterator[StatusPublisher]:
    file = folder / f"{name}.toml"
    file.write_text(f'[pipeline]\nname = "{name}"\n{FILE}')
    pipeline = read_file(file, bootstrap=node.bootstrap)
    with StatusPublisher(
        pipeline, commands.all, publish_seconds=0.2, poll_seconds=0.05
    ) as publisher:
        yield publisher


def found(rest: Caller, name: str) -> dict[str, Any] | None:
    items: list[dict[str, Any]] = rest.get("pipelines")["items"]
    return next((item for item in items if item["name"] == name), None)


def state_is(rest: Caller, name: str, state: str) -> None:
    until(
        lambda: (row := found(rest, name)) is not None and row["state"] == state,
        seconds=30,
        what=f"{name} is {state}",
    )


def test_pipeline_is_shown_stopped_and_started(
    node: Riverrun, rest: Caller, tmp_path: Path
) -> None:
    commands = Commands()
    with publishing(node, tmp_path, "shown", commands) as publisher:
        publisher.offer(status("shown", "running"))
        state_is(rest, "shown", "running")
        row = found(rest, "shown")
        assert row is not None
        assert (row["queries"], row["lag"], row["failures"], row["dead_letters"]) == (1, 7, 1, 2)
        details = rest.get("pipelines/shown")
        (query,) = details["queries"]
        assert query["source"] == "topic clicks"
        assert query["sink"].startswith("delta table")
        assert query["dead_letter_topic"] == "clicks.dead"
        assert details["declaration"]["transforms"] == {"good": "SELECT * FROM clicks"}
        assert rest.problem("POST", "pipelines/shown/start", {})[:2] == (409, "conflict")
        shown = rest.call("POST", "pipelines/shown/stop", {"dry_run": True})
        assert shown["command"] == f"riverrun pipeline pause shown --bootstrap {node.bootstrap}"
        rest.call("POST", "pipelines/shown/stop", {"dry_run": False})
        until(lambda: commands.seen == ["stop"], seconds=30, what="the command arrives")
        publisher.offer(status("shown", "ended", is_paused=True))
        state_is(rest, "shown", "stopped")
        assert rest.problem("POST", "pipelines/shown/stop", {})[:2] == (409, "conflict")
        rest.call("POST", "pipelines/shown/start", {"dry_run": False})
        until(lambda: commands.seen == ["stop", "start"], seconds=30, what="it starts")
        publisher.offer(status("shown", "ended", has_ended=True))
    state_is(rest, "shown", "ended")
    code, _, text = rest.problem("POST", "pipelines/shown/start", {})
    assert code == 409
    assert f"riverrun pipeline run {tmp_path / 'shown.toml'}" in text


def test_commands_that_the_console_shows_do_the_same(
    node: Riverrun, rest: Caller, tmp_path: Path
) -> None:
    commands, cli = Commands(), Cli(node.bootstrap)
    with publishing(node, tmp_path, "shell", commands) as publisher:
        publisher.offer(status("shell", "running"))
        state_is(rest, "shell", "running")
        assert cli.result("pipeline", "resume", "shell").exit_code == 1
        run_command(rest.call("POST", "pipelines/shell/stop", {"dry_run": True})["command"])
        until(lambda: commands.seen == ["stop"], seconds=30, what="the command arrives")
        publisher.offer(status("shell", "ended", is_paused=True))
        state_is(rest, "shell", "stopped")
        assert cli.result("pipeline", "pause", "shell").exit_code == 1
        run_command(rest.call("POST", "pipelines/shell/start", {"dry_run": True})["command"])
        until(lambda: commands.seen == ["stop", "start"], seconds=30, what="it starts")
        publisher.offer(status("shell", "ended", has_ended=True))
    state_is(rest, "shell", "ended")
    refused = cli.result("pipeline", "resume", "shell")
    assert refused.exit_code == 1
    assert f"riverrun pipeline run {tmp_path / 'shell.toml'}" in refused.output
    assert cli.result("pipeline", "pause", "no-such-pipeline").exit_code == 4


def test_commands_from_before_the_start_are_ignored(
    node: Riverrun, rest: Caller, tmp_path: Path
) -> None:
    put(node, PIPELINES_TOPIC, "early!command", b'{"command": "stop"}', now_ms())
    commands = Commands()
    with publishing(node, tmp_path, "early", commands) as publisher:
        publisher.offer(status("early", "running"))
        state_is(rest, "early", "running")
        for value in (b"{", b"[]", b'{"command": "rm"}', b'{"command": 5}'):
            put(node, PIPELINES_TOPIC, "early!command", value, now_ms())
        put(node, PIPELINES_TOPIC, "other!command", b'{"command": "stop"}', now_ms())
        put(node, PIPELINES_TOPIC, "early!command", b'{"command": "start"}', now_ms())
        until(lambda: commands.seen, seconds=30, what="the last command arrives")
    assert commands.seen == ["start"]


def test_silent_pipeline_is_dead() -> None:
    value = json.dumps({"name": "p", "state": "running", "host": "h", "updated_ms": 5}).encode()
    record = StateRecord(key="p", value=value, timestamp_ms=1000, offset=0)
    fresh, silent = read_pipeline(record, 2000), read_pipeline(record, 1001 + SILENT_MS_MAX)
    assert fresh is not None and fresh.state == "running"
    assert silent is not None and silent.state == "dead"
    ended = StateRecord(
        key="p", value=value.replace(b"running", b"ended"), timestamp_ms=1000, offset=0
    )
    last = read_pipeline(ended, 10**15)
    assert last is not None and last.state == "ended"
    assert read_pipeline(replace(record, key="p!command"), 2000) is None


def test_foreign_records_are_left_out(node: Riverrun, rest: Caller) -> None:
    for value in (b"", b"{", b'{"name": 5}', b"\xff"):
        put(node, PIPELINES_TOPIC, "foreign", value, now_ms())
        put(node, REPORTS_TOPIC, "foreign", value, now_ms())
    assert found(rest, "foreign") is None
    assert rest.problem("GET", "pipelines/foreign")[:2] == (404, "not_found")
    assert rest.problem("GET", "reports/foreign")[:2] == (404, "not_found")


def test_cluster_that_is_away_does_not_delay_a_pipeline(tmp_path: Path) -> None:
    file = tmp_path / "away.toml"
    file.write_text(FILE)
    pipeline = read_file(file, bootstrap="127.0.0.1:1")
    began = time.monotonic()
    with StatusPublisher(pipeline, Commands().all) as publisher:
        publisher.offer(status("away", "running"))
    assert time.monotonic() - began < 2.0


def test_missing_right_is_one_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = SecureNode(tmp_path / "data")
    try:
        password = {"RIVERRUN_NEW_PASSWORD": "a long password"}
        added = node.run("users", "add", "ann", environment=password)
        assert added.returncode == 0, added.stderr
        login = {
            "RIVERRUN_COMMAND_CONFIG": node.security["properties"],
            "RIVERRUN_SASL_USERNAME": "ann",
            "RIVERRUN_SASL_PASSWORD": "a long password",
        }
        file = tmp_path / "denied.toml"
        file.write_text(FILE)
        address = ClusterAddress.of(node.bootstrap, properties=command_properties(login, None, {}))
        pipeline = dataclasses.replace(read_file(file), bootstrap=address)
        with StatusPublisher(pipeline, Commands().all, publish_seconds=0.1) as publisher:
            publisher.offer(status("denied", "running"))
            thread: threading.Thread = publisher._thread
            thread.join(30)
            assert not thread.is_alive()
        lines = [one.getMessage() for one in caplog.records if one.name == "riverrun.pipeline"]
        assert len(lines) == 1, lines
        assert PIPELINES_TOPIC in lines[0]
    finally:
        node.stop()


def test_reports_are_listed_newest_first(node: Riverrun, rest: Caller) -> None:
    async def publish(*reports: PublishedReport) -> None:
        async with ConnectionPool([node.address]) as pool:
            for report in reports:
                await publish_report(pool, report)

    def report(kind: str, created_ms: int, content: dict[str, Any]) -> PublishedReport:
        return PublishedReport(
            name=report_name(kind, created_ms),
            kind=kind,
            title="A title",
            created_ms=created_ms,
            verdict="held",
            summary="2 runs",
            content=content,
        )

    old = report("chaos", 1_700_000_000_000, {"runs": [{"seed": 1}]})
    new = report("audit", now_ms(), {"differences": [{"text": "x" * 100}] * 20_000})
    asyncio.run(publish(new, old))
    assert old.name == "chaos-20231114-221320"

    def listed() -> list[str]:
        return [item["name"] for item in rest.get("reports")["items"]]

    until(lambda: listed() == [new.name, old.name], seconds=30, what="both are listed")
    assert rest.get(f"reports/{old.name}")["content"] == {"runs": [{"seed": 1}]}
    cut = rest.get(f"reports/{new.name}")["content"]
    assert cut["is_cut"]
    assert 0 < len(cut["differences"]) < 20_000


def test_newest_record_of_each_key_is_read(node: Riverrun) -> None:
    topic = "states"

    async def run() -> None:
        async with ConnectionPool([node.address]) as pool:
            assert await read_states(pool, "no-such-states") == {}
            writer = StateWriter(pool, topic)
            for number in range(1200):
                await writer.put(f"key-{number % 7}", b"%d" % number, number)
            await writer.put("key-0", None, 5)
            states = await read_states(pool, topic)
        assert {key: int(one.value) for key, one in states.items()} == {
            f"key-{key}": max(n for n in range(1200) if n % 7 == key) for key in range(1, 7)
        }

    asyncio.run(run())


def test_chaos_run_publishes_its_verdict(node: Riverrun, rest: Caller) -> None:
    held = ScenarioResult(scenario=SCENARIOS[0], seed=1, seconds=2.5)
    broken = ScenarioResult(scenario=SCENARIOS[1], seed=2)
    broken.add_problem(ScenarioVerdict.BROKEN, "a record was lost")
    publish_results(node.bootstrap, [held, broken], "riverrun", 60.0)

    def reports() -> list[dict[str, Any]]:
        return [one for one in rest.get("reports")["items"] if "scenarios" in one["title"]]

    (item,) = until(reports, seconds=30, what="the report is listed")
    assert item["verdict"] == "broken"
    assert item["summary"] == "2 runs in 1.0 minutes: 1 held, 1 broken"
    assert summary_of([held], 30.0) == "1 run in 30 s: 1 held"
    content = rest.get(f"reports/{item['name']}")["content"]
    assert [run["verdict"] for run in content["runs"]] == ["holds", "broken"]
    assert content["runs"][1]["problems"] == ["a record was lost"]


def test_report_that_cannot_be_published_is_an_error_of_the_command() -> None:
    held = ScenarioResult(scenario=SCENARIOS[0], seed=1)
    with pytest.raises(typer.Exit) as ended:
        publish_results("127.0.0.1:1", [held], "riverrun", 1.0)
    assert ended.value.exit_code == UNREACHABLE
    broken = ScenarioResult(scenario=SCENARIOS[0], seed=1)
    broken.add_problem(ScenarioVerdict.BROKEN, "lost")
    publish_results("127.0.0.1:1", [broken], "riverrun", 1.0)  # its own exit code counts


def test_audit_has_a_verdict() -> None:
    def verdict(unread: int, *differences: bool) -> str:
        found = [
            CopyDifference(topic="t", partition=0, offset=0, text="", is_unread=is_unread)
            for is_unread in differences
        ]
        return AuditResult(
            copies=3, partitions=1, compared=5, unread=unread, differences=found
        ).verdict

    assert verdict(0) == "equal"
    assert verdict(1, True) == "unread"
    assert verdict(1, True, False) == "differ"
