"""`table`: the papers' tables from your own runs, and what the papers printed."""

import math
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis import experiments
from analysis.commands import table as tables
from analysis.commands.experiment_table import ExperimentTable
from analysis.runs import load
from multicard.measure.repeated_runs import PRIOR_SD
from multicard.papers import printed as papers
from multicard.records.figures import FIGURES
from multicard.records.output import BOOKTABS
from tests.analysis.conftest import Said
from tests.helpers import grids, records
from tests.helpers.messages import codes, find, says

PRECISIONS = ("fp64", "fp32", "fp16")
SETTING = grids.papers_setting("table2")


def table2(folder: Path, times_s: dict[tuple[str, int], float], **changes: Any) -> Path:
    for (precision, gpus), total_s in times_s.items():
        settings = SETTING | changes
        record = records.vision(precision=precision, gpus=gpus, total_s=total_s, **settings)
        records.write(folder / f"{precision}-{gpus}", record)
    return folder


def printed(name: str, folder: Path) -> list[ExperimentTable]:
    experiment = experiments.load_experiment(name)
    return tables.tables(experiment, experiments.panels(experiment, load.read_runs([folder]).runs))


def row(table: ExperimentTable, **cell: Any) -> dict[str, Any]:
    (found,) = (one for one in table.rows if all(one[key] == value for key, value in cell.items()))
    return found


def test_a_single_cell_of_an_experiment_is_shown_when_it_is_asked_for(tmp_path: Path, said: Said):
    table2(tmp_path, {("fp32", 1): 100.0})
    experiment = experiments.load_experiment("table2")
    # a report shows what compares something
    assert experiments.panels(experiment, load.read_runs([tmp_path]).runs) == []
    printed = said("table", "table2", tmp_path)
    absent = ["precision=fp64,fp16", "gpus=2,3,4"]
    assert says(printed, "table.missing", n=len(PRECISIONS) * 4 - 1, absent=absent)
    # Rows of cells that were not measured would hide the one that was.
    rows = [line for line in printed.splitlines() if re.match(r"fp\d\d +\d", line)]
    assert len(rows) == 1 and re.match(r"fp32 +1 +ok +100", rows[0])


