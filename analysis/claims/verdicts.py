"""The papers' claims, and verdicts on them from the runs at hand.

Each comparison of a claim is judged by its whole interval, and the intervals of a claim together
cover at 95 %. The claim holds if all comparisons of the paper's cells do, and does not if one is
refuted (an "up to": the other way round). It is exceeded where one has more than the paper prints,
and all others hold. Where some are missing and none decides, it is half measured. A comparison
whose sides did not learn, or not do as much, decides nothing (`conditions`).

Runs decide where they have the paper's setting (`same_setting`) but for what the experiment has
otherwise for a reason. Others illustrate a claim: they are shown with what differs, and never
decide.

Where several settings can test a claim (image sizes, machines, commits), each is judged by itself
and never averaged. The verdict is that of the most telling: what may decide, then the setting that
is most like the paper's, its GPU, the one with the most comparisons, and the newest.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import msgspec

from multicard.config.job import count
from multicard.messages import Message, Refusal
from multicard.papers import printed
from multicard.records import limits
from multicard.records.comparable import DOUBTFUL
from multicard.records.limits import Forbids
from multicard.records.schema_parts import Limit
from multicard.records.text_table import clean, first_few

from .. import same_setting
from ..experiments import Experiment, Panel, load, panels
from ..runs import grouping
from ..runs.columns import KINDS
from ..runs.load import Run
from ..stats import intervals
from ..stats.between_runs import REMEDY
from . import conditions
from .comparison import (
    EXCEEDS,
    FAILS,
    HALF,
    HOLDS,
    ILLUSTRATED,
    UNDECIDED,
    UNMEASURED,
    Readings,
    RuleComparison,
)
from .rules import UNLUCKY, AnyRule, Ends

NO_RUNS = Message("claim.no-runs", "no runs of these cells")
MAX_NAMED = 3  # comparisons, or cells, that a line names
FILES = [Path(__file__).with_name(f"{kind}_claims.yaml") for kind in ("vision", "tuning")]
# of the papers, with their bounds
WORDS = {row["word"]: row for row in printed.rows("words", Path(__file__).parent)}
PAPERS = {2503: "2503.15252", 2505: "2505.22905"}


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sentence of a paper that runs can test.

    name: as `--only` takes it. section: the heading in the file.
    says: the sentence.
    places: its table, figure or section by key of PAPERS; empty where neither paper has it.
    printed: the papers' own figures; empty where the sentence has them all.
    experiment: of conf/experiment, whose cells test the claim.
    needs: which comparisons of the paper's cells must hold: `all`, or `one` of them (an "up to").
    counted: True if it follows from what a program does and not from a machine or setting, so that
    CPU ranks and
        shrunk runs decide it as GPUs do; not from another loader, which has its own way to the
        device.
    note: a caveat that is printed with the claim.
    """

    name: str
    section: str
    says: str
    experiment: str
    rules: list[AnyRule]
    places: dict[Literal[2503, 2505], str] = {}
    printed: str = ""
    needs: Literal["all", "one"] = "all"
    note: str = ""
    counted: bool = False

    @property
    def test(self) -> str:
        rules = "; ".join(rule.text for rule in self.rules)
        return f"{rules} (in one cell)" if self.needs == "one" else rules

    @property
    def cited(self) -> dict[str, str]:
        return {PAPERS[paper]: place for paper, place in self.places.items()}

    @property
    def source(self) -> str:
        return (
            "; ".join(f"arXiv {paper}, {place}" for paper, place in self.cited.items())
            or "in neither paper"
        )


def load_claims(content: bytes) -> tuple[Claim, ...]:
    """Claims of a YAML file, with the keys under `all` of their section; rules are contrasts where
    they do not say, and have the bounds of their word.

    Raises:
        msgspec.ValidationError: an unknown key or rule, or a value of the wrong type,
        with its place in the file.
    """
    claims = []
    for section, written in msgspec.yaml.decode(content).items():
        common = written.pop("all", {})
        for name, claim in written.items():
            rules = claim["rules"] if isinstance(claim["rules"], list) else [claim["rules"]]
            bounded = [{"rule": "contrast"} | _bounds(rule) | rule for rule in rules]
            claims.append(common | claim | {"name": name, "section": section, "rules": bounded})
    return msgspec.convert(claims, tuple[Claim, ...])


