"""The tables of runs of a report.

For each kind of run, a table has a row for each setting, which opens to the setting's runs. Below
stand the runs that did not end ok.

A setting is a configuration without its seed. Runs of other commits or machines are other settings,
unless they are mixed. A speed-up compares settings that differ only in the number of GPUs.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from multicard.config import schema
from multicard.config.job import count
from multicard.config.roles import Role
from multicard.measure import formulas, timing
from multicard.messages import Message
from multicard.records import text_table
from multicard.records.comparable import DOUBTFUL, DOUBTFUL_MEANING
from multicard.records.figures import FIGURES, LEARNED
from multicard.records.output import Skipped
from multicard.records.text_table import clean

from .. import rerun_commands
from ..commands import list_runs
from ..figures.setting_charts import mean_time_s
from ..runs import details, grouping, works
from ..runs.columns import KINDS
from ..runs.details import DetailedRun
from ..runs.grouping import MEMORY, PACE, Cell, of_setting
from ..runs.load import Run
from ..stats import intervals
from ..stats.between_runs import RepeatedRuns
from ..table_columns import Column
from .blocks import Block, Fold, Heading, Section, SortableTable

# The groups of columns.
RESULT = "Result"
SETTINGS = "Settings"
ABOUT = "About the run"
FIRST = ("total_s", *LEARNED)
# The figures that are visible at first, the most telling ones first.
LISTED = sorted(
    (figure.name for figure in FIGURES.values() if figure.listed),
    key=lambda name: name not in FIRST,
)
SHOWN = (*LISTED, "energy_joules")
MOST_SETTINGS = 6  # The most settings that are visible at first. Swept ones are always visible.
MOST_OPENED = 300  # The most rows with a curve and paths of logs, so that the page stays small.
MOST_POINTS = 60  # The most points of a curve.
NOTES = {  # Each note explains the column of its key.
    "runs": Message(
        "report.intervals-are-of-means",
        "±: half of the 95 % interval of a mean, which includes how all repeated runs differ.",
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


@dataclass(frozen=True)
class RunsRow:
    """Runs that ended ok and repeat one another: all runs of a setting, or one of them.

    parent: for a single run of a setting, the index of the setting's row.
    """

    cell: Cell
    runs: list[DetailedRun]
    parent: int | None = None

    @property
    def ranks(self) -> int:
        return grouping.ranks(self.runs[0])

    @cached_property
    def time_s(self) -> float | None:
        return mean_time_s(self.runs)

    @cached_property
    def counted(self) -> list[DetailedRun]:
        """The runs that count for the setting's times."""
        undisturbed_folders = {run.folder for run in grouping.undisturbed(self.runs)}
        return [run for run in self.runs if run.folder in undisturbed_folders]

    def has_run_in(self, folders: Collection[Path]) -> bool:
        """Return True if one of the runs is in one of these folders."""
        return any(run.folder in folders for run in self.runs)

    def differs_in(self, column: str) -> bool:
        """Return True if the runs differ in a column."""
        first_run, *other_runs = grouping.counting(self.runs, column)
        return any(run[column] != first_run[column] for run in other_runs)

    def common(self, column: str) -> Any:
        """Return the value of a column, or None if the runs differ in it."""
        return None if self.differs_in(column) else self.runs[0][column]

    def phase_share(self, phase: str) -> float | None:
        """Return a phase's share of the mean step, or None if a run lacks its phases."""
        runs = self.counted
        total_s = sum(sum(run.phases_s.values()) for run in runs)
        are_known = total_s and all(run.phases_s for run in runs)
        return sum(run.phases_s.get(phase, 0.0) for run in runs) / total_s if are_known else None


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
        blocks.append(table(kind_runs, repeated, mix, recommended))
    blocks += _failed(
        [run for run in runs if run["status"] != "ok"], list_runs.differing(runs)[:MOST_SETTINGS]
    )
    blocks += _skipped(skipped)
    return Section("runs", "Runs", QUESTION, blocks)


