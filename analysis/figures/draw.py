"""The figures of an experiment, and those that can be drawn of any runs, by name."""

from collections.abc import Sequence

from analysis.experiments import Experiment, Panel
from analysis.figures.experiment_charts import bars, curves, lines
from analysis.figures.predictions import predicted
from analysis.figures.profile_charts import all_metrics, copies, metrics, shares
from analysis.figures.setting_charts import efficiency, losses, phases
from analysis.figures.timelines import NEEDS as SAMPLES
from analysis.figures.timelines import timelines
from analysis.figures.trade_off import trade_off
from analysis.figures.vega import Figure, numbered

# What draws each form, by what follows the experiment's name in that of the figure
FORMS = {
    "lines": {"": lines},
    "bars": {"": bars},
    "curves": {"": curves},
    "calls": {"": metrics, "_all": all_metrics},
    "copies": {"": copies, "_counted": bars},
    "shares": {"": shares, "_all": all_metrics},
}
TIMELINES = "timelines"
GENERAL = {
    "losses": losses,
    "phases": phases,
    "efficiency": efficiency,
    "trade_off": trade_off,
    TIMELINES: timelines,
    "predicted": predicted,
}
# What runs must have for a general figure
NEEDS = {
    "losses": "two epochs of training, or two steps of tuning",
    TIMELINES: SAMPLES,
    "predicted": "a prediction, which needs records before it",
}


def experiment_figures(experiment: Experiment, panels: Sequence[Panel]) -> list[Figure]:
    """The figures of each panel of an experiment, named after it: one, of profiles another with all their metrics
    (`_all`), of copies another with the bytes that the runs counted (`_counted`). None for panels without anything to
    show (no profile that can be read, no epochs).
    """
    by_panel: list[list[Figure]] = []
    for panel in panels:
        name, forms = numbered(experiment.name, len(by_panel)), FORMS[experiment.view.form]
        drawn = [figure for ending, draw in forms.items() if (figure := draw(panel, name + ending)) is not None]
        by_panel += [drawn] if drawn else []
    of_runs = (
        timelines(panels[0].runs, f"{experiment.name}-{TIMELINES}") if experiment.view.timelines and panels else []
    )
    return [*(figure for drawn in by_panel for figure in drawn), *of_runs]
