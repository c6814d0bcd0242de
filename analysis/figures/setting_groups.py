"""The settings that one figure shows, as many as a reader can distinguish.

The runs of a setting share the configuration except for the seed, the commit and the machine. The
other settings get figures of their own.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from multicard.config.job import count
from multicard.messages import Message

from ..runs import grouping
from ..runs.columns import KINDS, RunKind
from ..runs.load import Run
from . import captions
from .chart_data import Row
from .charts import (
    WIDTH,
    facets,
    line_layers,
    number_axis,
    with_drawn_values,
)
from .experiment_charts import MARGIN_WIDTH
from .vega import Chart, Spec

MAX_SERIES = 8  # The most settings of a figure with lines.


@dataclass(frozen=True)
class SettingGroup:
    """The settings of a figure.

    settings: the runs that ended ok, by a label that distinguishes a setting from the others.
    by: the columns that distinguish the settings.
    unended_count: the number of runs that did not end ok.
    work: the kind and the data set if the runs have several, else empty.
    left_out: the number of settings that have nothing to show.
    """

    settings: dict[str, list[Run]]
    by: list[str]
    unended_count: int = 0
    work: str = ""
    left_out: int = 0

    @property
    def runs(self) -> list[Run]:
        return list(chain.from_iterable(self.settings.values()))

    @property
    def kind(self) -> RunKind:
        return KINDS[self.runs[0]["kind"]]

    def figure(
        self,
        name: str,
        chart: Spec,
        rows: list[Row],
        title: str,
        notes: Sequence[str],
        timed: Iterable[Sequence[Run]] | None = None,
    ) -> Chart:
        """Return a chart of the settings with its title and what all runs share.

        Args:
            timed: the runs behind each time that the chart shows; disturbed ones are left out.
                None if it shows no times.
        """
        counted_runs = self.runs
        left_out = []
        if timed is not None:
            groups = [*timed]
            left_out = grouping.disturbed_notes(groups)
            counted_runs = list(
                chain.from_iterable(grouping.undisturbed(group_runs) for group_runs in groups)
            )
        _, legend = captions.marks(counted_runs)
        above = [captions.in_short(self.runs), captions.common_settings(self.runs, self.by)]
        below = [*notes]
        if self.unended_count:
            text = f"Not in it: {count(self.unended_count, 'run')} that did not end"
            below.append(Message("figure.unended", text, runs=self.unended_count))
        below += legend
        title = f"{title}: {self.work}" if self.work else title
        run_limits = tuple(grouping.limits_of(counted_runs))
        width = 2 * WIDTH + MARGIN_WIDTH
        return Chart(name, title, chart, rows, above, below, run_limits, width, left_out=left_out)

    def line_figure(
        self,
        name: str,
        rows: list[Row],
        x: str,
        title: str,
        notes: Sequence[str],
        axis: str = "",
        timed: Iterable[Sequence[Run]] | None = None,
    ) -> Chart:
        drawn_rows = with_drawn_values(rows, x)
        ticks = number_axis(x, sorted({row[x] for row in rows}), axis or x)
        chart = facets(
            line_layers(drawn_rows, ticks, list(self.settings), band=True), drawn_rows, 2
        )
        return self.figure(name, chart, drawn_rows, title, notes, timed)


def groups(
    runs: Sequence[Run],
    most: int,
    without: Sequence[str] = (),
    shows: Callable[[list[Run]], bool] = lambda runs: True,
) -> Iterator[SettingGroup]:
    """Yield the settings of the runs, by kind and data set, at most `most` in a group.

    Groups in which no run ended ok are left out.

    Args:
        without: columns that do not make another setting, besides the seed.
        shows: returns True if a setting with these runs, which ended ok, has something to show.
    """
    started = [run for run in runs if run["status"] != "refused"]
    runs_by_work = grouping.group(started, ["kind", "dataset"])
    for key, work_runs in runs_by_work.items():
        kind, dataset = (value for _, value in key)
        work = f"{KINDS[kind].title} on {grouping.typed(dataset)}" if len(runs_by_work) > 1 else ""
        cells = grouping.by_setting(work_runs, without)
        ok_by_cell = {
            cell: [run for run in cell_runs if run["status"] == "ok"]
            for cell, cell_runs in cells.items()
        }
        shown_cells = [
            cell for cell, cell_runs in ok_by_cell.items() if cell_runs and shows(cell_runs)
        ]
        left_out = sum(map(bool, ok_by_cell.values())) - len(shown_cells)
        failed_elsewhere = sum(
            len(cell_runs) for cell, cell_runs in cells.items() if not ok_by_cell[cell]
        )
        for start in range(0, len(shown_cells), most):
            group_cells = shown_cells[start : start + most]
            varied_columns = grouping.apart(
                [dict(cell) for cell in group_cells], grouping.keys_of(group_cells)
            )
            names = grouping.short_names(varied_columns)
            short_cells = [
                tuple((names[key], value) for key, value in cell if key in names)
                for cell in group_cells
            ]
            settings = {
                grouping.label(short_cell, names.values()) or "all": ok_by_cell[cell]
                for short_cell, cell in zip(short_cells, group_cells, strict=True)
            }
            unended_count = sum(len(cells[cell]) - len(ok_by_cell[cell]) for cell in group_cells)
            if start > 0:
                yield SettingGroup(settings, varied_columns, unended_count, work)
                continue
            # The first group also counts the settings that no group shows.
            unended_count += failed_elsewhere
            yield SettingGroup(settings, varied_columns, unended_count, work, left_out)