def table(
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
        *_setting_columns(rows, runs),
        *_result_columns(rows, repeated, mix),
        *_origin_columns(rows),
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
        _detail_columns(single_runs, [commands[row.runs[0].folder] for row in rows]),
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


def by_setting(
    runs: Sequence[DetailedRun], mix: bool, first_folders: Collection[Path] = ()
) -> list[RunsRow]:
    """Return a row for each setting of the runs that ended ok, in the order of their first runs.

    If a setting has several runs, a row for each of them follows.

    Args:
        runs: the runs to group.
        mix: treat runs of different commits and machines as the same setting.
        first_folders: the folders of runs whose settings come first.
    """
    ok_by_folder = {run.folder: run for run in runs if run["status"] == "ok"}
    rows: list[RunsRow] = []
    groups = grouping.by_setting(list(ok_by_folder.values()), mix=mix).items()
    for cell, setting_runs in sorted(
        groups, key=lambda pair: not any(run.folder in first_folders for run in pair[1])
    ):
        index = len(rows)
        detailed_runs = [ok_by_folder[run.folder] for run in setting_runs]
        rows.append(RunsRow(cell, detailed_runs))
        if len(detailed_runs) > 1:
            rows += [RunsRow(cell, [run], index) for run in detailed_runs]
    return rows


def _setting_columns(rows: Sequence[RunsRow], runs: Sequence[Run]) -> list[Column]:
    """Return the settings in which runs differ.

    All swept settings come first, then some of the settings that distinguish sweeps.
    """
    axes = [name for name in list_runs.differing(runs) if name != grouping.REPEATED]
    columns = [run.columns for run in runs]
    sweeps = [[run.columns for run in sweep] for sweep in grouping.group(runs, ["name"]).values()]
    swept = set(chain.from_iterable(grouping.apart(sweep, axes) for sweep in sweeps))
    distinguishing = grouping.telling(columns, axes)
    swept_axes = [name for name in axes if name in swept]
    other_axes = [
        name
        for name in dict.fromkeys([*distinguishing, *grouping.apart(columns, axes)])
        if name not in swept
    ]
    shown_names = [*swept_axes, *other_axes[: max(0, MOST_SETTINGS - len(swept_axes))]]
    shown_names.sort(key=lambda name: (name not in swept, "." in name))  # Groups come first.
    hidden_names = [
        name
        for name in (*axes, grouping.REPEATED, *_other_settings(runs, axes))
        if name not in shown_names
    ]
    names = grouping.short_names([*shown_names, *hidden_names])
    values = {name: [row.common(name) for row in rows] for name in names}
    return [
        Column(
            short,
            name,
            values[name],
            group=SETTINGS,
            shown=name in shown_names,
            telling=name in distinguishing,
        )
        for name, short in names.items()
    ]


def _other_settings(runs: Sequence[Run], axes: Sequence[str]) -> list[str]:
    """Return keys of the configuration that differ between the runs that have them.

    The keys in `axes`, which distinguish the runs, are left out.
    """
    # A key may be in `axes` under a shorter name: `image_size` is dataset.image_size.
    last_parts = {key.rpartition(".")[2] for key in axes}
    return [
        name
        for name in grouping.settings(runs)
        if name not in axes
        and name.removesuffix(".name").rpartition(".")[2] not in last_parts
        and len({run.columns[name] for run in runs if name in run.columns}) > 1
    ]


def _count_column(rows: Sequence[RunsRow]) -> Column:
    """Return a column with the number of a setting's runs, or the place of a single run in it.

    It is empty if nothing was repeated.
    """
    counts = [len(row.counted) if row.parent is None else None for row in rows]
    setting_texts = [text_table.part_of(len(row.counted), len(row.runs)) for row in rows]
    part_texts = [
        None if row.parent is None else f"run {index - row.parent}"
        for index, row in enumerate(rows)
    ]
    texts = [
        (part_text or setting_text) if any(part_texts) else "-"
        for part_text, setting_text in zip(part_texts, setting_texts, strict=True)
    ]
    return Column("n", "runs", counts, written=texts, telling=True)


def _result_columns(rows: Sequence[RunsRow], repeated: RepeatedRuns, mix: bool) -> list[Column]:
    """Return the columns of results: figures, speed-ups and marks."""
    runs = grouping.ok_runs([*chain.from_iterable(row.runs for row in rows)])
    at_pace = any(map(works.is_at_pace, works.by_work(runs, mix, at_pace=True).values()))
    # Times and energies cannot be compared if runs did different amounts of work.
    names = [PACE, *LISTED[1:]] if at_pace else SHOWN
    # Time, quality and memory come first, because they decide which setting to use.
    first_names = [name for name in names if name in (names[0], *LEARNED, MEMORY)]
    first_columns = [_figure_column(name, rows, repeated) for name in first_names]
    other_columns = [
        _figure_column(name, rows, repeated) for name in names if name not in first_names
    ]
    marks = Column("marks", "marks", _distinguishing_marks(rows))
    hidden_columns = [_figure_column(name, rows, repeated) for name in FIGURES if name not in names]
    shares = {phase: [row.phase_share(phase) for row in rows] for phase in timing.PHASES}
    hidden_columns += [
        Column(phase, f"{phase}_share", phase_shares, "{:.1%}".format)
        for phase, phase_shares in shares.items()
    ]
    shown_columns = [
        *first_columns,
        *_speedup_columns(rows, mix),
        *other_columns,
        _count_column(rows),
    ]
    # Marks of single runs are seen when a row is opened.
    if any(text for row, text in zip(rows, marks.texts, strict=True) if row.parent is None):
        shown_columns.append(marks)
    else:
        hidden_columns.append(marks)
    return [
        replace(column, group=RESULT, shown=column in shown_columns)
        for column in (*shown_columns, *hidden_columns)
    ]


def _distinguishing_marks(rows: Sequence[RunsRow]) -> list[str]:
    """Return the marks of each row, without those that all rows have.

    The banner of the page already says these of all runs.
    """
    marks = [grouping.marks(row.counted) for row in rows]
    if len(rows) < 2:
        return marks
    shared = set(marks[0]).intersection(*marks[1:])
    return ["".join(sign for sign in text if sign not in shared) for text in marks]


def _figure_column(name: str, rows: Sequence[RunsRow], repeated: RepeatedRuns) -> Column:
    """Return a column of a figure, with its interval if runs of a setting differ in it."""
    values = [of_setting(row.runs, name) for row in rows]
    heading = (
        f"s/{KINDS[rows[0].runs[0]['kind']].paced}" if name == PACE else FIGURES[name].heading()
    )
    column = Column(heading, name, values)
    texts = [
        (
            intervals.text(name, interval)
            if row.differs_in(name) and (interval := repeated.figure(row.runs, name)) is not None
            else text
        )
        for row, text in zip(rows, column.texts, strict=True)
    ]
    return replace(column, written=texts)


def _speedup_columns(rows: Sequence[RunsRow], mix: bool) -> list[Column]:
    """Return columns that compare each setting with one rank and the same other settings.

    The number of threads may differ, as in the figure of efficiencies. A value is None for the
    setting of one rank itself, if there is no such setting, and for single runs of a setting.
    """
    runs_by_other_settings = grouping.by_setting(
        [row.runs[0] for row in rows if row.parent is None], schema.keys(Role.ranks), mix
    )
    cells = {}
    for cell, cell_runs in runs_by_other_settings.items():
        cells |= dict.fromkeys((run.folder for run in cell_runs), cell)
    keys = [(cells.get(row.runs[0].folder), row.runs[0].recipe) for row in rows]
    keyed_rows = [
        (key, row)
        for key, row in zip(keys, rows, strict=True)
        if row.parent is None and row.ranks == 1
    ]
    base_times_s = {key: row.time_s for key, row in keyed_rows if grouping.shows_speed_up(row.runs)}
    speedups: list[float | None] = []
    for key, row in zip(keys, rows, strict=True):
        is_compared = row.parent is None and row.ranks > 1 and grouping.shows_speed_up(row.runs)
        base_s = base_times_s.get(key) if is_compared else None
        speedups.append(formulas.speedup(base_s, row.time_s) if base_s and row.time_s else None)
    shares = [speedup and speedup / row.ranks for speedup, row in zip(speedups, rows, strict=True)]

    def efficiency(share: float) -> str:
        return f"{share:.0%}" + DOUBTFUL * (share > formulas.DOUBTFUL_EFFICIENCY)

    return [
        Column("x 1 GPU", "speedup", speedups, "{:.2f}".format),
        Column("efficiency", "parallel_efficiency", shares, efficiency),
    ]


def _origin_columns(rows: Sequence[RunsRow]) -> list[Column]:
    """Return columns about where and when runs were measured."""
    columns = [
        Column("name", "name", [row.common("name") for row in rows], telling=True),
        Column(
            "commit",
            "commit",
            [grouping.commit(row.runs[0], absent="-") for row in rows],
            shown=False,
        ),
        *(
            Column(name, name, [row.common(name) for row in rows], shown=False)
            for name in ("hardware", "hosts", "started_at")
        ),
    ]
    return [replace(column, group=ABOUT) for column in columns]


def _detail_columns(
    runs: Sequence[DetailedRun | None], commands: Sequence[str | None]
) -> list[Column]:
    """Return the texts of opened rows, and the paths of a single run's files.

    `runs` has None for a row of several runs.
    """

    def existing_paths(name: str) -> list[str | None]:
        paths = [run and run.folder / name for run in runs[:MOST_OPENED]]
        return [str(path) if path and path.exists() else None for path in paths] + [None] * (
            len(runs) - len(paths)
        )

    texts = {
        "measured by": commands,
        "diagnosis": [run and run.diagnosis for run in runs],
        "folder": [run and str(run.folder) for run in runs],
        "log": existing_paths("logs/r00.log"),
        "profile": existing_paths("profile"),
    }
    columns = [
        Column(name, name, values, code=name != "diagnosis") for name, values in texts.items()
    ]
    return [column for column in columns if not column.is_empty]


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
    opened_columns = _detail_columns(runs, rerun_commands.of_cells(runs))
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
