"""Say why a claim has its verdict, and what was measured, in lines for people."""

from collections.abc import Sequence
from itertools import chain

from multicard.config.job import count
from multicard.messages import Message
from multicard.records.text_table import clean, first_few

from ..experiments import Experiment, Panel
from ..runs import grouping
from ..runs.columns import KINDS
from ..runs.load import Run
from ..stats.between_runs import REMEDY
from .comparison import EXCEEDS, FAILS, UNDECIDED, UNMEASURED, RuleComparison
from .rule_cells import UNLUCKY
from .verdicts import ClaimFigure

NO_RUNS = Message("claim.no-runs", "no runs of these cells")
MAX_NAMED = 3  # The most comparisons, or cells, that a line names.


def explain_verdict(
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


def describe_lost_cells(panel: Panel) -> tuple[str, ...]:
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


def describe_setting(experiment: Experiment, runs: Sequence[Run]) -> str:
    """Say which setting some runs have, and on which machines and commits they ran."""
    keys = [
        key
        for key in KINDS[experiment.kind].setting
        if key not in experiment.swept and runs[0][key] is not None
    ]
    setting = grouping.label(tuple((key, runs[0][key]) for key in keys), keys)
    places = sorted({f"{run['hardware'] or '-'}, {grouping.commit(run)}" for run in runs})
    return clean(f"{setting} on {' and '.join(places)}")
