"""`figure`: the papers' figures and tables, and general ones, drawn from one's own runs, as files.

NAME is one of `conf/experiment/`, `all` of them, or of any runs: `losses` over epochs or steps, `phases` of a step,
`efficiency` by GPUs, `trade_off` of time against accuracy and memory. Further settings, machines and commits that were
measured are files of their own: NAME-2, NAME-3 and so on.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.papers import experiments, printed
from analysis.runs.caveats import legend
from analysis.runs.load import Run
from multicard.records.text_table import clean

if TYPE_CHECKING:
    from analysis.figures import Figure

ALL = "all"
OUT = Path("outputs") / "figures"


def draw(
    name: str, runs: Sequence[Run], out: Path, formats: Sequence[str], mix: bool = False, whole: bool = False
) -> list[str]:
    """Write the figures of that name; a line for each, one for each experiment that was not measured, and the marks.

    Args:
        mix: let runs of several commits and machines stand in one figure of an experiment.
        whole: draw settings with few of an experiment's cells too.

    Raises:
        ValueError: no such figure or format, or nothing to draw.
    """
    from analysis.figures import FORMATS, GENERAL, charts  # a second

    unknown = [one for one in formats if one not in FORMATS]
    if unknown:
        raise ValueError(f"--format: no {', '.join(unknown)}; there are {', '.join(FORMATS)}")
    names = experiments.names() if name == ALL else [name]
    if name not in (ALL, *experiments.names(), *GENERAL):
        raise ValueError(f"no figure {name}; there are {ALL}, {', '.join([*experiments.names(), *GENERAL])}")
    if name in GENERAL:
        drawn = GENERAL[name](runs)
        if not drawn:
            raise ValueError(f"{name}: none of {len(runs)} runs has what it shows")
        return [*_written(drawn, out, formats), *legend(figure.marks for figure in drawn)]
    drawn, absent = [], []
    for experiment in map(experiments.load, names):
        panels = experiments.panels(experiment, runs, mix)
        shown = experiments.fullest(panels)[0] if panels and not whole else panels
        found = charts(experiment, shown, printed.figures(experiment.name))
        drawn += found
        absent += [] if found else [f"{experiment.name}: not measured: {experiment.command}"]
    if not drawn:
        rest = f" (nor any of {len(absent) - 1} others)" if len(absent) > 1 else ""
        raise ValueError(absent[0] + rest)
    return [*_written(drawn, out, formats), *absent, *legend(figure.marks for figure in drawn)]


def _written(drawn: Sequence["Figure"], out: Path, formats: Sequence[str]) -> list[str]:
    from analysis.figures import save

    lines = []
    for figure in drawn:
        paths = [out / f"{figure.name}.{kind}" for kind in formats]
        for path in paths:
            save(figure, path)
        marked = f" [{figure.marks}]" if figure.marks else ""
        lines.append(f"{' '.join(map(str, paths))}: {clean(figure.title)}{marked}")
    return lines
