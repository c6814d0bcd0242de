"""`report`: what the page holds, read from its HTML."""

import json
import re
import shlex
import shutil
from dataclasses import replace
from html import escape, unescape
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from analysis import report as analysis_report
from analysis import rerun_commands
from analysis.answers import MAX_ANSWERS, answers
from analysis.commands.best import rankings
from analysis.figures.vega import Chart
from analysis.report import page, runs_section
from analysis.report.blocks import (
    Fold,
    Paragraph,
    PlainTable,
    Plot,
    Recommendation,
    Report,
    Section,
    SortableTable,
)
from analysis.runs import load
from analysis.runs.details import read_details
from analysis.stats.between_runs import RepeatedRuns
from multicard.records.limits import ON_CPU
from tests.analysis.conftest import Said
from tests.helpers import records
from tests.helpers.messages import find, says

EVIL = "<img src=x onerror=document.title='run'></script><script>document.title='run'</script>&lt;"


ROWS = [
    {"gpus": n, "total_s": 100.0 / n, "label": f'a "{n}", b{EVIL if n == 1 else ""}'}
    for n in (1, 2, 4)
]
THEMES = {
    name: {"axis": {"labelColor": ink}} for name, ink in (("light", "#111"), ("dark", "#eee"))
}


def plot(name: str) -> Plot:
    """A figure with a stranger's text in its rows."""
    encoding = {
        "x": {"field": "gpus", "type": "ordinal"},
        "y": {"field": "total_s", "type": "quantitative"},
    }
    # an expression, which must not need eval
    in_s = {"calculate": "datum.total_s * 1", "as": "shown_s"}
    chart = {
        "mark": "bar",
        "transform": [in_s],
        "encoding": encoding | {"tooltip": {"field": "label"}},
        "width": 200,
    }
    return Plot(
        Chart(
            name, "Time by precision", chart, ROWS, ["How to read it."], limits=(ON_CPU.limit(),)
        ),
        ["run me"],
    )


def strangers_section() -> Section:
    """A figure and a table with a stranger's text in all of them."""
    table = PlainTable(
        f"Table of {EVIL}", ["precision", "total s"], [["fp32", "1.5"], [EVIL, "-"]], ["a note"]
    )
    return Section(
        "others", "Others", "?", [plot("bars"), Fold("more", [plot("more_bars")]), table]
    )


def sweep(folder: Path, **changes: Any) -> Path:
    """Runs of GPUs: precisions and GPUs, one failed, one with a name of a stranger,
    and a broken record.
    """
    for precision in ("fp64", "fp32", "fp16"):
        for gpus in (1, 2, 4):
            total_s = {"fp64": 400.0, "fp32": 160.0, "fp16": 100.0}[precision] / gpus**0.9
            record = records.vision(precision=precision, gpus=gpus, total_s=total_s, **changes)
            steps = records.steps([total_s / 40 * (1 + step % 3 / 100) for step in range(40)])
            records.write(folder / "grid" / f"{precision}-{gpus}", record, steps)
    cause = {"rank": 0, "host": "node1", "message": f"out of memory {EVIL}"}
    records.write(
        folder / "grid" / "failed", records.vision(precision="bf16", status="oom", cause=cause)
    )
    named = records.vision(precision="tf32", total_s=90.0) | {"name": EVIL}
    measured: dict[str, Any] = {"saves_s": {}, "step_s": {}, "spread": 0.0, "rounds_s": {}}
    diagnosis = {"bound": "input", "sentence": f"bound {EVIL}", **measured}
    path = EVIL.replace("/", "").replace("\n", "")
    records.write(folder / "other" / path, named | {"diagnosis": diagnosis})
    (records.write(folder / "grid" / "broken", record) / "result.json").write_text("{")
    swept(folder / "grid", "precision=fp64,fp32,fp16 gpus=1,2,4")
    return folder


