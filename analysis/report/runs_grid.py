"""The table of all runs, with the columns that `analysis list` chooses, and what each row opens."""

from collections.abc import Sequence
from typing import Any

from analysis import formatting
from analysis.commands import list_runs
from analysis.report.blocks import Column, Grid
from analysis.report.run_details import Read
from analysis.runs import grouping
from analysis.runs.columns import FIGURES
from analysis.runs.load import Run
from multicard.records.text_table import clean

# Headings of `analysis list` to the columns they show, of runs that ended ok
HEADINGS = {
    "total s": "total_s",
    "images/s": "images_per_s",
    "tokens/s": "tokens_per_s",
    "accuracy": "test_accuracy",
    "loss": "loss_last_tenth",
    "peak memory": "peak_memory_bytes",
}
CAUSE, DIAGNOSIS, COMMAND, FOLDER = "cause", "diagnosis", "measured again by", "folder"


def grid(read: Sequence[Read]) -> Grid:
    """All runs, failed ones too: their figures are left out."""
    runs = [one.run for one in read]
    axes = told(runs)
    columns = [
        _texts("name", [formatting.value("", run["name"]) for run in runs]),
        _texts("kind", [clean(run["kind"]) for run in runs]),
        *(column(name, name, runs) for name in axes),
        _texts("status", [clean(run["status"]) for run in runs]),
        *(column(heading, name, runs, measured=True) for heading, name in HEADINGS.items()),
        _texts("commit", [grouping.commit(run) for run in runs]),
        _texts("machine", [grouping.machine(run) for run in runs]),
        _texts("marks", [run["marks"] for run in runs]),
    ]
    kept = [one for one in columns if one.key in axes or not _goes_unsaid(one, len(runs))]
    same = [f"{one.heading} {one.texts[0]}" for one in columns if one not in kept and one.texts[0] not in ("-", "")]
    notes = [f"The same for all: {', '.join(same)}."] if same else []
    details = [
        _texts(CAUSE, [formatting.value("", run["cause"]) for run in runs]),
        _texts(DIAGNOSIS, [one.diagnosis or "-" for one in read]),
        _texts(COMMAND, [one.command or "-" for one in read]),
        _texts(FOLDER, [str(run.folder) for run in runs]),
        *(column(name, name, runs) for name in _differing(runs, axes)),
        *(column(name, name, runs, measured=True) for name in FIGURES if name not in HEADINGS.values()),
    ]
    shown = [one for one in details if set(one.texts) - {"-", ""}]
    return Grid("runs", "", kept, shown, (CAUSE, DIAGNOSIS, COMMAND, FOLDER), notes)


def told(runs: Sequence[Run]) -> list[str]:
    """The axes and keys by which a list shows runs, over all kinds."""
    kinds = list(dict.fromkeys(run["kind"] for run in runs))
    found = (name for kind in kinds for name in list_runs.differing([run for run in runs if run["kind"] == kind]))
    return list(dict.fromkeys(found))


def column(heading: str, name: str, runs: Sequence[Run], measured: bool = False) -> Column:
    """A column of runs.

    Args:
        measured: a figure, which is left out of runs that did not end ok.
    """
    found = [run[name] if not measured or run["status"] == "ok" else None for run in runs]
    return of_values(heading, name, found)


def of_values(heading: str, name: str, found: Sequence[Any]) -> Column:
    """A column of what a record has under a name; it sorts by number where all of it is numbers."""
    figures = all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in found)
    values = list(found) if figures and any(value is not None for value in found) else None
    shown = name if figures else ""
    return Column(heading, name, [formatting.value(shown, value) for value in found], values)


def _texts(name: str, texts: list[str]) -> Column:
    return Column(name, name, texts)


def _goes_unsaid(found: Column, runs: int) -> bool:
    """As in the list: what is empty, and what is the same of all and no figure of theirs."""
    different = set(found.texts)
    return different <= {"-", ""} or (found.key in list_runs.ABOUT and runs > 1 and len(different) == 1)


def _differing(runs: Sequence[Run], shown: Sequence[str]) -> list[str]:
    """Keys of the configuration that are not the same in all runs that have them, beside those in the table."""
    names = grouping.settings(runs)
    seen: dict[str, set[Any]] = {name: {run.columns[name] for run in runs if name in run.columns} for name in names}
    apart = {key.rpartition(".")[2] for key in shown}  # `image_size` is dataset.image_size
    return [
        name
        for name, values in seen.items()
        if len(values) > 1 and name not in shown and name.removesuffix(".name").rpartition(".")[2] not in apart
    ]
