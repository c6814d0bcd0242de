"""Conditions under which a comparison of times, or of what was learned, says something of a claim.

Each side learned, did the same work, and had the same share of its machine. Where one of these is
not so, a reader sees through the figure at once, and the comparison is undecided with the reason.
What others did to a run meanwhile is a limit of its record (`multicard.records.limits`),
and is no matter of these.

A rule that is about such a difference names it as `by_design`: with DDP, more GPUs do more work.
What is counted (bytes, samples, memory) is so whatever was learned, and has no conditions.
"""

import math
from collections.abc import Collection, Sequence
from itertools import chain
from typing import Literal

from multicard.messages import Message
from multicard.records import steps
from multicard.records.limits import Forbids
from multicard.records.schema import LlmRecord, VisionRecord

from ..runs import details, grouping
from ..runs.grouping import ACCURACY
from ..runs.load import Run
from ..runs.quality import LOSS_APART, is_less
from ..runs.works import LEFT_OUT
from ..stats.between_runs import RepeatedRuns
from .comparison import FAILS, ComparedCell, Readings, RuleComparison
from .measures import Measure

Condition = Literal["learning", "work", "cores"]
LEAST_STEP_S = 1e-5  # of training: to launch its kernels alone takes longer
FIRST_SHARE = 10  # of the steps a tenth is the beginning, as a tenth is the end


def doubts(
    comparison: RuleComparison,
    measures: Sequence[Measure],
    by_design: Collection[Condition],
    readings: Readings,
    repeated: RepeatedRuns,
) -> list[Message]:
    """Why a comparison decides nothing, whatever its figure is; empty where it may decide.

    Args:
        measures: what is compared.
        by_design: what the sides have otherwise by design.
        repeated: how runs of one setting differ.
    """
    forbidden = set()
    for measure in measures:
        forbidden.update(measure.forbidden)
    is_timed = Forbids.rate in forbidden
    sides = comparison.sides
    if not forbidden or not sides:
        return []
    found: list[Message] = []
    if "learning" not in by_design:
        for side in sides:
            found.extend(_unlearned(side, readings, repeated))
    if "work" not in by_design and any(measure.of_whole_runs for measure in measures):
        found += _other_work(sides)
    if "cores" not in by_design and is_timed:
        found += _other_share(sides)
    if is_timed:
        for side in sides:
            found.extend(_impossible(side, readings))
    if any(measure.of_profile for measure in measures):
        found += _other_profiler(sides, readings)
    return found


def refutes(
    comparison: RuleComparison, verdict: str, measures: Sequence[Measure], found: Sequence[Message]
) -> bool:
    """True where what was learned refutes a claim although a side
    learned nothing: that side is what the claim denies.

    "Accuracy does not deteriorate" fails where one side alone is at chance;
    two such sides show nothing of each other.
    """
    of_learning = all(measure.forbidden == {Forbids.learning} for measure in measures)
    unlearned = {doubt.facts["cell"] for doubt in found if doubt.code in UNLEARNED}
    others = [doubt for doubt in found if doubt.code not in UNLEARNED]
    is_shown = len(comparison.sides) == 1 or len(unlearned) < len(
        {side.label for side in comparison.sides}
    )
    return verdict == FAILS and of_learning and not others and is_shown


# What a side learned

UNLEARNED = {"claim.at-chance", "claim.losses-not-finite", "claim.losses-did-not-fall"}


def _unlearned(side: ComparedCell, readings: Readings, repeated: RepeatedRuns) -> list[Message]:
    """Why nothing says that the runs of a cell learned; none where its records do not tell."""
    if repeated.at_chance(side.runs):
        accuracy = grouping.of_setting(side.runs, ACCURACY) or 0.0
        said = f"{side.label}: an accuracy of {accuracy:.1%} is at chance level"
        return [Message("claim.at-chance", said, cell=side.label, accuracy=accuracy)]
    for run in side.runs:
        lost = _not_finite(run, readings)
        if lost:
            said = f"{side.label}: losses that are no numbers, in {lost} of its steps or epochs"
            return [Message("claim.losses-not-finite", said, cell=side.label, count=lost)]
        ends = _first_and_last(run, readings)
        if (
            ends is not None
            and not is_less(ends[1], ends[0])
            and not details.held_out_loss_fell(run)
        ):
            first, last = ends
            said = (
                f"{side.label}: its loss did not fall by over {LOSS_APART:.0%} ({first:.3g} to"
                f" {last:.3g})"
            )
            return [
                Message("claim.losses-did-not-fall", said, cell=side.label, first=first, last=last)
            ]
    return []


