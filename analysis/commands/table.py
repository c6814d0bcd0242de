"""`table`: a table or figure of the papers from your own runs, beside the papers' figures.

For each cell: the means over its runs that ended ok (of peak memory the highest), ± half of their 95 % interval, in
which is how all repeated runs of the machine differ; and two ratios of the main figure, as in the papers' efficiency
columns: the time on one GPU / the time, and the time of the base (fp64, no pinned memory ...) / the time. For bytes it
is how many times the base's.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis import formatting
from analysis.commands import profile_table
from analysis.papers import printed
from analysis.papers.experiments import Experiment, Panel
from analysis.papers.printed import PrintedFigure
from analysis.runs import grouping
from analysis.runs.caveats import legend
from analysis.runs.grouping import Cell
from analysis.runs.load import Run
from analysis.runs.setting_figure import of_setting
from multicard.measure import formulas
from multicard.records.comparable import DOUBTFUL, DOUBTFUL_MEANING
from multicard.records.text_table import clean

UNMEASURED = "not measured"
TOLERANCE = 0.2  # points by which a printed percentage may be off what the printed times give
BOUNDS = ("_low", "_high")  # of a figure's interval, in CSV
AGAINST_ONE = "x 1 GPU"
ROUNDED = "paper rounded"  # whether the paper's figure was worked out from a rounded one
SHARED = ("dataset", "image_size", "epochs", "model", "precision", "strategy", "loader", "layout", "method", "template")


@dataclass(frozen=True)
class Table:
    """One panel of an experiment.

    headings: of the columns. texts: the rows as they are printed.
    rows: the rows as CSV has them: numbers in full, in the unit of the column's name.
    notes: the setting, what failed, and the legend of the marks.
    """

    title: str
    headings: list[str]
    texts: list[list[str]]
    rows: list[dict[str, Any]]
    notes: list[str]


def tables(experiment: Experiment, panels: Sequence[Panel]) -> list[Table]:
    return [(_of_profiles if experiment.view.of_profiles else _of_measures)(panel) for panel in panels]


def _of_measures(panel: Panel) -> Table:
    experiment = panel.experiment
    main = experiment.view.measures[0]
    known = printed.figures(experiment.name, main)
    rows = [_row(panel, cell, known) for cell in sorted([*panel.cells, *panel.missing], key=lambda c: _order(panel, c))]
    filled = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    headings = [name for name in filled if not name.endswith(BOUNDS) and name != ROUNDED]
    texts = [[_text(name, row) for name in headings] for row in rows]
    notes = _notes(panel, rows, known)
    return Table(_title(panel), headings, texts, rows, notes)


def _of_profiles(panel: Panel) -> Table:
    shares = panel.experiment.view.form == "shares"
    names, rows = profile_table.rows(panel)
    short = profile_table.short_headings(panel)
    texts = [[_profile_text(row[name], shares) for name in names] for row in rows]
    unit = "share of the host's time in CUDA calls" if shares else "milliseconds a step and rank, of the profiled steps"
    several = profile_table.differing_columns(panel)
    columns = f"; columns: {', '.join(key.rpartition('.')[2] for key in several)}" if len(several) > 1 else ""
    no_calls = [] if any(row["group"] == "api" for row in rows) else ["no CUDA calls were seen: CPU ranks make none"]
    notes = [unit + columns, *no_calls, *_notes(panel, [], [])]
    return Table(_title(panel), [short.get(name, name) for name in names], texts, rows, notes)


def _title(panel: Panel) -> str:
    title = panel.experiment.title.rstrip(".")
    return f"{title} ({panel.apart})" if panel.apart else title


def _profile_text(value: Any, shares: bool) -> str:
    if not isinstance(value, float):
        return "-" if value is None else clean(str(value))
    return f"{value:.1%}" if shares else f"{1000 * value:.3g}"


def _order(panel: Panel, cell: Cell) -> list[tuple[int, float, str]]:
    """The sort key of a cell: numbers by their size, all else in the paper's order."""
    keys = []
    for column, value in cell:
        values = panel.experiment.swept[column]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        index = values.index(value) if value in values and not number else len(values)
        keys.append((index, float(value) if number else 0.0, str(value)))
    return keys


def _row(panel: Panel, cell: Cell, known: Sequence[PrintedFigure]) -> dict[str, Any]:
    runs = panel.cells.get(cell, [])
    ok = _ok(runs)
    statuses = Counter(run["status"] for run in runs)
    counts = ", ".join(f"{count} {status}" for status, count in statuses.items())
    row: dict[str, Any] = dict(cell)
    row["status"] = (counts if len(statuses) > 1 else next(iter(statuses))) if runs else UNMEASURED
    row["runs"] = len(ok) if any(len(group) > 1 for group in panel.cells.values()) else None
    for measure in panel.experiment.view.measures:
        interval = panel.repeated.figure(ok, measure)
        row[measure] = interval and interval.estimate
        row[f"{measure}_low"], row[f"{measure}_high"] = (interval.low, interval.high) if interval else (None, None)
    references = _references(panel, cell)
    row |= {heading: _ratio(panel, measure, cell, base) for heading, (measure, base) in references.items()}
    own = printed.at(known, dict(cell))
    row |= {f"paper {panel.experiment.view.measures[0]}": own and own.value, ROUNDED: own and not own.exact}
    for heading, (_, base) in references.items():
        other = printed.at(known, dict(base))
        row[f"paper {heading}"] = other.value / own.value if own and other else None
    main = panel.experiment.view.measures[0]
    ideal = grouping.ranks(ok[0]) if ok and main != "step_s" else 1  # an iteration on n GPUs takes n times the rows
    doubtful = (row.get(AGAINST_ONE) or 0.0) > formulas.DOUBTFUL_EFFICIENCY * ideal
    row["marks"] = grouping.marks(ok) + DOUBTFUL * doubtful or None
    return row


