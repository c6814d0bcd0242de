"""`table`: a table or figure of the papers from your own runs, beside the papers' figures.

For each cell: the means over its runs that ended ok (of peak memory the highest), ± half of their
95 % interval, in which is how all repeated runs of the machine differ; and speed-ups, which the
papers' tables call efficiency: the time on one GPU / the time, and the time of the base (fp64, no
pinned memory ...) / the time, or the share of the base's time that is saved. For bytes it is how
many times the base's. Beside each column stands what the papers print of the same setting;
what to know of it, misprints too, is below.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec

from multicard.config import CONF, schema
from multicard.config.job import count
from multicard.config.llm_texts import DATASETS
from multicard.config.roles import Role
from multicard.measure import formulas
from multicard.messages import Message
from multicard.papers import printed
from multicard.papers.printed import PrintedFigure
from multicard.records import figures as registry
from multicard.records import text_table
from multicard.records.comparable import DOUBTFUL, DOUBTFUL_MEANING
from multicard.records.output import Output
from multicard.records.schema import LlmRecord
from multicard.records.text_table import clean

from .. import same_setting, table_columns
from ..experiments import EFFICIENCY, Experiment, Panel
from ..runs import grouping, profile_metrics
from ..runs.grouping import Cell, of_setting, ok_runs
from ..runs.load import Run
from ..stats import intervals
from ..stats.intervals import Interval
from ..table_columns import Column

UNMEASURED = "not measured"
BOUNDS = ("_low", "_high")  # of a figure's interval, in CSV
AGAINST_ONE = "x 1 GPU"
SAVED = "saved"
PAPER = "paper"  # above printed figures; in CSV with the name of their column

DATASETS_TITLE = "The papers' Table 4: the sizes of the text data sets"
# no roles: headings
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
        "rows, MB: of a run that read the whole set; MB of its files, which may be of another"
        " format than the papers'",
    ),
    Message(
        "table.no-rows",
        "-: no run here read the whole set; `dataset=NAME dataset.rows=null` does, of any model and"
        " method",
    ),
]


@dataclass(frozen=True)
class ExperimentTable:
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

    @property
    def shown(self) -> text_table.TextTable:
        return text_table.TextTable(self.headings, self.texts, [self.title, ""], ["", *self.notes])


def output(tables: Sequence[ExperimentTable], others: int = 0) -> Output:
    """The tables; CSV has their filled columns,
    after a first one `panel` where there are several tables.

    Args:
        others: how many settings with fewer of the cells are left out.
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
        said = f"`--all` shows {count(others, 'more setting')} with fewer of the cells"
        notes.append(Message("table.others", said, n=others))
    return Output(lines, lambda: [table.shown for table in tables], rows, columns, notes=notes)


@dataclass(frozen=True)
class ColumnComparison:
    """A column that compares the cells with another: speed-ups, shares of the time that are saved,
    parallel efficiencies, and how many times the bytes.

    base: the other cell. printed: the papers' measure of it, in percent; None where they have none.
    """

    measure: str
    base: Cell
    printed: str | None = None


def tables(experiment: Experiment, panels: Sequence[Panel]) -> list[ExperimentTable]:
    return [
        (_of_profiles if experiment.view.of_profiles else _of_measures)(panel) for panel in panels
    ]


def _of_measures(panel: Panel) -> ExperimentTable:
    papers = _printed(panel)
    cells = sorted([*panel.cells, *panel.missing], key=panel.experiment.order)
    rows = [_row(panel, cell, papers) for cell in cells]
    names = [
        name
        for name in rows[0]
        if any(row[name] is not None for row in rows) and not name.endswith(BOUNDS)
    ]
    headings = [
        PAPER if name.startswith(f"{PAPER} ") else name.removeprefix("dataset.") for name in names
    ]
    texts = [[_text(name, row) for name in names] for row in rows]
    figures = list(chain.from_iterable(by_cell.values() for by_cell in papers.values()))
    return ExperimentTable(_title(panel), headings, texts, rows, _notes(panel, rows, figures))


