"""Make the table of an experiment's profiles: times of calls, copies and collectives."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from multicard.messages import Message
from multicard.papers import printed
from multicard.papers.printed import PrintedFigure

from .. import same_setting, table_columns
from ..experiments import Panel
from ..runs import grouping, profile_metrics
from ..runs.grouping import Cell
from ..runs.profile_metrics import Metric
from ..table_columns import Column
from .experiment_table import PAPER, ExperimentTable, notes_of_panel, title_of_panel


@dataclass(frozen=True)
class _Unit:
    """The unit of a table's figures, in words, and the function that writes a figure in it."""

    words: str
    format_value: Callable[[float], str]


SHARES = _Unit("share of the profiled time of all ranks", "{:.1%}".format)
RUN_SECONDS = _Unit("seconds of all ranks, of the run from its start", "{:,.4g}".format)
STEP_MILLISECONDS = _Unit(
    "milliseconds a step and rank, of the profiled steps", lambda value_s: f"{1000 * value_s:.3g}"
)


def table_of_profiles(panel: Panel) -> ExperimentTable:
    """Return a table of profiled times, or of their shares of the profiled time.

    The papers profiled runs from their start. If these runs were profiled so too, the times are
    seconds over all ranks, next to the papers' figures. Otherwise they are times per step and rank.
    """
    view = panel.experiment.view
    is_shares = view.form == "shares"
    covers_whole_run = not is_shares and profile_metrics.from_start(panel.runs)
    if is_shares:
        unit = SHARES
    elif covers_whole_run:
        unit = RUN_SECONDS
    else:
        unit = STEP_MILLISECONDS
    figures_by_cell = profile_metrics.by_cell(
        panel.cells,
        metrics=view.shown_metrics if is_shares else None,
        whole_profile=covers_whole_run,
    )
    metrics = profile_metrics.largest(list(figures_by_cell.values()))
    varied_columns = [column for column in panel.experiment.swept if len(panel.values(column)) > 1]
    columns = [
        Column("group", "group", [group for group, _ in metrics], is_setting=True),
        Column("metric", "metric", [name for _, name in metrics], is_setting=True),
    ]
    papers = list[PrintedFigure]()
    printed_by_metric = {
        name: same_setting.comparable_figures(panel, f"{printed.METRIC}{name}")
        for _, name in metrics
    }
    for cell, figures in figures_by_cell.items():
        printed_figures = [printed_by_metric[name].get(cell) for _, name in metrics]
        columns += _columns_of_cell(
            cell,
            values=[figures.get(metric) for metric in metrics],
            printed_figures=printed_figures,
            varied_columns=varied_columns,
            unit=unit,
        )
        papers += filter(None, printed_figures)
    notes = _notes_of_figures(unit, varied_columns, metrics)
    notes += notes_of_panel(panel, rows=[], papers=papers)
    printed_table = table_columns.sortable_table(columns)
    return ExperimentTable(
        title=title_of_panel(panel),
        headings=[*printed_table.headings],
        texts=[[*row] for row in printed_table.rows],
        rows=table_columns.rows(columns),
        notes=notes,
    )


def _columns_of_cell(
    cell: Cell,
    values: Sequence[float | None],
    printed_figures: Sequence[PrintedFigure | None],
    varied_columns: Sequence[str],
    unit: _Unit,
) -> list[Column]:
    """Return the column of a cell's measured figures, and the column of the papers' figures.

    Args:
        values: the cell's figure for each metric.
        printed_figures: the papers' figure for each metric.
        varied_columns: the keys that have several values in the panel. The headings name only them.
    """
    varied_pairs = [pair for pair in cell if pair[0] in varied_columns]
    heading = grouping.short_label(varied_pairs)
    short_heading = heading
    if len(varied_columns) > 1:  # A note below the table names the keys.
        short_heading = ", ".join(grouping.typed(value) for _, value in varied_pairs)
    exact_values = [figure.low if figure and figure.exact else None for figure in printed_figures]
    return [
        Column(short_heading, heading, values, unit.format_value),
        Column(PAPER, f"{PAPER} {heading}", exact_values, unit.format_value),
    ]


def _notes_of_figures(
    unit: _Unit, varied_columns: Sequence[str], metrics: Sequence[Metric]
) -> list[str]:
    """Return the notes on the unit, the keys of the headings, and calls that are missing."""
    text = unit.words
    if len(varied_columns) > 1:
        text += f"; columns: {', '.join(key.rpartition('.')[2] for key in varied_columns)}"
    unit_note = Message(
        "table.unit",
        text,
        shares=unit is SHARES,
        whole=unit is RUN_SECONDS,
        columns=varied_columns,
    )
    if any(group == "api" for group, _ in metrics):
        return [unit_note]
    no_calls_note = Message("table.no-calls", "no CUDA calls were seen: CPU ranks make none")
    return [unit_note, no_calls_note]
