"""The tables of runs of a report.

For each kind of run, a table has a row for each setting, which opens to the setting's runs. Below
stand the runs that did not end ok.

A setting is a configuration without its seed. Runs of other commits or machines are other settings,
unless they are mixed. A speed-up compares settings that differ only in the number of GPUs.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from multicard.config.job import count
from multicard.messages import Message
from multicard.records.comparable import DOUBTFUL, DOUBTFUL_MEANING
from multicard.records.output import Skipped
from multicard.records.text_table import clean

from .. import rerun_commands
from ..commands import list_runs
from ..runs import details, grouping
from ..runs.columns import KINDS
from ..runs.details import DetailedRun
from ..runs.load import Run
from ..stats.between_runs import RepeatedRuns
from ..table_columns import Column
from .blocks import Block, Fold, Heading, Section, SortableTable
from .runs_columns import (
    MOST_OPENED,
    MOST_SETTINGS,
    detail_columns,
    origin_columns,
    result_columns,
    setting_columns,
)
from .runs_rows import by_setting

MOST_POINTS = 60  # The most points of a curve.
NOTES = {  # Each note explains the column of its key.
    "runs": Message(
        "report.intervals-are-of-means",
        "±: half of the 95 % interval of a mean, which includes how all repeated runs differ; a"
        " wide interval is written as (low to high).",
    ),
    "speedup": Message(
        "report.speedup-is-over-one-rank",
        "x 1 GPU: times as fast as one rank (tuning: in tokens/s), everything else equal;"
        " efficiency: that divided by the number of ranks.",
    ),
    "data_share": Message(
        "report.shares-are-of-a-step",
        "Shares of the mean step: data is waiting for a batch, h2d is copying it to the device.",
    ),
    "peak_memory_bytes": Message(
        "report.memory-is-of-the-fullest-rank",
        "Peak memory: of the rank that held the most (on CPU ranks, resident memory).",
    ),
    "received_bytes": Message(
        "report.bytes-are-counted",
        "To device: bytes counted over the run. Collectives: bytes that a rank receives.",
    ),
}
QUESTION = Message(
    "report.question-of-runs",
    "What was measured? Open a row for its runs, its command, its loss and all its values; tick two"
    " rows to compare them.",
)


def build_runs_section(
    runs: Sequence[DetailedRun],
    skipped: Sequence[Skipped],
    repeated: RepeatedRuns,
    mix: bool,
    recommended: Sequence[Run] = (),
) -> Section:
    """Build a table for each kind of run, the kind that was measured last first.

    Runs that failed and records that cannot be used are folded away.

    Args:
        runs: all runs of the report.
        skipped: run folders without a usable record.
        repeated: how repeated runs differ.
        mix: treat runs of different commits and machines as the same setting.
        recommended: the runs of the recommended settings, which come first.
    """
    newest = sorted(grouping.ok_runs(runs), key=lambda run: run["started_at"] or "", reverse=True)
    kinds = list(dict.fromkeys(run["kind"] for run in newest))
    blocks: list[Block] = []
    for kind in kinds:
        blocks += [Heading(KINDS[kind].title.capitalize())] if len(kinds) > 1 else []
        kind_runs = [run for run in runs if run["kind"] == kind and run["status"] == "ok"]
        blocks.append(runs_table(kind_runs, repeated, mix, recommended))
    blocks += _failed(
        [run for run in runs if run["status"] != "ok"], list_runs.differing(runs)[:MOST_SETTINGS]
    )
    blocks += _skipped(skipped)
    return Section("runs", "Runs", QUESTION, blocks)


def runs_table(
    runs: Sequence[DetailedRun], repeated: RepeatedRuns, mix: bool, recommended: Sequence[Run] = ()
) -> SortableTable:
    """Build the table of the settings of one kind, whose runs ended ok.

    Recommended settings come first and are marked. A note has the values that are the same for all.
    """
    folders = {run.folder for run in recommended}
    rows = by_setting(runs, mix, folders)
    use = ["yes" if row.parent is None and row.has_run_in(folders) else "" for row in rows]
    columns = [Column("use", "recommended", use, written=use)]
    columns += [
        *setting_columns(rows, runs),
        *result_columns(rows, repeated, mix),
        *origin_columns(rows),
    ]
    columns = [column for column in columns if not column.is_empty]
    noted_columns = (*list_runs.ABOUT, "marks")
    shared_columns = [
        column
        for column in columns
        if column.name in noted_columns and len(rows) > 1 and len(set(column.texts)) == 1
    ]
    column_names = {column.name for column in columns}
    left_out = grouping.disturbed_notes(row.runs for row in rows if row.parent is None)
    notes = [
        *_note_of_shared_values(shared_columns),
        *(note for key, note in NOTES.items() if key in column_names),
    ]
    marks = grouping.meanings(runs)
    if any(
        any(DOUBTFUL in text for text in column.texts)
        for column in columns
        if column.name == "parallel_efficiency"
    ):
        marks.append((DOUBTFUL, DOUBTFUL_MEANING))
    marks += [("", line) for line in left_out]
    name = KINDS[runs[0]["kind"]].title
    single_runs = [row.runs[0] if len(row.runs) == 1 else None for row in rows]
    commands = dict(zip((run.folder for run in runs), rerun_commands.of_cells(runs), strict=True))
    return SortableTable(
        name,
        f"{name} runs",
        [
            replace(column, shown=False, telling=False) if column in shared_columns else column
            for column in columns
        ],
        detail_columns(single_runs, [commands[row.runs[0].folder] for row in rows]),
        notes,
        page_rows=50,
        parents=[row.parent for row in rows],
        curves=[_curve(run) if run else [] for run in single_runs[:MOST_OPENED]],
        marks=marks,
    )


def _note_of_shared_values(columns: Sequence[Column]) -> list[str]:
    """Write a note about the columns that have one value for all rows."""
    if not columns:
        return []
    values = {column.heading: column.texts[0] for column in columns}
    text = ", ".join(f"{heading} {value}" for heading, value in values.items())
    return [Message("report.same-for-all", f"The same for all: {text}.", values=values)]


def _curve(run: Run) -> list[float]:
    """Return the losses over the run, by windows of steps if there are any, else by epochs."""
    losses = details.window_losses(run, MOST_POINTS)
    return [value for _, value in losses or details.epoch_values(run, "train_loss")]


def _skipped(skipped: Sequence[Skipped]) -> list[Block]:
    """List the run folders without a usable record, with the reasons."""
    if not skipped:
        return []
    folders = Column("folder", "folder", [str(record.folder) for record in skipped])
    reasons = Column("why", "why", [record.why for record in skipped])
    text = f"{count(len(skipped), 'run folder')} without a record that can be used"
    title = Message("report.unusable-records", text, folders=len(skipped))
    return [Fold(title, [SortableTable("skipped", "skipped records", [folders, reasons])])]


def _failed(runs: Sequence[DetailedRun], axes: Sequence[str]) -> list[Block]:
    """List the runs that did not end ok, with their causes and settings, without their figures."""
    if not runs:
        return []
    statuses = dict(Counter(clean(run["status"]) for run in runs))
    status_counts = ", ".join(f"{number} {status}" for status, number in statuses.items())
    text = f"{count(len(runs), 'run')} did not end ok: {status_counts}"
    title = Message("report.unended-runs", text, runs=len(runs), statuses=statuses)
    names = (
        {name: name for name in ("status", "cause", "name")}
        | grouping.short_names(axes)
        | {"marks": "marks"}
    )
    columns = [Column(short, key, [run[key] for run in runs]) for key, short in names.items()]
    shown_columns = [column for column in columns if not column.is_empty]
    opened_columns = detail_columns(runs, rerun_commands.of_cells(runs))
    marks = grouping.meanings(runs)
    return [
        Fold(
            title,
            [
                SortableTable(
                    "failed", "runs that did not end ok", shown_columns, opened_columns, marks=marks
                )
            ],
        )
    ]
