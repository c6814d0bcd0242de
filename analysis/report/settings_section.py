"""What each setting gains and costs: figures and tables of scaling, steps, learning, profiles, memory and energy.

A setting is a configuration without its seed; runs of several commits or machines are settings apart unless they are
mixed. Settings are compared only where they differ in nothing but GPUs, or precision.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from analysis import formatting
from analysis.figures.setting_charts import efficiency, losses, mean_time_s
from analysis.figures.setting_charts import phases as phase_figures
from analysis.figures.trade_off import trade_off
from analysis.figures.vega import Figure
from analysis.report import rerun_commands
from analysis.report.blocks import Block, Column, Fold, Grid, Heading, Paragraph, Plot, Section
from analysis.report.runs_section import list_axes
from analysis.runs import grouping
from analysis.runs.details import DetailedRun
from analysis.runs.grouping import Cell
from analysis.runs.setting_figure import of_setting
from multicard.measure import formulas, timing
from multicard.records import figures
from multicard.records.comparable import DOUBTFUL, DOUBTFUL_MEANING
from multicard.records.table import ALWAYS

RANKS = grouping.RANKS
MOST_PROFILE_ROWS = 5000
PLOTS_IN_SIGHT, MOST_PLOTS = 2, 10  # of a subsection
MOST_COMMANDS = 20  # that a figure names
VOLUMES = ("peak_memory_bytes", "h2d_bytes", "received_bytes")
ENERGY = ("energy_joules", "joules_per_image", "joules_per_token")


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
    """The figures of each subsection, then its table."""
    settings, commands = by_setting(runs, mix), rerun_commands.of_sweeps(runs)[:MOST_COMMANDS]
    subsections: list[tuple[str, list[Figure], Grid | None]] = [
        ("Scaling", [*efficiency(runs), *trade_off(runs)], scaling(settings)),
        ("A step", phase_figures(runs), phases(settings)),
        ("Learning", losses(runs), learning(settings)),
        ("Profiles", [], profiles(runs)),
        ("Memory and bytes", [], volumes(settings)),
        ("Energy", [], _figures_grid("energy", "Energy", settings, ENERGY, "Of the run's GPUs, by NVML.")),
    ]
    blocks: list[Block] = []
    for title, charts, grid in subsections:
        if charts or grid is not None:
            blocks.append(Heading(title, "" if grid is None else grid.title))
            blocks += _folded([Plot.of(figure, commands) for figure in charts])
            blocks += [replace(grid, title="", label=grid.title)] if grid is not None else []
        elif blocks and title == "Energy":
            unmeasured = "Not measured: it needs GPUs whose NVML gives power or energy."
            blocks += [Heading(title), Paragraph(unmeasured, quiet=True)]
    question = "What does each setting gain, where does its time go, and what does it take?"
    return Section("settings", "Efficiency", question, blocks)


def _folded(plots: Sequence[Plot]) -> list[Block]:
    """The first figures in sight, more of them folded away, and how many are left out."""
    blocks: list[Block] = [*plots[:PLOTS_IN_SIGHT]]
    folded, rest = plots[PLOTS_IN_SIGHT:MOST_PLOTS], len(plots) - MOST_PLOTS
    if folded:
        blocks.append(Fold(f"{len(folded)} more, of other settings or data sets", folded))
    if rest > 0:
        left_out = f"{rest} more are left out; python -m analysis figure draws them as files."
        blocks.append(Paragraph(left_out, quiet=True))
    return blocks


def scaling(settings: Sequence[ComparedSetting]) -> Grid | None:
    """How much faster than one GPU and than fp64; None where nothing can be compared so."""
    on_one = _bases(settings, RANKS, lambda setting: setting.ranks == 1)
    in_fp64 = _bases(settings, ("precision",), lambda setting: dict(setting.cell).get("precision") == "fp64")
    compared = [
        (setting, one, fp64)
        for setting, one, fp64 in zip(settings, on_one, in_fp64, strict=True)
        if (one and setting.ranks > 1) or (fp64 and fp64 is not setting)
    ]
    if not compared:
        return None
    shown = [setting for setting, _, _ in compared]
    speedups = [_speedup(setting, one) for setting, one, _ in compared]
    shares = [
        None if speedup is None else speedup / setting.ranks for setting, speedup in zip(shown, speedups, strict=True)
    ]
    efficiency = Column.of("parallel_efficiency", shares, "efficiency", "{:.0%}")
    doubtful = [share is not None and share > formulas.DOUBTFUL_EFFICIENCY for share in shares]
    texts = [text + DOUBTFUL * doubt for text, doubt in zip(efficiency.texts, doubtful, strict=True)]
    in_fp64 = [_speedup(setting, fp64) for setting, _, fp64 in compared]
    columns = [
        _figure("total_s", shown),
        _figure("tokens_per_s", shown),
        Column.of("speedup", speedups, "x 1 GPU", "{:.2f}"),
        replace(efficiency, texts=texts),
        Column.of("speedup_fp64", in_fp64, "x fp64", "{:.2f}"),
    ]
    note = "x 1 GPU: how many times faster than one rank, alike in all else; efficiency: that over the ranks."
    notes = [note, *[f"{DOUBTFUL} {DOUBTFUL_MEANING}."] * any(doubtful)]
    return _grid("scaling", "Against one GPU, and against fp64", shown, columns, *notes)


def _bases(
    settings: Sequence[ComparedSetting], keys: Sequence[str], is_base: Callable[[ComparedSetting], bool]
) -> list[ComparedSetting | None]:
    """For each setting the base that is alike in all but `keys`; another number of ranks has other threads too."""
    names = [name for name, _ in settings[0].cell] if settings else []
    varied = {name for key in keys for name in grouping.meant(key, names)}
    varied |= {*grouping.CORES} if varied & {*RANKS} else set()

    def others(setting: ComparedSetting) -> Cell:
        return tuple((key, value) for key, value in setting.cell if key not in varied)

    bases: dict[Cell, list[ComparedSetting]] = {}
    for setting in settings:
        if is_base(setting):
            bases.setdefault(others(setting), []).append(setting)

    def nearest(setting: ComparedSetting) -> ComparedSetting | None:
        known = bases.get(others(setting), [])
        return None if not known else known[grouping.nearest(setting.runs[0], [base.runs[0] for base in known])]

    return [nearest(setting) for setting in settings]


def _speedup(setting: ComparedSetting, base: ComparedSetting | None) -> float | None:
    if base is None or not base.time_s or not setting.time_s:
        return None
    return formulas.speedup(base.time_s, setting.time_s)


def phases(settings: Sequence[ComparedSetting]) -> Grid | None:
    """Shares of a step by phase; None where no run knows them."""
    shown = [setting for setting in settings if all(run.phases_s for run in setting.runs)]
    if not shown:
        return None
    shares = {phase: [_phase_share(setting, phase) for setting in shown] for phase in timing.PHASES}
    parts = [Column.of(f"{phase}_share", own, phase, "{:.1%}") for phase, own in shares.items()]
    columns = [_figure("step_s", shown), *parts]
    note = "Shares of the mean step; data: waiting for a batch, h2d: copying it to the device."
    return _grid("phases", "Where a step's time goes", shown, columns, note)


def _phase_share(setting: ComparedSetting, phase: str) -> float | None:
    total_s = sum(sum(run.phases_s.values()) for run in setting.runs)
    return sum(run.phases_s.get(phase, 0.0) for run in setting.runs) / total_s if total_s else None


def volumes(settings: Sequence[ComparedSetting]) -> Grid | None:
    """Memory and bytes; None where none were measured."""
    note = (
        "Peak memory: of the rank that held most (on CPU ranks the resident memory). To the device: counted over the "
        "run. Collectives: what a rank receives."
    )
    return _figures_grid("volumes", "Memory and bytes", settings, VOLUMES, note)


def learning(settings: Sequence[ComparedSetting]) -> Grid | None:
    """Losses and accuracies, also of settings whose single epoch makes no curve; None where no run has any."""
    shown = [setting for setting in settings if any(run.last_loss is not None for run in setting.runs)]
    if not shown:
        return None
    first = [_known_mean([run.first_loss for run in setting.runs]) for setting in shown]
    last = [_known_mean([run.last_loss for run in setting.runs]) for setting in shown]
    columns = [
        Column.of("epochs", [setting.runs[0]["epochs"] for setting in shown]),
        Column.of("first_loss", first, "first loss", "{:.3f}"),
        Column.of("last_loss", last, "last loss", "{:.3f}"),
        _figure("test_accuracy", shown),
    ]
    note = "Training losses: means of the first and the last epoch; of tuning, of the first step and the last tenth."
    return _grid("learning", "Loss and accuracy", shown, columns, note)


def _known_mean(values: Sequence[float | None]) -> float | None:
    """The mean over the runs that have a value."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def profiles(runs: Sequence[DetailedRun]) -> Grid | None:
    """The metrics of profiled runs, summed over their ranks; None where none was profiled."""
    rows = [(run, row) for run in runs if run["status"] == "ok" for row in run.profile_rows]
    if not rows:
        return None
    shown = rows[:MOST_PROFILE_ROWS]

    def by_step(name: str) -> list[float | None]:
        return [_ratio(row.get(name), run.profile_steps) for run, row in shown]

    ms = [None if seconds is None else 1e3 * seconds for seconds in by_step("total_s")]
    columns = [
        *(Column.of(name, [row.get(name) for _, row in shown]) for name in ("group", "metric")),
        Column.of("calls", by_step("calls"), "calls a step", "{:,.4g}"),
        replace(Column.of("step_s", by_step("total_s"), "ms a step"), texts=Column.of("ms", ms, form="{:,.4g}").texts),
        Column.of("share", [_ratio(row.get("share"), 1) for _, row in shown], form="{:.2%}"),
        Column.of("bytes", by_step("bytes"), "bytes a step"),
    ]
    columns[-1] = replace(columns[-1], texts=[figures.text("_bytes", size) for size in by_step("bytes")])
    note = (
        "Summed over ranks, a step; share: of the profiled time. Kernels are in the records: python -m "
        "multicard.observe.profiles FOLDER/profile."
    )
    first = [f"The first {MOST_PROFILE_ROWS:,} of {len(rows):,} rows."] if len(rows) > MOST_PROFILE_ROWS else []
    settings = [ComparedSetting((), [run]) for run, _ in shown]
    return _grid("profiles", "Metrics of the profiles", settings, columns, note, *first)


