"""Make the table of an experiment's profiles: times of calls, copies and collectives."""

from multicard.messages import Message
from multicard.papers import printed
from multicard.papers.printed import PrintedFigure

from .. import same_setting, table_columns
from ..experiments import Panel
from ..runs import grouping, profile_metrics
from ..table_columns import Column
from .experiment_table import PAPER, ExperimentTable, notes_of_panel, title_of_panel


def table_of_profiles(panel: Panel) -> ExperimentTable:
    """Return a table of profiled times, or of their shares of the profiled time.

    The papers profiled runs from their start. If these runs were profiled so too, the times are
    seconds over all ranks, next to the papers' figures. Otherwise they are times per step and rank.
    """
    shares = panel.experiment.view.form == "shares"
    swept = panel.experiment.swept
    covers_whole_run = not shares and profile_metrics.from_start(panel.runs)
    by_cell = profile_metrics.by_cell(
        panel.cells, panel.experiment.view.shown_metrics if shares else None, covers_whole_run
    )
    varied_columns = [column for column in swept if len(panel.values(column)) > 1]
    if shares:
        unit = "share of the profiled time of all ranks"
        format_value = "{:.1%}".format
    elif covers_whole_run:
        unit = "seconds of all ranks, of the run from its start"
        format_value = "{:,.4g}".format
    else:
        unit = "milliseconds a step and rank, of the profiled steps"
        format_value = _in_milliseconds
    metrics = profile_metrics.largest(list(by_cell.values()))
    papers = list[PrintedFigure]()
    columns = [Column("group", "group", [group for group, _ in metrics], is_setting=True)]
    columns += [Column("metric", "metric", [name for _, name in metrics], is_setting=True)]
    printed_by_metric = {
        name: same_setting.comparable_figures(panel, f"{printed.METRIC}{name}")
        for _, name in metrics
    }
    for cell, figures in by_cell.items():
        heading = grouping.short_label(pair for pair in cell if pair[0] in varied_columns)
        values = ", ".join(
            grouping.typed(value) for column, value in cell if column in varied_columns
        )
        printed_figures = [printed_by_metric[name].get(cell) for _, name in metrics]
        exact_values = [
            figure.low if figure and figure.exact else None for figure in printed_figures
        ]
        short_heading = values if len(varied_columns) > 1 else heading
        columns.append(
            Column(
                short_heading, heading, [figures.get(metric) for metric in metrics], format_value
            )
        )
        columns.append(Column(PAPER, f"{PAPER} {heading}", exact_values, format_value))
        papers += filter(None, printed_figures)
    text = unit
    if len(varied_columns) > 1:
        text += f"; columns: {', '.join(key.rpartition('.')[2] for key in varied_columns)}"
    notes: list[str] = [
        Message("table.unit", text, shares=shares, whole=covers_whole_run, columns=varied_columns)
    ]
    if not any(group == "api" for group, _ in metrics):
        notes.append(Message("table.no-calls", "no CUDA calls were seen: CPU ranks make none"))
    notes += notes_of_panel(panel, [], papers)
    profile_table = table_columns.table(columns)
    return ExperimentTable(
        title_of_panel(panel),
        [*profile_table.headings],
        [*map(list, profile_table.rows)],
        table_columns.rows(columns),
        notes,
    )


def _in_milliseconds(value_s: float) -> str:
    return f"{1000 * value_s:.3g}"
