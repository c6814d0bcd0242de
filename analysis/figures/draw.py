"""The figures of an experiment, and those that can be drawn of any runs, by name."""

from collections.abc import Sequence
from typing import Any

from analysis.figures import bars, curves, lines, profile_bars
from analysis.figures.losses_phases import losses, phases
from analysis.figures.scaling import efficiency, trade_off
from analysis.figures.timelines import NEEDS as SAMPLES
from analysis.figures.timelines import timelines
from analysis.figures.vega import Figure, numbered
from analysis.papers.experiments import Experiment, Panel

OF_PROFILES = dict.fromkeys(("calls", "shares"), profile_bars.draw)
FORMS = {"lines": lines.draw, "bars": bars.draw, "curves": curves.draw, **OF_PROFILES}
GENERAL = {"losses": losses, "phases": phases, "efficiency": efficiency, "trade_off": trade_off, "timelines": timelines}
TIMELINES = "timelines"
NEEDS = {TIMELINES: SAMPLES}  # what runs must have for a general figure


def experiment_figures(experiment: Experiment, panels: Sequence[Panel], paper: Sequence[Any] = ()) -> list[Figure]:
    """A figure for each panel of an experiment, named after it; none for panels without anything to show (no profile
    that can be read, no epochs).

    Args:
        paper: the papers' own figures, drawn hollow beside what is comparable: objects with `cell` (swept column to
            value), `measure`, `value`, `hardware` and `source`.
    """
    figures: list[Figure] = []
    for panel in panels:
        figure = FORMS[experiment.view.form](panel, numbered(experiment.name, len(figures)), paper)
        figures += [figure] if figure is not None else []
    if experiment.view.timelines and panels:
        figures += timelines(panels[0].runs, f"{experiment.name}-{TIMELINES}")
    return figures
