"""The columns of a report's table of runs: settings, results, and where the runs were measured."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from multicard.config import schema
from multicard.config.roles import Role
from multicard.measure import formulas, timing
from multicard.records import text_table
from multicard.records.comparable import DOUBTFUL
from multicard.records.figures import FIGURES, LEARNED

from ..commands import list_runs
from ..runs import grouping, works
from ..runs.columns import KINDS
from ..runs.details import DetailedRun
from ..runs.grouping import MEMORY, PACE, of_setting
from ..runs.load import Run
from ..stats import intervals
from ..stats.between_runs import RepeatedRuns
from ..table_columns import Column
from .runs_rows import RunsRow

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


def setting_columns(rows: Sequence[RunsRow], runs: Sequence[Run]) -> list[Column]:
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


def result_columns(rows: Sequence[RunsRow], repeated: RepeatedRuns, mix: bool) -> list[Column]:
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


def origin_columns(rows: Sequence[RunsRow]) -> list[Column]:
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


def detail_columns(
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
