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
MAX_NAMED = 3  # The most comparisons, or cells, that a line names.
FILES = [Path(__file__).with_name(f"{kind}_claims.yaml") for kind in ("vision", "tuning")]
# The words with which the papers judge a difference, with the bounds that each word stands for.
WORDS = {row["word"]: row for row in printed.rows("words", Path(__file__).parent)}
PAPERS = {2503: "2503.15252", 2505: "2505.22905"}


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sentence of a paper that runs can test.

    name: the name that `--only` takes.
    section: the heading in the file of claims.
    says: the sentence.
    places: the table, figure or section, by key of PAPERS. It is empty if neither paper has it.
    printed: the papers' own figures. It is empty if the sentence has them all.
    experiment: the experiment of conf/experiment whose cells test the claim.
    needs: which comparisons of the paper's cells must hold: `all`, or `one` of them (an "up to").
    counted: True if the claim follows from what a program does, not from a machine or a setting. In
        that case, CPU ranks and shrunk runs decide it as GPUs do. Another loader does not, because
        it copies data to the device differently.
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
        """How the claim is tested, in words."""
        rules = "; ".join(rule.text for rule in self.rules)
        return f"{rules} (in one cell)" if self.needs == "one" else rules

    @property
    def cited(self) -> dict[str, str]:
        """The place of the claim in each paper, by the paper's arXiv number."""
        return {PAPERS[paper]: place for paper, place in self.places.items()}

    @property
    def source(self) -> str:
        return (
            "; ".join(f"arXiv {paper}, {place}" for paper, place in self.cited.items())
            or "in neither paper"
        )


def load_claims(content: bytes) -> tuple[Claim, ...]:
    """Read the claims of a YAML file.

    Each claim gets the keys under `all` of its section. A rule without a kind is a contrast, and a
    rule with a word gets the word's bounds.

    Raises:
        msgspec.ValidationError: a key or rule is unknown, or a value has the wrong type. The
            message has the place in the file.
    """
    claims = []
    for section, section_claims in msgspec.yaml.decode(content).items():
        shared_keys = section_claims.pop("all", {})
        for name, claim in section_claims.items():
            rules = claim["rules"] if isinstance(claim["rules"], list) else [claim["rules"]]
            bounded_rules = [{"rule": "contrast"} | _bounds(rule) | rule for rule in rules]
            claims.append(
                shared_keys | claim | {"name": name, "section": section, "rules": bounded_rules}
            )
    return msgspec.convert(claims, tuple[Claim, ...])


def _bounds(rule: dict[str, Any]) -> dict[str, Any]:
    """Return the bounds and the unit of the word that a rule names."""
    word = WORDS[rule["bounds"]] if "bounds" in rule else {}
    bounds = {
        side: float(word[side]) * rule.get("times", 1)
        for side in ("over", "under")
        if word.get(side)
    }
    return bounds | ({"unit": word["unit"]} if word.get("unit") else {})


CLAIMS = tuple(chain.from_iterable(load_claims(file.read_bytes()) for file in FILES))


def named(names: Sequence[str]) -> list[Claim]:
    """Return the claims of these names, in this order.

    Raises:
        ValueError: a claim is unknown. The message suggests the nearest name.
    """
    claims = {claim.name: claim for claim in CLAIMS}
    for name in names:
        if name not in claims:
            nearest = next(iter(difflib.get_close_matches(name, claims, n=1)), None)
            suggestion = "" if nearest is None else f" (did you mean {nearest}?)"
            text = f"--only: no claim {name}{suggestion}; there are {', '.join(claims)}"
            raise Refusal(
                "claim.unknown", text, key="--only", name=name, near=nearest, known=[*claims]
            )
    return [claims[name] for name in dict.fromkeys(names)]


