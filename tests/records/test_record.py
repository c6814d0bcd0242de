"""Files are whole or absent, and what a run left is found again; journals,
and the board of the ranks.
"""

import errno
import json
import os
import re
from contextlib import nullcontext
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import numpy as np
import pytest

from multicard.messages import Message
from multicard.records import rank_files, run_folder, schema_page
from multicard.records.journal import Journal, JournalError
from multicard.records.progress import Board, RankProgress
from multicard.records.rank_files import VisionRankEpoch, VisionReport
from multicard.records.schema_environment import Environment
from multicard.records.schema_parts import Failure
from multicard.run import progress_bar
from multicard.run.progress_bar import InSweep, ProgressBar
from tests.conftest import ROOT
from tests.helpers import records
from tests.helpers.messages import refused, says


def test_json_has_no_nan(tmp_path: Path):
    run_folder.write_json(
        tmp_path / "a" / "r.json", {"a": float("nan"), "b": [1.0, float("inf")], "c": {"d": 2}}
    )
    assert json.loads((tmp_path / "a" / "r.json").read_text()) == {
        "a": None,
        "b": [1.0, None],
        "c": {"d": 2},
    }


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path):
    path = tmp_path / "r.json"
    run_folder.write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        run_folder.write_json(path, {"a": object()})
    with pytest.raises(ZeroDivisionError), run_folder.replacing(path) as file:
        file.write(b"half")
        file.write(bytes(1 // 0))
    assert run_folder.read_json(path) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]


@pytest.mark.parametrize("text", ["", "{", "[1]", "null"])
def test_what_is_not_a_whole_object_reads_as_none(tmp_path: Path, text: str):
    (tmp_path / "r.json").write_text(text)
    assert run_folder.read_json(tmp_path / "r.json") is None
    assert run_folder.read_json(tmp_path / "absent.json") is None


def step_columns(rank: int) -> dict[str, np.ndarray]:
    """Two steps of a training run on images."""
    seconds = ("data_s", "h2d_s", "forward_s", "backward_s", "optimizer_s", "loss")
    counts = ("samples", "loaded", "h2d_images_bytes", "h2d_labels_bytes")
    figures = {"step_s": np.array([0.1 * rank, 0.2])} | {name: np.zeros(2) for name in seconds}
    return figures | {name: np.zeros(2, dtype=int) for name in counts}


def test_steps_are_read_alike_before_and_after_merging(tmp_path: Path):
    assert run_folder.read_steps(tmp_path) is None
    for epoch, rank in [(1, 0), (0, 1), (1, 1), (0, 0)]:
        run_folder.write_steps(tmp_path, rank, epoch, step_columns(rank))
    before = run_folder.read_steps(tmp_path)
    merged = run_folder.merge_steps(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["steps.parquet"]
    assert merged.equals(before) and run_folder.read_steps(tmp_path).equals(before)
    places = zip(*(merged[name].to_pylist() for name in ("epoch", "rank", "step")), strict=True)
    assert list(places) == [
        (epoch, rank, step) for epoch in (0, 1) for rank in (0, 1) for step in (0, 1)
    ]

    again = step_columns(1) | {"loss": np.full(2, 7.0)}
    run_folder.write_steps(tmp_path, 1, 0, again)  # trained again from an earlier checkpoint
    run_folder.write_steps(tmp_path, 0, 2, step_columns(0))
    both = run_folder.read_steps(tmp_path)
    assert both["epoch"].to_pylist() == [0] * 4 + [1] * 4 + [2] * 2
    assert both["loss"].to_pylist() == [0, 0, 7, 7, *[0] * 6]
    assert run_folder.merge_steps(tmp_path).equals(both) and run_folder.read_steps(tmp_path).equals(
        both
    )


@pytest.mark.parametrize(
    "change", [{"odd": np.zeros(2)}, {"loss": np.zeros(2, dtype=int)}, {"samples": None}]
)
def test_steps_that_the_schema_does_not_have_are_not_written(
    tmp_path: Path, change: dict[str, Any]
):
    columns = {
        name: values for name, values in (step_columns(0) | change).items() if values is not None
    }
    with pytest.raises(TypeError, match=r"r00_e000\.parquet"):
        run_folder.write_steps(tmp_path, 0, 0, columns)
    assert not (tmp_path / "steps").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"total_s": "many"}, r"Expected `float \| null`, got `str` - at `\$.total_s`"),
        (
            {"epochs": [{"epoch": 0, "test_accuracy": 1.5}]},
            r"<= 1.0 - at `\$.epochs\[0\].test_accuracy`",
        ),
        ({"total_s": 0.0}, r">= 1e-09 - at `\$.total_s`"),
        ({"total_s": 1e19}, r"<= 1e\+18 - at `\$.total_s`"),
        ({"kind": "other"}, "Invalid value 'other'"),
        ({"segments": None}, "Expected `array`, got `null`"),
    ],
)
def test_what_the_schema_does_not_have_is_no_record(change: dict[str, Any], message: str):
    with refused("record.broken") as refusal:
        run_folder.decode(json.dumps(records.vision() | change).encode())
    assert re.search(message, refusal.value.facts["reason"])


