"""The table of all runs: their figures, the settings that tell them apart, and on demand all else."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from analysis.commands import list_runs
from analysis.report import rerun_commands
from analysis.report.blocks import Column, Grid, Section
from analysis.runs import grouping
from analysis.runs.details import DetailedRun
from analysis.runs.load import Run
from multicard.records.figures import FIGURES

RESULT, SETTINGS, ABOUT = "Result", "Settings", "About the run"  # groups of columns
KEPT = ("status", "total_s", "test_accuracy", "loss_last_tenth", "marks")  # however narrow the window is
# Figures that are shown at first, the most telling ones first
LISTED = sorted((figure.name for figure in FIGURES.values() if figure.listed), key=lambda name: name not in KEPT)
KEPT_SETTINGS, MOST_SETTINGS = 2, 6  # that are shown at first
TEXTS = ("cause", "diagnosis", "measured by", "folder")


def section(runs: Sequence[DetailedRun]) -> Section:
    """All runs, also those that failed, whose figures are left out."""
    question = "What was measured? A row opens with all its figures and settings and the command that measured it."
    return Section("runs", "All runs", question, [grid(runs)])


def grid(runs: Sequence[DetailedRun]) -> Grid:
    columns = [*_results(runs), *_settings(runs), *_about(runs)]
    same = [column for column in columns if _is_same(column)]
    columns = [replace(column, shown=False, names=False) if column in same else column for column in columns]
    same_texts = [f"{column.heading} {column.texts[0]}" for column in same]
    texts = [
        [run["cause"] for run in runs],
        [run.diagnosis for run in runs],
        [rerun_commands.rerun(run["kind"], run.config) if run.config else None for run in runs],
        [str(run.folder) for run in runs],
    ]
    opened = [Column.of(name, values, code=True) for name, values in zip(TEXTS, texts, strict=True)]
    return Grid(
        "runs",
        "",
        [column for column in columns if not column.is_empty],
        [column for column in opened if not column.is_empty],
        [f"The same for all: {', '.join(same_texts)}."] if same else [],
        label="all runs",
        page_rows=50,
    )


def list_axes(runs: Sequence[Run]) -> list[str]:
    """The axes and keys by which `analysis list` tells runs apart, over all kinds."""
    kinds = dict.fromkeys(run["kind"] for run in runs)
    names = (name for kind in kinds for name in list_runs.differing([run for run in runs if run["kind"] == kind]))
    return list(dict.fromkeys(names))


def _results(runs: Sequence[Run]) -> list[Column]:
    """How each run ended, and its figures."""
    more = [name for name in FIGURES if name not in LISTED]
    columns = [
        Column.of("status", [run["status"] for run in runs]),
        *(Column.of(name, _ended(name, runs), FIGURES[name].heading()) for name in LISTED),
        Column.of("marks", [run["marks"] for run in runs]),
        *(Column.of(name, _ended(name, runs), shown=False) for name in more),
    ]
    return [replace(column, group=RESULT, kept=column.key in KEPT) for column in columns]


def _settings(runs: Sequence[Run]) -> list[Column]:
    """The settings in which runs differ; the first of those that tell them apart are shown."""
    axes = list_axes(runs)
    rows = [run.columns for run in runs]
    telling = grouping.telling(rows, axes)
    shown = list(dict.fromkeys([*telling, *grouping.apart(rows, axes)]))[:MOST_SETTINGS]
    shown.sort(key=lambda name: "." in name)  # groups first
    rest = [name for name in (*axes, *_other_settings(runs, axes)) if name not in shown]
    columns = [
        Column.of(name, _values(name, runs), kept=shown.index(name) < KEPT_SETTINGS, names=name in telling)
        for name in shown
    ]
    columns += [Column.of(name, _values(name, runs), shown=False) for name in rest]
    return [replace(column, group=SETTINGS) for column in columns]


def _about(runs: Sequence[Run]) -> list[Column]:
    """Name, code and machine: the names and kinds shown where there are several."""
    columns = [
        Column.of("name", [run["name"] for run in runs], names=True),
        Column.of("kind", [run["kind"] for run in runs]),
        Column.of("commit", [grouping.commit(run, absent="-") for run in runs], shown=False),
        *(Column.of(name, [run[name] for run in runs], shown=False) for name in ("hardware", "hosts")),
        Column.of("started_at", [run["started_at"] for run in runs], shown=False),
    ]
    return [replace(column, group=ABOUT) for column in columns]


def _values(name: str, runs: Sequence[Run]) -> list[Any]:
    return [run[name] for run in runs]


def _ended(name: str, runs: Sequence[Run]) -> list[Any]:
    """The figures of runs that ended ok; others have none."""
    return [run[name] if run["status"] == "ok" else None for run in runs]


def _is_same(column: Column) -> bool:
    """Whether a column says the same of all runs, which a note then says once."""
    several = len(column.texts) > 1
    said_once = (*list_runs.ABOUT, "marks")
    return several and column.key in said_once and len(set(column.texts)) == 1 and not column.is_empty


def _other_settings(runs: Sequence[Run], axes: Sequence[str]) -> list[str]:
    """Keys of the configuration that differ between runs that have them, beside those that tell runs apart."""
    last_parts = {key.rpartition(".")[2] for key in axes}  # `image_size` is dataset.image_size
    return [
        name
        for name in grouping.settings(runs)
        if name not in axes
        and name.removesuffix(".name").rpartition(".")[2] not in last_parts
        and len({run.columns[name] for run in runs if name in run.columns}) > 1
    ]