def _ratio(value: Any, count: int | None) -> float | None:
    return value / (count or 1) if isinstance(value, int | float) else None


def _figures_grid(
    name: str, title: str, settings: Sequence[ComparedSetting], columns: Sequence[str], note: str
) -> Grid | None:
    """Figures of the settings that have one of them."""
    shown = [setting for setting in settings if any(setting.mean(column) is not None for column in columns)]
    return _grid(name, title, shown, [_figure(column, shown) for column in columns], note) if shown else None


def _figure(column: str, settings: Sequence[ComparedSetting]) -> Column:
    return Column.of(column, [setting.mean(column) for setting in settings], figures.FIGURES[column].heading())


def _grid(name: str, title: str, settings: Sequence[ComparedSetting], columns: Sequence[Column], *notes: str) -> Grid:
    """The columns that are not empty, after those that say what each row's setting is."""
    ranks, counts = [setting.ranks for setting in settings], [len(setting.runs) for setting in settings]
    about = [Column.of("setting", _labels(settings), code=True)]
    about += [Column.of("gpus", ranks)] if len(set(ranks)) > 1 else []
    about += [Column.of("n", counts)] if max(counts) > 1 else []
    marks = Column.of("marks", [grouping.marks(setting.runs) for setting in settings])
    shown = [column for column in (*columns, marks) if not column.is_empty]
    return Grid(name, title, [*about, *shown], notes=notes, printed_rows=40)