def swept(folder: Path, overrides: str) -> None:
    """Write a sweep's last command of training, as Hydra leaves it."""
    hydra = {"overrides": {"task": shlex.split(overrides)}, "job": {"config_name": "train_vision"}}
    (folder / "multirun.yaml").write_text(json.dumps({"hydra": hydra}))


def build(folder: Path) -> Report:
    return analysis_report.build(load.read_runs([folder]), "Runs", mix=False)


def inlined(text: str) -> dict[str, Any]:
    (data,) = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL
    )
    return json.loads(data)


def unpacked(packed: dict[str, Any]) -> list[Any]:
    """The items of a column; one where all are the same."""
    return (
        [packed["each"]]
        if "each" in packed
        else packed.get("all") or [packed["of"][at] for at in packed["at"]]
    )


def test_the_page_holds_every_run_and_nothing_of_a_run_is_html(tmp_path: Path):
    report = build(sweep(tmp_path))
    text = page.html(replace(report, sections=[*report.sections, strangers_section()]))
    rest = re.sub(r"(<script[^>]*>).*?</script>", r"\1", text, flags=re.DOTALL)
    assert "<img" not in rest and rest.count("<script") == 3  # the data, Vega, and the page's own
    # no handler beside quoted values
    assert not re.search(r"<[^>]*\son\w+=", re.sub(r'"[^"]*"', "", rest))
    assert escape(EVIL).replace("&#x27;", "&#39;") in rest  # whole, as text
    quoted = page.in_script({"a": "</script><!--&", "b": [float("nan")]})
    assert not set("<>&") & set(quoted) and json.loads(quoted) == {
        "a": "</script><!--&",
        "b": [None],
    }
    sections = "answers matters runs settings papers machine others"
    assert re.findall(r'<section id="(\w+)"', rest) == sections.split()

    grids = inlined(text)["grids"]
    columns = {column["key"]: unpacked(column["texts"]) for column in grids["training"]["columns"]}
    assert grids["training"]["rows"] == 10 and len(columns["total_s"]) == 10
    assert sorted(columns["precision"]) == sorted(["fp64", "fp32", "fp16"] * 3 + ["tf32"])
    failed = {column["key"]: unpacked(column["texts"]) for column in grids["failed"]["columns"]}
    assert (failed["status"], failed["cause"]) == (
        ["oom"],
        [f"out of memory {EVIL}"],
    ) and "total_s" not in failed
    titles = [unescape(title) for title in re.findall(r"<summary>(.*?)</summary>", rest)]
    assert any(says(title, "report.unended-runs", runs=1, statuses={"oom": 1}) for title in titles)
    assert unpacked(grids["skipped"]["columns"][0]["texts"]) == [str(tmp_path / "grid/broken")]


def grid_of(folder: Path) -> SortableTable:
    runs = read_details(load.read_runs([folder]).runs)
    return runs_section.runs_table(runs, RepeatedRuns(runs), mix=False)


