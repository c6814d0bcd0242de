"""The time of a cell's step, estimated from the known cells.

A cell that ran is its own best prediction (`measured`, `probed`). Otherwise a path leads from a
known cell to the wanted cell, axis by axis. The log step of the known cell and the effects of the
differing axes add up, and so do their variances (`_across_axis`). If no cell has the wanted number
of GPUs, `scaling` derives it from T(1) and T(2). The path with the least variance counts. An
axis without a known effect ends its path. A cell without a path is unknown.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain

from multicard.config import schema
from multicard.config.job import count
from multicard.estimate.observations import (
    CPU_SD,
    GPUS,
    NORMAL_90,
    PRINTED_SD,
    Basis,
    Cell,
    StepEstimate,
    StepObservation,
    axes,
    cells,
    differences,
    range_of_busy_shares,
    unique_marks,
    without,
)
from multicard.estimate.scaling import PUBLISHED, Growth, cells_on_gpus, doubt
from multicard.machine import gpu_models
from multicard.measure import repeated_runs
from multicard.messages import Message

OBSERVATION_NAMES = {
    Basis.measured: "run",
    Basis.probed: "probe",
    Basis.published: "published figure",
}
MOST_CROSSED = 4  # Cells that differ in more axes are not similar enough.
MOST_CELLS = 64  # Only paths from this number of the nearest cells are tried.
# Standard deviation of log(effect of an axis in one cell / effect of the axis in another cell).
INTERACTION_SD = 0.05
# Added if the effect was measured on another number of GPUs: the exchange has another share there.
OTHER_GPUS_SD = 0.10
# Standard deviation of the exponent with which a step grows with its images, if no pair shows it.
BATCH_SD = 0.25
Pair = tuple[StepEstimate, StepEstimate]
# Maps an axis, its two values and a number of GPUs to the pairs of cells nearest to the wanted one.
Pairs = Callable[[str, str | None, str | None, str | None], list[Pair]]


def step(
    setting: Mapping[str, str],
    machine: str,
    commit: str | None,
    observations: Sequence[StepObservation],
    growth: Growth = PUBLISHED,
) -> StepEstimate | None:
    """Estimate a step of `setting` on `machine`, or return None if no path leads to it.

    Args:
        observations: of this machine, and published ones for the same GPU. Others are ignored.
            Marked ones count only if the unmarked ones of this machine give no estimate.
        growth: the model of a step's growth beyond two GPUs.
    """
    usable = [
        observation
        for observation in observations
        if observation.basis is Basis.published or observation.machine == machine
    ]
    unmarked = [observation for observation in usable if not observation.marks]
    estimated = _step(setting, machine, commit, unmarked, growth)
    if len(unmarked) == len(usable) or (estimated is not None and estimated.basis.is_own):
        return estimated
    return _step(setting, machine, commit, usable, growth) or estimated


def _step(
    setting: Mapping[str, str],
    machine: str,
    commit: str | None,
    observations: Sequence[StepObservation],
    growth: Growth,
) -> StepEstimate | None:
    device = setting.get("device")
    on_gpu = device == '"cuda"' or (device != '"cpu"' and gpu_models.is_gpu(machine))
    wanted = axes(setting)
    known_cells = cells(observations, commit, repeated_runs.PRIOR_SD if on_gpu else CPU_SD)
    same_cells = [cell for cell in known_cells if not differences(cell.setting, wanted)]
    if same_cells:
        best = min(same_cells, key=lambda cell: (cell.published, cell.variance))
        kind = OBSERVATION_NAMES[best.basis]
        words = f"{count(best.runs, kind)} of this cell"
        sentence = f"{words}, {best.about}" if best.about else words
        return replace(
            best,
            about=Message(
                "estimate.of-cell", sentence, runs=best.runs, kind=kind, about=best.about
            ),
        )
    known_cells += cells_on_gpus(known_cells, int(wanted.get(GPUS, "1")), growth, on_gpu)
    pairs = _pairs(known_cells, wanted)
    by_distance = sorted(
        ((len(differences(cell.setting, wanted)), cell) for cell in known_cells),
        key=lambda item: item[0],
    )
    nearest = [cell for distance, cell in by_distance if distance <= MOST_CROSSED][:MOST_CELLS]
    ways = [
        way for cell in nearest if (way := _along_axes(cell, wanted, pairs, on_gpu)) is not None
    ]
    if not ways:
        return None
    best = min(ways, key=lambda way: (way.published, sum(way.sides)))
    return best if best.published else replace(best, basis=Basis.scaled)


def _pairs(known_cells: Sequence[StepEstimate], wanted: Mapping[str, str]) -> Pairs:
    """Return a function that finds the pairs of cells nearest to `wanted`.

    The cells of a pair are of one machine and differ in one axis only. Measured pairs are
    preferred to published ones.
    """

    @cache
    def lines(axis: str) -> list[dict[str | None, StepEstimate]]:
        """Return groups of cells that differ in the axis only, keyed by its value."""
        by_rest: dict[Cell, dict[str | None, StepEstimate]] = {}
        for cell in known_cells:
            by_rest.setdefault((cell.machine, without(cell.setting, axis)), {})[
                cell.setting.get(axis)
            ] = cell
        return [line for line in by_rest.values() if len(line) > 1]

    @cache
    def nearest(axis: str, before: str | None, after: str | None, gpus: str | None) -> list[Pair]:
        ends = [
            (line[before], line[after]) for line in lines(axis) if before in line and after in line
        ]
        setting = {**wanted, GPUS: gpus or "1"}
        distances = [
            (a.published, len(differences(dict(without(a.setting, axis)), setting)))
            for a, _ in ends
        ]
        return [
            pair
            for pair, distance in zip(ends, distances, strict=True)
            if distance == min(distances)
        ]

    return nearest


def _along_axes(
    cell: StepEstimate, wanted: Mapping[str, str], pairs: Pairs, adds: bool
) -> StepEstimate | None:
    """Derive the wanted cell from a known one, or None if an axis has no known effect.

    Args:
        adds: see `_across_axis`.
    """
    # The number of GPUs comes last, because its effect adds to the step on one GPU.
    axes_to_cross = sorted(differences(cell.setting, wanted), key=lambda axis: axis == GPUS)
    reached: StepEstimate | None = cell
    for axis in axes_to_cross:
        reached = reached and _across_axis(reached, axis, wanted, pairs, adds)
    return reached


def _across_axis(
    source: StepEstimate, axis: str, wanted: Mapping[str, str], nearest: Pairs, adds: bool
) -> StepEstimate | None:
    """Move the source to the wanted value of an axis, or return None if the effect is unknown.

    The effect is the mean over the nearest pairs of cells that differ in this axis only. Effects
    differ between cells, which is part of the variance (INTERACTION_SD counts as one more pair).
    A single pair of this machine may be an exception. The interval then reaches from no effect to
    twice the effect, as logarithms. More GPUs never make a step shorter, even if they did in the
    pairs.

    Args:
        adds: True if more GPUs add seconds to a step instead of a share of it. GPUs add the
            exchange, whose time does not depend on the precision. CPU ranks share their cores, so
            that the whole step grows.
    """
    before = source.setting.get(axis)
    after = wanted.get(axis)
    # The number of GPUs is crossed last, so the pairs have the source's number.
    pairs = nearest(axis, before, after, source.setting.get(GPUS))
    if not pairs:
        return _in_proportion(source, axis, before, after)
    is_published = pairs[0][0].published
    adds_gpus = adds and axis == GPUS
    count = len(pairs)
    ratios = [b.log_s - a.log_s for a, b in pairs]
    if adds_gpus and not is_published:  # Published times may be per sample instead of per step.
        source_s = math.exp(source.log_s)
        totals_s = [source_s + math.exp(b.log_s) - math.exp(a.log_s) for a, b in pairs]
        ratios = [math.log(max(total_s / source_s, 0.1)) for total_s in totals_s]
    mean = math.fsum(ratios) / count
    effect_variance = (
        INTERACTION_SD**2 + math.fsum((ratio - mean) ** 2 for ratio in ratios)
    ) / count
    if adds and axis != GPUS and all(a.gpus != source.gpus for a, _ in pairs):
        effect_variance += OTHER_GPUS_SD**2
    # The seconds of an exchange carry over from a single pair.
    if count == 1 and not is_published and not adds_gpus:
        effect_variance += (mean / NORMAL_90) ** 2
    cells = list(chain.from_iterable(pairs))
    marks = [cell.marks for cell in cells]
    if axis == GPUS and _is_count(before) and _is_count(after):
        clipped_mean = max(mean, 0.0) if int(after or 1) > int(before or 1) else min(mean, 0.0)
        effect_variance += (mean - clipped_mean) ** 2
        marks.append(doubt(mean - clipped_mean))
        mean = clipped_mean
    measured_variance = (
        math.fsum(_cell_variance(a) + _cell_variance(b) for a, b in pairs) / count**2
    )
    about = _pairs_message(axis, before, after, len(pairs), is_published)
    # The effect may differ between the pairs and the wanted cell as it does between pairs.
    reached = _moved(source, mean, effect_variance * (1 + 1 / count) + measured_variance, about)
    load_variance = (
        source.load_variance + math.fsum(cell.load_variance for cell in cells) / count**2
    )
    busy_shares = range_of_busy_shares([source, *cells])
    reached = replace(reached, busy_shares=busy_shares, load_variance=load_variance)
    runs = source.runs + sum(a.runs + b.runs for a, b in pairs)
    basis = Basis.published if is_published else source.basis
    return replace(reached, runs=runs, basis=basis, marks=unique_marks([source.marks, *marks]))


def _pairs_message(
    axis: str, before: str | None, after: str | None, pairs: int, printed: bool
) -> Message:
    step = f"{axis} {before} -> {after}".replace('"', "")
    sentence = f"{step} by {count(pairs, 'pair')} of cells{' printed' if printed else ''}"
    return Message("estimate.by-pairs", sentence, axis=axis, pairs=pairs, printed=printed)


def _in_proportion(
    source: StepEstimate, axis: str, before: str | None, after: str | None
) -> StepEstimate | None:
    power = schema.power(axis)
    if power is None or not (_is_count(before) and _is_count(after)):
        return None
    log_ratio = power * math.log(int(after or 1) / int(before or 1))
    about = Message(
        "estimate.in-proportion", f"{axis} {before} -> {after} in proportion", axis=axis
    )
    return _moved(source, log_ratio, (BATCH_SD * log_ratio) ** 2, about)


def _moved(source: StepEstimate, log_ratio: float, variance: float, about: str) -> StepEstimate:
    words = "; ".join(filter(None, (source.about, about)))
    return replace(
        source, log_s=source.log_s + log_ratio, variance=source.variance + variance, about=words
    )


def _cell_variance(cell: StepEstimate) -> float:
    """Return the variance with the mean of both sides included.

    Leave out the part that is common to all published cells of a node.
    """
    variance = max(cell.variance - PRINTED_SD**2, 0.0) if cell.published else cell.variance
    return variance + ((cell.below + cell.above) / 2 / NORMAL_90) ** 2


def _is_count(value: str | None) -> bool:
    return value is not None and value.isdecimal() and int(value) > 0