def _not_finite(run: Run, readings: Readings) -> int:
    """The number of steps whose loss was no number, or else of epochs."""
    record = readings.record(run)
    losses = [epoch.train_loss for epoch in getattr(record, "epochs", ())]
    of_epochs = sum(loss is None or not math.isfinite(loss) for loss in losses)
    is_told = of_epochs < len(losses)
    return (record.non_finite_losses or 0) or (of_epochs if is_told else 0)


def _first_and_last(run: Run, readings: Readings) -> tuple[float, float] | None:
    """The loss at the beginning of a run and at its end;
    None where its record has no two of them.
    """
    record = readings.record(run)
    if isinstance(record, VisionRecord):
        losses = [epoch.train_loss for epoch in record.epochs if epoch.train_loss is not None]
        return (losses[0], losses[-1]) if len(losses) > 1 else None
    if not isinstance(record, LlmRecord) or record.loss is None:
        return None
    first = record.loss.first
    last = record.loss.mean_of_last_tenth
    if first is None or last is None:
        return None
    # One step's loss may be low by luck
    return (first, last) if is_less(last, first) else (_first_tenth(run, readings) or first, last)


def _first_tenth(run: Run, readings: Readings) -> float | None:
    """The mean loss of a run's first steps; None without a file of them."""
    try:
        rows = steps.table(run.folder, readings.record(run))
    except (OSError, ValueError):
        return None
    if "loss" not in rows.column_names:
        return None
    losses = rows["loss"].to_numpy()[rows["rank"].to_numpy() == 0]
    return float(losses[: max(1, len(losses) // FIRST_SHARE)].mean()) if len(losses) else None


# What it did


def _other_work(sides: Sequence[ComparedCell]) -> list[Message]:
    """Samples that were trained on, each time that one was, and those of an evaluation."""
    found = []
    for column, of_what in (("samples_trained", "trained on"), ("test_samples", "evaluated")):
        amounts = []
        for side in sides:
            amounts.extend(run[column] for run in side.runs)
        known = [amount for amount in amounts if amount is not None]
        if known and min(known) < max(known) * (1 - LEFT_OUT):
            least = min(known)
            most = max(known)
            said = f"its sides did not do as much: {least:,} and {most:,} samples {of_what}"
            found.append(Message("claim.other-work", said, column=column, least=least, most=most))
    return found


def _other_share(sides: Sequence[ComparedCell]) -> list[Message]:
    """Cores of a node, threads, and other runs of the sweep beside it."""
    runs = list(chain.from_iterable(side.runs for side in sides))
    found = []
    for what in ("cores", "threads"):
        known = [run for run in runs if run[what] is not None]
        if not _have_as_many(known, what):
            values = sorted({run[what] for run in known})
            said = f"its sides had different {what}: {' or '.join(map(str, values))}"
            found.append(Message("claim.other-cores", said, what=what, values=values))
    if len({bool(run["beside_others"]) for run in runs}) > 1:
        found.append(
            Message("claim.beside-others", "one side alone ran beside other runs of its sweep")
        )
    return found


def _have_as_many(runs: Sequence[Run], what: Literal["cores", "threads"]) -> bool:
    """True where nodes have as many, or ranks do: more GPUs bring cores along,
    or share those there are.
    """
    counts = [run["gpus"] or 1 for run in runs]
    if what == "threads":  # of a rank
        of_ranks = [run[what] for run in runs]
        of_nodes = [threads * count for threads, count in zip(of_ranks, counts, strict=True)]
    else:
        of_nodes = [run[what] for run in runs]
        of_ranks = [cores / count for cores, count in zip(of_nodes, counts, strict=True)]
    if len({*of_nodes}) < 2 or len({*of_ranks}) < 2:
        return True
    # 16 cores are 5 threads for each of 3 ranks
    return len({*counts}) > 1 and max(of_nodes) - min(of_nodes) < max(counts)


def _impossible(side: ComparedCell, readings: Readings) -> list[Message]:
    for run in side.runs:
        record = readings.record(run)
        total_s = run["total_s"]
        count = sum(epoch.steps or 0 for epoch in getattr(record, "epochs", ()))
        if count and total_s is not None and total_s < count * LEAST_STEP_S:
            step_s = total_s / count
            said = f"{side.label}: steps of {step_s:.1g} s cannot be"
            return [Message("claim.impossible-time", said, cell=side.label, step_s=step_s)]
    return []


def _other_profiler(sides: Sequence[ComparedCell], readings: Readings) -> list[Message]:
    profiles = []
    for side in sides:
        profiles.extend(readings.record(run).profile for run in side.runs)
    sources = sorted(
        {f"{one.source} {one.window or 'after'}" for one in profiles if one and one.source}
    )
    if len(sources) < 2:
        return []
    said = f"its sides were profiled differently: {' and '.join(sources)}"
    return [Message("claim.other-profiler", said, sources=sources)]
