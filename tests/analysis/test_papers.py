"""What the papers print: the figures, what to know of them,
and which runs they may stand beside.
"""

import csv
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from analysis import experiments, same_setting
from analysis.experiments import Panel
from analysis.report import sections
from analysis.report.blocks import Facts, Fold
from analysis.runs import load
from analysis.runs.columns import flat
from multicard.config import schema
from multicard.config.llm_texts import DATASETS
from multicard.messages import Message
from multicard.papers import printed
from multicard.papers.printed import PrintedFigure
from multicard.records.figures import FIGURES
from tests.analysis.conftest import Said
from tests.conftest import ROOT, composed
from tests.helpers import grids, records
from tests.helpers.messages import says

TABLES = ("table2", "table3", "table5")
UNITS = {"s", "%", "share", "px", "GB", "MB", "kB", "rows", "tokens", "epochs", "x"}


def panel(name: str, folder: Path) -> Panel:
    (only,) = experiments.panels(experiments.load_experiment(name), load.read_runs([folder]).runs)
    return only


def test_of_panels_as_full_the_one_that_is_as_the_experiment_comes_first(tmp_path: Path):
    settings = product((100, 700), ("ddp_ds", "ddp_rr"))
    each = [
        records.vision(strategy=strategy, gpus=2, dataset__image_size=size)
        for size, strategy in settings
    ]
    found = experiments.panels(
        experiments.load_experiment("strategies"),
        load.read_runs([records.write_all(tmp_path, *each)]).runs,
    )
    assert [dict(each.setting)["dataset.image_size"] for each in found] == [700, 100]


def test_all_figures_are_there_and_each_names_what_there_is():
    assert len(printed.everything()) == 176
    assert {figure.unit for figure in printed.everything()} == UNITS
    for figure in printed.everything():
        assert 0 < figure.low <= figure.high or figure.measure == printed.SAVED, figure
        if figure.experiment != printed.DATASETS:
            experiment = experiments.load_experiment(figure.experiment)
            assert set(figure.cell) <= {*experiment.swept, *experiment.papers.all}, figure
    measures = {
        figure.measure
        for figure in printed.everything()
        if figure.experiment in TABLES and len(figure.cell) > 1
    }
    assert measures <= {
        *FIGURES,
        printed.SPEEDUP_1GPU,
        printed.SPEEDUP,
        printed.GAIN,
        printed.SAVED,
    }
    assert printed.rows("figures")[0].keys() <= PrintedFigure.__dataclass_fields__.keys()


def test_every_note_stands_under_what_it_is_of():
    notes = {note["code"]: note for note in printed.rows("notes")}
    assert {name for note in notes.values() for name in note["under"].split()} <= set(
        experiments.names()
    )
    for figure in printed.everything():
        if figure.note:
            assert figure.experiment in notes[figure.note]["under"].split(), figure
    assert sum(note["kind"] == "misprint" for note in notes.values()) == 11


def differing(difference: Message) -> tuple[str, str, str, bool]:
    """A column, its values, what is wanted, and whether the papers print that."""
    assert difference.code == "paper.unlike"
    return tuple(difference.facts[name] for name in ("column", "values", "wanted", "printed"))


def test_figures_stand_beside_the_same_setting_alone(tmp_path: Path):
    same = panel("table2", grids.write_papers(tmp_path / "same", "table2"))
    assert (
        not same_setting.differences(same)
        and len(same_setting.comparable_figures(same, "total_s")) == 12
    )
    other = panel(
        "table2", grids.write_papers(tmp_path / "other", "table2", epochs=2, batch_size=64)
    )
    assert not same_setting.comparable_figures(other, "total_s")
    (line,) = same_setting.notes(other, [])
    assert line.code == "paper.other-setting"
    assert [differing(one) for one in line.facts["reasons"]] == [
        ("batch_size", "64", "32", False),
        ("epochs", "2", "20", True),
    ]
    shrunk = panel("table2", grids.write_papers(tmp_path / "shrunk", "table2", scale="smoke"))
    assert shrunk.command == "python train_vision.py experiment=table2 name=table2 scale=smoke"
    assert not same_setting.comparable_figures(shrunk, "total_s") and not same_setting.notes(
        shrunk, []
    )
    few = panel(
        "table5",
        grids.write_papers(tmp_path / "few", "table5", dataset="synthetic", dataset__rows=500),
    )
    assert not same_setting.comparable_figures(few, "total_s")
    (line,) = same_setting.notes(few, [])
    assert [differing(one) for one in line.facts["reasons"]][-2:] == [
        ("dataset", "synthetic", "alpaca_cleaned", True),
        ("dataset.rows", "500", "null", True),
    ]