@pytest.mark.parametrize("strict", [True, False])
def test_what_is_not_of_the_schema_is_an_error_here_and_reported_elsewhere(
    strict: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    run = records.as_run(records.vision() | {"folder": str(tmp_path)})
    run_folder.write_result(run)
    before = (tmp_path / "result.json").read_text()
    assert json.loads(before) == run_folder.content_of(run.record)
    if not strict:
        monkeypatch.delenv("MULTICARD_STRICT")
    run.record.total_s = "many"  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(TypeError, match="Expected `float") if strict else nullcontext():
        run_folder.write_result(run)
    assert ((tmp_path / "result.json").read_text() == before) is strict  # elsewhere nothing is lost
    assert says(capsys.readouterr().err, "record.not-of-schema") is not strict


def test_an_environment_is_read_as_it_was_written_and_empty_where_there_is_none(tmp_path: Path):
    environment = msgspec.convert(records.environment(), Environment)
    run_folder.write_environment(tmp_path, environment)
    assert run_folder.read_environment(tmp_path) == environment
    assert run_folder.read_environment(tmp_path / "absent") == Environment()


def test_a_run_that_was_not_measured_has_the_keys_of_all_records(tmp_path: Path):
    refused = records.vision(
        status="refused", cause={"kind": "refused", "message": "gpus=0"}, identity=None
    )
    run_folder.write_result(records.as_run(refused | {"folder": str(tmp_path)}))
    content = json.loads((tmp_path / "result.json").read_text())
    assert tuple(content) == run_folder.ALWAYS and content["cause"]["message"] == "gpus=0"
    assert (content["cause"]["code"], content["cause"]["key"], content["cause"]["facts"]) == (
        None,
        None,
        {},
    )


def test_a_cause_has_what_its_message_says_as_data(tmp_path: Path):
    message = Message("run.too-much", "gpus=9: too many", key="gpus", value=9, folder=tmp_path)
    run = records.as_run(records.vision(status="refused") | {"folder": str(tmp_path)})
    run.record.cause = Failure("refused", message)
    run_folder.write_result(run)
    read = run_folder.read_run(tmp_path)
    assert (
        read is not None
        and read.record.cause is not None
        and type(read.record.cause.message) is str
    )
    assert read.record.cause == run.record.cause
    cause = json.loads((tmp_path / "result.json").read_text())["cause"]
    assert (cause["message"], cause["code"], cause["key"]) == (str(message), "run.too-much", "gpus")
    assert cause["facts"] == {"value": 9, "folder": str(tmp_path)}
    assert (
        msgspec.structs.replace(run.record.cause, message=f"rank 0: {message}").code
        == "run.too-much"
    )


def test_the_page_of_the_record_is_up_to_date():
    remedy = "python -m multicard.records.schema_page > docs/reference/record.md"
    assert (ROOT / "docs/reference/record.md").read_text() == schema_page.page(), remedy


def test_rank_files_come_by_rank(tmp_path: Path):
    for rank in (2, 0, 1):
        rank_files.write(tmp_path, VisionReport(rank=rank))
    rank_files.path_of(tmp_path, 3).write_text('{"rank":')  # cut off
    assert [report.rank for report in rank_files.read_reports(tmp_path)] == [0, 1, 2]


@pytest.mark.parametrize("late", ["rank", "steps"])
def test_what_another_node_wrote_may_be_seen_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: str
):
    for rank in (0, 1):
        rank_files.write(tmp_path, VisionReport(rank=rank, epochs=[VisionRankEpoch(0)]))
        run_folder.write_steps(tmp_path, rank, 0, step_columns(rank))
    path = {
        "rank": rank_files.path_of(tmp_path, 1),
        "steps": run_folder.steps_file(tmp_path, 1, 0),
    }[late]
    hidden = path.rename(tmp_path / "hidden")
    monkeypatch.setattr(rank_files, "pause", lambda _: hidden.exists() and hidden.rename(path))
    assert len(rank_files.read_reports(tmp_path, expected=2)) == 2
    assert sorted(run_folder.merge_steps(tmp_path)["rank"].to_pylist()) == [0, 0, 1, 1]
    assert len(rank_files.read_reports(tmp_path, expected=2)) == 2  # merged: nothing is waited for


def test_only_measurements_are_kept(tmp_path: Path):
    kept = []
    for status in run_folder.STATUSES:
        records.put_whole(tmp_path, records.vision(status=status))
        kept += [status] if run_folder.finished(tmp_path) is not None else []
    assert kept == ["ok", "oom", "diverged"]


