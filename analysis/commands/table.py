"""`table`: a table or figure of the papers as figures, from your own runs, beside what the papers printed.

Of each cell: the means over its runs that ended ok (± their standard deviation, where there are several), and two
ratios of the main figure, as the papers' efficiency columns have them: the time on one GPU ÷ the time, and the base's
time (fp64's, that without pinned memory ...) ÷ the time. Of bytes, how many times the base's.
"""

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis import formatting
from analysis.commands import profile_table
from analysis.papers import printed as papers
from analysis.papers.experiments import Experiment, Panel
from analysis.runs import grouping
from analysis.runs.caveats import legend
from analysis.runs.grouping import Cell
from analysis.runs.load import Run
from multicard.records.text_table import clean

UNMEASURED = "not measured"
TOLERANCE = 0.2  # points by which a printed percentage may be off what the printed times give
ROUNDED = "paper rounded"  # whether the paper's figure was worked out from a rounded one
ABOUT = ("dataset", "image_size", "epochs", "model", "precision", "strategy", "loader", "layout", "method", "template")


@dataclass(frozen=True)
class Table:
    """One panel of an experiment.

    headings: of the columns, in their order; `rows` and `texts` have them as keys.
    rows: what CSV gets: numbers as they are, in the unit of the column's name.
    texts: the same as a person reads it.
    notes: what must be said of it: its setting, what failed, the marks' legend.
    """

    experiment: Experiment
    title: str
    headings: list[str]
    rows: list[dict[str, Any]]
    texts: list[dict[str, str]]
    notes: list[str]


def tables(experiment: Experiment, panels: Sequence[Panel]) -> list[Table]:
    """A table of each panel."""
    return [_table(experiment, panel) for panel in panels]


def _table(experiment: Experiment, panel: Panel) -> Table:
    if experiment.view.form == "calls":
        return _of_calls(experiment, panel)
    order = sorted([*panel.cells, *panel.missing], key=lambda cell: _place(panel, cell))
    printed = papers.figures(experiment.name)
    rows = [_row(panel, cell, printed) for cell in order]
    headings = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    texts = [{name: _text(name, row) for name in headings} for row in rows]
    shown = [name for name in headings if not name.endswith("_std") and name != ROUNDED]
    notes = _notes(panel, rows, [one for one in printed if one.measure == experiment.view.measures[0]])
    return Table(experiment, _title(panel), shown, rows, texts, notes)


def _of_calls(experiment: Experiment, panel: Panel) -> Table:
    full, rows = profile_table.rows(panel)
    share, short = experiment.name == profile_table.SHARE, profile_table.short(panel)
    texts = [{short.get(name, name): _time(row[name], share) for name in full} for row in rows]
    shown = "share of the host's time in CUDA calls" if share else "milliseconds a step and rank, of the profiled steps"
    of = profile_table.columns(panel)
    notes = [shown + f"; columns: {of}" * (of is not None), *_notes(panel, [], [])]
    if not any(row["group"] == "api" for row in rows):
        notes.insert(1, "no CUDA calls were seen: CPU ranks make none")
    return Table(experiment, _title(panel), [short.get(name, name) for name in full], rows, texts, notes)


def _title(panel: Panel) -> str:
    title = panel.experiment.title.rstrip(".")
    return f"{title} ({panel.apart})" if panel.apart else title


def _time(found: Any, share: bool) -> str:
    if not isinstance(found, float):
        return "-" if found is None else clean(str(found))
    return f"{found:.1%}" if share else f"{1000 * found:.3g}"


def _place(panel: Panel, cell: Cell) -> list[tuple[int, float, str]]:
    """Numbers by their size, all else as the paper has it."""
    found = []
    for key, value in cell:
        asked = panel.experiment.swept[key]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        at = asked.index(value) if value in asked and not number else len(asked)
        found.append((at, float(value) if number else 0.0, str(value)))
    return found


def _row(panel: Panel, cell: Cell, printed: Sequence[papers.Paper]) -> dict[str, Any]:
    runs = panel.cells.get(cell, [])
    ok = [run for run in runs if run["status"] == "ok"]
    row: dict[str, Any] = dict(cell)
    row["status"] = _status(runs)
    row["runs"] = len(ok) if any(len(group) > 1 for group in panel.cells.values()) else None
    for measure in panel.experiment.view.measures:
        row |= _mean(measure, ok)
    row |= {name: _ratio(panel, measure, cell, base) for name, (measure, base) in _ratios(panel, cell).items()}
    row |= _printed(panel.experiment, cell, printed)
    row["marks"] = grouping.marks(ok) or None
    return row


def _status(runs: Sequence[Run]) -> str:
    """Of all runs of a cell: `ok`, `oom`, `2 ok, 1 failed`."""
    if not runs:
        return UNMEASURED
    counts: dict[str, int] = {}
    for run in runs:
        counts[run["status"]] = counts.get(run["status"], 0) + 1
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{count} {status}" for status, count in counts.items())


def _mean(measure: str, ok: Sequence[Run]) -> dict[str, float | None]:
    values = [run[measure] for run in ok if run[measure] is not None]
    spread = statistics.stdev(values) if len(values) > 1 else None
    return {measure: statistics.fmean(values) if values else None, f"{measure}_std": spread}


