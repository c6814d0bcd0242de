"""Judge the papers' claims by the runs at hand.

Each comparison of a claim is judged by its whole interval. The intervals of a claim together cover
at 95 %. The claim holds if all comparisons of the paper's cells hold, and does not hold if one is
refuted. For an "up to" it is the reverse: one comparison must hold. The claim is exceeded if a
comparison has more than the paper prints and all others hold. It is half measured if some
comparisons are missing and none decides. A comparison decides nothing if its sides did not learn,
or did different amounts of work (`conditions`).

Only runs with the paper's setting (`same_setting`) decide. Differences that the experiment makes
for a reason do not count. Other runs illustrate a claim: they are shown with their differences, and
never decide.

If several settings can test a claim (image sizes, machines, commits), each is judged by itself,
without averaging. The claim's verdict is the verdict of the most telling setting: one that may
decide, then the one most like the paper's, the one on the paper's GPU, the one with the most
comparisons, and the newest.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from multicard.messages import Message
from multicard.papers import printed
from multicard.records import limits
from multicard.records.comparable import DOUBTFUL
from multicard.records.limits import Forbids
from multicard.records.schema_parts import Limit
from multicard.records.text_table import clean

from .. import same_setting
from ..experiments import Panel, load_experiment, panels
from ..runs import grouping
from ..runs.load import Run
from ..stats import intervals
from . import conditions
from .claim_files import CLAIMS, Claim
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
from .reasons import NO_RUNS, describe_lost_cells, describe_setting, explain_verdict, labels
from .rules import Ends
from .verdicts import ClaimFigure, ClaimVerdict, OtherSetting


class _Candidate:
    """One panel with the claim's comparisons in it, which may become the claim's verdict.

    Comparisons of the paper's cells decide. If there are only others (`beyond`), those count.
    """

    def __init__(self, claim: Claim, panel: Panel, readings: Readings) -> None:
        self.claim = claim
        self.panel = panel
        comparisons = []
        for part, rule in enumerate(claim.rules):
            comparisons.extend((part, comparison) for comparison in rule.comparisons(panel))
        self.measured = [(part, comparison) for part, comparison in comparisons if comparison.runs]
        self.beyond = all(comparison.beyond for _, comparison in self.measured)
        self.asked = [
            comparison for _, comparison in comparisons if self.beyond or not comparison.beyond
        ]
        runs = chain.from_iterable(comparison.runs for _, comparison in self.measured)
        self.runs: list[Run] = list({id(run): run for run in runs}.values())
        differences = same_setting.differences(panel)
        other_differences = list[str]()
        for rule in claim.rules:
            if isinstance(rule, Ends):
                other_differences.extend(rule.unlike(self.runs))
        if self.beyond:
            other_differences.append(Message("claim.beyond", "cells beyond the papers'"))
        other_differences += [limit.says for limit in self._forbidding()]
        versions = sorted({readings.versions(run) for run in self.runs})
        if len(versions) > 1:
            text = f"several versions: {' or '.join(versions)}"
            other_differences.append(Message("claim.several-versions", text, versions=versions))
        self.unlike = [*(difference.text for difference in differences), *other_differences]
        # A difference with a reason is the experiment's own choice.
        on_purpose = all(difference.why for difference in differences)
        counts = claim.counted and all(difference.column != "loader" for difference in differences)
        self.decides = counts or (on_purpose and not other_differences)

    def _forbidding(self) -> list[Limit]:
        """Return the limits that forbid judging this claim by these runs.

        A limit in a column that the claim itself compares does not count.
        """
        forbidden_uses = {Forbids.verdict}.union(*(rule.forbidden for rule in self.claim.rules))
        compared_columns = set(chain.from_iterable(rule.axes for rule in self.claim.rules))
        if all(all(measure.of_profile for measure in rule.measures) for rule in self.claim.rules):
            compared_columns.add(limits.PROFILED.column)
        forbidding_limits = limits.forbidding(
            limits.in_order(grouping.limits_of(self.runs)), *forbidden_uses
        )
        return [
            limit
            for limit in forbidding_limits
            if limits.column(limit.code) not in compared_columns
        ]

    @property
    def weight(self) -> tuple[bool, int, bool, int, str]:
        """The sort key of candidates: the most telling one has the greatest."""
        is_papers_gpu = all(str(run["hardware"]).startswith(printed.HARDWARE) for run in self.runs)
        newest = max(str(run["started_at"] or "") for run in self.runs)
        deciding_comparisons = sum(
            self.beyond or not comparison.beyond for _, comparison in self.measured
        )
        return self.decides, -len(self.unlike), is_papers_gpu, deciding_comparisons, newest

    def judge(self, readings: Readings) -> ClaimVerdict:
        """Judge the claim by this panel."""
        confidence = intervals.bonferroni(
            sum(comparison.stands_for for _, comparison in self.measured)
        )
        judged_comparisons = [
            (comparison, self._judge_comparison(comparison, part, readings, confidence))
            for part, comparison in self.measured
        ]
        deciding = [
            (comparison, figure)
            for comparison, figure in judged_comparisons
            if self.beyond or not comparison.beyond
        ]
        shows = self._shown_verdict([figure for _, figure in deciding])
        lost_cells = describe_lost_cells(self.panel)
        measured_comparisons = [
            comparison for comparison, figure in deciding if figure.verdict != UNMEASURED
        ]
        missing_labels = (
            labels(
                [comparison for comparison in self.asked if comparison not in measured_comparisons]
            )
            if shows == HALF
            else []
        )
        why = explain_verdict(
            shows, [figure for _, figure in deciding], len(self.asked), missing_labels, lost_cells
        )
        verdict = shows if self.decides or shows == UNMEASURED else ILLUSTRATED
        command = self.panel.experiment.command if verdict == ILLUSTRATED else self.panel.command
        verdict = ClaimVerdict(
            self.claim,
            verdict,
            shows,
            asked=len(self.asked),
            lost=lost_cells,
            why=why,
            command=command,
        )
        if shows == UNMEASURED:
            return verdict
        fields = {"unlike": tuple(self.unlike), "apart": clean(self.panel.apart)}
        fields |= {"limits": tuple(limits.in_order(grouping.limits_of(self.runs)))}
        fields |= {
            "figures": tuple(figure for _, figure in judged_comparisons),
            "n": len(self.runs),
        }
        fields |= {"setting": describe_setting(self.panel.experiment, self.runs)}
        return replace(
            verdict, **fields, command=command if verdict.verdict in (HALF, ILLUSTRATED) else None
        )

    def _judge_comparison(
        self, comparison: RuleComparison, part: int, readings: Readings, confidence: float
    ) -> ClaimFigure:
        """Judge one comparison; undecided if its sides do not meet the conditions of its rule."""
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

    def _shown_verdict(self, figures: Sequence[ClaimFigure]) -> str:
        """Return the verdict that these figures give, if the runs may decide."""
        known_verdicts = [figure.verdict for figure in figures if figure.verdict != UNMEASURED]
        if self.claim.needs == "one" and EXCEEDS in known_verdicts:
            return EXCEEDS
        one_decides, all_decide = (HOLDS, FAILS) if self.claim.needs == "one" else (FAILS, HOLDS)
        if one_decides in known_verdicts:
            return one_decides
        if len(known_verdicts) < len(self.asked):
            return HALF if known_verdicts else UNMEASURED
        if {*known_verdicts} == {all_decide}:
            return all_decide
        return EXCEEDS if {*known_verdicts} <= {HOLDS, EXCEEDS} else UNDECIDED


def judge(
    runs: Sequence[Run], mix: bool = False, claims: Sequence[Claim] = CLAIMS
) -> list[ClaimVerdict]:
    """Return the verdict on each claim, in the order of the claims.

    Oversubscribed runs are never compared with other runs.
    """
    runs_by_sharing = [
        [run for run in runs if bool(run["oversubscribed"]) is oversubscribed]
        for oversubscribed in (False, True)
    ]
    panels_by_experiment = dict[str, list[Panel]]()
    for name in dict.fromkeys(claim.experiment for claim in claims):
        by_part = [panels(load_experiment(name), part, mix) for part in runs_by_sharing]
        panels_by_experiment[name] = list(chain.from_iterable(by_part))
    readings = Readings(runs_by_sharing[0] or runs)
    return [_judge(claim, panels_by_experiment[claim.experiment], readings) for claim in claims]


def _judge(claim: Claim, settings: Sequence[Panel], readings: Readings) -> ClaimVerdict:
    """Judge a claim by its most telling setting, and name the others."""
    candidates = [
        candidate for panel in settings if (candidate := _Candidate(claim, panel, readings)).runs
    ]
    candidates.sort(key=lambda candidate: candidate.weight, reverse=True)
    verdicts = [candidate.judge(readings) for candidate in candidates]
    # The sort is stable: verdicts without a figure come last.
    verdicts.sort(key=lambda verdict: verdict.verdict == UNMEASURED)
    if not verdicts:
        return ClaimVerdict(
            claim, UNMEASURED, why=NO_RUNS, command=load_experiment(claim.experiment).command
        )
    most_telling, *other_verdicts = verdicts
    others = tuple(
        OtherSetting(
            verdict.apart, verdict.setting, verdict.in_words, verdict.marks, len(verdict.figures)
        )
        for verdict in other_verdicts
        if verdict.n
    )
    return replace(most_telling, others=others)


def _figure(
    comparison: RuleComparison, part: int, readings: Readings, confidence: float
) -> ClaimFigure:
    """Measure one comparison and judge it by its interval."""
    keys = ("what", "where", "over", "under", "upto", "beyond")
    fields: dict[str, Any] = {key: getattr(comparison, key) for key in keys} | {
        "runs": len(comparison.runs)
    }
    figure = ClaimFigure(**fields, part=part, confidence=confidence)
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
    is_doubtful = not comparison.least <= ratio.estimate <= comparison.most
    verdict = comparison.verdict(low, high)
    text = unit.phrase(interval.estimate, low, high) + DOUBTFUL * is_doubtful
    missing_interval = ""
    if low is None or high is None:
        reason = f"no interval of {interval.basis} on a machine without repetitions"
        missing_interval = Message("claim.no-interval", reason, basis=interval.basis)
    if is_doubtful and verdict in (HOLDS, EXCEEDS):
        verdict = UNDECIDED  # An impossible figure shows nothing.
    measured_figure = replace(
        figure,
        verdict=verdict,
        text=text,
        unit=unit.name,
        basis=interval.basis,
        why=missing_interval,
    )
    return replace(
        measured_figure, estimate=interval.estimate, low=low, high=high, doubtful=is_doubtful
    )
