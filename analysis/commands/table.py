"""`table`: fill a table or figure of the papers from your own runs, next to the papers' figures.

Each cell shows the mean over its runs that ended ok, or the maximum for peak memory. After "±"
stands half of the 95 % interval. The interval includes how all repeated runs of the machine differ.

Speed-ups, which the papers' tables call efficiency, compare a cell with one GPU, or with the base
(fp64, no pinned memory ...): they are the other time divided by the cell's time. Some tables show
the share of the base's time that a cell saves. Bytes are shown as a multiple of the base's bytes.

Next to each column stand the figures that the papers print for the same setting. The notes below
the table explain them, misprints included.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import msgspec

from multicard.config import CONF, schema
from multicard.config.job import count
from multicard.config.llm_texts import DATASETS
from multicard.measure import formulas
from multicard.messages import Message
from multicard.papers import printed
from multicard.papers.printed import PrintedFigure
from multicard.records import figures as registry
from multicard.records.comparable import DOUBTFUL
from multicard.records.output import Output
from multicard.records.schema import LlmRecord

from .. import same_setting
from ..experiments import EFFICIENCY, Experiment, Panel
from ..runs import grouping
from ..runs.grouping import Cell, of_setting, ok_runs
from ..runs.load import Run
from ..stats import intervals
from ..stats.intervals import Interval
from .experiment_table import (
    AGAINST_ONE,
    BOUND_SUFFIXES,
    PAPER,
    SAVED,
    UNMEASURED,
    ExperimentTable,
    notes_of_panel,
    shows_measured_only,
    title_of_panel,
)
from .profile_table import table_of_profiles

DATASETS_TITLE = "The papers' Table 4: the sizes of the text data sets"
# no roles: these are headings
DATASETS_HEADINGS = [
    "dataset",
    "source",
    "template",
    PAPER,
    "rows",
    PAPER,
    "MB",
    PAPER,
    "tasks (paper)",
]
DATASETS_NOTES = [
    Message(
        "table.rows",
        "rows, MB: of a run that read the whole data set; MB counts its files, which may be in"
        " another format than the papers'",
    ),
    Message(
        "table.no-rows",
        "-: no run here read the whole set; a run with `dataset=NAME dataset.rows=null` does, with"
        " any model and method",
    ),
]


def output(tables: Sequence[ExperimentTable], others: int = 0) -> Output:
    """Return what the command prints: the tables, and CSV with every column that has a value.

    If there are several tables, the CSV begins with a column `panel`.

    Args:
        tables: the tables of the panels to show.
        others: the number of settings that are left out because they have fewer of the cells.
    """
    rows = []
    for table in tables:
        rows.extend({"panel": table.title} | row for row in table.rows)
    names = dict.fromkeys(chain.from_iterable(rows))
    filled = [name for name in names if any(row.get(name) is not None for row in rows)]

    def lines(width: int | None) -> list[str]:
        printed = []
        for table in tables:
            printed.extend((*table.shown.lines(width), ""))
        return printed[:-1]

    columns = filled if len(tables) > 1 else filled[1:]
    notes = []
    if others:
        settings = count(others, "more setting")
        text = f"`--all` shows {settings}, with fewer of the cells or of other sweeps"
        notes.append(Message("table.others", text, n=others))
    return Output(lines, lambda: [table.shown for table in tables], rows, columns, notes=notes)


@dataclass(frozen=True)
class ColumnComparison:
    """A column that compares each cell with another cell.

    Such columns are speed-ups, shares of saved time, parallel efficiencies and ratios of bytes.

    measure: the column of runs that is compared.
    base: the cell to compare with.
    printed: the measure under which the papers print the comparison, in percent. It is None if
        they do not print it.
    """

    measure: str
    base: Cell
    printed: str | None = None


def tables(experiment: Experiment, panels: Sequence[Panel]) -> list[ExperimentTable]:
    """Return one table for each panel of an experiment."""
    make = table_of_profiles if experiment.view.of_profiles else _table_of_measures
    return [
        replace(
            make(panel), label=experiment.name if number == 1 else f"{experiment.name}-{number}"
        )
        for number, panel in enumerate(panels, 1)
    ]


def _table_of_measures(panel: Panel) -> ExperimentTable:
    papers = _printed(panel)
    cells = sorted([*panel.cells, *panel.missing], key=panel.experiment.order)
    rows = [_row(panel, cell, papers) for cell in cells]
    names = [
        name
        for name in rows[0]
        if any(row[name] is not None for row in rows) and not name.endswith(BOUND_SUFFIXES)
    ]
    headings = [
        PAPER if name.startswith(f"{PAPER} ") else name.removeprefix("dataset.") for name in names
    ]
    shown_rows = rows
    if shows_measured_only(panel):
        shown_rows = [row for row in rows if row["status"] != UNMEASURED]
    texts = [[_text(name, row) for name in names] for row in shown_rows]
    figures = list(chain.from_iterable(by_cell.values() for by_cell in papers.values()))
    return ExperimentTable(
        title_of_panel(panel),
        headings,
        texts,
        rows,
        notes_of_panel(panel, rows, figures),
        [_in_words(name, heading) for name, heading in zip(names, headings, strict=True)],
    )


def _in_words(name: str, heading: str) -> str:
    """Return the title of a column in words, with the unit if the cells do not have it."""
    figure = registry.of_column(name)
    if figure.title != name:
        return f"{figure.title} (s)" if figure.unit is registry.SECONDS else figure.title
    return schema.title(name) or heading


def _printed(panel: Panel) -> dict[str, dict[Cell, PrintedFigure]]:
    """Return the papers' figures for the cells, by the name of the column that they belong to."""
    comparisons = _comparisons(panel, next(iter(panel.cells)))
    measures = {measure: measure for measure in panel.experiment.view.measures}
    measures |= {
        name: comparison.printed for name, comparison in comparisons.items() if comparison.printed
    }
    return {
        name: same_setting.comparable_figures(panel, measure) for name, measure in measures.items()
    }