def _bounds(rule: dict[str, Any]) -> dict[str, Any]:
    word = WORDS[rule["bounds"]] if "bounds" in rule else {}
    limits = {
        side: float(word[side]) * rule.get("times", 1)
        for side in ("over", "under")
        if word.get(side)
    }
    return limits | ({"unit": word["unit"]} if word.get("unit") else {})


CLAIMS = tuple(chain.from_iterable(load_claims(file.read_bytes()) for file in FILES))


def named(names: Sequence[str]) -> list[Claim]:
    """The claims of these names, in this order; raises ValueError for an unknown one,
    with the nearest.
    """
    claims = {claim.name: claim for claim in CLAIMS}
    for name in names:
        if name not in claims:
            near = next(iter(difflib.get_close_matches(name, claims, n=1)), None)
            meant = "" if near is None else f" (did you mean {near}?)"
            said = f"--only: no claim {name}{meant}; there are {', '.join(claims)}"
            raise Refusal(
                "claim.unknown", said, key="--only", name=name, near=near, known=[*claims]
            )
    return [claims[name] for name in dict.fromkeys(names)]


@dataclass(frozen=True, kw_only=True)
class ClaimFigure:
    """One comparison of a claim, worked out.

    what, where: what is compared, and in which cell; over, under, upto: the bounds, as in
    `comparison.Comparison`.
    estimate, low, high: in `unit`; None where there is none, which `why` explains.
    confidence: of this interval; the intervals of a claim cover together at 95 %.
    verdict: of this comparison alone.
    runs: how many are compared. basis: the samples behind the interval.
    part: index of the claim's rule.
    beyond: True in cells that the papers do not have: it decides nothing.
    doubtful: True if it is more than GPUs can give.
    doubts: why it decides nothing, whatever its figure (`conditions`).
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
    upto: float
    verdict: str = UNMEASURED
    runs: int
    basis: str = ""
    text: str = "-"
    why: str = ""
    part: int
    beyond: bool = False
    doubtful: bool = False
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Other:
    """Another setting that tests the same claim. apart: what tells it from the first.
    figures: how many it has.
    """

    apart: str
    setting: str
    verdict: str
    marks: str
    figures: int


@dataclass(frozen=True)
class ClaimVerdict:
    """A claim, and what the runs say of it.

    verdict: `holds`, `exceeds`, `does not hold`, `undecided`, `half measured` or `not measured`, or
    `illustrated` by
        runs that may not decide. shows: what these have of the others.
    asked: comparisons that all cells of the paper give there. lost: cells without a run that ended
    ok, and how they
        ended. why: what decided the verdict, what is missing, or why nothing could.
    figures: of the most telling setting; empty where nothing was measured.
    n: runs compared. limits: of all of them.
    setting: what was measured, and where. apart: what tells it from other settings of the
    experiment.
    unlike: what these runs have otherwise than the papers, so that they do not decide; unless it is
    counted, or what
        the experiment has otherwise for a reason.
    command: measures the claim, or what is missing; None where it was measured.
    others: other settings, each judged by itself.
    """

    claim: Claim
    verdict: str
    shows: str = ""
    figures: tuple[ClaimFigure, ...] = ()
    asked: int = 0
    n: int = 0
    limits: tuple[Limit, ...] = ()
    why: str = ""
    setting: str = ""
    apart: str = ""
    unlike: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    command: str | None = None
    others: tuple[Other, ...] = ()

    @property
    def marks(self) -> str:
        """The signs of what limits its runs."""
        return limits.signs(self.limits)

    @property
    def decides(self) -> bool:
        """True if it confirms or refutes the papers, or would with more runs."""
        return bool(self.n) and self.verdict != ILLUSTRATED

    @property
    def said(self) -> str:
        return f"{self.verdict}: {self.shows}" if self.verdict == ILLUSTRATED else self.verdict


class _Candidate:
    """A claim's comparisons in one panel: those of the paper's cells, or of others alone,
    and those beside them.
    """

    def __init__(self, claim: Claim, panel: Panel, readings: Readings) -> None:
        self.claim = claim
        self.panel = panel
        comparisons = []
        for part, rule in enumerate(claim.rules):
            comparisons.extend((part, one) for one in rule.comparisons(panel))
        self.measured = [(part, comparison) for part, comparison in comparisons if comparison.runs]
        self.beyond = all(comparison.beyond for _, comparison in self.measured)
        self.asked = [
            comparison for _, comparison in comparisons if self.beyond or not comparison.beyond
        ]
        runs = chain.from_iterable(one.runs for _, one in self.measured)
        self.runs: list[Run] = list({id(run): run for run in runs}.values())
        differences = same_setting.differences(panel)
        apart = list[str]()
        for rule in claim.rules:
            if isinstance(rule, Ends):
                apart.extend(rule.unlike(self.runs))
        if self.beyond:
            apart.append(Message("claim.beyond", "cells beyond the papers'"))
        apart += [limit.says for limit in self._forbidding()]
        versions = sorted({readings.versions(run) for run in self.runs})
        if len(versions) > 1:
            said = f"several versions: {' or '.join(versions)}"
            apart.append(Message("claim.several-versions", said, versions=versions))
        self.unlike = [*(difference.text for difference in differences), *apart]
        on_purpose = all(difference.why for difference in differences)  # the experiment's own
        counts = claim.counted and all(difference.column != "loader" for difference in differences)
        self.decides = counts or (on_purpose and not apart)

    def _forbidding(self) -> list[Limit]:
        """What forbids to judge this claim by these runs; not what the claim itself is about."""
        forbidden = {Forbids.verdict}.union(*(rule.forbidden for rule in self.claim.rules))
        about = set(chain.from_iterable(rule.axes for rule in self.claim.rules))
        if all(all(measure.of_profile for measure in rule.measures) for rule in self.claim.rules):
            about.add(limits.PROFILED.column)
        found = limits.forbidding(limits.in_order(grouping.limits_of(self.runs)), *forbidden)
        return [limit for limit in found if limits.column(limit.code) not in about]

    @property
    def weight(self) -> tuple[bool, int, bool, int, str]:
        is_papers_gpu = all(str(run["hardware"]).startswith(printed.HARDWARE) for run in self.runs)
        newest = max(str(run["started_at"] or "") for run in self.runs)
        own = sum(self.beyond or not comparison.beyond for _, comparison in self.measured)
        return self.decides, -len(self.unlike), is_papers_gpu, own, newest

    def judge(self, readings: Readings) -> ClaimVerdict:
        confidence = intervals.bonferroni(
            sum(comparison.stands_for for _, comparison in self.measured)
        )
        judged = [
            (one, self._judged(one, part, readings, confidence)) for part, one in self.measured
        ]
        deciding = [(one, figure) for one, figure in judged if self.beyond or not one.beyond]
        shows = self._shows([figure for _, figure in deciding])
        lost = _lost_cells(self.panel)
        known = [one for one, figure in deciding if figure.verdict != UNMEASURED]
        missing = labels([one for one in self.asked if one not in known]) if shows == HALF else []
        why = _why(shows, [figure for _, figure in deciding], len(self.asked), missing, lost)
        verdict = shows if self.decides or shows == UNMEASURED else ILLUSTRATED
        command = self.panel.experiment.command if verdict == ILLUSTRATED else self.panel.command
        verdict = ClaimVerdict(
            self.claim, verdict, shows, asked=len(self.asked), lost=lost, why=why, command=command
        )
        if shows == UNMEASURED:
            return verdict
        about = {"unlike": tuple(self.unlike), "apart": clean(self.panel.apart)}
        about |= {"limits": tuple(limits.in_order(grouping.limits_of(self.runs)))}
        about |= {"figures": tuple(figure for _, figure in judged), "n": len(self.runs)}
        about |= {"setting": _setting(self.panel.experiment, self.runs)}
        return replace(
            verdict, **about, command=command if verdict.verdict in (HALF, ILLUSTRATED) else None
        )

    def _judged(
        self, comparison: RuleComparison, part: int, readings: Readings, confidence: float
    ) -> ClaimFigure:
        """A comparison worked out; undecided where its sides
        do not meet the conditions of its rule.
        """
        figure = _figure(comparison, part, readings, confidence)
        rule = self.claim.rules[part]
        if self.claim.counted or figure.verdict not in (HOLDS, EXCEEDS, FAILS):
            return figure
        doubts = conditions.doubts(
            comparison, rule.measures, rule.by_design, readings, self.panel.repeated
        )
        if not doubts or conditions.refutes(comparison, figure.verdict, rule.measures, doubts):
            return figure
        return replace(
            figure, verdict=UNDECIDED, why=clean("; ".join(doubts)), doubts=tuple(doubts)
        )

    def _shows(self, figures: Sequence[ClaimFigure]) -> str:
        known = [figure.verdict for figure in figures if figure.verdict != UNMEASURED]
        if self.claim.needs == "one" and EXCEEDS in known:
            return EXCEEDS
        one_decides, all_decide = (HOLDS, FAILS) if self.claim.needs == "one" else (FAILS, HOLDS)
        if one_decides in known:
            return one_decides
        if len(known) < len(self.asked):
            return HALF if known else UNMEASURED
        if {*known} == {all_decide}:
            return all_decide
        return EXCEEDS if {*known} <= {HOLDS, EXCEEDS} else UNDECIDED


def judge(
    runs: Sequence[Run], mix: bool = False, claims: Sequence[Claim] = CLAIMS
) -> list[ClaimVerdict]:
    """The verdict on each claim, in their order."""
    apart = [
        [run for run in runs if bool(run["oversubscribed"]) is shared] for shared in (False, True)
    ]
    panels_by_experiment = dict[str, list[Panel]]()
    for name in dict.fromkeys(claim.experiment for claim in claims):
        by_part = [panels(load(name), part, mix) for part in apart]
        panels_by_experiment[name] = list(chain.from_iterable(by_part))
    readings = Readings(apart[0] or runs)
    return [_judge(claim, panels_by_experiment[claim.experiment], readings) for claim in claims]


def _judge(claim: Claim, settings: Sequence[Panel], readings: Readings) -> ClaimVerdict:
    candidates = [
        candidate for panel in settings if (candidate := _Candidate(claim, panel, readings)).runs
    ]
    candidates.sort(key=lambda candidate: candidate.weight, reverse=True)
    verdicts = [candidate.judge(readings) for candidate in candidates]
    # stable: those without a figure come last
    verdicts.sort(key=lambda verdict: verdict.verdict == UNMEASURED)
    if not verdicts:
        return ClaimVerdict(claim, UNMEASURED, why=NO_RUNS, command=load(claim.experiment).command)
    first, *rest = verdicts
    others = tuple(
        Other(one.apart, one.setting, one.said, one.marks, len(one.figures))
        for one in rest
        if one.n
    )
    return replace(first, others=others)


def _figure(
    comparison: RuleComparison, part: int, readings: Readings, confidence: float
) -> ClaimFigure:
    keys = ("what", "where", "over", "under", "upto", "beyond")
    about: dict[str, Any] = {key: getattr(comparison, key) for key in keys} | {
        "runs": len(comparison.runs)
    }
    figure = ClaimFigure(**about, part=part, confidence=confidence)
    unit = comparison.unit
    if comparison.settled is not None:
        return replace(figure, **dict(zip(("verdict", "text"), comparison.settled, strict=True)))
    assert comparison.interval is not None
    try:
        ratio = comparison.interval(readings, confidence)
        interval = ratio.mapped(unit.convert)
    except ValueError as error:
        return replace(figure, unit=unit.name, why=str(error))
    low = interval.low
    high = interval.high
    doubtful = not comparison.least <= ratio.estimate <= comparison.most
    verdict = comparison.verdict(low, high)
    text = unit.phrase(interval.estimate, low, high) + DOUBTFUL * doubtful
    without = ""
    if low is None or high is None:
        said = f"no interval of {interval.basis} on a machine without repetitions"
        without = Message("claim.no-interval", said, basis=interval.basis)
    if doubtful and verdict in (HOLDS, EXCEEDS):
        verdict = UNDECIDED  # what cannot be shows nothing
    known = replace(
        figure, verdict=verdict, text=text, unit=unit.name, basis=interval.basis, why=without
    )
    return replace(known, estimate=interval.estimate, low=low, high=high, doubtful=doubtful)


def _why(
    verdict: str,
    figures: Sequence[ClaimFigure],
    asked: int,
    missing: Sequence[str],
    lost: Sequence[str],
) -> str:
    """The comparisons that decided, how much of the claim was measured, what is missing,
    and cells that ended badly.
    """
    kinds = (FAILS, EXCEEDS, UNDECIDED, UNMEASURED)
    by_verdict = {kind: [one for one in figures if one.verdict == kind] for kind in kinds}
    reasons = []
    if verdict == FAILS:
        against = labels(by_verdict[FAILS])
        reasons.append(
            Message("claim.refuted", f"refuted by {first_few(against, MAX_NAMED)}", by=against)
        )
    if verdict == EXCEEDS:
        above = labels(by_verdict[EXCEEDS])
        said = f"more than printed: {first_few(above, MAX_NAMED)}"
        reasons.append(Message("claim.exceeded", said, by=above))
    if verdict == UNDECIDED and by_verdict[UNDECIDED]:
        reasons.append(_undecided(by_verdict[UNDECIDED]))
    measured = len(figures) - len(by_verdict[UNMEASURED])
    if measured:
        said = f"{measured} of {count(asked, 'comparison')}"
        reasons.append(Message("claim.measured", said, measured=measured, asked=asked))
    if missing:
        said = f"missing: {first_few(missing, MAX_NAMED)}"
        reasons.append(Message("claim.missing", said, missing=[*missing]))
    reasons += [figure.why for figure in by_verdict[UNMEASURED][:1]]
    if lost:
        reasons.append(
            Message("claim.not-ok", f"not ok: {first_few(lost, MAX_NAMED)}", cells=[*lost])
        )
    return clean("; ".join(reasons))


def _undecided(figures: Sequence[ClaimFigure]) -> Message:
    """Which comparisons decide nothing, and what helps where they have no interval."""
    named = labels(figures)
    said = f"undecided: {first_few(named, MAX_NAMED)}"
    doubts = list(dict.fromkeys(chain.from_iterable(figure.doubts for figure in figures)))
    if doubts:
        shown = first_few(doubts, MAX_NAMED)
        return Message(
            "claim.undecided-by-condition", f"{said} ({shown})", comparisons=named, reasons=doubts
        )
    without_interval = next((figure.why for figure in figures if figure.why), None)
    if without_interval is None:
        return Message("claim.undecided", said, comparisons=named)
    return Message(
        "claim.undecided-without-interval",
        f"{said} ({without_interval}; {REMEDY})",
        comparisons=named,
        reason=without_interval,
        remedy=REMEDY,
    )


def labels(figures: Sequence[ClaimFigure] | Sequence[RuleComparison]) -> list[str]:
    """A label for each figure that tells it from the
    others: its cell, what is compared, or both.
    """
    if (
        len({figure.where for figure in figures}) == len(figures)
        and len({figure.what for figure in figures}) == 1
    ):
        return [figure.where or figure.what for figure in figures]
    if len({figure.what for figure in figures}) == len(figures):
        return [figure.what for figure in figures]
    return [f"{figure.where}, {figure.what}" for figure in figures]


def _lost_cells(panel: Panel) -> tuple[str, ...]:
    lost = []
    for cell, runs in panel.cells.items():
        bad = [run["status"] for run in runs if run["status"] != "ok"]
        if not bad:
            continue
        label = grouping.label(cell, [key for key, _ in cell])
        ended = f"{label} {' and '.join(sorted({*bad}))}"
        if len(bad) == len(runs):
            lost.append(clean(ended))
        elif {*bad} & {*UNLUCKY}:
            lost.append(clean(f"{ended} ({len(bad)} of {count(len(runs), 'run')})"))
    return tuple(lost)


def _setting(experiment: Experiment, runs: Sequence[Run]) -> str:
    keys = [
        key
        for key in KINDS[experiment.kind].setting
        if key not in experiment.swept and runs[0][key] is not None
    ]
    setting = grouping.label(tuple((key, runs[0][key]) for key in keys), keys)
    places = sorted({f"{run['hardware'] or '-'}, {grouping.commit(run)}" for run in runs})
    return clean(f"{setting} on {' and '.join(places)}")