def test_a_row_is_a_setting_with_its_speedups_and_opens_to_its_runs(tmp_path: Path):
    phases = {"data": 0.01, "h2d": 0.0, "forward": 0.03, "backward": 0.05, "optimizer": 0.01}
    for seed in (0, 1):
        for precision, one_s in (("fp64", 300.0), ("fp32", 100.0)):
            for gpus, total_s in ((1, one_s + seed), (4, one_s / 2 + seed)):
                record = records.vision(
                    precision=precision, gpus=gpus, seed=seed, total_s=total_s, phases_s=phases
                )
                steps = records.steps([0.1] * 40) | {
                    "loss": [2.0 - step / 20 for step in range(40)]
                }
                records.write(tmp_path / f"{precision}-{gpus}-{seed}", record, steps)
    grid = grid_of(tmp_path)
    columns = {column.name: column.numbers or column.texts for column in grid.columns}
    assert grid.parents == [None, 0, 0, None, 3, 3, None, 6, 6, None, 9, 9]
    texts = {column.name: column.texts for column in grid.columns}
    assert texts["runs"] == ["2", "run 1", "run 2"] * 4
    cells = list(zip(columns["precision"], columns["gpus"], texts["runs"], strict=True))
    one, four, run = (
        cells.index(("fp32", gpus, n)) for gpus, n in ((1, "2"), (4, "2"), (4, "run 2"))
    )
    assert columns["speedup"][four] == pytest.approx(100.5 / 50.5)  # of the means over seeds
    assert columns["parallel_efficiency"][four] == pytest.approx(100.5 / 50.5 / 4)
    assert (
        columns["speedup"][one] is None
        and columns["speedup"][run] is None
        and texts["seed"][four : run + 1] == ["-", "0", "1"]
    )
    assert (
        columns["backward_share"] == pytest.approx([0.5] * 12)
        and columns["h2d_share"] == [0.0] * 12
    )
    assert (
        re.fullmatch(r"50\.5 ± \d\.\d+", texts["total_s"][four]) and texts["total_s"][run] == "51.0"
    )
    assert texts["test_accuracy"][four] == "98.00%"  # in which its runs do not differ
    assert (
        grid.curves[one] == []
        and len(grid.curves[run]) == 40
        and grid.curves[run][0] > grid.curves[run][-1]
    )


def test_runs_of_different_amounts_have_the_time_of_as_much_work(tmp_path: Path):
    for gpus in (1, 2):
        record = records.llm(gpus=gpus, max_steps=50)
        record["epochs"][0]["samples"] = 100 * gpus
        records.write(tmp_path / str(gpus), record)
    shown = {column.name: column.heading for column in grid_of(tmp_path).columns if column.shown}
    assert shown["pace_s"] == "s/million tokens" and not {"total_s", "energy_joules"} & {*shown}
    records.write(tmp_path / "2", records.llm(gpus=2, max_steps=50) | {"epochs": []})
    (tmp_path / "1" / "result.json").unlink()
    assert "total_s" in [column.name for column in grid_of(tmp_path).columns if column.shown]


def test_what_was_swept_stands_first_and_is_never_hidden(tmp_path: Path):
    swept = {f"dataset__{key}": value for key, value in (("train_limit", 96), ("test_limit", 50))}
    swept |= {
        "lr": 0.2,
        "gpus": 2,
        "epochs": 3,
        "batch_size": 8,
        "precision": "fp16",
        "strategy": "ddp_rr",
    }
    for index, (key, value) in enumerate([("seed", 0), *swept.items()]):
        records.write(tmp_path / "one" / str(index), records.vision(**{key: value}))
    records.write(tmp_path / "other" / "0", records.vision(pin_memory=False) | {"name": "other"})
    names = [column.name for column in grid_of(tmp_path).columns if column.shown]
    assert {*names[:8]} == {key.replace("__", ".") for key in swept} and names[8] == "total_s"
    assert "pin_memory" not in names  # it differs between sweeps, and there is no room


@pytest.mark.parametrize(
    ("overrides", "record", "command", "of_cell"),
    [
        (
            """ "dataset.root='my photos'" loader=dali,torch gpus=range(1,3) dataset.mean=[0.5,0.5] rerun=true""",
            records.vision(loader="dali", gpus=2),
            """-m "dataset.root='my photos'" loader=dali,torch gpus=range(1,3) dataset.mean=[0.5,0.5] name=s""",
            """ "dataset.root='my photos'" loader=dali gpus=2 dataset.mean=[0.5,0.5] name=s""",
        ),
        (
            "experiment=table2 scale=smoke repeat=3 name=two",
            records.vision(precision="fp16", gpus=4),
            "experiment=table2 scale=smoke repeat=3 name=two",
            "experiment=table2 scale=smoke name=two precision=fp16 gpus=4",
        ),
        (
            "experiment=nsys name=two",
            records.vision(profiled=True, gpus=4),
            "experiment=nsys name=two",
            "experiment=nsys name=two gpus=4 profile=whole",
        ),
        # which does not say which cell
        ("experiment=all", records.vision(), "experiment=all name=s", None),
        ("gpus=1,2", records.llm(), None, None),  # of the other entry, in the same folder
    ],
)
def test_a_sweep_has_its_last_command_and_a_run_that_of_its_cell(
    overrides: str, record: dict[str, Any], command: str | None, of_cell: str | None, tmp_path: Path
):
    records.write(tmp_path / "cell", record | {"name": "s"})
    swept(tmp_path, overrides)
    (run,) = load.read_runs([tmp_path]).runs
    found = [*(rerun_commands.of_sweeps([run, run]) or [None]), *rerun_commands.of_cells([run])]
    for words, expected in zip(found, (command, of_cell), strict=True):
        assert (words and shlex.split(words)) == (
            expected and ["python", "train_vision.py", *shlex.split(expected)]
        )


