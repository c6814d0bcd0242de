"""Figures of runs, as Vega-Lite with its data: those of the papers (`charts`) and those of any runs (`general`)."""

from collections.abc import Sequence
from typing import Any

from analysis.experiments import Experiment, Panel
from analysis.figures import bars, calls, curves, lines
from analysis.figures.drawing import FORMATS, Figure, save, theme

__all__ = ["FORMATS", "Figure", "charts", "save", "theme"]

FORMS = {"lines": lines.draw, "bars": bars.draw, "curves": curves.draw, "calls": calls.draw}


def charts(experiment: Experiment, panels: Sequence[Panel], paper: Sequence[Any] = ()) -> list[Figure]:
    """A figure for each panel of an experiment, named after it; none without panels.

    Args:
        paper: the papers' own figures, drawn hollow beside what is comparable: objects with `cell`, `measure`, `value`,
            `hardware` and `source`.
    """
    names = [experiment.name if not index else f"{experiment.name}-{index + 1}" for index in range(len(panels))]
    drawn = FORMS[experiment.view.form]
    return [drawn(panel, name, paper) for panel, name in zip(panels, names, strict=True)]
