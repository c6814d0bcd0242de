"""The papers' claims, and verdicts on them from the runs at hand.

Each comparison of a claim is judged by its whole interval, and the intervals of a claim together cover at 95 %. The
claim holds if all of its comparisons do, and does not if one is refuted (an "up to": the other way round).

Where several settings can test a claim (image sizes, machines, commits), each is judged by itself and never averaged.
The verdict is that of the most telling: GPUs before CPU ranks, full scale before smoke, then the setting that is most
like the paper's, the one with the most comparisons, and the newest.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from analysis.claims.comparison import FAILS, HOLDS, UNDECIDED, UNMEASURED, Comparison, Readings
from analysis.claims.rules import AnyRule
from analysis.experiments import Experiment, Panel, load, panels
from analysis.runs import grouping
from analysis.runs.columns import MARKS
from analysis.runs.kinds import KINDS
from analysis.runs.load import Run
from analysis.stats import intervals
from analysis.stats.between_runs import REMEDY
from multicard.config.job import count
from multicard.records.comparable import DOUBTFUL
from multicard.records.text_table import clean, first_few

MAX_NAMED = 3  # comparisons, or cells, that a line names
NOT_THE_PAPERS = ("oversubscribed", "cpu_ranks", "smoke")  # marks of runs that say nothing of the papers' GPUs
FILES = [Path(__file__).with_name(f"{kind}_claims.yaml") for kind in ("vision", "tuning")]
PAPERS = {2503: "2503.15252", 2505: "2505.22905"}


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sentence of a paper that runs can test.

    name: as `--only` takes it. section: the heading in the file.
    says: the sentence.
    places: its table, figure or section by key of PAPERS; empty where neither paper has it.
    printed: the papers' own figures; empty where the sentence has them all.
    experiment: of conf/experiment, whose cells test the claim.
    needs: which comparisons must hold: `all` that were measured, `one` of them (an "up to"), or all of `every_cell`.
    counted: True if it follows from what a program does and not from a machine, so that CPU ranks and shrunk runs
        decide it as GPUs do.
    note: a caveat that is printed with the claim.
    """

    name: str
    section: str
    says: str
    experiment: str
    rules: list[AnyRule]
    places: dict[Literal[2503, 2505], str] = {}
    printed: str = ""
    needs: Literal["all", "one", "every_cell"] = "all"
    note: str = ""
    counted: bool = False

    @property
    def test(self) -> str:
        least = {"all": "", "one": " (in one cell)", "every_cell": " (all of them)"}[self.needs]
        return "; ".join(rule.text for rule in self.rules) + least

    @property
    def cited(self) -> dict[str, str]:
        return {PAPERS[paper]: place for paper, place in self.places.items()}

    @property
    def source(self) -> str:
        return "; ".join(f"arXiv {paper}, {place}" for paper, place in self.cited.items()) or "in neither paper"


def load_claims(content: bytes) -> tuple[Claim, ...]:
    """Claims of a YAML file, with the keys under `all` of their section; rules are contrasts where they do not say.

    Raises:
        msgspec.ValidationError: an unknown key or rule, or a value of the wrong type, with its place in the file.
    """
    claims = []
    for section, written in msgspec.yaml.decode(content).items():
        common = written.pop("all", {})
        for name, claim in written.items():
            rules = claim["rules"] if isinstance(claim["rules"], list) else [claim["rules"]]
            own = {"name": name, "section": section, "rules": [{"rule": "contrast"} | rule for rule in rules]}
            claims.append(common | claim | own)
    return msgspec.convert(claims, tuple[Claim, ...])


CLAIMS = tuple(claim for file in FILES for claim in load_claims(file.read_bytes()))