def test_a_run_of_an_earlier_command_has_its_own_values(tmp_path: Path):
    for precision, lr in (("fp16", 0.012345), ("fp32", 0.1)):
        records.write(tmp_path / precision, records.vision(precision=precision, lr=lr))
    swept(tmp_path, "precision=fp16 name=s")
    own = ("precision=fp16 name=s lr=0.012345", "precision=fp32 name=s lr=0.1")
    commands = rerun_commands.of_cells(load.read_runs([tmp_path]).runs)
    assert commands == [f"python train_vision.py {words}" for words in own]


@pytest.mark.parametrize(
    ("preset", "config"),
    [
        ("fast", {"loader": {"name": "device"}, "layout": {"name": "nhwc"}, "compile": None}),
        ("papers", {"loader": {"name": "torch"}, "layout": {"name": "nchw"}, "compile": False}),
    ],
)
def test_a_preset_that_was_swept_is_told_by_the_keys_that_it_sets(
    preset: str, config: dict[str, Any], tmp_path: Path
):
    record = records.vision()
    record["config"] = config  # the others of its keys follow from nothing that is swept
    records.write(tmp_path / "run", record)
    swept(tmp_path, "preset=papers,fast name=s")
    (command,) = rerun_commands.of_cells(load.read_runs([tmp_path]).runs)
    assert command is not None and command.split()[:4] == [
        "python",
        "train_vision.py",
        f"preset={preset}",
        "name=s",
    ]


def test_the_command_writes_beside_the_runs_and_says_what(tmp_path: Path, said: Said):
    sweep(tmp_path)
    *_, finding, last = said("report", tmp_path, "--title", "A & B").splitlines()
    (answer,) = answers(load.read_runs([tmp_path]).runs)
    assert finding == answer.sentence and answer.setting == "gpus=4 precision=fp16"
    written = find(last, "report.written", file=str(tmp_path / "report.html")).facts
    assert written["summary"].facts == {"runs": 11, "failed": 1, "days": ["2026-11-21"]}
    assert written["size_bytes"] == (tmp_path / "report.html").stat().st_size
    text = (tmp_path / "report.html").read_text()
    assert "<title>A &amp; B</title>" in text and not list(tmp_path.glob(".report*"))


def recommended(report: Report) -> list[Recommendation]:
    return [block for block in report.blocks() if isinstance(block, Recommendation)]


def test_a_setting_that_is_not_recommended_has_no_command_in_large_letters(tmp_path: Path):
    for gpus in (1, 2):
        at_chance = records.vision(gpus=gpus, total_s=100.0 / gpus, chance_accuracy=0.99)
        records.write(tmp_path / str(gpus), at_chance)
    swept(tmp_path, "gpus=1,2 name=s")
    (first,) = recommended(build(tmp_path))
    assert find(first.statement, "answer.at-chance") and first.typed == ""
    assert first.facts[0][1:] == ("", "python train_vision.py gpus=2")