def test_what_earlier_commands_refused_is_forgotten_but_for_what_jobs_left(tmp_path: Path):
    for name in ("a/refused", "a/job", "a/ok", "other/refused"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "result.json").write_text(
            f'{{"status": "{"ok" if name == "a/ok" else "refused"}"}}'
        )
    # else it would count as one that is being measured
    (tmp_path / "a" / "job" / "config.yaml").touch()
    (tmp_path / "a" / "link").symlink_to(tmp_path / "other" / "refused")
    run_folder.forget_refused(tmp_path / "a")
    assert {path.parent.name for path in tmp_path.glob("a/*/result.json")} == {"job", "ok", "link"}
    assert not (tmp_path / "a" / "refused").exists()


HEAD = {"code": ["a", ""]}


def test_entries_are_kept_to_the_last_whole_line(tmp_path: Path):
    path = tmp_path / "deeper" / "images_per_s.jsonl"
    first = Journal(path, "name=a: its race", HEAD)
    first.add(cell="1", out="beaten")
    first.close()
    with path.open("a") as file:
        file.write('{"cell": "2", "ou')
    again = Journal(path, "name=a: its race", HEAD)
    assert again.entries == [{"cell": "1", "out": "beaten"}]
    again.add(cell="3")
    assert [entry["cell"] for entry in again.entries] == ["1", "3"]
    with refused("journal.in-use", owner="name=a: its race"):
        Journal(path, "name=a: its race", HEAD)
    again.close()
    with refused("journal.other-head", owner="name=a: its race", changed=["code"], file=str(path)):
        Journal(path, "name=a: its race", {"code": ["b", ""]})
    third = Journal(path, "a", HEAD)
    assert [entry["cell"] for entry in third.entries] == ["1", "3"]
    third.close()
    anew = Journal(path, "a", {"code": ["b", ""]}, anew=True)
    assert anew.entries == []
    anew.close()


def test_a_journal_without_a_head_takes_all_entries(tmp_path: Path):
    for expected in ([], [{"began": 1}]):
        journal = Journal(tmp_path / "events.jsonl", "--name a")
        assert journal.entries == expected
        journal.add(began=1)
        journal.close()


def test_a_full_disk_is_said(tmp_path: Path):
    journal = Journal(tmp_path / "events.jsonl", "--name a")
    journal._file.close()
    journal._file = os.fdopen(os.open("/dev/full", os.O_WRONLY), "w")
    with pytest.raises(JournalError) as error:
        journal.add(began=1)
    assert says(
        str(error.value),
        "journal.unwritable",
        file=str(journal.path),
        reason=os.strerror(errno.ENOSPC),
    )
    journal.close()


def test_ranks_post_and_the_controller_asks(tmp_path: Path):
    board = Board(tmp_path, 3, create=True)
    seen = Board(tmp_path, 3)
    assert seen.stop_at == 0
    board.ask_stop(123_456_789)
    for rank in range(3):
        seen.post(rank, rank, 10, 16 * rank, 0, 0.5)
    assert seen.stop_at == 123_456_789
    assert [board.read(rank) for rank in range(3)] == [
        RankProgress(rank, 10, 16 * rank, 0, 0.5) for rank in range(3)
    ]
    board.remove()
    assert not list(tmp_path.iterdir())


def test_every_node_has_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first, second = Board(tmp_path, 2, create=True), Board(tmp_path, 2, create=True, node=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".progress", ".progress-1"]
    second.ask_stop(7)
    monkeypatch.setenv("GROUP_RANK", "1")  # as the elastic agent has it on its ranks
    assert (
        Board(tmp_path, 2).stop_at == 7 and Board(tmp_path, 2, node=0).stop_at == first.stop_at == 0
    )


def test_the_bar_has_rates_from_where_the_run_goes_on_and_is_not_full_while_evaluating(
    tmp_path: Path,
):
    board = Board(tmp_path, 1, create=True)
    view = ProgressBar(board, 1, epochs=2, unit="images")
    assert view.fields(0.0) == {}
    board.post(0, 2, 10, 640, 0, float("nan"))
    assert view.fields(100.0) == {
        "description": "epoch 1/2",
        "total": 10,
        "completed": 2,
        "figures": "",
    }
    board.post(0, 3, 10, 960, 0, 0.5)
    assert view.fields(164.0)["figures"] == "loss 0.500  5 images/s"
    board.post(0, 10, 10, 3200, 1, 0.5, evaluating=True)
    fields = view.fields(1000.0)
    assert fields["description"] == "epoch 2/2, evaluating" and fields["completed"] < 10
    board.post(0, 10, 10, 3200, 1, 0.5)
    assert view.fields(1010.0)["completed"] == 10


