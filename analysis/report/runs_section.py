"""The tables of runs: for each kind a row a setting, which opens to its runs; below,
the runs that did not end ok.

A setting is a configuration without its seed; runs of several commits or machines are settings
apart unless they are mixed. A speed-up is over a setting that differs in nothing but GPUs.
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
from ..runs.grouping import PACE, Cell, of_setting
from ..runs.load import Run
from ..stats import intervals
from ..stats.between_runs import RepeatedRuns
from ..table_columns import Column
from .blocks import Block, Fold, Heading, Section, SortableTable

# groups of columns
RESULT = "Result"
SETTINGS = "Settings"
ABOUT = "About the run"
FIRST = ("total_s", *LEARNED)
# Figures that are shown at first, the most telling ones first
LISTED = sorted(
    (figure.name for figure in FIGURES.values() if figure.listed),
    key=lambda name: name not in FIRST,
)
SHOWN = (*LISTED, "energy_joules")
MOST_SETTINGS = 6  # that are shown at first, beside those that were swept
MOST_OPENED = 300  # rows that have a curve and the paths of logs: the page is to stay small
MOST_POINTS = 60  # of a curve
NOTES = {  # by the columns that they explain
    "runs": Message(
        "report.intervals-are-of-means",
        "±: half of the 95 % interval of a mean, from how all repeated runs differ.",
    ),
    "speedup": Message(
        "report.speedup-is-over-one-rank",
        "x 1 GPU: times as fast as one rank (tuning: in tokens/s), all else alike; efficiency: that"
        " / ranks.",
    ),
    "data_share": Message(
        "report.shares-are-of-a-step",
        "Shares of the mean step: data is waiting for a batch, h2d copying it to the device.",
    ),
    "peak_memory_bytes": Message(
        "report.memory-is-of-the-fullest-rank",
        "Peak memory: of the rank that held most (on CPU ranks the resident memory).",
    ),
    "received_bytes": Message(
        "report.bytes-are-counted",
        "To device: counted over the run. Collectives: what a rank receives.",
    ),
}
QUESTION = Message(
    "report.question-of-runs",
    "What was measured? A row opens with its runs, its command, its loss and all it has; tick two"
    " to compare.",
)


@dataclass(frozen=True)
class RunsRow:
    """Runs that ended ok and repeat one another: all runs of a setting, or, as a part of it,
    one of them.

    parent: place of the setting's row, of a part.
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
        """Those of its runs that its times are made of."""
        kept = {run.folder for run in grouping.undisturbed(self.runs)}
        return [run for run in self.runs if run.folder in kept]

    def is_among(self, folders: Collection[Path]) -> bool:
        return any(run.folder in folders for run in self.runs)

    def is_apart(self, column: str) -> bool:
        first, *others = grouping.counting(self.runs, column)
        return any(run[column] != first[column] for run in others)

    def common(self, column: str) -> Any:
        """The value of a column; None where the runs differ."""
        return None if self.is_apart(column) else self.runs[0][column]

    def phase_share(self, phase: str) -> float | None:
        """Share of the mean step; None where a run does not know its phases."""
        runs = self.counted
        total_s = sum(sum(run.phases_s.values()) for run in runs)
        known = total_s and all(run.phases_s for run in runs)
        return sum(run.phases_s.get(phase, 0.0) for run in runs) / total_s if known else None


def of_runs(
    runs: Sequence[DetailedRun],
    skipped: Sequence[Skipped],
    repeated: RepeatedRuns,
    mix: bool,
    recommended: Sequence[Run] = (),
) -> Section:
    """A table for each kind of run, the kind that was measured last first; folded, runs that failed
    and records that could not be used.

    Args:
        recommended: the runs of the settings that are recommended, which stand first.
    """
    newest = sorted(grouping.ok_runs(runs), key=lambda run: run["started_at"] or "", reverse=True)
    kinds = list(dict.fromkeys(run["kind"] for run in newest))
    blocks: list[Block] = []
    for kind in kinds:
        blocks += [Heading(KINDS[kind].title.capitalize())] if len(kinds) > 1 else []
        own = [run for run in runs if run["kind"] == kind and run["status"] == "ok"]
        blocks.append(table(own, repeated, mix, recommended))
    blocks += _failed(
        [run for run in runs if run["status"] != "ok"], list_runs.differing(runs)[:MOST_SETTINGS]
    )
    blocks += _skipped(skipped)
    return Section("runs", "Runs", QUESTION, blocks)


