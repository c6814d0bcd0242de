"""What each setting gains and costs: one table of all settings, figures of scaling, steps and losses, and the profiles.

A setting is a configuration without its seed; runs of several commits or machines are settings apart unless they are
mixed. Settings are compared only where they differ in nothing but GPUs, or precision.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from analysis import rerun_commands
from analysis.figures.setting_charts import efficiency, losses, mean_time_s, phases, trade_off
from analysis.report.blocks import Block, Column, Grid, Heading, Paragraph, Plot, Section
from analysis.report.runs_section import list_axes
from analysis.runs import grouping
from analysis.runs.details import DetailedRun
from analysis.runs.grouping import Cell, of_setting
from multicard.measure import formulas, timing
from multicard.records import figures
from multicard.records.comparable import DOUBTFUL, DOUBTFUL_MEANING
from multicard.records.table import ALWAYS

RANKS = grouping.RANKS
MOST_PROFILE_ROWS = 5000
MORE_FIGURES = "More figures"  # of an opened row
MOST_PLOTS = 2  # of a subsection
MOST_COMMANDS = 20  # that a figure names
MAIN = ("total_s", "tokens_per_s", "test_accuracy", "peak_memory_bytes", "energy_joules")  # shown at first
MORE = ("step_s", "h2d_bytes", "received_bytes", "joules_per_image", "joules_per_token")
PROFILES_ABOUT = (
    "Summed over ranks, a step; share: of the profiled time. Kernels are in the records: python -m "
    "multicard.observe.profiles FOLDER/profile."
)
NOTES = {  # by the columns that they explain
    "speedup": "x 1 GPU: how many times faster than one rank, alike in all else; efficiency: that over the ranks.",
    "data_share": "Shares of the mean step: data is waiting for a batch, h2d copying it to the device.",
    "first_loss": "Training losses: means of the first and the last epoch; of tuning, the first step and last tenth.",
    "peak_memory_bytes": "Peak memory: of the rank that held most (on CPU ranks the resident memory).",
    "received_bytes": "To device: counted over the run. Collectives: what a rank receives.",
}


@dataclass(frozen=True)
class ComparedSetting:
    """Runs that ended ok and repeat one another."""

    cell: Cell
    runs: list[DetailedRun]

    @property
    def ranks(self) -> int:
        return grouping.ranks(self.runs[0])

    @cached_property
    def time_s(self) -> float | None:
        return mean_time_s(self.runs)

    def mean(self, column: str) -> float | None:
        """A figure of the setting; None where a run has no value."""
        return of_setting(self.runs, column)

    def phase_share(self, phase: str) -> float | None:
        """Share of the mean step; None where a run does not know its phases."""
        total_s = sum(sum(run.phases_s.values()) for run in self.runs)
        known = total_s and all(run.phases_s for run in self.runs)
        return sum(run.phases_s.get(phase, 0.0) for run in self.runs) / total_s if known else None

    def loss(self, which: str) -> float | None:
        """The mean first_loss or last_loss of the runs that have one."""
        known = [loss for run in self.runs if (loss := getattr(run, which)) is not None]
        return math.fsum(known) / len(known) if known else None


def by_setting(runs: Sequence[DetailedRun], mix: bool) -> list[ComparedSetting]:
    """The settings of the runs that ended ok, in the order of their first runs.

    Args:
        mix: let runs of several commits and machines be one setting.
    """
    ok = {run.folder: run for run in runs if run["status"] == "ok"}
    groups: dict[Cell, list[DetailedRun]] = {}
    for cell, own in grouping.by_setting(list(ok.values()), mix=mix).items():
        for run in (ok[run.folder] for run in own):  # a recipe that was asked for makes another setting
            groups.setdefault((*cell, (grouping.RECIPE, run.recipe)), []).append(run)
    return [ComparedSetting(cell, group) for cell, group in groups.items()]


def section(runs: Sequence[DetailedRun], mix: bool) -> Section:
    """The table, then the figures of each subsection, then the profiles."""
    commands = rerun_commands.of_sweeps(runs)[:MOST_COMMANDS]
    grid, metrics = table(by_setting(runs, mix)), profiles(runs)
    blocks: list[Block] = [grid] if grid is not None else []
    charts = {"Scaling": [*efficiency(runs), *trade_off(runs)], "A step": phases(runs), "Learning": losses(runs)}
    for title, drawn in charts.items():
        plots = [Plot(figure, commands) for figure in drawn[:MOST_PLOTS]]
        blocks += [Heading(title), *plots] if plots else []
        if len(drawn) > MOST_PLOTS:
            rest = f"{len(drawn) - MOST_PLOTS} more, of other settings or data sets: python -m analysis figure"
            blocks.append(Paragraph(f"{rest} {drawn[MOST_PLOTS].name.partition('-')[0]}", quiet=True))
    blocks += [Heading("Profiles"), metrics] if metrics is not None else []
    question = "What does each setting gain, where does its time go, and what does it take?"
    return Section("settings", "Efficiency", question, blocks)


def table(settings: Sequence[ComparedSetting]) -> Grid | None:
    """Every figure of every setting; columns that no setting has are left out. None without a setting."""
    if not settings:
        return None
    speedups = _speedups(settings, RANKS, lambda setting: setting.ranks == 1)
    over_fp64 = _speedups(settings, ("precision",), lambda setting: dict(setting.cell).get("precision") == "fp64")
    shares = [speedup and speedup / setting.ranks for speedup, setting in zip(speedups, settings, strict=True)]
    doubtful = [share is not None and share > formulas.DOUBTFUL_EFFICIENCY for share in shares]
    per_rank = Column.of("parallel_efficiency", shares, "efficiency", "{:.0%}")
    texts = [text + DOUBTFUL * doubt for text, doubt in zip(per_rank.texts, doubtful, strict=True)]
    figures_of = {
        name: Column.of(name, [one.mean(name) for one in settings], figures.FIGURES[name].heading(), shown=name in MAIN)
        for name in (*MAIN, *MORE)
    }
    hidden = [
        (f"{phase}_share", phase, "{:.1%}", [setting.phase_share(phase) for setting in settings])
        for phase in timing.PHASES
    ]
    hidden += [("epochs", "epochs", "", [setting.runs[0]["epochs"] for setting in settings])]
    hidden += [
        (name, name.replace("_", " "), "{:.3f}", [setting.loss(name) for setting in settings])
        for name in ("first_loss", "last_loss")
    ]
    columns = [
        Column.of("setting", _labels(settings), code=True),
        Column.of("gpus", [setting.ranks for setting in settings]),
        Column.of("n", [len(setting.runs) for setting in settings]),
        Column.of("speedup", speedups, "x 1 GPU", "{:.2f}"),
        replace(per_rank, texts=texts),
        Column.of("speedup_fp64", over_fp64, "x fp64", "{:.2f}"),
        *(figures_of[name] for name in MAIN),
        Column.of("marks", [grouping.marks(setting.runs) for setting in settings]),
        *(figures_of[name] for name in MORE),
        *(Column.of(key, values, heading, form, shown=False) for key, heading, form, values in hidden),
    ]
    columns = [replace(column, group="" if column.shown else MORE_FIGURES) for column in columns if not column.is_empty]
    known = {column.key for column in columns}
    notes = [note for key, note in NOTES.items() if key in known]
    notes += [f"{DOUBTFUL} {DOUBTFUL_MEANING}."] * any(doubtful)
    return Grid("settings", "all settings", columns, notes=notes)


def _speedups(
    settings: Sequence[ComparedSetting], keys: Sequence[str], is_base: Callable[[ComparedSetting], bool]
) -> list[float | None]:
    """Each setting over the base that is alike in all but `keys` (another number of ranks has other threads too); None
    for a base itself, and where there is none."""
    names = [name for name, _ in settings[0].cell]
    varied = {name for key in keys for name in grouping.meant(key, names)}
    varied |= {*grouping.CORES} if varied & {*RANKS} else set()

    def others(setting: ComparedSetting) -> Cell:
        return tuple((key, value) for key, value in setting.cell if key not in varied)

    bases: dict[Cell, list[ComparedSetting]] = {}
    for setting in filter(is_base, settings):
        bases.setdefault(others(setting), []).append(setting)

    def speedup(setting: ComparedSetting) -> float | None:
        if not (known := bases.get(others(setting))):
            return None
        base = known[grouping.nearest(setting.runs[0], [base.runs[0] for base in known])]
        if base is setting or not base.time_s or not setting.time_s:
            return None
        return formulas.speedup(base.time_s, setting.time_s)

    return list(map(speedup, settings))


def profiles(runs: Sequence[DetailedRun]) -> Grid | None:
    """The metrics of profiled runs, summed over their ranks; None where none was profiled."""
    rows = [(run, row) for run in runs if run["status"] == "ok" for row in run.profile_rows]
    if not rows:
        return None
    shown = rows[:MOST_PROFILE_ROWS]

    def by_step(name: str, factor: float = 1.0) -> list[float | None]:
        return [_ratio(row.get(name), factor, run.profile_steps) for run, row in shown]

    sizes = by_step("bytes")
    columns = [
        Column.of("setting", _labels([ComparedSetting((), [run]) for run, _ in shown]), code=True),
        *(Column.of(name, [row.get(name) for _, row in shown]) for name in ("group", "metric")),
        Column.of("calls", by_step("calls"), "calls a step", "{:,.4g}"),
        Column.of("step_ms", by_step("total_s", 1e3), "ms a step", "{:,.4g}"),
        Column.of("share", [_ratio(row.get("share")) for _, row in shown], form="{:.2%}"),
        replace(Column.of("bytes", sizes, "bytes a step"), texts=[figures.text("_bytes", size) for size in sizes]),
        Column.of("marks", [run["marks"] for run, _ in shown]),
    ]
    first = [f"The first {MOST_PROFILE_ROWS:,} of {len(rows):,} rows."] if len(rows) > MOST_PROFILE_ROWS else []
    columns = [column for column in columns if not column.is_empty]
    return Grid("profiles", "metrics of the profiles", columns, notes=[PROFILES_ABOUT, *first])


def _ratio(value: Any, factor: float = 1.0, count: int | None = 1) -> float | None:
    return factor * value / (count or 1) if isinstance(value, int | float) else None


def _labels(settings: Sequence[ComparedSetting]) -> list[str]:
    """Each setting by the keys that tell it from the others of its kind, beside its ranks."""
    firsts = {id(setting.runs[0]): setting.runs[0] for setting in settings}
    labels: dict[int, str] = {}
    for kind in dict.fromkeys(run["kind"] for run in firsts.values()):
        runs = [run for run in firsts.values() if run["kind"] == kind]
        names = [name for name in list_axes(runs) if name not in (grouping.REPEATED, *RANKS)]
        names.sort(key=lambda name: (name not in ALWAYS.get(kind, ()), name != "scale", "." in name))
        telling = grouping.telling([run.columns for run in runs], [*RANKS, *names, *grouping.ORIGIN, "hosts"])
        keys = [name for name in telling if name not in RANKS]
        for run in runs:
            cell = tuple((key.removesuffix(".name"), run[key]) for key in keys)
            labels[id(run)] = grouping.label(cell, dict(cell)) or grouping.kind(kind)
    return [labels[id(setting.runs[0])] for setting in settings]
