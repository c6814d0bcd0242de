"""Verdicts: what the runs at hand say of each claim.

Each comparison of a claim is judged by its whole interval. The claim holds if all of its comparisons do, and does not
if one is refuted (a claim of the kind "up to": the other way round). The intervals of a claim cover together at 95 %.
Several settings that can test it (image sizes, machines, commits) are judged each by itself, never averaged; the
verdict is that of the most telling: of GPUs before CPU ranks, of full scale before shrunk runs, then the one that is
most as the papers' was, with most comparisons, and the newest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from analysis.claims.catalogue import CLAIMS
from analysis.claims.claim import Claim
from analysis.claims.measures import Known
from analysis.claims.rules import FAILS, HOLDS, UNDECIDED, UNMEASURED, Bound, Comparison
from analysis.papers.experiments import Experiment, Panel, load, panels
from analysis.runs import grouping
from analysis.runs.caveats import MARKS
from analysis.runs.load import Run
from analysis.stats import bootstrap, intervals
from multicard.records.text_table import clean

MOST = 8  # settings of an experiment that are judged
NAMED = 3  # comparisons that a line names
SAID = {
    "vision": (("dataset", "{}"), ("dataset.image_size", "{} px"), ("model", "{}"), ("epochs", "epochs={}")),
    "llm": (("model", "{}"), ("dataset", "{}"), ("template", "{}"), ("method", "{}"), ("precision", "{}")),
}


@dataclass(frozen=True)
class Figure:
    """One comparison of a claim, worked out.

    what: what is compared ("precision=fp16 against fp64"); where: the cell beside that ("gpus=4").
    estimate, low, high: in `unit`; None where there is none, `why` then says it.
    confidence: of this interval: those of a claim cover together at 95 %.
    over, under: the claim's bounds, in `unit`; infinite where there is none.
    verdict: of this comparison alone.
    runs: how many it takes; basis: what the interval is over.
    part: of a claim of several parts, which have other bounds.
    """

    what: str
    where: str
    estimate: float | None
    low: float | None
    high: float | None
    confidence: float
    unit: str
    over: float
    under: float
    verdict: str
    runs: int
    basis: str
    text: str
    why: str = ""
    part: int = 0


@dataclass(frozen=True)
class Other:
    """Another setting that tests the same claim; `apart`: what tells it from the first."""

    apart: str
    setting: str
    verdict: str
    marks: str
    figures: int


@dataclass(frozen=True)
class Verdict:
    """What the runs say of a claim.

    verdict: `holds`, `does not hold`, `undecided` or `not measured`.
    figures: of the most telling setting; empty where nothing was measured.
    asked: comparisons that the papers' cells would give there.
    n: runs compared; marks: of all of them.
    why: what decided it, or why nothing could.
    setting: what was measured, and where; apart: what tells it from others of the same experiment.
    unlike: what the experiment chooses for all cells and these runs had otherwise.
    lost: cells of that setting of which no run ended ok, and how they ended; no figure is of them.
    command: what would measure it; None where it was.
    others: other settings, judged by themselves; unjudged: how many more there are.
    """

    claim: Claim
    verdict: str
    figures: tuple[Figure, ...] = ()
    asked: int = 0
    n: int = 0
    marks: str = ""
    why: str = ""
    setting: str = ""
    apart: str = ""
    unlike: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    command: str | None = None
    others: tuple[Other, ...] = ()
    unjudged: int = 0

    @property
    def of_gpus(self) -> bool:
        """Whether it says something of the papers' claim: of runs on GPUs at full scale, each with its own."""
        return bool(self.n) and not {mark.sign for mark in MARKS if mark.column in NOT_THE_PAPERS} & {*self.marks}


NOT_THE_PAPERS = ("oversubscribed", "cpu_ranks", "smoke")