def _ok(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if run["status"] == "ok"]


def _references(panel: Panel, cell: Cell) -> dict[str, tuple[str, Cell]]:
    """By the heading of each ratio, its measure and the cell that it compares with."""
    view, references = panel.experiment.view, {}
    main = view.measures[0]

    def with_values(**values: Any) -> Cell:
        return tuple((key, values.get(key, own)) for key, own in cell)

    on_one_node = "nodes" in dict(cell) or (panel.runs[0]["nodes"] or 1) == 1
    if "gpus" in dict(cell) and main.endswith("_s") and on_one_node:
        references[AGAINST_ONE] = (main, with_values(gpus=1, nodes=1))
    if view.base is not None:
        values = view.base_values
        name = "x " + " ".join(
            f"{column}={grouping.typed(value)}" if isinstance(value, bool) else str(value)
            for column, value in values.items()
        )
        base = with_values(**values)
        volumes = [measure for measure in view.measures if measure.endswith("_bytes")]
        if len(volumes) > 1:
            references |= {f"{measure.removesuffix('_bytes')} {name}": (measure, base) for measure in volumes}
        else:
            references[name] = (main, base)
    return references


def _ratio(panel: Panel, measure: str, cell: Cell, base: Cell) -> float | None:
    """How many times as fast as the base; of what is no time, how many times as much."""
    own, reference = (of_setting(_ok(panel.cells.get(side, [])), measure) for side in (cell, base))
    if not own or not reference:
        return None
    return reference / own if measure.endswith("_s") and not measure.endswith("_per_s") else own / reference


def _text(name: str, row: Mapping[str, Any]) -> str:
    value = row[name]
    if value is None:
        return "-"
    if re.match(r"(\w+ )?x ", name):
        return f"{value:.2f}"
    if name.startswith("paper ") and row[ROUNDED]:
        return f"~{value:,.0f}"
    text = formatting.value(name, value)
    low, high = (row.get(f"{name}{bound}") for bound in BOUNDS)
    if low is None or high is None or low == high:
        return text
    half = (high - low) / 2
    return f"{text} ± {100 * half:.2f}" if name.endswith("accuracy") else f"{text} ± {formatting.value(name, half)}"


def _notes(panel: Panel, rows: Sequence[Mapping[str, Any]], known: Sequence[PrintedFigure]) -> list[str]:
    runs, experiment = panel.runs, panel.experiment
    notes = [_setting(panel)]
    if any(row["runs"] is not None for row in rows):
        notes.append("runs: how many runs of the cell ended ok")
    if any(row.get(f"{measure}{BOUNDS[0]}") is not None for row in rows for measure in experiment.view.measures):
        notes.append("±: half of the 95 % interval of the figure, in which is how all repeated runs differ")
    if any(DOUBTFUL in (row["marks"] or "") for row in rows):
        notes.append(f"{DOUBTFUL}  {AGAINST_ONE}: {DOUBTFUL_MEANING}")
    if any(AGAINST_ONE in row and experiment.view.measures[0] == "step_s" for row in rows):
        notes.append("x 1 GPU: of an iteration, which on n GPUs takes n times the rows")
    if panel.missing:
        notes.append(f"{len(panel.missing)} cells are not measured: {experiment.command}")
    if any(run["scale"] == "smoke" for run in runs):
        notes.append("scale=smoke: these figures show that the sweep works, not what the papers measured")
    if known:
        sources = dict.fromkeys(figure.source for figure in known)
        notes.append(f"paper: {', '.join(sources)}, on {known[0].hardware}")
    if any(not figure.exact for figure in known):
        widest = max((figure.high - figure.low) / figure.low for figure in known)
        notes.append(f"~: worked out from a rounded figure of the paper, up to {widest / 2:.1%} off")
    notes += _misprints(experiment)
    for run in runs:
        if run["status"] not in ("ok", "oom"):
            cell = tuple((key, run[key]) for key in experiment.swept)
            cause = clean(str(run["cause"] or "no cause recorded"))
            notes.append(f"{grouping.label(cell, experiment.swept)}: {run['status']}: {cause}")
    return [*notes, *legend(run["marks"] for run in runs)]


def _misprints(experiment: Experiment) -> list[str]:
    """Printed percentages that the paper's own times do not give."""
    view = experiment.view
    if view.base is None:
        return []
    return [
        f"the paper prints {gain.value:g} % faster for {grouping.label(tuple(gain.cell.items()), gain.cell)}; "
        f"its times give {least:.1f} to {most:.1f} %"
        for gain, least, most in printed.gains(experiment.name, view.measures[0], view.base_values)
        if not least - TOLERANCE <= gain.value <= most + TOLERANCE
    ]


def _setting(panel: Panel) -> str:
    """What all runs share: the work, and where it was measured."""
    first = panel.runs[0]
    known = [key for key in SHARED if key not in panel.experiment.swept and first[key] is not None]
    same = [f"{key}={grouping.typed(first[key])}" for key in known if len({run[key] for run in panel.runs}) == 1]
    place = grouping.mixture(panel.runs) or f"{grouping.commit(first)} on {grouping.machine(first)}"
    return f"all: {' '.join(same)}, {place}"
