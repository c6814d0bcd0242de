"""The figures of an experiment, and those that can be drawn of any runs, by name; and their files."""

from collections.abc import Sequence
from pathlib import Path

from analysis import experiments
from analysis.experiments import Experiment, Panel
from analysis.figures import ALL
from analysis.figures.effect_charts import effects_alone
from analysis.figures.experiment_charts import by_measure, copies, metrics
from analysis.figures.setting_charts import efficiency, losses, phases, trade_off
from analysis.figures.timelines import NEEDS as SAMPLES
from analysis.figures.timelines import timelines
from analysis.figures.vega import FORMATS, Figure, numbered, save
from analysis.runs.load import Run
from analysis.stats.between_runs import RepeatedRuns
from multicard.config.job import count
from multicard.messages import typed
from multicard.records import limits
from multicard.records.output import STDOUT
from multicard.records.text_table import clean

# What draws each form of a view but lines, bars and curves
FORMS = {"calls": metrics, "shares": metrics, "copies": copies}
COUNTED = "_counted"  # ends the name of a second figure beside copies: the bytes that the runs counted
TIMELINES = "timelines"
GENERAL = {
    "effects": effects_alone,
    "losses": losses,
    "phases": phases,
    "efficiency": efficiency,
    "trade_off": trade_off,
    TIMELINES: timelines,
}
# What runs must have for a general figure
NEEDS = {
    "effects": "another that differs from it in one setting alone",
    "losses": "two epochs of training, or two steps of tuning",
    TIMELINES: SAMPLES,
}


def experiment_figures(experiment: Experiment, panels: Sequence[Panel]) -> list[Figure]:
    """The figures of each panel of an experiment, named after it: one, of copies another with the bytes that the runs
    counted (`_counted`). None for panels without anything to show (no profile that can be read, no epochs)."""
    by_panel: list[list[Figure]] = []
    for panel in panels:
        name, form = numbered(experiment.name, len(by_panel)), experiment.view.form
        made = [FORMS.get(form, by_measure)(panel, name)]
        made += [by_measure(panel, name + COUNTED)] if form == "copies" else []
        drawn = [figure for figure in made if figure is not None]
        by_panel += [drawn] if drawn else []
    has_timelines = experiment.view.timelines and panels
    of_runs = timelines(panels[0].runs, f"{experiment.name}-{TIMELINES}") if has_timelines else []
    return [*(figure for drawn in by_panel for figure in drawn), *of_runs]


def write(name: str, runs: Sequence[Run], out: Path, mix: bool = False, whole: bool = False) -> list[str]:
    """Write the figures of a name; a line for each, one for each experiment that was not measured, and the legend.

    Args:
        out: the file, in the format of its ending; of several figures each has its name added. A folder: SVG, by name.
        whole: draw settings with few of an experiment's cells too.

    Raises:
        ValueError: no such figure or format, or nothing to draw.
    """
    is_file = bool(out.suffix) and not out.is_dir()
    if out == STDOUT or (is_file and out.suffix[1:] not in FORMATS):
        raise ValueError(f"--out {out}: a figure is written as .{', .'.join(FORMATS)}")
    figures, unmeasured = make(name, runs, mix, whole)
    lines = []
    for figure in figures:
        several = f"-{figure.name}" * (len(figures) > 1)
        path = out.with_stem(out.stem + several) if is_file else out / f"{figure.name}.svg"
        save(figure, path)
        lines.append(f"{path}: {clean(figure.title)}" + f" [{limits.signs(figure.limits)}]" * bool(figure.limits))
    return [*lines, *unmeasured, *limits.legend(limit for figure in figures for limit in figure.limits)]


def make(name: str, runs: Sequence[Run], mix: bool = False, whole: bool = False) -> tuple[list[Figure], list[str]]:
    """The figures of a name, and a line for each experiment that was not measured; raises ValueError without any."""
    names = [*experiments.names(), *GENERAL]
    if name not in (ALL, *names):
        raise ValueError(f"no figure {name}; there are {ALL}, {', '.join(names)}")
    figures, unmeasured = list[Figure](), list[str]()
    if name in GENERAL:
        figures = GENERAL[name](runs)
        if not figures:
            raise ValueError(f"{name}: of {count(len(runs), 'run')} none has {NEEDS.get(name, 'what it shows')}")
    else:
        repeated = RepeatedRuns(runs)
        for experiment in map(experiments.load, experiments.names() if name == ALL else [name]):
            panels = experiments.panels(experiment, runs, mix, repeated)
            drawn = experiment_figures(experiment, experiments.fullest(panels)[0] if panels and not whole else panels)
            figures += drawn
            is_short = panels and experiment.view.form == "curves"  # of one epoch
            needs = f"a curve needs two epochs; those of one are in {typed('-m analysis')} table {experiment.name}"
            why = needs if is_short else f"not measured: {experiment.command}"
            unmeasured += [] if drawn else [f"{experiment.name}: {why}"]
            lacks = drawn and experiment.view.timelines and TIMELINES not in drawn[-1].name
            unmeasured += [f"{experiment.name}-{TIMELINES}: no run has {NEEDS[TIMELINES]}"] if lacks else []
        if not figures:
            rest = f" (nor any of {count(len(unmeasured) - 1, 'other')})" if len(unmeasured) > 1 else ""
            raise ValueError(unmeasured[0] + rest)
    return figures, unmeasured