@dataclass(frozen=True)
class _Candidate:
    panel: Panel
    comparisons: list[Comparison]

    @property
    def measured(self) -> list[Comparison]:
        return [one for one in self.comparisons if one.runs]

    @property
    def runs(self) -> list[Run]:
        """Each once."""
        return list({id(run): run for one in self.measured for run in one.runs}.values())


def judge(runs: Sequence[Run], mix: bool = False, claims: Sequence[Claim] = CLAIMS) -> list[Verdict]:
    """The verdict on each claim, in their order.

    Args:
        mix: let runs of several commits and machines stand in one cell.
    """
    found = {name: panels(load(name), runs, mix) for name in dict.fromkeys(claim.experiment for claim in claims)}
    known = Known()
    return [_claim(claim, found[claim.experiment], known) for claim in claims]


def _claim(claim: Claim, found: Sequence[Panel], known: Known) -> Verdict:
    candidates = [_Candidate(panel, claim.rule(panel)) for panel in found]
    candidates = sorted((one for one in candidates if one.measured), key=_telling, reverse=True)
    judged = [_judged(claim, one, known) for one in candidates[:MOST]]
    judged.sort(key=lambda verdict: verdict.verdict == UNMEASURED)  # stable: what could not be read comes last
    if not judged:
        return Verdict(claim, UNMEASURED, why="no runs of these cells", command=load(claim.experiment).command)
    first, *rest = judged
    others = tuple(Other(one.apart, one.setting, one.verdict, one.marks, len(one.figures)) for one in rest if one.n)
    return replace(first, others=others, unjudged=max(0, len(candidates) - MOST))


def _telling(candidate: _Candidate) -> tuple[int, int, int, str]:
    """The greater, the more a setting tells."""
    runs = candidate.runs
    real = sum(not any(run[column] for run in runs) for column in NOT_THE_PAPERS)
    like = -len(_unlike(candidate.panel.experiment, runs[0]))
    return real, like, len(candidate.measured), max(str(run["started_at"] or "") for run in runs)


def _judged(claim: Claim, candidate: _Candidate, known: Known) -> Verdict:
    measured, runs = candidate.measured, candidate.runs
    confidence = intervals.bonferroni(sum(one.stands_for for one in measured))
    figures = tuple(replace(_figure(one, known, confidence), part=one.part) for one in measured)
    asked, parts = len(candidate.comparisons), {one.part for one in candidate.comparisons}
    verdict = _together(claim, figures, asked, len(parts))
    experiment = candidate.panel.experiment
    lost = _lost(candidate.panel)
    why = _why(verdict, figures, asked, lost)
    if verdict == UNMEASURED:
        return Verdict(claim, verdict, asked=asked, why=why, lost=lost, command=experiment.command)
    return Verdict(
        claim,
        verdict,
        figures,
        asked,
        len(runs),
        "".join(mark.sign for mark in MARKS if any(run[mark.column] for run in runs)),
        why,
        _setting(experiment, runs),
        clean(candidate.panel.apart),
        tuple(_unlike(experiment, runs[0])),
        lost,
    )


def _together(claim: Claim, figures: Sequence[Figure], asked: int, parts: int) -> str:
    known = [one for one in figures if one.verdict != UNMEASURED]
    found = {one.verdict for one in known}
    if not found:
        return UNMEASURED
    decides, all_of = (HOLDS, FAILS) if claim.reached else (FAILS, HOLDS)
    if decides in found:
        return decides
    lacking = (claim.whole and len(known) < asked) or len({one.part for one in known}) < parts
    return UNDECIDED if found != {all_of} or lacking else all_of