@dataclass(frozen=True, kw_only=True)
class ClaimFigure:
    """The result of one comparison of a claim.

    what: the sides that are compared.
    where: the cell in which they are compared.
    over, under, upto: the bounds, as in `comparison.Comparison`.
    estimate, low, high: the figure and its interval in `unit`. They are None if there is no figure
        or no interval, and `why` says the reason.
    confidence: the confidence of this interval. The intervals of a claim together cover at 95 %.
    verdict: the verdict on this comparison alone.
    runs: the number of runs that are compared.
    basis: the samples that the interval rests on.
    part: the index of the claim's rule.
    beyond: True for cells that the papers do not have. Such a comparison decides nothing.
    doubtful: True if the figure is more than GPUs can reach.
    doubts: the reasons why it decides nothing, whatever its figure (`conditions`).
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
class OtherSetting:
    """Another setting that tests the same claim.

    apart: the columns in which it differs from the first setting.
    figures: the number of its figures.
    """

    apart: str
    setting: str
    verdict: str
    marks: str
    figures: int


@dataclass(frozen=True)
class ClaimVerdict:
    """A claim, and what the runs show about it.

    verdict: `holds`, `exceeds`, `does not hold`, `undecided`, `half measured`, `not measured`, or
        `illustrated` if the runs may not decide.
    shows: the verdict that the runs would give if they were allowed to decide.
    figures: the figures of the most telling setting; empty if nothing was measured.
    asked: the number of comparisons that all cells of the paper would give.
    n: the number of runs that are compared.
    limits: the limits of all these runs.
    why: what decided the verdict, what is missing, or why nothing could be decided.
    setting: what was measured, and on which machine.
    apart: the columns in which it differs from other settings of the experiment.
    unlike: the differences from the papers that keep these runs from deciding. Differences do not
        count if the claim is counted, or if the experiment makes them for a reason.
    lost: cells without a run that ended ok, and how their runs ended.
    command: the command that measures the claim, or what is missing; None if it was measured.
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
    others: tuple[OtherSetting, ...] = ()

    @property
    def marks(self) -> str:
        """The signs of what limits its runs."""
        return limits.signs(self.limits)

    @property
    def decides(self) -> bool:
        """True if it confirms or refutes the papers, or would do so with more runs."""
        return bool(self.n) and self.verdict != ILLUSTRATED

    @property
    def in_words(self) -> str:
        """The verdict in words: "illustrated" also says what the runs show."""
        return f"{self.verdict}: {self.shows}" if self.verdict == ILLUSTRATED else self.verdict


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
        lost_cells = _lost_cells(self.panel)
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
        why = _why(
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
        fields |= {"setting": _setting(self.panel.experiment, self.runs)}
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
        by_part = [panels(load(name), part, mix) for part in runs_by_sharing]
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
        return ClaimVerdict(claim, UNMEASURED, why=NO_RUNS, command=load(claim.experiment).command)
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


def _why(
    verdict: str,
    figures: Sequence[ClaimFigure],
    asked: int,
    missing_labels: Sequence[str],
    lost_cells: Sequence[str],
) -> str:
    """Say which comparisons decided, how many were measured or missing, and which cells failed."""
    kinds = (FAILS, EXCEEDS, UNDECIDED, UNMEASURED)
    by_verdict = {kind: [figure for figure in figures if figure.verdict == kind] for kind in kinds}
    reasons = []
    if verdict == FAILS:
        refuting = labels(by_verdict[FAILS])
        reasons.append(
            Message("claim.refuted", f"refuted by {first_few(refuting, MAX_NAMED)}", by=refuting)
        )
    if verdict == EXCEEDS:
        exceeding = labels(by_verdict[EXCEEDS])
        text = f"more than printed: {first_few(exceeding, MAX_NAMED)}"
        reasons.append(Message("claim.exceeded", text, by=exceeding))
    if verdict == UNDECIDED and by_verdict[UNDECIDED]:
        reasons.append(_undecided(by_verdict[UNDECIDED]))
    measured_count = len(figures) - len(by_verdict[UNMEASURED])
    if measured_count:
        text = f"{measured_count} of {count(asked, 'comparison')}"
        reasons.append(Message("claim.measured", text, measured=measured_count, asked=asked))
    if missing_labels:
        text = f"missing: {first_few(missing_labels, MAX_NAMED)}"
        reasons.append(Message("claim.missing", text, missing=[*missing_labels]))
    reasons += [figure.why for figure in by_verdict[UNMEASURED][:1]]
    if lost_cells:
        reasons.append(
            Message(
                "claim.not-ok", f"not ok: {first_few(lost_cells, MAX_NAMED)}", cells=[*lost_cells]
            )
        )
    return clean("; ".join(reasons))


def _undecided(figures: Sequence[ClaimFigure]) -> Message:
    """Name the comparisons that decide nothing, and what helps if they have no interval."""
    comparison_labels = labels(figures)
    text = f"undecided: {first_few(comparison_labels, MAX_NAMED)}"
    doubts = list(dict.fromkeys(chain.from_iterable(figure.doubts for figure in figures)))
    if doubts:
        shown_doubts = first_few(doubts, MAX_NAMED)
        return Message(
            "claim.undecided-by-condition",
            f"{text} ({shown_doubts})",
            comparisons=comparison_labels,
            reasons=doubts,
        )
    without_interval = next((figure.why for figure in figures if figure.why), None)
    if without_interval is None:
        return Message("claim.undecided", text, comparisons=comparison_labels)
    return Message(
        "claim.undecided-without-interval",
        f"{text} ({without_interval}; {REMEDY})",
        comparisons=comparison_labels,
        reason=without_interval,
        remedy=REMEDY,
    )


def labels(figures: Sequence[ClaimFigure] | Sequence[RuleComparison]) -> list[str]:
    """Return a label for each figure that distinguishes it from the others.

    The label is its cell, what is compared, or both.
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
    """Return the cells without a usable run, and how their runs ended."""
    lost_cells = []
    for cell, runs in panel.cells.items():
        bad_statuses = [run["status"] for run in runs if run["status"] != "ok"]
        if not bad_statuses:
            continue
        label = grouping.label(cell, [key for key, _ in cell])
        ended = f"{label} {' and '.join(sorted({*bad_statuses}))}"
        if len(bad_statuses) == len(runs):
            lost_cells.append(clean(ended))
        elif {*bad_statuses} & {*UNLUCKY}:
            lost_cells.append(clean(f"{ended} ({len(bad_statuses)} of {count(len(runs), 'run')})"))
    return tuple(lost_cells)


def _setting(experiment: Experiment, runs: Sequence[Run]) -> str:
    """Say which setting some runs have, and on which machines and commits they ran."""
    keys = [
        key
        for key in KINDS[experiment.kind].setting
        if key not in experiment.swept and runs[0][key] is not None
    ]
    setting = grouping.label(tuple((key, runs[0][key]) for key in keys), keys)
    places = sorted({f"{run['hardware'] or '-'}, {grouping.commit(run)}" for run in runs})
    return clean(f"{setting} on {' and '.join(places)}")