def _of_profiles(panel: Panel) -> ExperimentTable:
    """Shares of the profiled time, or times: of profiles from the start, as the papers' were, in
    seconds of all ranks beside what the papers print, and of others in those of a step and rank.
    """
    shares = panel.experiment.view.form == "shares"
    swept = panel.experiment.swept
    whole = not shares and profile_metrics.from_start(panel.runs)
    by_cell = profile_metrics.by_cell(
        panel.cells, panel.experiment.view.shown_metrics if shares else None, whole
    )
    several = [column for column in swept if len(panel.values(column)) > 1]
    if shares:
        unit = "share of the profiled time of all ranks"
        text = "{:.1%}".format
    elif whole:
        unit = "seconds of all ranks, of the run from its start"
        text = "{:,.4g}".format
    else:
        unit = "milliseconds a step and rank, of the profiled steps"
        text = _in_milliseconds
    metrics = profile_metrics.largest(list(by_cell.values()))
    papers = list[PrintedFigure]()
    columns = [Column("group", "group", [group for group, _ in metrics], is_setting=True)]
    columns += [Column("metric", "metric", [name for _, name in metrics], is_setting=True)]
    printed_too = {
        name: same_setting.beside(panel, f"{printed.METRIC}{name}") for _, name in metrics
    }
    for cell, figures in by_cell.items():
        heading = grouping.short_label(pair for pair in cell if pair[0] in several)
        values = ", ".join(grouping.typed(value) for column, value in cell if column in several)
        beside = [printed_too[name].get(cell) for _, name in metrics]
        exact = [figure.low if figure and figure.exact else None for figure in beside]
        short = values if len(several) > 1 else heading
        columns.append(Column(short, heading, [figures.get(metric) for metric in metrics], text))
        columns.append(Column(PAPER, f"{PAPER} {heading}", exact, text))
        papers += filter(None, beside)
    said = unit
    if len(several) > 1:
        said += f"; columns: {', '.join(key.rpartition('.')[2] for key in several)}"
    notes: list[str] = [Message("table.unit", said, shares=shares, whole=whole, columns=several)]
    if not any(group == "api" for group, _ in metrics):
        notes.append(Message("table.no-calls", "no CUDA calls were seen: CPU ranks make none"))
    notes += _notes(panel, [], papers)
    shown = table_columns.table(columns)
    return ExperimentTable(
        _title(panel),
        [*shown.headings],
        [*map(list, shown.rows)],
        table_columns.rows(columns),
        notes,
    )


def _title(panel: Panel) -> str:
    title = panel.experiment.title.rstrip(".")
    return f"{title} ({panel.apart})" if panel.apart else title


def _printed(panel: Panel) -> dict[str, dict[Cell, PrintedFigure]]:
    """The papers' figures for the cells, by the name of the column that they stand beside."""
    compared = _comparisons(panel, next(iter(panel.cells)))
    measures = {measure: measure for measure in panel.experiment.view.measures}
    measures |= {
        name: comparison.printed for name, comparison in compared.items() if comparison.printed
    }
    return {name: same_setting.beside(panel, measure) for name, measure in measures.items()}


def _row(
    panel: Panel, cell: Cell, papers: Mapping[str, Mapping[Cell, PrintedFigure]]
) -> dict[str, Any]:
    runs = panel.cells.get(cell, [])
    ok = ok_runs(runs)
    statuses = Counter(run["status"] for run in runs)
    counts = ", ".join(f"{count} {status}" for status, count in statuses.items())
    row: dict[str, Any] = dict(cell)
    row["status"] = (counts if len(statuses) > 1 else next(iter(statuses))) if runs else UNMEASURED
    main = panel.experiment.view.measures[0]
    counted = grouping.counting(ok, main)
    row["runs"] = len(counted) if any(len(group) > 1 for group in panel.cells.values()) else None
    for measure in panel.experiment.view.measures:
        if measure != EFFICIENCY:
            interval = panel.repeated.figure(ok, measure)
            row[measure] = interval and interval.estimate
            row[f"{measure}_low"], row[f"{measure}_high"] = (
                (interval.low, interval.high) if interval else (None, None)
            )
            figure = papers[measure].get(cell)
            row[f"{PAPER} {measure}"] = figure and figure.value
    for name, comparison in _comparisons(panel, cell).items():
        row[name] = _compared(panel, name, comparison, cell)
        figure = papers.get(name, {}).get(cell)
        row[f"{PAPER} {name}"] = figure and figure.value / 100
    # an iteration on n GPUs takes n times the rows
    ideal = grouping.ranks(ok[0]) if ok and main != "step_s" else 1
    doubtful = (row.get(AGAINST_ONE) or 0.0) > formulas.DOUBTFUL_EFFICIENCY * ideal
    row["marks"] = grouping.marks(counted) + DOUBTFUL * doubtful or None
    return row


