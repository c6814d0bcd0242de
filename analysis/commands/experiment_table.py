"""The table of one panel, and the notes below it: the setting, what is missing, and the signs.

`table` fills it with measured figures, and `profile_table` with times of profiles.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from multicard.config import schema
from multicard.config.job import count
from multicard.config.roles import Role
from multicard.messages import Message
from multicard.papers.printed import PrintedFigure
from multicard.records import figures as registry
from multicard.records import text_table
from multicard.records.comparable import DOUBTFUL, DOUBTFUL_MEANING
from multicard.records.text_table import clean

from .. import same_setting
from ..experiments import EFFICIENCY, Experiment, Panel
from ..runs import grouping
from ..runs.grouping import ok_runs

UNMEASURED = "not measured"
BOUND_SUFFIXES = ("_low", "_high")  # CSV columns with these suffixes hold a figure's interval.
AGAINST_ONE = "x 1 GPU"
SAVED = "saved"
# Heads printed figures. In CSV, the name of the measured column follows it.
PAPER = "paper"


@dataclass(frozen=True)
class ExperimentTable:
    """The table of one panel of an experiment.

    headings: the headings of the columns.
    texts: the rows as they are printed.
    rows: the rows as CSV has them: unrounded numbers, in the unit of the column's name.
    notes: the setting, the runs that failed, and the legend of the marks.
    titles: the headings in words, for papers; empty if they are the headings.
    label: the name by which a paper refers to the table.
    """

    title: str
    headings: list[str]
    texts: list[list[str]]
    rows: list[dict[str, Any]]
    notes: list[str]
    titles: Sequence[str] = ()
    label: str = ""

    @property
    def shown(self) -> text_table.TextTable:
        return text_table.TextTable(
            self.headings,
            self.texts,
            [self.title, ""],
            ["", *self.notes],
            self.titles,
            self.label,
        )


def shows_measured_only(panel: Panel) -> bool:
    """Whether most cells are missing, so that their rows would hide the measured ones."""
    return len(panel.missing) > len(panel.cells)


def _absent_values(panel: Panel) -> list[str]:
    """Name the values of each axis that no measured cell has, such as "precision=fp64,fp16"."""
    measured = [dict(cell) for cell in panel.cells]
    absent = []
    for key in panel.experiment.swept:
        known = {cell[key] for cell in measured}
        values = dict.fromkeys(dict(cell)[key] for cell in panel.missing)
        unknown = [grouping.typed(value) for value in values if value not in known]
        if unknown:
            absent.append(f"{key}={','.join(unknown)}")
    return absent


def title_of_panel(panel: Panel) -> str:
    """Return the experiment's title, and what sets the panel apart from the others."""
    title = panel.experiment.title.rstrip(".")
    return f"{title} ({panel.apart})" if panel.apart else title


def notes_of_panel(
    panel: Panel, rows: Sequence[Mapping[str, Any]], papers: Sequence[PrintedFigure]
) -> list[str]:
    """Return the notes below the table of a panel."""
    runs = panel.runs
    experiment = panel.experiment
    notes = [_shared_setting(panel), *_explanations(rows, experiment)]
    if panel.missing:
        missing_count = len(panel.missing)
        cells = count(missing_count + len(panel.cells), "cell")
        absent = _absent_values(panel)
        text = f"{missing_count} of {cells} not measured"
        if shows_measured_only(panel):
            text += ", and not shown"
            if absent:
                text += f", all with {' or '.join(absent)}"
        notes.append(
            Message(
                "table.missing",
                f"{text}: `{panel.command}`",
                n=missing_count,
                command=panel.command,
                absent=absent,
            )
        )
    if any(run["scale"] == "smoke" for run in runs):
        text = "scale=smoke: these figures show that the sweep works; they do not repeat the papers"
        notes.append(Message("table.smoke", text))
    if any(registry.of_column(measure).can_be_disturbed for measure in experiment.view.measures):
        notes += grouping.disturbed_notes(ok_runs(cell) for cell in panel.cells.values())
    notes += same_setting.notes(panel, papers)
    for run in runs:
        if run["status"] not in ("ok", "oom"):
            cell = tuple((key, run[key]) for key in experiment.swept)
            label = grouping.label(cell, experiment.swept)
            cause = clean(str(run["cause"] or "no cause recorded"))
            text = f"{label}: {run['status']}: {cause}"
            notes.append(
                Message("table.failed", text, cell=label, status=run["status"], cause=run["cause"])
            )
    return [*notes, *grouping.legend(runs)]


def _explanations(rows: Sequence[Mapping[str, Any]], experiment: Experiment) -> list[str]:
    """Explain the columns and signs that occur in a table."""
    notes = list[str]()
    measures = experiment.view.measures
    if any(row["runs"] is not None for row in rows):
        text = "runs: how many runs of the cell ended ok and count for its first figure"
        notes.append(Message("table.runs", text))
    if any(
        any(row.get(f"{measure}{BOUND_SUFFIXES[0]}") is not None for measure in measures)
        for row in rows
    ):
        text = (
            "±: half of the 95 % interval of the figure, which includes how all repeated runs"
            " differ; a wide interval is written as (low to high)"
        )
        notes.append(Message("table.half-interval", text))
    if any(DOUBTFUL in (row["marks"] or "") for row in rows):
        notes.append(f"{DOUBTFUL}  {AGAINST_ONE}: {DOUBTFUL_MEANING}")
    if any(AGAINST_ONE in row and measures[0] == "step_s" for row in rows):
        text = f"{AGAINST_ONE}: compares iterations; on n GPUs one processes n times the rows"
        notes.append(Message("table.of-iterations", text))
    if any(EFFICIENCY in row for row in rows):
        text = (
            f"{EFFICIENCY}: {AGAINST_ONE} / GPUs; the papers' tables use the word efficiency for"
            f" {AGAINST_ONE} in percent"
        )
        notes.append(Message("table.efficiency", text))
    return notes


def _shared_setting(panel: Panel) -> str:
    """Say which settings, commit and machine all runs of a panel share."""
    first_run = panel.runs[0]
    titled_keys = [key for key in schema.shown() if Role.titled in schema.of(key)]
    known_keys = [
        key
        for key in titled_keys
        if key not in panel.experiment.swept and first_run[key] is not None
    ]
    shared_values = [
        f"{key}={grouping.typed(first_run[key])}"
        for key in known_keys
        if len({run[key] for run in panel.runs}) == 1
    ]
    place = (
        grouping.mixture(panel.runs)
        or f"{grouping.commit(first_run)} on {grouping.machine(first_run)}"
    )
    return f"all: {' '.join(shared_values)}, {place}"