def table(
    runs: Sequence[DetailedRun], repeated: RepeatedRuns, mix: bool, recommended: Sequence[Run] = ()
) -> SortableTable:
    """The settings of runs of one kind that ended ok, the recommended ones first and marked; what
    is the same for all is said once, in a note.
    """
    folders = {run.folder for run in recommended}
    rows = by_setting(runs, mix, folders)
    use = ["yes" if row.parent is None and row.is_among(folders) else "" for row in rows]
    columns = [Column("use", "recommended", use, written=use)]
    columns += [*_settings(rows, runs), *_results(rows, repeated, mix), *_about(rows)]
    columns = [column for column in columns if not column.is_empty]
    said_once = (*list_runs.ABOUT, "marks")
    same = [
        one
        for one in columns
        if one.name in said_once and len(rows) > 1 and len(set(one.texts)) == 1
    ]
    known = {column.name for column in columns}
    left_out = grouping.disturbed_notes(row.runs for row in rows if row.parent is None)
    notes = [*_said_once(same), *(note for key, note in NOTES.items() if key in known)]
    marks = grouping.meanings(runs)
    if any(
        any(DOUBTFUL in text for text in one.texts)
        for one in columns
        if one.name == "parallel_efficiency"
    ):
        marks.append((DOUBTFUL, DOUBTFUL_MEANING))
    marks += [("", line) for line in left_out]
    name = KINDS[runs[0]["kind"]].title
    single = [row.runs[0] if len(row.runs) == 1 else None for row in rows]
    commands = dict(zip((run.folder for run in runs), rerun_commands.of_cells(runs), strict=True))
    return SortableTable(
        name,
        f"{name} runs",
        [
            replace(column, shown=False, telling=False) if column in same else column
            for column in columns
        ],
        _details(single, [commands[row.runs[0].folder] for row in rows]),
        notes,
        page_rows=50,
        parents=[row.parent for row in rows],
        curves=[_curve(run) if run else [] for run in single[:MOST_OPENED]],
        marks=marks,
    )


def _said_once(columns: Sequence[Column]) -> list[str]:
    if not columns:
        return []
    values = {column.heading: column.texts[0] for column in columns}
    same = ", ".join(f"{heading} {value}" for heading, value in values.items())
    return [Message("report.same-for-all", f"The same for all: {same}.", values=values)]


def by_setting(
    runs: Sequence[DetailedRun], mix: bool, first: Collection[Path] = ()
) -> list[RunsRow]:
    """A row for each setting of the runs that ended ok, by their first runs,
    and below it one for each repetition.

    Args:
        first: the folders of the runs whose settings stand before the others.
    """
    ok = {run.folder: run for run in runs if run["status"] == "ok"}
    rows: list[RunsRow] = []
    groups = grouping.by_setting(list(ok.values()), mix=mix).items()
    for cell, alike in sorted(
        groups, key=lambda pair: not any(run.folder in first for run in pair[1])
    ):
        place = len(rows)
        own = [ok[run.folder] for run in alike]
        rows.append(RunsRow(cell, own))
        rows += [RunsRow(cell, [run], place) for run in own if len(own) > 1]
    return rows


