"""The command, its report and its chart, from a synthetic history."""

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from riverrun.chaos.chart import draw, node_spans
from riverrun.chaos.checks.anomalies import Anomaly
from riverrun.chaos.checks.replica_checks import compare_replicas
from riverrun.chaos.command import FAMILIES
from riverrun.chaos.history import Action, Operation, OperationKind, write_history
from riverrun.chaos.report import html
from riverrun.chaos.runner import ScenarioResult, ScenarioVerdict, exit_code
from riverrun.chaos.scenarios.catalog import ALL, BY_NAME, UnknownScenario, choose
from riverrun.cli.main import build
from riverrun.records.record import NewRecord, build_batch
from tools.chaos_table import picture, runs_in, silences, summary


def _operations() -> list[Operation]:
    made = []
    for number in range(100):
        if 40 <= number < 60:
            continue
        begun = Operation(
            time=number / 20,
            process="p",
            action=Action.SEND,
            kind=OperationKind.INVOKE,
            partition=0,
            value=f"p/0/{number}",
        )
        ended = replace(begun, time=begun.time + 0.01, kind=OperationKind.OK, offset=number)
        made += [begun, ended]
    for time, state in ((2.0, "killed"), (3.0, "")):
        made.append(
            Operation(
                time=time, process="arena", action=Action.FAULT, node=1, value=state, text="x"
            )
        )
    return sorted(made, key=lambda operation: operation.time)


def test_chart_shows_faults_and_silences() -> None:
    svg = draw(_operations())
    root = ElementTree.fromstring(svg)
    titles = [element.text or "" for element in root.iter() if element.tag.endswith("title")]
    assert any("without an acknowledgement" in title for title in titles)
    assert any("node 1 killed for 1.00 s" in title for title in titles)


def test_fault_without_an_end_lasts_until_the_end_of_the_run() -> None:
    operations = [Operation(time=1.0, process="arena", action=Action.FAULT, node=2, value="paused")]
    span = node_spans(operations, 5.0)[0]
    assert (span.state, span.start, span.end) == ("paused", 1.0, 5.0)


def test_report_lists_problems_and_is_self_contained() -> None:
    result = ScenarioResult(scenario=ALL[0], seed=3, operations=_operations())
    result.findings.add(Anomaly.LOST, "p/0/1 <gone>")
    result.add_problem(ScenarioVerdict.BROKEN, "promises were broken")
    page = html([result], title="Chaos", seconds=60)
    assert "p/0/1 &lt;gone&gt;" in page
    assert "broken" in page
    assert "src=" not in page.replace("xmlns=", "")
    figures = result.figures()
    assert figures["acknowledged"] == 80
    assert figures["longest_silence_s"] == pytest.approx(1.05)


def test_exit_code_is_that_of_the_worst_verdict() -> None:
    results = [ScenarioResult(scenario=ALL[0], seed=1) for _ in range(3)]
    assert exit_code(results) == 0
    results[1].add_problem(ScenarioVerdict.STUCK, "slow")
    assert exit_code(results) == 11
    results[2].add_problem(ScenarioVerdict.BROKEN, "gone")
    results[2].add_problem(ScenarioVerdict.STUCK, "slow too")
    assert exit_code(results) == 10


def test_scenarios_are_selected_by_name_or_family_without_duplicates() -> None:
    assert len(choose(["all"])) == len(ALL) == len(BY_NAME)
    assert {s.family for s in choose(["quorum"])} == {"quorum"}
    assert len(choose(["leader-killed", "replication"])) == len(choose(["replication"]))
    with pytest.raises(UnknownScenario):
        choose(["no-such-thing"])


def _run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(build(["chaos", *words]), ["chaos", *words])
    return result.exit_code, result.output


def test_help_names_all_families() -> None:
    assert set(FAMILIES) == {scenario.family for scenario in ALL}


def test_command_lists_scenarios_and_rejects_unknown_ones() -> None:
    code, text = _run("list")
    assert code == 0
    assert "kill-storm" in text
    code, text = _run("run", "no-such-thing")
    assert code == 4
    assert "chaos list" in text


def test_check_command_checks_a_saved_history(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    write_history(path, _operations())
    assert _run("check", str(path))[0] == 0
    gone = Operation(time=9.0, process="end", action=Action.READ_BACK, partition=0, records=())
    write_history(path, [*_operations(), gone])
    code, text = _run("check", str(path))
    assert code == 10
    assert "LOST" in text
    path.write_text("no json\n")
    assert _run("check", str(path))[0] == 2
    assert _run("check", str(tmp_path / "none"))[0] == 4


def _log(folder: Path, values: list[bytes], *, epoch: int = 0) -> Path:
    folder.mkdir()
    data = b"".join(
        bytes(build_batch([NewRecord(value)], base_offset=at, leader_epoch=epoch))
        for at, value in enumerate(values)
    )
    (folder / "00000000000000000000.log").write_bytes(data)
    return folder


def test_replicas_are_compared_batch_by_batch(tmp_path: Path) -> None:
    one = _log(tmp_path / "1", [b"a", b"b", b"c"])
    short = _log(tmp_path / "2", [b"a", b"b"])
    other = _log(tmp_path / "3", [b"a", b"x", b"c"])
    equal = compare_replicas("t-0", {1: one, 2: short, 4: tmp_path / "4"}, Anomaly.REPLICAS_DIFFER)
    assert not equal
    found = compare_replicas("t-0", {1: one, 3: other}, Anomaly.REPLICAS_DIFFER)
    assert found.counts == {Anomaly.REPLICAS_DIFFER: 1}


def test_chaos_table_summarizes_runs() -> None:
    run = {"verdict": "holds", "acknowledged": 1000, "read": 2000}
    lines = [
        json.dumps({"scenario": "leader-killed", **run, "longest_silence_s": 0.1}),
        "    1.57 s  kill -9 node 2",
        json.dumps({"scenario": "leader-killed", **run, "longest_silence_s": 0.3}),
        json.dumps({"scenario": "disk-full", **run, "longest_silence_s": 0, "acknowledged": 0}),
    ]
    runs = runs_in(lines)
    words = summary(runs).splitlines()
    assert words[:2] == [
        "3 runs of 2 scenarios: 3 holds",
        "2,000 records acknowledged, 6,000 read",
    ]
    assert words[-1] == "| leader-killed | 2 | 0.20 | 0.30 |"
    drawn = picture(silences(runs))
    assert drawn.count("<circle") == 2
    assert ">leader-killed</text>" in drawn
    assert ">disk-full</text>" not in drawn