@pytest.mark.parametrize("has_terminal", [False, True])  # a dumb one
def test_where_no_bar_can_be_drawn_a_long_run_says_how_far_it_and_its_sweep_are(
    has_terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    board, said, has_said = Board(tmp_path, 1, create=True), list[str](), Event()
    board.post(0, 2, 10, 640, 0, 0.5)
    monkeypatch.setattr(progress_bar, "FIRST_LINE_S", 0.0)
    monkeypatch.setattr(progress_bar, "say", lambda line: (said.append(line), has_said.set()))
    monkeypatch.setattr("sys.stderr.isatty", lambda: has_terminal, raising=False)
    monkeypatch.setenv("TERM", "dumb" if has_terminal else "xterm")
    with ProgressBar(
        board, 1, epochs=2, unit="images", cell=InSweep("[1/2] lr=1   ", lambda: 61.0)
    ):
        assert has_said.wait(60)
    assert said[0].split() == [
        "[1/2]",
        "lr=1",
        "epoch",
        "1/2",
        "loss",
        "0.500",
        "sweep:",
        "0:01:01",
        "left",
    ]


def test_lines_of_a_run_that_is_still_starting_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """In a pipe two alike would look like a run that was started twice."""
    board, said, has_said = Board(tmp_path, 1, create=True), list[str](), Event()
    times_s = iter(range(0, 1_000_000, 60))
    monkeypatch.setattr(progress_bar, "clock_s", lambda: float(next(times_s)))
    monkeypatch.setattr(progress_bar, "FIRST_LINE_S", 1.0)
    monkeypatch.setattr(progress_bar, "REFRESH_S", 0.01)
    monkeypatch.setattr(
        progress_bar, "say", lambda line: (said.append(line), len(said) > 1 and has_said.set())
    )
    monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
    with ProgressBar(board, 1, epochs=2, unit="images"):
        assert has_said.wait(60)
    assert said[0].split()[0] == "starting," and said[0] != said[1]


def test_a_full_disk_names_the_file_and_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(run_folder.os, "fsync", fail)
    with pytest.raises(OSError, match="No space") as full:
        run_folder.write_text(tmp_path / "a.csv", "text")
    assert full.value.filename == str(tmp_path / "a.csv") and [*tmp_path.iterdir()] == []


def test_names_of_any_bytes_are_text_that_a_strict_reader_takes(tmp_path: Path):
    names = [
        os.fsdecode(b"caf\xe9"),
        os.fsdecode(b"\xff\xfe"),
        "caf\u00e9 \U0001f600",
        "half \ud800",
    ]
    report = VisionReport(rank=0, input={"classes": names, names[0]: 1}, openmp={"OMP_X": names[1]})
    rank_files.write(tmp_path, report)
    assert rank_files.problem(tmp_path, 1) is None
    (read,) = rank_files.read_reports(tmp_path)
    assert read.input == {
        "classes": [r"caf\xe9", r"\xff\xfe", names[2], r"half \ud800"],
        r"caf\xe9": 1,
    }
    assert read.openmp == {"OMP_X": r"\xff\xfe"}
    run_folder.write_text(tmp_path / "a.txt", names[0])
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == r"caf\xe9"


BROKEN = {
    "cut off": b'{"rank":',
    "a surrogate": b'{"kind": "vision", "rank": 1, "host": "\\udce9"}',
    "bytes": b'{"kind": "vision", "rank": 1, "host": "\xe9"}',
    "another schema": b'{"kind": "vision", "rank": "one"}',
    "absent": None,
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_report_that_cannot_be_read_is_missing_and_named(name: str, tmp_path: Path):
    for rank in (0, 1, 2):
        rank_files.write(tmp_path, VisionReport(rank=rank))
    path, content = rank_files.path_of(tmp_path, 1), BROKEN[name]
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert [report.rank for report in rank_files.read_reports(tmp_path)] == [0, 2]
    problem = rank_files.problem(tmp_path, 3)
    assert problem is not None and problem.code == "run.no-report"
    assert (problem.facts["rank"], problem.facts["ranks"]) == (1, 3) and problem.facts["reason"]


def test_steps_that_a_report_counts_and_nobody_finds_are_missing(tmp_path: Path):
    rank_files.write(
        tmp_path, VisionReport(rank=0, epochs=[VisionRankEpoch(0), VisionRankEpoch(1)])
    )
    run_folder.write_steps(tmp_path, 0, 0, step_columns(0))
    problem = rank_files.problem(tmp_path, 1)
    assert problem is not None and (problem.code, problem.facts) == (
        "run.no-steps",
        {"file": "r00_e001.parquet"},
    )
    run_folder.write_steps(tmp_path, 0, 1, step_columns(0))
    assert rank_files.problem(tmp_path, 1) is None