def test_runs_of_other_sweeps_are_shown_only_if_their_folder_is_named(
    tmp_path: Path, said: Said, refused: Said, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    photos = tmp_path / "multirun" / "photos"
    table2(photos, {("fp64", 1): 100.0, ("fp32", 1): 50.0}, dataset="images")
    message = find(refused("table", "table2"), "analysis.of-other-sweeps", experiment="table2")
    words = shlex.split(message.facts["shows"].partition(" table ")[2])
    assert words == ["table2", "multirun/photos"]
    assert "100" in said("table", *words)
    message = find(refused("figure", "table2"), "analysis.of-other-sweeps", experiment="table2")
    assert " figure table2 multirun/photos" in message.facts["shows"]
    assert "figures/table2.svg" in said("figure", *words)
    table2(tmp_path / "multirun" / "own", {("fp64", 1): 200.0, ("fp32", 1): 150.0})
    own = said("table", "table2")
    assert says(own, "table.others", n=1) and "200" in own
    assert "100.0" in said("table", "table2", "--all")


def test_a_sweep_of_the_experiments_name_is_its_own_whatever_its_data(
    tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    for precision in ("fp64", "fp32"):
        record = records.vision(precision=precision, **SETTING | {"dataset": "digits"})
        records.write(tmp_path / "multirun" / precision, record | {"name": "table2"})
    assert says(said("table", "table2"), "table.missing")


def test_latex_has_titles_in_words_a_label_and_its_package(tmp_path: Path, said: Said):
    table2(tmp_path, {("fp64", 1): 100.0, ("fp32", 1): 50.0})
    latex = said("table", "table2", tmp_path, "--latex", "-")
    assert latex.startswith(f"{BOOKTABS}\n") and r"\label{tab:table2}" in latex
    assert "training time (s)" in latex and "test accuracy" in latex and r"total\_s" not in latex


@pytest.mark.parametrize(("command", "known"), [("table", "table4"), ("figure", "trade_off")])
def test_without_a_name_the_names_are_listed(command: str, known: str, refused: Said):
    message = find(refused(command), "analysis.no-name", command=command)
    assert known in message.facts["known"] and "table2" in message.facts["known"]


@pytest.mark.parametrize(
    ("name", "ratio"), [("table2", "x fp64"), ("table3", "x pin_memory=false"), ("table5", "saved")]
)
def test_the_papers_own_times_give_their_tables_back(name: str, ratio: str, tmp_path: Path):
    (table,) = printed(name, folder=grids.write_papers(tmp_path, name))
    columns = {papers.SPEEDUP_1GPU: "x 1 GPU", papers.SPEEDUP: ratio, papers.SAVED: ratio}
    figures = [
        one
        for one in papers.figures(name)
        if one.exact and len(one.cell) == 2 and one.how == "printed"
    ]
    assert len(figures) == {"table2": 44, "table3": 28, "table5": 20}[name]
    misprints = []
    for figure in figures:
        column, factor = (
            columns.get(figure.measure, figure.measure),
            (100 if figure.measure in columns else 1),
        )
        found = row(table, **figure.cell)
        assert found[f"paper {column}"] == pytest.approx(figure.value / factor)
        # times are whole seconds
        rounded = {"rel": 5e-4, "abs": 2e-4} if column in columns.values() else {}
        if found[column] != pytest.approx(figure.value / factor, **rounded):
            misprints.append(figure.note)
    assert misprints == ["of_cut_times"] * 2 * (name == "table3")  # 6e-4 off
    gains = [one for one in papers.figures(name, papers.GAIN) if one.how == "derived"]
    ratios = {str(one.cell): one.value for one in papers.figures(name, papers.SPEEDUP)}
    assert {str(one.cell): pytest.approx(one.value + 100) for one in gains} == ratios
    assert "paper.other-setting" not in codes(" ".join(table.notes))


def test_what_is_not_measured_is_marked_and_named(tmp_path: Path, said: Said):
    table2(tmp_path, {("fp64", 1): 100.0, ("fp16", 1): 50.0, ("fp16", 2): 30.0})
    records.write(
        tmp_path / "oom",
        records.vision(**SETTING, precision="fp64", gpus=2, status="oom", total_s=None),
    )
    (table,) = printed("table2", folder=tmp_path)
    assert len(table.rows) == 12
    assert [one["status"] for one in table.rows].count("not measured") == 8
    assert row(table, precision="fp64", gpus=2)["status"] == "oom"
    assert row(table, precision="fp64", gpus=2)["total_s"] is None
    assert row(table, precision="fp16", gpus=2)["x 1 GPU"] == pytest.approx(5 / 3)
    assert row(table, precision="fp16", gpus=2)["x fp64"] is None
    assert row(table, precision="fp16", gpus=1)["x fp64"] == 2.0
    output = said("table", "table2", tmp_path)
    command = "python train_vision.py experiment=table2 name=table2"
    assert says(output, "table.missing", n=8, command=command)
    assert re.search(r"fp64 +2 +oom +-", output) and not re.search(r"fp64 +3", output)


def test_a_cell_is_the_mean_of_its_runs_and_says_how_many(tmp_path: Path):
    times_s = (98.0, 100.0, 102.0)
    for seed, total_s in enumerate(times_s):
        table2(tmp_path / str(seed), {("fp64", 1): total_s, ("fp32", 1): total_s / 2}, seed=seed)
    failed = records.vision(
        precision="fp64", gpus=1, **SETTING, seed=7, status="failed", total_s=1.0
    )
    records.write(tmp_path / "failed", failed | {"cause": {"message": "a\x1b[31m rank died"}})
    (table,) = printed("table2", folder=tmp_path)
    found = row(table, precision="fp64", gpus=1)
    assert (found["total_s"], found["runs"]) == (100.0, 3)
    # of two cells that were measured three times
    variance = (PRIOR_SD**2 + 2 * 2 * np.log(times_s).var(ddof=1)) / 5
    half = 2.5705818 * math.sqrt(variance / 3)  # Student's t of 5 degrees of freedom
    assert [found["total_s_low"], found["total_s_high"]] == pytest.approx(
        [100 * math.exp(-half), 100 * math.exp(half)]
    )
    assert any(f"± {100 * math.sinh(half):.2g}" in text for texts in table.texts for text in texts)
    assert found["status"] == "3 ok, 1 failed"
    assert row(table, precision="fp32", gpus=1)["x fp64"] == 2.0
    assert says(
        " ".join(table.notes), "table.failed", status="failed", cell="precision=fp64 gpus=1"
    )
    assert not any("\x1b" in note for note in table.notes)


def test_machines_commits_and_sizes_stand_apart(tmp_path: Path, said: Said):
    times_s = {(precision, 1): 100.0 for precision in PRECISIONS}
    table2(tmp_path / "a", times_s)
    table2(tmp_path / "b", dict.fromkeys(times_s, 300.0), commit="f" * 40)
    table2(tmp_path / "c", times_s, dataset__image_size=224)
    found = printed("table2", folder=tmp_path)
    assert {one.rows[0]["total_s"] for one in found} == {100.0, 300.0}
    assert {one.title.partition("(image")[2] for one in found} == {
        f"_size={size} commit={commit})"
        for size, commit in ((500, records.COMMIT[:9]), (500, "f" * 9), (224, records.COMMIT[:9]))
    }
    output = said("table", "table2", tmp_path, "--mix")
    # the two commits' mean; neither was measured twice
    assert "200.0" in output and "±" not in output
    assert f"{records.COMMIT[:9]} on NVIDIA H200 on node1, {'f' * 9} on" in output


def test_other_sweeps_do_not_bury_the_experiments_own(tmp_path: Path, said: Said):
    table2(
        tmp_path / "a",
        {(precision, gpus): 10.0 for precision in PRECISIONS for gpus in (1, 2, 3, 4)},
    )
    table2(tmp_path / "b", {("fp32", 1): 9.0, ("fp16", 1): 8.0}, batch_size=64)
    # one precision: no Table 2
    table2(tmp_path / "c", {("fp32", gpus): 9.0 for gpus in (1, 2, 3, 4)}, batch_size=128)
    output = said("table", "table2", tmp_path)
    assert says(output, "table.others", n=1) and "batch_size=64" not in output
    output = said("table", "table2", tmp_path, "--all")
    assert "batch_size=64" in output and "batch_size=128" not in output


def test_a_profile_taken_afterwards_is_the_same_setting_but_nsys_is_around_it_all(tmp_path: Path):
    for profiler, precision in {"none": "fp64", "kineto": "fp32"}.items():
        table2(tmp_path, {(precision, 1): 10.0}, profile={"name": profiler})
    table2(
        tmp_path,
        {("fp16", 1): 10.0, ("fp32", 2): 10.0},
        profile={"name": "kineto", "window": "start"},
    )
    (found,) = printed("table2", folder=tmp_path)  # none of trainings that were traced
    assert {one["precision"] for one in found.rows if one["status"] == "ok"} == {"fp64", "fp32"}
    table2(tmp_path, {("fp16", 1): 10.0, ("fp64", 2): 10.0}, profile={"name": "nsys"})
    # of nsys alone: of the others none has two precisions
    (found,) = printed("table2", folder=tmp_path)
    measured = {(one["precision"], one["gpus"]) for one in found.rows if one["status"] == "ok"}
    assert measured == {("fp16", 1), ("fp64", 2)}


def test_two_nodes_are_not_taken_for_one_gpu(tmp_path: Path):
    table2(tmp_path, {("fp32", 1): 55.0, ("fp32", 4): 16.0, ("fp16", 1): 40.0}, nodes=2)
    (table,) = printed("table2", folder=tmp_path)
    assert (
        "x 1 GPU" not in table.headings and row(table, precision="fp32", gpus=4)["total_s"] == 16.0
    )


def test_bytes_are_compared_by_how_many_times(tmp_path: Path):
    for method, held in {"lora": 20_000_000_000, "dpo": 40_000_000_000}.items():
        memory = {"max": held, "per_rank": [held], "kind": "cuda_allocated"}
        records.write(
            tmp_path / method, records.llm(method={"name": method}, peak_memory_bytes=memory)
        )
    (table,) = printed("peak_memory", folder=tmp_path)
    assert row(table, method="dpo", template="instruct", gpus=1)["x lora"] == 2.0
    assert "x 1 GPU" not in table.headings


def test_profiles_become_times_a_step_and_rank(tmp_path: Path):
    for pinned, copies_s in {True: 0.2, False: 0.8}.items():
        record = records.vision(
            pin_memory=pinned, gpus=2, dataset__image_size=100, profile={"name": "kineto"}
        )
        rows = {
            ("api", "cuda\x1b[2J"): 0.2,
            ("copy", "memcpy Host-to-Device"): copies_s,
            ("kernel", "gemm"): 5.0,
        }
        profile = records.profile([rows] * 2, [0.0, 0.0])
        profile["rows"] += [
            each | {"rank": None, "total_s": 2 * each["total_s"]} for each in profile["rows"][:3]
        ]
        records.write(tmp_path / str(pinned), record | {"profile": profile})
    (table,) = printed("vision_metrics", folder=tmp_path)
    found = row(table, metric="memcpy Host-to-Device")
    assert found["pin_memory=false"] == pytest.approx(0.8 / 10) and found[
        "pin_memory=true"
    ] == pytest.approx(0.2 / 10)
    assert not any(one["metric"] == "gemm" for one in table.rows)
    assert not any("\x1b" in text for texts in table.texts for text in texts)
    assert table.headings == ["group", "metric", "pin_memory=true", "pin_memory=false"]


def test_profiles_of_whole_runs_are_in_seconds_of_all_ranks_beside_the_papers(tmp_path: Path):
    setting = grids.papers_setting("vision_metrics")
    for pinned, copies_s in {True: 10.0, False: 50.0}.items():
        record = records.vision(pin_memory=pinned, gpus=2, dataset__image_size=500, **setting)
        profile = records.profile([{("copy", "memcpy Host-to-Device"): copies_s}] * 2, [0.0, 0.0])
        profile["rows"] += [profile["rows"][0] | {"rank": None, "total_s": 2 * copies_s}]
        records.write(tmp_path / str(pinned), record | {"profile": profile})
    (table,) = printed("vision_metrics", folder=tmp_path)
    found = row(table, metric="memcpy Host-to-Device")
    assert [found[name] for name in ("pin_memory=true", "paper pin_memory=true")] == [20.0, 16.0]
    # a range is in the notes
    assert found["pin_memory=false"] == 100.0 and found["paper pin_memory=false"] is None
    assert table.headings[2:] == ["pin_memory=true", "paper", "pin_memory=false"]
    assert says(
        table.notes[0], "table.unit", whole=True, shares=False
    ) and "85 to 101 s" in " ".join(table.notes)


@pytest.mark.parametrize("name", experiments.names())
def test_every_experiment_has_a_view_that_its_file_can_fill(name: str):
    experiment = experiments.load_experiment(name)
    assert experiment.view.subject in experiment.swept and experiment.view.x in experiment.swept
    assert set(experiment.view.measures) <= {*FIGURES, experiments.EFFICIENCY}
    assert all(
        value in experiment.swept[column] for column, value in experiment.view.base_values.items()
    )
    assert experiment.title and not experiment.title.startswith("@")
