"""Draw, by name, the figures of an experiment or a general figure, and write their files."""

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
from ..own_panels import own_panels
from ..runs.load import Run
from ..stats.between_runs import RepeatedRuns
from . import ALL
from .effect_charts import effects_alone
from .experiment_charts import by_measure, copies, metrics
from .setting_charts import efficiency, losses, phases
from .timelines import NEEDS as SAMPLES
from .timelines import timelines
from .trade_off_chart import trade_off
from .vega import Chart, file_format, numbered, save

# These functions draw special forms of a view. `by_measure` draws lines, bars and curves.
DRAW_BY_FORM = {"calls": metrics, "shares": metrics, "copies": copies}
# This suffix names the second figure of copies, which shows the bytes that the runs counted.
COUNTED_SUFFIX = "_counted"
TIMELINES = "timelines"
DRAW_GENERAL = {
    "effects": effects_alone,
    "losses": losses,
    "phases": phases,
    "efficiency": efficiency,
    "trade_off": trade_off,
    TIMELINES: timelines,
}
# What a general figure needs from the runs.
NEEDS_BY_FIGURE = {
    "effects": Message(
        "figure.needs-one-difference", "another that differs from it in one setting alone"
    ),
    "losses": Message("figure.needs-curve", "two epochs of training, or two steps of tuning"),
    TIMELINES: SAMPLES,
}
NEEDS_BY_DEFAULT = Message("figure.needs-its-figures", "what it shows")


def experiment_figures(experiment: Experiment, panels: Sequence[Panel]) -> list[Chart]:
    """Draw each panel of an experiment, in figures that are named after it.

    A panel of copies has a second figure, with the bytes that the runs counted (`_counted`). Panels
    with nothing to show (no profile that can be read, no epochs) are left out.
    """
    by_panel: list[list[Chart]] = []
    for panel in panels:
        name = numbered(experiment.name, len(by_panel))
        form = experiment.view.form
        figures_of_panel = [DRAW_BY_FORM.get(form, by_measure)(panel, name)]
        if form == "copies":
            figures_of_panel.append(by_measure(panel, name + COUNTED_SUFFIX))
        drawn_figures = [figure for figure in figures_of_panel if figure is not None]
        if drawn_figures:
            by_panel.append(drawn_figures)
    has_timelines = experiment.view.timelines and panels
    timeline_figures = (
        timelines(panels[0].runs, f"{experiment.name}-{TIMELINES}") if has_timelines else []
    )
    return [*chain.from_iterable(by_panel), *timeline_figures]


def write(
    name: str,
    runs: Sequence[Run],
    out: Path,
    mix: bool = False,
    whole: bool = False,
    folders: Sequence[Path] = (),
) -> list[str]:
    """Write the figures of a name.

    Args:
        folders: the folders of the runs, as the user named them.
        out: a file, whose ending sets the format, or a folder for SVG files. If there are several
            figures, each one's name is added to the file's.
        whole: draw settings with few of an experiment's cells too.

    Returns:
        A line for each figure, one for each experiment that was not measured, and the legend.

    Raises:
        ValueError: there is no such figure or format, or nothing to draw.
    """
    is_file = bool(out.suffix) and not out.is_dir()
    if is_file or out == STDOUT:
        file_format(out)
    figures, unmeasured = make(name, runs, mix, whole, folders)
    lines = []
    for figure in figures:
        suffix = f"-{figure.name}" if len(figures) > 1 else ""
        path = out.with_stem(out.stem + suffix) if is_file else out / f"{figure.name}.svg"
        save(figure, path)
        lines.append(_written_line(figure, path))
    return [
        *lines,
        *unmeasured,
        *limits.legend(chain.from_iterable(figure.limits for figure in figures)),
    ]


def _written_line(figure: Chart, path: Path) -> Message:
    title = clean(figure.title)
    marks = f" [{figure.marks}]" if figure.marks else ""
    text = f"{path}: {title}{marks}"
    return Message("figure.written", text, file=str(path), title=title, marks=figure.marks)


def known_names() -> list[str]:
    """Return the names of all figures."""
    return [ALL, *experiments.names(), *DRAW_GENERAL]


def make(
    name: str,
    runs: Sequence[Run],
    mix: bool = False,
    whole: bool = False,
    folders: Sequence[Path] = (),
) -> tuple[list[Chart], list[str]]:
    """Draw the figures of a name. One experiment's figure shows its own runs (`own_panels`).

    Returns:
        The figures, and a line for each experiment that was not measured.

    Raises:
        ValueError: there is no such figure, or nothing to draw.
    """
    known = known_names()
    if name not in known:
        text = f"no figure {name}; there are {', '.join(known)}"
        raise Refusal("figure.unknown", text, figure=name, known=known)
    figures = list[Chart]()
    unmeasured = list[str]()
    if name in DRAW_GENERAL:
        figures = DRAW_GENERAL[name](runs)
        if not figures:
            needs = NEEDS_BY_FIGURE.get(name, NEEDS_BY_DEFAULT)
            text = f"{name}: none of {count(len(runs), 'run')} has {needs}"
            raise Refusal("figure.nothing-to-show", text, figure=name, runs=len(runs), needs=needs)
    else:
        repeated = RepeatedRuns(runs)
        for experiment in map(
            experiments.load_experiment, experiments.names() if name == ALL else [name]
        ):
            panels = experiments.panels(experiment, runs, mix, repeated)
            if name != ALL and not whole:
                panels = own_panels("figure", experiment, panels, folders)
            drawn_figures = experiment_figures(
                experiment, experiments.fullest(panels)[0] if panels and not whole else panels
            )
            figures += drawn_figures
            if not drawn_figures:
                unmeasured.append(_why_not_drawn(experiment, panels))
            elif experiment.view.timelines and TIMELINES not in drawn_figures[-1].name:
                text = f"{experiment.name}-{TIMELINES}: no run has {SAMPLES}"
                unmeasured.append(
                    Message("figure.no-timelines", text, experiment=experiment.name, needs=SAMPLES)
                )
        if not figures:
            reason = unmeasured[0]
            others = len(unmeasured) - 1
            others_note = f" (nor any of {count(others, 'other')})" if others else ""
            raise Refusal("figure.none", f"{reason}{others_note}", reason=reason, others=others)
    return figures, unmeasured


def _why_not_drawn(experiment: Experiment, panels: Sequence[Panel]) -> Message:
    name = experiment.name
    if panels and experiment.view.form == "curves":
        command = f"{typed('-m analysis')} table {name}"
        text = f"{name}: a curve needs two epochs; runs of one epoch are in `{command}`"
        return Message("figure.one-epoch", text, experiment=name, command=command)
    text = f"{name}: not measured; this measures it: `{experiment.command}`"
    return Message(
        "figure.experiment-not-measured", text, experiment=name, command=experiment.command
    )