def _figure(one: Comparison, known: Known, confidence: float) -> Figure:
    bound, count = one.bound, len(one.runs)
    if one.settled is not None:
        verdict, text = one.settled
        return Figure(one.what, one.where, None, None, None, confidence, "", *_ends(bound), verdict, count, "", text)
    assert one.of is not None
    unit = one.unit.name
    try:
        found = one.of(known, confidence).mapped(one.unit.of)
    except ValueError as error:
        none = (None, None, None, confidence, unit)
        return Figure(one.what, one.where, *none, *_ends(bound), UNMEASURED, count, "", "-", str(error))
    shown = one.unit.form.format(one.unit.show(found.estimate))
    why = "" if found.low is not None else _bare(found.basis)
    if found.low is not None and found.high is not None:
        shown += "" if found.low == found.high else f" ({one.unit.show(found.low)} to {one.unit.show(found.high)})"
    verdict = bound.verdict(found.low, found.high)
    values = (found.estimate, found.low, found.high, confidence, unit)
    return Figure(one.what, one.where, *values, *_ends(bound), verdict, count, found.basis, shown, why)


def _bare(basis: str) -> str:
    """Why there is no interval."""
    few = f"fewer than {bootstrap.MIN_SAMPLES} " * (basis in ("steps", "epochs"))
    return f"no interval of {few}{basis}"


def _ends(bound: Bound) -> tuple[float, float]:
    return bound.over, bound.under


def _why(verdict: str, figures: Sequence[Figure], asked: int, lost: Sequence[str]) -> str:
    """What decided it, how much of the claim was measured, and what did not end well."""
    told = []
    counts = {kind: [one for one in figures if one.verdict == kind] for kind in (FAILS, UNDECIDED, UNMEASURED)}
    if verdict == FAILS:
        told.append(f"refuted by {_named(counts[FAILS])}")
    if verdict == UNDECIDED and counts[UNDECIDED]:
        bare = [one.why for one in counts[UNDECIDED] if one.why]
        reasons = f" ({bare[0]}; repeat with seed=0,1,2)" if bare else ""
        told.append(f"undecided: {_named(counts[UNDECIDED])}{reasons}")
    measured = len(figures) - len(counts[UNMEASURED])
    if measured:
        told.append(f"{measured} of {asked} comparisons")
    if counts[UNMEASURED]:
        told.append(counts[UNMEASURED][0].why)
    if lost:
        told.append(f"not ok: {', '.join(lost[:NAMED])}" + f" and {len(lost) - NAMED} more" * (len(lost) > NAMED))
    return clean("; ".join(told))


def _lost(panel: Panel) -> tuple[str, ...]:
    found = [(cell, runs) for cell, runs in panel.cells.items() if all(run["status"] != "ok" for run in runs)]
    return tuple(clean(f"{grouping.label(cell, [key for key, _ in cell])} {runs[0]['status']}") for cell, runs in found)


def _named(figures: Sequence[Figure]) -> str:
    named = labels(figures)
    rest = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
    return ", ".join(named[:NAMED]) + rest


def labels(figures: Sequence[Figure]) -> list[str]:
    """What tells figures from one another: the cells, what is compared, or both."""
    whats, wheres = ({getattr(one, name) for one in figures} for name in ("what", "where"))
    if len(wheres) == len(figures):
        return [one.where or one.what for one in figures]
    if len(whats) == len(figures):
        return [one.what for one in figures]
    return [f"{one.where}, {one.what}" for one in figures]


def _setting(experiment: Experiment, runs: Sequence[Run]) -> str:
    """What was measured, and where."""
    first = runs[0]
    told = [
        form.format(grouping.typed(first[column]))
        for column, form in SAID[experiment.kind]
        if column not in experiment.swept and first[column] is not None
    ]
    where = sorted({f"{run['hardware'] or '-'}, {grouping.commit(run)}" for run in runs})
    return clean(f"{', '.join(told)} on {' and '.join(where)}")


def _unlike(experiment: Experiment, run: Run) -> list[str]:
    """What the experiment chooses for all cells that a run has otherwise."""
    had = {group: run[group] if run[group] is not None else run[f"{group}.name"] for group in experiment.chosen}
    return [f"{group}={option}" for group, option in experiment.chosen.items() if had[group] != option]