def test_iteration_times_of_table_5_are_some_of_figure_10_too(tmp_path: Path):
    for gpus, (dataset, template) in product(
        (1, 2), {"alpaca_cleaned": "instruct", "samsum": "summarize"}.items()
    ):
        keys = (
            grids.papers_setting("table5")
            | grids.papers_setting("datasets")
            | {"max_steps": 25_880}
        )
        record = records.llm(**keys | {"dataset": dataset, "template": template, "gpus": gpus})
        records.write(tmp_path / f"{dataset}-{gpus}", record)
    beside = same_setting.comparable_figures(panel("datasets", tmp_path), "step_s")
    times = {
        (dict(cell)["dataset"], dict(cell)["gpus"]): figure.value for cell, figure in beside.items()
    }
    assert times == {
        ("alpaca_cleaned", gpus): s for gpus, s in ((1, 0.77), (2, 0.93), (3, 0.90), (4, 0.94))
    }
    assert {figure.source for figure in beside.values()} == {"Table 5 of both papers"}


@pytest.mark.parametrize("name", experiments.names())
def test_each_experiment_is_as_printed_but_for_what_is_said(name: str):
    """Key by key: what the papers print, what they do not and the experiment chose,
    and `instead` with its reason.
    """
    experiment = experiments.load_experiment(name)
    known = experiment.papers
    content = yaml.safe_load((experiments.FOLDER / f"{name}.yaml").read_text())
    params = {key: str(value) for key, value in content["hydra"]["sweeper"]["params"].items()}
    # an option brings keys with it
    first = [f"{key}={value.partition(',')[0]}" for key, value in params.items()]
    entry = {"vision": "train_vision", "llm": "tune_llm"}[experiment.kind]
    config = OmegaConf.to_container(composed(f"experiment={name}", *first, entry=entry))
    assert isinstance(config, dict)
    own = flat({str(key): value for key, value in config.items()})
    of_groups = ("profile.name", "optimizer.name")  # whose columns are no axes
    own = {
        key if key in of_groups else key.removesuffix(".name"): value for key, value in own.items()
    }
    # as in a column
    own = {key: str(value) if isinstance(value, list) else value for key, value in own.items()}
    # which runs of earlier versions may lack
    own |= {key: older.as_now for key, older in schema.OLDER.items()}
    own |= {key: [*values] for key, values in experiment.swept.items()}
    if own.get("template", "") is None:
        own["template"] = DATASETS[own["dataset"]].template
    of_machine = {"device"}  # auto: the GPUs that are there
    differ = {
        key: own[key]
        for key, value in known.all.items()
        if key not in of_machine and not same(own[key], value)
    }
    assert differ == {key: other.value for key, other in known.instead.items()}


def same(value: Any, wanted: Any) -> bool:
    """Whether two settings are alike; of axes, in any order."""
    both_lists = isinstance(value, list) and isinstance(wanted, list)
    return sorted(value, key=str) == sorted(wanted, key=str) if both_lists else value == wanted


def test_table_4_has_the_papers_sizes_beside_those_of_whole_sets(tmp_path: Path, said: Said):
    whole = {"dataset": {"name": "samsum", "rows": None}, "template": "summarize"}
    read = {"text_rows": {"read": 14_731, "cut": 0, "left_out": 0}}
    records.write(tmp_path / "whole", records.llm(**whole, **read))
    records.write(tmp_path / "part", records.llm(dataset={"name": "alpaca_cleaned", "rows": 500}))
    rows = {
        row["dataset"]: row
        for row in csv.DictReader(said("table", "table4", tmp_path, "--csv", "-").splitlines())
    }
    assert {name: (row["paper rows"], row["paper size_mb"]) for name, row in rows.items()} == {
        "alpaca_cleaned": ("51760", "24.1"),
        "grammar": ("185000000", "3710.5"),
        "samsum": ("16369", "10.71"),
        "slimorca": ("363491", "307.0"),
    }
    assert (rows["samsum"]["rows"], rows["samsum"]["size_mb"]) == ("14731", "0.129384")
    assert rows["samsum"]["paper tasks"] == "conversation summarization"
    assert not rows["alpaca_cleaned"]["rows"] and rows["slimorca"]["paper template"] == "instruct"
    assert all(
        rows[name]["template"] == rows[name]["paper template"]
        for name in ("alpaca_cleaned", "grammar", "samsum")
    )
    assert says(said("table", "table4", tmp_path), "table.no-rows")


def test_every_experiment_is_a_row_of_the_page_and_says_what_it_takes_in_full():
    rows = re.findall(
        r"^\| .*\| `(\w+)` \|$", (ROOT / "docs" / "papers.md").read_text(), re.MULTILINE
    )
    assert sorted(rows) == sorted(experiments.names())
    of_no_paper = [name for name in experiments.names() if not printed.in_full(name)]
    assert of_no_paper == ["engines", "what_fits"]
    panels = [(experiments.load_experiment(name), []) for name in experiments.names()]
    folds = [
        block for block in sections.papers_section([], panels, []).blocks if isinstance(block, Fold)
    ]
    (commands,) = (block for fold in folds for block in fold.blocks if isinstance(block, Facts))
    of_table2 = next(
        says for says, command in commands.rows if "experiment=table2 " in f"{command} "
    )
    assert printed.in_full("table2") in of_table2 and "7.9 hours" in of_table2
