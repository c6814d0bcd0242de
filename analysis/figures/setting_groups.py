"""Settings of any runs, in groups that fit one figure, and what figures of settings share.

A setting is the runs of one configuration (apart from the seed), commit and machine. A figure has as many settings as
can be told apart in it; the others are figures of their own.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from analysis import formatting
from analysis.figures import captions
from analysis.figures.chart_data import Row
from analysis.figures.vega import DASHES, SHAPES, Figure, Spec, cycled, figure
from analysis.formatting import counted
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
    """The settings of a figure.

    by: the columns that tell them apart. of: what was done with which data set, where the runs did several things.
    unended: how many of the runs did not end ok. left_out: settings that have nothing to show.
    """

    settings: list[Setting]
    by: list[str]
    unended: int
    of: str = ""
    left_out: int = 0

    @property
    def runs(self) -> list[Run]:
        return [run for setting in self.settings for run in setting.runs]

    @property
    def kind(self) -> str:
        return self.settings[0].runs[0]["kind"]


def groups(
    runs: Sequence[Run],
    most: int,
    without: Sequence[str] = (),
    shows: Callable[[list[Run]], bool] = lambda runs: True,
) -> Iterator[SettingGroup]:
    """The settings of the runs, by kind and data set and then at most so many at a time; groups in which no run ended
    ok are left out.

    Args:
        without: columns that do not make another setting, beside the seed.
        shows: whether a setting with these runs, which ended ok, has something to show.
    """
    started = [run for run in runs if run["status"] != "refused"]
    works = grouping.group(started, ["kind", "dataset"])
    for work, of_work in works.items():
        kind, dataset = (value for _, value in work)
        of = f"{formatting.kind(kind)} on {grouping.typed(dataset)}" if len(works) > 1 else ""
        cells = list(grouping.by_setting(of_work, without).items())
        ended = {cell: [run for run in own if run["status"] == "ok"] for cell, own in cells}
        shown = [(cell, own) for cell, own in cells if ended[cell] and shows(ended[cell])]
        left_out = sum(bool(own) for own in ended.values()) - len(shown)
        elsewhere = sum(len(own) for cell, own in cells if not ended[cell])
        for start in range(0, len(shown), most):
            part = shown[start : start + most]
            by = grouping.apart([dict(cell) for cell, _ in part], grouping.keys_of(cell for cell, _ in part))
            settings = [Setting(grouping.label(cell, by) or "all", ended[cell]) for cell, _ in part]
            unended = sum(len(own) - len(ended[cell]) for cell, own in part)
            first = start == 0
            yield SettingGroup(settings, by, unended + elsewhere * first, of, left_out * first)


def around(name: str, chart: Spec, rows: list[Row], title: str, group: SettingGroup, notes: Sequence[str]) -> Figure:
    """A chart with what its runs have in common above and the notes below."""
    _, legend = captions.marks(group.runs)
    unended = [f"Not in it: {counted(group.unended, 'run')} that did not end"] if group.unended else []
    above, below = [captions.common_settings(group.runs, group.by)], [*notes, *unended, *legend]
    title = f"{title}: {group.of}" if group.of else title
    return figure(name, chart, rows, title, above, below, grouping.marks(group.runs), 2 * WIDTH)


def series(base: Any, labels: Sequence[str]) -> list[Any]:
    """A line with points for each setting, told apart by colour, dash and shape; of a single one without a legend, for
    the caption says what it is."""
    legend = alt.Legend(title=None, symbolOpacity=1) if len(labels) > 1 else None
    dashes = [list(dash) for dash in DASHES]
    dash = alt.StrokeDash(f"{SETTING}:N", scale=cycled(labels, dashes), legend=legend)
    colour = alt.Color(f"{SETTING}:N", scale=alt.Scale(domain=list(labels)), legend=legend)
    shape = alt.Shape(f"{SETTING}:N", scale=cycled(labels, SHAPES), legend=legend)
    line = base.mark_line(strokeWidth=1.6).encode(color=colour, strokeDash=dash)
    return [line, base.mark_point(filled=True, size=28, opacity=1).encode(color=colour, shape=shape)]