def _settings(rows: Sequence[RunsRow], runs: Sequence[Run]) -> list[Column]:
    """The settings in which runs differ: first all that were swept,
    then some of those that tell sweeps apart.
    """
    axes = [name for name in list_runs.differing(runs) if name != grouping.REPEATED]
    columns = [run.columns for run in runs]
    sweeps = [[run.columns for run in own] for own in grouping.group(runs, ["name"]).values()]
    swept = set(chain.from_iterable(grouping.apart(own, axes) for own in sweeps))
    telling = grouping.telling(columns, axes)
    first = [name for name in axes if name in swept]
    others = [
        name
        for name in dict.fromkeys([*telling, *grouping.apart(columns, axes)])
        if name not in swept
    ]
    shown = [*first, *others[: max(0, MOST_SETTINGS - len(first))]]
    shown.sort(key=lambda name: (name not in swept, "." in name))  # groups first
    rest = [
        name
        for name in (*axes, grouping.REPEATED, *_other_settings(runs, axes))
        if name not in shown
    ]
    names = grouping.short_names([*shown, *rest])
    values = {name: [row.common(name) for row in rows] for name in names}
    return [
        Column(
            short, name, values[name], group=SETTINGS, shown=name in shown, telling=name in telling
        )
        for name, short in names.items()
    ]


def _other_settings(runs: Sequence[Run], axes: Sequence[str]) -> list[str]:
    """Keys of the configuration that differ between runs that have them,
    beside those that tell runs apart.
    """
    last_parts = {key.rpartition(".")[2] for key in axes}  # `image_size` is dataset.image_size
    return [
        name
        for name in grouping.settings(runs)
        if name not in axes
        and name.removesuffix(".name").rpartition(".")[2] not in last_parts
        and len({run.columns[name] for run in runs if name in run.columns}) > 1
    ]


def _counts(rows: Sequence[RunsRow]) -> Column:
    """How many runs a setting has, or which of them a part is; empty where nothing was repeated."""
    counts = [len(row.counted) if row.parent is None else None for row in rows]
    wholes = [text_table.part_of(len(row.counted), len(row.runs)) for row in rows]
    parts = [
        None if row.parent is None else f"run {at - row.parent}" for at, row in enumerate(rows)
    ]
    texts = [
        (part or whole) if any(parts) else "-" for part, whole in zip(parts, wholes, strict=True)
    ]
    return Column("n", "runs", counts, written=texts, telling=True)


def _results(rows: Sequence[RunsRow], repeated: RepeatedRuns, mix: bool) -> list[Column]:
    runs = grouping.ok_runs([*chain.from_iterable(row.runs for row in rows)])
    at_pace = any(map(works.is_at_pace, works.by_work(runs, mix, at_pace=True).values()))
    # times and energies of different amounts compare nothing
    names = [PACE, *LISTED[1:]] if at_pace else SHOWN
    first, *others = [_figure(name, rows, repeated) for name in names]
    marks = Column("marks", "marks", [grouping.marks(row.counted) for row in rows])
    hidden = [_figure(name, rows, repeated) for name in FIGURES if name not in names]
    shares = {phase: [row.phase_share(phase) for row in rows] for phase in timing.PHASES}
    hidden += [
        Column(phase, f"{phase}_share", own, "{:.1%}".format) for phase, own in shares.items()
    ]
    shown = [first, _counts(rows), *_speedup_columns(rows, mix), *others, marks]
    return [replace(column, group=RESULT, shown=column in shown) for column in (*shown, *hidden)]


def _figure(name: str, rows: Sequence[RunsRow], repeated: RepeatedRuns) -> Column:
    values = [of_setting(row.runs, name) for row in rows]
    heading = (
        f"s/{KINDS[rows[0].runs[0]['kind']].paced}" if name == PACE else FIGURES[name].heading()
    )
    column = Column(heading, name, values)
    texts = [
        (
            intervals.text(name, interval)
            if row.is_apart(name) and (interval := repeated.figure(row.runs, name)) is not None
            else text
        )
        for row, text in zip(rows, column.texts, strict=True)
    ]
    return replace(column, written=texts)