def _row(
    panel: Panel, cell: Cell, papers: Mapping[str, Mapping[Cell, PrintedFigure]]
) -> dict[str, Any]:
    runs = panel.cells.get(cell, [])
    ok_cell_runs = ok_runs(runs)
    statuses = Counter(run["status"] for run in runs)
    row: dict[str, Any] = dict(cell)
    if not runs:
        row["status"] = UNMEASURED
    elif len(statuses) == 1:
        row["status"] = runs[0]["status"]
    else:
        row["status"] = ", ".join(f"{number} {status}" for status, number in statuses.items())
    main_measure = panel.experiment.view.measures[0]
    counted_runs = grouping.counting(ok_cell_runs, main_measure)
    row["runs"] = (
        len(counted_runs) if any(len(group) > 1 for group in panel.cells.values()) else None
    )
    for measure in panel.experiment.view.measures:
        if measure != EFFICIENCY:
            interval = panel.repeated.figure(ok_cell_runs, measure)
            row[measure] = interval and interval.estimate
            row[f"{measure}_low"], row[f"{measure}_high"] = (
                (interval.low, interval.high) if interval else (None, None)
            )
            figure = papers[measure].get(cell)
            row[f"{PAPER} {measure}"] = figure and figure.value
    for name, comparison in _comparisons(panel, cell).items():
        row[name] = _relative_to_base(panel, name, comparison, cell)
        figure = papers.get(name, {}).get(cell)
        row[f"{PAPER} {name}"] = figure and figure.value / 100
    # On n GPUs, an iteration processes n times the rows, so its ideal "speed-up" is 1.
    ideal = grouping.ranks(ok_cell_runs[0]) if ok_cell_runs and main_measure != "step_s" else 1
    marks = grouping.marks(counted_runs)
    if (row.get(AGAINST_ONE) or 0.0) > formulas.DOUBTFUL_EFFICIENCY * ideal:
        marks += DOUBTFUL
    row["marks"] = marks or None
    return row


def _comparisons(panel: Panel, cell: Cell) -> dict[str, ColumnComparison]:
    """Return the columns that compare a cell with others, by their names."""
    view = panel.experiment.view
    comparisons = {}
    main_measure = view.measures[0]

    def with_values(**values: Any) -> Cell:
        return tuple((key, values.get(key, value)) for key, value in cell)

    on_one_node = "nodes" in dict(cell) or (panel.runs[0]["nodes"] or 1) == 1
    if "gpus" in dict(cell) and main_measure.endswith("_s") and on_one_node:
        comparisons[AGAINST_ONE] = ColumnComparison(
            main_measure, with_values(gpus=1, nodes=1), printed.SPEEDUP_1GPU
        )
        if EFFICIENCY in view.measures:
            comparisons[EFFICIENCY] = ColumnComparison(main_measure, with_values(gpus=1, nodes=1))
    if view.base is not None:
        values = view.base_values
        name = "x " + " ".join(
            f"{column}={grouping.typed(value)}" if isinstance(value, bool) else str(value)
            for column, value in values.items()
        )
        base = with_values(**values)
        volumes = [measure for measure in view.measures if measure.endswith("_bytes")]
        if len(volumes) > 1:
            comparisons |= {
                f"{measure.removesuffix('_bytes')} {name}": ColumnComparison(measure, base)
                for measure in volumes
            }
        elif view.saved:
            comparisons[SAVED] = ColumnComparison(main_measure, base, printed.SAVED)
        else:
            comparisons[name] = ColumnComparison(main_measure, base, printed.SPEEDUP)
    return comparisons


