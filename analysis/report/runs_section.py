"""The table of all runs: their figures, the settings that tell them apart, and on demand all else."""

from collections.abc import Sequence
from dataclasses import replace

from analysis import rerun_commands
from analysis.commands import list_runs
from analysis.report.blocks import Column, Grid, Section
from analysis.runs import grouping
from analysis.runs.details import DetailedRun
from analysis.runs.load import Run
from multicard.records.figures import FIGURES

RESULT, SETTINGS, ABOUT = "Result", "Settings", "About the run"  # groups of columns
FIRST = ("total_s", "test_accuracy", "loss_last_tenth")
# Figures that are shown at first, the most telling ones first
LISTED = sorted((figure.name for figure in FIGURES.values() if figure.listed), key=lambda name: name not in FIRST)
MOST_SETTINGS = 6  # that are shown at first


def section(runs: Sequence[DetailedRun]) -> Section:
    """All runs, also those that failed, whose figures are left out."""
    question = "What was measured? A row opens with all its figures and settings and the command that measured it."
    return Section("runs", "All runs", question, [grid(runs)])


def grid(runs: Sequence[DetailedRun]) -> Grid:
    """Every run with its figures and settings; what is the same for all is said once, in a note."""
    columns = [column for column in (*_results(runs), *_settings(runs), *_about(runs)) if not column.is_empty]
    said_once = (*list_runs.ABOUT, "marks")
    same = [one for one in columns if one.key in said_once and len(runs) > 1 and len(set(one.texts)) == 1]
    details = {
        "cause": [run["cause"] for run in runs],
        "diagnosis": [run.diagnosis for run in runs],
        "measured by": rerun_commands.of_cells(runs),
        "folder": [str(run.folder) for run in runs],
    }
    opened = [Column.of(name, values, code=True) for name, values in details.items()]
    return Grid(
        "runs",
        "all runs",
        [replace(column, shown=False, telling=False) if column in same else column for column in columns],
        [column for column in opened if not column.is_empty],
        [f"The same for all: {', '.join(f'{each.heading} {each.texts[0]}' for each in same)}."] if same else [],
        page_rows=50,
    )


def list_axes(runs: Sequence[Run]) -> list[str]:
    """The axes and keys by which `analysis list` tells runs apart, over all kinds."""
    kinds = dict.fromkeys(run["kind"] for run in runs)
    names = (name for kind in kinds for name in list_runs.differing([run for run in runs if run["kind"] == kind]))
    return list(dict.fromkeys(names))


def _results(runs: Sequence[Run]) -> list[Column]:
    """How each run ended, and its figures; those of runs that did not end ok are left out."""
    ended = {name: [run[name] if run["status"] == "ok" else None for run in runs] for name in FIGURES}
    columns = [
        Column.of("status", [run["status"] for run in runs]),
        *(Column.of(name, ended[name], FIGURES[name].heading()) for name in LISTED),
        Column.of("marks", [run["marks"] for run in runs]),
        *(Column.of(name, ended[name], shown=False) for name in FIGURES if name not in LISTED),
    ]
    return [replace(column, group=RESULT) for column in columns]


def _settings(runs: Sequence[Run]) -> list[Column]:
    """The settings in which runs differ; the first of those that tell them apart are shown."""
    axes, rows = list_axes(runs), [run.columns for run in runs]
    telling = grouping.telling(rows, axes)
    shown = list(dict.fromkeys([*telling, *grouping.apart(rows, axes)]))[:MOST_SETTINGS]
    shown.sort(key=lambda name: "." in name)  # groups first
    rest = [name for name in (*axes, *_other_settings(runs, axes)) if name not in shown]
    return [
        Column.of(name, [run[name] for run in runs], group=SETTINGS, shown=name in shown, telling=name in telling)
        for name in (*shown, *rest)
    ]


def _about(runs: Sequence[Run]) -> list[Column]:
    """Name, code and machine: the names and kinds shown where there are several."""
    columns = [
        Column.of("name", [run["name"] for run in runs], telling=True),
        Column.of("kind", [run["kind"] for run in runs]),
        Column.of("commit", [grouping.commit(run, absent="-") for run in runs], shown=False),
        *(Column.of(name, [run[name] for run in runs], shown=False) for name in ("hardware", "hosts", "started_at")),
    ]
    return [replace(column, group=ABOUT) for column in columns]


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