def _speedup_columns(rows: Sequence[RunsRow], mix: bool) -> list[Column]:
    """Each setting over that of one rank which is alike in all else but threads, as in the figure
    of efficiencies; None for that itself, where there is none, and for parts of a setting.
    """
    alike = grouping.by_setting(
        [row.runs[0] for row in rows if row.parent is None], schema.keys(Role.ranks), mix
    )
    cells = {}
    for cell, own in alike.items():
        cells |= dict.fromkeys((run.folder for run in own), cell)
    keys = [(cells.get(row.runs[0].folder), row.runs[0].recipe) for row in rows]
    whole = [
        (key, row)
        for key, row in zip(keys, rows, strict=True)
        if row.parent is None and row.ranks == 1
    ]
    bases = {key: row.time_s for key, row in whole if grouping.shows_speed_up(row.runs)}
    over_one: list[float | None] = []
    for key, row in zip(keys, rows, strict=True):
        is_compared = row.parent is None and row.ranks > 1 and grouping.shows_speed_up(row.runs)
        base_s = bases.get(key) if is_compared else None
        over_one.append(formulas.speedup(base_s, row.time_s) if base_s and row.time_s else None)
    shares = [speedup and speedup / row.ranks for speedup, row in zip(over_one, rows, strict=True)]

    def efficiency(share: float) -> str:
        return f"{share:.0%}" + DOUBTFUL * (share > formulas.DOUBTFUL_EFFICIENCY)

    return [
        Column("x 1 GPU", "speedup", over_one, "{:.2f}".format),
        Column("efficiency", "parallel_efficiency", shares, efficiency),
    ]


def _about(rows: Sequence[RunsRow]) -> list[Column]:
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


def _details(runs: Sequence[DetailedRun | None], commands: Sequence[str | None]) -> list[Column]:
    """Texts of opened rows, and where the files of a single run are;
    None for a row of several runs.
    """

    def below(name: str) -> list[str | None]:
        paths = [run and run.folder / name for run in runs[:MOST_OPENED]]
        return [str(path) if path and path.exists() else None for path in paths] + [None] * (
            len(runs) - len(paths)
        )

    texts = {
        "measured by": commands,
        "diagnosis": [run and run.diagnosis for run in runs],
        "folder": [run and str(run.folder) for run in runs],
        "log": below("logs/r00.log"),
        "profile": below("profile"),
    }
    columns = [
        Column(name, name, values, code=name != "diagnosis") for name, values in texts.items()
    ]
    return [column for column in columns if not column.is_empty]


def _curve(run: Run) -> list[float]:
    losses = details.window_losses(run, MOST_POINTS)
    return [value for _, value in losses or details.epoch_values(run, "train_loss")]


def _skipped(skipped: Sequence[Skipped]) -> list[Block]:
    if not skipped:
        return []
    folders = Column("folder", "folder", [str(record.folder) for record in skipped])
    reasons = Column("why", "why", [record.why for record in skipped])
    unusable = f"{count(len(skipped), 'run folder')} without a record that can be used"
    title = Message("report.unusable-records", unusable, folders=len(skipped))
    return [Fold(title, [SortableTable("skipped", "skipped records", [folders, reasons])])]


def _failed(runs: Sequence[DetailedRun], axes: Sequence[str]) -> list[Block]:
    """The runs that did not end ok, with their causes and settings; their figures are left out."""
    if not runs:
        return []
    statuses = dict(Counter(clean(run["status"]) for run in runs))
    counted = ", ".join(f"{number} {status}" for status, number in statuses.items())
    unended = f"{count(len(runs), 'run')} did not end ok: {counted}"
    title = Message("report.unended-runs", unended, runs=len(runs), statuses=statuses)
    names = (
        {name: name for name in ("status", "cause", "name")}
        | grouping.short_names(axes)
        | {"marks": "marks"}
    )
    columns = [Column(short, key, [run[key] for run in runs]) for key, short in names.items()]
    shown = [column for column in columns if not column.is_empty]
    opened = _details(runs, rerun_commands.of_cells(runs))
    marks = grouping.meanings(runs)
    return [
        Fold(
            title, [SortableTable("failed", "runs that did not end ok", shown, opened, marks=marks)]
        )
    ]
