"""Conditions that both sides must meet, so that a comparison of times or learning shows something.

Each side must have learned, done the same amount of work, and had the same share of its machine. If
one of these is violated, the comparison is undecided, with the reason. Disturbance by other
processes is handled elsewhere, as a limit of the run's record (`multicard.records.limits`).

A rule that is about such a difference names it in `by_design`: with DDP, more GPUs do more work.
Counted figures (bytes, samples, memory) do not depend on what was learned, and have no conditions.
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
from ..runs.works import MAX_LEFT_OUT
from ..stats.between_runs import RepeatedRuns
from .comparison import FAILS, ComparedCell, Readings, RuleComparison
from .measures import Measure

Condition = Literal["learning", "work", "cores"]
LEAST_STEP_S = 1e-5  # No training step is shorter: launching its kernels alone takes longer.
FIRST_SHARE = 10  # The first tenth of the steps is the beginning, as the last tenth is the end.


def doubts(
    comparison: RuleComparison,
    measures: Sequence[Measure],
    by_design: Collection[Condition],
    readings: Readings,
    repeated: RepeatedRuns,
) -> list[Message]:
    """Return why a comparison decides nothing, whatever its figure is; empty if it may decide.

    Args:
        comparison: the comparison to check.
        measures: the measures that are compared.
        by_design: conditions that the sides need not meet, because they differ there by design.
        readings: the records of the runs.
        repeated: how repeated runs of one setting differ.
    """
    forbidden_uses = set()
    for measure in measures:
        forbidden_uses.update(measure.forbidden)
    is_timed = Forbids.rate in forbidden_uses
    sides = comparison.sides
    if not forbidden_uses or not sides:
        return []
    reasons: list[Message] = []
    if "learning" not in by_design:
        for side in sides:
            reasons.extend(_why_not_learned(side, readings, repeated))
    if "work" not in by_design and any(measure.of_whole_runs for measure in measures):
        reasons += _different_work(sides)
    if "cores" not in by_design and is_timed:
        reasons += _different_share(sides)
    if is_timed:
        for side in sides:
            reasons.extend(_impossible_times(side, readings))
    if any(measure.of_profile for measure in measures):
        reasons += _different_profilers(sides, readings)
    return reasons


def refutes(
    comparison: RuleComparison,
    verdict: str,
    measures: Sequence[Measure],
    doubts_found: Sequence[Message],
) -> bool:
    """Return True if a comparison refutes a claim about learning although one side learned nothing.

    Such a side is exactly what the claim denies: "accuracy does not deteriorate" fails if one side
    is at chance. If both sides are at chance, the comparison shows nothing.
    """
    of_learning = all(measure.forbidden == {Forbids.learning} for measure in measures)
    unlearned = {doubt.facts["cell"] for doubt in doubts_found if doubt.code in UNLEARNED_CODES}
    other_doubts = [doubt for doubt in doubts_found if doubt.code not in UNLEARNED_CODES]
    is_shown = len(comparison.sides) == 1 or len(unlearned) < len(
        {side.label for side in comparison.sides}
    )
    return verdict == FAILS and of_learning and not other_doubts and is_shown


# Did each side learn?

UNLEARNED_CODES = {"claim.at-chance", "claim.losses-not-finite", "claim.losses-did-not-fall"}


def _why_not_learned(
    side: ComparedCell, readings: Readings, repeated: RepeatedRuns
) -> list[Message]:
    """Return why the runs of a cell did not learn; empty if they did, or if records cannot tell."""
    if repeated.at_chance(side.runs):
        accuracy = grouping.of_setting(side.runs, ACCURACY) or 0.0
        text = f"{side.label}: an accuracy of {accuracy:.1%} is at chance level"
        return [Message("claim.at-chance", text, cell=side.label, accuracy=accuracy)]
    for run in side.runs:
        not_finite = _count_not_finite(run, readings)
        if not_finite:
            text = f"{side.label}: the loss is not finite in {not_finite} of its steps or epochs"
            return [Message("claim.losses-not-finite", text, cell=side.label, count=not_finite)]
        ends = _first_and_last(run, readings)
        if (
            ends is not None
            and not is_less(ends[1], ends[0])
            and not details.held_out_loss_fell(run)
        ):
            first, last = ends
            text = (
                f"{side.label}: its loss did not fall by more than {LOSS_APART:.0%} ({first:.3g} to"
                f" {last:.3g})"
            )
            return [
                Message("claim.losses-did-not-fall", text, cell=side.label, first=first, last=last)
            ]
    return []


def _count_not_finite(run: Run, readings: Readings) -> int:
    """Count the steps whose loss was not finite, or else the epochs."""
    record = readings.record(run)
    if record.non_finite_losses:
        return record.non_finite_losses
    losses = [epoch.train_loss for epoch in getattr(record, "epochs", ())]
    not_finite = sum(loss is None or not math.isfinite(loss) for loss in losses)
    # If no epoch has a finite loss, the run may have recorded none at all.
    return not_finite if not_finite < len(losses) else 0


def _first_and_last(run: Run, readings: Readings) -> tuple[float, float] | None:
    """Return a run's loss at its beginning and at its end, or None if its record lacks one."""
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
    # The loss of one step may be low by chance, so compare with the mean of the first tenth.
    return (first, last) if is_less(last, first) else (_first_tenth(run, readings) or first, last)