def named(names: Sequence[str]) -> list[Claim]:
    """The claims of these names, in this order; raises ValueError for an unknown one, with the nearest."""
    claims = {claim.name: claim for claim in CLAIMS}
    for name in names:
        if name not in claims:
            near = difflib.get_close_matches(name, claims, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise ValueError(f"--only: no claim {name}{hint}; there are {', '.join(claims)}")
    return [claims[name] for name in dict.fromkeys(names)]


@dataclass(frozen=True, kw_only=True)
class ClaimFigure:
    """One comparison of a claim, worked out.

    what, where: what is compared, and in which cell; over, under: the bounds, as in `rules.Comparison`.
    estimate, low, high: in `unit`; None where there is none, which `why` explains.
    confidence: of this interval; the intervals of a claim cover together at 95 %.
    verdict: of this comparison alone.
    runs: how many are compared. basis: the samples behind the interval.
    part: index of the claim's rule.
    doubtful: True if it is more than GPUs can give.
    """

    what: str
    where: str
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float
    unit: str = ""
    over: float
    under: float
    verdict: str = UNMEASURED
    runs: int
    basis: str = ""
    text: str = "-"
    why: str = ""
    part: int
    doubtful: bool = False


@dataclass(frozen=True)
class Other:
    """Another setting that tests the same claim. apart: what tells it from the first. figures: how many it has."""

    apart: str
    setting: str
    verdict: str
    marks: str
    figures: int


@dataclass(frozen=True)
class Verdict:
    """A claim, and what the runs say of it.

    verdict: `holds`, `does not hold`, `undecided` or `not measured`.
    asked: comparisons that all cells of the paper would give there. lost: cells without a run that ended ok, and how
        they ended. why: what decided the verdict, or why nothing could.
    figures: of the most telling setting; empty where nothing was measured.
    n: runs compared. marks: of all of them.
    setting: what was measured, and where. apart: what tells it from other settings of the experiment.
    unlike: what the experiment chooses for all cells and these runs had otherwise.
    command: measures the claim; None where it was measured.
    others: other settings, each judged by itself.
    """

    claim: Claim
    verdict: str
    figures: tuple[ClaimFigure, ...] = ()
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

    @property
    def of_gpus(self) -> bool:
        """True for runs that say something of the papers: full scale, on GPUs that no ranks shared."""
        return bool(self.n) and not {mark.sign for mark in MARKS if mark.column in NOT_THE_PAPERS} & {*self.marks}

    @property
    def decides(self) -> bool:
        """True if it confirms or refutes the papers: runs of their GPUs, or what CPU ranks count as GPUs do."""
        return self.of_gpus or (bool(self.n) and self.claim.counted)


class _Candidate:
    """A claim's comparisons in one panel."""

    def __init__(self, claim: Claim, panel: Panel) -> None:
        self.claim, self.panel = claim, panel
        comparisons = [(part, one) for part, rule in enumerate(claim.rules) for one in rule.comparisons(panel)]
        self.asked, self.parts = len(comparisons), len({part for part, _ in comparisons})
        self.measured = [(part, comparison) for part, comparison in comparisons if comparison.runs]
        self.runs: list[Run] = list({id(run): run for _, one in self.measured for run in one.runs}.values())

    @property
    def unlike(self) -> list[str]:
        run, chosen = self.runs[0], self.panel.experiment.chosen
        options = {group: run[group] if run[group] is not None else run[f"{group}.name"] for group in chosen}
        return [f"{group}={option}" for group, option in chosen.items() if options[group] != option]

    @property
    def weight(self) -> tuple[int, int, int, str]:
        real = sum(not any(run[column] for run in self.runs) for column in NOT_THE_PAPERS)
        newest = max(str(run["started_at"] or "") for run in self.runs)
        return real, -len(self.unlike), len(self.measured), newest

    def judge(self, readings: Readings) -> Verdict:
        confidence = intervals.bonferroni(sum(comparison.stands_for for _, comparison in self.measured))
        figures = tuple(_figure(comparison, part, readings, confidence) for part, comparison in self.measured)
        verdict, lost = self._verdict(figures), _lost_cells(self.panel)
        why = _why(verdict, figures, self.asked, lost)
        judged = Verdict(self.claim, verdict, asked=self.asked, lost=lost, why=why)
        if verdict == UNMEASURED:
            return replace(judged, command=self.panel.command)
        marks = "".join(mark.sign for mark in MARKS if any(run[mark.column] for run in self.runs))
        judged = replace(judged, figures=figures, n=len(self.runs), marks=marks, unlike=tuple(self.unlike))
        return replace(judged, setting=_setting(self.panel.experiment, self.runs), apart=clean(self.panel.apart))

    def _verdict(self, figures: Sequence[ClaimFigure]) -> str:
        known = [figure for figure in figures if figure.verdict != UNMEASURED]
        verdicts = {figure.verdict for figure in known}
        if not verdicts:
            return UNMEASURED
        one_decides, all_decide = (HOLDS, FAILS) if self.claim.needs == "one" else (FAILS, HOLDS)
        if one_decides in verdicts:
            return one_decides
        cells_missing = self.claim.needs == "every_cell" and len(known) < self.asked
        parts_missing = len({figure.part for figure in known}) < self.parts
        return all_decide if verdicts == {all_decide} and not cells_missing and not parts_missing else UNDECIDED


def judge(runs: Sequence[Run], mix: bool = False, claims: Sequence[Claim] = CLAIMS) -> list[Verdict]:
    """The verdict on each claim, in their order."""
    panels_by_experiment = {
        name: panels(load(name), runs, mix) for name in dict.fromkeys(claim.experiment for claim in claims)
    }
    readings = Readings(runs)
    return [_judge(claim, panels_by_experiment[claim.experiment], readings) for claim in claims]


def _judge(claim: Claim, settings: Sequence[Panel], readings: Readings) -> Verdict:
    candidates = [candidate for panel in settings if (candidate := _Candidate(claim, panel)).runs]
    candidates.sort(key=lambda candidate: candidate.weight, reverse=True)
    verdicts = [candidate.judge(readings) for candidate in candidates]
    verdicts.sort(key=lambda verdict: verdict.verdict == UNMEASURED)  # stable: those without a figure come last
    if not verdicts:
        return Verdict(claim, UNMEASURED, why="no runs of these cells", command=load(claim.experiment).command)
    first, *rest = verdicts
    others = tuple(Other(one.apart, one.setting, one.verdict, one.marks, len(one.figures)) for one in rest if one.n)
    return replace(first, others=others)


def _figure(comparison: Comparison, part: int, readings: Readings, confidence: float) -> ClaimFigure:
    keys = ("what", "where", "over", "under")
    about: dict[str, Any] = {key: getattr(comparison, key) for key in keys} | {"runs": len(comparison.runs)}
    figure, unit = ClaimFigure(**about, part=part, confidence=confidence), comparison.unit
    if comparison.settled is not None:
        return replace(figure, **dict(zip(("verdict", "text"), comparison.settled, strict=True)))
    assert comparison.interval is not None
    try:
        ratio = comparison.interval(readings, confidence)
        interval = ratio.mapped(unit.convert)
    except ValueError as error:
        return replace(figure, unit=unit.name, why=str(error))
    low, high, doubtful = interval.low, interval.high, ratio.estimate > comparison.most
    verdict, text = comparison.verdict(low, high), unit.phrase(interval.estimate, low, high) + DOUBTFUL * doubtful
    without = f"no interval of {interval.basis} on a machine without repetitions" if None in (low, high) else ""
    known = replace(figure, verdict=verdict, text=text, unit=unit.name, basis=interval.basis, why=without)
    return replace(known, estimate=interval.estimate, low=low, high=high, doubtful=doubtful)


def _why(verdict: str, figures: Sequence[ClaimFigure], asked: int, lost: Sequence[str]) -> str:
    """The comparisons that decided a verdict, how much of the claim was measured, and cells that did not end well."""
    by_verdict = {kind: [one for one in figures if one.verdict == kind] for kind in (FAILS, UNDECIDED, UNMEASURED)}
    reasons = []
    if verdict == FAILS:
        reasons.append(f"refuted by {first_few(labels(by_verdict[FAILS]), MAX_NAMED)}")
    if verdict == UNDECIDED and by_verdict[UNDECIDED]:
        without_interval = [figure.why for figure in by_verdict[UNDECIDED] if figure.why]
        remedy = f" ({without_interval[0]}; {REMEDY})" if without_interval else ""
        reasons.append(f"undecided: {first_few(labels(by_verdict[UNDECIDED]), MAX_NAMED)}{remedy}")
    measured = len(figures) - len(by_verdict[UNMEASURED])
    if measured:
        reasons.append(f"{measured} of {count(asked, 'comparison')}")
    reasons += [figure.why for figure in by_verdict[UNMEASURED][:1]]
    if lost:
        reasons.append(f"not ok: {first_few(lost, MAX_NAMED)}")
    return clean("; ".join(reasons))


def labels(figures: Sequence[ClaimFigure]) -> list[str]:
    """A label for each figure that tells it from the others: its cell, what is compared, or both."""
    if len({figure.where for figure in figures}) == len(figures) and len({figure.what for figure in figures}) == 1:
        return [figure.where or figure.what for figure in figures]
    if len({figure.what for figure in figures}) == len(figures):
        return [figure.what for figure in figures]
    return [f"{figure.where}, {figure.what}" for figure in figures]


def _lost_cells(panel: Panel) -> tuple[str, ...]:
    return tuple(
        clean(f"{grouping.label(cell, [key for key, _ in cell])} {runs[0]['status']}")
        for cell, runs in panel.cells.items()
        if all(run["status"] != "ok" for run in runs)
    )


def _setting(experiment: Experiment, runs: Sequence[Run]) -> str:
    keys = [key for key in KINDS[experiment.kind].setting if key not in experiment.swept and runs[0][key] is not None]
    setting = grouping.label(tuple((key, runs[0][key]) for key in keys), keys)
    places = sorted({f"{run['hardware'] or '-'}, {grouping.commit(run)}" for run in runs})
    return clean(f"{setting} on {' and '.join(places)}")
