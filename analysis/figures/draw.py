"""The figures of an experiment, and those that can be drawn of any runs, by name;
and their files.
"""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from multicard.config.job import count
from multicard.messages import Message, Refusal, typed
from multicard.records import limits
from multicard.records.output import STDOUT
from multicard.records.text_table import clean

from .. import experiments
from ..experiments import Experiment, Panel
from ..runs.load import Run
from ..stats.between_runs import RepeatedRuns
from . import ALL
from .effect_charts import effects_alone
from .experiment_charts import by_measure, copies, metrics
from .setting_charts import efficiency, losses, phases, trade_off
from .timelines import NEEDS as SAMPLES
from .timelines import timelines
from .vega import Chart, file_format, numbered, save

# The functions that draw special forms of a view; `by_measure` draws lines, bars and curves
FORMS = {"calls": metrics, "shares": metrics, "copies": copies}
# Ends the name of the second figure of copies, with the bytes that the runs counted
COUNTED = "_counted"
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
    "effects": Message(
        "figure.needs-one-difference", "another that differs from it in one setting alone"
    ),
    "losses": Message("figure.needs-curve", "two epochs of training, or two steps of tuning"),
    TIMELINES: SAMPLES,
}
NEEDS_ITS_FIGURES = Message("figure.needs-its-figures", "what it shows")


def experiment_figures(experiment: Experiment, panels: Sequence[Panel]) -> list[Chart]:
    """Draw each panel of an experiment, in figures that are named after it.

    A panel of copies has a second figure, with the bytes that the runs counted (`_counted`). Panels
    with nothing to show (no profile that can be read, no epochs) are left out.
    """
    by_panel: list[list[Chart]] = []
    for panel in panels:
        name = numbered(experiment.name, len(by_panel))
        form = experiment.view.form
        made = [FORMS.get(form, by_measure)(panel, name)]
        if form == "copies":
            made.append(by_measure(panel, name + COUNTED))
        drawn = [figure for figure in made if figure is not None]
        if drawn:
            by_panel.append(drawn)
    has_timelines = experiment.view.timelines and panels
    of_runs = timelines(panels[0].runs, f"{experiment.name}-{TIMELINES}") if has_timelines else []
    return [*chain.from_iterable(by_panel), *of_runs]


def write(
    name: str, runs: Sequence[Run], out: Path, mix: bool = False, whole: bool = False
) -> list[str]:
    """Write the figures of a name; a line for each, one for each experiment that was not measured,
    and the legend.

    Args:
        out: the file, in the format of its ending; of several figures each has its name added. A
            folder: SVG, by name.
        whole: draw settings with few of an experiment's cells too.

    Raises:
        ValueError: no such figure or format, or nothing to draw.
    """
    is_file = bool(out.suffix) and not out.is_dir()
    if is_file or out == STDOUT:
        file_format(out)
    figures, unmeasured = make(name, runs, mix, whole)
    lines = []
    for figure in figures:
        several = f"-{figure.name}" if len(figures) > 1 else ""
        path = out.with_stem(out.stem + several) if is_file else out / f"{figure.name}.svg"
        save(figure, path)
        lines.append(_written(figure, path))
    return [
        *lines,
        *unmeasured,
        *limits.legend(chain.from_iterable(figure.limits for figure in figures)),
    ]


def _written(figure: Chart, path: Path) -> Message:
    title = clean(figure.title)
    marks = f" [{figure.marks}]" if figure.marks else ""
    sentence = f"{path}: {title}{marks}"
    return Message("figure.written", sentence, file=str(path), title=title, marks=figure.marks)


def make(
    name: str, runs: Sequence[Run], mix: bool = False, whole: bool = False
) -> tuple[list[Chart], list[str]]:
    """The figures of a name, and a line for each experiment that was not measured;
    raises ValueError without any.
    """
    names = [*experiments.names(), *GENERAL]
    if name not in (ALL, *names):
        there_are = f"no figure {name}; there are {ALL}, {', '.join(names)}"
        raise Refusal("figure.unknown", there_are, figure=name, known=[ALL, *names])
    figures = list[Chart]()
    unmeasured = list[str]()
    if name in GENERAL:
        figures = GENERAL[name](runs)
        if not figures:
            needs = NEEDS.get(name, NEEDS_ITS_FIGURES)
            none_has = f"{name}: none of {count(len(runs), 'run')} has {needs}"
            raise Refusal(
                "figure.nothing-to-show", none_has, figure=name, runs=len(runs), needs=needs
            )
    else:
        repeated = RepeatedRuns(runs)
        for experiment in map(experiments.load, experiments.names() if name == ALL else [name]):
            panels = experiments.panels(experiment, runs, mix, repeated)
            drawn = experiment_figures(
                experiment, experiments.fullest(panels)[0] if panels and not whole else panels
            )
            figures += drawn
            if not drawn:
                unmeasured.append(_why_not_drawn(experiment, panels))
            elif experiment.view.timelines and TIMELINES not in drawn[-1].name:
                no_run_has = f"{experiment.name}-{TIMELINES}: no run has {SAMPLES}"
                unmeasured.append(
                    Message(
                        "figure.no-timelines", no_run_has, experiment=experiment.name, needs=SAMPLES
                    )
                )
        if not figures:
            reason = unmeasured[0]
            others = len(unmeasured) - 1
            rest = f" (nor any of {count(others, 'other')})" if others else ""
            raise Refusal("figure.none", f"{reason}{rest}", reason=reason, others=others)
    return figures, unmeasured


def _why_not_drawn(experiment: Experiment, panels: Sequence[Panel]) -> Message:
    name = experiment.name
    if panels and experiment.view.form == "curves":
        shown = f"{typed('-m analysis')} table {name}"
        needs = f"{name}: a curve needs two epochs; runs of one epoch are in `{shown}`"
        return Message("figure.one-epoch", needs, experiment=name, command=shown)
    measured_by = f"{name}: not measured; this measures it: `{experiment.command}`"
    return Message(
        "figure.experiment-not-measured", measured_by, experiment=name, command=experiment.command
    )
