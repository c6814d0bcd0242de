"""The table of all runs, with the columns of `analysis list`, and the details that each row opens."""

from collections.abc import Sequence
from typing import Any

from analysis import formatting
from analysis.commands import list_runs
from analysis.report.blocks import Column, Grid, Section
from analysis.report.run_details import RunDetails
from analysis.runs import grouping
from analysis.runs.columns import FIGURES
from analysis.runs.load import Run

WIDE = ("cause", "diagnosis", "measured again by", "folder")


def section(details: Sequence[RunDetails]) -> Section:
    """All runs, also those that failed, whose figures are left out."""
    question = "What was measured? Each row opens what it was, what it cost and the command that measures it again."
    return Section("runs", "All runs", question, [grid(details)])


def grid(details: Sequence[RunDetails]) -> Grid:
    runs = [run_details.run for run_details in details]
    axes = list_axes(runs)
    columns = [
        Column.of_texts("name", [run["name"] for run in runs]),
        Column.of_texts("kind", [run["kind"] for run in runs]),
        *(_of_runs(name, runs) for name in axes),
        Column.of_texts("status", [run["status"] for run in runs]),
        *(_of_runs(name, runs, measured=True) for name in list_runs.FIGURES),
        Column.of_texts("commit", [grouping.commit(run, absent="-") for run in runs]),
        *(Column.of_texts(name, [run[name] for run in runs]) for name in ("hardware", "hosts")),
        Column.of_texts("marks", [run["marks"] for run in runs]),
    ]
    same = [column for column in columns if column.key not in axes and _is_same(column)]
    shown = [column for column in columns if column.key in axes or not (column.is_empty or column in same)]
    same_texts = [f"{column.heading} {column.texts[0]}" for column in same]
    texts = [
        [run["cause"] for run in runs],
        [run_details.diagnosis for run_details in details],
        [run_details.command for run_details in details],
        [str(run.folder) for run in runs],
    ]
    opened = [
        *(Column.of_texts(name, values) for name, values in zip(WIDE, texts, strict=True)),
        *(_of_runs(name, runs) for name in _other_settings(runs, axes)),
        *(_of_runs(name, runs, measured=True) for name in FIGURES if name not in list_runs.FIGURES),
    ]
    return Grid(
        "runs",
        "",
        shown,
        [column for column in opened if not column.is_empty],
        WIDE,
        [f"The same for all: {', '.join(same_texts)}."] if same else [],
        page_rows=50,
    )


def list_axes(runs: Sequence[Run]) -> list[str]:
    """The axes and keys by which `analysis list` tells runs apart, over all kinds."""
    kinds = dict.fromkeys(run["kind"] for run in runs)
    names = (name for kind in kinds for name in list_runs.differing([run for run in runs if run["kind"] == kind]))
    return list(dict.fromkeys(names))


def _of_runs(name: str, runs: Sequence[Run], measured: bool = False) -> Column:
    """A column of the runs, which sorts by number where all values are numbers.

    Args:
        measured: it is a figure, which is left out of runs that did not end ok.
    """
    values: list[Any] = [run[name] if not measured or run["status"] == "ok" else None for run in runs]
    known = [value for value in values if value is not None]
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in known)
    texts = [formatting.value(name if numeric else "", value) for value in values]
    return Column(name, name, texts, values if numeric and known else None)


def _is_same(column: Column) -> bool:
    """Whether a column says the same of all runs, which the list then says once."""
    several = len(column.texts) > 1
    return several and column.key in list_runs.ABOUT and len(set(column.texts)) == 1 and not column.is_empty


def _other_settings(runs: Sequence[Run], axes: Sequence[str]) -> list[str]:
    """Keys of the configuration that differ between runs that have them, beside those in the table."""
    last_parts = {key.rpartition(".")[2] for key in axes}  # `image_size` is dataset.image_size
    return [
        name
        for name in grouping.settings(runs)
        if name not in axes
        and name.removesuffix(".name").rpartition(".")[2] not in last_parts
        and len({run.columns[name] for run in runs if name in run.columns}) > 1
    ]
