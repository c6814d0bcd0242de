"""Figures of runs, as Vega-Lite with its data.

`charts` has those of the papers' experiments; `GENERAL` has, by name, what can be drawn of any runs.
"""

from collections.abc import Sequence
from typing import Any

from analysis.figures import bars, curves, lines, profile_bars
from analysis.figures.losses_phases import losses, phases
from analysis.figures.scaling import efficiency, trade_off
from analysis.figures.vega import FORMATS, Figure, save, theme
from analysis.papers.experiments import Experiment, Panel

__all__ = ["FORMATS", "GENERAL", "Figure", "charts", "efficiency", "losses", "phases", "save", "theme", "trade_off"]

FORMS = {"lines": lines.draw, "bars": bars.draw, "curves": curves.draw, "calls": profile_bars.draw}
GENERAL = {"losses": losses, "phases": phases, "efficiency": efficiency, "trade_off": trade_off}


def charts(experiment: Experiment, panels: Sequence[Panel], paper: Sequence[Any] = ()) -> list[Figure]:
    """A figure for each panel of an experiment, named after it and numbered from the second on.

    None for panels without anything to show (no profile that can be read, no epochs), and none without panels.

    Args:
        paper: the papers' own figures, drawn hollow beside what is comparable: objects with `cell` (swept column to
            value), `measure`, `value`, `hardware` and `source`.
    """
    drawn: list[Figure] = []
    for panel in panels:
        name = f"{experiment.name}-{len(drawn) + 1}" if drawn else experiment.name
        found = FORMS[experiment.view.form](panel, name, paper)
        drawn += [found] if found is not None else []
    return drawn