def _ratios(panel: Panel, cell: Cell) -> dict[str, tuple[str, Cell]]:
    """The heading of each ratio, the measure, and the cell that it compares with."""
    view, found = panel.experiment.view, {}
    main = view.measures[0]
    if "gpus" in dict(cell) and main.endswith("_s"):
        found["x 1 GPU"] = (main, _with(cell, "gpus", 1))
    if view.base is not None:
        name = f"x {view.subject}={grouping.typed(view.base)}" if isinstance(view.base, bool) else f"x {view.base}"
        base = _with(cell, view.subject, view.base)
        volumes = [measure for measure in view.measures if measure.endswith("_bytes")]
        if len(volumes) > 1:
            found |= {f"{measure.removesuffix('_bytes')} {name}": (measure, base) for measure in volumes}
        else:
            found[name] = (main, base)
    return found


def _with(cell: Cell, column: str, value: Any) -> Cell:
    return tuple((key, value if key == column else there) for key, there in cell)


def _ratio(panel: Panel, measure: str, cell: Cell, base: Cell) -> float | None:
    """How many times as fast as the base; of what is no time, how many times as much."""
    ours, theirs = (
        _mean(measure, [run for run in panel.cells.get(one, []) if run["status"] == "ok"])[measure]
        for one in (cell, base)
    )
    if not ours or not theirs:
        return None
    return theirs / ours if measure.endswith("_s") and not measure.endswith("_per_s") else ours / theirs


def _printed(experiment: Experiment, cell: Cell, printed: Sequence[papers.Paper]) -> dict[str, Any]:
    """The paper's main figure, and the same ratios worked out from its own."""
    main = experiment.view.measures[0]
    known = [one for one in printed if one.measure == main]
    own = papers.at(known, dict(cell))
    row: dict[str, Any] = {f"paper {main}": own and own.value, ROUNDED: own and not own.exact}
    for heading, (_, base) in _ratios(Panel(experiment, (), {}, []), cell).items():
        other = papers.at(known, dict(base))
        row[f"paper {heading}"] = other.value / own.value if own and other else None
    return row


def _text(name: str, row: Mapping[str, Any]) -> str:
    found = row[name]
    if found is None:
        return "-"
    if re.match(r"(\w+ )?x ", name):
        return f"{found:.2f}"
    if name.startswith("paper ") and row[ROUNDED]:
        return f"~{found:,.0f}"
    text = formatting.value(name, found)
    spread = row.get(f"{name}_std")
    if spread is None:
        return text
    return f"{text} ± {100 * spread:.2f}" if name.endswith("accuracy") else f"{text} ± {formatting.value(name, spread)}"


def _notes(panel: Panel, rows: Sequence[Mapping[str, Any]], printed: Sequence[papers.Paper]) -> list[str]:
    runs = panel.runs
    notes = [_setting(panel)]
    if any(row["runs"] is not None for row in rows):
        notes.append("runs: how many of the cell ended ok; ± is their standard deviation")
    if any("x 1 GPU" in row and panel.experiment.view.measures[0] == "step_s" for row in rows):
        notes.append("x 1 GPU is of an iteration, which on n GPUs takes n times the rows")
    if panel.missing:
        notes.append(f"{len(panel.missing)} cells are not measured: {panel.experiment.command}")
    if any(run["scale"] == "smoke" for run in runs):
        notes.append("scale=smoke: these figures show that the sweep runs, not what the papers measured")
    if printed:
        notes.append(f"paper: {', '.join(dict.fromkeys(one.source for one in printed))}, on {printed[0].hardware}")
    if any(not one.exact for one in printed):
        widest = max((one.high - one.low) / one.low for one in printed)
        notes.append(f"~ is worked out from what the paper printed rounded: up to {widest / 2:.1%} off")
    notes += _misprints(panel.experiment)
    for run in runs:
        if run["status"] not in ("ok", "oom"):
            cell = tuple((key, run[key]) for key in panel.experiment.swept)
            cause = clean(str(run["cause"] or "no cause recorded"))
            notes.append(f"{grouping.label(cell, panel.experiment.swept)}: {run['status']}: {cause}")
    return [*notes, *legend(run["marks"] for run in runs)]


def _misprints(experiment: Experiment) -> list[str]:
    """Printed percentages that are not what the paper's own times give."""
    view, told = experiment.view, []
    if view.base is None:
        return []
    for one, least, most in papers.gains(experiment.name, view.measures[0], view.subject, view.base):
        if not least - TOLERANCE <= one.value <= most + TOLERANCE:
            at = grouping.label(tuple(one.cell.items()), one.cell)
            told.append(f"the paper prints {one.value:g} % faster for {at}; its times give {least:.1f} to {most:.1f} %")
    return told


def _setting(panel: Panel) -> str:
    """What all its runs have in common, in a line: the work, and where it was measured."""
    first = panel.runs[0]
    known = [key for key in ABOUT if key not in panel.experiment.swept and first[key] is not None]
    same = [f"{key}={grouping.typed(first[key])}" for key in known if len({run[key] for run in panel.runs}) == 1]
    at = grouping.mixture(panel.runs) or f"{grouping.commit(first)} on {grouping.machine(first)}"
    return f"all: {' '.join(same)}, {at}"
