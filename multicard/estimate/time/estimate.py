"""How long a step of a cell will take, from what is known of others.

A cell that ran is its own best prediction (`measured`, `probed`). Else the way from a cell that ran to the wanted one
is walked axis by axis, log step = log step of that cell + the sum of the effects of the axes in which they differ,
with variances that add (`known.effect`). A number of GPUs that no cell has comes from T(1) and T(2) (`scaling`). Of all
cells that ran, the one counts from which the way has the least variance. An axis that nothing tells ends the way, and a
cell to which there is none is unknown: no number is given for it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from multicard.estimate import gpus
from multicard.estimate.basis import Basis
from multicard.estimate.time import scaling
from multicard.estimate.time.known import CPU_SD, GPUS, Known, Pairs, cells, effect, grown, joined
from multicard.estimate.time.observations import StepObservation, axes, differences, usable
from multicard.measure import repeated_runs

CONFIDENCE = 0.90  # of all intervals
MOST_CROSSED = 4  # axes, beyond which a cell is not alike
MOST_CELLS = 64  # from which a way is looked for


@dataclass(frozen=True)
class StepEstimate:
    """An estimated step.

    value, low, high: seconds, and the 90 % interval.
    basis: published where a printed figure is part of it.
    runs: observations that it rests on.
    about: what it rests on, in words. marks: of those runs.
    """

    value: float
    low: float
    high: float
    basis: Basis
    runs: int
    about: str
    marks: str = ""


def step(
    setting: Mapping[str, str],
    machine: str,
    commit: str | None,
    observations: Sequence[StepObservation],
    growth: scaling.Growth = scaling.PUBLISHED,
) -> StepEstimate | None:
    """A step of `setting` on `machine`; None where nothing tells it.

    Args:
        observations: of this machine, and printed ones of the same GPU; others are left aside. Marked ones count where
            those without marks tell nothing of this machine.
        growth: how a step grows with GPUs beyond two.
    """
    seen = [item for item in usable(observations) if item.published or item.machine == machine]
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
    growth: scaling.Growth,
) -> StepEstimate | None:
    on_gpu = setting.get("device") != '"cpu"' and (setting.get("device") == '"cuda"' or _is_gpu(machine))
    run_sd = repeated_runs.PRIOR_SD if on_gpu else CPU_SD
    wanted, all_cells = axes(setting), cells(seen, commit, run_sd)
    same = [cell for cell in all_cells if not differences(cell.setting, wanted)]
    if same:
        return _same(min(same, key=lambda cell: (cell.published, cell.variance)))
    count = int(wanted.get(GPUS, "1"))
    all_cells += grown(all_cells, count, growth, on_gpu)
    pairs, near = Pairs(all_cells, wanted), _nearest(all_cells, wanted)
    ways = [way for cell in near if (way := _walked(cell, wanted, pairs, on_gpu)) is not None]
    if not ways:
        return None
    best = min(ways, key=lambda way: (way.published, sum(way.sides)))
    return _estimate(best, Basis.published if best.published else Basis.scaled)


def _is_gpu(machine: str) -> bool:
    return machine in gpus.GPUS or machine.startswith(("NVIDIA", "Tesla"))


def _nearest(all_cells: Sequence[Known], wanted: Mapping[str, str]) -> list[Known]:
    """The MOST_CELLS that differ in the fewest axes, and in no more than MOST_CROSSED."""
    apart = sorted(((len(differences(cell.setting, wanted)), cell) for cell in all_cells), key=lambda pair: pair[0])
    return [cell for distance, cell in apart if distance <= MOST_CROSSED][:MOST_CELLS]


def _same(cell: Known) -> StepEstimate:
    kind = "probe" if cell.probe else "printed figure" if cell.published else "run"
    about = f"{cell.runs} {kind}{'s' * (cell.runs > 1)} of this cell{f', {cell.about}' * bool(cell.about)}"
    own = Basis.probed if cell.probe else Basis.measured
    return _estimate(replace(cell, about=about), Basis.published if cell.published else own)


def _walked(cell: Known, wanted: Mapping[str, str], pairs: Pairs, adds: bool) -> Known | None:
    """What a cell says of the wanted one; None where it differs in an axis of which nothing is known."""
    differ = sorted(differences(cell.setting, wanted), key=lambda axis: axis == GPUS)  # it needs the step on one GPU
    for axis in differ:
        crossed = effect(axis, cell, wanted, pairs, adds)
        if crossed is None:
            return None
        cell = replace(
            cell,
            log_s=cell.log_s + crossed.log_ratio,
            variance=cell.variance + crossed.variance,
            runs=cell.runs + crossed.runs,
            published=cell.published or crossed.published,
            marks=joined([cell.marks, crossed.marks]),
            about="; ".join(filter(None, (cell.about, crossed.about))),
        )
    return cell


def _estimate(cell: Known, basis: Basis) -> StepEstimate:
    value, (below, above) = math.exp(cell.log_s), cell.sides
    low, high = value * math.exp(-below), value * math.exp(above)
    return StepEstimate(value, low, high, basis, cell.runs, cell.about, cell.marks)
