"""Settings of any runs, in groups that fit one figure, and what figures of settings share.

A setting is the runs of one configuration (apart from the seed), commit and machine. A figure has as many settings as
can be told apart in it; the others are figures of their own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from analysis.figures import captions
from analysis.figures.chart_data import Row
from analysis.figures.vega import DASHES, SHAPES, Figure, Spec, cycled, figure
from analysis.runs import grouping
from analysis.runs.load import Run

SETTING = "setting"  # field of a row: the setting's label
MOST_SERIES = 8  # settings in a figure with lines
WIDTH, HEIGHT = 360, 240  # points


@dataclass(frozen=True)
class Setting:
    """Runs of one setting that ended ok; the label says what tells it from the others of its figure."""

    label: str
    runs: list[Run]


@dataclass(frozen=True)
class SettingGroup:
    """The settings of a figure, the columns that tell them apart, and how many of their runs did not end ok."""

    settings: list[Setting]
    by: list[str]
    unended: int

    @property
    def runs(self) -> list[Run]:
        return [run for setting in self.settings for run in setting.runs]

    @property
    def kind(self) -> str:
        return self.settings[0].runs[0]["kind"]


def groups(runs: Sequence[Run], most: int, without: Sequence[str] = ()) -> Iterator[SettingGroup]:
    """The settings of the runs, by kind and then at most so many at a time; groups in which no run ended ok are left
    out.

    Args:
        without: columns that do not make another setting, beside the seed.
    """
    for kind in dict.fromkeys(run["kind"] for run in runs):
        of_kind = [run for run in runs if run["kind"] == kind and run["status"] != "refused"]
        cells = list(grouping.by_setting(of_kind, without).items())
        for start in range(0, len(cells), most):
            part = cells[start : start + most]
            by = grouping.apart([dict(cell) for cell, _ in part], grouping.keys_of(cell for cell, _ in part))
            ok = [(cell, [run for run in runs if run["status"] == "ok"]) for cell, runs in part]
            settings = [Setting(grouping.label(cell, by) or "all", runs) for cell, runs in ok if runs]
            if settings:
                unended = sum(len(runs) for _, runs in part) - sum(len(runs) for _, runs in ok)
                yield SettingGroup(settings, by, unended)


def around(name: str, chart: Spec, rows: list[Row], title: str, group: SettingGroup, notes: Sequence[str]) -> Figure:
    """A chart with what its runs have in common above and the notes below."""
    _, legend = captions.marks(group.runs)
    unended = [f"{group.unended} runs that did not end are not in it"] if group.unended else []
    above, below = [captions.common_settings(group.runs, group.by)], [*notes, *unended, *legend]
    return figure(name, chart, rows, title, above, below, grouping.marks(group.runs), 2 * WIDTH)


def series(base: Any, labels: Sequence[str]) -> list[Any]:
    """A line with points for each setting, told apart by colour, dash and shape."""
    legend = alt.Legend(title=None, symbolOpacity=1)
    dashes = [list(dash) for dash in DASHES]
    dash = alt.StrokeDash(f"{SETTING}:N", scale=cycled(labels, dashes), legend=legend)
    colour = alt.Color(f"{SETTING}:N", scale=alt.Scale(domain=list(labels)), legend=legend)
    shape = alt.Shape(f"{SETTING}:N", scale=cycled(labels, SHAPES), legend=legend)
    line = base.mark_line(strokeWidth=1.6).encode(color=colour, strokeDash=dash)
    return [line, base.mark_point(filled=True, size=28, opacity=1).encode(color=colour, shape=shape)]