def test_the_first_block_says_what_to_run_what_it_takes_what_limits_it_and_what_to_try(
    tmp_path: Path,
):
    sweep(tmp_path)
    (first,), (answer,) = (
        recommended(build(tmp_path)),
        answers(read_details(load.read_runs([tmp_path]).runs)),
    )
    assert first.typed == "python train_vision.py precision=fp16 gpus=4"
    assert (first.statement, first.doubts) == (answer.statement, answer.marks)
    assert answer.best.cost == pytest.approx(100 / 4**0.9) and answer.against is not None
    assert (answer.against.cost, answer.comparison.is_default) == (160.0, True)
    shown = {name: (sentence, command) for name, sentence, command in first.facts}
    assert shown["What it takes"] == (f"{answer.takes}.", "")
    assert answer.limit is not None and shown["What limits it"] == (
        answer.limit.sentence,
        answer.limit.command or "",
    )
    assert [plot.figure.name for plot in first.blocks] == ["trade_off"]
    shutil.rmtree(tmp_path)
    records.write(tmp_path / "oom", records.vision(status="oom"))
    assert recommended(build(tmp_path)) == []


def test_why_nothing_is_ranked_is_said(tmp_path: Path):
    for number in (1, 2):
        records.write(
            tmp_path / "profiled" / str(number),
            records.vision(gpus=number, profile__window="start"),
        )
        records.write(
            tmp_path / "failed" / str(number), records.vision(gpus=number, status="failed")
        )
    for name, code in (
        ("profiled", "report.no-recommendation"),
        ("failed", "report.no-recommendation-but-causes"),
    ):
        with pytest.raises(ValueError) as refusal:
            rankings(load.read_runs([tmp_path / name]).runs)
        section = next(
            section for section in build(tmp_path / name).sections if section.name == "answers"
        )
        (line,) = [block.text for block in section.blocks if isinstance(block, Paragraph)]
        assert says(line, code) and str(refusal.value) in line


def test_what_can_be_typed_is_code_and_nothing_else_is_markup(tmp_path: Path):
    paragraph = Paragraph(f"{EVIL}; use `gpus=2 {EVIL}`")
    records.write(tmp_path, records.vision())
    text = page.html(replace(build(tmp_path), sections=[Section("one", "One", "", [paragraph])]))
    evil = escape(EVIL).replace("&#x27;", "&#39;")
    shown = f"<p>{evil}; use <code>gpus=2 {evil}</code></p>"
    assert shown in text


@pytest.mark.parametrize(
    ("statement", "shown"),
    [
        ("Use a=1: 2x faster, as good", "<strong>Use a=1:</strong> 2x faster, as good."),
        ("a=1 was 1.5x faster, b: c", "<strong>a=1 was 1.5x faster,</strong> b: c."),
        ("Try `a=1`", "<strong>Try <code>a=1</code>.</strong> "),
    ],
)
def test_the_first_clause_of_a_recommendation_is_in_large_letters(
    statement: str, shown: str, tmp_path: Path
):
    block = Recommendation("training", statement, [], "", [], [])
    records.write(tmp_path, records.vision())
    text = page.html(replace(build(tmp_path), sections=[Section("one", "One", "", [block])]))
    assert f'<p class="statement">{shown}</p>' in text


def test_each_workload_has_its_answer_and_scripts_are_not_compared_with_the_papers(tmp_path: Path):
    for name, gpus in product("abcde", (1, 2)):
        record = records.script(script=f"{name}.py", gpus=gpus, total_s=100.0 / gpus)
        records.write(tmp_path / "scripts" / f"{name}{gpus}", record)
    *lines, more = build(tmp_path).answer
    assert len(lines) == MAX_ANSWERS and says(more, "report.more-workloads", workloads=2)
    assert len({re.findall(r"\w\.py", line)[0] for line in lines}) == MAX_ANSWERS
    for name, is_compared in (("a.py", False), ("images", True)):
        records.write(tmp_path / name, records.script() if not is_compared else records.vision())
        sections = [section.name for section in build(tmp_path).sections]
        assert ("papers" in sections) == is_compared
