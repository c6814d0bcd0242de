"""Duration of a cell's step, from the cells that are known.

A cell that ran is its own best prediction (`measured`, `probed`). Otherwise a way leads from a cell
that ran to the wanted one, axis by axis: log step = log step of that cell + the effects of the axes
in which the two differ, with variances that add (`_crossed`). A number of GPUs that no cell has
comes from T(1) and T(2) (`scaling`). Of all cells that ran, the one with the least variance of its
way counts. An axis without known effect ends the way; a cell to which no way leads is unknown.
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
    joined,
    spanned_busy,
    without,
)
from multicard.estimate.scaling import PUBLISHED, Growth, doubt, grown
from multicard.machine import gpu_models
from multicard.measure import repeated_runs
from multicard.messages import Message

KINDS = {Basis.measured: "run", Basis.probed: "probe", Basis.published: "published figure"}
MOST_CROSSED = 4  # axes; with more the cells are not alike
MOST_CELLS = 64  # from which a way is sought
INTERACTION_SD = 0.05  # of the logarithm of the effect of an axis in one cell over that in another
# in addition, for an effect on other GPUs, where the exchange has another share of the step
OTHER_GPUS_SD = 0.10
# of the exponent with which a step grows with its images, where no pair of cells shows it
BATCH_SD = 0.25
# From an axis, its two values and a number of GPUs to the pairs of cells nearest to the wanted one
Pair = tuple[StepEstimate, StepEstimate]
Pairs = Callable[[str, str | None, str | None, str | None], list[Pair]]


def step(
    setting: Mapping[str, str],
    machine: str,
    commit: str | None,
    observations: Sequence[StepObservation],
    growth: Growth = PUBLISHED,
) -> StepEstimate | None:
    """A step of `setting` on `machine`; None where nothing tells it.

    Args:
        observations: of this machine, and printed ones of the same GPU; others are ignored. Marked
            ones count where those without marks tell nothing of this machine.
        growth: of a step beyond two GPUs.
    """
    seen = [
        item for item in observations if item.basis is Basis.published or item.machine == machine
    ]
    clean = [item for item in seen if not item.marks]
    estimated = _step(setting, machine, commit, clean, growth)
    if len(clean) == len(seen) or (estimated is not None and estimated.basis.is_own):
        return estimated
    return _step(setting, machine, commit, seen, growth) or estimated


def _step(
    setting: Mapping[str, str],
    machine: str,
    commit: str | None,
    seen: Sequence[StepObservation],
    growth: Growth,
) -> StepEstimate | None:
    device = setting.get("device")
    on_gpu = device == '"cuda"' or (device != '"cpu"' and gpu_models.is_gpu(machine))
    wanted = axes(setting)
    known = cells(seen, commit, repeated_runs.PRIOR_SD if on_gpu else CPU_SD)
    same = [cell for cell in known if not differences(cell.setting, wanted)]
    if same:
        best = min(same, key=lambda cell: (cell.published, cell.variance))
        kind = KINDS[best.basis]
        words = f"{count(best.runs, kind)} of this cell"
        sentence = f"{words}, {best.about}" if best.about else words
        return replace(
            best,
            about=Message(
                "estimate.of-cell", sentence, runs=best.runs, kind=kind, about=best.about
            ),
        )
    known += grown(known, int(wanted.get(GPUS, "1")), growth, on_gpu)
    pairs = _pairs(known, wanted)
    apart = sorted(
        ((len(differences(cell.setting, wanted)), cell) for cell in known), key=lambda pair: pair[0]
    )
    nearest = [cell for distance, cell in apart if distance <= MOST_CROSSED][:MOST_CELLS]
    ways = [way for cell in nearest if (way := _walked(cell, wanted, pairs, on_gpu)) is not None]
    if not ways:
        return None
    best = min(ways, key=lambda way: (way.published, sum(way.sides)))
    return best if best.published else replace(best, basis=Basis.scaled)


def _pairs(known: Sequence[StepEstimate], wanted: Mapping[str, str]) -> Pairs:
    """Pairs of cells of one machine that differ in one axis alone, nearest to `wanted`;
    printed ones last.
    """

    @cache
    def lines(axis: str) -> list[dict[str | None, StepEstimate]]:
        """Cells that differ in the axis alone, by their values of it."""
        found: dict[Cell, dict[str | None, StepEstimate]] = {}
        for cell in known:
            found.setdefault((cell.machine, without(cell.setting, axis)), {})[
                cell.setting.get(axis)
            ] = cell
        return [line for line in found.values() if len(line) > 1]

    @cache
    def nearest(axis: str, before: str | None, after: str | None, gpus: str | None) -> list[Pair]:
        ends = [
            (line[before], line[after]) for line in lines(axis) if before in line and after in line
        ]
        alike = {**wanted, GPUS: gpus or "1"}
        distances = [
            (a.published, len(differences(dict(without(a.setting, axis)), alike))) for a, _ in ends
        ]
        return [
            pair
            for pair, distance in zip(ends, distances, strict=True)
            if distance == min(distances)
        ]

    return nearest


def _walked(
    cell: StepEstimate, wanted: Mapping[str, str], pairs: Pairs, adds: bool
) -> StepEstimate | None:
    """The wanted cell by a known one; None where they differ in an axis without known effect."""
    # it needs the step on one GPU
    differ = sorted(differences(cell.setting, wanted), key=lambda axis: axis == GPUS)
    reached: StepEstimate | None = cell
    for axis in differ:
        reached = reached and _crossed(reached, axis, wanted, pairs, adds)
    return reached


def _crossed(
    source: StepEstimate, axis: str, wanted: Mapping[str, str], nearest: Pairs, adds: bool
) -> StepEstimate | None:
    """The source with an axis at its wanted value; None where nothing tells the effect.

    The effect is the mean over the nearest pairs of cells that differ in this axis alone. Its
    difference between cells is part of the variance (INTERACTION_SD, which counts as one more
    pair). A single pair of this machine may be the
    exception: the interval then reaches from no effect to twice the effect, as logarithms. More
    GPUs never make a step shorter, even where they did in the pairs.

    Args:
        adds: True where more GPUs add seconds to a step, the exchange, and not a share of it: so on
            GPUs, where another precision saves seconds of computing and none of the exchange. CPU
            ranks share their cores: all of the step grows.
    """
    before = source.setting.get(axis)
    after = wanted.get(axis)
    # the number of GPUs is crossed last
    pairs = nearest(axis, before, after, source.setting.get(GPUS))
    if not pairs:
        return _in_proportion(source, axis, before, after)
    printed = pairs[0][0].published
    adds_gpus = adds and axis == GPUS
    count = len(pairs)
    ratios = [b.log_s - a.log_s for a, b in pairs]
    if adds_gpus and not printed:  # printed times may be those of a sample
        source_s = math.exp(source.log_s)
        totals_s = [source_s + math.exp(b.log_s) - math.exp(a.log_s) for a, b in pairs]
        ratios = [math.log(max(total_s / source_s, 0.1)) for total_s in totals_s]
    mean = math.fsum(ratios) / count
    between = (INTERACTION_SD**2 + math.fsum((ratio - mean) ** 2 for ratio in ratios)) / count
    if adds and axis != GPUS and all(a.gpus != source.gpus for a, _ in pairs):
        between += OTHER_GPUS_SD**2
    if count == 1 and not printed and not adds_gpus:  # the seconds of an exchange carry over
        between += (mean / NORMAL_90) ** 2
    cells = list(chain.from_iterable(pairs))
    marks = [cell.marks for cell in cells]
    if axis == GPUS and _is_count(before) and _is_count(after):
        linear = max(mean, 0.0) if int(after or 1) > int(before or 1) else min(mean, 0.0)
        between += (mean - linear) ** 2
        marks.append(doubt(mean - linear))
        mean = linear
    measured = math.fsum(_own_variance(a) + _own_variance(b) for a, b in pairs) / count**2
    about = _by_pairs(axis, before, after, len(pairs), printed)
    # Between one pair's cell and the wanted one is an interaction as well as between pairs
    reached = _moved(source, mean, between * (1 + 1 / count) + measured, about)
    slowed = math.fsum(cell.slowed for cell in cells) / count**2
    busy = spanned_busy([source, *cells])
    reached = replace(reached, busy=busy, slowed=source.slowed + slowed)
    runs = source.runs + sum(a.runs + b.runs for a, b in pairs)
    basis = Basis.published if printed else source.basis
    return replace(reached, runs=runs, basis=basis, marks=joined([source.marks, *marks]))


def _by_pairs(
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


def _own_variance(cell: StepEstimate) -> float:
    """The variance with both sides in the mean,
    without what is common to all printed cells of a node.
    """
    own = max(cell.variance - PRINTED_SD**2, 0.0) if cell.published else cell.variance
    return own + ((cell.below + cell.above) / 2 / NORMAL_90) ** 2


def _is_count(value: str | None) -> bool:
    return value is not None and value.isdecimal() and int(value) > 0