def _comparisons(panel: Panel, cell: Cell) -> dict[str, ColumnComparison]:
    """The columns that compare a cell with others, by name."""
    view = panel.experiment.view
    compared = {}
    main = view.measures[0]

    def with_values(**values: Any) -> Cell:
        return tuple((key, values.get(key, own)) for key, own in cell)

    on_one_node = "nodes" in dict(cell) or (panel.runs[0]["nodes"] or 1) == 1
    if "gpus" in dict(cell) and main.endswith("_s") and on_one_node:
        compared[AGAINST_ONE] = ColumnComparison(
            main, with_values(gpus=1, nodes=1), printed.SPEEDUP_1GPU
        )
        if EFFICIENCY in view.measures:
            compared[EFFICIENCY] = ColumnComparison(main, with_values(gpus=1, nodes=1))
    if view.base is not None:
        values = view.base_values
        name = "x " + " ".join(
            f"{column}={grouping.typed(value)}" if isinstance(value, bool) else str(value)
            for column, value in values.items()
        )
        base = with_values(**values)
        volumes = [measure for measure in view.measures if measure.endswith("_bytes")]
        if len(volumes) > 1:
            compared |= {
                f"{measure.removesuffix('_bytes')} {name}": ColumnComparison(measure, base)
                for measure in volumes
            }
        elif view.saved:
            compared[SAVED] = ColumnComparison(main, base, printed.SAVED)
        else:
            compared[name] = ColumnComparison(main, base, printed.SPEEDUP)
    return compared


def _compared(panel: Panel, name: str, comparison: ColumnComparison, cell: Cell) -> float | None:
    """Speed-up over the base, or the share that is saved or reached of the ideal; of figures other
    than times, the ratio to the base.
    """
    ok, others = (ok_runs(panel.cells.get(side, [])) for side in (cell, comparison.base))
    own, base = (of_setting(runs, comparison.measure) for runs in (ok, others))
    if not own or not base:
        return None
    if name in (AGAINST_ONE, EFFICIENCY) and not grouping.shows_speed_up([*ok, *others]):
        return None
    if name == SAVED:
        return 1 - own / base
    if name == EFFICIENCY:
        return base / own / grouping.ranks(ok[0])
    is_time = comparison.measure.endswith("_s") and not comparison.measure.endswith("_per_s")
    return base / own if is_time else own / base


def _text(name: str, row: Mapping[str, Any]) -> str:
    value = row[name]
    of = name.removeprefix(f"{PAPER} ")
    if value is None:
        return "-"
    is_ratio = re.match(r"(\w+ )?x ", of) is not None
    # the papers print speed-ups in percent
    if of in (SAVED, EFFICIENCY) or (is_ratio and of != name):
        return f"{value:.2%}"
    if is_ratio:
        return f"{value:.2f}"
    low, high = (row.get(f"{name}{bound}") for bound in BOUNDS)
    return intervals.text(of, Interval(value, low, high))


def _notes(
    panel: Panel, rows: Sequence[Mapping[str, Any]], papers: Sequence[PrintedFigure]
) -> list[str]:
    runs = panel.runs
    experiment = panel.experiment
    notes = [_setting(panel), *_meanings(rows, experiment)]
    if panel.missing:
        missing = len(panel.missing)
        said = (
            f"{missing} of {count(missing + len(panel.cells), 'cell')} not measured:"
            f" `{panel.command}`"
        )
        notes.append(Message("table.missing", said, n=missing, command=panel.command))
    if any(run["scale"] == "smoke" for run in runs):
        said = "scale=smoke: these figures show that the sweep works, not what the papers measured"
        notes.append(Message("table.smoke", said))
    if any(registry.of_column(one).can_be_disturbed for one in experiment.view.measures):
        notes += grouping.disturbed_notes(ok_runs(cell) for cell in panel.cells.values())
    notes += same_setting.notes(panel, papers)
    for run in runs:
        if run["status"] not in ("ok", "oom"):
            cell = tuple((key, run[key]) for key in experiment.swept)
            label = grouping.label(cell, experiment.swept)
            cause = clean(str(run["cause"] or "no cause recorded"))
            said = f"{label}: {run['status']}: {cause}"
            notes.append(
                Message("table.failed", said, cell=label, status=run["status"], cause=run["cause"])
            )
    return [*notes, *grouping.legend(runs)]