def _relative_to_base(
    panel: Panel, name: str, comparison: ColumnComparison, cell: Cell
) -> float | None:
    """Return the cell's figure relative to the base; None if either has no figure.

    This is the speed-up for times and the ratio to the base for other figures. The columns SAVED
    and EFFICIENCY have the saved share of the time and the share of the ideal speed-up.
    """
    cell_runs, base_runs = (ok_runs(panel.cells.get(side, [])) for side in (cell, comparison.base))
    figure, base_figure = (of_setting(runs, comparison.measure) for runs in (cell_runs, base_runs))
    if not figure or not base_figure:
        return None
    if name in (AGAINST_ONE, EFFICIENCY) and not grouping.shows_speed_up([*cell_runs, *base_runs]):
        return None
    if name == SAVED:
        return 1 - figure / base_figure
    if name == EFFICIENCY:
        return base_figure / figure / grouping.ranks(cell_runs[0])
    is_time = comparison.measure.endswith("_s") and not comparison.measure.endswith("_per_s")
    return base_figure / figure if is_time else figure / base_figure


def _text(name: str, row: Mapping[str, Any]) -> str:
    value = row[name]
    measure = name.removeprefix(f"{PAPER} ")
    if value is None:
        return "-"
    is_ratio = re.match(r"(\w+ )?x ", measure) is not None
    # The papers print speed-ups in percent.
    if measure in (SAVED, EFFICIENCY) or (is_ratio and measure != name):
        return f"{value:.2%}"
    if is_ratio:
        return f"{value:.2f}"
    low, high = (row.get(f"{name}{bound}") for bound in BOUND_SUFFIXES)
    return intervals.text(measure, Interval(value, low, high))


def of_datasets(runs: Sequence[Run]) -> ExperimentTable:
    """Compare the sizes of the text data sets with the sizes that the papers print.

    Every data set of the papers has a row, also if no run read it.
    """
    printed_sizes = printed.figures(printed.DATASETS)
    rows = [
        _dataset_row(name, runs)
        for name in dict.fromkeys(figure.cell["dataset"] for figure in printed_sizes)
    ]
    texts = [[_size_text(value) for value in row.values()] for row in rows]
    return ExperimentTable(
        DATASETS_TITLE,
        DATASETS_HEADINGS,
        texts,
        rows,
        [same_setting.sources(printed_sizes), *DATASETS_NOTES],
        label=printed.DATASETS,
    )


def _dataset_row(name: str, runs: Sequence[Run]) -> dict[str, Any]:
    full_runs = [
        run
        for run in runs
        if run["dataset"] == name and run["dataset.rows"] is None and run["status"] == "ok"
    ]
    record = full_runs[0].record() if full_runs else None
    dataset_facts = DATASETS[name]
    data = record and record.data
    rows = record.text_rows if isinstance(record, LlmRecord) else None
    printed_words = next(row for row in printed.rows(printed.DATASETS) if row["dataset"] == name)
    # Parts other than the data set (weights, tokenizer files) would count in `data.bytes` too.
    has_rows_alone = data is not None and [*data.parts] == ["dataset"]
    papers = {
        figure.measure: figure.value
        for figure in printed.figures(printed.DATASETS)
        if figure.cell == {"dataset": name}
    }
    return {
        "dataset": name,
        "source": msgspec.yaml.decode((CONF / "dataset" / f"{name}.yaml").read_bytes())["source"],
        # Experiments read a data set of conversations with this template.
        "template": "instruct" if dataset_facts.conversations else dataset_facts.template,
        "paper template": printed_words["template"],
        "rows": rows and rows.read,
        "paper rows": int(papers["rows"]),
        "size_mb": data.bytes / 1e6 if data is not None and has_rows_alone else None,
        "paper size_mb": papers["size_mb"],
        "paper tasks": printed_words["tasks"],
    }


def _size_text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
