"""What the report takes from the rest of the analysis: its tables, figures and verdicts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis import claims
from analysis.claims import render as words
from analysis.claims.verdicts import labels
from analysis.commands import table
from analysis.figures import draw as figures
from analysis.figures import vega
from analysis.figures.vega import Figure
from analysis.papers import printed
from analysis.papers.experiments import Experiment, Panel
from analysis.report.blocks import Claim
from analysis.runs.load import Run

TONES = {"holds": "good", "does not hold": "bad"}


@dataclass(frozen=True)
class Texts:
    """A table as a person reads it."""

    title: str
    headings: list[str]
    rows: list[list[str]]
    notes: list[str]


def tables_of(experiment: Experiment, panels: Sequence[Panel]) -> list[Texts]:
    return [
        Texts(one.title, one.headings, [[text[name] for name in one.headings] for text in one.texts], one.notes)
        for one in table.tables(experiment, panels)
    ]


def charts_of(experiment: Experiment, panels: Sequence[Panel]) -> list[Figure]:
    return figures.experiment_figures(experiment, panels, printed.figures(experiment.name))


def overall(runs: Sequence[Run]) -> Mapping[str, Sequence[Figure]]:
    """Figures of any runs, by the subsection that they stand in; several commits and machines are drawn apart."""
    return {
        "scaling": [*figures.efficiency(runs), *figures.trade_off(runs)],
        "phases": figures.phases(runs),
        "curves": figures.losses(runs),
    }


def judged(runs: Sequence[Run], mix: bool) -> tuple[list[Claim], list[str]]:
    """The claims of the papers, and how many of them hold."""
    verdicts = claims.judge(runs, mix)
    return [_claim(one) for one in verdicts], words.summary(verdicts)


def theme(name: str) -> dict[str, Any]:
    return vega.theme(name)


def _claim(one: claims.Verdict) -> Claim:
    """A verdict; where the runs are not of the papers' GPUs it has no colour, for it says nothing of the papers."""
    tone = "none" if not one.figures else TONES.get(one.verdict, "open") if one.of_gpus else "open"
    whats = {figure.what for figure in one.figures}
    alone = len(whats) == 1 and bool(one.figures) and bool(one.figures[0].where)
    shown = [
        (f"{one.figures[0].what}, {label}" if alone else label, figure.text)
        for figure, label in zip(one.figures, labels(one.figures), strict=True)
    ]
    beside = words.measured(one) if one.figures else one.why
    source = f"{one.claim.source}; {one.claim.note}" if one.claim.note else one.claim.source
    commands = [one.command] if one.command is not None else []
    return Claim(one.claim.says, one.verdict, tone, shown, beside, one.claim.printed, source, one.marks, commands)
