"""`figure`: the papers' figures and tables, and general ones, drawn from one's own runs, as files.

NAME is one of `conf/experiment/`, `all` of them, or of any runs: `losses` over epochs or steps, `phases` of a step,
`efficiency` by GPUs, `trade_off` of time against accuracy and memory, `timelines` of the GPUs. Further settings,
machines and commits that were measured are files of their own: NAME-2, NAME-3 and so on.
"""

from collections.abc import Sequence
from pathlib import Path

from analysis import experiments
from analysis.experiments import Experiment, Panel
from analysis.formatting import counted
from analysis.runs.caveats import legend
from analysis.runs.load import Run
from analysis.stats.between_runs import RepeatedRuns
from multicard.records.text_table import clean

ALL = "all"
OUT = Path("outputs") / "figures"


def write(
    name: str, runs: Sequence[Run], out: Path, formats: Sequence[str], mix: bool = False, whole: bool = False
) -> list[str]:
    """Write the figures of a name; a line for each, one for each experiment that was not measured, and the legend.

    Args:
        mix: let runs of several commits and machines stand in one figure of an experiment.
        whole: draw settings with few of an experiment's cells too.

    Raises:
        ValueError: no such figure or format, or nothing to draw.
    """
    from analysis.figures.draw import GENERAL, NEEDS, TIMELINES, experiment_figures  # a second
    from analysis.figures.vega import FORMATS, save

    unknown = [suffix for suffix in formats if suffix not in FORMATS]
    if unknown:
        raise ValueError(f"--format: no {', '.join(unknown)}; there are {', '.join(FORMATS)}")
    names = [*experiments.names(), *GENERAL]
    if name not in (ALL, *names):
        raise ValueError(f"no figure {name}; there are {ALL}, {', '.join(names)}")
    figures, unmeasured = [], []
    if name in GENERAL:
        figures = GENERAL[name](runs)
        if not figures:
            raise ValueError(f"{name}: of {counted(len(runs), 'run')} none has {NEEDS.get(name, 'what it shows')}")
    else:
        repeated = RepeatedRuns(runs)
        for experiment in map(experiments.load, experiments.names() if name == ALL else [name]):
            panels = experiments.panels(experiment, runs, mix, repeated)
            shown = experiments.fullest(panels)[0] if panels and not whole else panels
            drawn = experiment_figures(experiment, shown)
            figures += drawn
            unmeasured += [] if drawn else [f"{experiment.name}: {_lacking(experiment, panels)}"]
            lacks = drawn and experiment.view.timelines and TIMELINES not in drawn[-1].name
            unmeasured += [f"{experiment.name}-{TIMELINES}: no run has {NEEDS[TIMELINES]}"] if lacks else []
        if not figures:
            rest = f" (nor any of {counted(len(unmeasured) - 1, 'other')})" if len(unmeasured) > 1 else ""
            raise ValueError(unmeasured[0] + rest)
    lines = []
    for figure in figures:
        paths = [out / f"{figure.name}.{suffix}" for suffix in formats]
        for path in paths:
            save(figure, path)
        lines.append(f"{' '.join(map(str, paths))}: {clean(figure.title)}" + f" [{figure.marks}]" * bool(figure.marks))
    return [*lines, *unmeasured, *legend(figure.marks for figure in figures)]


def _lacking(experiment: Experiment, panels: Sequence[Panel]) -> str:
    """Why an experiment has no figure."""
    if panels and experiment.view.form == "curves":
        return f"a curve needs two epochs; those of one are in python -m analysis table {experiment.name}"
    return f"not measured: {experiment.command}"
