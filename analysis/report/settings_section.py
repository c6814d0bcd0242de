"""What a setting costs and gains: means over its repetitions, against one GPU and against fp64, and where a step goes.

A setting is all that was chosen but the seed; runs of several commits or machines are settings apart, unless they are
to be mixed. What is compared differs in nothing else than GPUs, or precision.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from analysis import formatting
from analysis.papers.experiments import ORIGIN
from analysis.report import runs_grid
from analysis.report.blocks import Column, Grid
from analysis.report.run_details import Read
from analysis.runs import grouping
from analysis.runs.columns import FIGURES
from analysis.runs.grouping import Cell
from analysis.runs.load import Run
from multicard.measure import formulas, timing
from multicard.records.table import ALWAYS
from multicard.records.text_table import clean

RANKS = ("gpus", "nodes")
MOST_ROWS = 5000  # of profiles
OF_ALL = {"peak_memory_bytes": max}  # the highest of a setting's repetitions; the rest are means


@dataclass(frozen=True)
class Setting:
    """Runs that ended ok and repeat one another."""

    cell: Cell
    read: list[Read]

    @property
    def runs(self) -> list[Run]:
        return [one.run for one in self.read]

    @property
    def ranks(self) -> int:
        return (self.runs[0]["gpus"] or 1) * (self.runs[0]["nodes"] or 1)

    @property
    def marks(self) -> str:
        return "".join(dict.fromkeys("".join(run["marks"] for run in self.runs)))

    @cached_property
    def time_s(self) -> float | None:
        """By which it is compared: of the training, or of a token, since with `max_steps` n GPUs tune n times the
        rows."""
        if self.runs[0]["kind"] == "llm":
            rate = self.mean("tokens_per_s")
            return 1 / rate if rate else None
        return self.mean("total_s")

    def mean(self, column: str) -> float | None:
        return self.over([run[column] for run in self.runs], OF_ALL.get(column))

    def over(self, found: Sequence[Any], how: Callable[[Sequence[float]], float] | None = None) -> float | None:
        """The mean of values of the runs; None where one of them has none."""
        known = [value for value in found if value is not None]
        if len(known) < len(self.read):
            return None
        return how(known) if how is not None else sum(known) / len(known)


def settings(read: Sequence[Read], mix: bool) -> list[Setting]:
    """The settings of the runs that ended ok, in the order of their first ones."""
    good = [one for one in read if one.run["status"] == "ok"]
    keys = ["kind", *(name for name in grouping.settings([one.run for one in good]) if name != grouping.RECIPE)]
    keys += [] if mix else ORIGIN
    found: dict[tuple[Any, ...], list[Read]] = {}
    for one in good:
        found.setdefault((*(one.run[key] for key in keys), one.recipe), []).append(one)
    return [Setting(tuple(zip([*keys, grouping.RECIPE], at, strict=True)), group) for at, group in found.items()]


def scaling(found: Sequence[Setting]) -> Grid | None:
    """How much faster than one GPU and than fp64; None where nothing can be compared so."""
    one_gpu = _against(found, RANKS, lambda setting: setting.ranks == 1)
    fp64 = _against(found, ("precision",), lambda setting: dict(setting.cell).get("precision") == "fp64")
    pairs = list(zip(found, one_gpu, fp64, strict=True))
    kept = [(s, one, double) for s, one, double in pairs if (one and s.ranks > 1) or (double and double is not s)]
    if not kept:
        return None
    speedups = [_speedup(setting, one) for setting, one, _ in kept]
    shares = [
        formulas.parallel_efficiency(one.time_s, setting.time_s, setting.ranks)
        if one is not None and one.time_s and setting.time_s
        else None
        for setting, one, _ in kept
    ]
    chosen = [setting for setting, _, _ in kept]
    columns = [
        _figure("total s", "total_s", chosen),
        _figure("tokens/s", "tokens_per_s", chosen),
        _column("x 1 GPU", "speedup", speedups, "{:.2f}"),
        _column("efficiency", "parallel_efficiency", shares, "{:.0%}"),
        _column("x fp64", "speedup_fp64", [_speedup(setting, double) for setting, _, double in kept], "{:.2f}"),
    ]
    return Grid(
        "scaling",
        "Against one GPU, and against fp64",
        [*_about(chosen), *_kept(columns), *_marks(chosen)],
        notes=["x 1 GPU: how many times faster than one rank, alike in all else; efficiency: that over the ranks."],
        page_rows=15,
        printed_rows=40,
    )


def phases(found: Sequence[Setting]) -> Grid | None:
    """Shares of a step by phase; None where no run knows them."""
    chosen = [setting for setting in found if all(one.phases_s for one in setting.read)]
    if not chosen:
        return None
    whole = [sum(sum(one.phases_s.values()) for one in setting.read) for setting in chosen]
    columns = [
        _column(
            phase,
            f"{phase}_share",
            [
                sum(one.phases_s.get(phase, 0.0) for one in setting.read) / total if total else None
                for setting, total in zip(chosen, whole, strict=True)
            ],
            "{:.1%}",
        )
        for phase in timing.PHASES
    ]
    step = _figure("step, s", "step_s", chosen)
    notes = ["Shares of the mean step; data: waiting for a batch, h2d: copying it to the device."]
    title = "Where a step's time goes"
    return Grid(
        "phases", title, [*_about(chosen), step, *columns, *_marks(chosen)], notes=notes, page_rows=15, printed_rows=40
    )


def volumes(found: Sequence[Setting]) -> Grid | None:
    """Memory and bytes."""
    figures = {"peak memory": "peak_memory_bytes", "to the device": "h2d_bytes", "collectives": "received_bytes"}
    notes = [
        "Peak memory: of the rank that held most (on CPU ranks the resident memory). To the device: counted over the "
        "run. Collectives: what a rank receives."
    ]
    return _of_figures("volumes", "Memory and bytes", figures, found, notes)


def energy(found: Sequence[Setting]) -> Grid | None:
    """Energy; None where none was measured."""
    figures = {"energy": "energy_joules", "J/image": "joules_per_image", "J/token": "joules_per_token"}
    return _of_figures("energy", "Energy", figures, found, ["Of the run's GPUs, by NVML."])


def profiles(read: Sequence[Read]) -> Grid | None:
    """The metrics of profiled runs, summed over their ranks; None where none was profiled."""
    rows = [(one, row) for one in read if one.run["status"] == "ok" for row in one.profile]
    if not rows:
        return None
    shown = rows[:MOST_ROWS]
    about = _about([Setting((), [one]) for one, _ in shown])
    texts = {name: [str(row.get(name) or "-") for _, row in shown] for name in ("group", "metric")}
    calls = [_over(row.get("calls"), one.profiled_steps) for one, row in shown]
    steps_s = [_over(row.get("total_s"), one.profiled_steps) for one, row in shown]
    moved = [_over(row.get("bytes"), one.profiled_steps) for one, row in shown]
    notes = [
        "Summed over ranks, a step; share: of the profiled time. Kernels are in the records: python -m "
        "multicard.profiling FOLDER/profile.",
        *([f"The first {MOST_ROWS:,} of {len(rows):,} rows."] if len(rows) > MOST_ROWS else []),
    ]
    columns = [
        *about,
        *(Column(name, name, found) for name, found in texts.items()),
        _column("calls a step", "calls", calls, "{:,.4g}"),
        Column("ms a step", "step_s", ["-" if s is None else f"{1e3 * s:,.4g}" for s in steps_s], steps_s),
        _column("share", "share", [_over(row.get("share"), 1) for _, row in shown], "{:.2%}"),
        Column("bytes a step", "bytes", [formatting.value("_bytes", v) for v in moved], moved),
        *_marks([Setting((), [one]) for one, _ in shown]),
    ]
    return Grid("profiles", "Metrics of the profiles", _kept(columns), notes=notes, page_rows=15, printed_rows=40)


def _of_figures(
    name: str, title: str, figures: dict[str, str], found: Sequence[Setting], notes: list[str]
) -> Grid | None:
    chosen = [s for s in found if any(s.mean(column) is not None for column in figures.values())]
    if not chosen:
        return None
    columns = [_figure(heading, column, chosen) for heading, column in figures.items()]
    return Grid(
        name, title, [*_about(chosen), *_kept(columns), *_marks(chosen)], notes=notes, page_rows=15, printed_rows=40
    )


def _against(found: Sequence[Setting], keys: Sequence[str], is_base: Callable[[Setting], bool]) -> list[Setting | None]:
    """For each setting the one that is alike in all but `keys`, of those that are a base."""
    names = {key: grouping.meant(key, [name for name, _ in found[0].cell]) for key in keys} if found else {}
    left_out = {name for meant in names.values() for name in meant}

    def rest(setting: Setting) -> Cell:
        return tuple((key, value) for key, value in setting.cell if key not in left_out)

    bases = {rest(setting): setting for setting in found if is_base(setting)}
    return [bases.get(rest(setting)) for setting in found]


def _speedup(setting: Setting, base: Setting | None) -> float | None:
    if base is None or not base.time_s or not setting.time_s:
        return None
    return formulas.speedup(base.time_s, setting.time_s)


def _about(chosen: Sequence[Setting]) -> list[Column]:
    """A setting by keys enough to tell it from the others of its kind, its ranks, and how often it was measured."""
    firsts = {id(setting.runs[0]): setting.runs[0] for setting in chosen}
    kinds = {
        run["kind"]: _telling([other for other in firsts.values() if other["kind"] == run["kind"]])
        for run in firsts.values()
    }
    labels = {
        number: " ".join(f"{_shown(key, kinds[run['kind']])}={_short(key, run)}" for key in kinds[run["kind"]])
        for number, run in firsts.items()
    }
    texts = [labels[id(setting.runs[0])] or clean(setting.runs[0]["kind"]) for setting in chosen]
    columns = [Column("setting", "setting", texts, typed=True)]
    if len({setting.ranks for setting in chosen}) > 1:
        columns.append(_column("gpus", "gpus", [setting.ranks for setting in chosen], "{:d}"))
    counts = [len(setting.runs) for setting in chosen]
    return columns + [_column("n", "n", counts, "{:d}")] * (max(counts) > 1)


def _telling(runs: Sequence[Run]) -> list[str]:
    """Of what `list` tells runs by, as much as tells these apart: what scale=smoke brings goes unsaid."""
    names = [name for name in runs_grid.told(runs) if name not in (grouping.REPEATED, *RANKS)]
    names.sort(key=lambda name: (name not in ALWAYS.get(runs[0]["kind"], ()), name != "scale", "." in name))
    told: list[str] = [*RANKS]
    seen = _kinds(runs, told)
    for name in [*names, *ORIGIN, "hosts"]:
        more = _kinds(runs, [*told, name])
        if more > seen:
            told.append(name)
            seen = more
    return told[len(RANKS) :]


def _kinds(runs: Sequence[Run], names: Sequence[str]) -> int:
    return len({tuple(run[name] for name in names) for run in runs})


def _shown(key: str, keys: Sequence[str]) -> str:
    bare = key.removesuffix(".name")
    return key if bare in keys else bare


def _short(key: str, run: Run) -> str:
    return grouping.commit(run) if key == "commit" else grouping.typed(run[key])


def _marks(chosen: Sequence[Setting]) -> list[Column]:
    texts = [setting.marks for setting in chosen]
    return [Column("marks", "marks", texts)] if any(texts) else []


def _figure(heading: str, column: str, chosen: Sequence[Setting]) -> Column:
    assert column in FIGURES
    values = [setting.mean(column) for setting in chosen]
    return Column(heading, column, [formatting.value(column, value) for value in values], values)


def _column(heading: str, key: str, values: Sequence[float | None], form: str) -> Column:
    return Column(heading, key, ["-" if value is None else form.format(value) for value in values], list(values))


def _kept(columns: Sequence[Column]) -> list[Column]:
    """Those that say something."""
    return [column for column in columns if set(column.texts) - {"-", ""}]


def _over(found: Any, steps: int | None) -> float | None:
    return found / (steps or 1) if isinstance(found, int | float) else None