def _meanings(rows: Sequence[Mapping[str, Any]], experiment: Experiment) -> list[str]:
    """What columns and signs of a table mean, as far as it has them."""
    notes = list[str]()
    measures = experiment.view.measures
    if any(row["runs"] is not None for row in rows):
        said = "runs: how many runs of the cell ended ok and count for its first figure"
        notes.append(Message("table.runs", said))
    if any(
        any(row.get(f"{measure}{BOUNDS[0]}") is not None for measure in measures) for row in rows
    ):
        said = (
            "±: half of the 95 % interval of the figure, in which is how all repeated runs differ"
        )
        notes.append(Message("table.half-interval", said))
    if any(DOUBTFUL in (row["marks"] or "") for row in rows):
        notes.append(f"{DOUBTFUL}  {AGAINST_ONE}: {DOUBTFUL_MEANING}")
    if any(AGAINST_ONE in row and measures[0] == "step_s" for row in rows):
        said = f"{AGAINST_ONE}: of an iteration, which on n GPUs takes n times the rows"
        notes.append(Message("table.of-iterations", said))
    if any(EFFICIENCY in row for row in rows):
        said = (
            f"{EFFICIENCY}: {AGAINST_ONE} / GPUs; the papers' tables call {AGAINST_ONE} in percent"
            " efficiency"
        )
        notes.append(Message("table.efficiency", said))
    return notes


def _setting(panel: Panel) -> str:
    first = panel.runs[0]
    titled = [key for key in schema.shown() if Role.titled in schema.of(key)]
    known = [key for key in titled if key not in panel.experiment.swept and first[key] is not None]
    same = [
        f"{key}={grouping.typed(first[key])}"
        for key in known
        if len({run[key] for run in panel.runs}) == 1
    ]
    place = grouping.mixture(panel.runs) or f"{grouping.commit(first)} on {grouping.machine(first)}"
    return f"all: {' '.join(same)}, {place}"


def of_datasets(runs: Sequence[Run]) -> ExperimentTable:
    """The sizes of the text data sets that the papers print, as runs read them: a row each,
    measured or not.
    """
    found = printed.figures(printed.DATASETS)
    rows = [
        _dataset_row(name, runs)
        for name in dict.fromkeys(figure.cell["dataset"] for figure in found)
    ]
    texts = [[_size_text(value) for value in row.values()] for row in rows]
    return ExperimentTable(
        DATASETS_TITLE,
        DATASETS_HEADINGS,
        texts,
        rows,
        [same_setting.sources(found), *DATASETS_NOTES],
    )


def _dataset_row(name: str, runs: Sequence[Run]) -> dict[str, Any]:
    whole = [
        run
        for run in runs
        if run["dataset"] == name and run["dataset.rows"] is None and run["status"] == "ok"
    ]
    record = whole[0].record() if whole else None
    facts = DATASETS[name]
    data = record and record.data
    rows = record.text_rows if isinstance(record, LlmRecord) else None
    printed_words = next(row for row in printed.rows(printed.DATASETS) if row["dataset"] == name)
    # no weights, nor a tokenizer of files
    has_rows_alone = data is not None and [*data.parts] == ["dataset"]
    papers = {
        figure.measure: figure.value
        for figure in printed.figures(printed.DATASETS)
        if figure.cell == {"dataset": name}
    }
    return {
        "dataset": name,
        "source": msgspec.yaml.decode((CONF / "dataset" / f"{name}.yaml").read_bytes())["source"],
        # as the experiments read it
        "template": "instruct" if facts.conversations else facts.template,
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
    return (
        value
        if isinstance(value, str)
        else f"{value:,}"
        if isinstance(value, int)
        else f"{value:,.2f}"
    )


def _in_milliseconds(value_s: float) -> str:
    return f"{1000 * value_s:.3g}"