def _first_tenth(run: Run, readings: Readings) -> float | None:
    """Return the mean loss over the first tenth of a run's steps, or None without their file."""
    try:
        rows = steps.steps_table(run.folder, readings.record(run))
    except (OSError, ValueError):
        return None
    if "loss" not in rows.column_names:
        return None
    losses = rows["loss"].to_numpy()[rows["rank"].to_numpy() == 0]
    return float(losses[: max(1, len(losses) // FIRST_SHARE)].mean()) if len(losses) else None


# Did both sides do the same work, with the same share of the machine?


def _different_work(sides: Sequence[ComparedCell]) -> list[Message]:
    """Compare the numbers of samples that were trained on, with repetitions, and evaluated."""
    reasons = []
    for column, of_what in (("samples_trained", "trained on"), ("test_samples", "evaluated")):
        amounts = []
        for side in sides:
            amounts.extend(run[column] for run in side.runs)
        known_amounts = [amount for amount in amounts if amount is not None]
        if known_amounts and min(known_amounts) < max(known_amounts) * (1 - MAX_LEFT_OUT):
            least = min(known_amounts)
            most = max(known_amounts)
            text = (
                f"its sides did different amounts of work: {least:,} and {most:,} samples {of_what}"
            )
            reasons.append(Message("claim.other-work", text, column=column, least=least, most=most))
    return reasons


def _different_share(sides: Sequence[ComparedCell]) -> list[Message]:
    """Compare cores, threads, and whether other runs of the sweep ran at the same time."""
    runs = list(chain.from_iterable(side.runs for side in sides))
    reasons = []
    for column in ("cores", "threads"):
        known_runs = [run for run in runs if run[column] is not None]
        if not _have_as_many(known_runs, column):
            values = sorted({run[column] for run in known_runs})
            text = f"its sides had different {column}: {' or '.join(map(str, values))}"
            reasons.append(Message("claim.other-cores", text, what=column, values=values))
    if len({bool(run["beside_others"]) for run in runs}) > 1:
        reasons.append(
            Message("claim.beside-others", "only one side ran beside other runs of its sweep")
        )
    return reasons


def _have_as_many(runs: Sequence[Run], column: Literal["cores", "threads"]) -> bool:
    """Return True if all nodes, or all ranks, have the same number of cores or threads.

    More GPUs may either bring more cores, or share the cores of the node.
    """
    counts = [run["gpus"] or 1 for run in runs]
    if column == "threads":  # Records count threads per rank, and cores per node.
        of_ranks = [run[column] for run in runs]
        of_nodes = [threads * count for threads, count in zip(of_ranks, counts, strict=True)]
    else:
        of_nodes = [run[column] for run in runs]
        of_ranks = [cores / count for cores, count in zip(of_nodes, counts, strict=True)]
    if len({*of_nodes}) < 2 or len({*of_ranks}) < 2:
        return True
    # Cores may not divide evenly: 16 cores are 5 threads for each of 3 ranks.
    return len({*counts}) > 1 and max(of_nodes) - min(of_nodes) < max(counts)


def _impossible_times(side: ComparedCell, readings: Readings) -> list[Message]:
    """Return a message if a run's steps are shorter than any training step can be."""
    for run in side.runs:
        record = readings.record(run)
        total_s = run["total_s"]
        count = sum(epoch.steps or 0 for epoch in getattr(record, "epochs", ()))
        if count and total_s is not None and total_s < count * LEAST_STEP_S:
            step_s = total_s / count
            text = f"{side.label}: steps of {step_s:.1g} s are impossible"
            return [Message("claim.impossible-time", text, cell=side.label, step_s=step_s)]
    return []


def _different_profilers(sides: Sequence[ComparedCell], readings: Readings) -> list[Message]:
    """Return a message if the sides were profiled by different tools or over different windows."""
    profiles = []
    for side in sides:
        profiles.extend(readings.record(run).profile for run in side.runs)
    sources = sorted(
        {
            f"{profile.source} {profile.window or 'after'}"
            for profile in profiles
            if profile and profile.source
        }
    )
    if len(sources) < 2:
        return []
    text = f"its sides were profiled differently: {' and '.join(sources)}"
    return [Message("claim.other-profiler", text, sources=sources)]