def _labels(settings: Sequence[ComparedSetting]) -> list[str]:
    """Each setting by the keys that tell it from the others of its kind, beside its ranks."""
    firsts = {id(setting.runs[0]): setting.runs[0] for setting in settings}
    keys_of: dict[str, list[str]] = {}
    for kind in dict.fromkeys(run["kind"] for run in firsts.values()):
        runs = [run for run in firsts.values() if run["kind"] == kind]
        names = [name for name in list_axes(runs) if name not in (grouping.REPEATED, *RANKS)]
        names.sort(key=lambda name: (name not in ALWAYS.get(kind, ()), name != "scale", "." in name))
        telling = grouping.telling([run.columns for run in runs], [*RANKS, *names, *grouping.ORIGIN, "hosts"])
        keys_of[kind] = [name for name in telling if name not in RANKS]
    labels = {}
    for number, run in firsts.items():
        keys = keys_of[run["kind"]]
        words = []
        for key in keys:
            bare = key.removesuffix(".name")
            value = grouping.commit(run, absent="null") if key == "commit" else grouping.typed(run[key])
            words.append(f"{key if bare in keys else bare}={value}")
        labels[number] = " ".join(words) or formatting.kind(run["kind"])
    return [labels[id(setting.runs[0])] for setting in settings]
